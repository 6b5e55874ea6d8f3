"""Polynomials in the sizes, compared: which is never less than which."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

from costir.symbolic import Expr

Terms = dict[Expr, Expr]  # products of sizes to their coefficients
Key = tuple[tuple[Expr, int], ...]  # factors and their powers
Shifted = dict[Key, Fraction | int]


def never_less(above: Terms, below: Terms, least: Mapping[Expr, int] = MappingProxyType({})) -> bool:
    """Whether a polynomial is at least another one at all sizes from 1, or `least`, on, as far as its coefficients tell."""
    return covers(around(above, least), around(below, least))


def covers(above: Shifted, below: Shifted) -> bool:
    """Whether no coefficient of a polynomial is less than that of another one."""
    return all(above.get(k, 0) >= c for k, c in below.items()) and all(c >= 0 or c >= below.get(k, 0) for k, c in above.items())


def around(terms: Terms, least: Mapping[Expr, int]) -> Shifted:
    """A polynomial in what each size is more than its least."""
    out: Shifted = {}
    for mono, c in terms.items():
        number = Fraction(int(c.p), int(c.q))
        for key, n in _around(mono, tuple(least.items())):
            out[key] = out.get(key, 0) + n * number
    return out


@functools.lru_cache(4096)
def _around(mono: Expr, least: tuple[tuple[Expr, int], ...]) -> list[tuple[Key, int]]:
    """A product of powers of sizes, written out in what each size is more than its least; anything else stays one factor."""
    out: dict[Key, int] = {(): 1}
    for base, power in mono.as_powers_dict().items():
        if base.is_Number:
            continue
        plain = base.is_Symbol and power.is_Integer and power > 0
        row = _binomial(int(power), dict(least).get(base, 1)) if plain else [0, 1]
        unit = base if plain else base**power
        step: dict[Key, int] = {}
        for key, n in out.items():
            for k, c in enumerate(row):
                longer = tuple(sorted((*key, (unit, k)), key=str)) if k else key
                step[longer] = step.get(longer, 0) + n * c
        out = step
    return list(out.items())


def _binomial(n: int, a: int) -> list[int]:
    """The coefficients of (a + x)**n."""
    return [math.comb(n, k) * a ** (n - k) for k in range(n + 1)]
