"""What the lesson's experiments give: one record per row, and the experiment around them. No torch here.

Times are seconds, work is FLOPs, traffic is bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MEMORY = "memory"  # beyond all caches
WAYS = ("separate", "together")


@dataclass(frozen=True, slots=True)
class _Timed:
    """Seconds, predicted and measured."""

    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Measured over predicted: above 1 it took longer."""
        return self.measured / self.predicted


@dataclass(frozen=True, slots=True)
class Product(_Timed):
    """A product of two n x n matrices; `peak` is the calibrated FLOP/s, intensity is FLOPs per byte."""

    n: int
    flops: float
    intensity: float
    peak: float

    @property
    def rate(self) -> float:
        """FLOP/s."""
        return self.flops / self.measured

    @property
    def share(self) -> float:
        """Of the peak."""
        return self.rate / self.peak


@dataclass(frozen=True, slots=True)
class Scaling(_Timed):
    """An array multiplied in place.

    Attributes:
        elements: of the array.
        level: the first memory that holds it.
        moved: bytes read and written.
        best: bytes/s that no kernel was seen to exceed over so much memory.
    """

    elements: int
    level: str
    moved: float
    best: float

    @property
    def rate(self) -> float:
        """Bytes/s."""
        return self.moved / self.measured


@dataclass(frozen=True, slots=True)
class Way(_Timed):
    """One way to compute something.

    Attributes:
        passes: how often memory of the size of the result is read or written.
        special: the share of the predicted time that special functions take beyond their traffic.
        fresh: the share for writing into pages that the system has to give first.
        call: the share for the calls themselves.
    """

    passes: float
    special: float
    fresh: float
    call: float


@dataclass(frozen=True, slots=True)
class Fusion:
    """The same result by operators one after the other and by one kernel; predictions and measurement are ratios of times."""

    case: str
    elements: int
    separate: Way
    together: Way

    @property
    def by_passes(self) -> float:
        """What the ratio would be if passes over memory were all that takes time."""
        return self.separate.passes / self.together.passes

    @property
    def predicted(self) -> float:
        """The ratio by the calibration."""
        return self.separate.predicted / self.together.predicted

    @property
    def measured(self) -> float:
        """The measured ratio."""
        return self.separate.measured / self.together.measured

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted


@dataclass(frozen=True, slots=True)
class Step(_Timed):
    """A training step.

    Attributes:
        size: the batch or the width.
        operators: how many run, views among them.
        flops, matmul: FLOPs of all operators, and of products alone.
        overhead: the share of the predicted time that calls take, whatever they compute.
        peak: FLOP/s of products.
    """

    size: int
    operators: int
    flops: float
    matmul: float
    overhead: float
    peak: float

    @property
    def share(self) -> float:
        """Of the matmul peak."""
        return self.matmul / self.measured / self.peak


Row = Product | Scaling | Fusion | Step


@dataclass(frozen=True, slots=True)
class Demo:
    """One experiment.

    Attributes:
        name: one of DEMOS.
        rows: one for each size.
        sizes: what the rows have in common.
        formulas: what costir says in closed form, by name.
        loaded: how much slower a reference kernel was than when it was calibrated, before or after, the worse; below 0: faster.
        core: the share of the time for which this process had a core; the rest was other processes'.
        differs: what is not as it was calibrated: "cpu" or "torch" to (then, now).
        busy: "slower", "faster" or "shared" where the machine was too unlike its calibration to compare with it, else "".
    """

    name: str
    rows: tuple[Row, ...]
    sizes: Mapping[str, int]
    formulas: Mapping[str, str]
    loaded: float
    core: float
    differs: Mapping[str, tuple[str, str]]
    busy: str

    @property
    def valid(self) -> bool:
        """Whether the machine is the calibrated one, as free as it was then: only then is there a verdict."""
        return not self.busy and not self.differs


def doubled(points: Sequence[tuple[float, float]]) -> float | None:
    """The size at which the time is twice that at the first one, on straight lines in log-log; None where it never is."""
    limit = 2 * points[0][1]
    for (x, t), (y, u) in itertools.pairwise(points):
        if t <= limit < u:
            return float(x * (y / x) ** (math.log(limit / t) / math.log(u / t)))
    return None
