"""Bound, estimate and measurement of a model on this machine, operator by operator.

    measure(family, chip) -> Measurement(rows, total, summary)

The bound is the roofline time: FLOPs at the best rate, or bytes at the best bandwidth that any kernel reached over as much
memory. The estimate comes from the calibration alone. The measurement is the best of several steps; operators are timed where
the model runs them.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from costir.calibration import Calibration
from costir.chip import Chip
from costir.cost import cost_of
from costir.errors import ChipError
from costir.hardware import calibration_of
from costir.ir import Call, Conventions, Cost
from costir.load.family import Family
from costir.measuring.calibrate import cpu_name
from costir.measuring.envelope import bandwidth, fastest
from costir.measuring.estimate import Estimate, Estimator, total
from costir.measuring.faults import fresh_pages
from costir.measuring.pace import Pace, at_pace, middle, pace
from costir.measuring.profile import in_place
from costir.measuring.quiet import QuietClock
from costir.measuring.remarks import AWAY, LOADED, asides, notes, unlike
from costir.measuring.subject import Recorded, Subject, one_thread, subject
from costir.measuring.timing import FAR_APART, Timed, better, timed
from costir.roofline import times
from costir.trace import Optimizer

SHARE = 0.01  # operators below this share of the time are left out of the medians
SHORT = 0.1  # of a bound
USUAL_ERROR = 0.15  # of a whole step, on a quiet machine
PARTS = ("kernel", "call", "cold", "fresh", "framework", "apart", "around")  # of an estimate: seconds
PATIENCE = 8.0  # seconds for waiting for quiet moments
ROUNDS, FURTHER, AT_LEAST, MOST = 9, 18, 0.04, 3.0  # of the whole step, and seconds


@dataclass(frozen=True, slots=True)
class Row:
    """Equal operators together.

    Attributes:
        phase, path, op: what they are.
        count: how many.
        bound, estimate, measured: seconds of all of them, without what is spent around them (`parts.around`); `measured` is
            None where the profiler showed no such event.
        binds: "overhead", "memory" or "compute".
        parts: of the estimate.
        alike: another operator's curve stood in for one that was not calibrated.
        flops, nbytes: what they do.
        special: they evaluate special functions.
        fusable: seconds of traffic through results that only elementwise neighbours read: a compiler would not write them.
        held: the bound of those that the profiler showed, as `measured` is what they took, both stretched to all of them.
        work, traffic: seconds of computing at the best rate, and of moving the bytes: the larger one of a call is its bound.
    """

    phase: str
    path: str
    op: str
    count: int
    bound: float
    estimate: float
    measured: float | None
    binds: str
    parts: Estimate
    alike: bool
    flops: float
    nbytes: float
    special: bool
    fusable: float
    held: float = 0.0
    work: float = 0.0
    traffic: float = 0.0

    @property
    def error(self) -> float | None:
        """How far the estimate is from the measurement: -0.1 is 10 % too low."""
        return None if not self.measured else self.estimate / self.measured - 1

    @property
    def violated(self) -> float:
        """By how much the measurement is below the bound, 0 where it is not."""
        return max(0.0, 1 - self.measured / self.held) if self.measured and self.held else 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """What came out.

    Attributes:
        total_error: of the estimate of the whole step.
        median_error: the median over operators of 1 % of the time or more, without sign.
        within_10, within_25: the share of these operators whose estimate is so close.
        bound_violations: operators that were measured faster than their bound, by more than the noise.
        noise: the spread of the measured steps, or of the calibration where that is larger.
        error_bar: what the estimate of the whole may be off, from the calibration's noise and the operators that had no curve.
        loaded: how much slower the machine is than when it was calibrated; more than 20 % off there is no verdict.
        sound: False where calibration and run cannot be compared: a note says why, and there is no verdict.
    """

    total_error: float
    median_error: float
    within_10: float
    within_25: float
    bound_violations: int
    noise: float
    error_bar: float
    loaded: float
    sound: bool = True

    @property
    def verdict(self) -> bool:
        """Whether the numbers mean anything: the machine was as free as when it was calibrated, and ran as it did then."""
        return abs(self.loaded) <= LOADED and self.sound


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured step.

    Attributes:
        name, sizes, phase: what ran.
        rows: operators, in the order of the step.
        bound, estimate, measured: seconds of the whole.
        between: seconds outside operators: modules, Python, autograd.
        around: the estimate of it.
        modules: how many modules were called.
        pace: how many times as long as when they were calibrated kernels of the calibration took beside the run.
    """

    name: str
    sizes: Mapping[str, int]
    phase: str
    chip: Chip
    rows: tuple[Row, ...]
    bound: float
    estimate: float
    measured: float
    between: float
    around: float
    modules: int
    operators: int
    summary: Summary
    pace: Pace
    notes: tuple[str, ...] = ()


def clock_of(c: Calibration, patience: float = PATIENCE) -> QuietClock:
    """A clock that knows from the calibration what a quiet moment is, where it was made on this processor."""
    return QuietClock(c.numbers.get("pulse", 0.0) if c.about.get("cpu") == cpu_name() else 0.0, patience)


def measure(family: Family, chip: Chip, sizes: Mapping[str, int] | None = None, phase: str = "forward",
            optimizer: Optimizer | None = None, operators: bool = True,
            clock: QuietClock | None = None) -> Measurement:  # fmt: skip
    """Run a model and set its time beside the bound and the estimate.

    Args:
        family: the model; it is built for real, with its memory.
        chip: a calibrated one.
        sizes: values for its sizes, the base where left out.
        phase: "forward", "backward" (with forward) or "train" (with the optimizer's step).
        optimizer: for "train".
        operators: also time every operator in place.
        clock: where several points are measured, one that has its patience for all of them.

    Raises:
        ChipError: where the chip was not calibrated.
        TraceError: where the model does not run here.
    """
    c = calibration_of(chip)
    point = {**family.sizes, **(sizes or {})}
    with one_thread(c.threads):
        clock = clock or clock_of(c)
        before = pace(c, clock)
        model = subject(family, point, phase, optimizer)
        calls = model.record()
        run = _run(model, calls, c, clock, operators)
    found, usual = run.found, middle(before, run.after)
    today, fresh = at_pace(c, usual), run.fresh * c.numbers.get("fresh", 0.0)
    scale, between = _fitted(run.seconds, found.best * found.speed)
    parts = Estimator(today, rates_of(chip), run.fresh).all(calls, model.lines)
    each = [
        row_of(r, s if s is None else s * scale, of_it, chip, c, saved)
        for r, s, of_it, saved in zip(calls, run.seconds, parts, _fusable(calls, c), strict=True)
    ]
    rows = tuple(_now(row, found.speed) for row in _grouped(each))
    estimate = total(calls, (row.parts for row in each), model.leaves, today) / found.speed
    loaded = _busy(before.loaded, run.after.loaded, 1 / max(run.share, 0.01) - 1)
    summary = _summary(rows, estimate, found.best, max(found.spread, c.noise), loaded)
    summary = replace(summary, sound=not run.unlike and c.away <= AWAY)
    return Measurement(
        family.name, point, phase, chip, rows, sum(r.bound for r in rows), estimate, found.best, between / found.speed,
        max(0.0, estimate - sum(r.estimate for r in rows)), model.modules, len(calls), summary, usual.at_speed(found.speed),
        (*notes(c, loaded, run.share), *run.unlike, *asides(scale, fresh, found.best)),
    )  # fmt: skip


class _Run(NamedTuple):
    """What was timed.

    Attributes:
        found: the whole step.
        seconds: of every call, None where the profiler showed none.
        share: of a core's time that the run had.
        fresh: bytes of new pages in every step.
        after: the pace right after.
        unlike: why it cannot be compared with the calibration.
    """

    found: Timed
    seconds: Sequence[float | None]
    share: float
    fresh: float
    after: Pace
    unlike: list[str]


def _run(model: Subject, calls: Sequence[Recorded], c: Calibration, clock: QuietClock, operators: bool) -> _Run:
    wall, cpu, quiet = time.perf_counter(), time.process_time(), clock.calm
    found = timed(model.step, ROUNDS, AT_LEAST, MOST, clock, FURTHER)
    quiet = clock.calm - quiet
    share = (time.process_time() - cpu) / max(time.perf_counter() - wall, 1e-9)
    fresh = fresh_pages(model.step, found.best)
    seconds = in_place(model.step, calls, clock=clock) if operators else [None] * len(calls)
    after = pace(c, clock)
    if found.spread > FAR_APART:  # what made it so may be over by now
        found = better(found, timed(model.step, ROUNDS, AT_LEAST, MOST, clock))
    return _Run(found, seconds, share, fresh, after, unlike(c, quiet, found))


def _busy(before: float, after: float, shared: float) -> float:
    """How much slower the machine was: before and after the run, or by the share of the core that the run had.

    Below 0 where it was faster both times, so much that the calibration does not hold.
    """
    faster = max(before, after)
    return faster if faster < -LOADED and shared <= LOADED else max(min(before, after), shared)


def _fitted(seconds: Sequence[float | None], whole: float) -> tuple[float, float]:
    """What the operators' times are scaled by to fit into the whole step, and what is left between them."""
    inside = sum(s for s in seconds if s is not None)
    scale = min(1.0, whole / inside) if inside else 1.0
    return scale, max(0.0, whole - inside * scale)


def rates_of(chip: Chip) -> dict[str, float]:
    """FLOP/s of products by type, for the estimates of those that are not of float32."""
    return {k: float(v) for k, v in chip.matrix.items()}


def row_of(r: Recorded, measured: float | None, parts: Estimate, chip: Chip, c: Calibration, saved: float) -> Row:
    """One operator: its bound and estimate beside its measured seconds; `saved` is traffic that fusing would save."""
    cost, _ = cost_of(r.call, Conventions())
    work, traffic = _bounds(cost, r.call, chip, c)
    bound, binds = max(work, traffic), "compute" if work > traffic else "memory"
    short = bound - parts.kernel - parts.cold - parts.fresh
    if short > 0:  # no curve can be right that goes below what no kernel is faster than
        parts = replace(parts, kernel=parts.kernel + short, alike=parts.alike or short > SHORT * bound)
    if parts.call + parts.framework > parts.total / 2:
        binds = "overhead"
    path = re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", r.call.path)
    flops, nbytes = float(cost.flops), float(cost.nbytes)
    return Row(
        r.call.phase, path, r.call.name, 1, bound, parts.inside, measured, binds, parts, parts.alike, flops, nbytes,
        _evaluates(r.call, cost), min(saved, bound), 0.0, work, traffic,
    )  # fmt: skip


def _evaluates(call: Call, cost: Cost) -> bool:
    """Whether most of its numbers need a special function; a norm takes one root for each of its rows."""
    return cost.matmul == 0 and float(cost.special) >= max((float(t.numel) for t in call.outputs), default=1.0) / 2 > 0


def _fusable(calls: Sequence[Recorded], c: Calibration) -> list[float]:
    """For each call, the seconds of its traffic through results that only elementwise operators and reductions pass on."""
    makers: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    simple = [_is_simple(r.call) for r in calls]
    for i, r in enumerate(calls):
        for t in r.call.inputs:
            readers.setdefault(t.ref, []).append(i)
        for t in r.call.outputs:
            makers.setdefault(t.ref, i)
    out = [0.0] * len(calls)
    for ref, i in makers.items():
        reading = [k for k in readers.get(ref, []) if k > i]
        if not simple[i] or not reading or not all(simple[k] for k in reading):
            continue
        nbytes = next(float(t.nbytes) for t in calls[i].call.outputs if t.ref == ref)
        seconds = nbytes / bandwidth(c, nbytes)
        for k in (i, *reading):
            out[k] += seconds
    return out


def _is_simple(call: Call) -> bool:
    """Elementwise or a reduction: what a compiler puts into one kernel with its neighbours."""
    cost, _ = cost_of(call, Conventions())
    return (
        cost.status == "costed"
        and cost.matmul == 0
        and call.name not in ("embedding", "embedding_dense_backward", "cat", "index")
    )


def _bounds(cost: Cost, call: Call, chip: Chip, c: Calibration) -> tuple[float, float]:
    """The roofline times of a call, of its FLOPs and of its bytes: at the best bandwidth of a working set like its own."""
    try:
        t = times(cost, chip).at({})
    except ChipError:  # a type that has no rate here
        return 0.0, 0.0
    held = {t.ref: float(t.nbytes) for t in (*call.inputs, *call.outputs)}  # written in place, memory counts once
    memory = float(cost.nbytes) / fastest(c, sum(held.values())) if cost.nbytes != 0 else 0.0
    work = max(float(t.compute), float(t.vector))
    return work, memory


def _grouped(each: Sequence[Row]) -> tuple[Row, ...]:
    """Equal operators of one place as one row, in order."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in each:
        groups.setdefault((row.phase, row.path, row.op), []).append(row)
    return tuple(map(_together, groups.values()))


def _now(row: Row, speed: float) -> Row:
    """At the speed that the machine runs with now; a bound that memory sets rises with no slower clock."""
    seconds, bound = 1 / speed, 1 / max(1.0, speed)
    return replace(
        row, bound=row.bound * bound, held=row.held * bound, estimate=row.estimate * seconds, fusable=row.fusable * bound,
        work=row.work * bound, traffic=row.traffic * bound,
        measured=None if row.measured is None else row.measured * seconds,
        parts=replace(row.parts, **{k: getattr(row.parts, k) * seconds for k in PARTS}),
    )  # fmt: skip


def _together(rows: Sequence[Row]) -> Row:
    seen = [r for r in rows if r.measured is not None]
    share = sum(r.estimate for r in seen) / max(sum(r.estimate for r in rows), 1e-12)  # of those that the profiler showed
    measured, held = (
        (sum(r.measured or 0.0 for r in seen) / share, sum(r.bound for r in seen) / share) if share else (None, 0.0)
    )
    parts = Estimate(**{k: sum(getattr(r.parts, k) for r in rows) for k in PARTS})
    votes = {b: sum(r.estimate for r in rows if r.binds == b) for b in ("overhead", "memory", "compute")}
    return replace(
        rows[0], count=len(rows), bound=sum(r.bound for r in rows), estimate=parts.inside, parts=parts,
        measured=measured, held=held, binds=max(votes, key=lambda b: votes[b]),
        alike=any(r.alike for r in rows), special=rows[0].special, fusable=sum(r.fusable for r in rows),
        flops=sum(r.flops for r in rows), nbytes=sum(r.nbytes for r in rows),
        work=sum(r.work for r in rows), traffic=sum(r.traffic for r in rows),
    )  # fmt: skip


def _summary(rows: Sequence[Row], estimate: float, measured: float, noise: float, loaded: float) -> Summary:
    large = [abs(r.error) for r in rows if r.measured and r.error is not None and r.measured >= SHARE * measured]
    near, nearer = (sum(e <= limit for e in large) / max(len(large), 1) for limit in (0.25, 0.10))
    unsure = sum(r.estimate for r in rows if r.alike) / estimate if estimate else 0.0
    return Summary(
        estimate / measured - 1, statistics.median(large) if large else 0.0, nearer, near,
        sum(r.violated > max(noise, 0.02) for r in rows), noise, USUAL_ERROR + noise + unsure, loaded,
    )  # fmt: skip
