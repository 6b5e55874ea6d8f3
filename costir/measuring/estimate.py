"""How long each operator of a run should take on a calibrated machine: nothing here was fitted to any model."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from costir.calibration import Calibration, Curve
from costir.cost import cost_of
from costir.ir import Call, Conventions, Cost
from costir.measuring.fetching import Fetching, Memory
from costir.measuring.lookup import HEAVY, MATRICES, VIEWS, lookups, of_type
from costir.measuring.lookup_parts import Lookup
from costir.measuring.subject import Recorded

FRESH = 32 << 20  # bytes from which an allocation gets fresh pages from the system at every call (glibc's largest threshold)
LARGE = 128 << 10  # bytes from which it may, as its heap is cut back (glibc's smallest threshold)
LOOP = 1 << 20  # bytes
SHARED = 1.5  # by this power of its amount an operator's code drives out that of others
FLOAT = 4  # bytes: the curves are of float32
LEAST = 0.25  # of a product's time is its work, where its weights are fetched meanwhile
INNER = 0.5  # of calls from C++: no code of Python comes between, and about half is lost


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of one call, and what they are for.

    Attributes:
        kernel: as timed alone, operands in cache where they fit, dispatch from Python included.
        call: the part of `kernel` that an empty operator takes: dispatch and allocation.
        cold: fetching weights that were not used recently.
        apart: code and small data of its own that other operators' work has driven out of the caches since.
        fresh: writing into memory that the system has to give first.
        framework: what autograd, the backward engine or the optimizer's loop add around it, and the code of torch and Python
            that has left the caches.
        alike: another operator's curve stands in.
        around: the part of all these that is spent before and after the operator itself: the way from Python to it, the
            backward engine, the optimizer's loop.
    """

    kernel: float
    call: float = 0.0
    cold: float = 0.0
    fresh: float = 0.0
    framework: float = 0.0
    alike: bool = False
    apart: float = 0.0
    around: float = 0.0

    @property
    def total(self) -> float:
        """Seconds."""
        return self.kernel + self.cold + self.fresh + self.framework + self.apart

    @property
    def inside(self) -> float:
        """Seconds of the operator itself, as a profiler sees it."""
        return max(0.0, self.total - self.around)


class Estimator:
    """Estimates calls from one calibration.

    Args:
        calibration: of this machine; its curves are of float32.
        rates: FLOP/s of products by type, as in a chip's `matrix`, for calls of other types.
        fresh: bytes of pages that the system was seen to give in one step; what is above the results that always get fresh ones
            is taken to be spread over the other large results.
    """

    def __init__(self, calibration: Calibration, rates: Mapping[str, float] | None = None, fresh: float = 0.0) -> None:
        self.c, self.fresh = calibration, fresh
        self.rates = rates or {}
        self.matrices = dict(self.rates)  # the library that multiplies matrices may be slower than that of convolutions
        if "products" in calibration.numbers and "fp32" in self.rates:
            self.matrices["fp32"] = calibration.numbers["products"]
        self.fetching = Fetching(calibration)
        self._known: dict[tuple[str, tuple[float, ...]], float] = {}

    def seconds(self, found: Lookup) -> float:
        """A curve, read."""
        key = (found.curve, found.sizes)
        if key not in self._known:
            with_weights = found.curve == "mm_nt" and "streamed" in self.c.curves
            self._known[key] = self._linear(*found.sizes) if with_weights else self.c.curves[found.curve].at(*found.sizes)
        call = min(self._known[key], self.c.curves["unary"].seconds[0])
        return (call + (self._known[key] - call) * found.slower) * found.times

    def _linear(self, m: float, n: float, k: float) -> float:
        """Seconds of `x[m, k] @ w[n, k].T`, alone.

        Where a few rows go through large weights, fetching these is most of it. So a grid point whose weights no cache holds
        says nothing about smaller ones that a cache does: between points is interpolated what is left without the fetching.
        """
        return self._work.at(m, n, k) + self._fetched(m, n, k)

    @functools.cached_property
    def _work(self) -> Curve:
        """`mm_nt` as if all weights lay in the core's own cache."""
        curve = self.c.curves["mm_nt"]
        points = itertools.product(*curve.grid)
        seconds = (max(LEAST * s, s - self._fetched(*p)) for p, s in zip(points, curve.seconds, strict=True))
        return replace(curve, seconds=tuple(seconds))

    def _fetched(self, m: float, n: float, k: float) -> float:
        """Seconds that the larger operand of a product takes longer than out of the core's own cache, used again and again."""
        weights, few = max(m, n) * k * FLOAT, min(m, n)
        size = self.c.curves["streamed"].grid[-1][0]
        near, far = (
            self.fetching.levels(Memory(0.0, back, 0.0, ""), 0.0, "streamed", "", few, k)[1] for back in (size, weights)
        )
        return weights * max(0.0, far - near)

    def of(self, r: Recorded, cost: Cost | None = None) -> Estimate:
        """One call of a run, right after others like it.

        Args:
            r: the call, with where its memory was used last.
            cost: its cost, where it is known already.
        """
        return self._alone(r, cost)[0]

    def all(self, calls: Sequence[Recorded], lines: int, costs: Sequence[Cost] | None = None) -> list[Estimate]:
        """The calls of a step that is run again and again, with what each takes longer for what ran between.

        Args:
            calls: of one step.
            lines: how many lines of Python its forward pass comes to: they are spread evenly over what it calls there.
            costs: of the calls, where they are known already.
        """
        given: Sequence[Cost | None] = costs or [None] * len(calls)
        always, others = (sum(_made(r.call, *limits) for r in calls) for limits in ((FRESH, math.inf), (LARGE, FRESH)))
        share = min(1.0, max(0.0, self.fresh - always) / others) if others else 0.0
        alone = [self._alone(r, cost, share) for r, cost in zip(calls, given, strict=True)]
        ends = list(itertools.accumulate(e.total for e, _ in alone))
        pauses = _pauses(calls, [e.total for e, _ in alone])
        out = []
        called = sum(_from_python(r) for r in calls)
        each = lines / called if called else 0.0
        line = self._line(calls)
        kinds = {r.kind: found[0].curve for r, (_, found) in zip(calls, alone, strict=True) if found}
        for i, (r, (e, found), pause) in enumerate(zip(calls, alone, pauses, strict=True)):
            ages = [[_passed(ends, i, ago) for ago in part] for part in (r.read, r.made)]
            e = replace(e, cold=self.fetching.cold(r, found, e.kernel - e.call, *ages)) if found else e
            out.append(self._apart(r, e, kinds, pause, each if _from_python(r) else 0.0, line))
        return out

    def _alone(self, r: Recorded, cost: Cost | None, share: float = 0.0) -> tuple[Estimate, list[Lookup]]:
        """A call, and where its time was read; of large results that do not always get fresh pages a `share` does."""
        call, numbers = r.call, self.c.numbers
        framework = self._framework(r)
        if call.name in VIEWS:
            view = numbers.get("view_inner", numbers["view"]) if r.inner else numbers["view"]
            return Estimate(view, view, framework=framework, around=view + framework), []
        found = lookups(call, r.strides, cost or cost_of(call, Conventions())[0])
        found = [x if x.curve in self.c.curves else Lookup("unary", x.sizes[:1], x.times, True) for x in found]
        found = [of_type(x, call, self.matrices if x.curve.startswith(MATRICES) else self.rates) for x in found]
        found = [self._filled(x) for x in found]
        least = [self.seconds(x) for x in found if x.times > 0]
        empty = min(self.c.curves["unary"].at(16), *least) if least else numbers["view"]
        kernel = sum(self.seconds(x) for x in found) if found else empty
        python = min(empty, numbers.get("python", 0.0))
        empty -= python if r.inner else 0.0
        kernel = max(empty, kernel - max(0, len(found) - (not r.inner)) * python)  # as timed each was called from Python
        kernel += self._by_contents(r, found)
        around = (0.0 if r.inner else python) + (framework if call.phase != "forward" else 0.0)
        around -= numbers.get("optimizer_inside", 0.0) if call.phase == "optimizer" else 0.0
        cold = self.fetching.cold(r, found, kernel - empty, (), ()) if found else 0.0
        fresh, alike = self._fresh(call, share), any(x.alike for x in found)
        return Estimate(kernel, empty, cold, fresh, framework, alike, 0.0, around), found

    def _filled(self, x: Lookup) -> Lookup:
        """At as many channels as fill whole vectors of this machine."""
        if not x.channels:
            return x
        vector = self.c.numbers.get("vector", 1.0)
        more = [math.ceil(n / vector) * vector / n if n else 1.0 for n in x.channels]
        others = len(x.sizes) - len(more)
        return replace(x, sizes=(*x.sizes[:others], *(s * m for s, m in zip(x.sizes[others:], more, strict=True))))

    def _by_contents(self, r: Recorded, found: Sequence[Lookup]) -> float:
        """Seconds that the numbers of a call's operands take longer than those that were timed.

        Of a random mask half of the numbers cannot be foreseen.
        """
        if not found or not (r.unforeseen or r.exceptional):
            return 0.0
        curves, (n, *_), name = self.c.curves, found[0].sizes, found[0].curve
        pairs = (("mixed", "where", min(1.0, 2 * r.unforeseen)), (f"{name}_apart", name, r.exceptional))
        return sum(
            share * max(0.0, curves[other].at(n) - curves[usual].at(n))
            for other, usual, share in pairs
            if share and other in curves
        )

    def _apart(
        self, r: Recorded, alone: Estimate, kinds: Mapping[str, str], pause: _Pause, lines: float, line: float
    ) -> Estimate:
        """With what its own code and that of all operators have to be fetched for, and with what Python does before it.

        `kinds` are the curves of operators, which say how much code each has; `lines` the lines of Python, each of which takes
        `line` seconds longer the first time, as others have driven out what it needs.
        """
        numbers = self.c.numbers
        around = self.interrupted("resumed", pause.last) + self._python(lines, pause.last[0], line)
        near = r.call.phase == "optimizer" and r.since < LOOP  # an optimizer's loop was timed as a loop
        own, curve = 0.0, kinds.get(r.kind, "empty")
        if curve != "empty" and r.since > 0 and not near:  # the allocator's code runs all the time
            apart, others = numbers.get(f"apart_{curve}", 1.0), sum(self._driven_out(kinds[k]) for k in r.others if k in kinds)
            gone = numbers.get(f"gone_{curve}", apart) * self.interrupted("interrupted", (r.since, pause.own))
            own = apart * self._turn(apart, others) * (INNER if r.inner else 1.0) + gone
        return replace(alone, apart=own, framework=alone.framework + around, around=alone.around + around)

    def _driven_out(self, curve: str) -> float:
        """How many average operators drive out as much code as this one; small ones share most of theirs with each other."""
        return float(self.c.numbers.get(f"apart_{curve}", 1.0) ** SHARED / self._average)

    @functools.cached_property
    def _average(self) -> float:
        """That of the operators that were timed."""
        numbers = {k.removeprefix("apart_"): v**SHARED for k, v in self.c.numbers.items() if k.startswith("apart_")}
        found = [v for k, v in numbers.items() if k in self.c.curves]
        return math.fsum(found) / len(found) if found and max(found) > 0 else 1.0

    def _turn(self, apart: float, others: float) -> float:
        """Seconds for so many other operators that ran since; more than were measured drive out no more."""
        return self._read("turn_heavy" if apart >= HEAVY else "turn_light", others) * min(1.0, others)

    def _line(self, calls: Sequence[Recorded]) -> float:
        """Seconds that a line of Python takes longer than if the same module ran all the time.

        In a forward pass that runs again and again it is as where modules take turns; the other phases of a training step leave
        nothing of its code, and it takes as long as that of a module that runs once.
        """
        numbers = self.c.numbers
        again = numbers.get("line", 0.0)
        if any(r.call.phase != "forward" for r in calls):
            return max(0.0, self._read("frame", 0.0) - again)
        turns = (len({r.call.op for r in calls}) - 1) / max(1.0, numbers.get("pairs", 1.0) - 1)
        return max(0.0, numbers.get("line_in_turn", again) - again) * min(1.0, turns)

    def _python(self, lines: float, moved: float, line: float) -> float:
        """Seconds that so many lines of Python take after an operator that moved so many bytes.

        No more of them than a module has find their code gone; where there are many it is soon there again.
        """
        numbers = self.c.numbers
        gone = min(lines, numbers.get("lines", lines))
        return lines * numbers.get("line", 0.0) + gone * (line + self._read("frame", moved) - self._read("frame", 0.0))

    def interrupted(self, name: str, pause: tuple[float, float]) -> float:
        """Seconds for the bytes and seconds between."""
        return self._read(name, pause[0], pause[1] * 1e6)

    def _read(self, name: str, *sizes: float) -> float:
        """A curve of what is lost; more than was measured drives out no more. 0 where it was not calibrated."""
        curve = self.c.curves.get(name)
        return curve.at(*(min(x, g[-1]) for x, g in zip(sizes, curve.grid, strict=True))) if curve is not None else 0.0

    def _framework(self, r: Recorded) -> float:
        numbers = self.c.numbers
        if r.call.phase == "optimizer":
            return numbers["optimizer"]
        if r.call.phase == "backward":
            return numbers["node"] if r.begins else 0.0
        return numbers["grad"] if r.tracked else 0.0

    def _fresh(self, call: Call, share: float) -> float:
        return (_made(call, FRESH, math.inf) + share * _made(call, LARGE, FRESH)) * self.c.numbers["fresh"]


def _made(call: Call, least: float, below: float) -> float:
    """Bytes of new results of such a size."""
    if call.name.endswith("_") or call.name in VIEWS:
        return 0.0
    return sum(float(t.nbytes) for t in call.outputs if least <= float(t.nbytes) < below)


def _passed(ends: Sequence[float], i: int, ago: int) -> float:
    """Seconds between the end of a call some calls ago, perhaps in the step before, and the beginning of call i."""
    if ago <= 0 or ago > len(ends):
        return ends[-1] if ago > 0 else 0.0
    begins = ends[i - 1] if i else 0.0
    return begins - ends[i - ago] if ago <= i else begins + ends[-1] - ends[i - ago]


class _Pause(NamedTuple):
    """What came between a call and others before it.

    Attributes:
        own: seconds since its operator ran.
        last: bytes and seconds of the call before.
    """

    own: float
    last: tuple[float, float]


def _pauses(calls: Sequence[Recorded], seconds: Sequence[float]) -> list[_Pause]:
    """For every call of a step that repeats: the second time round counts."""
    now, ran, last = 0.0, dict[str, float](), (0.0, 0.0)
    for again in (False, True):
        found: list[_Pause] = []
        for r, s in zip(calls, seconds, strict=True):
            found.append(_Pause(now - ran.get(r.kind, now), last))
            last, now = (float(r.moved), s), now + s
            ran[r.kind] = now
        if again:
            break
    return found


def _from_python(r: Recorded) -> bool:
    """A call of the forward pass that Python makes."""
    return r.call.phase == "forward" and not r.inner


def total(calls: Sequence[Recorded], estimates: Iterable[Estimate], leaves: int, c: Calibration) -> float:
    """Seconds of a whole step: its operators one after the other, what calls them, and what the system takes meanwhile.

    Args:
        calls: the operators.
        estimates: of each of them.
        leaves: how many parameters get a gradient; 0 for a forward pass.
        c: the calibration.
    """
    numbers, inside = c.numbers, math.fsum(e.total for e in estimates)
    touched = max((r.since for r in calls), default=0)  # as much lies between two runs of what a step does once
    lost, nodes = Estimator(c).interrupted, sum(r.begins for r in calls)
    once = {
        "zero": leaves > 0,
        "start": leaves > 0,
        "leaf": leaves > 0,
        "step": any(r.call.phase == "optimizer" for r in calls),
    }
    parts = [k for k, runs in once.items() if runs]
    around = leaves * numbers["leaf"] + nodes * lost("node", (touched / 2, inside / 2))  # made half a step before
    around += leaves * sum(lost(f"objects_{k}", (touched, inside)) for k in parts)
    cold = lost("interrupted", (touched, inside))
    around += sum(numbers.get(k, 0.0) + cold * numbers.get(f"gone_{k}", 0.0) for k in parts if k != "leaf")
    return (inside + around) * (1 + numbers.get("lost", 0.0))
