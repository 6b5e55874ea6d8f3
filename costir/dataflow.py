"""Which operators of a trace need what which others made: memory read, memory written, views of one memory.

    flow = dataflow(trace)
    flow.steps[5].reads       the operands that operator 5 reads, as they lie in memory
    flow.graph                networkx: an edge from each operator to those that must wait for it

A view moves nothing: its operator reads and writes nothing, and who reads the view reads the memory behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from costir.trace import Trace
from costir.tracing.aliasing import written_arguments
from costir.tracing.recorder import Event, RawTensor, raw_tensors


@dataclass(frozen=True, slots=True)
class Step:
    """One operator and what it does to memory.

    Attributes:
        event: the call.
        reads: the operands whose values it needs, in order, equal ones once.
        writes: what it fills or changes: its fresh results, and the operands that it writes to.
        view: it only shows memory otherwise, or asks for a property.
    """

    event: Event
    reads: tuple[RawTensor, ...]
    writes: tuple[RawTensor, ...]
    view: bool


@dataclass(frozen=True)
class Flow:
    """The dataflow of a trace.

    Attributes:
        steps: one per event, in order.
        graph: nodes are positions in `steps`; an edge a -> b where b needs what a wrote (`kind` "data"), or must wait since it
            writes over what a reads or wrote ("order").
        last_use: by memory number, the last position that reads or writes it.
        made: by memory number, the first position that writes it; memory of inputs, weights and states that nobody writes is in
            none.
    """

    steps: tuple[Step, ...]
    graph: Any
    last_use: dict[int, int]
    made: dict[int, int]


def dataflow(trace: Trace) -> Flow:
    """The dataflow of a trace, aliasing and writes in place included."""
    steps = tuple(step_of(e) for e in trace.events)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(steps)))
    known: dict[int, _Memory] = {}
    last_use: dict[int, int] = {}
    made: dict[int, int] = {}
    for i, step in enumerate(steps):
        for t in (*step.reads, *step.writes):
            last_use[t.memory] = i
        for t in step.reads:
            for writer in known.setdefault(_home(t), _Memory()).before_reading(t):
                graph.add_edge(writer, i, kind="data")
        for t in step.writes:
            made.setdefault(t.memory, i)
            for before in known.setdefault(_home(t), _Memory()).before_writing(t):
                if before != i and not graph.has_edge(before, i):
                    graph.add_edge(before, i, kind="order")
        for t in step.reads:
            known[_home(t)].readers.append((i, t))
        for t in step.writes:
            known[_home(t)].wrote(i, t)
    return Flow(steps, graph, last_use, made)


def step_of(event: Event) -> Step:
    """What one call does to memory."""
    target = written_arguments(event.op)
    given = [(name, t) for name, v in event.args for t in raw_tensors(v)]
    old = {t.memory for _, t in given if t.memory >= 0}
    changed = [t for name, t in given if name in target]
    fresh = [t for t in event.outputs if t.memory < 0 or t.memory not in old]
    view = not changed and not fresh
    if view or event.op.startswith(_RESERVES):
        return Step(event, (), (), True)
    reads = [t for name, t in given if not (name in target and _only_written(event.op, name))]
    return Step(event, _once(reads), _once([*fresh, *changed]), False)


# Memory is only reserved; whoever fills it writes.
_RESERVES = ("aten.empty", "aten.new_empty", "aten.resize_", "aten.set_.")
# Operators that write over an operand without a look at it.
_OVERWRITES = frozenset(("copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_",
                         "_foreach_copy_", "_foreach_zero_"))  # fmt: skip


def _home(t: RawTensor) -> int:
    """A number of what a tensor lies in; a sparse one lies in several memories, which nothing else shows."""
    return t.memory if t.memory >= 0 else -2 - t.ref


def _only_written(op: str, name: str) -> bool:
    return name in ("out", "self", "values", "indices") and (op.split(".")[1] in _OVERWRITES or name != "self")


def _once(found: Iterable[RawTensor]) -> tuple[RawTensor, ...]:
    return tuple({t.ref: t for t in reversed(tuple(found))}.values())[::-1]


@dataclass
class _Memory:
    """Who wrote and who read a memory so far; what is written over whole is forgotten."""

    writers: list[tuple[int, RawTensor]] = field(default_factory=list)
    readers: list[tuple[int, RawTensor]] = field(default_factory=list)

    def before_reading(self, t: RawTensor) -> list[int]:
        return [i for i, w in self.writers if overlap(w, t)]

    def before_writing(self, t: RawTensor) -> list[int]:
        return [i for i, other in (*self.writers, *self.readers) if overlap(other, t)]

    def wrote(self, i: int, t: RawTensor) -> None:
        self.writers = [*((k, w) for k, w in self.writers if not covers(t, w)), (i, t)]
        self.readers = [(k, r) for k, r in self.readers if not covers(t, r) and k != i]


def span(t: RawTensor) -> tuple[int, int]:
    """The first element of its memory that a tensor shows, and one past the last."""
    if 0 in t.shape:
        return t.offset, t.offset
    return t.offset, t.offset + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride, strict=False))


def overlap(a: RawTensor, b: RawTensor) -> bool:
    """Whether two tensors of one memory may share elements; columns beside each other are told apart, combs are not."""
    (a0, a1), (b0, b1) = span(a), span(b)
    if a1 <= b0 or b1 <= a0:
        return False
    apart = _columns_apart(a, b)
    return not apart


def _columns_apart(a: RawTensor, b: RawTensor) -> bool:
    """Two slices of the columns of one matrix: equal outer strides, and what lies within a row does not meet."""
    wide = max((s for s in (*a.stride, *b.stride)), default=0)
    if wide <= 1 or wide not in a.stride or wide not in b.stride or a.dtype != b.dtype:
        return False
    (a0, a1), (b0, b1) = (_within(t, wide) for t in (a, b))
    return a1 <= wide and b1 <= wide and (a1 <= b0 or b1 <= a0)


def _within(t: RawTensor, wide: int) -> tuple[int, int]:
    """First and last column of a slice whose rows are `wide` elements apart."""
    first = t.offset % wide
    return first, first + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride, strict=False) if s < wide)


def covers(a: RawTensor, b: RawTensor) -> bool:
    """Whether all that `b` shows lies within `a`, for sure: where `a` has no gaps."""
    (a0, a1), (b0, b1) = span(a), span(b)
    return a0 <= b0 and b1 <= a1 and dense(a) and a.dtype == b.dtype


def dense(t: RawTensor) -> bool:
    """Whether a tensor shows every element between its first and its last, each once."""
    first, last = span(t)
    return count(t.shape) == last - first


def count(shape: Sequence[int]) -> int:
    """Number of elements."""
    n = 1
    for d in shape:
        n *= d
    return n
