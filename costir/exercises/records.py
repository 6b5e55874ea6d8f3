"""The records of an exercise bank. `catalog.py` makes them from YAML; nothing changes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from costir.chip import FrozenMap

LANGUAGES = ("en", "zh")


@dataclass(frozen=True, slots=True)
class Words:
    """A text in one language or several."""

    by_language: FrozenMap[str] = field(default_factory=lambda: FrozenMap({}))

    def say(self, lang: str) -> str:
        """The text in a language; where it is missing, in English, else in any."""
        texts = self.by_language
        return texts.get(lang) or texts.get("en") or next(iter(texts.values()), "")

    def __bool__(self) -> bool:
        return bool(self.by_language)


@dataclass(frozen=True, slots=True)
class Letter:
    """A symbol that an answer may use.

    Attributes:
        name: as it is written, "B", "W_ici".
        words: what it means.
        unit: "token", "FLOP/s", ...; "" for plain numbers.
        value: where the exercise gives one, in SI.
        whole: a whole number (a batch, a number of chips), not a rate.
        devices: counts chips: answers per chip and in total differ by it.
    """

    name: str
    words: Words
    unit: str = ""
    value: Fraction | None = None
    whole: bool = True
    devices: bool = False


@dataclass(frozen=True, slots=True)
class Other:
    """An answer that is not the asked one and is known: a convention, a slip in print, or a mistake.

    Attributes:
        kind: "convention", "slip" or "mistake".
        answer: as text, in the forms that students may use.
        values: numbers for letters, where they differ from the part's own.
        words: the convention's name, where it was printed, or what was forgotten.
        ident: by which a convention can be asked for like a part; "" for the others.
        also: other such names.
    """

    kind: str
    answer: str
    values: Mapping[str, Fraction]
    words: Words
    ident: str = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers to choose from."""

    ident: str
    words: Words
    right: bool
    why: Words
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """One question of an exercise.

    Attributes:
        kind: "formula" (sizes stay letters), "number", "bound" (`D > 2*C/W`), "choice", or "open" (nothing to check).
        answer: as text; "" for choices, open questions, and where only `derive` gives it.
        values: numbers for letters.
        unit: the unit of the answer, "" for plain numbers.
        tolerance: relative, for numbers; 0 is exact.
        between: the accepted range in the part's unit, instead of `tolerance`.
        limit: the other form of the answer, where one is exact and one is a limit; `limit_of` says which sizes grow.
        asks_limit: the part asks for the limit, and `limit` holds the exact form.
        derive: how costir itself computes the answer, see `derive.py`; empty where it does not.
        terms: names for terms of the answer, to say which one is missing.
    """

    ident: str
    also: tuple[str, ...]
    ask: Words
    kind: str
    answer: str
    values: Mapping[str, Fraction]
    unit: str
    tolerance: Fraction
    between: tuple[Fraction, Fraction] | None
    limit: str
    asks_limit: bool
    derive: Mapping[str, Any]
    others: tuple[Other, ...]
    choices: tuple[Choice, ...]
    terms: Mapping[str, Words]


@dataclass(frozen=True, slots=True)
class Exercise:
    """A prompt with its parts."""

    ident: str
    chapter: str
    title: Words
    source: str
    prompt: Words
    letters: Mapping[str, Letter]
    parts: tuple[Part, ...]
    hints: tuple[Words, ...]
    solution: tuple[Words, ...]
    folder: str
