"""Sizes that cannot vary alone: they follow others (D == N*H), or stay what they are."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costir import trace
from costir.errors import CostirError
from costir.lifting import depth as layers
from costir.lifting.guards import conflicts
from costir.load.family import Family
from costir.trace import Trace


@dataclass(frozen=True)
class Run:
    """What stays the same over the attempts to lift one family.

    Attributes:
        family, phase, optimizer: what is run.
        depth: how layers repeat.
        ties: sizes that must be the product of others.
        known: traces made so far, by point.
        loops: the program runs more operators at larger sizes.
        multiples: what sizes are kept multiples of, where the model does not run at others.
    """

    family: Family
    phase: str
    optimizer: Any
    depth: layers.Depth
    ties: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    loops: bool = False
    multiples: Mapping[str, int] = dataclasses.field(default_factory=dict)
    known: dict[tuple[int, ...], Trace] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def trace(self, point: Mapping[str, int]) -> Trace:
        """One trace, tied sizes following the others."""
        full = dict(point)
        for n, others in self.ties.items():
            full[n] = math.prod(full[o] for o in others)
        point = {n: full[n] for n in self.family.sizes}
        key = tuple(point.values())
        if key not in self.known:
            self.known[key] = trace.run(self.family, point, self.phase, self.optimizer)
        return self.known[key]


def find_stuck(run: Run, base: Trace, names: Sequence[str]) -> dict[str, str]:
    """The sizes that cannot be changed alone without breaking the model or its regime, with what happened."""
    stuck = {}
    for n in names:
        value = base.sizes[n]
        tried = [v for v in dict.fromkeys((2 * value, 3 * value, value + 1, max(1, value // 2))) if v != value]
        reasons = []
        for v in tried:
            reason = _unlike(run, base, {**base.sizes, n: v})
            if not reason:
                break
            reasons.append(reason)
        else:
            stuck[n] = f"{n} = {', '.join(map(str, tried))} were tried: {reasons[0]}"
    return stuck


def find_ties(run: Run, base: Trace, stuck: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Sizes that must equal another, or the product of two others: N == K, D == N*H. Found by changing them together."""
    found: dict[str, tuple[str, ...]] = {}
    for n in sorted(stuck, key=lambda n: -base.sizes[n]):
        free = [m for m in stuck if m != n and m not in found]
        for others in (*itertools.combinations(free, 1), *itertools.combinations(free, 2)):
            if math.prod(base.sizes[o] for o in others) != base.sizes[n] or any(n in t for t in found.values()):
                continue
            moved = {**base.sizes, **{o: 3 * base.sizes[o] for o in others}, n: 3 ** len(others) * base.sizes[n]}
            if not _unlike(run, base, moved):
                found[n] = others
                break
    return found


def _unlike(run: Run, base: Trace, point: Mapping[str, int]) -> str:
    """What goes otherwise at a point than at the base; "" where nothing does."""
    try:
        clash = conflicts(base, [run.trace(point)])
    except CostirError as problem:
        return problem.message
    return f"another branch is taken at {clash[0].source}" if clash else ""


def likely_culprits(names: Sequence[str], depths: Sequence[str], asked: Sequence[str] = ()) -> list[str]:
    """Sizes in the order in which they are suspected to steer the program: those it asked about, layers, lengths, the rest."""

    def rank(n: str) -> int:
        return 0 if n in asked else 1 if n in depths else 2 if n[:1].lower() in "tslwe" else 3

    return sorted(names, key=rank)
