"""A million size combinations: FLOPs, bytes and matmul FLOPs of Llama-3-8B at each, in wall seconds."""

from __future__ import annotations

import time

import numpy as np
from common import LLAMA_8B, TINY, llama, run

import costir


def main(tiny: bool = False) -> dict[str, float]:
    """Seconds for the first evaluation, which compiles the formulas, and for the next ones."""
    analysis = costir.analyze(llama, sizes=TINY if tiny else LLAMA_8B)
    points = 1000 if tiny else 10**6
    draw = np.random.default_rng(0)
    sizes = {"B": np.arange(1, points + 1), "T": draw.integers(2, 4096, points)}
    taken = []
    for _ in range(2 if tiny else 4):
        before = time.perf_counter()
        found = analysis.evaluate("flops", "bytes", "matmul_flops", **sizes)
        taken.append(time.perf_counter() - before)
    last = analysis.at(B=points, T=int(sizes["T"][-1]))
    assert abs(float(found["flops"][-1]) / float(last.flops) - 1) < 1e-12, "one point of many differs from that point alone"
    return {"points": points, "first evaluation, s": taken[0], "next evaluations, s": sorted(taken[1:])[len(taken[1:]) // 2]}


if __name__ == "__main__":
    run(main, __doc__)
