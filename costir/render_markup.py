"""A document as Markdown, LaTeX or HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from costir.page import Cell, Document, Entry, Fact, Table

if TYPE_CHECKING:
    from costir.symbolic import Expr

LATEX_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip
STRONG = ("group", "phase", "total")
CSS = (
    ".costir{font:13px/1.4 system-ui,sans-serif}.costir table{border-collapse:collapse}.costir td,.costir th{padding:1px 9px;"
    "border:0;text-align:left;white-space:nowrap}.costir .r{text-align:right;font-variant-numeric:tabular-nums}"
    ".costir th{border-bottom:1px solid #888}.costir .group td,.costir .phase td{font-weight:600;padding-top:6px}"
    ".costir .total td{font-weight:600;border-top:1px solid #888}.costir .small td{opacity:.65}"
    ".costir .unknown td{color:#b00020}"
    ".costir code{white-space:normal;font-size:12px}"
    ".costir dl{display:grid;grid-template-columns:max-content auto;gap:1px 12px}"
    ".costir dt{opacity:.65}.costir dd{margin:0}"
)


# -------------------------------------------------------------------------------------------------------------- markdown


def markdown(doc: Document) -> str:
    """The document as GitHub-flavoured Markdown."""
    parts = [f"## {_md(doc.title)}", _md_facts(doc.head)]
    for table in doc.tables:
        parts += [f"### {_md(table.title)}"] if table.title else []
        parts.append("\n".join(_md_table(table)))
    parts.append(_md_facts(doc.facts))
    return "\n\n".join(p for p in parts if p) + "\n"


def _md(text: str) -> str:
    """Text in which Markdown's own characters stand for themselves."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text)


def _md_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        indent = len(cell) - len(cell.lstrip(" "))
        return "&nbsp;" * indent + _md(cell.lstrip(" "))
    return "`" + str(cell).replace("|", "\\|") + "`"


def _md_table(table: Table) -> list[str]:
    out = ["| " + " | ".join(_md(c.title) for c in table.columns) + " |"]
    out.append("|" + "|".join("---:" if c.right else "---" for c in table.columns) + "|")
    for line in table.lines:
        if not line.cells:
            continue
        cells = [_md_cell(c) for c in line.cells]
        if line.kind in STRONG:
            cells = [f"**{c}**" if c else "" for c in cells]
        out.append("| " + " | ".join(cells) + " |")
    return out


def _md_facts(facts: tuple[Fact, ...]) -> str:
    return "\n".join(_md_fact(f) for f in facts)


def _md_fact(f: Fact) -> str:
    formula = "" if f.formula is None else f" = `{f.formula}`"
    return f"- {f.label}: {_md(f.text)}{formula}" if f.label else f"  - {_md(f.text)}{formula}"


# ----------------------------------------------------------------------------------------------------------------- latex


def latex_document(doc: Document) -> str:
    """The document as LaTeX to put into a paper: a `tabular` per table and an `itemize` of facts. Needs no package."""
    parts = [rf"\paragraph{{{tex(doc.title)}}}", _tex_facts(doc.head)]
    for table in doc.tables:
        parts += [rf"\paragraph{{{tex(table.title)}}}"] if table.title else []
        parts.append("\n".join(_tex_table(table)))
    parts.append(_tex_facts(doc.facts))
    return "\n\n".join(p for p in parts if p) + "\n"


def tex(text: str) -> str:
    """Text in which LaTeX's own characters stand for themselves."""
    text = "".join(LATEX_SPECIAL.get(c, c) for c in text)
    return text.replace(r"\textgreater{}= ", r"$\geq$ ").replace(r"\textless{}= ", r"$\leq$ ")


def tex_formula(e: Expr) -> str:
    """An expression as inline mathematics."""
    from costir.symbolic import latex

    return f"${latex(e)}$"


def _tex_cell(cell: Cell) -> str:
    if not isinstance(cell, str):
        return tex_formula(cell)
    indent = len(cell) - len(cell.lstrip(" "))
    return (r"\quad " if indent else "") + tex(cell.lstrip(" "))


def _tex_table(table: Table) -> list[str]:
    columns = "".join("r" if c.right else "l" for c in table.columns)
    out = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", " & ".join(tex(c.title) for c in table.columns) + r" \\", r"\hline"]
    out += [_tex_line(line) for line in table.lines]
    return [*out, r"\hline", r"\end{tabular}"]


def _tex_line(line: Entry) -> str:
    if not line.cells:
        return r"\hline"
    cells = [_tex_cell(c) for c in line.cells]
    if line.kind in STRONG:
        cells = [rf"\textbf{{{c}}}" if c else "" for c in cells]
    # A star or bracket after \\ would be read as its argument.
    return ("{}" if cells[0][:1] in ("*", "[") else "") + " & ".join(cells) + r" \\"


def _tex_facts(facts: tuple[Fact, ...]) -> str:
    if not facts:
        return ""
    return "\n".join([r"\begin{itemize}", *(_tex_fact(f) for f in facts), r"\end{itemize}"])


def _tex_fact(f: Fact) -> str:
    """A labelled line; one without a label goes on with the line before."""
    start = rf"  \item {tex(f.label)}: " if f.label else r"    \\ "
    return start + tex(f.text) + ("" if f.formula is None else f" = {tex_formula(f.formula)}")


# ------------------------------------------------------------------------------------------------------------------ html


def page(doc: Document) -> str:
    """The document as an HTML page."""
    head = f'<meta charset="utf-8"><meta name="generator" content="costir"><title>{html.escape(doc.title)}</title>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{fragment(doc)}</body></html>\n'


def fragment(doc: Document) -> str:
    """The document as an HTML fragment, for notebooks."""
    parts = [f'<div class="costir"><style>{CSS}</style>', f"<h3>{html.escape(doc.title)}</h3>", _html_facts(doc.head)]
    for table in doc.tables:
        parts += [f"<h4>{html.escape(table.title)}</h4>"] if table.title else []
        parts.append("\n".join(_html_table(table)))
    parts += [_html_facts(doc.facts), "</div>"]
    return "\n".join(p for p in parts if p) + "\n"


def _html_cell(cell: Cell) -> str:
    if not isinstance(cell, str):
        return f"<code>{html.escape(str(cell))}</code>"
    indent = len(cell) - len(cell.lstrip(" "))
    return "&nbsp;" * indent + html.escape(cell.lstrip(" "))


def _html_table(table: Table) -> list[str]:
    right = [' class="r"' if c.right else "" for c in table.columns]
    titles = "".join(f"<th{k}>{html.escape(c.title)}</th>" for c, k in zip(table.columns, right, strict=True))
    out = [f"<table><thead><tr>{titles}</tr></thead><tbody>"]
    for line in table.lines:
        if line.cells:
            cells = "".join(f"<td{k}>{_html_cell(c)}</td>" for c, k in zip(line.cells, right, strict=True))
            out.append(f'<tr class="{line.kind}">{cells}</tr>')
    return [*out, "</tbody></table>"]


def _html_facts(facts: tuple[Fact, ...]) -> str:
    formula_of: Callable[[Fact], str] = lambda f: "" if f.formula is None else f" = <code>{html.escape(str(f.formula))}</code>"
    items = "".join(f"<dt>{html.escape(f.label)}</dt><dd>{html.escape(f.text)}{formula_of(f)}</dd>" for f in facts)
    return f"<dl>{items}</dl>" if facts else ""
