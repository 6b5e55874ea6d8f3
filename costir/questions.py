"""What people type after an option, read: sizes, sweeps, settings, chip names, plot files. Text in, plain values out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from costir.errors import CostirError, SizeError, nearest
from costir.units import BINARY, DECIMAL, parse_size

MOST_POINTS = 10_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _pair(text: str, option: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise SizeError(f"{option} {text[:60]!r} is not NAME=VALUE", f"write for example {option} {example}")
    return name.strip(), value.strip()


def size_values(texts: Iterable[str]) -> dict[str, int]:
    """Base sizes: ["B=32", "T=2k"] or ["B=32,T=2k"].

    Raises:
        SizeError: where one is no name with a whole number, or a name comes twice.
    """
    return _numbers(texts, "--size", "B=32", "--size gives {} twice", "give it once; --sweep takes many values")


def mesh_axes(texts: Iterable[str]) -> dict[str, int]:
    """Devices along each axis: ["X=8", "Y=4"] or ["X=8,Y=4"].

    Raises:
        SizeError: where one is no name with a whole number, or an axis comes twice.
    """
    return _numbers(texts, "--mesh", "X=8,Y=4", "--mesh gives the axis {!r} twice", "give each axis once")


def _numbers(texts: Iterable[str], option: str, example: str, twice: str, hint: str) -> dict[str, int]:
    """Whole numbers by name, of an option that takes several."""
    found: dict[str, int] = {}
    for text in (part for t in texts for part in t.split(",")):
        name, value = _pair(text, option, example)
        _check_name(name, option)
        if name in found:
            raise SizeError(twice.format(name[:40]), hint)
        found[name] = parse_size(value, name)
    return found


def byte_count(text: str) -> Fraction:
    """Bytes: "1e9", "64Mi", "1GB".

    Raises:
        SizeError: where it is no number.
    """
    match = re.fullmatch(r"\s*([0-9][0-9_.]*(?:[eE][+-]?[0-9]{1,2})?)\s*([kKMGTP]?i?)B?\s*", text[:60])
    try:
        return Fraction(match[1].replace("_", "")) * (DECIMAL | BINARY)[match[2]] if match else Fraction(text[:60])
    except (ValueError, KeyError, ZeroDivisionError):
        raise SizeError(
            f"--bytes {text[:40]!r} is no number of bytes", "write for example --bytes 1e9 or --bytes 64Mi"
        ) from None


def token_count(text: str) -> int:
    """Tokens of a whole run, with decimal prefixes: "15T" is 15e12, "300G", "2e12".

    Raises:
        SizeError: where it is no positive whole number.
    """
    match = re.fullmatch(r"\s*([0-9][0-9_.]*(?:[eE][+-]?[0-9]{1,2})?)\s*([kKMGTP]?)\s*", text[:60])
    try:
        found = Fraction(match[1].replace("_", "")) * DECIMAL[match[2]] if match else Fraction(0)
    except (ValueError, ZeroDivisionError):
        found = Fraction(0)
    if found < 1 or found.denominator != 1:
        raise SizeError(f"--tokens {text[:40]!r} is no number of tokens", "write for example --tokens 15T or --tokens 3e11")
    return int(found)


def axis_links(texts: Iterable[str]) -> dict[str, str]:
    """Which link of the chip an axis lies on: ["X=dcn"].

    Raises:
        SizeError: where one has no "=".
    """
    return dict(_pair(part, "--link", "X=dcn") for t in texts for part in t.split(","))


def _check_name(name: str, option: str) -> None:
    if not _NAME.fullmatch(name):
        raise SizeError(f"{option}: {name[:40]!r} is not a size name", "names are letters, digits and _")


def sweep_points(texts: Sequence[str]) -> list[dict[str, int]]:
    """The points of a sweep; several sweeps make all combinations.

    "T=2k:128k:x2" multiplies, "T=1:64:+8" adds, "T=1:8" adds 1, "T=1,2,4" lists; the end is included where it is hit.

    Raises:
        SizeError: where a sweep cannot be read, goes nowhere, or all together have more than 10,000 points.
    """
    axes: dict[str, list[int]] = {}
    for text in texts:
        name, value = _pair(text, "--sweep", "T=2k:128k:x2")
        _check_name(name, "--sweep")
        if name in axes:
            raise SizeError(f"--sweep gives {name} twice", "list all its values in one: T=1,2,4")
        axes[name] = _values(name, value)
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MOST_POINTS:
        raise SizeError(f"the sweep has {count} points, more than {MOST_POINTS}", "take larger steps")
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())] if axes else []


def _values(name: str, text: str) -> list[int]:
    parts = text.split(":")
    if len(parts) == 1:
        return [parse_size(v, name) for v in text.split(",")]
    step = parts[2].strip() if len(parts) == 3 else "+1"
    if len(parts) > 3 or step[:1] not in ("x", "*", "+"):
        raise SizeError(
            f"--sweep {name}={text[:60]} is not a:b:x2, a:b:+8 or 1,2,4", f"write for example --sweep {name}=1:64:x2"
        )
    first, last, by = parse_size(parts[0], name), parse_size(parts[1], name), parse_size(step[1:], f"the step of {name}")
    if last < first or (step[0] != "+" and by < 2):
        raise SizeError(
            f"--sweep {name}={text[:60]} never gets from {first} to {last}", "start at the smaller, multiply by 2 or more"
        )
    out = [first]
    while (following := out[-1] + by if step[0] == "+" else out[-1] * by) <= last:
        out.append(following)
        if len(out) > MOST_POINTS:
            raise SizeError(f"--sweep {name}={text[:60]} has more than {MOST_POINTS} points", "take larger steps")
    return out


def key_values(texts: Iterable[str]) -> dict[str, str]:
    """Settings of a chip: ["memory.bandwidth=8.2e11"]; their values are read where they are used.

    Raises:
        SizeError: where one has no "=".
    """
    return dict(_pair(t, "--set", "memory.bandwidth=8.2e11") for t in texts)


def new_names(texts: Iterable[str]) -> dict[str, str]:
    """New names of a program's symbols: ["s77=B", "s31=T"] or ["s77=B,s31=T"].

    Raises:
        SizeError: where one is not two names, or a symbol comes twice.
    """
    out: dict[str, str] = {}
    for old, new in (_pair(part, "--name", "s77=B") for t in texts for part in t.split(",")):
        for name in (old, new):
            _check_name(name, "--name")
        if old in out:
            raise SizeError(f"--name gives {old} twice", "a symbol has one name")
        out[old] = new
    return out


def chip_names(texts: Iterable[str]) -> list[str]:
    """Chips: ["h100,b200", "my.toml"], each once."""
    return list(dict.fromkeys(n for t in texts for part in t.split(",") if (n := part.strip())))


TRAFFIC = ("eager", "inductor", "xla", "ideal")


def traffic_of(o: Any) -> str:
    """The kind of memory traffic that is asked for; "all" starts from eager.

    Raises:
        CostirError: where it is none.
    """
    if o.traffic == "all" and o.verb == "analyze":
        return "eager"
    if o.traffic == "all":
        raise CostirError(
            f"--traffic all puts the kinds side by side, which costir {o.verb} does not",
            f"choose one: --traffic {', '.join(TRAFFIC)}; costir analyze --traffic all compares them",
        )
    if o.traffic not in TRAFFIC:
        known = (*TRAFFIC, *(("all",) if o.verb == "analyze" else ()))
        raise CostirError(f"no traffic {o.traffic[:40]!r}", nearest(o.traffic, known) or f"one of {', '.join(known)}")
    return str(o.traffic)


def formula_side(text: str) -> None:
    """Refuse what no formula is, before any work.

    Raises:
        CostirError: where the text is empty or absurdly long.
    """
    if not text.strip() or len(text) > 2000:
        raise CostirError("there is no formula to check", 'write for example "flops = 2*B*D*F"')


def plot_file(text: str, subject: str) -> Path:
    """Where to draw: "roofline", "roofline=FILE.svg", "memory".

    Raises:
        CostirError: for another plot or another kind of file.
    """
    kind, _, name = text.partition("=")
    if kind not in ("roofline", "memory"):
        raise CostirError(f"no plot {kind[:40]!r}", "write --plot roofline, --plot memory or --plot roofline=FILE.svg")
    if name and Path(name).suffix.lower() not in (".svg", ".png"):
        raise CostirError(f"a plot cannot be written to {name[:80]!r}", "give a file that ends in .svg or .png")
    if name:
        return Path(name)
    file = re.fullmatch(r"(.*)\.(?:py|json|pt2)(?::\w+)?", subject)
    stem = Path(file[1] if file else subject).name if "[" not in subject else subject
    return Path(f"{re.sub(r'[^A-Za-z0-9_-]+', '_', stem).strip('_')[:40] or 'costir'}.{kind}.svg")
