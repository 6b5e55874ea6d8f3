"""What `costir chips` shows: all chips, or one with the source of each number. No sympy and no torch here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from costir import hardware
from costir.hardware import Chip
from costir.page import Column, Document, Entry, Fact, Table
from costir.render import View

RIGHT = ("year", "memory bandwidth", "memory", "ridge")


def all_chips() -> View:
    """The database, a line per chip."""
    rows = hardware.table()
    return View(lambda: _table(rows), lambda: _table_data(rows), lambda: [hardware.TABLE_COLUMNS, *rows])


def one_chip(name: str, settings: Mapping[str, str]) -> View:
    """One chip: every number with its source.

    Raises:
        ChipError: where it is not known, or a setting is wrong.
    """
    chip = hardware.load_chip(name, settings)
    rows = [(r.quantity, r.value, r.source) for r in hardware.describe(chip)]
    return View(lambda: _card(chip), lambda: _card_data(chip), lambda: [("quantity", "value", "source"), *rows])


def _table(rows: Iterable[tuple[str, ...]]) -> Document:
    columns = tuple(Column(t, right=t in RIGHT) for t in hardware.TABLE_COLUMNS)
    table = Table(columns, tuple(Entry("operator", row) for row in rows))
    other: dict[str, list[str]] = {}
    for alias, name in hardware.aliases().items():
        other.setdefault(name, []).append(alias)
    names = "; ".join(f"{' or '.join(sorted(a))} is {n}" for n, a in sorted(other.items()))
    facts = (
        Fact("rates", "dense matrix peaks, a multiply-add is 2 FLOPs; ridge in FLOP per byte of main memory"),
        Fact("names", names),
        Fact("more", "costir chips NAME shows the source of each number, links and presets"),
    )
    return Document("Chips", (), (table,), facts)


def _table_data(rows: Iterable[tuple[str, ...]]) -> dict[str, Any]:
    return {"schema": "costir/chips/1", "chips": [dict(zip(hardware.TABLE_COLUMNS, row, strict=True)) for row in rows]}


def _card(chip: Chip) -> Document:
    """The numbers, their sources as numbered references."""
    sources: dict[str, int] = {}
    lines = [Entry("operator", (r.quantity, r.value, _references(r.source, sources))) for r in hardware.describe(chip)]
    head = [Fact("name", chip.alias_note)] if chip.alias_note else []
    facts = [Fact(f"[{i}]", text) for text, i in sources.items()]
    facts += [Fact("note", n) for n in chip.notes]
    presets = [p for p in chip.presets if p != chip.preset]
    facts += [Fact("presets", ", ".join(f"{chip.id}@{p}" for p in presets))] if presets else []
    facts += [Fact("confidence", chip.confidence)] if chip.confidence else []
    table = Table((Column("quantity"), Column("value", right=True), Column("source")), tuple(lines))
    return Document(f"{chip.label}: {chip.name}", tuple(head), (table,), tuple(facts))


def _references(source: str, seen: dict[str, int]) -> str:
    """Sources with an address as [1], [2]; other words as they are."""
    out = []
    for part in source.split("; "):
        match = re.fullmatch(r"(computed from )?(.*\])(, half .*)?", part)
        if match is None:
            out.append(part)
            continue
        number = seen.setdefault(match[2], len(seen) + 1)
        out.append(f"{match[1] or ''}[{number}]{match[3] or ''}")
    return ", ".join(p for p in out if p).replace("], [", "] [")


def _card_data(chip: Chip) -> dict[str, Any]:
    values = {k: {"value": float(v), "source": chip.sources.get(k, "")} for k, v in chip.values.items()}
    return {
        "schema": "costir/chips/1", "id": chip.id, "name": chip.name, "vendor": chip.vendor, "year": chip.year,
        "kind": chip.kind, "preset": chip.preset, "presets": list(chip.presets), "alias_note": chip.alias_note,
        "values": values, "ridge": {k: float(chip.ridge(k)) for k in chip.matrix}, "notes": list(chip.notes),
        "confidence": chip.confidence,
    }  # fmt: skip
