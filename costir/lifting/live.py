"""A trace -> what it holds in memory: when each memory is made and freed, and what it is for."""

from __future__ import annotations

import bisect
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from costir.lifting.align import fold_path
from costir.lifting.origins import operands
from costir.lifting.workspaces import workspace
from costir.trace import Trace
from costir.tracing.lifetimes import IN_A_BUCKET
from costir.tracing.recorder import RawTensor, raw_tensors

PARTS = ("parameters", "gradients", "optimizer state", "activations", "temporaries", "inputs", "cache", "buckets", "workspaces")
_STATIC = {"weight": "parameters", "buffer": "parameters", "state": "optimizer state", "input": "inputs"}


class Birth(NamedTuple):
    """Where a memory comes from: the event from which on it is there, the event and operand that show it first, and whether it
    was there before the step."""

    first: int
    event: int
    operand: int
    before: bool
    tensor: RawTensor


class Held(NamedTuple):
    """One memory of one trace.

    Attributes:
        part: what it is for, one of `PARTS`.
        label: what it has in common with the same memory of other traces, and of other blocks.
        nbytes: its size.
        first: the event that makes it.
        end: the first event at which it is gone.
        shape: of the tensor that filled it, with its type.
        dtype: torch's name of the type.
    """

    part: str
    label: Hashable
    nbytes: int
    first: int
    end: int
    shape: tuple[int, ...]
    dtype: str


def held(t: Trace, kinds: Sequence[Hashable]) -> list[Held]:
    """All memories of a trace, as long as the step holds them; `kinds` says what each event has in common with others.

    The buckets in which DistributedDataParallel joins gradients are there all the time, with as many bytes as the gradients:
    here there is one for each.

    Two gradients of one tensor are added up in the memory of the first, where nobody else holds it. A trace, which looks at
    every operator, keeps autograd from that and sees the memory of the sum beside the two: one of them ends earlier here.

    In a step of serving, the cache is what it was before the step, as long as that is held, and what the step leaves behind.
    """
    n, lives = len(t.events), t.lives
    left = {w.tensor.memory: w for w in t.cache}
    born, gathered = _births(t), _gathered(t)
    weights = {w.tensor.memory: w for w in t.weights}
    backward = [i for i, e in enumerate(t.events) if e.phase == "backward" and not lives.saving[i]]
    joined = {m for i, joins in enumerate(lives.joining) if joins for m in _reused(t, i)}
    found, inputs = [], 0
    for m, nbytes in enumerate(t.memories):
        role, end = lives.roles[m], lives.ends[m]
        last = n if end is None else min(end, n)
        if role in _STATIC:
            w = weights.get(m)
            name = fold_path(w.path) if w is not None else lives.names[m] or str(inputs)
            inputs += role == "input"
            shape, dtype = (w.tensor.shape, w.tensor.dtype) if w is not None else _filled(born, m, nbytes)
            part = "cache" if m in left else _STATIC[role]
            found.append(Held(part, (role, name), nbytes, 0, n, shape, dtype))
        elif m in born and role != "bucket":
            b = born[m]
            part = "parameters" if b.before else "gradients" if role == "grad" else _part(t, b.first, last, backward)
            part = "temporaries" if m in gathered else "cache" if m in left or _was_cache(b) else part
            label = (part, kinds[b.event], b.operand)
            found.append(Held(part, label, nbytes, b.first, last - (m in joined), *_filled(born, m, nbytes)))
            if part == "gradients" and lives.names[m] == IN_A_BUCKET:
                found.append(found[-1]._replace(part="buckets", label=("buckets", label), first=0, end=n))
        elif m in left:  # that no operator touches
            x = left[m].tensor
            found.append(Held("cache", ("cache", fold_path(left[m].path)), nbytes, 0, n, x.shape, x.dtype))
    return [h for h in (*found, *_inside(t, kinds)) if h.nbytes and h.end > h.first]


def _was_cache(b: Birth) -> bool:
    """Whether a memory was part of the cache before the step: it is read as such, and no event makes it."""
    return b.operand < 0 and b.tensor.role == "cache"


def _inside(t: Trace, kinds: Sequence[Hashable]) -> Iterator[Held]:
    """What operators hold only while they run; see `costir.lifting.workspaces`."""
    for i, e in enumerate(t.events):
        for k, c in enumerate(workspace(e)):
            nbytes = math.prod(c.shape) * getattr(torch, c.dtype).itemsize
            yield Held("workspaces", ("workspaces", kinds[i], k), nbytes, i, i + 1, c.shape, c.dtype)


def _gathered(t: Trace) -> set[int]:
    """The memories that fully_shard gathers weights in: they are none of the parameters that a device keeps."""
    return {x.memory for e in t.events if e.op.startswith("fsdp.") for x in e.outputs}


def _filled(born: Mapping[int, Birth], memory: int, nbytes: int) -> tuple[tuple[int, ...], str]:
    """Shape and type of the tensor that showed a memory first; of one that no event shows, its bytes."""
    return (born[memory].tensor.shape, born[memory].tensor.dtype) if memory in born else ((nbytes,), "uint8")


def _part(t: Trace, first: int, end: int, backward: Sequence[int]) -> str:
    """Made by what runs as in a forward pass, and there when a backward operator runs: kept for that, an activation."""
    if not (t.events[first].phase == "forward" or t.lives.saving[first]):
        return "temporaries"
    following = bisect.bisect_right(backward, first)
    return "activations" if following < len(backward) and backward[following] < end else "temporaries"


def _births(t: Trace) -> dict[int, Birth]:
    """Where each memory comes from. What an event finds was there before the step, if it outlives it, or is the cache."""
    born: dict[int, Birth] = {}
    for i, e in enumerate(t.events):
        for k, x in enumerate(operands(e)):
            if x.memory not in born:
                before = t.lives.ends[x.memory] is None or x.role == "cache"
                born[x.memory] = Birth(0 if before else i, i, -1 - k, before, x)
        for k, x in enumerate(e.outputs):
            if x.memory not in born:
                born[x.memory] = Birth(i, i, k, False, x)
    return born


def _reused(t: Trace, index: int) -> Iterator[int]:
    """The memory, of those that end with a sum of two gradients, in which it is really made: one of its size."""
    result = t.events[index].outputs[0].memory
    for x in operands(t.events[index]):
        if t.lives.ends[x.memory] == index + 1 and t.memories[x.memory] == t.memories[result]:
            yield x.memory
            return


def has_sparse(t: Trace) -> bool:
    """Whether some tensor lies in no single memory, so that it cannot be followed."""
    return any(x.memory < 0 for e in t.events for x in (*e.outputs, *(y for _, v in e.args for y in raw_tensors(v))))


def by_event(t: Trace, memories: Sequence[Held]) -> list[dict[str, int]]:
    """The bytes of each part while each event runs."""
    n = len(t.events)
    change: list[dict[str, int]] = [{} for _ in range(n + 1)]
    for h in memories:
        for i, d in ((h.first, h.nbytes), (h.end, -h.nbytes)):
            change[i][h.part] = change[i].get(h.part, 0) + d
    now, out = dict.fromkeys(PARTS, 0), []
    for c in change[:n]:
        for part, d in c.items():
            now[part] += d
        out.append(dict(now))
    return out
