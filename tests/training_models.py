"""Models whose training steps differ in something: recomputation, views, shared or frozen weights, own gradients, ..."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

EXAMPLES = Path(__file__).parents[1] / "examples"


def ids(*shape):
    return torch.zeros(*shape, dtype=torch.long)


def mlp(B=6, D=8, F=12):
    return nn.Sequential(nn.Linear(D, F), nn.GELU(), nn.Dropout(0.1), nn.Linear(F, D, bias=False)), (torch.zeros(B, D),), {}


def frozen(B=6, D=8, F=12):
    module = nn.Sequential(nn.Linear(D, F), nn.ReLU(), nn.Linear(F, D))
    module[0].requires_grad_(False)
    return module, (torch.zeros(B, D),), {}


def trained_input(B=6, D=8, F=12):
    return nn.Sequential(nn.Linear(D, F), nn.ReLU(), nn.Linear(F, D)), (torch.zeros(B, D, requires_grad=True),), {}


class Recurrent(nn.Module):
    def __init__(self, kind, D, F):
        super().__init__()
        self.body, self.out = kind(D, F, batch_first=True), nn.Linear(F, D)

    def forward(self, x):
        return self.out(self.body(x)[0])


def lstm(B=3, T=5, D=8, F=12):
    return Recurrent(nn.LSTM, D, F), (torch.zeros(B, T, D),), {}


def gru(B=3, T=5, D=8, F=12):
    return Recurrent(nn.GRU, D, F), (torch.zeros(B, T, D),), {}


class Convolutional(nn.Module):
    def __init__(self, C):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, C, 3, padding=1, stride=2), nn.BatchNorm2d(C)
        self.second, self.out = nn.Conv2d(C, 2 * C, 3, padding=1, bias=False), nn.Linear(2 * C, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 2)
        return self.out(functional.adaptive_avg_pool2d(self.second(x), 1).flatten(1))


def conv(B=2, I=16, C=4):
    return Convolutional(C), (torch.zeros(B, 3, I, I),), {}


class Block(nn.Module):
    def __init__(self, D, N):
        super().__init__()
        self.N, self.norm, self.qkv, self.out = N, nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.N, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Vision(nn.Module):
    def __init__(self, D, N, L, I, P, recompute):
        super().__init__()
        self.recompute = recompute
        self.patches, self.first = nn.Conv2d(3, D, P, P), nn.Parameter(torch.zeros(1, 1, D))
        self.positions = nn.Parameter(torch.zeros(1, (I // P) ** 2 + 1, D))
        self.blocks, self.head = nn.ModuleList(Block(D, N) for _ in range(L)), nn.Linear(D, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x) if self.recompute is None else checkpoint(block, x, use_reentrant=self.recompute)
        return self.head(x[:, 0])


def vit(B=2, D=16, N=2, L=2, I=16, P=4):
    return Vision(D, N, L, I, P, None), (torch.zeros(B, 3, I, I),), {}


def checkpointed(B=2, D=16, N=2, L=2, I=16, P=4):
    return Vision(D, N, L, I, P, False), (torch.zeros(B, 3, I, I),), {}


def checkpointed_reentrant(B=2, D=16, N=2, L=2, I=16, P=4):
    return Vision(D, N, L, I, P, True), (torch.zeros(B, 3, I, I),), {}


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x @ w) ** 2

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        grad = 2 * grad * (x @ w)
        return grad @ w.t(), x.t() @ grad


class OwnGradient(nn.Module):
    def __init__(self, D, F):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(D, F))

    def forward(self, x):
        return Squared.apply(x, self.w)


class Custom(nn.Module):
    def __init__(self, D, F):
        super().__init__()
        self.inner, self.square, self.outer = nn.Linear(D, D), OwnGradient(D, F), nn.Linear(F, D)

    def forward(self, x):
        return self.outer(self.square(self.inner(x)))


def custom(B=4, D=8, F=12):
    return Custom(D, F), (torch.zeros(B, D),), {}


class Tied(nn.Module):
    def __init__(self, V, D):
        super().__init__()
        self.embed, self.twice, self.head = nn.Embedding(V, D), nn.Linear(D, D), nn.Linear(D, V, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(D))

    def forward(self, tokens):
        x = self.embed(tokens)
        with torch.no_grad():
            self.seen.mul_(0.9).add_(x.mean((0, 1)))
        logits = self.head(self.twice(self.twice(x)))
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def tied(B=3, T=5, D=8, V=20):
    return Tied(V, D), (ids(B, T),), {}


class Views(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.a, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        q, k, v = self.a(x).chunk(3, -1)
        y = torch.zeros_like(q)
        y[:, 1:] = q[:, 1:] * k[:, :-1]
        y = y.clone()
        y[:, 0] += v[:, 0]
        return self.o(y)


def views(B=3, T=5, D=8):
    return Views(D), (torch.zeros(B, T, D),), {}


class PartlyFixed(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.fixed, self.out = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        with torch.no_grad():
            x = self.fixed(x)
        return self.out(x)


def partly_fixed(B=4, D=8):
    return PartlyFixed(D), (torch.zeros(B, D),), {}


class Autocast(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.up, self.out = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.out(functional.relu(self.up(x)))


def autocast(B=4, D=8):
    return Autocast(D), (torch.zeros(B, D),), {}


def gpt(B=8, T=12):
    spec = importlib.util.spec_from_file_location("gpt_example", EXAMPLES / "gpt.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example.model(), (), example.inputs(B=B, T=T)


def _causal(config, B, T, **options):
    import transformers

    transformers.logging.set_verbosity_error()
    module = transformers.AutoModelForCausalLM.from_config(config, **options)
    return module, (), {"input_ids": ids(B, T), "labels": ids(B, T), "use_cache": False}


def llama(B=2, T=6, D=32, F=48, N=4, K=2, H=8, L=2, V=50, attention="sdpa"):
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=D,
        intermediate_size=F,
        num_attention_heads=N,
        num_key_value_heads=K,
        head_dim=H,
        num_hidden_layers=L,
        vocab_size=V,
        attn_implementation=attention,
    )
    return _causal(config, B, T)


def gpt2(B=2, T=6, D=32, N=4, L=2, V=50):
    from transformers import GPT2Config

    return _causal(GPT2Config(n_embd=D, n_head=N, n_layer=L, vocab_size=V, bos_token_id=0, eos_token_id=0), B, T)


def bert(B=2, T=6, D=32, F=48, N=4, L=2, V=50):
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_size=D, intermediate_size=F, num_attention_heads=N, num_hidden_layers=L, vocab_size=V)
    return BertForMaskedLM(config), (), {"input_ids": ids(B, T), "labels": ids(B, T)}


def mixtral(B=2, T=8, D=32, F=48, E=4, k=2, L=2, V=50):
    from transformers import MixtralConfig

    config = MixtralConfig(
        vocab_size=V,
        hidden_size=D,
        intermediate_size=F,
        num_hidden_layers=L,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=E,
        num_experts_per_tok=k,
    )
    return _causal(config, B, T, dtype=torch.bfloat16)
