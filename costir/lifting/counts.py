"""How many memories of a kind there are, over the traces, as an expression."""

from __future__ import annotations

from typing import NamedTuple

from costir.lifting.fit import straight
from costir.lifting.held_bytes import Evidence, Vector
from costir.symbolic import Expr, Integer, Rational, size


class Counted(NamedTuple):
    """How many memories there are, None where no formula says so, and the numbers of layers from which on it holds."""

    number: Expr | None
    least: dict[Expr, int]


def counted(evidence: Evidence, vector: Vector) -> Counted:
    """How many memories of a kind there are; where need be, without the traces of the fewest layers.

    There the second block is the last one, too, for which nothing is gathered ahead any more.
    """
    found = count(evidence, vector)
    for n in evidence.depths if found is None else ():
        xs = [int(t.sizes[n]) for t in evidence.traces]
        deeper = {x: v for x, v in zip(xs, vector, strict=True) if x > min(xs)}
        if len(deeper) > 1 and len({v for x, v in zip(xs, vector, strict=True) if x in deeper}) == 1:
            return Counted(Integer(next(iter(deeper.values()))), {size(n): min(deeper)})
    return Counted(found, {})


def count(evidence: Evidence, vector: Vector) -> Expr | None:
    """How many memories of a kind there are: a number, a number for each layer and some more, or what else fits."""
    if all(v == vector[0] for v in vector):
        return Integer(vector[0])
    for n in dict.fromkeys((*evidence.depths, *(evidence.fitter.names if evidence.fitter is not None else ()))):
        line = straight([int(t.sizes[n]) for t in evidence.traces], vector)
        if line is not None:
            slope, start = line
            return Rational(slope.numerator, slope.denominator) * size(n) + Rational(start.numerator, start.denominator)
    return evidence.fitter.plain(vector) if evidence.fitter is not None and 0 not in vector else None
