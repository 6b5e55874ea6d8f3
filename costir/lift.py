"""Family -> graph: trace at a few points, match the traces, and recover every whole number as an expression in the sizes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp

from costir import trace
from costir.errors import CostirError, LiftError
from costir.ir import Constraint, Graph
from costir.lifting import depth as layers
from costir.lifting.align import Item, Key, align, occurrences, unequal_lists
from costir.lifting.expressions import Lifter
from costir.lifting.far import FACTORS, far_point, spanned
from costir.lifting.fit import Fitter, UnsureError
from costir.lifting.guards import Regime, conditions, conflicts, roundings
from costir.lifting.implied import is_divisibility, plain_calls, without_implied
from costir.lifting.points import DEPTH_NAMES, WHOLE, Point, breaking, generic, telling
from costir.lifting.steps import derived, divisors_used
from costir.lifting.stuck import Run, find_stuck, find_ties, likely_culprits
from costir.lifting.trial import Trial, UntrackedError
from costir.load.family import Family
from costir.symbolic import Integer, holds, size
from costir.trace import Trace
from costir.tracing.dims import Guard
from costir.tracing.recorder import Event

_LONG = 400  # operators; a loop over a size that makes more of them is traced at small sizes
_FAR_CALLS = 3000  # operators of a run at far sizes
_THIRD_POINT_UP_TO = 1500  # operators; below that a third probe costs little and checks much


class _LoopError(CostirError):
    """The program runs more operators at larger sizes."""


@dataclass(frozen=True)
class Lifted:
    """A graph, and what the base itself ran where that could not be matched with the other points.

    Attributes:
        graph: the symbolic graph.
        witness: the calls of the base trace with concrete sizes; empty where they took part in the fit.
        point: the sizes of the witness (fewer layers than the base where layers repeat).
        guessed: some numbers were found by trying forms, not by what an operator or the program does.
    """

    graph: Graph
    witness: tuple[Event, ...] = ()
    point: Mapping[str, int] = dataclasses.field(default_factory=dict)
    guessed: bool = False


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
    base = run.trace(base_point)
    names = [n for n in family.sizes if n not in (pins or {}) and n not in run.ties]
    if not names:
        return _assemble(run, [base], base, [], pins or {})
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
    asked = {problem.guard.left, problem.guard.right} if isinstance(problem, _BranchError) else set()
    suspects = [n for n in names if n not in run.depth.names or not run.depth.trusted]
    for n in likely_culprits(suspects, run.depth.names, [n for n in names if base.sizes[n] in asked])[:4]:
        rest = [m for m in names if m != n]
        without = (
            _vary(run, base, rest, {**pins, n: f"for other values of {n}, {problem.message}"}, levels=(1,)) if rest else None
        )
        if isinstance(without, Lifted):
            return without
    raise problem


def _depth(family: Family, phase: str) -> layers.Depth:
    """How layers repeat, from the module built at the base sizes without memory."""
    likely = [n for n in family.sizes if n in family.depth or n.lower() in DEPTH_NAMES]
    if not likely:
        return layers.Depth()
    module = trace.skeleton(family)
    return layers.find(module, family.sizes, family.depth) if module is not None else layers.Depth()


def _vary(
    run: Run, base: Trace, names: list[str], pins: Mapping[str, str], levels: Sequence[int] = (1, WHOLE, 2, 3, 0)
) -> Lifted | CostirError:
    """Try points until the traces at them agree with the base in structure and fit formulas."""
    first: CostirError | None = None
    sizes = run.family.sizes
    for level in levels if run.family.related else [n for n in levels if n != WHOLE]:
        fixed = {n: run.depth.values(sizes[n], below=level == 2)[:3] for n in run.depth.names if n in names}
        tuples = list(generic(sizes, names, fixed, level, run.family.multiples, run.loops, run.family.related))
        for points in tuples[:1]:
            outcome = _attempt(run, base, names, points, [t[2] for t in tuples[1::2]], pins)
            if isinstance(outcome, _LoopError):  # again, with smaller sizes: traces grow with them
                return _vary(dataclasses.replace(run, loops=True), base, names, pins, levels)
            if isinstance(outcome, Lifted | UntrackedError):
                return outcome
            first = first or outcome
    return first or LiftError(f"no points were found that tell {', '.join(names)} apart", "choose other base sizes")


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
            traces.append(run.trace(points[1]))
            evened = _evened(traces, points)
            if evened is not None:
                points = evened
                continue
            clash = conflicts(base, traces)
            if clash:
                moved = regime.moved(points, run.family.sizes) if regime.learn(clash, traces) else None
                if moved is None:
                    return _BranchError(f"sizes near the base take another branch at {clash[0].source}", clash[0])
                points = moved
                continue
            if not run.depth.trusted and len(traces[0].events) <= _THIRD_POINT_UP_TO and len(points) > 2:
                third = run.trace(points[2])
                if not conflicts(base, [third]):
                    traces.append(third)
                traces += [t for t in map(run.trace, _between(run, points[0], names)) if not conflicts(base, [t])]
            found = _told_apart(run, traces, base, names, pins)
            more = [_held_out(run, base, {**points[0], **p}) for p in held] if found.guessed else []
            if any(more):
                traces += [t for t in more if t is not None]
                found = _told_apart(run, traces, base, names, pins)
            found = _widened(run, traces, base, names, pins, found)
            return _far_too(run, traces, base, names, pins, found)
        except CostirError as problem:
            return problem
    return LiftError("no sizes were found that take the same branches as the base sizes")


def _told_apart(run: Run, traces: list[Trace], base: Trace, names: list[str], pins: Mapping[str, str]) -> Lifted:
    """The graph; a point is added to the traces wherever several formulas would do."""
    for _ in range(4):
        try:
            return _assemble(run, traces, base, names, pins)
        except UnsureError as unsure:
            point = telling(unsure.forms, traces[0].sizes, names)
            more = _held_out(run, base, point) if point is not None else None
            if more is None:
                raise
            traces.append(more)
    return _assemble(run, traces, base, names, pins)


def _held_out(run: Run, base: Trace, point: Point) -> Trace | None:
    """One more trace, of the base's regime, that guesses must agree with; None where the model does not run there so."""
    try:
        more = run.trace(point)
    except CostirError:
        return None
    return more if not conflicts(base, [more]) else None


def _between(run: Run, point: Point, varied: Sequence[str]) -> list[Point]:
    """Points with numbers of layers between those of the probes: kinds of layers that alternate show only so."""
    names = [n for n in run.depth.names if n in varied]
    steps = (2, 3, *range(5, run.depth.period + 1))  # with the third probe, at 4, a whole period
    return [{**point, **{n: point[n] + step for n in names}} for step in steps] if names and not run.depth.trusted else []


def _widened(run: Run, traces: list[Trace], base: Trace, names: list[str], pins: Mapping[str, str], found: Lifted) -> Lifted:
    """Without divisibilities that only the points had: where the model runs the same at others, D/2 was floor(D/2)."""
    asked = [c.condition.lhs.args for c in found.graph.constraints if is_divisibility(c.condition) and not c.source]
    if not asked or run.depth.trusted or run.family.multiples or len(traces[0].events) > _THIRD_POINT_UP_TO:
        return found
    for group in [asked, *([a] for a in asked[:3])] if len(asked) > 1 else [asked]:
        point = breaking(group, [a for a in asked if a not in group], traces[-1].sizes, names)
        if point is None:
            continue
        try:
            odd = run.trace(point)
            if not conflicts(base, [odd]):
                wider = _assemble(run, [*traces, odd], base, names, pins)
                if not wider.witness or found.witness:
                    traces.append(odd)
                    found = wider
                    if group is asked:
                        break
        except CostirError:
            continue
    return found


def _far_too(run: Run, traces: list[Trace], base: Trace, names: list[str], pins: Mapping[str, str], found: Lifted) -> Lifted:
    """The graph confirmed at sizes far from all others; where the model does otherwise there, with the conditions found.

    Raises:
        UntrackedError: a size decides in a way that no condition tells.
        LiftError: no size alone decides.
    """
    if not _uncertain(run, traces, base, names):
        return found
    seen = [t.sizes for t in (*traces, base)]
    stated = [c.condition for c in found.graph.constraints]
    loose = [
        c for c in stated if not (isinstance(c, sp.Eq) and c.lhs.has(sp.floor, sp.ceiling))
    ]  # a rounding may come out otherwise
    for conditions in [loose, stated] if loose != stated else [stated]:
        far = _far_trace(run, conditions, seen, names, found)
        if far is None or (conditions is not stated and conflicts(base, [far])):
            continue
        if conflicts(base, [far]):
            break
        try:
            wider = _told_apart(run, [*traces, far], base, names, pins)
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


def _uncertain(run: Run, traces: Sequence[Trace], base: Trace, names: Sequence[str]) -> bool:
    """Whether something may go on unseen between the sizes that were looked at and larger ones."""
    if any(not e.library for e in base.escapes):
        return True
    seen = [t.sizes for t in (*traces, base)]
    if run.family.related:  # a known library's model: only lengths steer it
        return not spanned(seen, [n for n in names if n in ("T", "S")])
    return not spanned(seen, names)


def _far_trace(run: Run, conditions: Sequence[Any], seen: Sequence[Point], names: list[str], found: Lifted) -> Trace | None:
    """A trace far away, or a little nearer, where the conditions hold and the model runs; or None."""
    depths = run.depth.names
    for factor, keep in itertools.product(FACTORS, (False, True)):
        factors = dict.fromkeys(names, factor)
        point = far_point(conditions, seen, names, factors, depths, keep)
        while point is not None and _calls(found, point) > _FAR_CALLS and max(factors.values()) > 1:
            steering = {str(s) for c in found.graph.calls for s in (c.count * (c.rounds or 1)).free_symbols}
            factors = {n: max(1, f // 2) if n in steering else f for n, f in factors.items()}
            if all(factors[n] == 1 for n in steering if n in factors):
                break
            point = far_point(conditions, seen, names, factors, depths, keep)
        if point is None:
            continue
        try:
            far = run.trace(point)
            if _uneven(far):
                evened = _evened([far], (far.sizes,))
                far = run.trace(evened[0]) if evened is not None else far
        except CostirError:
            continue
        if not _uneven(far):
            return far
    return None


def _uneven(t: Trace) -> bool:
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
    far = _far_trace(run, conditions, [t.sizes for t in traces[:2]], names, found)
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
        if _uneven(more):
            return None
        try:
            return _assemble(run, [*traces, more], base, names, pins).graph.calls == found.graph.calls
        except CostirError:
            return False

    return Trial(agrees, run.trace, [t.sizes for t in traces], names, [c.condition for c in found.graph.constraints])


def _evened(traces: Sequence[Trace], points: tuple[Point, ...]) -> tuple[Point, ...] | None:
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


def _assemble(run: Run, traces: list[Trace], base: Trace, names: list[str], pinned: Mapping[str, str]) -> Lifted:
    """Match the traces and fit every number."""
    if any(map(_empty, traces)) and not _empty(base):
        raise LiftError("at sizes near the base the model makes tensors without elements", "choose larger base sizes")
    checked, items, stored = _matched(run, traces, base)
    fitter = _fitter(run, checked, names) if names else None
    if fitter is not None:
        _refuse_digits(checked, fitter)
    lifter = Lifter(fitter)
    lifter.routed = any(t.routing for t in traces)
    calls = tuple(lifter.call(i) for i in items)
    held = tuple(lifter.weight(i) for i in stored)
    constraints = _stated(run, names, pinned)
    constraints += conditions(checked, base, fitter) if fitter is not None else []
    constraints += roundings(checked, fitter) if fitter is not None else []
    constraints += lifter.whole()
    broken = next((c for c in constraints if not holds(c.condition, {size(n): v for n, v in run.family.sizes.items()})), None)
    if broken is not None:
        raise LiftError(f"sizes near the base are of another kind: there {broken}", "choose other base sizes")
    calls = plain_calls(calls, constraints)
    notes = dict.fromkeys((*run.family.notes, *base.notes))
    graph = Graph(run.family.name, dict(run.family.sizes), calls, held, tuple(without_implied(constraints)), tuple(notes))
    guessed = fitter is not None and fitter.guessed
    return Lifted(graph, guessed=guessed) if base in checked else Lifted(graph, base.events, base.sizes, guessed)


def _refuse_digits(traces: Sequence[Trace], fitter: Fitter) -> None:
    """Refuse sizes of which the program used digits: which of them it takes cannot be told from a few runs.

    Raises:
        UntrackedError: names the sizes.
    """
    for e in (e for e in traces[0].escapes if e.digits and not e.library):
        rows = [[x.value for x in t.escapes if (x.source, x.what) == (e.source, e.what)] for t in traces]
        place = rows[0].index(e.value)
        found = fitter.plain(tuple([r[place] for r in rows])) if all(place < len(r) for r in rows) else None
        names = [str(s) for s in found.free_symbols] if found is not None else []
        if names:
            raise UntrackedError(f"{e.source} takes {e.what} of {found}", names)


def _empty(t: Trace) -> bool:
    """Whether some operator makes a tensor without elements: a degenerate run, such as that of less than one group."""
    return any(0 in o.shape for e in t.events for o in e.outputs)


def _matched(run: Run, traces: list[Trace], base: Trace) -> tuple[list[Trace], list[Item], list[Item]]:
    """The traces that the fit is held against, with their calls and weights matched: the base is among them where it can be.

    At sizes of 1, and of a whole table, programs take shortcuts: the base with other sizes there stands in, and the base
    itself is compared by its cost.
    """
    known: dict[Key, Key] = {}

    def intern(key: Key) -> Key:
        return known.setdefault(key, key)

    def matched(more: list[Trace]) -> tuple[list[Trace], list[Item], list[Item]]:
        checked = [*traces, *more]
        unequal = unequal_lists([t.events for t in checked])
        calls = align([occurrences(t.events, intern, unequal) for t in checked])
        return checked, calls, align([occurrences(_weight_events(t), intern) for t in checked])

    try:
        return matched([] if base is traces[0] else [base])
    except LiftError as error:
        problem: CostirError = error
        near = {n: _nearby(run, n, v) for n, v in base.sizes.items()}
        if base is traces[0]:
            raise
    special = [n for n, v in near.items() if v != base.sizes[n]]
    for point in () if not special else (near, *({**base.sizes, n: near[n]} for n in special[:2] if len(special) > 1)):
        try:
            stand_in = run.trace(point)
            if not conflicts(base, [stand_in]):
                return matched([stand_in])
        except CostirError as error:
            problem = error
    if len(traces) > 2:
        return matched([])
    raise problem  # two points would fit anything


def _nearby(run: Run, name: str, value: int) -> int:
    """A value of a size beside a special one: 2 for 1, half of the longest."""
    if name in run.depth.names:
        return value
    if value > 1 and value == run.family.limits.get(name) and name not in run.family.multiples:
        return value // 2
    return 2 if value == 1 else value


def _fitter(run: Run, checked: Sequence[Trace], names: Sequence[str]) -> Fitter:
    periods = {n: (run.depth.prefix, run.depth.period) for n in run.depth.names if n in names}
    steps = [t.steps for t in checked]
    return Fitter([t.sizes for t in checked], names, derived(steps), periods, divisors_used(steps))


def _stated(run: Run, names: Sequence[str], pinned: Mapping[str, str]) -> list[Constraint]:
    """What is known beforehand: sizes that are kept, tied, limited, or numbers of layers."""
    sizes = run.family.sizes
    found = [Constraint(sp.Eq(size(n), Integer(sizes[n]), evaluate=False), why) for n, why in pinned.items()]
    found += [
        Constraint(sp.Eq(size(n), math.prod(size(o) for o in others), evaluate=False), "the model asks for it")
        for n, others in run.ties.items()
    ]
    found += [
        Constraint(sp.Eq(sp.Mod(size(a), size(b)), 0, evaluate=False)) for a, b in run.family.divisible if {a, b} & {*names}
    ]
    found += [Constraint(sp.Le(size(n), Integer(v)), "the model's longest") for n, v in run.family.limits.items() if n in names]
    q, p = run.depth.prefix, run.depth.period
    for n in run.depth.names:
        if p > 1 and run.depth.trusted:
            rest = (sizes[n] - q) % p
            found.append(
                Constraint(sp.Eq(sp.Mod(size(n) - (q + rest) % p, p), 0, evaluate=False), f"layers repeat with period {p}")
            )
        if (q or p > 1) and n in names and sizes[n] >= q + p:  # with fewer, the mask of a kind may not be made at all
            why = f"the first {q} layers differ" if q else f"so many have every kind of {p}"
            found.append(Constraint(sp.Ge(size(n), q + p), why))
    return found


def _weight_events(t: Trace) -> list[Event]:
    return [
        Event(f"costir.{w.tensor.role}.default", (), (w.tensor._replace(ref=-1),), w.path, "", "forward") for w in t.weights
    ]
