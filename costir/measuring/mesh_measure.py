"""Prediction and measurement of a model on a mesh of real processes on this machine.

    measure_on_mesh("model.py", {"X": 2}, "fsdp=X") -> OnMesh(parts, total, ...)

Computation is estimated as for one process, times what the calibration saw processes lose by sharing the machine. Collectives
come from the analysis of the divided model, their times from `costir calibrate --collectives`. Nothing overlaps in the
prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costir.api import analyze
from costir.chip import Chip
from costir.collective_times import KINDS, Collectives
from costir.errors import ChipError, CostirError, LoadError, SizeError
from costir.hardware import calibration_of, chip_of
from costir.measuring import remarks
from costir.measuring.mesh_records import Asked, Ran
from costir.measuring.processes import Progress, together
from costir.measuring.recorded_group import Sent
from costir.parallel import plan_of
from costir.symbolic import Expr, evaluate, size

MOST_PROCESSES = 64
TASK = "costir.measuring.mesh_run:run"


@dataclass(frozen=True, slots=True)
class Part:
    """Computation, or the collectives of one kind.

    Attributes:
        name: "computation" or the kind.
        calls: how many collectives one process takes part in; how many operators it runs.
        payload: bytes of all of them together; None for computation.
        traced: the bytes that the analysis finds, None where there is none.
        predicted, measured: seconds.
    """

    name: str
    calls: int
    payload: int | None
    traced: int | None
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """How far the prediction is from the measurement: -0.1 is 10 % too low."""
        return self.predicted / self.measured - 1 if self.measured else 0.0


@dataclass(frozen=True, slots=True)
class OnMesh:
    """A measured step on several processes.

    Attributes:
        name, sizes, phase, mesh, parallel: what ran.
        parts: computation, then the collectives by kind.
        total: the sum of the predicted parts, and the whole step as measured.
        noise: the spread of the measured steps, or of the calibrations where that is larger.
        slower: how many times longer computation is taken to be because processes share the machine.
        loaded: how much slower the machine is than when it was calibrated; above 20 % there is no verdict.
        away: the share of the core that other processes had while it was calibrated; above 20 % there is none either.
    """

    name: str
    sizes: Mapping[str, int]
    phase: str
    mesh: Mapping[str, int]
    parallel: str
    chip: Chip
    parts: tuple[Part, ...]
    total: Part
    noise: float
    slower: float
    loaded: float
    notes: tuple[str, ...] = ()
    away: float = 0.0

    @property
    def overlap(self) -> float:
        """Seconds that the whole takes longer than its parts (waiting for each other); below 0 where parts overlap."""
        return self.total.measured - math.fsum(p.measured for p in self.parts)

    @property
    def verdict(self) -> bool:
        """Whether the numbers mean anything: the machine was as free as when it was calibrated, and free then."""
        return max(self.loaded, self.noise) <= remarks.LOADED and self.away <= remarks.AWAY


def measure_on_mesh(
    subject: str,
    mesh: Mapping[str, int],
    parallel: str,
    *,
    chip: str | Chip = "here",
    sizes: Mapping[str, int] | None = None,
    phase: str = "forward",
    dtype: str = "",
    model: str = "",
    input: Sequence[str] | str = (),
    optimizer: str | None = None,
    progress: Progress | None = None,
) -> OnMesh:
    """Run a model in several processes on this machine, and set computation and communication beside their prediction.

    Args:
        subject: a Python file, a config or notation: what each process can load by itself.
        mesh: processes along each axis, {"X": 2}.
        parallel: what runs along them, "dp=X", "fsdp=X", "tp=X".
        chip: a file that `costir calibrate` and `costir calibrate --collectives` wrote; "here" is the default one.
        sizes, phase, dtype, model, input, optimizer: as for `costir.measure`; the batch is that of all processes together.
        progress: is told what is being done.

    Raises:
        ChipError: no such file, not calibrated, or collectives that were not measured.
        SizeError: a mesh or a plan that cannot be.
        LoadError: a subject that other processes cannot load.
        TraceError: the model does not run here, or is not divided evenly.
    """
    if not isinstance(subject, str):
        raise LoadError("the processes of a mesh load the model by themselves", "give the path of its file")
    plan = plan_of(mesh, parallel)
    if plan.axes_of("pp"):
        raise SizeError("pp cannot be measured: its stages are different programs", "choose dp, fsdp or tp")
    if plan.axes_of("cp"):
        raise SizeError("cp cannot be measured here: torch's ring attention has no operator for CPUs", "choose dp, fsdp or tp")
    machine = chip_of(chip)
    calibration_of(machine)
    known = collectives_of(machine, plan.mesh)
    if not 2 <= plan.devices <= MOST_PROCESSES:
        raise SizeError(f"a mesh of {plan.devices} processes cannot be measured here", f"choose 2 to {MOST_PROCESSES}")
    specs = (input,) if isinstance(input, str) else tuple(input)
    asked = Asked(subject, plan, machine, dict(sizes or {}), phase, dtype, model, specs, optimizer)
    ran: Ran = together(TASK, asked, plan.devices, progress)
    traced, notes = _traced(asked)
    return _compared(asked, ran, known, traced, notes)


def collectives_of(chip: Chip, mesh: Mapping[str, int]) -> Collectives:
    """The measured collectives of a chip.

    Raises:
        ChipError: where it has none, or none for so many devices as lie along an axis.
    """
    devices, where = math.prod(mesh.values()), "" if chip.id == "here" else f" -o {chip.path}"
    again = f"run costir calibrate --collectives --processes {devices}{where}"
    if chip.collectives is None:
        raise ChipError(f"{chip.label} has no measured collectives", again)
    missing = next((n for n in mesh.values() if n > 1 and n not in chip.collectives.groups), None)
    if missing is not None:
        has = ", ".join(map(str, chip.collectives.groups)) or "none"
        raise ChipError(f"{chip.label} has no measured collectives over {missing} devices, only over {has}", again)
    return chip.collectives


Calls = list[tuple[str, int, int, int]]  # kind, payload, devices, how often


def _traced(asked: Asked) -> tuple[Calls | None, list[str]]:
    """The collectives that the analysis finds in a step; None with a note where there is no analysis."""
    try:
        analysis = analyze(
            asked.subject, sizes=asked.sizes, phase=asked.phase, dtype=asked.dtype, model=asked.model, input=asked.input,
            optimizer=asked.optimizer, mesh=asked.plan.mesh, parallel=str(asked.plan),
        )  # fmt: skip
    except CostirError as error:
        return None, [f"no analysis to compare with: {error.message}"]
    point = {size(n): v for n, v in analysis.sizes.items()}

    def at(e: Expr) -> int:
        return int(evaluate(e, point))

    return [
        (t.kind, at(t.payload), at(t.devices), at(n.call.count)) for n in analysis.costed.nodes for t in n.cost.transfers
    ], []


def _compared(asked: Asked, ran: Ran, known: Collectives, traced: Calls | None, notes: list[str]) -> OnMesh:
    """Prediction and measurement, part by part."""
    c = calibration_of(asked.chip)
    local = math.fsum(ran.estimate.values())
    computed = math.fsum(s * _slower(known, binds) for binds, s in ran.estimate.items())
    parts = [Part("computation", ran.operators, None, None, computed, ran.computation)]
    kinds = {*(s.kind for s in ran.sent), *(k for k, *_ in traced or ())}
    for kind in sorted(kinds, key=(*KINDS, "permute").index):
        sent = [s for s in ran.sent if s.kind == kind]
        found = None if traced is None else [t for t in traced if t[0] == kind]
        parts.append(_part(kind, sent, found, known))
        if found is not None and sum(t[3] for t in found) != len(sent):
            many = sum(t[3] for t in found)
            notes.append(f"{kind}: {many} in the analysis run as {len(sent)}; their payloads are taken from the run")
    whole = Part("total", 0, None, None, math.fsum(p.predicted for p in parts), ran.seconds)
    notes += remarks.notes(c, ran.loaded)
    noise = max(ran.spread, c.noise, known.noise)
    if noise > remarks.LOADED:
        notes.append(f"timings spread by {noise:.0%}: something else ran, now or when the machine was calibrated: no verdict")
    if known.about.get("processes") != str(asked.plan.devices):
        notes.append(
            f"collectives were measured with {known.about.get('processes')} processes, and these are {asked.plan.devices}"
        )
    if known.about.get("cpu") != c.about.get("cpu"):
        notes.append(f"collectives were measured on {known.about.get('cpu')}")
    return OnMesh(
        ran.name, ran.sizes, asked.phase, asked.plan.mesh, str(asked.plan), asked.chip, tuple(parts), whole,
        noise, computed / local if local else 1.0, ran.loaded, tuple(notes), c.away,
    )  # fmt: skip


def _slower(known: Collectives, binds: str) -> float:
    """How many times longer work takes while all processes compute; overhead is work of the processor, too."""
    return known.slower.get("memory" if binds == "memory" else "compute", 1.0)


def _part(kind: str, sent: Sequence[Sent], found: Calls | None, known: Collectives) -> Part:
    """All collectives of a kind: predicted from the analysis where it has as many as ran, else from those that ran."""
    payload = sum(s.payload for s in sent)
    calls = [(s.payload, s.devices, 1) for s in sent]
    if found is not None and sum(t[3] for t in found) == len(sent):
        calls = [(p, n, times) for _, p, n, times in found]
    predicted = math.fsum(times * known.seconds(kind, p, n) for p, n, times in calls)
    traced = None if found is None else sum(p * times for _, p, _, times in found)
    return Part(kind, len(sent), payload, traced, predicted, math.fsum(s.seconds for s in sent))
