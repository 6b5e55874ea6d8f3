"""Tables of a report on a mesh: the ways to compute the same, and the algorithms of its collectives."""

from __future__ import annotations

from costir.document import number, per_device, plain_number, seconds
from costir.page import Cell, Column, Entry, Table
from costir.report import Report
from costir.symbolic import gather


def tables(r: Report, by_algorithm: bool = False) -> list[Table]:
    """Those that have something to say."""
    return [t for t in (ways(r), *([algorithms(r)] if by_algorithm else [])) if t.lines]


def ways(r: Report) -> Table:
    """A line for each way: what it sends and computes, and how long it takes; the first is the one of the report."""
    columns = [Column("way"), *(Column(t, right=True) for t in ("FLOPs", "bytes", "sent"))]
    for c in r.chips:
        of = f" {c.name}" if len(r.chips) > 1 else ""
        columns += [Column(f"{t}{of}", right=True) for t in ("full overlap", "time", "no overlap")]
    lines = []
    for i, w in enumerate(r.ways):
        cells: list[Cell] = [f"{w.plan}{' (taken)' if i == 0 else ''}"]
        cells += [number(w.totals["flops"]), number(w.totals["bytes"], "B"), number(w.totals["network"], "B")]
        for t in w.times:
            parts = [x for x in (t.compute, t.vector, t.memory, t.network) if x is not None]
            cells += [seconds(max(parts)) if parts else "?", seconds(t.lower), seconds(t.upper)]
        lines.append(Entry("operator", tuple(cells)))
    return Table(tuple(columns), tuple(lines), "Ways to compute it" if lines else "")


def algorithms(r: Report) -> Table:
    """A line for each algorithm: all collectives' time, and the critical size of the whole against the network."""
    several = len(r.chips) > 1
    columns = (
        *((Column("chip"),) if several else ()),
        Column("algorithm"), Column("network", right=True),
        Column(f"critical {r.unknown_size}", right=True), Column("= formula", formula=True),
        Column("per device"), Column("remark"),
    )  # fmt: skip
    lines = []
    for row in r.algorithms:
        t = row.threshold
        value = "none" if t is None or t.at_base is None else plain_number(t.at_base)
        formula: Cell = gather(t.value) if t is not None and t.value is not None and t.at_base is not None else ""
        words = f"{row.name}: {row.words}{' (taken)' if row.taken else ''}"
        each = "" if t is None else "; ".join(per_device(t))
        remark = "" if t is None else t.reason
        lines.append((*((row.chip,) if several else ()), words, seconds(row.seconds), value, formula, each, remark))
    used = [i for i in range(len(columns)) if any(line[i] != "" for line in lines)]
    entries = (Entry("operator", tuple(line[i] for i in used)) for line in lines)
    return Table(tuple(columns[i] for i in used), tuple(entries), "By algorithm of the collectives" if lines else "")
