"""Faults of an exercise that no schema sees: formulas that cannot be read, numbers without a value, choices with no right one.

Derivations are not made, as they take time; `verifying.py` does that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from costir import symbolic as sym
from costir.errors import CostirError
from costir.exercises.records import Exercise, Part
from costir.exercises.reference import in_si, put, unit_of
from costir.exercises.subjects import chip_located, located
from costir.formula import Formula, parse_formula
from costir.formula_tokens import UNITS
from costir.symbolic import Expr

BOUNDS = ("<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and where: "part b, mistake 2"."""

    where: str
    message: str
    hint: str = ""


def faults(exercise: Exercise, trusted: bool = False) -> Iterator[Fault]:
    """All faults of an exercise; `trusted` says whether its subjects may be Python files."""
    for letter in exercise.letters.values():
        if not _is_unit(letter.unit):
            yield _unknown_unit(f"symbol {letter.name}", letter.unit)
    for part in exercise.parts:
        yield from (Fault(f"part {part.ident}{w and ', '}{w}", *said) for w, said in _of_part(exercise, part, trusted))
    names = Counter(n for p in exercise.parts for n in (*{p.ident, *p.also}, *(o.ident for o in p.others if o.ident)))
    for name, count in names.items():
        if count > 1:
            yield Fault(f"part {name}", f"{count} parts or conventions have this name", "names must differ")


_Said = tuple[str, tuple[str, ...]]  # where in the part; message and hint


def _of_part(exercise: Exercise, part: Part, trusted: bool) -> Iterator[_Said]:
    if not _is_unit(part.unit):
        unknown = _unknown_unit("", part.unit)
        yield "unit", (unknown.message, unknown.hint)
    for quantity in part.derive.get("let", {}).values():
        if isinstance(quantity, Mapping):
            try:
                located(str(quantity.get("subject", "[]")), exercise.folder, trusted)
                chip_located(str(quantity.get("chip", "")), exercise.folder)
            except CostirError as error:
                yield "derive", (error.message, error.hint)
    if part.kind == "choice":
        yield from _choices(part)
    elif part.kind != "open":
        yield from _formulas(exercise, part)


def _choices(part: Part) -> Iterator[_Said]:
    right = sum(c.right for c in part.choices)
    if right != 1:
        yield "choices", (f"{right} of them are right" if right else "none of them is right", "one must have right: true")
    for name, count in Counter(c.ident for c in part.choices).items():
        if count > 1:
            yield "choices", (f"the id {name[:40]!r} is there twice", "ids must differ")


def _formulas(exercise: Exercise, part: Part) -> Iterator[_Said]:
    """Every formula of a part: read, and where a number is asked, evaluated."""
    texts = [("answer", part.answer, part.values)] if part.answer else []
    texts += [("exact" if part.asks_limit else "limit", part.limit, part.values)] if part.limit else []
    counts: Counter[str] = Counter()
    for o in part.others:
        counts[o.kind] += 1
        texts.append((f"{o.kind} {o.ident or counts[o.kind]}", o.answer, {**part.values, **o.values}))
    texts += [(f"term {t[:40]!r}", t, {}) for t in part.terms]
    for where, text, values in texts:
        try:
            _look_at(exercise, part, where, text, values)
        except CostirError as error:
            yield where, (error.message, error.hint)
    low_high = part.between
    if low_high is not None and low_high[0] > low_high[1]:
        yield "tolerance", ("the range ends before it begins", "write [low, high]")


def _look_at(exercise: Exercise, part: Part, where: str, text: str, values: Mapping[str, Fraction]) -> None:
    unknown = sorted(set(values) - set(exercise.letters))
    if unknown:
        raise CostirError(f"with has {unknown[0]!r}, which is no symbol of the exercise", "add it to symbols")
    read = parse_formula(text, frozenset(exercise.letters), two_sided=True)
    if where.startswith("term "):
        return
    _look_at_form(part, where, read)
    own = unit_of(part.unit)
    if read.unit and not unit_of(read.unit).agrees(own):
        raise CostirError(f"it is in {read.unit}, and the part is in {part.unit or 'plain numbers'}", "give the part's unit")
    expr, _ = in_si(read, own)
    value = put(expr, values)
    if part.kind == "number" and value.free_symbols and not where.startswith("mistake"):  # a mistake may show by its letters
        names = ", ".join(sorted(str(s) for s in value.free_symbols))
        raise CostirError(
            f"a number is asked, and {names} has no value", "give it one in symbols or with, or ask for a formula"
        )
    if not sym.is_real_value(value):
        raise CostirError("it has no value with the numbers given", "check divisions by zero, roots and logarithms")
    if where == "answer":
        _look_at_range(part, value, own.scale)


def _look_at_form(part: Part, where: str, read: Formula) -> None:
    bound = read.relation in BOUNDS
    if part.kind == "bound" and where == "answer" and not (bound and read.lhs):
        raise CostirError("a bound is asked, and there is no relation", "write for example D > 2*C/W")
    if part.kind != "bound" and bound:
        raise CostirError(f"a {part.kind} is asked, and there is a relation", "make the kind bound, or leave the relation out")


def _look_at_range(part: Part, value: Expr, scale: Fraction) -> None:
    number = sym.to_fraction(value)
    if part.between is None or number is None:
        return
    low, high = part.between
    if low <= high and not low <= number / scale <= high:
        shown = f"{float(number / scale):.4g} {part.unit}".strip()
        raise CostirError(
            f"it is {shown}, outside the range of tolerance",
            "an answer without a unit and the range are in the part's unit",
        )


def _is_unit(text: str) -> bool:
    above, _, below = text.partition("/")
    return all(t.strip() in ("", "1") or t.strip() in UNITS for t in (above, below))


def _unknown_unit(where: str, unit: str) -> Fault:
    return Fault(
        where, f"no unit {unit[:30]!r}", "there are byte, GB, FLOP, s, ms, token, FLOP/s, byte/s, ...; none for plain numbers"
    )
