"""By which clock calls are timed: the host's own, or that of a GPU, which works on after a call has returned."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol, TypeVar

import torch

Run = Callable[[], Any]
T = TypeVar("T")


class Clock(Protocol):
    """Times so many calls of a function.

    Attributes:
        most_loops: how many calls are worth timing at once.
        speed: how fast the machine was in the last round, against what is usual; 1 where that is not known.
        quiet: whether nothing else ran then, as far as that is known.
    """

    most_loops: int
    speed: float
    quiet: bool

    def round(self, function: Run, loops: int) -> float:
        """Seconds that the work of so many calls takes."""

    def host(self, function: Run, loops: int) -> float:
        """Seconds until so many calls have returned, whether their work is done or not."""


class HostClock:
    """What is called works until it returns."""

    most_loops = 10**7
    speed = 1.0
    quiet = True

    def round(self, function: Run, loops: int) -> float:
        """Seconds of so many calls."""
        began = perf_counter()
        for _ in range(loops):
            function()
        return perf_counter() - began

    host = round

    def when_quiet(self, attempt: Callable[[], T]) -> T:
        """What a timing returns, whatever else runs."""
        return attempt()

    def usual(self, attempt: Callable[[], Sequence[float]]) -> list[float]:
        """Seconds that a timing returns, as they would be at the usual speed."""
        found = self.when_quiet(attempt)
        return [s * self.speed for s in found]


HOST = HostClock()


class CudaClock:
    """Seconds between two events on the GPU, for calls that were queued before it came to the first of them.

    A GPU that waits for the host to call shows the host's time. So it is given other work first, as much as the host needs to
    queue the calls; whether it was enough is seen by asking, after the last call, whether the GPU has come to the first event.

    Args:
        device: the GPU; it must be the current one.
        keep_busy: some work for it that is called quickly and takes a while, such as filling memory.
    """

    most_loops = 64  # a queue holds about a thousand kernels, and an operator may start several
    tries = 3
    speed = 1.0
    quiet = True
    least_lead, most_lead = 1e-4, 0.03  # seconds

    def __init__(self, device: torch.device, keep_busy: Run) -> None:
        self.device = device
        self.keep_busy = keep_busy
        self.per_call = 2e-5  # seconds of the host
        keep_busy()
        self._wait()
        self.busy = max(self._between(keep_busy, 8)[0] / 8, 1e-6)

    def round(self, function: Run, loops: int) -> float:
        """Seconds that the GPU works for so many calls; right after one more, so that its caches hold what they can."""
        lead = 1.5 * self.per_call * (loops + 1)
        seconds = 0.0
        for _ in range(self.tries):
            lead = min(max(lead, self.least_lead), self.most_lead)
            self._wait()
            for _ in range(math.ceil(lead / self.busy)):
                self.keep_busy()
            function()
            seconds, host, starved = self._between(function, loops)
            self.per_call = host / loops
            if not starved or seconds > 2 * host:
                break
            lead = 2 * max(lead, host)  # operators that wait for their own results are starved whatever it is
        return seconds

    def host(self, function: Run, loops: int) -> float:
        """Seconds until so many calls have returned; the GPU's queue is empty before."""
        self._wait()
        began = perf_counter()
        for _ in range(loops):
            function()
        took = perf_counter() - began
        self._wait()
        return took

    def _between(self, function: Run, loops: int) -> tuple[float, float, bool]:
        """Seconds of the GPU, seconds of the host, and whether the GPU had begun before the host was through."""
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        began = perf_counter()
        for _ in range(loops):
            function()
        host = perf_counter() - began
        starved = begun.query()
        ended.record()
        self._wait()
        return max(begun.elapsed_time(ended) * 1e-3, 1e-9), host, starved

    def _wait(self) -> None:
        torch.cuda.synchronize(self.device)


__all__ = ["HOST", "Clock", "CudaClock", "HostClock"]
