"""Traces -> graph: the calls of all traces matched, and every number of them fitted."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy as sp

from costir.errors import CostirError, LiftError
from costir.ir import Constraint, Graph
from costir.lifting.align import Item, Key, align, occurrences, unequal_lists
from costir.lifting.expressions import Lifter
from costir.lifting.fit import Fitter, UnsureError
from costir.lifting.guards import conditions, conflicts, roundings
from costir.lifting.held_bytes import Evidence
from costir.lifting.implied import is_divisibility, plain_calls, without_implied
from costir.lifting.points import Point, telling
from costir.lifting.steps import derived, divisors_used
from costir.lifting.stuck import Run
from costir.lifting.trial import UntrackedError
from costir.mesh import Mesh
from costir.symbolic import Integer, holds, size
from costir.trace import Trace
from costir.tracing.recorder import Event

_MOVED = 3  # sizes that are moved, one by one, to find a base where no two dimensions are equal by chance


@dataclass(frozen=True)
class Lifted:
    """A graph, and what the base itself ran where that could not be matched with the other points.

    Attributes:
        graph: the symbolic graph.
        witness: the calls of the base trace with concrete sizes; empty where they took part in the fit.
        point: the sizes of the witness (fewer layers than the base where layers repeat).
        guessed: some numbers were found by trying forms, not by what an operator or the program does.
        evidence: the traces, for what else is asked of them; None where there is none.
    """

    graph: Graph
    witness: tuple[Event, ...] = ()
    point: Mapping[str, int] = dataclasses.field(default_factory=dict)
    guessed: bool = False
    evidence: Evidence | None = dataclasses.field(default=None, compare=False, repr=False)


def told_apart(run: Run, traces: list[Trace], base: Trace, names: list[str], pins: Mapping[str, str]) -> Lifted:
    """The graph; a point is added to the traces wherever several formulas would do."""
    for _ in range(4):
        try:
            return assemble(run, traces, base, names, pins)
        except UnsureError as unsure:
            point = telling(unsure.forms, traces[0].sizes, names)
            more = held_out(run, base, point) if point is not None else None
            if more is None:
                raise
            traces.append(more)
    return assemble(run, traces, base, names, pins)


def held_out(run: Run, base: Trace, point: Point) -> Trace | None:
    """One more trace, of the base's regime, that guesses must agree with; None where the model does not run there so."""
    try:
        more = run.trace(point)
    except CostirError:
        return None
    return more if not conflicts(base, [more]) else None


def assemble(run: Run, traces: list[Trace], base: Trace, names: list[str], pinned: Mapping[str, str]) -> Lifted:
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
    found = [lifter.weight(i) for i in stored]
    held = tuple(w for w in found if w.tensor.role != "cache")
    cache = tuple(w for w in found if w.tensor.role == "cache")
    constraints = _stated(run, names, pinned)
    constraints += conditions(checked, base, fitter) if fitter is not None else []
    constraints += roundings(checked, fitter) if fitter is not None else []
    constraints += lifter.whole()
    broken = next((c for c in constraints if not holds(c.condition, {size(n): v for n, v in run.family.sizes.items()})), None)
    if broken is not None and run.family.axes and is_divisibility(broken.condition):
        at = ", ".join(f"{s} = {run.family.sizes[str(s)]}" for s in sorted(broken.condition.free_symbols, key=str))
        raise LiftError(f"shards would be uneven: {broken} does not hold at {at}", "choose another mesh, or other sizes")
    if broken is not None:
        raise LiftError(f"sizes near the base are of another kind: there {broken}", "choose other base sizes")
    calls = plain_calls(calls, constraints)
    notes = dict.fromkeys((*run.family.notes, *base.notes))
    graph = Graph(run.family.name, dict(run.family.sizes), calls, held, tuple(without_implied(constraints)), tuple(notes),
                  Mesh.of(run.family.axes), dict(run.family.splits), cache=cache)  # fmt: skip
    guessed = fitter is not None and fitter.guessed
    depths = tuple(n for n in run.depth.names if n in names)
    evidence = Evidence(tuple(checked), fitter, depths, run.depth.prefix + run.depth.period, base)
    witness = (base.events, base.sizes) if base not in checked else ((), {})
    return Lifted(graph, *witness, guessed, evidence)


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

    At sizes of 1, and of a whole table, programs take shortcuts, and where a length is that of a head by chance, calls look
    alike that are not: the base with other sizes there stands in, and the base itself is compared by its cost.
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
    points = [near, *({**base.sizes, n: near[n]} for n in special[:2] if len(special) > 1)] if special else []
    if len(traces) < 3:
        points += [{**base.sizes, n: 3 * base.sizes[n]} for n in base.sizes if n not in (*run.depth.names, *special)][:_MOVED]
    for point in points:
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
    return Fitter([t.sizes for t in checked], names, derived(steps), periods, divisors_used(steps),
                  run.family.axes)  # fmt: skip


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
    # torch copies and scales along an axis of one device, too, where a model that is not divided does neither
    found += [Constraint(sp.Ge(size(a), 2), "on one device nothing is divided") for a in run.family.axes if a in names]
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
        Event(f"costir.{w.tensor.role}.default", (), (w.tensor._replace(ref=-1),), w.path, "", "forward")
        for w in (*t.weights, *t.cache)
    ]
