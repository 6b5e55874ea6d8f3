"""Calls -> pieces: what every operator does per element, which of them are sums along rows, and which stand alone.

Elementwise operators are known by the kind of their cost rule, reductions by name; operators that are made of several steps
(softmax, norms, losses) are taken apart in `composite`. What is known in neither way is opaque: a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from costir.dataflow import Step
from costir.fusion.pieces import Piece, Program
from costir.fusion.space import Access, Ints
from costir.ir import Conventions, Cost
from costir.ops import registry
from costir.trace import concrete
from costir.tracing.recorder import Event, RawTensor

_LOWERED = (
    "aten.mm.",
    "aten.addmm.",
    "aten.bmm.",
    "aten.baddbmm.",
    "aten.convolution.",
)  # not in memory before Inductor decides
Args = dict[str, Any]
Lowering = Callable[["Lower", dict[str, Any], Event], bool]

ELEMENTWISE_KINDS = frozenset((
    "activation", "add", "comparison", "complex parts", "divide", "dropout", "fused arithmetic", "logic", "multiply", "negate",
    "power", "remainder", "rounding", "special", "square", "factory", "random", "optimizer",
))  # fmt: skip
ELEMENTWISE = frozenset((
    "clone", "_to_copy", "copy", "copy_", "contiguous", "lift_fresh_copy", "_foreach_clone", "_foreach_copy", "_foreach_copy_",
    "tril", "tril_", "triu", "triu_", "masked_scatter_backward",
))  # fmt: skip
# Of a kind that is elementwise, but no such operators.
NOT_ELEMENTWISE = frozenset((
    "equal", "isin", "median", "nanmedian", "mode", "kthvalue", "cummax", "cummin", "_cummax_helper", "_cummin_helper",
    "randperm", "multinomial", "glu", "glu_backward", "_amp_foreach_non_finite_check_and_unscale_", "_is_all_true",
    "_is_any_true", "aminmax", "_aminmax", "_foreach_max", "diag_embed", "fill_diagonal_", "trace",
))  # fmt: skip
REDUCTIONS = frozenset((
    "sum", "nansum", "mean", "nanmean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "all", "any", "var", "std",
    "var_mean", "std_mean", "linalg_vector_norm", "norm", "count_nonzero", "_foreach_norm",
))  # fmt: skip


class Lower:
    """Writes the pieces of one call after the other into a program."""

    def __init__(self, program: Program, composites: Mapping[str, Lowering]) -> None:
        self.program = program
        self.composites = composites
        self.offsets: dict[int, RawTensor] = {}  # memory of a pool's indices -> the offsets within a window that stand for them
        self.normed: dict[int, RawTensor] = {}  # memory of a statistic -> what a norm made with it, which its gradient uses too

    def event(self, event: Event, step: Step) -> None:
        """The pieces of one call."""
        name, args = event.op.split(".")[1], dict(event.args)
        plain = all(t.memory >= 0 and t.nnz is None for t in (*step.reads, *step.writes))
        if plain and event.op.startswith(("aten.", "prims.")):
            made = self.composites.get(name)
            if made is not None and made(self, args, event):
                return
            if _elementwise(name, event) and step.writes:
                return self.pointwise(step.writes, step.reads if eager_cost(event).read != 0 else ())
            if name in REDUCTIONS:
                x = next(iter(step.reads))
                return self.reduction([x], x.shape, reduced_dims(args, len(x.shape)), step.writes, bool(args.get("keepdim")))
        self.opaque(event, step.reads, step.writes)

    # ------------------------------------------------------------------------------------------------------------ shapes

    def pointwise(self, writes: Sequence[RawTensor], reads: Sequence[RawTensor], more: Sequence[Access] = ()) -> None:
        """One result element after the other, in the order of the first result's memory; `more` are reads of its loops.

        What is written over a part of a new tensor is chosen there, element by element: a kernel over the whole tensor takes
        it or what was there before.
        """
        into = {t.ref: way for t in writes if (way := self._choice(t)) is not None}
        made = [self.program.temp(t.shape, t.dtype) if t.ref in into else t for t in writes]
        self._per_element(made, reads, more)
        for t, temp in zip(writes, made, strict=True):
            if temp is not t:
                self._choose(t, temp, into[t.ref])

    def _per_element(self, writes: Sequence[RawTensor], reads: Sequence[RawTensor], more: Sequence[Access]) -> None:
        lead = writes[0]
        order = loop_order(lead)
        dims = tuple([lead.shape[i] for i in order])
        self.program.add("pointwise", dims, 0, [*(self.access(t, lead.shape, order) for t in reads), *more])
        self._write(len(self.program.pieces) - 1, writes, lead.shape, order)

    def _choice(self, t: RawTensor) -> list[int | None] | None:
        """Where a tensor is a part of new memory, in whose loops it can be found: its dimension for each of them; else None."""
        whole = self.program.whole_of(t)
        if whole is None or prod(t.shape) >= prod(whole.shape) or t.expanded:
            return None
        before = self.program.before(t)
        if before is not None and self.program.pieces_of(before) == "opaque" and not self.program.made_by(before, _LOWERED):
            return None
        return _dims_of(t, whole)

    def _choose(self, t: RawTensor, part: RawTensor, way: Sequence[int | None]) -> None:
        """A kernel over the memory behind `t` that takes its part from `part`, and the rest from what is there."""
        whole = self.program.whole_of(t)
        assert whole is not None
        order = loop_order(whole)
        shape = tuple([whole.shape[i] for i in order])
        reads = [] if self.program.before(t) is None else [self.access(whole, whole.shape, order)]
        strides = tuple([0 if k is None else part.stride[k] for k in way])
        box = tuple([1 if k is None else part.shape[k] for k in way])
        piece = self.program.add("pointwise", shape, 0, [*reads, Access(self.program.value(part), 0, strides, box)])
        piece.chooses = True
        self._write(len(self.program.pieces) - 1, [whole], whole.shape, order)

    def reduction(
        self, reads: Sequence[RawTensor], shape: Ints, reduced: Ints, writes: Sequence[RawTensor], keepdim: bool
    ) -> None:
        """Sums along some dimensions of a shape, one loop nest for all `reads`."""
        kept = [i for i in range(len(shape)) if i not in reduced]
        lead = max(reads, key=lambda t: len(t.shape))
        by_memory = loop_order(lead) if len(lead.shape) == len(shape) else list(range(len(shape)))
        order = [*(i for i in by_memory if i in kept), *(i for i in by_memory if i in reduced)]
        dims = tuple([shape[i] for i in order])
        if all(shape[i] == 1 for i in reduced):  # nothing to sum up
            piece = self.program.add("pointwise", dims, 0, [self.access(t, shape, order) for t in reads])
        else:
            piece = self.program.add("reduction", dims, len(reduced), [self.access(t, shape, order) for t in reads])
        number = len(self.program.pieces) - 1
        for t in writes:
            full = t if keepdim and len(t.shape) == len(shape) else _with_ones(t, shape, kept)
            value = self.program.write(number, t)
            piece.writes.append(self._at(value, full, shape, order, kept))

    def opaque(self, event: Event, reads: Sequence[RawTensor], writes: Sequence[RawTensor]) -> None:
        """A kernel of its own, that reads whole operands."""
        found = [self.whole(t) for t in reads]
        cost = eager_cost(event)
        if cost.status != "unknown":  # what picks or touches rows only does not read its tables whole
            found = self._at_most(found, float(cost.read))
        piece = self.program.add("opaque", (), 0, found)
        number = len(self.program.pieces) - 1
        for t in writes:
            before = self.program.before(t)
            value = self.program.write(number, t)
            access = self.whole(t)._replace(value=value)
            if len(writes) == 1 and before is not None and cost.status != "unknown":  # nor does it write them whole
                written = max(int(float(cost.write) / self.program.values[value].itemsize), 1)
                access = access._replace(irregular=min(access.irregular, written))
            self._keep_rest(piece, value, access.elements, before)
            piece.writes.append(access)

    def _at_most(self, found: list[Access], most: float) -> list[Access]:
        """The accesses with the largest made smaller until they are at most so many bytes."""
        size = [a.elements * self.program.values[a.value].itemsize for a in found]
        more = sum(size) - most
        if found and more > 0:
            i = size.index(max(size))
            found[i] = found[i]._replace(irregular=max(int((size[i] - more) / self.program.values[found[i].value].itemsize), 1))
        return found

    def whole(self, t: RawTensor) -> Access:
        """All of a tensor, in no order."""
        shape = tuple([1 if i in t.expanded else d for i, d in enumerate(t.shape)])
        n = 1
        for d in shape:
            n *= d
        return Access(self.program.value(t), irregular=max(n, 1), mark=-2 - t.ref)

    def access(self, t: RawTensor, shape: Ints, order: Sequence[int]) -> Access:
        """An operand that is broadcast to a shape, in loops over it."""
        return self._at(self.program.value(t), t, shape, order, range(len(shape)))

    def _at(self, value: int, t: RawTensor, shape: Ints, order: Sequence[int], moving: Sequence[int]) -> Access:
        lead = len(shape) - len(t.shape)
        strides = []
        for i in order:
            k = i - lead
            strides.append(t.stride[k] if k >= 0 and t.shape[k] != 1 and i in moving else 0)
        return Access(value, t.offset, tuple(strides), tuple([shape[i] for i in order]))

    def _write(self, number: int, writes: Sequence[RawTensor], shape: Ints, order: Sequence[int]) -> None:
        piece = self.program.pieces[number]
        for t in writes:
            before = self.program.before(t)
            value = self.program.write(number, t)
            access = self._at(value, t, shape, order, range(len(shape))) if len(t.shape) == len(shape) else self.whole(t)
            self._keep_rest(piece, value, access.elements, before)
            piece.writes.append(access._replace(value=value))

    def _keep_rest(self, piece: Piece, value: int, written: int, before: int | None) -> None:
        """Where a part of a memory is written, the rest stays as it was."""
        made = self.program.values[value]
        if written < made.numel:
            made.whole, made.before = True, before
            if before is not None:
                self.program.values[before].whole = True
                piece.after.append(before)


def eager_cost(event: Event) -> Cost:
    """What the call costs by itself; of status "unknown" where it has no rule."""
    entry = registry.find(event.op)
    return entry.rule(concrete(event), Conventions()) if entry is not None else Cost(status="unknown")


def loop_order(t: RawTensor) -> list[int]:
    """The dimensions by how far a step goes in memory, farthest first."""
    return (
        sorted(range(len(t.shape)), key=lambda i: (-t.stride[i] if t.shape[i] > 1 else 0, i))
        if t.stride
        else list(range(len(t.shape)))
    )


def _dims_of(t: RawTensor, whole: RawTensor) -> list[int | None] | None:
    """For each loop over a whole tensor, farthest step first, the dimension of a part of it that moves in it; None if mixed."""
    left = [i for i, n in enumerate(t.shape) if n > 1]
    found: list[int | None] = []
    for k in loop_order(whole):
        s, n = whole.stride[k], whole.shape[k]
        fits = [i for i in left if s and t.stride[i] % s == 0 and t.stride[i] // s * (t.shape[i] - 1) < n]
        mine = max(fits, key=lambda i: t.stride[i], default=None) if n > 1 else None
        found.append(mine)
        if mine is not None:
            left.remove(mine)
    return None if left else found


def _with_ones(t: RawTensor, shape: Ints, kept: Sequence[int]) -> RawTensor:
    """A result without the reduced dimensions, with ones in their place."""
    sizes, strides, k = [], [], 0
    for i in range(len(shape)):
        if i in kept and k < len(t.shape):
            sizes.append(t.shape[k])
            strides.append(t.stride[k])
            k += 1
        else:
            sizes.append(1)
            strides.append(0)
    return t._replace(shape=tuple(sizes), stride=tuple(strides))


def reduced_dims(args: dict[str, Any], rank: int) -> Ints:
    """The dimensions that a reduction sums over; all where none is named."""
    dim = args.get("dim")
    given = (dim,) if isinstance(dim, int) else tuple(dim or ())
    return tuple(sorted({d % max(rank, 1) for d in given})) or tuple(range(rank))


def _elementwise(name: str, event: Event) -> bool:
    if name in ELEMENTWISE:
        return True
    if name in NOT_ELEMENTWISE or (name in REDUCTIONS and not event.op.endswith(".other")):
        return False
    entry = registry.find(event.op)
    return entry is not None and entry.kind in ELEMENTWISE_KINDS
