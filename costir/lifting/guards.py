"""Comparisons of sizes that the program makes: conditions under which its formulas hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import sympy as sp

from costir.errors import LiftError
from costir.ir import Constraint
from costir.lifting.fit import Fitter, independent
from costir.lifting.steps import combined, derived, floored, settled
from costir.symbolic import Boolean, Expr, holds, size
from costir.trace import Trace
from costir.tracing.frames import is_library_file
from costir.tracing.notes import Guard

_RELATIONS = {"<": sp.Lt, "<=": sp.Le, ">": sp.Gt, ">=": sp.Ge, "==": sp.Eq, "!=": sp.Ne}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
Key = tuple[str, str, bool]


def _by_key(trace: Trace) -> dict[Key, list[Guard]]:
    found: dict[Key, list[Guard]] = {}
    for g in trace.guards:
        found.setdefault(g.key, []).append(g)
    return found


def conflicts(base: Trace, traces: Sequence[Trace]) -> list[Guard]:
    """The base's comparisons that come out otherwise in another trace."""
    mine, found = _by_key(base), []
    for other in traces:
        theirs = _by_key(other)
        for key, guards in mine.items():
            if (
                key in theirs
                and {g.outcome for g in guards} != {g.outcome for g in theirs[key]}
                and not all(map(_is_one, guards))
            ):
                found.append(guards[0])
    return list(dict.fromkeys(found))


def _is_one(g: Guard) -> bool:
    """Whether it asks if a size that is 1 at the base is 1. Such shortcuts are checked by their cost instead: see `Lifted`.

    A quotient that is 1 is none: D // 64 == 1 says which D the formulas are for.
    """
    return g.left == 1 and g.right == 1 and g.rounded is None


def conditions(traces: Sequence[Trace], base: Trace, fitter: Fitter) -> list[Constraint]:
    """What every trace agreed on, as conditions on the sizes; shortcuts that the base takes at 1 are none."""
    tables = [_by_key(t) for t in traces]
    at_base = _by_key(base)
    found: dict[str, Constraint] = {}
    for key, guards in tables[0].items():
        columns = [t.get(key, []) for t in tables]
        if key in at_base and all(map(_is_one, at_base[key])):
            continue
        if any(len(c) != len(guards) for c in columns):
            continue
        for row in zip(*columns, strict=True):
            if len({g.outcome for g in row}) != 1:
                continue
            condition = condition_of(row, fitter)
            if condition is not None:
                branch = not row[0].library
                known = found.get(str(condition))
                if known is None or branch > known.branch:
                    found[str(condition)] = Constraint(condition, row[0].source, branch)
    return list(found.values())


def roundings(traces: Sequence[Trace], fitter: Fitter) -> list[Constraint]:
    """Conditions that what the program rounded comes out as it did in every trace."""
    found = []
    for step, d in settled([t.steps for t in traces]):
        a, b = fitter.exact(d.left), fitter.exact(d.right)
        if a is None or b is None:
            continue
        e = sp.Mod(a, b, evaluate=False) if d.op == "%" else combined(d.op, d.scale, a, b)
        condition = sp.Eq(e, step.value, evaluate=False) if e.free_symbols else sp.true
        if condition != sp.true:
            file, line, _ = step.place
            found.append(Constraint(condition, f"{file.rsplit('/', 1)[-1]}:{line}", branch=not is_library_file(file)))
    return found


def condition_of(row: Sequence[Guard], fitter: Fitter) -> Boolean | None:
    """A comparison seen in every trace as a condition; None where it says nothing about sizes, or about unknown numbers."""
    left, right = _side(row, "left", fitter), _side(row, "right", fitter)
    if left is None or right is None or not (left.free_symbols | right.free_symbols):
        return None
    op = row[0].op if row[0].outcome else _OPPOSITE[row[0].op]
    condition = _RELATIONS[op](left, right)
    if condition in (sp.true, sp.false):
        return None
    if op == "<=" and isinstance(left, (sp.floor, sp.ceiling)) and right.is_integer and (right - left.args[0]).is_nonnegative:
        return None  # a share of a size, rounded, is no more than the size
    if op == "!=" and (left - right).is_number is False and not _can_meet(left, right):
        return None
    return condition


def _side(row: Sequence[Guard], side: str, fitter: Fitter) -> Expr | None:
    """One side as an expression; remainders and quotients by what they were made of, since their values may all be 0."""
    parts = [g.rounded for g in row if g.rounded is not None]
    if side == "left" and len(parts) == len(row) and len({p[0] for p in parts}) == 1:
        a, b = fitter.exact(tuple([p[1] for p in parts])), fitter.exact(tuple([p[2] for p in parts]))
        if a is None or b is None:
            return None
        return sp.Mod(a, b) if parts[0][0] == "%" else floored(a, b)
    return fitter.exact(tuple([getattr(g, side) for g in row]))


def _can_meet(left: Expr, right: Expr) -> bool:
    """Whether two sizes can be equal at all: positive ones never equal zero or less."""
    return not ((right.is_nonpositive and left.is_positive) or (left.is_nonpositive and right.is_positive))


class Regime:
    """The comparisons that the base decides and that other points decided otherwise, as conditions on the sizes."""

    def __init__(self, base: Trace, names: Sequence[str]) -> None:
        self.base = base
        self.names = list(names)
        self.rules: dict[str, Boolean] = {}

    def learn(self, clash: Sequence[Guard], traces: Sequence[Trace]) -> bool:
        """Add the clashing comparisons; False where one is not understood."""
        seen = [*traces[:2], self.base]
        try:
            fitter = Fitter([t.sizes for t in seen], self.names, derived([t.steps for t in seen]))
        except LiftError:
            return False
        tables = [_by_key(t) for t in seen]
        for g in clash:
            row = [t.get(g.key, [None])[0] for t in tables]
            if any(r is None for r in row):
                continue  # not reached at some point: another clash decides first
            condition = _at_base([r for r in row if r is not None], g, fitter)
            if condition is None:
                return False
            if all(holds(condition, {size(n): v for n, v in t.sizes.items()}) for t in traces):
                return False  # it does not explain the clash: the comparison is one of many in a loop
            self.rules.setdefault(str(condition), condition)
        return bool(self.rules)

    def foreseen(self, points: tuple[dict[str, int], ...], sizes: Mapping[str, int]) -> tuple[dict[str, int], ...]:
        """The points, moved where the base compares a size with a plain number that they are beyond: no run is wasted.

        `H <= 256` is told by its numbers alone: 128 is a size's value, or that of two, and 256 is none's.
        """
        named: dict[int, list[str]] = {}
        for n in self.names:
            named.setdefault(self.base.sizes[n], []).append(n)
        for g in self.base.guards:
            plain = g.rounded is None and g.right > 1 and g.right not in self.base.sizes.values()
            if not plain or g.op not in ("<", "<=", ">", ">="):
                continue
            for n in named.get(g.left, ())[:2]:
                rule = _RELATIONS[g.op if g.outcome else _OPPOSITE[g.op]](size(n), sp.Integer(int(g.right)))
                if not all(holds(rule, {size(m): v for m, v in p.items()}) for p in points):
                    alone = Regime(self.base, self.names)
                    alone.rules[str(rule)] = rule
                    points = alone.moved(points, sizes) or points
        return points

    def moved(self, points: Sequence[Mapping[str, int]], sizes: Mapping[str, int]) -> tuple[dict[str, int], ...] | None:
        """The points with the sizes in the rules moved near the base, so that all rules hold, or None."""
        free = sorted(
            {str(s) for r in self.rules.values() for s in r.free_symbols if str(s) in self.names}, key=self.names.index
        )
        if not free:
            return None
        legal = _compiled(list(self.rules.values()), free, sizes)
        for keep in (True, False):  # first with all that divided each other before
            fitting = [self._fitting(p, sizes, free, legal, keep) for p in points]
            for a, b in itertools.islice(itertools.product(fitting[0], fitting[1]), 4000):
                if independent(a, b, self.names):
                    third = next((f for f in fitting[2] if f not in (a, b)), None) if len(points) > 2 else None
                    return (a, b, third) if third is not None else (a, b)
        return None

    def _fitting(self, point: Mapping[str, int], sizes: Mapping[str, int], free: Sequence[str],
                 legal: Callable[..., bool], keep: bool) -> list[dict[str, int]]:  # fmt: skip
        """A point with the free sizes moved: legal ones that keep which size divides which."""
        kept = [(n, m) for n in sizes for m in sizes if n in point and m in point and n != m and 1 < sizes[m] < sizes[n]
                and sizes[n] % sizes[m] == 0 and point[n] % point[m] == 0 and (n in free or m in free)]  # fmt: skip
        kept = kept if keep else []
        choices = [_nearby(self.base.sizes[n], _granules(n, sizes, point)) for n in free]
        found = []
        for values in itertools.islice(itertools.product(*choices), 40_000):
            moved = {**point, **dict(zip(free, values, strict=True))}
            if (
                legal(*values)
                and all(moved[n] % moved[m] == 0 for n, m in kept)
                and any(moved[n] != self.base.sizes[n] for n in free)
            ):
                found.append(moved)
                if len(found) == 200:
                    break
        return found


def _at_base(row: Sequence[Guard], g: Guard, fitter: Fitter) -> Boolean | None:
    left, right = _side(row, "left", fitter), _side(row, "right", fitter)
    if left is None or right is None or not (left.free_symbols | right.free_symbols):
        return None
    condition = _RELATIONS[g.op if g.outcome else _OPPOSITE[g.op]](left, right, evaluate=False)
    return condition


def _compiled(rules: Sequence[Boolean], free: Sequence[str], sizes: Mapping[str, int]) -> Callable[..., bool]:
    others = {size(n): sp.Integer(v) for n, v in sizes.items() if n not in free}
    test = sp.lambdify([size(n) for n in free], [r.xreplace(others) for r in rules], modules="math")
    return lambda *values: all(test(*values))


def _granules(name: str, sizes: Mapping[str, int], point: Mapping[str, int]) -> list[int]:
    """What the size was a multiple of at a point: the sizes that divide it at the base; a power of two."""
    inside = [m for m, v in sizes.items() if m != name and m in point and 1 < v < sizes[name] and sizes[name] % v == 0]
    even = math.gcd(sizes[name], point.get(name, 1), 16)
    return [math.lcm(*(point[m] for m in inside if point.get(name, 0) % point[m] == 0), even), even]


def _nearby(value: int, granules: Sequence[int] = ()) -> list[int]:
    """Values to try, mixed: multiples that a point keeps, primes around the base, then everything close, then far multiples."""
    kept = [k * g for g in granules for k in range(1, 64) if g > 1 and value // 4 <= k * g <= 4 * value + 8 * g][:48]
    close = list(range(max(2, value // 3), min(3 * value + 12, value + 60)))
    far = [value * k // d for k, d in ((3, 2), (5, 3), (7, 4), (11, 8), (3, 4), (5, 8), (2, 1), (3, 1), (5, 1), (7, 1))]
    even = sorted((v for v in close if value % 2 == v % 2 == 0 and v != value), key=lambda v: abs(v - value))[:16]
    mixed = kept + even + [v for v in close if sp.isprime(v) and v != value] + [v for v in close if v != value] + far
    return [v for v in dict.fromkeys(mixed) if v > 1][:104]
