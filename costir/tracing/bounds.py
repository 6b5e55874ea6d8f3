"""Positions that are looked up lie within their table, and slices with steps: conditions that operators do not state."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from costir.tracing.frames import user_frame
from costir.tracing.notes import note_guard
from costir.tracing.values import Values

BOUNDED = frozenset(("embedding", "index_select", "index", "index_put", "index_put_", "gather", "slice"))


def note_bounds(name: str, args: Any, values: Values) -> None:
    """Note what a call of an operator in `BOUNDED` asks of sizes: a table is only so long.

    Args:
        name: of the operator, without namespace.
        args: its positional arguments.
        values: what is known of small tensors; positions that a router made up, or that an input holds, say nothing.
    """
    if name == "slice":
        step = args[4] if len(args) > 4 else 1
        length = args[0].shape[args[1]] if isinstance(step, int) and step > 1 else 0
        if 1 < step < length:  # whether a reshape of it copies: only then is it dense
            note_guard(user_frame(3), "==", length % step, 0, branch=True, rounded=("%", length, step))
        return
    for length, index in _looked_up(name, args):
        known = values.get(index)
        if known is not None and not known.data and not known.routed and known.value is not None and known.value.numel():
            with _disable_current_modes():
                top = max(int(known.value.max()) + 1, -int(known.value.min()))
            if 0 < top <= length:
                note_guard(user_frame(3), "<=", top, length)


def _looked_up(name: str, args: Any) -> list[tuple[int, torch.Tensor]]:
    """The tensors of positions of a call that looks them up, each with the length of the dimension that it looks into."""
    if name == "embedding":
        return [(args[0].shape[0], args[1])]
    if name.startswith("index") and name != "index_select":
        named = [(args[0].shape[dim], t) for dim, t in enumerate(args[1]) if t is not None]
        return [] if any(t.dtype in (torch.bool, torch.uint8) for _, t in named) else named
    return [(args[0].shape[args[1]], args[2])] if args[0].dim() else []
