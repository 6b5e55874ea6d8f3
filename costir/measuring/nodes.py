"""What a node of the backward pass costs where its memory has left the caches since the forward pass made it."""

from __future__ import annotations

import itertools
import statistics
import time
from functools import partial

import torch

from costir.calibration import Curve
from costir.measuring.clock import HOST, HostClock
from costir.measuring.interrupted import Point, Run, between, surface

BYTES, MICROSECONDS = (1 << 12, 1 << 22, 1 << 24, 1 << 26), (1, 4000, 16000)
MANY = 64  # nodes
ROUNDS = 5


def nodes(clock: HostClock = HOST) -> Curve:
    """The curve `node`: seconds that a node takes longer, by the bytes and the microseconds between the forward pass and it.

    Rounds go over all points: what changes meanwhile falls on all of them alike.
    """
    memory = torch.ones(BYTES[-1] // 4)
    leaf = torch.rand(16, requires_grad=True)
    points = itertools.product(BYTES, MICROSECONDS)
    works: dict[Point, Run] = {(size, us): between(size, us, memory) for size, us in points}
    with torch.enable_grad():
        rounds = [{point: _each(leaf, work, clock) for point, work in works.items()} for _ in range(ROUNDS)]
    return surface({point: statistics.median(r[point] for r in rounds) for point in works})


def _each(leaf: torch.Tensor, work: Run, clock: HostClock) -> float:
    """Seconds of one node of many, those that every backward pass has left out."""
    few, many = (clock.usual(partial(_backward, leaf, n, work))[0] for n in (1, 1 + MANY))
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
