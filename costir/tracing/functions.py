"""What functions of torch ask of sizes, or compute from them, where no comparison shows it: noted before they run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import torch
from torch.nn import functional

from costir.tracing.dims import slips
from costir.tracing.frames import user_frame
from costir.tracing.notes import note_guard, note_step

SHAPE = torch.Tensor.shape.__get__
SIZE = torch.Tensor.size
NUMEL = (torch.Tensor.numel, torch.Tensor.nelement, torch.numel)
NBYTES = torch.Tensor.nbytes.__get__
STRIDE = torch.Tensor.stride
_LARGEST_FACTOR = 1e4


def _note_index(x: torch.Tensor, index: Any, *value: Any) -> None:
    """Places that must be there, x[:, 5], and slices: one that ends beyond the tensor ends with it, which is a branch."""
    shape, given = SHAPE(x), index if isinstance(index, tuple) else (index,)
    for n, i in _by_dimension(given, shape):
        if isinstance(i, slice):
            for edge in (i.start, i.stop):
                if isinstance(edge, int) and edge and abs(edge) != n:
                    note_guard(user_frame(3), "<=", abs(edge), n, branch=True)
        else:
            for place in i if isinstance(i, list) else (i,):
                if isinstance(place, int):
                    _note_place(n, place)


def _by_dimension(given: tuple[Any, ...], shape: tuple[int, ...]) -> Iterator[tuple[int, Any]]:
    """Each index with the size that it is an index into; none after one that may take several dimensions."""
    dim = 0
    for place, i in enumerate(given):
        if i is Ellipsis:
            rest = [j for j in given[place + 1 :] if j is not None]
            dim = len(shape) - len(rest)
            if any(isinstance(j, (bool, torch.Tensor)) for j in rest):
                return
        elif isinstance(i, (bool, torch.Tensor)):
            return
        elif i is not None:
            if dim < len(shape):
                yield shape[dim], i
            dim += 1


def _note_place(n: int, place: int) -> None:
    """Entry `place` of n, from the end where it is negative: there must be so many."""
    if place not in (0, -1):
        frame = user_frame(4)
        note_guard(frame, *((">", n, place) if place > 0 else (">=", n, -place)))


def _note_select(x: torch.Tensor, dim: Any, index: Any = None, **options: Any) -> None:
    if isinstance(dim, int) and isinstance(index, int) and -x.dim() <= dim < x.dim():
        _note_place(SHAPE(x)[dim], index)


def _note_narrow(x: torch.Tensor, dim: Any, start: Any = None, length: Any = None, **options: Any) -> None:
    """What is cut out must lie inside: other than a slice, this raises."""
    if all(isinstance(v, int) for v in (dim, start, length)) and -x.dim() <= dim < x.dim():
        start = start if start >= 0 else start + SHAPE(x)[dim]
        note_guard(user_frame(3), ">=", SHAPE(x)[dim], start + length)


def _note_pad(x: torch.Tensor, pad: Any, mode: Any = "constant", *args: Any, **options: Any) -> None:
    """Around a circle only once. What reflection asks for, the operator says."""
    if mode == "circular" and isinstance(x, torch.Tensor):
        for i, p in enumerate(pad):
            note_guard(user_frame(3), ">=", SHAPE(x)[-1 - i // 2], p)


def _note_interpolate(x: torch.Tensor, size: Any = None, scale_factor: Any = None, *args: Any, **options: Any) -> None:
    """Sizes times a factor, rounded down. A product of floats may slip below the whole number that it is by fractions."""
    if scale_factor is None or not isinstance(x, torch.Tensor):
        return
    rank, frame = x.dim() - 2, user_frame(3)
    factors = list(scale_factor) if isinstance(scale_factor, (list, tuple)) else [scale_factor] * rank
    for n, factor in zip(SHAPE(x)[2:], factors, strict=False):
        if not isinstance(factor, (int, float)) or not 0 < factor < _LARGEST_FACTOR:
            continue
        exact = Fraction(factor).limit_denominator(10**6)
        if slips(float(factor)):
            top = n * exact.numerator
            note_step(frame, "*", n, exact.numerator, top)
            note_guard(frame, "==", top % exact.denominator, 0, rounded=("%", top, exact.denominator))
        note_step(frame, "floor", n, 1, math.floor(n * float(factor)), exact)


def _note_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **options: Any) -> None:
    """The fused operators take values as wide as the keys only; else torch runs the products one by one, and asks nothing."""
    note_guard(user_frame(3), "==", SHAPE(query)[-1], SHAPE(value)[-1], branch=True)


def _note_range(start: Any = 0, end: Any = None, step: Any = 1, **options: Any) -> None:
    """How many numbers `arange` makes: a table made while the model is built is no operator of the run, yet has that size."""
    start, end = (0, start) if end is None else (start, end)
    if step == 1 or not all(isinstance(v, int) and not isinstance(v, bool) for v in (start, end, step)) or step == 0:
        return
    frame, span = user_frame(3), int(end) - int(start)
    if start != 0:
        note_step(frame, "-", end, start, span)
    note_step(frame, "ceil", span, step, -(-span // int(step)))


NOTED: dict[Any, Callable[..., None]] = {
    torch.Tensor.__getitem__: _note_index,
    torch.Tensor.__setitem__: _note_index,
    torch.Tensor.select: _note_select,
    torch.select: _note_select,
    torch.Tensor.narrow: _note_narrow,
    torch.narrow: _note_narrow,
    torch.arange: _note_range,
    functional.pad: _note_pad,
    functional.interpolate: _note_interpolate,
    functional.scaled_dot_product_attention: _note_attention,
}
