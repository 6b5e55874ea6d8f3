"""Pictures of measurements: operators under the roofline of this machine; a sweep's bound, estimate and measurement.

matplotlib is imported late.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from costir.document import plain_number, seconds, subject_title
from costir.errors import CostirError
from costir.label_places import Box, along, around, free, pixels, place
from costir.measure_views import binds, no_verdict, overhead
from costir.measuring.measure import Measurement, Row
from costir.plot import as_file
from costir.units import si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY, DARK = "#1f5fa8", "#c2521c", "#8a8a8a", "#444444"
# Shapes and dashes differ as well as colours, for paper without colours.
KINDS = {"forward": ("o", BLUE), "backward": ("s", "#2a7f3f"), "optimizer": ("^", "#7a3f9d")}
REGIONS = {"overhead": "#f6e7db", "memory": "#e3ecf6", "compute": "#e7f3e7"}
LABELS = 8
LABELLED, DRAWN = 0.01, 0.002  # of the time: operators below the first have no name, those below the second no dot
LEAST = 0.01  # FLOP/byte: what does less only moves memory, and its dot would be far from all others
NAMED = 3  # of the operators that are not drawn
DPI, WIDTH, HEIGHT = 150, 9.6, 6.4
LETTERS = 140  # in a line of the caption


@dataclass(frozen=True, slots=True)
class Dot:
    """An operator: FLOP/byte, FLOP/s as measured and as estimated, its share of the step's time."""

    x: float
    y: float
    estimate: float
    share: float
    row: Row

    @property
    def area(self) -> float:
        """In square points."""
        return _area(self.share)

    @property
    def label(self) -> str:
        """The module's last part, the operator, and its share."""
        op = self.row.op
        if "scaled_dot_product" in op:
            op = "sdpa_backward" if op.endswith("backward") else "sdpa"
        return f"{self.row.path.rpartition('.')[2]} {op} {self.share:.0%}".strip()


def draw(found: Sequence[Measurement], kind: str, swept: str, suffix: str) -> bytes:
    """A picture.

    Args:
        found: one measurement for "roofline", several for "sweep".
        kind: "roofline" or "sweep".
        swept: the size on the x axis of a sweep.
        suffix: "svg" or "png".

    Raises:
        CostirError: where there is nothing to draw.
    """
    make = (lambda: sweep_figure(found, swept)) if kind == "sweep" else (lambda: roofline_figure(found[0]))
    return as_file(make, f"{kind} of {found[0].name}, measured", suffix.lower())


# -------------------------------------------------------------------------------------------------------------- roofline


def roofline_figure(m: Measurement) -> Figure:
    """The operators of a measured step under the roofs of the chip.

    Raises:
        CostirError: where no operator with FLOPs was timed.
    """
    dots = _dots(m)
    if not dots:
        raise CostirError("no operator with FLOPs was timed, so there is no roofline to draw", "see the table instead")
    figure, axes = _canvas(_title(f"Roofline of {subject_title(m.name, m.phase)}, measured", m, ""))
    peaks, slopes = _peaks(m), _slopes(m)
    _frame(axes, dots, peaks, slopes)
    _roofs(axes, peaks, slopes)
    _points(axes, dots)
    _size_legend(axes, dots)
    _caption(axes, -66, _roofline_words(m, dots))
    _name(axes, dots, peaks, slopes)
    return figure


def _dots(m: Measurement) -> list[Dot]:
    """The operators that can be drawn, most time first."""
    found = [
        Dot(r.flops / r.nbytes, r.flops / r.measured, r.flops / r.estimate, r.measured / m.measured, r)
        for r in m.rows
        if _works(r) and r.measured and r.estimate and r.measured >= DRAWN * m.measured
    ]
    return sorted(found, key=lambda d: -d.share)


def _works(r: Row) -> bool:
    """Whether an operator has a place under a roof."""
    return bool(r.nbytes) and r.flops >= LEAST * r.nbytes


def _peaks(m: Measurement) -> dict[str, float]:
    """The best rates of the types that the model multiplies: those nearest to what the compute bounds of its operators are."""
    rates = {name: float(rate) for name, rate in m.chip.matrix.items()}
    used = [r.flops / r.bound for r in m.rows if r.binds == "compute" and r.flops and r.bound]
    names = {min(rates, key=lambda n: abs(math.log(rates[n] / u))) for u in used} if rates else set()
    return {n: rates[n] for n in rates if n in names} or {"fp32": float(m.chip.matmul_rate("float32"))}


def _slopes(m: Measurement) -> dict[str, float]:
    """The bandwidths: of main memory, and of the nearest cache where it is faster."""
    slow, known = float(m.chip.memory_bandwidth), m.chip.calibration.envelope if m.chip.calibration else []
    fast = max([rate for _, rate in known], default=slow)
    return {"main memory": slow} | ({"nearest cache": fast} if fast > slow else {})


def _frame(axes: Axes, dots: Sequence[Dot], peaks: dict[str, float], slopes: dict[str, float]) -> None:
    """Axes that hold all dots, the ridges, and enough of the slopes to see and name them."""
    top, low = max(peaks.values()), min(peaks.values())
    xs = [d.x for d in dots] + [low / max(slopes.values()) / 4, top / min(slopes.values())]
    ys = [y for d in dots for y in (d.y, d.estimate)] + [low / 20, top]
    axes.set(xscale="log", yscale="log", xlim=(min(xs) / 2.5, max(xs) * 5), ylim=(min(ys) / 2.5, max(ys) * 4))
    axes.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="rate (FLOP/s)")
    axes.xaxis.set_major_formatter(lambda v, _: plain_number(v))
    axes.yaxis.set_major_formatter(lambda v, _: si(v))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(lambda v, _: "")


def _roofs(axes: Axes, peaks: dict[str, float], slopes: dict[str, float]) -> None:
    """Slopes, whose names follow when the layout is final, and flat roofs: the highest is named where no dots are near."""
    (low, high), top = axes.get_xlim(), max(peaks.values())
    for name, peak in peaks.items():
        start = peak / max(slopes.values())
        axes.plot([start, high], [peak, peak], color=DARK, lw=1.4, zorder=2)
        x, shift, side = (start, 4, "left") if peak == top else (high, -4, "right")
        axes.annotate(f"{name} peak {si(peak, 'FLOP/s')}", (x, peak), (shift, 3), textcoords="offset points", fontsize=8,
                      color=DARK, ha=side)  # fmt: skip
    for name, rate in slopes.items():
        axes.plot([low, top / rate], [low * rate, top], color=DARK, lw=1.4, ls="--" if "cache" in name else "-", zorder=2)


def _points(axes: Axes, dots: Sequence[Dot]) -> None:
    """Measurements by phase, estimates, and a thin line between the two of an operator."""
    for d in dots:  # the largest first, so that none hides behind another
        marker, color = KINDS[d.row.phase]
        axes.scatter([d.x], [d.y], s=d.area, marker=marker, color=color, alpha=0.7, edgecolors="white", lw=0.7, zorder=4)
    axes.vlines([d.x for d in dots], [d.y for d in dots], [d.estimate for d in dots], color=ORANGE, lw=0.7, zorder=3)
    axes.scatter([d.x for d in dots], [d.estimate for d in dots], s=16, color=ORANGE, marker="x", linewidths=1, zorder=4.5)


def _area(share: float) -> float:
    return 20 + 700 * share


def _size_legend(axes: Axes, dots: Sequence[Dot]) -> None:
    """What the marks are, and how large some shares of the time are drawn; under the axes."""
    from matplotlib.lines import Line2D

    def mark(marker: str, color: str, area: float, words: str) -> Any:
        return Line2D([], [], ls="", marker=marker, color=color, ms=math.sqrt(area), mec="white" if marker != "x" else color,
                      mew=0.7, label=words)  # fmt: skip

    phases = [p for p in KINDS if any(d.row.phase == p for d in dots)]
    marks = [mark(*KINDS[p], 60, "measured: " * (p == phases[0]) + p) for p in phases] + [mark("x", ORANGE, 25, "estimate")]
    largest = max(d.share for d in dots)
    shares = [s for s in (0.01, 0.05, 0.2, 0.5) if s <= largest * 1.5]
    marks += [mark("o", GREY, _area(s), "share of the time: " * (s == shares[0]) + f"{s:.0%}") for s in shares]
    _under(axes, -40, marks)


def _under(axes: Axes, points: float, marks: Sequence[Any]) -> None:
    """A legend in one line, so many points under the axes."""
    from matplotlib.transforms import ScaledTranslation

    down = axes.transAxes + ScaledTranslation(0, points / 72, axes.figure.dpi_scale_trans)
    axes.legend(handles=marks, loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=down, ncols=len(marks), fontsize=8,
                frameon=False, borderaxespad=0, handlelength=2.6, handletextpad=0.4, columnspacing=1.4)  # fmt: skip


def _roofline_words(m: Measurement, dots: Sequence[Dot]) -> list[str]:
    """What the picture shows, and what it does not."""
    named = sum(d.share >= LABELLED for d in dots[:LABELS])
    first = f"Area of a mark and % at a name: share of the step's {seconds(m.measured)}. "
    first += f"Named: the {named} operators with the most time. " if len(dots) > named else ""
    first += "Orange lines lead to estimates."
    idle = [r for r in m.rows if not _works(r)]
    small = [r for r in m.rows if _works(r) and not any(d.row is r for d in dots)]
    share: Callable[[Sequence[Row]], str] = lambda rows: f"{sum(r.measured or 0 for r in rows) / m.measured:.1%} of the time"
    left = []
    if idle:
        some = dict.fromkeys(r.op for r in sorted(idle, key=lambda r: -(r.measured or 0.0)))
        names = ", ".join([*list(some)[:NAMED], *(["..."] if len(some) > NAMED else [])])
        none = "no FLOPs" if not any(r.flops for r in idle) else f"no FLOPs, or less than {LEAST:g} per byte"
        left.append(f"{_count(idle)} that {'does' if len(idle) == 1 else 'do'} {none} ({names}), {share(idle)}")
    if small:
        left.append(f"{_count(small)} below {DRAWN:.1%} each, {share(small)}")
    if m.between >= DRAWN * m.measured:
        left.append(f"what lies between operators (Python, autograd), {m.between / m.measured:.1%} of the time")
    return [first, *([f"Not drawn: {'; '.join(left)}."] if left else []), *_verdict([m])]


def _count(rows: Sequence[Row]) -> str:
    return f"{len(rows)} operator{'s' * (len(rows) != 1)}"


def _name(axes: Axes, dots: Sequence[Dot], peaks: dict[str, float], slopes: dict[str, float]) -> None:
    """The names of slopes, then those of operators, once it is known where all of the rest lies."""
    _settle(axes)
    pixel, top = pixels(axes), max(peaks.values())
    taken = [around(pixel(d.x, d.y), math.sqrt(d.area) / 2 * DPI / 72 + 1) for d in dots]
    taken += [around(pixel(d.x, d.estimate), 6) for d in dots]
    roofs = [t.get_window_extent().padded(4).extents for t in axes.texts]
    taken += roofs
    lines = [b for d in dots for b in _boxes(axes, (d.x, d.y), (d.x, d.estimate))]
    high = axes.get_xlim()[1]
    for peak in peaks.values():
        lines += _boxes(axes, (peak / max(slopes.values()), peak), (high, peak))
    for name, rate in slopes.items():
        low = max(axes.get_xlim()[0], axes.get_ylim()[0] / rate)
        lines += _boxes(axes, (low, low * rate), (top / rate, top))
        roofs += _name_slope(axes, (low, low * rate), (top / rate, top), f"{name} {si(rate, 'B/s')}", taken)
    labels = [(d.x, d.y, d.label, KINDS[d.row.phase][1]) for d in dots[:LABELS] if d.share >= LABELLED]
    place(axes, labels, [*taken, *roofs], lines, roofs)


def _boxes(axes: Axes, a: tuple[float, float], b: tuple[float, float]) -> list[Box]:
    """What a line between two points of the data covers."""
    pixel = pixels(axes)
    return [around(p, 2) for p in along(pixel(*a), pixel(*b))]


def _name_slope(axes: Axes, a: tuple[float, float], b: tuple[float, float], words: str, taken: Sequence[Box]) -> list[Box]:
    """A name along the upper side of a slope, at its first place that is free of marks; returns what it covers."""
    (x0, y0), (x1, y1) = pixels(axes)(*a), pixels(axes)(*b)
    length, angle = math.dist((x0, y0), (x1, y1)), math.atan2(y1 - y0, x1 - x0)
    text = axes.text(*a, words, fontsize=8, color=DARK, zorder=5)
    size = text.get_window_extent()
    up = size.height / 2 + 4  # the middle of the letters over the line
    strips = []
    for start in range(14, max(int(length - size.width - 14), 15), 10):
        u = [(x0 + s * math.cos(angle) - up * math.sin(angle), y0 + s * math.sin(angle) + up * math.cos(angle))
             for s in (start, start + size.width)]  # fmt: skip
        strips.append([around(p, size.height / 2) for p in along(u[0], u[1])])
    best = next((s for s in strips if all(free(box, taken) for box in s)), strips[0])
    text.set(position=axes.transData.inverted().transform(((best[0][0] + best[0][2]) / 2, (best[0][1] + best[0][3]) / 2)),
             rotation=math.degrees(angle), rotation_mode="anchor", va="center_baseline")  # fmt: skip
    return best


# ----------------------------------------------------------------------------------------------------------------- sweep


def sweep_figure(found: Sequence[Measurement], swept: str) -> Figure:
    """Times over a size, and what binds where."""
    from matplotlib.ticker import FixedLocator

    m, xs = found[0], [x.sizes[swept] for x in found]
    figure, axes = _canvas(_title(f"{subject_title(m.name, m.phase)}, measured over {swept}", m, swept))
    lines: tuple[tuple[str, list[float], str, str], ...] = (
        ("measured", [x.measured for x in found], "o-", BLUE),
        ("estimate", [x.estimate for x in found], "x--", ORANGE),
        ("overhead in the estimate", [overhead(x) for x in found], "-.", DARK),
        ("bound (roofline)", [x.bound for x in found], ":", DARK),
    )
    marks = [axes.plot(xs, ys, style, color=color, label=words, lw=1.8, ms=7)[0]
             for words, ys, style, color in lines if min(ys) > 0]  # fmt: skip
    low, high = _ends([y for _, ys, *_ in lines for y in ys if y > 0])
    side = (max(xs) / min(xs)) ** 0.03 if len(set(xs)) > 1 else 1.5
    axes.set(xscale="log", yscale="log", xlim=(min(xs) / side, max(xs) * side), ylim=(low, high))
    axes.set(xlabel=f"size {swept}", ylabel="time of a step")
    axes.yaxis.set_major_locator(FixedLocator(_ticks(low, high)))
    axes.yaxis.set_major_formatter(lambda v, _: seconds(v))
    axes.minorticks_off()
    _under(axes, -34, marks)
    _caption(axes, -54, _sweep_words(found))
    _settle(axes)
    _sweep_ticks(axes, xs)
    _regions(axes, found, xs)
    return figure


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Round limits, with room above for the names of the regions."""
    low, high = min(values), max(values) * 1.6
    steps = [m * 10.0**e for e in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1) for m in (1, 2, 5)]
    return max(s for s in steps if s <= low * 0.95), min(s for s in steps if s >= high)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every decade; over many decades 1 alone."""
    many = math.log10(high / low) > 5
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [m * 10.0**e for e in exponents for m in ((1,) if many else (1, 2, 5))]
    return [s for s in steps if low * 0.999 <= s <= high * 1.001]


def _sweep_ticks(axes: Axes, xs: Sequence[int]) -> None:
    """The measured sizes, those that lie too close to the one before without a number."""
    pixel, shown, end = pixels(axes), list[int](), -math.inf
    for x in sorted(set(xs)):
        at = pixel(x, 1.0)[0]
        half = 7 * len(str(x)) + 8  # what a number of so many digits takes to each side
        if at - half >= end:
            shown.append(x)
            end = at + half
    axes.set_xticks(shown, [str(x) for x in shown])
    axes.set_xticks([x for x in set(xs) if x not in shown], minor=True)
    axes.xaxis.set_minor_formatter(lambda v, _: "")


def _regions(axes: Axes, found: Sequence[Measurement], xs: Sequence[int]) -> None:
    """What binds, as shades with names; neighbours meet half way between their points."""
    pixel, (left, right), top = pixels(axes), axes.get_xlim(), axes.get_ylim()[1]
    points = sorted(zip(xs, map(binds, found), strict=True))
    runs = [(name, [x for x, _ in group]) for name, group in groupby(points, key=lambda p: p[1])]
    starts = [left, *(math.sqrt(a[1][-1] * b[1][0]) for a, b in pairwise(runs)), right]
    for (name, _), low, high in zip(runs, starts, starts[1:], strict=False):
        axes.axvspan(low, high, color=REGIONS[name], zorder=0, lw=0)
        if low > left:
            axes.axvline(low, color=GREY, lw=0.8, zorder=1)
        text = axes.annotate(f"{name} binds", (math.sqrt(low * high), top), (0, -6), textcoords="offset points", fontsize=8.5,
                             ha="center", va="top", color=DARK)  # fmt: skip
        if text.get_window_extent().width > pixel(high, top)[0] - pixel(low, top)[0] - 6:
            text.set_rotation(90)


def _sweep_words(found: Sequence[Measurement]) -> list[str]:
    """What the lines and shades are."""
    words = (
        "Bound: every operator at its roofline. Shades: what takes most of the estimate, overhead where it is more than half."
    )
    return [words, *_verdict(found)]


def _verdict(found: Sequence[Measurement]) -> list[str]:
    """A picture is shown without its table: that the numbers mean little is said here, too."""
    return [] if all(m.summary.verdict for m in found) else [f"No verdict: {no_verdict(found)}."]


# ------------------------------------------------------------------------------------------------------------------ both


def _canvas(title: str) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained")
    axes: Any = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=10, parse_math=False)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _title(what: str, m: Measurement, swept: str) -> str:
    """The model and its phase, its sizes, the machine."""
    sizes = ", ".join(f"{n} = {v}" for n, v in m.sizes.items() if n != swept)
    machine = f"chip {m.chip.id}: {m.chip.name}"
    return "\n".join(line for words in (what, f"at {sizes}" if sizes else "", machine) for line in textwrap.wrap(words, 110))


def _caption(axes: Axes, points: float, words: Sequence[str]) -> None:
    """Sentences, so many points under the axes."""
    text = "\n".join(line for sentence in words for line in textwrap.wrap(sentence, LETTERS))
    axes.annotate(text, (0, 0), (0, points), "axes fraction", "offset points", fontsize=8, color=DARK, va="top",
                  linespacing=1.4, parse_math=False, annotation_clip=False)  # fmt: skip


def _settle(axes: Axes) -> None:
    """Draw once and keep the layout, so that a place in pixels is final."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure: Any = axes.get_figure()
    FigureCanvasAgg(figure).draw()
    figure.set_layout_engine("none")
