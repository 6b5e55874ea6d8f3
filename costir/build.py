"""An analysis, put on chips, as a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from costir import branches, build_mesh, ir, solve
from costir.build_serving import served_at, served_of
from costir.communication import communication
from costir.errors import CostirError
from costir.grouping import star_paths
from costir.memory_view import memory_of
from costir.network import AS_BUILT, Wiring
from costir.report import QUANTITIES, TOTALS, ChipInfo, Point, Quantity, Report, Row, Times, plain
from costir.roofline import Roofline, Timing, roofline
from costir.symbolic import Expr, evaluate, size, total

if TYPE_CHECKING:
    from costir.analysis import Analysis
    from costir.hardware import Chip

Merged = dict[tuple[Any, ...], list[int]]


def build(
    analysis: Analysis,
    chips: Sequence[Chip] = (),
    unknown: str = "",
    sweep: Sequence[Mapping[str, int]] = (),
    fixed: Mapping[str, int] | None = None,
    critical: bool = False,
    wiring: Wiring = AS_BUILT,
    overlap: str = "op",
    memory: bool = False,
    curve: bool = False,
    path: bool = False,
) -> Report:
    """The report of an analysis.

    Args:
        analysis: what was analysed.
        chips: the chips to put it on, one column each.
        unknown: the size that thresholds solve for: "B", "B*T", "tokens"; by default the first of tokens, B, the others.
        sweep: points to evaluate the totals at; sizes that a point leaves out stay at the base.
        fixed: sizes that were put in as numbers before, for the reader to see.
        critical: solve for the critical size of the whole at every point of the sweep, too.
        memory: what the run holds, too; always where there is a backward pass. curve: operator by operator.
        path: the critical path, too.
        wiring: how a mesh lies on the chips' links. overlap: what the time of the whole means; see `roofline`.

    Raises:
        SizeError: where `unknown` or a size of the sweep is none, or a point lies outside the range of the formulas.
        ChipError: where a chip has no rate for what the model computes in.
    """
    nodes = analysis.costed.nodes
    followed = analysis.origin is not None and analysis.origin.evidence is not None
    memory |= curve or (followed and analysis.phase in ("backward", "train"))
    roofs = [roofline(analysis.costed, chip, wiring, overlap) for chip in chips]
    unknown = (unknown or default_unknown(analysis)) if chips else ""
    merged = _merge(nodes)
    values = _Values(analysis.sizes)
    rows = [_row(path, nodes, where, values) for (path, *_), where in merged.items()]
    for roof in roofs:
        rows = _on_chip(rows, list(merged.values()), roof, unknown)
    return Report(
        subject=analysis.name,
        phase=analysis.phase,
        sizes=dict(analysis.sizes),
        fixed=dict(fixed or {}),
        conventions=analysis.conventions,
        rows=tuple(rows),
        free=sum(1 for n in nodes if n.cost.status == "free"),
        totals={name: values.quantity(getattr(analysis, name)) for name in totals_of(analysis)},
        chips=_paths([_chip(roof, unknown, _branches(analysis)) for roof in roofs], analysis, chips if path else (), overlap),
        unknown_size=unknown,
        constraints=tuple(dict.fromkeys([*analysis.constraints, *(c for r in roofs for c in build_mesh.limits(r))])),
        unknown=tuple(str(u) for u in analysis.unknown),
        notes=_notes(analysis, roofs),
        sweep=_sweep(analysis, roofs, sweep, unknown if critical else "") if sweep else (),
        weights=tuple((w.path, w.count * w.tensor.numel) for w in analysis.costed.graph.weights if w.tensor.role == "weight"),
        mesh={n: int(values.quantity(length).number or 1) for n, length in analysis.costed.graph.mesh.axes},
        overlap=overlap,
        served=served_of(analysis, chips, values.quantity),
        ways=build_mesh.ways((analysis, *analysis.alternatives), chips, wiring, overlap),
        sent=build_mesh.sent(communication(analysis.costed), roofs, values.quantity),
        repeated=_repeated(analysis, values),
        algorithms=build_mesh.algorithms(roofs, unknown if critical else ""),
        memory=memory_of(analysis, chips, unknown, curve, wiring) if memory else None,
        pipeline=build_mesh.waits((analysis, *analysis.alternatives), roofs, values.quantity),
    )


def _paths(found: Sequence[ChipInfo], analysis: Analysis, chips: Sequence[Chip], overlap: str) -> tuple[ChipInfo, ...]:
    """The chips with the critical path on each, where chips are given."""
    if not chips:
        return tuple(found)
    from costir.critical_path import critical_paths  # not above: it runs models, and notation needs no torch

    paths = critical_paths(analysis, chips, overlap)
    return tuple(replace(c, path=p) for c, p in zip(found, paths, strict=True))


def totals_of(analysis: Analysis) -> tuple[str, ...]:
    """The totals that are shown: communicated bytes only where there are any."""
    return (*TOTALS, "network") if any(n.cost.transfers for n in analysis.costed.nodes) else TOTALS


def default_unknown(analysis: Analysis) -> str:
    """The size that people ask for first: tokens where there are B and T, else B, else the first; "" where there is none."""
    sizes = list(analysis.sizes)
    if {"B", "T"} <= set(sizes):
        return "tokens"
    return "B" if "B" in sizes else next(iter(sizes), "")


class _Values:
    """Exact values at the base sizes, each expression evaluated once."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.point = {size(n): v for n, v in sizes.items()}
        self.known: dict[Expr, Expr] = {}

    def quantity(self, e: Expr) -> Quantity:
        """The expression with its value."""
        if e not in self.known:
            self.known[e] = evaluate(e, self.point)
        return Quantity(e, self.known[e])


UNKNOWN = Quantity(None, None)


def _repeated(analysis: Analysis, values: _Values) -> Quantity | None:
    """The FLOPs that devices repeat, where a model was traced on a mesh."""
    if analysis.origin is None or not analysis.costed.graph.mesh:
        return None
    from costir.repeated import repeated  # not above: it runs models, and notation needs no torch

    found = repeated(analysis)
    return None if found is None else values.quantity(found)


def _merge(nodes: Sequence[ir.Node]) -> Merged:
    """Indices of nodes that look alike to a reader: same module, operator, line and cost. Free ones are left out.

    The first of several layers often stands alone, since it reads an input: where it costs what the others cost, it is one.
    """
    costly = [(i, n) for i, n in enumerate(nodes) if n.cost.status != "free"]
    alike = [(n.call.op, n.call.phase, n.call.source, n.rule, n.cost) for _, n in costly]
    paths = star_paths([n.call.path for _, n in costly], alike)
    out: Merged = {}
    for (i, _), path, key in zip(costly, paths, alike, strict=True):
        out.setdefault((path, *key), []).append(i)
    return out


def _row(path: str, nodes: Sequence[ir.Node], where: Sequence[int], values: _Values) -> Row:
    """Several equal nodes as one row."""
    node = nodes[where[0]]
    call, cost = node.call, node.cost
    count = total(nodes[i].call.count for i in where)
    exprs = {
        "matmul_flops": cost.matmul, "vector_flops": cost.vector, "special_flops": cost.special, "flops": cost.flops,
        "bytes": cost.nbytes, "read": cost.read, "write": cost.write, "network": cost.network,
    }  # fmt: skip
    quantities = {name: values.quantity(count * e) for name, e in exprs.items()}
    quantities["intensity"] = values.quantity(cost.flops / cost.nbytes) if cost.nbytes != 0 else UNKNOWN
    for name in _unknown_names(cost):
        quantities[name] = UNKNOWN
    return Row(
        path=path, op=call.op, phase=call.phase, source=call.source, rule=node.rule, status=cost.status, note=cost.note,
        count=values.quantity(count), quantities=quantities, call=call, cost=cost,
    )  # fmt: skip


def _unknown_names(cost: ir.Cost) -> Sequence[str]:
    """The quantities that a cost does not know."""
    if cost.status in ("costed", "free"):
        return ()
    moved = ("bytes", "read", "write") if cost.nbytes == 0 else ()
    return (*moved, "intensity", *(q for q in QUANTITIES if q.endswith("flops") and cost.status == "unknown"))


# ----------------------------------------------------------------------------------------------------------------- chips


def _on_chip(rows: Sequence[Row], where: Sequence[Sequence[int]], roof: Roofline, unknown: str) -> list[Row]:
    """The rows with one more chip's times and thresholds."""
    timings = roof.per_node()
    per_node = solve.per_node(roof.costed, roof.chip, unknown) if unknown else (None,) * len(timings)
    out = []
    for row, indices in zip(rows, where, strict=True):
        known = roof.times[indices[0]].complete
        times = _sum([timings[i] for i in indices], known)
        out.append(row.on(times, per_node[indices[0]]))
    return out


def _sum(parts: Sequence[Timing], known: bool = True) -> Times:
    """Timings one after another. Where not all is known nothing is said to bind, and no time at all is unknown, not zero."""
    compute, vector, memory, lower, upper, network = (
        math.fsum(getattr(p, a) for p in parts) for a in ("compute", "vector", "memory", "lower", "upper", "network")
    )
    if not known and lower == 0:
        return Times(None, None, None, None, None, "", None)
    bound = parts[0].bound if parts else "none"
    binds = bound if known and bound != "none" else ""
    return Times(compute, vector, memory, lower, upper if known else None, binds, network)


def _times(t: Timing, known: bool) -> Times:
    binds = "" if t.bound == "none" else t.bound
    return Times(t.compute, t.vector, t.memory, t.lower, t.upper if known else None, binds, t.network)


def _chip(roof: Roofline, unknown: str, costed: Sequence[ir.Costed]) -> ChipInfo:
    chip = roof.chip
    maths = dict.fromkeys(n.cost.math for n in roof.nodes if n.cost.matmul != 0)
    peaks = {SHORT.get(m, m): float(rate) for m in maths if (rate := _rate(chip, m)) is not None}
    elementwise = {n.cost.math for n in roof.nodes if n.cost.math and (n.cost.vector != 0 or n.cost.special != 0)}
    vector = max((rate for m in elementwise if (rate := chip.vector_rate(m)) is not None), default=None)
    talks = bool(unknown) and roof.communicates
    network = branches.whole(costed, chip, unknown, "network", roof.fabric.wiring) if talks else None
    return ChipInfo(
        name=chip.label,
        note=chip.alias_note,
        peaks=peaks,
        vector=None if vector is None else float(vector),
        bandwidth=float(chip.memory_bandwidth),
        times=_times(roof.at(), roof.complete),
        threshold=build_mesh.beside(branches.whole(costed, chip, unknown), roof) if unknown else None,
        network=None if network is None else build_mesh.beside(network, roof),
        links=roof.links,
        cached=_cached(chip),
    )


def _cached(chip: Chip) -> float | None:
    """What the fastest cache of a calibrated CPU gives, unless the bandwidth that bounds go by was set by hand."""
    c = chip.calibration
    if c is None or c.gpu or "memory.bandwidth" in chip.settings:
        return None
    return max((rate for _, rate in c.envelope), default=None)


SHORT = {
    v: k for k, v in reversed(ir.SHORT_DTYPE.items()) if k in ("fp64", "fp32", "fp16", "bf16", "fp8", "fp4", "int8", "int4")
}


def _rate(chip: Chip, dtype: str) -> Any:
    try:
        return chip.matmul_rate(dtype or "float32")
    except CostirError:
        return None


def _branches(analysis: Analysis) -> tuple[ir.Costed, ...]:
    """The model in each of its branches, that of the base sizes first."""
    return tuple(a.costed for a in (analysis, *analysis.others))


def _notes(analysis: Analysis, roofs: Sequence[Roofline]) -> tuple[str, ...]:
    """The analysis's notes, then what each chip's rates stand in for."""
    regime = []
    if analysis.others:
        here, *others = branches.names(_branches(analysis))
        regime = [f"branches: operators, times and what holds are those where {here}, as at the base sizes; "
                  f"totals and sweeps are those where {' or '.join(others)}, too"]  # fmt: skip
    several = len(roofs) > 1
    on_chips = [f"{roof.chip.label}: {n}" if several else n for roof in roofs for n in roof.notes]
    return tuple(dict.fromkeys([*regime, *map(str, analysis.notes), *_stand_ins(roofs), *on_chips]))


_OF_CPUS = ("_for_cpu", "_cpu_", "mkldnn")


def _stand_ins(roofs: Sequence[Roofline]) -> list[str]:
    """A note on operators that only a CPU has, where a chip is something else: models are traced as on a CPU."""
    if all(roof.chip.kind == "cpu" for roof in roofs):
        return []
    names = dict.fromkeys(n.call.name for n in roofs[0].nodes if any(mark in f"{n.call.name}_" for mark in _OF_CPUS))
    return [f"traced as on a CPU: {', '.join(names)} stands for the chip's own operator"] if names else []


def _sweep(
    analysis: Analysis, roofs: Sequence[Roofline], points: Sequence[Mapping[str, int]], unknown: str
) -> tuple[Point, ...]:
    """Totals, times and critical sizes at each point, in the regime that holds there."""
    at = [analysis.at(**p) for p in points]
    sizes = [{**analysis.sizes, **p} for p in points]
    regimes = (analysis, *analysis.others)
    where = [next(k for k, regime in enumerate(regimes) if regime.broken(s) is None) for s in sizes]
    there = {0: list(roofs), **{k: [_again(regimes[k], roof) for roof in roofs] for k in set(where) - {0}}}
    times: dict[int, tuple[Times, ...]] = {}
    for k, rooflines in there.items():
        mine = [i for i, regime in enumerate(where) if regime == k]
        if mine:
            columns = [_times_at(roof, [points[i] for i in mine]) for roof in rooflines]
            times.update(zip(mine, zip(*columns, strict=True) if columns else [()] * len(mine), strict=True))
    return tuple(
        Point(
            sizes[i],
            {name: plain(getattr(here, name)) for name in totals_of(analysis)},
            times[i],
            tuple(_critical(roof, sizes[i], unknown) for roof in there[where[i]]) if unknown else (),
            served_at(regimes[where[i]], [roof.chip for roof in roofs], sizes[i]),
        )
        for i, here in enumerate(at)
    )


def _again(regime: Analysis, roof: Roofline) -> Roofline:
    """Another regime on the same chip and links."""
    return roofline(regime.costed, roof.chip, roof.fabric.wiring, roof.overlap)


def _critical(roof: Roofline, sizes: Mapping[str, int], unknown: str) -> ir.Threshold:
    """The critical size of the whole with other base sizes; against the network where devices communicate."""
    there = replace(roof.costed, graph=replace(roof.costed.graph, sizes=sizes))
    return solve.whole(there, roof.chip, unknown, "network" if roof.communicates else "memory", roof.fabric.wiring)


def _times_at(roof: Roofline, points: Sequence[Mapping[str, int]]) -> list[Times]:
    """The times of the whole at many points at once."""
    t = roof.at(**{n: np.array([p[n] for p in points], dtype=float) for n in points[0]})
    out = []
    for i in range(len(points)):
        compute, vector, memory, lower, upper, network = (
            float(x[i]) for x in (t.compute, t.vector, t.memory, t.lower, t.upper, t.network)
        )
        out.append(_times(Timing(compute, vector, memory, lower, upper, str(t.bound[i]), network), roof.complete))
    return out
