"""What a size may be looked up among: the whole numbers in the tables and sets that a line of code names."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

_MOST = 64
_NAMES = ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD", "LOAD_CLASSDEREF")


def keys_at(frame: FrameType) -> tuple[int, ...]:
    """The whole numbers among which the line that runs may look something up, written there or in what it names."""
    constants, names = _line(frame.f_code, frame.f_lineno)
    found = dict.fromkeys(constants)
    if names:
        for table in _tables(frame, names):
            found.update(dict.fromkeys(k for k in list(table)[:_MOST] if type(k) is int))
    return tuple(found)[:_MOST]


@functools.lru_cache(maxsize=1024)
def _line(code: CodeType, line: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The numbers and the names in the instructions of a line."""
    numbers: list[int] = []
    names: list[str] = []
    for instruction, position in zip(dis.get_instructions(code), code.co_positions(), strict=False):
        if position[0] != line:
            continue
        value = instruction.argval
        if instruction.opname in _NAMES:
            names.append(str(value))
        elif isinstance(value, (frozenset, tuple)):
            numbers += [v for v in value if type(v) is int]
        elif type(value) is int and instruction.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            numbers.append(value)
    return tuple(dict.fromkeys(numbers)), tuple(dict.fromkeys(names))


def _tables(frame: FrameType, names: Iterable[str]) -> Iterator[Any]:
    """The tables and sets that these names stand for, as variables or as attributes of variables."""
    held = list(frame.f_locals.values())[:_MOST]
    for name in names:
        spaces = (frame.f_locals, frame.f_globals, *(getattr(v, "__dict__", {}) for v in held))
        for space in spaces:
            value = space.get(name) if isinstance(space, dict) else None
            if isinstance(value, (dict, set, frozenset)):
                yield value
