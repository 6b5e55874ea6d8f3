"""What `costir collective` shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from costir.collective_report import ByWay, CollectiveTimes
from costir.document import seconds
from costir.ir import condition_text
from costir.page import Column, Document, Entry, Fact, Table
from costir.render import View
from costir.symbolic import show
from costir.units import si

PAYLOAD_WORDS = {
    "all_gather": "the gathered array; each device has {part} of it before",
    "reduce_scatter": "the array that each device puts in",
    "all_reduce": "the array that each device puts in",
    "all_to_all": "the array over all devices; each has {part} of it",
    "broadcast": "the array that one device has",
    "permute": "what each device passes on",
}


def times(c: CollectiveTimes) -> View:
    """A line per algorithm."""
    return View(lambda: _document(c), lambda: _data(c), lambda: _rows(c))


def _document(c: CollectiveTimes) -> Document:
    part = si(float(c.payload) / c.devices, "B")
    whole = PAYLOAD_WORDS[c.kind].format(part=part)
    lengths = ", ".join(f"{n} = {v}" for n, v in c.mesh.items())
    head = [
        Fact("payload", f"V = {si(float(c.payload), 'B')}: {whole}"),
        Fact("mesh", lengths),
        Fact("chip", c.chip_note or c.chip),
    ]
    head += [Fact("", words) for words in c.links]
    facts = [Fact("sent", f"{si(c.sent, 'B')} by each device at the least")]
    facts += [Fact(name, f"{si(float(rate), 'B/s')} one way") for name, rate in _rates(c).items()]
    facts += [Fact("formula", f"holds where {condition_text(w)}") for r in c.rows if r.taken for w in r.where]
    facts += [Fact("note", n) for n in c.notes]
    return Document(f"{c.kind} over {', '.join(c.axes)} on {c.chip}", tuple(head), (_table(c),), tuple(facts))


def _rates(c: CollectiveTimes) -> dict[str, Any]:
    return {name: rate for r in c.rows for name, rate in r.rates.items()}


def _table(c: CollectiveTimes) -> Table:
    columns = [
        Column("algorithm"), Column("time", right=True), Column("full links", right=True), Column("= formula", formula=True),
        Column("latency", right=True), Column("= formula", formula=True), Column("latency rules below", right=True),
        Column("at planning rate", right=True),
    ]  # fmt: skip
    lines = [_line(r) for r in c.rows]
    used = [i for i in range(len(columns)) if any(line[i] != "" for line in lines)]
    return Table(tuple(columns[i] for i in used), tuple(Entry("operator", tuple(x[i] for i in used)) for x in lines))


def _line(r: ByWay) -> tuple[Any, ...]:
    known = r.latency is not None
    return (
        f"{r.name}: {r.words}{' (taken)' if r.taken else ''}", seconds(r.seconds), seconds(r.bandwidth), r.formula,
        seconds(r.latency) if known else "", r.latency_formula if known else "",
        si(r.least, "B") if r.least is not None else "", seconds(r.planned) if r.planned is not None else "",
    )  # fmt: skip


def _data(c: CollectiveTimes) -> dict[str, Any]:
    whole = {"kind": c.kind, "payload": float(c.payload), "mesh": dict(c.mesh), "axes": list(c.axes), "devices": c.devices}
    found = {"chip": c.chip, "sent": c.sent, "links": list(c.links), "algorithms": [_row_data(r) for r in c.rows]}
    return {"schema": "costir/collective/1", **whole, **found, "notes": list(c.notes)}


def _row_data(r: ByWay) -> dict[str, Any]:
    late = None if r.latency_formula is None else show(r.latency_formula)
    return {
        "name": r.name, "words": r.words, "taken": r.taken, "seconds": r.seconds, "bandwidth_seconds": r.bandwidth,
        "formula": show(r.formula), "rates": {n: float(w) for n, w in r.rates.items()}, "latency_seconds": r.latency,
        "latency_formula": late, "latency_rules_below": r.least, "planned_seconds": r.planned,
        "where": [condition_text(w) for w in r.where],
    }  # fmt: skip


def _rows(c: CollectiveTimes) -> Iterable[list[Any]]:
    times = ["seconds", "bandwidth_seconds", "latency_seconds", "latency_rules_below", "planned_seconds", "formula"]
    yield ["kind", "payload", "devices", "chip", "algorithm", "taken", *times]
    for r in c.rows:
        numbers = [r.seconds, r.bandwidth, r.latency, r.least, r.planned]
        yield [c.kind, float(c.payload), c.devices, c.chip, r.name, r.taken, *numbers, show(r.formula)]
