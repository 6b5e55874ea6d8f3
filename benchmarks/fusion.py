"""Kernels and bytes under --traffic inductor beside TorchInductor's own scheduler, for small models at two widths.

python benchmarks/fusion.py [CASE ...]
"""

from __future__ import annotations

import importlib
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


def main(names: list[str]) -> None:
    """Print a line per model, width and phase."""
    warnings.simplefilter("ignore")
    print(f"{'model':24}{'width':>6}  {'phase':10}{'bytes':>12}{'inductor':>12}{'ratio':>8}  kernels")
    for name in names or CASES:
        for width in (48, 64):
            for phase in ("forward", "backward"):
                module, args = CASES[name](width)
                theirs = kernels_of(module, args, backward=phase == "backward")
                module, args = CASES[name](width)
                run = trace.run(_family(name, module, args), {}, phase)
                found = fuse(run, "inductor").kernels
                a, b = sum(k.nbytes for k in found), sum(k.nbytes for k in theirs)
                print(f"{name:24}{width:6}  {phase:10}{a:12.0f}{b:12}{a / b:8.4f}  {len(found)}/{len(theirs)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
