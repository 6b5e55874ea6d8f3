"""What people measured, as they type it: rates ("10000tok/s", "3.2 step/s") and times of a step ("120ms"), as exact numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NoReturn

from costir.errors import CostirError, nearest

Unit = Literal["tok", "seq", "step", "s"]

WORDS: dict[str, Unit] = {
    **dict.fromkeys(("tok", "toks", "token", "tokens"), "tok"),
    **dict.fromkeys(("seq", "seqs", "sequence", "sequences", "sample", "samples", "example", "examples", "img", "imgs",
                     "image", "images"), "seq"),
    **dict.fromkeys(("step", "steps", "it", "its", "iter", "iters", "iteration", "iterations"), "step"),
}  # fmt: skip
# Rates are no sizes: 10k tok/s are 10,000, as meters and logs print them.
PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SECONDS = {
    "ns": Fraction(1, 10**9),
    **dict.fromkeys(("us", "µs", "μs"), Fraction(1, 10**6)),
    "ms": Fraction(1, 10**3),
    **dict.fromkeys(("s", "sec", "second", "seconds"), Fraction(1)),
    **dict.fromkeys(("min", "minute", "minutes"), Fraction(60)),
    **dict.fromkeys(("h", "hour", "hours"), Fraction(3600)),
}
# What an unknown unit is compared with: one spelling of each.
RATES = ("tok/s", "token/s", "seq/s", "sample/s", "image/s", "step/s", "it/s")
TIMES = ("ns", "us", "ms", "s", "min", "h")
RATE_EXAMPLE = "write for example 10000tok/s, 50seq/s or 3.2step/s"
TIME_EXAMPLE = "write for example 120ms or 1.5s, the time of one step"
_NUMBER = re.compile(r"([+-]?(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*(.*)")
_LEAST, _MOST = Fraction(1, 10**9), Fraction(10**18)  # of any machine, in units per second or in seconds


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement.

    Attributes:
        text: as it was typed.
        value: exactly; per second where it is a rate, seconds per step where it is a time.
        unit: what is counted per second, "tok", "seq" (one element of the batch) or "step"; "s" where it is a time.
    """

    text: str
    value: Fraction
    unit: Unit


def measured(rate: str = "", time: str = "") -> Measured:
    """The one measurement that was given.

    Raises:
        CostirError: none or two of them, or one that cannot be read; see `parse_rate` and `parse_time`.
    """
    for name, given in (("rate", rate), ("time", time)):
        if not isinstance(given, str):
            raise CostirError(f"{name}={given!r} has no unit", RATE_EXAMPLE if name == "rate" else TIME_EXAMPLE)
    if bool(rate) == bool(time):
        what = "both a rate and a time are" if rate else "no rate and no time is"
        raise CostirError(f"{what} given", "give one of --rate 10000tok/s and --time 120ms")
    return parse_rate(rate) if rate else parse_time(time)


def parse_rate(text: str) -> Measured:
    """ "10000tok/s", "1.2M tokens/s", "50 seq/s", "3.2it/s", "90step/min".

    Raises:
        CostirError: no number, no unit or an unknown one, zero, a negative or an absurd number.
    """
    number, unit = _split(text, "rate", RATE_EXAMPLE)
    if unit in SECONDS:
        raise CostirError(f"the rate {_short(text)} is a time", f"give it as --time {_short(text)}, or {RATE_EXAMPLE}")
    what, _, per = unit.partition("/")
    prefix, word = _prefixed(what.strip())
    if "/" in per and word in WORDS:
        raise CostirError(
            f"the rate {_short(text)} is one per {per.rpartition('/')[2]}",
            "give that of the whole job with --devices N, or that of one chip without",
        )
    if word not in WORDS or per.strip() not in SECONDS:
        _unknown(text, "rate", unit, RATES, RATE_EXAMPLE)
    value = number * PREFIXES[prefix] / SECONDS[per.strip()]
    return Measured(text.strip(), _possible(text, "rate", value), WORDS[word])


def parse_time(text: str) -> Measured:
    """ "120ms", "1.5 s", "2min", "850 us/step".

    Raises:
        CostirError: as for `parse_rate`.
    """
    number, unit = _split(text, "time", TIME_EXAMPLE)
    unit, _, of = unit.partition("/")
    if of.strip() in SECONDS:
        raise CostirError(f"the time {_short(text)} is a rate", f"give it as --rate {_short(text)}, or {TIME_EXAMPLE}")
    if unit.strip() not in SECONDS or (of and WORDS.get(of.strip()) != "step"):
        _unknown(text, "time", f"{unit}/{of}" if of else unit, TIMES, TIME_EXAMPLE)
    return Measured(text.strip(), _possible(text, "time", number * SECONDS[unit.strip()]), "s")


def _split(text: str, what: str, example: str) -> tuple[Fraction, str]:
    """The number, which is positive, and the unit behind it."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None or len(text) > 60:
        raise CostirError(f"the {what} {_short(text)} does not begin with a number", example)
    number, unit = Fraction(found[1].replace("_", "")), found[2].strip()
    if not unit:
        raise CostirError(f"the {what} {_short(text)} has no unit", example)
    if unit.startswith(","):
        raise CostirError(f"the {what} {_short(text)} has a comma in its number", "write 10000, 10_000 or 10k, and 3.2")
    if number <= 0:
        raise CostirError(f"the {what} {_short(text)} is {'negative' if number else 'zero'}", "give a positive number")
    return number, unit


def _prefixed(word: str) -> tuple[str, str]:
    """A word of a rate and the prefix before it: "ktok" is ("k", "tok")."""
    if word.lower() in WORDS or word[:1] not in PREFIXES:
        return "", word.lower()
    return word[:1], word[1:].strip().lower()


def _possible(text: str, what: str, value: Fraction) -> Fraction:
    if not _LEAST <= value <= _MOST:
        raise CostirError(f"the {what} {_short(text)} is that of no machine", "check its number and its unit")
    return value


def _unknown(text: str, what: str, unit: str, known: Iterable[str], example: str) -> NoReturn:
    close = nearest(unit, known, most=2)
    raise CostirError(
        f"the {what} {_short(text)} has an unknown unit {unit!r}", close if close.startswith("did you") else example
    )


def _short(text: str) -> str:
    return text.strip() if len(text.strip()) <= 40 else f"{text.strip()[:37]}..."
