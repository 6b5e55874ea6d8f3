"""Traces -> what a step holds at its peak, as expressions in the sizes.

The moments that may be the peak are candidates; each is a sum over kinds of memory, of a number fitted over the traces times a
size fitted over the traces. A candidate that is nowhere larger than another one is left out.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from costir.errors import LiftError
from costir.lifting.align import fold_path
from costir.lifting.counts import Counted, counted
from costir.lifting.held_bytes import Evidence, Vector, bytes_of
from costir.lifting.live import PARTS, Held, has_sparse, held
from costir.lifting.moments import Candidate, Keys, candidates, makers_before_frees
from costir.lifting.origins import FURTHEST, kinds
from costir.lifting.polynomials import Compared, Terms
from costir.symbolic import Expr, Integer, expand, size, total
from costir.trace import Trace

_STEPS = tuple(range(FURTHEST + 1))  # how far back events are told apart by what they read


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


class Peaks(NamedTuple):
    """The moments that are the peak at some sizes, that of the base first.

    `even`: whether each moment that is none of them was seen to hold less than one of its kind that is, in all traces.
    """

    moments: tuple[Peak, ...]
    even: bool


def peaks(evidence: Evidence) -> Peaks:
    """The moments that are the peak at some sizes.

    Raises:
        LiftError: where memory follows no formula.
    """
    traces = evidence.traces
    if any(map(has_sparse, traces)):
        raise LiftError("sparse tensors lie in several memories, which are not followed", "see the FLOPs and bytes instead")
    places = [kinds(t, 0) for t in traces]
    if all(p == places[0] for p in places):
        return _found(evidence, [[range(len(t.events)) for t in traces]])
    found: Peaks | None = None
    problem: LiftError | None = None
    for way in ((0,), _STEPS):
        try:
            found = _found(evidence, [[kinds(t, steps) for t in traces] if steps else places for steps in way])
        except LiftError as error:
            problem = error
        if found is not None and found.even:
            return found
    if found is None:
        assert problem is not None
        raise problem
    return found


def _sized(evidence: Evidence, keys: Sequence[Keys]) -> tuple[list[list[Held]], list[list[Expr]]]:
    """The memories of each trace, and their bytes as expressions, with events taken as alike that have the same key."""
    memories = [held(t, k) for t, k in zip(evidence.traces, keys, strict=True)]
    return memories, bytes_of(evidence, memories)


def _found(evidence: Evidence, told: Sequence[Sequence[Keys]]) -> Peaks:
    """The moments, with these ways to tell events apart."""
    traces = evidence.traces
    memories, sizes = _first(lambda keys: _sized(evidence, keys), told)
    counts: dict[Vector, Counted] = {}
    found = [_terms(evidence, m, counts) for m in candidates(evidence, told, memories, sizes)]
    kept = [said for said in found if said is not None]
    curves = [_curve(t, mine) for t, mine in zip(traces, memories, strict=True)]
    _confirm(curves, [m for m, _ in kept])
    even = all(
        _even([keys[k] for keys in told], curves[k], makers_before_frees(memories[k]), {m.events[k] for m, _ in kept})
        for k in range(len(traces))
    )
    return Peaks(_peaks(evidence, kept, curves), even)


_T = TypeVar("_T")


def _first(find: Callable[[Sequence[Keys]], _T], told: Iterable[Sequence[Keys]]) -> _T:
    """What is found with events told apart no further than needed.

    Raises:
        LiftError: that of the first way, where no way leads to anything.
    """
    problem: LiftError | None = None
    for keys in told:
        try:
            return find(keys)
        except LiftError as error:
            problem = problem or error
    assert problem is not None
    raise problem


# ------------------------------------------------------------------------------------------------------------ expressions


def _terms(evidence: Evidence, moment: Candidate, counts: dict[Vector, Counted]) -> tuple[Candidate, dict[str, Terms]] | None:
    """Each part as a sum of products, with the moment for which they hold; None where a number of memories has no formula."""
    out: dict[str, Terms] = {}
    least = dict(moment.least)
    for kind in dict.fromkeys(itertools.chain.from_iterable(moment.held)):
        vector = tuple([k.get(kind, 0) for k in moment.held])
        if vector not in counts:
            counts[vector] = counted(evidence, vector)
        found = counts[vector]
        if found.number is None:
            return None
        least.update((n, max(v, least.get(n, 1))) for n, v in found.least.items())
        part, e = kind
        mine = out.setdefault(part, {})
        for mono, c in _written_out(found.number, e):
            mine[mono] = mine.get(mono, Integer(0)) + c
    return moment._replace(least=least), out


@functools.lru_cache(4096)  # most moments hold what others hold
def _written_out(number: Expr, nbytes: Expr) -> list[tuple[Expr, Expr]]:
    """So many memories of so many bytes as a sum of products of sizes with their coefficients."""
    return list(expand(number * nbytes).as_coefficients_dict().items())


def _curve(t: Trace, memories: Sequence[Held]) -> list[int]:
    """The bytes that are held while each event runs."""
    change = [0] * (len(t.events) + 1)
    for h in memories:
        change[h.first] += h.nbytes
        change[h.end] -= h.nbytes
    return list(itertools.accumulate(change[:-1]))


def _confirm(curves: Sequence[Sequence[int]], found: Sequence[Candidate]) -> None:
    """Refuse where in some trace the peak is at none of the moments.

    Raises:
        LiftError: says so.
    """
    for k, curve in enumerate(curves):
        if max(curve) != max((curve[m.events[k]] for m in found), default=-1):
            raise LiftError("the peak is at a moment that other sizes do not have, or follows no formula found")


def _even(told: Sequence[Keys], curve: Sequence[int], tops: set[int], kept: set[int]) -> bool:
    """Whether each event holds no more than some candidate of its kind, by the finest kinds that have a candidate."""
    open_yet = set(tops)
    for keys in reversed(told):
        highest: dict[Hashable, int] = {}
        for i in kept:
            highest[keys[i]] = max(highest.get(keys[i], 0), curve[i])
        decided = {i for i in open_yet if keys[i] in highest}
        if any(curve[i] > highest[keys[i]] for i in decided):
            return False
        open_yet -= decided
    return not open_yet


def _peaks(
    evidence: Evidence, found: Iterable[tuple[Candidate, dict[str, Terms]]], curves: Sequence[Sequence[int]]
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
    kept: list[tuple[Terms, Candidate, dict[str, Terms]]] = []
    compared = Compared()
    for _, whole, moment, parts in rows:
        at = [c[i] for c, i in zip(curves, moment.events, strict=True)]
        higher = (
            terms for terms, other, _ in kept
            if _within(moment.least, other.least) and all(c[i] >= n for c, i, n in zip(curves, other.events, at, strict=True))
        )  # fmt: skip
        if not any(compared.never_less(terms, whole, moment.least) for terms in higher):
            kept.append((whole, moment, parts))
    return tuple([_peak(evidence, moment, parts) for _, moment, parts in kept])


def _peak(evidence: Evidence, moment: Candidate, parts: Mapping[str, Terms]) -> Peak:
    e = evidence.traces[0].events[moment.events[0]]
    path = fold_path(e.path) if len({len(t.events) for t in evidence.traces}) > 1 else e.path
    exprs = {p: total(c * m for m, c in parts.get(p, {}).items()) for p in PARTS}
    return Peak(
        e.phase, path, e.op, e.source, exprs, total(exprs.values()), {str(s): n for s, n in moment.least.items() if n > 1}
    )


def _within(least: Mapping[Expr, int], other: Mapping[Expr, int]) -> bool:
    """Whether there is the other moment wherever there is the first."""
    return all(least.get(s, 1) >= n for s, n in other.items())
