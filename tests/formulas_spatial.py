"""Definitions of pooling, interpolation, sampling, transforms and factorisations, run on counting numbers."""

from __future__ import annotations

import cmath
import math
from itertools import product
from typing import Any

import numpy as np
from oracles_pointwise import Num, add_up, nums, sqrt, val


def planes(t: Any, rank: int) -> np.ndarray:
    """[planes, *spatial]."""
    a = nums(t)
    return a.reshape(-1, *a.shape[-rank:])


def zeros(shape: tuple[int, ...]) -> np.ndarray:
    out = np.empty(shape, dtype=object)
    for i in np.ndindex(shape):
        out[i] = Num(0)
    return out


def _spread(v: Any, rank: int) -> list[int]:
    return list(v) * rank if len(v) == 1 else list(v)


def avg_pool(rank: int) -> Any:
    def f(b: dict[str, Any]) -> list[Any]:
        k = _spread(b["kernel_size"], rank)
        out = []
        for x in planes(b["self"], rank):
            for at in product(*(range(n // q) for n, q in zip(x.shape, k, strict=True))):
                cells = [x[tuple(a * q + o for a, q, o in zip(at, k, off, strict=True))] for off in product(*map(range, k))]
                out.append(add_up(cells) / len(cells))
        return [out]

    return f


def avg_pool_back(rank: int) -> Any:
    def f(b: dict[str, Any]) -> list[Any]:
        k = _spread(b["kernel_size"], rank)
        out = []
        for g in planes(b["grad_output"], rank):
            grad = zeros(tuple(b["self"].shape[-rank:]))
            for at in np.ndindex(g.shape):
                share = g[at] / math.prod(k)
                for off in product(*map(range, k)):
                    cell = tuple(a * q + o for a, q, o in zip(at, k, off, strict=True))
                    grad[cell] = grad[cell] + share
            out.append(grad)
        return [out]

    return f


def windows(size: int, outputs: int) -> list[range]:
    return [range(i * size // outputs, -(-(i + 1) * size // outputs)) for i in range(outputs)]


def adaptive(rank: int, backward: bool = False) -> Any:
    def f(b: dict[str, Any]) -> list[Any]:
        result = []
        small = planes(b["grad_output"], rank) if backward else None
        for p, x in enumerate(planes(b["self"], rank)):
            sizes = small.shape[1:] if backward else b["output_size"]
            cuts = [windows(n, o) for n, o in zip(x.shape, sizes, strict=True)]
            grad, out = zeros(x.shape), []
            for at in product(*map(range, sizes)):
                cells = list(product(*(c[i] for c, i in zip(cuts, at, strict=True))))
                if backward:
                    share = small[p][at] / len(cells)
                    for c in cells:
                        grad[c] = grad[c] + share
                else:
                    out.append(add_up([x[c] for c in cells]) / len(cells))
            result.append(grad if backward else out)
        return [result]

    return f


# ---- interpolation -----------------------------------------------------------------------------------------------------


def linear_taps(i: int, size: int, outputs: int) -> list[tuple[int, float]]:
    at = max((i + 0.5) * size / outputs - 0.5, 0)
    low = int(at)
    return [(low, 1 - (at - low)), (min(low + 1, size - 1), at - low)]


def _cubic(x: float, a: float = -0.75) -> float:
    x = abs(x)
    return ((a + 2) * x - (a + 3)) * x * x + 1 if x <= 1 else ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def cubic_taps(i: int, size: int, outputs: int) -> list[tuple[int, float]]:
    at = (i + 0.5) * size / outputs - 0.5
    low = math.floor(at)
    return [(min(max(low + k, 0), size - 1), _cubic(at - low - k)) for k in (-1, 0, 1, 2)]


def weigh(x: np.ndarray, taps: list[list[tuple[int, float]]], at: tuple[int, ...] = ()) -> Any:
    """The weighted sum over the taps of each dimension in turn."""
    if not taps:
        return x[at]
    return add_up([weigh(x, taps[1:], (*at, j)) * w for j, w in taps[0]])


def upsample(rank: int, taps: Any) -> Any:
    def f(b: dict[str, Any]) -> list[Any]:
        sizes = b["output_size"]
        return [
            [
                weigh(x, [taps(i, n, o) for i, n, o in zip(at, x.shape, sizes, strict=True)])
                for x in planes(b["self"], rank)
                for at in product(*map(range, sizes))
            ]
        ]

    return f


def scatter_back(grad: np.ndarray, g: Num, taps: list[list[tuple[int, float]]], at: tuple[int, ...] = ()) -> None:
    if not taps:
        grad[at] = grad[at] + g
        return
    for j, w in taps[0]:
        scatter_back(grad, g * w, taps[1:], (*at, j))


def upsample_back(rank: int, taps: Any) -> Any:
    def f(b: dict[str, Any]) -> list[Any]:
        sizes, small = b["output_size"], b["input_size"][-rank:]
        out = []
        for g in planes(b["grad_output"], rank):
            grad = zeros(tuple(small))
            for at in product(*map(range, sizes)):
                scatter_back(grad, g[at], [taps(i, n, o) for i, n, o in zip(at, small, sizes, strict=True)])
            out.append(grad)
        return [out]

    return f


def antialiased_taps(size: int, outputs: int, width: int) -> list[int]:
    """How many neighbours each output weighs, as torch computes them: cut at the edges."""
    scale = size / outputs
    support = width / 2 * max(scale, 1)
    counts = []
    for i in range(outputs):
        center = scale * (i + 0.5)
        counts.append(min(int(center + support + 0.5), size) - max(int(center - support + 0.5), 0))
    return counts


# ---- sampling ----------------------------------------------------------------------------------------------------------


def _pixel(c: Num, size: int) -> Num:
    return ((c + 1) * size - 1) / 2


def _at(x: np.ndarray, cell: tuple[int, ...]) -> Num:
    inside = all(0 <= c < n for c, n in zip(cell, x.shape, strict=True))
    return x[cell] if inside else Num(0)


def _conv1(x: Num, a: float = -0.75) -> Num:
    return (x * (a + 2) - (a + 3)) * x * x + 1


def _conv2(x: Num, a: float = -0.75) -> Num:
    return ((x * a - 5 * a) * x + 8 * a) * x - 4 * a


def grid_sample(b: dict[str, Any]) -> list[Any]:
    image, grid = nums(b["input"]), nums(b["grid"])
    rank, mode = grid.shape[-1], b["interpolation_mode"]
    out = np.empty((*image.shape[:2], *grid.shape[1:-1]), dtype=object)
    for n, *place in np.ndindex(grid.shape[:-1]):
        point = [_pixel(c, s) for c, s in zip(grid[(n, *place)][::-1], image.shape[2:], strict=True)]
        if mode == 1:
            cell = tuple(round(c.v) for c in point)
            for ch in range(image.shape[1]):
                out[(n, ch, *place)] = _at(image[n, ch], cell)
            continue
        low = [math.floor(c.v) for c in point]
        high = [c - f for c, f in zip(point, low, strict=True)]
        if mode == 2:
            weights = [[_conv2(t + 1), _conv1(t), _conv1(1 - t), _conv2(2 - t)] for t in high]
            for ch in range(image.shape[1]):
                rows = [
                    add_up([_at(image[n, ch], (low[0] + i - 1, low[1] + j - 1)) * weights[1][j] for j in range(4)])
                    for i in range(4)
                ]
                out[(n, ch, *place)] = add_up([r * w for r, w in zip(rows, weights[0], strict=True)])
            continue
        both = [(1 - f, f) for f in high]
        corners = list(product((0, 1), repeat=rank))
        weights = []
        for corner in corners:
            w = both[0][corner[0]]
            for d in range(1, rank):
                w = w * both[d][corner[d]]
            weights.append(w)
        for ch in range(image.shape[1]):
            cells = [_at(image[n, ch], tuple(a + c for a, c in zip(low, corner, strict=True))) for corner in corners]
            out[(n, ch, *place)] = add_up([v * w for v, w in zip(cells, weights, strict=True)])
    return [out]


# ---- Fourier -----------------------------------------------------------------------------------------------------------


def radix2(xs: list[tuple[Num, Num]]) -> list[tuple[Num, Num]]:
    """The complex FFT of a power of two points, every twiddle factor multiplied: 10 real FLOPs per butterfly."""
    n = len(xs)
    if n == 1:
        return xs
    even, odd = radix2(xs[0::2]), radix2(xs[1::2])
    first, second = [], []
    for k in range(n // 2):
        w = cmath.exp(-2j * math.pi * k / n)
        (a, b), (c, d) = even[k], odd[k]
        re, im = c * w.real - d * w.imag, c * w.imag + d * w.real
        first.append((a + re, b + im))
        second.append((a - re, b - im))
    return first + second


# ---- factorisations ----------------------------------------------------------------------------------------------------


def cholesky(a: np.ndarray) -> np.ndarray:
    n = len(a)
    low = zeros((n, n))
    for j in range(n):
        for i in range(j, n):
            s = a[i, j]
            for k in range(j):
                s = s - low[i, k] * low[j, k]
            low[i, j] = sqrt(s) if i == j else s / low[j, j]
    return low


def lu(a: np.ndarray) -> np.ndarray:
    """Elimination without pivoting: L and U in one matrix."""
    a = a.copy()
    m, n = a.shape
    for k in range(min(m, n)):
        for i in range(k + 1, m):
            a[i, k] = a[i, k] / a[k, k]
            for j in range(k + 1, n):
                a[i, j] = a[i, j] - a[i, k] * a[k, j]
    return a


def forward_substitution(low: np.ndarray, b: np.ndarray) -> np.ndarray:
    b = b.copy()
    for c in range(b.shape[1]):
        for i in range(len(low)):
            for j in range(i):
                b[i, c] = b[i, c] - low[i, j] * b[j, c]
            b[i, c] = b[i, c] / low[i, i]
    return b


def solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    both = lu(a)
    n = len(a)
    x = b.copy()
    for c in range(x.shape[1]):
        for i in range(n):
            for j in range(i):
                x[i, c] = x[i, c] - both[i, j] * x[j, c]
        for i in reversed(range(n)):
            for j in range(i + 1, n):
                x[i, c] = x[i, c] - both[i, j] * x[j, c]
            x[i, c] = x[i, c] / both[i, i]
    return x


def gauss_jordan(a: np.ndarray) -> np.ndarray:
    """The inverse in place: 2 n^3."""
    a = a.copy()
    n = len(a)
    for k in range(n):
        pivot = 1 / a[k, k]
        a[k, k] = Num(1)
        for j in range(n):
            a[k, j] = a[k, j] * pivot
        for i in range(n):
            if i != k:
                factor, a[i, k] = a[i, k], Num(0)
                for j in range(n):
                    a[i, j] = a[i, j] - factor * a[k, j]
    return a


def householder(a: np.ndarray) -> np.ndarray:
    """R of the QR factorisation by reflections."""
    a = a.copy()
    m, n = a.shape
    for k in range(min(m - 1, n)):
        column = a[k:, k]
        length = sqrt(add_up([x * x for x in column]))
        v = [x + 0.0 if i else x + math.copysign(1, x.v) * val(length) for i, x in enumerate(column)]
        beta = 2 / add_up([x * x for x in v])
        for j in range(k, n):
            s = add_up([x * y for x, y in zip(v, a[k:, j], strict=True)]) * beta
            for i in range(k, m):
                a[i, j] = a[i, j] - s * v[i - k]
    return a
