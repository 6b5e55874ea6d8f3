"""What two real processes send each other over gloo; the test runs it as a file of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.multiprocessing

sys.path.insert(0, str(Path(__file__).parent))
WAYS = ("dp=X", "tp=X", "fsdp=X")
SIZES = {"B": 8, "D": 16, "F": 32}


def work(rank: int, store: str, found: str) -> None:
    import test_parallel as t
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    logs: dict[str, Any] = {}
    for way in WAYS:
        log = t.mlp_log({"X": 2}, way, SIZES)
        logs[way] = [[*key, *value] for key, value in log.items()]
    if rank == 0:
        Path(found).write_text(json.dumps(logs))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(sys.argv[1], sys.argv[2]), nprocs=2)
