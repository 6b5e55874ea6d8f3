"""Layers that differ by their place."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from families import Run, model
from torch import nn


class Attention(nn.Module):
    def __init__(self, D, window=None):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)
        self.window = window

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.window is not None:
            k, v = k[:, -self.window :], v[:, -self.window :]
        return x + F.softmax(q @ k.mT, -1) @ v


@model({"B": 3, "T": 12, "L": 4, "D": 8}, {"B": 2, "T": 30, "L": 10, "D": 4}, {"B": 2, "T": 30, "L": 7, "D": 4})
def every_second_sliding(B=2, T=10, L=4, D=8):
    return nn.Sequential(*[Attention(D, 4 if i % 2 else None) for i in range(L)]), (torch.randn(B, T, D),), {}


@model({"B": 3, "T": 12, "L": 6, "D": 8}, {"B": 2, "T": 9, "L": 15, "D": 4}, {"B": 2, "T": 9, "L": 4, "D": 4})
def every_third_wide(B=2, T=4, L=9, D=8):
    """User code decides by the index in a loop; modules are alike."""

    def run(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x) if i % 3 else layer(layer(x))
        return x

    return Run(run, layers=nn.ModuleList(nn.Linear(D, D) for _ in range(L))), (torch.randn(B, T, D),), {}


@model({"B": 3, "L": 5, "D": 8}, {"B": 2, "L": 12, "D": 4}, {"B": 2, "L": 8, "D": 4})
def dense_first_layers(B=2, L=8, D=6):
    layers = [
        nn.Linear(D, D) if i < 2 else nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D)) for i in range(L)
    ]
    return nn.Sequential(*layers), (torch.randn(B, D),), {}


@model({"B": 3, "L": 4, "D": 8}, {"B": 2, "L": 12, "D": 4}, {"B": 2, "L": 16, "D": 4})
def every_fourth_experts(B=2, L=8, D=6):
    def run(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(D, 3)
            self.w = nn.Parameter(torch.randn(3, D, D))

        def forward(self, x):
            return torch.einsum("be,edf,bd->bf", self.gate(x).softmax(-1), self.w, x)

    layers = nn.ModuleList(Experts() if i % 4 == 3 else nn.Linear(D, D) for i in range(L))
    return Run(run, layers=layers), (torch.randn(B, D),), {}


@model({"B": 3, "T": 14, "L": 4, "D": 8}, {"B": 2, "T": 9, "L": 8, "D": 4})
def conv_and_attention(B=2, T=10, L=6, D=8):
    def run(self, x):
        for layer in self.layers:
            x = layer(x.mT).mT if isinstance(layer, nn.Conv1d) else layer(x)
        return x

    layers = nn.ModuleList(nn.Conv1d(D, D, 3, padding=1) if i % 2 == 0 else Attention(D) for i in range(L))
    return Run(run, layers=layers), (torch.randn(B, T, D),), {}


@model({"B": 3, "L": 4, "D": 8}, {"B": 2, "L": 12, "D": 4}, {"B": 2, "L": 7, "D": 4})
def last_layer_differs(B=2, L=8, D=6):
    layers = [nn.Linear(D, D) if i < L - 1 else nn.Linear(D, 2 * D) for i in range(L)]
    return nn.Sequential(*layers), (torch.randn(B, D),), {}


@model({"B": 3, "L": 4, "D": 8}, {"B": 2, "L": 12, "D": 4})
def width_by_depth(B=2, L=3, D=6):
    """A pyramid: layer i maps (i + 1)*D to (i + 2)*D."""
    return nn.Sequential(*[nn.Linear((i + 1) * D, (i + 2) * D) for i in range(L)]), (torch.randn(B, D),), {}


@model({"B": 3, "T": 5, "L": 12, "D": 8}, {"B": 2, "T": 3, "L": 18, "D": 4}, {"B": 2, "T": 3, "L": 7, "D": 4})
def every_fifth_by_flag(B=2, T=4, L=12, D=8):
    class Layer(nn.Module):
        def __init__(self, i):
            super().__init__()
            self.wide = (i + 1) % 6 == 0
            self.f = nn.Linear(D, D)

        def forward(self, x):
            return self.f(self.f(x)) if self.wide else self.f(x)

    return nn.Sequential(*[Layer(i) for i in range(L)]), (torch.randn(B, T, D),), {}


@model({"B": 3, "L": 4, "M": 3, "D": 8}, {"B": 2, "L": 2, "M": 6, "D": 4})
def two_depths(B=2, L=3, M=2, D=6):
    """An encoder of L and a decoder of M layers."""

    def run(self, x):
        y = self.encoder(x)
        for layer in self.decoder:
            x = layer(torch.cat([x, y], -1))
        return x

    encoder = nn.Sequential(*[nn.Linear(D, D) for _ in range(L)])
    return Run(run, encoder=encoder, decoder=nn.ModuleList(nn.Linear(2 * D, D) for _ in range(M))), (torch.randn(B, D),), {}


@model({"B": 3, "L": 4, "D": 8}, {"B": 2, "L": 7, "D": 4})
def shared_layer(B=2, L=3, D=6):
    """One layer, run L times: parameters once."""

    def run(self, x):
        for _ in range(self.rounds):
            x = self.layer(x)
        return x

    return Run(run, rounds=L, layer=nn.Linear(D, D)), (torch.randn(B, D),), {}


@model({"B": 3, "L": 4, "D": 8}, {"B": 2, "L": 7, "D": 4})
def digit_names(B=2, L=3, D=6):
    def run(self, x):
        for name in self.layers:
            x = self.layers[name](x)
        return x

    return Run(run, layers=nn.ModuleDict({str(i): nn.Linear(D, D) for i in range(L)})), (torch.randn(B, D),), {}


@model({"B": 3, "L": 4, "D": 8}, {"B": 2, "L": 7, "D": 4})
def nested_stacks(B=2, L=3, D=6):
    stage = lambda d: nn.Sequential(*[nn.Sequential(nn.Linear(d, d), nn.ReLU()) for _ in range(L)])
    return nn.Sequential(stage(D), nn.Linear(D, 2 * D), stage(2 * D)), (torch.randn(B, D),), {}
