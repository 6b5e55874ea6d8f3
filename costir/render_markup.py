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
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
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


WIDE = 6  # columns that fit on an upright page
PACKAGES = "% in the preamble: \\usepackage{array,longtable,pdflscape}"
FIRST, FORMULAS = 0.2, 0.36  # shares of the line that the names and all formulas of a wide table take
RELATIONS = {"==": "=", "=": "=", "<=": r"\leq", ">=": r"\geq", "<": "<", ">": ">"}
_START, _WORD = r"(?<![\w.*/])", r"[A-Za-z]\w*"
_NAME = rf"{_START}{_WORD}(?:\*{_WORD})*"
_POWER = rf"{_WORD}(?:\*\*\d+)?"
_PRODUCT = rf"(?:\d+\*{_POWER}|{_WORD}\*\*\d+|{_POWER}\*{_POWER})(?:\*{_POWER})*"
_MATHEMATICS = re.compile(
    rf"(?P<left>{_NAME}) % (?P<divisor>{_NAME}|\d+) == 0\b"
    rf"|(?P<name>{_NAME}) (?P<relation>==|<=|>=|=|<|>) (?P<number>\d[\d.]*(?![\w.*/]))"
    rf"|(?P<a>{_START}[A-Z]|^[\w*]+(?: [+-] [\w*]+)*) x (?P<b>[A-Z](?!\w)|(?=[\w*]))"
    rf"|(?P<sum>{_START}{_PRODUCT}(?: [+-] (?:{_PRODUCT}|[A-Za-z](?!\w)|\d+(?![\w.])))*)(?![\w.(*])"
    r"|(?P<micro>(?<=\d )us\b)|(?P<arrow>->)|(?P<alone><=|>=|<|>)"
)


def latex_document(doc: Document) -> str:
    """The document as LaTeX to put into a paper: a table per table and an `itemize` of facts.

    A table of many columns is a `longtable` in small print on a landscape page, whose formulas break; the packages that it
    needs stand in a comment. Others are a `tabular` and need no package.
    """
    parts = [rf"\paragraph{{{tex(doc.title)}}}", _tex_facts(doc.head)]
    for table in doc.tables:
        parts += [rf"\paragraph{{{tex(table.title)}}}"] if table.title else []
        parts.append("\n".join(_tex_table(table)))
    parts.append(_tex_facts(doc.facts))
    wide = any(len(table.columns) > WIDE for table in doc.tables)
    return (PACKAGES + "\n" if wide else "") + "\n\n".join(p for p in parts if p) + "\n"


def tex(text: str) -> str:
    """Text in which LaTeX's own characters stand for themselves, and sizes and relations are set as mathematics."""
    out, end = [], 0
    for m in _MATHEMATICS.finditer(text):
        out += [_escaped(text[end : m.start()]), _mathematics(m)]
        end = m.end()
    return "".join([*out, _escaped(text[end:])])


def _escaped(text: str) -> str:
    return "".join(LATEX_SPECIAL.get(c, c) for c in text)


def _mathematics(m: re.Match[str]) -> str:
    """What was matched as inline mathematics."""
    if m["left"]:
        return rf"${_symbol(m['left'])} \;\mathrm{{mod}}\; {_symbol(m['divisor'])} = 0$"
    if m["name"]:
        return f"${_symbol(m['name'])} {RELATIONS[m['relation']]} {m['number']}$"
    if m["a"]:
        return rf"${_symbol(m['a'])} \times{' ' + m['b'] if m['b'] else ''}$" + ("" if m["b"] else " ")
    if m["sum"]:
        powers = re.sub(r"\*\*(\d+)", r"^{\1}", m["sum"])
        return f"${_symbol(powers)}$"
    return r"$\mu$s" if m["micro"] else r"$\to$" if m["arrow"] else f"${RELATIONS[m['alone']]}$"


def _symbol(name: str) -> str:
    """Sizes as sympy sets them: words as one name, with what follows a "_" below it; products with spaces."""
    return re.sub(r"[A-Za-z]\w+", _word, name.replace("*", " "))


def _word(m: re.Match[str]) -> str:
    above, _, below = m[0].partition("_")
    name = above if len(above) == 1 else rf"\mathit{{{above}}}"
    return name + (f"_{{{below.replace('_', ' ')}}}" if below else "")


def tex_formula(e: Expr) -> str:
    """An expression as inline mathematics, with brackets between which a line may end."""
    from costir.symbolic import latex

    return f"${latex(e)}$".replace(r"\left(", "(").replace(r"\right)", ")")


def _tex_cell(cell: Cell) -> str:
    if not isinstance(cell, str):
        return tex_formula(cell)
    indent = len(cell) - len(cell.lstrip(" "))
    return (r"\quad " if indent else "") + tex(cell.lstrip(" "))


def _tex_table(table: Table) -> list[str]:
    titles = " & ".join(tex(c.title) for c in table.columns) + r" \\"
    lines = [_tex_line(line) for line in table.lines]
    if len(table.columns) <= WIDE:
        columns = "".join("r" if c.right else "l" for c in table.columns)
        return [rf"\begin{{tabular}}{{{columns}}}", r"\hline", titles, r"\hline", *lines, r"\hline", r"\end{tabular}"]
    share = FORMULAS / max(1, sum(c.formula for c in table.columns))
    kinds = [_paragraph(FIRST), *(_paragraph(share) if c.formula else "r" if c.right else "l" for c in table.columns[1:])]
    lines = [line.replace(r"\_", r"\_\allowbreak{}", line.partition(" & ")[0].count(r"\_")) for line in lines]
    return [
        r"\begin{landscape}", r"\scriptsize\setlength{\tabcolsep}{2pt}", rf"\begin{{longtable}}{{{''.join(kinds)}}}", r"\hline",
        titles, r"\hline", r"\endhead", *lines, r"\hline", r"\end{longtable}", r"\end{landscape}",
    ]  # fmt: skip


def _paragraph(share: float) -> str:
    """A column whose cells break, by its share of the line."""
    return rf">{{\raggedright\arraybackslash}}p{{{share:.2g}\linewidth}}"


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
