"""Traces -> the size of every memory as an expression in the sizes.

Memories of one kind are matched over the traces, and their bytes fitted: mostly as a product of a tensor's dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from costir.errors import LiftError
from costir.ir import ITEMSIZE
from costir.lifting.fit import Fitter
from costir.lifting.live import Held
from costir.lifting.steps import derived
from costir.symbolic import Expr, Integer, expand, product, size
from costir.trace import Trace

Vector = tuple[int, ...]


@dataclass(frozen=True)
class Evidence:
    """What a graph was lifted from.

    Attributes:
        traces: those whose calls were matched.
        fitter: knows the numbers of these traces; None where no size varies.
        depths: the sizes that are numbers of layers.
        period: after how many layers they repeat, those before the repetition included.
        base: the trace of the base sizes, with fewer layers where layers repeat.
    """

    traces: tuple[Trace, ...]
    fitter: Fitter | None
    depths: tuple[str, ...]
    period: int
    base: Trace


def refitted(evidence: Evidence, traces: Sequence[Trace]) -> Evidence:
    """The same of other traces, with all formulas of sizes that are known.

    Raises:
        LiftError: these do not tell the sizes apart.
    """
    old = evidence.fitter
    assert old is not None
    steps = derived([t.steps for t in traces])
    fitter = Fitter([t.sizes for t in traces], old.names, steps, old.periods, old.divisors, old.axes)
    for e in old.known.values():
        vector = fitter.at(e) if e is not None else ()
        if e is not None and all(x.is_Integer for x in vector):
            fitter.known.setdefault(tuple(map(int, vector)), e)
    return replace(evidence, traces=tuple(traces), fitter=fitter)


def bytes_of(evidence: Evidence, memories: Sequence[Sequence[Held]]) -> list[list[Expr]]:
    """The bytes of every memory of every trace as an expression.

    Memory of one label has one size in each trace, or as many different ones in the same order.
    """
    groups: list[dict[Hashable, list[int]]] = []
    for found in memories:
        by_label: dict[Hashable, list[int]] = {}
        for i, h in enumerate(found):
            by_label.setdefault((h.label, h.dtype, len(h.shape)), []).append(i)
        groups.append(by_label)
    out: list[list[Expr]] = [[Integer(0)] * len(found) for found in memories]
    for label in dict.fromkeys(itertools.chain.from_iterable(groups)):
        there = {k: g[label] for k, g in enumerate(groups) if label in g}
        for alike in _alike(evidence, memories, there):
            different = {k: list(dict.fromkeys(_seen(memories[k][i]) for i in mine)) for k, mine in alike.items()}
            columns = zip(*different.values(), strict=True)
            exprs = [_size(evidence, list(alike), column, str(label[1])) for column in columns]  # type: ignore[index]
            for k, mine in alike.items():
                for i in mine:
                    out[k][i] = exprs[different[k].index(_seen(memories[k][i]))]
    return out


def _seen(h: Held) -> tuple[int, tuple[int, ...]]:
    return h.nbytes, h.shape


def _alike(
    evidence: Evidence, memories: Sequence[Sequence[Held]], there: Mapping[int, list[int]]
) -> Iterable[Mapping[int, list[int]]]:
    """Memories of one label, such that in every trace as many different sizes are among them.

    Where two sizes happen to be equal in one trace, memories are told apart by their place in their layer.

    Raises:
        LiftError: where that does not help.
    """

    def even(part: Mapping[int, list[int]]) -> bool:
        return len({len({_seen(memories[k][i]) for i in mine}) for k, mine in part.items()}) == 1

    if even(there):
        return [there]
    for n in evidence.depths:
        often = {k: Fraction(len(mine), int(evidence.traces[k].sizes[n])) for k, mine in there.items()}
        each = next(iter(often.values()))
        if set(often.values()) == {each} and each.denominator == 1:
            parts = [{k: mine[j :: int(each)] for k, mine in there.items()} for j in range(int(each))]
            if all(map(even, parts)):
                return parts
    raise LiftError("memory of one kind has a number of different sizes that follows no formula")


def _size(evidence: Evidence, where: Sequence[int], column: Sequence[tuple[int, tuple[int, ...]]], dtype: str) -> Expr:
    """The bytes of one memory: the product of its tensor's dimensions, or, where it is larger, what fits the bytes."""
    item = ITEMSIZE[dtype]
    dims = [_fit(evidence, where, tuple(int(d) for d in v)) for v in zip(*(shape for _, shape in column), strict=True)]
    nbytes = tuple(n for n, _ in column)
    if None not in dims:
        e = product(d for d in dims if d is not None) * item
        if _values(evidence, e, where) == nbytes:
            return expand(e)
    unit = int(item) if item.is_Integer and all(n % int(item) == 0 for n in nbytes) else 1
    fitted = _fit(evidence, where, tuple(n // unit for n in nbytes))
    if fitted is None:
        raise LiftError(f"a memory follows no formula found (bytes seen: {', '.join(map(str, nbytes))})")
    return expand(fitted * unit)


def _values(evidence: Evidence, e: Expr, where: Sequence[int]) -> tuple[Expr, ...]:
    points = [evidence.traces[k].sizes for k in where]
    return tuple(e.xreplace({size(n): Integer(v) for n, v in p.items()}) for p in points)


def _fit(evidence: Evidence, where: Sequence[int], vector: Vector) -> Expr | None:
    """The expression of a number seen in some of the traces; in all of them, where a guess is to be held against them."""
    constant = Integer(vector[0]) if all(v == vector[0] for v in vector) else None
    if evidence.fitter is None or (constant is not None and len(vector) > 1):
        return constant
    if len(where) == len(evidence.traces):
        return evidence.fitter.fit(vector)
    seen = (e for v, e in evidence.fitter.known.items() if e is not None and tuple(v[k] for k in where) == vector)
    return next(seen, constant)
