"""Which splits of devices a traced program can have, what each takes, and why others cannot be."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from costir.analysis import Analysis
from costir.errors import ChipError, CostirError
from costir.fewest import highest
from costir.hardware import Chip
from costir.ir import Constraint, condition_text
from costir.lifting.peaks import Peak
from costir.network import Wiring
from costir.splits import Array, Placement, Timed, factored, placements
from costir.symbolic import compile_many, divisibility, evaluate, size

Flags = npt.NDArray[np.bool_]
Lengths = npt.NDArray[np.float64]  # a row a split, a column an axis


@dataclass(frozen=True)
class Program:
    """A model that was traced under one combination of strategies, with the lengths of its axes among the sizes.

    Attributes:
        strategies: their names. axes: their axes, the outermost first. batch_axes: those that divide the batch.
        parallel: what `--parallel` takes.
        analysis: at short axes; with its other regimes.
    """

    strategies: tuple[str, ...]
    axes: tuple[str, ...]
    batch_axes: tuple[str, ...]
    parallel: str
    analysis: Analysis

    @property
    def words(self) -> str:
        """The strategies: "fsdp, tp"."""
        return ", ".join(self.strategies) or "one device"

    @cached_property
    def regimes(self) -> tuple[Analysis, ...]:
        """The regimes of the model, that of the base sizes first."""
        return (self.analysis, *self.analysis.others)

    @cached_property
    def memories(self) -> tuple[tuple[Peak, ...], ...]:
        """The moments that may be the peak, of each regime; () where memory is not followed."""
        return tuple(_peaks(a) for a in self.regimes)

    def points(self, lengths: Lengths, point: Mapping[str, int]) -> dict[str, Array]:
        """The sizes of a model with the lengths of the axes, as arrays."""
        return {**{n: np.asarray(float(v)) for n, v in point.items()},
                **{a: lengths[:, i] for i, a in enumerate(self.axes)}}  # fmt: skip


def _peaks(analysis: Analysis) -> tuple[Peak, ...]:
    try:
        return analysis.memory.peaks
    except CostirError:
        return ()


@dataclass(frozen=True)
class Outcome:
    """What splits of one program take; arrays have an entry a split.

    Attributes:
        program: of which. lengths: the devices along each of its axes.
        broken: for each split, the condition that it does not meet, or None.
        regime: which of the program's regimes holds.
        seconds: of a step, NaN where the split cannot be. times: by what binds.
        bytes: at the peak; NaN where memory is not followed.
        laid: which placement is the fastest, and the lengths of its axes.
    """

    program: Program
    lengths: Lengths
    broken: tuple[Constraint | None, ...]
    regime: npt.NDArray[np.int64]
    seconds: Array
    times: Mapping[str, Array]
    bytes: Array
    laid: tuple[tuple[Timed, tuple[int, ...]] | None, ...]


class Search:
    """A program on a chip in every placement that the chip can carry.

    Raises:
        ChipError: where there is none.
    """

    def __init__(self, program: Program, chip: Chip, wiring: Wiring, overlap: str) -> None:
        self.program, self.chip = program, chip
        self.timed: list[list[Timed]] = [[] for _ in program.regimes]
        problem: ChipError | None = None
        for where in self._placements(wiring):
            try:
                found = [Timed(a.costed, chip, where, wiring, overlap) for a in program.regimes]
            except ChipError as error:  # more axes than a torus has; a mesh that needs a link which is not there
                problem = problem or error
                continue
            for mine, timed in zip(self.timed, found, strict=True):
                mine.append(timed)
        if problem is not None and not self.timed[0]:
            raise problem

    def _placements(self, wiring: Wiring) -> tuple[Placement, ...]:
        p = self.program
        return placements(self.chip, p.axes, p.batch_axes, wiring) if p.axes else (Placement((), ()),)

    def run(self, lengths: Lengths, point: Mapping[str, int]) -> Outcome:
        """All of these splits at these sizes of the whole model."""
        count = len(lengths)
        broken: list[Constraint | None] = [None] * count
        regime = np.full(count, -1)
        for i, analysis in enumerate(self.program.regimes):
            met, first = met_by(analysis.constraints, self.program.points(lengths, point), count)
            regime = np.where((regime < 0) & met, i, regime)
            if i == 0:
                broken = first
        broken = [None if r >= 0 else b for r, b in zip(regime, broken, strict=True)]
        seconds, times, laid = self._times(lengths, point, regime, broken)
        held = np.full(count, np.nan)
        for i, peaks in enumerate(self.program.memories):
            if peaks:
                held = np.where(regime == i, highest(peaks, self.program.points(lengths, point), count), held)
        return Outcome(self.program, lengths, tuple(broken), regime, seconds, times, held, tuple(laid))

    def _times(self, lengths: Lengths, point: Mapping[str, int], regime: npt.NDArray[np.int64],
               broken: list[Constraint | None]) -> tuple[Array, dict[str, Array], list[Any]]:  # fmt: skip
        """The fastest placement of each split."""
        best = np.full(len(lengths), np.nan)
        times: dict[str, Array] = {}
        laid: list[tuple[Timed, tuple[int, ...]] | None] = [None] * len(lengths)
        refused: list[Constraint | None] = [None] * len(lengths)
        for i, several in enumerate(self.timed):
            mine = np.flatnonzero(regime == i)
            for timed in several:
                rows, parts = parted(timed.where, self.program.axes, lengths[mine])
                where = mine[rows]
                if not len(where):
                    continue
                at = {
                    **self.program.points(lengths[where], point),
                    **{p: parts[:, k] for k, p in enumerate(timed.where.parted)},
                }
                met, first = met_by(timed.constraints, at, len(where))
                for k, c in zip(where, first, strict=True):
                    refused[k] = refused[k] or c
                took, units = timed.seconds({n: np.broadcast_to(v, met.shape)[met] for n, v in at.items()})
                for name in units:
                    times.setdefault(name, np.zeros(len(lengths)))
                for j, k in enumerate(np.flatnonzero(met)):
                    split = where[k]
                    if np.isnan(best[split]) or took[j] < best[split] * (1 - 1e-12):
                        best[split] = took[j]
                        laid[split] = timed, tuple(int(x) for x in parts[k])
                        for name in times:
                            times[name][split] = units[name][j] if name in units else 0.0
        for k, c in enumerate(refused):
            if laid[k] is None and regime[k] >= 0:
                broken[k] = c
        return best, times, laid


def met_by(constraints: Sequence[Constraint], at: Mapping[str, Any], count: int) -> tuple[Flags, list[Constraint | None]]:
    """Where all conditions are met, and the first that is not."""
    met = np.ones(count, dtype=bool)
    first: list[Constraint | None] = [None] * count
    if constraints:
        names = sorted({str(s) for c in constraints for s in c.condition.free_symbols})
        found = compile_many([c.condition for c in constraints], names)(*(at[n] for n in names))
        for c, x in zip(constraints, found, strict=True):
            holds = np.broadcast_to(np.asarray(x, dtype=bool), (count,))
            for k in np.flatnonzero(met & ~holds):
                first[k] = c
            met = met & holds
    return met, first


def peak_at(peaks: Sequence[Peak], values: Mapping[str, int]) -> Peak:
    """The moment that holds most at a point."""
    there = [p for p in peaks if all(values[n] >= v for n, v in p.least.items())]
    return max(there, key=lambda p: int(evaluate(p.total, {size(n): v for n, v in values.items()})))


def parted(where: Placement, axes: Sequence[str], lengths: Lengths) -> tuple[npt.NDArray[np.int64], Lengths]:
    """The lengths of the parts of each axis: which split each row is of, and the rows in the order of `where.parted`."""
    columns = [axes.index(a) for a in where.axes]
    if all(n == 1 for n in where.spread):
        return np.arange(len(lengths)), lengths[:, columns]
    rows, parts = [], []
    for k, row in enumerate(lengths):
        choices = [_rising(int(row[c]), n) for c, n in zip(columns, where.spread, strict=True)]
        for chosen in itertools.product(*choices):
            rows.append(k)
            parts.append([x for part in chosen for x in part])
    return np.array(rows, dtype=np.int64), np.array(parts, dtype=float).reshape(len(rows), len(where.parted))


def _rising(length: int, axes: int) -> list[tuple[int, ...]]:
    """The lengths of so many axes that multiply to one, in rising order, for order does not matter."""
    return [f for f in factored(length, axes) if list(f) == sorted(f)]


def every(program: Program, devices: int) -> Lengths:
    """All lengths of a program's axes that multiply to a number of devices."""
    found = list(factored(devices, len(program.axes))) if program.axes else [()] * (devices == 1)
    return np.array(found, dtype=float).reshape(len(found), len(program.axes))


def alone(program: Program, axis: str, point: Mapping[str, int], most: int) -> list[int]:
    """The lengths of an axis up to `most` that meet all conditions in which it is the only axis."""
    lengths = np.arange(2, most + 1, dtype=float)
    kept = np.zeros(len(lengths), dtype=bool)
    for analysis in program.regimes:
        mine = [c for c in analysis.constraints if {str(s) for s in c.condition.free_symbols} & {*program.axes} == {axis}]
        at = {**{n: np.asarray(float(v)) for n, v in point.items()}, axis: lengths}
        kept |= met_by(mine, at, len(lengths))[0]
    return [int(x) for x in lengths[kept]]


def words_of(c: Constraint, point: Mapping[str, int]) -> str:
    """A condition that splits break, with the values of the sizes in it: "B % fsdp == 0 (B = 2048)"."""
    text = condition_text(c.condition)
    known = ", ".join(f"{n} = {point[n]}" for n in point if size(n) in c.condition.free_symbols)
    return f"{text}{f' ({known})' if known else ''}"


def uneven(c: Constraint) -> bool:
    """Whether the condition says that shards are even; that nodes are full is said of the links."""
    return not c.source and (divisibility(c.condition) is not None or " % " in condition_text(c.condition))
