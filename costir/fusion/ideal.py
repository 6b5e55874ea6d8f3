"""What no program can do without: every input and weight read once, every result written once, nothing in between."""

from __future__ import annotations

from costir.fusion.composite import lower
from costir.fusion.inline import live
from costir.fusion.kernels import Kernel, parts
from costir.fusion.pieces import Program
from costir.fusion.space import Access
from costir.trace import Trace
from costir.tracing.recorder import RawTensor


def ideal(trace: Trace) -> tuple[Kernel, ...]:
    """One kernel per call that does something, with the memory that must be moved: a value from outside counts where it is
    read first, one that outlives the run where it is written last."""
    program = lower(trace)
    reads: dict[int, list[RawTensor]] = {}
    writes: dict[int, list[RawTensor]] = {}
    needed = live(program)
    for v, (event, found) in _taken(program).items():
        reads.setdefault(event, []).extend(parts(program, v, found))
    for v, (event, found) in _left(program).items():
        writes.setdefault(event, []).extend(parts(program, v, found))
    events = {p.event for p in (*program.pieces, *needed)}
    return tuple(Kernel((e,), (), tuple(reads.get(e, ())), tuple(writes.get(e, ()))) for e in sorted(events))


def _taken(program: Program) -> dict[int, tuple[int, list[Access]]]:
    """By value that was there before: the call that reads it first, and all reads."""
    out: dict[int, tuple[int, list[Access]]] = {}
    for p in live(program):
        for r in p.reads:
            if program.values[r.value].maker is None:
                out.setdefault(r.value, (p.event, []))[1].append(r)
    return out


def _left(program: Program) -> dict[int, tuple[int, list[Access]]]:
    """By value that outlives the run: the call that writes it, and what it writes."""
    return {w.value: (p.event, [w]) for p in program.pieces for w in p.writes if program.values[w.value].kept}
