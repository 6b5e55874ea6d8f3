"""From the tree of a typed formula to sympy, with a bound on everything that could grow.

A tree is ("num", Expr), ("name", str), ("add" | "mul", children), ("neg" | "inv", child), ("pow", base, exponent), or
("call", function, children); the last item of each is the token to point at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from costir import symbolic as sym
from costir.formula_tokens import Token, fail
from costir.symbolic import Expr

MAX_EXPONENT = 64
MAX_BITS = 4096
MAX_DEGREE = 256
MAX_TERMS = 4000

Tree = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Built:
    """An expression with bounds on its size: terms above and below the line when multiplied out, bits, degree."""

    expr: Expr
    above: int
    below: int
    bits: int
    degree: int


def build(text: str, tree: Tree) -> Expr:
    """The sympy expression of a tree."""
    try:
        expr = _construct(text, tree).expr
    except (ArithmeticError, ValueError, TypeError, NotImplementedError, RecursionError) as e:
        raise fail(text, tree[-1], "this has no value") from e
    if not sym.is_real_value(expr):
        raise fail(text, tree[-1], "this has no real value", "check divisions by zero, roots and logarithms")
    return expr


def _construct(text: str, tree: Tree) -> _Built:
    kind, at = tree[0], tree[-1]
    built: _Built
    if kind == "num":
        built = _Built(tree[1], 1, 1, _bits(tree[1]), 0)
    elif kind == "name":
        built = _Built(sym.size(tree[1]), 1, 1, 0, 1)
    elif kind == "neg":
        inner = _construct(text, tree[1])
        built = replace(inner, expr=-inner.expr)
    elif kind == "inv":
        inner = _construct(text, tree[1])
        if inner.expr == 0:
            raise fail(text, at, "division by zero")
        built = _Built(1 / inner.expr, inner.below, inner.above, inner.bits, inner.degree)
    elif kind == "pow":
        built = _power(text, _construct(text, tree[1]), _construct(text, tree[2]), at)
    elif kind == "call":
        built = _call(tree[1], [_construct(text, a) for a in tree[2]])
    else:
        built = _many(text, kind, [_construct(text, a) for a in tree[1]], at)
    return built


def _many(text: str, kind: str, parts: list[_Built], at: Token) -> _Built:
    """A sum or a product of many, with its size checked before it is built."""
    below = math.prod(p.below for p in parts)
    bits = sum(p.bits for p in parts if kind == "mul") or max(p.bits for p in parts)
    if kind == "mul":
        above = math.prod(p.above for p in parts)
    elif below == 1:
        above = sum(p.above for p in parts)
    else:
        above = sum(p.above * (below // p.below) for p in parts)
    degree = max(p.degree for p in parts) if kind == "add" and below == 1 else sum(p.degree for p in parts)
    if max(above, below) > MAX_TERMS or bits > MAX_BITS or degree > MAX_DEGREE:
        raise fail(text, at, "this is too large when multiplied out", "write it in a shorter form")
    make: Callable[..., Expr] = sym.product if kind == "mul" else sym.total
    expr = make([p.expr for p in parts])
    if expr.is_Atom:
        above = below = 1
    elif kind == "add" and below == 1:
        above = len(sym.terms(expr))
    return _Built(expr, above, below, max(bits, _bits(expr)), degree)


def _power(text: str, base: _Built, exponent: _Built, at: Token) -> _Built:
    e = exponent.expr
    if not e.is_Rational:
        raise fail(text, at, "an exponent that is no plain number", "write the power out")
    top, bottom = int(e.p), int(e.q)
    if abs(top) > MAX_EXPONENT or bottom > 4:
        raise fail(text, at, f"an exponent out of range, {str(e)[:20]}", f"at most {MAX_EXPONENT} is read")
    if base.expr == 0 and top <= 0:
        raise fail(text, at, "division by zero")
    n = abs(top)
    grown = [math.comb(count + n - 1, n) for count in (base.above, base.below)]
    if max(grown) > MAX_TERMS or base.bits * n > MAX_BITS or base.degree * n > MAX_DEGREE:
        raise fail(text, at, "this power is too large when multiplied out")
    above, below = grown if top >= 0 else grown[::-1]
    return _Built(base.expr**e, above, below, base.bits * max(n, 1), base.degree * max(n, 1))


def _call(function: str, arguments: list[_Built]) -> _Built:
    expr = sym.apply(function, [a.expr for a in arguments])
    return _Built(expr, 1, 1, max(a.bits for a in arguments), max(a.degree for a in arguments))


def _bits(e: Expr) -> int:
    return max(int(e.p).bit_length(), int(e.q).bit_length()) if e.is_Rational else 0
