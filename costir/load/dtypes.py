"""Storage types as people type them: `bf16`, `bf16,weights=int8`."""

from __future__ import annotations

from typing import NamedTuple

from costir.errors import LoadError, nearest
from costir.ir import ITEMSIZE, SHORT_DTYPE

MODULE_DTYPES = ("float64", "float32", "float16", "bfloat16")


class Dtypes(NamedTuple):
    """torch's names of the types; "" where nothing was asked for."""

    math: str
    weights: str
    kv: str = ""


def dtype_name(text: str) -> str:
    """torch's name of a storage type: dtype_name("bf16") == "bfloat16".

    Raises:
        LoadError: where the type is unknown.
    """
    name = SHORT_DTYPE.get(text, text)
    if name not in ITEMSIZE:
        raise LoadError(f"unknown data type {text[:40]!r}", nearest(text[:40], {*ITEMSIZE, *SHORT_DTYPE}))
    return name


def is_dtype(text: str) -> bool:
    """Whether `text` names a storage type."""
    return SHORT_DTYPE.get(text, text) in ITEMSIZE


def split_dtype(text: str) -> Dtypes:
    """Read `--dtype`: "bf16" for everything, "bf16,weights=int8,kv=fp8" for weights and a cache stored in other types than the
    math.

    Raises:
        LoadError: where a type is unknown or a part is neither a type nor `weights=TYPE` nor `kv=TYPE`.
    """
    math = ""
    stored: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (p.strip() for p in part.partition("="))
        if not equals and not math:
            math = dtype_name(key)
        elif equals and key in ("weights", "kv") and key not in stored:
            stored[key] = dtype_name(value)
        else:
            raise LoadError(
                f"cannot read {part[:40]!r} in --dtype {text[:80]!r}",
                "write --dtype bf16, --dtype bf16,weights=int8 or --dtype bf16,weights=int4,kv=fp8",
            )
    return Dtypes(math, stored.get("weights", ""), stored.get("kv", ""))


def math_dtype(text: str) -> str:
    """The type that a torch model is built in, from `--dtype`; "" where nothing was asked for.

    Raises:
        LoadError: where torch builds no modules in that type.
    """
    math = split_dtype(text).math
    if math and math not in MODULE_DTYPES:
        raise LoadError(f"torch builds no modules in {math}", f"write --dtype bf16,weights={math} for weights stored in {math}")
    return math
