"""Sizes that remember what the program asked about them.

A model sees its sizes as `Dim`s: whole numbers that note every comparison made by user code. `if x.shape[1] > 512` is then
known as a condition, with its line, and the formulas found hold only where every condition comes out the same way.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from costir.tracing.frames import is_library_file, is_user_file, where

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

    @property
    def key(self) -> tuple[str, str, bool]:
        """What stays the same when the sizes change."""
        return self.source, self.op, self.implied


_log: list[dict[Guard, None]] = []  # the innermost trace's guards; empty outside traces


class watch:  # noqa: N801 - reads as a verb where it is used
    """Context in which comparisons of `Dim`s are noted into `guards`."""

    def __init__(self, guards: dict[Guard, None]) -> None:
        self.guards = guards

    def __enter__(self) -> None:
        _log.append(self.guards)

    def __exit__(self, *error: object) -> None:
        _log.pop()


def _note(op: str, left: int, right: int, outcome: bool) -> None:
    if _log:
        frame = sys._getframe(2)
        if is_user_file(frame.f_code.co_filename):
            _log[-1][Guard(where(frame), op, int(left), int(right), outcome, is_library_file(frame.f_code.co_filename))] = None


def note_guard(frame: FrameType | None, op: str, left: int, right: int) -> None:
    """Note a condition that held at a frame although the program did not write it as a comparison."""
    if _log and frame is not None:
        _log[-1][Guard(where(frame), op, int(left), int(right), True, library=True, implied=True)] = None


def _comparison(op: str) -> Callable[[Dim, Any], Any]:
    compare = getattr(int, {"<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__", "==": "__eq__", "!=": "__ne__"}[op])

    def method(self: Dim, other: Any) -> Any:
        outcome = compare(self, other)
        if outcome is not NotImplemented and type(other) is not bool:
            _note(op, self, other, outcome)
        return outcome

    return method


def _arithmetic(name: str) -> Callable[..., Any]:
    compute = getattr(int, name)

    def method(self: Dim, other: Any) -> Any:
        value = compute(self, other)
        return Dim(value) if type(value) is int else value

    return method


class Dim(int):
    """A whole number whose comparisons are noted while a trace runs; arithmetic on it gives another."""

    __slots__ = ()
    __lt__ = _comparison("<")
    __le__ = _comparison("<=")
    __gt__ = _comparison(">")
    __ge__ = _comparison(">=")
    __eq__ = _comparison("==")
    __ne__ = _comparison("!=")
    __hash__ = int.__hash__
    __add__ = __radd__ = _arithmetic("__add__")
    __sub__ = _arithmetic("__sub__")
    __rsub__ = _arithmetic("__rsub__")
    __mul__ = __rmul__ = _arithmetic("__mul__")
    __floordiv__ = _arithmetic("__floordiv__")
    __rfloordiv__ = _arithmetic("__rfloordiv__")
    __mod__ = _arithmetic("__mod__")
    __rmod__ = _arithmetic("__rmod__")

    def __bool__(self) -> bool:
        outcome = int.__ne__(self, 0)
        _note("!=", self, 0, outcome)
        return outcome

    def __neg__(self) -> Dim:
        return Dim(int.__neg__(self))

    def __deepcopy__(self, memo: object) -> Dim:
        return self

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)
