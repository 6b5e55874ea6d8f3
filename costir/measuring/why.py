"""Where the measured time goes, in parts that add up to it exactly."""

from __future__ import annotations

from dataclasses import dataclass

from costir.chip import Chip
from costir.hardware import calibration_of
from costir.measuring.measure import Measurement
from costir.units import si

SLOWER = 0.8  # times the best rate

_ADVICE = {
    "fusing": "fuse elementwise operators (torch.compile), so that intermediate results are not written and read again",
    "overlap": "operators side by side, or fused with products by a compiler: while one computes, memory has nothing to do",
    "efficiency": "other sizes or layouts: the library does not reach its best rate at these",
    "special": "cheaper functions (tanh for erf in GELU, relu), or fewer evaluations",
    "optimizer": "an optimizer with fewer functions of each parameter, or sparse gradients for tables with few rows in use",
    "cold": "a larger batch, or weights in a smaller type: they come from beyond the cache",
    "apart": "fewer kinds of operators in turn (torch.compile): each finds the caches full of another's code and data",
    "fresh": "in-place operators, or reusing buffers, or an allocator that keeps its memory (MALLOC_TRIM_THRESHOLD_ and "
    "MALLOC_TOP_PAD_ of glibc): the system gives new pages for large results at every step",
    "call": "fewer or larger operators (torch.compile, a larger batch): the calls themselves take the time",
    "framework": "fewer Python calls between operators (torch.compile, foreach or fused optimizers, a larger batch)",
    "compute": "a machine with a higher rate, or a type that is multiplied faster: the step is near its bound",
    "memory": "a machine with more bandwidth, or fewer bytes: the step is near its bound",
    "residual": "a new calibration: most of the time is not explained by this one",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A share of the time: its key, seconds, and what it is in words."""

    key: str
    seconds: float
    words: str


@dataclass(frozen=True, slots=True)
class Why:
    """The parts, which add up to the measured time, and the sentence that says what would help most."""

    parts: tuple[Part, ...]
    advice: str


def why(m: Measurement) -> Why:
    """Split the measured time of a step.

    The floor is the roofline time of the whole, less the traffic that fusing would save: as if the work of some operators went
    on during the traffic of others. What it is short of the sum over operators, one after the other, is lost overlap. What lies
    between a kernel's floor and its calibrated time is special functions where the operator evaluates some, else the library's
    efficiency at these sizes. The residual is what is left of the measurement; it can be negative.
    """
    saved = sum(r.fusable for r in m.rows)
    slack = [(r, max(0.0, r.parts.kernel - r.parts.call - r.bound)) for r in m.rows]
    special = sum(s for r, s in slack if r.special)
    efficiency = sum(s for r, s in slack if not r.special)
    cold, fresh, apart = (sum(getattr(r.parts, k) for r in m.rows) for k in ("cold", "fresh", "apart"))
    # What is spent on the way to an operator lies between the operators where it is measured.
    call = sum(r.parts.inside - (r.parts.kernel - r.parts.call) - r.parts.cold - r.parts.fresh - r.parts.apart for r in m.rows)
    one_by_one = sum(min(r.bound, r.parts.kernel) for r in m.rows) - saved
    floor = min(one_by_one, max(sum(r.work for r in m.rows), sum(r.traffic for r in m.rows) - saved))
    known = one_by_one + saved + special + efficiency + call + cold + apart + fresh + m.between
    parts = (
        Part("floor", floor, "roofline floor"), Part("fusing", saved, "traffic that fusing would save"),
        Part("overlap", one_by_one - floor, "lost overlap"),
        Part("efficiency", efficiency, "library efficiency at these sizes"), Part("special", special, "special functions"),
        Part("cold", cold, "weights from beyond the cache"), Part("fresh", fresh, "fresh pages"),
        Part("apart", apart, "code and small data driven out of the caches"),
        Part("call", call, "overhead per operator"), Part("framework", m.between, "framework time between operators"),
        Part("residual", m.measured - known, "residual"),
    )  # fmt: skip
    largest = max((p for p in parts if p.key != "floor"), key=lambda p: p.seconds)
    if one_by_one > m.measured / 2:
        largest = parts[0]
    by = {b: sum(r.bound for r in m.rows if r.binds == b) for b in ("memory", "compute")}
    key = max(by, key=lambda b: by[b]) if largest.key == "floor" else largest.key
    if key == "special" and sum(s for r, s in slack if r.special and r.phase == "optimizer") > special / 2:
        key = "optimizer"
    advice = _ADVICE[key] + (_slower_library(m.chip) if key == "efficiency" else "")
    over = -parts[-1].seconds / m.measured
    if largest.key != "floor" and over * m.measured > largest.seconds / 2:
        doubt = f"the parts add up to {over:.0%} more than was measured, so that the largest, {largest.words}, may be none"
        return Why(parts, f"a new calibration: {doubt}")
    return Why(parts, f"{largest.words}, {largest.seconds / m.measured:.0%} of the time: {advice}")


def _slower_library(chip: Chip) -> str:
    """Where no size helps, since another library of torch is faster at convolutions than this one is at products."""
    products = calibration_of(chip).numbers.get("products", 0.0)
    peak = float(chip.matmul_rate("float32"))
    if not 0 < products < SLOWER * peak:
        return ""
    reach = f"{si(products, 'FLOP/s')} of the {si(peak, 'FLOP/s')} that its convolutions reach"
    return f"; and torch's fp32 products of matrices reach at most {reach} here"
