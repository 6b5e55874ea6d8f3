"""What `costir measure --mesh` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from costir.document import seconds
from costir.measuring.mesh_measure import OnMesh, Part
from costir.page import Column, Document, Entry, Fact, Table
from costir.render import View
from costir.units import si

SCHEMA = "costir/measure-mesh/1"
PHASES = {"forward": "forward pass", "backward": "forward and backward pass", "train": "training step"}
TIMED = "the whole: the best of several rounds of the slowest process; collectives: each begun by all processes at once"


def measured_on_mesh(m: OnMesh) -> View:
    """Computation and communication, predicted and measured."""
    rows = [("part", "calls", "payload", "traced", "predicted", "measured", "error")]
    rows += [(p.name, p.calls, p.payload, p.traced, p.predicted, p.measured, p.error) for p in (*m.parts, m.total)]  # type: ignore[misc]
    return View(lambda: _document(m), lambda: _data(m), lambda: rows)


def _document(m: OnMesh) -> Document:
    about = m.chip.calibration.about if m.chip.calibration else {}
    mesh = ", ".join(f"{a} = {n}" for a, n in m.mesh.items())
    head = (
        Fact("at", ", ".join(f"{n} = {v}" for n, v in m.sizes.items())),
        Fact("mesh", f"{mesh}; {m.parallel}"),
        Fact("machine", f"{about.get('cpu')}, calibrated {about.get('date')}, {about.get('threads')} thread(s) a process"),
        Fact("timed", TIMED),
    )
    columns = (
        Column("part"),
        *(Column(t, right=True) for t in ("calls", "payload", "traced", "predicted", "measured", "error")),
    )
    lines = [Entry("operator", _cells(p)) for p in m.parts]
    between = ("waiting, less overlap", "", "", "", "", _signed(m.overlap), "")
    lines += [Entry("operator", between), Entry("rule"), Entry("total", _cells(m.total))]
    return Document(f"{m.name}: {PHASES[m.phase]} on {_count(m)} processes, measured", head, (Table(columns, tuple(lines)),),
                    tuple(_facts(m)))  # fmt: skip


def _count(m: OnMesh) -> int:
    out = 1
    for n in m.mesh.values():
        out *= n
    return out


def _cells(p: Part) -> tuple[str, ...]:
    nbytes = ["" if p.payload is None else "-" if v is None else si(v, "B") for v in (p.payload, p.traced)]
    calls = str(p.calls) if p.calls else ""
    error = f"{p.error:+.0%}" if p.measured else "-"
    return p.name, calls, *nbytes, seconds(p.predicted), seconds(p.measured), error


def _signed(value: float) -> str:
    return seconds(value) if value >= 0 else f"-{seconds(-value)}"


def _facts(m: OnMesh) -> Iterator[Fact]:
    yield Fact("sharing", f"the estimate of computation is that of one process alone, times {m.slower:.2f} for all at once")
    different = [p for p in m.parts if p.traced is not None and p.traced != p.payload]
    known = [p for p in m.parts if p.traced is not None]
    if different:
        words = "; ".join(f"{p.name}: {si(p.traced or 0, 'B')} traced, {si(p.payload or 0, 'B')} sent" for p in different)
        yield Fact("bytes", f"differ from the analysis: {words}")
    elif known:
        yield Fact("bytes", "as the analysis has them, kind by kind")
    if m.verdict:
        shown = f"predicted {seconds(m.total.predicted)}, measured {seconds(m.total.measured)} (spread {m.noise:.0%})"
        yield Fact("verdict", f"total {m.total.error:+.1%}; {shown}")
    else:
        yield Fact("verdict", "none: the machine is busy, or was when it was calibrated")
    for note in m.notes:
        yield Fact("note", note)


def _data(m: OnMesh) -> dict[str, Any]:
    return {
        "schema": SCHEMA, "name": m.name, "phase": m.phase, "sizes": dict(m.sizes), "mesh": dict(m.mesh),
        "parallel": m.parallel,
        "summary": {"total_error": m.total.error, "noise": m.noise, "loaded": m.loaded, "verdict": m.verdict,
                    "slower": m.slower},
        "parts": [
            {"part": p.name, "calls": p.calls, "payload": p.payload, "traced": p.traced, "predicted": p.predicted,
             "measured": p.measured, "error": p.error} for p in m.parts
        ],
        "total": {"predicted": m.total.predicted, "measured": m.total.measured, "overlap": m.overlap},
        "notes": list(m.notes),
    }  # fmt: skip
