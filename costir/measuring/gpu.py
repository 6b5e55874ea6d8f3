"""Measure a GPU in under a minute, and write it down as a chip.

The form is that of the CPU's calibration, and so is what counts: the best product of a type is its rate, the best of several
kernels over a working set its bandwidth. But curves are the GPU's own time, since it works while the host goes on; what the
host takes to start a kernel is a number beside them.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from costir.calibration import BANDWIDTH, Calibration, Curve
from costir.errors import CostirError
from costir.measuring.calibrate import LEAST_WORK, MOVERS, TINY, Calibrator, Progress, _chip_file, _envelope, machine
from costir.measuring.clock import Clock, CudaClock
from costir.measuring.gpu_device import Gpu, chosen, convolution_precision, in_tf32, is_there, precision, seen
from costir.measuring.gpu_kernels import FP32, TYPES, Type, others, overheads, products
from costir.measuring.kernel import Kernel
from costir.measuring.timing import timed

WORKING_SETS = (1 << 16, 1 << 18, *(1 << p for p in range(20, 31)), 1 << 32)
HELD = 3  # times the working set, while its bandwidth is measured
SHARE = 3  # one part in so many of what is free is used
PAST = 4  # times the cache that a working set must reach, for its bandwidth to be the memory's
LEAST = 1 << 26  # bytes that it must reach anyway
BUDGET = 45.0  # seconds after which no further kernel is timed
WARM = 0.5  # seconds of work before anything is timed: idle GPUs slow their clocks down
SLOW = 0.1  # seconds: calls that take longer are not timed, but reckoned from smaller ones
CACHED = 1.25  # times as fast as memory: less is no cache


def calibrate(device: torch.device, progress: Progress | None = None) -> tuple[Calibration, str]:
    """Measure a GPU.

    Args:
        device: from `chosen`.
        progress: called with what is being done, and the share of the work that is done.

    Returns:
        the calibration, and the text of a chip file with it.

    Raises:
        CostirError: the GPU does not do what is needed, or has too little free memory.
    """
    began = time.perf_counter()
    on = tensors_on(device)
    with torch.cuda.device(device), failures():
        gpu = seen(device)
        with on:
            memory = torch.ones(min(1 << 26, gpu.free // 64))  # 256 MB, or a sixteenth
        clock = CudaClock(device, lambda: memory.fill_(1.0))
        found = measured(gpu, clock, on, progress, began)
        torch.cuda.synchronize(device)
    return found


def tensors_on(device: torch.device) -> torch.device:
    """Where tensors are made, as a context."""
    return device


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """What CUDA complains about as a sentence."""
    try:
        yield
    except RuntimeError as error:
        raise CostirError(
            f"the GPU could not be calibrated: {_first(error)}", "look at what else uses it; nvidia-smi or rocm-smi shows it"
        ) from error


def _first(error: BaseException) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:150]


# ------------------------------------------------------------------------------------------------------------- measuring


class TooLate(Exception):  # noqa: N818 - not an error
    """The time is over."""


@dataclass
class Found:
    """What was measured so far, and what was not, with the reason."""

    curves: dict[str, Curve] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


class GpuCalibrator(Calibrator):
    """Collects timings by the clock of a GPU.

    Args:
        progress: as for `Calibrator`.
        clock: the GPU's.
        on: where tensors are made.
        until: when to end, by `time.perf_counter`.
    """

    def __init__(self, progress: Progress | None, clock: Clock, on: torch.device, until: float) -> None:
        super().__init__(progress, clock)
        self.on, self.until = on, until

    def time(self, function: object, rounds: int = 3, at_least: float = 0.001) -> float:
        """Seconds of the GPU for a call."""
        found = timed(function, max(rounds, 3), at_least, 0.1, self.clock)  # type: ignore[arg-type]
        self.spreads.append(found.spread)
        return found.best

    def curve(self, kernel: Kernel) -> Curve:
        """A kernel over its grid; points that take too long are as much longer than the nearest as there is more of them.

        Raises:
            TooLate: there is no time left for all of it.
        """
        known: dict[tuple[int, ...], float] = {}
        for point in kernel.points():
            if time.perf_counter() > self.until:
                raise TooLate
            at = tuple(point.values())
            below = [p for p in known if all(a <= b for a, b in zip(p, at, strict=True))]
            near = max(below, key=math.prod, default=at)
            expected = known.get(near, 0.0) * math.prod(at) / math.prod(near)
            if expected > SLOW or not kernel.fits(point):
                known[at] = expected
                continue
            with self.on:
                run = kernel.make(**point)
            known[at] = self.time(run)
        return Curve(tuple(kernel.axes), tuple(kernel.axes.values()), tuple(known.values()))


def measured(
    gpu: Gpu, clock: Clock, on: torch.device, progress: Progress | None = None, began: float | None = None,
    types: Sequence[Type] = TYPES, more: Sequence[Kernel] | None = None,
) -> tuple[Calibration, str]:  # fmt: skip
    """The calibration of a GPU, and the text of its chip file.

    Args:
        gpu: which one.
        clock: that times it.
        on: where tensors are made.
        progress: is told what is being done.
        began: since when the time counts.
        types: the types whose products are timed.
        more: the kernels that are timed beside them, where not all of `others`.

    Raises:
        CostirError: no bandwidth or no rate came out.
    """
    began = time.perf_counter() if began is None else began
    c = GpuCalibrator(progress, clock, on, began + BUDGET)
    sets, room, found = _sets(gpu), gpu.free // SHARE, Found()
    convolved = convolution_precision()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        c.progress("warming up", 0.0)
        _warm(c)
        c.progress("bandwidth", 0.05)
        envelope = _envelope(_bandwidths(c, sets))
        for i, of in enumerate(types):
            c.progress(f"{of.name} products", 0.1 + 0.3 * i / len(types))
            _rate(c, of, room, found)
        c.progress("overheads", 0.4)
        with precision("ieee"):
            numbers = overheads(clock, on)
            rest = others(room) if more is None else more
            for i, kernel in enumerate(rest):
                c.progress(kernel.name, 0.42 + 0.58 * i / max(len(rest), 1))
                _curve(c, kernel, found)
    if FP32.name not in found.rates:
        raise CostirError(
            f"no float32 product was timed: {found.left_out.get(FP32.name, '?')}", "try again when the GPU is free"
        )
    numbers |= {f"{BANDWIDTH}{size}": rate for size, rate in envelope.items()}
    about = _about(gpu, convolved, found.left_out, time.perf_counter() - began)
    calibration = Calibration(about, c.noise, numbers, found.curves)
    return calibration, _text(gpu, calibration, found.rates, envelope)


def _sets(gpu: Gpu) -> list[int]:
    """The working sets that fit.

    Raises:
        CostirError: none that is much larger than the cache does.
    """
    sets = [s for s in WORKING_SETS if HELD * SHARE * s <= gpu.free]
    least = max(PAST * gpu.l2, LEAST)
    if not sets or sets[-1] < least:
        free, total = (f"{b / 2**30:.1f} GiB" for b in (gpu.free, gpu.total))
        raise CostirError(
            f"{free} of the GPU's {total} are free, too little to measure it",
            f"free {HELD * SHARE * least / 2**30:.1f} GiB or more; nvidia-smi shows what else uses it",
        )
    return sets


def _warm(c: GpuCalibrator) -> None:
    with c.on:
        a = torch.rand(1024, 1024)
    until = time.perf_counter() + WARM
    while time.perf_counter() < until:
        c.clock.round(lambda: torch.mm(a, a), 16)


def _bandwidths(c: GpuCalibrator, sets: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Working sets in bytes, and the bytes per second that a kernel moved over them, the time of the least kernel left out."""

    def seconds(name: str, size: int) -> float:
        with c.on:
            run = MOVERS[name][0](torch.ones(size // 4))
        return c.time(run)

    least = {name: seconds(name, TINY) for name in MOVERS}
    for size in sets:
        for name, (_, times) in MOVERS.items():
            took = seconds(name, size)
            yield size, times * size / max(took - least[name], took * LEAST_WORK)
        _give_back()  # so that the next one's memory has room


def _give_back() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _rate(c: GpuCalibrator, of: Type, room: int, found: Found) -> None:
    """The products of a type, and the best of them as its rate."""
    with precision(of.precision):
        if of.dtype is torch.float32 and in_tf32(c.on) != (of.precision == "tf32"):
            found.left_out[of.name] = f"float32 is not multiplied in {of.name} here, whatever torch asks for"
            return
        for kernel in products(of, room):
            _curve(c, kernel, found)
            curve = found.curves.get(kernel.name)
            if curve is None:
                found.left_out[of.name] = found.left_out.pop(kernel.name)
                continue
            work = (2 * math.prod(point.values()) for point in kernel.points())
            best = max(flops / s for flops, s in zip(work, curve.seconds, strict=True))
            found.rates[of.name] = max(best, found.rates.get(of.name, 0.0))


def _curve(c: GpuCalibrator, kernel: Kernel, found: Found) -> None:
    """A kernel's curve; what this GPU or this torch does not do is noted."""
    try:
        found.curves[kernel.name] = c.curve(kernel)
    except TooLate:
        found.left_out[kernel.name] = "no time was left"
    except (RuntimeError, AttributeError, TypeError) as error:  # not there for this type, GPU or torch
        found.left_out[kernel.name] = _first(error)
    _give_back()


# -------------------------------------------------------------------------------------------------------------- the file


def _about(gpu: Gpu, convolved: str, left_out: Mapping[str, str], seconds: float) -> dict[str, str]:
    said = "; ".join(f"{name}: {why[:60].replace(';', ',')}" for name, why in left_out.items())
    return {
        "gpu": gpu.name, "capability": gpu.capability, "library": gpu.library, **machine(), "threads": "1",
        "seconds": f"{seconds:.0f}", "memory": str(gpu.total), "free": str(gpu.free), "l2": str(gpu.l2),
        "convolutions": convolved, **({"left_out": said[:3000]} if said else {}),
    }  # fmt: skip


def _text(gpu: Gpu, c: Calibration, rates: Mapping[str, float], envelope: Mapping[int, float]) -> str:
    """A chip file that every `--chip` takes."""
    sizes = list(envelope)
    fits = bool(gpu.l2) and envelope[sizes[0]] > CACHED * envelope[sizes[-1]]
    more = [f'vendor = "{gpu.vendor}"', 'unit = "GPU"', f"sm_count = {gpu.processors}"]
    return _chip_file(
        c, rates, envelope, kind="gpu", more=more, capacity=gpu.total,
        levels={"l2": (gpu.l2, envelope[sizes[0]])} if fits else {},
    )  # fmt: skip


__all__ = ["Gpu", "calibrate", "chosen", "is_there", "measured", "seen"]
