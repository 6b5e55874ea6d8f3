"""A document as plain text for a terminal or a pipe."""

from __future__ import annotations

from costir import layout
from costir.layout import Line, paint
from costir.page import Cell, Document, Fact, Table

STYLE = {"group": "bold", "phase": "cyan", "small": "dim", "unknown": "red", "total": "bold", "operator": "", "rule": ""}
HIDDEN = "formulas left out to fit this width; --format markdown or a pipe shows all, --explain one"


def text(doc: Document, width: int | None = None, color: bool = False) -> str:
    """The document as text.

    Args:
        doc: the document.
        width: the terminal's width; None lets lines be as long as they are.
        color: use terminal colours.
    """
    parts = [paint(doc.title, "bold", color), *_facts(doc.head, width, color)]
    for table in doc.tables:
        parts += ["", *([paint(table.title, "bold", color)] if table.title else []), *table_text(table, width, color)]
    if doc.facts:
        parts += ["", *_facts(doc.facts, width, color)]
    return "\n".join(parts) + "\n"


def table_text(table: Table, width: int | None = None, color: bool = False) -> list[str]:
    """A table as aligned lines."""
    lines = [Line(tuple(_cell(c) for c in e.cells), STYLE[e.kind]) for e in table.lines]
    out, whole = layout.grid(table.columns, lines, width, color)
    return out if whole else [*out, paint(f"({HIDDEN})", "dim", color)]


def _cell(cell: Cell) -> str:
    return cell if isinstance(cell, str) else str(cell)


def _facts(facts: tuple[Fact, ...], width: int | None, color: bool) -> list[str]:
    """Labelled lines; a label that repeats is printed once."""
    edge = max((layout.cells(f.label) for f in facts), default=0) + 2
    out, before = [], ""
    for f in facts:
        name = f.label if f.label != before else ""
        before = f.label
        body = f.text if f.formula is None else f"{f.text} = {f.formula!s}"
        lines = [body] if width is None else layout.wrap(body, max(width - edge - 2, 30))
        out += [
            f"  {paint(layout.pad(name if i == 0 else '', edge - 1), 'dim', color)} {line}".rstrip()
            for i, line in enumerate(lines)
        ]
    return out
