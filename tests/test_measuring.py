"""Calibration files, curves, matching, estimates and measurements: everything but how fast this machine is."""

from __future__ import annotations

import itertools
import json
import mmap
import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import torch
from calibrations import Still, made_up
from torch import nn

import costir
from costir import calibration, cli
from costir.calibration import Calibration, Curve
from costir.errors import ChipError, CostirError, TraceError
from costir.hardware import load_chip
from costir.load.subject import family_of
from costir.measuring import calibrate as calibrating
from costir.measuring import measure as measuring
from costir.measuring import remarks
from costir.measuring.envelope import bandwidth, fastest
from costir.measuring.estimate import Estimator
from costir.measuring.faults import fresh_pages
from costir.measuring.kernel import Kernel
from costir.measuring.kernels import kernels
from costir.measuring.knee import crossing
from costir.measuring.lookup import VIEWS
from costir.measuring.pace import Pace, pace
from costir.measuring.profile import Event, _matched, in_place
from costir.measuring.subject import _written as written
from costir.measuring.subject import subject
from costir.measuring.timing import Timed, better, timed
from costir.measuring.why import why
from costir.ops import registry  # noqa: F401


@pytest.fixture(scope="module")
def chip(tmp_path_factory):
    path = tmp_path_factory.mktemp("chip") / "made-up.toml"
    path.write_text(calibrating._chip_file(made_up(), {"fp32": 1e11}, {8192: 1e11, 2**21: 5e10, 2**29: 2e10}))
    return load_chip(str(path))


@pytest.fixture(autouse=True)
def still(monkeypatch):
    """As if nothing else ran, and the machine were as fast as the made-up one."""
    monkeypatch.setattr(measuring, "clock_of", lambda c, patience=0.0: Still())
    monkeypatch.setattr(measuring, "ROUNDS", 5)
    monkeypatch.setattr(measuring, "AT_LEAST", 0.002)
    monkeypatch.setattr(measuring, "pace", lambda c, clock: Pace())


@pytest.fixture
def free(monkeypatch):
    """No matter how long anything takes here."""
    for module in (measuring, remarks):
        monkeypatch.setattr(module, "LOADED", 1e9)
    monkeypatch.setattr(remarks, "UNSTEADY", 1e9)


# --------------------------------------------------------------------------------------------------- curves and files


def test_a_curve_is_a_power_law_between_its_points():
    c = Curve(("n", "side"), ((1, 10, 1000), (2, 32)), tuple(3e-6 * n**0.5 * m**2 for n in (1, 10, 1000) for m in (2, 32)))
    for n, m in ((1, 2), (10, 32), (31, 7), (500, 3), (1000, 32), (9000, 100)):
        assert c.at(n, m) == pytest.approx(3e-6 * n**0.5 * m**2, rel=1e-3 if n > 1000 else 1e-6)  # beyond, but for a call
    assert c.at(0.01, 1) == pytest.approx(c.at(1, 2))  # below the grid it stays


def test_beyond_its_last_point_a_curve_grows_no_faster_than_the_work():
    """Between its last points it left a cache: eight times as long for twice as much."""
    c = Curve(("m", "k"), ((1, 2, 4), (1, 2)), tuple(1e-6 * m * t for m, t in ((1, 1), (2, 1), (4, 4)) for k in (1, 2)))
    assert c.at(4, 1) / c.at(2, 1) == pytest.approx(8)
    assert c.at(40, 1) / c.at(4, 1) == pytest.approx(10, rel=0.06)  # but for what any call takes
    assert c.at(4, 64) == pytest.approx(c.at(4, 1))  # what does not grow goes on so


def test_a_calibration_is_read_back(chip):
    c, again = made_up(), chip.calibration
    assert again.noise == c.noise
    assert again.threads == 1
    assert dict(again.numbers) == pytest.approx(dict(c.numbers))
    assert set(again.curves) == set(c.curves)
    for name, curve in c.curves.items():
        assert again.curves[name].grid == curve.grid
        assert again.curves[name].seconds == pytest.approx(curve.seconds, rel=1e-3)
    assert float(chip.matmul_rate("float32")) == 1e11
    assert float(chip.memory_bandwidth) == 2e10


@pytest.mark.parametrize(
    ("old", "new"),
    [("format = 7", "format = 6"), ("noise = 0.0200", 'noise = "much"'), ("view = 1e-06", "view = -1"), ("ns = [", "ns = [7, "),
     ('axes = ["n"]', 'axes = ["m"]'), ("[calibration.number]", "[calibration.nummer]"), ('threads = "1"', 'threads = "0"'),
     ('threads = "1"', 'threads = "many"'), ("bandwidth_8192", "bandwidth_much"), ("view = 1e-06", "lost = 7")],
)  # fmt: skip
def test_a_damaged_calibration_is_one_sentence(tmp_path, old, new):
    path = tmp_path / "c.toml"
    text = calibrating._chip_file(made_up(), {"fp32": 1e11}, {8192: 1e11, 2**29: 2e10})
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ChipError, match="run costir calibrate again"):
        load_chip(str(path))


@pytest.mark.parametrize(
    ("pattern", "other", "says"),
    [
        (r"\nview = .*", "", "no number view"),
        (r"\[calibration\.curve\.unary\]\n(.+\n)+", "", f"{len(kernels()) - 1} curves of {len(kernels())}"),
        (r"\nbandwidth_\d+ = .*", "", "no bandwidth"),
        (r"\[calibration\.curve\.mm_nn\]\n(.+\n)+", '[calibration.curve.mm_nn]\naxes = ["m"]\nm = [1]\nns = [3]\n',
         "over m, not"),
        (r"\[calibration\.curve\.far_read\]\n(.+\n)+", "[calibration.curve.far_read]\naxes = []\nns = [3]\n", "over nothing"),
        (r"\[calibration\.curve\.far_read\]\n(.+\n)+", '[calibration.curve.far_read]\naxes = ["m"]\nm = [1]\nns = [3]\n',
         "far_read is over m"),
        (r"\nbandwidth_8192 = .*", "\nbandwidth_-8192 = 1e11", "no bandwidth"),
        (r"\nbandwidth_8192 = .*", "\nbandwidth_8192 = 0.0", "no bandwidth"),
        (r"\nview = .*", "\nview = 1e300", "numbers that cannot be"),
        (r'\nthreads = "1"', '\nthreads = "4000"', "calibrated with 4000 threads, and this machine has"),
    ],
)  # fmt: skip
def test_a_calibration_that_lacks_something_is_one_sentence(tmp_path, monkeypatch, pattern, other, says):
    """It can be well-formed, and be found out only where it is used."""
    path = tmp_path / "c.toml"
    text = calibrating._chip_file(made_up(), {"fp32": 1e11}, {8192: 1e11, 2**29: 2e10})
    damaged = re.sub(pattern, other, text)
    assert damaged != text
    path.write_text(damaged)
    monkeypatch.setattr(measuring, "pace", lambda c, clock: (pace(c, clock), Pace())[1])
    with pytest.raises(ChipError, match=says) as caught:
        costir.measure(small, chip=str(path))
    assert caught.value.hint == "run costir calibrate again"


def test_the_envelope_never_rises():
    found = calibrating._envelope(iter([(8, 5.0), (8, 9.0), (16, 4.0), (32, 7.0), (64, 1.0)]))
    assert found == {8: 9.0, 16: 7.0, 32: 7.0, 64: 1.0}
    c = made_up()
    assert [bandwidth(c, s) for s in (1, 8192, 10**6, 2**21, 10**8, 10**12)] == [1e11, 1e11, 1e11, 5e10, 5e10, 2e10]
    assert fastest(c, 2**20) == pytest.approx(1e11)  # all of it in the cache
    assert fastest(c, 2**22) == pytest.approx(2**22 / (2**21 / 1e11 + 2**21 / 5e10))  # half of it
    assert fastest(c, 2**40) == pytest.approx(2e10, rel=1e-3)


def test_calibrating_writes_a_chip_that_every_verb_takes(monkeypatch, tmp_path, capsys):
    """With a few small kernels: the whole takes half a minute."""
    few = [k for k in kernels() if k.name in ("unary", "mm_nn", "mm_nt", "mm_tn", "streamed")]
    small = [Kernel(k.name, {a: g[:2] for a, g in k.axes.items()}, k.make) for k in few]
    monkeypatch.setattr(calibrating, "kernels", lambda: small)
    monkeypatch.setattr(calibrating, "WORKING_SETS", (1 << 13, 1 << 16))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert cli.main(["calibrate", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == str(tmp_path / "costir" / "here.toml")
    assert found["rates"]["fp32"] > 1e8
    assert all(v >= 0 for v in found["numbers"].values())
    assert cli.main(["analyze", "X[B,D] . Y[D,F]", "--chip", "here", "--dtype", "fp32"]) == 0
    assert "GFLOP/s" in capsys.readouterr().out
    assert cli.main(["calibrate", "-o", str(tmp_path / "x.txt")]) == 2
    assert ".toml" in capsys.readouterr().err


@pytest.mark.parametrize("threads", ["0", "-1", "100000"])
@pytest.mark.parametrize("more", [[], ["--collectives"]])
def test_no_more_threads_than_cores(tmp_path, capsys, threads, more):
    assert cli.main(["calibrate", "--threads", threads, "-o", str(tmp_path / "x.toml"), *more]) == 2
    assert f"--threads {threads} is not possible" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_a_calibration_it_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for command in (["measure", "examples/mlp.py"], ["measure", "examples/mlp.py", "--chip", "h100"]):
        assert cli.main(command) == 2
        assert "costir calibrate" in capsys.readouterr().err


def test_timing_finds_what_a_call_takes():
    import time

    found = timed(lambda: time.sleep(0.002), rounds=3, at_least=0.004)
    assert 0.002 <= found.best < 0.02
    assert found.spread >= 0


# -------------------------------------------------------------------------------------------------------- measurement


def test_calls_are_matched_with_the_events_that_are_theirs():
    events = [Event("aten::linear", 0, 9), Event("aten::t", 1, 2), Event("aten::addmm", 3, 8), Event("aten::copy_", 4, 5),
              Event("aten::copy_", 10, 13), Event("aten::relu", 14, 15)]  # fmt: skip
    found = _matched(events, [("aten::t",), ("aten::addmm",), ("aten::copy_",), (), ("aten::relu",)])
    assert found == [1, 5, 3, None, 1]
    assert _matched(events, [("aten::mm",), ("aten::relu",)]) == [None, 1]  # one that did not run does not shift the others
    assert _matched(events, [("aten::copy", "aten::copy_"), ("aten::relu",)]) == [1, 1]
    # A call that never shows does not hide those that come long after it, nor does one with many events inside.
    many = [Event("aten::x", i, i + 0.5) for i in range(500)] + [Event("aten::mm", 600, 601)]
    assert _matched(many, [("aten::no",)] * 10 + [("aten::mm",)])[-1] == 1
    inside = [Event("aten::layer", 0, 500), *many[1:]]
    assert _matched(inside, [("aten::layer",), ("aten::mm",)]) == [500, 1]


def test_a_copy_inside_of_the_operator_that_comes_after_it_shifts_nothing():
    """Autograd's `mul_` keeps a copy of what it overwrites: the copy is recorded first, and lies in it; twice the same."""
    events = [
        Event(f"aten::{name}", t + at, t + end)
        for t in (0, 20)
        for name, at, end in (("mul_", 0, 9), ("clone", 2, 6), ("copy_", 3, 5), ("add", 10, 11))
    ]
    calls = [("aten::clone",), ("aten::mul_",), ("aten::add",)] * 2
    assert _matched(events, calls) == [4, 5, 1, 4, 5, 1]
    nested = [Event("aten::a", 0, 10), Event("aten::b", 1, 8), Event("aten::c", 2, 5)]
    assert _matched(nested, [("aten::c",), ("aten::b",), ("aten::a",)]) == [3, 4, 3]


def test_a_recurrent_layer_in_training_is_matched_step_by_step():
    """All of its steps are alike, and so are the events of each operator: none is taken from another phase."""

    def model():
        return torch.nn.GRU(8, 8), (torch.rand(12, 2, 8),), {}

    found = subject(family_of(model, {}), {}, "train")
    calls = found.record()
    seconds = in_place(found.step, calls, 1)
    missing = [r.call.name for r, s in zip(calls, seconds, strict=True) if s is None and r.call.name not in VIEWS]
    assert not missing


def test_a_sum_that_really_runs_in_place_is_found():
    """A linear layer of what is not contiguous adds its bias; were it missed, later calls would get each other's events."""
    layer, x = nn.Linear(8, 4), torch.rand(2, 8, 3)
    family = family_of(lambda B=2: (Turned(layer), (x,), {}), {})
    model = subject(family, {"B": 2}, "backward")
    calls = model.record()
    found = in_place(model.step, calls, 1)
    adds = [s for r, s in zip(calls, found, strict=True) if r.call.phase == "forward" and r.call.name == "add"]
    assert adds
    assert all(adds)


class Turned(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.transpose(1, 2))


class Small(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.a, self.b = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)) + x)


def small(B=8, D=64):
    return Small(D), (torch.rand(B, D),), {}


@pytest.mark.parametrize("phase", ["forward", "backward", "train"])
def test_a_measurement_adds_up(chip, free, phase):
    m = costir.measure(small, chip=chip, phase=phase)
    assert m.measured > 0
    assert m.estimate > 0
    inside = sum(r.measured or 0 for r in m.rows)
    assert inside + m.between == pytest.approx(m.measured, rel=0.2)
    assert m.operators == sum(r.count for r in m.rows)
    assert {r.op for r in m.rows} >= {"addmm", "relu"}
    assert all(r.measured for r in m.rows if r.op in ("addmm", "relu"))
    split = why(m)
    assert sum(p.seconds for p in split.parts) == pytest.approx(m.measured)
    assert "%" in split.advice
    flops = sum(r.flops for r in m.rows if r.phase == "forward" and r.op == "addmm")
    assert flops >= 2 * 2 * 8 * 64 * 64


def test_a_notation_string_is_multiplied_for_real(chip, free):
    m = costir.measure("x[B,32] . w[32,16]", chip=chip, sizes={"B": 4}, dtype="fp32")
    assert sum(r.flops for r in m.rows) == 2 * 4 * 32 * 16


def test_a_busy_machine_gets_no_verdict(chip, monkeypatch):
    monkeypatch.setattr(measuring, "pace", lambda c, clock: Pace(product=1.8))
    m = costir.measure(small, chip=chip)
    assert not m.summary.verdict
    assert any("no verdict" in n for n in m.notes)


def test_steps_that_are_far_apart_get_no_verdict(chip, free, monkeypatch):
    """Others may use the same caches and leave the core alone; each second, another time is the best."""
    monkeypatch.setattr(remarks, "UNSTEADY", -1.0)
    m = costir.measure(small, chip=chip)
    assert not m.summary.verdict
    assert any("apart, as others use the same caches or memory: no verdict" in n for n in m.notes)


def test_a_library_that_is_slower_than_another_is_named(chip):
    """Half of the rate of convolutions is all that its products reach: other sizes would not help."""
    m = costir.measure(small, chip=chip)
    rows = tuple(replace(r, parts=replace(r.parts, kernel=r.bound + 1.0)) for r in m.rows)
    slow = replace(m, rows=rows, measured=len(rows) + 1.0)
    for products, named in ((1e11, False), (5e10, True)):
        machine = replace(chip, calibration=chip.calibration.changed({}, {"products": products}))
        advice = why(replace(slow, chip=machine)).advice
        assert "library efficiency at these sizes" in advice
        assert ("reach at most 50 GFLOP/s of the 100 GFLOP/s that its convolutions reach here" in advice) == named


def test_no_part_is_blamed_where_all_of_them_are_more_than_was_measured(chip):
    m = costir.measure(small, chip=chip)
    rows = tuple(replace(r, parts=replace(r.parts, cold=1.0)) for r in m.rows)
    advice = why(replace(m, rows=rows, measured=len(rows) / 2)).advice
    assert advice.startswith("a new calibration: the parts add up to ")
    assert "weights from beyond the cache, may be none" in advice


def test_overlap_is_lost_where_operators_take_turns_at_computing_and_moving(chip):
    """3 s of work beside 1 s of traffic, then 1 s beside 2 s: one after the other 5 s, and 4 s of work at the least."""
    m = costir.measure(small, chip=chip)
    units = ((3.0, 1.0), (1.0, 2.0))
    rows = tuple(
        replace(r, work=w, traffic=t, bound=max(w, t), fusable=0.0, parts=replace(r.parts, kernel=max(w, t)))
        for r, (w, t) in zip(m.rows, units, strict=False)
    )
    assert len(rows) == 2
    parts = {p.key: p.seconds for p in why(replace(m, rows=rows, measured=6.0)).parts}
    assert (parts["floor"], parts["overlap"]) == (4.0, 1.0)
    assert sum(parts.values()) == pytest.approx(6.0)
    moved = tuple(replace(r, fusable=0.5) for r in rows)  # of 3 s of traffic 1 s would be saved
    parts = {p.key: p.seconds for p in why(replace(m, rows=moved, measured=6.0)).parts}
    assert (parts["floor"], parts["fusing"], parts["overlap"]) == (4.0, 1.0, 0.0)
    assert all(r.bound == max(r.work, r.traffic) for r in costir.measure(small, chip=chip).rows if r.count == 1)


def test_roots_of_an_optimizer_are_not_the_models_functions(chip):
    """A norm's one root for each channel is no function of its numbers; AdamW takes one of every parameter."""

    def model(B=4):
        return nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.GELU()), (torch.rand(B, 3, 16),), {}

    m = costir.measure(model, chip=chip, phase="train")
    special = {(r.phase, r.op) for r in m.rows if r.special}
    assert special >= {("forward", "gelu"), ("optimizer", "sqrt")}
    assert not any("batch_norm" in op for _, op in special)
    rows = tuple(replace(r, parts=replace(r.parts, kernel=r.bound + (r.op == "sqrt"))) for r in m.rows)
    assert "an optimizer with fewer functions" in why(replace(m, rows=rows, measured=1.5)).advice


def test_pages_that_come_anew_at_every_step_are_counted_and_estimated(chip):
    """Memory that is mapped for a call and given back after it, as a heap that is cut back does."""
    often = lambda: mmap.mmap(-1, 1 << 22).write(b"x" * (1 << 22))
    assert fresh_pages(often, 0.001) >= 1 << 22
    turns = itertools.count()
    seldom = lambda: often() if next(turns) % 2 else None  # the best step, that counts, is another one
    assert fresh_pages(seldom, 0.001) < 1 << 16
    assert next(turns) > 3
    model = subject(family_of(lambda: (nn.ReLU(), (torch.rand(1 << 18),), {}), {}), {}, "forward")
    calls, c = model.record(), chip.calibration
    plain, half, whole = (Estimator(c, fresh=f).all(calls, 0)[0].fresh for f in (0.0, 1 << 19, 1 << 23))
    assert plain == 0
    assert half == pytest.approx((1 << 19) * c.numbers["fresh"])
    assert whole == pytest.approx((1 << 20) * c.numbers["fresh"])  # no more than it makes


def test_a_table_is_read_where_rows_are_picked():
    """What lies between two uses of other memory is the rows, not all of the table."""

    class Tables(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Embedding(1 << 14, 64), nn.EmbeddingBag(1 << 14, 64, mode="sum")

        def forward(self, i):
            return torch.relu(self.a(i)).sum() + self.b.weight[i[:2]].sum() + self.b(i[None]).sum()

    model = subject(family_of(lambda: (Tables(), (torch.arange(8),), {}), {}), {}, "forward")
    calls = model.record()
    table, rows = (1 << 14) * 64 * 4, 8 * 64 * 4
    picking = [r for r in calls if r.call.name in ("embedding", "_embedding_bag", "index")]
    assert len(picking) == 3
    assert all(r.moved < table / 100 for r in calls)
    assert all(max(r.far, default=0) < table / 10 for r in calls)
    assert picking[0].moved >= rows


def test_what_has_no_memory_of_its_own_yet_is_not_written():
    """Parameters that the first run makes, and tensors that are several."""

    def model(B=2):
        return nn.Sequential(nn.LazyLinear(4)), (torch.rand(B, 3),), {}

    assert [r.call.name for r in subject(family_of(model, {}), {}, "forward").record()][-1] == "addmm"
    written(torch.nested.nested_tensor([torch.rand(2), torch.rand(3)]))


def test_two_timings_of_the_same_are_the_better_one():
    """1 s at best and 1.4 s in the median, against 0.8 s and 1.0 s."""
    first, second = Timed(1.0, 0.4, 1.0, 1.0, 0.9), Timed(0.8, 0.25, 0.8, 1.0, 0.95)
    found = better(first, second)
    assert (found.best, found.usual, found.seen) == (0.8, 0.8, 0.9)
    assert found.spread == pytest.approx((1.4 + 1.0) / 2 / 0.8 - 1)


def test_rounds_that_are_far_apart_are_followed_by_others(monkeypatch):
    """Of rounds that take 1, 2, 3, 1, 2, 3, ... the median stays twice the best: all further ones are made."""
    seconds = itertools.cycle((1.0, 2.0, 3.0))
    clock = SimpleNamespace(most_loops=1, speed=1.0, quiet=True, round=lambda function, loops: next(seconds))
    found = timed(lambda: None, 3, 0.5, 1e9, clock, 6)
    assert found.spread == pytest.approx(1.0)
    assert next(seconds) == 2.0  # one to begin with, three and six


def test_a_machine_that_became_faster_gets_no_verdict(chip, monkeypatch):
    """Its calibration was made while it was busy, or on another one: bounds from it are none."""
    assert measuring._busy(-0.4, -0.3, 0.0) == pytest.approx(-0.3)
    assert measuring._busy(-0.4, 0.1, 0.0) == 0  # only for a moment
    assert measuring._busy(-0.4, -0.3, 0.5) == 0.5
    assert measuring._busy(0.9, 0.1, 0.05) == pytest.approx(0.1)
    monkeypatch.setattr(measuring, "_busy", lambda *_: -0.3)
    m = costir.measure(small, chip=chip)
    assert not m.summary.verdict
    assert any("30% faster" in n for n in m.notes)


def test_a_calibration_that_shared_its_core_gets_no_verdict(chip, free):
    c = chip.calibration
    shared = replace(chip, calibration=Calibration(c.about, c.noise, {**c.numbers, "away": 0.5}, c.curves))
    m = costir.measure(small, chip=shared)
    assert not m.summary.verdict
    assert any("when nothing else runs" in n for n in m.notes)
    assert costir.measure(small, chip=chip).summary.verdict


def test_a_model_that_changes_the_threads_gets_no_verdict(chip, free):
    class Greedy(nn.Module):
        def forward(self, x):
            torch.set_num_threads(2)
            return x + 1

    m = costir.measure(lambda B=2: (Greedy(), (torch.rand(B, 3),), {}), chip=chip)
    assert not m.summary.verdict
    assert any("2 threads" in n for n in m.notes)


def test_a_traced_python_gets_no_verdict(chip, free):
    before = sys.getprofile()
    try:
        sys.setprofile(lambda *_: None)
        m = costir.measure(small, chip=chip)
    finally:
        sys.setprofile(before)
    assert not m.summary.verdict
    assert any("traced" in n for n in m.notes)


def test_a_file_of_another_machine_is_named(chip, free, monkeypatch):
    for module in (measuring, remarks):
        monkeypatch.setattr(module, "cpu_name", lambda: "Another CPU")
    assert any("Another CPU" in n for n in costir.measure(small, chip=chip).notes)


def test_what_cannot_run_is_one_sentence(chip, free):
    class Bad(nn.Module):
        def forward(self, x):
            return x @ x.numpy()

    with pytest.raises(CostirError, match="a real run of"):
        costir.measure(lambda B=2: (Bad(), (torch.rand(B, 3),), {}), chip=chip)
    with pytest.raises(CostirError, match="was not measured here"):
        costir.measure(small, chip="h100")


class Tires(nn.Module):
    """Does something else from the fourth call on."""

    def __init__(self, what):
        super().__init__()
        self.calls, self.what, self.seen = 0, what, []

    def forward(self, x):
        self.calls += 1
        if self.what == "grows":
            self.seen.append(x)
            return torch.cat(self.seen)
        if self.calls > 3:
            if self.what == "leaves":
                sys.exit(7)
            raise ValueError("enough")
        return x + 1


@pytest.mark.parametrize(
    ("what", "says"), [("fails", "ValueError: enough"), ("leaves", "SystemExit: 7"), ("grows", "something else in every step")]
)
def test_a_model_that_fails_later_is_one_sentence(chip, free, what, says):
    with pytest.raises(TraceError, match=says):
        costir.measure(lambda B=2: (Tires(what), (torch.rand(B, 3),), {}), chip=chip)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_a_sparse_matrix_is_measured_with_a_star(chip, free, layout):
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("a", getattr(torch.eye(16), layout)())

        def forward(self, x):
            return self.a @ x

    m = costir.measure(lambda B=2: (Sparse(), (torch.rand(16, B),), {}), chip=chip)
    assert m.estimate > 0
    assert any(r.alike for r in m.rows)


def test_where_two_straight_parts_cross():
    draw = random.Random(1)
    for knee in (8.6, 20.0, 70.0):
        points = [(2**i, max(1e-3, 1e-3 * 2**i / knee) * draw.uniform(0.99, 1.01)) for i in range(12)]
        assert crossing(points) == (pytest.approx(knee, rel=0.1), True)
        squares = [(x, max(1e-3, 1e-3 * (x / knee) ** 2)) for x, _ in points]
        assert crossing(squares) == (pytest.approx(knee), True)
    assert crossing([(2**i, 1e-3 * 2**i) for i in range(8)]) == (None, False)
    assert crossing([(2**i, 1e-3) for i in range(8)]) == (None, False)


def test_where_the_ends_are_bent_the_lines_that_touch_the_curve_cross():
    """A library that takes three times as long for 2 to 16 rows: as much work as one row at 1, and at its best from 64 on."""
    points = [(2**i, max(3e-3, 0.375e-3 * 2**i) * (3 if 1 <= i <= 4 else 1)) for i in range(8)]
    assert crossing(points) == (pytest.approx(8), False)


# --------------------------------------------------------------------------------------------------------- command line

MODEL = """
import torch
from torch import nn
def model(D=32): return nn.Sequential(nn.Linear(D, D), nn.ReLU())
def inputs(B=4, D=32): return torch.rand(B, D)
"""


@pytest.fixture
def files(tmp_path, chip, free):
    (tmp_path / "m.py").write_text(MODEL)
    return tmp_path / "m.py", chip.path


def test_measure_on_the_command_line(files, capsys, tmp_path):
    model, path = files
    assert cli.main(["measure", str(model), "--chip", path, "--why"]) == 0
    out = capsys.readouterr().out
    for word in ("addmm", "total", "verdict", "roofline floor", "residual", "would help most", "bounds"):
        assert word in out
    assert cli.main(["measure", str(model), "--chip", path, "--format", "json"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert set(summary) >= {"total_error", "median_error", "within_10", "within_25", "bound_violations", "noise"}
    pictures = [tmp_path / "a.svg", tmp_path / "b.png"]
    assert cli.main(["measure", str(model), "--chip", path, "--plot", f"roofline={pictures[0]}"]) == 0
    sweep = ["measure", str(model), "--chip", path, "--sweep", "B=1:4:x2"]
    for _ in range(2):  # what costir wrote it may write again
        assert cli.main([*sweep, "--plot", f"sweep={pictures[1]}"]) == 0
    out = capsys.readouterr().out
    assert "overhead rules" in out
    assert all(p.stat().st_size > 5000 for p in pictures)


def test_a_measured_critical_size(files, capsys):
    _, path = files
    asked = ["solve", "x[B,64] . w[64,64]", "--for", "B", "--chip", path, "--dtype", "fp32", "--measure"]
    assert cli.main(asked) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {label:9}  " in out for label in ("roofline", "solved", "measured", "points", "estimates"))


def test_a_measured_critical_size_is_data_too(files, capsys):
    _, path = files
    asked = ["solve", "x[B,64] . w[64,64]", "--for", "B", "--chip", path, "--dtype", "fp32", "--measure", "--format", "json"]
    assert cli.main(asked) == 0
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, json.loads((Path(costir.__file__).parent / "schema.json").read_text()))
    assert data["measured"]["for"] == "B"
    assert [p["B"] for p in data["measured"]["points"]][:3] == [1, 2, 4]
    assert all(p["measured"] > 0 < p["estimate"] for p in data["measured"]["points"])


@pytest.mark.parametrize(
    "options",
    [["--plot", "pie"], ["--plot", "sweep"], ["--why", "--sweep", "B=1,2"], ["--chip", "h100,b200"], ["--size", "Q=3"],
     ["--sweep", "B=1,2", "--sweep", "D=1,2"], ["--plot", "roofline=x.pdf"]],
)  # fmt: skip
def test_wrong_questions(files, capsys, options):
    model, path = files
    chosen = [] if "--chip" in options else ["--chip", path]
    assert cli.main(["measure", str(model), *chosen, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("costir: ")
    assert calibration.FORMAT == 7
