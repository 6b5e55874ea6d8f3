"""Pictures of measurements: names are legible; what is drawn, what is not, and in which units is said. Nothing is run."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from calibrations import made_up
from matplotlib.backends.backend_agg import FigureCanvasAgg

from costir import cli, measure_plot
from costir.errors import CostirError
from costir.hardware import load_chip
from costir.measuring import calibrate as calibrating
from costir.measuring.estimate import Estimate
from costir.measuring.measure import Measurement, Row, Summary
from costir.measuring.pace import Pace

SUMMARY = Summary(0.05, 0.1, 0.5, 0.9, 0, 0.02, 0.1, 0.0)
PEAK, MEMORY, CACHE = 1e11, 2e10, 1e11  # of the made-up chip: FLOP/s and bytes per second


@pytest.fixture(scope="module")
def chip(tmp_path_factory):
    path = tmp_path_factory.mktemp("chip") / "made-up.toml"
    rates = {"fp32": PEAK, "bf16": 8 * PEAK}
    path.write_text(calibrating._chip_file(made_up(), rates, {8192: CACHE, 2**21: 5e10, 2**29: MEMORY}))
    return load_chip(str(path))


def row(phase, path, op, seconds, intensity, speed=0.9, kernel=1.0):
    """An operator that took so long at a share of the roof of its intensity; `kernel` is the part of the estimate with work."""
    rate = min(PEAK, intensity * MEMORY)
    flops = seconds * rate * speed
    parts = Estimate(kernel=1.1 * seconds, call=1.1 * seconds * (1 - kernel))
    binds = "compute" if intensity * MEMORY >= PEAK else "memory"
    nbytes = flops / intensity if intensity else seconds * MEMORY
    return Row(phase, path, op, 4, flops / rate if rate else 0.0, 1.1 * seconds, seconds, binds, parts, False, flops, nbytes,
               False, 0.0)  # fmt: skip


def measurement(chip, rows, whole, **other):
    given = {"name": "toy", "sizes": {"B": 4, "T": 64, "D": 128}, "phase": "train", "summary": SUMMARY, "pace": Pace(), **other}
    between = max(0.0, whole - sum(r.measured or 0 for r in rows))
    return Measurement(chip=chip, rows=tuple(rows), bound=sum(r.bound for r in rows), estimate=1.05 * whole, measured=whole,
                       between=between, around=between, modules=9, operators=100, **given)  # fmt: skip


@pytest.fixture(scope="module")
def crowded(chip):
    """A training step: a dozen products at almost one place, an optimizer at another, copies, views and a tiny operator."""
    products = [
        row("backward", f"blocks.*.layer{i}", "addmm", 1e-3 + 1e-5 * i, 35 + 0.2 * i, 0.95 - 0.005 * i) for i in range(8)
    ]
    products += [row("forward", f"blocks.*.layer{i}", "addmm", 1e-3 - 1e-5 * i, 35 + 0.2 * i, 0.92) for i in range(4)]
    attention = row("backward", "blocks.*.attn", "_scaled_dot_product_flash_attention_for_cpu_backward", 2e-3, 30, 0.9)
    steps = [row("optimizer", "optimizer", op, 5e-4, 0.12 + 0.01 * i, 0.5) for i, op in enumerate(("mul_", "lerp_", "sqrt"))]
    idle = [row("forward", "wte", "embedding", 3e-4, 0), row("backward", "", "cat", 2e-4, 0)]
    views = [replace(row("forward", f"v{i}", "view", 1e-4, 0), measured=None) for i in range(3)]
    tiny = row("backward", "", "sum", 1e-6, 0.2)
    return measurement(chip, [*products, attention, *steps, *idle, *views, tiny], 20e-3)


def drawn(figure):
    FigureCanvasAgg(figure).draw()
    return figure.axes[0]


def named(axes):
    return [t for t in axes.texts if re.search(r" [0-9]+%$", t.get_text())]


def caption(axes):
    return " ".join(" ".join(t.get_text().split()) for t in axes.texts if "\n" in t.get_text() or t.get_text().endswith("."))


# -------------------------------------------------------------------------------------------------------------- roofline


def test_the_largest_operators_have_names_that_cover_nothing(crowded):
    axes = drawn(measure_plot.roofline_figure(crowded))
    found, frame = named(axes), axes.get_window_extent()
    assert len(found) == measure_plot.LABELS
    assert found[0].get_text() == "attn sdpa_backward 10%"
    roofs = [t for t in axes.texts if t.get_text().startswith(("fp32", "main memory", "nearest cache"))]
    level = [t for t in roofs if not t.get_rotation()]
    boxes = [t.get_window_extent() for t in (*found, *level)]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(frame.x0 <= b.x0 and b.x1 <= frame.x1 and frame.y0 <= b.y0 and b.y1 <= frame.y1 for b in boxes)
    assert sorted(t.get_text() for t in roofs) == ["fp32 peak 100 GFLOP/s", "main memory 20 GB/s", "nearest cache 100 GB/s"]
    assert all(frame.contains(*t.get_window_extent().p0) and frame.contains(*t.get_window_extent().p1) for t in roofs)


def test_names_cover_no_mark(crowded):
    axes = drawn(measure_plot.roofline_figure(crowded))
    spots = [axes.transData.transform(p) for c in axes.collections if hasattr(c, "get_sizes") for p in c.get_offsets()]
    assert len(spots) > 20
    assert not any(t.get_window_extent().contains(*p) for t in named(axes) for p in spots)


def test_what_is_not_drawn_is_said(crowded):
    words = caption(drawn(measure_plot.roofline_figure(crowded)))
    assert "Not drawn: 5 operators that do no FLOPs (embedding, cat, view), 2.5% of the time" in words
    assert "1 operator below 0.2% each, 0.0% of the time" in words
    left = crowded.between / crowded.measured
    assert f"between operators (Python, autograd), {left:.1%} of the time" in words
    assert "share of the step's 20 ms" in words
    assert "No verdict" not in words


def test_hardly_any_flops_do_not_stretch_the_axes(crowded):
    stray = row("backward", "", "nll_loss_backward", 1e-3, 1e-4)
    axes = drawn(measure_plot.roofline_figure(replace(crowded, rows=(*crowded.rows, stray))))
    assert axes.get_xlim()[0] > 1e-3
    assert "6 operators that do no FLOPs, or less than 0.01 per byte (nll_loss_backward, embedding, cat, ...)" in caption(axes)


def test_a_picture_says_what_and_where(crowded):
    axes = drawn(measure_plot.roofline_figure(crowded))
    title = axes.get_title(loc="left")
    for words in ("toy: training step", "B = 4, T = 64, D = 128", f"chip made-up: {crowded.chip.name}"):
        assert words in title
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("arithmetic intensity (FLOP/byte)", "rate (FLOP/s)")
    legend = [t.get_text() for t in axes.get_legend().get_texts()]
    assert legend == ["measured: forward", "backward", "optimizer", "estimate", "share of the time: 1%", "5%"]
    marks = {tuple(map(tuple, c.get_paths()[0].vertices)) for c in axes.collections if hasattr(c, "get_sizes")}
    assert len(marks) == 4  # a shape for each, for paper without colours


def test_the_roof_is_that_of_the_type(chip):
    """Products that are bound at the rate of bf16 are drawn under it."""
    product = replace(row("forward", "up", "mm", 1e-3, 400), bound=0.9e-3 / 8)
    axes = drawn(measure_plot.roofline_figure(measurement(chip, [product], 1e-3, phase="forward")))
    words = [t.get_text() for t in axes.texts]
    assert "bf16 peak 800 GFLOP/s" in words
    assert not any("fp32" in w for w in words)
    assert "Not drawn" not in caption(axes)


def test_a_busy_machine_is_said(crowded):
    busy = replace(crowded, summary=replace(SUMMARY, loaded=0.8))
    assert "No verdict: the machine was not as free" in caption(drawn(measure_plot.roofline_figure(busy)))


def test_nothing_to_draw(chip):
    with pytest.raises(CostirError, match="no operator with FLOPs"):
        measure_plot.roofline_figure(measurement(chip, [row("forward", "wte", "embedding", 1e-3, 0)], 1e-3))


def test_a_roofline_of_a_sweep_is_refused_before_anything_runs(capsys):
    asked = ["measure", "no.py", "--chip", "h100", "--sweep", "B=1,2", "--plot", "roofline"]
    assert cli.main(asked) == 2
    assert "--plot sweep" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------------------- sweep


def swept(chip, sizes, overhead=2e-4, slope=2e-5):
    """Times that are overhead first and grow with the size then."""
    found = []
    for b in sizes:
        whole = overhead + slope * b
        rows = [row("forward", "up", "mm", whole, 40, kernel=slope * b / whole)]
        found.append(measurement(chip, rows, 1.05 * 1.1 * whole, sizes={"B": b, "D": 8}, phase="forward"))
    return [replace(m, estimate=m.rows[0].estimate, rows=m.rows) for m in found]


def test_a_sweep_has_ticks_with_units(chip):
    axes = drawn(measure_plot.sweep_figure(swept(chip, [2**i for i in range(7)]), "B"))
    ticks = [t.get_text() for t in axes.get_yticklabels()]
    assert {"200 us", "500 us", "1 ms", "2 ms"} <= set(ticks)
    low, high = axes.get_ylim()
    assert all(low <= y <= high for line in axes.lines[:4] for y in line.get_ydata())
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "2", "4", "8", "16", "32", "64"]
    assert "B = " not in axes.get_title(loc="left")


@pytest.mark.parametrize(("low", "high"), [(3.1e-3, 4.6e-3), (1e-6, 1.0), (9.9e-4, 1.01e-3)])
def test_any_range_has_ticks(low, high):
    ends = measure_plot._ends([low, high])
    ticks = measure_plot._ticks(*ends)
    assert 2 <= len(ticks) <= 20
    assert ends[0] <= low < high <= ends[1]


def test_lines_differ_without_colours(chip):
    axes = drawn(measure_plot.sweep_figure(swept(chip, [1, 4, 16]), "B"))
    lines = {line.get_label(): (line.get_marker(), line.get_linestyle()) for line in axes.lines[:4]}
    assert list(lines) == ["measured", "estimate", "overhead in the estimate", "bound (roofline)"]
    assert len(set(lines.values())) == 4


def test_what_binds_is_shaded_and_named(chip):
    """The overhead of 200 us is as much as the work at B = 10."""
    axes = drawn(measure_plot.sweep_figure(swept(chip, [1, 4, 9, 11, 16, 64]), "B"))
    assert [t.get_text() for t in axes.texts if "binds" in t.get_text()] == ["overhead binds", "compute binds"]
    edge = next(line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2)
    assert edge == pytest.approx(99**0.5)
    frame = axes.get_window_extent()
    assert all(frame.contains(*t.get_window_extent().p0) for t in axes.texts if "binds" in t.get_text())


def test_many_sizes_have_numbers_where_there_is_room(chip):
    axes = drawn(measure_plot.sweep_figure(swept(chip, range(1, 129)), "B"))
    boxes = [t.get_window_extent() for t in axes.get_xticklabels() if t.get_text()]
    assert len(boxes) > 8
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert not any(t.get_text() for t in axes.get_xticklabels(minor=True))


def test_one_size_is_a_sweep_too(chip):
    axes = drawn(measure_plot.sweep_figure(swept(chip, [4]), "B"))
    assert [t.get_text() for t in axes.get_xticklabels()] == ["4"]


# ------------------------------------------------------------------------------------------------------------------ both


@pytest.mark.parametrize("suffix", ["svg", "png", "PNG"])
@pytest.mark.parametrize("kind", ["roofline", "sweep"])
def test_a_measurement_gives_the_same_file_twice(chip, crowded, kind, suffix):
    found = [crowded] if kind == "roofline" else swept(chip, [1, 2, 4])
    first, second = (measure_plot.draw(found, kind, "B", suffix) for _ in range(2))
    assert first == second
    assert first[:5] == {"svg": b"<?xml", "png": b"\x89PNG\r"}[suffix.lower()]
