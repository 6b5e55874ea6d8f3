"""The formats, one function each: from what a verb shows to text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from costir import render_text
from costir.errors import CostirError
from costir.page import Document

if TYPE_CHECKING:
    from costir.analysis import Analysis
    from costir.hardware import Chip

SCHEMA = "costir/1"


@dataclass(frozen=True, slots=True)
class View:
    """What a verb shows, in its three shapes, each made only when its format is asked for.

    Attributes:
        document: titles, facts and tables, in words.
        data: plain dictionaries and lists, for JSON.
        rows: a heading row and data rows, for CSV; the column `schema` is added.
    """

    document: Callable[[], Document]
    data: Callable[[], dict[str, Any]]
    rows: Callable[[], Iterable[Sequence[Any]]]


FORMATS: dict[str, Callable[[View], str]] = {
    "text": lambda v: render_text.text(v.document()),
    "markdown": lambda v: _markup("markdown", v),
    "json": lambda v: _json(v.data()),
    "csv": lambda v: _csv(v.rows()),
    "latex": lambda v: _markup("latex_document", v),
    "html": lambda v: _markup("page", v),
}
SUFFIXES = {".txt": "text", ".md": "markdown", ".json": "json", ".csv": "csv", ".tex": "latex", ".html": "html"}


def render(view: View, name: str = "text") -> str:
    """The view in a format of FORMATS.

    Raises:
        CostirError: where there is no such format.
    """
    if name not in FORMATS:
        raise CostirError(f"no format {name!r}", f"formats: {', '.join(FORMATS)}")
    return FORMATS[name](view)


def _markup(function: str, view: View) -> str:
    from costir import render_markup

    return str(getattr(render_markup, function)(view.document()))


def _json(data: dict[str, Any]) -> str:
    import json

    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def notebook_html(analysis: Analysis, chips: Sequence[Chip] = ()) -> str:
    """An analysis, on chips or on none, as an HTML fragment with its roofline where there is a chip.

    Raises:
        CostirError: as `build.build`.
    """
    from costir import build, document, plot, render_markup

    report = build.build(analysis, chips)
    drawing = plot.picture(report, "svg").decode() if chips and plot.can_draw(report) else ""
    return render_markup.fragment(document.document(report)) + drawing[drawing.find("<svg") :]


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    """Comma-separated lines; unknown is an empty cell; the last column names the schema."""
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for i, row in enumerate(rows):
        writer.writerow(["" if c is None else c for c in row] + [SCHEMA if i else "schema"])
    return out.getvalue()
