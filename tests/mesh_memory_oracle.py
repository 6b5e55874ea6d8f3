"""What one device of a mesh holds: torch's engine on real tensors, in a group that sends nothing, by its allocator's events."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from test_parallel import fake_group
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

_MARK = 7_654_321  # bytes that are allocated and freed just before the step


def real_step(
    make: Callable[[], Any],
    wrap: Callable[[Any, dict[str, Any]], Any],
    mesh: dict[str, int],
    inputs: dict[str, tuple[tuple[int, ...], torch.dtype]],
    loss: Callable[[Any], Any],
    optimizer: Callable[[Any], torch.optim.Optimizer] | None,
    options: dict[str, Any] | None = None,
) -> dict[str, int]:
    """Parameters, gradients, optimizer state and peak of the second step, in bytes of the first device.

    Args:
        make: the module, whole.
        wrap: divides it over torch's meshes by axis; what it returns is called.
        mesh: devices by axis.
        inputs: shape and type of this device's.
        loss: of the module's output.
        optimizer: of the parameters; None for no step.
        options: further arguments of the module.
    """
    from torch.distributed.device_mesh import init_device_mesh

    with fake_group(math.prod(mesh.values())):
        torch_mesh = init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
        gc.collect()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            module = make()
            made = {of: torch.zeros(of[0], dtype=of[1]) for of in inputs.values()}  # alike ones are one, as in the examples
            data = {name: made[of] for name, of in inputs.items()} | (options or {})
            called = wrap(module, {a: torch_mesh[a] for a in mesh}) or module
            params = list(module.parameters())  # of those that tp divides, DistributedDataParallel has the parts alone
            stepper = optimizer(params) if optimizer else None

            def backward() -> None:
                out = called(**data)  # held until the backward pass is over
                loss(out).backward()

            def step() -> None:
                backward()
                if stepper is not None:
                    stepper.step()

            for _ in range(2):  # the first makes states, after it DistributedDataParallel makes its buckets anew
                step()
                for p in params:
                    p.grad = None
            gc.collect()
            torch.empty(_MARK, dtype=torch.uint8)
            step()
        states = [dict(s) for s in stepper.state.values()] if stepper is not None else []
        return {
            "parameters": _held([*params, *module.buffers()]),
            "gradients": _held(p.grad for p in params),
            "optimizer state": _held(tree_leaves(states)),
            "inputs": _held(made.values()),
            "peak": _highest(seen),
        }


def _held(tensors: Any) -> int:
    """Bytes of the memories that these lie in, of divided ones this device's part."""
    own = [getattr(t, "_local_tensor", t) for t in tensors if isinstance(t, torch.Tensor)]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in own}.values())


def _highest(seen: Any) -> int:
    """The most that was allocated in the last step, all that was there before it included."""
    events = sorted(seen.profiler.kineto_results.events(), key=lambda e: e.start_ns())
    sizes = [e.nbytes() for e in events if e.name() == "[memory]"]
    return max(list(itertools.accumulate(sizes))[sizes.index(-_MARK) :])


def real_serving_step(make: Callable[[], Any], wrap: Callable[[Any, dict[str, Any]], Any], mesh: dict[str, int], batch: int,
                      before: int, new: int) -> dict[str, int]:  # fmt: skip
    """Parameters, cache and peak of one step of a transformers model, in bytes of the first device.

    Args:
        make: the model, whole.
        wrap: divides it over torch's meshes by axis.
        mesh: devices by axis.
        batch: texts on this device.
        before, new: tokens of each in the cache already, and of this step.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from transformers import DynamicCache

    with fake_group(math.prod(mesh.values())), torch.no_grad():
        torch_mesh = init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
        gc.collect()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            model = make()
            wrap(model, {a: torch_mesh[a] for a in mesh})
            cache = DynamicCache(config=model.config)
            if before:
                model(input_ids=torch.zeros(batch, before, dtype=torch.long), past_key_values=cache, use_cache=True)
            ids = torch.zeros(batch, new, dtype=torch.long)
            gc.collect()
            torch.empty(_MARK, dtype=torch.uint8)
            out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        del out
        kept = [x for layer in cache.layers for x in (layer.keys, layer.values)]
        return {"parameters": _held([*model.parameters(), *model.buffers()]), "cache": _held(kept), "peak": _highest(seen)}
