"""A report as data: dictionaries for JSON (schema "costir/1", see docs/json.md) and rows for CSV."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import costir
from costir import ir, memory_view, path_view
from costir.document import row_change
from costir.render import SCHEMA
from costir.report import (
    QUANTITIES,
    ByAlgorithm,
    ChipInfo,
    Point,
    Quantity,
    Report,
    Row,
    Sent,
    Served,
    StageHeld,
    Times,
    Waiting,
    Way,
    plain,
)
from costir.symbolic import Expr, evaluate, show, size


def as_dict(r: Report) -> dict[str, Any]:
    """The report as plain dictionaries and lists, by the schema "costir/1"."""
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "costir": costir.__version__,
        "subject": r.subject,
        "phase": r.phase,
        "sizes": dict(r.sizes),
        "fixed": dict(r.fixed),
        "conventions": _conventions(r.conventions),
        "complete": r.complete,
        "totals": {name: quantity(q) for name, q in r.totals.items()},
        "nodes": [node(row, r) for row in r.rows],
        "free": r.free,
        "thresholds": list(_thresholds(r)),
        "unknown": list(r.unknown),
        "constraints": [{"condition": ir.condition_text(c.condition), "source": c.source} for c in r.constraints],
        "notes": list(r.notes),
    }  # fmt: skip
    if r.mesh:
        out |= {"mesh": dict(r.mesh), "overlap": r.overlap}
        out |= {"ways": [_way(w, r) for w in r.ways]} if r.ways else {}
        out |= {"repeated": quantity(r.repeated)} if r.repeated is not None else {}
        out |= {"communication": [_sent(s, r) for s in r.sent]} if r.sent else {}
        out |= {"algorithms": [_algorithm(a) for a in r.algorithms]} if r.algorithms else {}
        out |= {"pipeline": _pipeline(r.pipeline, r)} if r.pipeline is not None else {}
    if r.chips:
        out["chips"] = [_chip(c, r) for c in r.chips]
    if r.memory is not None:
        out["memory"] = memory_view.data(r.memory)
    if r.sweep:
        out["sweep"] = [_point(p, r) for p in r.sweep]
    if r.served is not None:
        out["serving"] = _served(r, r.served)
    return out


def _pipeline(p: Waiting, r: Report) -> dict[str, Any]:
    """How long the stages of a pipeline wait, as the schema has it."""
    steps = {"steps": {c.name: s for c, s in zip(r.chips, p.steps, strict=True)}} if r.chips else {}
    held = {"memory": [_stage_held(s) for s in p.held]} if p.held else {}
    return {"stages": p.stages, "micro_batches": p.micro_batches, "idle": p.idle, "factor": p.factor, **steps, **held}


def _stage_held(s: StageHeld) -> dict[str, Any]:
    """What a stage holds, as the schema has it."""
    parts = ("parameters", "optimizer_state", "gradients", "gathered", "activations")
    least = {"least_1f1b": quantity(s.least[0]), "least_gpipe": quantity(s.least[1])}
    return {"stage": s.stage, **{n: quantity(getattr(s, n)) for n in parts}, "in_flight": s.in_flight, **least}


def _served(r: Report, s: Served) -> dict[str, Any]:
    """A step of serving as the schema has it."""
    chips = {c.name: {n: quantity(q) for n, q in b.items()} for c, b in zip(r.chips, s.bounds, strict=True)}
    head = {"counted": r.conventions.cache, "batch": s.batch, "length": s.length}
    return {**head, **{n: quantity(q) for n, q in s.quantities.items()}, "chips": chips}


def _conventions(c: ir.Conventions) -> dict[str, str]:
    out = {"count": c.count, "attention": c.attention, "weights": c.weights, "bytes": c.traffic}
    return out | ({"kv": c.kv} if c.kv else {})


def quantity(q: Quantity) -> dict[str, Any]:
    """A formula with its value; both null where unknown."""
    return {"expr": None if q.expr is None else show(q.expr), "value": q.number}


def node(row: Row, r: Report) -> dict[str, Any]:
    """A row as the schema has it."""
    out: dict[str, Any] = {"path": row.path, "op": row.op, "phase": row.phase, "source": row.source, "rule": row.rule}
    out |= {"status": row.status, "note": row.note, "count": quantity(row.count)}
    if r.conventions.traffic in ("inductor", "xla"):
        out["operators"] = list(row.operators)
    out |= {name: quantity(row.quantities[name]) for name in quantities_of(r)}
    if row.cost.transfers:
        out["transfers"] = [_transfer(t, row, r) for t in row.cost.transfers]
    if r.chips:
        out["times"] = {c.name: _times(t, r) for c, t in zip(r.chips, row.times, strict=True)}
    return out


def quantities_of(r: Report) -> tuple[str, ...]:
    """The quantities of a row: communicated bytes only where there are any."""
    return (*QUANTITIES, "network") if r.communicates else QUANTITIES


def _way(w: Way, r: Report) -> dict[str, Any]:
    """One way to compute the same, with its times."""
    times = {c.name: _times(t, r) for c, t in zip(r.chips, w.times, strict=True)}
    return {"plan": w.plan, "totals": dict(w.totals), "times": times}


def _sent(s: Sent, r: Report) -> dict[str, Any]:
    """All collectives of one kind along the same axes in one phase."""
    sums = {"runs": quantity(s.runs), "payload": quantity(s.payload), "sent": quantity(s.sent)}
    times = {"times": {c.name: t for c, t in zip(r.chips, s.seconds, strict=True)}} if r.chips else {}
    return {"phase": s.phase, "kind": s.kind, "axes": list(s.axes), **sums, **times}


def _algorithm(a: ByAlgorithm) -> dict[str, Any]:
    """The time of all collectives, and the critical size, by one algorithm."""
    t = a.threshold
    value = {"expr": None if t is None or t.value is None else show(t.value), "value": None if t is None else t.at_base}
    each = None if t is None or t.at_base is None or not t.devices else t.at_base / t.devices
    return {"chip": a.chip, "name": a.name, "network": a.seconds, "critical": value, "per_device": each, "taken": a.taken}


def _transfer(t: ir.Transfer, row: Row, r: Report) -> dict[str, Any]:
    """What one collective moves in one run."""
    whole = {"devices": _at_base(t.devices, r), "payload": _at_base(t.payload, r)}
    return {"kind": t.kind, "axes": list(t.axes), **whole}


def _times(t: Times, r: Report) -> dict[str, Any]:
    out = {"compute": t.compute, "vector": t.vector, "memory": t.memory, "lower": t.lower, "upper": t.upper, "binds": t.binds}
    return {**out, "network": t.network} if r.communicates else out


def _chip(c: ChipInfo, r: Report) -> dict[str, Any]:
    links = {"links": list(c.links)} if r.communicates else {}
    path = {"critical_path": path_view.data(c.path)} if c.path is not None else {}
    return (
        links
        | path
        | {
            "name": c.name,
            "note": c.note,
            "peaks": dict(c.peaks),
            "vector": c.vector,
            "bandwidth": c.bandwidth,
            "times": _times(c.times, r),
        }
    )


def _thresholds(r: Report) -> Iterable[dict[str, Any]]:
    """The whole's threshold first, then the operators', for each chip."""
    for i, chip in enumerate(r.chips):
        for whole in chip.thresholds:
            yield threshold(whole, chip.name, "whole", "", r)
        for row in r.rows:
            found = row.thresholds[i] if row.thresholds else None
            if found is not None:
                yield threshold(found, chip.name, row.path, row.op, r)


def threshold(t: ir.Threshold, chip: str, path: str, op: str, r: Report) -> dict[str, Any]:
    """A threshold as the schema has it."""
    split = {} if t.split == 1 else {"split": _at_base(t.split, r)}
    return split | {
        "chip": chip, "path": path, "op": op, "for": t.unknown,
        "value": {"expr": None if t.value is None else show(t.value), "value": t.at_base},
        "when": ir.condition_text(t.when),
        "limit": _at_base(t.limit, r),
        "below": t.below, "above": t.above, "beside": t.beside, "reason": t.reason, "note": t.note, "cancels": list(t.cancels),
    }  # fmt: skip


def _at_base(e: Expr | None, r: Report) -> dict[str, Any]:
    if e is None:
        return {"expr": None, "value": None}
    return {"expr": show(e), "value": plain(evaluate(e, {size(n): v for n, v in r.sizes.items()}))}


def _point(p: Point, r: Report) -> dict[str, Any]:
    out: dict[str, Any] = {"sizes": dict(p.sizes), "totals": dict(p.totals)}
    if r.chips:
        out["times"] = {c.name: _times(t, r) for c, t in zip(r.chips, p.times, strict=True)}
    if p.thresholds:
        out["critical"] = {c.name: t.at_base for c, t in zip(r.chips, p.thresholds, strict=True)}
    if p.served:
        out["cache"] = p.served[0]
        pairs = zip(r.chips, p.served[1::2], p.served[2::2], strict=True)
        out["serving"] = {c.name: {"latency": t, "tokens_per_second": rate} for c, t, rate in pairs}
    return out


# ------------------------------------------------------------------------------------------------------------------- csv


def as_rows(r: Report) -> Iterable[list[Any]]:
    """A heading and one row per operator; with a sweep, one row per point."""
    return _sweep_rows(r) if r.sweep else _operator_rows(r)


def _operator_rows(r: Report) -> Iterable[list[Any]]:
    times = [f"{what}_{c.name}" for c in r.chips for what in ("time", "binds", *(["changes_at"] if r.unknown_size else []))]
    names = quantities_of(r)
    shown = ("matmul_flops", "flops", "bytes", *names[len(QUANTITIES) :])
    formulas = [f"{n}_expr" for n in ("count", *shown)]
    yield ["path", "op", "phase", "source", "rule", "status", "count", *names, *times, *formulas]
    for row in r.rows:
        cells: list[Any] = [row.path, row.op, row.phase, row.source, row.rule, row.status, row.count.number]
        cells += [row.quantities[n].number for n in names]
        for i, t in enumerate(row.times):
            cells += [t.lower, t.binds, *([row_change(row, i, r.base)] if r.unknown_size else [])]
        cells += [None if q.expr is None else show(q.expr) for q in (row.count, *(row.quantities[n] for n in shown))]
        yield cells


def _sweep_rows(r: Report) -> Iterable[list[Any]]:
    times = [f"{what}_{c.name}" for c in r.chips for what in ("time", "binds")]
    served = ["cache", *(f"{what}_{c.name}" for c in r.chips for what in ("latency", "tokens_per_second"))]
    yield [*r.sizes, *r.totals, *times, *(served if r.served is not None else []), "complete"]
    for p in r.sweep:
        moved = [p.totals[n] for n in r.totals]
        yield [*p.sizes.values(), *moved, *(c for t in p.times for c in (t.lower, t.binds)), *p.served, r.complete]
