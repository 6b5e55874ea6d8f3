"""The right answer of a part, and the known others, as exact values at many points, so that forms do not matter.

Letters of sizes get random whole numbers. Equality of two expressions is decided by simplification where that is quick, and
by exact values at all points.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from costir import sampling
from costir import symbolic as sym
from costir.errors import CostirError
from costir.exercises.derive import derive
from costir.exercises.records import Exercise, Other, Part
from costir.formula import Formula, parse_formula
from costir.formula_tokens import COUNTED, UNITS
from costir.sampling import Values
from costir.symbolic import Expr

POINTS = 20
TRIES = 400  # evaluations to find both sides of a Max
BITS = Fraction(1, 8)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit in SI: what it measures, and how much one is. Things that are counted measure nothing, but differ."""

    base: str
    scale: Fraction
    counts: str = ""
    name: str = ""

    def agrees(self, other: Unit) -> bool:
        """Whether a number in one can be meant in the other: FLOPs and operators are plain numbers, tokens are no chips."""
        if self.base != other.base:
            return {self.base, other.base} <= {"", "FLOP"} and (self.counts or other.counts) in ("", "operator")
        return not self.counts or not other.counts or self.counts == other.counts


@functools.lru_cache(maxsize=4096)
def unit_of(text: str) -> Unit:
    """A unit by its written name: "GB" is 1e9 byte, "tokens" plain numbers, "bit" an eighth of a byte."""
    above, _, below = text.partition("/")
    top, bottom = _simple(above), _simple(below)
    scale = top.scale / bottom.scale
    if bottom.base and top.base != bottom.base:
        return Unit(f"{top.base or '1'}/{bottom.base}", scale, top.counts, text)
    return Unit("" if bottom.base else top.base, scale, top.counts, text)


_ALIKE = {"GPU": "chip", "TPU": "chip", "device": "chip", "query": "sequence", "request": "sequence", "kernel": "operator",
          "parameter": "param", "pass": "pass", "time": ""}  # fmt: skip


def _counted(word: str) -> str:
    """What is counted, where it is something in particular."""
    return _ALIKE.get(word, word)


def _simple(name: str) -> Unit:
    name = name.strip()
    if name in ("", "1"):
        return Unit("", Fraction(1))
    if "/" in name or name not in UNITS:
        plain = name.removesuffix("s")
        return Unit("", Fraction(1), _counted(plain)) if plain in COUNTED else Unit(name, Fraction(1))
    base, scale = UNITS[name]
    exact = sym.to_fraction(scale) or Fraction(1)
    if base == "bit":
        return Unit("byte", exact * BITS)
    if base in COUNTED or base in ("token", "param", "parameter"):
        return Unit("", exact, _counted(base))
    return Unit(base, exact)


@dataclass(frozen=True)
class Known:
    """An answer that is known, right or not.

    Attributes:
        expr: in SI, over letters; `at` has numbers for them (the part's, unless the answer has its own).
        symbol: what a bound is on; "" for others.
        relation: "<", ">", "<=", ">=" for bounds, else "".
        other: which known other answer it is; None for the right one.
    """

    expr: Expr
    at: Mapping[str, Fraction]
    symbol: str = ""
    relation: str = ""
    other: Other | None = None

    @functools.cached_property
    def valued(self) -> Expr:
        """The expression with all given numbers put in."""
        return put(self.expr, self.at)

    @functools.cached_property
    def number(self) -> Fraction | None:
        """Its value, where numbers are given for all letters."""
        return sym.to_fraction(self.valued)


def put(e: Expr, values: Mapping[str, Fraction]) -> Expr:
    """Numbers for letters."""
    return sym.evaluate(e, {sym.size(n): sym.number(v) for n, v in values.items()})


def _drawn(draw: random.Random, names: Sequence[str]) -> Mapping[str, int]:
    """A point: all letters of one magnitude, or each of its own."""
    tops = (4, 12, 400, 10**6, 10**9)
    one = draw.choice(tops) if draw.random() < 0.5 else 0
    return {n: draw.randint(2, one or draw.choice(tops)) for n in names}


class Reference:
    """What a part's answers are compared with.

    Raises:
        CostirError: where the bank's own answer cannot be read or derived.
    """

    def __init__(self, exercise: Exercise, part: Part) -> None:
        self.exercise, self.part = exercise, part
        self.letters = frozenset(exercise.letters)
        self.unit = unit_of(part.unit)
        self.right = self._right()
        self.points = self._points()
        self._values: dict[tuple[Expr, int], Values | None] = {}

    def _read(self, text: str, values: Mapping[str, Fraction], other: Other | None = None) -> Known:
        read = parse_formula(text, self.letters, two_sided=True)
        expr, _ = in_si(read, self.unit)
        bound = read.relation if read.relation in ("<", "<=", ">", ">=") else ""
        return Known(expr, values, read.lhs or "" if bound else "", bound, other)

    def _right(self) -> Known:
        part = self.part
        try:
            if part.answer:
                return self._read(part.answer, part.values)
            return Known(derive(part.derive, self.exercise.folder) * sym.number(self.unit.scale), part.values)
        except CostirError as error:
            raise CostirError(f"exercise {self.exercise.ident}, part {part.ident}: {error.message}", error.hint) from error

    @functools.cached_property
    def others(self) -> tuple[Known, ...]:
        """Conventions, then slips, then mistakes."""
        return tuple(self._read(o.answer, {**self.part.values, **o.values}, o) for o in self.part.others)

    @functools.cached_property
    def limit(self) -> Known | None:
        """The form in the limit where the exact one is asked, or the reverse."""
        return self._read(self.part.limit, self.part.values) if self.part.limit else None

    def _points(self) -> list[Mapping[str, int]]:
        draw = random.Random(7)
        names = sorted(self.letters | {str(s) for s in self.right.expr.free_symbols})
        points = [_drawn(draw, names) for _ in range(POINTS)]
        given = {n: int(v) for n, v in self.part.values.items() if v.denominator == 1}
        points += [{**p, **given} for p in points[::3]]
        return points + self._sides(self.right.expr, names)

    def _sides(self, e: Expr, names: Sequence[str]) -> list[Mapping[str, int]]:
        """Points at which each argument of each Max, Min and rounding decides, so that no side goes unseen."""
        draw, found = random.Random(11), []
        for arguments in sym.all_extremes(e)[:8]:
            seen: dict[int, int] = {}
            for _ in range(TRIES // len(arguments)):
                point = _drawn(draw, names)
                values = [sampling.value(a, point) for a in arguments]
                if None in values:
                    break
                order = sorted(range(len(arguments)), key=lambda i: values[i])  # type: ignore[arg-type,return-value]
                for which in (order[0], order[-1]):
                    seen[which] = seen.get(which, 0) + 1
                    if seen[which] <= 2 and point not in found:
                        found.append(point)
                if len(seen) == len(arguments) and min(seen.values()) >= 2:
                    break
        return found

    def values(self, e: Expr, count: int) -> Values | None:
        """Values at the first points."""
        if (e, count) not in self._values:
            if len(self._values) > 2000:
                self._values.clear()
            self._values[e, count] = sampling.values(e, self.points[:count])
        return self._values[e, count]

    def equal(self, a: Expr, b: Expr) -> bool:
        """Whether two expressions are one function of the letters."""
        if a == b:
            return True
        for count in (2, len(self.points)):  # most that differ do so at once
            left, right = self.values(a, count), self.values(b, count)
            if left is None or right is None or not sampling.same(left, right):
                return False
        more = self._sides(a, sorted(self.letters)) if sym.all_extremes(a) else []
        left, right = sampling.values(a, more), sampling.values(b, more)
        return left is not None and right is not None and sampling.same(left, right)

    @functools.lru_cache(maxsize=64)  # noqa: B019 - references live as long as the bank
    def term(self, text: str) -> Expr:
        """A named term of the bank."""
        return parse_formula(text, self.letters).expr

    def name(self, ident: str) -> Known:
        """The right answer, or that of a convention: what a part's name asks for."""
        return next((k for k in self.others if k.other is not None and k.other.ident == ident), self.right)


def in_si(read: Formula, default: Unit) -> tuple[Expr, Fraction]:
    """What was typed, in SI, and what it was multiplied by: without a unit it is in the part's own."""
    if not read.unit:
        return read.expr * sym.number(default.scale), default.scale
    own = unit_of(read.unit).scale  # the reader has put the prefixes in already
    return read.expr * sym.number(own), own * (sym.to_fraction(read.scale) or 1)
