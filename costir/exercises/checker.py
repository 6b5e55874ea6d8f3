"""Is an answer to an exercise right; and if not, what did it forget?

    check("rl.q1", "2*B*D*F/(B*D + D*F)", part="intensity").verdict      -> "wrong"
    check("rl.q1", "2*B*D*F/(B*D + D*F)", part="intensity").diagnosis    -> "the write of Z is missing"

The order matters: an expression that shows a known mistake is that mistake even where its value is close enough, so exact
equality comes first, then what the expression shows, then numbers and their rounding, then guesses at what went wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from costir import sampling
from costir import symbolic as sym
from costir.chip import FrozenMap
from costir.errors import CostirError
from costir.exercises import hypotheses
from costir.exercises.answer import Answer, read
from costir.exercises.catalog import Bank, built_in, part_of, plain
from costir.exercises.choice import chosen
from costir.exercises.messages import language, message
from costir.exercises.records import Exercise, Part, Words
from costir.exercises.reference import Known, Reference
from costir.exercises.verdict import GOOD, VERDICTS, Verdict
from costir.sampling import as_float


def check(
    ident: str, answer: str | int | float, part: str | None = None, lang: str | None = None, bank: Bank | None = None
) -> Verdict:
    """Check one answer.

    Args:
        ident: of the exercise, "rl.q1", or of one of its parts, "rl.q1.intensity".
        answer: as a student types it: `2BDF/(BD + DF + BF)`, `B > 240`, `240 FLOP/byte`, `$\\frac{C}{W}$`, `约 240`, a choice.
        part: a part, or a convention of one; None where there is only one part, or the answer shows which it is for.
        lang: "en" or "zh"; by default that of the locale.
        bank: a bank of one's own.

    Raises:
        CostirError: where there is no such exercise, part or language. An answer never raises: what cannot be read has the
            verdict "unreadable".
    """
    speak = language(lang)
    exercise, in_name = (bank or built_in()).locate(ident)
    wanted = part or in_name
    text = str(answer)
    if wanted:
        return check_part(exercise, wanted, text, speak)
    if len(exercise.parts) == 1:
        return check_part(exercise, exercise.parts[0].ident, text, speak)
    return _any_part(exercise, text, speak)


def _any_part(exercise: Exercise, text: str, lang: str) -> Verdict:
    """Without a part: the name that the answer begins with, else the part that it is right for."""
    name, equals, rest = text.strip().removeprefix(f"{exercise.ident}.").partition("=")
    if equals and name.strip() and not name.rstrip().endswith(("<", ">", "~")):
        named = [p.ident for p in exercise.parts if plain(name) in {plain(n) for n in (p.ident, *p.also)}]
        if len(named) == 1:
            return check_part(exercise, named[0], rest, lang)
    found = [check_part(exercise, p.ident, text, lang) for p in exercise.parts if p.kind != "open"]
    order = ("right", "rounding", "convention", "slip", "limit")
    best = min(found, key=lambda v: order.index(v.verdict) if v.verdict in order else 9, default=None)
    if best is not None and best.verdict in order:
        return best
    if best is not None and all(v.verdict == "unreadable" for v in found):
        return replace(found[0], part="")
    parts = ", ".join(p.ident for p in exercise.parts)
    which = message("which_part", lang, count=len(exercise.parts), parts=parts, first=exercise.parts[0].ident)
    return Verdict("wrong", exercise.ident, "", text, "", f"{message('wrong', lang)}; {which}")


_REFERENCES: dict[tuple[int, str], tuple[Exercise, Reference]] = {}


def reference_of(exercise: Exercise, part: Part) -> Reference:
    """What a part is compared with, made once."""
    key = (id(exercise), part.ident)
    if key not in _REFERENCES:
        _REFERENCES[key] = (exercise, Reference(exercise, part))  # the exercise is kept, so that its id stays its own
    return _REFERENCES[key][1]


def check_part(exercise: Exercise, name: str, text: str, lang: str) -> Verdict:
    """Check an answer to a named part; see `check`."""
    part, convention = part_of(exercise, name)
    said = Verdict("wrong", exercise.ident, name if convention else part.ident, text, "", message("wrong", lang))
    if part.kind == "open":
        return replace(said, verdict="unreadable", message=message("open", lang, id=exercise.ident), key="open")
    if part.kind == "choice":
        return chosen(part, said, lang)
    reference = reference_of(exercise, part)
    try:
        answer = read(text, reference)
        right = reference.name(convention.ident) if convention else reference.right
        return _compared(answer, reference, right, said, lang)
    except CostirError as error:
        why = f"{error.message}{f'; {error.hint}' if error.hint else ''}"
        return replace(said, verdict="unreadable", diagnosis=error.message, message=message("unreadable", lang, why=why))
    except (ArithmeticError, ValueError, TypeError, RecursionError, MemoryError) as error:
        why = f"{type(error).__name__}: {str(error)[:80]}"
        return replace(said, verdict="unreadable", diagnosis=why, message=message("unreadable", lang, why=why))


def _compared(answer: Answer, reference: Reference, right: Known, said: Verdict, lang: str) -> Verdict:
    """The first step that decides."""
    said = replace(said, notes=answer.notes)
    steps: tuple[Callable[[Answer, Reference, Known], _Outcome | None], ...] = (
        _unit, _exact, _shown, _limits, _number, _near_others, _tolerance, _tends, _guess,
    )  # fmt: skip
    outcome = next((o for step in steps if (o := step(answer, reference, right)) is not None), None)
    outcome = _directed(answer, right, outcome or _Outcome("wrong"), reference)
    values = {k: v.say(lang) if isinstance(v, Words) else v for k, v in outcome.values.items()}
    verdict, key = outcome.verdict, outcome.key or outcome.verdict
    if verdict == "wrong":
        why = str(values["words"]) if key == "mistake" else message(key, lang, **values) if key != "wrong" else ""
        full = message("wrong_because", lang, why=why) if why else message("wrong", lang)
    else:
        full = message(key, lang, **values)
        why = str(values.get("words", "")) if verdict in ("convention", "slip") else full if verdict == "limit" else ""
    return replace(said, verdict=verdict, diagnosis=why, message=full, key="" if key in ("right", "wrong") else key)


# ------------------------------------------------------------------------------------------------- the steps, in order


@dataclass(frozen=True)
class _Outcome:
    """A verdict, the key of the message that says it, and the message's values."""

    verdict: str
    key: str = ""
    values: Mapping[str, object] = field(default_factory=dict)


def _unit(answer: Answer, reference: Reference, right: Known) -> _Outcome | None:
    """A unit that the part does not have."""
    given, asked = answer.unit, reference.unit
    if given is None or given.agrees(asked):
        return None
    values: dict[str, object] = {"right": reference.part.unit or "1", "given": given.name or "1"}
    if right.valued != 0 and given.base == "/".join(reversed(asked.base.split("/"))) and hypotheses.like(
        answer, 1 / right.expr, reference, right.at
    ):  # fmt: skip
        return _Outcome("wrong", "inverted")
    same = hypotheses.like(answer, right.expr, reference, right.at)
    return _Outcome("wrong", "unit" if same else "unit_only", values)


def _exact(answer: Answer, reference: Reference, right: Known) -> _Outcome | None:
    """Equal as functions of the letters."""
    if reference.equal(answer.expr, right.expr):
        return _Outcome("right")
    return None


def _shown(answer: Answer, reference: Reference, right: Known) -> _Outcome | None:
    """An expression that is another known answer: the way it is written shows it, whatever its value."""
    if answer.digits:
        return None
    number = Known(answer.expr, right.at).number
    for known in reference.others:
        if number is not None and number in (right.number, known.number):
            if number != right.number:
                return _other(known, right, reference)
            if any(known.at[str(s)] != right.at.get(str(s)) for s in answer.expr.free_symbols):
                continue  # the same letters with other numbers: only the number can show it
        if not reference.equal(known.expr, right.expr) and reference.equal(answer.expr, known.expr):
            return _other(known, right, reference)
    return None


def _other(known: Known, right: Known, reference: Reference) -> _Outcome:
    assert known.other is not None
    words: dict[str, object] = {"words": known.other.words, "value": _value(right, reference)}
    kind = known.other.kind
    return _Outcome("wrong" if kind == "mistake" else kind, "mistake" if kind == "mistake" else kind, words)


def _value(known: Known, reference: Reference) -> str:
    """The right value in the part's unit, or the right formula."""
    unit = reference.part.unit
    if known.number is None:
        return f"{sym.show(known.expr / sym.number(reference.unit.scale))}{f' {unit}' if unit else ''}"
    number = known.number / reference.unit.scale
    return f"{figure(number)}{f' {unit}' if unit and unit != '1' else ''}"


def figure(x: Fraction) -> str:
    """A number for people: 26267, 240.2, 1.97e14, 2.33e-05."""
    value = as_float(x)
    if value == int(value) and abs(value) < 1e7:
        return str(int(value))
    if 1000 <= abs(value) < 1e7:
        return f"{value:.0f}"
    return f"{value:.4g}".replace("e+", "e")


def _limits(answer: Answer, reference: Reference, right: Known) -> _Outcome | None:
    """The form in the limit where the exact one is asked, or the reverse."""
    other = reference.limit
    if other is None or not hypotheses.like(answer, other.expr, reference, right.at):
        return None
    if other.number is not None and answer.is_number and answer.digits and _rounds(answer, right):
        return None  # both round to it
    pair = (right.expr, other.expr) if reference.part.asks_limit else (other.expr, right.expr)
    found = sampling.growing(*pair, _sizes(reference, right), reference.points[1:4])
    of = _large(found[0] if found else ())
    return _Outcome("limit", "exact" if reference.part.asks_limit else "limit", {"of": of})


def _sizes(reference: Reference, right: Known) -> list[str]:
    """The letters that can grow."""
    letters = reference.exercise.letters
    return [n for n in sorted(letters) if letters[n].whole and n not in right.at]


def _large(names: Sequence[str]) -> Words:
    """ "of large D and F", in each language."""
    joined = {"en": " and ".join(names), "zh": "、".join(names)}
    return Words(FrozenMap({k: message("large", k, names=v) for k, v in joined.items()}) if names else FrozenMap({}))


def _rounds(answer: Answer, known: Known) -> bool:
    return known.number is not None and answer.rounds(known.number)


def _number(answer: Answer, reference: Reference, right: Known) -> _Outcome | None:
    """The value, with numbers put in for letters: exactly, or as rounded."""
    if right.number is None:
        rounded = hypotheses.like(answer, right.expr, reference, right.at) or _rounded_root(answer, reference, right)
        return (
            _Outcome("rounding", "rounding", {"value": _value(right, reference)}) if rounded and not answer.is_number else None
        )
    known = Known(answer.expr, right.at)
    if known.number is None:
        return None
    if known.number == right.number or _same_whole(answer, reference, right):
        return _Outcome("right")
    if answer.is_number and _rounds(answer, right):
        return _Outcome("rounding", "rounding", {"value": _value(right, reference)})
    return None


def _rounded_root(answer: Answer, reference: Reference, right: Known) -> bool:
    """Whether a formula has 11.31 where the right one has the square root of 128."""
    if not sym.has_root_of_number(right.expr) or not re.search(r"\d\.\d", answer.text):
        return False
    ratio = hypotheses.ratio(answer, reference, right)
    return ratio is not None and abs(ratio - 1) < Fraction(1, 200)


def _same_whole(answer: Answer, reference: Reference, right: Known) -> bool:
    """Bounds on a whole number that let the same numbers through: B >= 241 and B > 240.2."""
    letter = reference.exercise.letters.get(right.symbol)
    number = sym.to_fraction(answer.expr)
    if not right.relation or letter is None or not letter.whole or number is None or right.number is None:
        return False
    return _least(answer.relation or right.relation, number) == _least(right.relation, right.number)


def _least(relation: str, bound: Fraction) -> int:
    """The whole number next to a bound on the inside."""
    if relation[0] == ">":
        return -(-bound // 1) if relation == ">=" else bound // 1 + 1
    return bound // 1 if relation == "<=" else -(-bound // 1) - 1


def _near_others(answer: Answer, reference: Reference, right: Known) -> _Outcome | None:
    """A number that is another known answer to the digits that it shows."""
    number = sym.to_fraction(answer.expr)
    if number is None:
        return None
    inside = _inside(number, reference, right)
    for known in reference.others:
        if known.number is None or known.other is None or (known.expr == right.expr and known.number == right.number):
            continue
        hidden = inside and known.other.kind == "mistake"  # only digits can tell it from the right one
        exactly = answer.digits and (known.number == number or _same_whole(answer, reference, known))
        if (exactly and not hidden) or (answer.digits >= (4 if hidden else 2) and answer.rounds(known.number)):
            return _other(known, right, reference)
    return None


def _inside(number: Fraction, reference: Reference, right: Known) -> bool:
    """Whether a number is accepted."""
    between = reference.part.between
    if between is not None and right is reference.right:
        return between[0] <= number / reference.unit.scale <= between[1]
    return right.number is not None and abs(number - right.number) <= reference.part.tolerance * abs(right.number)


def _tolerance(answer: Answer, reference: Reference, right: Known) -> _Outcome | None:
    """Inside what the exercise accepts."""
    number = Known(answer.expr, right.at).number
    if number is None or right.number is None or not _inside(number, reference, right):
        return None
    if not answer.is_number and right.number != number:
        return None  # an expression in letters shows what it is; its value does not make it right
    return _Outcome("rounding", "tolerance", {"value": _value(right, reference)})


def _tends(answer: Answer, reference: Reference, right: Known) -> _Outcome | None:
    """Right in a limit that the bank does not list, and not just without a term."""
    if answer.is_number or right.number is not None or answer.expr == 0 or reference.part.asks_limit:
        return None
    if reference.unit.base not in ("", "FLOP/byte"):  # of a sum or a maximum of times, one part always wins in some limit
        return None
    used = answer.expr.free_symbols | right.expr.free_symbols
    names = [n for n in _sizes(reference, right) if sym.size(n) in used]
    found = sampling.growing(answer.expr, right.expr, names, reference.points[1:4])
    if not found or hypotheses.diagnose(answer, reference, right, _siblings(reference, right)) is not None:
        return None
    return _Outcome("limit", "limit", {"of": _large(found[0])})


def _siblings(reference: Reference, right: Known) -> list[tuple[str, Known]]:
    """The answers to the other parts."""
    parts = [p for p in reference.exercise.parts if p.kind not in ("choice", "open") and p.ident != reference.part.ident]
    same = [reference_of(reference.exercise, p) for p in parts if p.answer]
    return [(r.part.ident, r.right) for r in same if r.unit.base == reference.unit.base and r.right.valued != right.valued]


def _guess(answer: Answer, reference: Reference, right: Known) -> _Outcome | None:
    """What it forgot."""
    if reference.part.kind == "number" and answer.expr.free_symbols - {sym.size(n) for n in right.at}:
        return _Outcome("wrong")
    if reference.part.kind == "formula" and answer.is_number and right.valued.free_symbols and answer.digits:
        names = ", ".join(sorted(str(s) for s in right.valued.free_symbols))
        return _Outcome("wrong", "numbers_only", {"names": names})
    found = hypotheses.diagnose(answer, reference, right, _siblings(reference, right))
    return None if found is None else _Outcome("wrong", found.key, dict(found.values))


def _directed(answer: Answer, right: Known, outcome: _Outcome, reference: Reference) -> _Outcome:
    """A bound on another letter, or the wrong way round."""
    if not answer.relation:
        return outcome
    if not right.relation:  # a number is asked; the letter of its name says what it is the value of
        asked = reference.part.ident.partition("_")[0]
        if asked in reference.letters and answer.symbol in reference.letters and answer.symbol != asked:
            return _Outcome("wrong", "other_letter", {"right": asked, "given": answer.symbol})
        return outcome
    if answer.symbol in reference.letters and answer.symbol != right.symbol:
        return _Outcome("wrong", "other_letter", {"right": right.symbol, "given": answer.symbol})
    if answer.relation[0] != right.relation[0] and outcome.verdict != "wrong":
        return _Outcome("wrong", "direction")
    return outcome


__all__ = ["GOOD", "VERDICTS", "Verdict", "check", "check_part", "figure"]
