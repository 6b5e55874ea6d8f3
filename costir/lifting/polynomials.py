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
Least = Mapping[Expr, int]
Shifted = dict[int, Fraction | int]  # the number of a `Key` to its coefficient
_ANYWHERE: Least = MappingProxyType({})


def never_less(above: Terms, below: Terms, least: Least = _ANYWHERE) -> bool:
    """Whether a polynomial is at least another one at all sizes from 1, or `least`, on, as far as its coefficients tell."""
    return Compared().never_less(above, below, least)


class Compared:
    """Compares many polynomials with each other, each written once in what sizes are more than their least.

    Polynomials are told apart by identity: the caller keeps them.
    """

    def __init__(self) -> None:
        self._numbers: dict[Key, int] = {}  # comparing numbers is much quicker than comparing products of sizes
        self._monomials: dict[tuple[Expr, tuple[tuple[Expr, int], ...]], list[tuple[int, int]]] = {}
        self._known: dict[tuple[int, tuple[tuple[Expr, int], ...]], Shifted] = {}

    def never_less(self, above: Terms, below: Terms, least: Least = _ANYWHERE) -> bool:
        """As the function."""
        high, low = self._around(above, least), self._around(below, least)
        return all(high.get(k, 0) >= c for k, c in low.items()) and all(c >= 0 or c >= low.get(k, 0) for k, c in high.items())

    def _around(self, terms: Terms, least: Least) -> Shifted:
        """A polynomial in what each size is more than its least."""
        lowest = tuple(least.items())
        key = id(terms), lowest
        if key not in self._known:
            out: Shifted = {}
            for mono, c in terms.items():
                number = int(c.p) if c.q == 1 else Fraction(int(c.p), int(c.q))
                for k, n in self._monomial(mono, lowest):
                    out[k] = out.get(k, 0) + n * number
            self._known[key] = out
        return self._known[key]

    def _monomial(self, mono: Expr, least: tuple[tuple[Expr, int], ...]) -> list[tuple[int, int]]:
        key = mono, least
        if key not in self._monomials:
            found = _written_out(mono, least)
            self._monomials[key] = [(self._numbers.setdefault(k, len(self._numbers)), n) for k, n in found]
        return self._monomials[key]


@functools.lru_cache(4096)
def _written_out(mono: Expr, least: tuple[tuple[Expr, int], ...]) -> list[tuple[Key, int]]:
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
