"""Programs that take another way at other sizes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from families import Run, model
from torch import nn


@model({"B": 3, "T": 7, "D": 10}, {"B": 4, "T": 40, "D": 6}, {"B": 2, "T": 8, "D": 6}, {"B": 2, "T": 9, "D": 6})
def short_or_long(B=2, T=20, D=12):
    def run(self, x):
        if x.shape[1] <= 8:
            return self.short(x)
        return self.b(F.relu(self.a(x)))

    return Run(run, short=nn.Linear(D, D), a=nn.Linear(D, 2 * D), b=nn.Linear(2 * D, D)), (torch.randn(B, T, D),), {}


@model({"B": 3, "T": 6, "D": 10}, {"B": 4, "T": 3, "D": 6}, {"B": 5, "T": 40, "D": 6})
def short_at_base(B=2, T=5, D=12):
    def run(self, x):
        if x.shape[1] < 8:
            return self.short(x)
        return self.b(F.relu(self.a(x)))

    return Run(run, short=nn.Linear(D, D), a=nn.Linear(D, 2 * D), b=nn.Linear(2 * D, D)), (torch.randn(B, T, D),), {}


@model({"B": 3, "D": 8}, {"B": 5, "D": 40}, {"B": 5, "D": 41}, {"B": 5, "D": 9})
def even_width(B=4, D=16):
    def run(self, x):
        if x.shape[-1] % 2 == 0:
            x = self.mix(x)
        return self.out(x)

    return Run(run, mix=nn.Linear(D, D), out=nn.Linear(D, 3)), (torch.randn(B, D),), {}


@model({"B": 3, "A": 8, "C": 5}, {"B": 5, "A": 4, "C": 19}, {"B": 5, "A": 7, "C": 7}, {"B": 2, "A": 9, "C": 8})
def widest_of_two(B=4, A=6, C=10):
    width = max(A, C)

    def run(self, a, c):
        w = max(a.shape[-1], c.shape[-1])
        a, c = F.pad(a, (0, w - a.shape[-1])), F.pad(c, (0, w - c.shape[-1]))
        return self.out(a + c)

    return Run(run, out=nn.Linear(width, 4)), (torch.randn(B, A), torch.randn(B, C)), {}


@model({"B": 3, "A": 8, "C": 5}, {"B": 5, "A": 4, "C": 19}, {"B": 5, "A": 7, "C": 7})
def narrowest_of_two(B=4, A=6, C=10):
    def run(self, a, c):
        n = min(a.shape[-1], c.shape[-1])
        return self.out(a[:, :n] * c[:, :n])

    return Run(run, out=nn.Linear(min(A, C), 4)), (torch.randn(B, A), torch.randn(B, C)), {}


@model({"B": 3, "T": 40, "W": 5}, {"B": 5, "T": 9, "W": 7}, {"B": 1, "T": 30, "W": 5}, {"B": 9, "T": 30, "W": 5})
def nested_branches(B=4, T=24, W=6):
    def run(self, x):
        if x.shape[1] > self.window:
            x = x[:, -self.window :]
            if x.shape[0] > 2:
                x = self.up(x)
        return self.out(x.reshape(x.shape[0], x.shape[1], -1)[..., :8])

    return Run(run, window=W, up=nn.Linear(8, 8), out=nn.Linear(8, 8)), (torch.randn(B, T, 8),), {}


@model({"B": 3, "D": 30}, {"B": 5, "D": 64}, {"B": 5, "D": 65}, {"B": 2, "D": 80})
def branch_in_constructor(B=4, D=96):
    body = nn.Sequential(nn.Linear(D, 16), nn.Linear(16, D)) if D > 64 else nn.Linear(D, D)
    return Run(lambda self, x: self.body(x), body=body), (torch.randn(B, D),), {}


@model({"B": 3, "T": 30, "M": 50, "D": 6}, {"B": 2, "T": 80, "M": 33, "D": 6}, {"B": 2, "T": 40, "M": 40, "D": 6})
def clamped_to_positions(B=2, T=10, M=32, D=8):
    def run(self, ids):
        ids = ids[:, : self.most]
        return self.out(self.token(ids) + self.position(torch.arange(ids.shape[1])))

    parts = {"most": M, "token": nn.Embedding(50, D), "position": nn.Embedding(M, D), "out": nn.Linear(D, 50)}
    return Run(run, **parts), (torch.randint(0, 50, (B, T)),), {}


@model({"B": 3, "T": 30, "D": 12}, {"B": 1, "T": 17, "D": 8}, {"B": 4, "T": 1, "D": 8}, {"B": 4, "T": 2, "D": 8})
def decode_or_prefill(B=2, T=16, D=8):
    def run(self, x):
        scores = x @ x.transpose(1, 2)
        if x.shape[1] > 1:
            scores = scores + torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        return scores.softmax(-1) @ x

    return Run(run), (torch.randn(B, T, D),), {}


@model({"B": 3, "T": 30, "S": 30}, {"B": 3, "T": 30, "S": 10}, {"B": 2, "T": 9, "S": 9})
def equal_or_not(B=2, T=7, S=5):
    def run(self, x, y):
        if x.shape[1] == y.shape[1]:
            return self.a(x + y)
        return self.a(x).sum(1) + self.a(y).sum(1)

    return Run(run, a=nn.Linear(6, 6)), (torch.randn(B, T, 6), torch.randn(B, S, 6)), {}


@model({"B": 3, "T": 30, "D": 7}, {"B": 3, "T": 12, "D": 7}, {"B": 3, "T": 20, "D": 3})
def three_ways(B=2, T=100, D=5):
    def run(self, x):
        n = x.shape[1]
        if n < 16:
            return self.a(x)
        if n < 64:
            return self.b(self.a(x))
        return self.a(self.b(self.a(x)))

    return Run(run, a=nn.Linear(D, D), b=nn.Linear(D, D)), (torch.randn(B, T, D),), {}


@model({"B": 30, "D": 7}, {"B": 3, "D": 70}, {"B": 8, "D": 8})
def branch_on_product(B=2, D=20):
    def run(self, x):
        if x.numel() > 64:
            return self.a(x)
        return self.a(x) + self.b(x)

    return Run(run, a=nn.Linear(D, D), b=nn.Linear(D, D)), (torch.randn(B, D),), {}


@model({"B": 3, "D": 24, "N": 4}, {"B": 3, "D": 12, "N": 12}, {"B": 2, "D": 30, "N": 5})
def asserted(B=2, D=12, N=3):
    def run(self, x):
        b, t, d = x.shape
        assert d % self.heads == 0, "width must be a multiple of the heads"
        h = d // self.heads
        q = self.q(x).view(b, t, self.heads, h).transpose(1, 2)
        return (q @ q.transpose(-1, -2)).softmax(-1) @ q

    return Run(run, heads=N, q=nn.Linear(D, D)), (torch.randn(B, 5, D),), {}
