"""Time a function as the lesson does: warm it up, loop until the time is measurable, keep the best of several rounds.

The best is what the machine can do; how far the others are from it says how much else it was doing.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from costir.measuring.clock import HOST, Clock, HostClock

FAR_APART = 0.1  # the median round above the best


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one call.

    Attributes:
        best: the best round.
        spread: how much longer the median round took (0.05: 5 %).
        usual: the best round at the usual speed of the machine, whose clock goes up and down; where none was of a quiet moment,
            the median of what they would have taken in one.
        speed: how fast it was in the best round, against that.
        seen: as `usual`, but nothing is reckoned: no faster than it was seen to be.
    """

    best: float
    spread: float
    usual: float
    speed: float
    seen: float


def timed(function: Callable[[], Any], rounds: int = 3, at_least: float = 0.002, most: float = 2.0,
          clock: Clock = HOST, further: int = 0) -> Timed:  # fmt: skip
    """Time a function.

    Args:
        function: what to call; it is called at least twice.
        rounds: how many rounds; the best counts.
        at_least: seconds that one round must take; calls are repeated until it does.
        most: seconds after which no further round is begun; of a call that takes longer one is enough.
        clock: whose seconds.
        further: rounds more at the most, while they are far apart: what else uses the memory comes and goes.
    """
    function()
    first = time.perf_counter()
    once = clock.round(function, 1)
    loops = min(clock.most_loops, max(1, int(at_least / max(once, 1e-9) * 0.7)))
    found = [(once, clock.speed, clock.quiet)] if once >= 4 * at_least else []  # of a long call this was a round already
    while (len(found) < rounds or (len(found) < rounds + further and _together(found).spread > FAR_APART)) and not (
        found and time.perf_counter() - first > most
    ):
        took = clock.round(function, loops)
        if took < at_least * 0.6 and loops < clock.most_loops:
            loops = min(clock.most_loops, max(loops + 1, int(loops * min(at_least / max(took, 1e-9), 10))))
            continue
        found.append((took / loops, clock.speed, clock.quiet))
    return _together(found)


def _together(found: Sequence[tuple[float, float, bool]]) -> Timed:
    """What rounds come to: seconds, the speed, and whether the moment was quiet."""
    quiet = [(s, speed) for s, speed, calm in found if calm]
    best, speed = min(quiet or [(s, speed) for s, speed, _ in found])
    usual = [s * speed for s, speed in quiet] or [s * speed for s, speed, _ in found]  # the clock's ups and downs are no noise
    seen = min(s * speed if calm else s for s, speed, calm in found)
    middle = statistics.median(usual)
    return Timed(best, middle / min(usual) - 1, min(usual) if quiet else middle, speed, seen)


def better(a: Timed, b: Timed) -> Timed:
    """The better of two timings of the same, apart by as much as both were from its best."""
    best = min(a, b, key=lambda t: t.usual)
    middle = (a.usual * (1 + a.spread) + b.usual * (1 + b.spread)) / 2
    return replace(best, spread=middle / best.usual - 1, seen=min(a.seen, b.seen))


def one_by_one(
    function: Callable[[], Any], times: int, before: Callable[[], Any] | None = None, clock: HostClock = HOST
) -> float:
    """Seconds of a call at the usual speed, each timed by itself, the median of several.

    Args:
        function: what to call.
        times: how often.
        before: called before each of them, untimed.
        clock: whose seconds, and whether what else runs on the core counts.
    """

    def once() -> tuple[float]:
        if before is not None:
            before()
        return (HOST.round(function, 1),)

    return statistics.median(clock.usual(once)[0] for _ in range(times))


def lines(function: Callable[[], Any]) -> int:
    """How many lines of Python a call comes to."""
    number = 0

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal number
        number += event == "line"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        function()
    finally:
        sys.settrace(before)
    return number
