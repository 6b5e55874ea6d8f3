"""What collectives were measured to take: for each kind and number of devices, latency and bandwidth. Part of a chip file.

The time of a payload of V bytes is `latency + V / bandwidth`, one such line for all sizes or one for small payloads and one for
large ones. The payload is the whole array: what all_gather leaves on each device, what each device puts into reduce_scatter,
all_reduce and broadcast, and what all devices of the group hold together before all_to_all. No torch here.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from costir.errors import ChipError
from costir.units import si

FORMAT = 1
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
GOOD_FIT = 0.10  # a line that is nowhere further off needs no second one
BETTER = 0.4  # a second line must make the error smaller by this factor, or it only follows the noise
FEWEST = 3  # points that a line is drawn through, where there are two lines

Point = tuple[int, float]  # payload bytes, seconds
_AGAIN = "run costir calibrate --collectives again"


@dataclass(frozen=True, slots=True)
class Line:
    """`latency + V / bandwidth`, in seconds, bytes and bytes/s; without a bandwidth the time is the same for every V."""

    latency: float
    bandwidth: float | None

    def at(self, payload: float) -> float:
        """Seconds."""
        return self.latency + (payload / self.bandwidth if self.bandwidth else 0.0)


@dataclass(frozen=True, slots=True)
class Fit:
    """One kind of collective over a number of devices.

    Attributes:
        kind: "all_reduce", ...
        devices: in a group.
        lines: one, or one for small and one for large payloads.
        until: the payload in bytes up to which the first of two lines holds, else None.
        points: what was measured, payloads ascending.
    """

    kind: str
    devices: int
    lines: tuple[Line, ...]
    until: int | None
    points: tuple[Point, ...]

    def at(self, payload: float) -> float:
        """Seconds; never less than for a smaller payload."""
        if self.until is None or payload <= self.until:
            return self.lines[0].at(payload)
        return max(self.lines[1].at(payload), self.lines[0].at(self.until))

    @property
    def worst(self) -> float:
        """How far the fit is from a measured point at most: 0.1 is 10 %."""
        return max(abs(self.at(v) / t - 1) for v, t in self.points)

    @property
    def median(self) -> float:
        """The same in the median over the points."""
        return statistics.median(abs(self.at(v) / t - 1) for v, t in self.points)


@dataclass(frozen=True, eq=False)
class Collectives:
    """What was measured with one set of processes.

    Attributes:
        about: backend, device, processes, hosts, cpu, torch, date.
        noise: how much longer the median of repeated timings took than the best.
        slower: how many times longer a kernel takes while all processes on the machine compute: "compute", "memory".
        missing: kinds that the backend does not do, with what it said.
        fits: by kind and number of devices.
    """

    about: Mapping[str, str]
    noise: float
    slower: Mapping[str, float]
    missing: Mapping[str, str]
    fits: tuple[Fit, ...] = field(default=())

    @property
    def groups(self) -> tuple[int, ...]:
        """The numbers of devices that were measured."""
        return tuple(sorted({f.devices for f in self.fits}))

    def fit(self, kind: str, devices: int) -> Fit:
        """The fit of a kind over a number of devices.

        Raises:
            ChipError: where it was not measured; nothing is guessed from others.
        """
        for f in self.fits:
            if (f.kind, f.devices) == (kind, devices):
                return f
        if kind in self.missing:
            raise ChipError(
                f"{kind} was not measured: {self.about.get('backend', 'the backend')} said {self.missing[kind]!r}",
                "choose a parallelism that does not need it, or measure another backend",
            )
        if kind not in KINDS:
            raise ChipError(f"{kind[:40]} was not measured", f"measured are {', '.join(KINDS)}")
        has = ", ".join(str(f.devices) for f in self.fits if f.kind == kind)
        raise ChipError(
            f"{kind} over {devices} devices was not measured" + (f", only over {has}" if has else ""),
            f"run costir calibrate --collectives with {devices} processes",
        )

    def seconds(self, kind: str, payload: float, devices: int) -> float:
        """How long a collective takes; nothing for one device.

        Raises:
            ChipError: as `fit` does.
        """
        return 0.0 if devices == 1 else self.fit(kind, devices).at(payload)


# --------------------------------------------------------------------------------------------------------------- fitting


def fitted(kind: str, devices: int, points: Sequence[Point]) -> Fit:
    """Latency and bandwidth by least squares of relative errors; a second line where one is not close and two are closer.

    Args:
        kind, devices: what was measured.
        points: payloads in bytes and seconds, two or more different payloads.
    """
    known = tuple(sorted(points))
    best = Fit(kind, devices, (_line(known),), None, known)
    if best.worst <= GOOD_FIT:
        return best
    for i in range(FEWEST, len(known) - FEWEST + 1):
        low, high = _line(known[:i]), _line(known[i:])
        found = Fit(kind, devices, (low, high), _border(low, high, known[i - 1][0], known[i][0]), known)
        if _squares(found) < _squares(best) * (BETTER**2 if best.until is None else 1.0):
            best = found
    return best


def _line(points: Sequence[Point]) -> Line:
    """The line with the least sum of squared relative errors, with no negative latency and no negative bandwidth."""
    ones = [1 / t for _, t in points]  # relative: each point's residual is divided by its time
    sizes = [v / t for v, t in points]
    aa, ab, bb = _dot(ones, ones), _dot(ones, sizes), _dot(sizes, sizes)
    a, b = sum(ones), sum(sizes)
    det = aa * bb - ab * ab
    latency, slope = (a * bb - b * ab) / det, (b * aa - a * ab) / det
    if latency < 0:
        latency, slope = 0.0, b / bb
    if slope <= 0:
        return Line(a / aa, None)
    return Line(latency, 1 / slope)


def _dot(x: Sequence[float], y: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def _squares(fit: Fit) -> float:
    return sum((fit.at(v) / t - 1) ** 2 for v, t in fit.points)


def _border(low: Line, high: Line, last: int, first: int) -> int:
    """Where the first line ends: where both cross, if that is between their points, else in the middle by ratio."""
    slopes = (1 / low.bandwidth if low.bandwidth else 0.0), (1 / high.bandwidth if high.bandwidth else 0.0)
    if slopes[0] != slopes[1]:
        cross = (high.latency - low.latency) / (slopes[0] - slopes[1])
        if last <= cross < first:
            return round(cross)
    return round(math.sqrt(last * first))


# -------------------------------------------------------------------------------------------------------------- the file


def from_table(where: str, table: Any) -> Collectives | None:
    """The `[collectives]` table of a chip file; None where there is none.

    Raises:
        ChipError: where it is not as `to_toml` writes it.
    """
    if not table:
        return None
    try:
        if int(table["format"]) != FORMAT:
            raise ChipError(f"{where}: its collectives have format {table['format']}, not {FORMAT}", _AGAIN)
        texts = [{str(k): str(v) for k, v in table.get(name, {}).items()} for name in ("about", "missing")]
        slower = {str(k): float(v) for k, v in table.get("slower", {}).items()}
        fits = tuple(_fit(f) for f in table.get("fit", []))
        found = Collectives(texts[0], float(table["noise"]), slower, texts[1], fits)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"{type(error).__name__}: {str(error)[:60]}"
        raise ChipError(f"{where}: its collectives are damaged ({what})", _AGAIN) from error
    if not all(0 < s < 1e6 for s in slower.values()) or not 0 <= found.noise < 1e3:
        raise ChipError(f"{where}: its collectives have numbers that cannot be", _AGAIN)
    return found


def _fit(t: Mapping[str, Any]) -> Fit:
    kind, devices = str(t["kind"]), int(t["devices"])
    rates = [None if math.isinf(b) else b for b in map(float, t["bandwidth"])]
    lines = tuple(Line(float(a), b) for a, b in zip(t["latency"], rates, strict=True))
    until = int(t["until"]) if "until" in t else None
    points = tuple((int(v), float(s) * 1e-9) for v, s in zip(t["bytes"], t["ns"], strict=True))
    if kind not in KINDS or devices < 2 or len(lines) != (1 if until is None else 2) or len(points) < 2:
        raise ValueError("a fit is not complete")
    if not all(0 <= x.latency < 1e4 and (x.bandwidth is None or 0 < x.bandwidth < 1e18) for x in lines):
        raise ValueError("a latency or a bandwidth cannot be")
    if not all(0 < v < w for (v, _), (w, _) in pairwise(points)) or not all(0 < s < 1e4 for _, s in points):
        raise ValueError("points are not ascending and positive")
    return Fit(kind, devices, lines, until, points)


def to_toml(c: Collectives) -> str:
    """The tables of a chip file."""
    lines = ["[collectives]", f"format = {FORMAT}", f"noise = {c.noise:.4f}", "", "[collectives.about]"]
    lines += [f"{k} = {_quoted(v)}" for k, v in c.about.items()]
    lines += ["", "[collectives.slower]", *(f"{k} = {v:.4g}" for k, v in c.slower.items())]
    if c.missing:
        lines += ["", "[collectives.missing]", *(f"{k} = {_quoted(v)}" for k, v in c.missing.items())]
    for f in c.fits:
        lines += ["", "[[collectives.fit]]", f'kind = "{f.kind}"', f"devices = {f.devices}"]
        lines += [f"until = {f.until}"] if f.until is not None else []
        lines.append(f"latency = [{', '.join(f'{x.latency:.5g}' for x in f.lines)}]")
        lines.append(f"bandwidth = [{', '.join(f'{x.bandwidth:.5g}' if x.bandwidth else 'inf' for x in f.lines)}]")
        lines.append(f"bytes = [{', '.join(str(v) for v, _ in f.points)}]")
        lines.append(f"ns = [{', '.join(str(max(1, round(t * 1e9))) for _, t in f.points)}]")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    plain = "".join(ch if ch.isprintable() and ch not in '"\\' else " " for ch in text)
    return f'"{plain}"'


def split(text: str) -> tuple[str, str]:
    """The text of a chip file without its collectives, and these."""
    others: list[str] = []
    ours: list[str] = []
    into = others
    for line in text.splitlines(keepends=True):
        if re.match(r"\s*\[", line):
            into = ours if re.match(r"\s*\[\[?\s*collectives\s*[.\]]", line) else others
        into.append(line)
    return "".join(others).rstrip() + "\n", "".join(ours)


def described(fit: Fit) -> str:
    """A fit in words: "latency 100 us, 1.5 GB/s"."""
    each = [
        f"latency {si(line.latency, 's')}, {si(line.bandwidth, 'B/s') if line.bandwidth else 'for every size'}"
        for line in fit.lines
    ]
    return each[0] if fit.until is None else f"{each[0]} up to {si(fit.until, 'B')}; {each[1]} above"
