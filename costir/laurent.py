"""Sums of monomials with whole exponents, negative ones too: what costs are, once multiplied out.

    Laurent.of(2*B*D*F + B/K)  ->  {(("B", 1), ("D", 1), ("F", 1)): 2, (("B", 1), ("K", -1)): 1}

Solving and limits need only comparisons of exponents here, which costs microseconds where sympy's general tools cost
milliseconds to seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from costir import symbolic as sym
from costir.symbolic import Expr

Monomial = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Laurent:
    """Coefficients by monomial; a monomial is its (name, exponent) pairs in order of names, none of exponent 0."""

    terms: Mapping[Monomial, Fraction]

    @staticmethod
    def of(e: Expr) -> Laurent | None:
        """The sum of monomials that `e` is, or None where it is none (floor, Max, a sum below the line)."""
        found: dict[Monomial, Fraction] = {}
        for term in sym.terms(sym.expand(e)):
            coefficient, rest = term.as_coeff_Mul()
            if not coefficient.is_Rational:
                return None
            powers = rest.as_powers_dict()
            if any(not (b.is_Symbol and x.is_Integer) for b, x in powers.items() if b != 1):
                return None
            key = tuple(sorted((str(b), int(x)) for b, x in powers.items() if b != 1))
            found[key] = found.get(key, Fraction(0)) + Fraction(int(coefficient.p), int(coefficient.q))
        return Laurent({k: c for k, c in found.items() if c})

    @staticmethod
    def sum(parts: Iterable[tuple[Laurent, Fraction]]) -> Laurent:
        """The sum of parts, each times a number."""
        found: dict[Monomial, Fraction] = {}
        for part, scale in parts:
            for key, c in part.terms.items():
                found[key] = found.get(key, Fraction(0)) + c * scale
        return Laurent({k: c for k, c in found.items() if c})

    def __bool__(self) -> bool:
        return bool(self.terms)

    @property
    def names(self) -> frozenset[str]:
        """The names that occur."""
        return frozenset(n for key in self.terms for n, _ in key)

    def times(self, other: Laurent) -> Laurent:
        """The product."""
        found: dict[Monomial, Fraction] = {}
        for a, c in self.terms.items():
            for b, d in other.terms.items():
                key = _merge(a, b)
                found[key] = found.get(key, Fraction(0)) + c * d
        return Laurent({k: c for k, c in found.items() if c})

    def primitive(self) -> Laurent:
        """Divided by its content, so that no exponent is negative: same sign, same roots."""
        return Laurent.common([self])[0]

    def above_one(self) -> Laurent:
        """In terms of how much each name is above 1: x*y becomes 1 + x + y + x*y. Without negative exponents only."""
        found: dict[Monomial, Fraction] = {}
        for key, c in self.terms.items():
            choices = [[(n, k) for k in range(x + 1)] for n, x in key]
            for chosen in itertools.product(*choices):
                ways = math.prod(math.comb(x, k) for (_, x), (_, k) in zip(key, chosen, strict=True))
                monomial = tuple((n, k) for n, k in chosen if k)
                found[monomial] = found.get(monomial, Fraction(0)) + c * ways
        return Laurent({k: c for k, c in found.items() if c})

    def content(self) -> Laurent:
        """The largest monomial that divides it."""
        powers = [dict(key) for key in self.terms]
        least = ((n, min(x.get(n, 0) for x in powers)) for n in sorted(self.names))
        return Laurent({_merge((), tuple(least)): Fraction(1)})

    def whole(self) -> Laurent:
        """Times a positive number, so that all coefficients are whole and without a common divisor."""
        if not self.terms:
            return self
        below = math.lcm(*(c.denominator for c in self.terms.values()))
        above = math.gcd(*(int(c * below) for c in self.terms.values()))
        return Laurent({key: c * below / above for key, c in self.terms.items()})

    @staticmethod
    def common(parts: Sequence[Laurent]) -> list[Laurent]:
        """All of them divided by the largest monomial that divides them all: their ratios stay."""
        names = frozenset().union(*(p.names for p in parts))
        powers = [dict(key) for p in parts for key in p.terms]
        least = tuple((n, -min(x.get(n, 0) for x in powers)) for n in sorted(names))
        return [Laurent({_merge(key, least): c for key, c in p.terms.items()}) for p in parts]

    def by_power(self, name: str) -> dict[int, Laurent]:
        """The coefficient of each power of a name."""
        found: dict[int, dict[Monomial, Fraction]] = {}
        for key, c in self.terms.items():
            power = dict(key).get(name, 0)
            found.setdefault(power, {})[tuple(p for p in key if p[0] != name)] = c
        return {power: Laurent(t) for power, t in found.items()}

    def leading(self, scaled: Collection[str]) -> tuple[int, Laurent]:
        """The largest total degree in the scaled names, and the terms that have it: what is left as they grow together."""
        degree = {key: sum(x for n, x in key if n in scaled) for key in self.terms}
        top = max(degree.values(), default=0)
        return top, Laurent({key: c for key, c in self.terms.items() if degree[key] == top})

    def merged(self, names: Collection[str], into: str) -> Laurent | None:
        """With the product of `names` written as `into`; None where it depends on them in another way.

        Equal powers of all the names are needed in every term.
        """
        found: dict[Monomial, Fraction] = {}
        first, *others = names
        for key, c in self.terms.items():
            powers = dict(key)
            power = powers.pop(first, 0)
            if any(powers.pop(n, 0) != power for n in others):
                return None
            found[_merge(tuple(sorted(powers.items())), ((into, power),) if power else ())] = c
        return Laurent(found)

    def at(self, values: Mapping[str, int]) -> Laurent:
        """With numbers for some of the names."""
        found: dict[Monomial, Fraction] = {}
        for key, c in self.terms.items():
            for n, x in key:
                if n in values:
                    c *= Fraction(values[n]) ** x
            left = tuple(p for p in key if p[0] not in values)
            found[left] = found.get(left, Fraction(0)) + c
        return Laurent({k: c for k, c in found.items() if c})

    def value(self, values: Mapping[str, int]) -> Fraction:
        """The exact value where every name has one."""
        return self.at(values).terms.get((), Fraction(0))

    def split(self) -> tuple[Laurent, Laurent]:
        """The terms with positive coefficients, and the others with their sign changed."""
        positive = {k: c for k, c in self.terms.items() if c > 0}
        return Laurent(positive), Laurent({k: -c for k, c in self.terms.items() if c < 0})

    def expr(self) -> Expr:
        """As a sympy expression."""
        return sym.total(sym.product([sym.number(c), *(sym.size(n) ** x for n, x in key)]) for key, c in self.terms.items())


def _merge(a: Monomial, b: Monomial) -> Monomial:
    """The product of two monomials."""
    powers: dict[str, Any] = dict(a)
    for n, x in b:
        powers[n] = powers.get(n, 0) + x
    return tuple(sorted((n, x) for n, x in powers.items() if x))
