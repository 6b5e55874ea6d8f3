"""What real processes send each other over gloo; a test runs it as a file of its own, for 2 processes or for 4."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.multiprocessing

sys.path.insert(0, str(Path(__file__).parent))
MLP = {"B": 8, "D": 16, "F": 32}
SEQUENCES = {"B": 8, "T": 16, "D": 32, "N": 4, "V": 48}
EXPERTS = {"B": 4, "T": 16, "D": 64, "F": 96, "N": 8, "K": 4, "L": 2, "V": 512, "E": 8, "k": 2}
# Processes -> plan -> the model that is divided by it, and its sizes.
CASES: dict[int, dict[str, tuple[str, dict[str, int]]]] = {
    2: {
        **dict.fromkeys(("dp=X", "tp=X", "fsdp=X"), ("mlp", MLP)),
        **dict.fromkeys(("sp=Y", "cp=Z"), ("sequence", SEQUENCES)),
        "ep=Y": ("mixtral", EXPERTS),
    },
    4: dict.fromkeys(
        ("dp=X,tp=Y", "fsdp=X,tp=Y", "hsdp=X/Y", "dp=X,cp=Z", "fsdp=X,cp=Z", "tp=Y,cp=Z", "sp=Y,cp=Z"), ("sequence", SEQUENCES)
    ),
}


def work(rank: int, store: str, found: str, processes: int) -> None:
    import test_parallel
    import test_ring
    import torch.distributed as dist

    torch.set_num_threads(1)
    run = {"mlp": test_parallel.mlp_log, "sequence": test_ring.sequence_log, "mixtral": test_ring.mixtral_log}
    logs: dict[str, Any] = {}
    for i, (way, (name, sizes)) in enumerate(CASES[processes].items()):
        # Anew each time: DTensor keeps the groups of the first of equal meshes, and a listener would not know them.
        dist.init_process_group("gloo", init_method=f"file://{store}{i}", rank=rank, world_size=processes)
        log = run[name](mesh_of(way), way, sizes)
        logs[way] = [[*key, *value] for key, value in log.items()]
        dist.barrier()
        dist.destroy_process_group()
    if rank == 0:
        Path(found).write_text(json.dumps(logs))


def mesh_of(way: str) -> dict[str, int]:
    """Two processes along each axis."""
    return {a: 2 for part in way.split(",") for a in part.partition("=")[2].split("/")}


if __name__ == "__main__":
    import test_ring  # noqa: F401 - once for all processes

    if "mixtral" in {name for name, _ in CASES[int(sys.argv[3])].values()}:
        import transformers.models.mixtral.modeling_mixtral  # noqa: F401
    arguments = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.multiprocessing.start_processes(work, args=arguments, nprocs=arguments[2], start_method="fork")
