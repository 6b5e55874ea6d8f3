"""The formats, one function each: from what a verb shows to text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from costir import render_markup, render_text
from costir.errors import CostirError
from costir.page import Document

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
    "markdown": lambda v: render_markup.markdown(v.document()),
    "json": lambda v: json.dumps(v.data(), indent=2) + "\n",
    "csv": lambda v: _csv(v.rows()),
    "latex": lambda v: render_markup.latex_document(v.document()),
    "html": lambda v: render_markup.page(v.document()),
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


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    """Comma-separated lines; unknown is an empty cell; the last column names the schema."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for i, row in enumerate(rows):
        writer.writerow(["" if c is None else c for c in row] + [SCHEMA if i else "schema"])
    return out.getvalue()
