"""Sizes that remember what the program asked about them.

A model sees its sizes as `Dim`s: whole numbers that note every comparison made by user code. `if x.shape[1] > 512` is then
known as a condition, with its line, and the formulas found hold only where every condition comes out the same way. What the
program computes from its sizes, such as `(T + W - 1) // W`, is noted too: a dimension found later may be that.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from types import FrameType
from typing import Any, NamedTuple

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


_MOST_STEPS = 20_000  # a loop over a size may do the same arithmetic any number of times
_UNIT = Fraction(1)
_log: list[tuple[dict[Guard, None], dict[Step, None]]] = []  # of the innermost trace; empty outside traces


class watch:  # noqa: N801 - reads as a verb where it is used
    """Context in which comparisons of `Dim`s are noted into `guards`, and arithmetic on them into `steps`."""

    def __init__(self, guards: dict[Guard, None], steps: dict[Step, None] | None = None) -> None:
        self.guards = guards
        self.steps = steps if steps is not None else {}

    def __enter__(self) -> None:
        _log.append((self.guards, self.steps))

    def __exit__(self, *error: object) -> None:
        _log.pop()


def _note(op: str, left: int, right: int, outcome: bool, rounded: tuple[str, int, int] | None = None) -> None:
    if _log:
        frame = sys._getframe(2)
        if is_user_file(frame.f_code.co_filename):
            library = is_library_file(frame.f_code.co_filename)
            _log[-1][0][Guard(where(frame), op, int(left), int(right), outcome, library, rounded=rounded)] = None


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
        outcome = OPERATORS[op](int(left), int(right))
        _log[-1][0][Guard(where(frame), op, int(left), int(right), outcome, library, implied=True, rounded=rounded)] = None


def _step(op: str, left: int, right: int, value: int, scale: Fraction = _UNIT) -> Dim:
    note_step(sys._getframe(2), op, left, right, value, scale)
    return Dim(value)


def note_step(frame: FrameType | None, op: str, left: int, right: int, value: int, scale: Fraction = _UNIT) -> None:
    """Note arithmetic on sizes done at a frame; None notes nothing."""
    if _log and frame is not None and len(_log[-1][1]) < _MOST_STEPS:
        place = frame.f_code.co_filename, frame.f_lineno, frame.f_lasti
        _log[-1][1][Step(place, op, scale, int(left), int(right), int(value))] = None


def _comparison(op: str) -> Callable[[Dim, Any], Any]:
    compare = getattr(int, {"<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__", "==": "__eq__", "!=": "__ne__"}[op])

    def method(self: Dim, other: Any) -> Any:
        if type(other) is float and other == other and abs(other) < 1e15:
            exact = Fraction(other)
            outcome = OPERATORS[op](int(self) * exact.denominator, exact.numerator)
            _note(op, int(self) * exact.denominator, exact.numerator, outcome)
            return outcome
        outcome = compare(self, other)
        if outcome is not NotImplemented and type(other) is not bool:
            _note(op, self, other, outcome, self.__dict__.get("rounded"))
        return outcome

    return method


def _arithmetic(op: str, name: str, swapped: bool = False) -> Callable[..., Any]:
    compute = getattr(int, name)

    def method(self: Dim, other: Any) -> Any:
        value = compute(self, other)
        if type(value) is not int:
            if op == "*" and type(other) is float:
                return Quotient(self, 1, Fraction(other).limit_denominator(10**6), float(self) * other)
            return value
        left, right = (other, self) if swapped else (self, other)
        made = _step(op, left, right, value)
        if op in ("%", "//"):
            made.rounded = (op, int(left), int(right))
        return made

    return method


class Dim(int):
    """A whole number whose comparisons and arithmetic are noted while a trace runs; arithmetic on it gives another."""

    rounded: tuple[str, int, int]
    __lt__ = _comparison("<")
    __le__ = _comparison("<=")
    __gt__ = _comparison(">")
    __ge__ = _comparison(">=")
    __eq__ = _comparison("==")
    __ne__ = _comparison("!=")
    __hash__ = int.__hash__
    __add__ = _arithmetic("+", "__add__")
    __radd__ = _arithmetic("+", "__radd__", swapped=True)
    __sub__ = _arithmetic("-", "__sub__")
    __rsub__ = _arithmetic("-", "__rsub__", swapped=True)
    __mul__ = _arithmetic("*", "__mul__")
    __rmul__ = _arithmetic("*", "__rmul__", swapped=True)
    __floordiv__ = _arithmetic("//", "__floordiv__")
    __rfloordiv__ = _arithmetic("//", "__rfloordiv__", swapped=True)
    __mod__ = _arithmetic("%", "__mod__")
    __rmod__ = _arithmetic("%", "__rmod__", swapped=True)

    def __bool__(self) -> bool:
        outcome = int.__ne__(self, 0)
        _note("!=", self, 0, outcome, self.__dict__.get("rounded"))
        return outcome

    def __neg__(self) -> Dim:
        return _step("*", -1, self, int.__neg__(self))

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        value = int.__pow__(self, other, modulus) if modulus is not None else int.__pow__(self, other)
        if type(value) is int and type(other) is int and other == 2 and modulus is None:
            return _step("*", self, self, value)
        return value

    def __truediv__(self, other: Any) -> Any:
        value = int.__truediv__(self, other) if isinstance(other, int) else int(self) / other
        if isinstance(other, int):
            return Quotient(self, other, _UNIT, value)
        if type(other) is float and other:
            return Quotient(self, 1, 1 / Fraction(other).limit_denominator(10**6), value)
        return value

    def __rtruediv__(self, other: Any) -> Any:
        value = int.__rtruediv__(self, other) if isinstance(other, int) else other / int(self)
        return Quotient(other, self, _UNIT, value) if isinstance(other, int) else value

    def __deepcopy__(self, memo: object) -> Dim:
        return self

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


def _crossed(op: str) -> Callable[[Quotient, Any], Any]:
    """A comparison of scale*left/right with a number, noted as one of whole numbers."""
    compare = getattr(float, {"<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__", "==": "__eq__", "!=": "__ne__"}[op])

    def method(self: Quotient, other: Any) -> Any:
        outcome = compare(self, other)
        if isinstance(other, (int, float)) and not isinstance(other, bool) and self.right > 0 and abs(other) < 1e15:
            exact = Fraction(int(other) if isinstance(other, int) else float.__float__(other))
            _note(op, int(self.left) * self.scale.numerator * exact.denominator,
                  exact.numerator * int(self.right) * self.scale.denominator, outcome)  # fmt: skip
        return outcome

    return method


class Quotient(float):
    """scale * left / right as a float, that remembers what it was made of until it is rounded to a whole number again."""

    left: int
    right: int
    scale: Fraction

    def __new__(cls, left: int, right: int, scale: Fraction, value: float) -> Quotient:
        """`value` is scale * left / right as the program computed it."""
        self = super().__new__(cls, value)
        self.left, self.right, self.scale = int(left), int(right), scale
        return self

    __lt__ = _crossed("<")
    __le__ = _crossed("<=")
    __gt__ = _crossed(">")
    __ge__ = _crossed(">=")
    __eq__ = _crossed("==")
    __ne__ = _crossed("!=")
    __hash__ = float.__hash__

    def _scaled(self, by: Any, value: float) -> float:
        if type(by) in (int, float, Fraction) and by and abs(by) < 1e15:
            return Quotient(self.left, self.right, self.scale * Fraction(by).limit_denominator(10**6), value)
        return value

    def __mul__(self, other: Any) -> Any:
        value = float.__mul__(self, other)
        return self._scaled(other, value) if value is not NotImplemented else value

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        value = float.__truediv__(self, other)
        return self._scaled(1 / Fraction(other) if type(other) in (int, float) and other else None, value)

    def __int__(self) -> int:
        value = int(float(self))
        if self.left >= 0 and self.right > 0 and self.scale > 0:
            _step("floor", self.left, self.right, value, self.scale)
        return value

    __trunc__ = __int__

    def __floor__(self) -> int:
        return _step("floor", self.left, self.right, math.floor(float(self)), self.scale)

    def __ceil__(self) -> int:
        return _step("ceil", self.left, self.right, math.ceil(float(self)), self.scale)
