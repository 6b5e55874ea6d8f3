"""What each parameter of a training step takes longer where its objects have left the caches.

A tensor is several small objects of Python and C++, and an optimizer keeps more for each parameter. A step comes to all of them
once: dropping the gradients, adding them up, and going through the optimizer's loop. The code of these runs right before, so
that it is not in these times.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from costir.calibration import Curve
from costir.measuring.clock import HOST, HostClock
from costir.measuring.interrupted import Point, between, surface

MANY = 64
ROUNDS = 7
BYTES, MICROSECONDS = (1 << 12, 1 << 22, 1 << 24, 1 << 26), (1, 1000, 4000, 16000)
PARTS = ("zero", "leaf", "step")


class _Set(NamedTuple):
    """Parameters, and their optimizer."""

    parameters: Sequence[nn.Parameter]
    optimizer: torch.optim.Optimizer


def parameters(clock: HostClock = HOST) -> dict[str, Curve]:
    """The curves `objects_zero`, `objects_leaf` and `objects_step`: seconds for each parameter, by what came between.

    Rounds go over all points: what changes meanwhile falls on all of them alike.
    """
    points: list[Point] = list(itertools.product(BYTES, MICROSECONDS))
    memory = torch.ones(BYTES[-1] // 4)
    works = {(size, us): between(size, us, memory) for size, us in points}
    found: dict[str, dict[Point, list[float]]] = {part: {p: [] for p in points} for part in PARTS}
    with torch.enable_grad():
        sets = {(part, n): _made(n) for part in PARTS for n in (1, MANY)}
        for _ in range(ROUNDS):
            for point, work in works.items():
                for part, seconds in zip(PARTS, clock.usual(partial(_row, sets, work)), strict=True):
                    found[part][point].append(seconds / MANY)
    return {f"objects_{part}": surface({p: statistics.median(s) for p, s in by.items()}) for part, by in found.items()}


def _made(n: int) -> _Set:
    tensors = [nn.Parameter(torch.rand(16)) for _ in range(n)]
    made = _Set(tensors, torch.optim.AdamW(tensors, lr=1e-3, foreach=False))
    _with_gradients(made)
    made.optimizer.step()
    return made


def _with_gradients(made: _Set) -> None:
    for p in made.parameters:
        p.grad = torch.ones(16)


def _loss(made: _Set) -> torch.Tensor:
    for p in made.parameters:
        p.grad = None
    return torch.cat(list(made.parameters)).sum()


def _row(sets: dict[tuple[str, int], _Set], work: Callable[[], Any]) -> tuple[float, ...]:
    """The seconds of each part over many parameters, each right after the same over one, after some work."""
    for n in (1, MANY):
        _with_gradients(sets["zero", n])
    losses = [_loss(sets["leaf", n]) for n in (1, MANY)]
    calls = {
        "zero": [sets["zero", n].optimizer.zero_grad for n in (1, MANY)],
        "leaf": [loss.backward for loss in losses],
        "step": [sets["step", n].optimizer.step for n in (1, MANY)],
    }
    work()
    out = []
    for one, many in calls.values():
        one()
        began = time.perf_counter()
        many()
        out.append(time.perf_counter() - began)
    return tuple(out)


__all__ = ["PARTS", "parameters"]
