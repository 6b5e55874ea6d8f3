"""The symbolic analysis of Llama against one numeric count of the same model by torch's FlopCounterMode, in CPU seconds.

FlopCounterMode runs the model once on fake tensors and gives one number for matmul FLOPs. costir gives FLOPs, bytes and
parameters as functions of nine sizes. Building the model is included on both sides; all of it runs in one warm process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from common import LLAMA_8B, LLAMA_405B, TINY, llama, medians, no_init, run

import costir


def count_once(sizes: dict[str, int], backward: bool) -> int:
    """Build on fake tensors, and one pass under FlopCounterMode."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with FakeTensorMode(), no_init(), torch.set_grad_enabled(backward):
        module, args, kwargs = llama(**sizes)
        with FlopCounterMode(display=False) as counter:
            logits = module(*args, **kwargs).logits
            if backward:
                logits.sum().backward()
    return int(counter.get_total_flops())


def analyse(sizes: dict[str, int], backward: bool) -> Any:
    """Build, trace, recover and cost; every total is formed."""
    a = costir.analyze(llama, sizes=sizes, phase="backward" if backward else "forward")
    return a.matmul_flops, a.flops, a.bytes, a.params


def main(tiny: bool = False) -> dict[str, float]:
    """CPU seconds and their ratios: forward, forward and backward, and Llama-3-405B against 8B."""
    small = TINY if tiny else LLAMA_8B
    large = {**TINY, "L": 6} if tiny else LLAMA_405B
    numbers: dict[str, float] = {}
    phases = {"forward": False} if tiny else {"forward": False, "forward+backward": True}
    for phase, backward in phases.items():
        calls: dict[str, Callable[[], Any]] = {
            "FlopCounterMode 8B": partial(count_once, small, backward),
            "costir 8B": partial(analyse, small, backward),
            "costir 405B": partial(analyse, large, backward),
        }
        for call in () if tiny else tuple(calls.values())[:2]:
            call()  # warm up: imports, caches
        found = medians(calls, 1 if tiny else 5)
        numbers |= {f"{phase}: {name}, s": value for name, value in found.items()}
        numbers[f"{phase}: costir / FlopCounterMode, 8B"] = found["costir 8B"] / found["FlopCounterMode 8B"]
        numbers[f"{phase}: costir 405B / costir 8B"] = found["costir 405B"] / found["costir 8B"]
    return numbers


if __name__ == "__main__":
    run(main, __doc__)
