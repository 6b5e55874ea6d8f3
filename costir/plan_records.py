"""What a plan of devices is: splits with their times and memory, what was left out, the formulas of each combination."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from costir.errors import CostirError
from costir.symbolic import Expr

if TYPE_CHECKING:
    from costir.analysis import Analysis
    from costir.hardware import Chip

DAY = 86400


@dataclass(frozen=True, slots=True)
class Held:
    """What a device holds at its peak, in bytes.

    Attributes:
        total: all of it.
        parts: by the names of `costir.memory.PARTS`.
        where: the operator that runs then.
        formula: the total, in the sizes.
    """

    total: int
    parts: Mapping[str, int]
    where: str
    formula: Expr


@dataclass(frozen=True, slots=True)
class Split:
    """A number of devices along each axis, and what a step takes then.

    Attributes:
        strategies: "fsdp, tp". axes: the devices along each axis, the outermost first; neighbours differ in the last.
        links: of axes on another link than the nearest, or over several axes of a torus: {"dp": "dcn", "fsdp": "16x16"}.
        seconds: of a step. times: the seconds in which each of compute, vector, memory and the networks binds.
        memory: what a device holds; None where it is not followed. fits: whether that is in the chip's memory.
        mfu: model FLOP utilisation, all scores counted.
        each: elements of the batch, or of a micro-batch, on one device.
        why: why the next one is worse, "network over tp: +23 %"; of one that does not fit, that.
        formula: the seconds in the sizes and the lengths of the axes.
    """

    strategies: str
    axes: Mapping[str, int]
    links: Mapping[str, str]
    seconds: float
    times: Mapping[str, float]
    memory: Held | None
    fits: bool
    mfu: float
    each: float
    why: str = ""
    formula: Expr | None = field(default=None, repr=False)

    @property
    def devices(self) -> int:
        """All of them."""
        return math.prod(self.axes.values())

    @property
    def binds(self) -> str:
        """What binds longest."""
        return max(self.times, key=lambda k: self.times[k])

    def __str__(self) -> str:
        words = {a: f" ({on})" if (on := self.links.get(a)) else "" for a in self.axes}
        return ",".join(f"{a}={n}{words[a]}" for a, n in self.axes.items()) or "one device"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Splits that cannot be, or are not costed.

    Attributes:
        strategies: of which combination. count: how many splits of the devices.
        reason: in words.
    """

    strategies: str
    count: int
    reason: str


@dataclass(frozen=True)
class Way:
    """One combination of strategies, traced.

    Attributes:
        strategies: "fsdp, tp". parallel: as `--parallel` takes it.
        analysis: a step of one device, the lengths of the axes among its sizes.
        time, memory: a step's seconds and a device's peak bytes as expressions, in the placement of the best split.
    """

    strategies: str
    parallel: str
    analysis: Analysis = field(repr=False)
    time: Expr | None = field(repr=False)
    memory: Expr | None = field(repr=False)


@dataclass(frozen=True)
class DevicePlan:
    """The splits of a number of devices.

    Attributes:
        subject, phase, chip: what is planned. capacity: bytes of a device; None where not known.
        sizes: of the whole model, the batch (of one micro-batch) among them. batch_size: its name.
        devices: how many there are.
        batch: tokens of a step; `micro_batches` times the product of `token_sizes`.
        tokens: of the whole run; None where nobody said.
        overlap: see `roofline`.
        splits: those that fit, the fastest first. too_large: those that do not fit, the fastest first.
        ways: the combinations that were traced, with expressions.
        left_out: splits that cannot be. smallest: the smallest mesh that fits, with the same batch; None where there is none.
        notes: in words.
    """

    subject: str
    phase: str
    chip: Chip
    sizes: Mapping[str, int]
    batch_size: str
    devices: int
    batch: int
    micro_batches: int
    token_sizes: tuple[str, ...]
    tokens: int | None
    overlap: str
    splits: tuple[Split, ...]
    too_large: tuple[Split, ...]
    ways: tuple[Way, ...]
    left_out: tuple[LeftOut, ...]
    smallest: Split | None
    notes: tuple[str, ...]

    @property
    def capacity(self) -> int | None:
        """Bytes of memory of a device."""
        return None if self.chip.memory_capacity is None else int(self.chip.memory_capacity)

    @property
    def best(self) -> Split:
        """The fastest that fits.

        Raises:
            CostirError: where none does.
        """
        if not self.splits:
            raise CostirError(f"no split of {self.devices} devices fits", "see .too_large and .left_out")
        return self.splits[0]

    def days(self, split: Split) -> float | None:
        """Days that all tokens take."""
        return None if self.tokens is None else self.tokens / self.batch * split.seconds / DAY
