"""Many points at once: an analysis's quantities as numpy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from costir.errors import SizeError, nearest
from costir.report import TOTALS
from costir.symbolic import Boolean, Expr, compile_many

if TYPE_CHECKING:
    from costir.analysis import Analysis

Array = npt.NDArray[np.float64]


@functools.lru_cache(maxsize=64)
def _compiled(expressions: tuple[Expr | Boolean, ...], names: tuple[str, ...]) -> Callable[..., Any]:
    return compile_many(expressions, names)


def evaluate(analysis: Analysis, quantities: Sequence[str], sizes: Mapping[str, Any]) -> dict[str, Array]:
    """Quantities at many points, in floating point.

    Args:
        analysis: the formulas.
        quantities: names such as "flops", "bytes", "matmul_flops", "intensity".
        sizes: a number or an array for each size that differs from the base; arrays are broadcast against each other.

    Returns:
        An array per quantity, of the broadcast shape; exact to the 53 bits of a float.

    Raises:
        SizeError: an unknown size or quantity, or a point at which the formulas do not hold.
    """
    for name in sizes:
        if name not in analysis.sizes:
            raise SizeError(f"there is no size {name!r} in {analysis.name}", nearest(name, analysis.sizes))
    for name in quantities:
        if name not in (*TOTALS, "network"):
            raise SizeError(f"there is no quantity {name!r}", nearest(name, (*TOTALS, "network")))
    names = tuple(analysis.sizes)
    columns = np.broadcast_arrays(*(_numbers(n, sizes.get(n, analysis.sizes[n])) for n in names)) if names else []
    shape = columns[0].shape if columns else ()
    if any(((c < 1) | (c != np.floor(c))).any() for c in columns):
        raise SizeError("a size is not a positive whole number")
    _check(analysis, names, columns)
    values = _compiled(tuple(getattr(analysis, q) for q in quantities), names)(*columns)
    return {q: np.broadcast_to(np.asarray(v, dtype=np.float64), shape) for q, v in zip(quantities, values, strict=True)}


def _numbers(name: str, values: Any) -> Array:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise SizeError(f"{name}={values!r:.40} is neither a number nor an array of numbers") from None


def _check(analysis: Analysis, names: tuple[str, ...], columns: Sequence[Array]) -> None:
    """Refuse points that lie in none of the regimes."""
    inside: Any = False
    for regime in (analysis, *analysis.others):
        conditions = tuple(c.condition for c in regime.constraints)
        results = _compiled(conditions, names)(*columns) if conditions else []
        inside = inside | np.logical_and.reduce([np.asarray(r, dtype=bool) for r in results]) if results else np.True_
    if not np.all(inside):
        where = np.argmin(np.broadcast_to(inside, columns[0].shape))
        point = {n: int(c.flat[where]) for n, c in zip(names, columns, strict=True)}
        analysis.at(**point)  # raises, with the condition that is broken
