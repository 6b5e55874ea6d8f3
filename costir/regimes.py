"""A family in all its regimes: where the program branches on its sizes, each side is analysed at a point of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import sympy as sp

from costir.cost import cost, cost_of
from costir.errors import CostirError, LiftError
from costir.ir import Constraint, Graph, Node
from costir.lift import lift
from costir.lifting.assemble import Lifted
from costir.lifting.implied import without_implied
from costir.lifting.trial import BY_TRIAL
from costir.load.family import Family
from costir.recount import SHORTCUT, where_one
from costir.symbolic import Expr, Integer, Symbol, size, total
from costir.trace import concrete

_MOST = 6  # regimes besides the base's
_ATTEMPTS = 10
_CALLS = 400  # larger graphs are analysed in the base's regime alone
_FEW = 3  # values on one side of a branch, up to which each is a regime of its own


class Side(NamedTuple):
    """A point on the other side of a branch, and what holds on that whole side; `beyond` where no comparison tells it."""

    point: dict[str, int]
    pins: dict[str, str]
    ties: dict[str, tuple[str, ...]]
    beyond: Constraint | None = None


def regimes(family: Family, phase: str = "forward", optimizer: Any = None) -> list[Lifted]:
    """The graph at the base sizes, then the graphs of other regimes that could be found and lifted, with their traces.

    Raises:
        CostirError: where the base regime cannot be analysed.
    """
    base = confirmed(lift(family, phase, optimizer))
    found = [base]
    if len(base.graph.calls) > _CALLS or family.axes:
        return found
    seen: set[str] = set()
    attempts = 0
    for graph in (one.graph for one in found):  # grows while it is walked
        for branch in [c for c in graph.constraints if c.branch and str(c.condition) not in seen]:
            seen.add(str(branch.condition))
            for side in _other_sides(branch, graph, family.sizes):
                if attempts >= _ATTEMPTS or len(found) > _MOST:
                    return found
                if any(_covers(one.graph, side.point) for one in found):
                    continue
                attempts += 1
                other = _lifted(family, _beyond(branch, side), phase, optimizer)
                if other is not None:
                    found.append(_with(other, sizes=base.graph.sizes))
                    if not side.pins:
                        break
    return found


def _lifted(family: Family, side: Side, phase: str, optimizer: Any) -> Lifted | None:
    """The graph of a regime, or None where it cannot be analysed: that side stays outside the range of the formulas."""
    try:
        other = confirmed(lift(dataclasses.replace(family, sizes=side.point), phase, optimizer, side.pins, side.ties))
    except CostirError:
        return None
    if side.beyond is not None:
        other = _with(other, constraints=tuple(without_implied([*other.graph.constraints, side.beyond])))
    return other if _covers(other.graph, side.point) else None


def _with(lifted: Lifted, **changes: Any) -> Lifted:
    """The same with other attributes of the graph."""
    return dataclasses.replace(lifted, graph=dataclasses.replace(lifted.graph, **changes))


def _beyond(branch: Constraint, side: Side) -> Side:
    """The side with the opposite of a condition found by trial: the program itself makes no comparison that would tell it."""
    if not branch.source.startswith(BY_TRIAL) or side.pins:
        return side
    return side._replace(beyond=Constraint(sp.Not(branch.condition), branch.source, branch=True))


def _other_sides(branch: Constraint, graph: Graph, base: Mapping[str, int]) -> Iterator[Side]:
    """Points across a branch, likeliest first: one size moved, where all else that the graph asks for still holds if it can."""
    condition = branch.condition
    names = sorted((str(s) for s in condition.free_symbols if str(s) in base), key=lambda n: -base[n])
    if isinstance(condition, sp.Ne):
        yield from _meeting(condition, base)
        return
    others = [c.condition for c in graph.constraints if c is not branch]
    start = _inside(graph, base)
    lonely: list[Side] = []
    for strict in (True, False):
        for n in names:
            values = [v for v in _candidates(start[n]) if _crosses(condition, others if strict else [], {**start, n: v})]
            free = [v for v in values if v > 1]
            if len(values) > _FEW and free:
                apart = [v for v in free if v not in start.values()] or free  # equal sizes hide which of them is meant
                yield Side({**start, n: apart[len(apart) // 3]}, {}, {})
            else:
                lonely += [Side({**start, n: v}, {n: f"the other side of {condition} ({branch.source})"}, {}) for v in values]
    yield from lonely


def _meeting(condition: Any, base: Mapping[str, int]) -> Iterator[Side]:
    """The side of `a != b` where they meet."""
    a, b = condition.args
    if a.is_Symbol and b.is_Symbol:
        yield Side({**base, str(a): base[str(b)]}, {}, {str(a): (str(b),)})
    elif a.is_Symbol and b.is_Integer and b > 0:
        yield Side({**base, str(a): int(b)}, {str(a): f"where {a} is {b}"}, {})
    else:
        for s in condition.free_symbols:
            v = next((v for v in _candidates(base[str(s)]) if _crosses(condition, [], {**base, str(s): v})), None)
            if v is not None:
                yield Side({**base, str(s): v}, {}, {})


def _inside(graph: Graph, base: Mapping[str, int]) -> dict[str, int]:
    """A point in the graph's regime: the base, with one size moved where the graph is of another regime."""
    if _covers(graph, dict(base)):
        return dict(base)
    for n in base:
        for v in _candidates(base[n]):
            if _covers(graph, {**base, n: v}):
                return {**base, n: v}
    return dict(base)


_LARGER_BASE = "choose base sizes of 2 or more, and fewer devices where their part of a size is 1"


def _candidates(value: int) -> list[int]:
    """Values to try for a size: small ones, those near it, and its multiples and fractions."""
    near = [v for d in range(1, 65) for v in (value + d, value - d)]
    far = [value * k for k in (2, 3, 4, 8, 16, 64)] + [value // k for k in (2, 3, 4, 8, 16, 64)] + [2**k for k in range(6, 15)]
    return sorted({v for v in (*range(1, 33), *near, *far) if v > 0})


def _crosses(condition: Any, others: Iterable[Any], point: Mapping[str, int]) -> bool:
    values = {size(k): Integer(v) for k, v in point.items()}
    return condition.xreplace(values) == sp.false and all(o.xreplace(values) != sp.false for o in others)


def confirmed(lifted: Lifted) -> Lifted:
    """What was lifted, once its contractions cost at the base what the base run itself costs.

    At sizes of 1 programs take shortcuts (a copy less, a mask less). Where these change no contraction, the formulas are
    kept as they are for sizes from 2 on, and the difference in bytes at the base is noted.

    Raises:
        LiftError: where the contractions differ.
    """
    if not lifted.witness:
        return lifted
    point = {size(n): Integer(v) for n, v in lifted.point.items()}
    seen = _sums([Node(c, *cost_of(c)) for c in (concrete(e) for e in lifted.witness)], {})
    said = _sums(cost(lifted.graph).nodes, point)
    small = where_one(lifted.graph, lifted.point)
    ones = small or "the base sizes"
    if seen[0] != said[0]:
        raise LiftError(
            f"at {ones} the model runs {seen[0]} FLOPs of contractions where the formula for other sizes gives {said[0]}"
            f"{'' if small else ': it takes another way there, and no comparison of sizes tells when'}",
            _LARGER_BASE if small else "choose base sizes like those that matter, or keep one as a number",
        )
    if seen[1] == said[1]:
        return lifted
    note = f"at {ones} {SHORTCUT}: {100 * float(seen[1] / said[1] - 1):+.2g} % of bytes; the formulas are those for 2 and more"
    return _with(lifted, notes=(*lifted.graph.notes, note))


def _sums(nodes: Iterable[Node], point: Mapping[Symbol, Expr]) -> tuple[Expr, Expr]:
    """Contraction FLOPs and bytes of all nodes at a point."""
    parts = [(n.call.count * n.cost.matmul, n.call.count * n.cost.nbytes) for n in nodes]
    return total(m.xreplace(dict(point)) for m, _ in parts), total(b.xreplace(dict(point)) for _, b in parts)


def _covers(graph: Graph, point: Mapping[str, int]) -> bool:
    values = {size(k): Integer(v) for k, v in point.items()}
    return all(sp.sympify(c.condition.xreplace(values)).doit() != sp.false for c in graph.constraints)
