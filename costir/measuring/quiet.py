"""Time only in moments in which nothing else runs on the core, and by how fast the core is then.

Two threads of a processor's core may be two machines' cores: while the other one works, everything takes up to twice as long,
for some milliseconds or some seconds, and no process of this machine shows it. And the clock of a core goes up and down with
what the others do, by a tenth and more. A pulse, a little arithmetic between timings, shows both: a timing counts only where
the pulse before and after it was no slow one, and the smaller differences say how fast the core was. Where a core stays busy,
the next one may be free: the clock goes there. And where all are busy for too long, a timing is taken as it is, less what work
of its kind was seen to take longer while the core was shared: a quarter for products, most of twice for a mere call.
"""

from __future__ import annotations

import bisect
import os
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from costir.measuring.clock import HOST, HostClock, Run, T

NUMBERS = 2048  # that a pulse works on: they stay in the nearest cache
CALLS, CHUNKS = 6, 4  # the best chunk counts, as the first fetches code and numbers
SHARED = 1.25  # times the usual: something else runs on the core
LOOK, LONGEST_LOOK = 1.0, 5.0  # seconds to find out what is usual
SPELL = 100  # pulses: some milliseconds
EVEN = 1.04  # a spell whose pulses differ by no more was quiet: what shares a core makes them uneven
QUIET_SPELLS = 0.3  # of all spells of a look: so many tell what is usual
LAST = 6  # pulses that say how fast the core is
STILL = 0.0002  # seconds after a pulse of a quiet moment that is taken for quiet
STAY = 0.003  # seconds on a core that somebody else uses
FEW, ENOUGH = 3, 9  # timings of a kind in shared moments tell how much longer they take; fewer tell nothing
MOST = 1.5  # of what a pulse takes longer: nothing loses more by a core that is shared
TINY = 1e-5  # seconds: shorter calls are mostly the way to the operator, and are a kind of their own
SHORT = 0.003  # seconds: longer timings are not made again while waiting
FASTER = 50  # pulses that much shorter than what was taken for usual: it was not


@dataclass(frozen=True, slots=True)
class Sample:
    """A round that was timed in a quiet moment.

    Attributes:
        kind: of what is timed.
        function, loops: what was called, and how often.
        seconds: what that took, at the usual speed.
        grad: whether autograd followed it; it may not be so where it is called again.
    """

    kind: str
    function: Run
    loops: int
    seconds: float
    grad: bool


class QuietClock(HostClock):
    """A clock for calls that are timed again when something else ran beside them.

    Args:
        pulse: its usual seconds in a quiet moment, where that is known; else they are found out.
        patience: seconds that may be spent altogether on waiting and on timings that do not count.

    Attributes:
        kind: what is being timed; what is of one kind loses alike where the core is shared.
        speed: how fast the core was in the last timing: 1 where a pulse took its usual time, 1.1 where it was so much faster;
            in a shared moment that of rounds, by what is of their kind.
        quiet: whether the last timing was of a quiet moment.
        calm, shared: how many timings were of quiet moments, and how many were taken although they were not, when patience was
            over. Where it turns out that the core was shared already when the usual was found out, all until then were.
    """

    def __init__(self, pulse: float = 0.0, patience: float = 10.0) -> None:
        self.patience = patience
        self.calm = self.shared = 0
        self._numbers, self._out = torch.rand(NUMBERS), torch.empty(NUMBERS)
        self._last: deque[float] = deque(maxlen=LAST)
        self.kind, self.speed = "", 1.0
        self._given = bool(pulse)
        self._faster: list[float] = []
        self._moved, self._seen = False, -1.0
        self._before = self._after = 0.0  # pulses
        self._sample: Sample | None = None
        self._lost: dict[tuple[str, bool], list[float]] = {}
        self.pulse = pulse or self._usual()

    def round(self, function: Run, loops: int) -> float:
        """Seconds of so many calls in a quiet moment; where there is none, `speed` says how slow it was."""
        seconds = self._attempt(lambda: HOST.round(function, loops), self._learn)
        if not self.quiet:
            self.speed = 1 / self._longer(seconds / loops)
        elif seconds < SHORT:
            self._sample = Sample(self.kind, function, loops, seconds * self.speed, torch.is_grad_enabled())
        return seconds

    host = round

    def when_quiet(self, attempt: Callable[[], T]) -> T:
        """What a timing returns that was made in a quiet moment; any, once patience is over."""
        return self._attempt(attempt, lambda: None)

    def _attempt(self, attempt: Callable[[], T], meanwhile: Callable[[], None]) -> T:
        while True:
            self._wait(meanwhile)
            began = perf_counter()
            found = attempt()
            quiet = self._quiet()
            if self._moved and self.patience > 0:  # what it works on was in the other core's cache
                self._moved = False
            elif quiet or self.patience <= 0:
                self.calm, self.shared = self.calm + quiet, self.shared + (not quiet)
                self.quiet, self.speed = quiet, self.pulse / statistics.median(self._last) if quiet else 1.0
                return found
            self.patience -= perf_counter() - began

    def _quiet(self) -> bool:
        """Whether nothing else runs on the core just now; how fast it is, is remembered."""
        now = self._now()
        self._before, self._after = self._after, now
        if not self._given and now < self.pulse / SHARED:
            self._faster.append(now)
            if len(self._faster) >= FASTER:
                self.pulse, self.shared, self.calm = statistics.median(self._faster), self.shared + self.calm, 0
                self._faster, self._last = [], deque(maxlen=LAST)
                self._sample, self._lost = None, {}
        if now <= SHARED * self.pulse:
            self._last.append(now)
            self._seen = perf_counter()
            return True
        self._seen = -1.0
        return False

    def _wait(self, meanwhile: Callable[[], None]) -> None:
        stayed = 0.0
        while perf_counter() - self._seen > STILL:
            began = perf_counter()
            if self._quiet() or self.patience <= 0:
                return
            meanwhile()
            took = perf_counter() - began
            self.patience, stayed = self.patience - took, stayed + took
            if stayed > STAY:
                self._moved, stayed = move() or self._moved, 0.0

    def _learn(self) -> None:
        """How much longer what was timed last takes in a shared moment, for what a pulse takes longer."""
        sample = self._sample
        if sample is None:
            return
        known = self._lost.setdefault((sample.kind, sample.seconds / sample.loops < TINY), [])
        if len(known) >= ENOUGH:
            return
        with torch.set_grad_enabled(sample.grad):
            sample.function()  # what it works on may have left the cache, and so may that of the next timing
            self._moved = True
            if self._quiet():
                return
            seconds = HOST.round(sample.function, sample.loops)
        if not self._quiet():
            known.append((seconds / sample.seconds - 1) / (self._share() - 1))

    def _longer(self, seconds: float) -> float:
        """How many times as long as in a quiet moment a call of so many seconds took in this one."""
        tiny = seconds < TINY
        known, of_all = self._lost.get((self.kind, tiny), []), [x for by in self._lost.values() for x in by]
        lost = statistics.median(known if len(known) >= FEW else of_all if len(of_all) >= FEW else [1.0])
        return 1 + min(max(lost, 0.0), MOST) * (self._share() - 1)

    def _share(self) -> float:
        """How many times as long as usual the pulses before and after took."""
        return (self._before + self._after) / 2 / self.pulse

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
        """Seconds of a pulse in spells in which nothing shared the core; where there are none, of the shortest pulses."""
        began = perf_counter()
        pulses: list[float] = []
        even: list[float] = []
        while True:
            move()
            spell = sorted(self._now() for _ in range(SPELL))
            pulses += spell
            if spell[SPELL * 4 // 5] <= EVEN * spell[SPELL // 10]:
                bisect.insort(even, spell[SPELL // 2])
            quiet = even[: bisect.bisect(even, EVEN * EVEN * even[0])] if even else []
            spent = perf_counter() - began
            if spent >= LONGEST_LOOK or (spent >= LOOK and len(quiet) * SPELL >= QUIET_SPELLS * len(pulses)):
                return statistics.median(quiet or sorted(pulses)[: max(1, len(pulses) // 20)])


def move() -> bool:
    """Go to the next core that this thread may use, and say whether there is one.

    It is not held there: where two programs want one core, the system's scheduler parts them.
    """
    if torch.get_num_threads() > 1 or not hasattr(os, "sched_setaffinity"):
        return False
    may = sorted(os.sched_getaffinity(0))
    if len(may) < 2:
        return False
    try:
        now = int(Path("/proc/thread-self/stat").read_text().rsplit(")", 1)[1].split()[36])
        os.sched_setaffinity(0, {may[(may.index(now) + 1) % len(may)] if now in may else may[0]})
        os.sched_setaffinity(0, may)
    except OSError:  # a container may hide the one and forbid the other
        return False
    return True


__all__ = ["QuietClock"]
