"""The chip database: what each accelerator can do at most, with a source for every number.

One file a chip under `chips/`; a user's own file has the same form (`docs/chips.md`). All numbers are exact. No sympy and
no torch here: `costir chips` must answer at once.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from costir import chipfile, collective_times
from costir.calibration import Calibration, from_table
from costir.chip import Chip, FrozenMap, Link, OnChip, rate_key
from costir.errors import ChipError, nearest
from costir.units import si

__all__ = [
    "Chip",
    "FrozenMap",
    "Link",
    "OnChip",
    "aliases",
    "calibration_of",
    "chip_names",
    "chip_of",
    "describe",
    "here_path",
    "load_chip",
    "rate_key",
    "table",
]

CHIPS = Path(__file__).parent / "chips"
Numbers = dict[str, tuple[Fraction, str]]  # a quantity's dotted name to its value and source


@functools.cache
def chip_names() -> tuple[str, ...]:
    """The ids of all chips in the database."""
    return tuple(sorted(p.stem for p in CHIPS.glob("[!_]*.toml")))


@functools.cache
def _file(path: Path) -> dict[str, Any]:
    return chipfile.read(path)


@functools.cache
def _sources() -> dict[str, str]:
    data = chipfile.parse("_sources.toml", (CHIPS / "_sources.toml").read_bytes())
    return {key: f"{s['title']} [{s['address']}]" for key, s in data.items()}


@functools.cache
def aliases() -> FrozenMap[str]:
    """Other names that people use, to ids: {"h100": "h100_sxm", "v5e": "tpu_v5e", ...}."""
    return FrozenMap({alias: name for name in chip_names() for alias in _file(CHIPS / f"{name}.toml").get("aliases", ())})


def _plain(name: str) -> str:
    """A name without case, separators and maker, so that "TPU v5e", "tpu-v5e" and "NVIDIA H100" are found."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia|google|amd|aws|intel)?(geforce|instinct)?(?=.)", "", letters)


@functools.cache
def _plain_ids() -> dict[str, str]:
    return {_plain(n): n for n in chip_names()}


def _find(name: str) -> tuple[str, str]:
    """The id that a name stands for, and the note that says so where the name is another one."""
    ids, plain = _plain_ids(), _plain(name)
    if plain in ids:
        return ids[plain], ""
    known = {_plain(a): n for a, n in aliases().items()}
    if plain not in known:
        raise ChipError(
            f"unknown chip {name[:60]!r}", nearest(name[:60].lower(), (*chip_names(), *aliases(), "here", "here-gpu"))
        )
    chosen = known[plain]
    family = _file(CHIPS / f"{chosen}.toml").get("family")
    members = [n for n in chip_names() if n != chosen and _file(CHIPS / f"{n}.toml").get("family") == family]
    also = f" (also: {', '.join(members)})" if family and _plain(family) == plain and members else ""
    return chosen, f"{name.strip().lower()} -> {chosen}{also}"


def here_path(name: str = "here") -> Path:
    """Where the chips called "here", the user's own CPU, and "here-gpu", the user's own GPU, are looked for."""
    root = Path(os.environ.get("XDG_CONFIG_HOME", ""))  # a relative one is to be ignored, says its specification
    return (root if root.is_absolute() else Path.home() / ".config") / "costir" / f"{name}.toml"


_HERE = re.compile(r"here(-gpu([1-9][0-9]{0,2})?)?")  # here-gpu1 is the second GPU


def _own(name: str) -> Path:
    """The file of the user's own machine by its name.

    Raises:
        ChipError: it was not measured yet.
    """
    path, gpu = here_path(name), name.partition("-gpu")
    if not path.is_file():
        how = f"costir calibrate --device cuda{f':{gpu[2]}' if gpu[2] else ''}" if gpu[1] else "costir calibrate"
        what = "GPU" if gpu[1] else "machine"
        raise ChipError(f"no chip called {name}: {path} does not exist", f"run {how}, which measures this {what} and writes it")
    return path


# ---------------------------------------------------------------- loading


def load_chip(spec: str, settings: Mapping[str, str | int | float | Decimal | Fraction] | None = None) -> Chip:
    """The chip that `spec` names: an id, an alias, "here", "here-gpu", or the path of a `.toml` file; "@preset" may follow.

    Args:
        spec: "h100", "TPU v5e", "tpu_v5e@book", "my.toml", "here".
        settings: numbers to set, by name, in plain SI: {"memory.bandwidth": "8.2e11", "matrix.bf16": 2e14}. Link bandwidths
            that depend on one that is set scale with it.

    Raises:
        ChipError: for an unknown chip, preset or setting, an absurd number, or a wrong file.
    """
    name, at, preset = spec, "", ""
    if "@" in spec and not (spec.endswith(".toml") and Path(spec).is_file()):
        name, at, preset = spec.rpartition("@")
    preset = preset.strip().lower()
    note = ""
    if not name.strip():
        raise ChipError("the chip has an empty name", "write for example h100, tpu_v5e@book or my.toml")
    if _HERE.fullmatch(name.strip().lower()):
        ident = name.strip().lower()
        path = _own(ident)
    elif name.endswith(".toml") or "/" in name or os.sep in name:
        path = Path(name)
        ident = path.stem
    else:
        ident, note = _find(name)
        path = CHIPS / f"{ident}.toml"
    data = chipfile.read(path) if path.parent != CHIPS else _file(path)
    if at and preset not in data["preset"]:
        has = f"it has {', '.join(sorted(data['preset']))}" if data["preset"] else "it has no presets"
        raise ChipError(f"{ident} has no preset {preset[:40]!r}", has)
    return _build(ident, data, path, preset, settings or {}, note)


def chip_of(given: str | os.PathLike[str] | Chip) -> Chip:
    """The chip that a caller gave: one that is loaded, or what names one.

    Raises:
        ChipError: where it is neither, or see `load_chip`.
    """
    if not isinstance(given, str | os.PathLike | Chip):
        raise ChipError(f"{given!r:.40} is no chip", 'give a name such as "h100", the path of a .toml file, or a Chip')
    return given if isinstance(given, Chip) else load_chip(os.fspath(given))


_NOT_RATES = ("source", "note", "derived", "unsupported", "sparse_halved", "flop_per_lane_cycle")


def calibration_of(chip: Chip) -> Calibration:
    """The calibration of a chip that models can be run on here.

    Raises:
        ChipError: where it has none, or that of a GPU.
    """
    if chip.calibration is None:
        raise ChipError(f"{chip.id} was not measured here", "run costir calibrate, then --chip here")
    if chip.calibration.gpu:
        raise ChipError(f"{chip.label} is a GPU's calibration, and models are run on the CPU here", "use --chip here")
    return chip.calibration


def _numbers(data: Mapping[str, Any]) -> dict[str, tuple[Fraction, str]]:
    """Every quantity of a checked file or preset by its dotted name, with its source."""
    out: dict[str, tuple[Fraction, str]] = {}
    tables = [(s, data[s]) for s in ("matrix", "vector", "memory")]
    tables += [(f"{s}.{n}", t) for s in ("onchip", "link") for n, t in data[s].items()]
    for prefix, table in tables:
        keys = table.get("source") or data.get("source") or ()
        source = "; ".join(_sources().get(k, k) for k in keys)
        for key, value in table.items():
            if key in _NOT_RATES or not isinstance(value, Fraction):
                continue
            how = "computed from " if key in table.get("derived", ()) else ""
            half = ", half of the rate printed with sparsity" if key in table.get("sparse_halved", ()) else ""
            out[f"{prefix}.{key}"] = (value, f"{how}{source}{half}" if source else "")
    return out


def _overlay(old: Numbers, new: Numbers, links: Mapping[str, Any]) -> Numbers:
    """`old` with the numbers of `new`; the bandwidths of a link that `new` does not give scale with the one that it does."""
    out = {**old, **new}
    for name in links:
        base = f"link.{name}."
        lead = next((base + k for k in ("one_way", "link_one_way", "two_way") if base + k in new and base + k in old), None)
        if lead is None:
            continue
        ratio = new[lead][0] / old[lead][0]
        for key in ("link_one_way", "one_way", "two_way", "peer_one_way", "scaleout_one_way"):
            if base + key in old and base + key not in new:
                out[base + key] = (old[base + key][0] * ratio, f"scaled with {lead}")
        if base + "link_one_way_planned" not in new:
            out.pop(base + "link_one_way_planned", None)
    return out


def _by_hand(settings: Mapping[str, Any], numbers: Numbers) -> Numbers:
    """The settings, checked against the names that the chip has and the rates that any chip may have."""
    known = {*numbers, "memory.bandwidth", "memory.capacity"}
    known |= {f"link.{n.split('.')[1]}.latency" for n in numbers if n.startswith("link.")}
    known |= {f"matrix.{k}" for k in chipfile.MATRIX} | {f"vector.{k}" for k in chipfile.VECTOR}
    out = {}
    for key, value in settings.items():
        section, _, last = key.strip().lower().rpartition(".")
        name = f"{section}.{rate_key(last) if section in ('matrix', 'vector') else last}"
        if name not in known:
            close = nearest(key.strip().lower(), known)
            hint = close if close.startswith("did you") else f"this chip has {', '.join(sorted(numbers))}"
            raise ChipError(f"unknown setting {key[:60]!r}", hint)
        out[name] = (chipfile.exact("setting", name, value, chipfile.KINDS.get(last, "rate")), "set by hand")
    return out


def _notes(data: Mapping[str, Any], preset: str) -> tuple[str, ...]:
    """The notes of the file, each with the name of its table before it."""
    tables = [("", data), *((s, data[s]) for s in ("matrix", "vector", "memory"))]
    tables += [(n, t) for s in ("onchip", "link") for n, t in data[s].items()]
    tables += [("measured", data["measured"])]
    tables += [(f"preset {preset}", data["preset"][preset])] if preset else []
    return tuple(f"{name}: {t['note']}" if name else t["note"] for name, t in tables if "note" in t)


def _link(name: str, table: Mapping[str, Any], values: Mapping[str, Fraction]) -> Link:
    words = {k: v for k, v in table.items() if k in Link.__dataclass_fields__ and not isinstance(v, Fraction)}
    return Link(name, **words, **_under(f"link.{name}.", values))


def _under(prefix: str, values: Mapping[str, Fraction]) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _build(ident: str, data: Mapping[str, Any], path: Path, preset: str, settings: Mapping[str, Any], note: str) -> Chip:
    """The chip of a checked file, with a preset and settings laid over it."""
    numbers = _numbers(data)
    if preset:
        numbers = _overlay(numbers, _numbers(data["preset"][preset]), data["link"])
    set_now = _by_hand(settings, numbers)
    numbers = _overlay(numbers, set_now, data["link"])
    values = {k: v for k, (v, _) in numbers.items()}
    matrix, vector = _under("matrix.", values), _under("vector.", values)
    if not matrix and not vector and path.parent != CHIPS:
        raise ChipError(f"{path}: the chip has no rate", "write for example bf16 = 1.97e14 (FLOP/s) under [matrix]")
    onchip = {n: OnChip(n, **_under(f"onchip.{n}.", values), scope=t.get("scope", "")) for n, t in data["onchip"].items()}
    return Chip(
        id=ident,
        memory_bandwidth=values["memory.bandwidth"],
        **{k: data[k] for k in ("name", "vendor", "year", "kind", "unit", "confidence") if k in data},
        matrix=FrozenMap(matrix),
        vector=FrozenMap(vector),
        memory_capacity=values.get("memory.capacity"),
        memory_kind=data["memory"].get("kind", ""),
        onchip=FrozenMap(onchip),
        links=FrozenMap({n: _link(n, t, values) for n, t in data["link"].items()}),
        preset=preset,
        presets=tuple(data["preset"]),
        sources=FrozenMap({k: s for k, (_, s) in numbers.items()}),
        notes=_notes(data, preset),
        values=FrozenMap(values),
        settings=FrozenMap({k: v for k, (v, _) in set_now.items()}),
        unsupported=data["matrix"].get("unsupported", ()),
        measured=FrozenMap({k: v for k, v in data["measured"].items() if isinstance(v, Fraction)}),
        flop_per_lane_cycle=data["vector"].get("flop_per_lane_cycle", 1 if data.get("kind") == "tpu" else 2),
        alias_note=note,
        path=str(path),
        calibration=from_table(str(path), data["calibration"]),
        collectives=collective_times.from_table(str(path), data["collectives"]),
    )


# ---------------------------------------------------------------- for people


class Row(NamedTuple):
    """One line of a chip's description."""

    quantity: str
    value: str
    source: str


def _shown(name: str, value: Fraction) -> str:
    """A quantity with its unit: FLOP/s, OP/s for whole numbers, B/s, B, s."""
    section, _, last = name.rpartition(".")
    if section in ("matrix", "vector"):
        return si(float(value), "OP/s" if last.startswith("int") else "FLOP/s")
    if last == "capacity":
        power, unit = next(((p, u) for p, u in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if value >= p), (1, "B"))
        return f"{si(float(value), 'B')} ({float(value / power):.4g} {unit})" if power > 1 else si(float(value), "B")
    return si(float(value), "s" if last == "latency" or last.endswith("_s") else "B/s")


def describe(chip: Chip) -> list[Row]:
    """Everything that is known about a chip, a row each: quantity, value with unit, source.

    The ridge points are among them, named "ridge.bf16" and so on: FLOP per byte of main memory.
    """
    rows = [
        Row("name", chip.name, ""),
        *(Row(k, str(getattr(chip, k)), "") for k in ("kind", "unit", "year") if getattr(chip, k)),
    ]
    order = ("matrix", "vector", "memory", "onchip", "link")
    for name, value in sorted(chip.values.items(), key=lambda item: order.index(item[0].partition(".")[0])):
        rows.append(Row(name, _shown(name, value), chip.sources.get(name, "")))
    for link in chip.links.values():
        words = [
            link.kind,
            link.topology,
            f"{link.links} links" if link.links else "",
            f"up to {link.domain} chips" if link.domain else "",
        ]
        rows.append(Row(f"link.{link.name}", ", ".join(w for w in words if w), ""))
    for key in chip.matrix:
        rows.append(Row(f"ridge.{key}", f"{float(chip.ridge(key)):.4g} FLOP/B", f"matrix.{key} / memory.bandwidth"))
    if "fp32" not in chip.matrix and ("fp32" in chip.vector or chip.kind == "tpu"):
        rows.append(Row("ridge.fp32", f"{float(chip.ridge('fp32')):.4g} FLOP/B", chip.matmul_note("fp32")))
    for fit in chip.collectives.fits if chip.collectives else ():
        name = f"collectives.{fit.kind} over {fit.devices}"
        rows.append(Row(name, collective_times.described(fit), f"measured, within {fit.worst:.0%}"))
    rows += [Row(f"measured.{k}", _measured(k, v), "a measurement, not used in any bound") for k, v in chip.measured.items()]
    return rows


def _measured(name: str, value: Fraction) -> str:
    unit = "FLOP/s" if "matmul" in name else "s" if name.endswith("_s") else "B/s"
    return si(float(value), unit)


TABLE_COLUMNS = ("id", "name", "year", "bf16 or fp16", "fp8 or int8", "memory bandwidth", "memory", "ridge")


def table() -> list[tuple[str, ...]]:
    """All chips, a row each under `TABLE_COLUMNS`: dense matrix rates, memory, the ridge of the first rate; "-" is unknown."""
    return [_table_row(load_chip(name)) for name in chip_names()]


def _table_row(chip: Chip) -> tuple[str, ...]:
    wide = next((k for k in ("bf16", "fp16") if k in chip.matrix), None)
    narrow = next((k for k in ("fp8", "int8") if k in chip.matrix), None)

    def rate(key: str | None) -> str:
        return f"{_shown(f'matrix.{key}', chip.matrix[key])} ({key})" if key else "-"

    capacity = si(float(chip.memory_capacity), "B", 3) if chip.memory_capacity is not None else "-"
    ridge = f"{float(chip.ridge(wide)):.1f}" if wide else "-"
    rates = (rate(wide), rate(narrow))
    return (chip.id, chip.name, str(chip.year or "-"), *rates, si(float(chip.memory_bandwidth), "B/s"), capacity, ridge)
