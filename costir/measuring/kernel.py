"""Something to time over a grid of sizes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Run = Callable[[], Any]
Make = Callable[..., Run]
KEPT = 1 << 18  # random numbers, again and again


@dataclass(frozen=True)
class Kernel:
    """One operator, and the grid that it is timed on.

    Attributes:
        name: of its curve.
        axes: the sizes, and the values of each.
        make: from a point of the grid, what to time.
        largest: points whose product is above it are not timed.
        flops: of a point, by costir's conventions, where it is products; their best rate is a bound for all others.
        seldom: few models use it: what its code loses where kernels take turns is not timed.
    """

    name: str
    axes: Mapping[str, tuple[int, ...]]
    make: Make
    largest: int = 1 << 62
    flops: Callable[..., int] | None = None
    seldom: bool = False

    def fits(self, point: Mapping[str, int]) -> bool:
        """Whether a point is small enough to be timed."""
        return math.prod(point.values()) <= self.largest

    def work(self, at: Sequence[int]) -> int:
        """What the time of points too large to be timed grows with."""
        return self.flops(**dict(zip(self.axes, at, strict=True))) if self.flops else math.prod(at)

    def __len__(self) -> int:
        """How many points the grid has."""
        return math.prod(map(len, self.axes.values()))

    def points(self) -> Iterator[dict[str, int]]:
        """All points of the grid, the last axis fastest."""
        for values in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))


def rand(*sizes: int) -> Tensor:
    """Random numbers, made once and copied: making them takes longer than most operators."""
    n = math.prod(sizes)
    found = _random(torch.get_default_device())
    return (found[:n].clone() if n <= KEPT else found.repeat(-(-n // KEPT))[:n]).view(sizes)


@functools.cache
def _random(device: torch.device) -> Tensor:
    return torch.rand(KEPT, device=device)


__all__ = ["Kernel", "Make", "Run", "rand"]
