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
ROUNDS = 11


def nodes(clock: HostClock = HOST) -> Curve:
    """The curve `node`: seconds that a node takes longer, by the bytes of work between the forward pass and the backward.

    Rounds go over all sizes: what changes meanwhile falls on all of them alike.
    """
    memory = torch.ones(BYTES[-1] // 4)
    leaf = torch.rand(16, requires_grad=True)
    works: dict[Point, Run] = {(0,): lambda: None, **{(size,): between(size, 1, memory) for size in BYTES}}
    with torch.enable_grad():
        rounds = [{point: _each(leaf, work, clock) for point, work in works.items()} for _ in range(ROUNDS)]
    found = {point: statistics.median(r[point] - r[(0,)] for r in rounds) for point in works}
    return line("bytes", {point: found[point] for point in works if point != (0,)})


def _each(leaf: torch.Tensor, work: Run, clock: HostClock) -> float:
    """Seconds of one node of many, those that every backward pass has left out; the first finds other caches."""
    _, few, many = (clock.usual(partial(_backward, leaf, n, work))[0] for n in (1, 1, 1 + MANY))
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
