"""Family -> graph: trace at a few points, match the traces, and recover every whole number as an expression in the sizes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from costir import trace
from costir.errors import CostirError, LiftError, TraceError, UndividedError
from costir.lifting import depth as layers
from costir.lifting.assemble import Lifted, assemble, held_out, told_apart
from costir.lifting.confirm import confirmed_around, evened
from costir.lifting.fit import independent
from costir.lifting.guards import Regime, conflicts
from costir.lifting.implied import is_divisibility
from costir.lifting.mesh_points import axis_counts, base_mesh, on_mesh
from costir.lifting.points import DEPTH_NAMES, WHOLE, Point, breaking, generic
from costir.lifting.stuck import Run, find_stuck, find_ties, likely_culprits
from costir.lifting.trial import UntrackedError
from costir.load.family import Family
from costir.trace import Trace
from costir.tracing.notes import Guard

_MESHES = 8  # numbers of devices that are tried
_LONG = 400  # operators; a loop over a size that makes more of them is traced at small sizes
_SHALLOW = (3, 2, 1)  # layers
_LARGEST_SHARED = 8192  # larger sizes are not made multiples of themselves
_THIRD_POINT_UP_TO = 1500  # operators; below that a third probe costs little and checks much


class _LoopError(CostirError):
    """The program runs more operators at larger sizes."""


def lift(family: Family, phase: str = "forward", optimizer: Any = None, pins: Mapping[str, str] | None = None,
         ties: Mapping[str, tuple[str, ...]] | None = None) -> Lifted:  # fmt: skip
    """The graph of a family, every size symbolic.

    Args:
        family: what to analyse; its base sizes decide the regime where the program branches on sizes.
        phase: "forward", "backward" or "train".
        optimizer: makes the optimizer from the parameters, for "train".
        pins: sizes that keep their base value, each with the reason.
        ties: sizes that are products of others.

    Raises:
        TraceError: the model does not run at the base sizes, or branches on data.
        LiftError: no formula fits, and no size can be blamed for it.
    """
    run = Run(family, phase, optimizer, _depth(family, phase), ties or {})
    if run.depth.irregular:
        pins = {**dict.fromkeys(run.depth.names, "the kinds of its layers follow no pattern"), **(pins or {})}
    base_point = dict(family.sizes)
    for n in run.depth.names:
        base_point[n] = run.depth.values(family.sizes[n])[3]
    base_point.update(base_mesh({a: family.sizes[a] for a in family.axes}))
    base = run.trace(base_point)
    if len(base.events) > _LONG // 2 and loops_over_experts(base) and not family.related:
        run = dataclasses.replace(run, loops=True)
    names = [n for n in family.sizes if n not in (pins or {}) and n not in run.ties]
    if not names:
        return assemble(run, [base], base, [], pins or {})
    found = _vary(run, base, names, pins or {})
    while isinstance(found, UntrackedError) and {*names} - {*found.names}:
        names = [n for n in names if n not in found.names]
        pins = {**(pins or {}), **{n: f"for other values of {n}, {found.message}" for n in found.names}}
        found = _vary(run, base, names, pins)
    return found if isinstance(found, Lifted) else blamed(run, base, names, pins or {}, found)


class _BranchError(LiftError):
    """A comparison that comes out otherwise than at the base, and of which no rule for the sizes could be read."""

    def __init__(self, message: str, guard: Guard) -> None:
        super().__init__(message)
        self.guard = guard


def blamed(run: Run, base: Trace, names: list[str], pins: Mapping[str, str], problem: CostirError) -> Lifted:
    """The graph with the sizes that cannot vary tied to others or kept at their base value.

    Raises:
        CostirError: the problem, where no size can be blamed for it.
    """
    stuck = find_stuck(run, base, names)
    ties = find_ties(run, base, list(stuck))
    pinned = {n: why for n, why in stuck.items() if n not in ties and not any(n in t for t in ties.values())}
    rest = [n for n in names if n not in pinned and n not in ties]
    if stuck and rest:
        run, pins = dataclasses.replace(run, ties={**run.ties, **ties}), {**pins, **pinned}
        again = _vary(run, base, rest, pins)
        if isinstance(again, Lifted):
            return again
        names, problem = rest, again
    for n, m in itertools.islice(
        ((n, m) for n, m in itertools.combinations(names, 2) if base.sizes[n] == base.sizes[m] > 1), 3
    ):
        tied = _vary(
            dataclasses.replace(run, ties={**run.ties, n: (m,)}), base, [x for x in names if x != n], pins, levels=(1,)
        )
        if isinstance(tied, Lifted):
            return tied
    if isinstance(problem, TraceError) and not run.loops and not run.family.axes:  # 12 heads share a width, by that number
        shared = {n: base.sizes[n] for n in names if n not in run.depth.names and 1 < base.sizes[n] <= _LARGEST_SHARED}
        even = _vary(dataclasses.replace(run, multiples=shared), base, names, pins, levels=(1,))
        if isinstance(even, Lifted):
            return even
    asked = {problem.guard.left, problem.guard.right} if isinstance(problem, _BranchError) else set()
    suspects = [n for n in names if n not in run.depth.names or not run.depth.trusted]
    for n in likely_culprits(suspects, run.depth.names, [n for n in names if base.sizes[n] in asked])[:4]:
        rest = [m for m in names if m != n]
        without = _vary(run, base, rest, {**pins, n: _why(n, problem, base)}, levels=(1,)) if rest else None
        if isinstance(without, Lifted):
            return without
    raise problem


def _why(name: str, problem: CostirError, base: Trace) -> str:
    """Why a size stays a number: what the program makes of it, where that is seen, or else what went wrong at others."""
    taken = next((e for e in base.escapes if not e.library and e.value == base.sizes[name]), None)
    if taken is not None and isinstance(problem, LiftError) and not isinstance(problem, _BranchError):
        return f"{taken.source} takes {taken.what} of {name}: for what comes of it no formula in whole numbers was found"
    return f"for other values of {name}, {problem.message}"


def _depth(family: Family, phase: str) -> layers.Depth:
    """How layers repeat, from the module built at the base sizes without memory."""
    likely = [n for n in family.sizes if n in family.depth or n.lower() in DEPTH_NAMES]
    if not likely:
        return layers.Depth()
    module = trace.skeleton(family)
    found = layers.find(module, family.sizes, family.depth) if module is not None else layers.Depth()
    # On a mesh a trace is long, and how deep the model goes is known from one device.
    return dataclasses.replace(found, trusted=True) if family.axes else found


def _vary(
    run: Run, base: Trace, names: list[str], pins: Mapping[str, str], levels: Sequence[int] = (1, WHOLE, 2, 3, 0)
) -> Lifted | CostirError:
    """Try points until the traces at them agree with the base in structure and fit formulas."""
    first: CostirError | None = None
    for level in levels if run.family.related else [n for n in levels if n != WHOLE]:
        tuples = list(_tuples(run, names, level))
        for points in [p for first_choice in tuples[:1] for p in _choices(run, base, names, first_choice)]:
            outcome = _attempt(run, base, names, points, [t[2] for t in tuples[1::2]], pins)
            if isinstance(outcome, _LoopError):  # again, with smaller sizes: traces grow with them
                return _vary(dataclasses.replace(run, loops=True), base, names, pins, levels)
            if isinstance(outcome, Lifted | UntrackedError):
                return outcome
            first = first or outcome
    return first or LiftError(f"no points were found that tell {', '.join(names)} apart", "choose other base sizes")


def _tuples(run: Run, names: Sequence[str], level: int) -> Iterator[tuple[Point, ...]]:
    """Triples of points, best first; on a mesh, at the first number of devices along each axis at which the model runs."""
    family = run.family
    sizes = {n: v for n, v in family.sizes.items() if n not in family.axes}
    own, axes = [n for n in names if n in sizes], [n for n in names if n not in sizes]
    fixed = {n: _depths(run, sizes[n], level) for n in run.depth.names if n in own}
    scaled = {n: axes for n, axes in family.scaled.items() if n not in run.depth.names}
    asked = {**run.multiples, **family.multiples}
    triples = generic(sizes, own, fixed, level, asked, run.loops, family.related)
    if not family.axes:
        yield from triples
        return
    # Multiples of multiples that all devices divide may make weights of more bytes than there are numbers for.
    triples = itertools.chain(triples, generic(sizes, own, fixed, level, asked, True, family.related))
    # A config names each of its widths; and where something goes round, many devices are many turns.
    multiples = not family.related and not family.turns
    chosen: dict[str, tuple[int, ...]] = {}
    for points in triples:
        tried = [chosen] if chosen else axis_counts(axes, multiples)
        meshes = ((counts, on_mesh(points, counts, scaled)) for counts in tried)
        telling = ((counts, found) for counts, found in meshes if independent(found[0], found[1], names))
        for counts, found in itertools.islice(telling, _MESHES):
            largest_first = sorted(found, key=lambda p: -math.prod(p.values()))
            if chosen or all(_runs(run, {**family.sizes, **p}) for p in largest_first):
                chosen = counts
                yield found
                break


def _runs(run: Run, point: Point) -> bool:
    try:
        run.trace(point)
    except UndividedError:
        raise
    except CostirError:
        return False
    return True


def _depths(run: Run, base: int, level: int) -> tuple[int, ...]:
    """Numbers of layers at three probes: as few as tell, where each layer is a loop with many operators of its own."""
    if run.loops and not run.depth.trusted and base > len(_SHALLOW):
        return _SHALLOW
    return run.depth.values(base, below=level == 2)[:3]


def loops_over_experts(base: Trace) -> bool:
    """Whether the program does something once for each candidate of a router: more experts are more operators."""
    times = Counter((e.op, e.source, e.site) for e in base.events)
    often = max(times.values(), default=0)
    return any(r.candidates > 1 and often >= r.candidates and often % r.candidates == 0 for r in base.routing)


def _choices(run: Run, base: Trace, names: list[str], points: tuple[Point, ...]) -> list[tuple[Point, ...]]:
    """The points as the base's comparisons with plain numbers suggest them, then as they are."""
    if run.family.related:
        return [points]
    moved = Regime(base, names).foreseen(tuple({**run.family.sizes, **p} for p in points), run.family.sizes)
    return [moved, points] if any(m[n] != p[n] for m, p in zip(moved, points, strict=False) for n in p) else [points]


def _attempt(run: Run, base: Trace, names: list[str], points: tuple[Point, ...], held: Sequence[Point],
             pins: Mapping[str, str]) -> Lifted | CostirError:  # fmt: skip
    """Trace at the points; where the program takes another branch there than at the base, move them into the base's regime."""
    points = tuple({**run.family.sizes, **p} for p in points)
    regime = Regime(base, names)
    for _ in range(6):
        try:
            traces = [run.trace(points[0])]
            if not run.loops and len(traces[0].events) > max(_LONG, 2 * len(base.events)):
                return _LoopError("")
            spread = evened(traces, points)
            if spread is None:
                traces.append(run.trace(points[1]))
                spread = evened(traces, points)
            if spread is not None:
                points = spread
                continue
            clash = conflicts(base, traces)
            if clash:
                moved = regime.moved(points, run.family.sizes) if regime.learn(clash, traces) else None
                if moved is None:
                    return _BranchError(f"sizes near the base take another branch at {clash[0].source}", clash[0])
                points = moved
                continue
            third_wanted = not run.depth.trusted and len(traces[0].events) <= _THIRD_POINT_UP_TO
            if (third_wanted or run.family.axes) and len(points) > 2:
                third = run.trace(points[2])
                if not conflicts(base, [third]):
                    traces.append(third)
                traces += [t for t in map(run.trace, _between(run, points[0], names)) if not conflicts(base, [t])]
            found = told_apart(run, traces, base, names, pins)
            more = [held_out(run, base, {**points[0], **p}) for p in held] if found.guessed else []
            if any(more):
                traces += [t for t in more if t is not None]
                found = told_apart(run, traces, base, names, pins)
            found = _widened(run, traces, base, names, pins, found)
            return confirmed_around(run, traces, base, names, pins, found)
        except CostirError as problem:
            return problem
    return LiftError("no sizes were found that take the same branches as the base sizes")


def _between(run: Run, point: Point, varied: Sequence[str]) -> list[Point]:
    """Points with numbers of layers between those of the probes: kinds of layers that alternate show only so."""
    names = [n for n in run.depth.names if n in varied]
    steps = (2, 3, *range(5, run.depth.period + 1))  # with the third probe, at 4, a whole period
    if all(point[n] == _SHALLOW[0] and run.family.sizes[n] == point[n] + 1 for n in names):
        return []  # all numbers of layers up to the base's are there
    return [{**point, **{n: point[n] + step for n in names}} for step in steps] if names and not run.depth.trusted else []


def _widened(run: Run, traces: list[Trace], base: Trace, names: list[str], pins: Mapping[str, str], found: Lifted) -> Lifted:
    """Without divisibilities that only the points had: where the model runs the same at others, D/2 was floor(D/2)."""
    asked = [c.condition.lhs.args for c in found.graph.constraints if is_divisibility(c.condition) and not c.source]
    if not asked or run.depth.trusted or run.family.multiples or run.family.axes or len(traces[0].events) > _THIRD_POINT_UP_TO:
        return found
    for group in [asked, *([a] for a in asked[:3])] if len(asked) > 1 else [asked]:
        point = breaking(group, [a for a in asked if a not in group], traces[-1].sizes, names)
        if point is None:
            continue
        try:
            odd = run.trace(point)
            if not conflicts(base, [odd]):
                wider = assemble(run, [*traces, odd], base, names, pins)
                if not wider.witness or found.witness:
                    traces.append(odd)
                    found = wider
                    if group is asked:
                        break
        except CostirError:
            continue
    return found
