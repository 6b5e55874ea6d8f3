"""The field's notation for products of named tensors: `X[B,D] . Y[D,F] -> Z[B,F]`, `bf16[B,8192] . [8192,8192]`.

    notation := operand (SEPARATOR operand)* ["->" operand]      SEPARATOR is one of  .  ·  ,  @
    operand  := [dtype] [name] "[" [dim ("," dim)*] "]"           dim is a name or a number (128k is 131072)

How it is read:

- A name is an axis; the same name is the same axis in every operand.
- A number is an axis of its own. Where the last dimension of an operand and the first of the next one are equal numbers,
  they are one axis, as in a matrix product. Numbers that could be meant as one axis otherwise are refused: name them.
- With an output, axes that are not in it are summed. Without, axes shared by operands are summed, the others are kept in
  order of appearance (the rule of einsum).
- More than two operands are multiplied from left to right; an axis is summed as soon as nothing later needs it.
- The first operand is the input. A later operand of two or more dimensions is a weight, unless it shares with the first
  an axis that is kept (a batch axis): then it is an activation, as K in `Q[B,T,H] . K[B,S,H] -> P[B,T,S]`.
- Types: an operand's prefix is its storage; else `weights=` of `--dtype` for weights; else `--dtype`; else bf16. The output
  has its prefix's type, else the widest floating type among the operands, else the first operand's: int8 by int8 gives int8.
- `I_X` is split over the mesh axis X, `I_XY` over two, `I_dp` over an axis of the mesh with a longer name, and `{U_X}` after an
  array says that it is a sum over X that is not made yet; see `costir.load.sharded`.
- Base sizes: B (or b, batch) is 1, every other name 4096; `--size` moves them.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Mapping, Sequence

from costir.errors import NotationError
from costir.ir import ITEMSIZE, Call, Graph, Role, Tensor, Weight
from costir.load.dtypes import Dtypes, split_dtype
from costir.load.family import with_sizes
from costir.load.notation_reader import Dim, Operand, read, slip
from costir.load.sharded import Array, Builder, check_axes, graph, is_sharded, layout_of, rounded, splits_of
from costir.mesh import Mesh
from costir.symbolic import Expr, number, size

DEFAULT_DTYPE = "bfloat16"
BATCH_NAMES = frozenset({"B", "b", "batch"})
LETTERS = string.ascii_lowercase + string.ascii_uppercase

Axis = tuple[str, int]  # (name, 0), or ("", n) for the n-th number


def parse(text: str, dtype: str = "", sizes: Mapping[str, int] | None = None, mesh: Mapping[str, int] | None = None) -> Graph:
    """The graph of a notation string: one `costir.einsum` call per product.

    A call's args are {"equation": "ab,bc->ac", "operands": (Tensor, ...)}, with one letter per axis and one or two operands.

    Args:
        text: the notation.
        dtype: as `--dtype`: "bf16", "bf16,weights=int8".
        sizes: base sizes that replace the default ones.
        mesh: the devices along each mesh axis; shapes and calls are then those of one device, collectives among them.

    Raises:
        NotationError: where the text has a slip; the message points at the character.
        SizeError: where `sizes` names a size that the notation has not.
    """
    operands, output = read(text, mesh or ())
    axes = _axes(text, operands)
    extent = {a: d for o, row in zip(operands, axes, strict=True) for a, d in zip(row, o.dims, strict=True)}
    kept = _kept(text, operands, axes, output)
    roles = [_role(i, row, axes[0], kept) for i, row in enumerate(axes)]
    tensors = _tensors(operands, axes, roles, split_dtype(dtype))
    out_dtype = output.dtype if output and output.dtype else _widest(tensors)
    names = dict.fromkeys(d.text for o in operands for d in o.dims if d.value is None)
    title, usual = " ".join(text.split()), {n: 1 if n in BATCH_NAMES else 4096 for n in names}
    written = [*operands, *([output] if output else [])]
    notes = (*_notes(extent, kept, output, tensors, out_dtype), *_kept_where_they_meet(axes, kept, extent))
    if mesh or is_sharded(written):
        check_axes(written, mesh or {}, list(names))
        notes += _named_axes(written)
    long = {a: n for a, n in (mesh or {}).items() if n > 1}  # along one device nothing is split or sent
    if long:
        operands = [o.over(long) for o in operands]
        output = output and output.over(long)
        return _on_mesh(title, operands, output, axes, kept, extent, tensors, out_dtype, usual, sizes or {}, long, notes)
    base = with_sizes(usual, sizes or {}, "the notation")
    return Graph(
        name=title,
        sizes=base,
        calls=_calls(tensors, axes, kept, extent, out_dtype, output.name if output else ""),
        weights=tuple(
            Weight(o.name or f"operand {i + 1}", t)
            for i, (o, t) in enumerate(zip(operands, tensors, strict=True))
            if t.role == "weight" and t.ref == i
        ),
        notes=notes,
    )


def _on_mesh(
    title: str,
    operands: Sequence[Operand],
    output: Operand | None,
    axes: Sequence[tuple[Axis, ...]],
    kept: tuple[Axis, ...],
    extent: Mapping[Axis, Dim],
    tensors: Sequence[Tensor],
    dtype: str,
    usual: Mapping[str, int],
    sizes: Mapping[str, int],
    mesh: Mapping[str, int],
    notes: Sequence[str],
) -> Graph:
    """The graph of one device of a mesh."""
    given = [
        Array(o.name or f"operand {i + 1}", row, t, layout_of(o, row, mesh))
        for i, (o, row, t) in enumerate(zip(operands, axes, tensors, strict=True))
    ]
    calls = _calls(tensors, axes, kept, extent, dtype, output.name if output else "")
    order = _results(axes, kept)
    results = []
    for i, (call, dims) in enumerate(zip(calls, order, strict=True)):
        last = i == len(calls) - 1
        layout = layout_of(output if last else None, dims, mesh)
        name = (output.name if last and output else "") or ("" if last else f"product {i + 1}")
        results.append((call.args["equation"], i + 1, Array(name, dims, call.outputs[0], layout)))
    asked = [*given, *([results[-1][2]] if output else [])]
    base = with_sizes({**rounded(usual, sizes, splits_of(asked), mesh), **mesh}, sizes, "the notation")
    builder = Builder(Mesh.of(list(mesh)), {a: _extent(d) for a, d in extent.items()}, base)
    weights = [
        Weight(a.name, builder.local(a, a.layout))
        for i, a in enumerate(given)
        if a.tensor.role == "weight" and a.tensor.ref == i
    ]
    return graph(title, builder, given, results, weights, notes)


def _results(axes: Sequence[tuple[Axis, ...]], kept: tuple[Axis, ...]) -> list[tuple[Axis, ...]]:
    """The dimensions of every product, from left to right."""
    out, left = [], axes[0]
    for i in range(1, max(2, len(axes))):
        later = {a for row in axes[i + 1 :] for a in row} | set(kept)
        rows = (left, axes[i]) if len(axes) > 1 else (left,)
        left = kept if i >= len(axes) - 1 else tuple(a for a in dict.fromkeys(a for row in rows for a in row) if a in later)
        out.append(left)
    return out


def _axes(text: str, operands: Sequence[Operand]) -> list[tuple[Axis, ...]]:
    """The axis of every dimension; numbers that meet in a matrix product become one axis."""
    axes: list[list[Axis]] = []
    count = 0
    for i, o in enumerate(operands):
        row: list[Axis] = []
        for j, d in enumerate(o.dims):
            if d.value is None:
                if (d.text, 0) in row:
                    raise slip(
                        text,
                        d.at,
                        f"{d.text} stands twice in one operand; write a square matrix with two names or the number",
                    )
                row.append((d.text, 0))
            elif j == 0 and i > 0 and _meets(text, operands[i - 1], o):
                row.append(axes[i - 1][-1])
            else:
                count += 1
                row.append(("", count))
        axes.append(row)
        if i > 0:
            _check_shared(text, operands[i - 1], o)
    _check_numbers(text, operands, axes)
    return [tuple(row) for row in axes]


def _meets(text: str, left: Operand, right: Operand) -> bool:
    """Whether the last dimension of `left` and the first of `right` are the same number."""
    return bool(left.dims) and left.dims[-1].value is not None and left.dims[-1].value == right.dims[0].value


def _check_shared(text: str, left: Operand, right: Operand) -> None:
    """Refuse neighbours of which the last and first dimension should be contracted and cannot be."""
    if not left.dims or not right.dims or left.names & right.names:
        return
    last, first = left.dims[-1], right.dims[0]
    if last.value is None and first.value is None:
        return
    if last.value != first.value:
        raise slip(
            text,
            first.at,
            f"{last.text} and {first.text} meet where a product contracts; write one name or number in both",
        )


def _check_numbers(text: str, operands: Sequence[Operand], axes: Sequence[Sequence[Axis]]) -> None:
    """Refuse equal numbers that may or may not be meant as one axis, outside a chain of matrix products (X . W1 . W2)."""
    clean = [
        bool(a and b) and a[-1] == b[0] and len(b) <= 2 for a, b in itertools.pairwise(axes)
    ]  # the last dimension by the first, nothing else: a second equal number is another axis
    for i, j in itertools.combinations(range(len(operands)), 2):
        if all(clean[i:j]):
            continue
        free = {d.value for d, a in zip(operands[i].dims, axes[i], strict=True) if a not in axes[j]} - {None, 1}
        for d, a in zip(operands[j].dims, axes[j], strict=True):
            if d.value in free and a not in axes[i]:
                raise slip(text, d.at, f"{d.text} stands in two operands and may be one axis or two; name it and set its size")


def _kept(text: str, operands: Sequence[Operand], axes: Sequence[tuple[Axis, ...]], output: Operand | None) -> tuple[Axis, ...]:
    """The axes of the result, in order."""
    order = list(dict.fromkeys(a for row in axes for a in row))
    shared = {a for a in order if sum(a in row for row in axes) > 1}
    if output is None:
        if len(operands) == 1:
            raise slip(text, len(text), "one operand needs an output, as in X[B,T] -> Y[B]")
        if not shared:
            raise slip(text, operands[1].at, "the operands share no dimension; for an outer product write the output after ->")
        return tuple(a for a in order if a not in shared)
    values = {a: d.value for o, row in zip(operands, axes, strict=True) for a, d in zip(row, o.dims, strict=True)}
    kept: list[Axis] = []
    order.sort(key=lambda a: a in shared)
    for d in output.dims:
        kept.append(_output_axis(text, d, kept, order, values))
    for d in output.dims:
        if d.value and len(operands) > 1 and any(values[a] == d.value for a in order if a not in kept and a not in shared):
            raise slip(text, d.at, f"{d.text} may be one of two axes here; name it and set its size")
    return tuple(kept)


def _output_axis(text: str, d: Dim, kept: Sequence[Axis], order: Sequence[Axis], values: Mapping[Axis, int | None]) -> Axis:
    """The axis that one dimension of the output stands for."""
    if d.value is None and (d.text, 0) in kept:
        raise slip(text, d.at, f"{d.text} stands twice in the output")
    for a in order:
        if a not in kept and (a == (d.text, 0) if d.value is None else not a[0] and values[a] == d.value):
            return a
    raise slip(text, d.at, f"{d.text} is in the output and in no operand")


def _role(i: int, row: Sequence[Axis], first: Sequence[Axis], kept: Sequence[Axis]) -> Role:
    """The first operand is the input; later ones are weights, unless they carry a batch axis of it or are vectors."""
    if i == 0:
        return "input"
    batch = any(a in first and a in kept for a in row)
    return "input" if batch or len(row) < 2 else "weight"


def _tensors(
    operands: Sequence[Operand], axes: Sequence[Sequence[Axis]], roles: Sequence[Role], dtypes: Dtypes
) -> list[Tensor]:
    """The operands as tensors; the same name with the same dimensions is the same memory."""
    found: list[Tensor] = []
    for i, (o, role) in enumerate(zip(operands, roles, strict=True)):
        asked = dtypes.weights if role == "weight" else ""
        dtype = o.dtype or asked or dtypes.math or DEFAULT_DTYPE
        same = [j for j in range(i) if o.name and operands[j].name == o.name and axes[j] == axes[i] and found[j].dtype == dtype]
        shape = tuple(_extent(d) for d in o.dims)
        found.append(Tensor(shape, dtype, role=role, ref=same[0] if same else i))
    return found


def _extent(d: Dim) -> Expr:
    return size(d.text) if d.value is None else number(d.value)


def _widest(tensors: Sequence[Tensor]) -> str:
    """The widest floating type, else the first operand's."""
    floats = [t.dtype for t in tensors if t.is_float]
    return max(floats, key=lambda t: ITEMSIZE[t], default=tensors[0].dtype)


def _calls(
    tensors: Sequence[Tensor],
    axes: Sequence[tuple[Axis, ...]],
    kept: tuple[Axis, ...],
    extent: Mapping[Axis, Dim],
    dtype: str,
    path: str,
) -> tuple[Call, ...]:
    """One call per product, from left to right; results between them are activations of the output's type."""
    letters = dict(zip(dict.fromkeys(a for row in axes for a in row), LETTERS, strict=False))

    def spell(row: Sequence[Axis]) -> str:
        return "".join(letters[a] for a in row)

    calls: list[Call] = []
    left, left_axes = tensors[0], axes[0]
    for i, out in enumerate(_results(axes, kept), 1):
        operands, rows = ((left, tensors[i]), (left_axes, axes[i])) if len(tensors) > 1 else ((left,), (left_axes,))
        result = Tensor(tuple(_extent(extent[a]) for a in out), dtype, ref=len(tensors) + i)
        equation = f"{','.join(map(spell, rows))}->{spell(out)}"
        calls.append(Call("costir.einsum", {"equation": equation, "operands": operands}, (result,), path=path))
        left, left_axes = result, out
    return tuple(calls)


def _notes(
    extent: Mapping[Axis, Dim], kept: Sequence[Axis], output: Operand | None, tensors: Sequence[Tensor], dtype: str
) -> tuple[str, ...]:
    """What was read into the notation and is not in it."""
    notes = [f"storage: {' . '.join(t.dtype for t in tensors)} -> {dtype}"]
    if output is None:
        summed = ", ".join(d.text for a, d in extent.items() if a not in kept)
        notes.append(f"no output given: {summed} shared and summed, [{','.join(extent[a].text for a in kept)}] kept")
    return tuple(notes)


def _named_axes(written: Sequence[Operand]) -> tuple[str, ...]:
    """Where an axis was read that is no capital letter: d_model is d over `model` where the mesh has that axis."""
    split = dict.fromkeys(
        (d.text, d.axes) for o in written for d in o.dims if any(not a.isupper() or len(a) > 1 for a in d.axes)
    )
    return tuple(f"{name}_{'_'.join(axes)} is {name} split over {' and '.join(axes)}" for name, axes in split)


def _kept_where_they_meet(axes: Sequence[tuple[Axis, ...]], kept: tuple[Axis, ...], extent: Mapping[Axis, Dim]) -> list[str]:
    """x[B,D] . W[D,F] . V[F,D] reads as an MLP, but as an einsum D is not summed between x and W, since V has it, too."""
    if len(axes) < 3:
        return []
    out = []
    for (left, right), result in zip(itertools.pairwise(axes), _results(axes, kept), strict=True):
        outer = set(left) - set(right) and set(right) - set(left)  # each has a dimension of its own, as matrices have
        if outer and left[-1] in right and left[-1] in result:
            name = extent[left[-1]].text
            out.append(f"{name} is not summed where it first meets, as what follows names it again (an einsum); "
                       f"for a chain of matrix products give the later {name} another name")  # fmt: skip
    return out


__all__ = ["NotationError", "parse"]
