"""The fewest devices along an axis of a mesh that hold a run: all numbers of them at once, by compiled formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from costir.ir import Constraint
from costir.lifting.peaks import Peak
from costir.symbolic import Expr, Integer, compile_many, expand, size

MOST = 10**6  # devices along an axis
_ROUNDING = 1e-9  # of the sums in floating point, by which a number of devices is looked at exactly
Array = npt.NDArray[np.float64]


def highest(peaks: Sequence[Peak], at: Mapping[str, Array], count: int) -> Array:
    """The bytes of the moment that holds most, at so many points; NaN where there is none."""
    names = sorted({str(s) for p in peaks for s in p.total.free_symbols})
    totals = compile_many([p.total for p in peaks], names)(*(at[n] for n in names))
    best = np.full(count, -np.inf)
    for p, x in zip(peaks, totals, strict=True):
        there = np.logical_and.reduce([at[n] >= v for n, v in p.least.items()]) if p.least else np.True_
        best = np.maximum(best, np.where(there, np.broadcast_to(np.asarray(x, dtype=float), (count,)), -np.inf))
    return np.where(np.isfinite(best), best, np.nan)


def allowed(conditions: Sequence[Constraint], axis: str, values: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """The numbers of devices along an axis, up to `MOST`, that meet all conditions, the other sizes as given."""
    lengths = np.arange(1, MOST + 1)
    met = np.ones(len(lengths), dtype=bool)
    fixed = {size(n): Integer(v) for n, v in values.items() if n != axis}
    left = [e for e in (c.condition.xreplace(fixed) for c in conditions) if e != True]  # noqa: E712 - sympy's own
    for x in compile_many(left, [axis])(lengths) if left else ():
        met &= np.broadcast_to(np.asarray(x, dtype=bool), met.shape)
    return lengths[met]


def candidates(
    peaks: Sequence[Peak], axis: str, lengths: npt.NDArray[np.int64], values: Mapping[str, int], capacity: int
) -> Any:
    """Those of some numbers of devices along an axis with which, but for rounding, a device holds no more than its capacity."""
    at: dict[str, Array] = {n: np.asarray(float(v)) for n, v in values.items()} | {axis: lengths.astype(float)}
    held = highest(peaks, at, len(lengths))
    return (int(x) for x in lengths[held <= capacity * (1 + _ROUNDING)])


def quotient(total: Expr, axis: str, capacity: int) -> Expr | None:
    """The number of devices at which a/X + b is the capacity; None where what is held is no such sum."""
    x, e = size(axis), expand(total)
    divided = e.coeff(x, -1)
    rest = expand(e - divided / x)
    return None if divided == 0 or rest.has(x) or divided.has(x) else divided / (Integer(capacity) - rest)
