"""What was found at larger sizes, tried at small ones: where entries, parts or windows are no longer there, programs fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import sympy as sp

from costir.errors import CostirError
from costir.ir import LOOP, Constraint, Graph
from costir.lifting.implied import without_implied
from costir.lifting.points import Point
from costir.lifting.trial import BY_TRIAL, Trial
from costir.symbolic import Expr, Integer, holds, size

_TRIED = 64  # values of one size
_SMALL = 3  # a size that was seen as small needs no smaller one


def small_point(graph: Graph, seen: Sequence[Mapping[str, int]], names: Sequence[str]) -> Point | None:
    """A point with sizes as small as the conditions allow, no two of them equal where that can be, and no dimension 1.

    At dimensions of 1, and of equal ones, torch takes shortcuts, which are looked at elsewhere. None where nothing is smaller
    than what was seen.
    """
    point = dict(seen[0])
    dims = [d for d in {d for c in graph.calls for t in (*c.inputs, *c.outputs) for d in t.shape} if d.free_symbols]
    for n in sorted(names, key=lambda n: min(p[n] for p in seen)):
        least = min(p[n] for p in seen)
        used = [point[m] for m in names if m != n]
        tried = [v for v in range(2, min(least, _TRIED)) if _fits(graph, {**point, n: v}, n, dims)]
        if least > _SMALL and tried:
            point[n] = next((v for v in tried if v not in used), tried[0])
    return point if any(point[n] != seen[0][n] for n in names) else None


def _fits(graph: Graph, point: Point, name: str, dims: Sequence[Expr]) -> bool:
    values = {size(n): Integer(v) for n, v in point.items()}
    mine = [d for d in dims if size(name) in d.free_symbols and not d.has(LOOP)]
    return _allowed(graph, point) and all(d.xreplace(values) > 1 for d in mine)


def confirmed_near(trial: Trial, graph: Graph, names: Sequence[str]) -> Graph:
    """The graph with the least values of sizes at which it holds, where it does not hold down to the smallest.

    Args:
        trial: what was found, to be tried at other points.
        graph: the same.
        names: the sizes that vary.
    """
    point = small_point(graph, trial.seen, names)
    if point is None or trial.agrees(point) or _unclear(trial, point):
        return graph
    limits = [c for n in names if point[n] < trial.seen[0][n] for c in _least(trial, graph, n, point[n])]
    base = {size(n): v for n, v in graph.sizes.items()}
    if not all(holds(c.condition, base) for c in limits):  # the base is such a small one itself: it is compared on its own
        return graph
    if limits:
        return dataclasses.replace(graph, constraints=tuple(without_implied([*graph.constraints, *limits])))
    problem = _problem(trial, point) or f"it does otherwise{trial.line(point)}"
    where = ", ".join(f"{n} = {point[n]}" for n in names)
    note = f"the formulas are not confirmed for sizes as small as {where}: there {problem}, and no size alone decides it"
    return dataclasses.replace(graph, notes=(*graph.notes, note))


def _least(trial: Trial, graph: Graph, name: str, small: int) -> list[Constraint]:
    """The least value of a size down to which runs agree; none where a small one agrees, or where others decide it, too."""
    near, *others = trial.seen[:2]
    least = _least_at(trial, graph, near, name, small)
    if least is None or not all(_is_least(trial, graph, other, name, least) for other in others):
        return []
    below = {**near, name: least - 1}
    fails = bool(_problem(trial, below))
    at = trial.line(below) if not fails else ""
    return [Constraint(sp.Ge(size(name), Integer(least)), f"{BY_TRIAL}{at}", branch=not fails)]


def _least_at(trial: Trial, graph: Graph, near: Mapping[str, int], name: str, small: int) -> int | None:
    """The least value with the others as at a point; None where the small one agrees, too, or is not allowed there."""
    legal = [v for v in range(small, near[name] + 1) if _allowed(graph, {**near, name: v})]
    if len(legal) < 2 or legal[0] != small or trial.agrees({**near, name: small}):
        return None
    low, high = 0, len(legal) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if trial.agrees({**near, name: legal[middle]}) else (middle, high)
    return legal[low] + 1


def _is_least(trial: Trial, graph: Graph, near: Mapping[str, int], name: str, least: int) -> bool:
    """Whether, with the others as at another point, too, runs agree from that value on and not below it."""
    legal = [v for v in range(1, near[name] + 1) if _allowed(graph, {**near, name: v})]
    above, below = next((v for v in legal if v >= least), None), next((v for v in reversed(legal) if v < least), None)
    if above is None or below is None:
        return False
    return bool(trial.agrees({**near, name: above})) and not trial.agrees({**near, name: below})


def _allowed(graph: Graph, point: Mapping[str, int]) -> bool:
    values = {size(n): v for n, v in point.items()}
    return all(holds(c.condition, values) for c in graph.constraints)


def _problem(trial: Trial, point: Mapping[str, int]) -> str:
    """Why the model does not run at a point; "" where it does."""
    try:
        trial.trace(point)
    except CostirError as problem:
        return problem.message
    return ""


def _unclear(trial: Trial, point: Mapping[str, int]) -> bool:
    """Whether a run at a point, although it went well, says nothing: a router had rows that it could not spread evenly."""
    return trial.agrees(point) is None and not _problem(trial, point)
