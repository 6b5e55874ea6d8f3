"""Time collectives in a running process group: payloads from 1 KB to 64 MB, over groups of several sizes.

Every process calls `measure`. A collective takes as long as the process in which it takes longest; the best of several rounds
counts. All groups of a size work at the same time, as those along an axis of a mesh do.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from costir.collective_times import KINDS, Collectives, fitted
from costir.errors import CostirError
from costir.measuring.calibrate import machine
from costir.measuring.processes import Progress, device
from costir.measuring.timing import timed

SIZES = tuple(1 << p for p in range(10, 27, 2))  # payload bytes
BUDGET = 40.0  # seconds
ROUNDS, PASSES, TURNS = 3, 2, 4
AT_LEAST = 0.015  # seconds of a round

Call = Callable[[], Any]


def measure(arguments: dict[str, Any], say: Progress) -> Collectives:
    """Time all collectives in the group that this process is in, and fit lines.

    Args:
        arguments: "threads" of torch; "budget" in seconds; "sizes" in bytes.
        say: is told what is being done.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(int(arguments.get("threads", 1)))
    try:
        bench = Bench(say, float(arguments.get("budget", BUDGET)))
        slower = bench.slower()
        for devices in group_sizes(dist.get_world_size()):
            bench.over(devices, tuple(arguments.get("sizes", SIZES)))
    finally:
        torch.set_num_threads(before)
    fits = tuple(fitted(kind, n, sorted(p.items())) for (kind, n), p in bench.found.items() if len(p) > 1)
    return Collectives(_about(int(arguments.get("threads", 1))), bench.noise, slower, bench.missing, fits)


def group_sizes(world: int) -> tuple[int, ...]:
    """The numbers of devices that divide the world, 1 left out."""
    return tuple(n for n in range(2, world + 1) if world % n == 0)


def _about(threads: int) -> dict[str, str]:
    here = device()
    hosts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, platform.node())
    name = {"gpu": torch.cuda.get_device_name(here)} if here.type == "cuda" else {}
    return {
        "backend": str(dist.get_backend()), "device": here.type, **name, "processes": str(dist.get_world_size()),
        "hosts": str(len(set(hosts))), "threads": str(threads), "cores": str(os.cpu_count() or 1), **machine(),
    }  # fmt: skip


class Bench:
    """Times collectives; every process of the world does the same calls, and decides by what all of them saw."""

    def __init__(self, say: Progress, budget: float) -> None:
        self.say = say
        self.budget = budget
        self.began = time.perf_counter()
        self.spreads: list[float] = []
        self.missing: dict[str, str] = {}
        self.found: dict[tuple[str, int], dict[int, float]] = {}
        self.device = device()

    @property
    def noise(self) -> float:
        """How much longer the median round took than the best, in the median over all that was timed."""
        return statistics.median(self.spreads) if self.spreads else 0.0

    def over(self, devices: int, sizes: Sequence[int]) -> None:
        """All kinds in groups of so many devices, in two passes; what would exceed their part of the budget is left out."""
        world = dist.get_world_size()
        parts = group_sizes(world)
        until = self.budget * (parts.index(devices) + 1) / len(parts)
        mine = self._group(devices)
        for turn in range(PASSES):
            for i, size in enumerate(sizes):
                for kind in KINDS:
                    self.say(f"{kind} over {devices}", min(1.0, (time.perf_counter() - self.began) / self.budget))
                    if kind not in self.missing:
                        self._time(kind, size, devices, mine, until, turn > 0 or i > 1)

    def _group(self, devices: int) -> dist.ProcessGroup:
        """The group of neighbours that this process is in; every process makes all groups."""
        world, rank = dist.get_world_size(), dist.get_rank()
        if devices == world:
            return dist.group.WORLD
        every = [dist.new_group(list(range(i, i + devices))) for i in range(0, world, devices)]
        return every[rank // devices]

    def _time(self, kind: str, size: int, devices: int, mine: dist.ProcessGroup, until: float, may_leave: bool) -> None:
        payload, call = prepared(kind, size, devices, mine, self.device)
        try:
            self._round(call, 1)
        except RuntimeError as error:  # the backend does not do it: every process sees the same
            said = (str(error).strip().partition("\n")[0] or type(error).__name__)[:120]
            if not re.search("support|implement", said, re.I):
                raise CostirError(
                    f"{kind} over {devices} processes failed: {said}", "look whether they reach each other"
                ) from error
            self.missing[kind] = said
            return
        once, now = self._agreed(self._round(call, 1), time.perf_counter() - self.began)
        loops = max(1, min(1000, int(AT_LEAST / max(once, 1e-9))))
        if may_leave and now + ROUNDS * loops * once > until:
            return
        rounds = self._agreed(*(self._round(call, loops) / loops for _ in range(ROUNDS)))
        self.spreads.append(statistics.median(rounds) / min(rounds) - 1)
        known = self.found.setdefault((kind, devices), {})
        known[payload] = min(known.get(payload, float("inf")), *rounds)

    def _round(self, call: Call, loops: int) -> float:
        """Seconds of so many calls, begun by all processes at the same time."""
        dist.barrier()
        self._done()
        began = time.perf_counter()
        for _ in range(loops):
            call()
        self._done()
        return time.perf_counter() - began

    def _done(self) -> None:
        """GPUs work on after a call has returned."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _agreed(self, *seconds: float) -> list[float]:
        """The largest that any process saw."""
        values = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return [float(v) for v in values.tolist()]

    def slower(self) -> dict[str, float]:
        """How many times longer a kernel takes while all processes compute than while one does: they share caches and cores."""
        if self.device.type == "cuda":
            return {}
        a, big = torch.rand(256, 256), torch.ones(1 << 23)
        kernels: dict[str, Call] = {"compute": lambda: torch.mm(a, a), "memory": lambda: big.mul_(1.0)}
        out = {}
        for name, kernel in kernels.items():
            found: list[list[float]] = []
            for _ in range(TURNS):  # by turns, so that whatever else runs disturbs both alike
                alone = timed(kernel, 3, 0.02).best if dist.get_rank() == 0 else 0.0
                dist.barrier()
                found.append(self._agreed(alone, timed(kernel, 3, 0.02).best))
            alone, shared = map(min, zip(*found, strict=True))
            out[name] = max(1.0, shared / alone)
        return out


def prepared(kind: str, size: int, devices: int, mine: dist.ProcessGroup | None, on: torch.device) -> tuple[int, Call]:
    """Payload in bytes and a call of a collective of about this payload; the payload is as in `collective_times`.

    float32; as many numbers as divide evenly. The root of a broadcast is the first of the group.
    """
    n = max(size // 4 // devices**2, 1) * devices**2  # all_to_all cuts the whole twice
    whole, part = torch.zeros(n, device=on), torch.zeros(n // devices, device=on)
    other = torch.empty_like(part)
    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=mine),
        "all_gather": lambda: _GATHER(whole, part, group=mine),
        "reduce_scatter": lambda: _SCATTER(part, whole, group=mine),
        "all_to_all": lambda: dist.all_to_all_single(other, part, group=mine),
        "broadcast": lambda: dist.broadcast(whole, group=mine, group_src=0),
    }
    return n * 4, calls[kind]


# torch 2.13 renames these two.
_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

__all__ = ["Bench", "group_sizes", "measure", "prepared"]
