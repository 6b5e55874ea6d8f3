"""What the benchmarks share: CPU time of a call, and a Llama of any size as a family of models."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

LLAMA_8B = {"B": 1, "T": 2048, "D": 4096, "F": 14336, "N": 32, "K": 8, "H": 128, "L": 32, "V": 128256}
LLAMA_405B = {**LLAMA_8B, "D": 16384, "F": 53248, "N": 128, "L": 126}
TINY = {"B": 1, "T": 16, "D": 64, "F": 96, "N": 4, "K": 2, "H": 16, "L": 3, "V": 100}


def llama(
    B: int, T: int, D: int, F: int, N: int, K: int, H: int, L: int, V: int
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """transformers' Llama and its input: the nine letters are its sizes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=D, intermediate_size=F, num_attention_heads=N, num_key_value_heads=K, head_dim=H, num_hidden_layers=L,
        vocab_size=V, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), (torch.zeros(B, T, dtype=torch.long),), {}


def cpu_seconds(call: Callable[[], Any]) -> float:
    """CPU time of one call, after a garbage collection."""
    gc.collect()
    before = time.process_time()
    call()
    return time.process_time() - before


def medians(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median CPU seconds of each call. Rounds alternate between the calls, so that a slow minute hits all alike."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(cpu_seconds(call))
    return {name: statistics.median(times) for name, times in taken.items()}


@contextlib.contextmanager
def no_init() -> Iterator[None]:
    """Modules are built without initial values, as costir builds them: filling fake tensors would only slow the others."""
    from torch import nn
    from transformers.initialization import no_init_weights

    names = [n for n in dir(nn.init) if n.endswith("_") and not n.startswith("_")]
    old = {n: getattr(nn.init, n) for n in names}
    try:
        for n in names:
            setattr(nn.init, n, lambda tensor, *_, **__: tensor)
        with no_init_weights():
            yield
    finally:
        for n, function in old.items():
            setattr(nn.init, n, function)


def run(main: Callable[[bool], dict[str, float]], description: str) -> None:
    """The command line of a benchmark: `--tiny` for a quick look whether it works, `--json` for the numbers alone."""
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--tiny", action="store_true", help="small sizes, one round: shows that it runs, times nothing")
    parser.add_argument("--json", action="store_true", help="numbers as JSON")
    options = parser.parse_args()
    numbers = main(options.tiny)
    if options.json:
        print(json.dumps(numbers))
        return
    for name, number in numbers.items():
        print(f"{name:<58} {number:12.4g}")
