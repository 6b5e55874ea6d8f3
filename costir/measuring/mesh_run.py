"""A model on a mesh of real processes: what runs in each of them. `mesh_measure` starts them, and compares.

Every process builds the model, divides it by the same means as an analysis does (`parallel`), and runs the step: as it is, for
the time of the whole; with a log of its collectives, for their parts; written down operator by operator, for the estimate.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from costir.chip import Chip
from costir.hardware import calibration_of
from costir.load.family import Built, Family
from costir.measuring import measure
from costir.measuring.api import runnable
from costir.measuring.clock import HOST
from costir.measuring.estimate import Estimator, total
from costir.measuring.mesh_records import Asked, Ran
from costir.measuring.pace import pace
from costir.measuring.processes import Progress
from costir.measuring.recorded_group import Sent, logged, register
from costir.measuring.subject import Subject, one_thread, subject
from costir.parallel.family import local_sizes
from costir.parallel.own_plan import own_plan
from costir.parallel.plan import Plan
from costir.parallel.strategies import wrap
from costir.parallel.world import World
from costir.trace import named_optimizer

BACKEND = register()
WARM, ROUNDS, AT_LEAST, MOST = 3, 7, 0.02, 8.0
LOGGED, LOGGED_MOST, LOGGED_SECONDS = 5, 20, 3.0  # steps with a log


class RealWorld(World):
    """The mesh of the processes that are running, in place of one of devices that do not exist."""

    def __enter__(self) -> RealWorld:
        self.mesh = init_device_mesh("cpu", tuple(self.sizes.values()), mesh_dim_names=tuple(self.sizes))
        self.axes = {a: self.mesh[a] for a in self.sizes}
        self._undo.enter_context(self._without_metadata())
        self.divided = (DTensor, AsyncCollectiveTensor)
        return self

    def calls(self, op: str, args: dict[str, Any], out: Any) -> list[tuple[str, dict[str, Any], Any, str | None]]:
        """A call of computation as what it means; the log of the group has the collectives."""
        return [] if op.startswith(("_c10d_functional", "c10d.", "_dtensor.")) else super().calls(op, args, out)


def run(asked: Asked, say: Progress) -> Ran:
    """Measure in the group that this process is in."""
    c = calibration_of(asked.chip)
    with one_thread(c.threads), RealWorld(asked.plan.mesh) as world:
        loaded = _loaded(asked.chip)
        say("building", 0.1)
        family = runnable(asked.subject, None, asked.sizes, asked.phase, asked.dtype, asked.model, asked.input)
        point = {**family.sizes, **asked.sizes}
        model = subject(_divided(family, asked.plan, world), point, asked.phase, named_optimizer(asked.optimizer))
        for _ in range(WARM):
            model.step()
        say("timing", 0.3)
        seconds, spread = _timed(model)
        say("collectives", 0.6)
        computation, sent = _parts(model)
        say("operators", 0.8)
        estimate, operators = _estimate(model, asked.chip, world)
    return Ran(family.name, point, seconds, spread, computation, sent, estimate, operators, loaded)


def _divided(family: Family, plan: Plan, world: RealWorld) -> Family:
    """The family as one process builds it: its part of the batch, its part of the weights."""
    styles = own_plan(family, plan)

    def build(**sizes: int) -> Built:
        module, args, kwargs = family.build(**local_sizes(family, plan, sizes))
        rest = dataclasses.replace(plan, parts=tuple(p for p in plan.parts if p.strategy != "dp"))
        module = wrap(module, rest, world, styles)
        for axis in plan.axes_of("dp"):
            _replicate(module, world.axes[axis].get_group())
        return Built(module, args, kwargs)

    return dataclasses.replace(family, build=build)


def _replicate(module: nn.Module, group: dist.ProcessGroup) -> None:
    """DistributedDataParallel as it is, with its buckets, around a module that keeps its paths."""
    if any(p.requires_grad for p in module.parameters()):
        ddp = nn.parallel.DistributedDataParallel(module, process_group=group)
        module.register_forward_pre_hook(lambda m, args, kwargs: ddp._pre_forward(*args, **kwargs), with_kwargs=True)
        module.register_forward_hook(lambda m, args, out: ddp._post_forward(out))


def _loaded(chip: Chip) -> float:
    """How much slower the machine is than when it was calibrated, by kernels that rank 0 runs alone."""
    dist.barrier()
    found = pace(calibration_of(chip), HOST).loaded if dist.get_rank() == 0 else 0.0
    return _slowest([found])[0]


def _slowest(values: Sequence[float]) -> list[float]:
    """The largest value of any process, one by one."""
    agreed = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(agreed, dist.ReduceOp.MAX)
    return [float(v) for v in agreed.tolist()]


def _round(model: Subject, loops: int) -> float:
    """Seconds of a step, from when all are ready until the slowest is done."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(loops):
        model.step()
    return _slowest([time.perf_counter() - began])[0] / loops


def _timed(model: Subject) -> tuple[float, float]:
    """The best round, and how much longer the median one took."""
    loops = max(1, int(AT_LEAST / max(_round(model, 1), 1e-6)))
    found = [_round(model, loops)]
    while len(found) < ROUNDS and sum(found) * loops < MOST:
        found.append(_round(model, loops))
    return min(found), statistics.median(found) / min(found) - 1


def _parts(model: Subject) -> tuple[float, tuple[Sent, ...]]:
    """Computation and collectives of a logged step: each the best over several steps of the slowest process."""
    computation: list[float] = []
    best: list[Sent] = []
    first = time.perf_counter()
    while len(computation) < LOGGED or (
        len(computation) < LOGGED_MOST and _slowest([time.perf_counter() - first])[0] < LOGGED_SECONDS
    ):
        dist.barrier()
        with logged() as log:
            began = time.perf_counter()
            model.step()
            whole = time.perf_counter() - began
        times = _slowest([whole - sum(s.seconds + s.around for s in log), *(s.seconds for s in log)])
        computation.append(times[0])
        step = [dataclasses.replace(s, seconds=t) for s, t in zip(log, times[1:], strict=True)]
        best = [a if a.seconds < b.seconds else b for a, b in zip(best or step, step, strict=True)]
    return min(computation), tuple(best)


def _estimate(model: Subject, chip: Chip, world: RealWorld) -> tuple[dict[str, float], int]:
    """The estimate of one process's computation, by what binds; collectives are left out."""
    c = calibration_of(chip)
    calls = model.record(world)
    rows = [
        measure.row_of(r, None, e, chip, c, 0.0)
        for r, e in zip(calls, Estimator(c, measure.rates_of(chip)).all(calls, model.lines), strict=True)
    ]
    out = {b: sum(row.parts.total for row in rows if row.binds == b) for b in ("compute", "memory", "overhead")}
    whole = total(calls, (row.parts for row in rows), model.leaves, c)
    out["overhead"] += whole - sum(out.values())
    return out, len(calls)
