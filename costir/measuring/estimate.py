"""How long each operator of a run should take on a calibrated machine: nothing here was fitted to any model. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from costir.calibration import Calibration
from costir.cost import cost_of
from costir.ir import Call, Conventions, Cost
from costir.measuring.lookup import VIEWS, Lookup, Strides, lookups

FRESH = 32 << 20  # bytes from which an allocation gets fresh pages from the system at every call (glibc's largest threshold)
LINE = 64


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of one call, and what they are for.

    Attributes:
        kernel: as timed alone, operands in cache where they fit, dispatch from Python included.
        call: the part of `kernel` that an empty operator takes: dispatch and allocation.
        cold: fetching weights that were not used recently.
        fresh: writing into memory that the system has to give first.
        framework: what autograd, the backward engine or the optimizer's loop add around it.
        alike: another operator's curve stands in.
    """

    kernel: float
    call: float = 0.0
    cold: float = 0.0
    fresh: float = 0.0
    framework: float = 0.0
    alike: bool = False

    @property
    def total(self) -> float:
        """Seconds."""
        return self.kernel + self.cold + self.fresh + self.framework


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

    def of(self, call: Call, strides: Strides, far: tuple[int, ...], tracked: bool, cost: Cost | None = None) -> Estimate:
        """One call.

        Args:
            call: with whole numbers for shapes.
            strides: of its tensor operands.
            far: the bytes touched since each operand was used; -1 for never.
            tracked: autograd follows it.
            cost: its cost, where it is known already.
        """
        numbers = self.c.numbers
        framework = self._framework(call, tracked)
        if call.name in VIEWS:
            return Estimate(numbers["view"], numbers["view"], framework=framework)
        found = lookups(call, strides, cost or cost_of(call, Conventions())[0])
        found = [x if x.curve in self.c.curves else Lookup("unary", x.sizes[:1], x.times, True) for x in found]
        empty = min(self.c.curves["unary"].at(16), *(self.seconds(x) for x in found)) if found else numbers["view"]
        kernel = sum(self.seconds(x) for x in found) if found else empty
        return Estimate(kernel, empty, self._cold(call, far, found), self._fresh(call), framework, any(x.alike for x in found))

    def _framework(self, call: Call, tracked: bool) -> float:
        numbers = self.c.numbers
        if call.phase == "optimizer":
            return numbers["optimizer"]
        if call.phase == "backward":
            return numbers["node"]
        return numbers["grad"] if tracked else 0.0

    def _cold(self, call: Call, far: tuple[int, ...], found: list[Lookup]) -> float:
        """Weights come from where they were left: the further back, the slower; products hide some of it behind their work."""
        curve = self.c.curves.get("streamed")
        if curve is None or not found:
            return 0.0
        rows = 1.0
        if found[0].curve.startswith("mm"):
            rows = min(found[0].sizes[0], found[0].sizes[1])
        extra = 0.0
        for t, back in zip(call.inputs, far, strict=False):
            if t.role in ("weight", "state", "grad") and back > curve.grid[1][0]:
                near = curve.at(rows, curve.grid[1][0])
                extra += float(t.nbytes) * max(0.0, curve.at(rows, min(back, curve.grid[1][-1])) - near) / curve.grid[1][0]
        return extra

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
