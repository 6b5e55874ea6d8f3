"""A module wrapped as a plan says, by torch's own means: DistributedDataParallel, fully_shard, parallelize_module."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from costir.errors import TraceError
from costir.parallel.own_plan import Styles
from costir.parallel.plan import DATA, Plan
from costir.parallel.sharding import sharded
from costir.parallel.world import World
from costir.tracing.recorder import own_part

_ORDER = ("ep", "tp", "sp", "dp", "fsdp", "hsdp")  # matrices first, then what is left of them


class UnevenError(TraceError):
    """Something is not divided evenly among the devices."""


def wrap(module: nn.Module, plan: Plan, world: World, styles: Styles) -> nn.Module:
    """The module as each device of the mesh runs it.

    Args:
        module: whole, on fake tensors.
        plan: strategies and axes.
        world: the mesh.
        styles: the user's own plan: path of modules ("blocks.*.up") -> style, or a function of module and mesh.

    Raises:
        TraceError: a strategy needs a plan that the model has not.
        UnevenError: a weight is not divided evenly.
    """
    shared, ring = tied(module), plan.axes_of("cp")
    if callable(styles):
        made = styles(module, world.mesh)
        module = made if isinstance(made, nn.Module) else module
        _check_even(module, world)
    for strategy in _ORDER:
        axes = plan.axes_of(strategy)
        if axes and not (callable(styles) and strategy in ("tp", "sp")):
            meshes = [world.axes[a] for a in axes]
            if strategy in DATA and ring:  # a device with other positions has other gradients, as one with other sequences
                meshes[-1] = world.together({axes[-1], *ring})
            _WRAPPERS[strategy](module, meshes, world, styles)
            _check_even(module, world)
    if ring and not plan.axes_of(*DATA):
        _replicated(module, [world.axes[a] for a in ring], world, styles)
    _check_tied(module, shared)
    return module


# ------------------------------------------------------------------------------------------------- data parallel


def _replicated(module: nn.Module, meshes: list[Any], world: World, styles: Any) -> None:
    """DistributedDataParallel's hooks on the module itself, one all-reduce a parameter, averaged as by its default hook.

    It takes no weights that tp divides: of these each device averages the gradient of its part, by a hook on the parameter.
    """
    group = meshes[0].get_group()
    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    parts: dict[str, Any] = {n: p for n, p in trained.items() if isinstance(p, world.divided)}
    ignored = [n for n, p in module.named_parameters(remove_duplicate=False) if isinstance(p, world.divided)]
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ignored)
    names = {id(p): n.rpartition(".")[0] for n, p in trained.items()}

    def reduce(p: torch.Tensor, gradient: torch.Tensor) -> None:
        with world.home_of(names[id(p)]):
            dist.all_reduce(gradient, group=group)

    def average(p: Any) -> None:
        if not world.reducing:
            return
        p.grad = p.grad.redistribute(placements=p.placements)  # of a table, torch makes a gradient that is not divided
        part = own_part(p.grad)
        with world.home_of(names[id(p)]):
            part.div_(dist.get_world_size(group))
        reduce(p, part)

    for p in parts.values():
        p.register_post_accumulate_grad_hook(average)
        world.joined.add(id(p))  # torch's own way to do this has them in buckets, too
    if len(trained) > len(parts):
        _reduced(module, group, world, reduce, names)


class _Made(TorchDispatchMode):  # type: ignore[misc]
    """The memory of all tensors that are made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.memories: list[StorageWeakRef] = []  # as long as they are kept, no other memory gets their address

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.memories += [StorageWeakRef(t.untyped_storage()) for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        return out


def _reduced(module: nn.Module, group: Any, world: World, reduce: Callable[[torch.Tensor, torch.Tensor], None],
             names: Mapping[int, str]) -> None:  # fmt: skip
    """DistributedDataParallel with its buckets taken apart: each gradient is averaged on its way there, and sent alone."""

    def with_buckets(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with _Made() as made:
            result = make(*args, **kwargs)
        world.averaged.update({m.cdata: (m, dist.get_world_size(group)) for m in made.memories if not m.expired()})
        return result

    ddp = with_buckets(nn.parallel.DistributedDataParallel, module, process_group=group, init_sync=False)

    def hook(state: Any, bucket: Any) -> Any:
        with world.unseen():
            reduced = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
            world.buckets.add(bucket.buffer().untyped_storage()._cdata)
            world.joined.update(id(p) for p, _ in reduced)
            for p, gradient in reduced:
                world.in_bucket(names[id(p)], gradient)
        for p, gradient in reduced:
            reduce(p, gradient)
        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    hook.__annotations__ = {
        "bucket": dist.GradBucket,
        "return": torch.futures.Future[torch.Tensor],
    }  # types, not their names
    ddp.register_comm_hook(None, hook)
    world.syncs.append(lambda wanted: setattr(ddp, "require_backward_grad_sync", wanted))  # as no_sync does
    before = ddp._pre_forward  # it may make its buckets anew
    module.register_forward_pre_hook(lambda m, args, kwargs: with_buckets(before, *args, **kwargs), with_kwargs=True)
    module.register_forward_hook(lambda m, args, out: ddp._post_forward(out))


# ------------------------------------------------------------------------------------------------ tensor parallel


def _tensors(module: nn.Module, meshes: list[Any], world: World, styles: Mapping[str, Any] | None) -> None:
    """The model's own plan: of a transformers model by its own engine, else by parallelize_module."""
    if styles is None and hasattr(module, "_resolve_parallel_plans"):
        _transformers(module, meshes[0], experts=False)
        return
    if not styles:
        raise TraceError(
            f"{type(module).__name__} has no plan for tp, which says how each matrix is divided",
            f"write in its file for example: tp_plan = {_example(module)}",
        )
    _parallelize(module, meshes[0], styles)


def _example(module: nn.Module) -> str:
    """A plan for the first two linear layers, or kinds of them, that it has."""
    paths = [name for name, m in module.named_modules() if isinstance(m, nn.Linear) and name]
    kinds = [*dict.fromkeys(re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", name) for name in paths)]
    found = next((names for names in (kinds, paths) if len(names) > 1), ["blocks.*.up", "blocks.*.down"])
    return f'{{"{found[0]}": "colwise", "{found[1]}": "rowwise"}}'


def _sequences(module: nn.Module, meshes: list[Any], world: World, styles: Mapping[str, Any] | None) -> None:
    if not styles:
        raise TraceError(
            f"{type(module).__name__} has no plan for sp, which says where the sequence is divided",
            'write in its file for example: sp_plan = {"blocks.*.norm": "sequence", "blocks.*.up": "colwise_sequence", '
            '"blocks.*.down": "rowwise_sequence"}',
        )
    _parallelize(module, meshes[0], styles)


def _parallelize(module: nn.Module, mesh: Any, styles: Mapping[str, Any]) -> None:
    from torch.distributed.tensor.parallel import parallelize_module

    known = torch_styles()
    found: dict[str, Any] = {}
    for pattern, style in styles.items():
        if isinstance(style, str) and style not in known:
            raise TraceError(
                f"the plan for tp names the style {style[:40]!r}, which is not known", f"styles: {', '.join(known)}"
            )
        shape = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
        paths = [n for n, _ in module.named_modules() if shape.fullmatch(n)]
        if not paths:
            raise TraceError(
                f"the plan for tp names {pattern!r}, and no module has that path", "paths are as costir prints them"
            )
        found.update((n, known[style]() if isinstance(style, str) else style) for n in paths)
    parallelize_module(module, mesh, found, src_data_rank=None)


def torch_styles() -> dict[str, Callable[[], Any]]:
    """The styles of plans by name."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    rows = Shard(1)
    return {
        "colwise": ColwiseParallel,
        "colwise_gather": lambda: ColwiseParallel(output_layouts=Replicate()),
        "colwise_sequence": lambda: ColwiseParallel(input_layouts=rows),
        "colwise_sequence_gather": lambda: ColwiseParallel(input_layouts=rows, output_layouts=Replicate()),
        "rowwise": RowwiseParallel,
        "rowwise_sequence": lambda: RowwiseParallel(output_layouts=rows),
        "embedding": lambda: RowwiseParallel(input_layouts=Replicate()),
        "embedding_sequence": lambda: RowwiseParallel(input_layouts=Replicate(), output_layouts=rows),
        "sequence": lambda: SequenceParallel(use_local_output=True),
    }


def _experts(module: nn.Module, meshes: list[Any], world: World, styles: Any) -> None:
    if not hasattr(module, "_resolve_parallel_plans"):
        raise TraceError(f"{type(module).__name__} has no plan for ep", "ep is known for transformers models with experts")
    _transformers(module, meshes[0], experts=True)


def _transformers(module: Any, mesh: Any, experts: bool) -> None:
    """A transformers model by the plans of its config, applied by its own engine; the experts whole, or each divided.

    Raises:
        TraceError: the config has no such plan.
        UnevenError: heads of keys and values are not divided evenly.
    """
    from transformers.distributed import DistributedConfig
    from transformers.distributed.expert_parallel import apply_expert_parallelism
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    count, what = mesh.size(), "ep" if experts else "tp"
    wanted = [s for s in ("tp", "ep") if s == "tp" or experts]
    lacks = next((s for s in wanted if not getattr(module, f"{s}_plan", None)), "")
    if lacks:
        raise TraceError(f"{type(module).__name__} has no plan for {lacks} in its config", "choose another strategy")
    heads = getattr(module.config.get_text_config(), "num_key_value_heads", None)
    if isinstance(heads, int) and heads % count:
        raise UnevenError(
            f"{what} over {count} devices does not divide the {heads} heads of keys and values evenly",
            f"{what} goes up to {heads} devices here",
        )
    tensors, whole, _ = module._resolve_parallel_plans(DistributedConfig(**{f"{s}_size": count for s in wanted}))
    shared = _untied(module)  # the engine divides before weights are tied
    apply_tensor_parallelism(module, mesh, tensors)
    if experts:
        apply_expert_parallelism(module, mesh, mesh, whole)
    if shared:
        module.tie_weights(recompute_mapping=False)


_WRAPPERS: dict[str, Callable[..., None]] = {
    "dp": _replicated, "fsdp": sharded, "hsdp": sharded, "tp": _tensors, "sp": _sequences, "ep": _experts,
}  # fmt: skip


def _check_even(module: nn.Module, world: World) -> None:
    """Refuse weights of which devices hold unequal parts.

    Raises:
        UnevenError: names the weight, its size and the axes.
    """
    for path, whole in module.named_parameters():
        if not isinstance(whole, world.divided):
            continue
        p: Any = whole
        for dim, length in enumerate(p.shape):
            along = [i for i, place in enumerate(p.placements) if getattr(place, "dim", None) == dim]
            count = math.prod(p.device_mesh.size(i) for i in along)
            if length % count:
                axes = " and ".join(a for i in along for a in world.behind(p.device_mesh.mesh_dim_names[i]))
                which = f"{int(length)}, dimension {dim} of {path}"
                raise UnevenError(
                    f"shards would be uneven: {count} devices along {axes} do not divide {which}",
                    "choose another mesh, or pad the size",
                )


# --------------------------------------------------------------------------------------------------- tied weights


def tied(module: nn.Module) -> list[list[str]]:
    """Paths of parameters that are one and the same."""
    found: dict[int, list[str]] = {}
    for path, p in module.named_parameters(remove_duplicate=False):
        found.setdefault(id(p), []).append(path)
    return [paths for paths in found.values() if len(paths) > 1]


def _untied(module: nn.Module) -> bool:
    """Give each module a parameter of its own; whether any was shared."""
    found = tied(module)
    untie(module, found)
    return bool(found)


def untie(module: nn.Module, ties: Iterable[Sequence[str]]) -> None:
    """Give each module a parameter of its own where several share one, by the paths of the parameter."""
    for path in (path for paths in ties for path in paths[1:]):
        owner, _, name = path.rpartition(".")
        whole = module.get_parameter(path)
        alone = nn.Parameter(torch.empty_like(whole), requires_grad=whole.requires_grad)
        module.get_submodule(owner).register_parameter(name, alone)


def _check_tied(module: nn.Module, before: list[list[str]]) -> None:
    """Refuse a plan that makes several weights of one: all that follows would be another model's.

    Raises:
        TraceError: names the weight.
    """
    now = dict(module.named_parameters(remove_duplicate=False))
    for paths in before:
        if len({id(now[p]) for p in paths if p in now}) > 1:
            raise TraceError(
                f"{paths[0]} and {paths[1]} are one weight, and torch makes two of it when it divides the model by this plan",
                "tie them again in a plan of your own, a function of module and mesh: --parallel data=X,plan.py:parallelize",
            )
