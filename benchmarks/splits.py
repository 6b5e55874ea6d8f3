"""A hundred thousand meshes and batches: the step time of a training step of Llama-3-8B on H100s, in wall seconds."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from common import run

import costir
from costir.hardware import load_chip
from costir.network import AS_BUILT
from costir.split_search import Program, Search

EXAMPLES = Path(__file__).parent.parent / "examples"


def main(tiny: bool = False) -> dict[str, float]:
    """Seconds of the trace, of compiling with the first points, and of all points."""
    before = time.perf_counter()
    mesh = {"fsdp": 4, "tp": 2}
    subject = str(EXAMPLES / ("mlp.py" if tiny else "llama3-8b"))
    analysis = costir.analyze(subject, sizes={"B": 4}, phase="train", mesh=mesh, parallel="fsdp=fsdp,tp=tp")
    traced = time.perf_counter() - before
    program = Program(("fsdp", "tp"), ("fsdp", "tp"), ("fsdp",), "fsdp=fsdp,tp=tp", analysis)
    search = Search(program, load_chip("h100"), AS_BUILT, "op")
    timed = search.timed[0][0]
    points = 1000 if tiny else 100_000
    draw = np.random.default_rng(0)
    fsdp = 2.0 ** draw.integers(1, 6, points)
    at = {"fsdp": fsdp, "tp": 2.0 ** draw.integers(1, 4, points), "B": fsdp * draw.integers(1, 64, points)}
    taken = []
    for _ in range(2):
        before = time.perf_counter()
        seconds, _ = timed.seconds(at)
        taken.append(time.perf_counter() - before)
    for k in range(0, points, points // 20):
        alone = timed.roof.at(**{n: int(v[k]) for n, v in at.items()})
        assert abs(float(seconds[k]) / float(alone.lower) - 1) < 1e-12, "one point of many differs from that point alone"
    return {"points": points, "trace, s": traced, "with compiling, s": taken[0], "points again, s": taken[1]}


if __name__ == "__main__":
    run(main, __doc__)
