"""Time operators where the model runs them: torch's profiler around the whole step, its events matched with the recorded calls.

The profiler slows a step down. So the total is that of the step without it, and where the operators' times would add up to
more than that, all are scaled down alike.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.profiler import profile

from costir.measuring.lookup import VIEWS
from costir.measuring.subject import Recorded

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's library announces every start and stop
RUNS = 5
AHEAD = 60  # events: a call without an event of its own must not take one from much later


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the profiler, seconds."""

    name: str
    start: float
    end: float


def in_place(step: Callable[[], Any], calls: Sequence[Recorded], runs: int = RUNS) -> list[float | None]:
    """The seconds of every call, the shortest of several profiled steps; None where the profiler shows no such event."""
    best: list[float | None] = [None] * len(calls)
    for _ in range(runs):
        found = _matched(events(step), [_name(r) for r in calls])
        best = [b if f is None else f if b is None else min(b, f) for b, f in zip(best, found, strict=True)]
    return best


def _name(r: Recorded) -> str:
    """The event of a call; "" for a view, which has none that is surely its own (a recorded view may run as an alias)."""
    return "" if r.call.name in VIEWS else f"{r.call.op.split('.')[0]}::{r.call.name}"


def events(step: Callable[[], Any]) -> list[Event]:
    """What one step ran, in the order in which it began."""
    with profile(use_kineto=True) as found:
        step()
    out = []
    for e in found.kineto_results.events():
        if e.device_type() == torch.autograd.DeviceType.CPU:
            start = e.start_ns() * 1e-9
            out.append(Event(e.name(), start, start + e.duration_ns() * 1e-9))
    return sorted(out, key=lambda e: (e.start, -e.end))


def _matched(seen: Sequence[Event], names: Sequence[str]) -> list[float | None]:
    """For each call in turn, the next event of its name that lies in no event matched before."""
    places: dict[str, list[int]] = {}
    for i, e in enumerate(seen):
        places.setdefault(e.name, []).append(i)
    out: list[float | None] = []
    here, until = 0, 0.0
    for name in names:
        known = places.get(name, [])
        k = bisect.bisect_left(known, here)
        while k < len(known) and seen[known[k]].start < until:
            k += 1
        if k == len(known) or known[k] > here + AHEAD:
            out.append(None)
            continue
        found = seen[known[k]]
        out.append(found.end - found.start)
        here, until = known[k] + 1, found.end
    return out
