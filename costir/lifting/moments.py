"""Traces -> the moments of a run that may be its peak, matched over the traces, with how much of what is held then.

Memory grows and shrinks evenly over repeated blocks and over the turns of a loop, so that it is largest in one of the first or
last of them. Which events are alike in that is told by their place in the code and, where that is not enough, by what they
read: see `costir.lifting.origins`.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from costir.errors import LiftError
from costir.lifting.counts import count
from costir.lifting.held_bytes import Evidence, Vector
from costir.lifting.live import Held
from costir.symbolic import Expr, Integer, size

_ENDS = 1  # repeats from each end that are looked at, and as many more as layers need to repeat
_DEEPER = 8  # times as many layers as any trace has, with which an operator must still run as often
_FEW = 16  # events of a kind, or loops that run it, that are all looked at
_ALL = (-1, 1)  # the name of all loops together
Keys = Sequence[Hashable]  # by event of a trace
Amounts = dict[tuple[str, Expr], int]  # how many memories there are, by part and size
_Place = tuple[Hashable, int, tuple[int, int]]


class Candidate(NamedTuple):
    """An event that may be the peak: in each trace its number, and how much of each kind is held; from how many layers on."""

    events: Vector
    least: dict[Expr, int]
    held: tuple[Amounts, ...]


def candidates(evidence: Evidence, told: Sequence[Sequence[Keys]], memories: Sequence[Sequence[Held]],
               sizes: Sequence[Sequence[Expr]]) -> list[Candidate]:  # fmt: skip
    """The events that may be the peak: something is made, and then something freed; the first and last of their kind.

    Args:
        evidence: the traces.
        told: ways to tell events apart, each with the key of every event of every trace.
        memories, sizes: by trace, with their bytes as expressions.
    """
    tops = [makers_before_frees(found) for found in memories]
    wanted: dict[Vector, dict[Expr, int]] = {}
    for keys in told:
        for at, least in _matched(evidence, keys).items():
            if any(i in top for i, top in zip(at, tops, strict=True)):
                known = wanted.setdefault(at, {})
                known.update({n: max(v, known.get(n, v)) for n, v in least.items()})
    looked = [
        _amounts(found, exprs, {at[k] for at in wanted}) for k, (found, exprs) in enumerate(zip(memories, sizes, strict=True))
    ]
    return [Candidate(at, least, tuple([look[i] for look, i in zip(looked, at, strict=True)])) for at, least in wanted.items()]


def makers_before_frees(memories: Sequence[Held]) -> set[int]:
    """The events that make something, where something is freed before another event makes something."""
    rises = sorted({h.first for h in memories})
    falls = sorted({h.end for h in memories})
    out = set()
    for i, following in itertools.pairwise([*rises, falls[-1]]):
        k = bisect.bisect_right(falls, i)
        if k < len(falls) and falls[k] <= following:
            out.add(i)
    return out


def _matched(evidence: Evidence, keys: Sequence[Keys]) -> dict[Vector, dict[Expr, int]]:
    """Events that have one place in all traces, and from how many layers on there is such an event."""
    repeats = [Counter(k) for k in keys]
    ends = {key: _looked_at(_ENDS + evidence.period, tuple([r[key] for r in repeats])) for key in repeats[0]}
    places = [_places(k, ends) for k in keys]
    common = [p for p in places[0] if all(p in q for q in places[1:])]
    out: dict[Vector, dict[Expr, int]] = {}
    least_of = functools.lru_cache(None)(lambda often, nth: _least(evidence, often, nth))
    for p in sorted(common, key=lambda p: (p[2], p[1] if p[1] >= 0 else -1 - p[1])):
        least = least_of(tuple([r[p[0]] for r in repeats]), p[1] + 1 if p[1] >= 0 else -p[1]) if p[2] == _ALL else {}
        out.setdefault(tuple([q[p] for q in places]), least)
    return out


def _least(evidence: Evidence, repeats: Vector, nth: int) -> dict[Expr, int]:
    """The number of layers from which on an event occurs so often that one is the nth, from the first or the last.

    Where that depends on other sizes, as on the devices of a ring, it holds from the smallest of them in the traces on.

    Raises:
        LiftError: where there is no such number.
    """
    found = count(evidence, repeats)
    depth = next((size(n) for n in evidence.depths if found is not None and size(n) in found.free_symbols), None)
    if found is None or depth is None or nth == 1:
        return {}
    deepest = max(int(t.sizes[str(depth)]) for t in evidence.traces)
    tried = (*range(1, deepest + 1), deepest + evidence.period, _DEEPER * deepest)
    corners = _corners(evidence, found.free_symbols - {depth})
    few = [n for n in tried if any(found.xreplace({**at, depth: Integer(n)}) < nth for at in corners)]
    if few and few[-1] >= deepest:
        raise LiftError(f"memory does not grow evenly with {depth}: an operator runs {found} times")
    return {depth: few[-1] + 1 if few else 1}


def _corners(evidence: Evidence, symbols: Iterable[Any]) -> list[dict[Any, Expr]]:
    """Values of some sizes: those of each trace, and the smallest of each."""
    points = [{s: int(t.sizes[str(s)]) for s in symbols} for t in evidence.traces]
    points.append({s: min(p[s] for p in points) for s in symbols})
    return [{s: Integer(v) for s, v in p.items()} for p in points]


def _looked_at(ends: int, repeats: Vector) -> int:
    """How many events of a kind are looked at from each end: all, where they are as many at all sizes and few."""
    return repeats[0] if len(set(repeats)) == 1 and repeats[0] <= _FEW else ends


def _places(keys: Keys, ends: Mapping[Hashable, int]) -> dict[_Place, int]:
    """Events by kind and place among those of the kind: 0, 1, ... from the first, -1, -2, ... from the last.

    Where a kind runs in several loops, as the turns of each direction of a recurrent layer, also by place in each loop: that
    one of so many.
    """
    where: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        if key in ends:
            where.setdefault(key, []).append(i)
    out: dict[_Place, int] = {}
    for key, found in where.items():
        loops = _loops(found)
        several = {(k, len(loops)): loop for k, loop in enumerate(loops)} if 1 < len(loops) <= _FEW else {}
        for name, mine in {_ALL: found, **several}.items():
            out.update({(key, j, name): i for j, i in enumerate(mine[: ends[key]])})
            out.update({(key, -1 - j, name): i for j, i in enumerate(mine[::-1][: ends[key]])})
    return out


def _loops(found: Sequence[int]) -> list[list[int]]:
    """Events of one kind, as far as equally many others run between them."""
    gaps = [b - a for a, b in itertools.pairwise(found)]
    usual = Counter(gaps).most_common(1)[0][0] if gaps else 0
    loops = [[found[0]]]
    for i, gap in zip(found[1:], gaps, strict=True):
        if gap == usual:
            loops[-1].append(i)
        else:
            loops.append([i])
    return loops


def _amounts(memories: Sequence[Held], sizes: Sequence[Expr], events: set[int]) -> dict[int, Amounts]:
    """How many memories of each part and size are there while each of the events runs."""
    change: dict[int, list[tuple[tuple[str, Expr], int]]] = {}
    for h, e in zip(memories, sizes, strict=True):
        change.setdefault(h.first, []).append(((h.part, e), 1))
        change.setdefault(h.end, []).append(((h.part, e), -1))
    now: Amounts = {}
    out = {}
    for i in sorted({*change, *events}):
        for kind, d in change.get(i, ()):
            now[kind] = now.get(kind, 0) + d
        if i in events:
            out[i] = {kind: n for kind, n in now.items() if n}
    return out
