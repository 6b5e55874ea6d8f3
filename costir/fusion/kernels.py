"""Groups -> kernels with what each reads and writes, and these as events of a trace, to be lifted like any other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from costir.fusion.composite import lower
from costir.fusion.group import Group, Grouping
from costir.fusion.inline import inline, live, once
from costir.fusion.lower import eager_cost
from costir.fusion.pieces import Program
from costir.fusion.products import as_operands, products
from costir.fusion.recompute import recompute
from costir.fusion.rules import RULE_SETS, RuleSet
from costir.fusion.space import Access
from costir.ir import ITEMSIZE
from costir.trace import Trace
from costir.tracing.paths import fold_path
from costir.tracing.recorder import Event, RawTensor, raw_tensors

KERNEL = "costir.kernel.default"
_ATTEMPTS = 4


@dataclass(frozen=True)
class Kernel:
    """One kernel of a trace.

    Attributes:
        events: positions of the calls whose arithmetic counts here.
        again: positions of calls whose result it computes once more.
        reads, writes: the parts of memory that it moves, each once.
        alone: one call that is a kernel of its own, as it stands.
    """

    events: tuple[int, ...]
    again: tuple[int, ...]
    reads: tuple[RawTensor, ...]
    writes: tuple[RawTensor, ...]
    alone: bool = False

    @property
    def nbytes(self) -> float:
        """Bytes moved."""
        return sum(nbytes(t) for t in (*self.reads, *self.writes))


@dataclass(frozen=True)
class Fused:
    """A trace as kernels.

    Attributes:
        trace: what was fused.
        kernels: in an order in which they can run.
        idle: calls that no result needs: their arithmetic is the program's, their memory nobody's.
        grouping: which groups the kernels are, to ask why.
    """

    trace: Trace
    kernels: tuple[Kernel, ...]
    idle: tuple[Kernel, ...]
    grouping: Grouping


def nbytes(t: RawTensor) -> float:
    """Bytes of a part of memory."""
    n = float(ITEMSIZE[t.dtype])
    for d in t.shape:
        n *= d
    return n


def fuse(trace: Trace, traffic: str) -> Fused:
    """The kernels of a trace by the rules of a compiler, "inductor" or "xla".

    Fusing never moves more than the operators one by one: where a compiler takes an operator apart that torch has in one
    kernel, and the whole would move more for it, that operator stays torch's own.
    """
    rules, alone = RULE_SETS[traffic], frozenset[int]()
    eager = [_eager(e) for e in trace.events]
    for _ in range(_ATTEMPTS):
        found = _fused(trace, rules, alone)
        if sum(k.nbytes if not k.alone else eager[k.events[0]] for k in found.kernels) <= sum(eager):
            return found
        worse = {
            i
            for k in found.kernels
            if not k.alone and k.nbytes > sum(eager[i] for i in k.events)
            for i in (*k.events, *k.again)
        }
        if not worse - alone:
            break
        alone |= worse
    return _fused(trace, rules, frozenset(range(len(trace.events))))


def _eager(event: Event) -> float:
    """Bytes that a call moves by itself."""
    cost = eager_cost(event)
    if cost.status != "unknown":
        return float(cost.nbytes)
    return sum(nbytes(t) for t in {t.ref: t for _, v in event.args for t in raw_tensors(v)}.values()) + sum(
        map(nbytes, event.outputs)
    )


def _fused(trace: Trace, rules: RuleSet, alone: frozenset[int]) -> Fused:
    program = lower(trace, alone | _seed(trace) if rules.recompute else alone)
    pieces = live(program)
    if rules.recompute:
        pieces = once(program, pieces)
        pieces = recompute(program, pieces)
        pieces = products(program, pieces)
    pieces = inline(program, pieces, rules.reread)
    if rules.reorder:
        as_operands(program, pieces)
    grouping = Grouping(program, pieces, rules)
    counted: set[int] = set()
    kernels = []
    for group in grouping.ordered():
        members = sorted({e for p in group.pieces for e in p.events})
        first = tuple(e for e in members if e not in counted)
        counted.update(first)
        again = tuple(e for e in members if e not in first)
        reads, writes = moved(program, grouping, group)
        kernels.append(Kernel(first, again, reads, writes, group.opaque and len(members) == 1))
    idle = sorted({p.event for p in program.pieces} - counted)
    return Fused(trace, tuple(kernels), tuple(Kernel((i,), (), (), ()) for i in idle), grouping)


def _seed(trace: Trace) -> frozenset[int]:
    """The gradient of the loss itself, which autograd hands to the backward pass as an input."""
    first = next((i for i, e in enumerate(trace.events) if e.phase == "backward"), None)
    return frozenset() if first is None or not trace.events[first].op.startswith("aten.ones_like") else frozenset((first,))


def moved(program: Program, grouping: Grouping, group: Group) -> tuple[tuple[RawTensor, ...], tuple[RawTensor, ...]]:
    """What a group reads and writes, each part of memory once."""
    reads: dict[int, list[Access]] = {}
    for r in group.reads:
        reads.setdefault(r.value, []).append(r)
    wanted = {v for k in grouping.after[grouping.number(group)] for v in _needs(grouping.groups[k])}
    writes = [w for p in group.pieces for w in p.writes if w.value in wanted or program.values[w.value].kept]
    return (
        tuple(t for v, found in reads.items() for t in parts(program, v, found)),
        tuple(t for w in writes for t in parts(program, w.value, [w])),
    )


def _needs(group: Group) -> Iterable[int]:
    yield from (r.value for r in group.reads)
    yield from (v for p in group.pieces for v in p.after)


def parts(program: Program, value: int, found: Sequence[Access]) -> list[RawTensor]:
    """The parts of a value's memory that are touched: the whole of it, or less."""
    whole = program.values[value].tensor
    regions = {a.region() if not a.irregular else (a.mark, ((a.irregular, a.base),)): a for a in found}
    if sum(a.elements for a in regions.values()) >= program.values[value].numel and not _rows_only(found):
        return [whole]
    return [
        whole._replace(shape=a.shape or (1,), stride=(), offset=0, expanded=(), ref=hash((whole.ref, region)))
        for region, a in regions.items()
    ]


def _rows_only(found: Sequence[Access]) -> bool:
    """Whether only picked rows are read: a row that is picked twice is read twice."""
    return len(found) == 1 and found[0].picks


def as_events(trace: Trace, kernels: Iterable[Kernel]) -> Trace:
    """The trace with kernels as its calls; what is a kernel by itself stays the call that it was."""
    events = trace.events
    return dataclasses.replace(trace, events=tuple(events[k.events[0]] if k.alone else _event(events, k) for k in kernels))


def _event(events: Sequence[Event], k: Kernel) -> Event:
    members = tuple([(e.op, e.args, e.outputs, fold_path(e.path), e.source) for e in (events[i] for i in k.events)])
    again = tuple([(events[i].op, fold_path(events[i].path)) for i in k.again])
    args = (("reads", k.reads), ("writes", k.writes), ("members", members), ("again", again))
    lead = events[(k.events or k.again)[0]]
    path = common_path([events[i].path for i in (*k.events, *k.again)])
    return Event(KERNEL, args, k.writes, path, lead.source, lead.phase, lead.site)


def common_path(paths: Sequence[str]) -> str:
    """The module that holds all of these modules."""
    parts = [p.split(".") for p in dict.fromkeys(paths)]
    out = []
    for column in zip(*parts, strict=False):
        if len(set(column)) > 1:
            break
        out.append(column[0])
    return ".".join(out)
