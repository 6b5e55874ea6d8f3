"""Blocks and whole small models, and optimizers, whose kernels are compared with TorchInductor's.

Models of transformers are run layer by layer: their own forward makes a mask under torch.compile and none without.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from fusion_cases import Loss, case
from torch import nn
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

WORDS, LENGTH = 320, 64


def example(name: str) -> Any:
    """A module of examples/, under a name by which it is found again."""
    name, path = f"fusion_{name}", Path(__file__).parent.parent / "examples" / f"{name}.py"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def tokens(batch: int = 2) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randint(0, WORDS, (batch, LENGTH)) for _ in range(2))


def states(width: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, LENGTH, width),)


class Model(nn.Module):
    """Parts of a model of transformers, and the loss of what they give."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids, targets):
        logits = self.logits(ids, torch.arange(ids.shape[1])[None])
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


# ---- blocks ------------------------------------------------------------------------------------------------------------


@case
def attention_masked(width):
    return Loss(example("gpt").Attention(width, 4), width), states(width)


def gpt2_config(width):
    return transformers.GPT2Config(
        n_embd=width, n_head=4, n_layer=2, vocab_size=WORDS, n_positions=LENGTH, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0,
        bos_token_id=0, eos_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip


@case
def gpt2_block(width):
    return Loss(GPT2Block(gpt2_config(width), layer_idx=0), width), states(width)


def llama_config(width):
    return transformers.LlamaConfig(
        hidden_size=width, intermediate_size=3 * width, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
        vocab_size=WORDS, attn_implementation="sdpa",
    )  # fmt: skip


class LlamaBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        config = llama_config(width)
        self.layer, self.rotary = LlamaDecoderLayer(config, 0), LlamaRotaryEmbedding(config)

    def forward(self, x):
        return self.layer(x, position_embeddings=self.rotary(x, torch.arange(x.shape[1])[None]))


@case
def llama_block(width):
    return Loss(LlamaBlock(width), width), states(width)


# ---- whole models ------------------------------------------------------------------------------------------------------


@case
def gpt(width):
    return example("gpt").model(D=width, V=WORDS), tokens(4)


class GPT2(Model):
    def logits(self, ids, positions):
        body = self.model.transformer
        x = body.wte(ids) + body.wpe(positions)
        for block in body.h:
            x = block(x)
        return self.model.lm_head(body.ln_f(x))


@case
def gpt2(width):
    return GPT2(transformers.GPT2LMHeadModel(gpt2_config(width))), tokens()


class Llama(Model):
    def logits(self, ids, positions):
        body = self.model.model
        x = body.embed_tokens(ids)
        rotary = body.rotary_emb(x, positions)
        for layer in body.layers:
            x = layer(x, position_embeddings=rotary)
        return self.model.lm_head(body.norm(x))


@case
def llama(width):
    return Llama(transformers.LlamaForCausalLM(llama_config(width))), tokens()


class Bert(Model):
    def logits(self, ids, positions):
        x = self.model.bert.embeddings(input_ids=ids)
        for layer in self.model.bert.encoder.layer:
            x = layer(x)
        return self.model.cls(x)


@case
def bert(width):
    config = transformers.BertConfig(
        hidden_size=width, intermediate_size=4 * width, num_attention_heads=4, num_hidden_layers=2, vocab_size=WORDS,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation="sdpa",
    )  # fmt: skip
    return Bert(transformers.BertForMaskedLM(config)), tokens()


class Classifier(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, target):
        return F.cross_entropy(self.model(x), target)


def images(side):
    return torch.randn(4, 3, side, side), torch.randint(0, 10, (4,))


@case
def cnn(width):
    return Classifier(example("cnn").model(C=width)), images(32)


class Shortcut(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.first, self.second = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _ in range(2))
        narrow = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))
        self.around = narrow if a != b else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.around(x))


@case
def resnet(width):
    model = nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Shortcut(width, width, 1), Shortcut(width, 2 * width, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(2 * width, 10),
    )  # fmt: skip
    return Classifier(model), images(64)


# ---- optimizers --------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda params: torch.optim.AdamW(params, foreach=False),
    "adamw_foreach": lambda params: torch.optim.AdamW(params, foreach=True),
    "adam_amsgrad": lambda params: torch.optim.Adam(params, amsgrad=True),
    "sgd_momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "rmsprop": lambda params: torch.optim.RMSprop(params),
}


def trained(width: int) -> nn.Module:
    """What an optimizer works on."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
