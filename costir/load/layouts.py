"""Products of arrays that are split over a mesh: what has to be communicated, and the ways to do it.

For each mesh axis an array is split along one dimension, or whole on every device, or a sum that is not made yet (SUM). A
product can be computed on the spot where its operands agree: a dimension that both have must be split alike in both, an axis
must not split two different dimensions of the result, and at most one operand may be a sum. What comes out is split along
the kept dimension, or a SUM where the split dimension is summed. These are the four cases of the scaling book (chapter 3):

1. the summed dimension is whole: nothing to send;
2. one operand is split along it: gather that operand, or take the matching slice of the other and add up afterwards;
3. both are split along it: each device has a part of every sum; all_reduce, or reduce_scatter where the result is split;
4. one axis splits different kept dimensions of both: gather one of them.

All of them are found by one search: per axis, every way to move the operands so that they agree, and to bring the result to the
layout that was asked for. Of all ways those are kept that no other beats in both bytes sent and FLOPs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

Axis = tuple[str, int]  # a dimension: (name, 0), or ("", n) for the n-th number
SUM: Axis = ("+", -1)
Place = Axis | None  # what a mesh axis does to an array: splits a dimension, nothing, or SUM
Layout = tuple[tuple[str, Place], ...]  # by mesh axis, in the order of the mesh
ANY: Axis = ("?", -2)  # a layout that is not asked for


@dataclass(frozen=True, slots=True)
class Step:
    """One move of an array from a layout to another.

    Attributes:
        kind: a collective, or "slice", which costs nothing.
        axes: the mesh axes over which it goes.
        before, after: the layouts.
    """

    kind: str
    axes: tuple[str, ...]
    before: Layout
    after: Layout


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute a product: how each operand is moved, what comes out, and how that is moved."""

    operands: tuple[tuple[Step, ...], ...]
    product: tuple[Layout, ...]  # of the operands as they are multiplied
    natural: Layout
    result: tuple[Step, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All collectives, in order."""
        return tuple(s for s in itertools.chain(*self.operands, self.result) if s.kind != "slice")

    @property
    def layout(self) -> Layout:
        """Of the result."""
        return self.result[-1].after if self.result else self.natural

    @property
    def repeated(self) -> tuple[str, ...]:
        """The mesh axes along which every device computes as much as one without the axis would."""
        idle = [all(dict(layout)[a] in (None, SUM) for layout in self.product) for a, _ in self.natural]
        return tuple(a for (a, _), same in zip(self.natural, idle, strict=True) if same)


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the search needs in numbers: extents of dimensions, lengths of mesh axes, bytes per element of each array."""

    extents: Mapping[Axis, int]
    lengths: Mapping[str, int]
    itemsizes: tuple[Fraction, ...]

    def elements(self, dims: Iterable[Axis], layout: Layout) -> Fraction:
        """Elements that one device has."""
        split = math.prod(self.lengths[a] for a, place in layout if place is not None and place != SUM)
        return Fraction(math.prod(self.extents[d] for d in dims), split)


def kind_of(before: Place, after: Place) -> str:
    """What leads from one place to another; "" for nothing to do, "impossible" where there is no way."""
    if before == after:
        return ""
    if after == SUM:
        return "impossible"
    if before == SUM:
        return "all_reduce" if after is None else "reduce_scatter"
    if before is None:
        return "slice"
    return "all_gather" if after is None else "all_to_all"


def moves(before: Layout, after: Layout) -> tuple[Step, ...]:
    """The steps from one layout to another, those that make arrays smaller first; axes that do the same go together."""
    now, goal, out = dict(before), dict(after), []
    for kind in ("slice", "reduce_scatter", "all_reduce", "all_to_all", "all_gather"):
        together: dict[tuple[Place, Place] | None, list[str]] = {}
        for a in now:
            if kind_of(now[a], goal[a]) == kind:
                ends = (now[a], goal[a]) if kind in ("reduce_scatter", "all_to_all") else None
                together.setdefault(ends, []).append(a)
        for group in together.values():
            was = tuple(now.items())
            now.update({a: goal[a] for a in group})
            out.append(Step(kind, tuple(group), was, tuple(now.items())))
    return tuple(out)


def ways(dims: Sequence[Sequence[Axis]], out: Sequence[Axis], layouts: Sequence[Layout], target: Layout) -> list[Way]:
    """All ways to compute a product of one or two arrays.

    Args:
        dims: the dimensions of each operand. out: those of the result.
        layouts: of each operand. target: of the result; ANY where it may be anything.
    """
    per_axis = []
    for i, (axis, goal) in enumerate(target):
        here = [layout[i][1] for layout in layouts]
        per_axis.append([(axis, *c) for c in _choices(here, goal, [set(d) for d in dims], set(out))])
    found = []
    for combination in itertools.product(*per_axis):
        product = tuple(tuple((axis, places[j]) for axis, places, _, _ in combination) for j in range(len(dims)))
        natural = tuple((axis, place) for axis, _, place, _ in combination)
        final = tuple((axis, place) for axis, _, _, place in combination)
        steps = tuple(moves(a, b) for a, b in zip(layouts, product, strict=True))
        found.append(Way(steps, product, natural, moves(natural, final)))
    return found


def _choices(
    here: Sequence[Place], goal: Place, dims: Sequence[set[Axis]], out: set[Axis]
) -> list[tuple[tuple[Place, ...], Place, Place]]:
    """Along one mesh axis: the places of the operands at the product, of what comes out, and of the result."""
    wanted = {p for p in (*here, goal) if p is not None and p not in (SUM, ANY)}
    options = [_reachable(p, own & wanted) for p, own in zip(here, dims, strict=True)]
    found = []
    for places in itertools.product(*options):
        natural = _product(places, dims, out)
        final = natural[0] if natural and goal == ANY else goal
        if natural and kind_of(natural[0], final) != "impossible":
            found.append((places, natural[0], final))
    return found


def _reachable(place: Place, own: set[Axis]) -> list[Place]:
    """Where an operand may be brought: as it is, whole, or split along a dimension of its own that plays a part."""
    return list(dict.fromkeys([place, None, *sorted(own)]))


def _product(places: Sequence[Place], dims: Sequence[set[Axis]], out: set[Axis]) -> tuple[Place] | None:
    """What comes out of operands in these places along one axis; None where they do not agree."""
    held = [p for p in places if p is not None]
    if not held:
        return (None,)
    if SUM in held:
        return (SUM,) if len(held) == 1 else None
    first = held[0]
    if any(p != (first if first in own else None) for p, own in zip(places, dims, strict=True)):
        return None
    return (first if first in out else SUM,)


# ------------------------------------------------------------------------------------------------------------ comparison


def cost_of(
    way: Way, dims: Sequence[Sequence[Axis]], out: Sequence[Axis], numbers: Numbers
) -> tuple[Fraction, Fraction, Fraction]:
    """Bytes sent by one device, products that it computes, bytes of its operands and result: what ways are compared by."""
    sent = Fraction(0)
    for steps, own, itemsize in zip((*way.operands, way.result), (*dims, out), numbers.itemsizes, strict=True):
        sent += sum((_sent(s, own, numbers) * itemsize for s in steps), Fraction(0))
    every = dict.fromkeys(itertools.chain(*dims))
    places = {a: p for layout in way.product for a, p in layout if p is not None and p != SUM}
    work = numbers.elements(every, tuple(places.items()))
    arrays = zip((*way.product, way.natural), (*dims, out), numbers.itemsizes, strict=True)
    return sent, work, sum((numbers.elements(own, layout) * size for layout, own, size in arrays), Fraction(0))


def _sent(step: Step, dims: Sequence[Axis], numbers: Numbers) -> Fraction:
    """Elements that one device sends, as docs/devices.md has it."""
    n = math.prod(numbers.lengths[a] for a in step.axes)
    before = numbers.elements(dims, step.before)
    factor = {"slice": Fraction(0), "all_gather": Fraction(n - 1), "reduce_scatter": Fraction(n - 1, n),
              "all_reduce": Fraction(2 * (n - 1), n), "all_to_all": Fraction(n - 1, n)}  # fmt: skip
    return before * factor[step.kind]


def best(found: Sequence[Way], dims: Sequence[Sequence[Axis]], out: Sequence[Axis], numbers: Numbers) -> list[Way]:
    """Those that no other beats in bytes sent and in products computed; the fewest bytes first.

    Of those that gather and of those that sum up over devices the best is always among them, for comparison.
    """
    costs = {way: cost_of(way, dims, out, numbers) for way in found}
    order = sorted(found, key=lambda w: (*costs[w], len(w.steps)))
    kept: list[Way] = []
    for way in order:
        if all(costs[way][1] < costs[k][1] for k in kept):
            kept.append(way)
    for sums in (False, True):
        first = next((w for w in order if any(p == SUM for _, p in w.natural) is sums), None)
        if first is not None and first not in kept:
            kept.append(first)
    return kept
