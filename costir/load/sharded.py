"""`A[I, J_X] . B[J_X, K] -> C[I, K]` on a mesh: the calls of one device, with the collectives that they need.

A name after `_` splits a dimension over mesh axes, a letter each; `{U_X}` after an array says that it is a sum over X that is
not made yet. Shapes are those of one device: J over X is J/X. How the layouts are brought together is found by `layouts`; the
way with the fewest bytes sent comes first, others that may be faster on some chip stand beside it as alternatives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from costir.errors import SizeError, nearest
from costir.ir import Call, Constraint, Graph, Tensor, Weight
from costir.load.layouts import ANY, SUM, Axis, Layout, Numbers, Step, Way, best, ways
from costir.load.notation_reader import Operand
from costir.mesh import Mesh
from costir.symbolic import Expr, divides, product, to_fraction

MOST_AXES = 6


@dataclass(frozen=True)
class Array:
    """An operand or a result: its name, dimensions, and the tensor as it is without a mesh."""

    name: str
    dims: tuple[Axis, ...]
    tensor: Tensor
    layout: Layout


def is_sharded(operands: Sequence[Operand]) -> bool:
    """Whether a mesh axis is written anywhere."""
    return any(o.sums or any(d.axes for d in o.dims) for o in operands)


def check_axes(operands: Sequence[Operand], mesh: Mapping[str, int], names: Sequence[str]) -> None:
    """Refuse axes that the mesh has not, and names that are dimensions and axes.

    Raises:
        SizeError: one sentence that says which.
    """
    used = dict.fromkeys(a for o in operands for a in (*(a for d in o.dims for a in d.axes), *o.sums))
    for axis in used:
        if axis not in mesh:
            hint = nearest(axis, mesh) if mesh else f"add its length: --mesh {axis}=4"
            raise SizeError(f"the mesh has no axis {axis!r}" if mesh else f"the mesh axis {axis} has no length", hint)
    both = next((n for n in names if n in mesh), None)
    if both is not None:
        raise SizeError(f"{both} is a dimension and a mesh axis", "give one of them another name")
    if len(mesh) > MOST_AXES:
        raise SizeError(f"the mesh has {len(mesh)} axes; at most {MOST_AXES} are read with notation")


def layout_of(o: Operand | None, dims: Sequence[Axis], mesh: Mapping[str, int]) -> Layout:
    """What each mesh axis does to an array as it is written."""
    if o is None:
        return tuple((a, ANY) for a in mesh)
    places = {a: dims[i] for i, d in enumerate(o.dims) for a in d.axes} | dict.fromkeys(o.sums, SUM)
    return tuple((a, places.get(a)) for a in mesh)


def splits_of(arrays: Sequence[Array]) -> dict[str, tuple[str, ...]]:
    """The mesh axes that each named dimension is split over, in one array or another."""
    found: dict[str, dict[str, None]] = {}
    for array in arrays:
        for a, place in array.layout:
            if place is not None and place[1] == 0:
                found.setdefault(place[0], {})[a] = None
    return {name: tuple(axes) for name, axes in found.items()}


def rounded(
    base: Mapping[str, int], given: Mapping[str, int], splits: Mapping[str, Sequence[str]], mesh: Mapping[str, int]
) -> dict[str, int]:
    """Base sizes that nobody gave, moved up to the next that divides evenly."""
    out = dict(base)
    for name, axes in splits.items():
        n = math.prod(mesh[a] for a in axes)
        if name not in given:
            out[name] = -(-out[name] // n) * n
    return out


@dataclass(frozen=True)
class Builder:
    """Makes the calls of one device.

    Attributes:
        mesh: the devices. extents: of every dimension, whole. base: sizes and mesh lengths in numbers.
    """

    mesh: Mesh
    extents: Mapping[Axis, Expr]
    base: Mapping[str, int]

    def local(self, array: Array, layout: Layout, ref: int | None = None) -> Tensor:
        """An array as one device has it."""
        shape = []
        for d in array.dims:
            over = [self.mesh.length(a) for a, place in layout if place == d]
            shape.append(self.extents[d] / product(over) if over else self.extents[d])
        return replace(array.tensor, shape=tuple(shape), ref=array.tensor.ref if ref is None else ref)

    def moved(self, array: Array, steps: Sequence[Step], ref: int) -> tuple[list[Call], Tensor]:
        """The collectives of some steps, and the tensor after them."""
        now, calls = self.local(array, array.layout), []
        for k, step in enumerate(steps):
            after = self.local(array, step.after, ref + k)
            if step.kind == "slice":
                now = replace(after, ref=now.ref)
                continue
            args = {"self": now, "axes": step.axes, "devices": self.mesh.group(step.axes)}
            after = replace(after, role="activation")
            calls.append(Call(f"costir.{step.kind}.default", args, (after,), path=array.name))
            now = after
        return calls, now

    def numbers(self, arrays: Sequence[Array]) -> Numbers:
        """Extents and lengths at the base."""
        here = {d: e.xreplace({s: self.base[str(s)] for s in e.free_symbols}) for d, e in self.extents.items()}
        lengths = {n: int(self.base.get(n, 0) or int(length)) for n, length in self.mesh.axes}
        sizes = tuple(to_fraction(a.tensor.itemsize) or Fraction(1) for a in arrays)
        return Numbers({d: int(e) for d, e in here.items()}, lengths, sizes)

    def product(self, equation: str, operands: Sequence[Array], result: Array, way: Way) -> tuple[list[Call], Array]:
        """The calls of one product, and its result as it lies."""
        calls: list[Call] = []
        ready = []
        for i, (array, steps) in enumerate(zip(operands, way.operands, strict=True)):
            before, tensor = self.moved(array, steps, 1000 + 100 * i + 10 * result.tensor.ref)
            calls += before
            ready.append(tensor)
        natural = replace(result, layout=way.natural)
        out = self.local(natural, way.natural)
        calls.append(Call("costir.einsum", {"equation": equation, "operands": tuple(ready)}, (out,), path=result.name))
        after, _ = self.moved(natural, way.result, 2000 + 10 * result.tensor.ref)
        return [*calls, *after], replace(result, layout=way.layout)


def search(builder: Builder, operands: Sequence[Array], result: Array) -> list[Way]:
    """The ways worth looking at, the one with the fewest bytes sent first.

    Raises:
        SizeError: where the result is asked to be a sum over an axis along which nothing is summed.
    """
    dims = [a.dims for a in operands]
    found = ways(dims, result.dims, [a.layout for a in operands], result.layout)
    if not found:
        axes = [a for a, place in result.layout if place == SUM]
        raise SizeError(f"nothing is summed over {', '.join(axes)}, so that the result is no sum over it", "leave out {U_...}")
    return best(found, dims, result.dims, builder.numbers([*operands, result]))


def constraints(builder: Builder, arrays: Sequence[Array], chosen: Sequence[Way]) -> tuple[Constraint, ...]:
    """Every split dimension divides evenly; over some axes it does where it does over these and others.

    Raises:
        SizeError: where one does not at the base sizes.
    """
    layouts = [layout for a in arrays for layout in [a.layout]]
    layouts += [layout for way in chosen for layout in (*way.product, way.natural, way.layout)]
    found: dict[tuple[Expr, frozenset[str]], Constraint] = {}
    for layout in layouts:
        by_dim: dict[Axis, list[str]] = {}
        for a, place in layout:
            if place is not None and place[1] >= 0:
                by_dim.setdefault(place, []).append(a)
        for dim, axes in by_dim.items():
            condition = divides(self_extent := builder.extents[dim], builder.mesh.group(axes))
            here = self_extent.xreplace({s: builder.base[str(s)] for s in self_extent.free_symbols})
            n = math.prod(builder.base[a] for a in axes)
            if int(here) % n:
                shown = f"{dim[0]} = {here}" if dim[0] else str(here)
                raise SizeError(f"{shown} does not split evenly over {'*'.join(axes)} = {n} devices", "change --size or --mesh")
            found[self_extent, frozenset(axes)] = Constraint(condition)
    return tuple(c for (extent, axes), c in found.items() if not any(extent == e and axes < more for e, more in found))


def label(operands: Sequence[Array], result: Array, way: Way) -> str:
    """A way in words: "all_gather A over X", "all_reduce C over X", "no communication"."""
    named = [(a.name, s) for a, steps in zip((*operands, result), (*way.operands, way.result), strict=True) for s in steps]
    words = [f"{s.kind} {name or 'the result'} over {', '.join(s.axes)}" for name, s in named if s.kind != "slice"]
    return ", then ".join(words) or "no communication"


def cases(operands: Sequence[Array], result: Array) -> list[str]:
    """Which of the four cases each mesh axis is, in words."""
    out: list[str] = []
    for i, (axis, _) in enumerate(result.layout if len(operands) > 1 else ()):
        places = [a.layout[i][1] for a in operands]
        split = [p for p in places if p is not None and p != SUM]
        summed = [p for p in split if p not in result.dims]
        if SUM in places:
            out.append(f"{axis}: an operand is a sum over {axis} that is not made yet")
        elif len(summed) == 2 and summed[0] == summed[1]:
            out.append(f"{axis}: both operands are split along {_name(summed[0])}, which is summed (case 3)")
        elif len(summed) == 1 and len(operands) == 2:
            out.append(f"{axis}: one operand is split along {_name(summed[0])}, which is summed (case 2)")
        elif len(split) == 2 and split[0] != split[1]:
            out.append(f"{axis}: splits {_name(split[0])} and {_name(split[1])}; one has to be gathered (case 4)")
        elif split:
            out.append(f"{axis}: splits {_name(split[0])}, which is kept: the product needs nothing from elsewhere (case 1)")
    return out


def _name(dim: Axis) -> str:
    return dim[0] or "a number"


def waste(way: Way, lengths: Mapping[str, int]) -> list[str]:
    """What is computed more than once."""
    same = [a for a in way.repeated if lengths[a] > 1]
    if not same:
        return []
    n = math.prod(lengths[a] for a in same)
    return [f"waste: computed {'*'.join(same)} = {n} times over, as along {', '.join(same)} nothing is split"]


def graph(name: str, builder: Builder, operands: Sequence[Array], products: Sequence[tuple[str, int, Array]],
          weights: Sequence[Weight], notes: Sequence[str]) -> Graph:  # fmt: skip
    """The graph of one device. With one product, its other ways are the graph's alternatives.

    Args:
        name: of the graph. builder: the mesh.
        operands: as they are given.
        products: per product its equation, the index of its right operand (-1 for a single array), and its result.
        weights: of one device.
        notes: to print.
    """
    arrays = [*operands, *(p[2] for p in products)]
    if len(products) == 1:
        equation, _, result = products[0]
        found = search(builder, operands, result)
        shared = (*notes, *cases(operands, result))
        limits = constraints(builder, [*operands, *([result] if ANY not in dict(result.layout).values() else [])], found)
        graphs = []
        for way in {label(operands, result, w): w for w in reversed(found)}.values():
            made, _ = builder.product(equation, operands, result, way)
            lengths = builder.numbers(arrays).lengths
            graphs.append(_graph(name, builder, operands, made, weights, (*shared, *waste(way, lengths)), limits,
                                 label(operands, result, way)))  # fmt: skip
        first, *others = reversed(graphs)
        return replace(first, alternatives=tuple(others))
    calls: list[Call] = []
    chosen: list[Way] = []
    left, said = operands[0], list(notes)
    for equation, right, result in products:
        pair = (left, operands[right])
        way = search(builder, pair, result)[0]
        made, left = builder.product(equation, pair, result, way)
        said += [
            f"product {len(chosen) + 1}, {c}" for c in (*cases(pair, result), *waste(way, builder.numbers(arrays).lengths))
        ]
        calls += made
        chosen.append(way)
    limits = constraints(builder, operands, chosen)
    return _graph(name, builder, operands, calls, weights, said, limits, "")


def _graph(name: str, builder: Builder, operands: Sequence[Array], calls: Sequence[Call], weights: Sequence[Weight],
           notes: Sequence[str], limits: tuple[Constraint, ...], plan: str) -> Graph:  # fmt: skip
    return Graph(
        name=name, sizes=builder.base, calls=tuple(calls), weights=tuple(weights), constraints=limits, notes=tuple(notes),
        mesh=builder.mesh, splits=splits_of(operands), plan=plan,
    )  # fmt: skip
