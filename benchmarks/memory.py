"""Peak memory of a process that analyses Llama-3-8B, all sizes symbolic: what the operating system saw, in bytes."""

from __future__ import annotations

import resource
import sys

from common import LLAMA_8B, TINY, llama, run

import costir


def main(tiny: bool = False) -> dict[str, float]:
    """Peak resident size after the forward analysis, then after forward and backward; torch and transformers included."""
    sizes = TINY if tiny else LLAMA_8B
    numbers = {}
    for phase in ("backward",) if tiny else ("forward", "backward"):
        a = costir.analyze(llama, sizes=sizes, phase=phase)
        _ = a.flops, a.bytes, a.params
        # Linux counts in KiB, macOS in bytes.
        numbers[f"peak after {phase} analysis, bytes"] = float(
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        )
    return numbers


if __name__ == "__main__":
    run(main, __doc__)
