"""Inputs and outputs of every form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from families import Run, model
from torch import nn


@model({"B": 3, "D": 10}, {"B": 5, "D": 7})
def dict_input(B=4, D=9):
    def run(self, batch):
        return {"y": self.a(batch["x"]), "none": None, "more": [batch["z"][0] + 1]}

    return Run(run, a=nn.Linear(D, D)), ({"x": torch.randn(B, D), "z": [torch.randn(B)]},), {}


@dataclass
class Batch:
    x: torch.Tensor
    mask: torch.Tensor | None


@model({"B": 3, "D": 10}, {"B": 5, "D": 7})
def dataclass_input(B=4, D=9):
    def run(self, batch):
        y = self.a(batch.x)
        return Batch(y if batch.mask is None else y * batch.mask, None)

    return Run(run, a=nn.Linear(D, D)), (Batch(torch.randn(B, D), None),), {}


@model({"B": 3, "D": 10}, {"B": 5, "D": 7})
def keywords_only(B=4, D=9):
    def run(self, *, x, scale=None):
        return self.a(x) * (1 if scale is None else scale)

    return Run(run, a=nn.Linear(D, D)), (), {"x": torch.randn(B, D), "scale": torch.randn(D)}


@model({"B": 3, "D": 10, "F": 4}, {"B": 5, "D": 7, "F": 3})
def lazy_layers(B=4, D=9, F=5):
    return nn.Sequential(nn.LazyLinear(F), nn.ReLU(), nn.LazyLinear(2 * F)), (torch.randn(B, D),), {}


@model({"B": 3, "D": 10}, {"B": 5, "D": 7})
def number_argument(B=4, D=9):
    return Run(lambda self, x, n: self.a(x[:n]), a=nn.Linear(D, D)), (torch.randn(B + 3, D), B), {}


@model({"B": 3, "D": 10}, {"B": 1, "D": 1}, {"B": 2, "D": 1}, {"B": 1, "D": 4})
def ones_at_base(B=1, D=4):
    return nn.Sequential(nn.Linear(D, 2 * D), nn.ReLU(), nn.Linear(2 * D, 1)), (torch.randn(B, D),), {}


@model({"B": 3, "T": 5, "D": 10}, {"B": 7, "T": 2, "D": 4}, {"B": 2, "T": 1, "D": 4})
def equal_base_sizes(B=4, T=4, D=4):
    return Run(lambda self, x: (self.a(x) @ x.mT).softmax(-1) @ x, a=nn.Linear(D, D)), (torch.randn(B, T, D),), {}


@model({"A": 3, "C": 5, "D": 10}, {"A": 7, "C": 2, "D": 4})
def broadcast(A=4, C=8, D=16):
    return Run(lambda self, a, c: (a[:, None] + c[None]).relu().mean(1)), (torch.randn(A, D), torch.randn(C, D)), {}


@model({"B": 3, "D": 10}, {"B": 1, "D": 7})
def expanded_input(B=4, D=9):
    return (
        Run(
            lambda self, x: x + x.sum(),
        ),
        (torch.randn(1, D).expand(B, D),),
        {},
    )


@model({"P": 5, "Q": 11}, {"P": 13, "Q": 2})
def prime_sizes(P=7, Q=13):
    return nn.Sequential(nn.Linear(P, Q), nn.Tanh(), nn.Linear(Q, P * Q)), (torch.randn(P + Q, P),), {}


@model({"B": 100, "D": 1000}, {"B": 1, "D": 4096})
def large_sizes(B=1024, D=8192):
    return nn.Linear(D, 4 * D), (torch.randn(B, D),), {}


@model({"only": 5}, {"only": 1})
def one_size(only=3):
    return nn.Linear(8, 8), (torch.randn(only, 8),), {}
