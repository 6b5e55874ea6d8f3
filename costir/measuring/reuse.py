"""Where the memory of every call of a step was used last, and which operators ran since. No torch here."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from costir.measuring.lookup import VIEWS

PAGE = 12  # bits: memory is followed in pages of 4 kB
Span = tuple[int, int]  # an address, and bytes
Spans = Sequence[tuple[list[Span], list[Span]]]  # for every call of a step, its operands and its results


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a call finds in the caches: distinct bytes that were touched between.

    Attributes:
        reads, writes: since each operand's and each result's memory was touched, itself included; a whole step for what was not
            touched in any before; -1 for what has no memory.
        since, others: since this operator ran: bytes, and which others ran.
        moved: what the call touches itself.
        read, made: how many calls ago the memory was touched, a whole step for what was not touched in any before; 0 for what
            has none.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    since: int
    others: tuple[str, ...]
    moved: int
    read: tuple[int, ...] = ()
    made: tuple[int, ...] = ()


def reuse(ops: Sequence[str], *steps: Spans) -> tuple[list[Reuse], int]:
    """What every call finds, in steps that repeat, and the bytes that they touch.

    The first step is only what came before; of the others it is the median. A step alone is taken to repeat, with the same
    memory. Memory is followed in pages of 4 kB; a view touches none.
    """
    played = steps if len(steps) > 1 else steps * 2
    views = [op.partition(".")[2].partition(".")[0] in VIEWS for op in ops]
    pages = _Pages((s for spans in steps for both in spans for part in both for s in part), len(ops) - sum(views))
    ran: dict[str, int] = {}  # in the order in which they ran last
    at: dict[int, int] = {}  # which call, by the time
    rounds: list[list[Reuse]] = []
    for k, spans in enumerate(played):
        rounds.append([])
        for i, (op, view, (reads, writes)) in enumerate(zip(ops, views, spans, strict=True), k * len(ops)):
            if view:
                rounds[-1].append(Reuse((-1,) * len(reads), (-1,) * len(writes), 0, (), 0))
                continue
            far, out = (tuple(pages.back(s) for s in part) for part in (reads, writes))
            ages = [
                tuple(i - at[t] if (t := pages.touched(s)) else len(ops) * (s[1] > 0) for s in part) for part in (reads, writes)
            ]
            before = ran.pop(op, None)
            later = () if before is None else tuple(k for k, t in ran.items() if t > before)
            since = 0 if before is None else pages.since(before)
            ran[op] = pages.touch(dict.fromkeys((*reads, *writes)))
            at[ran[op]] = i
            moved = sum(size for _, size in dict.fromkeys((*reads, *writes)))
            rounds[-1].append(Reuse(far, out, since, later, moved, *ages))
    return [_usual(found) for found in zip(*rounds[1:], strict=True)], pages.all


def _usual(found: Sequence[Reuse]) -> Reuse:
    """What a call usually finds: every number the median over the steps."""

    def middle(numbers: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(map(statistics.median_low, zip(*numbers, strict=True)))

    return dataclasses.replace(
        found[-1], since=statistics.median_low(x.since for x in found), reads=middle(x.reads for x in found),
        writes=middle(x.writes for x in found), read=middle(x.read for x in found), made=middle(x.made for x in found),
    )  # fmt: skip


class _Pages:
    """When each page of memory was touched last, in steps of so many calls."""

    def __init__(self, spans: Iterable[Span], step: int) -> None:
        self.step = step
        numbers = {p for address, size in spans if size for p in _numbers(address, size)}
        self.known = np.array(sorted(numbers), dtype=np.int64)
        self.last = np.zeros(len(self.known), dtype=np.int64)  # 0: never
        self.now = 0
        self.all = len(self.known) << PAGE

    def _places(self, span: Span) -> slice:
        numbers = _numbers(*span)
        low, high = np.searchsorted(self.known, (numbers.start, numbers.stop))
        return slice(int(low), int(high))

    def since(self, then: int) -> int:
        """The bytes that were touched later."""
        return int(np.count_nonzero(self.last > then)) << PAGE

    def touched(self, span: Span) -> int:
        """When a memory was touched last; 0 for never. Its first and last page may be another's, too, and say nothing."""
        if not span[1]:
            return 0
        pages = self.last[self._places(span)]
        return int((pages[1:-1] if len(pages) > 2 else pages).max())

    def back(self, span: Span) -> int:
        """The bytes touched since a memory was touched last, its own included; for never, those of a step."""
        if not span[1]:
            return 0
        last = self.touched(span)
        if not last:
            return self.since(self.now - self.step) + span[1]
        rounded = len(_numbers(*span)) << PAGE  # its own bytes are known better than by pages
        return self.since(last - 1) - rounded + span[1]

    def touch(self, spans: Iterable[Span]) -> int:
        """One call touches these; returns the time."""
        self.now += 1
        for span in spans:
            if span[1]:
                self.last[self._places(span)] = self.now
        return self.now


def _numbers(address: int, size: int) -> range:
    return range(address >> PAGE, ((address + size - 1) >> PAGE) + 1)
