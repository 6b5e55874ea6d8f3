"""What each verb shows, in words, as data and as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costir import document, memory_view, mesh_tables, path_view, render_data, terms
from costir import explain as explain_
from costir.document import change, limit_text, plain_number
from costir.document_serving import critical_facts
from costir.errors import ChipError, CostirError
from costir.ir import Threshold, condition_text
from costir.page import Cell, Column, Document, Entry, Fact, Table
from costir.render import View
from costir.report import Report
from costir.symbolic import Expr, gather, show

if TYPE_CHECKING:
    from costir.analysis import Analysis
    from costir.check import Verdict


def analysis(r: Report, brief: bool = True) -> View:
    """The whole report."""
    doc = lambda: _more(document.document(r, brief), (*mesh_tables.tables(r), *path_view.tables(r, brief)))
    return View(doc, lambda: render_data.as_dict(r), lambda: render_data.as_rows(r))


def _more(doc: Document, tables: Sequence[Table]) -> Document:
    """With further tables."""
    return replace(doc, tables=(*doc.tables, *tables))


def explain(r: Report, pattern: str, why: explain_.Why | None = None) -> View:
    """The operators that a pattern means, step by step.

    "total" means the whole, term by term, where no operator and no module is called so.

    Raises:
        CostirError: where nothing matches.
    """
    if pattern == terms.TOTAL and not any(terms.TOTAL in (*row.path.split("."), row.name) for row in r.rows):
        return View(
            lambda: terms.explained(r), lambda: {**render_data.as_dict(r), **terms.as_data(r)}, lambda: terms.as_rows(r)
        )
    rows = explain_.matching(r.rows, pattern)
    only = replace(r, rows=rows, sweep=())
    data = lambda: {**render_data.as_dict(only), "nodes": explain_.as_data(r, rows, render_data.node, why)}
    return View(lambda: explain_.explained(r, rows, why), data, lambda: render_data.as_rows(only))


# ----------------------------------------------------------------------------------------------------------------- solve


def solution(r: Report) -> View:
    """The critical sizes: of the whole, then of each operator that contracts."""
    return View(lambda: _solution(r), lambda: render_data.as_dict(r), lambda: _solution_rows(r))


def fits(r: Report) -> View:
    """The largest size, or the fewest devices along an axis, with which the run fits each chip.

    Raises:
        CostirError: where its memory is not known, or the chip's.
    """
    m = r.memory
    if m is None or m.problem:
        raise CostirError(f"what fits is not known: {m.problem if m else 'no memory was followed'}", "see costir analyze")
    if not m.fits:
        raise ChipError(f"how much memory {r.chips[0].name} has is not known", "add --set memory.capacity=80e9")
    data = memory_view.data(m)["fits"]
    facts = [*(f for f in memory_view.facts(m) if not f.label.startswith("fits")), *document.conditions_and_notes(r)]
    first = m.fits[0]
    what = f"fewest devices along {first.unknown} that hold it" if first.fewest else f"largest {first.unknown} that fits"
    title = f"{document.title(r)}, {what}"
    doc = lambda: Document(title, document.head(r), (memory_view.fits_table(m.fits),), tuple(facts))
    return View(doc, lambda: render_data.as_dict(r), lambda: [list(data[0]), *(list(d.values()) for d in data)])


def with_facts(view: View, facts: Sequence[Fact], data: Mapping[str, Any]) -> View:
    """The same with facts below, and with what they say as data."""
    doc = lambda: replace(view.document(), facts=(*view.document().facts, *facts))
    return View(doc, lambda: {**view.data(), **data}, view.rows)


def _solution(r: Report) -> Document:
    several = len(r.chips) > 1
    tables = [_thresholds(r, i, chip.name if several else "") for i, chip in enumerate(r.chips)]
    whole = [f for c in r.chips for t in c.thresholds for f in document.threshold_facts(t, c.name if several else "whole")]
    head = document.head(r)
    return Document(
        f"{document.title(r)}, critical {r.unknown_size}",
        (*head, *whole, *critical_facts(r)),
        tuple(t for t in [*tables, *mesh_tables.tables(r, by_algorithm=True), *_sweep(r)] if t.lines),
        tuple(document.conditions_and_notes(r)),
    )


def _contracting(r: Report, chip: int) -> list[tuple[str, Threshold]]:
    """The operators that have a critical size or a reason why not; equal answers are one line."""
    out: dict[tuple[Any, ...], tuple[list[str], Threshold]] = {}
    for row in r.rows:
        t = row.thresholds[chip] if row.thresholds else None
        if t is None or not row.quantities["matmul_flops"].number:
            continue
        key = (t.value, t.at_base, str(t.when), t.reason, t.below)
        out.setdefault(key, ([], t))[0].append(f"{row.path} {row.name}".strip())
    return [(_names(names), t) for names, t in out.values()]


def _names(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more alike"


def _thresholds(r: Report, chip: int, title: str) -> Table:
    """A line per answer; columns that stay empty are left out."""
    columns = (
        Column("operator"), Column("changes at"), Column(f"critical {r.unknown_size}", right=True),
        Column("= formula", formula=True), Column("exists where", formula=True), Column("limit", right=True),
        Column("below / above"), Column("remark", formula=True),
    )  # fmt: skip
    lines = [(name, *_threshold_cells(t, r.base)) for name, t in _contracting(r, chip)]
    used = [i for i in range(len(columns)) if any(line[i] != "" for line in lines)]
    entries = (Entry("operator", tuple(line[i] for i in used)) for line in lines)
    return Table(tuple(columns[i] for i in used), tuple(entries), title)


def _threshold_cells(t: Threshold, base: float) -> tuple[Cell, ...]:
    value = "none" if t.at_base is None else plain_number(t.at_base)
    formula = t.value if t.value is not None and t.value.free_symbols else ""
    when = "" if t.value is None or str(t.when) == "True" else condition_text(t.when)
    limit = "" if t.limit is None else limit_text(t.limit)
    sides = f"{t.below} / {t.above}" if t.at_base is not None else ""
    return change(t, base) or "-", value, formula, when, limit, sides, _remark(t)


def _sweep(r: Report) -> list[Table]:
    """The critical size of the whole at each point of the sweep, per chip."""
    if not r.sweep or not r.sweep[0].thresholds:
        return []
    moving = document.moving(r)
    several = len(r.chips) > 1
    critical = [Column(f"critical {r.unknown_size}{f' {c.name}' if several else ''}", right=True) for c in r.chips]
    lines = []
    for p in r.sweep:
        values = ("none" if t.at_base is None else plain_number(t.at_base) for t in p.thresholds)
        lines.append(Entry("operator", (*(str(p.sizes[n]) for n in moving), *values)))
    return [Table((*(Column(n, right=True) for n in moving), *critical), tuple(lines), "The whole, at each point")]


def _remark(t: Threshold) -> str:
    parts = [t.reason, f"does not depend on {', '.join(t.cancels)}" if t.cancels else "", t.note]
    return "; ".join(p for p in parts if p)


def _solution_rows(r: Report) -> Iterable[list[Any]]:
    yield ["chip", "path", "op", "for", "value", "expr", "when", "limit", "below", "above", "reason", "cancels", "note"]
    for t in render_data.as_dict(r)["thresholds"]:
        yield [
            t["chip"], t["path"], t["op"], t["for"], t["value"]["value"], t["value"]["expr"], t["when"], t["limit"]["expr"],
            t["below"], t["above"], t["reason"], " ".join(t["cancels"]), t["note"],
        ]  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------- check


def verdict(v: Verdict, formula: str, a: Analysis) -> View:
    """The answer to a check."""
    data = {
        "schema": "costir/check/1", "subject": a.name, "sizes": dict(a.sizes), "formula": formula, "right": v.right,
        "kind": v.kind, "message": v.message, "quantity": v.quantity, "given": _value(v.given, v.given_at_base),
        "expected": _value(v.expected, v.expected_at_base), "difference": _value(v.difference, None), "notes": list(v.notes),
    }  # fmt: skip
    flat = {
        k: w["expr"] if isinstance(w, dict) and "expr" in w else w
        for k, w in data.items()
        if k not in ("schema", "sizes", "notes")
    }
    return View(lambda: _answer(v, formula, a), lambda: data, lambda: [list(flat), list(flat.values())])


def _value(e: Expr | None, value: float | None) -> dict[str, Any]:
    whole = value is not None and value.is_integer() and abs(value) < 2**53
    return {"expr": None if e is None else show(gather(e)), "value": int(value) if whole and value is not None else value}


def _answer(v: Verdict, formula: str, a: Analysis) -> Document:
    word = "right" if v.right else "wrong"
    message = v.message.removeprefix(f"{word}: ").removeprefix(word).strip()
    facts = [Fact("answer", f"{word}{',' if message.startswith(('at ', 'to ')) else ':' if message else ''} {message}".strip())]
    if not v.right:
        facts += _side("yours", v, v.given, v.given_at_base) + _side("found", v, v.expected, v.expected_at_base)
    counted = document.conventions_text(a.conventions, (n.cost.note for n in a.nodes))
    head = (*document.size_facts(a.sizes, a.constraints), Fact("counted", counted))
    return Document(
        f"{document.subject_title(a.name, a.phase)}, {formula}", head, (), (*facts, *(Fact("note", n) for n in v.notes))
    )


def _side(label: str, v: Verdict, e: Expr | None, value: float | None) -> list[Fact]:
    """One side of a comparison: its value at the base sizes, and its formula."""
    if e is None and value is None:
        return []
    at_base = "no value at these sizes" if value is None else plain_number(value)
    return [
        Fact(
            label,
            f"{'sent' if v.quantity == 'network' else v.quantity} {at_base}",
            gather(e) if e is not None and e.free_symbols else None,
        )
    ]
