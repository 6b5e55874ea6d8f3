"""What was found near the base, confirmed far away; or the conditions under which it holds."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import sympy as sp

from costir import trace
from costir.errors import CostirError
from costir.lifting.assemble import Lifted, assemble, told_apart
from costir.lifting.far import FACTORS, far_point, spanned
from costir.lifting.guards import conflicts
from costir.lifting.implied import without_implied
from costir.lifting.near import confirmed_near
from costir.lifting.points import Point
from costir.lifting.stuck import Run
from costir.lifting.trial import Trial, UntrackedError
from costir.symbolic import Integer, size
from costir.trace import Trace

_FAR_CALLS = 3000  # operators of a run at far sizes
_FACTORS_OF_EXPERTS = (2,)
_NEAR_CALLS = 1000  # operators of a model that is tried at small sizes


def confirmed_around(
    run: Run, traces: list[Trace], base: Trace, names: list[str], pins: Mapping[str, str], found: Lifted
) -> Lifted:
    """The graph confirmed at sizes far larger and smaller than all others; or with the conditions under which it holds.

    Raises:
        UntrackedError, LiftError: as `confirmed_far`.
    """
    found = confirmed_far(run, traces, base, names, pins, found)
    if run.family.related or run.family.axes or len(traces[0].events) > _NEAR_CALLS or _of_transformers(run):
        return found
    trial = _trial(run, traces, base, names, pins, found)
    return dataclasses.replace(found, graph=confirmed_near(trial, found.graph, names))


def confirmed_far(
    run: Run, traces: list[Trace], base: Trace, names: list[str], pins: Mapping[str, str], found: Lifted
) -> Lifted:
    """The graph confirmed at sizes far from all others; where the model does otherwise there, with the conditions found.

    Raises:
        UntrackedError: a size decides in a way that no condition tells.
        LiftError: no size alone decides.
    """
    if run.family.axes or not _uncertain(run, traces, base, names):
        return found
    seen = [dict(t.sizes) for t in (*traces, base)]
    stated = [c.condition for c in found.graph.constraints]
    loose = [
        c for c in stated if not (isinstance(c, sp.Eq) and c.lhs.has(sp.floor, sp.ceiling))
    ]  # a rounding may come out otherwise
    for asked in [loose, stated] if loose != stated else [stated]:
        far = _far_trace(run, asked, seen, names, found)
        if far is None or (asked is not stated and conflicts(base, [far])):
            continue
        if conflicts(base, [far]):
            break
        try:
            wider = told_apart(run, [*traces, far], base, names, pins)
            if not wider.guessed or _far_again(run, [*traces, far], base, names, pins, wider):
                return wider
        except UntrackedError:
            raise
        except CostirError:
            pass
    if far is None:
        note = "no run at sizes far larger than the base could confirm the formulas"
        return dataclasses.replace(found, graph=dataclasses.replace(found.graph, notes=(*found.graph.notes, note)))
    trial = _trial(run, traces, base, names, pins, found)
    limits = trial.limits(far.sizes)
    further = _far_trace(run, [*stated, *(c.condition for c in limits)], seen, names, found)
    if further is not None and not trial.agrees(further.sizes):
        raise UntrackedError(
            "several sizes together decide what the model does", [str(s) for c in limits for s in c.condition.free_symbols]
        )
    graph = dataclasses.replace(found.graph, constraints=tuple(without_implied([*found.graph.constraints, *limits])))
    return dataclasses.replace(found, graph=graph)


def _of_transformers(run: Run) -> bool:
    """Whether the model's class is one of the transformers library, built by a function of the user's."""
    module = trace.skeleton(run.family)
    return type(module).__module__.partition(".")[0] == "transformers"


def _uncertain(run: Run, traces: Sequence[Trace], base: Trace, names: Sequence[str]) -> bool:
    """Whether something may go on unseen between the sizes that were looked at and larger ones."""
    if any(not e.library for e in base.escapes):
        return True
    seen = [dict(t.sizes) for t in (*traces, base)]
    if run.family.related or _of_transformers(run):  # a known library's model: only lengths steer it
        return not spanned(seen, [n for n in names if n in ("T", "S")])
    return not spanned(seen, names) or any(math.gcd(*(p[n] for p in seen)) > 1 for n in names)


def _far_trace(run: Run, conditions: Sequence[Any], seen: Sequence[Point], names: list[str], found: Lifted) -> Trace | None:
    """A trace far away, or a little nearer, where the conditions hold and the model runs; or None."""
    routed = run.loops and any(t.routing for t in run.known.values())  # each expert looks at every row: no more than needed
    for factor, keep in itertools.product(_FACTORS_OF_EXPERTS if routed else FACTORS, (False, True)):
        most = _FAR_CALLS // 2 if routed else _FAR_CALLS
        point = _affordable(conditions, seen, dict.fromkeys(names, factor), run.depth.names, keep, found, most)
        if point is None:
            continue
        try:
            far = run.trace(point)
            if uneven(far):
                spread = evened([far], (dict(far.sizes),))
                far = run.trace(spread[0]) if spread is not None else far
        except CostirError:
            continue
        if not uneven(far):
            return far
    return None


def _affordable(conditions: Sequence[Any], seen: Sequence[Point], factors: Mapping[str, int], depths: Sequence[str], keep: bool,
                found: Lifted, most: int) -> Point | None:  # fmt: skip
    """A far point at which at most so many operators run, the sizes that steer their number less far; or None."""
    steering = {str(s) for c in found.graph.calls for s in (c.count * (c.rounds or 1)).free_symbols}
    while True:
        point = far_point(conditions, seen, list(factors), factors, depths, keep)
        if point is None or _calls(found, point) <= most:
            return point
        if all(factors[n] == 1 for n in steering if n in factors):
            return None
        factors = {n: max(1, f // 2) if n in steering else f for n, f in factors.items()}


def uneven(t: Trace) -> bool:
    """Whether a router has rows that it cannot spread evenly."""
    return any(rows % candidates for rows, candidates in t.routing)


def _calls(found: Lifted, point: Mapping[str, int]) -> int:
    """How many operators run at a point, as far as can be said."""
    values = {size(n): Integer(v) for n, v in point.items()}
    counts = [(c.count * (c.rounds or 1)).xreplace(values) for c in found.graph.calls]
    return sum(int(n) for n in counts if n.is_Integer)


def _far_again(run: Run, traces: list[Trace], base: Trace, names: list[str], pins: Mapping[str, str], found: Lifted) -> bool:
    """Whether what was guessed holds at one more far point, too."""
    conditions = [c.condition for c in found.graph.constraints]
    far = _far_trace(run, conditions, [dict(t.sizes) for t in traces[:2]], names, found)
    return far is None or bool(_trial(run, traces, base, names, pins, found).agrees(far.sizes))


def _trial(run: Run, traces: list[Trace], base: Trace, names: list[str], pins: Mapping[str, str], found: Lifted) -> Trial:
    """What was found, to be tried at other points."""

    def agrees(point: Mapping[str, int]) -> bool | None:
        try:
            more = run.trace(point)
        except CostirError:
            return None
        if conflicts(base, [more]):
            return False
        if uneven(more):
            return None
        return like(more) or (without_views(more).events != more.events and like(more, plainer=True))

    def like(more: Trace, plainer: bool = False) -> bool:
        """Whether the calls are those found; `plainer`: but for views, which cost nothing (a slice of all is none)."""
        mine, further = ([without_views(t) for t in traces], without_views(more)) if plainer else (traces, more)
        try:
            known = assemble(run, list(mine), without_views(base), names, pins) if plainer else found
            return assemble(run, [*mine, further], without_views(base) if plainer else base, names, pins).graph.calls == (
                known.graph.calls
            )
        except CostirError:
            return False

    stated = [c.condition for c in found.graph.constraints]
    return Trial(agrees, run.trace, [t.sizes for t in traces], names, stated, found.guessed)


_VIEWS = ("slice", "alias", "view", "expand", "select", "unsqueeze", "squeeze", "t", "permute", "transpose", "detach")


def without_views(t: Trace) -> Trace:
    """A trace without the calls that move nothing."""
    return dataclasses.replace(t, events=tuple([e for e in t.events if e.op.split(".")[1] not in _VIEWS]))


def evened(traces: Sequence[Trace], points: tuple[Point, ...]) -> tuple[Point, ...] | None:
    """Points at which routers spread their rows evenly, where they do not yet: a length becomes a multiple of the experts."""
    for t, p in zip(traces, points, strict=False):
        for rows, candidates in t.routing:
            if rows % candidates == 0:
                continue
            experts = next((n for n, v in p.items() if v == candidates), None)
            lengths = [n for n, v in p.items() if rows % v == 0 and n != experts and v > 1]
            if experts is None or not lengths:
                return None
            longest = max(lengths, key=lambda n: p[n])
            return tuple({**q, longest: q[longest] * q[experts]} for q in points)
    return None
