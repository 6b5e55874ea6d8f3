"""Aligned columns of plain text, with or without colour, at any width."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

GAP = "  "
NARROWEST_FORMULA = 20
STYLES = {"bold": "1", "dim": "2", "red": "31", "cyan": "36", "": ""}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, right-aligned or not, and whether its cells are formulas, which may wrap or be left out."""

    title: str
    right: bool = False
    formula: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A row of cells with a style for the whole row. A line without cells is a rule."""

    cells: tuple[str, ...] = ()
    style: str = ""


def paint(text: str, style: str, color: bool) -> str:
    """`text` in a style, where colour is wanted."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if color and style and text.strip() else text


def cells(text: str) -> int:
    """How many columns of a terminal a text takes: Chinese characters take two."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def pad(text: str, width: int, right: bool = False) -> str:
    """`text` with spaces up to a width in columns."""
    space = " " * (width - cells(text))
    return space + text if right else text + space


# A line may end after a space, and after any Chinese character, but not before the punctuation that follows it.
_PIECES = re.compile(r"[\u2e80-\uffef][，。；：、）！？”》】]*|[^ \u2e80-\uffef]+[，。；：、）！？”》】]* ?| ")


def wrap(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width`, broken after spaces, and after `*` or `(` where it must; never within a name."""
    lines = [""]
    for piece in _PIECES.findall(text):
        if cells(lines[-1]) + cells(piece.rstrip()) <= width:
            lines[-1] += piece
            continue
        if cells(piece.rstrip()) <= width:
            lines.append(piece)
            continue
        for part in re.findall(r"[^*(]+(?:\*+|\()* ?|[*(]+ ?", piece):
            if cells(lines[-1]) + cells(part.rstrip()) > width and lines[-1]:
                lines.append("")
            lines[-1] += part
    return [line.rstrip() for line in lines if line.strip()] or [""]


def grid(
    columns: Sequence[Column], lines: Sequence[Line], width: int | None = None, color: bool = False
) -> tuple[list[str], bool]:
    """The table as lines of text, and whether all columns are there.

    With a `width`, formulas wrap to fit; where that is not enough they are left out, the last column first.
    """
    whole = True
    while True:
        widths = _widths(columns, lines, width)
        formulas = [i for i, c in enumerate(columns) if c.formula]
        if widths is not None or not formulas:
            break
        gone, whole = formulas[-1], False
        columns = [c for i, c in enumerate(columns) if i != gone]
        lines = [Line(tuple(c for i, c in enumerate(row.cells) if i != gone), row.style) for row in lines]
    if widths is None:
        widths = _natural(columns, lines)
    out = [paint(_join([c.title for c in columns], columns, widths), "bold", color), _rule(widths)]
    for row in lines:
        out.extend(_format(row, columns, widths, color) if row.cells else [_rule(widths)])
    return out, whole


def _natural(columns: Sequence[Column], lines: Sequence[Line]) -> list[int]:
    return [max([cells(c.title), *(cells(row.cells[i]) for row in lines if i < len(row.cells))]) for i, c in enumerate(columns)]


def _widths(columns: Sequence[Column], lines: Sequence[Line], width: int | None) -> list[int] | None:
    """Column widths that fit, formulas sharing what the others leave; None where they do not fit."""
    widths = _natural(columns, lines)
    if width is None or sum(widths) + len(GAP) * (len(widths) - 1) <= width:
        return widths
    formulas = [i for i, c in enumerate(columns) if c.formula]
    left = width - len(GAP) * (len(widths) - 1) - sum(w for i, w in enumerate(widths) if i not in formulas)
    for done, i in enumerate(sorted(formulas, key=lambda i: widths[i])):
        share = left // (len(formulas) - done)
        if min(widths[i], share) < min(widths[i], NARROWEST_FORMULA):
            return None
        widths[i] = min(widths[i], share)
        left -= widths[i]
    return widths if formulas else None


def _rule(widths: Sequence[int]) -> str:
    return "-" * (sum(widths) + len(GAP) * (len(widths) - 1))


def _join(texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    return GAP.join(pad(c, w, col.right) for c, col, w in zip(texts, columns, widths, strict=True)).rstrip()


def _format(row: Line, columns: Sequence[Column], widths: Sequence[int], color: bool) -> list[str]:
    wrapped = [wrap(c, w) if col.formula else [c] for c, col, w in zip(row.cells, columns, widths, strict=True)]
    height = max(map(len, wrapped))
    table = [[cell[k] if k < len(cell) else "" for cell in wrapped] for k in range(height)]
    if not color or row.style:
        return [paint(_join(texts, columns, widths), row.style, color) for texts in table]
    out = []
    for texts in table:
        padded = [pad(c, w, col.right) for c, col, w in zip(texts, columns, widths, strict=True)]
        out.append(
            GAP.join(paint(c, "dim" if col.formula else "", color) for c, col in zip(padded, columns, strict=True)).rstrip()
        )
    return out
