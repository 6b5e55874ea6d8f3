"""A made-up calibration: nothing was measured for it."""

from __future__ import annotations

import math

from costir.calibration import Calibration, Curve
from costir.measuring import calibrate as calibrating
from costir.measuring.clock import HOST, HostClock
from costir.measuring.kernels import kernels

NUMBERS = {
    "view": 1e-6, "view_grad": 1e-6, "module": 2e-6, "grad": 1e-6, "node": 1e-6, "leaf": 1e-6, "start": 1e-5, "optimizer": 1e-6,
    "fresh": 5e-11, "bandwidth_8192": 1e11, "bandwidth_2097152": 5e10, "bandwidth_536870912": 2e10,
}  # fmt: skip


class Still(HostClock):
    """A clock for which every moment is a quiet one, and the core always as fast: what else runs here is not tested."""

    def __init__(self) -> None:
        self.calm = 0

    def round(self, function, loops):
        return self.when_quiet(lambda: HOST.round(function, loops))

    def when_quiet(self, attempt):
        self.calm += 1
        return attempt()


def made_up() -> Calibration:
    """A machine on which everything takes 1 us and 0.1 ns per number."""
    curves = {}
    for k in kernels():
        seconds = tuple(min(1e3, 1e-6 + 1e-10 * math.prod(p.values())) for p in k.points())
        curves[k.name] = Curve(tuple(k.axes), tuple(k.axes.values()), seconds)
    about = {**calibrating.machine(), "threads": "1", "seconds": "0"}
    return Calibration(about, 0.02, dict(NUMBERS), curves)
