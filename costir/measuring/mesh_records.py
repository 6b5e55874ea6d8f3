"""What goes to the processes of a mesh, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costir.chip import Chip
from costir.measuring.recorded_group import Sent
from costir.parallel.plan import Plan


@dataclass(frozen=True)
class Asked:
    """What is to be run: the arguments of `costir.measure`, and the plan."""

    subject: str
    plan: Plan
    chip: Chip
    sizes: Mapping[str, int]
    phase: str
    dtype: str
    model: str
    input: tuple[str, ...]
    optimizer: str | None


@dataclass(frozen=True)
class Ran:
    """What one step took, in the process that was slowest at each part.

    Attributes:
        name, sizes: of the model.
        seconds: of the whole, the best of several rounds; `spread` as in `timing`.
        computation: seconds outside collectives.
        sent: the collectives of a step in order, with the best time of each.
        estimate: of the computation in one process that runs alone, by what binds: "compute", "memory", "overhead".
        operators: how many one process runs.
        loaded: how much slower the machine is than when it was calibrated.
    """

    name: str
    sizes: Mapping[str, int]
    seconds: float
    spread: float
    computation: float
    sent: tuple[Sent, ...]
    estimate: Mapping[str, float]
    operators: int
    loaded: float
