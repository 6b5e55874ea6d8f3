"""The critical size as it is measured: where the two straight parts of the curve of time over size cross."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costir.chip import Chip
from costir.errors import SizeError
from costir.load.family import Family
from costir.measuring.estimate import bandwidth
from costir.measuring.measure import Measurement, calibration_of, measure

ENDS = 3  # points at each end that make a straight part


@dataclass(frozen=True, slots=True)
class Knee:
    """A measured critical size.

    Attributes:
        unknown: the size that was swept.
        points: (size, seconds), ascending.
        value: where the lines through the first and the last points cross, in log-log; None where they do not.
    """

    unknown: str
    points: tuple[tuple[int, float], ...]
    value: float | None
    measurements: tuple[Measurement, ...]


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
    found = [measure(family, chip, {**base, unknown: v}, phase, rounds=9, operators=False) for v in swept]
    points = tuple((v, m.measured) for v, m in zip(swept, found, strict=True))
    return Knee(unknown, points, crossing(points), tuple(found))


def weights_bandwidth(chip: Chip, nbytes: float) -> float:
    """Bytes/s from where so many bytes of weights lie: the cache that holds them, or the main memory."""
    return bandwidth(calibration_of(chip), nbytes)


def crossing(points: Sequence[tuple[float, float]]) -> float | None:
    """Where the line through the first points and the line through the last ones cross, on logarithmic axes."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    (a, b), (c, d) = _line(logs[:ENDS]), _line(logs[-ENDS:])
    if abs(c - a) < 0.2:
        return None
    return math.exp((b - d) / (c - a))


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope and intercept of the least squares line."""
    n = len(points)
    mx, my = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    below = sum((x - mx) ** 2 for x, _ in points)
    slope = sum((x - mx) * (y - my) for x, y in points) / below if below else 0.0
    return slope, my - slope * mx
