"""All lengths of a mesh at once: the step time and the memory of one traced program as numpy arrays, and where they hold.

A program that was traced on a mesh is a sum of closed forms in the lengths of its axes. `Timed` puts it on a chip's links in
one `Placement` and evaluates it for arrays of lengths and batches; `placements` lists how a mesh can lie on these links:

- behind a switch the order of the axes decides which of them has its neighbours in one node;
- on a torus an axis may take several of the torus's, and an axis of the batch may go over the network between the pods.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from costir import symbolic as sym
from costir.ir import Constraint, Costed, Node
from costir.mesh import Mesh
from costir.network import AS_BUILT, FAR, Network, Wiring, shape_of, torus_axes
from costir.roofline import RESOURCES, Roofline, Times, roofline
from costir.symbolic import Expr

if TYPE_CHECKING:
    from costir.hardware import Chip

Array = npt.NDArray[np.float64]
Point = Mapping[str, Array]
CHUNK = 8192  # points at once: a model has hundreds of different operators, each with five arrays


@dataclass(frozen=True, slots=True)
class Placement:
    """How the axes of a mesh lie on a chip's links.

    Attributes:
        axes: the axes, the outermost first; neighbours differ in the last.
        spread: over how many axes of a torus each lies.
        links: axes that lie on another link than the nearest: (("dp", "dcn"),).
    """

    axes: tuple[str, ...]
    spread: tuple[int, ...]
    links: tuple[tuple[str, str], ...] = ()

    def parts(self, axis: str) -> tuple[str, ...]:
        """The names of the axes of the torus that an axis lies over; its own name where it is one."""
        count = self.spread[self.axes.index(axis)]
        return (axis,) if count == 1 else tuple(f"{axis}_{i}" for i in range(1, count + 1))

    @property
    def parted(self) -> tuple[str, ...]:
        """All axes as they lie on the links."""
        return tuple(p for a in self.axes for p in self.parts(a))


def placements(chip: Chip, axes: Sequence[str], batch_axes: Iterable[str], wiring: Wiring = AS_BUILT) -> tuple[Placement, ...]:
    """The ways that a mesh can lie on a chip's links, the order as given first.

    Args:
        chip: the chip.
        axes: the axes.
        batch_axes: those along which only the batch is divided, and weights and gradients are exchanged: these may leave a pod.
        wiring: what the user decided already.

    Raises:
        ChipError: where the chip has no link.
    """
    link = Network(chip, Mesh()).near
    pinned = dict(wiring.links)
    free = [a for a in axes if a not in pinned]
    if shape_of(link) != "torus":
        orders = itertools.permutations(axes) if len(free) == len(axes) else [tuple(axes)]
        return tuple(Placement(tuple(order), (1,) * len(axes)) for order in orders)
    far = next((n for n in FAR if n in chip.links), "")
    moved = [()] + [((a, far),) for a in batch_axes if a in free and far]
    out = []
    for links in moved:
        on_torus = [a not in pinned and a not in dict(links) for a in axes]
        for spread in itertools.product(*(range(1, 1 + (torus_axes(link) if t else 1)) for t in on_torus)):
            if sum(n for n, t in zip(spread, on_torus, strict=True) if t) <= torus_axes(link):
                out.append(Placement(tuple(axes), spread, links))
    return tuple(out)


def laid(costed: Costed, where: Placement) -> Costed:
    """The same program with its mesh in this order, and with an axis of a torus for each part of an axis."""
    graph = costed.graph
    parts = {a: where.parts(a) for a in where.axes}
    extra = {p: graph.sizes[a] if i == 0 else 1 for a in where.axes for i, p in enumerate(parts[a]) if p != a}
    mesh = Mesh(tuple((p, sym.size(p)) for p in where.parted))
    placed = replace(graph, mesh=mesh, sizes={**graph.sizes, **extra})
    return replace(costed, graph=placed, nodes=tuple(_spread(n, parts) for n in costed.nodes) if extra else costed.nodes)


def _spread(node: Node, parts: Mapping[str, tuple[str, ...]]) -> Node:
    """A call whose collectives run over the parts of their axes."""
    if not node.cost.transfers:
        return node
    moved = tuple(replace(t, axes=tuple(p for a in t.axes for p in parts[a])) for t in node.cost.transfers)
    return replace(node, cost=replace(node.cost, transfers=moved))


class Timed:
    """A program on a chip in one placement, for arrays of points.

    Attributes:
        where: the placement. roof: the program on the chip, the axes at their base lengths.
        labels: what can bind, in words: "compute", "vector", "memory", "network over tp", ...

    Raises:
        ChipError: where the chip cannot carry the mesh, or has no rate for what is computed.
    """

    def __init__(self, costed: Costed, chip: Chip, where: Placement, wiring: Wiring = AS_BUILT, overlap: str = "op") -> None:
        self.where = where
        self.roof: Roofline = roofline(laid(costed, where), chip, replace(wiring, links=(*wiring.links, *where.links)), overlap)
        self.constraints: tuple[Constraint, ...] = self.roof.constraints
        counts: dict[tuple[Times, str], list[Expr]] = {}
        for node, t in zip(self.roof.nodes, self.roof.times, strict=True):
            counts.setdefault((replace(t, notes=()), self._over(node)), []).append(node.call.count)
        self._rows = [(sym.total(c), t, over) for (t, over), c in counts.items()]
        self.labels = (*RESOURCES[:3], *dict.fromkeys(over for _, _, over in self._rows if over))

    def _over(self, node: Node) -> str:
        """The label of a collective: the axes that it runs over, by the names that the user knows."""
        over = {p for t in node.cost.transfers for p in t.axes}
        axes = [a for a in self.where.axes if over & set(self.where.parts(a))]
        return f"network over {' and '.join(axes)}" if axes else ""

    @property
    def networks(self) -> dict[str, Expr]:
        """The seconds of all collectives over the same axes, by label."""
        return {label: sym.total(n * t.network for n, t, o in self._rows if o == label) for label in self.labels[3:]}

    @property
    def compute(self) -> Expr:
        """The seconds of all contractions."""
        return sym.total(n * t.compute for n, t, _ in self._rows)

    @property
    def formula(self) -> Expr:
        """The seconds of a step, an expression in the sizes and the lengths of the axes."""
        if self.roof.overlap == "full":
            units = [sym.total(n * t.units[i] for n, t, _ in self._rows) for i in range(3)]
            return sym.maximum([*units, *self.roof.by_link.values()])
        if self.roof.overlap == "none":
            return sym.total(n * t.upper for n, t, _ in self._rows)
        return sym.total(n * t.lower for n, t, _ in self._rows)

    @cached_property
    def _compiled(self) -> Any:
        flat = [e for n, t, _ in self._rows for e in (n, *t.units)]
        flat += self.roof.by_link.values() if self.roof.overlap == "full" else ()
        return sym.compile_many(flat, list(self.roof.costed.graph.sizes))

    @cached_property
    def _conditions(self) -> Any:
        return sym.compile_many([c.condition for c in self.constraints], list(self.roof.costed.graph.sizes))

    def columns(self, point: Mapping[str, Any]) -> list[Array]:
        """The values of all sizes, those left out at the base, broadcast against each other."""
        sizes = self.roof.costed.graph.sizes
        return list(np.broadcast_arrays(*(np.asarray(point.get(n, v), dtype=float) for n, v in sizes.items())))

    def holds(self, point: Mapping[str, Any]) -> list[npt.NDArray[np.bool_]]:
        """Of each of `constraints`, where it is met."""
        columns = self.columns(point)
        if not self.constraints:
            return []
        return [np.broadcast_to(np.asarray(x, dtype=bool), columns[0].shape) for x in self._conditions(*columns)]

    def seconds(self, point: Mapping[str, Any]) -> tuple[Array, dict[str, Array]]:
        """The seconds of a step, and what they are made of.

        Returns:
            the time, and by `labels` the time in which each binds: of operators that it binds (overlap "op"), all of its own
            ("none", "full"). They add up to the time, but for "full", where the time is that of the longest unit or link.
        """
        given = self.columns(point)
        columns, shape = [c.ravel() for c in given], given[0].shape
        pieces = [self._some([c[i : i + CHUNK] for c in columns]) for i in range(0, max(columns[0].size, 1), CHUNK)]
        whole = np.concatenate(pieces, axis=1).reshape(1 + len(self.labels), *shape)
        return whole[0], dict(zip(self.labels, whole[1:], strict=True))

    def _some(self, columns: Sequence[Array]) -> Array:
        """The time and its parts of one chunk, a row each."""
        flat, count = self._compiled(*columns), columns[0].size
        found = {label: np.zeros(count) for label in self.labels}
        for i, (_, _, over) in enumerate(self._rows):
            times, *units = (np.broadcast_to(np.asarray(x, dtype=float), (count,)) for x in flat[5 * i : 5 * i + 5])
            names = [*RESOURCES[:3], over]
            if self.roof.overlap == "op":
                slowest = np.argmax(units, axis=0)
                for k, name in enumerate(names):
                    if name:
                        found[name] = found[name] + np.where(slowest == k, times * units[k], 0.0)
            else:
                for unit, name in zip(units, names, strict=True):
                    if name:
                        found[name] = found[name] + times * unit
        rows = list(found.values())
        if self.roof.overlap != "full":
            return np.stack([np.sum(rows, axis=0), *rows])
        links = [np.broadcast_to(np.asarray(x, dtype=float), (count,)) for x in flat[5 * len(self._rows) :]]
        return np.stack([np.max([*rows[:3], *links], axis=0), *rows])


def factored(devices: int, axes: int) -> Iterator[tuple[int, ...]]:
    """The lengths, all from 2 on, of so many axes that multiply to a number of devices, in every order."""
    if axes == 1:
        if devices > 1:
            yield (devices,)
        return
    for first in range(2, devices // 2 ** (axes - 1) + 1):
        if devices % first == 0:
            yield from ((first, *rest) for rest in factored(devices // first, axes - 1))


def up_to(candidates: Sequence[Sequence[int]], most: int) -> Array:
    """All lengths with so many devices at the most, one choice of each axis's candidates, a row each."""
    found = np.ones((1, 0))
    for values in candidates:
        column = np.asarray(sorted(values), dtype=float)
        found = np.column_stack([np.repeat(found, len(column), axis=0), np.tile(column, len(found))])
        found = found[np.prod(found, axis=1) <= most]
    return found
