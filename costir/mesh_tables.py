"""Tables of a report on a mesh: the ways to compute the same, what is sent, and the algorithms of its collectives."""

from __future__ import annotations

from collections.abc import Sequence

from costir.document import number, per_device, plain_number, seconds
from costir.grouping import time_of
from costir.page import Cell, Column, Entry, Table
from costir.report import Report, Sent
from costir.symbolic import gather


def tables(r: Report, by_algorithm: bool = False) -> list[Table]:
    """Those that have something to say."""
    found = (ways(r), algorithms(r)) if by_algorithm else (ways(r), held(r), communication(r))
    return [t for t in found if t.lines]


def ways(r: Report) -> Table:
    """A line for each way, or stage of a pipeline: what it sends and computes, how long it takes; first that of the report."""
    columns = [Column("stage" if r.pipeline else "way"), *(Column(t, right=True) for t in ("FLOPs", "bytes", "sent"))]
    for c in r.chips:
        of = f" {c.name}" if len(r.chips) > 1 else ""
        columns += [Column(f"{t}{of}", right=True) for t in ("full overlap", "time", "no overlap")]
    lines = []
    title, mark = ("Stages of the pipeline", "slowest") if r.pipeline else ("Ways to compute it", "taken")
    for i, w in enumerate(r.ways):
        cells: list[Cell] = [f"{w.plan}{f' ({mark})' if i == 0 else ''}"]
        cells += [number(w.totals["flops"]), number(w.totals["bytes"], "B"), number(w.totals["network"], "B")]
        for t in w.times:
            parts = [x for x in (t.compute, t.vector, t.memory, t.network) if x is not None]
            cells += [seconds(max(parts)) if parts else "?", seconds(t.lower), seconds(t.upper)]
        lines.append(Entry("operator", tuple(cells)))
    return Table(tuple(columns), tuple(lines), title if lines else "")


def held(r: Report) -> Table:
    """A line for each stage of a pipeline: what a device of it holds at the least, by both schedules."""
    names = ("parameters", "optimizer state", "gradients", "gathered", "activations", "in flight", "by 1F1B", "by GPipe")
    stages = r.pipeline.held if r.pipeline is not None else ()
    gathers = any(s.gathered.value != 0 for s in stages)
    lines = []
    for s in stages:
        always = [number(q.number, "B") for q in (s.parameters, s.optimizer_state, s.gradients)]
        once = [number(s.gathered.number, "B")] if gathers else []
        cells = [*always, *once, number(s.activations.number, "B"), str(s.in_flight)]
        lines.append(Entry("operator", (s.stage, *cells, *(f">= {number(q.number, 'B')}" for q in s.least))))
    columns = [Column("stage"), *(Column(n, right=True) for n in names if gathers or n != "gathered")]
    title = "What a device of each stage holds at the least; activations are those of its blocks for one micro-batch"
    return Table(tuple(columns), tuple(lines), title if lines else "")


def communication(r: Report) -> Table:
    """A line for each kind of collective along the same axes in a phase, then sums over each axis.

    Payload and sent are of all runs; a share is that of a step whose operators run one after the other.
    """
    columns = [Column("collective"), Column("over"), Column("runs", right=True), Column("payload", right=True),
               Column("= formula", formula=True), Column("sent", right=True)]  # fmt: skip
    for c in r.chips:
        of = f" {c.name}" if len(r.chips) > 1 else ""
        columns += [Column(f"time{of}", right=True), Column(f"share{of}", right=True)]
    several = len({s.phase for s in r.sent}) > 1
    lines = []
    for s in r.sent:
        name = f"{s.phase} {s.kind}" if several else s.kind
        runs: Cell = s.runs.expr if s.runs.expr is not None and s.runs.expr.free_symbols else str(s.runs.number)
        formula: Cell = gather(s.payload.expr) if s.payload.expr is not None and s.payload.expr.free_symbols else ""
        head: list[Cell] = [name, ",".join(s.axes), runs, number(s.payload.number, "B"), formula]
        lines.append(Entry("operator", (*head, number(s.sent.number, "B"), *_times(r, [s]))))
    axes = list(dict.fromkeys(s.axes for s in r.sent))
    if len(r.sent) > 1:
        lines.append(Entry("rule"))
        for a in axes if len(axes) > 1 else ():
            lines.append(Entry("total", _summed(r, ",".join(a), [s for s in r.sent if s.axes == a])))
        lines.append(Entry("total", _summed(r, "", r.sent)))
    return Table(tuple(columns), tuple(lines), "What the devices send each other" if lines else "")


def _summed(r: Report, over: str, rows: Sequence[Sent]) -> tuple[Cell, ...]:
    runs, payload, sent = (sum(getattr(s, q).number or 0 for s in rows) for q in ("runs", "payload", "sent"))
    return ("total", over, str(runs), number(payload, "B"), "", number(sent, "B"), *_times(r, rows))


def _times(r: Report, rows: Sequence[Sent]) -> list[str]:
    """The time of these collectives on each chip, and its share of all operators' time."""
    out = []
    for i in range(len(r.chips)):
        mine = sum(s.seconds[i] for s in rows)
        whole = time_of(r.rows, i)
        out += [seconds(mine), f"{100 * mine / whole:.3g} %" if whole else "-"]
    return out


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
