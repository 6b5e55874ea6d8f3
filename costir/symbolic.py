"""The only door to sympy: symbols, sums, comparison, compilation, roots, printing.

Every symbol is made by `size`, so that two symbols of one name are one symbol (sympy tells symbols apart by their
assumptions). Sums are built by one `total`, never by a chain of `+`; expressions are evaluated by `compile`, never by
`subs` in a loop.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, cast

import sympy as sp
from sympy import Expr as Expr
from sympy import Integer as Integer
from sympy import Rational as Rational
from sympy import Symbol as Symbol
from sympy.logic.boolalg import Boolean as Boolean

ZERO = sp.Integer(0)
ONE = sp.Integer(1)


@functools.cache
def size(name: str) -> Symbol:
    """The symbol of a size: a positive whole number."""
    return sp.Symbol(name, integer=True, positive=True)


def number(value: int | float | str | Fraction | Expr) -> Expr:
    """An exact number: ints and fractions as they are, floats and strings by their decimal digits (1.97e14 is whole)."""
    if isinstance(value, sp.Expr):
        return value
    if isinstance(value, float):
        return cast(Expr, sp.Rational(repr(value)))
    if isinstance(value, Fraction):
        return cast(Expr, sp.Rational(value.numerator, value.denominator))
    return cast(Expr, sp.Rational(value))


def total(terms: Iterable[Expr]) -> Expr:
    """The sum, built in one go."""
    return cast(Expr, sp.Add(*terms))


def product(factors: Iterable[Expr | int]) -> Expr:
    """The product, built in one go."""
    return cast(Expr, sp.Mul(*(sp.sympify(f) for f in factors)))


@functools.lru_cache(maxsize=65536)
def floor_div(a: Expr, b: Expr) -> Expr:
    """floor(a/b), with nested floors folded and floor((x - 1)/n) + 1 left to `ceil_div`."""
    q = sp.cancel(a / b)
    if q.is_integer:
        return cast(Expr, q)
    return cast(Expr, _fold(sp.floor(sp.expand(q))))


def ceil_div(a: Expr, b: Expr) -> Expr:
    """ceil(a/b)."""
    q = sp.cancel(a / b)
    if q.is_integer:
        return cast(Expr, q)
    return cast(Expr, _fold(sp.ceiling(sp.expand(q))))


def _fold(e: Any) -> Any:
    """floor(floor(x)/n) = floor(x/n) and ceiling(ceiling(x)/n) = ceiling(x/n) for whole n."""
    if not isinstance(e, (sp.floor, sp.ceiling)):
        return e if e.is_Atom else e.func(*(_fold(a) for a in e.args))
    inner = e.args[0]
    coefficient, rest = inner.as_coeff_Mul()
    if type(rest) is type(e) and coefficient.is_Rational and coefficient.p == 1:
        return _fold(type(e)(sp.expand(coefficient * rest.args[0])))
    return e


class gcd(sp.Function):  # type: ignore[misc]  # noqa: N801 - its name is what it prints as
    """The greatest common divisor of two whole numbers, left as it is for sizes: sympy's own takes letters for polynomials."""

    is_integer = True
    is_positive = True

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        """The value, where it can be said: of numbers, and where one divides the other."""
        if a.is_Integer and b.is_Integer:
            return sp.Integer(math.gcd(int(a), int(b)))
        for small, large in ((a, b), (b, a)):
            if small.is_positive and sp.cancel(large / small).is_integer:
                return small
        first, second = sorted((a, b), key=sp.default_sort_key)
        return None if (first, second) == (a, b) else cls(first, second)

    def _latex(self, printer: Any) -> str:
        return rf"\gcd\left({printer._print(self.args[0])}, {printer._print(self.args[1])}\right)"


def common_divisor(a: Expr, b: Expr) -> Expr:
    """The greatest common divisor of two positive whole numbers."""
    return cast(Expr, gcd(a, b))


def _gcd_of_floats(a: Any, b: Any) -> Any:
    """The greatest common divisors of arrays of whole numbers, given as floats."""
    import numpy as np

    return np.gcd(np.asarray(a).astype(np.int64), np.asarray(b).astype(np.int64))


def terms(e: Expr) -> tuple[Expr, ...]:
    """The terms of a sum, or the expression itself."""
    return tuple(sp.Add.make_args(e))


def coefficient(e: Expr) -> tuple[Expr, Expr]:
    """A term as a number times the rest: 2*B*D is 2 and B*D."""
    c, rest = e.as_coeff_Mul()
    return cast(Expr, c), cast(Expr, rest)


def maximum(candidates: Iterable[Expr]) -> Expr:
    """The largest, left unevaluated: sympy's own Max compares all pairs, which takes seconds on long sums."""
    kept = list(dict.fromkeys(e for e in candidates if e != 0))
    if not kept:
        return ZERO
    if len(kept) == 1 or all(e.is_number for e in kept):
        return cast(Expr, sp.Max(*kept))
    return cast(Expr, sp.Max(*kept, evaluate=False))


def apply(function: str, arguments: Sequence[Expr]) -> Expr:
    """A function by its name: floor, ceil, sqrt, log (also with a base), ln, log2, log10, abs, gcd, min, max."""
    name = function.lower()
    if name in ("min", "max"):
        if all(a.is_number for a in arguments):
            return cast(Expr, (sp.Min if name == "min" else sp.Max)(*arguments))
        return cast(Expr, (sp.Min if name == "min" else sp.Max)(*dict.fromkeys(arguments), evaluate=False))
    if name in ("log2", "log10"):
        return cast(Expr, sp.log(arguments[0], int(name[3:])))
    known = {"floor": sp.floor, "ceil": sp.ceiling, "ceiling": sp.ceiling, "sqrt": sp.sqrt, "ln": sp.log, "log": sp.log}
    return cast(Expr, (known | {"abs": sp.Abs, "gcd": gcd})[name](*arguments))


def ratio(above: Expr, below: Expr) -> Expr:
    """above/below with common factors removed: polynomials of a few terms."""
    return cast(Expr, sp.cancel(above / below))


def boolean(value: bool) -> Boolean:
    """True or false as a condition."""
    return cast(Boolean, sp.true if value else sp.false)


def greater(a: Expr, b: Expr) -> Boolean:
    """The condition a > b, as it stands."""
    return cast(Boolean, sp.Gt(a, b, evaluate=not (a - b).free_symbols))


def both(conditions: Iterable[Boolean]) -> Boolean:
    """All of the conditions."""
    kept = [c for c in dict.fromkeys(conditions) if c != sp.true]
    return boolean(False) if sp.false in kept else cast(Boolean, sp.And(*kept, evaluate=len(kept) < 2))


def either(conditions: Iterable[Boolean]) -> Boolean:
    """One of the conditions."""
    kept = [c for c in dict.fromkeys(conditions) if c != sp.false]
    return boolean(True) if sp.true in kept else cast(Boolean, sp.Or(*kept, evaluate=len(kept) < 2))


def divisibility(condition: Any) -> tuple[str, Expr] | None:
    """The name and the divisor of `name % divisor == 0`, or None where the condition is another one."""
    if isinstance(condition, sp.Eq) and isinstance(condition.lhs, sp.Mod) and condition.rhs == 0:
        a, b = condition.lhs.args
        if a.is_Symbol:
            return str(a), b
    return None


def is_equation(condition: Any) -> bool:
    """Whether the condition sets one size: `T == 2048`, `S == T`."""
    return isinstance(condition, sp.Eq) and bool(condition.lhs.is_Symbol)


def holds(condition: Any, values: Mapping[Symbol, int]) -> bool:
    """Whether a condition is true at a point; one that stays open counts as true."""
    found = condition.xreplace({k: sp.Integer(v) for k, v in values.items()})
    return bool(found != sp.false)


def to_fraction(e: Expr) -> Fraction | None:
    """A number as a fraction: exactly where it is rational, to 50 digits where it is another real number, else None."""
    if e.is_Rational:
        return Fraction(int(e.p), int(e.q))
    if e.free_symbols or not e.is_number:
        return None
    rounded = e.evalf(50)
    if not rounded.is_Float or not rounded.is_finite:
        return None
    exact = sp.Rational(rounded)
    return Fraction(int(exact.p), int(exact.q))


def is_real_value(e: Expr) -> bool:
    """Whether the expression is free of infinities, undefined parts and imaginary units."""
    return not e.has(sp.zoo, sp.nan, sp.oo, -sp.oo, sp.I)


def expand(e: Expr) -> Expr:
    """Multiplied out; sums of monomials are canonical in this form."""
    return cast(Expr, sp.expand(e))


def simplify(e: Expr) -> Expr:
    """A short equal form, for printing: the shorter of the expanded and the factored form. Never `sympy.simplify`."""
    if e.is_Atom:
        return e
    wide = sp.expand(e)
    if (
        len(wide.free_symbols) > 8
        or len(sp.Add.make_args(wide)) > 12
        or wide.has(sp.Piecewise, sp.floor, sp.ceiling, sp.Max, sp.Min)
    ):
        return cast(Expr, wide)
    tight = sp.cancel(sp.together(wide)) if wide.is_rational_function() else wide
    return cast(Expr, min((wide, tight), key=lambda x: len(str(x))))


def factored(e: Expr) -> Expr:
    """For printing: `gather`, or the product of factors where that is no longer."""
    return cast(Expr, min((sp.factor(e), gather(e)), key=lambda x: len(str(x))))


def gather(e: Expr) -> Expr:
    """For printing: `simplify`, or the sum with what all its terms share pulled out, whichever is shorter."""
    short = simplify(e)
    if not short.is_Add or len(short.args) > 12:
        return short
    return cast(Expr, min((short, sp.factor_terms(short)), key=lambda x: len(str(x))))


def equal(a: Expr, b: Expr) -> bool:
    """Whether two expressions are the same function of their sizes: by expansion, then by exact values at many points.

    Where a Max or Min decides, sizes are of many magnitudes (from 2 on), so that each side of it does.
    """
    difference = sp.expand(a - b)
    if difference == 0:
        return True
    if not difference.free_symbols:
        return bool(sp.nsimplify(difference) == 0)
    if difference.is_rational_function(*difference.free_symbols):
        return bool(sp.numer(sp.together(difference)).expand() == 0)
    names = sorted(difference.free_symbols, key=str)
    points = [[7 + 3 * i + 5 * j * (i + 1) + (i * j) % 3 for i in range(len(names))] for j in range(24)]
    if all_extremes(difference):
        draw = random.Random(7)
        points += [[draw.randint(2, draw.choice((4, 40, 4000, 10**7))) for _ in names] for _ in range(60)]
    return all(sp.simplify(difference.xreplace({n: sp.Integer(v) for n, v in zip(names, p, strict=True)})) == 0 for p in points)


def evaluate(e: Expr, values: Mapping[Symbol, int | Expr]) -> Expr:
    """`e` at a point, exactly."""
    return cast(Expr, sp.sympify(e).xreplace({k: sp.sympify(v) for k, v in values.items()}))


def put_in(e: Expr, values: Mapping[Symbol, Expr]) -> Expr:
    """`e` with expressions for symbols; a Max or Min with letters is left as it is.

    sympy drops what it takes to be smaller, and it takes 1 - 8/(X*Y) to be negative.
    """
    if not e.has(sp.Max, sp.Min):
        return evaluate(e, values)
    if isinstance(e, (sp.Max, sp.Min)):
        return apply("max" if isinstance(e, sp.Max) else "min", [put_in(a, values) for a in e.args])
    return cast(Expr, e.func(*(put_in(a, values) for a in e.args)))


_MODULES: list[Any] = [{"gcd": _gcd_of_floats}, "numpy"]


def compile_many(expressions: Sequence[Expr | Boolean], names: Sequence[str]) -> Callable[..., Any]:
    """A function of the named sizes, for numpy arrays or numbers, that returns one value per expression.

    Common subexpressions are shared. Arguments have names of their own, for a size may be called as a function is: `mod`.
    """
    symbols = [size(n) for n in names]
    return cast(Callable[..., Any], sp.lambdify(symbols, list(expressions), modules=_MODULES, cse=True, dummify=True))


def roots(e: Expr, symbol: Symbol) -> list[Expr]:
    """The real roots of a rational function of `symbol`; empty where there is none in closed form."""
    top = sp.numer(sp.together(e))
    if not top.is_polynomial(symbol):
        return []
    polynomial = sp.Poly(top, symbol)
    if polynomial.degree() < 1:
        return []
    if polynomial.degree() == 1:
        a, b = polynomial.all_coeffs()
        return [cast(Expr, sp.cancel(-b / a))]
    return [cast(Expr, r) for r in sp.roots(polynomial) if r.is_real is not False]


def extremes(e: Expr) -> tuple[Expr, ...]:
    """What a Max or Min is taken of; empty for anything else."""
    return tuple(e.args) if isinstance(e, (sp.Max, sp.Min)) else ()


def all_extremes(e: Expr) -> list[tuple[Expr, ...]]:
    """What every Max and Min anywhere in an expression is taken of."""
    return [tuple(x.args) for x in sp.preorder_traversal(e) if isinstance(x, (sp.Max, sp.Min))]


def is_rational(e: Expr) -> bool:
    """Whether it is a ratio of polynomials."""
    return bool(e.is_rational_function())


@functools.lru_cache(maxsize=1024)
def fraction(e: Expr) -> tuple[Expr, Expr]:
    """What stands above and below the line, multiplied out, without common factors."""
    above, below = sp.fraction(sp.cancel(sp.together(e)))
    return cast(Expr, sp.expand(above)), cast(Expr, sp.expand(below))


def spread(e: Expr) -> int:
    """At most how many terms there are above and below the line when all is multiplied out."""
    if e.is_Atom:
        return 1
    parts = [spread(a) for a in e.args]
    if isinstance(e, sp.Pow) and e.exp.is_Integer:
        return math.comb(parts[0] + abs(int(e.exp)) - 1, abs(int(e.exp)))
    return sum(parts) if e.is_Add else math.prod(parts)


def has_root_of_number(e: Expr) -> bool:
    """Whether an irrational number stands in it, the square root of 128."""
    return any(a.is_number and a.is_Rational is False for a in sp.preorder_traversal(e))


def degree(e: Expr) -> int:
    """At most the degree of what stands above and below the line."""
    if e.is_Atom:
        return int(e.is_Symbol)
    parts = [degree(a) for a in e.args]
    if isinstance(e, sp.Pow):
        return parts[0] * math.ceil(abs(e.exp)) if e.exp.is_Rational else 1000
    return max(parts) if e.is_Add else sum(parts)


def limit(e: Expr, symbols: Iterable[Symbol]) -> Expr:
    """`e` as the given symbols grow without bound, one after the other."""
    for s in symbols:
        e = sp.limit(e, s, sp.oo)
    return e


def leading_ratio(above: Expr, below: Expr, symbol: Symbol) -> Expr | None:
    """What above/below tends to as one symbol of these polynomials grows; None where it is not finite, or they are none."""
    if not (above.is_polynomial(symbol) and below.is_polynomial(symbol)):
        return None
    a, b = sp.Poly(above, symbol), sp.Poly(below, symbol)
    if a.degree() != b.degree():
        return ZERO if a.degree() < b.degree() else None
    return cast(Expr, sp.cancel(a.LC() / b.LC()))


def show(e: Any) -> str:
    """The expression as people write it in Python: 2*B*D*F."""
    return str(e)


def latex(e: Any) -> str:
    """The expression in LaTeX."""
    return str(sp.latex(e))


def where_at_most(a: Expr, b: Expr, then: Expr, otherwise: Expr) -> Expr:
    """`then` where a <= b, else `otherwise`; decided at once where the sign of a - b is known."""
    difference = sp.expand(a - b)
    if difference.is_nonpositive:
        return then
    if difference.is_positive:
        return otherwise
    return cast(Expr, sp.Piecewise((then, sp.Le(a, b)), (otherwise, True)))


def sum_over(e: Expr, index: Symbol, rounds: Expr) -> Expr:
    """The sum of `e` for index = 0, 1, ..., rounds - 1."""
    if not e.has(index):
        return e * rounds
    return cast(Expr, sp.expand(sp.summation(sp.expand(e), (index, 0, rounds - 1))))


def divides(e: Expr, by: Expr) -> Boolean:
    """The condition `e % by == 0`."""
    return cast(Boolean, sp.Eq(sp.Mod(e, by), 0))


def parity(n: Expr) -> Expr:
    """1 where a whole number is odd, 0 where it is even."""
    return cast(Expr, sp.Mod(n, 2))


def _relation(kind: Any, a: Expr, b: Expr) -> Boolean:
    """A comparison that is true somewhere. Of whole numbers sympy takes 1 - 8/(X*Y) for negative: there it is left as it is."""
    told = kind(a, b)
    if told not in (sp.true, sp.false):
        return cast(Boolean, told)
    top, bottom = sp.fraction(sp.together(a - b))
    trusted = told == sp.true and (len(bottom.free_symbols) < 2 or getattr(sp.expand(top), _SIGN[kind]))
    return cast(Boolean, told if trusted else kind(a, b, evaluate=False))


_SIGN = {sp.Ge: "is_nonnegative", sp.Le: "is_nonpositive"}


def at_branch(e: Expr, point: Mapping[Symbol, int | Expr]) -> tuple[Expr, tuple[Boolean, ...]]:
    """An expression as it is around a point, without Max, Min, Piecewise and Mod, and the conditions under which it is that.

    Of several that are equally large the one with most sizes in it is taken; where the point leaves letters open that decide
    it, all stay.
    """
    conditions: list[Boolean] = []

    def walk(x: Any) -> Any:
        if x.is_Atom:
            return x
        if isinstance(x, sp.Piecewise):
            for value, condition in x.args:
                here = condition.xreplace(here_of)
                if here == sp.true:
                    conditions.extend(c for c in [condition] if c != sp.true)
                    return walk(value)
                conditions.append(sp.Not(condition))
        if isinstance(x, sp.Mod):
            value = x.xreplace(here_of)
            conditions.append(sp.Eq(x, value))
            return value
        args = [walk(a) for a in x.args]
        if not isinstance(x, (sp.Max, sp.Min)):
            return x.func(*args)
        larger = isinstance(x, sp.Max)
        values = {a: sp.sympify(a.xreplace(here_of)) for a in args}
        try:
            end = (max if larger else min)(values.values())
        except TypeError:  # letters that the point leaves open decide
            return x.func(*dict.fromkeys(args), evaluate=False)
        chosen = max((a for a in args if values[a] == end), key=lambda a: len(a.free_symbols))
        for other in args:
            if other != chosen and (chosen - other).free_symbols:
                conditions.append(_relation(sp.Ge if larger else sp.Le, chosen, other))
        return chosen

    here_of = {k: sp.sympify(v) for k, v in point.items()}
    found = walk(e)
    return cast(Expr, found), tuple(c for c in dict.fromkeys(conditions) if c != sp.true)
