"""A GPT small enough to read in one sitting, with attention written out, and its training step.

costir analyze examples/gpt.py --phase train
costir analyze examples/gpt.py --size B=32 --keep B,T

Vocabulary 44, context 96, 2 layers, 4 heads, width 64, MLP 4 x 64 with GELU, LayerNorm before each block, learned
positions, biases, a head of its own (not tied to the embedding), AdamW.
"""

import math

import torch
from torch import nn
from torch.nn import functional

CONTEXT = 96


class Attention(nn.Module):
    def __init__(self, D, N):
        super().__init__()
        self.heads = N
        self.query, self.key, self.value, self.out = (nn.Linear(D, D) for _ in range(4))
        self.register_buffer("mask", torch.tril(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool)), persistent=False)

    def forward(self, x):
        B, T, D = x.shape
        H = D // self.heads
        q, k, v = (f(x).view(B, T, -1, H).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-2, -1) / math.sqrt(H)
        scores = scores.masked_fill(~self.mask[:T, :T], float("-inf"))
        mixed = torch.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(B, T, -1))


class Block(nn.Module):
    def __init__(self, D, N):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attention = Attention(D, N)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, D, N, L, V):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, D), nn.Embedding(CONTEXT, D)
        self.blocks = nn.ModuleList(Block(D, N) for _ in range(L))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, ids, targets=None):
        T = ids.shape[1]
        if T > CONTEXT:
            raise ValueError(f"at most {CONTEXT} tokens")
        x = self.tokens(ids) + self.positions(torch.arange(T, device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def model(D=64, N=4, L=2, V=44):
    return GPT(D, N, L, V)


def inputs(B=32, T=96):
    ids = torch.zeros(B, T, dtype=torch.long)
    return {"ids": ids, "targets": ids}


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-3)


tp_plan = {
    "tokens": "embedding", "head": "colwise_gather",
    "blocks.*.attention.query": "colwise", "blocks.*.attention.key": "colwise", "blocks.*.attention.value": "colwise",
    "blocks.*.attention.out": "rowwise", "blocks.*.up": "colwise", "blocks.*.down": "rowwise",
}  # fmt: skip
