"""Programs whose number of operators follows a size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from families import Run, model
from torch import nn


@model({"B": 3, "T": 11, "D": 5}, {"B": 1, "T": 2, "D": 8}, {"B": 4, "T": 1, "D": 4})
def gru_cell_loop(B=2, T=6, D=4):
    def run(self, x):
        h = x.new_zeros(x.shape[0], x.shape[2])
        outs = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            outs.append(h)
        return torch.stack(outs, 1)

    return Run(run, cell=nn.GRUCell(D, D)), (torch.randn(B, T, D),), {}


@model({"B": 3, "T": 11, "D": 5}, {"B": 1, "T": 4, "D": 8}, {"B": 4, "T": 2, "D": 4})
def growing_attention(B=2, T=6, D=4):
    """Step t attends to t + 1 keys."""

    def run(self, x):
        outs = []
        for t in range(x.shape[1]):
            keys = x[:, : t + 1]
            p = (keys @ x[:, t].unsqueeze(-1)).softmax(1)
            outs.append((p * keys).sum(1))
        return torch.stack(outs, 1)

    return Run(run), (torch.randn(B, T, D),), {}


@model({"B": 3, "T": 20, "W": 5}, {"B": 1, "T": 40, "W": 8}, {"B": 4, "T": 16, "W": 4}, outside=({"B": 3, "T": 21, "W": 5},))
def whole_chunks(B=2, T=12, W=3):
    def run(self, x):
        return torch.cat([self.out(c) for c in x.split(self.window, 1)], 1)

    return Run(run, window=W, out=nn.Linear(4, 4)), (torch.randn(B, T, 4),), {}


@model({"B": 3, "T": 20, "W": 5}, {"B": 1, "T": 40, "W": 8}, outside=({"B": 1, "T": 41, "W": 8},))
def chunks_by_step(B=2, T=12, W=3):
    def run(self, x):
        total = 0
        for start in range(0, x.shape[1], self.window):
            c = x[:, start : start + self.window]
            total = total + self.out(c).sum()
        return total

    return Run(run, window=W, out=nn.Linear(4, 4)), (torch.randn(B, T, 4),), {}


@model({"B": 3, "H": 7, "W": 5}, {"B": 1, "H": 4, "W": 8}, {"B": 4, "H": 3, "W": 3})
def nested_loops(B=2, H=4, W=3):
    def run(self, x):
        out = x.new_zeros(x.shape[0], 6)
        for i in range(x.shape[1]):
            for j in range(x.shape[2]):
                out = out + self.f(x[:, i, j])
        return out

    return Run(run, f=nn.Linear(6, 6)), (torch.randn(B, H, W, 6),), {}


@model({"B": 3, "L": 7, "D": 5, "G": 4}, {"B": 1, "L": 3, "D": 8, "G": 2}, {"B": 2, "L": 12, "D": 6, "G": 3})
def dense_net(B=2, L=4, D=6, G=3):
    """Each layer sees all layers before it: widths grow with depth."""

    def run(self, x):
        for layer in self.layers:
            x = torch.cat([x, F.relu(layer(x))], -1)
        return x

    layers = nn.ModuleList(nn.Linear(D + i * G, G) for i in range(L))
    return Run(run, layers=layers), (torch.randn(B, D),), {}


@model({"B": 5, "E": 3, "D": 6}, {"B": 7, "E": 8, "D": 5})
def masked_experts(B=8, E=4, D=6):
    """Every expert sees every row; a mask picks."""

    def run(self, x):
        gates = self.router(x).softmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            out = out + gates[:, i : i + 1] * expert(x)
        return out

    return Run(run, router=nn.Linear(D, E), experts=nn.ModuleList(nn.Linear(D, D) for _ in range(E))), (torch.randn(B, D),), {}


@model({"B": 5, "L": 3, "D": 6}, {"B": 7, "L": 8, "D": 5}, {"B": 1, "L": 1, "D": 5})
def deep_mlp(B=8, L=4, D=6):
    def run(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)

    block = lambda: nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))
    return Run(run, layers=nn.ModuleList(block() for _ in range(L)), head=nn.Linear(D, 3)), (torch.randn(B, D),), {}


@model({"B": 5, "T": 3, "D": 6}, {"B": 7, "T": 8, "D": 5})
def pairs_loop(B=2, T=5, D=4):
    """All pairs i < j: T*(T-1)/2 rounds."""

    def run(self, x):
        out = x.new_zeros(x.shape[0], 1)
        for i in range(x.shape[1]):
            for j in range(i + 1, x.shape[1]):
                out = out + self.f(torch.cat([x[:, i], x[:, j]], -1))
        return out

    return Run(run, f=nn.Linear(2 * D, 1)), (torch.randn(B, T, D),), {}


@model({"B": 5, "T": 3, "L": 6}, {"B": 7, "T": 8, "L": 5})
def stacked_cells(B=2, T=5, L=2):
    def run(self, x):
        for cell in self.cells:
            h = torch.zeros(x.shape[0], 6)
            outs = []
            for t in range(x.shape[1]):
                h = cell(x[:, t], h)
                outs.append(h)
            x = torch.stack(outs, 1)
        return x

    return Run(run, cells=nn.ModuleList(nn.GRUCell(6, 6) for _ in range(L))), (torch.randn(B, T, 6),), {}


@model({"B": 5, "T": 3, "D": 6}, {"B": 7, "T": 8, "D": 5}, {"B": 2, "T": 2, "D": 5})
def skip_first_step(B=2, T=5, D=4):
    def run(self, x):
        h = self.f(x[:, 0])
        for t in range(1, x.shape[1]):
            h = self.g(h) + self.f(x[:, t])
        return h

    return Run(run, f=nn.Linear(D, D), g=nn.Linear(D, D)), (torch.randn(B, T, D),), {}


@model({"B": 5, "D": 6}, outside=({"B": 5, "T": 32, "D": 6}, {"B": 7, "T": 8, "D": 5}))
def halving_loop(B=2, T=16, D=4):
    """log2(T) rounds: no formula of the supported kinds; a refusal is right, a wrong number is not."""

    def run(self, x):
        while x.shape[1] > 1:
            x = self.f(x[:, ::2] + x[:, 1::2])
        return x

    return Run(run, f=nn.Linear(D, D)), (torch.randn(B, T, D),), {}


@model({"B": 5, "T": 3, "N": 6}, {"B": 7, "T": 8, "N": 3}, {"B": 1, "T": 4, "N": 1})
def loop_over_heads(B=2, T=5, N=4):
    def run(self, x):
        outs = [(q(x) @ k(x).mT).softmax(-1) @ x for q, k in zip(self.q, self.k, strict=True)]
        return self.out(torch.cat(outs, -1))

    many = lambda: nn.ModuleList(nn.Linear(8, 4) for _ in range(N))
    return Run(run, q=many(), k=many(), out=nn.Linear(8 * N, 8)), (torch.randn(B, T, 8),), {}


@model({"B": 5, "T": 3, "D": 6}, {"B": 7, "T": 8, "D": 5})
def decoding_loop(B=2, T=5, D=4):
    """A cache that grows by cat, one step after the other."""

    def run(self, x):
        keys = x[:, :1]
        for t in range(1, x.shape[1]):
            keys = torch.cat([keys, self.k(x[:, t : t + 1])], 1)
            x = x + (x @ keys.mT).softmax(-1) @ keys
        return x

    return Run(run, k=nn.Linear(D, D)), (torch.randn(B, T, D),), {}
