"""What an operator takes longer where other work ran since: its code and small data have left the caches.

Each call is timed by itself, right after the work that comes between, and the median of several counts. So neither the time of
that work nor a single slow call is in it; a difference of long loops would be mostly their noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from costir.calibration import Curve
from costir.measuring.kernels import Kernel
from costir.measuring.timing import one_by_one

APART = tuple(1 << p for p in (12, 16, 18, 20, 22, 24, 26))  # bytes between
ROUNDS = 9
STRIDE = 7
LONGEST = 1e-4  # seconds: of a longer call the difference is its noise
FEW = 12  # kernels that the largest sizes are tried with

Run = Callable[[], Any]


def interrupted(every: Sequence[Kernel]) -> tuple[Curve, dict[str, float]]:
    """What an interruption costs.

    Returns:
        Seconds by the bytes of the work between, on average over the kernels; and the numbers `code`, the bytes that one other
        operator's code counts as, and `apart_NAME`, how many times the average a kernel takes.
    """
    calls = {k.name: made for k in every if (made := _small(k)) is not None}
    hot = {name: one_by_one(call, ROUNDS, call) for name, call in calls.items()}
    calls = {name: call for name, call in calls.items() if hot[name] < LONGEST}
    mixed = _mixed(calls, hot)
    average = statistics.fmean(mixed.values())
    few = list(calls)[:: max(1, len(calls) // FEW)]
    # The few stand for all: as many times more as they take more where all run in turn.
    share = statistics.fmean(mixed.values()) / max(statistics.fmean(mixed[n] for n in few), 1e-9)
    seconds: list[float] = []
    for size in APART:
        between = torch.ones(size // 4)
        found = [one_by_one(calls[n], ROUNDS, between.sum) - hot[n] for n in few]
        seconds.append(max(statistics.fmean(found) * share, 1e-9, *seconds))
    curve = Curve(("apart",), (APART,), tuple(seconds))
    numbers = {"code": inverse(curve, average) / max(len(calls) - 1, 1)}
    return curve, numbers | {f"apart_{name}": min(5.0, v / max(average, 1e-9)) for name, v in mixed.items()}


def inverse(curve: Curve, seconds: float) -> float:
    """The size at which a curve of one axis that never falls has so many seconds; its ends beyond them."""
    low, high = math.log(curve.grid[0][0]), math.log(curve.grid[0][-1])
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if curve.at(math.exp(middle)) < seconds else (low, middle)
    return math.exp(high)


def _small(kernel: Kernel) -> Run | None:
    """A kernel at a point so small that its time is its code's."""
    if kernel.name == "streamed":
        return None
    return kernel.make(**{a: g[min(1, len(g) - 1)] for a, g in kernel.axes.items()})


def _mixed(calls: Mapping[str, Run], hot: Mapping[str, float]) -> dict[str, float]:
    """What each takes longer where all run in turn, those that are alike far from each other."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    order = [name for i in range(STRIDE) for name in list(calls)[i::STRIDE]]
    for _ in range(ROUNDS):
        for name in order:
            found[name].append(one_by_one(calls[name], 1))
    return {name: max(0.0, statistics.median(times) - hot[name]) for name, times in found.items()}
