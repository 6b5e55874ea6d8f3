"""A module whose weights are divided by torch's `fully_shard`: blocks, and the rest; and the same in a pipeline's stages."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import nn

from costir.errors import TraceError
from costir.parallel.world import World


def sharded(module: nn.Module, meshes: list[Any], world: World, styles: Any) -> None:
    """fully_shard on every block and on the rest, as torch advises."""
    from torch.distributed.fsdp import fully_shard

    with warnings.catch_warnings():  # torch would rather not find an axis made of two by its name
        warnings.simplefilter("ignore", UserWarning)
        mesh = meshes[0] if len(meshes) == 1 else world.mesh[tuple(m.mesh_dim_names[0] for m in meshes)]
    names = {id(m): n for n, m in module.named_modules()}
    owner: dict[int, str] = {}
    for block in blocks(module):
        for p in block.parameters():
            first = owner.setdefault(id(p), names[id(block)])
            if first != names[id(block)]:
                raise TraceError(
                    f"{first} and {names[id(block)]} share a weight, and fully_shard takes none that is in two blocks",
                    "use dp, which takes shared weights",
                )
    for block in blocks(module):
        fully_shard(block, mesh=mesh)
        world.at_home(names[id(block)], block.parameters())
    if world.front is not None:
        _ends(module, mesh, world, set(owner.values()))
    fully_shard(module, mesh=mesh)
    world.at_home("", module.parameters())
    if world.front is not None:
        _as_stages(module, world)


def _ends(module: Any, mesh: Any, world: World, inner: Collection[str]) -> None:
    """What is not in blocks, as the first and the last stage of a pipeline have it: each stage's own rest, kept once gathered.

    Raises:
        TraceError: a weight is in no module of its own.
    """
    from torch.distributed.fsdp import fully_shard

    assert world.front is not None
    ends: dict[bool, dict[str, nn.Module]] = {True: {}, False: {}}
    for name, m in module.named_modules():
        if any(True for _ in m.parameters(recurse=False)) and not any(f"{name}.".startswith(f"{b}.") for b in inner):
            if any(True for _ in m.children()):
                raise TraceError(
                    f"pp: {name or 'the model'} has weights beside modules of its own, and no stage is known for them",
                    "put them into a module of their own, before or behind the blocks",
                )
            ends[name in world.front][name] = m
    for found in ends.values():
        if found:
            fully_shard(list(found.values()), mesh=mesh, reshard_after_forward=False)
            world.at_home(next(iter(found)), (p for m in found.values() for p in m.parameters()))


def _as_stages(module: Any, world: World) -> None:
    """Gradients are reduced, and weights given back, after the last backward pass of a step, as by torch's `PipelineStage`."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    def told(wanted: bool) -> None:
        module.set_is_last_backward(wanted)
        module.set_reshard_after_backward(wanted)
        module.set_requires_gradient_sync(wanted)

    def finished() -> None:
        root: Any = fully_shard.state(module)
        told(True)
        for state in root._state_ctx.all_states:
            for group in _groups(state):
                group.post_backward()
        root._root_post_backward_final_callback()

    def gathered(group: Any) -> None:
        for i, p in enumerate(group.fsdp_params):
            world.owners[id(p.unsharded_param)] = (names[id(p._module_info.module)], "", -1 - i)

    told(False)
    world.ends.append(finished)
    names = {id(m): n for n, m in module.named_modules()}
    for name, m in module.named_modules():
        for group in _groups(fully_shard.state(m)) if isinstance(m, FSDPModule) else ():
            group.post_backward = _at(world, name, group.post_backward)
            group.wait_for_unshard = _then(group.wait_for_unshard, functools.partial(gathered, group))


def _groups(state: Any) -> list[Any]:
    """The groups of weights that are gathered together: of newer versions of torch, a list."""
    alone = getattr(state, "_fsdp_param_group", None)
    return list(getattr(state, "_fsdp_param_groups", [alone] if alone is not None else []))


def _then(first: Callable[[], Any], second: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both


def _at(world: World, path: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, run for a module."""

    @functools.wraps(function)
    def there(*args: Any) -> Any:
        with world.home_of(path):
            return function(*args)

    return there


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The repeated blocks of a model: what stands in its outermost lists of modules of one class."""
    for child in module.children():
        members = list(child.children())
        alike = isinstance(child, nn.ModuleList | nn.Sequential) and len({type(m) for m in members}) == 1
        if alike and any(True for m in members for _ in m.parameters()):
            yield from members
        elif not isinstance(child, nn.ModuleList):
            yield from blocks(child)
