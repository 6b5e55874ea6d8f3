"""Kernels and bytes under --traffic inductor beside TorchInductor's own scheduler, for small models at two widths.

python benchmarks/fusion.py [CASE ...] [--kernels]
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
CASES: dict[str, Any] = importlib.import_module("fusion_cases").CASES
OPTIMIZERS: dict[str, Any] = importlib.import_module("fusion_models").OPTIMIZERS
compare: Any = importlib.import_module("oracle_compare")

Line = tuple[str, int, str]


def lines(names: Sequence[str], widths: Iterable[int]) -> Iterator[Line]:
    """What is compared: (model or optimizer, width, phase)."""
    for name in names:
        for width in widths:
            for phase in ("optimizer",) if name in OPTIMIZERS else ("forward", "backward"):
                yield name, width, phase


def main(arguments: list[str]) -> None:
    """Print a line per model, width and phase; with --json the ratios, with --tiny of one model, with --kernels each kernel."""
    warnings.simplefilter("ignore")
    tiny, plain = "--tiny" in arguments, "--json" not in arguments
    names = [a for a in arguments if not a.startswith("--")] or (["rms_norm"] if tiny else [*CASES, *OPTIMIZERS])
    ratios: dict[str, float] = {}
    for name, width, phase in lines(names, (48,) if tiny else (48, 80)):
        ours, theirs = compare.both(name, width, phase)
        mine, other = (sum(k.nbytes for k in found) for found in (ours, theirs))
        ratios[f"{name} {width} {phase}"] = mine / other
        if plain:
            counts = f"{sum(k.nbytes > 0 for k in ours):5} of {len(theirs):4}"
            print(f"{name:24}{width:6}  {phase:10}{mine:12.0f}{other:12.0f}{mine / other:9.4f}  kernels {counts}", flush=True)
        if "--kernels" in arguments:
            for kernels in (ours, theirs):
                print(*(f"  {k.nbytes:12.0f} {k.words}" for k in kernels), "", sep="\n")
    if not plain:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main(sys.argv[1:])
