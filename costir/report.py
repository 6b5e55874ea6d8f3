"""Frozen records of what a reader sees: an analysis, put on chips, as rows. Renderers only format what is here.

    Analysis (+ chips) -> build -> Report -> document -> render

Quantities keep their formula and their exact value at the base sizes; times are floats in seconds. Nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from costir import ir
from costir.ops.kernel import KERNEL, kernel_name, operators
from costir.symbolic import Expr

if TYPE_CHECKING:
    from costir.critical_path import CriticalPath

QUANTITIES = ("matmul_flops", "vector_flops", "special_flops", "flops", "bytes", "read", "write", "intensity")
TOTALS = (*QUANTITIES, "params", "weight_bytes")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A formula and its exact value at the base sizes; both None where it is unknown."""

    expr: Expr | None
    value: Expr | None

    @property
    def number(self) -> int | float | None:
        """The value as a Python number: an int where it is whole, None where it is unknown or infinite."""
        return None if self.value is None else plain(self.value)


def plain(value: Any) -> int | float | None:
    """An exact number as int (where whole) or float; None where it is not a finite number."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    if value is None or not value.is_number or value.is_finite is not True:
        return None
    return int(value) if value.is_integer else float(value)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds on one chip, at the base sizes.

    Attributes:
        compute, vector, memory: what each resource would take alone; None where it is unknown.
        lower: each operator with perfect overlap, its roofline; operators run one after the other.
        upper: no overlap, the sum; None where something is not known.
        binds: "compute", "vector", "memory", "network", or "" where there is nothing to do.
        network: what collectives take.
    """

    compute: float | None
    vector: float | None
    memory: float | None
    lower: float | None
    upper: float | None
    binds: str
    network: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One operator, or several equal ones.

    Attributes:
        path, op, phase, source, rule, status, note: as in `ir.Call` and `ir.Cost`; `op` is the full overload name. Where the
            status is "unknown" or "flops_only", bytes are lower bounds.
        count: how often it runs.
        quantities: by the names in QUANTITIES and "network", over all its runs; unknown ones have no formula.
        call, cost: the first of the calls, and what one call costs.
        times: one per chip of the report, over all its runs.
        thresholds: one per chip; None where none was asked for.
    """

    path: str
    op: str
    phase: str
    source: str
    rule: str
    status: ir.Status
    note: str
    count: Quantity
    quantities: Mapping[str, Quantity]
    call: ir.Call
    cost: ir.Cost
    times: tuple[Times, ...] = ()
    thresholds: tuple[ir.Threshold | None, ...] = ()

    def on(self, times: Times, threshold: ir.Threshold | None) -> Row:
        """The row with one more chip."""
        return replace(self, times=(*self.times, times), thresholds=(*self.thresholds, threshold))

    @property
    def name(self) -> str:
        """The operator without namespace and overload: "mm"; of a kernel its operators: "silu, mul"."""
        if self.op.startswith(KERNEL):
            return kernel_name(self.operators)
        parts = self.op.split(".")
        return parts[1] if len(parts) > 1 else self.op

    @property
    def operators(self) -> tuple[str, ...]:
        """The names of the operators that it does."""
        return operators(self.call)


@dataclass(frozen=True, slots=True)
class ChipInfo:
    """A chip as it was resolved.

    Attributes:
        name: the resolved name, with preset ("tpu_v5e@book").
        note: how the name was understood ("h100 -> h100_sxm (also: h100_pcie)"), else "".
        peaks: FLOP/s of contractions by type, for the types that this model computes in.
        vector: FLOP/s of elementwise work; None where it is not known.
        bandwidth: bytes/s.
        times: of the whole; threshold: of the whole, against the memory.
        network: the threshold against the network, where devices communicate.
        links: how the mesh lies on the chip's links, in words.
        path: the critical path, where it was asked for.
        cached: bytes/s of a calibrated CPU's fastest cache, which `bandwidth`, that of its main memory, leaves out; else None.
    """

    name: str
    note: str
    peaks: Mapping[str, float]
    vector: float | None
    bandwidth: float
    times: Times
    threshold: ir.Threshold | None = None
    network: ir.Threshold | None = None
    links: tuple[str, ...] = ()
    path: CriticalPath | None = None
    cached: float | None = None

    @property
    def thresholds(self) -> tuple[ir.Threshold, ...]:
        """Those of the whole, the network's first."""
        return tuple(t for t in (self.network, self.threshold) if t is not None)


@dataclass(frozen=True, slots=True)
class Served:
    """A step of serving.

    Attributes:
        batch, length: the sizes that count sequences, and tokens of one in the cache; "" for none.
        quantities: by the names in SERVED, in bytes, "outgrows" in sequences.
        bounds: per chip by the names in BOUNDS; a quantity that there is not has no formula.
    """

    batch: str
    length: str
    quantities: Mapping[str, Quantity]
    bounds: tuple[Mapping[str, Quantity], ...] = ()


SERVED = ("per_token", "per_sequence", "total", "weights", "cache_read", "cache_written", "cache_moved", "step", "outgrows")
BOUNDS = ("latency", "tokens_per_second", "critical", "fits")


@dataclass(frozen=True, slots=True)
class Way:
    """One of several ways to compute the same on a mesh.

    Attributes:
        plan: what is communicated, in words.
        totals: FLOPs, bytes and communicated bytes of one device, at the base.
        times: one per chip.
    """

    plan: str
    totals: Mapping[str, int | float | None]
    times: tuple[Times, ...] = ()


@dataclass(frozen=True, slots=True)
class ByAlgorithm:
    """What collectives take by one algorithm: its name and words, all collectives' seconds, and the critical size."""

    chip: str
    name: str
    words: str
    seconds: float
    threshold: ir.Threshold | None
    taken: bool


@dataclass(frozen=True, slots=True)
class Sent:
    """All collectives of one kind along the same axes in one phase.

    Attributes:
        phase, kind, axes: as in `communication.Communication`.
        runs: how many there are. payload: bytes of the whole arrays, all runs. sent: bytes that each device sends.
        seconds: per chip, one after the other at the base sizes.
    """

    phase: str
    kind: str
    axes: tuple[str, ...]
    runs: Quantity
    payload: Quantity
    sent: Quantity
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a sweep: its sizes, the totals there, per chip the times of the whole, and its critical size where asked.

    `served` has, for a step of serving, the bytes of its cache; then per chip the latency and the tokens per second.
    """

    sizes: Mapping[str, int]
    totals: Mapping[str, int | float | None]
    times: tuple[Times, ...] = ()
    thresholds: tuple[ir.Threshold, ...] = ()
    served: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest value of a size, or the fewest devices along an axis, with which a run fits a chip.

    Attributes:
        unknown: the size.
        chip: the chip.
        capacity: its memory, bytes.
        needed: what the run holds at its peak at the base sizes, bytes.
        value: the largest value, the other sizes as they are; 0 where not even 1 fits, None where any does.
        formula: `value` before it is rounded down, in the sizes; None where it is no quotient of polynomials.
        within: the condition beyond which the formulas do not hold, where that and not the memory ends it, else ""; of an axis,
            what its number of devices must meet.
        fewest: of an axis: `value` is the fewest devices, 0 where no number of them is enough, and `formula` is rounded up.
    """

    unknown: str
    chip: str
    capacity: int
    needed: int
    value: int | None
    formula: Expr | None = None
    within: str = ""
    fewest: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """What a run holds at its peak.

    Attributes:
        peak: bytes; the formula holds wherever no other moment holds more.
        where: the operator that runs then, in words.
        parts: by their names.
        kept: bytes of activations that one more layer keeps for the backward pass, then those of one token of it; None where
            there are none, or tokens are no product of two sizes.
        others: the moments that are the peak at other sizes, in words, with their bytes.
        fits: per chip of known memory, the largest value of a size.
        curve: what is held operator by operator, where it was asked for: phase, path and operator, bytes by part.
        note: what a run at the base sizes holds otherwise, and from how many layers on the formulas hold, else "".
        problem: why nothing is known, else "".
    """

    peak: Quantity
    where: str = ""
    parts: Mapping[str, Quantity] = field(default_factory=dict)
    others: tuple[tuple[str, Quantity], ...] = ()
    fits: tuple[Fit, ...] = ()
    curve: tuple[tuple[str, str, str, Mapping[str, int]], ...] = ()
    note: str = ""
    problem: str = ""
    kept: tuple[Quantity | None, Quantity | None] = (None, None)


@dataclass(frozen=True, slots=True)
class StageHeld:
    """What a stage of a pipeline holds, see `costir.stage_memory.StageMemory`: bytes, `in_flight` micro-batches by 1F1B.

    `activations` are those of the stage's blocks for one micro-batch; `least` is by 1F1B, then by GPipe.
    """

    stage: str
    parameters: Quantity
    optimizer_state: Quantity
    gradients: Quantity
    gathered: Quantity
    activations: Quantity
    in_flight: int
    least: tuple[Quantity, Quantity]


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long the stages of a pipeline wait for each other, see `costir.stages.Bubble`; `steps` are least seconds by chip.

    `held` is what each stage holds in a training step, that of the report first; empty where that is not known.
    """

    stages: int
    micro_batches: int
    idle: float
    factor: float
    steps: tuple[float, ...] = ()
    held: tuple[StageHeld, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a reader of an analysis sees.

    Attributes:
        subject: what was analysed. phase: forward, backward, train.
        sizes: the sizes that formulas carry as letters, at their base values. fixed: those put in as numbers.
        conventions: what counts.
        rows: every operator that costs something or is unknown, equal ones merged. free: how many calls cost nothing.
        totals: by the names in TOTALS. Where `complete` is False they are lower bounds.
        chips: one per chip asked for.
        unknown_size: the size that thresholds solve for, "" where none.
        constraints, unknown, notes: in words, each one line.
        sweep: one per point of the sweep that was asked for.
        weights: every parameter's path and its elements, all of its kind together.
        mesh: the axes of the mesh and their lengths at the base. overlap: what the time of the whole means.
        served: of a step of serving, what its cache takes and what bounds it; else None.
        ways: on a mesh, the ways to compute this, the one of the report first; empty where there is one.
        sent: what the devices send each other.
        repeated: FLOPs that all devices do beyond those of the whole model; None where that is not known.
        algorithms: what collectives take by each algorithm that the links allow.
        memory: what the run holds; None where it was not asked for.
        pipeline: how long the stages of a pipeline wait; None where there is none.
    """

    subject: str
    phase: str
    sizes: Mapping[str, int]
    fixed: Mapping[str, int]
    conventions: ir.Conventions
    rows: tuple[Row, ...]
    free: int
    totals: Mapping[str, Quantity]
    chips: tuple[ChipInfo, ...] = ()
    unknown_size: str = ""
    constraints: tuple[ir.Constraint, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sweep: tuple[Point, ...] = field(default=())
    served: Served | None = None
    weights: tuple[tuple[str, Expr], ...] = ()
    mesh: Mapping[str, int] = field(default_factory=dict)
    overlap: str = "op"
    ways: tuple[Way, ...] = ()
    sent: tuple[Sent, ...] = ()
    repeated: Quantity | None = None
    algorithms: tuple[ByAlgorithm, ...] = ()
    memory: Memory | None = None
    pipeline: Waiting | None = None

    @property
    def communicates(self) -> bool:
        """Whether anything is sent between devices."""
        return any(row.cost.transfers for row in self.rows)

    @property
    def complete(self) -> bool:
        """Whether every operator has FLOPs and bytes; else the totals are lower bounds."""
        return not self.unknown and all(r.status in ("costed", "free") for r in self.rows)

    @property
    def base(self) -> float:
        """The base value of the size that thresholds solve for; "tokens" is B*T."""
        return base_of(self.unknown_size, self.sizes)


def base_of(unknown: str, sizes: Mapping[str, int]) -> float:
    """The base value of a size, or of a product of sizes ("B*T", or "tokens" for B*T)."""
    names = ("B", "T") if unknown == "tokens" and "tokens" not in sizes else tuple(unknown.split("*"))
    value = 1
    for name in names:
        value *= sizes.get(name.strip(), 1)
    return value
