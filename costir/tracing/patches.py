"""Changes to torch that hold while a trace runs: no weight initialisation, no compilation, shapes as `Dim`s."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from costir.errors import TraceError
from costir.tracing.dims import Dim
from costir.tracing.frames import user_frame, where
from costir.tracing.functions import NBYTES, NOTED, NUMEL, SHAPE, SIZE, STRIDE
from costir.tracing.notes import note_escape

_INIT = tuple(n for n in dir(nn.init) if n.endswith("_") and not n.startswith("_"))


class _Shapes(TorchFunctionMode):  # type: ignore[misc]
    """Gives user code its tensors' sizes as `Dim`s, so that comparisons of them are noted."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        note = NOTED.get(func)
        if note is not None:
            note(*args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        if func is SIZE or func == SHAPE:
            return torch.Size([Dim(i) for i in out]) if isinstance(out, torch.Size) else Dim(out)
        if func in NUMEL or func == NBYTES:
            return Dim(out)
        if func is STRIDE and out is not None:
            return tuple(map(Dim, out)) if isinstance(out, tuple) else Dim(out)
        return out


@contextlib.contextmanager
def _replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


# Functions of whole numbers whose results remember nothing; of the first, no trial at a few sizes finds out how they go.
_BY_DIGITS = ("gcd", "lcm", "comb", "perm", "factorial", "isclose")
_BY_MAGNITUDE = ("isqrt", "sqrt", "log", "log2", "log10", "log1p", "exp", "pow")


def _noting(name: str) -> Callable[..., Any]:
    """A function of `math` that notes the sizes that it is given."""
    old = getattr(math, name)

    def noting(*args: Any, **kwargs: Any) -> Any:
        for a in args:
            if type(a) is Dim:
                note_escape(sys._getframe(1), f"{name}()", a, digits=name in _BY_DIGITS)
        return old(*args, **kwargs)

    return noting


def _keep(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return tensor


def _deepcopy(old: Callable[..., Any]) -> Callable[..., Any]:
    """torch's own deepcopy of a fake tensor can corrupt memory: make a new one of the same shape."""

    def deepcopy(self: torch.Tensor, memo: dict[int, Any]) -> Any:
        if not isinstance(self, FakeTensor):
            return old(self, memo)
        if id(self) not in memo:
            copy: Any = self.detach().clone()
            memo[id(self)] = nn.Parameter(copy, self.requires_grad) if isinstance(self, nn.Parameter) else copy
        return memo[id(self)]

    return deepcopy


def _format(old: Callable[..., Any]) -> Callable[..., Any]:
    """A real number prints as the number that it is, in the name of a module for example: a fake one by its value."""

    def text(self: torch.Tensor, spec: str) -> Any:
        return format(self.item(), spec) if isinstance(self, FakeTensor) and self.dim() == 0 else old(self, spec)

    return text


def _swap(old: Callable[..., Any]) -> Callable[..., Any]:
    """`module.to(dtype)` swaps parameters in place, which fake ones refuse now and then: the new one is assigned instead."""

    def swap(a: torch.Tensor, b: torch.Tensor) -> None:
        try:
            old(a, b)
        except RuntimeError:
            a.data = b.data

    return swap


def _nested_refuser() -> Callable[..., Any]:
    """A function of its own for each name: torch's compiler tells functions apart by what they are."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise TraceError(
            f"nested tensors are not supported: {where(user_frame()) or 'the model'} makes one",
            "give the values as one tensor whose first dimension is a size of its own, say all tokens",
        )

    return refuse


@contextlib.contextmanager
def _lazy_parameters() -> Iterator[None]:
    """Uninitialised parameters stay real and empty until the first pass; then fake ones take their place in the module."""
    owner: list[nn.Module] = []
    make, infer = UninitializedParameter.__new__, LazyModuleMixin._infer_parameters

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return make(cls, *args, **kwargs)

    def inferring(self: Any, module: Any, args: Any, kwargs: Any = None) -> Any:
        owner.append(module)
        try:
            return infer(self, module, args, kwargs)
        finally:
            owner.pop()

    def materialize(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        with torch.no_grad():
            made = torch.empty(shape, dtype=dtype or self.dtype)
        for table, wrap in ((owner[-1]._parameters, nn.Parameter), (owner[-1]._buffers, _keep)):
            for name, t in table.items():
                if t is self:
                    table[name] = wrap(made)

    with (
        _replaced(UninitializedParameter, "__new__", new),
        _replaced(UninitializedBuffer, "__new__", new),
        _replaced(LazyModuleMixin, "_infer_parameters", inferring),
        _replaced(UninitializedTensorMixin, "materialize", materialize),
    ):
        yield


@contextlib.contextmanager
def patched_torch(shapes: bool = True) -> Iterator[None]:
    """All patches, for the length of one trace; with `shapes`, user code sees sizes as `Dim`s."""
    importlib.import_module("torch._dynamo")  # reads the functions replaced below when it is first imported
    before = os.environ.get("TRANSFORMERS_DISABLE_TORCH_CHECK")
    os.environ["TRANSFORMERS_DISABLE_TORCH_CHECK"] = "1"
    noisy = logging.getLogger("torch._subclasses.fake_tensor")  # prints a traceback for errors that costir reports itself
    with contextlib.ExitStack() as stack:
        stack.enter_context(_replaced(noisy, "disabled", True))
        for name in _INIT:
            stack.enter_context(_replaced(nn.init, name, _keep))
        stack.enter_context(_replaced(nn.init, "_calculate_fan_in_and_fan_out", lambda tensor: (1, 1)))
        if "transformers" in sys.modules:
            model = importlib.import_module("transformers.modeling_utils").PreTrainedModel
            stack.enter_context(_replaced(model, "initialize_weights", lambda self: None))
        stack.enter_context(_replaced(torch.Tensor, "__deepcopy__", _deepcopy(torch.Tensor.__deepcopy__)))
        stack.enter_context(_replaced(torch.Tensor, "__format__", _format(torch.Tensor.__format__)))
        stack.enter_context(_replaced(torch.utils, "swap_tensors", _swap(torch.utils.swap_tensors)))
        for name in ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged"):
            stack.enter_context(_replaced(torch.nested, name, _nested_refuser()))
        # layers leave their fused operators for tensors that override functions; that a trace looks on is no such case
        stack.enter_context(_replaced(torch.overrides, "has_torch_function", lambda args: False))
        for name in (*_BY_DIGITS, *_BY_MAGNITUDE):
            stack.enter_context(_replaced(math, name, _noting(name)))
        stack.enter_context(_lazy_parameters())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        if shapes:
            stack.enter_context(_Shapes())
        try:
            yield
        finally:
            if before is None:
                os.environ.pop("TRANSFORMERS_DISABLE_TORCH_CHECK", None)
            else:
                os.environ["TRANSFORMERS_DISABLE_TORCH_CHECK"] = before
