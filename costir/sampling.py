"""Compare functions of sizes by exact values at many points: two rational functions that agree there are equal.

Points are drawn anew from a fixed seed, small and large, inside the range where the formulas hold. A polynomial of degree d
that is not zero vanishes at a random point of a range of n numbers with probability d/n at most.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction

from costir import symbolic as sym
from costir.ir import Constraint
from costir.symbolic import Expr

Point = Mapping[str, int]
Values = tuple[Fraction, ...]
CLOSE = Fraction(1, 10**25)


def sample(base: Point, constraints: Iterable[Constraint] = (), count: int = 8) -> list[Point]:
    """Points inside the constraints: the base first, then random ones, every third of small sizes.

    Divisibility (`D % N == 0`) is repaired by multiplication; a point that breaks another condition is drawn again, then near
    the base; where none is found there are fewer points.
    """
    conditions = [c.condition for c in constraints]
    draw = random.Random(20)
    points: list[Point] = [dict(base)]
    for attempt in range(count * 25):
        if len(points) == count:
            break
        low, high = ((1, 12), (13, 400), (1000, 1_000_000))[attempt % 3]
        point: dict[str, int] = {n: draw.randint(low, high) for n in base}
        if attempt > count * 10:  # multiples of the base keep divisibility, smaller values keep upper limits
            point = {n: draw.choice((v, v * draw.randint(2, 5), max(1, v // 2))) for n, v in base.items()}
        for condition in conditions:
            found = sym.divisibility(condition)
            if found is not None and found[0] in point:
                factor = value(found[1], point)
                point[found[0]] *= int(factor) if factor and factor.denominator == 1 else 1
        at = {sym.size(n): v for n, v in point.items()}
        if all(sym.holds(c, at) for c in conditions):
            points.append(point)
    return points


def value(e: Expr, point: Point) -> Fraction | None:
    """The value at a point: exact where it is rational, to 50 digits where not; None where it has none."""
    found = sym.evaluate(e, {sym.size(n): v for n, v in point.items()})
    return sym.to_fraction(found)


def values(e: Expr, points: Sequence[Point]) -> Values | None:
    """The values at all points; None where one has none."""
    found = [value(e, p) for p in points]
    return None if any(v is None for v in found) else tuple(v for v in found if v is not None)


def same(a: Values, b: Values) -> bool:
    """Whether all values agree: exactly, or to 25 digits where roots and logarithms were rounded."""
    return all(x == y or abs(x - y) <= CLOSE * abs(y) for x, y in zip(a, b, strict=True))


def constant_ratio(a: Values, b: Values) -> Fraction | None:
    """a/b where it is the same at all points."""
    if any(y == 0 for y in b):
        return None
    ratios = tuple(x / y for x, y in zip(a, b, strict=True))
    return ratios[0] if same(ratios, (ratios[0],) * len(ratios)) else None


def growing(given: Expr, expected: Expr, names: Sequence[str], points: Sequence[Point]) -> list[tuple[str, ...]]:
    """The fewest sizes, three at most, that must grow together for given/expected to tend to 1; all sets of that many."""
    for count in range(1, min(len(names), 3) + 1):
        found = [c for c in itertools.combinations(names, count) if _tends(given, expected, c, points)]
        if found:
            return found
    return []


def _tends(given: Expr, expected: Expr, names: Collection[str], points: Sequence[Point]) -> bool:
    """Whether given/expected tends to 1 as the named sizes grow together, at every point of the others."""
    for point in points:
        gaps = []
        for scale in (10**9, 10**13):
            at = {n: v * scale if n in names else v for n, v in point.items()}
            a, b = value(given, at), value(expected, at)
            if a is None or not b:
                return False
            gaps.append(abs(a / b - 1))
        if gaps[0] > Fraction(1, 10) or gaps[1] > gaps[0] / 50 or gaps[1] > Fraction(1, 10**4):
            return False
    return bool(points)


def as_float(x: Fraction | float) -> float:
    """The nearest float; infinity where it is too large for one."""
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def short(x: Fraction | float, digits: int = 4) -> str:
    """A number for a message: whole ones in full up to 12 digits."""
    number = as_float(x)
    return str(int(number)) if abs(number) < 1e12 and number == int(number) else f"{number:.{digits}g}"
