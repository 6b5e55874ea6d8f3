"""Kernels on memory that was last used some megabytes ago: they go through a pool of it, block by block."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from costir.measuring.kernel import Kernel, Make, Run, rand
from costir.measuring.lookup import PICKED

LARGEST_CACHE, PASSES, FEW_ROWS = 1 << 26, 3, 16
POOLS = tuple(1 << p for p in (20, 22, 23, 24, 25, 26, 27, 28))  # bytes


@functools.cache
def _block(number: int, device: torch.device) -> Tensor:
    """1 MB; all kernels that go through pools use the same ones."""
    return torch.ones(1 << 18, device=device)


def _pool(nbytes: int) -> list[Tensor]:
    return [_block(i, torch.get_default_device()) for i in range(max(1, nbytes >> 20))]


def release() -> None:
    """Give back the memory that kernels share."""
    _block.cache_clear()


def _warm(run: Run, pool: int, rows: int = 1) -> Run:
    """After some passes through a pool that a cache may hold: before, it comes from wherever others have left it."""
    if pool <= LARGEST_CACHE and rows <= FEW_ROWS:  # many rows are work, whose weights come meanwhile
        for _ in range(PASSES * max(1, pool >> 20)):
            run()
    return run


def _streamed(m: int, k: int, pool: int) -> Run:
    """A product whose 1 MB of weights, in rows of k, were last used `pool` bytes ago."""
    weights = itertools.cycle([block.view(-1, k).t() for block in _pool(pool)])
    x, out = rand(m, k), torch.zeros(m, (1 << 18) // k)
    return _warm(lambda: torch.mm(x, next(weights), out=out), pool, m)


def _far(f: Callable[[Tensor], Any]) -> Make:
    """An operator on 1 MB that was last used `pool` bytes ago."""

    def make(pool: int) -> Run:
        memory = itertools.cycle(_pool(pool))
        return _warm(lambda: f(next(memory)), pool)

    return make


SMALL, THIN = torch.ones(64, 512), torch.ones(512, 64)  # of products with 1 MB: too small to leave the cache
FAR: dict[str, Callable[[Tensor], Any]] = {
    "far_read": torch.sum,
    "far_write": lambda x: x.fill_(1.0),
    "far_update": lambda x: x.mul_(1.0),
    "far_first": lambda x: F.linear(x.view(512, 512), SMALL),
    "far_result": lambda x: torch.mm(THIN, SMALL, out=x.view(512, 512)),
    "far_sum": lambda x: torch.addmm(SMALL[0], THIN, SMALL, out=x.view(512, 512)),
}


def _far_rows(columns: int) -> Run:
    """Rows from all over a table of 64 MB, half of which are picked before any is again."""
    rows = (1 << 24) // columns
    table = torch.ones(rows, columns)
    each = itertools.cycle(torch.randint(0, rows, (rows // 2 // PICKED, PICKED)).unbind())
    return lambda: F.embedding(next(each), table)


def far() -> list[Kernel]:
    """Kernels on memory by how long ago it was used."""
    return [
        Kernel("streamed", {"m": (1, 16, 256), "k": (128, 512, 2048), "pool": POOLS}, _streamed),
        *(Kernel(name, {"pool": POOLS}, _far(f)) for name, f in FAR.items()),
        Kernel("far_rows", {"columns": (16, 64, 256, 1024)}, _far_rows),
    ]


__all__ = ["far", "release"]
