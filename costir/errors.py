"""Every error that a user can meet. A message says what was seen and where; the hint says what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CostirError(Exception):
    """Base of all errors that costir raises on purpose.

    Args:
        message: one sentence, what was seen and where.
        hint: what to do about it; may be empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class LoadError(CostirError):
    """The subject (file, config, exported program, notation) cannot be turned into a model."""


class NotationError(LoadError):
    """A notation string has a slip; the message points at the character."""


class TraceError(CostirError):
    """The model could not be run on fake tensors, or it branches on data."""


class UndividedError(TraceError):
    """The model does something that cannot be divided among devices, whatever its sizes are."""


class LiftError(CostirError):
    """Traces at several sizes do not fit one formula."""


class SizeError(CostirError):
    """A size is unknown, absurd, or outside the range in which the formulas hold."""


class ChipError(CostirError):
    """A chip is unknown, or its file is wrong."""


class FormulaError(CostirError):
    """A formula that the user typed cannot be read."""


class RuleError(CostirError):
    """A cost rule is registered twice, or without a sample."""


def nearest(name: str, known: Iterable[str], most: int = 3) -> str:
    """The names closest to `name`, as the tail of a message: "did you mean a, b?" or "known: a, b, ..."."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=most, cutoff=0.5)
    if close:
        return f"did you mean {', '.join(close)}?"
    return f"known: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"


def one_of(what: str, given: str, known: tuple[str, ...]) -> None:
    """Refuse a word that is not known.

    Raises:
        CostirError: names the known ones.
    """
    if given not in known:
        raise CostirError(f"{what}={given!r} is not known", f"choose {' or '.join(known)}")
