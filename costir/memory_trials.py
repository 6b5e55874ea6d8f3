"""Runs that formulas of memory are held against: longer, deeper and larger ones than those that they came from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from costir import trace
from costir.errors import CostirError, LiftError
from costir.ir import Graph, traced_phase
from costir.lifting.held_bytes import Evidence, refitted
from costir.lifting.live import by_event, held
from costir.lifting.origins import kinds_of_turns
from costir.lifting.peaks import Peak
from costir.recount import SHORTCUT, where_one
from costir.symbolic import Expr, Integer, size
from costir.trace import Trace, no_collection

if TYPE_CHECKING:
    from costir.analysis import Analysis

_SKEWED = 4  # sizes that are made large one by one to confirm formulas
_LARGER = 4


@dataclass(frozen=True)
class Moment:
    """What is held while one operator runs, in bytes, at one point of the sizes.

    Attributes:
        phase, path, op, source: the operator.
        parts: by the names of `PARTS`.
    """

    phase: str
    path: str
    op: str
    source: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(self.parts.values())


def moments(t: Trace) -> tuple[Moment, ...]:
    """What a trace holds, operator by operator."""
    parts = by_event(t, held(t, range(len(t.events))))
    return tuple(Moment(e.phase, e.path, e.op, e.source, p) for e, p in zip(t.events, parts, strict=True))


def is_there(p: Peak, values: Mapping[str, int]) -> bool:
    """Whether there is such a moment at these sizes."""
    return all(values.get(n, v) >= v for n, v in p.least.items())


def number(e: Expr, values: Mapping[str, int]) -> Expr:
    """The value of an expression at a point."""
    return e.xreplace({size(n): Integer(v) for n, v in values.items()})


def long_enough(analysis: Analysis, evidence: Evidence) -> Evidence:
    """Longer traces for those in which a loop runs so few turns that there are none between the first and the last ones."""
    loops, fitter = _loops(analysis), evidence.fitter
    if not loops or fitter is None:
        return evidence
    several = [kinds_of_turns(t) for t in evidence.traces]
    traces = list(evidence.traces)
    for k, t in enumerate(evidence.traces):
        if several[k] < max(several):
            point = {**{n: int(v) for n, v in t.sizes.items()}, **{n: _LARGER * int(t.sizes[n]) for n in loops}}
            longer = _traced(analysis, point)
            if longer is None:
                return evidence
            traces[k] = longer
    return evidence if traces == list(evidence.traces) else refitted(evidence, traces)


def ways(analysis: Analysis, evidence: Evidence) -> Iterator[Evidence]:
    """The runs that formulas come from, then others, one after the other, for where no formula holds in these.

    Where two lengths are equal at the base by chance, what is held cannot be told apart there. Some operators run fewer times
    than there are layers, so that the second of a kind is not in every run.
    """
    evidence = long_enough(analysis, evidence)
    yield evidence
    for change in (_without_base, _deeper):
        traces = change(analysis, evidence) if evidence.fitter is not None else []
        if len(traces) > 2 and traces != list(evidence.traces):
            with contextlib.suppress(LiftError):  # these do not tell the sizes apart
                evidence = refitted(evidence, traces)
                yield evidence


def _without_base(analysis: Analysis, evidence: Evidence) -> list[Trace]:
    return [t for t in evidence.traces if t is not evidence.base]


def _deeper(analysis: Analysis, evidence: Evidence) -> list[Trace]:
    """The traces with those of the fewest layers once more, of more layers than any; none where that does not run."""
    if not evidence.depths:
        return []
    n = evidence.depths[0]
    layers = [int(t.sizes[n]) for t in evidence.traces]
    deep = {n: max(layers) + evidence.period}
    found = [
        _traced(analysis, {**t.sizes, **deep}) if many == min(layers) else t
        for many, t in zip(layers, evidence.traces, strict=True)
    ]
    return [t for t in found if t is not None] if None not in found else []


def confirm_base(analysis: Analysis, evidence: Evidence, found: Sequence[Peak]) -> None:
    """Hold formulas against the run at the base sizes where it took no part, as far as it is deep enough.

    Raises:
        LiftError: where it holds something else.
    """
    base = {n: int(v) for n, v in evidence.base.sizes.items()}
    shallow = any(base[n] < min(int(t.sizes[n]) for t in evidence.traces) for n in (*evidence.depths, *_loops(analysis)))
    if not shallow and said(found, base) != _highest_of(evidence.base):
        raise LiftError("memory at the base sizes is another than the formulas say")


def run_at(analysis: Analysis, point: Mapping[str, int]) -> Trace:
    """A run at a point, traced."""
    origin = analysis.origin
    assert origin is not None
    with no_collection():
        return trace.run(origin.subject, point, traced_phase(analysis.phase), origin.optimizer)


def _traced(analysis: Analysis, point: Mapping[str, int]) -> Trace | None:
    """A run at a point where the formulas are said to hold; None where they are not, or where the model does not run."""
    known = {**analysis.sizes, **{n: v for n, v in point.items() if n in analysis.sizes}}
    try:
        return run_at(analysis, point) if analysis.broken(known) is None else None
    except CostirError:
        return None


def confirm_deeper(analysis: Analysis, evidence: Evidence, found: Sequence[Peak]) -> None:
    """Hold formulas that the traces of fewest layers took no part in against one of more layers than any.

    Raises:
        LiftError: where it holds something else.
    """
    traces, deeper = evidence.traces, {}
    for n in evidence.depths:
        fewest, most = (f(int(t.sizes[n]) for t in traces) for f in (min, max))
        if any(p.least.get(n, 1) > fewest for p in found):
            deeper[n] = most + 1 + evidence.period
    values = {**traces[0].sizes, **deeper}
    if deeper and said(found, values) != _highest_of(run_at(analysis, values)):
        raise LiftError("memory does not grow evenly over the model's blocks")


def confirm_larger(analysis: Analysis, evidence: Evidence, found: Sequence[Peak]) -> None:
    """Refuse where a run with one size, or with all, much larger holds something else than the formulas say.

    Raises:
        LiftError: names the point.
    """
    base = {n: int(v) for n, v in evidence.traces[0].sizes.items()}
    moved = [n for n in base if n not in evidence.depths]
    for larger in (moved, *([n] for n in moved[:_SKEWED])):
        point = {**base, **{n: _LARGER * base[n] for n in larger}}
        seen = _seen(analysis, point)
        if seen is not None and seen != said(found, point):
            at = ", ".join(f"{m} = {v}" for m, v in point.items())
            raise LiftError(f"memory grows otherwise than the formulas say: a run at {at} holds {seen} bytes")


def _seen(analysis: Analysis, point: Mapping[str, int]) -> int | None:
    """The peak of a run; None where there is none to compare with formulas."""
    t = _traced(analysis, point)
    return None if t is None else _highest_of(t)


def _highest_of(t: Trace) -> int:
    return max(m.total for m in moments(t))


def said(found: Sequence[Peak], point: Mapping[str, int]) -> int:
    """The peak by the formulas."""
    return max((int(number(p.total, point)) for p in found if is_there(p, point)), default=0)


def least_layers(analysis: Analysis, evidence: Evidence, found: Sequence[Peak]) -> dict[str, int]:
    """The smallest numbers of layers, or turns, of a run that the formulas were held against.

    Where the base has fewer than all runs that took part in the fit, it is held against them, too, with one more such run.
    """
    least = {n: min(int(t.sizes[n]) for t in evidence.traces) for n in (*evidence.depths, *_loops(analysis))}
    base = {n: int(v) for n, v in evidence.base.sizes.items()}
    lower = {n: base[n] for n, v in least.items() if base[n] < v}
    if not lower or _highest_of(evidence.base) != said(found, base):
        return least
    further = {**{n: int(v) for n, v in evidence.traces[1].sizes.items()}, **lower}
    return {**least, **lower} if _seen(analysis, further) == said(found, further) else least


def _loops(analysis: Analysis) -> list[str]:
    """The sizes that say how often something is called: with fewer calls, others are the first and the last."""
    assert analysis.origin is not None
    inside = {str(s) for c in analysis.graph.calls for s in c.count.free_symbols}
    return [n for n in analysis.sizes if n in inside and n not in analysis.origin.evidence.depths]


def shortcut(graph: Graph, evidence: Evidence, found: Sequence[Peak]) -> str:
    """What a run at the base sizes holds otherwise than the formulas, where it took no part in the fit."""
    base = evidence.base
    if base in evidence.traces:
        return ""
    expected = said(found, base.sizes)
    seen = _highest_of(base)
    ones = where_one(graph, {n: int(v) for n, v in base.sizes.items()}) or "the base sizes"
    return "" if seen == expected else f"at {ones} {SHORTCUT}: a run holds {100 * (seen / expected - 1):+.2g} %"
