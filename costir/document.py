"""A report as a document: headings, tables and facts in words, before any format. Formulas stay expressions until the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from costir import ir, memory_view, path_view
from costir.document_serving import cache_counted, serving_cells, serving_columns, serving_facts
from costir.grouping import Group, combined, groups, sum_of, time_of
from costir.page import Cell, Column, Document, Entry, Fact, Table
from costir.report import ChipInfo, Quantity, Report, Row, Times, Waiting, plain
from costir.symbolic import Expr, gather, is_equation, show, simplify
from costir.units import si

MATMUL_WORDS = {"standard": "2 FLOPs per multiply-add", "exact": "2k-1 FLOPs per dot product of length k"}
ATTENTION_WORDS = {"full": "attention full T x T", "causal": "causal attention only its unmasked scores"}
BYTES_WORDS = {
    "eager": "bytes eager: each operand read once, each output written once",
    "inductor": "bytes as TorchInductor's fusing leaves them: each kernel reads and writes once what others made or need",
    "xla": "bytes as XLA's producer-consumer fusing leaves them: each kernel reads and writes once what others made or need",
    "ideal": "bytes ideal: inputs, weights and results once, nothing in between",
}
FREE_WORDS = "comparisons, relu, copies, views 0 FLOPs"
TOTAL_WORDS = {
    "matmul_flops": "matmul FLOPs", "vector_flops": "vector FLOPs", "special_flops": "special functions", "flops": "FLOPs",
    "bytes": "bytes", "network": "sent", "intensity": "FLOP/byte", "params": "parameters", "weight_bytes": "parameter bytes",
}  # fmt: skip
PHASE_WORDS = {
    "forward": "forward pass", "backward": "forward and backward pass", "train": "training step", "prefill": "prefill",
    "decode": "decode step",
}  # fmt: skip
LOWER_WORDS = {
    "none": "without any overlap", "op": "every operator at its roofline, one after the other", "full": "with full overlap",
}  # fmt: skip
LONGEST = 90  # characters of a formula that may stand beside a total without hiding it
UNITS = {"bytes": "B", "network": "B", "weight_bytes": "B", "read": "B", "write": "B", "intensity": ""}


# ---------------------------------------------------------------------------------------------------------- small words


def number(value: int | float | None, unit: str = "", least: bool = False) -> str:
    """A number with an SI prefix, "?" where it is unknown, and ">=" where it is a lower bound."""
    if value is None:
        return "?"
    return (">= " if least else "") + si(float(value), unit)


def plain_number(value: float) -> str:
    """A size or ratio without prefix: 255.2, 26267, 1.2 M from ten million on."""
    if abs(value) < 1000:
        return f"{value:.4g}"
    return f"{value:.0f}" if abs(value) < 1e7 else si(value)


def seconds(value: float | None) -> str:
    """A time: 12.3 us."""
    return "?" if value is None else si(value if abs(value) >= 1e-13 else 0.0, "s")  # less is what rounding leaves


def change(threshold: ir.Threshold | None, base: float) -> str:
    """Where the binding resource changes, seen from the base size: "B > 255.2", "B < 255.2" when past it, or "never"."""
    if threshold is None:
        return ""
    value = threshold.at_base
    if value is None:
        return f"not within {threshold.within}" if threshold.within else "never"
    if value <= min(base, 1):
        return "never"
    return f"{threshold.unknown} {'>' if base <= value else '<'} {plain_number(value)}"


def conventions_text(conventions: ir.Conventions, said: Iterable[str] = ()) -> str:
    """What was counted, in one line.

    Args:
        conventions: what was asked for.
        said: the notes of the costs, which say where causal attention was found.
    """
    words = [
        MATMUL_WORDS[conventions.count],
        _attention(conventions, tuple(said)),
        BYTES_WORDS[conventions.traffic],
        FREE_WORDS,
    ]
    if conventions.weights:
        words.insert(2, f"weights stored as {conventions.weights}")
    if conventions.kv:
        words.insert(2, f"cache stored as {conventions.kv}")
    return "; ".join(words)


def _attention(conventions: ir.Conventions, said: Sequence[str]) -> str:
    """What attention counts, as it came out."""
    words = ATTENTION_WORDS[conventions.attention]
    if conventions.attention != "causal":
        return words
    if not any("unmasked pairs only" in s for s in said):
        return f"{ATTENTION_WORDS['full']}, as no operator is told that its attention is causal"
    dense = any("counted dense" in s or "masked scores are computed" in s for s in said)
    return f"{words} where an operator is told so" if dense else words


def size_facts(sizes: Mapping[str, int], constraints: Iterable[ir.Constraint]) -> list[Fact]:
    """The base sizes; those whose formulas hold at this value alone stand apart."""
    only = {str(c.condition.lhs) for c in constraints if is_equation(c.condition) and c.condition.rhs.is_Integer}
    parts = {"at": [n for n in sizes if n not in only], "only at": [n for n in sizes if n in only]}
    return [Fact(label, ", ".join(f"{n} = {sizes[n]}" for n in names)) for label, names in parts.items() if names]


def chip_text(chip: ChipInfo) -> str:
    """A chip in one line: peaks, bandwidth, ridge."""
    peaks = ", ".join(f"{t} {si(p, 'FLOP/s')} (ridge {plain_number(p / chip.bandwidth)} FLOP/B)" for t, p in chip.peaks.items())
    named = chip.note or chip.name
    return f"{named}: {peaks}; memory {si(chip.bandwidth, 'B/s')}"


def _beside(chip: ChipInfo) -> Iterable[str]:
    """What is to be known about a chip's memory and links."""
    if chip.cached is not None and chip.cached > chip.bandwidth:
        yield f"bytes at the main memory's rate; costir measure lets caches, up to {si(chip.cached, 'B/s')}, serve what fits"
    yield from chip.links


def label(row: Row, group: str) -> str:
    """A row's name inside its group: the module's last part and the operator."""
    if row.path == row.phase:  # the optimizer is its own module
        return row.name
    inside = row.path[len(group) :].lstrip(".") if row.path.startswith(group) else row.path
    return f"{inside} {row.name}".strip()


# ---------------------------------------------------------------------------------------------------------------- tables


def document(r: Report, brief: bool = True) -> Document:
    """The whole document of a report. With `brief`, small operators are summed up per module."""
    tables = [operators(r, brief)] if r.rows else []
    if r.sweep:
        tables.append(sweep(r))
    return Document(title(r), head(r), tuple(tables), tuple(_facts(r)))


def head(r: Report) -> tuple[Fact, ...]:
    """Sizes, chips and conventions: what every answer rests on."""
    sizes = size_facts(r.sizes, r.constraints)
    sizes += [Fact("put in", ", ".join(f"{n} = {v}" for n, v in r.fixed.items()))] if r.fixed else []
    counted = conventions_text(r.conventions, (row.note for row in r.rows))
    chips = [f for c in r.chips for f in (Fact("chip", chip_text(c)), *(Fact("", words) for words in _beside(c)))]
    return (*sizes, *mesh_facts(r), *chips, Fact("counted", counted), *cache_counted(r))


OVERLAP_WORDS = {
    "none": "no overlap: all units take turns",
    "op": "units overlap inside an operator, operators and collectives run one after the other",
    "full": "all units work all the time, each link of the mesh a unit of its own",
}


def mesh_facts(r: Report) -> list[Fact]:
    """The mesh, and how its time is counted."""
    if not r.mesh:
        return []
    lengths = ", ".join(f"{n} = {v}" for n, v in r.mesh.items())
    devices = f", {math.prod(r.mesh.values())} devices" if len(r.mesh) > 1 else " devices"
    last = f"; neighbours along {list(r.mesh)[-1]}" if len(r.mesh) > 1 else ""
    overlap = [Fact("overlap", f"{r.overlap}: {OVERLAP_WORDS[r.overlap]}")] if r.chips else []
    return [Fact("mesh", f"{lengths}{devices}{last}; all numbers are of one device"), *overlap]


def operators(r: Report, brief: bool = True) -> Table:
    """The table of operators, grouped by module and phase, with totals."""
    formulas = any(q.expr is not None and q.expr.free_symbols for row in r.rows for q in row.quantities.values())
    columns = [
        Column("module / operator" if r.conventions.traffic in ("eager", "ideal") else "module / kernel"),
        Column("runs", right=True),
        Column("FLOPs", right=True),
    ]
    columns += [Column("= formula", formula=True)] if formulas else []
    for name in _moved(r):
        columns += [Column(name, right=True)]
        columns += [Column("= formula", formula=True)] if formulas else []
    columns += [Column("FLOP/B", right=True), *_chip_columns(r)]
    lines: list[Entry] = []
    phases = list(dict.fromkeys(row.phase for row in r.rows))
    for phase in phases:
        rows = [row for row in r.rows if row.phase == phase]
        if len(phases) > 1:
            lines += [Entry("rule")] if lines else []
            lines.append(Entry("phase", _summary(phase, None, rows, r, formulas)))
        for group in groups(combined(rows) if brief else rows, brief):
            lines.extend(_group(group, r, formulas))
    lines.append(Entry("rule"))
    lines.append(Entry("total", _summary("total", None, r.rows, r, formulas)))
    lines.extend(_chip_lines(r, formulas))
    return Table(tuple(columns), tuple(lines))


def _moved(r: Report) -> dict[str, str]:
    """The columns of bytes, by their heading: what goes to memory, and to other devices where there are any."""
    return {"bytes": "bytes", **({"sent": "network"} if r.communicates else {})}


def _chip_columns(r: Report) -> list[Column]:
    if len(r.chips) == 1:
        changes = [Column("changes at")] if r.unknown_size else []
        return [Column("time", right=True), Column("binds"), *changes]
    return [Column(c.name, right=True) for c in r.chips]


def _group(group: Group, r: Report, formulas: bool) -> Iterable[Entry]:
    times = "" if group.repeat is None or group.repeat.expr is None else f"{group.repeat.expr} x "
    if group.path and not group.rows:
        name = f"{times}{group.path}: {len(group.small)} small operators"
        yield Entry("small", _summary(name, None, group.small, r, formulas))
        return
    if group.path:
        yield Entry("group", _summary(f"{times}{group.path}", None, (*group.rows, *group.small), r, formulas))
    indent = "  " if group.path else ""
    for row in group.rows:
        yield Entry("unknown" if row.status == "unknown" else "operator", _operator(indent, row, group, r, formulas))
    if group.small:
        name = f"{indent}{len(group.small)} small operators"
        yield Entry("small", _summary(name, None, group.small, r, formulas))


def _operator(indent: str, row: Row, group: Group, r: Report, formulas: bool) -> tuple[Cell, ...]:
    count = row.count.expr
    cells: list[Cell] = [indent + label(row, group.path), count if count is not None and count.free_symbols else str(count)]
    for name in ("flops", *_moved(r).values()):
        q = row.quantities[name]
        cells.append(number(q.number, UNITS.get(name, ""), least=name == "bytes" and row.status in ("unknown", "flops_only")))
        cells += [_formula(q)] if formulas else []
    cells.append(_intensity(row.quantities["intensity"].number))
    if len(r.chips) == 1:
        cells += [seconds(row.times[0].lower), row.times[0].binds or "-"]
        cells += [row_change(row, 0, r.base)] if r.unknown_size else []
    else:
        cells += [seconds(t.lower) for t in row.times]
    return tuple(cells)


def row_change(row: Row, chip: int, base: float) -> str:
    """Where a row's bound changes on a chip; "-" for what does no contraction, which is never bound by the matmul peak."""
    threshold = row.thresholds[chip] if row.thresholds else None
    return (change(threshold, base) or "-") if row.quantities["matmul_flops"].number else "-"


def _formula(q: Quantity) -> Cell:
    return "" if q.expr is None or q.expr == 0 else gather(q.expr)


def _intensity(value: int | float | None) -> str:
    return "-" if value is None else plain_number(float(value))


def _summary(name: str, runs: str | None, rows: Sequence[Row], r: Report, formulas: bool) -> tuple[Cell, ...]:
    """A line of sums; partly unknown sums are lower bounds."""
    partial = any(row.status in ("unknown", "flops_only") for row in rows)
    blank: list[Cell] = [""] if formulas else []
    cells: list[Cell] = [name, runs or ""]
    cells += [number(sum_of(rows, "flops"), least=partial), *blank]
    for name in _moved(r).values():
        cells += [number(sum_of(rows, name), "B", least=partial), *blank]
    cells.append(_intensity(None if partial else sum_of(rows, "intensity")))
    for i in range(len(r.chips)):
        unsure = any(row.times[i].upper is None for row in rows)
        cells.append(f"{'>= ' if unsure else ''}{seconds(time_of(rows, i))}")
    if len(r.chips) == 1:
        cells += [""] * (2 if r.unknown_size else 1)
    return tuple(cells)


def _chip_lines(r: Report, formulas: bool) -> Iterable[Entry]:
    """With several chips: what binds the whole on each, and where that changes."""
    if len(r.chips) < 2:
        return
    blank = ("",) * (3 + (2 if formulas else 1) * len(_moved(r)) + (1 if formulas else 0))
    yield Entry("total", ("binds", *blank, *(c.times.binds or "-" for c in r.chips)))
    if r.unknown_size:
        yield Entry("total", ("changes at", *blank, *(change(next(iter(c.thresholds), None), r.base) or "-" for c in r.chips)))


def moving(r: Report) -> list[str]:
    """The sizes that change over the sweep."""
    return [n for n in r.sizes if len({p.sizes[n] for p in r.sweep}) > 1] or list(r.sweep[0].sizes)


def sweep(r: Report) -> Table:
    """One line per point of the sweep: the sizes that move, totals, time and what binds on each chip."""
    names = moving(r)
    chips = [
        h for c in r.chips for h in (Column(f"{c.name} time" if len(r.chips) > 1 else "time", right=True), Column("binds"))
    ]
    columns = [
        *(Column(n, right=True) for n in names),
        *(Column(t, right=True) for t in ("FLOPs", *_moved(r), "FLOP/B")),
        *chips,
    ]
    columns += serving_columns(r)
    lines = []
    for p in r.sweep:
        cells = [str(p.sizes[n]) for n in names]
        cells += [number(p.totals[q], UNITS.get(q, ""), least=not r.complete) for q in ("flops", *_moved(r).values())]
        cells.append(_intensity(p.totals["intensity"] if r.complete else None))
        cells += [c for t in p.times for c in (seconds(t.lower), t.binds or "-")]
        cells += serving_cells(p)
        lines.append(Entry("operator", tuple(cells)))
    return Table(tuple(columns), tuple(lines))


# ----------------------------------------------------------------------------------------------------------------- facts


def title(r: Report) -> str:
    """The subject and what of it runs."""
    return subject_title(r.subject, r.phase)


def subject_title(subject: str, phase: str) -> str:
    """A subject and what of it runs: "gpt2: forward pass"."""
    return f"{subject}: {PHASE_WORDS.get(phase, phase)}"


def _facts(r: Report) -> Iterable[Fact]:
    least = not r.complete
    for name, words in TOTAL_WORDS.items():
        q = r.totals.get(name)
        if q is None or q.value == 0 or (name == "intensity" and least):
            continue
        bound = least and name not in ("params", "weight_bytes")
        text = _intensity(q.number) if name == "intensity" else number(q.number, UNITS.get(name, ""), bound)
        formula = total_formula(q)
        long = name == "intensity" and formula is not None and len(show(formula)) > LONGEST
        yield Fact(words, text, None if long else formula)
        if name == "flops" and r.repeated is not None and r.repeated.number:
            yield Fact("repeated", number(r.repeated.number), total_formula(r.repeated))
            yield Fact("", "FLOPs of all devices beyond those of the whole model")
            if r.repeated.number < 0:
                yield Fact("", "below 0: the masked scores that they leave out are more than what they repeat")
            whole = (q.number or 0) * math.prod(r.mesh.values()) - r.repeated.number
            if r.repeated.number > whole > 0:
                ratio = plain_number(1 + float(r.repeated.number) / float(whole))
                yield Fact("", f"{ratio} x the whole model's work: a plan may take what each device has whole for a part of it")
    if r.memory is not None:
        yield from memory_view.facts(r.memory)
    for i, chip in enumerate(r.chips):
        yield Fact(f"time {chip.name}" if len(r.chips) > 1 else "time", times_text(chip.times, r.overlap))
        if r.pipeline is not None and chip.times.lower is not None:
            yield Fact(f"pipeline {chip.name}" if len(r.chips) > 1 else "pipeline", _step_text(r.pipeline, i))
        yield from path_view.facts(chip, f"critical path {chip.name}" if len(r.chips) > 1 else "critical path")
        for threshold in chip.thresholds:
            yield from threshold_facts(threshold, "whole changes", everything=False)
    yield from serving_facts(r)
    if r.free:
        yield Fact("free", f"{r.free} call{'s' if r.free > 1 else ''} of no cost: views, allocations")
    yield from conditions_and_notes(r)


def conditions_and_notes(r: Report) -> Iterable[Fact]:
    """Where the formulas hold, what has no cost, and what else to know: the end of every report."""
    for c in r.constraints:
        yield Fact("holds where", str(c))
    for u in r.unknown:
        yield Fact("unknown", u)
    for n in r.notes:
        yield Fact("note", n)


def _step_text(p: Waiting, chip: int) -> str:
    passes = f"{p.factor:.4g} x the stage's forward and backward passes, {100 * p.idle:.3g} % of that idle"
    return f"at least {seconds(p.steps[chip])}: {passes}"


def total_formula(q: Quantity) -> Expr | None:
    """The formula of a total, where it says more than its number."""
    return simplify(q.expr) if q.expr is not None and q.expr.free_symbols else None


def times_text(t: Times, overlap: str = "op") -> str:
    """The time of the whole: its bounds and what binds."""
    if t.lower is None:
        return "?"
    text = f"at least {seconds(t.lower)} ({LOWER_WORDS[overlap]})"
    text += f", {seconds(t.upper)} without any overlap" if t.upper is not None and overlap != "none" else ""
    parts = (("compute", t.compute), ("memory", t.memory), ("network", t.network))
    text += f" ({', '.join(f'{n} {seconds(v)}' for n, v in parts)})" if t.network else ""
    of_what = "" if t.upper is not None else " of what is known"
    return f"{text}; {t.binds} binds most{of_what}" if t.binds else text


def threshold_facts(t: ir.Threshold, label: str, everything: bool = True) -> list[Fact]:
    """A threshold as labelled lines: value, condition, limit, remarks; or why there is none."""
    if t.at_base is None:
        facts = [Fact(label, f"{t.unknown}: none{f', {t.reason}' if t.reason else ''}")]
        if t.value is None:
            return [*facts, *([Fact("", t.note)] if t.note else [])]
    else:
        at = f"{t.unknown} = {plain_number(t.at_base)}"
        third = f"{at}, {t.below} takes longer below and {t.above} above, but {t.beside} longer than both there"
        facts = [Fact(label, third if t.beside else f"{at}, {t.below} binds below and {t.above} above")]
        facts += [Fact("", text) for text in per_device(t)]
    when = ir.condition_text(t.when)
    if t.value is not None and t.value.free_symbols and (everything or len(show(t.value)) <= LONGEST) and when != "False":
        name = "formula" if t.at_base is not None else f"{t.unknown} at other sizes"
        facts.append(Fact("", name, gather(t.value) if t.value.is_Add else t.value))
    if when not in ("True", "False") and (everything or len(when) <= LONGEST):
        facts.append(Fact("", f"exists where {when}"))
    if t.limit is not None:
        facts.append(Fact("", f"tends to {limit_text(t.limit)} as the other sizes grow"))
    if t.cancels:
        facts.append(Fact("", f"does not depend on {', '.join(t.cancels)}"))
    return [*facts, *([Fact("", t.note)] if t.note else [])]


def per_device(t: ir.Threshold) -> list[str]:
    """What one device has of a critical size that is split."""
    if t.split == 1 or t.at_base is None or t.devices is None:
        return []
    value = t.at_base / t.devices
    each = f"{value:.1f}" if 1000 <= value < 1e6 else plain_number(value)
    return [f"{each} on each of {f'{show(t.split)} = ' if t.split.free_symbols else ''}{t.devices} devices"]


def limit_text(e: Expr) -> str:
    """A limit: a number where it is one, else its formula."""
    value = plain(e)
    return show(e) if value is None else plain_number(value)
