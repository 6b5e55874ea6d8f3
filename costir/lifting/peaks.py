"""Traces -> what a step holds at its peak, as expressions in the sizes.

Memory grows and shrinks evenly over repeated blocks, so that it is largest in one of the first or last of them. The moments of
those that may be the peak are candidates; each is a sum over kinds of memory, of a number fitted over the traces times a size
fitted over the traces. A candidate that is nowhere larger than another one is left out.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import sympy as sp

from costir.errors import LiftError
from costir.lifting.align import fold_path
from costir.lifting.held_bytes import Evidence, Vector, bytes_of
from costir.lifting.live import PARTS, Held, has_sparse, held, label_of
from costir.lifting.polynomials import Shifted, Terms, around, covers
from costir.symbolic import Expr, Integer, Rational, expand, size, total
from costir.trace import Trace

_ENDS = 1  # repeats from each end that are looked at, and as many more as layers need to repeat


@dataclass(frozen=True)
class Peak:
    """A moment of a step, and what is held then, in bytes.

    Attributes:
        phase, path, op, source: the operator that runs.
        parts: by the names of `PARTS`.
        total: their sum.
        least: the numbers of layers from which on there is such a moment, where it is not in every model.
    """

    phase: str
    path: str
    op: str
    source: str
    parts: Mapping[str, Expr]
    total: Expr
    least: Mapping[str, int] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The operator in words: "backward of blocks.*.down, sum"."""
        place = "" if self.path in ("", self.phase) else f" of {self.path}"
        return f"{self.phase}{place}, {self.op.split('.')[1]}"


class _Counted(NamedTuple):
    """How many memories there are, None where no formula says so, and the numbers of layers from which on it holds."""

    number: Expr | None
    least: dict[Expr, int]


class _Moment(NamedTuple):
    """An event that may be the peak: in each trace its number, and how much of each kind is held; from how many layers on."""

    events: Vector
    least: dict[Expr, int]
    kinds: tuple[dict[tuple[str, Expr], int], ...]


def peaks(evidence: Evidence) -> tuple[Peak, ...]:
    """The moments that are the peak at some sizes, that of the base first.

    Raises:
        LiftError: where memory follows no formula.
    """
    traces = evidence.traces
    if any(map(has_sparse, traces)):
        raise LiftError("sparse tensors lie in several memories, which are not followed", "see the FLOPs and bytes instead")
    codes = [[label_of(t, i, False) for i in range(len(t.events))] for t in traces]
    whole = all(c == codes[0] for c in codes)
    memories = [held(t, whole) for t in traces]
    sized = bytes_of(evidence, memories)
    keys = [[k if whole else c for k, c in enumerate(code)] for code in codes]
    try:
        return _highest(evidence, keys, memories, sized, [dict.fromkeys(k, 1) for k in keys])
    except LiftError:
        if not evidence.depths:
            raise
    return _highest(evidence, keys, memories, sized, [_per_layer(evidence, keys)] * len(keys))


def _per_layer(evidence: Evidence, keys: Sequence[Sequence[Hashable]]) -> dict[Hashable, int]:
    """How often events of each kind occur in a layer; 1 where that is not known."""
    repeats = [Counter(k) for k in keys]
    known: dict[Vector, int] = {}
    out = {}
    for key in repeats[0]:
        vector = tuple(r[key] for r in repeats)
        if vector not in known:
            count = _count(evidence, vector)
            slopes = [int(count.coeff(size(n), 1)) for n in evidence.depths] if count is not None else []
            known[vector] = max(1, *slopes, 1)
        out[key] = known[vector]
    return out


def _highest(evidence: Evidence, keys: Sequence[Sequence[Hashable]], memories: Sequence[Sequence[Held]],
             sized: Sequence[Sequence[Expr]], often: Sequence[Mapping[Hashable, int]]) -> tuple[Peak, ...]:  # fmt: skip
    """The moments that are the peak at some sizes; `often` is how many events of a kind are looked at for each layer.

    Raises:
        LiftError: where these are not all.
    """
    traces = evidence.traces
    found = _moments(evidence, keys, memories, sized, often)
    counts: dict[Vector, _Counted] = {}
    out = [said for moment in found if (said := _terms(evidence, moment, counts)) is not None]
    curves = [_curve(t, mine) for t, mine in zip(traces, memories, strict=True)]
    kept = [m for m, _ in out]
    _confirm(curves, kept)
    for k, (curve, mine) in enumerate(zip(curves, memories, strict=True)):
        _refuse_uneven(keys[k], curve, _tops(mine), {m.events[k] for m in kept})
    return _peaks(evidence, out, curves)


# ---------------------------------------------------------------------------------------------------------------- moments


def _moments(evidence: Evidence, keys: Sequence[Sequence[Hashable]], memories: Sequence[Sequence[Held]],
             sized: Sequence[Sequence[Expr]], often: Sequence[Mapping[Hashable, int]]) -> list[_Moment]:  # fmt: skip
    """The events that may be the peak: something is made, and then something freed; the first and last of their kind."""
    ends = _ENDS + evidence.period
    places = [_places(k, {key: ends * n for key, n in o.items()}) for k, o in zip(keys, often, strict=True)]
    common = [p for p in places[0] if all(p in q for q in places[1:])]
    tops = [_tops(found) for found in memories]
    repeats = [Counter(k) for k in keys]
    wanted: dict[Vector, dict[Expr, int]] = {}
    for p in sorted(common, key=lambda p: p[1] if p[1] >= 0 else -1 - p[1]):
        at = tuple(q[p] for q in places)
        if any(i in top for i, top in zip(at, tops, strict=True)):
            wanted.setdefault(at, _least(evidence, tuple(r[p[0]] for r in repeats), p[1]))
    looked = [
        _kinds(found, exprs, {at[k] for at in wanted}) for k, (found, exprs) in enumerate(zip(memories, sized, strict=True))
    ]
    return [_Moment(at, least, tuple(look[i] for look, i in zip(looked, at, strict=True))) for at, least in wanted.items()]


def _least(evidence: Evidence, repeats: Vector, place: int) -> dict[Expr, int]:
    """The number of layers from which on an event occurs so often that one has this place, from the first or the last."""
    nth = place + 1 if place >= 0 else -place
    count = _count(evidence, repeats)
    depth = next((size(n) for n in evidence.depths if count is not None and size(n) in count.free_symbols), None)
    if count is None or depth is None or nth == 1:
        return {}
    slope = count.coeff(depth, 1)
    return {depth: max(1, int(sp.ceiling((nth - count.xreplace({depth: Integer(0)})) / slope)))}


def _tops(memories: Sequence[Held]) -> set[int]:
    """The events that make something, where something is freed before another event makes something."""
    rises = sorted({h.first for h in memories})
    falls = sorted({h.end for h in memories})
    out = set()
    for i, following in itertools.pairwise([*rises, falls[-1]]):
        k = bisect.bisect_right(falls, i)
        if k < len(falls) and falls[k] <= following:
            out.add(i)
    return out


def _places(keys: Sequence[Hashable], ends: Mapping[Hashable, int]) -> dict[tuple[Hashable, int], int]:
    """Events by kind and place among those of the kind: 0, 1, ... from the first, -1, -2, ... from the last."""
    where: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        where.setdefault(key, []).append(i)
    out = {}
    for key, found in where.items():
        out.update({(key, j): i for j, i in enumerate(found[: ends.get(key, 1)])})
        out.update({(key, -1 - j): i for j, i in enumerate(found[::-1][: ends.get(key, 1)])})
    return out


def _kinds(memories: Sequence[Held], sizes: Sequence[Expr], events: set[int]) -> dict[int, dict[tuple[str, Expr], int]]:
    """How many memories of each part and size are there while each of the events runs."""
    change: dict[int, list[tuple[tuple[str, Expr], int]]] = {}
    for h, e in zip(memories, sizes, strict=True):
        change.setdefault(h.first, []).append(((h.part, e), 1))
        change.setdefault(h.end, []).append(((h.part, e), -1))
    now: dict[tuple[str, Expr], int] = {}
    out = {}
    for i in sorted({*change, *events}):
        for kind, d in change.get(i, ()):
            now[kind] = now.get(kind, 0) + d
        if i in events:
            out[i] = {kind: n for kind, n in now.items() if n}
    return out


# ------------------------------------------------------------------------------------------------------------ expressions


def _terms(evidence: Evidence, moment: _Moment, counts: dict[Vector, _Counted]) -> tuple[_Moment, dict[str, Terms]] | None:
    """Each part as a sum of products, with the moment for which they hold; None where a number of memories has no formula."""
    out: dict[str, Terms] = {}
    least = dict(moment.least)
    for kind in dict.fromkeys(itertools.chain.from_iterable(moment.kinds)):
        vector = tuple(k.get(kind, 0) for k in moment.kinds)
        if vector not in counts:
            counts[vector] = _counted(evidence, vector)
        found = counts[vector]
        if found.number is None:
            return None
        least.update((n, max(v, least.get(n, 1))) for n, v in found.least.items())
        part, e = kind
        mine = out.setdefault(part, {})
        for mono, c in expand(found.number * e).as_coefficients_dict().items():
            mine[mono] = mine.get(mono, Integer(0)) + c
    return moment._replace(least=least), out


def _counted(evidence: Evidence, vector: Vector) -> _Counted:
    """How many memories of a kind there are; where need be, without the traces of the fewest layers.

    There the second block is the last one, too, for which nothing is gathered ahead any more.
    """
    found = _count(evidence, vector)
    for n in evidence.depths if found is None else ():
        xs = [int(t.sizes[n]) for t in evidence.traces]
        deeper = {x: v for x, v in zip(xs, vector, strict=True) if x > min(xs)}
        if len(deeper) > 1 and len({v for x, v in zip(xs, vector, strict=True) if x in deeper}) == 1:
            return _Counted(Integer(next(iter(deeper.values()))), {size(n): min(deeper)})
    return _Counted(found, {})


def _count(evidence: Evidence, vector: Vector) -> Expr | None:
    """How many memories of a kind there are: a number, a number for each layer and some more, or what else fits."""
    if all(v == vector[0] for v in vector):
        return Integer(vector[0])
    for n in dict.fromkeys((*evidence.depths, *(evidence.fitter.names if evidence.fitter is not None else ()))):
        xs = [int(t.sizes[n]) for t in evidence.traces]
        if len(set(xs)) < 3:
            continue
        i = next(i for i, x in enumerate(xs) if x != xs[0])
        slope = Fraction(vector[i] - vector[0], xs[i] - xs[0])
        if all(v == vector[0] + slope * (x - xs[0]) for v, x in zip(vector, xs, strict=True)):
            start = vector[0] - slope * xs[0]
            return Rational(slope.numerator, slope.denominator) * size(n) + Rational(start.numerator, start.denominator)
    return evidence.fitter.plain(vector) if evidence.fitter is not None and 0 not in vector else None


def _curve(t: Trace, memories: Sequence[Held]) -> list[int]:
    """The bytes that are held while each event runs."""
    change = [0] * (len(t.events) + 1)
    for h in memories:
        change[h.first] += h.nbytes
        change[h.end] -= h.nbytes
    return list(itertools.accumulate(change[:-1]))


def _confirm(curves: Sequence[Sequence[int]], found: Sequence[_Moment]) -> None:
    """Refuse where in some trace the peak is at none of the moments.

    Raises:
        LiftError: says so.
    """
    for k, curve in enumerate(curves):
        if max(curve) != max((curve[m.events[k]] for m in found), default=-1):
            raise LiftError("the peak is at a moment that other sizes do not have, or follows no formula found")


def _refuse_uneven(keys: Sequence[Hashable], curve: Sequence[int], tops: set[int], kept: set[int]) -> None:
    """Refuse where, of events of one kind, one that is no candidate holds more than all that are.

    Raises:
        LiftError: says so.
    """
    highest: dict[Hashable, int] = {}
    for i in kept:
        highest[keys[i]] = max(highest.get(keys[i], 0), curve[i])
    if any(curve[i] > highest[keys[i]] for i in tops if keys[i] in highest):
        raise LiftError("memory does not grow evenly over the model's blocks")


def _peaks(
    evidence: Evidence, found: Iterable[tuple[_Moment, dict[str, Terms]]], curves: Sequence[Sequence[int]]
) -> tuple[Peak, ...]:
    """The candidates that are not always below another one, the largest at the base first."""
    values = {size(n): Integer(v) for n, v in evidence.base.sizes.items()}
    rows = []
    for moment, parts in found:
        whole: Terms = {}
        for terms in parts.values():
            for mono, c in terms.items():
                whole[mono] = whole.get(mono, Integer(0)) + c
        rows.append((total(c * m.xreplace(values) for m, c in whole.items()), whole, moment, parts))
    rows.sort(key=lambda row: (any(values.get(n, v) < v for n, v in row[2].least.items()), -row[0]))
    kept: list[tuple[Terms, _Moment, dict[str, Terms]]] = []
    known: dict[tuple[int, tuple[tuple[Expr, int], ...]], Shifted] = {}

    def seen(terms: Terms, least: Mapping[Expr, int]) -> Shifted:
        key = id(terms), tuple(least.items())
        if key not in known:
            known[key] = around(terms, least)
        return known[key]

    for _, whole, moment, parts in rows:
        at = [c[i] for c, i in zip(curves, moment.events, strict=True)]
        higher = (
            terms for terms, other, _ in kept
            if _within(moment.least, other.least) and all(c[i] >= n for c, i, n in zip(curves, other.events, at, strict=True))
        )  # fmt: skip
        mine = seen(whole, moment.least)
        if not any(covers(seen(terms, moment.least), mine) for terms in higher):
            kept.append((whole, moment, parts))
    return tuple(_peak(evidence, moment, parts) for _, moment, parts in kept)


def _peak(evidence: Evidence, moment: _Moment, parts: Mapping[str, Terms]) -> Peak:
    e = evidence.traces[0].events[moment.events[0]]
    path = fold_path(e.path) if len({len(t.events) for t in evidence.traces}) > 1 else e.path
    exprs = {p: total(c * m for m, c in parts.get(p, {}).items()) for p in PARTS}
    return Peak(
        e.phase, path, e.op, e.source, exprs, total(exprs.values()), {str(s): n for s, n in moment.least.items() if n > 1}
    )


def _within(least: Mapping[Expr, int], other: Mapping[Expr, int]) -> bool:
    """Whether there is the other moment wherever there is the first."""
    return all(least.get(s, 1) >= n for s, n in other.items())
