"""costir: what a PyTorch model costs, in closed form, in the names of its own sizes.

    import costir
    analysis = costir.analyze("X[B,D] . Y[D,F] -> Z[B,F]")
    analysis.flops                          # 2*B*D*F
    analysis.on("tpu_v5e").critical("B")    # Threshold(value=..., when=..., limit=...)

Importing costir imports neither torch nor sympy; the names below are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from costir.analysis import Analysis as Analysis
    from costir.api import analyze as analyze
    from costir.api import annotate as annotate
    from costir.collective_report import collective as collective
    from costir.errors import CostirError as CostirError
    from costir.hardware import load_chip as load_chip
    from costir.ir import Call as Call
    from costir.ir import Cost as Cost
    from costir.ir import Threshold as Threshold
    from costir.measuring.api import measure as measure
    from costir.measuring.mesh_measure import measure_on_mesh as measure_on_mesh
    from costir.ops.registry import rule as rule
    from costir.ops.registry import traffic as traffic
    from costir.plan_records import DevicePlan as DevicePlan
    from costir.planning import plan as plan
    from costir.utilisation import MFU as MFU
    from costir.utilisation import mfu as mfu

__version__ = "0.1.0"

_WHERE = {
    "Analysis": "costir.analysis", "analyze": "costir.api", "annotate": "costir.api", "collective": "costir.collective_report",
    "CostirError": "costir.errors", "load_chip": "costir.hardware", "Threshold": "costir.ir",
    "rule": "costir.ops.registry", "traffic": "costir.ops.registry", "measure": "costir.measuring.api",
    "measure_on_mesh": "costir.measuring.mesh_measure",
    "Call": "costir.ir", "Cost": "costir.ir", "MFU": "costir.utilisation", "mfu": "costir.utilisation",
    "DevicePlan": "costir.plan_records", "plan": "costir.planning",
}  # fmt: skip
__all__ = [
    "MFU", "Analysis", "Call", "Cost", "CostirError", "DevicePlan", "Threshold", "analyze", "annotate", "collective",
    "load_chip", "measure", "measure_on_mesh", "mfu", "plan", "rule", "traffic",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'costir' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
