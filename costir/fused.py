"""A lifted graph -> the same under another kind of memory traffic: its traces are fused one by one, and lifted again.

Fusing looks at numbers. The traces that the graph was lifted from are fused at each of their points, and their kernels are
matched and fitted like calls: where they agree, the bytes of each kernel are formulas in the sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from costir.errors import CostirError, LiftError
from costir.fusion.ideal import ideal
from costir.fusion.kernels import as_events, fuse
from costir.fusion.rules import ALIKE
from costir.ir import Call, Graph
from costir.lifting.align import Key, align, occurrences, unequal_lists
from costir.lifting.expressions import Lifter
from costir.lifting.held_bytes import Evidence
from costir.trace import Trace

TRAFFIC = ("eager", "inductor", "xla", "ideal")


def fused_trace(trace: Trace, traffic: str) -> Trace:
    """The trace with kernels as its calls."""
    if traffic == "eager":
        return trace
    if traffic == "ideal":
        return as_events(trace, ideal(trace))
    found = fuse(trace, traffic)
    return as_events(trace, (*found.kernels, *found.idle))


def fused(graph: Graph, evidence: Evidence, traffic: str) -> Graph:
    """The graph whose calls are kernels.

    Args:
        graph: the operators. evidence: the traces that it was lifted from.
        traffic: "inductor", "xla" or "ideal"; "eager" gives the graph itself.

    Raises:
        LiftError: where the kernels at several sizes follow no formula.
    """
    if traffic == "eager":
        return graph
    problem: CostirError | None = None
    for rules, notes in ((traffic, ()), *_alike(traffic)):
        traces = [fused_trace(t, rules) for t in evidence.traces]
        for chosen in (traces, traces[:-1]):  # the last is the base, whose sizes may be equal by chance
            if len(chosen) < min(len(traces), 2):
                continue
            try:
                return dataclasses.replace(graph, calls=_lifted(evidence, chosen), notes=(*graph.notes, *notes))
            except CostirError as error:
                problem = problem or error
    assert problem is not None
    raise LiftError(
        f"the kernels under {traffic} traffic differ from size to size: {problem.message}",
        "give --keep only the sizes that you want as letters, or choose other base sizes",
    ) from problem


def _alike(traffic: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Rules to take where the kernels that a compiler makes are not alike in every layer, with a note on it."""
    if traffic not in ALIKE:
        return ()
    note = (
        f"{traffic}: sums of a residual stream are stored where they are made; compiled, those of up to four operands are "
        "added up again, not alike in every layer (docs/traffic.md)"
    )
    return ((ALIKE[traffic], (note,)),)


def _lifted(evidence: Evidence, traces: Sequence[Trace]) -> tuple[Call, ...]:
    known: dict[Key, Key] = {}

    def intern(key: Key) -> Key:
        return known.setdefault(key, key)

    fitter = evidence.fitter
    if fitter is not None and len(traces) < len(evidence.traces):
        fitter = fitter.without_last()
    lifter = Lifter(fitter)
    lifter.routed = any(t.routing for t in traces)
    unequal = unequal_lists([t.events for t in traces])
    items = align([occurrences(t.events, intern, unequal) for t in traces])
    return tuple(lifter.call(i) for i in items)
