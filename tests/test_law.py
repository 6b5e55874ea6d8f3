"""Formula, then numbers, is numbers, then count: `.at` of a family against a run at that point, counted call by call."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from families import Run
from torch import nn
from torch.nn import functional as F

import costir
from costir.check import check
from costir.ir import Conventions
from costir.load.subject import family_of
from costir.recount import counted

QUANTITIES = ("matmul_flops", "vector_flops", "special_flops", "read", "write")
RANGES = {"B": (2, 4), "C": (2, 5), "T": (4, 60), "H": (4, 60), "W": (4, 60), "O": (2, 20)}


def image(function: Any, C: int = 3, **sizes: int) -> tuple[nn.Module, tuple[torch.Tensor], dict[str, Any]]:
    """`function` of an image of B, C, H, W, whose gradient is wanted."""
    return Run(lambda self, x: function(x)), (torch.randn(sizes["B"], C, sizes["H"], sizes["W"], requires_grad=True),), {}


def pooled(B=2, C=3, T=24, O=6):
    x = torch.randn(B, C, T, requires_grad=True)
    return Run(lambda self, x: F.adaptive_avg_pool1d(x, O)), (x,), {}


def pooled_2d(B=2, H=25, W=30, O=6):
    return image(nn.AdaptiveAvgPool2d((O, 7)), B=B, H=H, W=W)


def pooled_3d(B=2, H=8, W=10, O=4):
    return Run(lambda self, x: F.adaptive_avg_pool3d(x, (O, 2, 3))), (torch.randn(B, 3, H, W, 6, requires_grad=True),), {}


def pooled_max(B=2, H=24, W=30, O=6):
    return image(nn.AdaptiveMaxPool2d((O, O)), B=B, H=H, W=W)


def area(B=2, H=24, W=18):
    return image(lambda x: F.interpolate(x, scale_factor=0.3, mode="area"), B=B, H=H, W=W)


def scaled(B=2, H=24, W=18):
    return image(lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True), B=B, H=H, W=W)


def scaled_down(B=2, H=24, W=18):
    return image(lambda x: F.interpolate(x, scale_factor=(0.3, 0.75), mode="bicubic"), B=B, H=H, W=W)


def antialiased(B=2, H=24, W=18, O=7):
    return image(lambda x: F.interpolate(x, size=(O, 9), mode="bicubic", antialias=True), B=B, H=H, W=W)


def ceiled(B=2, H=24, W=18):
    return image(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), B=B, H=H, W=W)


def dilated(B=2, H=24, W=18):
    return image(lambda x: F.max_pool2d(x, 3, 2, dilation=2, ceil_mode=True), B=B, H=H, W=W)


def folded(B=2, H=24, W=18):
    return image(lambda x: F.fold(F.unfold(x, 3, stride=2), x.shape[2:], 3, stride=2), B=B, H=H, W=W)


def last_parts(B=2, T=20, C=5):
    return Run(lambda self, x: F.relu(x.split(4, 1)[2]).sum(1)), (torch.randn(B, T, C, requires_grad=True),), {}


LAWFUL = [pooled, pooled_2d, pooled_3d, pooled_max, area, scaled, scaled_down, antialiased, ceiled, dilated, folded, last_parts]


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("build", LAWFUL, ids=lambda b: b.__name__)
def test_formula_then_numbers_is_numbers_then_count(build: Any, phase: str) -> None:
    found, draw, family = costir.analyze(build, phase=phase), random.Random(build.__name__), family_of(build, {})
    held = 0
    for _ in range(12):
        point = {n: draw.randint(*RANGES[n]) for n in found.sizes}
        if found.broken(point) is None:
            said, seen = found.at(**point), counted(family, point, phase, None, Conventions())
            assert {q: getattr(said, q) for q in QUANTITIES} == {q: seen[q] for q in QUANTITIES}
            held += 1
    assert held >= 3


def test_a_greatest_common_divisor_is_printed_evaluated_and_typed() -> None:
    found = costir.analyze(pooled)
    assert str(found.flops) == "B*C*O + B*C*T - B*C*gcd(O, T)"
    assert r"\gcd\left(O, T\right)" in found._repr_latex_()
    lengths = np.arange(4, 40)
    assert found.evaluate("flops", T=lengths)["flops"].tolist() == [found.at(T=int(t)).flops for t in lengths]
    assert check(found, "flops = B*C*(T + O - gcd(T, O))").right
    assert not check(found, "flops = B*C*T").right
