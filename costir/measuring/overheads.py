"""What a call costs beside its work: views, module calls, autograd, the backward engine, an optimizer's loop.

Each is the slope or the difference of two timings of tiny operators, so that no kernel's own time is in it.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import nn

from costir.measuring.profile import events
from costir.measuring.timing import timed

_MANY = 64


def overheads() -> dict[str, float]:
    """Seconds, by name.

    `view`: a view from Python; `view_grad`: one that autograd follows; `module`: one more `nn.Module.__call__`; `grad`: what
    autograd adds to an operator that it follows; `node`: what its backward node adds to the backward operator's own time;
    `start`: entering and leaving a backward pass; `leaf`: adding up one parameter's gradient; `optimizer`: what AdamW's loop
    adds to one of its operators; `step`: entering and leaving that loop; `python`: the part of an operator's time that is
    spent on the way from Python to it and back.
    """
    with torch.enable_grad():
        return {**_views(), **_modules(), **_autograd(), **_optimizer(), "python": _python()}


def _best(function: Any) -> float:
    return timed(function, rounds=5, at_least=0.004).best


def _views() -> dict[str, float]:
    x = torch.rand(8, 8)
    y = torch.rand(8, 8, requires_grad=True)
    return {"view": _best(lambda: x.view(64)), "view_grad": _best(lambda: y.view(64))}


class _Nested(nn.Module):  # type: ignore[misc]
    """`depth` modules around nothing."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = _Nested(depth - 1) if depth else None

    def forward(self, x: Any) -> Any:
        return self.inner(x) if self.inner is not None else x


def _modules() -> dict[str, float]:
    x = torch.rand(4)
    deep, flat = _Nested(16), _Nested(0)
    return {"module": max(0.0, (_best(lambda: deep(x)) - _best(lambda: flat(x))) / 16)}


def _chain(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = x * 2.0
    return x


def _autograd() -> dict[str, float]:
    plain, leaf = torch.rand(16), torch.rand(16, requires_grad=True)
    unary = _best(lambda: _chain(plain, _MANY)) / _MANY
    followed = _best(lambda: _chain(leaf, _MANY)) / _MANY

    def step(n: int) -> None:
        leaf.grad = None
        _chain(leaf, n).sum().backward()

    short, long = _best(lambda: step(1)), _best(lambda: step(1 + _MANY))
    node = (long - short) / _MANY - followed - unary
    leaves = [torch.rand(16, requires_grad=True) for _ in range(_MANY)]
    both = [torch.rand(16, requires_grad=True) for _ in range(2)]

    def gather(parameters: list[torch.Tensor]) -> None:
        for p in parameters:
            p.grad = None
        torch.cat(parameters).sum().backward()

    one_leaf = (_best(lambda: gather(leaves)) - _best(lambda: gather(both))) / (_MANY - 2)
    start = short - 2 * (followed + unary) - 2 * node
    return {k: max(0.0, v) for k, v in {"grad": followed - unary, "node": node, "leaf": one_leaf, "start": start}.items()}


def _optimizer() -> dict[str, float]:
    """AdamW's own loop: its time for one tiny parameter, less that of the operators in it."""
    one, all_of_them = (_steps(n) for n in (1, 1 + _MANY))
    each = (all_of_them - one) / _MANY
    x, y = torch.rand(16), torch.rand(16)
    with torch.no_grad():
        work = sum(map(_best, (
            lambda: x.mul_(1.0), lambda: x.lerp_(y, 0.1), lambda: x.mul_(1.0), lambda: x.addcmul_(y, y, value=1e-9),
            lambda: x.sqrt(), lambda: x / 2.0, lambda: x.add_(1e-9), lambda: x.addcdiv_(y, y, value=1e-9),
        )))  # fmt: skip
    return {"optimizer": max(0.0, (each - work) / 10), "step": max(0.0, one - each)}


def _steps(n: int) -> float:
    """Seconds of AdamW's step over so many tiny parameters."""
    parameters = [nn.Parameter(torch.rand(16)) for _ in range(n)]
    for p in parameters:
        p.grad = torch.rand(16)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=False)
    optimizer.step()
    return _best(optimizer.step)


def _python() -> float:
    """What a tiny operator takes from Python, less what the profiler says that the operator itself takes."""
    x = torch.rand(16)

    def several() -> None:
        for _ in range(_MANY):
            x.mul(2.0)

    with torch.no_grad():
        whole = _best(several) / _MANY
        inside = [e.end - e.start for e in events(several) if e.name == "aten::mul"]
    return max(0.0, whole - statistics.median(inside)) if inside else 0.0
