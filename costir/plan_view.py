"""What `costir plan` shows: the best splits in their order, why each next one is worse, and what was left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import costir
from costir.document import plain_number, seconds, subject_title
from costir.page import Cell, Column, Document, Entry, Fact, Table
from costir.plan_records import DevicePlan, LeftOut, Split
from costir.render import View
from costir.symbolic import show
from costir.units import si

SCHEMA = "costir/plan/1"
OVERLAP_WORDS = {
    "none": "compute, memory and network take turns", "op": "units overlap inside an operator, a collective is an operator",
    "full": "the slowest unit, each busy all the time",
}  # fmt: skip
TOO_LARGE = 2  # of those that would be faster, but do not fit


def plan(p: DevicePlan, best: int = 5, subject: str = "") -> View:
    """The best few splits; `subject` is what the user typed, for the command that shows one of them."""
    return View(lambda: _document(p, best, subject), lambda: _data(p), lambda: _rows(p))


def _document(p: DevicePlan, best: int, subject: str) -> Document:
    title = f"{subject_title(p.subject, p.phase)}, {p.devices} x {p.chip.label}"
    shown = list(p.splits[:best])
    slowest = shown[-1].seconds if shown else float("inf")
    large = [s for s in p.too_large if s.seconds < slowest][:TOO_LARGE]
    lines = sorted([*enumerate(shown, 1), *((0, s) for s in large)], key=lambda x: x[1].seconds)
    return Document(title, tuple(_head(p)), (_table(p, lines),), tuple(_facts(p, len(shown), len(large), subject)))


def _head(p: DevicePlan) -> Iterable[Fact]:
    yield Fact("at", ", ".join(f"{n} = {v}" for n, v in p.sizes.items()))
    yield Fact("batch", _batch_text(p))
    if p.tokens is not None:
        yield Fact("tokens", f"{si(p.tokens)} = {plain_number(p.tokens / p.batch)} steps")
    yield Fact("chip", p.chip.alias_note or p.chip.label)
    yield Fact("overlap", f"{p.overlap}: {OVERLAP_WORDS[p.overlap]}")


def _batch_text(p: DevicePlan) -> str:
    count, parts = p.sizes[p.batch_size], f"{p.micro_batches} micro-batches of " if p.micro_batches > 1 else ""
    if len(p.token_sizes) == 1:
        step = f"{p.batch}: {parts}" if parts else ""
        return f"{step}{p.batch_size} = {count}, all devices together"
    length, times = p.sizes[p.token_sizes[1]], f"{p.micro_batches}*" if parts else ""
    product = times + "*".join(p.token_sizes)
    return f"{p.batch} tokens = {product}: {parts}{count} sequences of {length}, all devices together"


def _table(p: DevicePlan, lines: list[tuple[int, Split]]) -> Table:
    columns = [Column("rank", right=True), Column("split"), Column("step", right=True), Column("MFU", right=True)]
    columns += [Column("binds"), Column("memory", right=True)]
    columns += [Column("days", right=True)] if p.tokens is not None else []
    columns += [Column("the next is worse: why")]
    return Table(tuple(columns), tuple(Entry("operator", tuple(_cells(p, rank, s))) for rank, s in lines))


def _cells(p: DevicePlan, rank: int, s: Split) -> Iterable[Cell]:
    yield str(rank) if rank else "-"
    yield str(s)
    yield seconds(s.seconds)
    yield f"{100 * s.mfu:.3g} %"
    yield s.binds
    yield memory_text(p, s)
    if p.tokens is not None:
        yield plain_number(p.days(s) or 0.0)
    yield s.why if rank else f"does not fit: {largest_part(s)}"


def memory_text(p: DevicePlan, s: Split) -> str:
    """What a device holds of what it has: "61 of 79 GiB"."""
    if s.memory is None:
        return "?"
    held = s.memory.total / 2**30
    has = "" if p.capacity is None else f" of {p.capacity / 2**30:.0f}"
    return f"{held:.3g}{has} GiB"


def largest_part(s: Split) -> str:
    """What takes most of the memory: "activations 80 GiB"."""
    if s.memory is None:
        return ""
    name, size = max(s.memory.parts.items(), key=lambda kv: kv[1])
    return f"{name} {size / 2**30:.3g} GiB"


def _facts(p: DevicePlan, shown: int, large: int, subject: str) -> Iterable[Fact]:
    if not p.splits:
        yield Fact("no split fits", f"the smallest needs {_least(p)}")
        yield Fact("", "--recompute blocks and --micro-batches 8 hold fewer activations")
    more = len(p.splits) - shown
    if more > 0:
        yield Fact("slower", f"{more} more split{'s' * (more > 1)} that fit")
    rest = len(p.too_large) - large
    if rest > 0:
        yield Fact("too large", f"{rest} {'more ' * bool(large)}split{'s' * (rest > 1)}, at the least {_least(p)}")
    for x in p.left_out:
        yield Fact("left out", _left_text(x))
    if p.splits and subject and p.splits[0].axes and not p.splits[0].links:
        yield Fact("to see the first", f"{_command(p, subject)}  (with the other options given here)")
    times = "" if p.phase == "forward" else "3 x "
    less = " (a step does fewer where inputs need no gradient)" if times and any(s.mfu > 1 for s in p.splits[:shown]) else ""
    yield Fact("MFU", f"{times}the matmuls of the model's forward pass, all scores counted{less}")
    yield Fact("memory", "tensors at the peak of a step, as torch allocates them: no allocator, no workspaces")
    for n in p.notes:
        yield Fact("note", n)
    yield Fact("smallest mesh that fits", _smallest(p))


def _least(p: DevicePlan) -> str:
    smallest = min((s for s in p.too_large if s.memory), key=lambda s: s.memory.total if s.memory else 0)
    return f"{memory_text(p, smallest)} ({smallest})"


def _left_text(x: LeftOut) -> str:
    count = f"{x.count} split{'s' * (x.count != 1)} of " if x.count else ""
    return f"{count}{x.strategies}: {x.reason}"


def _smallest(p: DevicePlan) -> str:
    s = p.smallest
    if s is None:
        return "not known" if p.capacity is None or any(w.memory is None for w in p.ways) else "none with this batch"
    lone = f"{s.devices} device{'s' * (s.devices > 1)}"
    return f"{lone}, {s}: {memory_text(p, s)}, a step in {seconds(s.seconds)}" if s.axes else f"{lone}: {memory_text(p, s)}"


def _command(p: DevicePlan, subject: str) -> str:
    best = p.splits[0]
    way = next(w for w in p.ways if w.strategies == best.strategies)
    mesh = ",".join(f"{a}={n}" for a, n in best.axes.items())
    sizes = ",".join(f"{n}={p.sizes[n]}" for n in p.token_sizes)
    conditions = f"--phase {p.phase} --chip {p.chip.label} --size {sizes}"
    return f"costir analyze {subject} {conditions} --mesh {mesh} --parallel {way.parallel}"


# ------------------------------------------------------------------------------------------------------------------ data


def _data(p: DevicePlan) -> dict[str, Any]:
    return {
        "schema": SCHEMA, "costir": costir.__version__, "subject": p.subject, "phase": p.phase, "sizes": dict(p.sizes),
        "chip": p.chip.label, "capacity": p.capacity, "devices": p.devices, "batch": p.batch,
        "micro_batches": p.micro_batches, "tokens": p.tokens, "token_sizes": list(p.token_sizes), "overlap": p.overlap,
        "splits": [_split(p, s) for s in p.splits], "too_large": [_split(p, s) for s in p.too_large],
        "ways": [
            {"strategies": w.strategies, "parallel": w.parallel, "seconds": None if w.time is None else show(w.time),
             "memory": None if w.memory is None else show(w.memory)} for w in p.ways
        ],
        "left_out": [{"strategies": x.strategies, "count": x.count, "reason": x.reason} for x in p.left_out],
        "smallest": None if p.smallest is None else _split(p, p.smallest), "notes": list(p.notes),
    }  # fmt: skip


def _split(p: DevicePlan, s: Split) -> dict[str, Any]:
    held = None if s.memory is None else {"total": s.memory.total, "parts": dict(s.memory.parts), "where": s.memory.where}
    return {
        "strategies": s.strategies, "axes": dict(s.axes), "links": dict(s.links), "devices": s.devices, "seconds": s.seconds,
        "times": dict(s.times), "binds": s.binds, "mfu": s.mfu, "memory": held, "fits": s.fits,
        "batch_per_device": s.each, "days": p.days(s), "why_next_is_worse": s.why,
    }  # fmt: skip


def _rows(p: DevicePlan) -> Iterable[list[Any]]:
    yield ["rank", "split", "strategies", "seconds", "mfu", "binds", "memory_bytes", "fits", "days", "why_next_is_worse"]
    ranked = sorted([*enumerate(p.splits, 1), *((None, s) for s in p.too_large)], key=lambda x: x[1].seconds)
    for rank, s in ranked:
        held = None if s.memory is None else s.memory.total
        yield [rank, str(s), s.strategies, s.seconds, s.mfu, s.binds, held, s.fits, p.days(s), s.why]
