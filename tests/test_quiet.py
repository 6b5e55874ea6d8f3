"""Timings in quiet moments, at the speed of the core, and the pace of a machine against its calibration."""

from __future__ import annotations

import dataclasses
import itertools
import os

import pytest
import torch
from calibrations import Still, made_up

import costir.measuring.pace as pacing
from costir.calibration import Calibration, Curve
from costir.hardware import load_chip
from costir.load.subject import family_of
from costir.measuring import calibrate, interrupted, measure, quiet, timing
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
        monkeypatch.setattr(quiet, "move", self.move)
        self.moved, self.others = 0, None

    def move(self):
        """To the next core, where there is one; what happens there begins."""
        self.moved += 1
        if self.others is None:
            return False
        self.slower = self.others
        return True

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
    assert (clock.calm, clock.shared, clock.quiet) == (0, 3, False)
    assert clock.speed == pytest.approx(1 / 2)  # as a pulse: of what is timed here nothing else is known
    clock.when_quiet(core.work)
    assert clock.speed == 1  # of what anything may be nothing is known at all


def test_what_work_takes_longer_in_shared_moments_is_learnt_while_waiting(monkeypatch):
    """A core on which, while it is shared, a pulse takes 1.5 times as long, products 1.2 times, and calls 1.7 times."""
    core = Core(monkeypatch, itertools.chain([1.0] * 3, itertools.cycle([1.5] * 5 + [1.0] * 3)))

    def work(longer, seconds):
        def run():
            core.t += seconds * (longer if core.now > 1 else 1.0)

        return run

    clock = QuietClock(1e-5, patience=1.0)
    for kind, longer, seconds in (("mm", 1.2, 1e-3), ("call", 1.7, 1e-6)):
        clock.kind = kind
        found = [clock.round(work(longer, seconds), 1) for _ in range(200)]
        assert found == pytest.approx([seconds] * 200)
    clock.patience, core.slower, core.t = 0.0, itertools.repeat(1.5), core.t + 1
    for kind, longer, seconds in (("mm", 1.2, 3e-3), ("call", 1.7, 2e-6)):
        clock.kind = kind
        took = clock.round(work(longer, seconds), 1)
        assert took == pytest.approx(longer * seconds)
        assert took * clock.speed == pytest.approx(seconds)
    clock.kind = "exp"  # of which nothing is known: as what is
    clock.round(work(1.3, 1e-3), 1)
    assert 1 / 1.7 <= clock.speed <= 1 / 1.2


def test_what_is_called_again_while_waiting_is_followed_by_autograd_as_it_was(monkeypatch):
    """And what it takes longer is of its own kind, whatever is to be timed next."""
    core = Core(monkeypatch, itertools.chain([1.0] * 2, [2.0] * 9, itertools.repeat(1.0)))
    clock, leaf = QuietClock(1e-5, patience=1.0), torch.ones(2, requires_grad=True)
    followed = []

    def step():
        followed.append(torch.is_grad_enabled())
        (leaf * 2).sum().backward()
        core.work()

    clock.kind = "step"
    clock.round(step, 1)
    core.t += 1  # it is long since the core was quiet
    with torch.no_grad():
        clock.kind = "mm"
        clock.round(core.work, 1)
        assert not torch.is_grad_enabled()
    assert len(followed) > 1
    assert all(followed)
    assert [kind for (kind, _), seen in clock._lost.items() if seen] == ["step"]


def test_quiet_rounds_count_and_without_any_the_middle_of_what_they_would_have_taken():
    found = timing._together([(3.0, 0.9, True), (2.0, 1.0, True), (1.5, 0.5, False)])
    assert dataclasses.astuple(found) == pytest.approx((2.0, 0.175, 2.0, 1.0, 1.5))
    found = timing._together([(3.0, 0.5, False), (4.0, 0.5, False), (1.0, 0.9, False)])
    assert (found.usual, found.seen) == (1.5, 1.0)


def test_a_bound_goes_by_what_was_seen(monkeypatch):
    """All moments are shared, and more is reckoned to be lost than is: the rate of products is not above what they reached."""
    clock = Still()
    clock.quiet, clock.speed = False, 0.1
    c = calibrate.Calibrator(None, clock)
    kernel = next(k for k in pacing.kernels() if k.name == "mm_nn")
    c.curve(dataclasses.replace(kernel, axes={"m": (64,), "n": (64,), "k": (64,)}))
    a = torch.rand(64, 64)
    best = min(clock.round(lambda: a @ a, 100) / 100 for _ in range(10))
    assert 0 < c.rates["mm_nn"] < 3 * 2 * 64**3 / best


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


UNEVEN = [1.5, 1.8, 1.6, 1.9, 1.7]


def look(monkeypatch, pulses):
    """Looks of at least 2 spells, and of 20 at most, on a core whose pulses these are."""
    core = Core(monkeypatch, pulses)
    spell = quiet.SPELL * 1e-5
    monkeypatch.setattr(quiet, "LOOK", 2 * spell)
    monkeypatch.setattr(quiet, "LONGEST_LOOK", 20 * spell)
    return core, QuietClock()


def test_what_is_usual_is_found_out_where_others_have_the_core_at_first(monkeypatch):
    busy = itertools.islice(itertools.cycle(UNEVEN), 4 * quiet.SPELL)
    core, clock = look(monkeypatch, itertools.chain(busy, itertools.repeat(1.0)))
    assert clock.pulse == pytest.approx(1e-5)
    assert core.t < 20 * quiet.SPELL * 1e-5  # no longer than it must


def test_what_is_usual_where_the_core_is_never_quiet_for_long(monkeypatch):
    _, clock = look(monkeypatch, itertools.cycle([1.0, *UNEVEN]))
    assert clock.pulse == pytest.approx(1e-5)


def test_a_core_that_was_shared_from_the_beginning_is_found_out(monkeypatch):
    """Evenly shared, so that nothing shows it: everything is faster later, and what was timed before counts as shared."""
    core, clock = look(monkeypatch, itertools.chain([1.5] * 2 * quiet.SPELL, [1.5] * 40, itertools.repeat(1.0)))
    assert clock.pulse == pytest.approx(1.5e-5)
    before = [clock.round(core.work, 1) for _ in range(10)]
    assert before == pytest.approx([1.5e-3] * 10)
    for _ in range(40 + quiet.FASTER):
        clock.round(core.work, 1)
    assert clock.pulse == pytest.approx(1e-5)
    assert clock.shared >= 10
    assert clock.round(core.work, 1) == pytest.approx(1e-3)


def test_what_the_calibration_says_is_usual_stays(monkeypatch):
    core = Core(monkeypatch, itertools.repeat(0.5))
    clock = QuietClock(1e-5)
    for _ in range(2 * quiet.FASTER):
        clock.round(core.work, 1)
    assert clock.pulse == 1e-5
    assert clock.speed == pytest.approx(2)


def test_a_core_that_stays_busy_is_left(monkeypatch):
    """And the first timing on the next one does not count: what it works on was in the other core's cache."""
    core = Core(monkeypatch, itertools.repeat(2.0))
    core.others = itertools.repeat(1.0)
    clock = QuietClock(1e-5, patience=1.0)
    began = []
    assert clock.round(lambda: (began.append(core.t), core.work()), 1) == pytest.approx(1e-3)
    assert (core.moved, clock.calm, clock.shared) == (1, 1, 0)
    assert began[0] == pytest.approx(quiet.STAY, rel=0.1)
    assert len(began) == 2
    clock.round(core.work, 1)
    assert (core.moved, clock.calm) == (1, 2)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only on Linux")
def test_going_to_another_core_holds_nobody_there():
    may = os.sched_getaffinity(0)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert quiet.move() == (len(may) > 1)
        assert os.sched_getaffinity(0) == may
        torch.set_num_threads(2)
        assert not quiet.move()  # where several threads work, the system knows best
    finally:
        torch.set_num_threads(threads)


def test_where_it_may_not_go_to_another_core_it_stays(monkeypatch):
    def forbidden(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", forbidden, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert not quiet.move()


def test_a_pulse_after_a_timing_is_that_before_the_next(monkeypatch):
    pulses = []
    core = Core(monkeypatch, (pulses.append(1) or 1.0 for _ in itertools.count()))
    clock = QuietClock(1e-5)
    for _ in range(10):
        clock.round(core.work, 1)
    assert len(pulses) == 11


def test_a_pulse_takes_some_time():
    clock = QuietClock(1.0)
    found = [clock._now() for _ in range(5)]
    assert min(found) > 1e-7
    assert min(found) < 1e-2  # any one of them may be switched off its core meanwhile


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
    monkeypatch.setattr(pacing, "leaving", lambda curves, clock: 3.0)
    monkeypatch.setattr(pacing, "once", lambda clock: 5e-7)
    c = c.changed({"frame": Curve(("bytes",), ((4096, 8192),), (2.5e-7, 9e-7))}, {})
    found = pace(c, Still())
    assert dataclasses.astuple(found) == pytest.approx((1.2, 1.5, 0.8, 3.0, 2.0))
    few = Calibration(c.about, c.noise, c.numbers, {"unary": c.curves["unary"]})
    assert dataclasses.astuple(pace(few, Still())) == pytest.approx((1.0, 1.0, 0.8, 3.0, 1.0))  # what is not known is as it was
    assert set(asked) <= set(c.curves)


@dataclasses.dataclass
class Seen:
    usual: float


def test_a_calibration_at_another_pace():
    """A call takes 1 us on this machine: that part at the pace of calls, the rest at that of products or of memory."""
    rates = {"products": 1e11, "vector": 16.0, "lines": 9.0, "apart_exp": 1.2, "gone_exp": 1.2, "bandwidth_8192": 1e11}
    c = made_up().changed({}, rates)
    now = at_pace(c, Pace(product=2.0, memory=3.0, call=1.5))
    call = c.curves["unary"].seconds[0]
    work = c.curves["mm_nn"].at(128, 256, 256) - call
    assert now.curves["mm_nn"].at(128, 256, 256) == pytest.approx(1.5 * call + 2.0 * work)
    big = c.curves["copy_"].at(1 << 22)
    assert now.curves["copy_"].at(1 << 22) == pytest.approx(1.5 * call + 3.0 * (big - call))
    assert now.numbers["node"] == pytest.approx(1.5 * c.numbers["node"])
    assert now.numbers["fresh"] == pytest.approx(3.0 * c.numbers["fresh"])
    assert {name: now.numbers[name] for name in rates} == rates  # they are no times
    same = at_pace(c, Pace())
    assert same.numbers == c.numbers
    assert all(same.curves[k].seconds == pytest.approx(v.seconds) for k, v in c.curves.items())
    lost = Curve(("bytes",), ((4096, 8192),), (1e-7, 2e-7))
    cold = at_pace(c.changed(dict.fromkeys(("frame", "turn_light", "node"), lost), {}), Pace(call=1.5, code=4.0))
    found = {k: cold.curves[k].seconds for k in ("frame", "turn_light", "node")}
    assert found["frame"] == found["turn_light"] == pytest.approx((4e-7, 8e-7))  # what others drive out
    assert found["node"] == pytest.approx((1.5e-7, 3e-7))


def aging():
    """Memory that takes 1 us, and up to 9 us more the longer it was left alone; it is gone after some ms."""
    us = interrupted.MICROSECONDS
    seconds = tuple(1e-6 * (10 - 9 / (1 + x / 2000)) for _ in interrupted.DRIVEN for x in us)
    return {f"aged_{use}": Curve(("bytes", "us"), (interrupted.DRIVEN, us), seconds) for use in interrupted.USES}


@pytest.mark.parametrize("faster", [0.25, 1, 4])
def test_how_fast_the_shared_cache_is_emptied(monkeypatch, faster):
    now = lambda us: 1e-6 * (10 - 9 / (1 + faster * us / 2000))  # not read from a curve
    sample = lambda points, rounds, clock: {use: {p: [now(p[1])] * rounds for p in points} for use in interrupted.USES}
    monkeypatch.setattr(interrupted, "_aging", sample)
    assert interrupted.leaving(aging()) == pytest.approx(faster, rel=0.01)
    assert interrupted.leaving({}) == 1


def test_a_cache_that_is_emptied_faster_ages_memory_by_as_much():
    c = made_up().changed({**aging(), "interrupted": aging()["aged_read"]}, {})
    now = at_pace(c, Pace(leaving=4.0))
    for name in ("aged_read", "aged_weights", "interrupted"):
        assert now.curves[name].at(1 << 12, 1000) == pytest.approx(c.curves[name].at(1 << 12, 4000))
    assert now.curves["exp"].grid == c.curves["exp"].grid


def test_the_middle_of_two_paces():
    found = middle(Pace(1.0, 4.0, 1.0, 2.0, 4.0), Pace(4.0, 1.0, 1.0, 8.0, 1.0))
    assert dataclasses.astuple(found) == pytest.approx((2.0, 2.0, 1.0, 2.0, 2.0))  # caches: when they were emptied least


# ------------------------------------------------------------------------------------------------------------- patience


def test_as_much_patience_as_was_asked_for():
    clock = Still()
    clock.patience = 0.0
    assert sum(calibrate._patience(clock, 120.0, 0.0, stage) for stage in calibrate.SHARES) == pytest.approx(120)


def test_without_asking_it_takes_under_a_minute(monkeypatch):
    """The kernels take 40 s; what comes after them uses up all the patience that it has."""
    clock, now = Still(), [0.0]
    clock.patience = 0.0
    monkeypatch.setattr(calibrate.time, "perf_counter", lambda: now[0])
    patience = calibrate._patience(clock, None, 0.0, "kernels")
    now[0] = 40.0
    assert patience < 10
    after = {"losses": 7.0, "rates": 3.0, "overheads": 4.0}
    for stage, seconds in after.items():
        now[0] += seconds + calibrate._patience(clock, None, 0.0, stage)
    assert now[0] == pytest.approx(calibrate.ALL)
    assert calibrate._patience(clock, None, 0.0, "overheads") == calibrate.LEAST


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
