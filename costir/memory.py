"""What a run holds in memory: the peak as an expression, its parts, the curve over the run, the largest size that fits a chip.

Bytes are those of tensors, as torch allocates them on a CPU in eager execution: no fragmentation, no rounding of an allocator,
no scratch memory of threads, no context of a device.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sympy as sp

from costir.errors import ChipError, CostirError, LiftError, SizeError, nearest
from costir.fewest import allowed, candidates, quotient
from costir.ir import Constraint, condition_text
from costir.lifting.live import PARTS
from costir.lifting.peaks import Peak, peaks
from costir.memory_trials import (
    Moment,
    confirm_base,
    confirm_deeper,
    confirm_larger,
    is_there,
    least_layers,
    moments,
    number,
    run_at,
    shortcut,
    ways,
)
from costir.network import AS_BUILT, Network, Wiring
from costir.recount import shortcuts
from costir.report import Fit
from costir.symbolic import Expr, Integer, expand, size

if TYPE_CHECKING:
    from costir.analysis import Analysis
    from costir.chip import Chip
    from costir.lifting.held_bytes import Evidence
    from costir.results import Origin

PHASES = ("forward", "backward", "train", "prefill", "decode")
_MOST = 10**12  # the largest value of a size


@dataclass(frozen=True)
class Memory:
    """The memory of a run as a function of the sizes; see `costir.Analysis.memory`.

    Attributes:
        analysis: whose run it is.
        peaks: the moments that are the peak at some sizes, that of the base first; see `costir.lifting.peaks.Peak`.
        least: the smallest numbers of layers, or turns of a loop, that the formulas were held against; with fewer, the first is
            the last, too.
        note: where a run at the base sizes holds something else than the formulas say, by how much; else "".
    """

    analysis: Analysis = field(repr=False)
    peaks: tuple[Peak, ...]
    least: Mapping[str, int] = field(default_factory=dict)
    note: str = ""

    @property
    def formula(self) -> Expr:
        """The peak in bytes, at the base sizes and wherever no other moment holds more."""
        return self.peaks[0].total

    @property
    def parts(self) -> Mapping[str, Expr]:
        """The parts of `formula`: parameters, gradients, optimizer state, activations, temporaries, inputs."""
        return self.peaks[0].parts

    @property
    def where(self) -> str:
        """The operator that runs then, in words."""
        return self.peaks[0].where

    @functools.cached_property
    def peak(self) -> Expr:
        """The peak in bytes at all sizes from `least` on: the largest of all moments that may be it."""
        terms = [sp.Piecewise((p.total, _there(p)), (Integer(0), True)) if p.least else p.total for p in self.peaks]
        return terms[0] if len(terms) == 1 else sp.Max(*terms, evaluate=False)

    def at(self, **sizes: int) -> Moment:
        """The peak and its parts as numbers; sizes left out stay at the base.

        Where programs take shortcuts (dimensions of 1), and with fewer layers or turns than `least`, a run is looked at.

        Raises:
            SizeError: as for `Analysis.at`.
        """
        values = self.analysis.checked(sizes)
        regime = self.analysis.regime_at(values)
        if self._shallow(values) or shortcuts(regime.graph, values) is not None:
            return max(self.along(**sizes), key=lambda m: m.total)
        return _highest(regime.memory, values)

    @functools.cached_property
    def curve(self) -> tuple[Moment, ...]:
        """What is held operator by operator over the run at the base sizes."""
        return self.along()

    def along(self, **sizes: int) -> tuple[Moment, ...]:
        """What is held operator by operator over the run; sizes left out stay at the base. The run is traced there.

        Raises:
            SizeError: as for `Analysis.at`.
        """
        origin = self.analysis.origin
        assert origin is not None
        full = {**origin.subject.sizes, **origin.fixed, **self.analysis.checked(sizes)}
        try:
            return moments(run_at(self.analysis, full))
        except CostirError as error:
            raise SizeError(error.message, error.hint) from error

    def largest(self, unknown: str, chip: str | Chip, **sizes: int) -> Fit:
        """The largest value of a size with which the run fits a chip.

        Args:
            unknown: the size to solve for.
            chip: a `Chip`, or a name such as "h100".
            sizes: values of other sizes that differ from the base.

        Raises:
            SizeError: an unknown size.
            ChipError: a chip whose memory is not known.
        """
        if unknown in self.analysis.graph.mesh.names:
            raise SizeError(f"{unknown} is an axis of the mesh: with more devices, each holds less", "ask for .fewest")
        asked, capacity, base = self._asked(unknown, chip, sizes)
        label, needed = asked.label, self._held(base)
        below = lambda v: self._held({**base, unknown: v}) <= capacity
        top = _last(below)
        value, within = self._inside(unknown, base, top, capacity)
        if top == _MOST and not within:
            return Fit(unknown, label, capacity, needed, None)
        return Fit(unknown, label, capacity, needed, value, self._quotient(unknown, base, top, capacity), within)

    def fewest(self, axis: str, chip: str | Chip, wiring: Wiring = AS_BUILT, **sizes: int) -> Fit:
        """The fewest devices along an axis of the mesh with which the run fits a chip; the whole batch is as it is.

        Args:
            axis: the axis to solve for. Its numbers of devices are from 2 on: with one, nothing is divided along it.
            chip: a `Chip`, or a name such as "h100". Its links, used like this, allow what numbers of devices they do.
            wiring: see `costir.network`.
            sizes: values of other sizes, and of other axes, that differ from the base.

        Raises:
            SizeError: no axis of the mesh.
            ChipError: a chip whose memory is not known.
        """
        if axis not in self.analysis.graph.mesh.names:
            raise SizeError(f"{axis[:40]} is no axis of the mesh", "name one of --mesh; .largest is for other sizes")
        found, capacity, base = self._asked(axis, chip, sizes)
        net = Network(found, self.analysis.graph.mesh, base, wiring)
        mine = [
            c for c in (*self.analysis.constraints, *net.constraints, *net.full_nodes) if size(axis) in c.condition.free_symbols
        ]
        mine = [c for c in mine if not _is_unequal(c)]  # a run tells where they fail
        lengths = allowed(mine, axis, base)
        tried = candidates(self.peaks, axis, lengths, base, capacity)
        value = next((v for v in tried if self._fits({**base, axis: v}, capacity)), 0)
        values = {**base, axis: value or int(max(lengths, default=base[axis]))}
        highest = max(self._there(values), key=lambda p: int(number(p.total, values)))
        asked = ", ".join(dict.fromkeys(condition_text(c.condition) for c in mine))
        formula = quotient(highest.total, axis, capacity) if value else None
        return Fit(axis, found.label, capacity, self._held(base), value, formula, asked, fewest=True)

    def _asked(self, unknown: str, chip: str | Chip, sizes: Mapping[str, int]) -> tuple[Chip, int, dict[str, int]]:
        """The chip, its bytes, and all sizes, of a question what fits."""
        from costir.hardware import chip_of

        if unknown not in self.analysis.sizes:
            raise SizeError(f"there is no size {unknown[:40]!r} in {self.analysis.name}", nearest(unknown, self.analysis.sizes))
        found = chip_of(chip)
        if found.memory_capacity is None:
            raise ChipError(f"how much memory {found.label} has is not known", "add --set memory.capacity=80e9")
        base = self.analysis.checked(sizes)
        if self._shallow({n: v for n, v in base.items() if n != unknown}):
            raise SizeError(f"what fits is known from {_text(self.least)} on", "analyse again with this as base size")
        return found, int(found.memory_capacity), base

    def _shallow(self, values: Mapping[str, int]) -> bool:
        return any(values.get(n, v) < v for n, v in self.least.items())

    def _held(self, values: Mapping[str, int]) -> int:
        return self.at(**values).total if self._shallow(values) else _highest(self, values).total

    def _fits(self, values: Mapping[str, int], capacity: int) -> bool:
        return self._held(values) <= capacity and (self.analysis.broken(values) is None or self._runs(values, capacity))

    def _runs(self, values: Mapping[str, int], capacity: int) -> bool:
        """Whether a run fits where the formulas only leave out that two sizes are equal, as are one sequence and a device."""
        origin = self.analysis.origin
        if origin is None or not all(_is_unequal(c) or self.analysis.meets(c, values) for c in self.analysis.constraints):
            return False
        try:
            held = moments(run_at(self.analysis, {**origin.subject.sizes, **origin.fixed, **values}))
        except CostirError:
            return False
        return max(m.total for m in held) <= capacity

    def _inside(self, unknown: str, base: Mapping[str, int], top: int, capacity: int) -> tuple[int, str]:
        """The largest value up to `top` at which the formulas, or else a run, hold, and the condition that ends them below."""
        value, within = top, ""
        while value > 0:
            broken = self.analysis.broken({**base, unknown: value})
            if broken is None or (_is_unequal(broken) and self._runs({**base, unknown: value}, capacity)):
                return value, within
            step = _last(lambda v, c=broken: self.analysis.meets(c, {**base, unknown: v}), value)
            if step < 1 or not self.analysis.meets(broken, {**base, unknown: step}):
                step = value - 1  # a multiple of something
            else:
                within = str(broken)
            value = step if top - value < 4096 or within else 0
        return 0, within

    def _quotient(self, unknown: str, base: Mapping[str, int], value: int, capacity: int) -> Expr | None:
        """(capacity - rest)/slope, of the moment that is the peak at the largest value."""
        values = {**base, unknown: max(value, 1)}
        x = size(unknown)
        e = expand(max(self._there(values), key=lambda p: int(number(p.total, values))).total)
        slope = e.coeff(x, 1)
        rest = expand(e - slope * x)
        return None if slope == 0 or rest.has(x) or slope.has(x) else (Integer(capacity) - rest) / slope

    def _there(self, values: Mapping[str, int]) -> list[Peak]:
        return [p for p in self.peaks if is_there(p, values)]

    def __repr__(self) -> str:
        return f"<memory of {self.analysis.name}, {self.analysis.phase}: at its peak {self.formula} bytes, {self.where}>"


def _is_unequal(c: Constraint) -> bool:
    return isinstance(c.condition, sp.Ne)


def memory(analysis: Analysis) -> Memory:
    """The memory of an analysis.

    Raises:
        CostirError: where it cannot be followed: nothing was run, or no formula was found.
    """
    origin = analysis.origin
    if analysis.graph.pipeline:
        raise CostirError("the memory of a pipeline's stage is not followed over its run, which its schedule decides",
                          "see what it holds at the least, stage_memory, or leave out pp")  # fmt: skip
    if origin is None or origin.evidence is None:
        raise CostirError(f"the memory of {analysis.name} is not followed, as nothing of it is run",
                          "give a Python file, a config or a module")  # fmt: skip
    if analysis.phase not in PHASES:
        raise CostirError(f"the memory of a step of {analysis.phase} is not followed", "see what its cache takes")
    _refuse_storage(analysis)
    problem: LiftError | None = None
    for evidence in ways(analysis, origin.evidence):
        try:
            return _followed(analysis, origin, evidence)
        except LiftError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _followed(analysis: Analysis, origin: Origin, evidence: Evidence) -> Memory:
    """The memory by what these runs hold.

    Raises:
        LiftError: they follow no formula, or a further run holds something else.
    """
    fixed = {size(n): Integer(v) for n, v in origin.fixed.items()}
    everywhere, even = peaks(evidence)
    confirm_deeper(analysis, evidence, everywhere)
    if not even:
        confirm_larger(analysis, evidence, everywhere)
    if evidence.base in origin.evidence.traces and evidence.base not in evidence.traces:
        confirm_base(analysis, evidence, everywhere)
    found = [_put_in(p, fixed, origin.fixed) for p in everywhere]
    kept = _sorted([p for p in found if p is not None], analysis.sizes)
    least = {n: v for n, v in least_layers(analysis, evidence, everywhere).items() if v > 1 and n in analysis.sizes}
    return Memory(analysis, tuple(kept), least, shortcut(analysis.graph, evidence, everywhere))


def _refuse_storage(analysis: Analysis) -> None:
    """Refuse weights and caches that are stored in other types than those that the run computes in."""
    asked = {"weights": analysis.conventions.weights, "kv": analysis.conventions.kv}
    stored = ",".join(f"{of}={name}" for of, name in asked.items() if name)
    if stored:
        raise CostirError(f"memory is followed in the types that a run computes in, not with {stored}", "leave that out")


def _text(least: Mapping[str, int]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in least.items())


def _put_in(p: Peak, fixed: Mapping[Any, Expr], values: Mapping[str, int]) -> Peak | None:
    """A moment with numbers for some sizes; None where there is none with these."""
    if not is_there(p, values):
        return None
    parts = {k: expand(e.xreplace(dict(fixed))) for k, e in p.parts.items()} if fixed else p.parts
    least = {n: v for n, v in p.least.items() if n not in values}
    return Peak(p.phase, p.path, p.op, p.source, parts, expand(sp.Add(*parts.values())), least)


def _sorted(found: list[Peak], sizes: Mapping[str, int]) -> list[Peak]:
    """The largest at these sizes first, then those that are only in deeper models; those always below another one left out."""
    from costir.lifting.polynomials import Compared

    found.sort(key=lambda p: (not is_there(p, sizes), -int(number(p.total, sizes))))
    compared = Compared()
    kept: list[int] = []
    terms = [p.total.as_coefficients_dict() for p in found]
    for i, p in enumerate(found):
        least = {size(n): v for n, v in p.least.items()}
        if not any(compared.never_less(terms[k], terms[i], least) for k in kept if not found[k].least):
            kept.append(i)
    return [found[i] for i in kept]


def _there(p: Peak) -> Any:
    return sp.And(*(size(n) >= v for n, v in p.least.items()))


def _highest(found: Memory, values: Mapping[str, int]) -> Moment:
    """The peak at a point, by the formulas."""
    p = max(found._there(values), key=lambda p: int(number(p.total, values)))
    return Moment(p.phase, p.path, p.op, p.source, {k: int(number(e, values)) for k, e in p.parts.items()})


def _last(holds: Any, top: int = _MOST) -> int:
    """The largest number up to `top` of which something holds that holds of all smaller ones; 0 where it holds of none."""
    low, high = 0, 1
    while high < top and holds(high):
        low, high = high, min(2 * high, top)
    if holds(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


__all__ = ["PARTS", "Fit", "Memory", "Moment", "memory", "moments"]
