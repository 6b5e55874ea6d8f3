"""A family in all its regimes: where the program branches on its sizes, each side is analysed at a point of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import sympy as sp

from costir.cost import cost, cost_of
from costir.errors import CostirError, LiftError
from costir.ir import Constraint, Graph, Node
from costir.lift import Lifted, lift
from costir.load.family import Family
from costir.symbolic import Expr, Integer, Symbol, size, total
from costir.trace import concrete

_MOST = 4  # regimes besides the base's
_CALLS = 400  # larger graphs are analysed in the base's regime alone


def regimes(family: Family, phase: str = "forward", optimizer: Any = None) -> list[Graph]:
    """The graph at the base sizes, then the graphs of other regimes that could be found and lifted.

    Raises:
        CostirError: where the base regime cannot be analysed.
    """
    base = confirmed(lift(family, phase, optimizer))
    found = [base]
    if len(base.calls) > _CALLS:
        return found
    for branch in [c for c in base.constraints if c.branch and isinstance(c.condition, sp.StrictLessThan | sp.LessThan | sp.StrictGreaterThan | sp.GreaterThan)]:
        if len(found) > _MOST:
            break
        point = _other_side(branch, family.sizes)
        if point is None or any(_covers(g, point) for g in found):
            continue
        other = _family_at(family, point)
        try:
            graph = confirmed(lift(other, phase, optimizer))
        except CostirError:
            continue  # that side stays outside the range of the formulas
        if not _covers(graph, point):
            continue
        found.append(Graph(graph.name, base.sizes, graph.calls, graph.weights, graph.constraints, graph.notes))
    return found


def confirmed(lifted: Lifted) -> Graph:
    """The graph, once its contractions cost at the base what the base run itself costs.

    At sizes of 1 programs take shortcuts (a copy less, a mask less). Where these change no contraction, the formulas are
    kept as they are for sizes from 2 on, and the difference in bytes at the base is noted.

    Raises:
        LiftError: where the contractions differ.
    """
    if not lifted.witness:
        return lifted.graph
    point = {size(n): Integer(v) for n, v in lifted.point.items()}
    seen = _sums([Node(c, *cost_of(c)) for c in (concrete(e) for e in lifted.witness)], {})
    said = _sums(cost(lifted.graph).nodes, point)
    ones = ", ".join(f"{n} = 1" for n, v in lifted.point.items() if v == 1) or "the base sizes"
    if seen[0] != said[0]:
        raise LiftError(f"at {ones} the model runs {seen[0]} FLOPs of contractions where the formula for other sizes gives {said[0]}",
                        "choose base sizes of 2 or more")  # fmt: skip
    if seen[1] == said[1]:
        return lifted.graph
    note = f"at {ones} torch takes a shortcut: {float(seen[1] / said[1] - 1):+.1%} bytes; the formulas are those for 2 and more"
    return dataclasses.replace(lifted.graph, notes=(*lifted.graph.notes, note))


def _sums(nodes: Iterable[Node], point: Mapping[Symbol, Expr]) -> tuple[Expr, Expr]:
    """Contraction FLOPs and bytes of all nodes at a point."""
    parts = [(n.call.count * n.cost.matmul, n.call.count * n.cost.nbytes) for n in nodes]
    return total(m.xreplace(dict(point)) for m, _ in parts), total(b.xreplace(dict(point)) for _, b in parts)


def _family_at(family: Family, point: dict[str, int]) -> Family:
    return dataclasses.replace(family, sizes=point)


def _other_side(branch: Constraint, base: Any) -> dict[str, int] | None:
    """The base point with one size moved just across a branch, or None."""
    names = [str(s) for s in branch.condition.free_symbols if str(s) in base]
    for n in sorted(names):
        step = 1
        while step <= 4096:
            for v in (base[n] + step, base[n] - step):
                if v < 2 or v in base.values():  # equal sizes hide which of them a comparison means
                    continue
                point = {**base, n: v}
                if branch.condition.xreplace({size(k): Integer(x) for k, x in point.items()}) == sp.false:
                    return point
            step = step + 1 if step < 16 else step * 2
    return None


def _covers(graph: Graph, point: dict[str, int]) -> bool:
    values = {size(k): Integer(v) for k, v in point.items()}
    return all(sp.sympify(c.condition.xreplace(values)).doit() != sp.false for c in graph.constraints)
