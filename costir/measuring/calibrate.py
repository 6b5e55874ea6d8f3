"""Measure this machine in under a minute, and write it down as a chip.

Rates and bandwidths are the best that were seen, so that bounds made from them are bounds: the matmul rate over all products
and convolutions, the bandwidth over several kernels as an envelope that never rises with the working set.
"""

from __future__ import annotations

import datetime
import itertools
import math
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from costir.calibration import BANDWIDTH, Calibration, Curve, to_toml
from costir.measuring.clock import HOST, Clock, HostClock
from costir.measuring.frames import frames
from costir.measuring.interrupted import aged, interrupted
from costir.measuring.kernel import Kernel
from costir.measuring.kernels import kernels
from costir.measuring.nodes import nodes
from costir.measuring.overheads import overheads
from costir.measuring.parameters import parameters
from costir.measuring.pools import release
from costir.measuring.quiet import QuietClock
from costir.measuring.timing import Timed, one_by_one, timed

Progress = Callable[[str, float], None]
FRESH_PAGES = 1 << 26  # bytes: no allocator keeps so large a block
LARGEST_KEPT = (32 << 20) // 4 - (1 << 16)  # numbers
TINY = 64  # bytes: the time of a call
LEAST_WORK = 0.25  # of a call's time is work: what is left of a difference between two timings is never taken for less
WORKING_SETS = tuple(1 << p for p in (*range(13, 26, 2), 26, 27, 29))
LONG_LOOK = 1 << 27  # bytes: passes over more take long, and are alike
SLOW = 0.2  # seconds
FAR = ("streamed", "far_")  # kernels on memory that was used some time ago
LONG_FETCH = 3e-4  # seconds: longer ones are work
OFTEN = 18  # kernels, after which they are timed again
SHARED = 1 << 23  # bytes: of less memory most is in caches of the core
LAYOUTS = ("mm_nn", "mm_nt", "mm_tn")  # of products of two matrices
LONG_CALL = 0.04  # seconds: of longer ones one tells as much as more
PATIENCE = 16.0  # seconds for waiting for quiet moments
SHARES = {"kernels": 0.5, "losses": 0.25, "rates": 0.1, "overheads": 0.15}  # of the patience
ALL = 55.0  # seconds that it may take where nobody asked for more patience
LEAST = 0.3  # seconds that each stage may wait
FIRST = 1.0  # and the first kernel, which tells what a call takes, before all others
STAGES = {"losses": 16.0, "rates": 7.0, "overheads": 4.0}  # seconds from the beginning of each to the end
VECTORS = {"AVX512": 16.0, "AVX2": 8.0}  # numbers of float32
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


class Calibrator:
    """Collects timings, and what they say about the noise.

    Args:
        progress: is told what is being done and how much of all is done.
        clock: whose seconds.
    """

    def __init__(self, progress: Progress | None = None, clock: Clock = HOST) -> None:
        self.clock = clock
        self.progress = progress or (lambda what, share: None)
        self.spreads: list[float] = []
        self.rates: dict[str, float] = {}  # by kernel of products, the best in FLOP/s

    def time(self, function: Callable[[], Any], rounds: int = 3, at_least: float = 0.0007) -> float:
        """Seconds of a call, at the usual speed."""
        return self.timed(function, rounds, at_least).usual

    def timed(self, function: Callable[[], Any], rounds: int = 3, at_least: float = 0.0007) -> Timed:
        """The same, with how fast it was seen to be, for bounds."""
        found = timed(function, rounds, at_least, LONG_CALL, self.clock)
        self.spreads.append(found.spread)
        return found

    def curve(self, kernel: Kernel) -> Curve:
        """A kernel over its grid."""
        known: dict[tuple[int, ...], float] = {}
        for point in kernel.points():
            at = tuple(point.values())
            if kernel.fits(point):
                found = self.timed(kernel.make(**point))
                known[at] = found.usual
                if kernel.flops is not None:
                    self.rates[kernel.name] = max(self.rates.get(kernel.name, 0.0), kernel.flops(**point) / found.seen)
            else:  # too large to time: as much longer as there is more of it, from the nearest that was
                near = max((p for p in known if all(a <= b for a, b in zip(p, at, strict=True))), key=math.prod)
                known[at] = known[near] * kernel.work(at) / kernel.work(near)
        seconds = list(known.values())
        if len(kernel.axes) == 1:  # fewer numbers take no longer than more: where they did, something else ran
            seconds = list(itertools.accumulate(reversed(seconds), min))[::-1]
        return Curve(tuple(kernel.axes), tuple(kernel.axes.values()), tuple(seconds))

    @property
    def noise(self) -> float:
        """How much longer the median round of a kernel took than its best one, in the median over all kernels."""
        return statistics.median(self.spreads) if self.spreads else 0.0


def calibrate(
    threads: int = 1, progress: Progress | None = None, every: Sequence[Kernel] | None = None, patience: float | None = None
) -> tuple[Calibration, str]:
    """Measure this machine.

    Args:
        threads: how many threads torch may use.
        progress: called with what is being done, and the share of the work that is done.
        every: the kernels to time, where not all of `kernels()`.
        patience: seconds that may be spent on waiting for quiet moments; left out, as many as keep all of it under a minute.

    Returns:
        the calibration, and the text of a chip file with it.
    """
    before, began, had = torch.get_num_threads(), time.perf_counter(), time.thread_time()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            clock = QuietClock(patience=0.0)
            c = Calibrator(progress, clock)
            torch.empty(LARGEST_KEPT)  # glibc keeps for reuse what is no larger than a block that it had to free before
            every = kernels() if every is None else every
            stage = partial(_patience, clock, patience, began)
            curves = _curves(c, clock, every, stage("kernels"))
            clock.patience = stage("losses")
            found, numbers = _losses(c, clock, every)
            curves |= found
            curves |= _far_again(c, curves, every)
            clock.patience = stage("rates")
            c.progress("bandwidth", 0.8)
            envelope = _envelope(_bandwidths(c))
            c.progress("matmul rates", 0.9)
            products = _products_rate(c)
            curves |= _far_again(c, curves, every)
            rates = {"fp32": max(products, *c.rates.values(), 0.0), **_rates(c)}
            clock.patience = stage("overheads")
            curves |= _far_again(c, curves, every)
            c.progress("overheads", 0.95)
            numbers |= {**overheads(clock), "fresh": _fresh(clock), "products": products, "vector": _vector()}
            curves |= _far_again(c, curves, every)
            numbers["away"] = max(0.0, 1 - (time.thread_time() - had) / (time.perf_counter() - began))  # others had the core
    finally:
        torch.set_num_threads(before)
        release()
    numbers |= {"pulse": clock.pulse, "shared": clock.shared / max(1, clock.shared + clock.calm)}
    numbers |= {f"{BANDWIDTH}{size}": rate for size, rate in envelope.items()}
    about = {**machine(), "threads": str(threads), "seconds": f"{time.perf_counter() - began:.0f}"}
    calibration = Calibration(about, c.noise, numbers, curves)
    return calibration, _chip_file(calibration, rates, envelope)


def _patience(clock: QuietClock, asked: float | None, began: float, stage: str) -> float:
    """Seconds that a stage may wait: what those before it have left over is for those that follow, too."""
    if asked is not None:
        return max(0.0, clock.patience) + SHARES[stage] * asked
    if stage not in STAGES:
        return SHARES[stage] * PATIENCE
    before = itertools.takewhile(lambda name: name != stage, SHARES)
    following = 1 - math.fsum(SHARES[name] for name in before)
    in_all = ALL - STAGES[stage] - (time.perf_counter() - began)
    return max(LEAST, in_all * SHARES[stage] / following)


def _curves(c: Calibrator, clock: QuietClock, every: Sequence[Kernel], patience: float) -> dict[str, Curve]:
    """All kernels over their grids; the patience is spread over them, as a busy moment must not use up all of it."""
    curves: dict[str, Curve] = {}
    clock.patience = FIRST
    points = sum(len(k) for k in every)
    for i, kernel in enumerate(every):
        c.progress(kernel.name, 0.05 + 0.65 * i / len(every))
        clock.patience += patience * len(kernel) / points
        clock.kind = kernel.name
        curves[kernel.name] = c.curve(kernel)
        if i % OFTEN == 0:
            clock.kind = ""  # what these lose says nothing about the kernel before them
            curves |= _far_again(c, curves, every[: i + 1])
    clock.kind = ""
    return curves


def _far_again(c: Calibrator, curves: Mapping[str, Curve], every: Sequence[Kernel]) -> dict[str, Curve]:
    """Kernels on memory that was used some time ago, timed once more; the best of many moments counts.

    Others use the last cache, too: what it holds in one second is in memory in the next.
    """
    found = {}
    for kernel in every:
        if kernel.name.startswith(FAR):
            old = curves[kernel.name]
            seconds = (
                min(s, c.timed(kernel.make(**point)).usual) if s < LONG_FETCH and point.get("pool", 0) >= SHARED else s
                for s, point in zip(old.seconds, kernel.points(), strict=True)
            )
            found[kernel.name] = replace(old, seconds=tuple(seconds))
    return found


def _losses(c: Calibrator, clock: HostClock, every: Sequence[Kernel]) -> tuple[dict[str, Curve], dict[str, float]]:
    """What is lost where code, memory and Python's lines have left the caches: curves and numbers."""
    c.progress("what has left the caches", 0.75)
    lost, apart = interrupted(every, clock)
    frame, python = frames(clock)
    return {**lost, **aged(clock), **parameters(clock), "frame": frame, "node": nodes(clock)}, {**python, **apart}


# ------------------------------------------------------------------------------------------------ rates and bandwidths


def _bandwidths(c: Calibrator) -> Iterator[tuple[int, float]]:
    """Working sets in bytes, and the bytes per second that a kernel moved over them, the time of calling it left out."""
    memory = torch.ones(WORKING_SETS[-1] // 4)
    calls = {name: c.time(make(memory[: TINY // 4])) for name, (make, _) in MOVERS.items()}
    for size in WORKING_SETS:
        for name, (make, times) in MOVERS.items():
            seconds = c.timed(make(memory[: size // 4]), rounds=3 if size < LONG_LOOK else 1).seen
            yield size, times * size / max(seconds - calls[name], seconds * LEAST_WORK)


def _reader(memory: Tensor) -> Callable[[], Any]:
    return partial(torch.sum, memory)


def _writer(memory: Tensor) -> Callable[[], Any]:
    return partial(memory.fill_, 1.0)


def _scaler(memory: Tensor) -> Callable[[], Any]:
    return partial(memory.mul_, 1.0)


def _copier(memory: Tensor) -> Callable[[], Any]:
    x, y = memory.view(2, -1)
    return partial(x.copy_, y)


def _dot(memory: Tensor) -> Callable[[], Any]:
    x, y = memory.view(2, -1)
    return partial(torch.dot, x, y)


def _triad(memory: Tensor) -> Callable[[], Any]:
    x, y, out = memory[: len(memory) // 3 * 3].view(3, -1)
    return partial(torch.add, x, y, out=out)


Mover = tuple[Callable[[Tensor], Callable[[], Any]], int]  # made for the working set, and how many times it moves that
MOVERS: Mapping[str, Mover] = {
    "read": (_reader, 1), "write": (_writer, 1), "scale": (_scaler, 2), "copy": (_copier, 1), "dot": (_dot, 1),
    "triad": (_triad, 1),
}  # fmt: skip


def _fresh(clock: HostClock) -> float:
    """Seconds per byte that a write into memory takes longer where the system has to give the pages first."""
    n = FRESH_PAGES // 4
    used = torch.ones(n)
    # Medians: the system has large pages at hand only now and then, and the best of several would be such a moment.
    fresh, again = (one_by_one(f, 9, clock=clock) for f in (lambda: torch.empty(n).fill_(1.0), lambda: used.fill_(1.0)))
    return max(0.0, fresh - again) / FRESH_PAGES


def _vector() -> float:
    """How many numbers of float32 a vector of this processor has."""
    return VECTORS.get(torch.backends.cpu.get_cpu_capability(), 1.0)


def _envelope(found: Iterator[tuple[int, float]]) -> dict[int, float]:
    """The best bandwidth at each working set or a larger one: it never rises."""
    best: dict[int, float] = {}
    for size, rate in found:
        best[size] = max(best.get(size, 0.0), rate)
    out, top = {}, 0.0
    for size in sorted(best, reverse=True):
        top = max(top, best[size])
        out[size] = top
    return dict(sorted(out.items()))


def _products_rate(c: Calibrator) -> float:
    """The best FLOP/s of products of matrices; convolutions, of another library, may be faster."""
    a, best = torch.rand(768, 768), max(c.rates.get(layout, 0.0) for layout in LAYOUTS)
    return max(best, 2 * 768**3 / timed(lambda: a @ a, 3, 0.02, clock=c.clock).seen)


def _rates(c: Calibrator) -> dict[str, float]:
    """The matmul rates of other types: large products in the best of the layouts that a linear layer and its gradients use."""
    out = {}
    for name, dtype in _DTYPES.items():
        best, layouts = 0.0, ["nn", "nt", "tn"]
        for n in (256, 1024):
            a = torch.rand(n, n).to(dtype)
            operands = {"nn": (a, a), "nt": (a, a.t()), "tn": (a.t(), a)}
            if best and 2 * n**3 / best > SLOW:  # a type without instructions of its own, at its best already
                break
            try:
                took = {layout: c.timed(partial(torch.mm, *operands[layout]), 2, 0.004).seen for layout in layouts}
            except RuntimeError:  # a type that this machine cannot multiply
                break
            layouts = [min(took, key=lambda layout: took[layout])]
            best = max(best, 2 * n**3 / took[layouts[0]])
        if best:
            out[name] = best
    return out


# ---------------------------------------------------------------------------------------------------------- the file


def machine() -> dict[str, str]:
    """Which machine this is."""
    return {
        "cpu": cpu_name(),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def cpu_name() -> str:
    """The processor, as the system calls it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return (found[1].strip() if found else platform.processor() or platform.machine())[:100]


def _chip_file(c: Calibration, rates: Mapping[str, float], envelope: Mapping[int, float], kind: str = "cpu",
               more: Sequence[str] = (), capacity: int = 0,
               levels: Mapping[str, tuple[int, float]] | None = None) -> str:  # fmt: skip
    """A chip file that every `--chip` takes.

    Args:
        c, rates, envelope: what was measured.
        kind: of the chip, "cpu" or "gpu".
        more: lines about it.
        capacity: bytes of its memory, where known.
        levels: caches, with bytes and bytes/s; where not given, those at which the envelope falls.
    """
    sizes = list(envelope)
    if levels is None:
        falls = [s for s in sizes[:-1] if envelope[s] > 1.25 * envelope[sizes[sizes.index(s) + 1]]][:4]
        levels = {f"cache{i + 1}": (size, envelope[size]) for i, size in enumerate(falls)}
    name = c.gpu or f"{c.about['cpu']}, {c.threads} thread{'s' if c.threads > 1 else ''}"
    lines = [
        f"# made by costir {_version()}",
        f'name = "{name}, as measured"',
        f'kind = "{kind}"', 'confidence = "measured"', *more, "",
        "[matrix]", *(f"{name} = {rate:.4g}" for name, rate in rates.items()),
        f'note = "The best of all products and convolutions that costir calibrate timed on {c.about["date"]}."', "",
        "[vector]", f"fp32 = {rates['fp32']:.4g}", 'note = "No vector work is faster than the matmul: a bound."', "",
        "[memory]", f"bandwidth = {envelope[sizes[-1]]:.4g}", *([f"capacity = {capacity}"] if capacity else []),
        f'note = "The best of reads, writes and copies over {sizes[-1] >> 20} MB."', "",
    ]  # fmt: skip
    for level, (size, rate) in levels.items():
        lines += [f"[onchip.{level}]", f"capacity = {size}", f"bandwidth = {rate:.4g}", ""]
    return "\n".join(lines) + "\n" + to_toml(c)


def _version() -> str:
    import costir

    return costir.__version__


__all__ = ["calibrate", "cpu_name", "machine"]
