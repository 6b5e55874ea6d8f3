"""What a call costs beside its work: views, module calls, autograd, the backward engine, an optimizer's loop.

Each is the slope or the difference of two timings of tiny operators, so that no kernel's own time is in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from costir.measuring.clock import HOST, HostClock
from costir.measuring.faults import usage
from costir.measuring.profile import events
from costir.measuring.timing import timed

_MANY = 64
_TIMES = 5
_WINDOWS, _WINDOW = 15, 0.02  # seconds
_SUDDEN = 4e-6  # seconds


def overheads(clock: HostClock = HOST) -> dict[str, float]:
    """Seconds, by name.

    `view`: a view from Python; `view_inner`: one that torch makes inside of another function; `module`: one more
    `nn.Module.__call__`; `grad`: what autograd adds to an operator that it follows; `node`: what its backward node adds to the
    backward operator's own time; `start`: entering and leaving a backward pass; `leaf`: adding up one parameter's gradient;
    `optimizer`: what AdamW's loop adds to one of its operators, and `optimizer_inside` how much of that lies inside of it;
    `step`: entering and leaving that loop; `python`: the part of an operator's time that is spent on the way from Python to it
    and back. And `lost`, no seconds but the share of a core's time that the system takes, for its clock and other things; what
    other processes take is no part of it.
    """
    with torch.enable_grad():
        return {
            **_views(clock),
            **_modules(clock),
            **_autograd(clock),
            **_optimizer(clock),
            "python": _python(clock),
            "lost": _lost(),
        }


def _best(function: Any, clock: HostClock) -> float:
    return timed(function, rounds=5, at_least=0.004, clock=clock).usual


def _views(clock: HostClock) -> dict[str, float]:
    x, y = torch.rand(8, 8), torch.rand(_MANY, 8)
    many, few = _best(lambda: y.chunk(_MANY), clock), _best(lambda: y.chunk(2), clock)
    return {"view": _best(lambda: x.view(64), clock), "view_inner": max(0.0, (many - few) / (_MANY - 2))}


class _Nested(nn.Module):  # type: ignore[misc]
    """`depth` modules around nothing."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = _Nested(depth - 1) if depth else None

    def forward(self, x: Any) -> Any:
        return self.inner(x) if self.inner is not None else x


def _modules(clock: HostClock) -> dict[str, float]:
    x = torch.rand(4)
    deep, flat = _Nested(16), _Nested(0)
    return {"module": max(0.0, (_best(lambda: deep(x), clock) - _best(lambda: flat(x), clock)) / 16)}


def _chain(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = x * 2.0
    return x


def _autograd(clock: HostClock) -> dict[str, float]:
    """Differences of four timings, which a moment's disturbance of one spoils: the median over several times all four."""
    found = [_chains(clock) for _ in range(_TIMES)]
    middle = {k: statistics.median(f[k] for f in found) for k in found[0]}
    leaves = [torch.rand(16, requires_grad=True) for _ in range(_MANY)]

    def gather(n: int) -> None:
        for p in leaves[:n]:
            p.grad = None
        torch.cat(leaves[:n]).sum().backward()

    leaf = (_best(lambda: gather(_MANY), clock) - _best(lambda: gather(2), clock)) / (_MANY - 2)
    return {k: max(0.0, v) for k, v in {**middle, "leaf": leaf}.items()}


def _chains(clock: HostClock) -> dict[str, float]:
    """What autograd adds to a chain of tiny operators, forward and backward."""
    plain, leaf = torch.rand(16), torch.rand(16, requires_grad=True)

    def step(n: int) -> None:
        leaf.grad = None
        _chain(leaf, n).sum().backward()

    unary, followed = (_best(lambda x=x: _chain(x, _MANY), clock) / _MANY for x in (plain, leaf))
    short, long = (_best(lambda n=n: step(n), clock) for n in (1, 1 + _MANY))
    node = (long - short) / _MANY - followed - (unary - _python(clock))  # the engine does not come from Python
    return {"grad": followed - unary, "node": node, "start": short - 2 * (followed + unary) - 2 * node}


_IN_STEP = ("add_", "mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_")  # for one parameter
_READ = 1  # and a number of it that Python looks at


def _optimizer(clock: HostClock) -> dict[str, float]:
    """AdamW's own loop: its time for one tiny parameter, less that of the operators in it.

    `optimizer_inside` is the part of it that lies in the operators: in a loop over several each finds less of its code.
    """
    (one, _), (all_of_them, loop) = (_steps(n, clock) for n in (1, 1 + _MANY))
    each = (all_of_them - one) / _MANY
    x, y = torch.rand(16), torch.rand(16)
    calls = {
        "add_": lambda: x.add_(1e-9), "mul_": lambda: x.mul_(1.0), "lerp_": lambda: x.lerp_(y, 0.1),
        "addcmul_": lambda: x.addcmul_(y, y, value=1e-9), "sqrt": x.sqrt, "div": lambda: x / 2.0,
        "addcdiv_": lambda: x.addcdiv_(y, y, value=1e-9),
    }  # fmt: skip
    with torch.no_grad():
        work = {name: _best(call, clock) for name, call in calls.items()}
        alone = {name: _seen(partial(_repeat, call), name, clock) for name, call in calls.items()}
        more = statistics.fmean(_seen(loop, name, clock) - alone[name] for name in _IN_STEP)
    around = max(0.0, each - sum(work[name] for name in _IN_STEP)) / (len(_IN_STEP) + _READ)
    return {"optimizer": around, "optimizer_inside": min(max(0.0, more), around), "step": max(0.0, one - each)}


def _steps(n: int, clock: HostClock) -> tuple[float, Callable[[], Any]]:
    """Seconds of AdamW's step over so many tiny parameters, and the step."""
    parameters = [nn.Parameter(torch.rand(16)) for _ in range(n)]
    for p in parameters:
        p.grad = torch.rand(16)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=False)
    optimizer.step()
    return _best(optimizer.step, clock), optimizer.step


def _seen(function: Callable[[], Any], name: str, clock: HostClock) -> float:
    """What the profiler says an operator takes in a function, the median."""
    found = clock.usual(lambda: [e.end - e.start for e in events(function) if e.name == f"aten::{name}"])
    return statistics.median(found) if found else 0.0


def _python(clock: HostClock) -> float:
    """What tiny operators take from Python, less what the profiler says that they themselves take; the median of several."""
    x = torch.rand(16)
    calls = {"neg": x.neg, "exp": x.exp, "sqrt_": x.sqrt_, "relu": x.relu, "tanh": x.tanh}
    with torch.no_grad():
        return statistics.median(
            max(0.0, _best(f, clock) - _seen(partial(_repeat, f), name, clock)) for name, f in calls.items()
        )


def _repeat(call: Callable[[], Any]) -> None:
    for _ in range(_MANY):
        call()


def _lost() -> float:
    """The share of the time that passes in sudden steps while nothing but the clock is read; the median over windows.

    Steps in which this thread was switched off its core went to another process, and are no part of it.
    """
    return statistics.median(_window() for _ in range(_WINDOWS))


def _window() -> float:
    lost = away = 0.0
    began, switched = time.perf_counter(), _switches()
    last = began
    while last < began + _WINDOW:
        now = time.perf_counter()
        if now - last > _SUDDEN:
            before, switched = switched, _switches()
            if switched == before:
                lost += now - last
            else:
                away += now - last
            now = time.perf_counter()  # asking took a moment
        last = now
    return lost / max(last - began - away, _SUDDEN)


def _switches() -> int:
    """How often this thread was switched off its core so far; always 0 on systems that do not say."""
    used = usage()
    return int(used.ru_nivcsw + used.ru_nvcsw) if used is not None else 0
