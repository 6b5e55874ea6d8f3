"""A GPT of one block whose attention is torch's own, with plans to divide it: for analyses and for real runs."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, D, N):
        super().__init__()
        self.width = D // N
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.query, self.key, self.value, self.out = (nn.Linear(D, D) for _ in range(4))
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(2, (-1, self.width)).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, D, N, V):
        super().__init__()
        self.tokens = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(Block(D, N) for _ in range(1))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, ids, targets):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def model(D=64, N=8, V=48):
    return GPT(D, N, V)


def inputs(B=8, T=96):
    ids = torch.zeros(B, T, dtype=torch.long)
    return {"ids": ids, "targets": ids}


_COLUMNS, _ROWS = ("query", "key", "value", "up"), ("out", "down")
tp_plan = {
    "tokens": "embedding",
    **{f"blocks.*.{n}": "colwise" for n in _COLUMNS},
    **{f"blocks.*.{n}": "rowwise" for n in _ROWS},
    "head": "colwise_gather",
}
sp_plan = {
    "tokens": "embedding_sequence",
    **{f"blocks.*.{n}": "sequence" for n in ("norm1", "norm2")},
    **{f"blocks.*.{n}": "colwise_sequence" for n in _COLUMNS},
    **{f"blocks.*.{n}": "rowwise_sequence" for n in _ROWS},
    "norm": "sequence",
    "head": "colwise_sequence_gather",
}
