"""A family in all its regimes: where the program branches on its sizes, each side is analysed at a point of its own."""

from __future__ import annotations

from typing import Any

import sympy as sp

from costir.errors import CostirError
from costir.ir import Constraint, Graph
from costir.lift import lift
from costir.load.family import Family
from costir.symbolic import Integer, size

_MOST = 4  # regimes besides the base's
_CALLS = 400  # larger graphs are analysed in the base's regime alone


def regimes(family: Family, phase: str = "forward", optimizer: Any = None) -> list[Graph]:
    """The graph at the base sizes, then the graphs of other regimes that could be found and lifted.

    Raises:
        CostirError: where the base regime cannot be analysed.
    """
    base = lift(family, phase, optimizer)
    found = [base]
    if len(base.calls) > _CALLS:
        return found
    for branch in [c for c in base.constraints if c.source and isinstance(c.condition, sp.StrictLessThan | sp.LessThan | sp.StrictGreaterThan | sp.GreaterThan)]:
        if len(found) > _MOST:
            break
        point = _other_side(branch, family.sizes)
        if point is None or any(_covers(g, point) for g in found):
            continue
        other = _family_at(family, point)
        try:
            graph = lift(other, phase, optimizer)
        except CostirError:
            continue  # that side stays outside the range of the formulas
        if not _covers(graph, point):
            continue
        found.append(Graph(graph.name, base.sizes, graph.calls, graph.weights, graph.constraints, graph.notes))
    return found


def _family_at(family: Family, point: dict[str, int]) -> Family:
    import dataclasses

    return dataclasses.replace(family, sizes=point)


def _other_side(branch: Constraint, base: Any) -> dict[str, int] | None:
    """The base point with one size moved just across a branch, or None."""
    names = [str(s) for s in branch.condition.free_symbols if str(s) in base]
    for n in sorted(names):
        step = 1
        while step <= 4096:
            for v in (base[n] + step, base[n] - step):
                if v < 2:
                    continue
                point = {**base, n: v}
                if branch.condition.xreplace({size(k): Integer(x) for k, x in point.items()}) == sp.false:
                    return point
            step = step + 1 if step < 16 else step * 2
    return None


def _covers(graph: Graph, point: dict[str, int]) -> bool:
    values = {size(k): Integer(v) for k, v in point.items()}
    return all(sp.sympify(c.condition.xreplace(values)).doit() != sp.false for c in graph.constraints)
