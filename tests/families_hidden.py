"""Programs that change their way at a size without comparing it, or far beyond the sizes that are looked at first."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from families import Run, model
from torch import nn


def narrow_or_wide(asks, D):
    """A narrow layer where `asks(length)`, else a wide one."""
    return Run(lambda self, x: self.a(x) if asks(x.shape[1]) else self.b(x), a=nn.Linear(D, D), b=nn.Linear(D, 3 * D))


FAR = tuple({"T": t} for t in (1, 3, 19, 31, 32, 33, 63, 64, 65, 100, 128, 400))


@model({"B": 3, "T": 7, "D": 5}, {"B": 3, "T": 64}, outside=FAR)
def plain_number_compared(B=2, T=20, D=6):
    return narrow_or_wide(lambda t: int(t) <= 64, D), (torch.randn(B, T, D),), {}


@model({"B": 3, "T": 64}, {"B": 3, "T": 65}, {"B": 3, "T": 128}, outside=FAR)
def looked_up(B=2, T=20, D=6):
    return narrow_or_wide(lambda t: t in {64, 128}, D), (torch.randn(B, T, D),), {}


@model({"B": 3, "T": 64}, {"B": 3, "T": 65}, outside=FAR)
def last_bits(B=2, T=20, D=6):
    return narrow_or_wide(lambda t: t & 63 == 0, D), (torch.randn(B, T, D),), {}


@model({"B": 3, "D": 9}, outside=FAR)
def common_divisor(B=2, T=20, D=6):
    return narrow_or_wide(lambda t: math.gcd(t, 64) < 32, D), (torch.randn(B, T, D),), {}


@model({"B": 3, "T": 32}, {"B": 3, "T": 33}, {"T": 257}, outside=FAR)
def halved_and_doubled(B=2, T=32, D=6):
    return narrow_or_wide(lambda t: 2 * (t // 2) == t, D), (torch.randn(B, T, D),), {}


@model({"T": 47}, {"T": 200}, {"T": 88}, outside=FAR)
def shifted_quotient(B=2, T=20, D=6):
    return narrow_or_wide(lambda t: 1 - t / 3 > -20, D), (torch.randn(B, T, D),), {}


@model({"T": 64}, {"T": 65}, {"T": 200}, outside=FAR)
def padded_beyond_all_probes(B=2, T=20, D=6):
    return (
        Run(lambda self, x: self.f(F.pad(x, (0, 0, 0, -x.shape[1] % 64))), f=nn.Linear(D, D)),
        (torch.randn(B, T, D),),
        {},
    )


@model({"D": 96}, {"D": 97}, {"D": 256})
def rounded_hidden_width(B=2, D=64):
    hidden = int(2 * 4 * D / 3)
    return nn.Linear(D, 256 * ((hidden + 255) // 256)), (torch.randn(B, D),), {}


@model({"B": 3}, outside=FAR)
def next_power_of_two(B=2, T=20, D=6):
    pad = lambda t: (1 << (t - 1).bit_length()) - t
    return Run(lambda self, x: self.f(F.pad(x, (0, 0, 0, pad(x.shape[1])))), f=nn.Linear(D, D)), (torch.randn(B, T, D),), {}


@model({"B": 3}, outside=FAR)
def rounded_half(B=2, T=40, D=6):
    return Run(lambda self, x: self.f(x[:, : round(x.shape[1] / 2)]), f=nn.Linear(D, D)), (torch.randn(B, T, D),), {}


@model({"T": 99}, {"T": 41}, outside=({"T": 100}, {"T": 200}))
def share_of_a_float(B=2, T=40, D=6):
    """29 hundredths of 100 are 28 in floating point."""
    return Run(lambda self, x: self.f(x[:, : int(x.shape[1] * 0.29)]), f=nn.Linear(D, D)), (torch.randn(B, T, D),), {}


@model({"B": 3, "L": 4}, {"L": 10}, outside=tuple({"L": n} for n in (1, 9, 11, 12, 24, 60)))
def later_layers_wide(B=2, L=6, D=4):
    layers = [nn.Linear(D, D) if i < 10 else nn.Sequential(nn.Linear(D, 3 * D), nn.Linear(3 * D, D)) for i in range(L)]
    return nn.Sequential(*layers), (torch.randn(B, D),), {}


@model({"T": 9}, {"T": 40}, {"T": 41})
def half_as_many_rounds(B=2, T=12, D=4):
    def run(self, x):
        for _ in range(x.shape[1] // 2):
            x = self.f(x)
        return x

    return Run(run, f=nn.Linear(D, D)), (torch.randn(B, T, D),), {}


@model({"B": 3}, outside=FAR)
def round_per_divisor(B=2, T=12, D=4):
    def run(self, x):
        for t in range(1, x.shape[1] + 1):
            if x.shape[1] % t == 0:
                x = self.f(x)
        return x

    return Run(run, f=nn.Linear(D, D)), (torch.randn(B, T, D),), {}


@model({"D": 128}, {"B": 3, "D": 64}, outside=tuple({"D": d} for d in (32, 100, 192, 256)))
def heads_by_width(B=2, D=128):
    return nn.MultiheadAttention(D, max(1, D // 64), batch_first=True), (torch.randn(B, 3, D),) * 3, {}


@model({"T": 20}, outside=({"T": 21}, {"T": 25}, {"T": 30}, *FAR))
def rounds_of_ten(B=2, T=20, D=4):
    def run(self, x):
        for i in range(4):
            if x.shape[1] > 10 * i:
                x = self.f(x)
        return x

    return Run(run, f=nn.Linear(D, D)), (torch.randn(B, T, D),), {}


@model({"E": 3, "L": 9}, {"E": 5, "L": 2}, {"E": 2, "L": 20})
def all_but_the_first(E=4, L=2, D=4):
    """E*(L - 1) calls, which among seven layers could be E*(L - ceil((L - 1)/6))."""

    def run(self, x):
        x = F.relu(x)
        for i, layer in enumerate(self.layers):
            for _ in range(self.experts if i else 0):
                x = layer(x)
        return x

    return Run(run, experts=E, layers=nn.ModuleList(nn.Linear(D, D) for _ in range(L))), (torch.randn(3, D),), {}
