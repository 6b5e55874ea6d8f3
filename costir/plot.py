"""The roofline as a picture: log-log, roofs with their ridges, operators as labelled points. matplotlib is imported late."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import costir
from costir.build import build
from costir.document import plain_number, title
from costir.errors import CostirError
from costir.label_places import Box, Label, Line, along, around, pixels, place
from costir.report import ChipInfo, Report, Row
from costir.units import si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from costir.analysis import Analysis
    from costir.hardware import Chip

COLORS = ("#1f5fa8", "#c2521c", "#2a7f3f", "#7a3f9d", "#8c6d00", "#a3195b")
MOST_LABELS, LEAST_LABELS = 14, 6
SHORT_NAME = 26
DPI = 150
SAME = 1.03  # points closer than this ratio in both directions are one point


@dataclass(frozen=True, slots=True)
class Dot:
    """One or several operators at one place: FLOP/byte, FLOP/s, share of the time, a name, the chip's index."""

    x: float
    y: float
    share: float
    name: str
    chip: int


def can_draw(r: Report) -> bool:
    """Whether there is anything to draw: a chip, and an operator that has both FLOPs and bytes."""
    return any(_dots(r, i) for i in range(len(r.chips)))


def roofline_figure(analysis: Analysis, chips: Sequence[Chip]) -> Figure:
    """The roofline of an analysis on chips, as a matplotlib figure, for notebooks.

    Raises:
        CostirError: see `figure`.
    """
    return figure(build(analysis, chips))


def figure(r: Report) -> Figure:
    """The roofline of a report.

    Raises:
        CostirError: where the report has no chip, or no operator that has both FLOPs and bytes.
    """
    from matplotlib.figure import Figure

    if not r.chips:
        raise CostirError("a roofline needs a chip", "add --chip h100, or .on('h100')")
    dots = [d for i in range(len(r.chips)) for d in _dots(r, i)]
    if not dots:
        raise CostirError("no operator has both FLOPs and bytes, so there is nothing to draw", "see the table instead")
    fig = Figure(figsize=(9.2, 5.6), dpi=DPI, layout="constrained")
    axes = fig.add_subplot()
    low, high, bottom, top = _frame(r, dots)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, top))
    axes.set_xlabel("arithmetic intensity (FLOP/byte)")
    axes.set_ylabel("attainable rate (FLOP/s)")
    axes.yaxis.set_major_formatter(lambda v, _: si(v, ""))
    axes.xaxis.set_major_formatter(lambda v, _: plain_number(v))
    axes.set_title(_title(r), loc="left", fontsize=10)
    axes.grid(True, which="major", color="#e4e4e4", linewidth=0.7, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    lines: list[Line] = []
    for i, chip in enumerate(r.chips):
        lines += _roof(axes, chip, COLORS[i % len(COLORS)], low, high)
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    caption = "area and %: share of the time" + (f" on {r.chips[0].name}" if len(r.chips) > 1 else "")
    axes.annotate(caption, (1, 0), (-6, 6), "axes fraction", "offset points", ha="right", fontsize=8, color="#666666")
    for d in dots:
        area, color = 18 + 260 * d.share, COLORS[d.chip % len(COLORS)]
        axes.scatter([d.x], [d.y], s=area, color=color, edgecolors="white", linewidths=0.8, zorder=4)
    _label(axes, [*_ridges(r), *_operator_labels(dots)], dots, lines)
    return fig


def picture(r: Report, kind: str) -> bytes:
    """The figure as a file; see `as_file`.

    Raises:
        CostirError: as `figure` and `as_file`.
    """
    return as_file(lambda: figure(r), f"roofline of {r.subject}", kind)


def as_file(draw: Callable[[], Figure], what: str, kind: str) -> bytes:
    """A figure as a file; the same figure gives the same bytes. `kind` is "svg" or "png".

    Raises:
        CostirError: for another kind, and as `draw`.
    """
    import matplotlib

    if kind not in ("svg", "png"):
        raise CostirError(f"a plot cannot be written as {kind!r}", "give a file that ends in .svg or .png")
    out = io.BytesIO()
    by = f"costir {costir.__version__}"
    metadata: dict[str, Any] = {"Date": None, "Title": f"{by}: {what}", "Creator": by} if kind == "svg" else {"Software": by}
    with matplotlib.rc_context({"svg.hashsalt": "costir", "font.family": ["DejaVu Sans"]}):
        draw().savefig(out, format=kind, metadata=metadata)
    return out.getvalue()


def _title(r: Report) -> str:
    sizes = ", ".join(f"{n}={v}" for n, v in {**r.sizes, **r.fixed}.items())
    lines, line = [f"Roofline of {title(r)}"], ""
    for part in sizes.split(", "):
        if len(line) + len(part) > 110:
            lines.append(line)
            line = ""
        line += (", " if line else "") + part
    return "\n".join([*lines, line] if line else lines)


def _dots(r: Report, chip: int) -> list[Dot]:
    """The operators as points, those at one place merged, most time first."""
    whole = sum(row.times[chip].lower or 0.0 for row in r.rows) or 1.0
    out: list[Dot] = []
    for row in sorted(r.rows, key=lambda row: -(row.times[chip].lower or 0.0)):
        x, work, time = row.quantities["intensity"].number, row.quantities["flops"].number, row.times[chip].lower
        if not x or not work or not time:
            continue
        new = Dot(float(x), float(work) / time, time / whole, _name(row), chip)
        near = next((i for i, d in enumerate(out) if _close(d, new)), None)
        if near is None:
            out.append(new)
        else:
            out[near] = _merged(out[near], new)
    return sorted(out, key=lambda d: -d.share)


def _close(a: Dot, b: Dot) -> bool:
    return max(a.x / b.x, b.x / a.x) < SAME and max(a.y / b.y, b.y / a.y) < SAME


def _merged(a: Dot, b: Dot) -> Dot:
    names = list(dict.fromkeys([*a.name.split(", "), b.name]))
    return Dot(a.x, a.y, a.share + b.share, ", ".join(names), a.chip)


def _name(row: Row) -> str:
    """A short name: the module's last part and the operator."""
    parts = [p for p in row.path.split(".") if p != "*"]
    operator = "sdpa" if "scaled_dot_product" in row.name else row.name
    return f"{parts[-1] if parts else ''} {operator}".strip()


def _short(name: str) -> str:
    """As many of several names as are short together, at least one, and how many more there are."""
    names = name.split(", ")
    shown = names[:2] if len(", ".join(names[:2])) <= SHORT_NAME else names[:1]
    left = len(names) - len(shown)
    return ", ".join(shown) + (f" + {left} more" if left else "")


def _frame(r: Report, dots: Sequence[Dot]) -> Box:
    """The limits of the axes: every point, every ridge, and room around them."""
    ridges = [p / c.bandwidth for c in r.chips for p in c.peaks.values()]
    xs, ys = [*(d.x for d in dots), *ridges], [*(d.y for d in dots), *(p for c in r.chips for p in c.peaks.values())]
    return min(xs) / 4, max(xs) * 16, min(ys) / 5, max(ys) * 12


def _roof(axes: Axes, chip: ChipInfo, color: str, low: float, high: float) -> list[Line]:
    """The slope of the memory, one flat roof per compute type with its ridge, and the vector unit's roof, dashed."""
    peak = max(chip.peaks.values(), default=chip.vector or chip.bandwidth)
    ridge = peak / chip.bandwidth
    label = f"{chip.name}: memory {si(chip.bandwidth, 'B/s')}"
    axes.plot([low, ridge], [low * chip.bandwidth, peak], color=color, linewidth=1.8, zorder=2, label=label)
    lines = [((low, low * chip.bandwidth), (ridge, peak))]
    for dtype, p in chip.peaks.items():
        x = p / chip.bandwidth
        axes.plot([x, high], [p, p], color=color, linewidth=1.8, zorder=2)
        axes.plot([x, x], [axes.get_ylim()[0], p], color=color, linewidth=0.8, linestyle=":", zorder=1)
        axes.annotate(
            f"{dtype} {si(p, 'FLOP/s')}", (high, p), (-3, 4), textcoords="offset points", ha="right", fontsize=8, color=color
        )
        axes.plot([x], [p], marker="D", markersize=5, color=color, markeredgecolor="white", zorder=4)
        lines += [((x, p), (high, p)), ((x, axes.get_ylim()[0]), (x, p))]
    if chip.vector is not None and chip.vector < peak:
        axes.plot([chip.vector / chip.bandwidth, high], [chip.vector] * 2, color=color, linewidth=1, linestyle="--", zorder=1)
        text = f"vector {si(chip.vector, 'FLOP/s')}"
        axes.annotate(text, (high, chip.vector), (-3, 4), textcoords="offset points", ha="right", fontsize=8, color=color)
        lines.append(((chip.vector / chip.bandwidth, chip.vector), (high, chip.vector)))
    return lines


def _ridges(r: Report) -> list[Label]:
    """The ridge of every compute type of every chip."""
    colors = [COLORS[i % len(COLORS)] for i in range(len(r.chips))]
    return [
        (p / c.bandwidth, p, f"ridge {plain_number(p / c.bandwidth)} FLOP/B", k)
        for c, k in zip(r.chips, colors, strict=True)
        for p in c.peaks.values()
    ]


def _operator_labels(dots: Sequence[Dot]) -> list[Label]:
    """The names of the operators that take most of the time on the first chip."""
    first = [d for d in dots if d.chip == 0]
    heavy = [d for i, d in enumerate(first) if i < LEAST_LABELS or d.share >= 0.01][:MOST_LABELS]
    share: Callable[[Dot], str] = lambda d: f"{d.share:.0%}" if d.share >= 0.005 else "<1%"
    return [(d.x, d.y, f"{_short(d.name)} {share(d)}", "black") for d in heavy]


def _label(axes: Axes, labels: Sequence[Label], dots: Sequence[Dot], lines: Sequence[Line]) -> None:
    """Each label at the nearest free place around its point."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(axes.get_figure()).draw()
    pixel = pixels(axes)
    taken = [around(pixel(d.x, d.y), 7) for d in dots] + [around(pixel(x, y), 5) for x, y, _, _ in labels]
    legend = axes.get_legend()
    taken += [t.get_window_extent().extents for t in (*axes.texts, *([legend] if legend is not None else []))]
    place(axes, labels, taken, [around(spot, 2) for line in lines for spot in along(pixel(*line[0]), pixel(*line[1]))])
