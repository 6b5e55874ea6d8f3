"""Caches, buffers, packed and shared weights, several types."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from families import Run, model
from torch import nn


@model({"B": 3, "T": 2, "S": 30, "D": 8}, {"B": 1, "T": 1, "S": 50, "D": 4})
def cache_by_index_copy(B=2, T=4, S=20, D=6):
    def run(self, x):
        self.cache.index_copy_(1, torch.arange(x.shape[1]), self.k(x))
        return (x @ self.cache.mT).softmax(-1) @ self.cache

    m = Run(run, k=nn.Linear(D, D))
    m.register_buffer("cache", torch.zeros(B, S, D))
    return m, (torch.randn(B, T, D),), {}


@model({"B": 3, "T": 2, "S": 30, "D": 8}, {"B": 1, "T": 1, "S": 50, "D": 4})
def cache_by_slice(B=2, T=4, S=20, D=6):
    def run(self, x):
        self.cache[:, : x.shape[1]] = self.k(x)
        seen = self.cache[:, : x.shape[1]]
        return (x @ seen.mT).softmax(-1) @ seen

    m = Run(run, k=nn.Linear(D, D))
    m.register_buffer("cache", torch.zeros(B, S, D))
    return m, (torch.randn(B, T, D),), {}


@model({"B": 3, "D": 8, "F": 10}, {"B": 1, "D": 4, "F": 7}, outside=({"B": 1, "D": 5, "F": 7},))
def packed_int4(B=2, D=12, F=9):
    def run(self, x):
        low, high = self.w & 15, self.w >> 4
        w = torch.stack([low, high], -1).flatten(-2).to(x.dtype) - 8
        return x @ (w * self.scale[:, None]).mT

    m = Run(run)
    m.register_buffer("w", torch.zeros(F, D // 2, dtype=torch.uint8))
    m.register_buffer("scale", torch.ones(F))
    return m, (torch.randn(B, D),), {}


@model({"B": 3, "D": 8, "F": 10}, {"B": 1, "D": 4, "F": 7})
def scaled_int8(B=2, D=12, F=9):
    m = Run(lambda self, x: (x @ self.w.to(x.dtype).mT) * self.scale)
    m.register_buffer("w", torch.zeros(F, D, dtype=torch.int8))
    m.register_buffer("scale", torch.ones(F, dtype=torch.bfloat16))
    return m, (torch.randn(B, D, dtype=torch.bfloat16),), {}


@model({"B": 3, "D": 128, "g": 64, "F": 10}, {"B": 2, "D": 96, "g": 32, "F": 7})
def grouped_scales(B=2, D=64, g=16, F=9):
    """One scale per group of g input channels."""

    def run(self, x):
        w = (self.w.view(self.w.shape[0], -1, self.g).float() * self.scale[..., None]).flatten(1)
        return x @ w.mT

    m = Run(run, g=g)
    m.register_buffer("w", torch.zeros(F, D, dtype=torch.int8))
    m.register_buffer("scale", torch.ones(F, D // g))
    return m, (torch.randn(B, D),), {}


@model({"B": 3, "V": 80, "D": 10}, {"B": 1, "V": 40, "D": 7})
def tied_head(B=2, V=50, D=9):
    def run(self, ids):
        return self.head(self.embed(ids))

    m = Run(run, embed=nn.Embedding(V, D), head=nn.Linear(D, V, bias=False))
    m.head.weight = m.embed.weight
    return m, (torch.randint(0, 40, (B, 5)),), {}


@model({"B": 3, "D": 10}, {"B": 1, "D": 7})
def shared_by_two(B=2, D=9):
    f = nn.Linear(D, D)
    return nn.Sequential(f, nn.ReLU(), f, nn.Sequential(f)), (torch.randn(B, D),), {}


@model({"B": 3, "D": 10}, {"B": 2, "D": 7})
def autocast(B=2, D=9):
    def run(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = self.a(x)
            y = self.norm(y)
            return self.b(y)

    return Run(run, a=nn.Linear(D, D), b=nn.Linear(D, D), norm=nn.LayerNorm(D)), (torch.randn(B, D),), {}


@model({"B": 3, "D": 10}, {"B": 2, "D": 7})
def double_accumulation(B=2, D=9):
    return Run(lambda self, x: self.a(x).double().cumsum(0).half(), a=nn.Linear(D, D)), (torch.randn(B, D),), {}


@model({"B": 3, "D": 10}, {"B": 5, "D": 7})
def running_statistics(B=4, D=9):
    return nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D)).train(), (torch.randn(B, D),), {}


@model({"B": 3, "D": 10}, {"B": 5, "D": 7})
def in_place_chain(B=4, D=9):
    def run(self, x):
        y = self.a(x)
        y.mul_(2).add_(1)
        y[:, 0] = 0
        y[:, 1:].clamp_(min=0)
        return y

    return Run(run, a=nn.Linear(D, D)), (torch.randn(B, D),), {}


@model({"B": 3, "V": 80, "D": 10, "T": 6}, {"B": 1, "V": 40, "D": 7, "T": 9})
def embedding_bag(B=2, V=50, D=9, T=4):
    return nn.EmbeddingBag(V, D, mode="sum"), (torch.randint(0, 40, (B, T)),), {}


@model({"B": 3, "D": 8, "r": 3}, {"B": 1, "D": 16, "r": 2})
def low_rank_adapter(B=2, D=12, r=4):
    def run(self, x):
        return F.linear(x, self.w.weight + self.b @ self.a)

    return (
        Run(run, w=nn.Linear(D, D, bias=False), a=nn.Parameter(torch.zeros(r, D)), b=nn.Parameter(torch.zeros(D, r))),
        (torch.randn(B, D),),
        {},
    )


@model({"B": 3, "K": 8, "S": 12}, {"B": 1, "K": 4, "S": 5})
def ring_buffer(B=2, K=6, S=7):
    """The cache is rolled, then its last slot is written."""

    def run(self, x):
        self.cache = torch.roll(self.cache, -1, 1)
        self.cache[:, -1] = x
        return torch.einsum("bk,bsk->bs", x, self.cache)

    m = Run(run)
    m.register_buffer("cache", torch.zeros(B, S, K))
    return m, (torch.randn(B, K),), {}
