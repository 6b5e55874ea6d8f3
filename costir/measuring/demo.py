"""Five experiments of a lesson that measures on one's own machine: what is predicted and what is measured.

    matmul, bandwidth, fusion, step, width: (chip, sizes) -> Demo

Work and traffic are counted by costir's rules; predictions come from the calibration alone, and are fitted to nothing here.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from costir.analysis import Analysis
from costir.api import analyze
from costir.calibration import Calibration
from costir.chip import Chip
from costir.cost import cost_of
from costir.errors import ChipError
from costir.hardware import calibration_of
from costir.ir import Conventions, Cost
from costir.load.family import Built, Family
from costir.measuring.calibrate import cpu_name
from costir.measuring.demo_records import MEMORY, WAYS, Demo, Fusion, Product, Row, Scaling, Step, Way
from costir.measuring.envelope import bandwidth as best_bandwidth
from costir.measuring.estimate import Estimate, Estimator, total
from costir.measuring.lesson import SIZES, gpt
from costir.measuring.measure import clock_of
from costir.measuring.pace import Pace, at_pace, pace
from costir.measuring.remarks import LOADED
from costir.measuring.subject import Subject, one_thread, subject
from costir.measuring.timing import Timed, timed
from costir.symbolic import show

EDGES = tuple(1 << p for p in range(3, 11))
ARRAYS = tuple(1 << p for p in range(10, 27, 2))
FUSED = (1 << 20, 1 << 23)  # results of 4 MiB, which find used memory, and of 32 MiB, which get fresh pages
COLUMNS = 1024
BATCHES = tuple(1 << p for p in range(8))
WIDTHS = tuple(1 << p for p in range(5, 11))
FLOAT = 4  # bytes
PATIENCE = 3.0  # seconds for waiting for quiet moments


# ----------------------------------------------------------------------------------------------------------- experiments


def matmul(chip: Chip, edges: Sequence[int] = EDGES) -> Demo:
    """Square products in fp32.

    Raises:
        ChipError: for a chip without a calibration, as for all experiments.
    """
    c, peak = _ready(chip), _peak(chip)

    def run(machine: _Session, n: int) -> Product:
        found = _bare(machine.today, torch.mm, (torch.rand(n, n), torch.rand(n, n)))
        flops, seen = found.sum("flops"), machine.time(found, 7, 0.6)
        return Product(found.predicted / seen.speed, seen.best, n, flops, flops / found.sum("nbytes"), peak)

    known = analyze(lambda n=64: (_Function(torch.mm), (torch.empty(n, n), torch.empty(n, n)), {}))
    with _session(c) as machine:
        rows = [run(machine, n) for n in edges]
    return machine.demo("matmul", rows, {"flops": show(known.flops), "intensity": show(known.intensity)})


def bandwidth(chip: Chip, arrays: Sequence[int] = ARRAYS) -> Demo:
    """An array scaled in place; its time is never predicted below that of its traffic at the best bandwidth of its size."""
    c, levels = _ready(chip), caches() or _calibrated_caches(chip)

    def run(machine: _Session, n: int) -> Scaling:
        scaled = lambda x: x.mul_(1.0)  # by 1: smaller and smaller numbers would become slow ones
        found = _bare(machine.today, scaled, (torch.ones(n),))
        moved, best = found.sum("nbytes"), best_bandwidth(c, FLOAT * n)
        level = next((name for name, size in levels if FLOAT * n <= size), MEMORY)
        seen = machine.time(found, 5, 0.6)
        return Scaling(max(found.predicted / seen.speed, moved / best), seen.best, n, level, moved, best)

    with _session(c) as machine:
        rows = [run(machine, n) for n in arrays]
    return machine.demo("bandwidth", rows)


def fusion(chip: Chip, sizes: Sequence[int] = FUSED, columns: int = COLUMNS) -> Demo:
    """Operators one after the other against one kernel, over [size / columns, columns] elements."""
    c = _ready(chip)
    known = {name: tuple(_analysed(pair.operands, f) for f in (pair.separate, pair.together)) for name, pair in PAIRS.items()}

    def run(machine: _Session, name: str, n: int) -> Fusion:
        pair = PAIRS[name]
        operands = tuple(torch.rand(n // columns, columns) for _ in range(pair.operands))
        passes = [float(a.at(R=n // columns, C=columns).bytes) / (FLOAT * n) for a in known[name]]
        ways = (_way(machine, f, operands, k) for f, k in zip((pair.separate, pair.together), passes, strict=True))
        return Fusion(name, n, *ways)

    with _session(c) as machine:
        rows = [run(machine, name, n) for name in PAIRS for n in sizes]
    formulas = {f"{name}, {way}": show(a.bytes) for name, both in known.items() for way, a in zip(WAYS, both, strict=True)}
    return machine.demo("fusion", rows, formulas)


def step(chip: Chip, batches: Sequence[int] = BATCHES) -> Demo:
    """A training step of the lesson's GPT over batches."""
    return _steps("step", chip, "B", batches, SIZES)


def width(chip: Chip, widths: Sequence[int] = WIDTHS, batch: int = 8) -> Demo:
    """The same over widths."""
    return _steps("width", chip, "D", widths, {**SIZES, "B": batch})


DEMOS: Mapping[str, Callable[[Chip], Demo]] = {
    "matmul": matmul, "bandwidth": bandwidth, "fusion": fusion, "step": step, "width": width,
}  # fmt: skip


def _steps(name: str, chip: Chip, over: str, values: Sequence[int], sizes: Mapping[str, int]) -> Demo:
    c, peak = _ready(chip), _peak(chip)

    def run(machine: _Session, value: int) -> Step:
        family = gpt(**{**sizes, over: value})
        found = _run(subject(family, family.sizes, "train"), machine.today)
        seen, share = machine.time(found, 15, 1.0), found.overhead / found.predicted
        flops, products = found.sum("flops"), found.sum("matmul")
        return Step(found.predicted / seen.speed, seen.best, value, len(found.parts), flops, products, share, peak)

    with _session(c) as machine:
        rows = [run(machine, v) for v in values]
    return machine.demo(name, rows, sizes={n: v for n, v in sizes.items() if n != over})


# -------------------------------------------------------------------------------------------- two ways to the same result


@dataclass(frozen=True)
class Pair:
    """Two functions of so many operands with one result: by operators one after the other, and by one."""

    operands: int
    separate: Callable[..., Tensor]
    together: Callable[..., Tensor]


def _softmax(x: Tensor) -> Tensor:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def _gelu(x: Tensor) -> Tensor:
    """Hendrycks and Gimpel, arXiv 1606.08415, section 2, as it is typed without a thought for passes."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


PAIRS: Mapping[str, Pair] = {
    "a*b + c": Pair(3, lambda a, b, c: a * b + c, lambda a, b, c: torch.addcmul(c, a, b)),
    "softmax": Pair(1, _softmax, lambda x: x.softmax(-1)),
    "tanh-GELU": Pair(1, _gelu, lambda x: nn.functional.gelu(x, approximate="tanh")),
    "cos(cos(x)), cos(x)": Pair(1, lambda x: x.cos().cos(), torch.cos),
}


def _analysed(operands: int, function: Callable[..., Tensor]) -> Analysis:
    """Over [R, C]."""
    return analyze(lambda R=64, C=128: (_Function(function), tuple(torch.empty(R, C) for _ in range(operands)), {}))


def _way(machine: _Session, function: Callable[..., Tensor], operands: tuple[Tensor, ...], passes: float) -> Way:
    c = machine.today
    found = _bare(c, function, operands)
    special = sum(_beyond_traffic(c, e, cost) for e, cost in zip(found.parts, found.costs, strict=True) if cost.special != 0)
    fresh, call = (math.fsum(getattr(e, k) for e in found.parts) for k in ("fresh", "call"))
    whole, seen = found.predicted, machine.time(found, 5, 0.8)
    return Way(whole / seen.speed, seen.best, passes, special / whole, fresh / whole, call / whole)


def _beyond_traffic(c: Calibration, e: Estimate, cost: Cost) -> float:
    """Seconds of a kernel that neither its call nor its bytes at the best bandwidth explain."""
    nbytes = float(cost.nbytes)
    return max(0.0, e.kernel - e.call - nbytes / best_bandwidth(c, nbytes))


# ---------------------------------------------------------------------------------------------- predicting and measuring


class _Function(nn.Module):  # type: ignore[misc]
    """A function as a module, to be analysed and recorded."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: Tensor) -> Tensor:
        """Call it."""
        return self.function(*operands)


@dataclass(frozen=True)
class _Run:
    """Something to time, and the costs and estimates of its operators.

    Attributes:
        function: runs it.
        predicted: seconds, and how many of them are for calls and not for work.
    """

    function: Callable[[], Any]
    costs: tuple[Cost, ...]
    parts: tuple[Estimate, ...]
    predicted: float
    overhead: float

    def sum(self, quantity: str) -> float:
        """A quantity of the costs over all operators."""
        return math.fsum(float(getattr(k, quantity)) for k in self.costs)


def _run(model: Subject, c: Calibration, bare: Callable[[], Any] | None = None) -> _Run:
    """A step of a model; or a function alone, which then is what the model calls, with no module around it."""
    calls = model.record()
    costs = tuple(cost_of(r.call, Conventions())[0] for r in calls)
    parts = tuple(Estimator(c).all(calls, 0 if bare else model.lines, costs))
    predicted = math.fsum(e.total for e in parts) if bare else total(calls, parts, model.leaves, c)
    work = math.fsum(e.total - e.call - e.framework for e in parts)
    return _Run(bare or model.step, costs, parts, predicted, predicted - work)


def _bare(c: Calibration, function: Callable[..., Tensor], operands: tuple[Tensor, ...]) -> _Run:
    family = Family("a function", lambda: Built(_Function(function), operands, {}), {})
    return _run(subject(family, {}, "forward"), c, lambda: function(*operands))


# -------------------------------------------------------------------------------------------------------------- machines


def _ready(chip: Chip) -> Calibration:
    """The calibration of a chip, with what is needed of it.

    Raises:
        ChipError: where there is none, or it is not whole.
    """
    c = calibration_of(chip)
    missing = [k for k in _CURVES if k not in c.curves] + [k for k in _NUMBERS if k not in c.numbers]
    if missing or not c.envelope:
        raise ChipError(f"the calibration of {chip.label} has no {(missing or ['bandwidth'])[0]}", "run costir calibrate again")
    return c


_CURVES = ("mm_nn", "unary", "unary_", "binary")
_NUMBERS = ("view", "module", "start", "grad", "node", "optimizer", "fresh")


class _Session:
    """A time in which experiments run, and how busy the machine was: at its ends, and by the share of a core that was had."""

    def __init__(self, c: Calibration) -> None:
        self.c, self.clock = c, clock_of(c, PATIENCE)
        self.paces: list[Pace] = [pace(c, self.clock)]
        self.today = at_pace(c, self.paces[0])
        self.began, self.used = time.perf_counter(), time.process_time()

    def close(self) -> None:
        """Look at the machine again."""
        used, took = time.process_time() - self.used, time.perf_counter() - self.began
        self.core = min(1.0, used / took)
        self.paces.append(pace(self.c, self.clock))

    def time(self, run: _Run, rounds: int, most: float) -> Timed:
        """Seconds of the best round; no further one is begun after `most` seconds."""
        return timed(run.function, rounds, 0.005, most, self.clock)

    def demo(
        self, name: str, rows: Sequence[Row], formulas: Mapping[str, str] | None = None, sizes: Mapping[str, int] | None = None
    ) -> Demo:
        """What came of it."""
        here = {"cpu": cpu_name(), "torch": torch.__version__}
        then = {k: self.c.about.get(k, "?") for k in here}
        differs = {k: (then[k], now) for k, now in here.items() if then[k] != now}
        loaded = max((p.loaded for p in self.paces), key=abs)
        busy = "slower" if loaded > LOADED else "faster" if loaded < -LOADED else "shared" if self.core < 1 - LOADED else ""
        return Demo(name, tuple(rows), sizes or {}, formulas or {}, loaded, self.core, differs, busy)


@contextlib.contextmanager
def _session(c: Calibration) -> Iterator[_Session]:
    """As many threads as when it was calibrated, no autograd, and random numbers that nobody else sees."""
    with one_thread(c.threads), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        session = _Session(c)
        yield session
        session.close()


def caches(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> tuple[tuple[str, int], ...]:
    """The data caches of this machine as Linux says, nearest first: (("L1", 32768), ...). Empty where it does not say."""
    found = []
    for folder in sorted(root.glob("index*")):
        try:
            level, kind, size = ((folder / k).read_text(encoding="ascii").strip() for k in ("level", "type", "size"))
        except (OSError, UnicodeDecodeError):
            continue
        match = re.fullmatch(r"([0-9]+)([KMG]?)", size)
        if match and kind != "Instruction":
            found.append((f"L{level}", int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]))
    return tuple(sorted(found, key=lambda x: x[1]))


def _peak(chip: Chip) -> float:
    """The best FLOP/s of products of matrices in fp32; the chip's own rate may be that of convolutions, of another library."""
    return calibration_of(chip).numbers.get("products", float(chip.matmul_rate("float32")))


def _calibrated_caches(chip: Chip) -> tuple[tuple[str, int], ...]:
    """Where the calibration saw the bandwidth fall."""
    return tuple(sorted(((n, int(o.capacity)) for n, o in chip.onchip.items() if o.capacity), key=lambda x: x[1]))
