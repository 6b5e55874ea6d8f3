"""The critical path of a run: how long it takes where every operator starts as soon as what it needs is there.

Each operator takes its roofline time, launching costs nothing, and any number of operators run at once, each with a whole chip
to itself. So the longest path through the dataflow is a time that no order of the operators and no number of chips can beat, as
long as operators stay whole; the sum of all operators is what one after the other takes.

A run at the sizes asked for is looked at, with all its layers: nothing is inferred from fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import networkx as nx

from costir.cost import cost
from costir.dataflow import dataflow
from costir.errors import CostirError
from costir.fusion.kernels import as_events, fuse
from costir.ir import Costed, Node, traced_phase
from costir.load.family import Family
from costir.ops.kernel import KERNEL, kernel_name, operators
from costir.roofline import roofline
from costir.symbolic import Integer, size
from costir.trace import Trace, concrete, no_collection, run
from costir.tracing.paths import fold_path

if TYPE_CHECKING:
    from costir.analysis import Analysis
    from costir.hardware import Chip

MOST = 20_000  # operators; a longer run takes minutes


@dataclass(frozen=True, slots=True)
class PathStep:
    """Equal operators on the path: of one module, its index in a list of modules aside.

    Attributes:
        path: the module, "layers.*.mlp". name: the operator, or those of a kernel. phase: forward, backward or optimizer.
        runs: how often it is on the path. all_runs: how often it runs.
        seconds: of its runs on the path.
    """

    path: str
    name: str
    phase: str
    runs: int
    all_runs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The longest path through the operators of a run.

    Attributes:
        seconds: of the path.
        total: of all operators, one after the other.
        steps: what is on the path, in the order in which each comes first.
        runs: operators on the path. all_runs: operators that take time.
        complete: whether every operator's time is known; else both times are lower bounds.
    """

    seconds: float
    total: float
    steps: tuple[PathStep, ...]
    runs: int
    all_runs: int
    complete: bool = True

    @property
    def share(self) -> float:
        """The path as a part of the sum: 1 where nothing can run beside anything else."""
        return self.seconds / self.total if self.total else 1.0


def critical_paths(
    analysis: Analysis, chips: Sequence[Chip], overlap: str = "op", sizes: Mapping[str, int] | None = None
) -> tuple[CriticalPath, ...]:
    """The critical path of a model on each of several chips.

    Args:
        analysis: the model.
        chips: the chips.
        overlap: an operator's time: "op", its slowest unit; "none", its units one after the other.
        sizes: where; those left out stay at the base.

    Raises:
        CostirError: there is no run to look at, or it is too long.
        SizeError: as for `Analysis.at`.
    """
    values = analysis.checked(sizes or {})
    graph, costed = _graph(_traced(analysis, values, overlap), analysis.costed)
    return tuple(_on(graph, costed, chip, overlap) for chip in chips)


def _on(graph: Any, costed: Costed, chip: Chip, overlap: str) -> CriticalPath:
    """The longest path with the times of one chip."""
    roof = roofline(costed, chip, overlap=overlap)
    seconds = [float(t.upper if overlap == "none" else t.lower) for t in roof.times]
    chosen = [i for i in longest(graph, seconds) if seconds[i]]
    return CriticalPath(
        sum(seconds[i] for i in chosen),
        sum(seconds),
        _steps(costed.nodes, chosen, seconds),
        len(chosen),
        sum(1 for s in seconds if s),
        roof.complete,
    )


def longest(graph: Any, weights: Sequence[float]) -> list[int]:
    """The path of the largest sum of weights.

    Args:
        graph: directed, without cycles; nodes are positions in `weights`.
        weights: of the nodes, none below 0.
    """
    best: dict[int, float] = {}
    before: dict[int, int | None] = {}
    for n in nx.lexicographical_topological_sort(graph):
        before[n] = max(graph.predecessors(n), key=lambda p: (best[p], -p), default=None)
        came = before[n]
        best[n] = weights[n] + (best[came] if came is not None else 0.0)
    at = max(best, key=lambda n: (best[n], -n), default=None)
    path = []
    while at is not None:
        path.append(at)
        at = before[at]
    return path[::-1]


def _traced(analysis: Analysis, values: Mapping[str, int], overlap: str) -> Trace:
    """A run at these sizes.

    Raises:
        CostirError: there is none, or its operators have no order.
    """
    origin = analysis.origin
    if analysis.graph.pipeline:
        raise CostirError("a critical path is of one device, and a pipeline waits for others", "leave out pp")
    if origin is None or not isinstance(origin.subject, Family):
        raise CostirError(
            f"a critical path needs the model itself: {analysis.name} is a finished graph, silent on its memory",
            "give the Python file, the config.json or the nn.Module",
        )
    family = origin.subject
    if analysis.graph.mesh.axes or family.axes:
        raise CostirError("a critical path is of one device", "leave out the mesh")
    if family.micro_batches > 1:
        raise CostirError("a critical path is of one batch: micro-batches would run beside each other", "leave them out")
    if analysis.conventions.traffic == "ideal" or overlap == "full":
        what = "ideal traffic" if overlap != "full" else "full overlap"
        raise CostirError(f"under {what} no operator stands alone, so that there is no path", "take eager, inductor or xla")
    point = {size(n): Integer(v) for n, v in values.items()}
    many = sum(float(n.call.count.xreplace(point)) for n in analysis.regime_at(values).costed.nodes)
    if many > MOST:
        raise CostirError(f"{many:.0f} operators run at these sizes: too many to look at each", "give smaller sizes")
    wanted = {**family.sizes, **origin.fixed, **values}
    if origin.evidence is not None and dict(origin.evidence.base.sizes) == wanted:
        return origin.evidence.base  # type: ignore[no-any-return]
    with no_collection():
        return run(family, wanted, traced_phase(analysis.phase), origin.optimizer)


def _graph(trace: Trace, costed: Costed) -> tuple[Any, Costed]:
    """The operators or kernels of a run with their costs, and which waits for which; nodes are positions."""
    if costed.conventions.traffic == "eager":
        graph = dataflow(trace).graph
        events = trace.events
    else:
        found = fuse(trace, costed.conventions.traffic)
        grouping = found.grouping
        position = {grouping.number(g): i for i, g in enumerate(grouping.ordered())}
        graph = nx.DiGraph()
        graph.add_nodes_from(range(len(position)))
        graph.add_edges_from((position[a], position[b]) for a in position for b in grouping.after[a])
        events = as_events(trace, (*found.kernels, *found.idle)).events
        graph.add_nodes_from(range(len(position), len(events)))  # what no result needs waits for nothing that is timed here
    calls = tuple([concrete(e) for e in events])
    return graph, cost(replace(costed.graph, sizes={}, calls=calls, weights=(), cache=()), costed.conventions)


def _steps(nodes: Sequence[Node], chosen: Sequence[int], seconds: Sequence[float]) -> tuple[PathStep, ...]:
    """What is on the path, equal operators together."""
    keys = [_key(n) for n in nodes]
    every: dict[tuple[str, str, str], int] = {}
    for k in keys:
        every[k] = every.get(k, 0) + 1
    found: dict[tuple[str, str, str], list[float]] = {}
    for i in chosen:
        found.setdefault(keys[i], []).append(seconds[i])
    return tuple(PathStep(*k, len(times), every[k], sum(times)) for k, times in found.items())


def _key(node: Node) -> tuple[str, str, str]:
    call = node.call
    name = kernel_name(operators(call)) if call.op.startswith(KERNEL) else call.name
    return fold_path(call.path), name, call.phase
