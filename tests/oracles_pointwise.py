"""Counting numbers, and what turns a real operator call into a record and its traffic into bytes.

A `Num` carries a value and adds 1 to the tally for every + - * / and every special function that it takes part in.
Formulas in formulas_*.py are written from mathematical definitions and run on them; their values are compared with torch's, so
that what is counted is what is computed. Comparisons (`big`, `small`) and copies do not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from costir.ir import Call, Tensor
from costir.symbolic import Integer

TALLY = {"vector": 0, "special": 0}


def tally() -> tuple[int, int]:
    """(vector, special) since the last call, and start again."""
    seen = TALLY["vector"], TALLY["special"]
    TALLY.update(vector=0, special=0)
    return seen


class Num:
    """A real number that counts the arithmetic done with it."""

    __slots__ = ("v",)

    def __init__(self, v: float) -> None:
        self.v = float(v)

    def _do(self, value: float) -> Num:
        TALLY["vector"] += 1
        return Num(value)

    def __add__(self, o: Any) -> Num:
        return self._do(self.v + val(o))

    def __sub__(self, o: Any) -> Num:
        return self._do(self.v - val(o))

    def __rsub__(self, o: Any) -> Num:
        return self._do(val(o) - self.v)

    def __mul__(self, o: Any) -> Num:
        return self._do(self.v * val(o))

    def __truediv__(self, o: Any) -> Num:
        return self._do(self.v / val(o) if val(o) else math.inf)

    def __rtruediv__(self, o: Any) -> Num:
        return self._do(val(o) / self.v)

    def __neg__(self) -> Num:
        return self._do(-self.v)

    __radd__, __rmul__ = __add__, __mul__


def val(x: Any) -> float:
    return x.v if isinstance(x, Num) else float(x)


def special(x: Any, f: Any) -> Num:
    """One special function evaluation."""
    TALLY["special"] += 1
    return Num(f(val(x)))


def exp(x: Any) -> Num:
    return special(x, math.exp)


def log(x: Any) -> Num:
    return special(x, math.log)


def log1p(x: Any) -> Num:
    return special(x, math.log1p)


def sqrt(x: Any) -> Num:
    return special(x, math.sqrt)


def rsqrt(x: Any) -> Num:
    return special(x, lambda v: v**-0.5)


def tanh(x: Any) -> Num:
    return special(x, math.tanh)


def erf(x: Any) -> Num:
    return special(x, math.erf)


def sigmoid(x: Any) -> Num:
    return special(x, lambda v: 1 / (1 + math.exp(-v)))


def sin(x: Any) -> Num:
    return special(x, math.sin)


def cos(x: Any) -> Num:
    return special(x, math.cos)


def small(x: Any, y: Any) -> Num:
    """The smaller; a comparison, not counted."""
    return Num(min(val(x), val(y)))


def big(x: Any, y: Any) -> Num:
    """The larger; a comparison, not counted."""
    return Num(max(val(x), val(y)))


def size_of(x: Any) -> Num:
    """The absolute value; a comparison, not counted."""
    return Num(abs(val(x)))


def add_up(xs: Iterable[Any]) -> Any:
    """The sum by n - 1 adds."""
    xs = list(xs)
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


def nums(t: torch.Tensor) -> np.ndarray:
    """An object array of counting numbers with the tensor's values."""
    flat = np.empty(t.numel(), dtype=object)
    for i, v in enumerate(t.detach().double().reshape(-1).tolist()):
        flat[i] = Num(v)
    return flat.reshape(tuple(t.shape))


def values(xs: Any) -> np.ndarray:
    """Plain floats of an array or nested list of counting numbers."""
    flat = np.asarray(xs, dtype=object)
    return np.array([val(x) for x in flat.reshape(-1)], dtype=float).reshape(flat.shape)


# ---- calls -------------------------------------------------------------------------------------------------------------


def _memory(t: torch.Tensor) -> Any:
    """What two operands share when they are the same memory seen alike."""
    return t.untyped_storage()._cdata, t.storage_offset(), tuple(t.shape), t.stride()


def record(t: torch.Tensor, memory: dict[Any, int]) -> Tensor:
    """A real tensor as a record; the same memory gets the same number."""
    strides = t.stride() if t.layout == torch.strided else ()
    key = _memory(t) if t.numel() else object()
    expanded = tuple(i for i, s in enumerate(strides) if s == 0 and t.shape[i] > 1)
    ref = memory.setdefault(key, len(memory))
    return Tensor(tuple(map(Integer, t.shape)), str(t.dtype).removeprefix("torch."), expanded, ref=ref)


def as_record(x: Any, memory: dict[Any, int]) -> Any:
    if isinstance(x, torch.Tensor):
        return record(x, memory)
    if isinstance(x, tuple | list):
        return tuple(as_record(v, memory) for v in x)
    if isinstance(x, int) and not isinstance(x, bool):
        return Integer(x)
    return str(x).removeprefix("torch.") if isinstance(x, torch.dtype) else x


def run(name: str, *args: Any, **kwargs: Any) -> tuple[Call, Any, dict[str, Any]]:
    """Run aten.<name>; (the call as a record, torch's result, the bound arguments).

    An operator without a kernel here runs on the meta device: it has a result of the right shape but without values.
    """
    packet, _, overload = name.partition(".")
    if not overload:
        overload = torch._C._jit_resolve_packet(f"aten::{packet}", *args, **kwargs) or "default"
    operator = getattr(getattr(torch.ops.aten, packet), overload)
    try:
        out = operator(*args, **kwargs)
    except NotImplementedError:  # no kernel on this device: shapes are enough
        args, kwargs = tree_map(lambda t: t.to("meta") if isinstance(t, torch.Tensor) else t, (args, kwargs))
        out = operator(*args, **kwargs)
    schema = operator._schema.arguments
    bound: dict[str, Any] = {a.name: a.default_value if a.has_default_value() else None for a in schema}
    bound.update(zip((a.name for a in schema), args, strict=False))
    bound.update(kwargs)
    memory: dict[Any, int] = {}
    records = {k: as_record(v, memory) for k, v in bound.items()}
    outputs = tuple(record(t, memory) for t in tree_leaves(out) if isinstance(t, torch.Tensor))
    return Call(f"aten.{packet}.{overload}", records, outputs), out, bound


def cloned(args: Any) -> Any:
    """The same arguments on fresh memory; one tensor given twice stays one."""
    seen: dict[int, torch.Tensor] = {}
    return tree_map(lambda t: seen.setdefault(id(t), t.clone()) if isinstance(t, torch.Tensor) else t, args)


# ---- bytes -------------------------------------------------------------------------------------------------------------


def stored(t: torch.Tensor) -> int:
    """Bytes of the distinct elements: those that a stride of 0 repeats count once."""
    if t.numel() == 0:
        return 0
    n = 1
    for extent, stride in zip(t.shape, t.stride(), strict=True):
        n *= 1 if stride == 0 else extent
    return n * t.element_size()


def read_bytes(tree: Any) -> int:
    """Bytes to read every tensor in the tree, each memory once."""
    once = {_memory(t): t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)}
    return sum(stored(t) for t in once.values())


def write_bytes(tree: Any) -> int:
    """Bytes to write every tensor in the tree."""
    return sum(stored(t) for t in tree_leaves(tree) if isinstance(t, torch.Tensor))
