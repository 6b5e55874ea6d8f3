"""A step of serving, put on chips, for a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from costir.report import BOUNDS, SERVED, Quantity, Served, plain
from costir.symbolic import Expr, evaluate, size

if TYPE_CHECKING:
    from costir.analysis import Analysis
    from costir.hardware import Chip


def served_of(analysis: Analysis, chips: Sequence[Chip], quantity: Callable[[Expr], Quantity]) -> Served | None:
    """What the cache of a step takes, and its bounds on each chip; None where the step has no cache."""
    cache = analysis.cache
    if cache is None:
        return None
    bounds = [cache.on(chip) for chip in chips]
    return Served(
        cache.batch,
        cache.length,
        {name: quantity(getattr(cache, name)) for name in SERVED},
        tuple({n: _or_none(getattr(b, n), quantity) for n in BOUNDS} for b in bounds),
    )


def _or_none(e: Expr | None, quantity: Callable[[Expr], Quantity]) -> Quantity:
    return Quantity(None, None) if e is None else quantity(e)


def served_at(regime: Analysis, chips: Sequence[Chip], sizes: Mapping[str, int]) -> tuple[float, ...]:
    """The bytes of the cache at one point, then per chip the least latency and the most tokens per second."""
    cache = regime.cache
    if cache is None:
        return ()
    point = {size(n): v for n, v in sizes.items()}
    on_chips = [b for chip in chips for b in (cache.on(chip),)]
    found = [cache.alone.total, *(e for b in on_chips for e in (b.latency, b.tokens_per_second))]
    return tuple(float(plain(evaluate(e, point)) or 0) for e in found)
