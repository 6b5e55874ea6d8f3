"""Numbers of a file, exactly."""

from __future__ import annotations

import re
from fractions import Fraction

from costir.errors import CostirError

LONGEST_NUMBER = 102  # characters


def exact(value: int | float | str) -> Fraction:
    """A number of the file, exactly: 1.97e14 and "1.97e14" are whole.

    Raises:
        CostirError: where it is no finite number, or has more than 100 digits or an exponent of 100 or more.
    """
    if isinstance(value, int) and value.bit_length() > 332:  # its digits alone would take long
        raise CostirError("a number has more than 100 digits", "write for example 1.97e14")
    if len(str(value)) > LONGEST_NUMBER or re.search(r"[eE][-+]?[0_]*[1-9]_?[0-9]_?[0-9]", str(value)):
        raise CostirError(f"the number {str(value)[:40]!r} is out of range", "at most 100 digits, and exponents below 100")
    try:
        return Fraction(repr(value) if isinstance(value, float) else str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise CostirError(f"{str(value)[:40]!r} is not a number", "write for example 1.97e14") from error
