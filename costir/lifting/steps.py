"""Arithmetic that the program does on its sizes, matched over traces: `(T + W - 1) // W` need not be guessed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import sympy as sp

from costir.symbolic import Expr, Integer, ceil_div, floor_div
from costir.tracing.frames import is_user_file
from costir.tracing.notes import Step

Vector = tuple[int, ...]
ROUNDING = frozenset(("//", "%", "floor", "ceil"))


class Derived(NamedTuple):
    """A step in all traces: scale * `left` `op` `right`, operands as vectors of their values."""

    op: str
    scale: Fraction
    left: Vector
    right: Vector


def derived(traces: Sequence[Sequence[Step]]) -> dict[Vector, list[Derived]]:
    """By the vector of its results, each step that all traces do equally often."""
    tables = [_by_place(steps) for steps in traces]
    found: dict[Vector, list[Derived]] = {}
    for key, first in tables[0].items():
        columns = [t.get(key, []) for t in tables]
        if any(len(c) != len(first) for c in columns):
            continue
        for row in zip(*columns, strict=True):
            value = tuple([s.value for s in row])
            if len(set(value)) > 1:
                entry = Derived(key[1], key[2], tuple([s.left for s in row]), tuple([s.right for s in row]))
                known = found.setdefault(value, [])
                if entry not in known and len(known) < 8:
                    known.append(entry)
    return found


def settled(traces: Sequence[Sequence[Step]]) -> list[tuple[Step, Derived]]:
    """Roundings of the user's that give one number in all traces although they are of different sizes: ceil(T/W) == 1.

    The formulas then hold only where they give that number. A remainder is one, too, where all sizes lie within one multiple:
    T % 64 is T below 64.
    """
    tables = [_by_place(steps) for steps in traces]
    found = []
    for key, first in tables[0].items():
        columns = [t.get(key, []) for t in tables]
        if key[1] not in ROUNDING or not is_user_file(key[0][0]) or any(len(c) != len(first) for c in columns):
            continue
        for row in zip(*columns, strict=True):
            if len({(s.left, s.right) for s in row}) == 1:
                continue
            step = _settled_at(row)
            if step is not None:
                found.append((step, Derived(step.op, key[2], tuple([s.left for s in row]), tuple([s.right for s in row]))))
    return found


def _settled_at(row: Sequence[Step]) -> Step | None:
    """The rounding that gives one number in all traces: that of the first, or None."""
    first = row[0]
    if len({s.value for s in row}) == 1:
        return first
    if first.op == "%" and all(s.right for s in row) and len({s.left // s.right for s in row}) == 1:
        return first._replace(op="//", value=first.left // first.right)
    return None


def divisors_used(traces: Sequence[Sequence[Step]]) -> frozenset[int]:
    """The plain numbers that the program divides sizes by."""
    return frozenset(
        s.right * s.scale.denominator for t in traces[:2] for s in t if s.op in ROUNDING and s.right * s.scale.denominator > 1
    )


def _by_place(steps: Sequence[Step]) -> Mapping[Any, list[Step]]:
    table: dict[Any, list[Step]] = {}
    for s in steps:
        table.setdefault((s.place, s.op, s.scale), []).append(s)
    return table


def combined(op: str, scale: Fraction, a: Expr, b: Expr) -> Expr:
    """The result of a step as an expression. Remainders are written by floors, floors of x + b - 1 as ceilings."""
    if op == "+":
        return a + b
    if op == "-":
        return a - b
    if op == "*":
        return a * b
    if op == "//":
        return floored(a, b)
    if op == "%":
        return sp.expand(a - b * floored(a, b))
    a = a * sp.Rational(scale.numerator, scale.denominator)
    return _upward(a, b) if op == "ceil" else floored(a, b)


def floored(a: Expr, b: Expr) -> Expr:
    """floor(a/b), as a ceiling where that is shorter: -floor(x) is the ceiling of -x, floor((x + b - 1)/b) that of x/b."""
    if a.could_extract_minus_sign():
        return -ceil_div(-a, b)
    plain = floor_div(a, b)
    if a.is_integer and b.is_integer:
        return min((plain, ceil_div(sp.expand(a - b + 1), b)), key=lambda e: len(str(e)))
    return plain


def _upward(a: Expr, b: Expr) -> Expr:
    if a.could_extract_minus_sign():
        return -floor_div(-a, b)
    return ceil_div(a, b)


def roundings_to(vector: Vector, values: Vector) -> list[tuple[int, bool]]:
    """Of what numbers, and upwards or not, `vector` may be the multiples that `values` are rounded to; largest first."""
    common = math.gcd(*vector)
    found = []
    for c in (d for d in range(min(common, 4096), 1, -1) if common % d == 0):
        if all(v == c * -(-w // c) for v, w in zip(vector, values, strict=True)):
            found.append((c, True))
        elif all(v == c * (w // c) for v, w in zip(vector, values, strict=True)):
            found.append((c, False))
    return found


def rounded_to(e: Expr, unit: int, upward: bool) -> Expr:
    """An expression rounded to a multiple of a number."""
    return unit * (ceil_div(e, Integer(unit)) if upward else floor_div(e, Integer(unit)))
