"""Traces -> lists of items that mean the same in every trace, each a vector of whole numbers per trace.

Where all traces run the same operators in the same order, the n-th operator of one is the n-th of the others. Where they do
not (loops over a size, layers), operators are grouped by phase, module path without indices, line and kind, and runs of equal
shapes within a group are matched.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from costir.errors import LiftError
from costir.tracing.paths import fold_path as fold_path
from costir.tracing.recorder import Event, RawTensor

Ints = tuple[int, ...]
# Floating arguments on which a cost depends: factors that are skipped, exponents that are products.
_TELLING = frozenset((0.0, 1.0, -1.0, 2.0, -2.0, 3.0, 4.0, 0.5, -0.5, float("inf"), float("-inf")))
# Arguments that are factors or fill values: no cost depends on them, whatever they are.
_FACTORS = frozenset(("other", "scale", "fill_value", "s"))
_HINT = "keep the size that steers it as a number with --keep"


@dataclass(frozen=True)
class Key:
    """What an operator call has in common across sizes."""

    phase: str
    path: str  # without indices
    op: str
    source: str
    site: int
    skeleton: Hashable  # arguments and outputs with whole numbers and memory layout left out
    times: int = 1

    def __hash__(self) -> int:
        return hash((self.path, self.op, self.source, self.skeleton))


@dataclass(frozen=True)
class Occurrence:
    """One call in one trace."""

    key: Key
    ints: Ints
    path: str
    layout: Hashable  # which dimensions are expanded, which operands are the same memory
    event: Event


@dataclass(frozen=True)
class Item:
    """The same call in every trace.

    Attributes:
        key: what it is.
        event: the call in the first trace, for everything but whole numbers.
        ints: per trace, its whole numbers; where `ramp` is set, those of the first occurrence.
        counts: per trace, how often it runs (for a ramp: how often each round runs).
        path: the module path; with "*" where several were merged.
        ramp: per trace, by how much each number grows from one round of a loop to the next, or None. The last of `ints`
            is then the number of rounds.
    """

    key: Key
    ints: tuple[Ints, ...]
    counts: Ints
    path: str
    event: Event
    ramp: tuple[Ints, ...] | None = None


Site = tuple[str, str, str, int]


def _site(event: Event) -> Site:
    return event.op, fold_path(event.path), event.source, event.site


def unequal_lists(traces: Sequence[Sequence[Event]]) -> frozenset[Site]:
    """Where lists of tensors are of different shapes in some trace: in another they may be of one shape by chance."""
    found = []
    for events in traces:
        for e in events:
            for _, v in e.args:
                if type(v) is tuple and _is_list(v) and _stacked(v) is v:
                    found.append(_site(e))
    return frozenset(found)


def occurrences(events: Sequence[Event], intern: Any, unequal: frozenset[Site] = frozenset()) -> list[Occurrence]:
    """The calls of a trace with their whole numbers taken out; lists stay as they are at the sites in `unequal`."""
    return [_occurrence(e, intern, unequal) for e in events]


def _occurrence(event: Event, intern: Any, unequal: frozenset[Site]) -> Occurrence:
    ints: list[int] = []
    layout: list[Any] = []
    event = _compact(event, unequal)
    arguments = [(k, float if k in _FACTORS and isinstance(v, float) else _strip(v, ints, layout)) for k, v in event.args]
    skeleton = (tuple(arguments), tuple([_strip(o, ints, layout) for o in event.outputs]))
    key = intern(Key(event.phase, fold_path(event.path), event.op, event.source, event.site, skeleton, event.times))
    first: dict[int, int] = {}
    return Occurrence(key, tuple(ints), event.path, tuple([(e, first.setdefault(r, len(first))) for e, r in layout]), event)


_LISTS = (
    "aten.unbind",
    "aten.split",
    "aten.chunk",
    "aten.tensor_split",
    "aten.unsafe_split",
    "aten.split_with_sizes",
    "aten.unsafe_chunk",
)


def _compact(event: Event, unequal: frozenset[Site]) -> Event:
    """Lists whose length may depend on a size, made short: a list of equal operands becomes one operand with a dimension more;
    of the parts of a split only the first is kept (they are views); an index into a dimension costs nothing."""
    if event.op.startswith(_LISTS):
        kept = event.outputs[:1]
        args = tuple(
            [(k, None if k in ("split_sizes", "split_size", "chunks", "sections", "indices") else v) for k, v in event.args]
        )
        return event._replace(outputs=kept, args=args)
    for k, v in event.args:
        if type(v) is int and k in _FACTORS:  # weights halved once more every few layers
            event = event._replace(args=tuple([(n, float(x) if n == k else x) for n, x in event.args]))
    if event.op.startswith("aten.select."):
        return event._replace(args=tuple([(k, None if k == "index" else v) for k, v in event.args]))
    for _, v in event.args:
        if type(v) is tuple and _is_list(v) and not (unequal and _site(event) in unequal):
            return event._replace(args=tuple([(k, _stacked(x)) for k, x in event.args]))
    return event


def _is_list(x: Any) -> bool:
    return type(x) is tuple and len(x) > 1 and type(x[0]) is RawTensor


def _stacked(x: Any) -> Any:
    if not (_is_list(x) and all(isinstance(t, RawTensor) for t in x)):
        return x
    lead = x[0]
    alike = all(t[:4] == lead[:4] and t.nnz is None for t in x) and len({t.ref for t in x}) == len(x)
    return (lead._replace(shape=(len(x), *lead.shape), expanded=tuple([i + 1 for i in lead.expanded])),) if alike else x


def _strip(x: Any, ints: list[int], layout: list[Any]) -> Any:
    if isinstance(x, RawTensor):
        ints.extend(x.shape)
        if x.nnz is not None:
            ints.extend((x.nnz, x.index_numel))
        layout.append((x.expanded, x.ref))
        return ("tensor", len(x.shape), x.dtype, x.role, x.nnz is not None, x.index_dtype)
    if isinstance(x, tuple):
        return ("tuple", *[_strip(i, ints, layout) for i in x])
    if isinstance(x, int) and not isinstance(x, bool):
        ints.append(int(x))
        return int
    if isinstance(x, float) and float(x) not in _TELLING:
        return float  # a scale such as 1/sqrt(H) follows the sizes and costs the same whatever it is
    return ("value", type(x).__name__, repr(x) if isinstance(x, float) else x)


def align(traces: Sequence[Sequence[Occurrence]]) -> list[Item]:
    """Match the calls of all traces.

    Raises:
        LiftError: where some calls cannot be matched, naming the line.
    """
    first = traces[0]
    same = all(len(t) == len(first) for t in traces) and all(
        all(o.key is f.key and o.layout == f.layout for o, f in zip(t, first, strict=True)) for t in traces[1:]
    )
    if not same:
        return _by_group(traces)
    merged: dict[Any, list[Any]] = {}
    for column in zip(*traces, strict=True):
        ints = tuple([o.ints for o in column])
        lead = column[0]
        entry = merged.setdefault((id(lead.key), ints, lead.layout), [lead, ints, 0, lead.path])
        entry[2] += 1
        if entry[3] != lead.path:
            entry[3] = lead.key.path
    return [Item(lead.key, ints, (n,) * len(traces), path, lead.event) for lead, ints, n, path in merged.values()]


def _by_group(traces: Sequence[Sequence[Occurrence]]) -> list[Item]:
    groups: list[dict[Any, list[Occurrence]]] = []
    order: dict[Any, None] = {}
    for trace in traces:
        group: dict[Any, list[Occurrence]] = {}
        for o in trace:
            handle = o.key, o.layout
            group.setdefault(handle, []).append(o)
            order.setdefault(handle)
        groups.append(group)
    items = []
    for handle in order:
        items.extend(_match(handle[0], [g.get(handle, []) for g in groups]))
    return items


def _runs(calls: Sequence[Occurrence]) -> list[tuple[Occurrence, int]]:
    """Consecutive equal calls as (first, how many)."""
    runs: list[tuple[Occurrence, int]] = []
    for c in calls:
        if runs and runs[-1][0].ints == c.ints:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((c, 1))
    return runs


def _distinct(calls: Sequence[Occurrence]) -> list[tuple[Occurrence, int]]:
    """Distinct calls in order of appearance, with how often each occurs."""
    first: dict[Ints, Occurrence] = {}
    counts: dict[Ints, int] = {}
    for c in calls:
        first.setdefault(c.ints, c)
        counts[c.ints] = counts.get(c.ints, 0) + 1
    return [(first[k], n) for k, n in counts.items()]


_MOST_STRANDS = 8  # calls of one kind within one round of a loop
_MOST_APART = 8  # calls of that kind before the first round and behind the last


def _match(key: Key, calls: list[list[Occurrence]]) -> list[Item]:
    """The items of one group: calls of equal shapes together, or the rounds of a loop whose shapes grow.

    Calls that take turns within a round (the two operands of a product) are told apart by their place in the round.
    """
    if any(not c for c in calls):
        raise LiftError(_unmatched(key), _HINT)
    for strands in range(1, _MOST_STRANDS + 1):
        if any(len(c) % strands for c in calls):
            continue
        try:
            return [item for i in range(strands) for item in _strand(key, [c[i::strands] for c in calls])]
        except LiftError:
            continue
    once, often = _by_multiplicity(calls)
    if all(once) and all(often):
        with contextlib.suppress(LiftError):
            return [*_strand(key, often), *_strand(key, once)]
    places = _rounds(calls)
    if places:
        return [item for place in places for item in _strand(key, place)]
    raise LiftError(_unmatched(key), _HINT)


def _rounds(calls: list[list[Occurrence]]) -> list[list[list[Occurrence]]]:
    """The places of calls that come once, then in equal rounds, then once again: those of each place per trace, or none.

    Places are told apart by their order alone: of two matrices, one divided by 2 and one twice as long, both are of one shape
    on two devices.
    """
    for apart, strands in itertools.product(range(1, _MOST_APART + 1), range(1, _MOST_STRANDS + 1)):
        for before in range(apart, -1, -1):
            if any((len(c) - apart) % strands or len(c) - apart < strands for c in calls):
                continue
            behind = apart - before
            inner = [c[before : len(c) - behind] for c in calls]
            rounds = [[c[i::strands] for c in inner] for i in range(strands)]
            if all(o.ints == c[0].ints for place in rounds for c in place for o in c):
                ends = [[[c[i]] for c in calls] for i in (*range(before), *range(-behind, 0))]
                return [*ends, *rounds]
    return []


def _by_multiplicity(calls: list[list[Occurrence]]) -> tuple[list[list[Occurrence]], list[list[Occurrence]]]:
    """The calls whose shapes occur once, as those of a growing operand do, and the others."""
    once, often = [], []
    for c in calls:
        counts: dict[Ints, int] = {}
        for o in c:
            counts[o.ints] = counts.get(o.ints, 0) + 1
        once.append([o for o in c if counts[o.ints] == 1])
        often.append([o for o in c if counts[o.ints] > 1])
    return once, often


def _strand(key: Key, calls: list[list[Occurrence]]) -> list[Item]:
    paths = {o.path for c in calls for o in c}
    path = calls[0][0].path if len(paths) == 1 else key.path
    for listing in (_distinct, _runs):
        lists = [listing(c) for c in calls]
        if len({len(x) for x in lists}) == 1:
            return [
                Item(key, tuple([o.ints for o, _ in column]), tuple([n for _, n in column]), path, column[0][0].event)
                for column in zip(*lists, strict=True)
            ]
    return _ramps(key, calls, path)


def _ramps(key: Key, calls: list[list[Occurrence]], path: str) -> list[Item]:
    """A loop whose shapes grow evenly from one round to the next, all rounds equally often."""
    starts, steps, lengths, repeats = [], [], [], []
    for c in calls:
        distinct = _distinct(c)
        values = [o.ints for o, _ in distinct]
        times = {n for _, n in distinct}
        step = tuple([b - a for a, b in zip(values[0], values[1], strict=True)]) if len(values) > 1 else ()
        even = (
            all(v == tuple([a + i * s for a, s in zip(values[0], step, strict=True)]) for i, v in enumerate(values))
            if step
            else False
        )
        if not even or len(times) != 1:
            raise LiftError(_unmatched(key), _HINT)
        starts.append((*values[0], len(values)))
        steps.append(step)
        lengths.append(len(values))
        repeats.append(times.pop())
    return [Item(key, tuple(starts), tuple(repeats), path, calls[0][0].event, tuple(steps))]


def _unmatched(key: Key) -> str:
    name = key.op.rsplit(".", 1)[0]
    at = f" at {key.source}" if key.source else ""
    return f"{name}{at} in {key.path or 'the model'} runs a number of times, or on shapes, that follow no formula found"
