"""A language model with a Python loop over experts: every size stays a letter, and few operators are run to find that out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import costir
from costir import trace
from costir.symbolic import expand, size


class Experts(nn.Module):
    def __init__(self, D: int, F: int, E: int, k: int) -> None:
        super().__init__()
        self.k, self.gate = k, nn.Linear(D, E, bias=False)
        self.up = nn.ModuleList([nn.Linear(D, F, bias=False) for _ in range(E)])
        self.down = nn.ModuleList([nn.Linear(F, D, bias=False) for _ in range(E)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        weights, chosen = self.gate(rows).softmax(-1).topk(self.k, -1)
        out = torch.zeros_like(rows)
        for e in range(len(self.up)):
            row, place = torch.where(chosen == e)
            out.index_add_(0, row, self.down[e](F.silu(self.up[e](rows[row]))) * weights[row, place, None])
        return out.view_as(x)


class Model(nn.Module):
    def __init__(self, D: int, F: int, E: int, k: int, L: int, V: int) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(V, D), nn.Linear(D, V, bias=False)
        self.layers = nn.ModuleList([Experts(D, F, E, k) for _ in range(L)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def model(B=2, T=64, D=64, F=128, E=8, k=2, L=4, V=1000):
    return Model(D, F, E, k, L, V), (torch.zeros(B, T, dtype=torch.long),), {}


def test_experts_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = trace.run, []

    def counting(family: Any, sizes: Mapping[str, int], *more: Any) -> trace.Trace:
        made = run(family, sizes, *more)
        calls.append(len(made.events))
        return made

    monkeypatch.setattr(trace, "run", counting)
    found = costir.analyze(model)
    B, T, D, F, E, k, L, V = (size(n) for n in "BTDFEkLV")
    assert expand(found.matmul_flops - (L * (2 * B * T * D * E + 4 * B * T * k * D * F) + 2 * B * T * D * V)) == 0
    assert expand(found.params - (L * (D * E + 2 * E * D * F) + 2 * D * V)) == 0
    assert [str(c.condition) for c in found.constraints] == ["E >= k"]
    assert sum(calls) < 12 * calls[0]
