"""What an operator takes longer where other work ran since: its code and small data have left the caches.

Other work drives them out by the memory that it touches, and by its time: caches are shared with what else the machine runs.
Each call is timed by itself, right after what comes between, and the median of several counts. So neither the time of that work
nor a single slow call is in it; a difference of long loops would be mostly their noise.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from costir.calibration import Curve
from costir.measuring.kernels import Kernel
from costir.measuring.timing import one_by_one

BYTES = tuple(1 << p for p in (12, 18, 20, 22, 24, 26))  # touched between
MICROSECONDS = (1, 1000, 4000, 16000, 64000)  # passed between
ROUNDS = 9
FEWER = 5  # rounds of what takes milliseconds
STRIDE = 7
LEAST = 1e-9  # seconds: a curve has no zeros
LONGEST = 1e-4  # seconds: of a longer call the difference is its noise
MOST = 5.0  # times the average that an operator's own code may take
SAMPLES = ((1 << 20, 4000), (1 << 22, 4000), (1 << 24, 16000))  # that the framework's code is tried with
FEW = 12  # kernels that stand for all

Run = Callable[[], Any]


def interrupted(every: Sequence[Kernel]) -> tuple[dict[str, Curve], dict[str, float]]:
    """What an interruption costs.

    Returns:
        The curves `interrupted`, seconds of an operator's own code, and `resumed`, those of the code that all operators share,
        by the bytes and the microseconds between. And the numbers `code`, the bytes that one other operator's code counts as,
        and `apart_NAME`, how many times the average a kernel's own code takes, or the framework's: `module` where a module is
        called, `start` where a backward pass begins, `step` where an optimizer does.
    """
    calls = {k.name: made for k in every if (made := _small(k)) is not None}
    hot = {name: one_by_one(call, ROUNDS, call) for name, call in calls.items()}
    calls = {name: call for name, call in calls.items() if hot[name] < LONGEST}
    mixed = _mixed(calls, hot)
    average = max(statistics.fmean(mixed.values()), 1e-9)
    few = list(calls)[:: max(1, len(calls) // FEW)]
    share = average / max(statistics.fmean(mixed[n] for n in few), 1e-9)  # all are so many times the few
    own, common = _surfaces([calls[n] for n in few], [hot[n] for n in few], share)
    numbers = {"code": inverse(own, average) / max(len(calls) - 1, 1)}
    numbers |= {f"apart_{name}": min(MOST, v / average) for name, v in mixed.items()}
    return {"interrupted": own, "resumed": common}, numbers | _framework(own, common, numbers)


def inverse(curve: Curve, seconds: float) -> float:
    """The bytes at which an interruption by memory alone costs so many seconds; the ends of the grid beyond them."""
    low, high = math.log(curve.grid[0][0]), math.log(curve.grid[0][-1])
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if curve.at(math.exp(middle), 1) < seconds else (low, middle)
    return math.exp(high)


def _small(kernel: Kernel) -> Run | None:
    """A kernel at a point so small that its time is its code's."""
    if "pool" in kernel.axes:
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


def aged() -> dict[str, Curve]:
    """What 1 MB takes that was used so many microseconds ago, when nothing else of this process touched memory since.

    By use: to read it, to write it, to change it in place, and as the weights of a product.
    """
    memory, rows = torch.ones(1 << 18), torch.ones(4, 512)
    weights = memory.view(512, 512)
    uses = {
        "read": memory.sum, "write": partial(memory.fill_, 1.0), "update": partial(memory.mul_, 1.0),
        "weights": partial(F.linear, rows, weights),
    }  # fmt: skip
    found: dict[str, dict[tuple[int, ...], float]] = {name: {} for name in uses}
    for passed in MICROSECONDS:
        for name, use in uses.items():
            found[name][(passed,)] = one_by_one(use, FEWER, _both(use, between(BYTES[0], passed)))
    return {f"aged_{n}": Curve(("us",), (MICROSECONDS,), tuple(rising(s).values())) for n, s in found.items()}


def _both(first: Run, second: Run) -> Run:
    return lambda: (first(), second())


def between(size: int, microseconds: int) -> Run:
    """Work that touches so many bytes and takes at least so long."""
    memory = torch.ones(size // 4)

    def run() -> None:
        until = time.perf_counter() + microseconds * 1e-6
        memory.sum()
        while time.perf_counter() < until:
            pass

    return run


def _surfaces(calls: Sequence[Run], hot: Sequence[float], share: float) -> tuple[Curve, Curve]:
    """What operators take longer one after the other, after work between: those that come later, and the first beyond that."""
    own: dict[tuple[int, ...], float] = {}
    common: dict[tuple[int, ...], float] = {}
    for point in itertools.product(BYTES, MICROSECONDS):
        work = between(*point)
        firsts: list[float] = []
        others: list[float] = []
        for i in range(FEWER):
            work()
            turn = [(k + i * STRIDE) % len(calls) for k in range(len(calls))]
            extra = [one_by_one(calls[k], 1) - hot[k] for k in turn]
            firsts.append(extra[0])
            others.append(statistics.fmean(extra[1:] or extra))
        own[point] = statistics.median(others) * share
        common[point] = statistics.median(firsts) - own[point]
    own, common = rising(own), rising(common)
    least = min(own.values())  # that of running in turn, which `code` stands for
    axes, grid = ("bytes", "us"), (BYTES, MICROSECONDS)
    return (
        Curve(axes, grid, tuple(max(LEAST, s - least) for s in own.values())),
        Curve(axes, grid, tuple(max(LEAST, s) for s in common.values())),
    )


def rising(found: Mapping[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    """The same where more work between never costs less: between the most up to a point and the least from it on."""

    def below(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        return all(x <= y for x, y in zip(a, b, strict=True))

    return {
        k: (max(s for j, s in found.items() if below(j, k)) + min(s for j, s in found.items() if below(k, j))) / 2
        for k in found
    }


def _framework(own: Curve, common: Curve, numbers: Mapping[str, float]) -> dict[str, float]:
    """How many times the average the framework's own code takes: that of whole calls, less that of the operators in them."""

    def inside(*names: str) -> float:
        return sum(numbers.get(f"apart_{n}", 1.0) for n in names)

    times = partial(_times, own, common)
    x, w, layers = torch.rand(8, 8), torch.rand(8), (torch.nn.LayerNorm(8), torch.nn.Linear(8, 8))
    weights = layers[1].weight
    plain = (lambda: F.layer_norm(x, (8,), w, w), lambda: F.linear(x, weights, w))
    with torch.no_grad():
        modules = [times(partial(f, x)) - times(g) for f, g in zip(layers, plain, strict=True)]
    with torch.enable_grad():
        leaf = torch.nn.Parameter(torch.rand(16))
        leaf.grad = torch.rand(16)
        optimizer = torch.optim.AdamW([leaf], lr=1e-3, foreach=False)
        step = times(optimizer.step)
        losses: list[torch.Tensor] = []
        start = times(lambda: (optimizer.zero_grad(), losses.pop().backward()), lambda: losses.append((leaf * 2.0).sum()))
    steps = inside("unary_", "unary_", "lerp_", "addcmul_", "sqrt", "div", "binary_", "addcdiv_")
    found = {"module": statistics.fmean(modules), "start": start - inside("zeros", "unary"), "step": step - steps}
    return {f"apart_{k}": max(0.0, v) for k, v in found.items()}


def _times(own: Curve, common: Curve, call: Run, prepare: Run = lambda: None) -> float:
    """How many times the average a call takes longer for work between, beside what all share; the median over several."""
    prepare()
    call()
    hot = one_by_one(call, ROUNDS, prepare)
    found = []
    for size, passed in SAMPLES:
        cold = one_by_one(call, FEWER, _both(prepare, between(size, passed)))
        found.append((cold - hot - common.at(size, passed)) / own.at(size, passed))
    return statistics.median(found)
