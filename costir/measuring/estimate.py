"""How long each operator of a run should take on a calibrated machine: nothing here was fitted to any model. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from costir.calibration import Calibration
from costir.cost import cost_of
from costir.ir import Call, Conventions, Cost
from costir.measuring.lookup import VIEWS, Lookup, lookups
from costir.measuring.subject import Recorded

FRESH = 32 << 20  # bytes from which an allocation gets fresh pages from the system at every call (glibc's largest threshold)
LOOP = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of one call, and what they are for.

    Attributes:
        kernel: as timed alone, operands in cache where they fit, dispatch from Python included.
        call: the part of `kernel` that an empty operator takes: dispatch and allocation.
        cold: fetching weights that were not used recently.
        apart: code and small data that other operators' work has driven out of the caches since.
        fresh: writing into memory that the system has to give first.
        framework: what autograd, the backward engine or the optimizer's loop add around it.
        alike: another operator's curve stands in.
        around: the part of all these that is spent before and after the operator itself: the way from Python to it, the
            backward engine, the optimizer's loop.
    """

    kernel: float
    call: float = 0.0
    cold: float = 0.0
    fresh: float = 0.0
    framework: float = 0.0
    alike: bool = False
    apart: float = 0.0
    around: float = 0.0

    @property
    def total(self) -> float:
        """Seconds."""
        return self.kernel + self.cold + self.fresh + self.framework + self.apart

    @property
    def inside(self) -> float:
        """Seconds of the operator itself, as a profiler sees it."""
        return max(0.0, self.total - self.around)


class Estimator:
    """Estimates calls from one calibration."""

    def __init__(self, calibration: Calibration) -> None:
        self.c = calibration
        self._known: dict[tuple[str, tuple[float, ...]], float] = {}

    def seconds(self, found: Lookup) -> float:
        """A curve, read."""
        key = (found.curve, found.sizes)
        if key not in self._known:
            self._known[key] = self.c.curves[found.curve].at(*found.sizes)
        return self._known[key] * found.times

    def of(self, r: Recorded, cost: Cost | None = None) -> Estimate:
        """One call of a run.

        Args:
            r: the call, with where its memory was used last.
            cost: its cost, where it is known already.
        """
        call, numbers = r.call, self.c.numbers
        framework = self._framework(call, r.tracked)
        if call.name in VIEWS:
            return Estimate(numbers["view"], numbers["view"], framework=framework, around=numbers["view"] + framework)
        found = lookups(call, r.strides, cost or cost_of(call, Conventions())[0])
        found = [x if x.curve in self.c.curves else Lookup("unary", x.sizes[:1], x.times, True) for x in found]
        empty = min(self.c.curves["unary"].at(16), *(self.seconds(x) for x in found)) if found else numbers["view"]
        kernel = sum(self.seconds(x) for x in found) if found else empty
        apart = self._apart(r, found)
        alike = any(x.alike for x in found)
        around = min(empty, numbers.get("python", 0.0)) + (framework if call.phase != "forward" else 0.0)
        return Estimate(kernel, empty, self._cold(r, found), self._fresh(call), framework, alike, apart, around)

    def _apart(self, r: Recorded, found: list[Lookup]) -> float:
        """An optimizer's loop was timed as a loop: only what lies far apart is more."""
        curve = self.c.curves.get("interrupted")
        since = r.since + r.others * self.c.numbers.get("code", 0.0)
        if curve is None or since <= 0 or not found or (r.call.phase == "optimizer" and since < LOOP):
            return 0.0
        times = self.c.numbers.get(f"apart_{found[0].curve}", 1.0)
        return times * curve.at(
            min(since, curve.grid[0][-1])
        )  # all that was near is gone by then: more work drives out no more

    def _framework(self, call: Call, tracked: bool) -> float:
        numbers = self.c.numbers
        if call.phase == "optimizer":
            return numbers["optimizer"]
        if call.phase == "backward":
            return numbers["node"]
        return numbers["grad"] if tracked else 0.0

    def _cold(self, r: Recorded, found: list[Lookup]) -> float:
        """Memory that was used longer ago than when the operator was timed alone: the further back, the slower."""
        operands = dict.fromkeys(
            (t.ref, float(t.nbytes), back, False, t.role) for t, back in zip(r.call.inputs, r.far, strict=False)
        )
        results = [] if r.call.name.endswith("_") else [
            (t.ref, float(t.nbytes), back, True, t.role) for t, back in zip(r.call.outputs, r.out, strict=False)
        ]  # fmt: skip
        held = sum(nbytes for _, nbytes, *_ in (*operands, *results))
        product = bool(found) and found[0].curve.startswith("mm")
        rows = found[0].sizes if product else ()
        extra = 0.0
        for _, nbytes, back, written, role in (*operands, *results):
            if back <= held:
                continue
            if product and not written and role in ("weight", "state", "grad"):
                extra += self._streamed(nbytes, back, min(rows[0], rows[1]), rows[2])
            else:
                slower = 1 / bandwidth(self.c, back) - 1 / bandwidth(self.c, held)
                extra += (2 if written else 1) * nbytes * max(0.0, slower)  # a line is read before it is written
        return extra

    def _streamed(self, nbytes: float, back: float, rows: float, length: float) -> float:
        """Weights of a product, in rows of a length, which hides some of their way behind its work."""
        curve = self.c.curves.get("streamed")
        if curve is None:
            return 0.0
        first, last, longest = curve.grid[2][0], curve.grid[2][-1], curve.grid[1][-1]
        # How they were left when it was timed alone, and how they are now; longer rows come no faster.
        near, far = (curve.at(rows, min(length, longest), size) for size in (max(first, nbytes), min(back, last)))
        return nbytes * max(0.0, far - near) / first

    def _fresh(self, call: Call) -> float:
        made = [t for t in call.outputs if float(t.nbytes) >= FRESH]
        return 0.0 if call.name.endswith("_") else sum(float(t.nbytes) for t in made) * self.c.numbers["fresh"]


def bandwidth(c: Calibration, working_set: float) -> float:
    """The envelope at a working set in bytes: no kernel was seen to move more per second over as much memory."""
    sizes = sorted(int(k.rpartition("_")[2]) for k in c.numbers if k.startswith("bandwidth_"))
    fits = [s for s in sizes if s <= working_set]
    return c.numbers[f"bandwidth_{fits[-1] if fits else sizes[0]}"]


def total(estimates: Iterable[Estimate], modules: int, leaves: int, c: Calibration) -> float:
    """Seconds of a whole step: its operators one after the other, and what calls them.

    Args:
        estimates: of the operators.
        modules: how many modules are called.
        leaves: how many parameters get a gradient; 0 for a forward pass.
        c: the calibration.
    """
    around = modules * c.numbers["module"] + leaves * c.numbers["leaf"] + (c.numbers["start"] if leaves else 0.0)
    return math.fsum(e.total for e in estimates) + around
