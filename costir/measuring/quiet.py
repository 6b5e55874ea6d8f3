"""Time only in moments in which nothing else runs on the core.

Two threads of a processor's core may be two machines' cores: while the other one works, a tiny operator takes up to twice as
long, for some milliseconds or some seconds, and no process of this machine shows it. How long a tiny operator takes tells such
moments from quiet ones; a timing counts only where it was quiet before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from costir.measuring.clock import HOST, HostClock, Run, T

CALLS, CHUNKS = 10, 3  # of the tiny operator; the best chunk counts, as the first fetches its code
SLOWER = 1.6  # times the least: still quiet
LOOK = 1.0  # seconds to find out how long it takes at the least
LEAST_SHARE = 0.1  # of these beats were as short: a single one may be chance


class QuietClock(HostClock):
    """A clock for calls that are timed again when something else ran beside them.

    Args:
        beat: seconds of the tiny operator in a quiet moment, where that is known; else it is found out.
        patience: seconds that may be spent altogether on waiting and on timings that do not count.

    Attributes:
        calm, shared: how many timings were of quiet moments, and how many were taken although they were not, when patience was
            over.
    """

    def __init__(self, beat: float = 0.0, patience: float = 10.0) -> None:
        self.patience = patience
        self.calm = self.shared = 0
        self._tiny = torch.rand(16).neg
        self.beat = beat or self._least()

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
            quiet = self.quiet()
            if quiet or self.patience <= 0:
                self.calm, self.shared = self.calm + quiet, self.shared + (not quiet)
                return found
            self.patience -= perf_counter() - began

    def quiet(self) -> bool:
        """Whether nothing else runs on the core just now."""
        return self._now() <= SLOWER * self.beat

    def slower(self) -> float:
        """How much longer the tiny operator takes now than in a quiet moment; 0.5: by half."""
        return self._now() / self.beat - 1

    def _wait(self) -> None:
        while self.patience > 0:
            began = perf_counter()
            if self.quiet():
                return
            self.patience -= perf_counter() - began

    def _now(self) -> float:
        """Seconds of one call of the tiny operator."""
        tiny, best = self._tiny, 1.0
        for _ in range(CHUNKS):
            began = perf_counter()
            for _ in range(CALLS):
                tiny()
            best = min(best, perf_counter() - began)
        return best / CALLS

    def _least(self) -> float:
        found, until = [], perf_counter() + LOOK
        while perf_counter() < until:
            found.append(self._now())
        return sorted(found)[int(len(found) * LEAST_SHARE)]


__all__ = ["QuietClock"]
