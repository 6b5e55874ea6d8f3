"""What every text format can show: labelled facts and tables, in words. Formulas stay expressions until the format is known.

Nothing heavy is imported here, so that `costir chips` is quick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from costir.layout import Column as Column

if TYPE_CHECKING:
    from costir.symbolic import Expr

Cell = Union[str, "Expr"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a table: kind is "operator", "group", "small", "unknown", "total", "phase" or "rule" (no cells)."""

    kind: str
    cells: tuple[Cell, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """A table, with a title where there are several."""

    columns: tuple[Column, ...]
    lines: tuple[Entry, ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """A labelled line: a value in words, then perhaps a formula."""

    label: str
    text: str
    formula: Expr | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A title, facts above, tables, facts below."""

    title: str
    head: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
    facts: tuple[Fact, ...] = ()
