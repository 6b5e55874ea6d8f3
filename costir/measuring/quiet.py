"""Time only in moments in which nothing else runs on the core, and by how fast the core is then.

Two threads of a processor's core may be two machines' cores: while the other one works, everything takes up to twice as long,
for some milliseconds or some seconds, and no process of this machine shows it. And the clock of a core goes up and down with
what the others do, by a tenth and more. A pulse, a little arithmetic between timings, shows both: a timing counts only where
the pulse before and after it was no slow one, and the smaller differences say how fast the core was.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from time import perf_counter

import torch

from costir.measuring.clock import HOST, HostClock, Run, T

NUMBERS = 2048  # that a pulse works on: they stay in the nearest cache
CALLS, CHUNKS = 6, 4  # the best chunk counts, as the first fetches code and numbers
SHARED = 1.35  # times the usual: something else runs on the core
LOOK = 1.0  # seconds to find out what is usual
USUAL = 0.2  # of the pulses are shorter: quiet ones, where no more than half of the time is shared
LAST = 6  # pulses that say how fast the core is


class QuietClock(HostClock):
    """A clock for calls that are timed again when something else ran beside them.

    Args:
        pulse: its usual seconds in a quiet moment, where that is known; else they are found out.
        patience: seconds that may be spent altogether on waiting and on timings that do not count.

    Attributes:
        speed: how fast the core was in the last timing: 1 where a pulse took its usual time, 1.1 where it was so much faster.
        calm, shared: how many timings were of quiet moments, and how many were taken although they were not, when patience was
            over.
    """

    def __init__(self, pulse: float = 0.0, patience: float = 10.0) -> None:
        self.patience = patience
        self.calm = self.shared = 0
        self._numbers, self._out = torch.rand(NUMBERS), torch.empty(NUMBERS)
        self._last: deque[float] = deque(maxlen=LAST)
        self.pulse = pulse or self._usual()
        self.speed = 1.0

    def round(self, function: Run, loops: int) -> float:
        """Seconds of so many calls in a quiet moment."""
        return self.when_quiet(lambda: HOST.round(function, loops))

    host = round

    def when_quiet(self, attempt: Callable[[], T]) -> T:
        """What a timing returns that was made in a quiet moment; any, once patience is over."""
        while True:
            self._wait()
            began = perf_counter()
            found = attempt()
            quiet = self._quiet()
            if quiet or self.patience <= 0:
                self.calm, self.shared = self.calm + quiet, self.shared + (not quiet)
                self.speed = self.pulse / statistics.median(self._last) if quiet else 1.0
                return found
            self.patience -= perf_counter() - began

    def _quiet(self) -> bool:
        """Whether nothing else runs on the core just now; how fast it is, is remembered."""
        now = self._now()
        if now <= SHARED * self.pulse:
            self._last.append(now)
            return True
        return False

    def _wait(self) -> None:
        while self.patience > 0:
            began = perf_counter()
            if self._quiet():
                return
            self.patience -= perf_counter() - began

    def _now(self) -> float:
        """Seconds of a pulse."""
        numbers, out, best = self._numbers, self._out, 1.0
        with torch.no_grad():
            for _ in range(CHUNKS):
                began = perf_counter()
                for _ in range(CALLS):
                    torch.exp(numbers, out=out)
                best = min(best, perf_counter() - began)
        return best

    def _usual(self) -> float:
        found, until = [], perf_counter() + LOOK
        while perf_counter() < until:
            found.append(self._now())
        return sorted(found)[int(len(found) * USUAL)]


__all__ = ["QuietClock"]
