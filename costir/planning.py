"""`costir.plan`: of all ways to divide a training step among a number of devices, those that fit and take least time.

Each combination of strategies (fsdp; tp; fsdp with tp; ...) is traced once, the lengths of its axes being sizes; all splits of
the devices are then points of closed forms (`costir.splits`). One device is traced, too: its FLOPs are those of the model.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from costir.analysis import Analysis
from costir.errors import CostirError, SizeError, nearest, one_of
from costir.hardware import Chip, chip_of
from costir.mesh import BATCH, ONE_DEVICE, batch_of, known_axes
from costir.model_flops import Step
from costir.network import Network, Wiring
from costir.plan_records import DevicePlan, Held, LeftOut, Split, Way
from costir.recount import SHORTCUT
from costir.roofline import OVERLAPS
from costir.split_search import Outcome, Program, Search, alone, every, peak_at, uneven, words_of
from costir.splits import Placement, up_to
from costir.symbolic import evaluate, maximum, size

MOST_DEVICES = 10**6
MOST_EACH = 16  # elements of the batch on a device, to find what it holds
DIVIDES_BATCH, DIVIDES_MATRICES = ("fsdp", "hsdp", "dp"), ("tp", "sp", "ep")
STRATEGIES = ("fsdp", "hsdp", "tp")
AXES = {"hsdp": ("dp", "fsdp")}  # the axes of a strategy, where they are not one of its name
Say = Callable[..., None]  # what is being done, the share of all that is done, perhaps a line about what is finished


def _whole(name: str, value: Any, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise SizeError(f"{name}={value!r:.40} is not a whole number from 1 to {most}", f"write for example {name}=64")


def _names(strategies: Sequence[str] | str) -> tuple[str, ...]:
    """The strategies, each once.

    Raises:
        SizeError: one that is none.
    """
    given = strategies.split(",") if isinstance(strategies, str) else strategies
    names = tuple(dict.fromkeys(s.strip() for s in given if s.strip()))
    known = (*DIVIDES_BATCH, *DIVIDES_MATRICES)
    for name in names:
        if name in ("cp", "pp"):
            hint = f"price one split with costir analyze --mesh P=4 --parallel {name}=P"
            raise SizeError(f"a plan does not try {name}, only {', '.join(known)}", hint)
        if name not in known:
            raise SizeError(f"no strategy {name[:40]!r} for a plan", nearest(name, known))
    if not names:
        raise SizeError("no strategy is given", "write for example --strategies fsdp,tp")
    return names


def combinations(names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """What may run together: each alone, and one for the batch with one for the matrices."""
    batch, matrices = ([n for n in names if n in group] for group in (DIVIDES_BATCH, DIVIDES_MATRICES))
    both = [(b, m) for b in batch for m in matrices]
    return (*both, *((n,) for n in (*batch, *matrices)))


@dataclass(frozen=True)
class _Job:
    """What is planned, under which conditions: see `plan`."""

    subject: Any
    chip: Chip
    wiring: Wiring
    overlap: str
    phase: str
    sizes: Mapping[str, int]
    conditions: Mapping[str, Any]
    say: Say

    def analyze(self, sizes: Mapping[str, int], mesh: Mapping[str, int], parallel: str) -> Analysis:
        """The subject on a mesh."""
        from costir import api

        given = {**self.sizes, **sizes}
        return api.analyze(self.subject, sizes=given, phase=self.phase, mesh=mesh, parallel=parallel, **self.conditions)

    def program(self, names: tuple[str, ...], batch_size: str, batch: int) -> Program:
        """The model under a combination of strategies, traced at the shortest axes that divide it.

        One element of the batch on each device is asked for: where formulas hold with one, they hold with more as a rule. More
        are where what a device holds is not followed with one.

        Raises:
            CostirError: torch cannot divide the model so.
        """
        batch_axes = tuple(a for n in names if n in DIVIDES_BATCH for a in AXES.get(n, (n,)))
        short = _factors(batch)
        if len(short) < len(batch_axes):
            raise SizeError(f"a batch of {batch} is not divided by {' and '.join(batch_axes)}", "give a larger --batch")
        mesh = dict(zip(batch_axes, short, strict=False))
        each = batch // math.prod(mesh.values())
        found = self._traced(names, batch_axes, mesh, batch_size, 1)
        more = next(n for n in range(min(each, MOST_EACH), 0, -1) if each % n == 0)
        if more > 1 and not all(found.memories):
            other = self._traced(names, batch_axes, mesh, batch_size, more)
            return other if all(other.memories) else found
        return found

    def _traced(
        self, names: tuple[str, ...], batch_axes: tuple[str, ...], mesh: Mapping[str, int], batch: str, each: int
    ) -> Program:
        """The model with `each` elements of the batch on a device, other axes as short as divides it."""
        from costir.parallel.strategies import UnevenError

        axes = tuple(a for n in names for a in AXES.get(n, (n,)))
        parallel = ",".join(f"{n}={'/'.join(AXES.get(n, (n,)))}" for n in names)
        problem: CostirError | None = None
        for length in (2, 3, 5, 7):
            full = {a: mesh.get(a, length) for a in axes}
            own = {batch: each * math.prod(mesh.values())} if mesh else {}
            try:
                return Program(names, axes, batch_axes, parallel, self.analyze(own, full, parallel))
            except UnevenError as error:
                problem = problem or error
                if len(mesh) == len(axes):
                    break
        assert problem is not None
        raise problem


def _factors(n: int) -> list[int]:
    """The prime factors of a number, rising."""
    out, p = [], 2
    while p * p <= n:
        while n % p == 0:
            out.append(p)
            n //= p
        p += 1
    return out + [n] * (n > 1)


def _batch(sizes: Mapping[str, int], batch: int, name: str, parts: int) -> tuple[str, tuple[str, ...], int]:
    """The size that is the batch, the sizes whose product tokens are, and the batch of so many tokens in so many parts.

    Raises:
        SizeError: no size is the batch, or the tokens of a part are no whole number of sequences.
    """
    found = batch_of(sizes)
    if not found:
        raise SizeError(f"{name} has no size that is its batch", f"name it {' or '.join(BATCH[:3])}")
    length = "T" if "T" in sizes else ""
    each = parts * (sizes[length] if length else 1)
    if batch < each or batch % each:
        what = f"sequences of {length} = {sizes[length]} tokens" if length else "elements"
        what += f" in {parts} micro-batches" if parts > 1 else ""
        raise SizeError(
            f"a batch of {batch}{' tokens' * bool(length)} is no whole number of {what}",
            f"choose --batch {max(1, batch // each) * each}{f', or another length by --size {length}=' * bool(length)}",
        )
    return found, (found, length) if length else (found,), batch // each


def plan(
    subject: Any,
    chip: str | Chip,
    *,
    devices: int,
    batch: int,
    tokens: int | None = None,
    phase: str = "train",
    strategies: Sequence[str] | str = STRATEGIES,
    sizes: Mapping[str, int] | None = None,
    overlap: str = "op",
    algorithm: str = "",
    links: Mapping[str, str] | None = None,
    planned: bool = False,
    latency: bool = False,
    say: Say | None = None,
    **conditions: Any,
) -> DevicePlan:
    """Of all splits of a number of devices among strategies, those that fit and take least time.

    Args:
        subject: a file or config, as for `costir.analyze`.
        chip: what the devices are.
        devices: how many.
        batch: tokens of one step on all devices together, batch times length; elements of the batch where there is no length T.
        tokens: of the whole training run, for its days.
        phase: "train", "backward" or "forward".
        strategies: which may be used, alone and together: fsdp, hsdp, dp for the batch, tp, sp, ep for matrices.
        sizes: sizes that differ from the subject's own, such as {"T": 8192}.
        overlap, algorithm, links, planned, latency: as for `Analysis.on`.
        say: told what is being done, how much of all is done, and by a third argument in a line what is finished.
        conditions: as for `costir.analyze`: dtype, optimizer, recompute, micro_batches (the batch of a step comes in so many),
            ...

    Raises:
        CostirError: of a kind that says what is wrong; also where no strategy can divide the model.
    """
    one_of("overlap", overlap, OVERLAPS)
    one_of("phase", phase, ("train", "backward", "forward"))
    for name, value in (("devices", devices), ("batch", batch), *([("tokens", tokens)] if tokens is not None else [])):
        _whole(name, value, MOST_DEVICES if name == "devices" else 10**18)
    names = _names(strategies)
    known_axes(links or {}, dict.fromkeys(a for n in names for a in (("dp", "fsdp") if n == "hsdp" else (n,))))
    found = chip_of(chip)
    wiring = Wiring(algorithm, tuple((links or {}).items()), planned, latency)
    job = _Job(subject, found, wiring, overlap, phase, dict(sizes or {}), conditions, say or (lambda *what: None))
    return _planned(job, devices, batch, tokens, names)


def _planned(job: _Job, devices: int, batch: int, tokens: int | None, names: tuple[str, ...]) -> DevicePlan:
    """The plan of checked arguments."""
    if devices > 1:
        assert Network(job.chip, ONE_DEVICE).near  # before minutes of work: a chip that has no link is refused
    job.say("one device", 0.0)
    one = Program((), (), (), "", job.analyze({}, {}, ""))
    model = one.analysis
    parts = int(job.conditions.get("micro_batches", 1))
    batch_size, token_sizes, count = _batch(model.sizes, batch, model.name, parts)
    point = {**model.sizes, batch_size: count}
    programs, left = _programs(job, combinations(names), one, point, batch_size, devices)
    if not programs and devices > 1:
        raise CostirError(
            f"no strategy of {', '.join(names)} divides {model.name}: {left[0].reason}", "choose others: --strategies"
        )
    job.say("evaluating", 0.9)
    asked = _Asked(job, point, batch_size, Step(_moved(model, point), tuple(size(n) for n in token_sizes)))
    searches = [Search(p, job.chip, job.wiring, job.overlap) for p in (one, *programs)]
    outcomes = [s.run(every(s.program, devices), point) for s in searches]
    rows = sorted((split for o in outcomes for split in asked.splits(o)), key=lambda s: s.seconds)
    left += [x for o in outcomes for x in _left_out(o, point, devices, job.chip.label)]
    if not rows:
        why = f"no split of {devices} devices divides {model.name} evenly"
        raise CostirError(why, "; ".join(f"{x.strategies}: {x.reason}" for x in left[:4]))
    fits = [s for s in rows if s.fits]
    return DevicePlan(
        subject=model.name, phase=job.phase, chip=job.chip, sizes=point, batch_size=batch_size, devices=devices, batch=batch,
        micro_batches=parts, token_sizes=token_sizes, tokens=tokens, overlap=job.overlap, splits=_reasoned(fits),
        too_large=tuple(s for s in rows if not s.fits), ways=tuple(_way(s, rows) for s in searches), left_out=tuple(left),
        smallest=asked.smallest(searches, devices if fits else MOST_DEVICES), notes=_notes((one, *programs)),
    )  # fmt: skip


def _moved(a: Analysis, point: Mapping[str, int]) -> Analysis:
    """The analysis with other base sizes."""
    return replace(a, costed=replace(a.costed, graph=replace(a.graph, sizes=dict(point))))


def _programs(job: _Job, combined: Sequence[tuple[str, ...]], one: Program, point: Mapping[str, int], batch_size: str,
              devices: int) -> tuple[list[Program], list[LeftOut]]:  # fmt: skip
    """The combinations that torch can divide the model by, traced, and why others were left out."""
    found: list[Program] = []
    left: list[LeftOut] = []
    for i, names in enumerate(combined if devices > 1 else ()):
        words = ", ".join(names)
        share, start = (i + 1) / (len(combined) + 2), time.perf_counter()
        job.say(words, share)
        reason = _cannot_fit(job, names, one, found, point, devices)
        if not reason:
            try:
                found.append(job.program(names, batch_size, point[batch_size]))
            except CostirError as error:
                reason = error.message
        if reason:
            left.append(LeftOut(words, 0, reason))
        job.say(
            words, share, f"{words}: left out, {reason}" if reason else f"{words}: traced, {time.perf_counter() - start:.0f} s"
        )
    return found, left


def _cannot_fit(job: _Job, names: tuple[str, ...], one: Program, found: Sequence[Program], point: Mapping[str, int],
                devices: int) -> str:  # fmt: skip
    """Why a strategy alone can fit on no number of devices that it allows, as far as another trace shows; "" where it may.

    N devices hold at least what one would hold, so that one of them holds an Nth of it at the least.
    """
    other = next((p for p in found if len(names) == 1 and names[0] in p.strategies and names[0] in p.axes), None)
    if other is None or not one.memories[0] or job.chip.memory_capacity is None:
        return ""
    most = max(alone(other, names[0], point, devices), default=0)
    whole = int(evaluate(peak_at(one.memories[0], point).total, {size(n): v for n, v in point.items()}))
    if most and whole / most > job.chip.memory_capacity:
        return f"{most} devices at the most, which hold {whole / 2**30:.0f} GiB together at the least"
    return ""


@dataclass(frozen=True)
class _Asked:
    """What a split is measured by."""

    job: _Job
    point: Mapping[str, int]
    batch_size: str
    step: Step

    @property
    def capacity(self) -> Fraction | None:
        """Bytes of a device."""
        return self.job.chip.memory_capacity

    def splits(self, o: Outcome) -> list[Split]:
        """The splits that can be."""
        return [self._split(o, k) for k in range(len(o.lengths)) if o.laid[k] is not None]

    def _split(self, o: Outcome, k: int) -> Split:
        program, found = o.program, o.laid[k]
        assert found is not None
        timed, parts = found
        lengths = {a: int(n) for a, n in zip(program.axes, o.lengths[k], strict=True)}
        laid = {a: lengths[a] for a in timed.where.axes}
        held = self._held(program, int(o.regime[k]), lengths)
        seconds, devices = float(o.seconds[k]), math.prod(lengths.values())
        flops = next(c.flops for c in self.step.counted() if c.convention == "full")
        peak = self.job.chip.matmul_rate(next(iter(self.step.by_type)))
        return Split(
            strategies=program.words, axes=laid, links=_links(timed.where, parts), seconds=seconds,
            times={n: float(x[k]) for n, x in o.times.items()}, memory=held,
            fits=held is None or self.capacity is None or held.total <= self.capacity,
            mfu=float(flops / devices / peak) / seconds,
            each=self.point[self.batch_size] / math.prod(lengths[a] for a in program.batch_axes), formula=timed.formula,
        )  # fmt: skip

    def _held(self, program: Program, regime: int, lengths: Mapping[str, int]) -> Held | None:
        peaks = program.memories[regime]
        if not peaks:
            return None
        values = {**self.point, **lengths}
        peak, at = peak_at(peaks, values), {size(n): v for n, v in values.items()}
        parts = {name: int(evaluate(e, at)) for name, e in peak.parts.items()}
        return Held(sum(parts.values()), parts, peak.where, peak.total)

    def smallest(self, searches: Sequence[Search], most: int) -> Split | None:
        """The fewest devices that the step fits on, of several the fastest; None where it fits on none, or nobody knows."""
        best: Split | None = None
        for search in searches:
            p = search.program
            if self.capacity is None or not all(p.memories):
                continue
            limit = most if best is None else best.devices
            lengths = up_to([alone(p, a, self.point, limit) for a in p.axes], limit)
            lengths = lengths[np.argsort(np.prod(lengths, axis=1), kind="stable")]
            outcome = search.run(lengths, self.point)
            able = [k for k, found in enumerate(outcome.laid) if found is not None and outcome.bytes[k] <= self.capacity]
            least = min((np.prod(lengths[k]) for k in able), default=0)
            for split in (self._split(outcome, k) for k in able if np.prod(lengths[k]) == least):
                if best is None or (split.devices, split.seconds) < (best.devices, best.seconds):
                    best = split
        return best


def _links(where: Placement, parts: Sequence[int]) -> dict[str, str]:
    """The axes on another link, and those over several axes of a torus, with their lengths there."""
    named = dict(zip(where.parted, parts, strict=True))
    spread = {a: "x".join(str(named[p]) for p in where.parts(a)) for a in where.axes if len(where.parts(a)) > 1}
    return {**spread, **dict(where.links)}


def _left_out(o: Outcome, point: Mapping[str, int], devices: int, label: str) -> list[LeftOut]:
    """The splits that cannot be, by the condition that they break; `label` is the chip's."""
    if not o.program.axes or devices == 1:
        return []
    if not len(o.lengths):
        axes = len(o.program.axes)
        return [LeftOut(o.program.words, 0, f"{devices} devices are no product of {axes} lengths from 2 on")]
    broken = [c for c in o.broken if c is not None]
    out = []
    for c in dict.fromkeys(broken):
        even = "uneven shards" if uneven(c) else "links" if label in c.source else "outside the formulas"
        where = f" ({c.source})" if c.source else ""
        out.append(LeftOut(o.program.words, broken.count(c), f"{even}: not {words_of(c, point)}{where}"))
    return out


def _reasoned(fits: Sequence[Split]) -> tuple[Split, ...]:
    """Each with why the next is worse."""
    why = [*(_why(a, b) for a, b in itertools.pairwise(fits)), ""]
    return tuple(replace(s, why=w) for s, w in zip(fits, why[: len(fits)], strict=True))


def _why(better: Split, worse: Split) -> str:
    """Why a split takes longer than another: what grew most, and by how much the step grew: "network over tp: +23 %"."""
    more = worse.seconds / better.seconds - 1
    grown = {n: worse.times.get(n, 0.0) - better.times.get(n, 0.0) for n in {**worse.times, **better.times}}
    name = max(grown, key=lambda n: grown[n])
    each = f", {worse.each:g} of the batch a device" if name in ("memory", "vector") else ""
    return "as fast" if more < 5e-5 else f"{name}{each}: +{100 * more:.{'0f' if more >= 1 else '2g'}} %"


def _way(search: Search, rows: Sequence[Split]) -> Way:
    """A combination with the expressions of its best split."""
    p = search.program
    best = next((s for s in rows if s.strategies == p.words), None)
    memory = maximum([k.total for k in p.memories[0]]) if p.memories[0] else None
    return Way(p.words, p.parallel, p.analysis, best.formula if best else search.timed[0][0].formula, memory)


def _notes(programs: Sequence[Program]) -> tuple[str, ...]:
    """What to know."""
    notes = [n for p in programs for n in p.analysis.notes if not n.startswith("one of ") and SHORTCUT not in n]
    lost = [p.words for p in programs if not all(p.memories)]
    if lost:
        notes.append(f"what a device holds is not followed here ({'; '.join(lost)}): whether it fits is not known")
    return tuple(dict.fromkeys(notes))
