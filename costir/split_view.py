"""What `costir solve --for split` shows: the best split of N devices into two axes, in each placement on the chip's links."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import costir
from costir.document import plain_number, seconds, size_facts, subject_title
from costir.ir import condition_text
from costir.page import Cell, Column, Document, Entry, Fact, Table
from costir.render import View
from costir.split_solve import Best, Even, SplitFor, SplitSolution
from costir.symbolic import gather, show, terms

SCHEMA = "costir/split/1"
WORDS = {
    "added": "collectives one after the other, as with --overlap none and op",
    "overlapped": "those over different links at once, as with --overlap full",
}


def split(s: SplitSolution) -> View:
    """A line a placement and way."""
    return View(lambda: _document(s), lambda: _data(s), lambda: _rows(s))


def _document(s: SplitSolution) -> Document:
    x, y = s.axes
    title = (
        f"{subject_title(s.analysis.name, s.analysis.phase)}, best split of {s.letter} = {s.devices} devices into {x} and {y}"
    )
    head = size_facts({n: v for n, v in s.analysis.sizes.items() if n not in s.axes}, s.analysis.constraints)
    head += [Fact("mesh", f"{x}*{y} = {s.letter} = {s.devices}"), Fact("chip", s.chip.alias_note or s.chip.label)]
    facts = [Fact(way, text) for way, text in WORDS.items()]
    facts += [Fact(label, _on(r, s), gather(e)) for r in s.rows[:1] for label, e in r.network.items() if len(terms(e)) <= 6]
    facts += [Fact(f"no {b.way}", f"{_on(r, s)}: {b.reason}") for r in s.rows for b in r.best if b.at_base is None]
    lacking = [(r, b) for r in s.rows for b in r.best if b.at_base is not None and b.reason]
    facts += [Fact(f"no {s.batch_size}, {b.way}", f"{_on(r, s)}: {b.reason}") for r, b in lacking]
    facts += [Fact("holds where", str(c)) for c in s.analysis.constraints]
    facts += [Fact("note", n) for n in s.analysis.notes]
    solved = any(b.at_base is not None for r in s.rows for b in r.best)
    return Document(title, tuple(head), (*([_table(s)] if solved else []), _whole(s)), tuple(facts))


def _on(r: SplitFor, s: SplitSolution) -> str:
    """The placement in words."""
    if s.torus:
        return ", ".join(f"{a} on {n} ax{'e' if n > 1 else 'i'}s" for a, n in zip(r.where.axes, r.where.spread, strict=True))
    return f"neighbours along {r.where.axes[-1]}"


def _table(s: SplitSolution) -> Table:
    x, y = s.axes
    batch = s.batch_size
    columns = [Column("placement"), Column("collectives"), Column(x, right=True), Column("= formula", formula=True)]
    columns += [Column("exists where", formula=True), Column(y, right=True), Column("network", right=True)]
    columns += [Column(f"compute binds from {batch}", right=True), Column("= formula", formula=True)] if batch else []
    columns += [Column(f"{batch}/{s.letter}", right=True)] if batch else []
    lines = [Entry("operator", tuple(_cells(r, b, s))) for r in s.rows for b in r.best if b.at_base is not None]
    return Table(tuple(columns), tuple(lines))


def _cells(r: SplitFor, b: Best, s: SplitSolution) -> Iterable[Cell]:
    assert b.at_base is not None
    yield _on(r, s)
    yield b.way
    yield plain_number(b.at_base)
    yield "" if b.value is None else b.value
    yield "" if b.when is None else condition_text(b.when)
    yield plain_number(s.devices / b.at_base)
    yield seconds(b.network)
    if s.batch_size:
        yield "none" if b.batch_at_base is None else plain_number(b.batch_at_base)
        yield "" if b.batch is None else b.batch
        yield "" if b.batch_at_base is None else plain_number(b.batch_at_base / s.devices)


def _whole(s: SplitSolution) -> Table:
    columns = (Column("placement"), Column("fastest even split"), Column("network", right=True), Column("next to the best"))
    lines = [Entry("operator", (_on(r, s), *_even(r.even), _around(r))) for r in s.rows]
    return Table(columns, tuple(lines), "Splits into whole numbers that divide evenly, collectives one after the other")


def _even(found: tuple[Even, ...]) -> tuple[str, str]:
    return (_text(found[0]), seconds(found[0].seconds)) if found else ("none", "")


def _around(r: SplitFor) -> str:
    shown = {_text(e): e for b in r.best for e in r.around.get(b.way, ())}
    return "; ".join(f"{t}: {seconds(e.seconds)}" for t, e in shown.items())


def _text(e: Even) -> str:
    return ", ".join(f"{a} = {n}" for a, n in e.lengths.items())


# ------------------------------------------------------------------------------------------------------------------ data


def _data(s: SplitSolution) -> dict[str, Any]:
    return {
        "schema": SCHEMA, "costir": costir.__version__, "subject": s.analysis.name, "phase": s.analysis.phase,
        "sizes": dict(s.analysis.sizes), "chip": s.chip.label, "devices": s.devices, "letter": s.letter, "axes": list(s.axes),
        "rows": [
            {"order": list(r.where.axes), "torus_axes": list(r.where.spread) if s.torus else None, "links": list(r.links),
             "network": {k: show(e) for k, e in r.network.items()}, "best": [_best(b, r) for b in r.best],
             "even": [_whole_data(e) for e in r.even]} for r in s.rows
        ],
        "constraints": [str(c) for c in s.analysis.constraints], "notes": list(s.analysis.notes),
    }  # fmt: skip


def _best(b: Best, r: SplitFor) -> dict[str, Any]:
    value, batch = (None if e is None else show(e) for e in (b.value, b.batch))
    return {
        "way": b.way, "expr": value, "value": b.at_base, "when": None if b.when is None else condition_text(b.when),
        "seconds": b.network, "batch": {"expr": batch, "value": b.batch_at_base}, "reason": b.reason,
        "around": [_whole_data(e) for e in r.around.get(b.way, ())],
    }  # fmt: skip


def _whole_data(e: Even) -> dict[str, Any]:
    return {"axes": dict(e.lengths), "seconds": e.seconds}


def _rows(s: SplitSolution) -> Iterable[list[Any]]:
    yield ["placement", "way", "axis", "value", "expr", "seconds", "batch", "batch_expr"]
    for r in s.rows:
        for b in r.best:
            text = [None if e is None else show(e) for e in (b.value, b.batch)]
            yield [_on(r, s), b.way, s.axes[0], b.at_base, text[0], b.network, b.batch_at_base, text[1]]
