"""Timings in quiet moments, at the speed of the core, and the pace of a machine against its calibration."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from calibrations import Still, made_up

import costir.measuring.pace as pacing
from costir.calibration import Calibration
from costir.hardware import load_chip
from costir.load.subject import family_of
from costir.measuring import calibrate, measure, quiet
from costir.measuring.pace import Pace, at_pace, middle, pace
from costir.measuring.quiet import QuietClock
from costir.measuring.timing import one_by_one, timed


class Core:
    """A core on which everything takes `slower` times as long, which changes from one look at it to the next."""

    def __init__(self, monkeypatch, slower):
        self.t, self.slower, self.now = 0.0, iter(slower), 1.0
        monkeypatch.setattr(quiet, "perf_counter", lambda: self.t)
        monkeypatch.setattr("costir.measuring.clock.perf_counter", lambda: self.t)
        monkeypatch.setattr("costir.measuring.timing.time.perf_counter", lambda: self.t)
        monkeypatch.setattr(QuietClock, "_now", self.pulse)

    def pulse(self, clock=None):
        self.now = next(self.slower)
        self.t += 1e-5 * self.now
        return 1e-5 * self.now

    def work(self):
        self.t += 1e-3 * self.now


def test_a_timing_counts_only_where_it_was_quiet_before_and_after(monkeypatch):
    core = Core(monkeypatch, itertools.chain([2.0, 2.0, 1.0, 2.0, 1.0, 1.0], itertools.repeat(1.0)))
    clock = QuietClock(1e-5, patience=1.0)
    assert clock.round(core.work, 1) == pytest.approx(1e-3)  # not quiet twice, then before but not after, then both
    assert (clock.calm, clock.shared) == (1, 0)
    assert clock.patience == pytest.approx(1 - 2 * 2e-5 - 1e-3 - 2e-5, abs=1e-6)


def test_when_patience_is_over_any_timing_counts_and_is_known(monkeypatch):
    core = Core(monkeypatch, itertools.repeat(2.0))
    clock = QuietClock(1e-5, patience=1e-4)
    assert [clock.round(core.work, 1) for _ in range(3)] == pytest.approx([2e-3] * 3)
    assert (clock.calm, clock.shared, clock.speed) == (0, 3, 1.0)


def test_seconds_are_those_at_the_usual_speed(monkeypatch):
    """The clock of the core goes up and down by a tenth: what is timed takes as much longer as a pulse does."""
    core = Core(monkeypatch, itertools.chain([1.1] * 8, [0.9] * 80))
    clock = QuietClock(1e-5)
    found = timed(core.work, 3, 1e-3, clock=clock)
    assert (found.best, found.usual) == pytest.approx((1.1e-3, 1e-3))
    for _ in range(quiet.LAST):
        clock.round(core.work, 1)
    found = timed(core.work, 3, 1e-3, clock=clock)
    assert (found.best, found.usual, found.speed) == pytest.approx((0.9e-3, 1e-3, 1 / 0.9))
    assert one_by_one(core.work, 3, clock=clock) == pytest.approx(1e-3)


def test_what_is_usual_is_found_out_where_others_have_the_core_most_of_the_time(monkeypatch):
    Core(monkeypatch, itertools.cycle([1.0, 1.8, 1.9]))
    monkeypatch.setattr(quiet, "LOOK", 1e-3)
    assert QuietClock().pulse == pytest.approx(1e-5)


def test_a_pulse_takes_some_time():
    assert 1e-7 < QuietClock(1.0)._now() < 1e-2


# ------------------------------------------------------------------------------------------------------------------ pace


def test_what_is_timed_again_was_timed():
    """Its points are on the grids: a time between them is interpolated, and would be off in the same way every time."""
    grids = {k.name: list(k.axes.values()) for k in pacing.kernels()}
    for found in pacing.AGAIN.values():
        for name, point in found.items():
            assert all(x in axis for x, axis in zip(point, grids[name], strict=True)), name


def test_the_pace_is_that_of_a_few_kernels_of_each_kind(monkeypatch):
    """A machine on which a product takes 1.2 times, memory 1.5 times and a call 0.8 times as long as when it was calibrated."""
    c = made_up()
    longer = {"mm_nn": 1.2, "mm_nt": 1.2, "mm_tn": 1.2, "copy_": 1.5, "binary": 1.5, "unary_": 1.5, "unary": 0.8, "clone": 0.8}
    asked = []

    def made(name):
        return lambda **point: (asked.append(name), lambda: (name, tuple(point.values())))[1]

    known = [dataclasses.replace(k, make=made(k.name)) for k in pacing.kernels()]
    monkeypatch.setattr(pacing, "kernels", lambda: known)

    def fake(run, rounds, at_least, clock):
        name, point = run()
        seconds = c.curves[name].at(*point) * longer.get(name, 0.8)
        return Seen(seconds)

    monkeypatch.setattr(pacing, "timed", fake)
    found = pace(c, Still())
    assert dataclasses.astuple(found) == pytest.approx((1.2, 1.5, 0.8))
    few = Calibration(c.about, c.noise, c.numbers, {"unary": c.curves["unary"]})
    assert dataclasses.astuple(pace(few, Still())) == pytest.approx((1.0, 1.0, 0.8))  # what is not known is as it was
    assert set(asked) <= set(c.curves)


@dataclasses.dataclass
class Seen:
    usual: float


def test_a_calibration_at_another_pace():
    """A call takes 1 us on this machine: that part at the pace of calls, the rest at that of products or of memory."""
    c = made_up()
    now = at_pace(c, Pace(product=2.0, memory=3.0, call=1.5))
    call = c.curves["unary"].seconds[0]
    work = c.curves["mm_nn"].at(128, 256, 256) - call
    assert now.curves["mm_nn"].at(128, 256, 256) == pytest.approx(1.5 * call + 2.0 * work)
    big = c.curves["copy_"].at(1 << 22)
    assert now.curves["copy_"].at(1 << 22) == pytest.approx(1.5 * call + 3.0 * (big - call))
    assert now.numbers["node"] == pytest.approx(1.5 * c.numbers["node"])
    assert now.numbers["fresh"] == pytest.approx(3.0 * c.numbers["fresh"])
    assert now.numbers["bandwidth_8192"] == c.numbers["bandwidth_8192"]  # a rate is no time
    same = at_pace(c, Pace())
    assert same.numbers == c.numbers
    assert all(same.curves[k].seconds == pytest.approx(v.seconds) for k, v in c.curves.items())


def test_the_middle_of_two_paces():
    assert dataclasses.astuple(middle(Pace(1.0, 4.0, 1.0), Pace(4.0, 1.0, 1.0))) == pytest.approx((2.0, 2.0, 1.0))


# ------------------------------------------------------------------------------------------------------------- verdicts


def model(B=2):
    return torch.nn.Linear(8, 8), (torch.rand(B, 8),), {}


@pytest.fixture
def chip(tmp_path):
    path = tmp_path / "made-up.toml"
    path.write_text(calibrate._chip_file(made_up(), {"fp32": 1e11}, {8192: 1e11, 2**21: 5e10, 2**29: 2e10}))
    return load_chip(str(path))


def test_a_core_that_was_never_quiet_gets_no_verdict(chip, monkeypatch):
    monkeypatch.setattr(measure, "pace", lambda c, clock: Pace())
    busy = Still()
    monkeypatch.setattr(Still, "when_quiet", lambda self, attempt: attempt())
    found = measure.measure(family_of(model, {}), chip, clock=busy)
    assert not found.summary.verdict
    assert any("something else ran on the core all the time" in n for n in found.notes)


def test_a_core_that_became_much_faster_gets_no_verdict(chip, monkeypatch):
    monkeypatch.setattr(measure, "pace", lambda c, clock: Pace())
    fast = Still()
    fast.speed = 1.5
    found = measure.measure(family_of(model, {}), chip, clock=fast)
    assert not found.summary.verdict
    assert any("50% faster than when it was calibrated" in n for n in found.notes)


def test_the_estimate_is_for_the_speed_of_the_run(chip, monkeypatch):
    """A slower core: the estimate is as much longer, a bound is not."""
    monkeypatch.setattr(measure, "pace", lambda c, clock: Pace())
    slow, usual = Still(), Still()
    slow.speed = 0.8
    one, two = (measure.measure(family_of(model, {}), chip, clock=k) for k in (usual, slow))
    assert two.estimate == pytest.approx(one.estimate / 0.8)
    assert two.bound == pytest.approx(one.bound)
    assert [r.estimate for r in two.rows] == pytest.approx([r.estimate / 0.8 for r in one.rows])
    assert sum(r.measured or 0 for r in two.rows) + two.between == pytest.approx(two.measured)


def test_the_estimate_is_at_the_pace_of_the_run(chip, monkeypatch):
    monkeypatch.setattr(measure, "pace", lambda c, clock: Pace())
    one = measure.measure(family_of(model, {}), chip, clock=Still())
    monkeypatch.setattr(measure, "pace", lambda c, clock: Pace(1.1, 1.1, 1.1))
    two = measure.measure(family_of(model, {}), chip, clock=Still())
    assert two.estimate == pytest.approx(1.1 * one.estimate)
    assert (one.pace.product, two.pace.product) == pytest.approx((1, 1.1))
