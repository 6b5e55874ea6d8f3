"""A model in the stages of a pipeline: how it is traced to be cut into them, and the stages as analyses.

What is traced is the model on the mesh of the other axes, as one device of it runs it; `stages` cuts that. Two things are done
differently than on such a mesh alone, as torch's pipelines do them (torch.distributed.pipelining): gradients are reduced in the
last micro-batch, and a weight that the first and the last stage share is in both of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costir import trace
from costir.analysis import Analysis, analysis_of
from costir.errors import CostirError, SizeError
from costir.load.family import Family
from costir.on_chip import led_by
from costir.stages import Line, in_stages

if TYPE_CHECKING:
    from costir.parallel import Plan


def divided(family: Family, plan: Plan, styles: Any, phase: str, traffic: str) -> tuple[Family, Line]:
    """The family as one device of the mesh without the pipeline's axis runs it, and the stages that it will be cut into.

    Args:
        family: the model on one device.
        plan: mesh and strategies, "pp" among them.
        styles: the user's own plan for tp or sp, where it is not the model's.
        phase, traffic: what is asked for.

    Raises:
        CostirError: names what is not told apart by stages.
    """
    from costir.parallel.family import distributed, staged

    axis = plan.axes_of("pp")[0]
    _refuse(family, axis, alone=len(plan.mesh) == 1, phase=phase, traffic=traffic)
    ties = _ties(family)
    whole = staged(family, list(ties))
    front = _front(whole) if plan.axes_of("fsdp", "hsdp") else ()
    line = Line(axis, plan.mesh[axis], tuple(plan.mesh), family.micro_batches, ties)
    return distributed(whole, plan, styles, front), line


def stages_of(whole: Analysis, line: Line) -> Analysis:
    """The stage that computes most at the base sizes, with the others as its alternatives."""
    stages = [replace(analysis_of(g, whole.conventions, whole.phase), whole=whole) for g in in_stages(whole.costed, line)]
    return led_by(max(stages, key=lambda a: a.at().flops), stages)


def _refuse(family: Family, axis: str, alone: bool, phase: str, traffic: str) -> None:
    """Refuse what is not told apart by stages.

    Raises:
        CostirError: names it.
    """
    if axis in family.sizes:
        raise SizeError(f"{axis} is a size of {family.name} and an axis of the mesh", "give the axis another name")
    if phase not in ("forward", "backward", "train"):
        raise CostirError(f"pp is of phase forward, backward and train, not {phase}", "add --phase train")
    if family.recompute not in ("none", "blocks"):
        raise CostirError("pp and modules that are computed again do not go together", "use --recompute blocks, or none")
    if family.recompute != "none" and not alone:
        raise CostirError(
            "what is computed again is known of one device, and of pp alone", "leave out recompute, or the other axes"
        )
    if traffic != "eager":
        raise CostirError(f"--traffic {traffic} is of one device", "leave out the mesh, or the traffic")


def _lists(module: Any) -> tuple[str, ...]:
    """The paths of a model's lists of blocks."""
    from costir.parallel.sharding import blocks

    names = {id(m): n for n, m in module.named_modules()}
    return tuple(dict.fromkeys(names[id(b)].rpartition(".")[0] for b in blocks(module)))


def _ties(family: Family) -> Mapping[tuple[str, ...], bool]:
    """The parameters that several modules outside of blocks share, by their paths; whether each is trained."""
    from costir.parallel.strategies import tied

    module = trace.skeleton(family)
    if module is None:
        return {}
    lists = _lists(module)
    outside = [tuple(paths) for paths in tied(module) if not any(p.startswith(f"{x}.") for p in paths for x in lists)]
    return {paths: module.get_parameter(paths[0]).requires_grad for paths in outside}


def _front(family: Family) -> tuple[str, ...]:
    """The modules that run before the model's blocks."""
    module = trace.skeleton(family)
    lists = _lists(module) if module is not None else ()
    few = {n: min(v, 2) if n in family.depth else v for n, v in family.sizes.items()}
    found: dict[str, None] = {}
    for event in trace.run(family, few, "forward").events:
        if any(event.path.startswith(f"{x}.") for x in lists):
            break
        found[event.path] = None
    return tuple(found)
