"""Solve one balance of two sums of monomials for one size: the root, where it exists, its limit, or why there is none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from costir import symbolic as sym
from costir.crossing import EVERYWHERE, Crossing, Domain, polynomial_crossings
from costir.ir import Constraint, Threshold, condition_text
from costir.laurent import Laurent
from costir.symbolic import Boolean, Expr

LONGEST = 10  # monomials of a root that is still given in all sizes
_FEW_TERMS = 12  # of a sum whose sign is looked at for all sizes


@dataclass(frozen=True)
class Case:
    """Compute time `work` against the time `move` of another resource, both in seconds, solved for the size `unknown`.

    Attributes:
        work, move: sums of monomials with positive values.
        unknown: a name in them.
        sizes: base values of every name.
        ridge: FLOP/byte at which the two are equal, where the part has one compute type; else None.
        widths: names that grow in the limit; empty for all.
        domain: what the unknown may be. factors: the sizes whose product it is; empty where it is a size.
        resource: what `move` is the time of.
    """

    work: Laurent
    move: Laurent
    unknown: str
    sizes: Mapping[str, int]
    ridge: Fraction | None
    widths: Collection[str]
    domain: Domain = EVERYWHERE
    factors: tuple[str, ...] = ()
    resource: str = "memory"

    def outside(self, value: Fraction) -> Constraint | None:
        """The constraint that a value of the unknown breaks. Below 1 nothing is asked: no size can be there."""
        if value <= 1:
            return None
        return self.domain.unreachable(self.factors, value) if self.factors else self.domain.outside(self.unknown, value)

    @cached_property
    def powers(self) -> list[Laurent]:
        """Work minus move without its common monomial: the coefficients of the powers 0, 1, ... of the unknown."""
        difference = Laurent.sum([(self.work, Fraction(1)), (self.move, Fraction(-1))])
        found = difference.whole().primitive().by_power(self.unknown)
        return [found.get(i, Laurent({})) for i in range(max(found, default=0) + 1)]

    @property
    def degree(self) -> int:
        """The degree in the unknown; 0 where it cancels."""
        return len(self.powers) - 1

    @property
    def names(self) -> frozenset[str]:
        """The other sizes that the sign depends on."""
        return frozenset().union(*(c.names for c in self.powers))

    @property
    def readable(self) -> bool:
        """Whether the root is worth writing in all sizes."""
        # The square root of degree 2 holds all pairs of terms.
        return 1 <= self.degree <= 2 and sum(len(c.terms) for c in self.powers) <= LONGEST // self.degree

    @cached_property
    def numbers(self) -> list[Fraction]:
        """The coefficients at the base sizes."""
        return [c.value(self.sizes) for c in self.powers]

    def solve(self, what: str) -> Threshold:
        """The threshold of this case."""
        found = from_one(polynomial_crossings(self.numbers))
        crossings = [c for c in found if self.outside(c.value) is None]
        chosen, lost = choose(crossings), choose(found)
        value, note = self._value(chosen) if self.readable else None, intervals(crossings, self.unknown)
        if value is None and chosen is not None:
            value = sym.number(chosen.value) if sum(c != 0 for c in self.numbers) == 2 and self.degree == 1 else None
            others = {n: self.sizes[n] for n in sorted(self.names)}
            at = ", ".join(f"{n} = {v}" for n, v in others.items())
            note = "; ".join(x for x in (f"{'' if value is not None else 'numeric, '}at {at}" if at else "numeric", note) if x)
        when = self._when() if self.readable else sym.boolean(chosen is not None)
        if when == sym.boolean(False) or (chosen is None and value is not None and not value.free_symbols):
            value = None
        limit = self._limit() if self.degree == 1 else None
        if chosen is None:
            broken = None if lost is None else self.outside(lost.value)
            reason, end = (self.reason(), "") if lost is None or broken is None else beyond(self.unknown, lost.value, broken)
            return Threshold(what, self.unknown, value, None, when, limit, reason=reason, note=note, within=end)
        sides = (self.resource, "compute") if chosen.up else ("compute", self.resource)
        return Threshold(what, self.unknown, value, float(chosen.value), when, limit, *sides, note=note)

    # ---- the root in all sizes

    def _value(self, chosen: Crossing | None) -> Expr | None:
        """The exact root: the only one of degree 1, the one that holds at the base for degree 2."""
        if self.degree == 1:
            return quotient(self.powers[0], self.powers[1])
        if chosen is None:
            return None
        c, b, a = (c.expr() for c in self.powers)
        root = sym.apply("sqrt", [sym.expand(b**2 - 4 * a * c)])
        point = {sym.size(n): v for n, v in self.sizes.items()}
        candidates = [(-b + root) / (2 * a), (-b - root) / (2 * a)]
        return min(candidates, key=lambda e: abs(float(sym.evaluate(e, point)) - float(chosen.value)))

    def _when(self) -> Boolean:
        """The condition under which a positive root exists."""
        if self.degree == 1:
            return _opposite(self.powers[0], self.powers[1])
        c, b, a = self.powers
        square = Laurent.sum([(b.times(b), Fraction(1)), (a.times(c), Fraction(-4))])
        two = sym.both([positive(square), _opposite(a, b)])
        return sym.either([_opposite(a, c), two])

    def _limit(self) -> Expr | None:
        """The root as the widths grow together; None where it grows with them, or stays long."""
        low, high = self.powers
        inner = [c for c in (low, high) if len(c.terms) > 1]
        depends = frozenset().union(*(c.primitive().names for c in inner)) if inner else frozenset()
        scaled = depends & frozenset(self.widths) or depends
        (d0, top), (d1, below) = low.leading(scaled), high.leading(scaled)
        if not scaled or d0 > d1 or len(top.terms) + len(below.terms) > 4:
            return None
        if d0 < d1:
            return sym.ZERO
        at_base = [c.value(self.sizes) for c in (top, below)]
        return quotient(top, below) if at_base[0] * at_base[1] < 0 else None

    # ---- why there is none

    def reason(self) -> str:
        """Why no value of the unknown changes what binds, in one sentence with the numbers at the base sizes."""
        start, end = self._ratio(at_one=True), self._ratio(at_one=False)
        name, u = ("intensity", self.unknown) if self.ridge else ("compute time", self.unknown)
        ridge = self.ridge or Fraction(1)
        if self.degree == 0:
            shown, other, sign = compare(start * ridge, ridge)
            why = f"{u} cancels" if u in self.work.names | self.move.names else f"it does not depend on {u}"
            return f"{name} is {self._beside(shown, sign, other)} at every {u}, since {why}"
        memory = sum(self.numbers) < 0
        if not self._monotonic():
            longer, other = (self.resource, "compute") if memory else ("compute", self.resource)
            return f"{longer} time is longer than {other} time at every {u} >= 1"
        if memory and end >= start:
            shown, other, _ = compare(end * ridge, ridge)
            return f"{name} tops out at {self._top()}{self._beside(shown, '<', other)} however large {u} is"
        if memory:
            shown, other, _ = compare(start * ridge, ridge)
            reaches = "it" if self.ridge else f"{self.resource} time"
            return f"{name} is {self._beside(shown, '<', other)} at {u} = 1 and no larger {u} reaches {reaches}"
        shown, other, _ = compare(min(start, end) * ridge, ridge)
        return f"{name} is at least {self._beside(shown, '>', other)} at every {u} >= 1"

    def _monotonic(self) -> bool:
        """Whether the intensity only rises or only falls with the unknown: a ratio of two sums of two neighbouring powers."""
        powers = {*self.work.by_power(self.unknown), *self.move.by_power(self.unknown)}
        return max(powers) - min(powers) <= 1

    def _beside(self, shown: str, sign: str, other: str) -> str:
        """An intensity beside the ridge, or a time as a multiple of the other's."""
        return f"{shown} {sign} ridge {other}" if self.ridge else f"{shown} x {self.resource} time"

    def _ratio(self, at_one: bool) -> Fraction:
        """Work over move at the base sizes with the unknown at 1, or as it grows; a very large number for no bound."""
        point = {n: v for n, v in self.sizes.items() if n != self.unknown}
        work, move = self.work.at(point), self.move.at(point)
        if at_one:
            return work.value({self.unknown: 1}) / move.value({self.unknown: 1})
        (d, a), (e, b) = work.leading({self.unknown}), move.leading({self.unknown})
        one = {self.unknown: 1}
        return a.value(one) / b.value(one) if d == e else Fraction(10**30) if d > e else Fraction(0)

    def _top(self) -> str:
        """The largest intensity as an expression, where it is short: "D*F/(D + F) = "."""
        (d, a), (e, b) = self.work.leading({self.unknown}), self.move.leading({self.unknown})
        if self.ridge is None or d != e or len(a.terms) + len(b.terms) > 4:
            return ""
        top = sym.ratio(a.expr() * sym.number(self.ridge), b.expr())
        return f"{sym.show(top)} = " if top.free_symbols else ""


def beyond(unknown: str, value: Fraction, broken: Constraint) -> tuple[str, str]:
    """The reason and the range of a threshold that lies where the formulas do not hold."""
    at = f"{float(value):.4g}" if value < 1000 else f"{float(value):.0f}"
    return f"by these formulas it would be at {unknown} = {at}, outside {broken}", condition_text(broken.condition)


def quotient(low: Laurent, high: Laurent) -> Expr:
    """-low/high, the root of low + high*x, with the monomials outside: 1/T * (9850*D*F/(41*D*F - ...))."""
    monomial = sym.ratio(low.content().expr(), high.content().expr())
    inside = sym.ratio(-low.primitive().expr(), high.primitive().expr())
    return sym.product([monomial, inside])


def compare(a: Fraction, b: Fraction) -> tuple[str, str, str]:
    """Two numbers with as many digits as tell them apart, at least 4, and how they compare."""
    for digits in (4, 6, 9, 12):
        x, y = f"{float(a):.{digits}g}", f"{float(b):.{digits}g}"
        if x != y:
            return x, y, "<" if a < b else ">"
    return x, y, "="


def from_one(crossings: Sequence[Crossing]) -> list[Crossing]:
    """Without those below 1, which no size can take; the last of them where there is no other, so that one can say so."""
    return [c for c in crossings if c.value > 1] or list(crossings[-1:])


def choose(crossings: Sequence[Crossing]) -> Crossing | None:
    """The one to report: the last that leads to compute, else the last."""
    return next((c for c in reversed(crossings) if c.up), crossings[-1] if crossings else None)


def intervals(crossings: Sequence[Crossing], unknown: str, whole: bool = False) -> str:
    """Where the part is compute-bound, where that is more than one side of one value: "compute-bound for 3 < T < 40".

    Args:
        crossings: in order.
        unknown: the size's name.
        whole: whether a crossing's value is the first whole number past it.
    """
    if len(crossings) < 2:
        return ""
    parts = [] if crossings[0].up else [f"{unknown} < {float(crossings[0].value):.4g}"]
    for i, c in enumerate(crossings):
        if c.up:
            end = f" < {float(crossings[i + 1].value):.4g}" if i + 1 < len(crossings) else ""
            parts.append(f"{float(c.value):.4g} {'<=' if whole else '<'} {unknown}{end}")
    return f"compute-bound for {' and '.join(parts)}"


def positive(c: Laurent) -> Boolean:
    """The condition that a sum of monomials is positive, as "larger side > smaller side" without common factors.

    Sizes are 1 or more, which settles it where no coefficient differs in sign as a polynomial of what they are above 1.
    """
    whole = c.whole().primitive()
    plus, minus = whole.split()
    if not minus or not plus:
        return sym.boolean(bool(plus))
    more, less = whole.above_one().split() if len(whole.terms) <= _FEW_TERMS else (plus, minus)
    if not more or (not less and () in more.terms):
        return sym.boolean(bool(more))
    return sym.greater(plus.expr(), minus.expr())


def _opposite(a: Laurent, b: Laurent) -> Boolean:
    """The condition that two sums of monomials have opposite signs."""
    minus = [Laurent({k: -x for k, x in c.terms.items()}) for c in (a, b)]
    return sym.either([sym.both([positive(a), positive(minus[1])]), sym.both([positive(minus[0]), positive(b)])])
