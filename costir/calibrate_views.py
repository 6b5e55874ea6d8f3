"""What `costir calibrate` shows: the machine, and its collectives."""

from __future__ import annotations

from typing import Any

from costir.calibration import Calibration
from costir.chip import Chip
from costir.collective_times import Collectives, Fit
from costir.document import plain_number, seconds
from costir.page import Column, Document, Entry, Fact, Table
from costir.render import View
from costir.units import si


def calibrated(c: Calibration, chip: Chip, path: str) -> View:
    """The machine in a few lines."""
    numbers = c.numbers
    levels = [(int(k.rpartition("_")[2]), v) for k, v in numbers.items() if k.startswith("bandwidth_")]
    rows = [(si(size, "B"), si(rate, "B/s")) for size, rate in levels]
    head = [
        Fact("machine", f"{c.about['cpu']}, {c.threads} thread{'s' if c.threads > 1 else ''}, torch {c.about['torch']}"),
        Fact("noise", f"{c.noise:.1%}: the median of repeated timings over the best"),
        *(Fact("matmul", f"{name} {si(float(rate), 'FLOP/s')}") for name, rate in chip.matrix.items()),
        Fact("ridge", f"{plain_number(float(chip.ridge('float32')))} FLOP/byte in fp32"),
    ]
    around = {k: numbers[k] for k in ("view", "grad", "node", "module", "optimizer")} | {"operator": c.curves["unary"].at(16)}
    tail = [
        Fact("overhead", ", ".join(f"{k} {seconds(v)}" for k, v in around.items())),
        Fact("fresh pages", f"{numbers['fresh'] * 1e9:.3f} ns per byte more for results of 32 MB and above"),
        Fact("written", path), Fact("use", "costir measure model.py --chip here; costir analyze model.py --chip here"),
    ]  # fmt: skip
    table = Table(
        (Column("working set", right=True), Column("bandwidth", right=True)), tuple(Entry("operator", r) for r in rows)
    )
    data = {
        "schema": "costir/calibration/1", "about": dict(c.about), "noise": c.noise, "numbers": dict(numbers),
        "rates": {k: float(v) for k, v in chip.matrix.items()}, "file": path,
    }  # fmt: skip
    flat = [
        ("quantity", "value"),
        ("noise", c.noise),
        *numbers.items(),
        *((f"matrix.{k}", float(v)) for k, v in chip.matrix.items()),
    ]
    return View(lambda: Document("Calibration", tuple(head), (table,), tuple(tail)), lambda: data, lambda: flat)


# ----------------------------------------------------------------------------------------------------------- collectives


def collectives(c: Collectives, path: str, chip: str) -> View:
    """Latency and bandwidth of every collective, and how well they fit; `chip` is what the file is called as a chip."""
    about = c.about
    where = f"{about['processes']} processes on {about['hosts']} machine{'s' if about['hosts'] != '1' else ''}"
    head = [
        Fact("machine", f"{about.get('gpu') or about['cpu']}, torch {about['torch']}"),
        Fact("backend", f"{about['backend']}, {where}, {about['threads']} thread(s) each"),
        Fact("noise", f"{c.noise:.1%}: the median of repeated timings over the best"),
    ]
    if c.slower:
        each = ", ".join(f"{k} {v:.2f} times" for k, v in c.slower.items())
        head.append(Fact("sharing", f"all processes at once take longer than one alone: {each}"))
    columns = (
        Column("collective"),
        *(Column(t, right=True) for t in ("devices", "payload", "latency", "bandwidth", "worst fit")),
    )
    lines = [Entry("operator", cells) for f in c.fits for cells in _lines(f)]
    tail = [Fact("missing", f"{kind}: {said}") for kind, said in c.missing.items()]
    tail += [
        Fact("counted", "time = latency + payload / bandwidth; payload: the array, in all_to_all of all devices together"),
        Fact("written", path), Fact("use", f"costir measure model.py --mesh X={c.groups[-1] if c.groups else 2} --chip {chip}"),
    ]  # fmt: skip
    rows = [("kind", "devices", "until", "latency", "bandwidth", "worst_error")]
    rows += [(f.kind, f.devices, u, x.latency, x.bandwidth, f.worst) for f in c.fits for u, x in _regimes(f)]  # type: ignore[misc]
    document = Document("Collectives", tuple(head), (Table(columns, tuple(lines)),), tuple(tail))
    return View(lambda: document, lambda: _data(c, path), lambda: rows)


def _regimes(f: Fit) -> list[tuple[int | None, Any]]:
    """The lines, each with the payload up to which it holds."""
    return [(f.until if line is f.lines[0] else None, line) for line in f.lines]


def _lines(f: Fit) -> list[tuple[str, ...]]:
    """The lines of the table for one collective."""
    out: list[tuple[str, ...]] = []
    for i, (until, line) in enumerate(_regimes(f)):
        payload = "any" if f.until is None else f"{'up to' if until else 'above'} {si(f.until, 'B', 3)}"
        rate = si(line.bandwidth, "B/s", 3) if line.bandwidth else "-"
        first = (f.kind, str(f.devices)) if i == 0 else ("", "")
        out.append((*first, payload, si(line.latency, "s", 3), rate, f"{f.worst:.0%}" if i == 0 else ""))
    return out


def _data(c: Collectives, path: str) -> dict[str, Any]:
    return {
        "schema": "costir/collectives/1", "about": dict(c.about), "noise": c.noise, "slower": dict(c.slower),
        "missing": dict(c.missing), "file": path,
        "collectives": [
            {"kind": f.kind, "devices": f.devices, "until": f.until, "worst_error": f.worst, "median_error": f.median,
             "lines": [{"latency": x.latency, "bandwidth": x.bandwidth} for x in f.lines],
             "points": [{"bytes": v, "seconds": t} for v, t in f.points]} for f in c.fits
        ],
    }  # fmt: skip
