"""How large an expression would become when others are put in for its letters, found before it is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from costir import symbolic as sym
from costir.errors import CostirError
from costir.symbolic import Expr

MOST_BITS, MOST_NODES = 16_384, 100_000
LETTER_BITS = 64  # a letter stands for a size


@dataclass(frozen=True, slots=True)
class Size:
    """Bits that a value may have, and nodes of the tree, at most."""

    bits: int
    nodes: int


def size_of(e: Expr, known: Mapping[str, Size]) -> Size:
    """The size of `e` with expressions of known sizes for its letters.

    Raises:
        CostirError: where it is beyond what can be worked with.
    """
    if e.is_Symbol:
        return known.get(str(e), Size(LETTER_BITS, 1))
    if e.is_Rational:
        return Size(max(int(e.p).bit_length(), int(e.q).bit_length()), 1)
    parts = [size_of(a, known) for a in e.args]
    nodes = 1 + sum(p.nodes for p in parts)
    bits = max((p.bits for p in parts), default=1)
    if e.is_Pow:
        exponent = e.args[1]
        bits = parts[0].bits * (math.ceil(abs(exponent)) if exponent.is_Rational else LETTER_BITS)
    elif e.is_Mul:
        bits = sum(p.bits for p in parts)
    if bits > MOST_BITS or nodes > MOST_NODES:
        raise CostirError("a formula grows too large when all is put in", f"at most {MOST_BITS} bits and {MOST_NODES} terms")
    return Size(bits, nodes)


def substituted(e: Expr, known: Mapping[str, Expr]) -> Expr:
    """Expressions for letters, after their sizes were looked at.

    Raises:
        CostirError: where the result would be too large.
    """
    used = {str(s) for s in e.free_symbols} & set(known)
    size_of(e, {n: size_of(known[n], {}) for n in used})
    return sym.put_in(e, {sym.size(n): known[n] for n in used})
