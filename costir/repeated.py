"""Work that the devices of a mesh do beyond that of the whole model: what each of them repeats, and what dividing itself takes.

    repeated = devices * FLOPs of one device - FLOPs of the whole model

The FLOPs of the whole model are those of a mesh of one device, without operators that the whole model does not have (gradients
that are averaged, biases that are shared out). A run of the whole model at sizes of its own decides whether that is so.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from costir import trace
from costir.cost import cost_of
from costir.errors import CostirError
from costir.ir import traced_phase
from costir.lifting.align import fold_path
from costir.load.family import Family
from costir.symbolic import Expr, Integer, expand, size, total

if TYPE_CHECKING:
    from costir.analysis import Analysis


def repeated(a: Analysis) -> Expr | None:
    """FLOPs of all devices together beyond those of the whole model; None where there is no mesh, or no formula for it.

    Args:
        a: an analysis of one device of several; with numbers for some sizes, as well.
    """
    origin, mesh = a.origin, a.graph.mesh
    if origin is not None and origin.whole is not None:  # a mesh of one device is looked at, so that its axes must be letters
        found = repeated(origin.whole)
        return found if found is None else expand(found.xreplace({size(n): Integer(v) for n, v in origin.fixed.items()}))
    if not mesh or origin is None or origin.evidence is None or not isinstance(origin.subject, Family):
        return None
    axes = set(mesh.names)
    family = origin.subject
    whole = dataclasses.replace(family, world=None, axes=(), sizes={n: v for n, v in family.sizes.items() if n not in axes})
    values = {n: v for n, v in origin.evidence.traces[0].sizes.items() if n not in axes}
    try:
        with trace.no_collection():
            run = trace.run(whole, values, traced_phase(a.phase), origin.optimizer)
    except CostirError:
        return None
    there = {(e.phase, fold_path(e.path), _kernel(e.op)) for e in run.events}
    ones = {size(n): Integer(1) for n in axes}
    alone = expand(total(
        n.call.count * n.cost.flops for n in a.costed.nodes
        if (n.call.phase, fold_path(n.call.path), _kernel(n.call.op)) in there
    ).xreplace(ones))  # fmt: skip
    seen = total(cost_of(trace.concrete(e), a.conventions)[0].flops for e in run.events)
    if alone.xreplace({size(n): Integer(v) for n, v in values.items()}) != seen:
        return None
    return expand(mesh.devices * a.flops - alone)


def _kernel(op: str) -> str:
    """An operator's name on any chip: a ring attends by the kernel for GPUs, one device by that for CPUs, in as many FLOPs."""
    return op.replace("_for_cpu", "")
