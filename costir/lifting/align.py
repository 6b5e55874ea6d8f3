"""Traces -> lists of items that mean the same in every trace, each a vector of whole numbers per trace.

Where all traces run the same operators in the same order, the n-th operator of one is the n-th of the others. Where they do
not (loops over a size, layers), operators are grouped by phase, module path without indices, line and kind, and runs of equal
shapes within a group are matched.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from costir.errors import LiftError
from costir.tracing.recorder import Event, RawTensor

Ints = tuple[int, ...]
_HINT = "keep the size that steers it as a number with --keep"


@cache
def fold_path(path: str) -> str:
    """The path with every index replaced: "layers.3.mlp" -> "layers.*.mlp"."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", path)


@dataclass(frozen=True)
class Key:
    """What an operator call has in common across sizes."""

    phase: str
    path: str  # without indices
    op: str
    source: str
    skeleton: Hashable  # arguments and outputs with whole numbers left out

    def __hash__(self) -> int:
        return hash((self.path, self.op, self.source, self.skeleton))


@dataclass(frozen=True)
class Occurrence:
    """One call in one trace."""

    key: Key
    ints: Ints
    path: str


@dataclass(frozen=True)
class Item:
    """The same call in every trace.

    Attributes:
        key: what it is.
        ints: per trace, its whole numbers; where `ramp` is set, those of the first occurrence.
        counts: per trace, how often it runs.
        path: the module path; with "*" where several were merged.
        ramp: per trace, by how much each number grows from one round of a loop to the next, or None. The last of `ints`
            is then the number of rounds.
    """

    key: Key
    ints: tuple[Ints, ...]
    counts: Ints
    path: str
    ramp: tuple[Ints, ...] | None = None


class _Interner:
    """Equal keys become one object, so that comparing sequences of them is cheap."""

    def __init__(self) -> None:
        self.known: dict[Key, Key] = {}

    def __call__(self, key: Key) -> Key:
        return self.known.setdefault(key, key)


def occurrences(events: Sequence[Event], intern: Any) -> list[Occurrence]:
    """The calls of a trace with their whole numbers taken out."""
    return [_occurrence(e, intern) for e in events]


def _occurrence(event: Event, intern: Any) -> Occurrence:
    ints: list[int] = []
    refs: dict[int, int] = {}
    skeleton = (tuple([(k, _strip(v, ints, refs)) for k, v in event.args]), tuple([_strip(o, ints, refs) for o in event.outputs]))
    key = intern(Key(event.phase, fold_path(event.path), event.op, event.source, skeleton))
    return Occurrence(key, tuple(ints), event.path)


def _strip(x: Any, ints: list[int], refs: dict[int, int]) -> Any:
    if isinstance(x, RawTensor):
        ints.extend(x.shape)
        if x.nnz is not None:
            ints.extend((x.nnz, x.index_numel))
        return ("tensor", len(x.shape), x.dtype, x.expanded, x.role, refs.setdefault(x.ref, len(refs)), x.nnz is not None, x.index_dtype)
    if isinstance(x, tuple):
        return ("tuple", *[_strip(i, ints, refs) for i in x])
    if type(x) is int:
        ints.append(x)
        return int
    if isinstance(x, int) and not isinstance(x, bool):
        ints.append(int(x))
        return int
    return ("value", type(x).__name__, repr(x) if isinstance(x, float) else x)


def align(traces: Sequence[Sequence[Occurrence]]) -> list[Item]:
    """Match the calls of all traces.

    Raises:
        LiftError: where some calls cannot be matched, naming the line.
    """
    first = traces[0]
    same = all(len(t) == len(first) for t in traces) and all(
        all(o.key is f.key for o, f in zip(t, first, strict=True)) for t in traces[1:]
    )
    if same:
        columns = zip(*traces, strict=True)
        items = [Item(c[0].key, tuple(o.ints for o in c), (1,) * len(traces), c[0].path) for c in columns]
        return merge(items)
    return merge(_by_group(traces))


def merge(items: Sequence[Item]) -> list[Item]:
    """Fold items with equal keys and numbers into one with the sum of their counts."""
    merged: dict[Any, Item] = {}
    for item in items:
        handle = (id(item.key), item.ints, item.ramp)
        seen = merged.get(handle)
        if seen is None:
            merged[handle] = item
        else:
            counts = tuple([a + b for a, b in zip(seen.counts, item.counts, strict=True)])
            path = seen.path if seen.path == item.path else item.key.path
            merged[handle] = Item(item.key, item.ints, counts, path, item.ramp)
    return list(merged.values())


def _by_group(traces: Sequence[Sequence[Occurrence]]) -> list[Item]:
    groups: list[dict[Key, list[Occurrence]]] = []
    order: dict[Key, None] = {}
    for trace in traces:
        group: dict[Key, list[Occurrence]] = {}
        for o in trace:
            group.setdefault(o.key, []).append(o)
            order.setdefault(o.key)
        groups.append(group)
    items = []
    for key in order:
        items.extend(_match(key, [g.get(key, []) for g in groups]))
    return items


def _runs(calls: Sequence[Occurrence]) -> list[tuple[Ints, int]]:
    """Consecutive equal numbers as (numbers, length)."""
    runs: list[tuple[Ints, int]] = []
    for c in calls:
        if runs and runs[-1][0] == c.ints:
            runs[-1] = (c.ints, runs[-1][1] + 1)
        else:
            runs.append((c.ints, 1))
    return runs


def _distinct(calls: Sequence[Occurrence]) -> list[tuple[Ints, int]]:
    """Distinct numbers in order of appearance, with how often each occurs."""
    counts: dict[Ints, int] = {}
    for c in calls:
        counts[c.ints] = counts.get(c.ints, 0) + 1
    return list(counts.items())


def _match(key: Key, calls: list[list[Occurrence]]) -> list[Item]:
    """The items of one group."""
    if any(not c for c in calls):
        raise LiftError(_unmatched(key), _HINT)
    paths = {o.path for o in calls[0]}
    path = calls[0][0].path if len(paths) == 1 else key.path
    for listing in (_runs, _distinct):
        lists = [listing(c) for c in calls]
        if len({len(x) for x in lists}) == 1:
            columns = list(zip(*lists, strict=True))
            return [Item(key, tuple(c[0] for c in column), tuple(c[1] for c in column), path) for column in columns]
    return _ramps(key, calls, path)


def _ramps(key: Key, calls: list[list[Occurrence]], path: str) -> list[Item]:
    """A loop whose shapes grow evenly from one round to the next, all rounds equally often."""
    starts, steps, lengths, repeats = [], [], [], []
    for c in calls:
        distinct = _distinct(c)
        times = {n for _, n in distinct}
        values = [v for v, _ in distinct]
        if len(values) < 3 or len(times) != 1:
            raise LiftError(_unmatched(key), _HINT)
        step = tuple(b - a for a, b in zip(values[0], values[1], strict=True))
        for i, v in enumerate(values):
            if v != tuple(a + i * s for a, s in zip(values[0], step, strict=True)):
                raise LiftError(_unmatched(key), _HINT)
        starts.append(values[0])
        steps.append(step)
        lengths.append(len(values))
        repeats.append(times.pop())
    counts = tuple(n * r for n, r in zip(lengths, repeats, strict=True))
    return [Item(key, tuple((*s, n) for s, n in zip(starts, lengths, strict=True)), counts, path, tuple(steps))]


def _unmatched(key: Key) -> str:
    name = key.op.rsplit(".", 1)[0]
    at = f" at {key.source}" if key.source else ""
    return f"{name}{at} in {key.path or 'the model'} runs a number of times, or on shapes, that follow no formula found"
