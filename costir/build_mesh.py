"""What a report says of a mesh: the ways to compute the same, and the algorithms of its collectives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from costir import solve
from costir.collectives import ALGORITHMS, NAMES, public
from costir.communication import Communication
from costir.errors import CostirError
from costir.ir import Constraint, Costed, Graph, Threshold
from costir.report import ByAlgorithm, Quantity, Sent, StageHeld, Times, Waiting, Way, plain
from costir.roofline import Roofline, Timing, roofline
from costir.stages import bubble, once_a_step
from costir.symbolic import Expr, evaluate, size

if TYPE_CHECKING:
    from costir.hardware import Chip
    from costir.network import Wiring
    from costir.stage_memory import StageMemory


class Computed(Protocol):
    """What an analysis has that a way shows."""

    @property
    def costed(self) -> Costed:
        """The graph with its costs."""

    @property
    def stage_memory(self) -> StageMemory:
        """What a stage of a pipeline holds."""

    @property
    def graph(self) -> Graph:
        """The graph."""

    @property
    def flops(self) -> Expr:
        """All FLOPs."""

    @property
    def bytes(self) -> Expr:
        """All bytes."""

    @property
    def network(self) -> Expr:
        """All bytes sent."""


def ways(found: Sequence[Computed], chips: Sequence[Chip], wiring: Wiring, overlap: str) -> tuple[Way, ...]:
    """A row for each way; none where there is only one."""
    return tuple(_way(a, chips, wiring, overlap) for a in found) if len(found) > 1 else ()


def _way(a: Computed, chips: Sequence[Chip], wiring: Wiring, overlap: str) -> Way:
    point = {size(n): v for n, v in a.graph.sizes.items()}
    totals: Mapping[str, int | float | None] = {
        name: plain(evaluate(e, point)) for name, e in (("flops", a.flops), ("bytes", a.bytes), ("network", a.network))
    }
    roofs = [roofline(a.costed, chip, wiring, overlap) for chip in chips]
    return Way(a.graph.plan, totals, tuple(_times(roof.at(), roof.complete) for roof in roofs))


def _times(t: Timing, known: bool) -> Times:
    binds = "" if t.bound == "none" else t.bound
    return Times(t.compute, t.vector, t.memory, t.lower, t.upper if known else None, binds, t.network)


def sent(found: Sequence[Communication], roofs: Sequence[Roofline], quantity: Callable[[Expr], Quantity]) -> tuple[Sent, ...]:
    """A row for each kind of collective along the same axes in a phase, with what it takes on each chip."""
    times = [_collective_seconds(roof) for roof in roofs]
    return tuple(
        Sent(c.phase, c.kind, c.axes, quantity(c.count), quantity(c.payload), quantity(c.sent),
             tuple(t[c.phase, c.kind, c.axes] for t in times))
        for c in found
    )  # fmt: skip


def limits(roof: Roofline) -> tuple[Constraint, ...]:
    """The lengths of axes that the links of a chip allow, where devices communicate."""
    return (*roof.fabric.constraints, *roof.fabric.full_nodes) if roof.communicates else ()


def _collective_seconds(roof: Roofline) -> Mapping[tuple[str, str, tuple[str, ...]], float]:
    """Seconds of collectives one after the other at the base sizes, by phase, kind and axes."""
    point = {size(n): v for n, v in roof.costed.graph.sizes.items()}
    out: dict[tuple[str, str, tuple[str, ...]], float] = {}
    for node in roof.nodes:
        for t in node.cost.transfers:
            key = node.call.phase, t.kind, t.axes
            out[key] = out.get(key, 0.0) + float(evaluate(node.call.count * roof.fabric.seconds(t), point))
    return out


def waits(stages: Sequence[Computed], roofs: Sequence[Roofline], quantity: Callable[[Expr], Quantity]) -> Waiting | None:
    """How long the stages of a pipeline wait, and what a step takes at least on each chip; None for what is no stage."""
    found = bubble(stages[0].costed.graph)
    if found is None:
        return None
    steps = tuple(step_seconds(roof) for roof in roofs)
    try:
        held = tuple(_held(a, quantity) for a in stages)
    except CostirError:  # no training step, or no formula
        held = ()
    return Waiting(found.stages, found.micro_batches, float(found.idle), float(found.factor), steps, held)


def _held(stage: Computed, quantity: Callable[[Expr], Quantity]) -> StageHeld:
    m = stage.stage_memory
    always = quantity(m.parameters), quantity(m.optimizer_state)
    passing = quantity(m.gradients), quantity(m.gathered), quantity(m.block * m.blocks)
    return StageHeld(
        stage.costed.graph.plan, *always, *passing, m.in_flight, (quantity(m.least("1f1b")), quantity(m.least("gpipe")))
    )


def step_seconds(roof: Roofline) -> float:
    """What a step of a pipeline takes at the base sizes, by its slowest stage: its own time, and the bubble's."""
    whole, found = roof.costed, bubble(roof.costed.graph)
    least = float(roof.at().lower)
    if found is None:
        return least
    nodes = tuple(n for n, once in zip(whole.nodes, once_a_step(whole.graph), strict=True) if not once)
    passes = replace(whole, graph=replace(whole.graph, calls=tuple(n.call for n in nodes)), nodes=nodes)
    return least + float(found.factor - 1) * float(roofline(passes, roof.chip, roof.fabric.wiring, roof.overlap).at().lower)


def algorithms(roofs: Iterable[Roofline], unknown: str) -> tuple[ByAlgorithm, ...]:
    """A row for each algorithm that can do all collectives of a graph, for each chip; none where one was asked for."""
    return tuple(row for roof in roofs for row in _algorithms(roof, unknown))


def _algorithms(roof: Roofline, unknown: str) -> Iterable[ByAlgorithm]:
    fabric = roof.fabric
    if not roof.communicates or fabric.wiring.algorithm or fabric.measured is not None or not unknown:
        return
    transfers = [t for n in roof.nodes for t in n.cost.transfers]
    taken = {name for t in transfers for name in fabric.algorithms(t)}
    for name in NAMES:
        wiring = replace(fabric.wiring, algorithm=name)
        try:
            there = replace(fabric, wiring=wiring)
            used = next(u for t in transfers for u in there.algorithms(t) if public(u) == name)
            seconds = roofline(roof.costed, roof.chip, wiring).at().network
            threshold = solve.whole(roof.costed, roof.chip, unknown, "network", wiring)
        except (CostirError, StopIteration):  # it does not run on these links, or does not do one of these collectives
            continue
        yield ByAlgorithm(roof.chip.label, name, ALGORITHMS[used].words, float(seconds), threshold, taken == {used})


def beside(found: Threshold, roof: Roofline) -> Threshold:
    """A threshold of the whole, with the unit that takes longer there than the two that it compares."""
    if found.at_base is None or not roof.communicates:
        return found
    base = roof.costed.graph.sizes
    names = solve.factors(found.unknown, base)
    for name in names:
        rest = math.prod(base[n] for n in names if n != name)
        units = roof.units_at({**base, name: found.at_base / rest})
        pair = units[found.below], units[found.above]
        if len(names) == 1 or math.isclose(*pair, rel_tol=1e-6):  # of a product, the factor that was solved for
            longest = max(units, key=lambda u: units[u])
            return replace(found, beside=longest if units[longest] > max(pair) * (1 + 1e-6) else "")
    return found
