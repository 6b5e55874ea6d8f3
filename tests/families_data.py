"""What sizes do not determine: branches on values, and routing, whose sum is known."""

from __future__ import annotations

import torch
from families import Run, model
from torch import nn


@model(refused="families_data.py:13")
def branch_on_sum(B=4, D=6):
    def run(self, x):
        if x.sum() > 0:
            return self.a(x)
        return x

    return Run(run, a=nn.Linear(D, D)), (torch.randn(B, D),), {}


@model(refused="families_data.py:23")
def item_as_length(B=4, D=6):
    def run(self, x):
        n = int(x.abs().max().item())
        return self.a(x[:n])

    return Run(run, a=nn.Linear(D, D)), (torch.randn(B, D),), {}


@model(refused="families_data.py:32")
def positive_rows(B=4, D=6):
    def run(self, x):
        return self.a(x[x[:, 0] > 0])

    return Run(run, a=nn.Linear(D, D)), (torch.randn(B, D),), {}


@model(refused="families_data.py:40")
def nonzero_rows(B=4, D=6):
    def run(self, x):
        rows = x[:, 0].relu().nonzero().squeeze(-1)
        return self.a(x[rows])

    return Run(run, a=nn.Linear(D, D)), (torch.randn(B, D),), {}


@model(refused="families_data.py:49")
def flag_input(B=4, D=6):
    def run(self, x, flag):
        if flag[0] > 1:
            return self.a(x)
        return x

    return Run(run, a=nn.Linear(D, D)), (torch.randn(B, D), torch.tensor([1, 2, 3])), {}


@model(refused="families_data.py:59")
def unique_tokens(B=4, V=60):
    def run(self, x):
        return self.a(torch.unique(x.round()))

    return Run(run, a=nn.Linear(1, 1)), (torch.randn(B, V),), {}


@model({"B": 24, "E": 6, "D": 5}, {"B": 40, "E": 8, "D": 3})
def routed_experts(B=12, E=4, D=6):
    def run(self, x):
        choice = self.router(x).argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (choice == i).nonzero().squeeze(-1)
            out[rows] = expert(x[rows])
        return out

    return Run(run, router=nn.Linear(D, E), experts=nn.ModuleList(nn.Linear(D, D) for _ in range(E))), (torch.randn(B, D),), {}


@model({"B": 24, "E": 6, "k": 3, "D": 5}, {"B": 40, "E": 8, "k": 2, "D": 3})
def top_k_experts(B=12, E=4, k=2, D=6):
    def run(self, x):
        w, choice = self.router(x).softmax(-1).topk(self.k, -1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, slot = torch.where(choice == i)
            out.index_add_(0, rows, expert(x[rows]) * w[rows, slot, None])
        return out

    return (
        Run(run, k=k, router=nn.Linear(D, E), experts=nn.ModuleList(nn.Linear(D, D) for _ in range(E))),
        (torch.randn(B, D),),
        {},
    )
