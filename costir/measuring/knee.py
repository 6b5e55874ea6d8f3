"""The critical size as it is measured: where the two straight parts of the curve of time over size cross."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costir.chip import Chip
from costir.errors import SizeError
from costir.hardware import calibration_of
from costir.load.family import Family
from costir.measuring.envelope import bandwidth
from costir.measuring.measure import Measurement, clock_of, measure

ENDS = 3  # points at each end that make a straight part
PATIENCE = 20.0  # seconds for waiting for quiet moments
BENT = 0.25  # of a slope: further from a whole number it is not straight


@dataclass(frozen=True, slots=True)
class Knee:
    """A measured critical size.

    Attributes:
        unknown: the size that was swept.
        points: (size, seconds), ascending.
        value: where the curve's two parts cross, in log-log; None where it has only one.
        straight: both parts are; else it is where the lines cross that touch the curve from below.
        measurements: at the points.
    """

    unknown: str
    points: tuple[tuple[int, float], ...]
    value: float | None
    straight: bool
    measurements: tuple[Measurement, ...]

    @property
    def solved(self) -> float | None:
        """Where the two parts of the estimated curve cross: from the calibration alone."""
        return crossing([(size, m.estimate) for (size, _), m in zip(self.points, self.measurements, strict=True)])[0]


def knee(family: Family, chip: Chip, unknown: str, around: float, sizes: Mapping[str, int] | None = None,
         phase: str = "forward") -> Knee:  # fmt: skip
    """Measure a model at sizes from 1 to far beyond the expected critical one.

    Args:
        family, chip, sizes, phase: as for `measure`.
        unknown: the size to sweep.
        around: the solved value.

    Raises:
        SizeError: where the model has no such size.
    """
    base = {**family.sizes, **(sizes or {})}
    if unknown not in base:
        raise SizeError(f"{family.name} has no size {unknown!r} to sweep", f"sizes: {', '.join(base)}")
    top = 2 ** max(5, math.ceil(math.log2(max(around, 1.0))) + 4)
    swept = [2**i for i in range(int(math.log2(top)) + 1)]
    clock = clock_of(calibration_of(chip), PATIENCE)
    found = [measure(family, chip, {**base, unknown: v}, phase, operators=False, clock=clock) for v in swept]
    points = tuple((v, m.measured) for v, m in zip(swept, found, strict=True))
    return Knee(unknown, points, *crossing(points), tuple(found))


def weights_bandwidth(chip: Chip, nbytes: float) -> float:
    """Bytes/s from where so many bytes of weights lie: the cache that holds them, or the main memory."""
    return bandwidth(calibration_of(chip), nbytes)


def crossing(points: Sequence[tuple[float, float]]) -> tuple[float | None, bool]:
    """Where the two parts of a curve cross on logarithmic axes, and whether both are straight.

    Straight: the line through the first points is flat, and that through the last ones rises with a whole power of the size.
    Where a library does badly between, they are not; then it is where the two lines cross that touch the curve from below: a
    flat one through the fastest run, and one with that power through the run that does most per second. None where that is at
    an end, so that there are no two parts.
    """
    logs = [(math.log(x), math.log(y)) for x, y in points]
    (a, b), (c, d) = _line(logs[:ENDS]), _line(logs[-ENDS:])
    power = max(1, round(c))
    if abs(a) <= BENT and abs(c - power) <= BENT:
        return math.exp((b - d) / (c - a)), True
    flat, steep = min(y for _, y in logs), min(y - power * x for x, y in logs)
    value = math.exp((flat - steep) / power)
    return (value if 2 * points[0][0] < value < points[-1][0] / 2 else None), False


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope and intercept of the least squares line."""
    n = len(points)
    mx, my = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    below = sum((x - mx) ** 2 for x, _ in points)
    slope = sum((x - mx) * (y - my) for x, y in points) / below if below else 0.0
    return slope, my - slope * mx
