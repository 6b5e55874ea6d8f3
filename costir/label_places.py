"""Where labels of points go in a picture so that none covers another, a point or the frame. All boxes are in pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Box = tuple[float, float, float, float]
Spot = tuple[float, float]
Line = tuple[Spot, Spot]
Label = tuple[float, float, str, str]  # where, what, colour


def pixels(axes: Axes) -> Callable[[float, float], Spot]:
    """From data to pixels, once the figure was drawn and its limits are final."""
    return lambda x, y: tuple(axes.transData.transform((x, y)))


def place(axes: Axes, labels: Sequence[Label], taken: Sequence[Box], lines: Sequence[Box],
          names: Sequence[Box] = ()) -> None:  # fmt: skip
    """Each label at the nearest free place around its point, with a thin line where that is not beside it.

    Args:
        axes: drawn once, so that its limits are final.
        labels: the most important first: what finds no place is left out.
        taken: what no label may cover.
        lines: what a label covers only where there is no other place.
        names: other words, which the line from a point to its label should not cross.
    """
    pixel = pixels(axes)
    figure: Any = axes.get_figure()
    taken, lines, written = list(taken), list(lines), list(names)
    for x, y, words, color in labels:
        text = axes.annotate(words, (x, y), (0, 0), textcoords="offset points", fontsize=8, color=color, zorder=5)
        size, spot = text.get_window_extent(), pixel(x, y)
        box = _place(spot, size.width, size.height, axes.get_window_extent().extents, taken, lines, written)
        if box is None:
            text.remove()
            continue
        taken.append(box)
        written.append(box)
        text.set_position(((box[0] - spot[0]) * 72 / figure.dpi, (box[1] - spot[1]) * 72 / figure.dpi))
        lines += [around(p, 1) for p in _lead(axes, spot, box)]


def _place(spot: Spot, width: float, height: float, frame: Box, taken: Sequence[Box], lines: Sequence[Box],
           written: Sequence[Box]) -> Box | None:  # fmt: skip
    """The best free box around a point: off all lines if there is one, and such that no line to it crosses a label."""
    corners = ((spot[0] + dx, spot[1] + dy) for dx, dy in _places(width, height))
    boxes = [b for u, v in corners if _inside(b := (u, v, u + width, v + height), frame) and free(b, taken)]
    possible = [b for b in boxes if free(b, lines)] or boxes
    return next((b for b in possible if _reaches(spot, b, written)), possible[0] if possible else None)


def free(box: Box, taken: Sequence[Box]) -> bool:
    """Whether a box touches none of the others."""
    return not any(_overlap(box, t) for t in taken)


def around(spot: Spot, r: float) -> Box:
    """The square around a point."""
    return spot[0] - r, spot[1] - r, spot[0] + r, spot[1] + r


def along(a: Spot, b: Spot) -> Iterable[Spot]:
    """Places along a line, close together."""
    steps = max(int(math.dist(a, b) / 6), 1)
    return ((a[0] + (b[0] - a[0]) * i / steps, a[1] + (b[1] - a[1]) * i / steps) for i in range(steps + 1))


def _reaches(spot: Spot, box: Box, written: Sequence[Box]) -> bool:
    """Whether the line from a point to its label crosses no other label."""
    return all(free(around(p, 0), written) for p in along(spot, _edge(spot, box)))


def _edge(spot: Spot, box: Box) -> Spot:
    """The place in a box that is nearest to a point."""
    return min(max(spot[0], box[0]), box[2]), min(max(spot[1], box[1]), box[3])


def _places(width: float, height: float) -> Iterable[tuple[float, float]]:
    """Offsets of a label's lower left corner from its point, nearest first, in pixels."""
    for radius in range(12, 260, 9):
        for k in range(20):
            angle = math.pi * k / 10
            across, up = radius * math.cos(angle), radius * math.sin(angle)
            yield across - (width if across < -1 else 0 if across > 1 else width / 2), up - height / 2


def _inside(box: Box, frame: Box) -> bool:
    return box[0] > frame[0] + 4 and box[1] > frame[1] + 4 and box[2] < frame[2] - 4 and box[3] < frame[3] - 4


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] + 2 and b[0] < a[2] + 2 and a[1] < b[3] + 2 and b[1] < a[3] + 2


def _lead(axes: Axes, point: Spot, box: Box) -> Iterable[Spot]:
    """A thin line from a point to the nearest edge of its label, where they are apart; returns where it runs."""
    nearest = _edge(point, box)
    if math.dist(point, nearest) < 13:
        return ()
    (x0, y0), (x1, y1) = (axes.transData.inverted().transform(p) for p in (point, nearest))
    axes.plot([x0, x1], [y0, y1], color="#888888", linewidth=0.6, zorder=3)
    return along(point, nearest)
