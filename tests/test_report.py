"""Reports: the rows are all there, once, with the numbers that the sample's costs give by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import sympy as sp
from report_samples import SIZES, sample, with_unknown

from costir.build import build, default_unknown
from costir.document import change
from costir.errors import ChipError, SizeError
from costir.grouping import combined, groups, sum_of, time_of
from costir.hardware import load_chip
from costir.ir import Constraint, Threshold
from costir.report import QUANTITIES, base_of
from costir.symbolic import size

ROUND = str(Path(__file__).parent / "golden" / "round.toml")
B, T, D, F, L = (SIZES[n] for n in "BTDFL")


def row(report, path):
    (found,) = [r for r in report.rows if f"{r.path} {r.name}" == path]
    return found


def test_numbers_of_a_row_by_hand():
    up = row(build(sample()), "layers.*.mlp.up mm")
    assert up.count.number == 3
    assert up.quantities["flops"].number == 3 * 2 * 4 * 32 * 1024 * 4096
    assert up.quantities["bytes"].number == 3 * 2 * (4 * 32 * 1024 + 1024 * 4096 + 4 * 32 * 4096)
    assert up.quantities["intensity"].number == pytest.approx(
        4 * 32 * 1024 * 4096 / (4 * 32 * 1024 + 1024 * 4096 + 4 * 32 * 4096)
    )
    assert (up.source, up.op, up.status) == ("model.py:12", "aten.mm.default", "costed")


@pytest.mark.parametrize("name", [q for q in QUANTITIES if q != "intensity"])
def test_rows_add_up_to_the_total(name):
    report = build(sample())
    assert sum_of(report.rows, name) == report.totals[name].number == sum(r.quantities[name].number for r in report.rows)


def test_free_calls_are_no_rows_but_are_counted():
    report = build(sample())
    assert report.free == 1
    assert all(r.status != "free" for r in report.rows)


def test_equal_operators_are_one_row():
    again = [n for n in sample().costed.nodes if n.call.op == "aten.add.Tensor"]
    once, twice = build(sample()), build(sample(again))
    assert len(twice.rows) == len(once.rows)
    assert row(twice, "layers.* add").count.number == 6
    assert twice.totals["flops"].number - once.totals["flops"].number == 3 * B * T * D


def test_times_on_a_chip_by_hand():
    """Rates are 1e14 FLOP/s and 1e12 B/s, vector 1e13."""
    report = build(sample(), [load_chip(ROUND)])
    up = row(report, "layers.*.mlp.up mm").times[0]
    assert up.compute == pytest.approx(3 * 2 * B * T * D * F / 1e14)
    assert up.memory == pytest.approx(3 * 2 * (B * T * D + D * F + B * T * F) / 1e12)
    assert up.lower == max(up.compute, up.memory)
    assert up.upper == pytest.approx(up.compute + up.memory)
    assert up.binds == "memory" if up.memory > up.compute else "compute"
    gelu = row(report, "layers.*.mlp gelu").times[0]
    assert gelu.vector == pytest.approx(3 * 5 * B * T * F / 1e13)
    assert report.chips[0].times.lower == pytest.approx(time_of(report.rows, 0))
    assert report.chips[0].peaks == {"bf16": 1e14}
    assert report.chips[0].vector == 1e13


def test_threshold_of_a_row_is_where_its_times_meet():
    report = build(sample(), [load_chip(ROUND)])
    threshold = row(report, "layers.*.mlp.up mm").thresholds[0]
    n = threshold.at_base
    assert threshold.unknown == "tokens"
    assert 2 * n * D * F / 1e14 == pytest.approx(2 * (n * D + D * F + n * F) / 1e12)


def test_unknown_operators_make_the_report_incomplete_and_have_no_numbers():
    report = build(with_unknown(), [load_chip(ROUND)])
    assert build(sample()).complete
    assert not report.complete
    scan, mix = row(report, "layers.*.mixer scan"), row(report, "layers.*.mixer mix")
    assert scan.quantities["flops"].number is None
    assert scan.quantities["bytes"].number is None
    assert scan.times[0].lower is None
    assert mix.quantities["matmul_flops"].number == 3 * 2 * B * T * D
    assert mix.quantities["intensity"].number is None
    assert report.chips[0].times.upper is None


def test_groups_follow_the_modules_in_order_of_use():
    found = groups(build(sample()).rows)
    assert [(g.path, [r.name for r in g.rows]) for g in found] == [
        ("", ["embedding"]),
        ("layers.*", ["native_layer_norm", "add"]),
        ("layers.*.mlp", ["mm", "gelu", "mm"]),
        ("", ["relu", "neg", "mm"]),
    ]
    assert [None if g.repeat is None else str(g.repeat.expr) for g in found] == [None, "L", "L", None]


def test_small_rows_are_summed_up_never_dropped():
    report = build(with_unknown(), [load_chip(ROUND)])
    found = groups(report.rows, brief=True)
    assert [r.name for g in found for r in g.small] == ["relu", "neg"]
    assert sorted(id(r) for g in found for r in (*g.rows, *g.small)) == sorted(id(r) for r in report.rows)
    assert "scan" in [r.name for g in found for r in g.rows]


def test_the_size_that_is_solved_for():
    assert default_unknown(sample()) == "tokens"
    assert base_of("tokens", SIZES) == base_of("B*T", SIZES) == 128
    assert build(sample(), [load_chip(ROUND)], unknown="D").chips[0].threshold.unknown == "D"
    with pytest.raises(SizeError, match="Q"):
        build(sample(), [load_chip(ROUND)], unknown="Q")


def test_a_sweep_is_the_analysis_at_each_point():
    points = [{"T": 32}, {"T": 64}, {"T": 2048}]
    report = build(sample(), [load_chip(ROUND)], sweep=points)
    assert report.sweep[0].totals["flops"] == report.totals["flops"].number
    assert report.sweep[0].times[0].lower == pytest.approx(report.chips[0].times.lower)
    assert [p.sizes["T"] for p in report.sweep] == [32, 64, 2048]
    assert report.sweep[2].totals["matmul_flops"] == 4 * B * 2048 * D * F * L + 2000 * B * 2048 * D
    assert [p.times[0].binds for p in report.sweep] == ["memory", "compute", "compute"]
    with pytest.raises(SizeError, match="Q"):
        build(sample(), sweep=[{"Q": 1}])


def test_a_sweep_crosses_regimes():
    """Beyond T = 64 the sample runs its last matmul twice; its times and totals there are those of that regime."""
    short, long = sp.Le(size("T"), 64), sp.Gt(size("T"), 64)
    twice = sample([sample().costed.nodes[-1]], constraints=(Constraint(long),))
    both = sample(constraints=(Constraint(short),), others=(twice,))
    unbound = sample([sample().costed.nodes[-1]], constraints=())
    chip = load_chip(ROUND)
    assert any("those where T <= 64, as at the base" in n and "where T > 64, too" in n for n in build(both).notes)
    near, far, near_again = build(both, [chip], sweep=[{"T": 32}, {"T": 128}, {"T": 64}]).sweep
    expected = [build(a, [chip], sweep=[{"T": t}]).sweep[0] for a, t in ((sample(), 32), (unbound, 128), (sample(), 64))]
    for found, alone in zip((near, far, near_again), expected, strict=True):
        assert found.totals == alone.totals
        assert found.times[0].lower == pytest.approx(alone.times[0].lower)
    once = build(sample(), [chip], sweep=[{"T": 128}]).sweep[0]
    assert far.totals["matmul_flops"] - once.totals["matmul_flops"] == 2 * B * 128 * D * 1000
    assert far.times[0].lower > once.times[0].lower


def test_a_chip_without_the_type_is_an_error():
    with pytest.raises(ChipError, match="bfloat16"):
        build(sample(), [load_chip("v100_sxm2_32")])


def test_the_optimizers_calls_are_one_row_in_a_short_report():
    from report_samples import node, tensor

    steps = [
        node("optimizer", "aten.add_.Tensor", {"self": tensor(n, n)}, tensor(n, n), size("L"), "optimizer",
             vector=n * n, read=4 * n * n, write=2 * n * n, math="bfloat16")
        for n in (size("D"), size("F"))
    ]  # fmt: skip
    report = build(sample(steps), [load_chip(ROUND)])
    mine = [r for r in report.rows if r.phase == "optimizer"]
    (one,) = combined(mine)
    assert len(mine) == 2
    assert one.count.number == 6
    assert one.quantities["flops"].number == 3 * (D * D + F * F)
    assert one.quantities["intensity"].number == pytest.approx(1 / 6)
    assert one.times[0].lower == pytest.approx(3 * 6 * (D * D + F * F) / 1e12)
    assert combined(report.rows[:-2]) == report.rows[:-2]


@pytest.mark.parametrize(
    ("value", "base", "says"),
    [(255.2, 1, "B > 255.2"), (255.2, 512, "B < 255.2"), (0.06, 1, "never"), (None, 1, "never"), (26266.6, 1, "B > 26267")],
)
def test_where_the_bound_changes_is_seen_from_the_base(value, base, says):
    assert change(Threshold("whole", "B", None, value, sp.true, None), base) == says
