"""Reading and checking a chip file: TOML in, exact numbers out. `docs/chips.md` describes the format.

A file is data, never code. Every mistake is one sentence: the file, the key, the value, and what is expected there.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

from costir.errors import ChipError, nearest
from costir.units import BINARY, DECIMAL

LARGEST_FILE = 1_000_000  # bytes
LONGEST_LINE = 4_000  # characters
MOST_DOTS = 200  # in a line; many keys of thousands of parts take the TOML reader minutes
MATRIX = (
    "fp64", "fp32", "tf32", "bf16", "fp16", "fp16_fp16acc", "fp8", "fp8_fp16acc", "fp6", "fp4", "int8", "int4",
)  # fmt: skip
VECTOR = ("fp64", "fp32", "fp32_packed", "bf16", "fp16")

# What a number may be, by kind: lowest, highest, and the words of the message. Outside is a slip (989 for 989e12).
LIMITS: dict[str, tuple[Fraction, Fraction, str]] = {
    "rate": (Fraction("1e6"), Fraction("1e21"), "a rate in FLOP/s from 1e6 to 1e21, such as 1.97e14"),
    "bandwidth": (Fraction("1e3"), Fraction("1e18"), "a bandwidth in bytes/s from 1e3 to 1e18, such as 8.2e11"),
    "capacity": (Fraction("1"), Fraction("1e16"), "a capacity in bytes from 1 to 1e16, such as 16e9"),
    "seconds": (Fraction("1e-12"), Fraction("10"), "a time in seconds from 1e-12 to 10, such as 1e-6"),
    "power": (Fraction("0.1"), Fraction("1e6"), "a power in watts from 0.1 to 1e6, such as 700"),
    "any": (Fraction("1e-15"), Fraction("1e24"), "a positive number from 1e-15 to 1e24"),
}
# Which kind of number a quantity is, by the last part of its name; dtypes are rates.
KINDS = {
    "bandwidth": "bandwidth", "capacity": "capacity", "latency": "seconds", "link_one_way": "bandwidth",
    "link_one_way_planned": "bandwidth", "one_way": "bandwidth", "two_way": "bandwidth", "peer_one_way": "bandwidth",
    "scaleout_one_way": "bandwidth",
}  # fmt: skip

Check = Callable[[str, str, Any], Any]


def fail(where: str, key: str, value: object, expected: str) -> NoReturn:
    """Raise the one sentence that every wrong value gets."""
    try:
        text = (
            str(value).lower()
            if isinstance(value, bool)
            else repr(value)
            if isinstance(value, (str, list, dict))
            else str(value)
        )
    except ValueError:  # Python prints no whole number of more than 4300 digits
        text = "a number of thousands of digits"
    shown = text if len(text) <= 40 else text[:37] + "..."
    raise ChipError(f"{where}: {key} = {shown} is not {expected}")


def exact(where: str, key: str, value: object, kind: str) -> Fraction:
    """`value` as an exact number of its kind (see `LIMITS`).

    Strings are what people type: "8.2e11", with an SI prefix "820G", with a binary prefix "16Gi".

    Raises:
        ChipError: where it is no number, not finite, or outside the limits.
    """
    low, high, expected = LIMITS[kind]
    factor = 1
    number: int | Fraction | Decimal
    if isinstance(value, (int, Fraction, Decimal)) and not isinstance(value, bool):
        number = value
    elif isinstance(value, (str, float)):
        match = re.fullmatch(r"\s*([+-]?[0-9_.]+(?:[eE][+-]?[0-9]{1,4})?)\s*([kKMGTPE]?i?)\s*", str(value)[:60])
        if not match or match[2] not in DECIMAL | BINARY:
            fail(where, key, value, expected)
        factor = (DECIMAL | BINARY)[match[2]]
        try:
            number = Decimal(match[1])
        except InvalidOperation:
            fail(where, key, value, expected)
    else:
        fail(where, key, value, expected)
    # The size is looked at before a Fraction is made: 1e999999999 as a fraction does not fit into memory.
    if isinstance(number, Decimal) and (not number.is_finite() or abs(number.adjusted()) > 40 or len(str(number)) > 60):
        fail(where, key, value, expected)
    fraction = Fraction(number) * factor if factor != 1 else Fraction(number)
    if not low <= fraction <= high:
        fail(where, key, value, expected)
    return fraction


def _number(kind: str) -> Check:
    return lambda where, key, value: (
        fail(where, key, value, LIMITS[kind][2]) if isinstance(value, str) else exact(where, key, value, kind)
    )


def _whole(low: int, high: int, what: str) -> Check:
    def check(where: str, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            fail(where, key, value, f"{what}, a whole number from {low} to {high}")
        return value

    return check


def _text(where: str, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 1000 or not value.isprintable():
        fail(where, key, value, "a text of one line, at most 1000 characters")
    return value


def _texts(where: str, key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or len(value) > 100:
        fail(where, key, value, "a text or a list of texts")
    return tuple(_text(where, key, v) for v in value)


def _wholes(where: str, key: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= 6:
        fail(where, key, value, "a list of 1 to 6 whole numbers")
    return tuple(COUNT(where, key, v) for v in value)


def _one_of(*words: str) -> Check:
    def check(where: str, key: str, value: Any) -> str:
        if value not in words or not isinstance(value, str):
            fail(where, key, value, f"one of {', '.join(words)}")
        return value

    return check


def _some_of(words: tuple[str, ...]) -> Check:
    return lambda where, key, value: tuple(_one_of(*words)(where, key, v) for v in _texts(where, key, value))


COUNT = _whole(1, 10**7, "a count")
_COMMON: dict[str, Check] = {"source": _texts, "note": _text}
_TOP: dict[str, Check] = {
    **_COMMON, "name": _text, "vendor": _text, "year": _whole(1950, 2100, "a year"), "unit": _text, "family": _text,
    "kind": _one_of("gpu", "tpu", "npu", "soc", "cpu"), "aliases": _texts, "sm_count": COUNT, "cu_count": COUNT,
    "tdp": _number("power"), "absent": _texts,
    "confidence": _one_of("vendor", "secondary", "low", "measured"),
}  # fmt: skip
_RATES = {
    "matrix": {**dict.fromkeys(MATRIX, _number("rate")), **_COMMON, "derived": _some_of(MATRIX),
               "unsupported": _some_of(MATRIX), "sparse_halved": _some_of(MATRIX)},
    "vector": {**dict.fromkeys(VECTOR, _number("rate")), **_COMMON, "derived": _some_of(VECTOR),
               "flop_per_lane_cycle": _whole(1, 2, "the FLOPs of one lane in one cycle")},
}  # fmt: skip
_MEMORY: dict[str, Check] = {
    **_COMMON, "bandwidth": _number("bandwidth"), "capacity": _number("capacity"), "kind": _text, "label": _text,
    "basis": _one_of("device", "GB", "GiB"),
}  # fmt: skip
_ONCHIP: dict[str, Check] = {
    **_COMMON, "capacity": _number("capacity"), "bandwidth": _number("bandwidth"), "scope": _text,
    "derived": _some_of(("capacity", "bandwidth")),
}  # fmt: skip
_LINK: dict[str, Check] = {
    **_COMMON, **{k: _number(v) for k, v in KINDS.items() if k not in ("bandwidth", "capacity")},
    "kind": _text, "topology": _text, "wrap_rule": _text, "links": COUNT, "domain": COUNT, "max_slice": COUNT,
    "chips_per_host": COUNT, "pod": _wholes, "derived": _some_of(tuple(KINDS)),
}  # fmt: skip


def _check(where: str, prefix: str, table: Any, schema: Mapping[str, Check]) -> dict[str, Any]:
    """The values of one table, checked; unknown keys are refused with the nearest known one."""
    if not isinstance(table, dict):
        fail(where, prefix.rstrip("."), table, f"a table, written [{prefix.rstrip('.')}]")
    for key in table:
        if key not in schema:
            raise ChipError(f"{where}: unknown key {(prefix + key)[:80]!r}", nearest(key[:80], schema))
    return {key: schema[key](where, prefix + key, value) for key, value in table.items()}


def _named(where: str, section: str, tables: Any, check: Callable[[str, Any], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tables under names that the file chooses: [onchip.l2], [link.nvlink], [preset.book]."""
    if not isinstance(tables, dict) or len(tables) > 50:
        fail(where, section, tables, f"a set of tables, written [{section}.NAME]")
    for name in tables:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name):
            raise ChipError(f"{where}: {section}.{name[:40]!r} is not a name", "use small letters, digits and _, at most 40")
    return {name: check(f"{section}.{name}.", table) for name, table in tables.items()}


def _quantities(where: str, data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The tables that a chip and its presets share: matrix, vector, memory, onchip, link."""
    out: dict[str, Any] = {}
    for section, schema in (*_RATES.items(), ("memory", _MEMORY)):
        out[section] = _check(where, f"{prefix}{section}.", data.pop(section, {}), schema)
    for section, schema in (("onchip", _ONCHIP), ("link", _LINK)):
        check = lambda p, t, s=schema: _check(where, prefix + p, t, s)
        out[section] = _named(where, section, data.pop(section, {}), check)
    return out


def _preset(where: str, prefix: str, table: Any) -> dict[str, Any]:
    if not isinstance(table, dict):
        fail(where, prefix.rstrip("."), table, f"a table, written [{prefix.rstrip('.')}]")
    rest = dict(table)
    return {**_quantities(where, rest, prefix), **_check(where, prefix, rest, _COMMON)}


def validate(where: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """A chip file's content, checked: numbers are Fractions, lists are tuples, every table is there.

    Raises:
        ChipError: for an unknown key, a value of the wrong kind, a missing name, bandwidth or rate.
    """
    rest = dict(data)
    measured = rest.pop("measured", {})
    if not isinstance(measured, dict) or len(measured) > 100:
        fail(where, "measured", measured, "a table, written [measured]")
    calibration = rest.pop("calibration", {})  # numbers that costir calibrate wrote; `calibration.from_table` reads them
    collectives = rest.pop("collectives", {})  # the same, by `collective_times.from_table`
    schema = {k: _number("any") for k in measured if re.fullmatch(r"[a-z][a-z0-9_]{0,59}", k)} | _COMMON
    presets = _named(where, "preset", rest.pop("preset", {}), lambda p, t: _preset(where, p, t))
    out = _quantities(where, rest)
    tables = ("matrix", "vector", "memory", "onchip", "link", "measured", "preset", "calibration", "collectives")
    known = {**_TOP, **dict.fromkeys(tables, _text)}
    unknown = next((k for k in rest if k not in _TOP), None)
    if unknown is not None:
        raise ChipError(f"{where}: unknown key {unknown[:80]!r}", nearest(unknown[:80], known))
    out |= {"calibration": calibration, "collectives": collectives, "preset": presets}
    out |= {"measured": _check(where, "measured.", measured, schema), **_check(where, "", rest, _TOP)}
    if "name" not in out:
        raise ChipError(f"{where}: the chip has no name", 'write name = "My chip" at the top')
    if "bandwidth" not in out["memory"]:
        raise ChipError(f"{where}: the chip has no memory bandwidth", "write bandwidth = 8.2e11 (bytes/s) under [memory]")
    return out


def read(path: Path) -> dict[str, Any]:
    """The content of a chip file, checked by `validate`.

    Raises:
        ChipError: where the file cannot be read, is larger than 1 MB, is no TOML, or is not a valid chip.
    """
    try:
        if not path.is_file():
            raise ChipError(f"{path}: no such chip file")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as e:
        raise ChipError(f"{str(path)[:200]}: cannot be read ({getattr(e, 'strerror', None) or e})") from None
    if len(content) > LARGEST_FILE:
        raise ChipError(f"{path}: larger than 1 MB, which no chip file is")
    return validate(str(path), parse(str(path), content))


def parse(where: str, content: bytes) -> dict[str, Any]:
    """TOML with decimal numbers kept exact.

    Raises:
        ChipError: where it is not UTF-8 or no TOML; the message has the line.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as e:
        raise ChipError(f"{where}: not UTF-8 text (byte {e.start})") from None
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LONGEST_LINE or line.count(".") > MOST_DOTS:
            raise ChipError(f"{where}: line {number} has more than {LONGEST_LINE} characters or {MOST_DOTS} dots")
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except RecursionError:
        raise ChipError(f"{where}: nested too deeply for a chip file") from None
    except (ValueError, ArithmeticError) as e:
        raise ChipError(f"{where}: no valid TOML: {str(e)[:200]}") from None
