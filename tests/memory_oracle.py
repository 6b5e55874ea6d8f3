"""What a step really holds: torch's own count of every allocation and free of its CPU allocator, on real tensors."""

import contextlib
import gc
import itertools

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

from costir.trace import OPTIMIZERS
from costir.tracing.recompute import recomputing

_MARK = 7_654_321  # bytes that are allocated and freed just before a step


def real_peak(family, sizes, phase="train", recompute="none", micro_batches=1):
    """The peak of a steady step at these sizes, in bytes."""
    module, args, kwargs = family.build(**sizes)
    stepper = (family.optimizer or OPTIMIZERS["adamw"])(module.parameters()) if phase == "train" else None

    def micro_batch():
        out = module(*args, **kwargs)
        if phase != "forward":
            _loss(family, out).backward()

    def step():
        module.zero_grad(set_to_none=True)
        for _ in range(micro_batches):
            micro_batch()
        if stepper is not None:
            stepper.step()

    with recomputing(module, recompute), torch.no_grad() if phase == "forward" else contextlib.nullcontext():
        step()  # makes the optimizer's states
        module.zero_grad(set_to_none=True)
        states = [dict(s) for s in stepper.state.values()] if stepper is not None else []
        held = {
            t.untyped_storage()._cdata: t.untyped_storage().nbytes()
            for t in (*module.parameters(), *module.buffers(), *tree_leaves((args, kwargs, states)))
            if isinstance(t, torch.Tensor)
        }
        gc.collect()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            step()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for e in sorted(events, key=lambda e: e.start_ns()):
        live += e.nbytes()
        peak = max(peak, live)
    return sum(held.values()) + peak


def real_serving_peak(family, sizes):
    """The peak of one step of serving at these sizes, in bytes, what its cache holds before it included."""
    module, args, kwargs = family.build(**sizes)
    module.eval()
    given = (*module.parameters(), *module.buffers(), *tree_leaves((args, kwargs)))
    held = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in given if isinstance(t, torch.Tensor)}
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        if family.cache.fill is not None:  # within, as frees of what was there before it are not seen
            family.cache.fill(module, kwargs, sizes)
        gc.collect()
        torch.empty(_MARK, dtype=torch.uint8)
        out = module(*args, **kwargs)
    del out
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return sum(held.values()) + max(list(itertools.accumulate(changes))[changes.index(-_MARK) :])


def _loss(family, out):
    if family.loss is not None:
        return family.loss(out)
    return out.loss if hasattr(out, "loss") else out if out.dim() == 0 else out.sum()
