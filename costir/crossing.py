"""Where a function of one size changes its sign: exactly for polynomials, by search over whole numbers for anything else.

A `Domain` says which of these values a size may take: formulas hold under conditions, and a model may end at a length.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from costir.ir import Constraint
from costir.symbolic import number, size

LARGEST = 2**40


@dataclass(frozen=True, slots=True)
class Crossing:
    """A change of sign at `value`: `up` where the function is positive above it."""

    value: Fraction
    up: bool


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that a size may take while the others stay at the base.

    Attributes:
        constraints: where the formulas hold. Divisibilities and single values that are left out say nothing here, since a
            critical size is a real number.
        sizes: the base values, which meet all constraints.
    """

    constraints: tuple[Constraint, ...]
    sizes: Mapping[str, int]

    def outside(self, name: str, value: Fraction) -> Constraint | None:
        """The first constraint that a value of one size breaks; None where it may have it."""
        point = {size(n): sp.Integer(v) for n, v in self.sizes.items()} | {size(name): number(value)}
        for c in self.constraints:
            if size(name) not in c.condition.free_symbols or c.condition.has(sp.Mod, sp.Ne):
                continue
            if isinstance(c.condition, sp.Eq) and not (c.condition.lhs == size(name) and c.condition.rhs.is_Integer):
                continue  # a size that follows another
            if c.condition.xreplace(point) == sp.false:
                return c
        return None

    def unreachable(self, names: Sequence[str], value: Fraction) -> Constraint | None:
        """The constraint that keeps a product of sizes from a value; None where some values of the factors give it."""
        here = {n: Fraction(self.sizes[n]) for n in names}
        broken = None
        for n in names:
            wanted = value / math.prod(v for m, v in here.items() if m != n)
            found = Domain(self.constraints, {**self.sizes, **{m: int(v) for m, v in here.items()}}).outside(n, wanted)
            if found is None or wanted <= 1:
                return None
            broken = broken or found
            here[n] = Fraction(self._largest(n, here, int(wanted)))
        return broken

    def _largest(self, name: str, here: Mapping[str, Fraction], beyond: int) -> int:
        """The largest whole value of a size below one that it may not have, as far as its range has no gaps."""
        there = Domain(self.constraints, {**self.sizes, **{m: int(v) for m, v in here.items()}})
        low, high = int(here[name]), max(beyond, int(here[name]))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if there.outside(name, Fraction(middle)) is None else (low, middle - 1)
        return low

    def tied(self, name: str) -> Constraint | None:
        """The constraint that leaves a size no value of its own: it is one number, or follows other sizes."""
        equal = (c for c in self.constraints if isinstance(c.condition, sp.Eq) and c.condition.lhs == size(name))
        return next(equal, None)


EVERYWHERE = Domain((), {})


def polynomial_crossings(coefficients: Sequence[Fraction]) -> list[Crossing]:
    """The sign changes of a polynomial at positive arguments, in order.

    Args:
        coefficients: of the powers 0, 1, 2, ...

    Between two neighbouring roots of the derivative a polynomial is monotonic, so that a bisection there finds its root. All
    signs are those of exact rationals; roots of degree two and more are within one part in 2**64.
    """
    c = list(coefficients)
    while c and c[-1] == 0:
        c.pop()
    while c and c[0] == 0:
        c.pop(0)
    if len(c) < 2:
        return []
    if len(c) == 2:
        root = -c[0] / c[1]
        return [Crossing(root, c[1] > 0)] if root > 0 else []
    turning = [x.value for x in polynomial_crossings([k * a for k, a in enumerate(c)][1:])]
    bound = 1 + max(abs(a / c[-1]) for a in c[:-1])
    points = [Fraction(0), *turning, max(bound, *turning) if turning else bound]
    found = []
    for low, high in itertools.pairwise(points):
        before, after = _sign(c, low), _sign(c, high)
        if before * after < 0:
            found.append(Crossing(_bisect(c, low, high, after), after > 0))
    return found


def _sign(c: Sequence[Fraction], x: Fraction) -> int:
    """The sign of a polynomial, by Horner's rule."""
    total = Fraction(0)
    for a in reversed(c):
        total = total * x + a
    return (total > 0) - (total < 0)


def _bisect(c: Sequence[Fraction], low: Fraction, high: Fraction, after: int) -> Fraction:
    """The root between `low` and `high`, where the sign is `after`."""
    while high - low > high / 2**64:
        # Midpoints are rounded to 100 bits: their digits would double with each step otherwise.
        middle = _short((low + high) / 2)
        sign = _sign(c, middle)
        if sign == 0:
            return middle
        low, high = (low, middle) if sign == after else (middle, high)
    return high


def _short(x: Fraction) -> Fraction:
    """`x` rounded to 100 significant bits."""
    shift = 100 - (x.numerator.bit_length() - x.denominator.bit_length())
    scaled = x * Fraction(2) ** shift
    return Fraction(round(scaled)) / Fraction(2) ** shift


def integer_crossings(signs: Callable[[Any], Any], exact: Callable[[int], int]) -> list[Crossing]:
    """The sign changes over the whole numbers from 1 to 2**40 that a search finds; each value is the first one past it.

    Args:
        signs: the signs at an array of floats; small errors do not matter.
        exact: the sign at one whole number.

    Every number up to 256 is tried, then steps of 4 %. Between two tries a function with steps (ceil, floor) may change its
    sign there and back unseen.
    """
    grid = [*range(1, 257)]
    while grid[-1] < LARGEST:
        grid.append(grid[-1] + max(1, grid[-1] // 25))
    rough = np.asarray(signs(np.asarray(grid, dtype=float)))
    found = []
    previous, sign = grid[0], int(exact(grid[0]))
    for x, guess in zip(grid[1:], rough[1:], strict=True):
        if guess == sign:
            previous = x
            continue
        now = exact(x)
        if now != sign and now != 0:
            low, high = previous, x
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if exact(middle) == now else (middle, high)
            found.append(Crossing(Fraction(high), now > 0))
            sign = now
        previous = x
    return found
