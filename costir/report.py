"""Frozen records of what a reader sees: an analysis, put on chips, as rows. Renderers only format what is here.

    Analysis (+ chips) -> build() -> Report -> render

Quantities keep their formula and their exact value at the base sizes; times are floats in seconds. Nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from costir import ir
from costir.symbolic import ONE, Boolean, Expr, evaluate, size, total

if TYPE_CHECKING:
    from costir.analysis import Analysis, OnChip

QUANTITIES = ("matmul_flops", "vector_flops", "special_flops", "flops", "bytes", "read", "write", "intensity")
TOTALS = (*QUANTITIES, "params", "weight_bytes")

# A row below this share of every total (FLOPs, bytes, time on each chip) is summed up with its like in a short report.
SMALL = 0.005


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
    if value is None or not value.is_number or value.is_finite is not True:
        return None
    return int(value) if value.is_integer else float(value)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds on one chip, at the base sizes.

    Attributes:
        compute, vector, memory: what each resource would take alone; None where it is unknown.
        lower: perfect overlap, the roofline; a bound from below.
        upper: no overlap, the sum.
        binds: "compute", "vector", "memory", or "" where there is nothing to do.
    """

    compute: float | None
    vector: float | None
    memory: float | None
    lower: float | None
    upper: float | None
    binds: str


@dataclass(frozen=True, slots=True)
class Row:
    """One operator, or several equal ones.

    Attributes:
        path, op, phase, source, rule, status, note: as in `ir.Call` and `ir.Cost`; `op` is the full overload name.
        count: how often it runs.
        quantities: by the names in QUANTITIES, over all its runs; unknown ones have no formula.
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
    times: tuple[Times, ...] = ()
    thresholds: tuple[ir.Threshold | None, ...] = ()

    @property
    def name(self) -> str:
        """The operator without namespace and overload: "mm"."""
        parts = self.op.split(".")
        return parts[1] if len(parts) > 1 else self.op


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one module, in one phase.

    `small` are those that a short report sums up; `repeat` is how often a folded block occurs ("L", 32), else None.
    """

    path: str
    phase: str
    rows: tuple[Row, ...]
    small: tuple[Row, ...] = ()
    repeat: Quantity | None = None


@dataclass(frozen=True, slots=True)
class ChipInfo:
    """A chip as it was resolved.

    Attributes:
        name: the resolved name, with preset ("tpu_v5e@book").
        note: how the name was understood ("h100 -> h100_sxm (also: h100_pcie)"), else "".
        peaks: FLOP/s of contractions by type, for the types that this model computes in.
        bandwidth: bytes/s.
        times: of the whole; threshold: of the whole.
    """

    name: str
    note: str
    peaks: Mapping[str, float]
    bandwidth: float
    times: Times
    threshold: ir.Threshold | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a sweep: its sizes, the totals there, and per chip the times of the whole."""

    sizes: Mapping[str, int]
    totals: Mapping[str, int | float | None]
    times: tuple[Times, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a reader of an analysis sees.

    Attributes:
        subject: what was analysed. phase: forward, backward, train.
        sizes: every size at its base value. kept: the sizes that the formulas still carry as letters.
        conventions: what counts.
        rows: every operator that costs something or is unknown, equal ones merged. free: how many calls cost nothing.
        totals: by the names in TOTALS. Where `complete` is False they are lower bounds.
        chips: one per chip asked for.
        unknown_size: the size that thresholds solve for, "" where none.
        constraints, unknown, notes: in words, each one line.
        sweep: one per point of the sweep that was asked for.
    """

    subject: str
    phase: str
    sizes: Mapping[str, int]
    kept: tuple[str, ...]
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


def groups(rows: Iterable[Row], brief: bool = False) -> tuple[Group, ...]:
    """Rows by the module that they belong to, in order of first use.

    An operator that a module runs itself belongs to that module; a leaf module (a Linear) belongs to its parent.
    With `brief`, rows that are small in every respect are moved to `Group.small`; unknown operators never are.
    """
    rows = tuple(rows)
    modules = {p for row in rows for p in _parents(row.path)}
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        path = row.path if row.path in modules else _parent(row.path)
        found.setdefault((row.phase, path), []).append(row)
    big = _bigness(rows) if brief else {}
    out = []
    for (phase, path), members in found.items():
        small = tuple(r for r in members if brief and not big[id(r)])
        if len(small) < 2:
            small = ()
        kept = tuple(r for r in members if not any(r is s for s in small))
        out.append(Group(path, phase, kept, small, _repeat(path, members)))
    return tuple(out)


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _parents(path: str) -> Iterable[str]:
    while path := _parent(path):
        yield path


def _repeat(path: str, rows: Sequence[Row]) -> Quantity | None:
    """How often a folded block runs: the smallest count in it, where all others are its multiples."""
    counts = sorted((r.count for r in rows), key=lambda c: c.number or 0)
    if "*" not in path or not counts[0].number or counts[0].expr is None:
        return None
    whole = all((c.expr / counts[0].expr).is_Integer for c in counts if c.expr is not None)
    return counts[0] if whole and counts[0].number != 1 else None


def _bigness(rows: Sequence[Row]) -> dict[int, bool]:
    """For each row, by id: whether it matters in FLOPs, bytes, or time on any chip, or is not fully known."""
    measures: list[Callable[[Row], float]] = [lambda r, q=q: float(r.quantities[q].number or 0) for q in ("flops", "bytes")]  # type: ignore[misc]
    measures += [lambda r, i=i: r.times[i].lower or 0.0 for i in range(len(rows[0].times) if rows else 0)]  # type: ignore[misc]
    bounds = [SMALL * sum(m(r) for r in rows) for m in measures]
    return {
        id(r): r.status not in ("costed", "free") or any(m(r) >= b > 0 for m, b in zip(measures, bounds, strict=True))
        for r in rows
    }


def sum_of(rows: Sequence[Row], name: str) -> int | float | None:
    """The sum of a quantity over rows, at the base sizes; the intensity is FLOPs by bytes. None where nothing is known."""
    if name == "intensity":
        flops, moved = sum_of(rows, "flops"), sum_of(rows, "bytes")
        return flops / moved if flops is not None and moved else None
    values = [v for r in rows if (v := r.quantities[name].number) is not None]
    return sum(values) if values else None


def time_of(rows: Sequence[Row], chip: int) -> float | None:
    """The time of the rows one after another on a chip, each at its roofline. None where nothing is known."""
    values = [t for r in rows if (t := r.times[chip].lower) is not None]
    return sum(values) if values else None
