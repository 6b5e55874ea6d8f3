"""Model FLOP utilisation: what share of a chip's peak a run reached that the user measured elsewhere.

    MFU = model FLOPs of a step * steps per second / (chips * peak)

Model FLOPs are those that the model asks for, however it is run; `model_flops` counts them by the conventions in use. With the
matmuls that were traced in their place it is hardware FLOP utilisation (HFU).

Numbers are exact fractions; nothing is rounded here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from costir.analysis import Analysis
from costir.errors import CostirError, SizeError, nearest
from costir.hardware import Chip, load_chip, rate_key
from costir.ir import Conventions
from costir.measured import Measured, measured
from costir.mesh import check_mesh
from costir.model_flops import Counted, Step
from costir.symbolic import Integer, size


@dataclass(frozen=True, slots=True)
class Peak:
    """What a chip can do at most.

    Attributes:
        chip: its resolved name, with preset. note: how the name was understood, else "".
        dtype: the type that most of the forward pass's matmul FLOPs are computed in, "bf16".
        key: the number in the chip's file, "matrix.bf16", or "vector.fp32" where the matrix unit has no such type. Dense.
        rate: FLOP/s of one chip.
        by_hand: whether the user set this number.
    """

    chip: str
    note: str
    dtype: str
    key: str
    rate: Fraction
    by_hand: bool = False


@dataclass(frozen=True, slots=True)
class MFU:
    """The utilisation of a measured run.

    Attributes:
        subject: what was run. phase: "forward", "backward" (forward and backward) or "train".
        assumed: whether nobody named the phase.
        sizes: the sizes of the run that formulas carry as letters; B is the batch of the whole job. fixed: the others.
        conventions: what counts; `attention` is that of the hardware FLOPs.
        measured: the rate or time as it was given.
        devices: how many chips the job ran on.
        steps: steps per second of the whole job.
        tokens: tokens of one step; None where the sizes do not say. token_sizes: the sizes whose product that is.
        params: parameters. active: those that work for one token, where some experts do not; else the same.
        counted: the FLOPs of one step, by convention: "full", "causal", "parameters" (where tokens are known), "hardware"
            (where more than a forward pass runs).
        peaks: one per chip.
        unknown: operators whose FLOPs are not known; with any, all but "parameters" are lower bounds.
        notes: in words.
    """

    subject: str
    phase: str
    assumed: bool
    sizes: Mapping[str, int]
    fixed: Mapping[str, int]
    conventions: Conventions
    measured: Measured
    devices: int
    steps: Fraction
    tokens: int | None
    token_sizes: tuple[str, ...]
    params: int
    active: int
    counted: tuple[Counted, ...]
    peaks: tuple[Peak, ...]
    unknown: tuple[str, ...]
    notes: tuple[str, ...]

    def flops(self, convention: str) -> Fraction | None:
        """FLOPs of one step by a convention; None where it does not apply."""
        return next((c.flops for c in self.counted if c.convention == convention), None)

    def flops_per_second(self, convention: str) -> Fraction | None:
        """FLOP/s that one chip does by a convention."""
        flops = self.flops(convention)
        return None if flops is None else flops * self.steps / self.devices

    def share(self, convention: str, chip: int = 0) -> Fraction | None:
        """The utilisation by a convention on one of the chips: 1 is the peak."""
        rate = self.flops_per_second(convention)
        return None if rate is None else rate / self.peaks[chip].rate

    @property
    def warnings(self) -> tuple[str, ...]:
        """What more than 100 % means, one sentence per chip that has some."""
        return tuple(w for i in range(len(self.peaks)) if (w := _above(self, i)))

    @property
    def full(self) -> Fraction:
        """MFU on the first chip, all scores counted."""
        return cast(Fraction, self.share("full"))

    @property
    def causal(self) -> Fraction:
        """MFU on the first chip, only unmasked scores counted."""
        return cast(Fraction, self.share("causal"))

    @property
    def by_parameters(self) -> Fraction | None:
        """MFU on the first chip by 6N (2N for a forward pass); None where the tokens of a step are not known."""
        return self.share("parameters")

    @property
    def hardware(self) -> Fraction:
        """HFU on the first chip, by the matmuls that were traced; of a forward pass the same as MFU."""
        return cast(Fraction, self.share("hardware") or self.share(self.conventions.attention))


def mfu(
    subject: Any,
    chip: str | Chip | Sequence[str | Chip],
    *,
    rate: str = "",
    time: str = "",
    devices: int | None = None,
    tokens: str = "",
    phase: str = "",
    mesh: Mapping[str, int] | None = None,
    parallel: str = "",
    **conditions: Any,
) -> MFU:
    """The model FLOP utilisation of a measured run.

    Args:
        subject: anything that `costir.analyze` takes, or an `Analysis`, which brings its own phase and conditions.
        chip: the chip of the run, or several to compare with.
        rate: of the whole job: "10000tok/s", "50seq/s" (elements of the batch), "3.2step/s".
        time: of one step, "120ms"; the batch is then that of the sizes. Give either a rate or a time.
        devices: how many chips the job ran on; by default 1, or those of the mesh.
        tokens: the sizes whose product is the tokens of a step; by default "B*T", or "T" where there is no B.
        phase: "forward", "backward" or "train"; by default "train", and "forward" for what cannot be trained (notation
            strings, exported programs).
        mesh, parallel: how the job was divided. Model FLOPs are the whole model's, whatever that is: it says how many devices.
        conditions: as for `costir.analyze`: sizes, dtype, attention, ...

    Raises:
        CostirError: of a kind that says what is wrong.
    """
    run, count = measured(rate, time), devices_of(mesh or {}, parallel, devices)
    chips = [chip] if isinstance(chip, str | Chip) else list(chip)
    loaded = [load_chip(c) if isinstance(c, str) else c for c in chips]
    if isinstance(subject, Analysis):
        given = ["phase"] * bool(phase) + list(conditions)
        if given:
            raise CostirError(f"an analysis has its {given[0]} already", "give the subject itself, or analyse it again")
        return utilisation(subject, loaded, run, count, tokens, mesh=mesh, parallel=parallel)
    from costir import api

    analysis = api.analyze(subject, phase=phase or assumed_phase(subject), **conditions)
    return utilisation(analysis, loaded, run, count, tokens, None, not phase, mesh, parallel)


def devices_of(mesh: Mapping[str, int], parallel: str, devices: int | None) -> int:
    """How many chips a job ran on.

    Raises:
        SizeError: no mesh, or one of another number of devices; strategies that no mesh has.
    """
    if parallel:
        from costir.parallel import plan_of

        return plan_of(mesh, parallel, devices).devices
    check_mesh(mesh, devices if mesh else None)
    return math.prod(mesh.values()) if mesh else devices if devices is not None else 1


def assumed_phase(subject: Any) -> str:
    """What a rate is of, where nobody says: a training step, or a forward pass of what has no other."""
    from costir.load import EXPORTED

    if isinstance(subject, str | os.PathLike):
        text = os.fspath(subject)
        notation = "[" in text and not text.endswith((".py", ".json")) and not Path(text[:200]).exists()
        return "forward" if notation or str(text).endswith(EXPORTED) else "train"
    from costir.load.instance import is_program

    return "forward" if is_program(subject) else "train"


def utilisation(
    analysis: Analysis,
    chips: Sequence[Chip],
    run: Measured,
    devices: int = 1,
    tokens: str = "",
    fixed: Mapping[str, int] | None = None,
    assumed: bool = False,
    mesh: Mapping[str, int] | None = None,
    parallel: str = "",
) -> MFU:
    """The utilisation of a run whose model was analysed.

    Args:
        analysis: at the sizes of the run.
        chips: at least one.
        run: what was measured.
        devices: how many chips the job ran on.
        tokens: the sizes whose product is the tokens of a step, "" to find them.
        fixed: sizes that were put in as numbers before.
        assumed: whether nobody named the phase.
        mesh, parallel: how the job was divided, for the reader.

    Raises:
        CostirError: one device of several, no chip, no matmuls, or a rate in units that the sizes do not explain.
        ChipError: where a chip has no rate for the type that the model computes in.
    """
    if not chips:
        raise CostirError("a utilisation needs a chip", "add for example --chip h100; costir chips lists them")
    if analysis.graph.mesh:
        raise CostirError(f"model FLOPs are the whole model's, and this analysis of {analysis.name} is of one device of a mesh",
                          "analyse it without a mesh, and give the mesh here")  # fmt: skip
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise CostirError(f"devices={devices!r} is not a positive whole number", "give the number of chips of the job")
    fixed = fixed if fixed is not None else (analysis.origin.fixed if analysis.origin else {})
    everything = {**fixed, **analysis.sizes}
    names = _token_sizes(tokens, everything)
    steps = _steps(run, names, everything)
    of_step = Step(analysis, tuple(size(n) if n in analysis.sizes else Integer(everything[n]) for n in names))
    if not of_step.by_type:
        raise CostirError(
            f"{analysis.name} has no matmul, so there is no model FLOP utilisation", "costir analyze shows its time"
        )
    dtype = next(iter(of_step.by_type))
    return MFU(
        subject=analysis.name, phase=analysis.phase, assumed=assumed, sizes=dict(analysis.sizes), fixed=dict(fixed),
        conventions=analysis.conventions, measured=run, devices=devices,
        steps=steps, tokens=_product(names, everything), token_sizes=names,
        params=int(of_step.number(of_step.params)), active=int(of_step.number(of_step.active)), counted=of_step.counted(),
        peaks=tuple(_peak(c, dtype) for c in chips), unknown=tuple(str(u) for u in analysis.unknown),
        notes=tuple(dict.fromkeys([*_divided(mesh or {}, parallel), *of_step.notes(),
                                   *(n for c in chips if (n := c.matmul_note(dtype)))])),
    )  # fmt: skip


def _divided(mesh: Mapping[str, int], parallel: str) -> list[str]:
    """That a job on a mesh is counted by the model's own FLOPs."""
    if not mesh:
        return []
    axes = " * ".join(f"{n}={v}" for n, v in mesh.items())
    by = f" by {parallel}" if parallel else ""
    return [f"divided over {axes} devices{by}: all FLOPs are the whole model's, without what devices repeat"]


# ------------------------------------------------------------------------------------------------------- rates and peaks


def _token_sizes(given: str, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The sizes whose product is the tokens of a step; none where that is not known."""
    if not given:
        return ("tokens",) if "tokens" in sizes else tuple(n for n in ("B", "T") if n in sizes) if "T" in sizes else ()
    names = tuple(n.strip() for n in given.split("*"))
    for n in names:
        if n not in sizes:
            raise SizeError(f"--tokens {given[:60]!r}: there is no size {n[:40]!r}", nearest(n, sizes))
    if len(set(names)) < len(names):
        raise SizeError(f"--tokens {given[:60]!r} names a size twice", "name each once: B*T")
    return names


def _product(names: Sequence[str], sizes: Mapping[str, int]) -> int | None:
    out = 1
    for n in names:
        out *= sizes[n]
    return out if names else None


def _steps(run: Measured, names: Sequence[str], sizes: Mapping[str, int]) -> Fraction:
    """Steps per second of the whole job."""
    if run.unit == "s":
        return 1 / run.value
    if run.unit == "step":
        return run.value
    have = ", ".join(sizes) or "it has none"
    if run.unit == "seq":
        if "B" not in sizes:
            raise SizeError(f"the rate {run.text} needs the batch, and there is no size B ({have})", "give step/s, or --time")
        return run.value / sizes["B"]
    tokens = _product(names, sizes)
    if tokens is None:
        raise SizeError(
            f"the rate {run.text} needs the tokens of a step, and there is no size T ({have})",
            "name the sizes whose product that is, for example --tokens B, or give seq/s or step/s",
        )
    return run.value / tokens


def _peak(chip: Chip, dtype: str) -> Peak:
    key = chip.matmul_key(dtype)
    return Peak(chip.label, chip.alias_note, rate_key(dtype), key, chip.values[key], key in chip.settings)


# --------------------------------------------------------------------------------------------------------- above 100 %


LOOSE = {
    "full": "full attention counts scores that a causal kernel skips",
    "causal": "3 x the forward pass counts gradients that this step does not compute",
    "parameters": "6N counts parameters that no token is multiplied by",
    "hardware": "the traced step computes scores that a causal kernel skips, or computes them again",
}


def _above(m: MFU, chip: int) -> str:
    """Why the utilisation of one chip is above 1, or that it cannot be; "" where it is not.

    What a causal kernel and the trace agree on is work that no implementation avoids; the rest may be above the peak.
    """
    shares = {c.convention: cast(Fraction, m.share(c.convention, chip)) for c in m.counted}
    above = [name for name, share in shares.items() if share > 1]
    if not above:
        return ""
    peak = m.peaks[chip]
    if min(shares["causal"], shares.get("hardware", shares["causal"])) > 1:
        return (
            f"no run on {peak.chip} passes its dense {peak.dtype} peak. Are there more chips (--devices), or is the chip, "
            f"the type (--dtype), the phase (--phase) or the size of a step (--size) another? 2:4 sparsity has a higher peak"
        )
    return f"{peak.chip}: this can be, {'; '.join(dict.fromkeys(LOOSE[n] for n in above))}"
