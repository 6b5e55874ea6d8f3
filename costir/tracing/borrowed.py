"""A module that exists outside the trace: run on fake weights, and given back as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

_PLAIN = (torch.Tensor, nn.Parameter)


@contextlib.contextmanager
def borrowed(module: nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """Put fake tensors in place of real parameters and buffers; afterwards these, and train or eval, are as before.

    Lists of parameters that modules keep besides (recurrent layers do) follow. A module built under the trace stays as it is.
    """
    training = [(m, m.training) for m in module.modules()]
    tables: list[tuple[dict[str, Any], dict[str, Any]]] = []
    fakes: dict[int, torch.Tensor] = {}
    for m, _ in training:
        for table in (m._parameters, m._buffers):
            real = {n: t for n, t in table.items() if type(t) in _PLAIN and t.layout is torch.strided}
            tables.append((table, real))
            for n, t in real.items():
                table[n] = fakes.setdefault(id(t), _fake(t, mode))
        lists = {n: v for n, v in vars(m).items() if isinstance(v, list) and any(id(t) in fakes for t in v)} if fakes else {}
        tables.append((vars(m), lists))
        for n, v in lists.items():
            vars(m)[n] = [fakes.get(id(t), t) for t in v]
    try:
        yield
    finally:
        for table, real in tables:
            table.update(real)
        for m, was in training:
            m.training = was


def _fake(t: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A fake tensor of the same shape, type and strides, without its gradient."""
    if isinstance(t, FakeTensor):
        return t
    with _disable_current_modes():
        plain = t.detach()
    made = mode.from_tensor(plain)
    return nn.Parameter(made, t.requires_grad) if isinstance(t, nn.Parameter) else made.requires_grad_(t.requires_grad)
