"""Sizes that remember what the program asked about them.

A model sees its sizes as `Dim`s: whole numbers that note every comparison made by user code. `if x.shape[1] > 512` is then
known as a condition, with its line, and the formulas found hold only where every condition comes out the same way. What the
program computes from its sizes, such as `(T + W - 1) // W`, is noted too: a dimension found later may be that.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from types import FrameType
from typing import Any

from costir.tracing.frames import is_library_file, is_user_file
from costir.tracing.keys import keys_at
from costir.tracing.notes import OPERATORS, note_comparison, note_escape, note_guard, note_step, plain, watching

_EXACT = 1e15  # up to here floats hold whole numbers exactly
_MULTIPLES = 2000  # of a fraction's denominator, at which a product of floats is looked at
_WIDEST = 40  # bits of a shift
_POWERS = 8  # of higher ones, only the magnitude is known
_UNIT = Fraction(1)


def _escaping(name: str, what: str, digits: bool = False) -> Callable[..., Any]:
    """A method of int that gives something that remembers nothing."""
    compute = getattr(int, name)

    def method(self: Dim, *others: Any) -> Any:
        note_escape(sys._getframe(1), what, self, digits)
        return compute(self, *others)

    return method


def _step(op: str, left: int, right: int, value: int, scale: Fraction = _UNIT) -> Dim:
    note_step(sys._getframe(2), op, left, right, value, scale)
    return Dim(value)


def _comparison(op: str) -> Callable[[Dim, Any], Any]:
    compare = getattr(int, {"<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__", "==": "__eq__", "!=": "__ne__"}[op])

    def method(self: Dim, other: Any) -> Any:
        if type(other) is float and other == other and abs(other) < _EXACT:
            exact = Fraction(other)
            outcome = OPERATORS[op](int.__int__(self) * exact.denominator, exact.numerator)
            note_comparison(op, int.__int__(self) * exact.denominator, exact.numerator, outcome)
            return outcome
        outcome = compare(self, other)
        if outcome is not NotImplemented and type(other) is not bool:
            note_comparison(op, self, other, outcome, self.__dict__.get("rounded"))
        return outcome

    return method


def _arithmetic(op: str, name: str, swapped: bool = False) -> Callable[..., Any]:
    compute = getattr(int, name)

    def method(self: Dim, other: Any) -> Any:
        value = compute(self, other)
        if type(value) is not int:
            if op == "*" and type(other) is float:
                share = Quotient(
                    self, 1, Fraction(other).limit_denominator(10**6), float.__mul__(float(int.__int__(self)), other)
                )
                share.unsure = slips(other)
                return share
            return value
        left, right = (other, self) if swapped else (self, other)
        made = _step(op, left, right, value)
        if op in ("%", "//"):
            made.rounded = (op, plain(left), plain(right))
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
    __int__ = _escaping("__int__", "int()")
    __float__ = _escaping("__float__", "float()")
    __str__ = __repr__ = _escaping("__repr__", "text")
    __format__ = _escaping("__format__", "text")
    bit_length = _escaping("bit_length", "bit_length()")
    bit_count = _escaping("bit_count", "bit_count()", digits=True)
    __rlshift__ = _escaping("__rlshift__", "<<")
    __xor__ = _escaping("__xor__", "^", digits=True)
    __rxor__ = _escaping("__rxor__", "^", digits=True)
    __or__ = _escaping("__or__", "|", digits=True)
    __ror__ = _escaping("__ror__", "|", digits=True)

    def __hash__(self) -> int:
        if watching():
            frame = sys._getframe(1)
            if is_user_file(frame.f_code.co_filename) and not is_library_file(frame.f_code.co_filename):
                note_escape(frame, "a key", self)
                for key in keys_at(frame):
                    note_guard(frame, "==", self, key, branch=True)
        return int.__hash__(self)

    def __and__(self, other: Any) -> Any:
        bits = int.__and__(self, other)
        if bits is NotImplemented:
            return bits
        if type(other) is int and other > 0 and other & (other + 1) == 0:  # the last digits in base 2
            return self._rounded("%", other + 1, bits)
        note_escape(sys._getframe(1), "&", self, digits=True)
        return bits

    __rand__ = __and__

    def __rshift__(self, other: Any) -> Any:
        value = int.__rshift__(self, other)
        return self._rounded("//", 1 << other, value) if type(other) is int and other < _WIDEST else value

    def __lshift__(self, other: Any) -> Any:
        value = int.__lshift__(self, other)
        return _step("*", self, 1 << other, value) if type(other) is int and other < _WIDEST else value

    def _rounded(self, op: str, by: int, value: int) -> Dim:
        note_step(sys._getframe(2), op, self, by, value)
        made = Dim(value)
        made.rounded = (op, int.__int__(self), by)
        return made

    def __round__(self, *digits: Any) -> Any:
        if digits:
            note_escape(sys._getframe(1), "round()", self, digits=True)
        return int.__round__(self, *digits) if digits else self

    def __invert__(self) -> Dim:
        return _step("-", -1, self, int.__invert__(self))

    def __abs__(self) -> Dim:
        negative = int.__lt__(self, 0)
        note_comparison("<", self, 0, negative)
        return _step("*", -1, self, int.__neg__(self)) if negative else self

    def __divmod__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return int.__divmod__(self, other)
        quotient, rest = int.__divmod__(self, other)
        return self._rounded("//", other, quotient), self._rounded("%", other, rest)

    def __bool__(self) -> bool:
        outcome = int.__ne__(self, 0)
        note_comparison("!=", self, 0, outcome, self.__dict__.get("rounded"))
        return outcome

    def __neg__(self) -> Dim:
        return _step("*", -1, self, int.__neg__(self))

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        value = int.__pow__(self, other, modulus) if modulus is not None else int.__pow__(self, other)
        if type(value) is int and type(other) is int and 2 <= other <= _POWERS and modulus is None:
            power: int = self
            for n in range(2, other + 1):
                note_step(sys._getframe(1), "*", power, self, int.__int__(self) ** n)
                power = int.__int__(self) ** n
            return Dim(value)
        note_escape(sys._getframe(1), "**", self, digits=modulus is not None)
        return value

    def __rpow__(self, other: Any, modulus: Any = None) -> Any:
        note_escape(sys._getframe(1), "**", self, digits=modulus is not None)
        return int.__rpow__(self, other)

    def __truediv__(self, other: Any) -> Any:
        value = int.__truediv__(self, other) if isinstance(other, int) else int.__int__(self) / other
        if isinstance(other, int):
            return Quotient(self, other, _UNIT, value)
        if type(other) is float and other:
            return Quotient(self, 1, 1 / Fraction(other).limit_denominator(10**6), value)
        return value

    def __rtruediv__(self, other: Any) -> Any:
        value = int.__rtruediv__(self, other) if isinstance(other, int) else other / int.__int__(self)
        return Quotient(other, self, _UNIT, value) if isinstance(other, int) else value

    def __deepcopy__(self, memo: object) -> Dim:
        return self

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int.__int__(self),)


def _crossed(op: str) -> Callable[[Quotient, Any], Any]:
    """A comparison of scale*left/right with a number, noted as one of whole numbers."""
    compare = getattr(float, {"<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__", "==": "__eq__", "!=": "__ne__"}[op])

    def method(self: Quotient, other: Any) -> Any:
        outcome = compare(self, other)
        if isinstance(other, (int, float)) and not isinstance(other, bool) and self.right > 0 and abs(other) < _EXACT:
            exact = Fraction(int(other) if isinstance(other, int) else float.__float__(other))
            note_comparison(op, int(self.left) * self.scale.numerator * exact.denominator,
                  exact.numerator * int(self.right) * self.scale.denominator, outcome)  # fmt: skip
        return outcome

    return method


@functools.lru_cache(maxsize=1024)
def slips(factor: float) -> bool:
    """Whether a whole number times a float may come out beside the whole number that it is by fractions: 100 * 0.29 < 29."""
    exact = Fraction(factor).limit_denominator(10**6)
    return exact.denominator > 1 and any(
        exact.denominator * k * factor != exact.numerator * k for k in range(1, min(_MULTIPLES, int(1e12) // exact.denominator))
    )


def _note_half(frame: FrameType, left: int, factor: int, value: int) -> None:
    """A half rounded as Python rounds it, halves to the even neighbour: floor((n + 1)/4) + floor((n + 2)/4)."""
    top = left * factor
    note_step(frame, "*", left, factor, top)
    for i in (1, 2):
        note_step(frame, "+", top, i, top + i)
        note_step(frame, "//", top + i, 4, (top + i) // 4)
    note_step(frame, "+", (top + 1) // 4, (top + 2) // 4, value)


class Quotient(float):
    """scale * left / right as a float, that remembers what it was made of until it is rounded to a whole number again."""

    left: int
    right: int
    scale: Fraction
    unsure: bool = False  # as a whole number it may be one less or more than by fractions

    def __new__(cls, left: int, right: int, scale: Fraction, value: float) -> Quotient:
        """`value` is scale * left / right as the program computed it."""
        self = super().__new__(cls, value)
        self.left, self.right, self.scale = plain(left), plain(right), scale
        return self

    __lt__ = _crossed("<")
    __le__ = _crossed("<=")
    __gt__ = _crossed(">")
    __ge__ = _crossed(">=")
    __eq__ = _crossed("==")
    __ne__ = _crossed("!=")
    __hash__ = float.__hash__

    def _scaled(self, by: Any, value: float) -> float:
        if type(by) in (int, float, Fraction) and by and abs(by) < _EXACT:
            return Quotient(self.left, self.right, self.scale * Fraction(by).limit_denominator(10**6), value)
        return value

    def __mul__(self, other: Any) -> Any:
        value = float.__mul__(self, other)
        return self._scaled(other, value) if value is not NotImplemented else value

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        value = float.__truediv__(self, other)
        return self._scaled(1 / Fraction(other) if type(other) in (int, float) and other else None, value)

    def _shifted(self, by: Any, value: float, times: int = 1) -> float:
        """times * self + by, where `by` is a plain number and `times` 1 or -1."""
        if type(by) not in (int, float, Dim) or by != by or abs(by) >= _EXACT:
            return value
        frame, c = sys._getframe(2), Fraction(by).limit_denominator(10**6)
        up, down = times * self.scale.numerator * c.denominator, self.scale.denominator * c.denominator
        note_step(frame, "*", self.left, up, self.left * up)
        over = self.right * self.scale.denominator * c.numerator
        note_step(frame, "*", self.right, self.scale.denominator * c.numerator, over)
        note_step(frame, "+", self.left * up, over, self.left * up + over)
        note_step(frame, "*", self.right, down, self.right * down)
        return Quotient(self.left * up + over, self.right * down, _UNIT, value)

    def __add__(self, other: Any) -> Any:
        value = float.__add__(self, other)
        return self._shifted(other, value) if value is not NotImplemented else value

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        value = float.__sub__(self, other)
        return self._shifted(-other, value) if value is not NotImplemented else value

    def __rsub__(self, other: Any) -> Any:
        value = float.__rsub__(self, other)
        return self._shifted(other, value, -1) if value is not NotImplemented else value

    def is_integer(self) -> bool:
        """Whether it is whole, noted as a remainder."""
        frame, top, bottom = sys._getframe(1), self.left * self.scale.numerator, self.right * self.scale.denominator
        if bottom <= 0:
            return float.is_integer(self)
        note_step(frame, "*", self.left, self.scale.numerator, top)
        note_guard(frame, "==", top % bottom, 0, branch=True, rounded=("%", top, bottom))
        return top % bottom == 0

    def __round__(self, *digits: Any) -> Any:
        top, bottom = self.left * self.scale.numerator, self.right * self.scale.denominator
        value = float.__round__(self, *digits)
        if not digits and top >= 0 and bottom == 2:
            _note_half(sys._getframe(1), self.left, self.scale.numerator, value)
            return value
        if digits or top < 0 or bottom <= 0 or bottom % 2 == 0:  # halves go to the even neighbour
            note_escape(sys._getframe(1), "round()", self.left, digits=True)
            return value
        note_step(sys._getframe(1), "*", self.left, 2 * self.scale.numerator, 2 * top)
        note_step(sys._getframe(1), "+", 2 * top, bottom, 2 * top + bottom)
        note_step(sys._getframe(1), "//", 2 * top + bottom, 2 * bottom, value)
        return value

    def __int__(self) -> int:
        value = int(float(self))
        if self.left >= 0 and self.right > 0 and self.scale > 0:
            if self.unsure:
                top, bottom = self.left * self.scale.numerator, self.right * self.scale.denominator
                note_step(sys._getframe(1), "*", self.left, self.scale.numerator, top)
                note_guard(sys._getframe(1), "==", top % bottom, 0, rounded=("%", top, bottom))
            _step("floor", self.left, self.right, value, self.scale)
        return value

    __trunc__ = __int__

    def __floor__(self) -> int:
        return _step("floor", self.left, self.right, math.floor(float(self)), self.scale)

    def __ceil__(self) -> int:
        return _step("ceil", self.left, self.right, math.ceil(float(self)), self.scale)
