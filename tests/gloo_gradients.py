"""Gradients of a model that costir divides in four real processes, beside those of one; a test runs it as a file of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.multiprocessing

sys.path.insert(0, str(Path(__file__).parent))
WAYS = ("fsdp=X,tp=Y", "fsdp=X,sp=Y", "hsdp=X/Y", "fsdp=X,cp=Z")


def work(rank: int, store: str, found: str) -> None:
    import gloo_processes
    import torch.distributed as dist

    torch.set_num_threads(1)
    worst = {}
    for i, way in enumerate(WAYS):
        dist.init_process_group("gloo", init_method=f"file://{store}{i}", rank=rank, world_size=4)
        worst[way] = difference(gloo_processes.mesh_of(way), way)
        dist.barrier()
        dist.destroy_process_group()
    if rank == 0:
        Path(found).write_text(json.dumps(worst))


def difference(mesh: dict[str, int], way: str) -> float:
    """How far a gradient is from that of one process, as a part of the largest gradient there is."""
    import pytest
    import sequence_model
    import test_ring

    from costir.measuring.mesh_run import RealWorld
    from costir.parallel import plan_of
    from costir.parallel.strategies import wrap

    whole, parts = made(sequence_model), made(sequence_model)
    data = [torch.randint(48, (8, 16)) for _ in range(2)]
    whole(*data).backward()
    plan = plan_of(mesh, way)
    with RealWorld(mesh) as world, pytest.MonkeyPatch.context() as patch:
        divided = wrap(parts, plan, world, sequence_model.sp_plan if "sp=" in way else sequence_model.tp_plan)
        place = dict(zip(mesh, world.mesh.get_coordinate(), strict=True))
        for a in plan.batch_axes:
            data = [t.chunk(mesh[a])[place[a]] for t in data]
        for a in plan.axes_of("cp"):  # an early and a late part of each sequence
            both = (place[a], 2 * mesh[a] - 1 - place[a])
            data = [torch.cat([t.chunk(2 * mesh[a], 1)[i] for i in both], 1) for t in data]
            group = world.axes[a].get_group()
            ring = lambda q, k, v, is_causal, group=group: test_ring.Ring.apply(group, q, k, v)
            patch.setattr(torch.nn.functional, "scaled_dot_product_attention", ring)
        divided(*data).backward()
        pairs = [(gathered(p.grad), q.grad) for p, q in zip(parts.parameters(), whole.parameters(), strict=True)]
    return max(float((a - b).abs().max()) for a, b in pairs) / max(float(b.abs().max()) for _, b in pairs)


def made(model: Any) -> Any:
    """The same weights in all processes, each time; what is drawn next is the same, too."""
    torch.manual_seed(0)
    return model.GPT(32, 4, 48)


def gathered(gradient: Any) -> torch.Tensor:
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


if __name__ == "__main__":
    import test_ring  # noqa: F401 - once for all processes

    torch.multiprocessing.start_processes(work, args=(sys.argv[1], sys.argv[2]), nprocs=4, start_method="fork")
