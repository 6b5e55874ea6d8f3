"""The memory of a run as a picture: parts stacked, operator by operator. matplotlib is imported late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costir.document import title
from costir.errors import CostirError
from costir.plot import as_file
from costir.report import Memory, Report
from costir.units import si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    "parameters": "#1f5fa8", "optimizer state": "#6d4fa3", "inputs": "#3f9aa6", "gradients": "#c2521c",
    "activations": "#2a7f3f", "temporaries": "#d9b23c", "cache": "#7a5aa8", "buckets": "#a88f5a", "workspaces": "#c9c9c9",
}  # fmt: skip
DPI = 150


def figure(r: Report) -> Figure:
    """The curve of a report.

    Raises:
        CostirError: where the report has none.
    """
    from matplotlib.figure import Figure

    m = r.memory
    if m is None or not m.curve:
        raise CostirError("there is no curve of memory to draw", "add --plot memory")
    fig = Figure(figsize=(9.2, 4.8), dpi=DPI, layout="constrained")
    axes = fig.add_subplot()
    names = [n for n in COLORS if any(parts.get(n) for *_, parts in m.curve)]
    rows = [[parts.get(n, 0) for *_, parts in m.curve] for n in names]
    axes.stackplot(range(len(m.curve)), rows, labels=names, colors=[COLORS[n] for n in names], step="mid", linewidth=0)
    axes.set(xlim=(0, max(len(m.curve) - 1, 1)), xlabel="operators of the run, in order")
    axes.yaxis.set_major_formatter(lambda v, _: si(v, "B"))
    axes.set_title(_title(r), loc="left", fontsize=10)
    axes.grid(True, axis="y", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    _mark(axes, m)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, reverse=True)
    return fig


def _mark(axes: Axes, m: Memory) -> None:
    """Where phases begin, and the peak."""
    sums = [sum(parts.values()) for *_, parts in m.curve]
    top, phases = max(sums), [phase for phase, *_ in m.curve]
    axes.set_ylim(0, top * 1.2)
    starts = [i for i, phase in enumerate(phases) if i == 0 or phases[i - 1] != phase]
    for k, i in enumerate(starts):
        if k == 0 or phases[i] != "forward" or phases[i - 1] == "backward":
            axes.axvline(i, color="#666666", linewidth=0.7, linestyle=":")
            axes.annotate(phases[i], (i, top * 1.14), (3, 0), textcoords="offset points", fontsize=8, color="#444444")
    at = sums.index(top)
    side = "left" if at * 2 < len(sums) else "right"
    axes.plot([at], [top], marker="D", markersize=5, color="black")
    axes.annotate(f"peak {si(top, 'B')}", (at, top), (0, 5), textcoords="offset points", fontsize=8, ha=side)


def _title(r: Report) -> str:
    sizes = ", ".join(f"{n}={v}" for n, v in {**r.sizes, **r.fixed}.items())
    return f"Memory of {title(r)}\n{sizes}"


def picture(r: Report, kind: str) -> bytes:
    """The figure as a file; see `plot.as_file`."""
    return as_file(lambda: figure(r), f"memory of {r.subject}", kind)
