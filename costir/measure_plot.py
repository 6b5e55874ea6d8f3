"""Pictures of measurements: operators under the roofline of this machine; a sweep's bound, estimate and measurement."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import costir
from costir.errors import CostirError
from costir.measuring.measure import Measurement
from costir.units import si

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREY = "#1f5fa8", "#c2521c", "#8a8a8a"
LABELS = 8
DPI = 150


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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    if kind == "sweep":
        _sweep(axes, found, swept)
    else:
        _roofline(axes, found[0])
    axes.grid(True, which="major", color="#e5e5e5")
    axes.set_axisbelow(True)
    out = io.BytesIO()
    figure.savefig(
        out,
        format=suffix,
        dpi=DPI,
        metadata={"Title": f"costir {found[0].name}"} if suffix == "svg" else {"Software": f"costir {costir.__version__}"},
    )
    return out.getvalue()


def _roofline(axes: Axes, m: Measurement) -> None:
    rows = [r for r in m.rows if r.flops and r.nbytes and r.measured]
    if not rows:
        raise CostirError(
            "no operator with FLOPs was timed, so there is no roofline to draw", "measure one point, without --sweep"
        )
    peak, slow = float(m.chip.matmul_rate("float32")), float(m.chip.memory_bandwidth)
    numbers = m.chip.calibration.numbers if m.chip.calibration else {}
    fast = max([v for k, v in numbers.items() if k.startswith("bandwidth_")], default=slow)
    xs = [r.flops / r.nbytes for r in rows]
    low, high = min(*xs, peak / fast) / 3, max(*xs, peak / slow) * 3
    for rate, words in ((fast, "cache"), (slow, "memory")):
        axes.plot([low, peak / rate, high], [low * rate, peak, peak], color=GREY, lw=1.4, ls="-" if rate == slow else "--")
        axes.annotate(f"{words} {si(rate, 'B/s')}", (low * 1.1, low * 1.1 * rate), fontsize=8, color=GREY, rotation=34,
                      rotation_mode="anchor", va="bottom")  # fmt: skip
    axes.annotate(f"fp32 {si(peak, 'FLOP/s')}", (high, peak), fontsize=8, color=GREY, ha="right", va="bottom")
    share = [(r.measured or 0.0) / m.measured for r in rows]
    rates = [r.flops / (r.measured or 1.0) for r in rows]
    axes.scatter(xs, rates, s=[20 + 600 * s for s in share], color=BLUE, alpha=0.6, edgecolors="white", label="measured")
    axes.scatter(xs, [r.flops / (r.estimate or 1.0) for r in rows], s=14, color=ORANGE, marker="x", label="estimate")
    for k in [i for i in sorted(range(len(rows)), key=lambda i: -share[i])[:LABELS] if share[i] >= 0.01]:
        name = f"{rows[k].path.rpartition('.')[2]} {rows[k].op}".strip()
        axes.annotate(f"{name} {share[k]:.0%}", (xs[k], rates[k]), fontsize=7.5, xytext=(6, -9), textcoords="offset points")
    axes.set(xscale="log", yscale="log", xlabel="intensity (FLOP/byte)", ylabel="FLOP/s", xlim=(low, high),
             title=f"{m.name}: measured operators under this machine's roofline")  # fmt: skip
    axes.legend(loc="lower right", fontsize=8)


def _sweep(axes: Axes, found: Sequence[Measurement], swept: str) -> None:
    xs = [m.sizes[swept] for m in found]
    axes.plot(xs, [m.measured * 1e3 for m in found], "o-", color=BLUE, label="measured")
    axes.plot(xs, [m.estimate * 1e3 for m in found], "x--", color=ORANGE, label="estimate")
    axes.plot(xs, [m.bound * 1e3 for m in found], ":", color=GREY, label="bound")
    axes.set(
        xscale="log", yscale="log", xlabel=swept, ylabel="time of a step (ms)", title=f"{found[0].name}: time over {swept}"
    )
    axes.set_xticks(xs, [str(x) for x in xs])
    axes.minorticks_off()
    axes.legend(fontsize=8)
