"""SI prefixes and the units that costir prints. Numbers are plain SI everywhere else: FLOP, bytes, seconds."""

from __future__ import annotations

import math
import re

from costir.errors import SizeError

DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
# A size written "2k" is a power of two to people who size models: 2k tokens are 2048, 128k are 131072.
SIZE_SUFFIX = {"": 1, "k": 2**10, "K": 2**10, "M": 2**20, "G": 2**30}
LARGEST_SIZE = 10**12

_STEPS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"), (1e-12, "p"))


def si(value: float, unit: str = "", digits: int = 4) -> str:
    """`value` with an SI prefix and `digits` significant figures: si(1.97e14, "FLOP/s") == "197 TFLOP/s"."""
    if not math.isfinite(value):
        return f"{value} {unit}".strip()
    size = abs(value)
    scale, prefix = 1.0, ""
    if size >= 1e3:
        scale, prefix = next((s, p) for s, p in _STEPS if size >= s)
    elif unit == "s" and 0 < size < 1:
        scale, prefix = next(((s, p) for s, p in _SMALL if size >= s), _SMALL[-1])
    number = f"{value / scale:.{digits}g}"
    if "e" in number:
        number = f"{value / scale:.0f}" if abs(value / scale) >= 1 else number
    return f"{number} {prefix}{unit}".strip()


def parse_size(text: str, name: str = "size") -> int:
    """A positive whole size: "32", "2k" (2048), "1e6", "4M".

    Raises:
        SizeError: where the text is no positive whole number below 10**12.
    """
    match = re.fullmatch(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:e[0-9]{1,2})?)\s*([kKMG]?)\s*", text)
    if not match or len(text) > 40:
        raise SizeError(f"{name}={text[:40]!r} is not a positive whole number", f"write for example {name}=4096 or {name}=4k")
    value = float(match[1].replace("_", "")) * SIZE_SUFFIX[match[2]]
    if not 1 <= value <= LARGEST_SIZE or value != int(value):
        raise SizeError(f"{name}={text.strip()} is not a whole number from 1 to 10**12", f"write for example {name}=4096")
    return int(value)
