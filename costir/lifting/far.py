"""A point far from those that formulas were found at. What a program does only beyond some size shows there.

Probes are small so that traces are quick. `i < 10`, `int(T) <= 64` or a table of four entries look there like no branch at all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sympy import isprime

from costir.lifting.implied import is_divisibility
from costir.lifting.points import Point
from costir.symbolic import Boolean, Integer, holds, size

FACTORS = (16, 4)  # how much further than all sizes seen, tried in turn
_SPAN = 8  # sizes seen over such a range need no further one
_DEEP = (17, 19, 23, 13, 29, 31, 37)  # layers
_TRIED = 64  # values of one size


def spanned(seen: Sequence[Mapping[str, int]], names: Collection[str]) -> bool:
    """Whether the points already lie far apart in all these sizes."""
    return all(max(p[n] for p in seen) >= _SPAN * min(p[n] for p in seen) for n in names)


def far_point(conditions: Sequence[Boolean], seen: Sequence[Mapping[str, int]], names: Sequence[str],
              factors: Mapping[str, int], depths: Collection[str] = (), keep: bool = False) -> Point | None:  # fmt: skip
    """A point whose sizes are all much larger, and odd where they can be; None where the conditions allow none.

    Args:
        conditions: what must hold there.
        seen: the points so far.
        names: the sizes to move; the others are as at the first point.
        factors: how much larger than all seen each size shall be.
        depths: the sizes that are numbers of layers.
        keep: sizes that were multiples of others, or even, at all points stay so.
    """
    point = dict(seen[0])
    order = _divisors_first(conditions, sorted(names, key=lambda n: min(p[n] for p in seen)) if keep else names)
    for place, n in enumerate(order):
        open_yet = {size(m) for m in order[place + 1 :]}
        decided = [c for c in conditions if size(n) in c.free_symbols and not c.free_symbols & open_yet]
        unit = math.lcm(*_units(decided, point, n), *(_kept(seen, point, n, order[:place]) if keep else ()))
        values = _layers(seen, n, factors[n] > 1) if n in depths else _values(seen, n, unit, factors[n], place)
        fitting = (v for v in values if all(holds(c, {size(m): x for m, x in {**point, n: v}.items()}) for c in decided))
        value = next(fitting, None)
        if value is None:
            return None
        point[n] = value
    return point


def _divisors_first(conditions: Sequence[Boolean], names: Sequence[str]) -> list[str]:
    """The sizes, those by which others must be divisible before those."""
    below: set[Any] = set()
    for c in conditions:
        if is_divisibility(c):
            below |= c.lhs.args[1].free_symbols
    return sorted(names, key=lambda n: (size(n) not in below, list(names).index(n)))


def _units(conditions: Sequence[Boolean], point: Mapping[str, int], name: str) -> Iterator[int]:
    """What the size must be a multiple of."""
    for c in conditions:
        if is_divisibility(c) and c.lhs.args[0] == size(name) and size(name) not in c.lhs.args[1].free_symbols:
            bottom = c.lhs.args[1].xreplace({size(m): Integer(v) for m, v in point.items()})
            if bottom.is_Integer and bottom > 0:
                yield int(bottom)


def _kept(seen: Sequence[Mapping[str, int]], point: Mapping[str, int], name: str, done: Sequence[str]) -> list[int]:
    """The sizes that this one was a multiple of at all points, and the numbers."""
    divisors = [m for m in done if all(p[m] > 1 and p[name] % p[m] == 0 for p in seen)]
    return [*(point[m] for m in divisors), math.gcd(*(p[name] for p in seen), 64)]


def _values(seen: Sequence[Mapping[str, int]], name: str, unit: int, factor: int, place: int) -> Iterator[int]:
    """Multiples of the unit far beyond those seen, prime ones first, then odd ones; then nearer ones; then what was seen."""
    most = max(p[name] for p in seen)
    first = factor * most // unit + 2 * place
    first += 1 - first % 2
    odd, even = range(first, first + _TRIED, 2), range(first + 1, first + _TRIED, 2)
    yield from (unit * k for k in dict.fromkeys((*filter(isprime, odd), *odd, *even)))
    yield from (unit * k for k in range(first, 0, -max(1, first // _TRIED)))
    yield from dict.fromkeys(p[name] for p in seen)


def _layers(seen: Sequence[Mapping[str, int]], name: str, far: bool) -> Iterator[int]:
    most = max(p[name] for p in seen)
    yield from [v for v in _DEEP if v > most + 3] if far else range(most + 1, most + 4)
    yield from range(most + 8, most + 16)
    yield from range(most, 0, -1)
