"""Values of small tensors on a fake run.

Fake tensors have shapes but no numbers. Some programs need numbers all the same: grids, lengths, offsets, drop-path rates.
Whatever is computed from known numbers alone, and is small, is computed for real beside the fake run. Weights and
floating inputs never have values, so that a branch on data is refused instead of followed.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

LIMIT = 1 << 16  # elements; larger tensors have no values
_RANDOM = ("rand", "bernoulli", "normal", "multinomial", "uniform", "exponential", "dropout", "empty", "geometric", "cauchy")


@dataclass(slots=True)
class Known:
    """A value, and where it stems from.

    Attributes:
        value: the real tensor.
        data: it depends on the values of example inputs.
        routed: it depends on a choice (top-k, argmax) whose outcome was made up: balanced over the candidates.
    """

    tensor: weakref.ref[torch.Tensor]
    value: torch.Tensor
    data: bool = False
    routed: bool = False


class Values:
    """The known values of one trace, by identity of the fake tensor."""

    def __init__(self) -> None:
        self.known: dict[int, Known] = {}

    def get(self, t: torch.Tensor) -> Known | None:
        """The value of a tensor, if known."""
        entry = self.known.get(id(t))
        return entry if entry is not None and entry.tensor() is t else None

    def put(self, t: torch.Tensor, value: torch.Tensor, *, data: bool = False, routed: bool = False) -> None:
        """Note a value."""
        if value.layout is torch.strided and value.numel() <= LIMIT:
            self.known[id(t)] = Known(weakref.ref(t), value, data, routed)

    def forget(self, t: torch.Tensor) -> None:
        """Forget a tensor's value and those of all that share its memory."""
        entry = self.known.get(id(t))
        if entry is None or entry.tensor() is not t:
            return
        memory = entry.value.untyped_storage().data_ptr()
        for key in [k for k, e in self.known.items() if e.value.untyped_storage().data_ptr() == memory]:
            del self.known[key]

    def forget_data(self, tensors: list[torch.Tensor]) -> None:
        """Forget the values of floating tensors and mark the others as data: these are example inputs or weights."""
        for t in tensors:
            entry = self.get(t)
            if entry is None:
                continue
            if t.is_floating_point() or t.is_complex():
                self.forget(t)
            else:
                entry.data = True

    def operands(self, flat: list[Any]) -> list[Known] | None:
        """The values of all tensor operands, or None where one is unknown."""
        found = []
        for x in flat:
            if isinstance(x, torch.Tensor):
                entry = self.get(x)
                if entry is None:
                    return None
                found.append(entry)
            elif type(x) is int and abs(x) > (1 << 40):
                return None
        return found

    def compute(self, func: Any, args: Any, kwargs: Any, known: list[Known]) -> Any:
        """The operator's real result, or None where it is random, too large, or fails on real numbers."""
        name = func._schema.name.split("::")[1]
        if name.startswith(_RANDOM) or any(r in name for r in _RANDOM[:4]) or (not known and name.endswith("_")):
            return None
        by_id = {id(k.tensor()): k.value for k in known}

        def real(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                return by_id[id(x)]
            return torch.device("cpu") if isinstance(x, torch.device) else x

        try:
            with _disable_current_modes(), torch.no_grad():
                return func(*tree_map(real, args), **tree_map(real, kwargs))
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
            return None

    def learn(self, out: Any, value: Any, writes: list[Any], known: list[Known]) -> None:
        """Note the values of results."""
        data, routed = any(k.data for k in known), any(k.routed for k in known)
        for o, v in zip(tree_flatten(out)[0], tree_flatten(value)[0], strict=False):
            if isinstance(o, torch.Tensor) and isinstance(v, torch.Tensor) and o.shape == v.shape and not any(o is w for w in writes):
                self.put(o, v, data=data, routed=routed)


def balanced(shape: torch.Size, dim: int, candidates: int) -> torch.Tensor:
    """Made-up choices of a router: row r picks candidates r*k, r*k + 1, ... modulo their number, so that all are hit evenly.

    Args:
        shape: shape of the index tensor; `dim` has length k (1 for argmax without keepdim: pass a shape with 1 there).
        dim: the dimension that held the candidates.
        candidates: their number.
    """
    k = shape[dim]
    rows = 1
    for i, d in enumerate(shape):
        rows *= d if i != dim else 1
    flat = torch.arange(rows * k).reshape(rows, k) % candidates
    others = [d for i, d in enumerate(shape) if i != dim]
    return flat.reshape(*others, k).movedim(-1, dim) if shape else flat.reshape(())
