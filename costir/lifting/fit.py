"""Numbers seen at several points -> the expression in the sizes that gives them at every point.

A number that is a product of powers of sizes is recognised from the ratio of its values at two points whose sizes have
independent prime factors. Everything else (sums, floors) is proposed by a list of simple forms or by the operator that made
the number. No proposal is believed before it has given the right number at every point, the base sizes included.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import sympy as sp

from costir.errors import LiftError
from costir.lifting.steps import ROUNDING, Derived, combined, rounded_to, roundings_to
from costir.symbolic import Expr, Integer, ceil_div, floor_div, size
from costir.tracing.dims import slips

Vector = tuple[int, ...]
_LARGEST_DIVISOR = 4096
_SHARES = (2, 3, 4, 5, 8, 10, 20, 100)


class UnsureError(LiftError):
    """Several expressions give the same numbers at all points: another point is needed."""

    def __init__(self, message: str, forms: Sequence[Expr]) -> None:
        super().__init__(message, "choose other base sizes")
        self.forms = forms


def factors(n: int) -> dict[int, int]:
    """Prime factors of a positive whole number."""
    return dict(sp.factorint(n))


def straight(xs: Sequence[int], ys: Sequence[int]) -> tuple[Fraction, Fraction] | None:
    """The slope and the start of the line that all points lie on; None where there is none, or fewer than three places."""
    if len(set(xs)) < 3:
        return None
    i = next(i for i, x in enumerate(xs) if x != xs[0])
    slope = Fraction(ys[i] - ys[0], xs[i] - xs[0])
    start = ys[0] - slope * xs[0]
    return (slope, start) if all(y == start + slope * x for x, y in zip(xs, ys, strict=True)) else None


class Fitter:
    """Recognises vectors of values at the given points.

    Args:
        points: the sizes at each trace. The first two must be independent: see `independent`.
        names: the sizes.
        steps: arithmetic that the program did on its sizes, by the vector of its results.
        periods: of layers that repeat: sizes to (prefix, period).
        divisors: numbers that the program divides sizes by.
        axes: the sizes that are numbers of devices: anything may be divided by these.
    """

    def __init__(
        self,
        points: Sequence[Mapping[str, int]],
        names: Sequence[str],
        steps: Mapping[Vector, Sequence[Derived]] | None = None,
        periods: Mapping[str, tuple[int, int]] | None = None,
        divisors: frozenset[int] = frozenset(),
        axes: Sequence[str] = (),
    ) -> None:
        self.points = points
        self.names = list(names)
        self.steps = steps or {}
        self.periods = periods or {}
        self.divisors = divisors
        self.axes = axes
        self._stepped: dict[Vector, Expr | None] = {}
        self.guessed = False  # some number was found by a guess, not by a rule
        self._sums: list[tuple[Expr, Vector]] | None = None
        self.known: dict[Vector, Expr | None] = {}
        self._primes, self._rows = self._system()
        self._inverse = _left_inverse(self._rows)
        if self._inverse is None:
            raise LiftError("the points of two traces do not tell the sizes apart")

    def _system(self) -> tuple[list[int], list[list[int]]]:
        a, b = self.points[0], self.points[1]
        ratios = {n: Fraction(b[n], a[n]) for n in self.names}
        valued = {n: _valuations(r) for n, r in ratios.items()}
        primes = sorted({p for v in valued.values() for p in v})
        return primes, [[valued[n].get(p, 0) for n in self.names] for p in primes]

    def at(self, e: Expr) -> tuple[Expr, ...]:
        """The values of an expression at every point."""
        return tuple(e.xreplace({size(n): Integer(p[n]) for n in self.names}) for p in self.points)

    def fits(self, e: Expr, vector: Vector) -> bool:
        """Whether the expression gives the vector at every point."""
        return all(x == v for x, v in zip(self.at(e), vector, strict=True))

    def without_last(self) -> Fitter:
        """The same without the last point, with all that is known."""
        found = Fitter(self.points[:-1], self.names, None, self.periods, self.divisors)
        found.known = {v[:-1]: e for v, e in self.known.items() if e is not None}
        return found

    def propose(self, vector: Vector, e: Expr) -> bool:
        """Take an expression for a vector if it fits; the first that fits stays."""
        if self.known.get(vector) is None and self.fits(e, vector):
            self.known[vector] = e
        return self.known.get(vector) is not None

    def fit(self, vector: Vector) -> Expr | None:
        """The expression of a vector of values, or None."""
        if vector not in self.known or self.known[vector] is None:
            self.known[vector] = self._fit(vector)
        return self.known[vector]

    def plain(self, vector: Vector) -> Expr | None:
        """Like `fit`, but nothing is guessed: a number, a product, or what the program itself computed."""
        if self.known.get(vector) is None:
            found = Integer(vector[0]) if all(v == vector[0] for v in vector) else self.monomial(vector) or self.stepped(vector)
            if found is None:
                return None
            self.known[vector] = found
        return self.known[vector]

    def _fit(self, vector: Vector) -> Expr | None:
        plain = self.plain(vector)
        if plain is None and self.axes:  # where a trace is long, and layers are all alike but for the first and the last
            plain = self.by_layers(vector)
        if plain is not None:
            return plain
        self.guessed = True
        for c in (1, -1, 2, -2, 3, -3, 4, -4):
            less = tuple([v - c for v in vector])
            shifted = self.monomial(less) or self.stepped(less)
            if shifted is not None:
                return shifted + c
        return next((e for e in self._guesses(vector) if self.fits(e, vector)), None)

    def by_layers(self, vector: Vector) -> Expr | None:
        """A whole number for each layer and some more; or None."""
        for n in self.periods:
            line = straight([int(p[n]) for p in self.points], vector)
            if line is not None and line[0] and line[0].denominator == 1:
                return int(line[0]) * size(n) + int(line[1])
        return None

    def exact(self, vector: Vector) -> Expr | None:
        """Like `fit`, but what the program rounded stays rounded: D // 2 > 3 is no condition on D/2."""
        if any(d.op in ROUNDING for d in self.steps.get(vector, ())):
            return self.stepped(vector) or self.fit(vector)
        return self.fit(vector)

    def stepped(self, vector: Vector) -> Expr | None:
        """What the program itself computed, where it computed the vector; None where it did not, or from unknown numbers."""
        if vector not in self._stepped:
            self._stepped[vector] = None  # no circles
            self._stepped[vector] = next(
                (e for e in map(self._step, self.steps.get(vector, ())) if e is not None and self.fits(e, vector)), None
            )
        return self._stepped[vector]

    def _step(self, d: Derived) -> Expr | None:
        a, b = self._operand(d.left), self._operand(d.right)
        return combined(d.op, d.scale, a, b) if a is not None and b is not None else None

    def _operand(self, vector: Vector) -> Expr | None:
        if all(v == vector[0] for v in vector):
            return Integer(vector[0])
        known = self.known.get(vector)
        rounding = any(d.op in ROUNDING for d in self.steps.get(vector, ()))
        return (self.stepped(vector) if rounding else None) or known or self.monomial(vector) or self.stepped(vector)

    def monomial(self, vector: Vector) -> Expr | None:
        """A rational number times powers of sizes, or None."""
        if any(v == 0 for v in vector) or len({v > 0 for v in vector}) > 1:
            return None
        valuations = self._divide_out(Fraction(vector[1], vector[0]))
        exponents = self._solve(valuations) if valuations is not None else None
        if exponents is None:
            return None
        e = sp.Mul(*(size(n) ** k for n, k in zip(self.names, exponents, strict=True)))
        c = sp.Rational(vector[0]) / e.xreplace({size(n): Integer(self.points[0][n]) for n in self.names})
        if not _natural(c, [k for n, k in zip(self.names, exponents, strict=True) if n not in self.axes]):
            return None
        result = c * e
        return result if self.fits(result, vector) else None

    def _divide_out(self, ratio: Fraction) -> list[int] | None:
        """The exponents of the sizes' primes in a ratio, or None where another prime remains."""
        top, bottom = ratio.numerator, ratio.denominator
        exponents = []
        for p in self._primes:
            k = 0
            while top % p == 0:
                top, k = top // p, k + 1
            while bottom % p == 0:
                bottom, k = bottom // p, k - 1
            exponents.append(k)
        return exponents if top == bottom == 1 else None

    def _solve(self, right: list[int]) -> list[int] | None:
        assert self._inverse is not None
        solution = [sum((f * r for f, r in zip(row, right, strict=True)), Fraction(0)) for row in self._inverse]
        if any(x.denominator != 1 for x in solution):
            return None
        exponents = [int(x) for x in solution]
        back = [sum(m * e for m, e in zip(row, exponents, strict=True)) for row in self._rows]
        return exponents if back == right and all(abs(e) <= 6 for e in exponents) else None

    def _guesses(self, vector: Vector) -> Iterator[Expr]:
        """Sums of two products, floors and ceilings of a product, of those met so far."""
        base = [size(n) for n in self.names]
        seen = [e for e in self.known.values() if e is not None and e.free_symbols and e.as_coeff_Add()[0] == 0]
        words = list(dict.fromkeys([*base, *seen]))[:80]
        table = [(w, v) for w, v in ((w, self.at(w)) for w in words) if all(x.is_Integer for x in v)]
        yield from self._roundings(vector)  # what the program computed is likelier than what numbers look like
        yield from self._multiples(vector)
        yield from self._by_factor(vector)
        yield from self._by_period(vector)
        yield from self._floors(table, vector)
        yield from self._shares(vector)
        yield from self._affine(table, vector)

    def _multiples(self, vector: Vector) -> Iterator[Expr]:
        """A sum, floor or ceiling met before, times a product of sizes: B*(I**2/P**2 + 1)."""
        for w in [e for e in self.known.values() if e is not None and e.free_symbols and self._is_composite(e)][:60]:
            values = self.at(w)
            if all(v.is_Integer and v != 0 and n % int(v) == 0 for v, n in zip(values, vector, strict=True)):
                quotient = tuple(n // int(v) for v, n in zip(values, vector, strict=True))
                rest = Integer(quotient[0]) if len(set(quotient)) == 1 else self.monomial(quotient) or self.known.get(quotient)
                if rest is not None:
                    yield rest * w

    def _by_factor(self, vector: Vector) -> Iterator[Expr]:
        """A product in which one or two factors are sums: T*(T + 1)/2, (N + 2*K)*H; or one is a half, a quarter rounded."""
        usable = [(f, v) for f, v in self._factors() if all(x > 0 and 12 * n % x == 0 for x, n in zip(v, vector, strict=True))]
        for f, v in usable:
            rest = self._rest(vector, v)
            if rest is not None and (rest.as_coeff_Mul()[0].is_Integer if self._is_rounded(f) else self._whole(rest, f)):
                yield rest * f
        for (f, v), (g, w) in itertools.combinations_with_replacement(usable[:40], 2):
            if self._is_rounded(f) or self._is_rounded(g):
                continue  # no program multiplies two roundings
            both = tuple([x * y for x, y in zip(v, w, strict=True)])
            if all(12 * n % x == 0 for x, n in zip(both, vector, strict=True)):
                rest = self._rest(vector, both)
                if rest is not None and self._whole(rest, f * g):
                    yield rest * f * g

    def _rest(self, vector: Vector, divisor: Vector) -> Expr | None:
        quotient = tuple([12 * n // x for n, x in zip(vector, divisor, strict=True)])
        rest = Integer(quotient[0]) if len(set(quotient)) == 1 else self.monomial(quotient)
        return rest / 12 if rest is not None else None

    def _whole(self, rest: Expr, sums: Expr) -> bool:
        """Whether what a product is divided by divides it always, T*(T + 1)/2, or its sizes at every point, D/2*(T + 1).

        At odd B, T*(B - 1)/2 is T*(B//2): what divides only the sum says nothing of other points.
        """
        q = int(sp.denom(rest.as_coeff_Mul()[0]))
        if q == 1 or all(v.is_Integer for v in self.at(rest)):
            return True
        free = sorted((rest * sums).free_symbols, key=str)
        return len(free) < 4 and all(
            (rest * sums).xreplace(dict(zip(free, map(Integer, values), strict=True))).is_Integer
            for values in itertools.product(range(2, q + 2), repeat=len(free))
        )

    def _factors(self) -> list[tuple[Expr, Vector]]:
        """Sums of sizes that occur as factors, with their values."""
        if self._sums is None:
            base = [size(n) for n in self.names]
            sums = [b + c for b in base for c in (-1, 1, -2, 2, -3, 3)] + [2 * b + c for b in base for c in (-1, 1)]
            sums += [
                g(b, Integer(q))
                for b, q, g in itertools.product(base, (2, 3, 4, 8), (floor_div, ceil_div))
                if self._shows(b, q)
            ]
            sums += [a + s * b for a in base for b in base if a != b for s in (1, 2, -1, 3)]
            self._sums = [(e, tuple([int(v) for v in self.at(e)])) for e in dict.fromkeys(sums)]
        return self._sums

    def _shows(self, symbol: Expr, q: int) -> bool:
        """Whether the points have more than one remainder of a size: else floor and ceiling look alike."""
        return len({int(v) % q for v in self.at(symbol)}) > 1

    def _by_period(self, vector: Vector) -> Iterator[Expr]:
        """How many layers of a kind there are, where kinds alternate: ceil((L - r)/p), times a product of sizes."""
        for n in self.names:
            prefix, period = self.periods.get(n, (0, 0))
            for p in (period,) if period > 1 else range(2, 9) if n in self.periods else ():
                for s, r in itertools.product(
                    (None, 0, 1), range(prefix, prefix + 2 * p)
                ):  # the first of a kind may stand apart
                    count = ceil_div(size(n) - r, Integer(p))
                    e = size(n) - s - count if s is not None else count
                    values = tuple([int(v) for v in self.at(e)])
                    if len(set(self.at(count))) == 1:
                        continue  # no point shows that it grows
                    if all(v > 0 and x % v == 0 for v, x in zip(values, vector, strict=True)):
                        rest = self._rest(vector, values)
                        if rest is not None:
                            yield rest * e

    def _roundings(self, vector: Vector) -> Iterator[Expr]:
        """Something that the program computed, rounded to a multiple of a number.

        Raises:
            UnsureError: several numbers give the same at all points.
        """
        for values in list(self.steps)[:200]:
            units = roundings_to(vector, values)
            word = self._operand(values) if units else None
            if word is not None and word.free_symbols:
                forms = [rounded_to(word, *u) for u in units]
                if len(forms) > 1:
                    raise UnsureError(f"{forms[0]} and {forms[1]} are the same at all points", forms)
                yield forms[0]

    def _is_rounded(self, e: Expr) -> bool:
        return bool(e.has(sp.floor, sp.ceiling))

    def _is_composite(self, e: Expr) -> bool:
        return bool(e.is_Add or e.has(sp.floor, sp.ceiling))

    def _floors(self, table: list[tuple[Expr, tuple[Expr, ...]]], vector: Vector) -> Iterator[Expr]:
        """floor or ceiling of a q-th of a size or product, small q first, where the points show more than one remainder.

        A program halves, takes every eighth, or divides by a number that it was seen to divide by; of parts such as 2/7 it
        would have to say so itself.
        """
        for q in sorted({2, 3, 4, 5, 6, 7, 8, 16, 32, 64, *(d for d in self.divisors if d <= _LARGEST_DIVISOR)}):
            for w, v in table:
                values = [int(x) for x in v]
                if w.has(sp.floor, sp.ceiling) or len({x % q for x in values}) < 2 or len({x // q for x in values}) < 2:
                    continue
                if all(abs(n * q - x) < q for n, x in zip(vector, values, strict=True)):
                    yield from (floor_div(w, Integer(q)), ceil_div(w, Integer(q)))

    def _shares(self, vector: Vector) -> Iterator[Expr]:
        """floor or ceiling of a decimal share of a size: int(0.3 * T) leaves no trace of its own.

        Not of shares whose product as floats may come out beside the whole number that it is by fractions: 0.29*100 < 29.

        Raises:
            UnsureError: several shares give the same at all points; the simplest first, then the one that is most like it.
        """
        for n in self.names:
            values = [int(p[n]) for p in self.points]
            if len(set(values)) < 3:
                continue
            found: list[tuple[Fraction, Expr]] = []
            for p, q in ((k, whole) for whole in _SHARES for k in range(1, whole) if math.gcd(k, whole) == 1):
                if all(abs(v * q - x * p) < q for v, x in zip(vector, values, strict=True)) and not slips(p / q):
                    rounded = (floor_div(size(n) * p, Integer(q)), ceil_div(size(n) * p, Integer(q)))
                    found += [(Fraction(p, q), e) for e in rounded if self.fits(e, vector)]
            if len(found) > 1:
                share, first = found[0]
                closest = sorted(found[1:], key=lambda other: abs(other[0] - share))
                forms = [first, *(e for _, e in closest)]
                raise UnsureError(f"{forms[0]} and {forms[1]} are the same at all points", forms)
            yield from (e for _, e in found)

    def _affine(self, table: list[tuple[Expr, tuple[Expr, ...]]], vector: Vector) -> Iterator[Expr]:
        """a*u + b*v + c with whole a, b in -8..8, from the first two points; the others decide."""
        if len(self.points) < 3:
            return  # nothing would be left to decide
        for u, uv in table:
            slope = Fraction(vector[1] - vector[0], int(uv[1] - uv[0])) if uv[1] != uv[0] else None
            if slope is not None and slope.denominator <= 4:
                yield u * sp.Rational(slope.numerator, slope.denominator) + vector[0] - sp.Rational(
                    slope.numerator, slope.denominator) * uv[0]  # fmt: skip
        for (u, uv), (w, wv) in itertools.combinations(table, 2):
            determinant = uv[0] * wv[1] - uv[1] * wv[0]
            if determinant == 0:
                continue
            a = sp.Rational(vector[0] * wv[1] - vector[1] * wv[0], determinant)
            b = sp.Rational(uv[0] * vector[1] - uv[1] * vector[0], determinant)
            if a.q <= 4 and b.q <= 4 and abs(a) <= 64 and abs(b) <= 64:
                yield a * u + b * w


def _natural(c: Expr, exponents: Sequence[int]) -> bool:
    """Whether a coefficient can be a model's own: small numbers of few points also fit 3*B*K/(13*L), which no model has.

    What a program divides by is a small number or a round one (12, 64, 768), never 13*L; and it divides by one or two sizes.
    """
    rest = int(c.q)
    for p in (2, 3, 5, 7):
        while rest % p == 0:
            rest //= p
    below = sum(k < 0 for k in exponents)
    return rest == 1 and below <= 2 and (below < 2 or c.q <= 4)


def _valuations(r: Fraction) -> dict[int, int]:
    found = factors(r.numerator)
    for p, k in factors(r.denominator).items():
        found[p] = found.get(p, 0) - k
    return {p: k for p, k in found.items() if k and p > 1}


def independent(a: Mapping[str, int], b: Mapping[str, int], names: Sequence[str]) -> bool:
    """Whether the ratios b/a of the sizes are multiplicatively independent, so that they tell all products apart."""
    if any(a[n] == b[n] for n in names):
        return False
    valued = {n: _valuations(Fraction(b[n], a[n])) for n in names}
    primes = sorted({p for v in valued.values() for p in v})
    return _left_inverse([[valued[n].get(p, 0) for n in names] for p in primes]) is not None


def _left_inverse(rows: list[list[int]]) -> list[list[Fraction]] | None:
    """X with X @ rows = identity, or None where the columns are dependent. Exact Gauss-Jordan on [rows | I]."""
    m = len(rows)
    n = len(rows[0]) if rows else 0
    if n == 0:
        return []
    work = [[Fraction(x) for x in row] + [Fraction(int(i == j)) for j in range(m)] for i, row in enumerate(rows)]
    for pivot in range(n):
        column = pivot
        found = next((i for i in range(pivot, m) if work[i][column]), None)
        if found is None:
            return None
        work[pivot], work[found] = work[found], work[pivot]
        lead = work[pivot][column]
        work[pivot] = [x / lead for x in work[pivot]]
        for i in range(m):
            if i != pivot and work[i][column]:
                f = work[i][column]
                work[i] = [x - f * y for x, y in zip(work[i], work[pivot], strict=True)]
    return [work[i][n:] for i in range(n)]
