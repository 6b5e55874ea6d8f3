"""Where a function of one size changes its sign: exactly for polynomials, by search over whole numbers for anything else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

LARGEST = 2**40


@dataclass(frozen=True, slots=True)
class Crossing:
    """A change of sign at `value`: `up` where the function is positive above it."""

    value: Fraction
    up: bool


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
