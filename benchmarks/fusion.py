"""Kernels and bytes under --traffic inductor beside TorchInductor's own scheduler, for small models at two widths.

python benchmarks/fusion.py [CASE ...]
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from costir import trace
from costir.fusion.kernels import fuse
from costir.load.family import Family

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
CASES: dict[str, Any] = importlib.import_module("fusion_cases").CASES
kernels_of: Any = importlib.import_module("oracle_inductor").kernels_of


def _family(name: str, module: Any, args: Any) -> Family:
    build: Any = lambda: (module, args, {})
    return Family(name, build, {})


def _counted(name: str, width: int, phase: str) -> tuple[float, float]:
    """Bytes as found here, and TorchInductor's."""
    module, args = CASES[name](width)
    theirs = kernels_of(module, args, backward=phase == "backward")
    module, args = CASES[name](width)
    found = fuse(trace.run(_family(name, module, args), {}, phase), "inductor").kernels
    return sum(k.nbytes for k in found), sum(k.nbytes for k in theirs)


def main(arguments: list[str]) -> None:
    """Print a line per model, width and phase; with --json the ratios, with --tiny of one model."""
    warnings.simplefilter("ignore")
    names = [a for a in arguments if not a.startswith("--")] or (["rms_norm"] if "--tiny" in arguments else list(CASES))
    ratios: dict[str, float] = {}
    for name in names:
        for width in (48,) if "--tiny" in arguments else (48, 64):
            for phase in ("forward", "backward"):
                ours, theirs = _counted(name, width, phase)
                ratios[f"{name} {width} {phase}"] = ours / theirs
                if "--json" not in arguments:
                    print(f"{name:24}{width:6}  {phase:10}{ours:12.0f}{theirs:12.0f}{ours / theirs:8.4f}", flush=True)
    if "--json" in arguments:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main(sys.argv[1:])
