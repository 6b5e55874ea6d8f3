"""What a trace notes of the sizes in it: comparisons, arithmetic, and uses after which a size is a plain number."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from types import FrameType
from typing import Any, NamedTuple

from costir.tracing.frames import is_check_of_module, is_library_file, is_user_file, where

OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Guard:
    """A comparison of sizes that the program made: `left op right` came out as `outcome` at `source`."""

    source: str
    op: str
    left: int
    right: int
    outcome: bool
    library: bool = False  # made by an installed package, not by the user
    implied: bool = False  # not written as a comparison: a table is only so long
    rounded: tuple[str, int, int] | None = (
        None  # where `left` is a remainder or a rounded quotient: "%" or "//", of what, by what
    )

    @property
    def key(self) -> tuple[str, str, bool]:
        """What stays the same when the sizes change."""
        return self.source, self.op, self.implied


class Step(NamedTuple):
    """One piece of arithmetic on sizes that the program did: scale * `left` `op` `right` gave `value` at a place.

    `op` is one of + - * // %, or "floor" and "ceil" for a quotient taken as a float and then rounded.
    """

    place: tuple[str, int, int]
    op: str
    scale: Fraction
    left: int
    right: int
    value: int


@dataclass(frozen=True, slots=True)
class Escape:
    """A use of a size after which it is a plain number that remembers nothing: int(T), T ^ 1, a place in a set.

    Attributes:
        source: the line.
        what: how it was used.
        value: the size.
        library: done by an installed package, not by the user.
        digits: what came of it depends on digits of the size, not on its magnitude: no trial at a few sizes finds out how.
    """

    source: str
    what: str
    value: int
    library: bool
    digits: bool


_MOST_STEPS = 20_000  # a loop over a size may do the same arithmetic any number of times
_UNIT = Fraction(1)
_log: list[tuple[dict[Guard, None], dict[Step, None], dict[Escape, None]]] = []  # of the innermost trace; empty outside traces


class watch:  # noqa: N801 - reads as a verb where it is used
    """Context in which comparisons of `Dim`s are noted into `guards`, arithmetic into `steps`, other uses into `escapes`."""

    def __init__(self, guards: dict[Guard, None], steps: dict[Step, None] | None = None,
                 escapes: dict[Escape, None] | None = None) -> None:  # fmt: skip
        self.guards = guards
        self.steps = steps if steps is not None else {}
        self.escapes = escapes if escapes is not None else {}

    def __enter__(self) -> None:
        _log.append((self.guards, self.steps, self.escapes))

    def __exit__(self, *error: object) -> None:
        _log.pop()


def watching() -> bool:
    """Whether a trace runs."""
    return bool(_log)


def plain(x: Any) -> int:
    """A number without its memory."""
    return int.__int__(x) if isinstance(x, int) else int(x)


def note_comparison(op: str, left: int, right: int, outcome: bool, rounded: tuple[str, int, int] | None = None) -> None:
    """Note a comparison that the caller's caller made, where that is code of the user's or of a library."""
    if _log:
        frame = sys._getframe(2)
        if is_user_file(frame.f_code.co_filename) or is_check_of_module(frame):
            library = is_library_file(frame.f_code.co_filename)
            _log[-1][0][Guard(where(frame), op, plain(left), plain(right), outcome, library, rounded=rounded)] = None


def note_guard(frame: FrameType | None, op: str, left: int, right: int, branch: bool = False,
               rounded: tuple[str, int, int] | None = None) -> None:  # fmt: skip
    """Note a condition at a frame that the program did not write as a comparison.

    Args:
        frame: where; None notes nothing.
        op, left, right: the condition.
        branch: it may come out either way and the program goes on; else it must hold.
        rounded: what `left` was made of; see `Guard`.
    """
    if _log and frame is not None:
        library = not branch or is_library_file(frame.f_code.co_filename)
        outcome = OPERATORS[op](plain(left), plain(right))
        _log[-1][0][Guard(where(frame), op, plain(left), plain(right), outcome, library, implied=True, rounded=rounded)] = None


def note_escape(frame: FrameType | None, what: str, value: int, digits: bool = False) -> None:
    """Note that a size became a plain number at a frame of the user's or a library's; others are not noted."""
    if _log and frame is not None and is_user_file(frame.f_code.co_filename):
        library = is_library_file(frame.f_code.co_filename)
        _log[-1][2][Escape(where(frame), what, int.__int__(value), library, digits)] = None


def note_step(frame: FrameType | None, op: str, left: int, right: int, value: int, scale: Fraction = _UNIT) -> None:
    """Note arithmetic on sizes done at a frame; None notes nothing."""
    if _log and frame is not None and len(_log[-1][1]) < _MOST_STEPS:
        place = frame.f_code.co_filename, frame.f_lineno, frame.f_lasti
        _log[-1][1][Step(place, op, scale, plain(left), plain(right), int(value))] = None
