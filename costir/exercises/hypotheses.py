"""What a wrong answer forgot: ways to go wrong are applied to the right answer, and the first that gives it is named.

Nothing here is a list of strings: a hypothesis is an expression made from the right one (half of it, without a term, N for
N - 1, upside down, another part's), and is compared with the answer like the right one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from costir import symbolic as sym
from costir.exercises.answer import Answer
from costir.exercises.reference import Known, Reference, put
from costir.sampling import constant_ratio, short
from costir.symbolic import Expr

MOST_TERMS = 60  # beyond, putting sums over one line takes too long,
MOST_DEGREE = 10  # and sympy looks for real roots of what stands there
ROUNDED = Fraction(1, 100)  # what numbers put in for letters may be off


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What went wrong: the key of a message, and its values; a `Words` value is said in the reader's language."""

    key: str
    values: Mapping[str, object]


Hypothesis = tuple[Expr, str, Mapping[str, object]]


def diagnose(answer: Answer, reference: Reference, right: Known, siblings: Sequence[tuple[str, Known]]) -> Diagnosis | None:
    """The first way to go wrong that leads to the answer.

    Args:
        answer: what was typed.
        reference: the part.
        right: its right answer, or that of the convention that was asked for.
        siblings: the answers to the exercise's other parts, with their names.
    """
    for name, k in siblings:
        if like(answer, k.expr, reference, k.at):
            return Diagnosis("other_part", {"part": name})
    off = ratio(answer, reference, right)
    if off is not None and (found := _factor(off, answer, reference, right)) is not None:
        return found
    for expr, key, values in _made(reference, right.expr):
        if like(answer, expr, reference, right.at):
            return Diagnosis(key, values)
    return _symbolic(answer, reference, right)


@functools.lru_cache(maxsize=1024)
def _made(reference: Reference, right: Expr) -> tuple[Hypothesis, ...]:
    """All that can be made from the right answer."""
    return (*_shapes(reference, right), *_devices(reference, right), *_terms(reference, right))


def like(answer: Answer, expr: Expr, reference: Reference, at: Mapping[str, Fraction]) -> bool:
    """Whether the answer is this expression: as a function of the letters, or as a number with the digits that it shows."""
    if not answer.is_number:
        if reference.equal(answer.expr, expr):
            return True
        missing = {str(s) for s in expr.free_symbols - answer.expr.free_symbols}
        return bool(missing) and missing <= set(at) and near_everywhere(answer.expr, expr, reference, at)
    value = sym.to_fraction(put(expr, at))
    return value is not None and answer.rounds(value)


def near_everywhere(a: Expr, b: Expr, reference: Reference, at: Mapping[str, Fraction]) -> bool:
    """Whether two expressions agree to 1 % at all points once the given numbers are put in."""
    left, right = (reference.values(put(e, at), len(reference.points)) for e in (a, b))
    if left is None or right is None:
        return False
    return all(abs(x - y) <= ROUNDED * abs(y) for x, y in zip(left, right, strict=True))


# ---------------------------------------------------------------------------------------------------------- one factor


def ratio(answer: Answer, reference: Reference, right: Known) -> Fraction | None:
    """answer/right where that is one number."""
    if not answer.is_number:
        values, expected = (reference.values(e, len(reference.points)) for e in (answer.expr, right.expr))
        if values is None or expected is None:
            return None
        pairs = [(v, e) for v, e in zip(values, expected, strict=True) if e != 0]
        return constant_ratio(tuple(v for v, _ in pairs), tuple(e for _, e in pairs)) if pairs else None
    number, value = sym.to_fraction(answer.expr), right.number
    return number / value if number is not None and value else None


def _factor(ratio: Fraction, answer: Answer, reference: Reference, right: Known) -> Diagnosis | None:
    """A factor that says what was forgotten."""
    base = reference.unit.base

    def off(factor: Fraction) -> bool:
        if not answer.is_number or right.number is None:
            return ratio == factor
        return answer.rounds(factor * right.number)

    halves = {"FLOP": ("macs", "double"), "FLOP/byte": ("intensity_half", "intensity_2"), "byte": ("bytes_half", "bytes_2")}
    half, twice = halves.get(base, ("half", "twice"))
    known: list[tuple[Fraction, str]] = [(Fraction(1, 2), half), (Fraction(2), twice), (Fraction(-1), "sign")]
    if any(word in base for word in ("byte", "s", "FLOP")):
        known += [(Fraction(8), "bits"), (Fraction(1, 8), "bits")]
    known += [(Fraction(100), "percent"), (Fraction(1, 100), "percent")] if not base else []
    binary = [Fraction(1024, 1000) ** k for k in (1, 2, 3, 4)] if "byte" in base else []
    known += [(f, "binary") for b in binary for f in (b, 1 / b)]
    known += [(Fraction(1000) ** k, "prefix") for k in (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5)] if answer.is_number else []
    times = [Fraction(60), Fraction(3600), Fraction(86400), Fraction(24)] if "s" in base.split("/") else []
    known += [(f, "time_unit") for t in times for f in (t, 1 / t)]
    for factor, key in known:
        if off(factor):
            return Diagnosis(key, {"factor": short(max(factor, 1 / factor))})
    return None


# ------------------------------------------------------------------------------------------------------- other shapes


def _shapes(reference: Reference, right: Expr) -> Iterator[Hypothesis]:
    """Upside down; sum, larger and smaller of the parts."""
    if right != 0:
        yield 1 / right, "inverted", {}
    inside = sym.extremes(right)
    if len(inside) > 1:
        yield sym.total(inside), "added", {}
        yield sym.apply("min" if right.func.__name__ == "Max" else "max", list(inside)), "smaller", {}
        for part in inside:
            yield part, "one_side", {"term": sym.show(part)}
        for part, factor in itertools.product(inside, (sym.number("1/2"), sym.number(2))):
            changed = [a * factor if a == part else a for a in inside]
            yield sym.apply(right.func.__name__, changed), "one_by_2", {"term": sym.show(part)}
    elif right.is_Add and len(right.args) == 2 and reference.unit.base == "s":
        yield sym.apply("max", list(right.args)), "larger", {}


def _devices(reference: Reference, right: Expr) -> Iterator[Hypothesis]:
    """N for N - 1, the total for one chip's share, and the reverse."""
    for name, letter in reference.exercise.letters.items():
        if not letter.devices:
            continue
        n = sym.size(name)
        if n in right.free_symbols:
            for shifted in (n - 1, n + 1):
                yield sym.evaluate(right, {n: shifted}), "n_less_1", {"name": name}
        yield right * n / (n - 1), "n_less_1", {"name": name}
        yield right * (n - 1) / n, "n_less_1", {"name": name}
        yield right * n, "total", {"name": name}
        yield right / n, "per_chip", {"name": name}


def _terms(reference: Reference, right: Expr) -> Iterator[Hypothesis]:
    """Without one of its terms, above or below the line."""
    if not sym.is_rational(right):
        return
    above, below = sym.fraction(right)
    for top, bottom, which in ((sym.terms(above), None, 0), (sym.terms(below), above, 1)):
        if not 2 <= len(top) <= 12:
            continue
        for t in top:
            rest = sym.total(x for x in top if x != t)
            expr = bottom / rest if which and bottom is not None else rest / below
            shown = t if which else t / below
            yield expr, "missing", {"words": _name(reference, shown)}


def _name(reference: Reference, term: Expr) -> object:
    """The words of the bank for a term, else the term."""
    for text, words in reference.part.terms.items():
        named = reference.term(text)
        values = reference.values(named, 4), reference.values(term, 4)
        if values[0] is not None and values[1] is not None and constant_ratio(values[0], values[1]) is not None:
            return words
    return sym.show(term)


# --------------------------------------------------------------------------------- what only a formula can show


def _symbolic(answer: Answer, reference: Reference, right: Known) -> Diagnosis | None:
    """A missing letter, a coefficient, a term too much."""
    a, e = answer.expr, right.expr
    if answer.is_number or not (sym.is_rational(a) and sym.is_rational(e)):
        return None
    if sym.spread(a) > MOST_TERMS or sym.degree(a) > MOST_DEGREE or sym.spread(e) > MOST_TERMS:
        return None
    ratio = sym.ratio(a, e)
    top, bottom = sym.fraction(ratio)
    if not top.is_Add and not bottom.is_Add and ratio.free_symbols:
        if bottom.is_number:
            return Diagnosis("factor_extra", {"factor": sym.show(ratio)})
        key, shown = ("factor_missing", 1 / ratio) if top.is_number else ("factor_wrong", ratio)
        return Diagnosis(key, {"factor": sym.show(shown)})
    above, below = sym.fraction(e)
    if (found := _one_term(sym.terms(sym.expand(a * below)), sym.terms(above))) is not None and below.is_number:
        return found
    return _one_term(sym.terms(sym.expand(above / a)), sym.terms(below))


def _one_term(mine: Sequence[Expr], theirs: Sequence[Expr]) -> Diagnosis | None:
    """Sums that differ by one term, or in the coefficient of one."""
    extra = [t for t in mine if t not in theirs]
    lost = [t for t in theirs if t not in mine]
    if len(mine) < 2 and len(theirs) < 2:
        return None
    if len(extra) == 1 and not lost:
        return Diagnosis("extra", {"term": sym.show(extra[0])})
    if len(lost) == 1 and not extra:
        return Diagnosis("missing", {"words": sym.show(lost[0])})
    if len(extra) == len(lost) == 1:
        (given, term), (_, same) = extra[0].as_coeff_Mul(), lost[0].as_coeff_Mul()
        if term == same:
            return Diagnosis("coefficient", {"term": sym.show(term), "given": sym.show(given)})
    return None
