"""Where a loop touches a value: one stride per loop, and how one such map goes through another.

A piece of work runs over loops `dims`, the last of which may be reduced. It touches a value at `base + i . strides`, in
elements of the value's memory, for the loop indices i within `box`. What follows no such rule (a gather, a window) is
"irregular": only the number of elements is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Ints = tuple[int, ...]
PART = -1  # mark of a part of a part


class Access(NamedTuple):
    """How a piece touches a value.

    Attributes:
        value: the number of the value.
        base: the element at loop indices 0.
        strides: per loop, how far one step goes; 0 where the loop reads the same again.
        box: per loop, how many of its steps take part.
        irregular: 0, or the number of elements that are touched in no regular order.
        mark: tells irregular accesses apart; below 0 where they are not picked by an index.
    """

    value: int
    base: int = 0
    strides: Ints = ()
    box: Ints = ()
    irregular: int = 0
    mark: int = 0

    @property
    def elements(self) -> int:
        """How many different elements, where the strides do not overlap."""
        if self.irregular:
            return self.irregular
        n = 1
        for s, b in zip(self.strides, self.box, strict=True):
            n *= b if s else 1
        return n

    @property
    def shape(self) -> Ints:
        """The region as a shape, longest strides first."""
        if self.irregular:
            return (self.irregular,)
        kept = sorted(((s, b) for s, b in zip(self.strides, self.box, strict=True) if s and b > 1), reverse=True)
        return tuple(b for _, b in kept)

    @property
    def picks(self) -> bool:
        """Whether single elements are picked by an index: who makes them can be asked for these alone."""
        return bool(self.irregular) and self.mark >= 0

    def repeats(self) -> int:
        """How often each element is touched, by loops that read the same again."""
        n = 1
        for s, b in zip(self.strides, self.box, strict=True):
            n *= 1 if s else b
        return n

    def walk(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Base and (steps, stride) in loop order, loops that are one merged: equal walks touch the same in the same order.

        Loops that read the same again (stride 0) are part of it, but for the innermost: a row sum is there for all its row.
        """
        return self.base, merged(zip(self.box, self.strides, strict=True))

    def region(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """The same without the order: equal regions are the same memory."""
        loops = sorted(((b, s) for b, s in zip(self.box, self.strides, strict=True) if s and b > 1), key=lambda x: -x[1])
        return self.base, merged(loops)


def merged(loops: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """(steps, stride) pairs with those that continue each other made one; none for innermost loops of stride 0."""
    out: list[tuple[int, int]] = []
    for n, s in loops:
        if n == 1:
            continue
        if out and out[-1][1] == n * s:
            out[-1] = (out[-1][0] * n, s)
        else:
            out.append((n, s))
    if out and not out[-1][1]:
        out.pop()
    return tuple(out)


def split_loop(strides: Ints, at: int, inner: int) -> Ints:
    """Strides after a loop was split into an outer one and `inner` steps."""
    return (*strides[:at], strides[at] * inner, strides[at], *strides[at + 1 :])


def split_box(box: Ints, at: int, inner: int) -> Ints:
    """A box after a loop was split."""
    return (*box[:at], box[at] // inner, inner, *box[at + 1 :])


def joined_loop(strides: Ints, at: int) -> Ints:
    """Strides after a loop and the next, which goes on in it, were made one."""
    return (*strides[:at], *strides[at + 1 :])


def joined_box(box: Ints, at: int) -> Ints:
    """A box after a loop and the next were made one."""
    return (*box[:at], box[at] * box[at + 1], *box[at + 2 :])


class Through(NamedTuple):
    """How the loops of a reader go through the loops of the piece that makes what it reads.

    Attributes:
        splits: (loop, inner steps) to do in order in the reader first.
        start: per loop of the maker, where the reader begins.
        steps: per loop of the reader (after the splits), which loop of the maker it moves, and how far; None for none.
    """

    splits: tuple[tuple[int, int], ...]
    start: Ints
    steps: tuple[tuple[int, int] | None, ...]

    def all_of(self, dims: Ints, box: Ints) -> bool:
        """Whether loops of `box` steps go once through all loops `dims` of the maker, one through one."""
        moved = {step[0]: (step[1], n) for step, n in zip(self.steps, box, strict=True) if step is not None}
        return not any(self.start) and all(d == 1 or moved.get(i) == (1, d) for i, d in enumerate(dims))


def through(reader: Access, made: Access) -> Through | None:
    """The reader's loops in terms of the maker's, or None where they do not divide."""
    if reader.irregular or made.irregular:
        return None
    loops = sorted(
        ((s, b, i) for i, (s, b) in enumerate(zip(made.strides, made.box, strict=True)) if s and b > 1), reverse=True
    )
    start = _start(reader.base - made.base, loops, len(made.strides))
    if start is None:
        return None
    strides, box = list(reader.strides), list(reader.box)
    splits: list[tuple[int, int]] = []
    steps: list[tuple[int, int] | None] = []
    at = 0
    while at < len(strides):
        found = _step(strides[at], box[at], loops, start)
        if found is None:
            return None
        if found == "none":
            steps.append(None)
        elif isinstance(found, int):
            strides[at : at + 1] = [strides[at] * found, strides[at]]
            box[at : at + 1] = [box[at] // found, found]
            splits.append((at, found))
            continue
        else:
            assert isinstance(found, tuple)
            steps.append(found)
        at += 1
    return Through(tuple(splits), tuple(start), tuple(steps))


def _start(delta: int, loops: Sequence[tuple[int, int, int]], n: int) -> list[int] | None:
    start = [0] * n
    for s, b, i in loops:
        q = delta // s
        if not 0 <= q < b:
            return None
        start[i] = q
        delta -= q * s
    return start if delta == 0 else None


def _step(
    stride: int, n: int, loops: Sequence[tuple[int, int, int]], start: Sequence[int]
) -> tuple[int, int] | int | str | None:
    """For one loop of the reader: (maker's loop, steps); how many inner steps to split off; "none"; or None."""
    if stride == 0 or n == 1:
        return "none"
    for s, b, i in loops:
        if 0 < s <= stride:
            if stride % s:
                return None
            k = stride // s
            if start[i] + k * (n - 1) < b:
                return i, k
            inner = b // k if b % k == 0 else 0
            return inner if 1 < inner < n and n % inner == 0 and start[i] == 0 else None
    return None


def picked() -> Through:
    """The way of elements that an index picks: no loop moves, but any element may be asked for."""
    return Through((), (), ())


def pulled(read: Access, way: Through, reader: Access, dims: Ints) -> Access:
    """What the maker, whose loops are `dims`, reads, in the loops of the reader (whose splits are done)."""
    most = max(reader.elements, 1)
    if reader.irregular:
        return Access(read.value, irregular=min(read.elements, most), mark=reader.mark)
    if read.irregular:
        return read._replace(irregular=min(read.irregular, most))
    base = read.base + sum(a * s for a, s in zip(way.start, read.strides, strict=True))
    strides = tuple([0 if step is None else read.strides[step[0]] * step[1] for step in way.steps])
    moved = Access(read.value, base, strides, reader.box)
    if read.box == dims:
        return moved
    if way.all_of(dims, reader.box):
        return moved._replace(
            box=tuple([b if s is None else read.box[s[0]] for s, b in zip(way.steps, reader.box, strict=True)])
        )
    return moved._replace(
        irregular=min(read.elements, max(moved.elements, 1)), mark=PART
    )  # a part of a part: only how many is known
