"""Output sizes as operators define them, against what torch gives for every combination of small arguments."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import costir
from costir.ir import Tensor
from costir.lifting.shapes import proposals
from costir.symbolic import Integer, evaluate, size

SIZES = range(1, 22)
WINDOWS = [(k, s, p, d) for k, s, p, d in itertools.product((1, 2, 3, 4), (1, 2, 3, 5), (0, 1, 2), (1, 2, 3)) if p <= k // 2]


def pooled(n, k, s, p, d, ceil_mode):
    """The length that torch gives, or None where it refuses."""
    try:
        return F.max_pool1d(torch.empty(1, 1, n), k, s, p, d, ceil_mode).shape[2]
    except RuntimeError:
        return None


def said(k, s, p, d, ceil_mode):
    """The length as an expression in I."""
    x = Tensor((Integer(1), Integer(1), size("I")))
    args = {"self": x, "kernel_size": (k,), "stride": (s,), "padding": (p,), "dilation": (d,), "ceil_mode": ceil_mode}
    return next(proposals("max_pool1d", args, 0, 2))


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pooling_windows(ceil_mode):
    seen = 0
    for window in WINDOWS:
        e = said(*map(Integer, window), ceil_mode)
        for n in SIZES:
            real = pooled(n, *window, ceil_mode)
            if real is not None:
                seen += 1
                assert evaluate(e, {size("I"): n}) == real, (window, n)
    assert seen > 1000


def test_pooling_windows_of_symbolic_kernel_and_stride():
    names = ("K", "S", "P", "D")
    e = said(*map(size, names), True)
    for window in WINDOWS:
        if window[2]:  # symbols are positive
            for n in SIZES:
                real = pooled(n, *window, True)
                if real is not None:
                    assert evaluate(e, {size("I"): n, **{size(a): v for a, v in zip(names, window, strict=True)}}) == real


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 3, 0), (3, 4, 1), (1, 2, 0), (2, 2, 1), (3, 2, 0)])
@pytest.mark.parametrize("base", [20, 21])
def test_a_model_that_pools_in_ceil_mode(kernel, stride, padding, base):
    def build(B=2, I=base):
        return torch.nn.MaxPool2d(kernel, stride, padding, ceil_mode=True), (torch.empty(B, 3, I, I),), {}

    analysis = costir.analyze(build)
    for n in range(4, 40):
        real = F.max_pool2d(torch.empty(2, 3, n, n), kernel, stride, padding, ceil_mode=True).numel()
        assert analysis.at(I=n).write == real * (4 + 8), n  # values, and indices of eight bytes
