"""What no program can do without: every input and weight read once, every result written once, nothing in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from costir.fusion.composite import lower
from costir.fusion.inline import inline, live
from costir.fusion.kernels import Kernel, parts
from costir.fusion.pieces import Piece, Program
from costir.fusion.space import Access
from costir.served import CACHED, MOVES
from costir.trace import Trace
from costir.tracing.recorder import RawTensor

Touched = dict[int, tuple[int, list[Access]]]  # by value: the position of a call, and what of the value is touched
_REREAD = 1.5  # as in `rules`: what a compiler asks for less of by inlining, nobody must read


def ideal(trace: Trace) -> tuple[Kernel, ...]:
    """One kernel per call that does something, with the memory that must be moved: a value from outside counts where it is
    read first, one that outlives the run where it is written last, of a cache what is new. Of what is computed only where it
    is picked, no more is read than is picked."""
    program = lower(trace)
    reads: dict[int, list[RawTensor]] = {}
    writes: dict[int, list[RawTensor]] = {}
    needed = live(program)
    for v, (event, found) in _left(program).items():
        writes.setdefault(event, []).extend(parts(program, v, found))
    events = {p.event for p in (*program.pieces, *needed)}
    plain = {v: (event, parts(program, v, found)) for v, (event, found) in _taken(program, needed).items()}
    fewer = _taken(program, inline(program, needed, _REREAD))
    for v, (event, taken) in plain.items():
        less = parts(program, v, fewer[v][1]) if v in fewer else []
        reads.setdefault(event, []).extend(min(taken, less, key=_elements))
    return tuple(Kernel((e,), (), tuple(reads.get(e, ())), tuple(writes.get(e, ()))) for e in sorted(events))


def _elements(found: Iterable[RawTensor]) -> int:
    total = 0
    for t in found:
        n = 1
        for d in t.shape:
            n *= d
        total += n
    return total


def _taken(program: Program, pieces: Sequence[Piece]) -> Touched:
    """By value that was there before: the call that reads it first, and all reads."""
    out: Touched = {}
    for p in pieces:
        for r in p.reads:
            v = _outside(program, r)
            if v is not None:
                out.setdefault(v, (p.event, []))[1].append(r._replace(value=v))
    return out


def _outside(program: Program, read: Access) -> int | None:
    """The value from outside that is seen by a read, through what was written over parts of it; None where it sees none."""
    *written, first = _changes(program, read.value)
    if program.values[first].maker is not None:
        return None
    over = [w for v in written for w in _writes(program, v)]
    if any(w.region() == read.region() for w in over if not w.irregular and not read.irregular):
        return None
    regions = {(w.irregular, w.mark) if w.irregular else w.region(): w.elements for w in over}
    return None if sum(regions.values()) >= program.values[first].numel else first


def _changes(program: Program, value: int) -> Iterator[int]:
    """A value, and those that it is a changed part of, up to one that is new as a whole."""
    at: int | None = value
    while at is not None:
        yield at
        at = program.values[at].before


def _writes(program: Program, value: int) -> list[Access]:
    maker = program.values[value].maker
    return [] if maker is None else [w for w in program.pieces[maker].writes if w.value == value]


def _left(program: Program) -> Touched:
    """By value that outlives the run: the call that writes it last, and all that is written of it."""
    out: Touched = {}
    for p in program.pieces:
        for w in p.writes:
            if program.values[w.value].kept:
                cache = program.values[w.value].tensor.role == "cache"
                found = _kept_new(program, w.value) if cache else _over(program, w.value)
                out[w.value] = p.event, [x._replace(value=w.value) for x in found]
    return out


def _over(program: Program, value: int) -> list[Access]:
    """All that is written of a value, in part after part."""
    return [w for v in _changes(program, value) for w in _writes(program, v)]


def _kept_new(program: Program, value: int) -> list[Access]:
    """What is new in a cache, at most as much as the step leaves in it: of a long prompt the last window."""
    found, memory = _added(program, value), program.values[value].memory
    most = sum(prod(w.tensor.shape) for w in program.trace.cache if w.tensor.memory == memory)
    small = 0 < most < sum(a.elements for a in found)
    return [Access(value, irregular=most, mark=-2 - value)] if small else found


def _added(program: Program, value: int) -> list[Access]:
    """What is new in a cache: all that is written into it but for what only moves there from where it was before the step."""
    out: list[Access] = []
    for v in _changes(program, value):
        maker, written = program.values[v].maker, _writes(program, v)
        if maker is None:
            continue
        p = program.pieces[maker]
        moved = [r for r in p.reads if _same_kind(program, r.value, v)]
        if program.trace.events[p.event].op.split(".")[1] in MOVES and any(_cached(program, r) for r in moved):
            new = sum(_new_in(program, r) for r in moved)
            most = sum(w.elements for w in written)
            out += [Access(v, irregular=min(new, most), mark=-2 - v)] if new else []
        else:
            out += written
    return out


def _new_in(program: Program, read: Access) -> int:
    """How many of the elements that are moved are new."""
    n = read.irregular or prod(read.box)
    return min(n, sum(a.elements for a in _added(program, read.value))) if _cached(program, read) else n


def _cached(program: Program, read: Access) -> bool:
    return program.values[read.value].tensor.role in CACHED


def _same_kind(program: Program, one: int, other: int) -> bool:
    """Whether elements of one may be those of the other, which indices are not."""
    a, b = (program.values[v].tensor.dtype for v in (one, other))
    return a == b or a.startswith(("float", "bfloat", "complex"))
