# ruff: noqa: E501 - tables of samples, one a line
"""Pooling, interpolation, sampling, transforms, factorisations, fused optimizers and what else is left, by counting numbers."""

import formulas_spatial as f
import numpy as np
import pytest
import torch
from oracles_pointwise import (
    read_bytes,
    run,
    tally,
    values,
    write_bytes,
)

import costir
from costir.ir import Conventions
from costir.ops.registry import find
from costir.ops.spatial import window_total
from costir.ops.table import load_rules
from costir.symbolic import Integer, evaluate, size

load_rules()
t = torch.randn


def cost_of(call):
    return find(call.op).rule(call, Conventions())


def _grid(n, rank):
    return torch.rand(1, *([3, 2, 3][:rank]), rank) * 1.6 - 0.8


ROWS = [
    ("avg_pool1d", lambda n: (t(2, 3, 2 * n), [2]), f.avg_pool(1)),
    ("avg_pool2d", lambda n: (t(2, 3, 2 * n, 6), [2]), f.avg_pool(2)),
    ("avg_pool2d", lambda n: (t(1, 3, 2 * n, 6), [2, 3]), f.avg_pool(2)),
    ("avg_pool3d", lambda n: (t(1, 2, 4, 4, 2 * n), [2, 2, 2]), f.avg_pool(3)),
    ("avg_pool2d_backward", lambda n: (t(1, 2, n, 2), t(1, 2, 2 * n, 6), [2, 3], [], [0], False, True, None), f.avg_pool_back(2)),
    ("avg_pool3d_backward", lambda n: (t(1, 2, n, 2, 1), t(1, 2, 2 * n, 4, 2), [2], [], [0], False, True, None), f.avg_pool_back(3)),
    ("adaptive_avg_pool1d", lambda n: (t(2, 3, n + 4), [3]), f.adaptive(1)),
    ("_adaptive_avg_pool2d", lambda n: (t(2, 3, n + 4, 7), [3, 4]), f.adaptive(2)),
    ("_adaptive_avg_pool2d", lambda n: (t(2, 3, 2 * n, 5), [n, 1]), f.adaptive(2)),
    ("adaptive_avg_pool2d", lambda n: (t(2, 3, n, 7), [2, 4]), f.adaptive(2)),
    ("_adaptive_avg_pool3d", lambda n: (t(1, 2, n, 5, 4), [2, 3, 3]), f.adaptive(3)),
    ("adaptive_avg_pool3d", lambda n: (t(1, 2, n, 5, 4), [2, 3, 3]), f.adaptive(3)),
    ("_adaptive_avg_pool2d_backward", lambda n: (t(1, 2, 3, 4), t(1, 2, n + 4, 7)), f.adaptive(2, backward=True)),
    ("_adaptive_avg_pool3d_backward", lambda n: (t(1, 2, 2, 3, 3), t(1, 2, n, 5, 4)), f.adaptive(3, backward=True)),
    ("upsample_linear1d", lambda n: (t(2, 3, n), [2 * n + 1], False), f.upsample(1, f.linear_taps)),
    ("upsample_bilinear2d", lambda n: (t(1, 3, n, 4), [2 * n, 7], False), f.upsample(2, f.linear_taps)),
    ("upsample_trilinear3d", lambda n: (t(1, 2, n, 3, 2), [2 * n, 4, 3], False), f.upsample(3, f.linear_taps)),
    ("upsample_bicubic2d", lambda n: (t(1, 2, n, 4), [2 * n, 7], False), f.upsample(2, f.cubic_taps)),
    ("upsample_linear1d_backward", lambda n: (t(2, 3, 2 * n + 1), [2 * n + 1], [2, 3, n], False), f.upsample_back(1, f.linear_taps)),
    ("upsample_bilinear2d_backward", lambda n: (t(1, 3, 2 * n, 7), [2 * n, 7], [1, 3, n, 4], False), f.upsample_back(2, f.linear_taps)),
    (
        "upsample_trilinear3d_backward",
        lambda n: (t(1, 2, 2 * n, 4, 3), [2 * n, 4, 3], [1, 2, n, 3, 2], False),
        f.upsample_back(3, f.linear_taps),
    ),
    ("upsample_bicubic2d_backward", lambda n: (t(1, 2, 2 * n, 7), [2 * n, 7], [1, 2, n, 4], False), f.upsample_back(2, f.cubic_taps)),
    *(("grid_sampler_2d", lambda n, q=q: (t(1, n, 5, 4), _grid(n, 2), q, 0, False), f.grid_sample) for q in (0, 1, 2)),
    *(("grid_sampler_3d", lambda n, q=q: (t(1, n, 5, 4, 3), _grid(n, 3), q, 0, False), f.grid_sample) for q in (0, 1)),
    ("_grid_sampler_2d_cpu_fallback", lambda n: (t(1, n, 5, 4), _grid(n, 2), 0, 0, False), f.grid_sample),
    ("grid_sampler", lambda n: (t(1, n, 5, 4), _grid(n, 2), 0, 0, False), f.grid_sample),
]  # fmt: skip


@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize(("name", "build", "formula"), ROWS, ids=[f"{i}-{r[0]}" for i, r in enumerate(ROWS)])
def test_definition(name, build, formula, n):
    torch.manual_seed(n)
    call, out, bound = run(name, *build(n))
    cost = cost_of(call)
    tally()
    results = formula(bound)
    assert (cost.vector, cost.special, cost.matmul) == (*tally(), 0)
    assert np.allclose(out.reshape(-1).double(), values(results[0]).reshape(-1), rtol=1e-3, atol=1e-4)
    assert (cost.read, cost.write) == (read_bytes(bound), write_bytes(out))


def test_adaptive_windows_as_formulas():
    """The elements of all windows, listed one by one, for numbers of outputs in numbers and in letters."""
    H, O = size("H"), size("O")
    for outputs in (2, 3, 5, 7, 12, 30):
        for n in range(1, 40):
            windows = sum(len(w) for w in f.windows(n, outputs))
            assert evaluate(window_total(H, Integer(outputs)), {H: n}) == windows
            assert evaluate(window_total(H, O), {H: n, O: outputs}) == windows
    assert window_total(2 * H, H) == 2 * H
    assert str(window_total(H, O)) == "H + O - gcd(H, O)"


POOLS = [
    ("max_pool2d_with_indices", lambda n: (t(1, 2, 2 * n, 4), [2, 2]), 0),
    ("max_pool3d_with_indices", lambda n: (t(1, 2, 2 * n, 4, 4), [2, 2, 2]), 0),
    ("max_pool1d max_pool1d_with_indices", lambda n: (t(1, 2, 2 * n), [2]), 0),
    ("max_pool2d", lambda n: (t(1, 2, 2 * n, 4), [2, 2]), 0),
    ("max_pool3d", lambda n: (t(1, 2, 2 * n, 4, 4), [2, 2, 2]), 0),
    ("adaptive_max_pool1d", lambda n: (t(1, 2, 2 * n), [n]), 0),
    ("adaptive_max_pool2d", lambda n: (t(1, 2, 2 * n, 4), [n, 2]), 0),
    ("adaptive_max_pool3d", lambda n: (t(1, 2, 2 * n, 4, 4), [n, 2, 2]), 0),
    ("fractional_max_pool2d", lambda n: (t(1, 2, 2 * n, 4), [2, 2], [n, 2], torch.rand(1, 2, 2)), 0),
    ("fractional_max_pool3d", lambda n: (t(1, 2, 2 * n, 4, 4), [2, 2, 2], [n, 2, 2], torch.rand(1, 2, 3)), 0),
    ("max_unpool2d", lambda n: (t(1, 2, n, 2), torch.arange(2 * n).view(1, 1, n, 2).repeat(1, 2, 1, 1), [2 * n, 4]), 0),
    ("max_unpool3d", lambda n: (t(1, 2, n, 2, 2), torch.arange(4 * n).view(1, 1, n, 2, 2).repeat(1, 2, 1, 1, 1),
                                [2 * n, 4, 4], [2, 2, 2], [0, 0, 0]), 0),
    ("upsample_nearest1d _upsample_nearest_exact1d", lambda n: (t(1, 2, n), [2 * n]), 0),
    ("upsample_nearest2d _upsample_nearest_exact2d", lambda n: (t(1, 2, n, 3), [2 * n, 6]), 0),
    ("upsample_nearest3d _upsample_nearest_exact3d", lambda n: (t(1, 2, n, 3, 2), [2 * n, 6, 4]), 0),
    ("upsample_nearest1d_backward _upsample_nearest_exact1d_backward", lambda n: (t(1, 2, 2 * n), [2 * n], [1, 2, n]), 1),
    ("upsample_nearest2d_backward _upsample_nearest_exact2d_backward", lambda n: (t(1, 2, 2 * n, 6), [2 * n, 6], [1, 2, n, 3]), 1),
    ("upsample_nearest3d_backward _upsample_nearest_exact3d_backward",
     lambda n: (t(1, 2, 2 * n, 6, 4), [2 * n, 6, 4], [1, 2, n, 3, 2]), 1),
    ("max_pool2d_with_indices_backward", lambda n: _pool_back(n, 2), 1),
    ("max_pool3d_with_indices_backward", lambda n: _pool_back(n, 3), 1),
    ("adaptive_max_pool2d_backward", lambda n: _adaptive_back(n, 2), 1),
    ("adaptive_max_pool3d_backward", lambda n: _adaptive_back(n, 3), 1),
    ("fractional_max_pool2d_backward", lambda n: _fractional_back(n, 2), 1),
    ("fractional_max_pool3d_backward", lambda n: _fractional_back(n, 3), 1),
]  # fmt: skip


def _pool_back(n, rank):
    x = t(1, 2, *([2 * n, 4, 4][:rank]))
    out, indices = getattr(torch.ops.aten, f"max_pool{rank}d_with_indices")(x, [2] * rank)
    return t(*out.shape), x, [2] * rank, [2] * rank, [0] * rank, [1] * rank, False, indices


def _adaptive_back(n, rank):
    x = t(1, 2, *([2 * n, 4, 4][:rank]))
    out, indices = getattr(torch.ops.aten, f"adaptive_max_pool{rank}d")(x, [2] * rank)
    return t(*out.shape), x, indices


def _fractional_back(n, rank):
    x = t(1, 2, *([2 * n, 4, 4][:rank]))
    out, indices = getattr(torch.ops.aten, f"fractional_max_pool{rank}d")(x, [2] * rank, [2] * rank, torch.rand(1, 2, rank))
    return t(*out.shape), x, [2] * rank, [2] * rank, indices


@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize(("name", "build", "adds"), [(x, b, a) for names, b, a in POOLS for x in names.split()])
def test_choices_and_their_gradients(name, build, adds, n):
    call, out, bound = run(name, *build(n))
    cost = cost_of(call)
    gradient = bound.get("grad_output")
    assert cost.flops == (adds * gradient.numel() if adds else 0)
    assert (cost.read, cost.write) == (read_bytes(bound), write_bytes(out))


@pytest.mark.parametrize(("kind", "width"), [("bilinear", 2), ("bicubic", 4)])
@pytest.mark.parametrize(("small", "large"), [(8, 24), (10, 15)])
def test_antialiased_is_at_most_the_windows_uncut(kind, width, small, large):
    call, _, _ = run(f"_upsample_{kind}2d_aa", t(1, 2, large, large), [small, small], False)
    counts = f.antialiased_taps(large, small, width)
    rows, columns = sum(2 * c - 1 for c in counts) * large, sum(2 * c - 1 for c in counts) * small
    exact = 2 * (rows + columns)
    assert exact <= cost_of(call).vector <= 1.5 * exact
    call, _, _ = run(f"_upsample_{kind}2d_aa_backward", t(1, 2, small, small), [small, small], [1, 2, large, large], False)
    assert 2 * 2 * sum(counts) * (large + small) <= cost_of(call).vector <= 1.5 * 2 * 2 * sum(counts) * (large + small)


@pytest.mark.parametrize(("mode", "corners"), [(0, 4), (2, 16)])
def test_grid_sample_backward(mode, corners):
    g, x, grid = t(1, 3, 3, 2), t(1, 3, 5, 4), _grid(0, 2)
    call, _, _ = run("grid_sampler_2d_backward", g, x, grid, mode, 0, False, [True, True])
    forward, _, _ = run("grid_sampler_2d", x, grid, mode, 0, False)
    places, channels = 6, 18
    place = (cost_of(forward).vector - channels * {0: 7, 2: 35}[mode]) / places
    assert cost_of(call).vector == places * (place + 2) + channels * corners * (2 + 3 * 2)
    call, _, _ = run("grid_sampler_3d_backward", t(1, 3, 3, 2, 3), t(1, 3, 5, 4, 3), _grid(0, 3), 0, 0, False, [True, True])
    assert cost_of(call).vector == 18 * (3 * 6 + 16 + 3) + 54 * 8 * (2 + 9)


def test_affine_grid():
    call, out, _ = run("affine_grid_generator", t(2, 2, 3), [2, 1, 3, 4], False)
    assert cost_of(call).vector == out.numel() * (2 + 2)


@pytest.mark.parametrize(("factor", "mode"), [(0.5, "bilinear"), (0.25, "bicubic"), (2.0, "bilinear")])
def test_antialiased_taps_follow_symbolic_sizes(factor, mode):
    """The formula at other sizes is what a run there counts."""

    class Resize(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.interpolate(x, scale_factor=factor, mode=mode, antialias=True)

    def build(B=2, I=32):
        return Resize(), (torch.zeros(B, 3, I, I),), {}

    found = costir.analyze(build)
    for side in (16, 32, 48, 64):
        assert found.at(I=side).vector_flops == costir.analyze(build, sizes={"I": side}, keep=["B"]).at().vector_flops
