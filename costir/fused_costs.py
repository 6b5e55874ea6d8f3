"""A costed graph under another kind of memory traffic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from costir.cost import cost
from costir.errors import LoadError
from costir.fusion.kernels import common_path, fuse
from costir.fusion.rules import ALIKE
from costir.fusion.why import Reason
from costir.fusion.why import reasons as asked
from costir.ir import Call, Costed
from costir.ops.kernel import operators
from costir.results import Origin
from costir.substitute import substituted
from costir.symbolic import Integer, size
from costir.trace import Trace
from costir.tracing.paths import fold_path


def costed_under(costed: Costed, origin: Origin | None, traffic: str) -> Costed:
    """The kernels of a graph with their costs.

    Args:
        costed: the operators with their costs.
        origin: what was analysed: the traces, and the numbers of sizes that are kept no more.
        traffic: "inductor", "xla", "ideal", or "eager".

    Raises:
        LoadError: where there is nothing to fuse: a program of several operators that was not traced here, or a cache that is
            not counted as it runs.
        LiftError: where the kernels follow no formula.
    """
    if traffic != "eager" and costed.conventions.cache == "serving":
        raise LoadError(
            f"traffic {traffic} counts the program as it runs, --cache serving what engines do instead",
            "--cache dynamic or static goes with every traffic, --cache serving with --traffic eager",
        )
    conventions = replace(costed.conventions, traffic=cast(Any, traffic))
    evidence = origin.evidence if origin is not None else None
    if costed.graph.pipeline:
        raise LoadError(f"--traffic {traffic} is of one device", "leave out pp, or the traffic")
    if origin is None or evidence is None:
        if sum(n.cost.status != "free" for n in costed.nodes) == 1:  # one operator moves what it must in any case
            return replace(costed, conventions=conventions)
        raise LoadError(
            f"--traffic {traffic} needs the model itself: {costed.graph.name} is a finished graph, silent on its memory",
            "give the Python file, the config.json or the nn.Module; --traffic eager counts this graph",
        )
    from costir.fused import fused

    graph = costed.graph if origin.operators is None else origin.operators
    found = cost(fused(graph, evidence, traffic), conventions)
    gone = {size(n): Integer(v) for n, v in origin.fixed.items()}
    return substituted(found, gone) if gone else found


def reasons(trace: Trace, traffic: str) -> Callable[[Call], tuple[Reason, ...]]:
    """Why each kernel is as it is, asked by its call; nothing is known of calls that are in no trace.

    Args:
        trace: a run of the model.
        traffic: "inductor" or "xla".
    """
    fused = [fuse(trace, rules) for rules in (traffic, ALIKE.get(traffic)) if rules is not None]
    events = trace.events

    def why(call: Call) -> tuple[Reason, ...]:
        for found in fused:
            for k in (*found.kernels, *found.idle):
                inside = [events[i] for i in (*k.events, *k.again)]
                path = fold_path(common_path([e.path for e in inside]))
                names = tuple(e.op.split(".")[1] for e in inside)
                if path == fold_path(call.path) and names == operators(call) and inside[0].source == call.source:
                    return asked(found, k)
        return ()

    return why
