"""What `costir calibrate` shows: the machine, its GPU, and its collectives."""

from __future__ import annotations

from typing import Any

from costir.calibration import Calibration
from costir.chip import Chip
from costir.collective_times import Collectives, Fit
from costir.document import plain_number, seconds
from costir.page import Column, Document, Entry, Fact, Table
from costir.render import View
from costir.units import si

AWAY = 0.05  # of the core's time


def calibrated(c: Calibration, chip: Chip, path: str, known: str = "here", gpu: bool = False) -> View:
    """The machine in a few lines; `known` is what its file is called as a chip; `gpu`: it has one, too, not asked for."""
    numbers = c.numbers
    rows = [(si(size, "B"), si(rate, "B/s")) for size, rate in c.envelope]
    head = [
        Fact("machine", f"{c.about['cpu']}, {c.threads} thread{'s' if c.threads > 1 else ''}, torch {c.about['torch']}"),
        Fact("noise", f"{c.noise:.1%}: the median of repeated timings over the best"),
        *(
            Fact("matmul", f"{name} {si(float(rate), 'FLOP/s')}{_in_products(c, name, float(rate))}")
            for name, rate in chip.matrix.items()
        ),
        Fact("ridge", f"{plain_number(float(chip.ridge('float32')))} FLOP/byte in fp32"),
    ]
    around = {k: numbers[k] for k in ("view", "grad", "node", "module", "optimizer")} | {"operator": c.curves["unary"].at(16)}
    tail = [
        Fact("overhead", ", ".join(f"{k} {seconds(v)}" for k, v in around.items())),
        Fact("fresh pages", f"{numbers['fresh'] * 1e9:.3f} ns per byte more for results of 32 MB and above"),
        Fact("written", path), Fact("use", f"costir measure model.py --chip {known}; costir analyze model.py --chip {known}"),
    ]  # fmt: skip
    if c.away > AWAY:
        busy = f"others had the core {c.away:.0%} of the time: calibrate again when nothing else runs, or with --patience 120"
        tail.append(Fact("busy", busy))
    if gpu:
        tail.append(Fact("gpu", "this machine has one, too: costir calibrate --device cuda measures it"))
    return _view("Calibration", c, chip, path, head, (_bandwidths(rows),), tail)


def _in_products(c: Calibration, name: str, rate: float) -> str:
    """Where another library's convolutions are faster than products of matrices: what these reach."""
    products = c.numbers.get("products", rate)
    return f", in convolutions; in products of matrices {si(products, 'FLOP/s')}" if name == "fp32" and products < rate else ""


def _bandwidths(rows: list[tuple[str, str]]) -> Table:
    return Table(
        (Column("working set", right=True), Column("bandwidth", right=True)), tuple(Entry("operator", r) for r in rows)
    )


def _view(
    title: str, c: Calibration, chip: Chip, path: str, head: list[Fact], tables: tuple[Table, ...], tail: list[Fact]
) -> View:
    """A calibration in all formats; for machines, all its numbers and the rates."""
    rates = {k: float(v) for k, v in chip.matrix.items()}
    data = {
        "schema": "costir/calibration/1", "about": dict(c.about), "noise": c.noise, "numbers": dict(c.numbers),
        "rates": rates, "file": path,
    }  # fmt: skip
    flat = [("quantity", "value"), ("noise", c.noise), *c.numbers.items(), *((f"matrix.{k}", v) for k, v in rates.items())]
    return View(lambda: Document(title, tuple(head), tables, tuple(tail)), lambda: data, lambda: flat)


SHOWN = ("exp", "tanh", "erf", "gelu", "softmax", "layer_norm", "sum", "clone", "transposed", "attention_bf16", "conv3")


def gpu_calibrated(c: Calibration, chip: Chip, path: str, known: str) -> View:
    """A GPU in a few lines; `known` is what its file is called as a chip."""
    n, about = c.numbers, c.about
    memory = f"{si(float(about['memory']), 'B')}, {si(float(about['free']), 'B')} of it free"
    head = [
        Fact("gpu", f"{about['gpu']}, compute capability {about['capability']}, {memory}"),
        Fact("software", f"torch {about['torch']}, {about['library']}"),
        Fact("noise", f"{c.noise:.1%}: the median of repeated timings over the best"),
        *(Fact("matmul", f"{k} {si(float(rate), 'FLOP/s')}, ridge {plain_number(float(chip.ridge(k)))} FLOP/byte")
          for k, rate in chip.matrix.items()),
    ]  # fmt: skip
    around = ", ".join(f"{k} {seconds(n[k])}" for k in ("grad", "node", "view", "module"))
    least = f"the GPU takes {seconds(n['kernel'])} for the least kernel"
    tail = [
        Fact("launch", f"the host takes {seconds(n['launch'])} to start an operator, {least}"),
        Fact("overhead", f"of the host: {around}"),
        *(Fact("left out", text) for text in about.get("left_out", "").split("; ") if text),
        Fact("written", path), Fact("use", f"costir analyze model.py --chip {known}; costir chips {known}"),
        Fact("not for", "costir measure, which runs models on the CPU"),
    ]  # fmt: skip
    rows = [(si(size, "B"), si(rate, "B/s")) for size, rate in c.envelope]
    known_curves = ((name, c.curves[name]) for name in SHOWN if name in c.curves)
    lines = [
        (name, ", ".join(f"{a} = {g[-1]}" for a, g in zip(curve.axes, curve.grid, strict=True)), seconds(curve.seconds[-1]))
        for name, curve in known_curves
    ]
    columns = (Column("operator"), Column("largest"), Column("time", right=True))
    tables = (_bandwidths(rows), Table(columns, tuple(Entry("operator", line) for line in lines)))
    return _view("Calibration of a GPU", c, chip, path, head, tables, tail)


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
        Fact("written", path),
        Fact("use", f"costir {_verb(c)} model.py --mesh X={c.groups[-1] if c.groups else 2} --chip {chip}"),
    ]
    rows = [("kind", "devices", "until", "latency", "bandwidth", "worst_error")]
    rows += [(f.kind, f.devices, u, x.latency, x.bandwidth, f.worst) for f in c.fits for u, x in _regimes(f)]  # type: ignore[misc]
    document = Document("Collectives", tuple(head), (Table(columns, tuple(lines)),), tuple(tail))
    return View(lambda: document, lambda: _data(c, path), lambda: rows)


def _verb(c: Collectives) -> str:
    """What they are for: models run in processes on a CPU."""
    return "analyze" if c.about.get("device") == "cuda" else "measure"


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
