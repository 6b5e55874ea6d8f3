"""Time operators where the model runs them: torch's profiler around the whole step, its events matched with the recorded calls.

The profiler slows a step down. So the total is that of the step without it, and where the operators' times would add up to
more than that, all are scaled down alike.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.profiler import profile, record_function

from costir.measuring.clock import HOST, HostClock
from costir.measuring.lookup import VIEWS
from costir.measuring.subject import Recorded

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's library announces every start and stop
RUNS = 7
STEP = "costir: a step"
AHEAD = 60  # events: a call without an event of its own must not take one from much later


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the profiler, seconds."""

    name: str
    start: float
    end: float


def in_place(
    step: Callable[[], Any], calls: Sequence[Recorded], runs: int = RUNS, clock: HostClock = HOST
) -> list[float | None]:
    """The seconds of every call at the usual speed; None where the profiler shows no such event.

    Of several profiled steps it is the lower quartile. The shortest would add up to less than any step takes, as each call has
    its own best one. The median has calls in it that got fresh pages from the system, which the best step, that the whole is,
    did not need.
    """
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(runs):
        seen = clock.when_quiet(lambda: events(step))
        for seconds, one in zip(found, _one_run(seen, calls), strict=True):
            if one is not None:
                seconds.append(one * clock.speed)
    return [sorted(seconds)[len(seconds) // 4] if seconds else None for seconds in found]


def _one_run(seen: Sequence[Event], calls: Sequence[Recorded]) -> list[float | None]:
    """The seconds of every call in one step; an optimizer's are looked for from where it begins, and only there."""
    cut = next((i for i, e in enumerate(seen) if e.name.startswith("Optimizer.step#")), len(seen))
    last = [r.call.phase == "optimizer" and cut < len(seen) for r in calls]
    parts = {
        late: iter(
            _matched(seen[cut:] if late else seen[:cut], [_names(r) for r, k in zip(calls, last, strict=True) if k == late])
        )
        for late in (False, True)
    }
    return [next(parts[late]) for late in last]


def _names(r: Recorded) -> tuple[str, ...]:
    """The events of a call; none for a view, which has none that is surely its own (a recorded view may run as an alias).

    Gradients that meet, and biases of some linear layers, are added in place where nobody looks on, as rows of a table are put.
    """
    if r.call.name in VIEWS:
        return ()
    name = f"{r.call.op.split('.')[0]}::{r.call.name}"
    others = {"add": (f"{name}_",), "index_put": (f"{name}_", "aten::_index_put_impl_")}
    return (name, *others.get(r.call.name, ()))


def events(step: Callable[[], Any]) -> list[Event]:
    """What one step ran, right after another one, in the order in which it began."""
    with profile(use_kineto=True) as found:
        step()  # what it finds in the caches is what starting the profiler left there
        with record_function(STEP):
            step()
    seen = [e for e in found.kineto_results.events() if e.device_type() == torch.autograd.DeviceType.CPU]
    begins = next((e.start_ns() for e in seen if e.name() == STEP), 0)
    seen = [e for e in seen if e.start_ns() >= begins and e.name() != STEP]
    first = min((e.start_ns() for e in seen), default=0)  # seconds since 1970 in a float are only good to 0.2 us
    out = []
    for e in seen:
        start = (e.start_ns() - first) * 1e-9
        out.append(Event(e.name(), start, start + e.duration_ns() * 1e-9))
    return sorted(out, key=lambda e: (e.start, -e.end))


def _matched(seen: Sequence[Event], names: Sequence[tuple[str, ...]]) -> list[float | None]:
    """The seconds of every call in turn: of the next event of one of its names that lies in no event matched before.

    Or of one around the last match: what an operator overwrites, autograd copies inside of it before it comes to its work. What
    was matched inside an event is no part of its seconds. The further back the last match, the further ahead is looked.
    """
    places: dict[str, list[int]] = {}
    for i, e in enumerate(seen):
        places.setdefault(e.name, []).append(i)
    starts, outer = [e.start for e in seen], _outer(seen)
    seconds: dict[int, float] = {}  # of matched events
    within: dict[int, float] = {}  # what was matched in others
    out: list[float | None] = []
    here, missed, last = 0, 0, -1
    for call in names:
        if not call:
            out.append(None)
            continue
        missed += 1
        known = [i for i in _around(last, outer) if seen[i].name in call and i not in seconds][:1]
        if not known:
            ahead = [k[i] for k in (places.get(n, []) for n in call) if (i := bisect.bisect_left(k, here)) < len(k)]
            known = [i for i in ahead if i <= here + missed * AHEAD]
        if not known:
            out.append(None)
            continue
        last = min(known)
        found = seen[last]
        seconds[last] = found.end - found.start - within.get(last, 0.0)
        out.append(seconds[last])
        for i in _around(last, outer):
            within[i] = within.get(i, 0.0) + seconds[last]
        here, missed = bisect.bisect_left(starts, found.end, last + 1), 0
    return out


def _outer(seen: Sequence[Event]) -> list[int]:
    """For every event the innermost one that it lies in; -1 where there is none."""
    out, stack = [], [-1]
    for i, e in enumerate(seen):
        while len(stack) > 1 and seen[stack[-1]].end <= e.start:
            stack.pop()
        out.append(stack[-1])
        stack.append(i)
    return out


def _around(i: int, outer: Sequence[int]) -> Iterator[int]:
    """The events that one lies in, from the innermost on."""
    while i != -1 and (i := outer[i]) != -1:
        yield i
