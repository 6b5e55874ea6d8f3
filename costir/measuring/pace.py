"""How fast the machine is beside a run, against its calibration: a few of the calibration's own kernels, timed again.

What the clock of a core does is seen by all of them alike, and by `quiet`. But products run at another clock than the rest, and
memory is shared with what other machines do: both drift by a tenth from one quarter of an hour to the next. So the calibration
is taken at today's pace, for products, for memory and for calls. The kernels are not those of the model, and few.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from costir.calibration import BANDWIDTH, Calibration, Curve
from costir.measuring.clock import HostClock
from costir.measuring.frames import once
from costir.measuring.interrupted import leaving
from costir.measuring.kernels import kernels
from costir.measuring.lookup import PRODUCTS
from costir.measuring.timing import timed

Point = tuple[int, ...]
AGAIN: Mapping[str, Mapping[str, Point]] = {  # points that were timed: between them a curve is a guess
    "product": {"mm_nn": (128, 256, 256), "mm_nt": (128, 1024, 1024), "mm_tn": (256, 1024, 128)},
    "memory": {"copy_": (1 << 22,), "binary": (1 << 19,), "unary_": (1 << 20,)},
    "call": {"unary": (256,), "clone": (256,), "exp": (16,)},
}
ROUNDS, AT_LEAST = 3, 0.0007  # as calibration times them
CROWDED = 0.40  # longer than when it was calibrated: somebody else's work crowds the memory
DRIVEN_OUT = ("turn", "frame")  # curves of code that others drive out
CODE = (*DRIVEN_OUT, "interrupted", "resumed", "node", "objects_")  # of all that calls lose
NO_TIME = (  # numbers that are no seconds, or not those of the model's work
    "apart_", "gone_", BANDWIDTH, "products", "vector", "lines", "pairs", "lost", "away", "pulse", "shared",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pace:
    """How many times as long as when they were calibrated products, memory and calls take now.

    And how many times as fast memory leaves the cache that is shared with what else the machine runs, and how many times as
    long code takes that ran some time ago.
    """

    product: float = 1.0
    memory: float = 1.0
    call: float = 1.0
    leaving: float = 1.0
    code: float = 1.0

    def at_speed(self, speed: float) -> Pace:
        """The same where the core is so much faster than usual."""
        kinds = ("product", "memory", "call", "code")
        return replace(self, **{kind: getattr(self, kind) / speed for kind in kinds})

    @property
    def loaded(self) -> float:
        """How much slower the machine is than when it was calibrated: products, or memory that others crowd.

        That memory is somewhat slower from one minute to the next is usual where caches are shared, and is not counted.
        """
        return max(self.product, self.memory) - 1 if self.memory > 1 + CROWDED else self.product - 1


def pace(c: Calibration, clock: HostClock) -> Pace:
    """Time the kernels again; those that the calibration lacks are left out."""
    known = {k.name: k for k in kernels()}

    def longer(name: str, point: Point) -> float:
        run = known[name].make(**dict(zip(known[name].axes, point, strict=True)))
        return timed(run, ROUNDS, AT_LEAST, clock=clock).usual / c.curves[name].at(*point)

    def together(found: Mapping[str, Point]) -> float:
        # Not their mean: what just fits a cache that is shared takes three times as long in one minute as in another.
        return statistics.median([longer(name, point) for name, point in found.items() if name in c.curves] or [1.0])

    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # a model may have set another, and kernels were calibrated in this one
    try:
        code = once(clock) / c.curves["frame"].seconds[0] if "frame" in c.curves else 1.0
        return Pace(**{kind: together(found) for kind, found in AGAIN.items()}, leaving=leaving(c.curves, clock), code=code)
    finally:
        torch.set_default_dtype(default)


def middle(*paces: Pace) -> Pace:
    """The geometric mean of several; but how fast others empty the shared cache at the least, as of rounds the best counts."""
    n = len(paces)
    mean = Pace(*(math.prod(getattr(p, f.name) for p in paces) ** (1 / n) for f in dataclasses.fields(Pace)))
    return replace(mean, leaving=min(p.leaving for p in paces))


def at_pace(c: Calibration, p: Pace) -> Calibration:
    """The calibration as it would be now: of every time the part that is a call's at the pace of calls, the rest at its own."""
    call = c.curves["unary"].seconds[0] if "unary" in c.curves else 0.0

    def scaled(name: str, curve: Curve) -> Curve:
        if name.startswith(CODE):
            lost = p.code if name.startswith(DRIVEN_OUT) else p.call
            seconds = tuple(s * lost for s in curve.seconds)
        else:
            work = p.product if name.startswith((*PRODUCTS, "streamed")) else p.memory
            seconds = tuple(min(s, call) * p.call + max(0.0, s - call) * work for s in curve.seconds)
        grid = tuple(
            tuple(x / p.leaving for x in g) if axis == "us" else g for axis, g in zip(curve.axes, curve.grid, strict=True)
        )
        return Curve(curve.axes, grid, seconds)

    def now(name: str, value: float) -> float:
        return value if name.startswith(NO_TIME) else value * (p.memory if name == "fresh" else p.call)

    return c.changed(
        {name: scaled(name, curve) for name, curve in c.curves.items()},
        {name: now(name, value) for name, value in c.numbers.items()},
    )


__all__ = ["Pace", "at_pace", "middle", "pace"]
