"""Elementwise work that is done where its result is read: the result never is in memory, whatever the reader's loops are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from costir.fusion.pieces import Piece, Program
from costir.fusion.space import PART, Access, Through, picked, pulled, split_box, split_loop, through
from costir.ops import registry
from costir.tracing.recorder import raw_tensors

_NEAR = 8  # calls
MOST_READS, MOST_AGAIN = 8, 4  # operands of what is computed where it is read: by one, by several


def live(program: Program) -> list[Piece]:
    """The pieces whose results somebody needs, in order."""
    pieces, needed, out = program.pieces, set[int](), list[Piece]()
    for piece in reversed(pieces):
        if piece.kind == "opaque" or any(w.value in needed or program.values[w.value].kept for w in piece.writes):
            out.append(piece)
            needed.update(r.value for r in piece.reads)
            needed.update(piece.after)
    return out[::-1]


def once(program: Program, pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces that are left when the same work on the same operands in one phase is done once.

    Arithmetic near by counts in the kernel that does it; what is far, such as the mask of a later layer, moves nothing.
    """
    seen: dict[Any, Piece] = {}
    same: dict[int, int] = {}
    left = []
    for p in pieces:
        p.reads[:] = dict.fromkeys(r._replace(value=same.get(r.value, r.value)) for r in p.reads)
        first = seen.setdefault(_work(program, p), p) if _plain(program, p) else p
        if first is p:
            left.append(p)
            continue
        if abs(p.event - first.event) <= _NEAR:  # otherwise it stands for itself: a kernel does not grow with the layers
            first.events.update(p.events)
        same[p.writes[0].value] = first.writes[0].value
    return left


def _plain(program: Program, p: Piece) -> bool:
    """Whether a piece gives one new value, which depends on its operands alone."""
    if p.kind == "opaque" or p.after or len(p.writes) != 1:
        return False
    value = program.values[p.writes[0].value]
    entry = registry.find(program.trace.events[p.event].op)
    chance = entry is not None and entry.kind in ("random", "dropout")
    return not (value.kept or value.whole or chance) and program.current.get(value.memory) == p.writes[0].value


def _work(program: Program, p: Piece) -> Any:
    event, made = program.trace.events[p.event], p.writes[0]
    given = [(n, None if any(True for _ in raw_tensors(v)) else repr(v)) for n, v in event.args]
    dtype = program.values[made.value].tensor.dtype
    return event.op, tuple(given), p.phase, p.kind, p.dims, p.reduced, tuple(p.reads), made._replace(value=0), dtype


def inline(program: Program, pieces: Sequence[Piece], reread: float) -> list[Piece]:
    """The pieces that are left when results that only cheap or single readers need are computed by these."""
    readers: dict[int, list[Piece]] = {}
    pinned = {v for p in pieces for v in p.after}
    for p in pieces:
        for v in dict.fromkeys(r.value for r in p.reads):
            readers.setdefault(v, []).append(p)
    left = []
    for p in pieces:
        users = readers.get(p.writes[0].value, []) if len(p.writes) == 1 else []
        if p.kind != "pointwise" or not users or p.writes[0].value in pinned or not _worth(program, p, users, reread):
            left.append(p)
            continue
        ways = [_ways(p, u) for u in users]
        if any(w is None for w in ways):
            left.append(p)
            continue
        for user, found in zip(users, ways, strict=True):
            assert found is not None
            _into(program, p, user, found)
            for r in p.reads:
                if user not in readers.setdefault(r.value, []):
                    readers[r.value].append(user)
        for r in p.reads:
            readers[r.value] = [u for u in readers[r.value] if u is not p]
    return left


def _worth(program: Program, p: Piece, users: Sequence[Piece], reread: float) -> bool:
    """Whether reading again costs no more than a result in memory. Operands that are broadcast ride along."""
    made = program.values[p.writes[0].value]
    if made.kept or made.whole or any(u.kind == "opaque" or u.phase != p.phase for u in users):
        return False
    if p.operands > MOST_READS:
        return False
    if len(users) == 1:
        return True
    if p.operands > MOST_AGAIN:
        return False
    if reread == math.inf:
        return True
    if any(program.values[r.value].maker is not None and r.irregular and r.mark != PART for r in p.reads):
        return False
    full = [r for r in p.reads if r.elements * 2 > made.numel]
    return sum(program.values[r.value].itemsize for r in full) <= reread * made.itemsize


def _ways(p: Piece, user: Piece) -> list[tuple[Access, Through]] | None:
    """For each read of the result, how it goes through the maker's loops; None where it cannot."""
    made, out = p.writes[0], list[tuple[Access, Through]]()
    reads = list(user.reads)
    for r in [r for r in reads if r.value == made.value]:
        cheap = r.irregular and r.mark < PART and sum(x.elements > 1 for x in p.reads) <= 1
        way = picked() if r.picks or cheap else through(r, made)
        if way is None:
            return None
        if way.splits:  # the reader's loops change: look again from there
            for at, inner in way.splits:
                if user.dims[at] % inner or any(not a.irregular and a.box[at] % inner for a in user.reads):
                    return None
                _split(user, at, inner)
            return _ways(p, user)
        out.append((r, way))
    return out


def _split(piece: Piece, at: int, inner: int) -> None:
    """Make one loop of a piece two."""
    summed = at >= len(piece.dims) - piece.reduced
    piece.dims = split_box(piece.dims, at, inner)
    piece.reduced += summed
    for accesses in (piece.reads, piece.writes):
        accesses[:] = [
            a if a.irregular else a._replace(strides=split_loop(a.strides, at, inner), box=split_box(a.box, at, inner))
            for a in accesses
        ]


def _into(program: Program, p: Piece, user: Piece, ways: Sequence[tuple[Access, Through]]) -> None:
    gone = {r for r, _ in ways}
    reads = [r for r in user.reads if r not in gone]
    for r, way in ways:
        reads += [pulled(own, way, r, p.dims) for own in p.reads]
    user.reads[:] = list(dict.fromkeys(reads))
    user.events.update(p.events)
    user.biases.update(p.biases)
    user.after += [v for v in p.after if v not in user.after]
