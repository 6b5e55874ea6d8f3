"""Comparisons of sizes that the program makes: conditions under which its formulas hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import sympy as sp

from costir.ir import Constraint
from costir.lifting.fit import independent
from costir.symbolic import Expr
from costir.trace import Trace
from costir.tracing.dims import OPERATORS, Guard

_RELATIONS = {"<": sp.Lt, "<=": sp.Le, ">": sp.Gt, ">=": sp.Ge, "==": sp.Eq, "!=": sp.Ne}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def _by_key(trace: Trace) -> dict[tuple[str, str, bool], list[Guard]]:
    found: dict[tuple[str, str, bool], list[Guard]] = {}
    for g in trace.guards:
        found.setdefault(g.key, []).append(g)
    return found


def conflicts(base: Trace, traces: Sequence[Trace]) -> list[Guard]:
    """The base's comparisons that come out otherwise in another trace."""
    mine, found = _by_key(base), []
    for other in traces:
        theirs = _by_key(other)
        for key, guards in mine.items():
            if key in theirs and {g.outcome for g in guards} != {g.outcome for g in theirs[key]} and not all(map(_is_one, guards)):
                found.append(guards[0])
    return list(dict.fromkeys(found))


def _is_one(g: Guard) -> bool:
    """Whether it asks if a size that is 1 at the base is 1. Such shortcuts are checked by their cost instead: see `Lifted`."""
    return g.left == 1 and g.right == 1


def conditions(traces: Sequence[Trace], base: Trace, fit: Callable[[Sequence[int]], Expr | None]) -> list[Constraint]:
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
            condition = _condition(row, fit)
            if condition is not None:
                found.setdefault(str(condition), Constraint(condition, row[0].source, branch=not row[0].library))
    return list(found.values())


def _condition(row: Sequence[Guard], fit: Callable[[Sequence[int]], Expr | None]) -> sp.logic.boolalg.Boolean | None:
    left, right = fit([g.left for g in row]), fit([g.right for g in row])
    if left is None or right is None or not (left.free_symbols | right.free_symbols):
        return None
    op = row[0].op if row[0].outcome else _OPPOSITE[row[0].op]
    condition = _RELATIONS[op](left, right)
    if condition in (sp.true, sp.false):
        return None
    if op == "!=" and (left - right).is_number is False and not _can_meet(left, right):
        return None
    return condition


def _can_meet(left: Expr, right: Expr) -> bool:
    """Whether two sizes can be equal at all: positive ones never equal zero or less."""
    return not ((right.is_nonpositive and left.is_positive) or (left.is_nonpositive and right.is_positive))


def holds(guard: Guard, left: int, right: int) -> bool:
    """Whether a comparison would come out as it did."""
    return OPERATORS[guard.op](left, right) == guard.outcome


def respectful(clash: Sequence[Guard], base: Trace, traces: Sequence[Trace], points: Sequence[Mapping[str, int]], sizes: Mapping[str, int],
               names: Sequence[str]) -> tuple[dict[str, int], ...] | None:  # fmt: skip
    """Points moved so that the clashing comparisons come out as at the base, or None.

    Only comparisons of single sizes with each other or with a number are understood; the sizes in them are moved to values
    near the base, the others stay.
    """
    moving: dict[str, None] = {}
    rules: list[tuple[Guard, str | int, str | int]] = []
    tables = [_by_key(t) for t in traces]
    for g in clash:
        seen = [t.get(g.key, [None])[0] for t in tables]
        others = [s for s in seen if s is not None]
        sides = []
        for side in ("left", "right"):
            value = getattr(g, side)
            there = [getattr(o, side) for o in others]
            name = next((n for n in names if base.sizes[n] == value and all(p[n] == v for p, v in zip(points, there, strict=False))), None)
            sides.append(name if name is not None else value if all(v == value for v in there) else None)
        if None in sides:
            return None
        rules.append((g, *sides))  # type: ignore[arg-type]
        moving.update(dict.fromkeys(s for s in sides if isinstance(s, str)))
    free = list(moving)
    if not free:
        return None
    return _search(rules, free, base, points, names)


def _search(rules: Sequence[tuple[Guard, str | int, str | int]], free: list[str], base: Trace, points: Sequence[Mapping[str, int]],
            names: Sequence[str]) -> tuple[dict[str, int], ...] | None:  # fmt: skip
    def legal(values: Mapping[str, int]) -> bool:
        look = lambda s: values[s] if isinstance(s, str) else s
        return all(holds(g, look(a), look(b)) for g, a, b in rules)

    choices = [_nearby(base.sizes[n]) for n in free]
    fitting = [dict(zip(free, c, strict=True)) for c in itertools.islice(itertools.product(*choices), 20000) if legal(dict(zip(free, c, strict=True)))]
    fitting = [f for f in fitting if any(f[n] != base.sizes[n] for n in free)][:200]
    for a, b in itertools.permutations(fitting, 2):
        first, second = {**points[0], **a}, {**points[1], **b}
        if independent(first, second, names):
            third = next((f for f in fitting if f not in (a, b)), None)
            rest = ({**points[2], **third},) if third is not None and len(points) > 2 else ()
            return (first, second, *rest)
    return None


def _nearby(value: int) -> list[int]:
    """Values to try, mixed: primes around the base first, then everything close, then the same multiples."""
    close = [v for v in range(max(2, value // 3), min(3 * value + 12, value + 60))]
    far = [value * k // d for k, d in ((3, 2), (5, 3), (7, 4), (11, 8), (3, 4), (5, 8), (2, 1), (3, 1), (5, 1), (7, 1))]
    mixed = [v for v in close if sp.isprime(v) and v != value] + [v for v in close if v != value] + far
    return [v for v in dict.fromkeys(mixed) if v > 1][:60]
