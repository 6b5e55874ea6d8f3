"""What `--traffic all` shows: bytes, intensity and time under each kind of traffic, and which kernels save what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import costir
from costir import document
from costir.build import build
from costir.cost import cost_of
from costir.errors import CostirError
from costir.ir import Conventions
from costir.ops.kernel import members
from costir.page import Cell, Column, Document, Entry, Fact, Table
from costir.render import View
from costir.render_data import quantity
from costir.report import Report, Row, plain
from costir.symbolic import evaluate, size, total

if TYPE_CHECKING:
    from costir.analysis import Analysis
    from costir.hardware import Chip

KINDS = ("eager", "inductor", "xla", "ideal")
_SHOWN = 20  # kernels in the short table


@dataclass(frozen=True)
class Saving:
    """A kernel of several operators, and what they move without it.

    Attributes:
        row: the kernel. eager: bytes of its operators one by one, all its runs, at the base sizes.
    """

    row: Row
    eager: float

    @property
    def nbytes(self) -> float:
        """Bytes of the kernel."""
        return float(self.row.quantities["bytes"].number or 0)


@dataclass(frozen=True)
class Comparison:
    """Reports under each kind of traffic, and why one is missing."""

    reports: Mapping[str, Report]
    missing: Mapping[str, str]
    savings: tuple[Saving, ...]


def compare(analysis: Analysis, chips: Sequence[Chip], unknown: str = "", fixed: Mapping[str, int] | None = None) -> Comparison:
    """The reports of an analysis under each kind of traffic.

    Args:
        analysis: under eager traffic.
        chips: columns of times.
        unknown: the size that thresholds solve for.
        fixed: sizes that are numbers.

    Raises:
        CostirError: where no kind but eager can be counted.
    """
    reports: dict[str, Report] = {}
    missing: dict[str, str] = {}
    for kind in KINDS:
        try:
            reports[kind] = build(analysis.under(kind), chips, unknown=unknown, fixed=fixed or {})
        except CostirError as error:
            missing[kind] = error.message
    if len(reports) == 1:
        raise CostirError(missing["inductor"], "--traffic eager counts it operator by operator")
    best = next((reports[k] for k in ("inductor", "xla") if k in reports), None)
    return Comparison(reports, missing, _savings(best) if best is not None else ())


def _savings(r: Report) -> tuple[Saving, ...]:
    point = {size(n): v for n, v in r.sizes.items()}
    conventions = Conventions(weights=r.conventions.weights)
    found = []
    for row in r.rows:
        inside = list(members(row.call))
        if len(inside) > 1:
            once = total(cost_of(m, conventions)[0].nbytes for m in inside)
            found.append(Saving(row, float(plain(evaluate(once, point)) or 0) * float(row.count.number or 0)))
    return tuple(sorted(found, key=lambda s: s.nbytes - s.eager))


def all_kinds(c: Comparison, brief: bool = True) -> View:
    """The comparison as a view."""
    return View(lambda: _document(c, brief), lambda: _data(c), lambda: _rows(c))


# ------------------------------------------------------------------------------------------------------------------ text


def _document(c: Comparison, brief: bool) -> Document:
    eager = c.reports["eager"]
    head = tuple(f for f in document.head(eager) if f.label != "counted")
    tables = [_columns(c)]
    shown = [s for s in c.savings if s.nbytes < s.eager][: _SHOWN if brief else None]
    if shown:
        tables.append(_kernels(shown))
    return Document(f"{document.title(eager)}, memory traffic", head, tuple(tables), tuple(_facts(c, len(shown))))


def _columns(c: Comparison) -> Table:
    kinds = list(c.reports)
    columns = (Column(""), *(Column(k, right=True) for k in kinds))
    lines = [_line(name, c, cell) for name, cell in _cells(c)]
    return Table(columns, tuple(lines))


def _line(name: str, c: Comparison, cell: Any) -> Entry:
    return Entry("operator", (name, *(cell(r) for r in c.reports.values())))


def _cells(c: Comparison) -> Iterable[tuple[str, Any]]:
    yield "kernels", lambda r: _launches(r)
    yield "FLOPs", lambda r: document.number(r.totals["flops"].number, least=not r.complete)
    for name in ("bytes", "read", "write"):
        yield name, lambda r, n=name: document.number(r.totals[n].number, "B", not r.complete)
    yield "FLOP/B", lambda r: document.plain_number(float(r.totals["intensity"].number or 0))
    first = c.reports["eager"]
    for i, chip in enumerate(first.chips):
        label = f" {chip.name}" if len(first.chips) > 1 else ""
        yield f"time{label}", lambda r, i=i: document.seconds(r.chips[i].times.lower)
        yield f"memory time{label}", lambda r, i=i: document.seconds(r.chips[i].times.memory)
        yield f"binds{label}", lambda r, i=i: r.chips[i].times.binds or "-"
        yield f"changes at{label}", lambda r, i=i: document.change(r.chips[i].threshold, r.base) or "-"


def _launches(r: Report) -> str:
    """How many kernels run; the ideal has none."""
    if r.conventions.traffic == "ideal":
        return "-"
    return document.number(sum(int(row.count.number or 0) for row in r.rows if row.quantities["bytes"].number != 0))


def _kernels(shown: Sequence[Saving]) -> Table:
    columns = (Column("kernel"), Column("runs", right=True), Column("one by one", right=True), Column("fused", right=True),
               Column("saves", right=True), Column("= formula of fused bytes", formula=True))  # fmt: skip
    return Table(columns, tuple(Entry("operator", _saving(s)) for s in shown), "What fusing saves, kernel by kernel")


def _saving(s: Saving) -> tuple[Cell, ...]:
    q = s.row.quantities["bytes"]
    place = f"{s.row.path}: " if s.row.path else ""
    formula: Cell = document.total_formula(q) or ""
    cells = (document.number(x, "B") for x in (s.eager, s.nbytes, s.eager - s.nbytes))
    return (f"{place}{s.row.name}", str(s.row.count.expr), *cells, formula)


def _facts(c: Comparison, shown: int) -> Iterable[Fact]:
    eager = c.reports["eager"]
    for kind, r in c.reports.items():
        yield Fact(f"{kind} bytes", "", document.total_formula(r.totals["bytes"]))
    for kind in ("inductor", "xla"):
        if kind in c.reports:
            yield Fact("fusing buys", _buys(kind, eager, c.reports[kind], c.reports.get("ideal")))
    for kind, why in c.missing.items():
        yield Fact("missing", f"{kind}: {why}")
    more = len([s for s in c.savings if s.nbytes < s.eager]) - shown
    if more > 0:
        yield Fact("not shown", f"{more} more kernels; --all shows them")
    for n in eager.notes:
        yield Fact("note", n)


def _buys(kind: str, eager: Report, fused: Report, ideal: Report | None) -> str:
    was, now = (float(r.totals["bytes"].number or 0) for r in (eager, fused))
    text = f"{kind}: {was / now:.3g} times fewer bytes" if now else kind
    for a, b in zip(eager.chips, fused.chips, strict=True):
        if a.times.lower and b.times.lower:
            on = f" on {a.name}" if len(eager.chips) > 1 else ""
            text += f", {a.times.lower / b.times.lower:.3g} times less time{on}"
    least = float(ideal.totals["bytes"].number or 0) if ideal is not None else 0
    return f"{text}; {now / least:.3g} times the ideal bytes are left" if least else text


# ------------------------------------------------------------------------------------------------------------------ data


def _data(c: Comparison) -> dict[str, Any]:
    first = c.reports["eager"]
    return {
        "schema": "costir/traffic/1", "costir": costir.__version__, "subject": first.subject, "phase": first.phase,
        "sizes": dict(first.sizes), "fixed": dict(first.fixed),
        "traffic": {kind: _of(r) for kind, r in c.reports.items()}, "missing": dict(c.missing),
        "kernels": [_kernel(s) for s in c.savings], "notes": list(first.notes),
    }  # fmt: skip


def _of(r: Report) -> dict[str, Any]:
    out: dict[str, Any] = {n: quantity(r.totals[n]) for n in ("flops", "bytes", "read", "write", "intensity")}
    out["complete"] = r.complete
    out["chips"] = {
        chip.name: {"time": chip.times.lower, "memory": chip.times.memory, "binds": chip.times.binds,
                    "critical": chip.threshold.at_base if chip.threshold else None}
        for chip in r.chips
    }  # fmt: skip
    return out


def _kernel(s: Saving) -> dict[str, Any]:
    row = s.row
    return {"path": row.path, "operators": list(row.operators), "phase": row.phase, "count": quantity(row.count),
            "eager": s.eager, "bytes": quantity(row.quantities["bytes"])}  # fmt: skip


def _rows(c: Comparison) -> Iterable[list[Any]]:
    yield ["quantity", *c.reports]
    for name in ("flops", "bytes", "read", "write", "intensity"):
        yield [name, *(r.totals[name].number for r in c.reports.values())]
    for i, chip in enumerate(c.reports["eager"].chips):
        yield [f"time_{chip.name}", *(r.chips[i].times.lower for r in c.reports.values())]
        yield [f"binds_{chip.name}", *(r.chips[i].times.binds for r in c.reports.values())]
