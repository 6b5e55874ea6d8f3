"""An analysis on a chip: times, what binds, critical sizes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from costir.errors import CostirError, one_of
from costir.ir import Threshold
from costir.network import AS_BUILT, Wiring

if TYPE_CHECKING:
    from costir.analysis import Analysis
    from costir.critical_path import CriticalPath
    from costir.hardware import Chip
    from costir.roofline import Timing


def fastest(analysis: Analysis, chip: Chip, wiring: Wiring = AS_BUILT, overlap: str = "op") -> Analysis:
    """The way to compute it that takes the least time on a chip at the base sizes; `alternatives` of it are the others.

    Of the stages of a pipeline that which takes the most: the others wait for it.
    """
    if not analysis.alternatives:
        return analysis
    from costir.roofline import roofline

    ways, choose = (analysis, *analysis.alternatives), max if analysis.graph.pipeline else min
    return led_by(choose(ways, key=lambda a: float(roofline(a.costed, chip, wiring, overlap).at().lower)), ways)


def planned(analysis: Analysis, text: str) -> Analysis:
    """The way whose plan is a text, or contains it, such as "all_reduce".

    Raises:
        CostirError: where there is none.
    """
    ways = (analysis, *analysis.alternatives)
    plans = {a.graph.plan.lower(): a for a in ways}
    found = plans.get(text.lower()) or next((a for plan, a in plans.items() if text.lower() in plan), None)
    if found is None:
        there = f"there is: {'; '.join(a.graph.plan for a in ways)}"
        one = "there is one way; several there are to one product in sharded notation on a mesh"
        raise CostirError(f"no way to compute it has {text[:60]!r}", there if any(plans) else one)
    return led_by(found, ways)


def led_by(first: Analysis, ways: Sequence[Analysis]) -> Analysis:
    """One of several ways, with the others as its alternatives."""
    graphs = [replace(a.graph, alternatives=()) for a in ways if a is not first]
    costed = replace(first.costed, graph=replace(first.graph, alternatives=tuple(graphs)))
    return replace(first, costed=costed)


@dataclass(frozen=True, repr=False)
class OnChip:
    """An analysis on a chip: times, what binds, critical sizes."""

    analysis: Analysis
    chip: Chip
    wiring: Wiring = AS_BUILT
    overlap: str = "op"

    @functools.cached_property
    def roofline(self) -> Any:
        """Times per operator and in total; see `costir.roofline`."""
        from costir.roofline import roofline

        return roofline(self.analysis.costed, self.chip, self.wiring, self.overlap)

    def at(self, **sizes: Any) -> Timing:
        """The times at one point, by the formulas of the branch that the model takes there.

        Args:
            sizes: numbers; or numpy arrays of one shape, by the formulas of the base's branch.

        Raises:
            SizeError: as for `Analysis.at`; for arrays where a point is outside the formulas.
        """
        import numpy as np

        from costir.roofline import roofline

        if any(np.ndim(v) for v in sizes.values()):
            return cast("Timing", self.roofline.at(**sizes))
        regime = self.analysis.regime_at(self.analysis.checked(sizes))
        return roofline(regime.costed, self.chip, self.wiring, self.overlap).at(**sizes)

    @functools.cached_property
    def step(self) -> float:
        """The least seconds of a step at the base sizes: of a pipeline, the slowest stage's and those that it waits."""
        from costir.build_mesh import step_seconds

        return step_seconds(self.roofline)

    @functools.cached_property
    def critical_path(self) -> CriticalPath:
        """The longest path through the operators at the base sizes; see `critical_path_at`."""
        return self.critical_path_at()

    def critical_path_at(self, **sizes: int) -> CriticalPath:
        """The time where every operator starts as soon as what it needs is there, and the operators that it comes from.

        Args:
            sizes: where; those left out stay at the base. The model is run there, on fake tensors, with all its layers.

        Raises:
            CostirError: there is no run to look at (a notation string, an exported program, a mesh), or it is too long.
            SizeError: as for `Analysis.at`.
        """
        from costir.critical_path import critical_paths

        return critical_paths(self.analysis, [self.chip], self.overlap, sizes)[0]

    def critical(self, unknown: str, against: str = "") -> Threshold:
        """The size at which the whole stops being bound by memory, or by the network where devices communicate.

        Args:
            unknown: a size, "tokens" (B*T), or a product such as "B*T".
            against: "memory" or "network"; by default the network where there is communication.
        """
        from costir.branches import whole
        from costir.build_mesh import beside

        one_of("against", against, ("", "memory", "network"))
        other = against or ("network" if self.analysis.network != 0 else "memory")
        costed = [a.costed for a in (self.analysis, *self.analysis.others)]
        return beside(whole(costed, self.chip, unknown, other, self.wiring), self.roofline)

    def thresholds(self, unknown: str, against: str = "") -> tuple[Threshold, ...]:
        """The critical size of the whole, then of each operator of the base's branch, compared with its memory traffic."""
        from costir.solve import of_operators

        return (self.critical(unknown, against), *of_operators(self.analysis.costed, self.chip, unknown))

    def roofline_figure(self) -> Any:
        """The roofline as a matplotlib figure: operators as points under the chip's roof."""
        from costir.plot import roofline_figure

        return roofline_figure(self.analysis, [self.chip])

    def __repr__(self) -> str:
        return f"{repr(self.analysis)[:-1]}, on {self.chip.label}>"

    def _repr_html_(self) -> str:
        from costir.render import notebook_html

        return notebook_html(self.analysis, [self.chip])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.roofline, name)
