"""Family -> graph: trace at a few points, match the traces, and recover every whole number as an expression in the sizes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp

from costir import trace
from costir.errors import CostirError, LiftError
from costir.ir import ITEMSIZE, LOOP, Call, Constraint, Graph, Tensor, Weight
from costir.lifting import depth as layers
from costir.lifting.align import Item, Key, align, occurrences
from costir.lifting.fit import Fitter
from costir.lifting.guards import conditions, conflicts, respectful
from costir.lifting.points import Point, generic
from costir.lifting.shapes import EXACT, proposals
from costir.load.family import Family
from costir.symbolic import ZERO, Expr, Integer, size
from costir.trace import Trace
from costir.tracing.recorder import Event, RawTensor

_THIRD_POINT_UP_TO = 1500  # operators; below that a third probe costs little and checks much


@dataclass(frozen=True)
class _Run:
    """What stays the same over the attempts to lift one family."""

    family: Family
    phase: str
    optimizer: Any
    depth: layers.Depth
    ties: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # a size that must be a product of others

    def trace(self, point: Mapping[str, int]) -> Trace:
        """One trace, tied sizes following the others."""
        full = dict(point)
        for n, others in self.ties.items():
            full[n] = math.prod(full[o] for o in others)
        return trace.run(self.family, {n: full[n] for n in self.family.sizes}, self.phase, self.optimizer)


@dataclass(frozen=True)
class Lifted:
    """A graph, and what the base itself ran where that could not be matched with the other points.

    Attributes:
        graph: the symbolic graph.
        witness: the calls of the base trace with concrete sizes; empty where they took part in the fit.
        point: the sizes of the witness (fewer layers than the base where layers repeat).
    """

    graph: Graph
    witness: tuple[Event, ...] = ()
    point: Mapping[str, int] = dataclasses.field(default_factory=dict)


def lift(family: Family, phase: str = "forward", optimizer: Any = None) -> Lifted:
    """The graph of a family, every size symbolic.

    Args:
        family: what to analyse; its base sizes decide the regime where the program branches on sizes.
        phase: "forward", "backward" or "train".
        optimizer: makes the optimizer from the parameters, for "train".

    Raises:
        TraceError: the model does not run at the base sizes, or branches on data.
        LiftError: no formula fits, and no size can be blamed for it.
    """
    names = list(family.sizes)
    run = _Run(family, phase, optimizer, _depth(family, phase))
    base_point = dict(family.sizes)
    for n in run.depth.names:
        base_point[n] = run.depth.values(family.sizes[n])[3]
    base = run.trace(base_point)
    if not names:
        return _assemble(run, [base], base, [], {})
    found = _vary(run, base, names)
    if isinstance(found, Lifted):
        return found
    stuck = _stuck(run, base, names)
    ties = _ties(run, base, stuck)
    pinned = [n for n in stuck if n not in ties and not any(n in t for t in ties.values())]
    rest = [n for n in names if n not in pinned and n not in ties]
    if not stuck or not rest:
        raise found
    again = _vary(dataclasses.replace(run, ties=ties), base, rest, tuple(pinned))
    if isinstance(again, Lifted):
        return again
    raise again


def _depth(family: Family, phase: str) -> layers.Depth:
    """How layers repeat, from the module built at the base sizes without memory."""
    likely = [n for n in family.sizes if n in family.depth or n.lower() in layers.DEPTH_NAMES]
    if not likely:
        return layers.Depth()
    module = trace.skeleton(family)
    return layers.find(module, family.sizes, family.depth) if module is not None else layers.Depth()


def _vary(run: _Run, base: Trace, names: list[str], pinned: Sequence[str] = ()) -> Lifted | CostirError:
    """Try points until the traces at them agree with the base in structure and fit formulas."""
    fixed = {n: run.depth.values(run.family.sizes[n])[:3] for n in run.depth.names}
    first: CostirError | None = None
    for level in (1, 2, 0):
        for points in itertools.islice(generic(run.family.sizes, names, fixed, level, run.family.multiples), 1):
            outcome = _attempt(run, base, names, points, level, pinned)
            if isinstance(outcome, Lifted):
                return outcome
            first = first or outcome
    assert first is not None
    return first


def _attempt(run: _Run, base: Trace, names: list[str], points: tuple[Point, ...], level: int, pinned: Sequence[str]) -> Lifted | CostirError:
    """Trace at the points; where the program takes another branch there than at the base, move them into the base's regime."""
    fill = {n: run.family.sizes[n] for n in pinned}
    points = tuple({**p, **fill} for p in points)
    error: CostirError | None = None
    for _ in range(6):
        try:
            traces = [run.trace(p) for p in points[:2]]
            evened = _evened(traces, points)
            if evened is not None:
                points = evened
                continue
            clash = conflicts(base, traces)
            if clash:
                moved = respectful(clash, base, traces, points, run.family.sizes, names)
                if moved is None:
                    return error or LiftError(f"sizes near the base take another branch at {clash[0].source}")
                points = moved
                continue
            if not run.depth.trusted and len(traces[0].events) <= _THIRD_POINT_UP_TO and len(points) > 2:
                third = run.trace(points[2])
                if not conflicts(base, [third]):
                    traces.append(third)
            return _assemble(run, traces, base, names, dict.fromkeys(pinned, ""))
        except CostirError as problem:
            return problem
    return LiftError("no sizes were found that take the same branches as the base sizes")


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


def _stuck(run: _Run, base: Trace, names: list[str]) -> list[str]:
    """The sizes that cannot be changed alone without breaking the model or its regime."""
    stuck = []
    for n in names:
        value = base.sizes[n]
        if not any(_runs_alike(run, base, {**base.sizes, n: v}) for v in (2 * value, 3 * value, value + 1, max(1, value // 2)) if v != value):
            stuck.append(n)
    return stuck


def _ties(run: _Run, base: Trace, stuck: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Sizes that must equal another, or the product of two others: N == K, D == N*H. Found by changing them together."""
    found: dict[str, tuple[str, ...]] = {}
    for n in sorted(stuck, key=lambda n: -base.sizes[n]):
        free = [m for m in stuck if m != n and m not in found]
        for others in (*itertools.combinations(free, 1), *itertools.combinations(free, 2)):
            if math.prod(base.sizes[o] for o in others) != base.sizes[n] or any(n in t for t in found.values()):
                continue
            moved = {**base.sizes, **{o: 3 * base.sizes[o] for o in others}, n: 3 ** len(others) * base.sizes[n]}
            if _runs_alike(run, base, moved):
                found[n] = others
                break
    return found


def _runs_alike(run: _Run, base: Trace, point: Mapping[str, int]) -> bool:
    try:
        other = run.trace(point)
        return not conflicts(base, [other])
    except CostirError:
        return False


def _assemble(run: _Run, traces: list[Trace], base: Trace, names: list[str], pinned: Mapping[str, str]) -> Lifted:
    """Match the traces and fit every number."""
    known: dict[Key, Key] = {}

    def intern(key: Key) -> Key:
        return known.setdefault(key, key)

    events = [occurrences(t.events, intern) for t in traces]
    weights = [occurrences(_weight_events(t), intern) for t in traces]
    checked = list(traces)
    notes = dict.fromkeys((*run.family.notes, *base.notes))
    if base is not traces[0]:
        try:
            items = align([*events, occurrences(base.events, intern)])
            stored = align([*weights, occurrences(_weight_events(base), intern)])
            checked.append(base)
        except LiftError:
            items, stored = align(events), align(weights)
    else:
        items, stored = align(events), align(weights)
    lifter = _Lifter(Fitter([t.sizes for t in checked], names) if names else None, len(checked))
    lifter.routed = any(t.routing for t in traces)
    calls = tuple(lifter.call(i) for i in items)
    held = tuple(lifter.weight(i) for i in stored)
    constraints = [Constraint(sp.Eq(size(n), Integer(run.family.sizes[n]), evaluate=False), why) for n, why in pinned.items()]
    constraints += [
        Constraint(sp.Eq(size(n), math.prod(size(o) for o in others), evaluate=False), "the model asks for it") for n, others in run.ties.items()
    ]
    constraints += conditions(checked, base, lifter.fit) if names else []
    constraints += lifter.whole()
    constraints += [Constraint(sp.Le(size(n), Integer(v)), "the model's longest") for n, v in run.family.limits.items() if n in names]
    if run.depth.period > 1 or run.depth.prefix:
        constraints += _depth_constraints(run)
    graph = Graph(run.family.name, dict(run.family.sizes), calls, held, tuple(dict.fromkeys(constraints)), tuple(notes))
    return Lifted(graph) if base in checked else Lifted(graph, base.events, base.sizes)


def _depth_constraints(run: _Run) -> list[Constraint]:
    found = []
    q, p = run.depth.prefix, run.depth.period
    for n in run.depth.names:
        if p > 1:
            rest = (run.family.sizes[n] - q) % p
            text = sp.Eq(sp.Mod(size(n) - (q + rest) % p, p), 0, evaluate=False)
            found.append(Constraint(text, f"layers repeat with period {p}"))
        if q:
            found.append(Constraint(sp.Ge(size(n), q + p), f"the first {q} layers differ"))
    return found


def _weight_events(t: Trace) -> list[Event]:
    return [Event(f"costir.{w.tensor.role}.default", (), (w.tensor._replace(ref=-1),), w.path, "", "forward") for w in t.weights]


class _Lifter:
    """Turns matched numbers into expressions, one call at a time, remembering where fractions must be whole."""

    def __init__(self, fitter: Fitter | None, traces: int) -> None:
        self.fitter = fitter
        self.traces = traces
        self.fractions: dict[Expr, str] = {}
        self.routed = False
        self.rows: set[Expr] = set()  # row counts that a router decides: their sum is exact, each need not be whole

    def fit(self, vector: Sequence[int]) -> Expr | None:
        """The expression of a vector, or None."""
        if all(v == vector[0] for v in vector):
            return Integer(int(vector[0]))
        return self.fitter.fit(tuple(int(v) for v in vector)) if self.fitter is not None else None

    def call(self, item: Item) -> Call:
        """The symbolic call of an item."""
        reader = _Reader(self, item)
        args = {k: reader.read(v) for k, v in item.event.args}
        name = item.event.op.split(".")[1]
        outputs = tuple(reader.output(o, n, args, name) for n, o in enumerate(item.event.outputs))
        if self.routed and name in ("nonzero", "index", "masked_select"):
            self.rows.update(d for o in outputs for d in o.shape if not d.is_Integer and any(not f.is_integer for f in sp.Add.make_args(d)))
        count = self._sure(item.counts, item)
        rounds = self._sure([v[-1] for v in item.ints], item) if item.ramp else None
        return Call(item.event.op, args, outputs, item.path, item.event.source, item.event.phase, count, rounds)  # type: ignore[arg-type]

    def weight(self, item: Item) -> Weight:
        """The symbolic weight of an item."""
        return Weight(item.path, _Reader(self, item).read(item.event.outputs[0]), self._sure(item.counts, item))

    def _sure(self, vector: Sequence[int], item: Item) -> Expr:
        e = self.fit(vector)
        if e is None:
            raise LiftError(_no_formula(item, "the number of calls", vector))
        self.note(e, item)
        return e

    def note(self, e: Expr, item: Item) -> None:
        """Remember a quotient that must be whole."""
        if e.is_Integer or e.is_Symbol or e in self.fractions:
            return
        if any(not f.is_integer for f in sp.Add.make_args(e)):
            self.fractions[e] = item.event.source

    def whole(self) -> list[Constraint]:
        """`D % N == 0` for every dimension D/N that was found."""
        found: dict[Any, Constraint] = {}
        for e in self.fractions:
            top, bottom = sp.fraction(sp.together(e))
            if bottom == 1:
                continue
            condition = sp.Eq(sp.Mod(top, bottom, evaluate=False), 0, evaluate=False)
            found.setdefault(str(condition), Constraint(condition))
        free = {str(sp.Eq(sp.Mod(*sp.fraction(sp.together(r)), evaluate=False), 0, evaluate=False)) for r in self.rows}
        return [c for c in _strongest(list(found.values())) if str(c.condition) not in free]


def _strongest(constraints: list[Constraint]) -> list[Constraint]:
    """Without conditions that follow from a simpler one: D % N == 0 makes B*T*D/N whole."""
    kept: list[Constraint] = []
    for c in sorted(constraints, key=lambda c: len(str(c.condition))):
        top, bottom = c.condition.lhs.args
        implied = any(
            (sp.cancel(top / bottom * b / t)).is_integer or sp.cancel(sp.sqrt(top / bottom) * b / t).is_integer
            for t, b in (k.condition.lhs.args for k in kept)
        )
        if not implied:
            kept.append(c)
    return kept


class _Reader:
    """Walks an item's arguments and outputs, taking one number after the other."""

    def __init__(self, lifter: _Lifter, item: Item) -> None:
        self.lifter, self.item, self.next = lifter, item, 0

    def vector(self) -> tuple[int, ...]:
        i = self.next
        self.next += 1
        return tuple([v[i] for v in self.item.ints])

    def number(self, guesses: Iterator[Expr] | None = None, exact: bool = False) -> Expr:
        i, vector = self.next, self.vector()
        if self.item.ramp is not None:
            step = self.lifter.fit([r[i] for r in self.item.ramp])
            start = self.lifter.fit(vector)
            if start is None or step is None:
                raise LiftError(_no_formula(self.item, "a size", vector))
            return start + step * LOOP
        fitter = self.lifter.fitter
        if fitter is not None and guesses is not None and exact and vector not in fitter.known and len(set(vector)) > 1:
            self._propose(guesses, vector)
        e = self.lifter.fit(vector)
        if e is None and fitter is not None and guesses is not None:
            self._propose(guesses, vector)
            e = fitter.known.get(vector)
        if e is None:
            raise LiftError(_no_formula(self.item, "a size", vector))
        self.lifter.note(e, self.item)
        return e

    def _propose(self, guesses: Iterator[Expr], vector: tuple[int, ...]) -> None:
        fitter = self.lifter.fitter
        assert fitter is not None
        for e in guesses:
            if fitter.propose(vector, sp.sympify(e)):
                return

    def read(self, x: Any) -> Any:
        """An argument: tensors and whole numbers become symbolic, the rest stays."""
        if isinstance(x, RawTensor):
            return self.tensor(x)
        if isinstance(x, tuple):
            return tuple([self.read(i) for i in x])
        if isinstance(x, int) and not isinstance(x, bool):
            return self.number()
        return x

    def tensor(self, x: RawTensor) -> Tensor:
        shape = tuple([self.number() for _ in x.shape])
        return self._finish(x, shape)

    def output(self, x: RawTensor, number: int, args: Mapping[str, Any], name: str) -> Tensor:
        shape = tuple([self.number(proposals(name, args, number, dim), name in EXACT) for dim in range(len(x.shape))])
        return self._finish(x, shape)

    def _finish(self, x: RawTensor, shape: tuple[Expr, ...]) -> Tensor:
        nnz, index = None, ZERO
        if x.nnz is not None:
            nnz = self.number()
            index = self.number() * ITEMSIZE[x.index_dtype]
        return Tensor(shape, x.dtype, x.expanded, x.role, x.ref, nnz, index)  # type: ignore[arg-type]


def _no_formula(item: Item, what: str, vector: Sequence[int]) -> str:
    name = item.event.op.rsplit(".", 1)[0]
    at = f" at {item.event.source}" if item.event.source else ""
    seen = ", ".join(str(v) for v in vector)
    return f"{what} of {name}{at} in {item.path or 'the model'} follows no formula found (seen: {seen})"

