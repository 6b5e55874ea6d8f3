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
from costir.measuring.clock import HOST, HostClock
from costir.measuring.kernel import Kernel
from costir.measuring.lookup import HEAVY
from costir.measuring.timing import one_by_one

BYTES = tuple(1 << p for p in (12, 18, 20, 22, 24, 26))  # touched between
MICROSECONDS = (1, 1000, 4000, 16000, 64000)  # passed between
DRIVEN = (1 << 12, 1 << 23)  # bytes: none, and enough to leave the core's own cache
IN_TURN = (2, 4, 8, 16, 32, 64)  # operators that run one after the other
ROUNDS = 9
FEWER = 7  # rounds of what takes milliseconds
PASSES, EVERY = 30, {1: 1, 1000: 1, 4000: 3, 16000: 4, 64000: 7}  # of long work fewer passes take part
AGAIN = 5  # passes over all operators in turn
STRIDE = 7
LEAST = 1e-9  # seconds: a curve has no zeros
LONGEST = 1e-4  # seconds: of a longer call the difference is its noise
GONE = (1 << 22, 8000)  # bytes and microseconds after which code is far away
TOGETHER, TRIES = 5, 5  # operators that follow each other then, and how often
MOST = 5.0  # times the average that an operator's own code may take
SAMPLES = ((1 << 20, 4000), (1 << 22, 4000), (1 << 24, 16000))  # that the framework's code is tried with
FEW = 12  # kernels that stand for all

AGES, FEW_AGED = (1000, 4000, 16000), 5  # microseconds and rounds that tell how fast it goes now
DOUBT = 0.01  # the price of another speed, for the logarithm of how many times: a cache that was empty tells none

Run = Callable[[], Any]
Point = tuple[int, ...]

FEW_ROWS = torch.ones(4, 512)
USES: Mapping[str, Callable[..., Any]] = {  # of memory
    "read": torch.sum, "write": partial(torch.fill_, value=1.0), "update": partial(torch.Tensor.mul_, other=1.0),
    "weights": lambda x: F.linear(FEW_ROWS, x.view(-1, 512)),
}  # fmt: skip


def interrupted(every: Sequence[Kernel], clock: HostClock = HOST) -> tuple[dict[str, Curve], dict[str, float]]:
    """What an interruption costs.

    Returns:
        The curves `turn_light` and `turn_heavy`, seconds of an operator's own code by the number of others that ran since;
        `interrupted`, beyond that, by the bytes and the microseconds between; `resumed`, of the code that all share. And the
        numbers `apart_NAME`, how many times the average a kernel's own code takes where kernels run in turn, and `gone_NAME`,
        where it is in no cache of the core; the framework's has the latter, too: `zero` where gradients are dropped, `start`
        where a backward pass begins, `step` where an optimizer does.
    """
    all_of_them = {k.name: made for k in every if (made := _small(k)) is not None}
    hot = {name: _alone(call, clock) for name, call in all_of_them.items()}
    usual = {k.name for k in every if not k.seldom}
    calls = {name: call for name, call in all_of_them.items() if name in usual and hot[name] < LONGEST}
    order = _unlike(list(calls))
    mixed = _in_turn({n: calls[n] for n in order}, hot, len(order), clock)
    average = max(statistics.fmean(mixed.values()), LEAST)
    few = sorted(order[:: max(1, len(order) // FEW)], key=lambda n: mixed[n])
    away = _gone(all_of_them, hot, calls[few[0]], clock)
    least = max(statistics.fmean(away[n] for n in order), LEAST)
    gone = {name: v / least for name, v in away.items()}
    own, common = _surfaces([calls[n] for n in few], [hot[n] for n in few], [gone[n] for n in few], clock)
    apart = {name: min(MOST, v / average) for name, v in mixed.items()}
    numbers = {f"apart_{name}": v for name, v in apart.items()} | {f"gone_{name}": v for name, v in gone.items()}
    curves = {"interrupted": own, "resumed": common, **_turns({n: calls[n] for n in order}, hot, apart, clock)}
    return curves, numbers | _framework(own, common, numbers, clock)


def _small(kernel: Kernel) -> Run | None:
    """A kernel at a point so small that its time is its code's."""
    if "pool" in kernel.axes:
        return None
    return kernel.make(**{a: g[0 if a == "steps" else min(1, len(g) - 1)] for a, g in kernel.axes.items()})


def _unlike(names: Sequence[str]) -> list[str]:
    """In an order in which those that are alike are far from each other."""
    return [name for i in range(STRIDE) for name in names[i::STRIDE]]


def _after(work: Run, calls: Sequence[Run]) -> list[float]:
    """The seconds of every call, one after the other, after some work."""
    work()
    return _row(calls)


def _alone(call: Run, clock: HostClock) -> float:
    """Seconds of a call right after itself."""
    return statistics.median(row[0] for row in _rows([call], ROUNDS + 2, clock)[2:])


def _rows(calls: Sequence[Run], rounds: int, clock: HostClock) -> list[list[float]]:
    """The seconds of every call, each timed by itself, one after the other, in several rounds, all in one quiet moment."""
    n = len(calls)
    found = clock.usual(lambda: [s for _ in range(rounds) for s in _row(calls)])
    return [found[i : i + n] for i in range(0, len(found), n)]


def _row(calls: Sequence[Run]) -> list[float]:
    row = []
    for call in calls:
        began = time.perf_counter()
        call()
        row.append(time.perf_counter() - began)
    return row


def _in_turn(calls: Mapping[str, Run], hot: Mapping[str, float], together: int, clock: HostClock) -> dict[str, float]:
    """What each takes longer where so many run in turn; what is left over at the end is not timed."""
    names = list(calls)
    groups = [names[i : i + together] for i in range(0, len(names) - together + 1, together)]
    found: dict[str, list[float]] = {n: [] for group in groups for n in group}
    for _ in range(AGAIN):
        for group in groups:
            for row in _rows([calls[n] for n in group], 3, clock)[1:]:
                for n, s in zip(group, row, strict=True):
                    found[n].append(s - hot[n])
    return {n: max(0.0, statistics.median(s)) for n, s in found.items()}


def _gone(calls: Mapping[str, Run], hot: Mapping[str, float], common: Run, clock: HostClock) -> dict[str, float]:
    """What each takes longer where its code has been driven out, and only that which all share is back.

    Some follow each other after the same work, unlike ones, and each time others.
    """
    work, names = between(*GONE), _unlike(list(calls))
    found: dict[str, list[float]] = {n: [] for n in names}
    for i in range(TRIES):
        turned = names[i:] + names[:i]
        for group in (turned[k : k + TOGETHER] for k in range(0, len(turned), TOGETHER)):
            row = clock.usual(partial(_after, work, [common, *(calls[n] for n in group)]))
            for n, s in zip(group, row[1:], strict=True):
                found[n].append(s - hot[n])
    return {n: max(0.0, statistics.median(s)) for n, s in found.items()}


def _turns(
    calls: Mapping[str, Run], hot: Mapping[str, float], apart: Mapping[str, float], clock: HostClock
) -> dict[str, Curve]:
    """What the code of an average operator takes longer by the number of others that ran since.

    Of operators with little code, and of those with much. Those with little share most of it, so that it stays longer.
    """
    sizes = [k for k in IN_TURN if k <= len(calls)] or [len(calls)]
    found: dict[str, dict[Point, float]] = {"turn_light": {}, "turn_heavy": {}}
    for k in sizes:
        extra = _in_turn(calls, hot, k, clock)
        for name, of_them in found.items():
            those = [n for n in extra if (apart[n] >= HEAVY) == (name == "turn_heavy")] or list(extra)
            of_them[(max(1, k - 1),)] = sum(extra[n] for n in those) / max(sum(apart[n] for n in those), LEAST)
    return {name: line("others", of_them) for name, of_them in found.items()}


def aged(clock: HostClock = HOST) -> dict[str, Curve]:
    """What 1 MB takes that was used so many microseconds ago, when this process touched so many bytes of other memory since.

    By use: to read it, to write it, to change it in place, and as the weights of a product. Little other memory leaves it in
    the core's own cache; more drives it into the one that is shared with what else the machine runs, where it does not stay.
    """
    found = _aging(list(itertools.product(DRIVEN, MICROSECONDS)), FEWER, clock)
    return {f"aged_{name}": _aged({k: statistics.quantiles(s)[0] for k, s in by.items()}) for name, by in found.items()}


def leaving(curves: Mapping[str, Curve], clock: HostClock = HOST) -> float:
    """How many times as fast as in these curves memory leaves the shared cache now: what others run there is not always alike.

    1 where they are not known.
    """
    if not all(f"aged_{name}" in curves for name in USES):
        return 1.0
    now = {
        (name, us): statistics.quantiles(seconds)[0]
        for name, by in _aging([(DRIVEN[0], us) for us in AGES], FEW_AGED, clock).items()
        for (_, us), seconds in by.items()
    }

    def off(faster: float) -> float:
        then = {(n, us): _clamped(curves[f"aged_{n}"], us * faster) for n, us in now}
        return statistics.fmean(abs(math.log(now[k] / then[k])) for k in now) + DOUBT * abs(math.log(faster))

    speeds: list[float] = [2.0 ** (i / 4) for i in range(-20, 21)]
    return min(speeds, key=off)


def _clamped(curve: Curve, microseconds: float) -> float:
    return curve.at(curve.grid[0][0], min(microseconds, curve.grid[1][-1]))


def _aging(points: Sequence[Point], rounds: int, clock: HostClock) -> dict[str, dict[Point, list[float]]]:
    """For each use and each point of bytes and microseconds between, the seconds that 1 MB took, in so many rounds."""
    little = torch.ones(512, 2)
    works = [between(*point) for point in points]
    found: dict[str, dict[Point, list[float]]] = {name: {point: [] for point in points} for name in USES}
    each = {name: torch.ones(1 << 18) for name in USES}
    begin = [partial(use, each[name]) for name, use in USES.items()]
    # A use's code is fetched before: that it was away costs, too, and is counted apart.
    again = [call for name, use in USES.items() for call in (partial(use, little), partial(use, each[name]))]
    for _ in range(rounds):
        for point, work in zip(points, works, strict=True):
            row = _rows([*begin, work, *again], 1, clock)[0][len(begin) + 1 :]
            for name, seconds in zip(USES, row[1::2], strict=True):
                found[name][point].append(seconds)
    return found


def _aged(found: Mapping[Point, float]) -> Curve:
    return Curve(("bytes", "us"), (DRIVEN, MICROSECONDS), tuple(rising(found).values()))


def _both(first: Run, second: Run) -> Run:
    return lambda: (first(), second())


def between(size: int, microseconds: int, memory: torch.Tensor | None = None) -> Run:
    """Work that touches so many bytes and takes at least so long; the beginning of `memory`, where it is given."""
    memory = torch.ones(size // 4) if memory is None else memory[: size // 4]

    def run() -> None:
        until = time.perf_counter() + microseconds * 1e-6
        memory.sum()
        while time.perf_counter() < until:
            pass

    return run


def _surfaces(calls: Sequence[Run], hot: Sequence[float], apart: Sequence[float], clock: HostClock) -> tuple[Curve, Curve]:
    """What an average operator takes longer after work between, one after the other; and the first one, beyond that.

    The first is always the same, one with little code of its own. Passes go over all points: so what disturbs the machine for a
    moment falls on one sample of many of a point.

    Args:
        calls: operators, the one with the least code first.
        hot: the seconds of each right after itself.
        apart: how many times the average the code of each takes there.
    """
    points: list[Point] = list(itertools.product(BYTES, MICROSECONDS))
    memory = torch.ones(BYTES[-1] // 4)
    works = [between(size, microseconds, memory) for size, microseconds in points]
    firsts: dict[Point, list[float]] = {p: [] for p in points}
    others: dict[Point, list[float]] = {p: [] for p in points}
    share = max(statistics.fmean(apart[1:] or apart), 1e-3)
    for i in range(PASSES):
        turn = [0, *(1 + (k + i * STRIDE) % (len(calls) - 1) for k in range(len(calls) - 1))]
        for work, point in zip(works, points, strict=True):
            if i % EVERY[point[1]]:
                continue
            row = clock.usual(partial(_after, work, [calls[k] for k in turn]))
            extra = [s - hot[k] for k, s in zip(turn, row, strict=True)]
            firsts[point].append(extra[0])
            others[point].append(statistics.fmean(extra[1:] or extra) / share)
    own = {p: statistics.median(s) for p, s in others.items()}
    common = {p: statistics.median(s) - apart[0] * own[p] for p, s in firsts.items()}
    return surface(own), surface(common)


def line(axis: str, found: Mapping[Point, float]) -> Curve:
    """A curve over one axis that never falls."""
    found = rising(found)
    return Curve((axis,), (tuple(x for (x,) in found),), tuple(max(LEAST, s) for s in found.values()))


def surface(found: Mapping[Point, float]) -> Curve:
    """By bytes and microseconds, beyond what the least of both costs: that of running in turn, which is counted apart."""
    found = rising(found)
    least = min(found.values())
    grid = tuple(tuple(dict.fromkeys(sizes)) for sizes in zip(*found, strict=True))
    return Curve(("bytes", "us"), grid, tuple(max(LEAST, s - least) for s in found.values()))


def rising(found: Mapping[Point, float]) -> dict[Point, float]:
    """The same where more work between never costs less: between the most up to a point and the least from it on."""

    def below(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        return all(x <= y for x, y in zip(a, b, strict=True))

    return {
        k: (max(s for j, s in found.items() if below(j, k)) + min(s for j, s in found.items() if below(k, j))) / 2
        for k in found
    }


def _framework(own: Curve, common: Curve, numbers: Mapping[str, float], clock: HostClock) -> dict[str, float]:
    """How many times the average the framework's own code takes: that of whole calls, less that of the operators in them."""

    def inside(*names: str) -> float:
        return sum(numbers.get(f"gone_{n}", 1.0) for n in names)

    with torch.enable_grad():
        leaf = torch.nn.Parameter(torch.rand(16))
        gradient = torch.rand(16)
        optimizer = torch.optim.AdamW([leaf], lr=1e-3, foreach=False)
        losses: list[torch.Tensor] = []
        give = lambda: setattr(leaf, "grad", gradient)

        def loss() -> None:
            leaf.grad = None
            losses.append((leaf * 2.0).sum())

        found = {
            "zero": _times(own, _colder(optimizer.zero_grad, clock, give), common),
            "start": _times(own, _colder(lambda: losses.pop().backward(), clock, loss), common) - inside("zeros", "unary"),
            "step": _times(own, _colder(optimizer.step, clock, give), common),
        }
    found["step"] -= inside(
        *["unary_"] * 4, "lerp_", "addcmul_", "sqrt", "unary", "addcdiv_"
    )  # of `overheads`, by their curves
    return {f"gone_{k}": max(0.0, v) for k, v in found.items()}


def _times(own: Curve, found: Mapping[Point, float], common: Curve | None = None) -> float:
    """How many times an average operator's code that is, beside what all share: over all samples, the longest weigh most."""
    more = math.fsum(s - (common.at(*p) if common else 0.0) for p, s in found.items())
    return more / math.fsum(own.at(*p) for p in found)


def _colder(call: Run, clock: HostClock, prepare: Run = lambda: None) -> dict[Point, float]:
    """The seconds that a call takes longer after work between, for all samples."""
    prepare()
    call()
    hot = one_by_one(call, ROUNDS, prepare, clock)
    return {p: one_by_one(call, ROUNDS, _both(prepare, between(*p)), clock) - hot for p in SAMPLES}
