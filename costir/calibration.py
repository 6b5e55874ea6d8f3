"""What a machine was measured to do: times of operators over grids of sizes, and overheads. Part of a chip file. No torch here.

A curve is a table of seconds over a grid; between its points the logarithm of the time is linear in the logarithms of the
sizes. Below the first point it stays, but where a size counts equal parts of the work there are fewer of them. Beyond the last
what is more than the shortest goes on with its last slope, but grows no faster than the work does: where the last step left a
cache, the next will not leave it again.
"""

from __future__ import annotations

import bisect
import copy
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from costir.errors import ChipError

FORMAT = 7
SQUARED = ("side", "length", "width")  # axes with whose square the work grows; with the others it grows in proportion
WORK = 0.02  # at the least, of the shortest time of a curve: the rest is what any call takes
PARTS = ("rows", "heads", "channels", "groups", "length")  # axes that count equal parts, one computed after the other
MOST_THREADS = 4096
LARGEST = 1e18  # of its numbers: rates, for which that is far beyond any machine
USUAL_PULSES = (1e-7, 1e-2)  # seconds: of a pulse of any processor
SURFACE = ("bytes", "us")  # touched and passed between
AXES = {  # of curves of what is lost, by how their names begin; those of kernels are over their kernels' sizes
    "interrupted": SURFACE, "resumed": SURFACE, "node": SURFACE, "objects_": SURFACE, "aged_": SURFACE, "frame": ("bytes",),
    "turn_": ("others",), "streamed": ("m", "k", "pool"), "far_rows": ("columns",), "far_": ("pool",),
}  # fmt: skip
BANDWIDTH = "bandwidth_"  # and a working set: the name of a number


@dataclass(frozen=True)
class Curve:
    """Seconds over a grid.

    Attributes:
        axes: the names of the sizes.
        grid: for each axis, the values at which it was measured, ascending.
        seconds: at every point of the grid, the last axis fastest.
    """

    axes: tuple[str, ...]
    grid: tuple[tuple[float, ...], ...]
    seconds: tuple[float, ...]

    @functools.cached_property
    def _logs(self) -> tuple[list[list[float]], list[float]]:
        return [[math.log(x) for x in g] for g in self.grid], [math.log(s) for s in self.seconds]

    def at(self, *sizes: float) -> float:
        """Seconds at these sizes, one for each axis.

        Raises:
            ChipError: the curve is over another number of sizes: its file is damaged.
        """
        if len(sizes) != len(self.axes):
            over = ", ".join(self.axes)
            raise ChipError(
                f"a curve of the calibration is over {over}, not over {len(sizes)} sizes", "run costir calibrate again"
            )
        axes, _ = self._logs
        asked = [math.log(max(size, 1)) for size in sizes]
        inside = [min(x, axis[-1]) for x, axis in zip(asked, axes, strict=True)]
        base = self._inside(inside)
        beyond = [i for i, (x, axis) in enumerate(zip(asked, axes, strict=True)) if x > axis[-1] and len(axis) > 1]
        if not beyond:
            return self._parts(math.exp(base), sizes)
        least = (1 - WORK) * min(self._least, math.exp(base))  # of any call: it does not grow
        work, grown = math.exp(base) - least, 0.0
        for i in beyond:
            before = max(math.exp(self._inside([*inside[:i], axes[i][-2], *inside[i + 1 :]])) - least, WORK * least)
            slope = math.log(work / before) / (axes[i][-1] - axes[i][-2])
            grown += min(slope, 2.0 if self.axes[i] in SQUARED else 1.0) * (asked[i] - axes[i][-1])
        return self._parts(least + work * math.exp(min(grown, 700.0)), sizes)

    def _parts(self, seconds: float, sizes: Sequence[float]) -> float:
        """Of fewer parts than the first point has: what any call takes, and the rest in proportion."""
        least = self._least
        for size, grid, name in zip(sizes, self.grid, self.axes, strict=True):
            if name in PARTS and size < grid[0]:
                seconds = min(seconds, least + max(0.0, seconds - least) * max(size, 1) / grid[0])
        return seconds

    @functools.cached_property
    def _least(self) -> float:
        return min(self.seconds)

    def _inside(self, logs: Sequence[float]) -> float:
        """The logarithm of the time at a point of the grid's range."""
        axes, times = self._logs
        cells = [_cell(axis, x) for axis, x in zip(axes, logs, strict=True)]
        total = 0.0
        for corner in itertools.product((0, 1), repeat=len(cells)):
            weight, index = 1.0, 0
            for (low, share), side, axis in zip(cells, corner, axes, strict=True):
                weight *= share if side else 1 - share
                index = index * len(axis) + min(low + side, len(axis) - 1)
            if weight:
                total += weight * times[index]
        return total


def _cell(axis: Sequence[float], x: float) -> tuple[int, float]:
    """The grid cell of a value and how far it is along; below the first point at it."""
    if len(axis) == 1 or x <= axis[0]:
        return 0, 0.0
    low = min(bisect.bisect_right(axis, x) - 1, len(axis) - 2)
    return low, (x - axis[low]) / (axis[low + 1] - axis[low])


class _Named(dict[str, Any]):
    """What a file has by name; what it lacks is said in one sentence."""

    def __init__(self, where: str, kind: str, found: Mapping[str, Any]) -> None:
        super().__init__(found)
        self.where, self.kind = where, kind

    def __missing__(self, key: str) -> Any:
        raise ChipError(f"{self.where}: its calibration has no {self.kind} {key}", "run costir calibrate again")


@dataclass(frozen=True, eq=False)
class Calibration:
    """What was measured on one machine.

    Attributes:
        about: cpu, threads, torch, date, and what else says which machine it was; gpu, where it was that which was measured.
        noise: how much longer the median of repeated timings took than the best (0.05: 5 %).
        numbers: overheads in seconds, rates per second, bandwidths in bytes/s.
        curves: by the names of `measuring.kernels`.
    """

    about: Mapping[str, str]
    noise: float
    numbers: Mapping[str, float]
    curves: Mapping[str, Curve] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """How many threads it was measured with."""
        return int(self.about.get("threads", "1"))

    @property
    def envelope(self) -> list[tuple[int, float]]:
        """Working sets in bytes, ascending, and the bytes per second that no kernel was seen to exceed over as much memory."""
        known = {k.removeprefix(BANDWIDTH): v for k, v in self.numbers.items() if k.startswith(BANDWIDTH)}
        return sorted((int(k), v) for k, v in known.items())

    @property
    def away(self) -> float:
        """The share of the time, or of the timings, in which others had the core; 0 where that is not known."""
        return max(self.numbers.get(k, 0.0) for k in ("away", "shared"))

    def changed(self, curves: Mapping[str, Curve], numbers: Mapping[str, float]) -> Calibration:
        """The same with these curves and numbers; what it lacks is said in the same way."""
        both = copy.copy(self.curves), copy.copy(self.numbers)
        for old, new in zip(both, (curves, numbers), strict=True):
            old.update(new)  # type: ignore[attr-defined]
        return replace(self, curves=both[0], numbers=both[1])

    @property
    def gpu(self) -> str:
        """The GPU that it is of; empty where it is of a CPU."""
        return self.about.get("gpu", "")


def from_table(where: str, table: Any) -> Calibration | None:
    """The `[calibration]` table of a chip file; None where there is none.

    Raises:
        ChipError: where it is not as `to_table` writes it.
    """
    if not table:
        return None
    try:
        if int(table["format"]) != FORMAT:
            raise ChipError(
                f"{where}: its calibration has format {table['format']}, not {FORMAT}", "run costir calibrate again"
            )
        curves = _Named(where, "curve", {name: _curve(name, c) for name, c in table["curve"].items()})
        numbers = _Named(where, "number", {k: float(v) for k, v in table["number"].items()})
        about = {k: str(v) for k, v in table["about"].items()}
        if int(table["curves"]) != len(curves):
            raise ValueError(f"{len(curves)} curves of {table['curves']}")
        noise, threads = float(table["noise"]), int(about.get("threads", "1"))
        found = Calibration(about, noise, numbers, curves)
        sizes = found.envelope
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {str(error)[:60]}"
        raise ChipError(f"{where}: its calibration is damaged ({what})", "run costir calibrate again") from error
    if not sizes or not all(size > 0 and rate > 0 for size, rate in sizes):
        raise ChipError(f"{where}: its calibration has no bandwidth", "run costir calibrate again")
    shares = [numbers.get(k, 0.0) for k in ("lost", "away")]
    pulse = numbers.get("pulse", USUAL_PULSES[0])
    possible = (
        USUAL_PULSES[0] <= pulse <= USUAL_PULSES[1]
        and 0 <= noise < 100
        and 1 <= threads <= MOST_THREADS
        and all(share <= 1 for share in shares)
    )
    if not possible or not all(0 <= v <= LARGEST for v in numbers.values()):
        raise ChipError(f"{where}: its calibration has numbers that cannot be", "run costir calibrate again")
    return found


def _curve(name: str, c: Mapping[str, Any]) -> Curve:
    axes = tuple(c["axes"])
    wanted = next((known for start, known in AXES.items() if name.startswith(start)), axes)
    if not axes or axes != wanted:
        raise ValueError(f"{name} is over {', '.join(axes) or 'nothing'}")
    grid = tuple(tuple(int(x) for x in c[a]) for a in axes)
    seconds = tuple(float(x) * 1e-9 for x in c["ns"])
    if len(seconds) != math.prod(map(len, grid)) or not all(0 < s < 1e4 for s in seconds):
        raise ValueError("a curve has not one positive time for each point of its grid")
    if not all(0 < a < b for g in grid for a, b in itertools.pairwise(g)):
        raise ValueError("a grid is not ascending")
    return Curve(axes, grid, seconds)


def to_toml(c: Calibration) -> str:
    """The tables of a chip file."""
    lines = [
        "[calibration]",
        f"format = {FORMAT}",
        f"noise = {c.noise:.4f}",
        f"curves = {len(c.curves)}",
        "",
        "[calibration.about]",
    ]
    lines += [f"{k} = {_quoted(v)}" for k, v in c.about.items()]
    lines += ["", "[calibration.number]", *(f"{k} = {v:.5g}" for k, v in c.numbers.items())]
    for name, curve in c.curves.items():
        lines += ["", f"[calibration.curve.{name}]", f"axes = [{', '.join(_quoted(a) for a in curve.axes)}]"]
        lines += [f"{a} = {list(g)}" for a, g in zip(curve.axes, curve.grid, strict=True)]
        lines.append(f"ns = [{', '.join(str(max(1, round(s * 1e9))) for s in curve.seconds)}]")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    plain = "".join(ch if ch.isprintable() and ch not in '"\\' else " " for ch in text)
    return f'"{plain}"'
