"""The roofline: what is drawn is where it must be, labels do not overlap, and the same report gives the same file."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from report_samples import SIZES, sample

from costir import plot
from costir.build import build
from costir.errors import CostirError
from costir.hardware import load_chip

ROUND = str(Path(__file__).parent / "golden" / "round.toml")
B, T, D, F = (SIZES[n] for n in "BTDF")


@pytest.fixture(scope="module")
def report():
    return build(sample(), [load_chip(ROUND), load_chip("tpu_v5e@book")])


def texts(figure):
    return [t for t in figure.axes[0].texts if t.get_text()]


def test_points_are_at_intensity_and_attainable_rate(report):
    """up: intensity BTDF/(BTD + DF + BTF), below the ridge of 100, so the rate is intensity times 1e12 B/s."""
    intensity = B * T * D * F / (B * T * D + D * F + B * T * F)
    axes = plot.figure(build(sample(), [load_chip(ROUND)])).axes[0]
    points = [tuple(c.get_offsets()[0]) for c in axes.collections]
    expected = (intensity, min(intensity * 1e12, 1e14))
    assert any(p == pytest.approx(expected) for p in points)
    assert all(y <= min(x * 1e12, 1e14) * 1.000001 for x, y in points)


def test_axes_are_logarithmic_with_units(report):
    axes = plot.figure(report).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert "FLOP/byte" in axes.get_xlabel()
    assert "FLOP/s" in axes.get_ylabel()
    assert "toy.py" in axes.get_title(loc="left")


def test_ridges_are_marked_and_named(report):
    figure = plot.figure(report)
    marks = [tuple(ln.get_xydata()[0]) for ln in figure.axes[0].lines if ln.get_marker() == "D"]
    assert marks == [pytest.approx((100, 1e14)), pytest.approx((1.97e14 / 8.2e11, 1.97e14))]
    words = " ".join(t.get_text() for t in texts(figure))
    assert "ridge 100 FLOP/B" in words
    assert "ridge 240.2 FLOP/B" in words


def test_labels_name_the_operators_and_do_not_overlap(report):
    figure = plot.figure(report)
    FigureCanvasAgg(figure).draw()
    found = texts(figure)
    words = " ".join(t.get_text() for t in found)
    assert "up mm, down mm" in words
    assert "head mm" in words
    boxes = [t.get_window_extent() for t in found]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    frame = figure.axes[0].get_window_extent()
    assert all(frame.x0 <= b.x0 and b.x1 <= frame.x1 + 1 and frame.y0 <= b.y0 and b.y1 <= frame.y1 for b in boxes)


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_same_report_gives_the_same_file(report, kind):
    first, second = plot.picture(report, kind), plot.picture(report, kind)
    assert first == second
    assert first[:5] == {"svg": b"<?xml", "png": b"\x89PNG\r"}[kind]
    assert b"costir " in first[:4096]
    assert b"dc:date" not in first


def test_no_chip_no_roofline():
    with pytest.raises(CostirError, match=r"needs a chip.*--chip h100"):
        plot.figure(build(sample()))


def test_only_svg_and_png(report):
    with pytest.raises(CostirError, match=r"\.svg or \.png"):
        plot.picture(report, "pdf")
