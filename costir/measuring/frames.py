"""What Python itself takes between operators, by the number of its lines.

A model's own code is not timed by anybody in advance. But how many lines a forward pass comes to is counted, and what one
costs is measured on modules of torch.nn, each call with what it spends beside its operator: the same again and again, one kind
after the other, as in a model, and after work whose memory has driven the interpreter's code out of the caches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from costir.calibration import Curve
from costir.measuring.clock import HOST, HostClock
from costir.measuring.interrupted import BYTES, Point, between, line
from costir.measuring.timing import lines, timed

ROUNDS, AGAIN = 6, 3
Call = Callable[[], Any]


def frames(clock: HostClock = HOST) -> tuple[Curve, dict[str, float]]:
    """Seconds for each line of Python of a module that runs once, by the bytes of work before.

    And numbers: `lines`, how many a module has on average; `pairs`, how many modules there are; `line`, the seconds of one
    where a module is called again and again; `line_in_turn`, where all of them take turns.
    """
    with torch.no_grad():
        pairs, memory = _counted(), torch.ones(BYTES[-1] // 4)
        in_turn = [timed(partial(_all, calls), ROUNDS, clock=clock).usual for calls in list(zip(*pairs, strict=True))[:2]]
        again = [(timed(m, clock=clock).usual - timed(p, clock=clock).usual) / n for m, p, n in pairs]
        works: dict[Point, Call] = {(size,): between(size, 1, memory) for size in BYTES}
        found: dict[Point, list[float]] = {point: [] for point in works}
        for _ in range(ROUNDS):  # over all sizes: what changes meanwhile falls on all of them alike
            for point, work in works.items():
                found[point] += _passed(pairs, work, clock)
    number = sum(n for *_, n in pairs)
    numbers = {
        "lines": number / len(pairs), "pairs": len(pairs), "line": max(0.0, statistics.median(again)),
        "line_in_turn": max(0.0, in_turn[0] - in_turn[1]) / number,
    }  # fmt: skip
    return line("bytes", {k: statistics.median(v) for k, v in found.items()}), numbers


def once(clock: HostClock = HOST) -> float:
    """Seconds of a line of a module that runs once, after little work: the first point of the curve, measured again."""
    with torch.no_grad():
        pairs, memory = _counted(), torch.ones(BYTES[-1] // 4)
        little, much = (between(size, 1, memory) for size in (BYTES[0], BYTES[-1]))
        found: list[float] = []
        for _ in range(AGAIN):
            much()
            found += _passed(pairs, little, clock)
    return max(1e-9, statistics.median(found))


def _counted() -> list[tuple[Call, Call, int]]:
    """Modules, the operators that they call, and how many lines of Python lie between."""
    return [(module, plain, lines(module) - lines(plain)) for module, plain in _pairs()]


def _passed(pairs: Sequence[tuple[Call, Call, int]], work: Call, clock: HostClock) -> list[float]:
    """Seconds of a line in each of the modules, in turn; a first pass finds the caches as something else left them."""
    for _ in range(2):
        row = [clock.usual(partial(_sample, work, *pair))[0] for pair in pairs]
    return row


def _all(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _sample(work: Call, module: Call, plain: Call, number: int) -> tuple[float]:
    """What a module takes longer than its operator, for each of its lines."""
    times: list[float] = []
    for call in (module, plain):
        work()
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return ((times[0] - times[1]) / number,)


def _pairs() -> Sequence[tuple[Call, Call]]:
    """Modules, and the operators that they call."""
    x, image, index = torch.rand(4, 8), torch.rand(1, 4, 8, 8), torch.zeros(4, dtype=torch.long)
    w, b, one = torch.rand(8, 8), torch.rand(8), torch.rand(8)
    kernel, four = torch.rand(4, 4, 3, 3), torch.rand(4)
    linear, table, norm = nn.Linear(8, 8), nn.Embedding(8, 8), nn.LayerNorm(8)
    conv, batch, group = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4).eval(), nn.GroupNorm(2, 4)
    relu, gelu, silu, softmax, pool = nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Softmax(-1), nn.AvgPool2d(2)
    return (
        (lambda: linear(x), lambda: F.linear(x, w, b)),
        (lambda: conv(image), lambda: torch.conv2d(image, kernel, four, 1, 1)),
        (lambda: norm(x), lambda: torch.layer_norm(x, (8,), one, one)),
        (lambda: relu(x), lambda: torch.relu(x)),
        (lambda: table(index), lambda: torch.embedding(w, index)),
        (lambda: batch(image), lambda: torch.batch_norm(image, four, four, four, four, False, 0.1, 1e-5, True)),
        (lambda: gelu(x), lambda: F.gelu(x)),
        (lambda: softmax(x), lambda: torch.softmax(x, -1)),
        (lambda: group(image), lambda: torch.group_norm(image, 2, four, four)),
        (lambda: silu(x), lambda: torch.ops.aten.silu(x)),
        (lambda: pool(image), lambda: F.avg_pool2d(image, 2)),
    )  # fmt: skip
