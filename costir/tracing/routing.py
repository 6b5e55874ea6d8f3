"""Which expert gets which rows: made up on a fake run, and alike on all devices of a mesh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from costir.tracing.values import LIMIT, Values, balanced

# Operators that choose: which of their results is the choice, and the argument that says along which dimension.
CHOICES = {"topk": (1, "dim"), "argmax": (0, "dim"), "argmin": (0, "dim"), "multinomial": (0, None), "sort": (1, "dim")}


class Routing(NamedTuple):
    """Rows that a made-up choice distributes over candidates."""

    rows: int
    candidates: int


def choose(values: Values, name: str, args: Any, kwargs: Any, out: Any) -> list[Routing]:
    """Make up a router's choice, so that row counts come out even and their sum exact."""
    index = out[CHOICES[name][0]] if isinstance(out, (tuple, list)) else out
    source = args[0]
    if source.dim() == 0 or index.numel() > LIMIT or index.dtype != torch.int64:
        return []
    dim = kwargs.get("dim", next((a for a in args[2 if name == "topk" else 1 :] if type(a) is int), -1))
    dim = -1 if dim is None else dim
    dim %= source.dim()
    with _disable_current_modes():
        if index.dim() == source.dim():
            choice = balanced(index.shape, dim, source.shape[dim])
        elif index.dim() == source.dim() - 1:
            kept = torch.Size([*index.shape[:dim], 1, *index.shape[dim:]])
            choice = balanced(kept, dim, source.shape[dim]).squeeze(dim)
        else:
            return []
    values.put(index, choice, routed=True)
    return [Routing(index.numel(), source.shape[dim])]


def exchange(values: Values, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Numbers that arrive from other devices are as those that leave, for all do the same; whether any were known.

    Args:
        values: the known values.
        pairs: what is sent, and where as much is received.
    """
    some = False
    for sent, received in pairs:
        known = values.get(sent)
        if known is not None and known.value is not None and sent.shape == received.shape:
            with _disable_current_modes():
                value = known.value.clone()
            values.put(received, value, data=known.data, routed=known.routed)
            some = True
    return some


def of_all_experts(values: Values | None, routing: Sequence[Routing], rows: int, ends: Any) -> int | None:
    """Among how many experts rows are spread, where some stand behind the last group: those of other devices' experts.

    Args:
        values: the known values.
        routing: the choices so far.
        rows: of the grouped product.
        ends: of each group, as a tensor.
    """
    known = values.get(ends) if values is not None and ends is not None else None
    if known is None or known.value is None or not known.routed or not routing:
        return None
    with _disable_current_modes():
        last, candidates = int(known.value[-1]), routing[-1].candidates
    spread = abs(last * candidates - rows * len(ends)) <= candidates * len(ends)
    return candidates if spread and last != rows else None
