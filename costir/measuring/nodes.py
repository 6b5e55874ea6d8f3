"""What a node of the backward pass costs where its memory has left the caches since the forward pass made it."""

from __future__ import annotations

import statistics
import time
from functools import partial

import torch

from costir.calibration import Curve
from costir.measuring.clock import HOST, HostClock
from costir.measuring.interrupted import BYTES, Point, Run, between, line

MANY = 64  # nodes
ROUNDS = 8


def nodes(clock: HostClock = HOST) -> Curve:
    """The curve `node`: seconds that a node takes longer, by the bytes of work between the forward pass and the backward."""
    memory = torch.ones(BYTES[-1] // 4)
    leaf = torch.rand(16, requires_grad=True)
    with torch.enable_grad():
        hot = _each(leaf, lambda: None, clock)
        found: dict[Point, float] = {(size,): _each(leaf, between(size, 1, memory), clock) - hot for size in BYTES}
    return line("bytes", found)


def _each(leaf: torch.Tensor, work: Run, clock: HostClock) -> float:
    """Seconds of one node of many, those that every backward pass has left out."""
    few, many = (
        statistics.median(clock.usual(partial(_backward, leaf, n, work))[0] for _ in range(ROUNDS)) for n in (1, 1 + MANY)
    )
    return (many - few) / MANY


def _backward(leaf: torch.Tensor, n: int, work: Run) -> tuple[float]:
    leaf.grad, x = None, leaf
    for _ in range(n):
        x = x * 2.0
    loss = x.sum()
    work()
    began = time.perf_counter()
    loss.backward()
    return (time.perf_counter() - began,)
