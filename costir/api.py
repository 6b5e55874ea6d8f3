"""`costir.analyze`: any subject in, an `Analysis` out. `costir.annotate`: a graph of one's own, with costs in `node.meta`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

from costir.analysis import Analysis, analysis_of
from costir.errors import CostirError, LoadError, TraceError, one_of
from costir.ir import SERVING, Conventions, Graph, Tensor, traced_phase
from costir.load import EXPORTED, Family
from costir.load.dtypes import split_dtype
from costir.load.subject import by_keyword, load, texts
from costir.mesh import check_mesh
from costir.results import Origin, is_size

if TYPE_CHECKING:
    from costir.parallel import Plan
    from costir.stages import Line

Phase = Literal["forward", "backward", "train", "prefill", "decode"]

CACHE_KINDS = ("dynamic", "static", "serving")


def analyze(
    subject: Any,
    inputs: Any = None,
    *,
    sizes: Mapping[str, int] | None = None,
    phase: str = "forward",
    dtype: str = "",
    attention: str = "full",
    count: str = "standard",
    keep: Iterable[str] = (),
    model: str = "",
    input: Sequence[str] | str = (),
    optimizer: str | Callable[[Any], Any] | None = None,
    names: Mapping[str, str] | None = None,
    mesh: Mapping[str, int] | None = None,
    parallel: str = "",
    plan: Any = None,
    devices: int | None = None,
    cache_kind: str = "dynamic",
    recompute: str = "none",
    micro_batches: int = 1,
    traffic: str = "eager",
    **keywords: Any,
) -> Analysis:
    """What a model costs, in closed form.

    Args:
        subject: a file ("model.py", "model.py:Name", "config.json", "program.pt2"), a notation string ("X[B,D] . Y[D,F]"), a
            family `build(**sizes) -> (module, args, kwargs)`, an `nn.Module` with `inputs`, a `torch.export.ExportedProgram`,
            or a `torch.fx.GraphModule` whose nodes carry shapes.
        inputs: for an `nn.Module`: its example inputs, a tuple of tensors or a dict by argument name. Dimensions are named by
            `input`; unnamed ones are numbers.
        sizes: base sizes that differ from the subject's own.
        phase: "forward"; "backward" (forward and backward); "train" (the optimizer's step too); "prefill" and "decode", the
            steps of serving, for models that take a cache.
        dtype: "bf16", or "bf16,weights=int8" for weights stored in another type than the arithmetic; "kv=fp8" for a cache.
        attention: "full" counts all scores, "causal" only those that causal attention does not mask.
        count: "standard" takes 2 FLOPs per multiply-add, "exact" 2k - 1 per dot product of length k.
        keep: sizes to keep as symbols; the others become numbers. Empty keeps all.
        model: which class of a file.
        input: shapes of inputs, "x: bf16[B, T, D]"; for a module with `inputs`, the names of their dimensions.
        optimizer: for "train": "adamw", "sgd", ... or a function of the parameters.
        names: new names for the symbols of an exported program or graph, {"s77": "B"} or, by the name of a Dim, {"batch": "B"}.
        mesh: devices along named axes, {"X": 8, "Y": 4}, the last of which numbers neighbours.
        parallel: what runs along them: "fsdp=X,tp=Y"; see docs/devices.md.
        plan: how tp divides matrices, where the model's file or config does not say: {"blocks.*.up": "colwise", ...}, or a
            function of the module and torch's mesh.
        devices: how many devices the mesh must have.
        cache_kind: in the phases of serving: transformers' "dynamic" cache or its "static" one, as they run; or "serving": the
            cache is counted as serving engines use it, read once, with only what is new written.
        recompute: what the backward pass computes again instead of keeping it: "none", "blocks" (members of lists of modules),
            "all" (the model as one), or a pattern of module paths, "layers.*.mlp".
        micro_batches: how many forward and backward passes, each of the base sizes, make one step; gradients are added up.
        traffic: "eager" counts bytes operator by operator, "inductor" and "xla" what these compilers' fusing leaves, "ideal"
            inputs, weights and results once; see docs/traffic.md.
        keywords: for an `nn.Module`: its example inputs by argument name, as `inputs`.

    Raises:
        CostirError: of a kind that says what is wrong; see costir.errors.
    """
    one_of("phase", phase, ("forward", "backward", "train", *SERVING))
    one_of("cache_kind", cache_kind, CACHE_KINDS)
    one_of("attention", attention, ("full", "causal"))
    one_of("count", count, ("standard", "exact"))
    one_of("traffic", traffic, ("eager", "inductor", "xla", "ideal"))
    inputs = by_keyword(subject, inputs, keywords, inspect.signature(analyze).parameters) if keywords else inputs
    specs = texts(input)
    stored, counted = split_dtype(dtype), "serving" if cache_kind == "serving" else "traced"
    _refuse_without_cache(phase, cache_kind, stored.kv)
    conventions = Conventions(cast(Any, count), cast(Any, attention), stored.weights, stored.kv, cast(Any, counted))
    if not parallel:
        check_mesh(mesh or {}, devices)
    loaded = load(subject, inputs, sizes, phase, dtype, model, specs, names, cache_kind, mesh)
    if cache_kind == "static" and isinstance(loaded, Family) and (loaded.cache is None or loaded.cache.fill is None):
        raise LoadError("a static cache is one of transformers, for a config.json", "a model of your own brings its own cache")
    plain_step = recompute == "none" and micro_batches == 1
    if isinstance(loaded, Graph):
        if max((mesh or {}).values(), default=1) > 1 and not loaded.mesh:
            raise LoadError("a mesh is for notation, Python files and configs", "leave out the mesh")
        if not plain_step:
            raise CostirError(
                "recompute and micro-batches need a model that is run", "give a Python file, a config or a module"
            )
        _refuse_mixed(loaded)
        result = replace(analysis_of(loaded, conventions, phase), origin=_program_origin(subject, names or {}))
    else:
        loaded = _stepped(loaded, phase, recompute, micro_batches)
        line = None
        if mesh or parallel:
            from costir.parallel import plan_of

            laid = plan_of(mesh or {}, parallel, devices)
            loaded, line = _divided(loaded, laid, plan, sizes or {}, phase, traffic)
        result = _of_family(loaded, phase, optimizer, conventions)
        if line is not None:
            from costir.pipelines import stages_of

            result = stages_of(result, line)
    result = result.under(traffic)
    return result.keep(keep) if keep else result


def _refuse_without_cache(phase: str, kind: str, stored: str) -> None:
    """Refuse to count a cache where none is.

    Raises:
        CostirError: names the option.
    """
    if phase not in SERVING and (kind != "dynamic" or stored):
        option = f"kv={stored}" if stored else f"the cache {kind!r}"
        raise CostirError(
            f"{option} is for steps of serving, and phase {phase} keeps no cache", "ask for phase decode or prefill"
        )


def _divided(
    family: Family, laid: Plan, plan: Any, given: Mapping[str, int], phase: str, traffic: str
) -> tuple[Family, Line | None]:
    """The family on a mesh of devices, and the stages that it will be cut into where it is a pipeline."""
    from costir.parallel.family import distributed, one_each
    from costir.parallel.own_plan import checked

    styles, family = checked(plan, "plan=") if plan is not None else None, one_each(family, laid, given)
    if laid.without_ones().axes_of("pp"):
        from costir.pipelines import divided

        return divided(family, laid.without_ones(), styles, phase, traffic)
    if not laid.axes_of("pp"):
        _refuse_parts(family, laid.without_ones())
    return distributed(family, laid, styles), None


def _refuse_parts(family: Family, laid: Plan) -> None:
    """Refuse steps in parts that were not seen to send what torch sends.

    Raises:
        CostirError: names the strategy.
    """
    ring, copies = laid.axes_of("cp"), laid.axes_of("dp", "cp") and not laid.axes_of("fsdp", "hsdp")
    if ring and family.recompute != "none":
        raise CostirError("attention that goes round by cp is not followed where it is computed again", "leave out --recompute")
    if ring and family.micro_batches > 1:
        raise CostirError("attention that goes round by cp is followed once in a step", "leave out --micro-batches")
    if copies and family.micro_batches > 1:
        raise CostirError(
            "whether dp sends gradients after each micro-batch, or once (no_sync), is for the training loop to say",
            "use fsdp, or leave out --micro-batches",
        )


def _stepped(family: Family, phase: str, recompute: str, micro_batches: int) -> Family:
    """The family with what is computed again, and how often, in a step.

    Raises:
        CostirError: where there is no backward pass for it, or no number of micro-batches.
    """
    if not is_size(micro_batches):
        raise CostirError(f"micro_batches={micro_batches!r:.40} is not a whole number from 1 on", "write for example 4")
    if traced_phase(phase) == "forward" and (recompute != "none" or micro_batches != 1):
        what = "nothing is computed again" if recompute != "none" else "there are no micro-batches"
        raise CostirError(f"{what} in a forward pass", "add --phase train or --phase backward")
    notes = family.notes
    if micro_batches > 1:
        notes += (f"a step of {micro_batches} micro-batches: sizes, inputs and activations are those of one",)
    if recompute != "none":
        notes += (f"computed again in the backward pass: {_RECOMPUTED.get(recompute, f'modules {recompute}')}",)
    return replace(family, recompute=recompute, micro_batches=int(micro_batches), notes=notes)


_RECOMPUTED = {"blocks": "the model's blocks", "all": "the whole model"}


def _of_family(loaded: Family, phase: str, optimizer: Any, conventions: Conventions) -> Analysis:
    """The analysis of what has to be traced, in all its regimes."""
    from costir.load.modes import watched
    from costir.regimes import regimes
    from costir.trace import named_optimizer, no_collection

    maker = named_optimizer(optimizer)
    family, in_training = watched(loaded)
    with no_collection():
        found = regimes(family, traced_phase(phase), maker)
    for one in found:
        _refuse_mixed(one.graph)
    said = in_training() if traced_phase(phase) == "forward" else ()
    graphs = (replace(one.graph, notes=(*one.graph.notes, *said)) for one in found)
    first, *rest = (
        replace(analysis_of(g, conventions, phase), origin=Origin(loaded, maker, evidence=one.evidence))
        for g, one in zip(graphs, found, strict=True)
    )
    return replace(first, others=tuple(rest))


def annotate(graph_module: Any, names: Mapping[str, str] | None = None, **conventions: str) -> Any:
    """Put a cost into `node.meta["costir"]` of every operator of a graph whose nodes carry shapes in `meta["val"]`.

    Args:
        graph_module: a `torch.fx.GraphModule` at the ATen level, such as torch.compile's backends and torch.export give.
        names: new names for its size symbols.
        conventions: `count` and `attention`, as for `analyze`.

    Returns:
        The same graph module.

    Raises:
        LoadError: where nodes carry no shapes.
    """
    from costir.graph_pass import annotate as fill

    return fill(graph_module, names or {}, Conventions(**cast(Any, conventions)))


# Operators that torch refuses unless all these operands have one type, by what their schemas call them. Only those that fake
# tensors let pass: bmm, baddbmm, addmv, dot and attention refuse it there, too.
_ONE_TYPE = {
    "mm": ("self", "mat2"), "addmm": ("self", "mat1", "mat2"), "addbmm": ("self", "batch1", "batch2"), "mv": ("self", "vec"),
    "convolution": ("input", "weight"),
}  # fmt: skip


def _refuse_mixed(graph: Graph) -> None:
    """Refuse products of two types, which fake tensors let pass and torch does not.

    Raises:
        TraceError: names the operator, its line and the types.
    """
    for call in graph.calls:
        if not call.op.startswith("aten.") or not call.op.endswith(".default"):
            continue
        operands = [call.args.get(n) for n in _ONE_TYPE.get(call.name.rstrip("_"), ())]
        types = list(dict.fromkeys(t.dtype for t in operands if isinstance(t, Tensor)))
        if len(types) > 1:
            where = " ".join(p for p in (call.path and f"in {call.path}", call.source and f"at {call.source}") if p)
            raise TraceError(f"{f'{call.name} {where}'.strip()} mixes {' and '.join(types)}, which torch refuses",
                             "give inputs and weights one type: --dtype bf16, module.to(...), or x.to(...)")  # fmt: skip


def _program_origin(subject: Any, names: Mapping[str, str]) -> Origin | None:
    """The program or its file; None for a notation string or a graph, which have no other form."""
    given = os.fspath(subject) if isinstance(subject, os.PathLike) else subject
    if isinstance(given, Graph) or (isinstance(given, str) and not given.endswith(EXPORTED)):
        return None
    return Origin(given, None, names)
