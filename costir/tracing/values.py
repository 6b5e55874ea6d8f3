"""Values of small tensors on a fake run.

Fake tensors have shapes but no numbers. Some programs need numbers all the same: grids, lengths, offsets, drop-path rates.
Whatever is computed from known numbers alone, and is small, is computed for real beside the fake run. Weights and
floating inputs never have values, so that a branch on data is refused instead of followed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

LIMIT = 1 << 22  # elements, as many as a mask of 2048 x 2048; larger tensors have no values
_RANDOM = ("rand", "bernoulli", "normal", "multinomial", "uniform", "exponential", "dropout", "empty", "geometric", "cauchy")


class Known:
    """A value, computed when it is first asked for, and where it stems from.

    Attributes:
        tensor: the fake tensor.
        data: it depends on the values of example inputs.
        routed: it depends on a choice (top-k, argmax) whose outcome was made up: balanced over the candidates.
    """

    __slots__ = ("_results", "_value", "data", "routed", "tensor")

    def __init__(
        self, tensor: torch.Tensor, value: torch.Tensor | None, results: Results | None, data: bool, routed: bool
    ) -> None:
        self.tensor = weakref.ref(tensor)
        self._value, self._results = value, results
        self.data, self.routed = data, routed

    @property
    def value(self) -> torch.Tensor | None:
        """The real tensor; None where the computation fails on real numbers."""
        if self._results is not None:
            results, index = self._results
            self._value, self._results = results.get(index), None
        return self._value


class Pending:
    """The results of one operator on known values, not computed yet."""

    __slots__ = ("_compute", "_leaves")

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute: Callable[[], Any] | None = compute
        self._leaves: list[Any] = []

    def get(self, index: int) -> torch.Tensor | None:
        """The result with this number."""
        if self._compute is not None:
            self._leaves, self._compute = tree_flatten(self._compute())[0], None
        leaf = self._leaves[index] if index < len(self._leaves) else None
        return leaf if isinstance(leaf, torch.Tensor) else None


Results = tuple[Pending, int]


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
            self.known[id(t)] = Known(t, value, None, data, routed)

    def settle(self) -> None:
        """Compute everything that is pending: memory is about to be written."""
        for entry in list(self.known.values()):
            entry.value  # noqa: B018 - computed on access

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """Forget the values of tensors and of all that share their memory.

        What was computed from them before stays known, and what is pending can still be computed: no memory is written.
        """
        known = [t for t in tensors if self.get(t) is not None]
        memories = {_memory(t) for t in known}
        for key, entry in list(self.known.items() if memories else ()):
            t = entry.tensor()
            if t is None or _memory(t) in memories:
                del self.known[key]

    def forget_data(self, tensors: list[torch.Tensor]) -> None:
        """Forget the values of floating tensors and mark the others as data: these are example inputs or weights."""
        self.forget(t for t in tensors if t.is_floating_point() or t.is_complex())
        for t in tensors:
            entry = self.get(t)
            if entry is not None:
                entry.data = True

    def operands(self, tensors: list[torch.Tensor]) -> list[Known] | None:
        """The values of all tensor operands, or None where one is unknown."""
        found = []
        for t in tensors:
            entry = self.get(t)
            if entry is None:
                return None
            found.append(entry)
        return found

    def compute(self, func: Any, args: Any, kwargs: Any, known: list[Known]) -> Any:
        """The operator's real result, or None where it is random or fails on real numbers."""
        if not computable(func, known):
            return None
        return _really(func, *_named(args, kwargs, known))

    def later(self, func: Any, args: Any, kwargs: Any, known: list[Known], out: Any) -> None:
        """Note the values of results, to be computed when they are asked for."""
        named = _named(args, kwargs, known)
        pending = Pending(lambda: _really(func, *named))
        data, routed = any(k.data for k in known), any(k.routed for k in known)
        for index, o in enumerate(tree_flatten(out)[0]):
            if isinstance(o, torch.Tensor) and o.layout is torch.strided:
                self.known[id(o)] = Known(o, None, (pending, index), data, routed)

    def learn(self, out: Any, value: Any, known: list[Known]) -> None:
        """Note the values of results that are there already."""
        data, routed = any(k.data for k in known), any(k.routed for k in known)
        for o, v in zip(tree_flatten(out)[0], tree_flatten(value)[0], strict=False):
            if isinstance(o, torch.Tensor) and isinstance(v, torch.Tensor) and o.shape == v.shape:
                self.put(o, v, data=data, routed=routed)


def _memory(t: torch.Tensor) -> int:
    """What tells the memory of a fake tensor from others'."""
    return t.untyped_storage()._cdata if t.layout is torch.strided else id(t)


def computable(func: Any, known: list[Known]) -> bool:
    """Whether an operator's result is determined by its operands: not a random one, not an empty one."""
    name = func._schema.name.split("::")[1]
    return not (name.startswith(_RANDOM) or any(r in name for r in _RANDOM[:4]) or (not known and name.endswith("_")))


def _named(args: Any, kwargs: Any, known: list[Known]) -> Any:
    """Arguments with `Known`s for their tensors: what is computed later must not keep memory of the run alive."""
    by_id = {id(k.tensor()): k for k in known}
    return tree_map(lambda x: by_id[id(x)] if isinstance(x, torch.Tensor) else x, (args, kwargs))


def _really(func: Any, args: Any, kwargs: Any) -> Any:
    """The real result of an operator; its operands stand as `Known`s among the arguments."""
    if any(isinstance(x, Known) and x.value is None for x in tree_leaves((args, kwargs))):
        return None

    def real(x: Any) -> Any:
        if isinstance(x, Known):
            return x.value
        return torch.device("cpu") if isinstance(x, torch.device) else x

    try:
        with _disable_current_modes(), torch.no_grad():
            return func(*tree_map(real, args), **tree_map(real, kwargs))
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
        return None


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
