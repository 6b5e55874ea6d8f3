"""A pipeline: the blocks of a model in equal stages on a line of devices, each stage another program.

The calls of one device are told apart: those of blocks; those that the blocks' input comes of, which the first stage runs;
those that work on what the blocks give, which the last stage runs; and what depends on no weight, such as tables of angles,
which every stage makes for itself. A stage has its share of the blocks' calls, and passes on what one block hands to the next:
forward to the stage behind it, its gradient to the stage before it, once for each micro-batch.

With M micro-batches and P stages forward and backward passes take the time of M + P - 1 micro-batches on the slowest stage, by
GPipe as by 1F1B (Huang et al., arXiv 1811.06965; Narayanan et al., arXiv 2104.04473, section 2.2): (P - 1)/(M + P - 1) of it is
idle. What runs once a step, the optimizer and the reduction of gradients, comes after them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from costir.errors import LiftError, SizeError
from costir.ir import Call, Constraint, Costed, Graph, Pipeline, Tensor
from costir.mesh import Mesh
from costir.stage_parts import BLOCK, EVERY, FIRST, LAST, Parts, told_apart
from costir.symbolic import Expr, Integer, divides, evaluate, size


@dataclass(frozen=True)
class Line:
    """The stages of a pipeline, on the mesh that they lie in.

    Attributes:
        axis: the mesh axis along which the stages lie. count: how many there are.
        mesh: all axes of the mesh, in its order.
        micro_batches: passes of a step.
        shared: weights that the first and the last stage both hold, by the paths of the two; whether each is trained.
    """

    axis: str
    count: int
    mesh: tuple[str, ...]
    micro_batches: int = 1
    shared: Mapping[tuple[str, ...], bool] = field(default_factory=dict)


def in_stages(costed: Costed, line: Line) -> tuple[Graph, ...]:
    """The programs of the first, a middle and the last stage, without the middle one where there are two stages.

    Args:
        costed: the graph of one device, or of one of those that the other axes of the mesh divide the model over, with costs.
        line: the stages.

    Raises:
        SizeError: the stages do not divide the blocks.
        LiftError: the calls do not tell which stage they belong to, or more than one tensor is handed on.
    """
    parts = told_apart(costed)
    length = costed.graph.sizes[str(parts.depth)]
    if length % line.count:
        raise SizeError(
            f"stages would be uneven: {line.count} stages along {line.axis} do not divide {parts.depth} = {length} blocks",
            "choose another mesh",
        )
    _check_shared(costed.graph, parts, line)
    kinds = (FIRST, "middle", LAST) if line.count > 2 else (FIRST, LAST)
    return tuple(_stage(costed.graph, parts, kind, line) for kind in kinds)


def _stage(graph: Graph, parts: Parts, kind: str, line: Line) -> Graph:
    share, mine = size(line.axis), (kind, EVERY)
    calls = [replace(c, count=c.count / share) if w == BLOCK else c
             for c, w in zip(graph.calls, parts.where, strict=True) if w == BLOCK or w in mine]  # fmt: skip
    weights = [replace(x, count=x.count / share) if w == BLOCK else x
               for x, w in zip(graph.weights, parts.weights, strict=True) if w == BLOCK or w in mine]  # fmt: skip
    phases = {p: [c for c in calls if c.phase == p] for p in ("forward", "backward", "optimizer")}
    sends = {"forward": kind != LAST, "backward": bool(phases["backward"]) and kind != FIRST}
    for phase, wanted in sends.items():
        if wanted:
            phases[phase].append(_sent("permute", parts.handed, line.axis, share, phase, line.micro_batches))
    if phases["backward"] and kind != "middle":
        phases["backward"] += _summed(graph, parts, kind, line)
    return replace(
        graph,
        calls=(*phases["forward"], *phases["backward"], *phases["optimizer"]),
        weights=tuple(weights),
        sizes={**graph.sizes, line.axis: line.count},
        mesh=Mesh.of(line.mesh),
        constraints=(*graph.constraints, Constraint(divides(parts.depth, share))),
        notes=(*graph.notes, *_notes(graph, parts, line)),
        plan=f"{kind} stage{'s' if kind == 'middle' else ''}",
        pipeline=Pipeline(line.axis, line.micro_batches),
    )


def _sent(kind: str, tensor: Tensor, axis: str, devices: Expr, phase: str, count: int = 1, path: str = "") -> Call:
    args = {"self": tensor, "axes": (axis,), "devices": devices}
    return Call(f"costir.{kind}.default", args, (replace(tensor, ref=-1),), path, "", phase, Integer(count))  # type: ignore[arg-type]


def _check_shared(graph: Graph, parts: Parts, line: Line) -> None:
    """Refuse weights that modules share of which the first and the last stage do not have one part each.

    Raises:
        LiftError: names them.
    """
    held = dict(zip((w.path for w in graph.weights), parts.weights, strict=True))
    shapes = {w.path: w.tensor.shape for w in graph.weights}
    for paths in line.shared:
        if sorted(held[p] for p in paths) != [FIRST, LAST]:
            raise LiftError(f"pp: {' and '.join(paths)} are one weight, and not of the first and the last stage", "untie them")
        if len({shapes[p] for p in paths}) > 1:
            raise LiftError(
                f"pp: {' and '.join(paths)} are one weight, of which devices would hold different parts", "untie them"
            )


def _summed(graph: Graph, parts: Parts, kind: str, line: Line) -> Iterable[Call]:
    """The gradients of weights that the first and the last stage share, added up once a step between the two."""
    for weight, where in zip(graph.weights, parts.weights, strict=True):
        if where == kind and any(weight.path in paths and trained for paths, trained in line.shared.items()):
            path = weight.path.rpartition(".")[0]
            yield _sent("all_reduce", replace(weight.tensor, role="grad"), line.axis, Integer(2), "backward", path=path)


def _notes(graph: Graph, parts: Parts, line: Line) -> Iterable[str]:
    p, m, many = line.axis, line.micro_batches, line.micro_batches > 1
    yield f"all numbers are of the slowest of {p} stages at the base sizes; each has {parts.depth}/{p} blocks ({parts.blocks})"
    yield "the first stage has what is before the blocks, too, the last what is behind; all have what needs no weights"
    yield (
        f"pipeline of {m} micro-batch{'es' * many}, GPipe or 1F1B: forward and backward passes take ({m} + {p} - 1)/{m} of "
        f"their time in the stage, ({p} - 1)/({m} + {p} - 1) of it idle; what runs once a step comes after them"
    )
    for paths, trained in line.shared.items():
        adds = f"; their gradients are added up once a step, an all_reduce between these two along {p}"
        yield f"{' and '.join(paths)} are one weight, which the first and the last stage both hold{adds * trained}"
    if many and graph.mesh:
        yield "gradients are added up over the micro-batches and reduced among devices once a step, as by torch's PipelineStage"
    if many and any(c.op == "fsdp.copy_in.default" for c in graph.calls):
        kept = "kept from a backward pass to the next forward pass, so gathered"
        yield f"fsdp: weights of blocks are {kept} {m + 1} times a step, by 1F1B as by GPipe; those outside blocks once"


@dataclass(frozen=True)
class Bubble:
    """How long the stages of a pipeline wait for each other, by GPipe as by 1F1B.

    Attributes:
        stages: how many there are. micro_batches: of a step.
    """

    stages: int
    micro_batches: int

    @property
    def factor(self) -> Fraction:
        """How many times longer forward and backward passes take than they run in the slowest stage: (M + P - 1)/M."""
        return Fraction(self.micro_batches + self.stages - 1, self.micro_batches)

    @property
    def idle(self) -> Fraction:
        """The share of the time of forward and backward passes in which a stage is idle: (P - 1)/(M + P - 1)."""
        return 1 - 1 / self.factor


def bubble(graph: Graph) -> Bubble | None:
    """The bubble of the pipeline that a graph is a stage of, at the base sizes; None where it is of none."""
    if graph.pipeline is None:
        return None
    count = evaluate(graph.mesh.length(graph.pipeline.axis), {size(n): v for n, v in graph.sizes.items()})
    return Bubble(int(count), graph.pipeline.micro_batches)


def once_a_step(graph: Graph) -> tuple[bool, ...]:
    """Which calls of a stage run once a step, after all micro-batches: the optimizer's, and those that reduce gradients."""
    data = {a for axes in graph.splits.values() for a in axes}
    ends = (graph.pipeline.axis,) if graph.pipeline is not None else ()
    return tuple(_once(c, data, ends) for c in graph.calls)


_ON_THE_WAY = ("fsdp.chunk_cat.default", "aten.div.out", "aten.div_.Tensor", "aten.copy_.default")  # into buckets, and back


def _once(c: Call, data: Collection[str], ends: tuple[str, ...]) -> bool:
    if c.phase != "backward":
        return c.phase == "optimizer"
    axes = tuple(c.args.get("axes", ()))
    if c.name in ("reduce_scatter", "all_reduce") and axes:
        return axes == ends or set(axes) <= set(data)
    return bool(data) and c.op in _ON_THE_WAY
