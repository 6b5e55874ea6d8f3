"""What TorchInductor does about matrix products before it fuses: biases, sums with a product, loops of what a product reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from costir.fusion.lower import loop_order
from costir.fusion.pieces import Piece, Program
from costir.fusion.space import PART, Access, joined_box, joined_loop
from costir.tracing.recorder import RawTensor, raw_tensors

Readers = dict[int, list[Piece]]


def readers_of(pieces: Iterable[Piece]) -> Readers:
    """Who reads each value, in order."""
    found: Readers = {}
    for p in pieces:
        for v in dict.fromkeys(r.value for r in p.reads):
            found.setdefault(v, []).append(p)
    return found


def products(program: Program, pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces after a matrix that is added to a product became an operand of it (`addmm`); biases are noted, see below."""
    readers = readers_of(pieces)
    gone = set[int]()
    for p in pieces:
        op = program.trace.events[p.event].op
        if op == "aten.mm.default":
            add = _added(program, p, readers)
            if add is not None:
                _take(p, add)
                gone.add(id(add))
        elif op == "aten.addmm.default" and _elementwise(program, p, readers):
            _note_bias(program, p, readers)
    return [p for p in pieces if id(p) not in gone]


def _elementwise(program: Program, p: Piece, readers: Readers) -> bool:
    """Whether all that reads a piece's result is elementwise, and of the same graph."""
    v = p.writes[0].value
    return not program.values[v].kept and all(u.kind == "pointwise" and u.phase == p.phase for u in readers.get(v, ()))


def _note_bias(program: Program, p: Piece, readers: Readers) -> None:
    """The bias is added by the elementwise work that reads the product: one operand more there, the same bytes. Not in half."""
    value = program.values[p.writes[0].value]
    if value.tensor.dtype not in ("float16", "bfloat16"):
        memory = dict(program.trace.events[p.event].args)["self"].memory
        bias = dict.fromkeys(r.value for r in p.reads if program.values[r.value].memory == memory)
        for u in readers.get(p.writes[0].value, ()):
            u.biases.update(bias)


def _added(program: Program, p: Piece, readers: Readers) -> Piece | None:
    """The sum of a product and another matrix of its shape, where torch has one call for both: see `addmm` in post_grad.py."""
    v = p.writes[0].value
    users = readers.get(v, [])
    if len(users) != 1 or program.values[v].kept or users[0].phase != p.phase or users[0].kind == "opaque":
        return None
    add = users[0]
    event = program.trace.events[add.event]
    args, shape = dict(event.args), program.trace.events[p.event].outputs[0].shape
    matrices = [t for t in (args.get("self"), args.get("other")) if isinstance(t, RawTensor)]
    alike = [t.shape == shape and t.dtype == event.outputs[0].dtype for t in matrices]
    plain = event.op == "aten.add.Tensor" and args.get("alpha", 1) == 1 and len(add.reads) == len(add.events) + 1
    return add if plain and alike == [True, True] and not _elementwise(program, add, readers) else None


def _take(p: Piece, add: Piece) -> None:
    """Make a sum with a product part of the product."""
    made = p.writes[0].value
    p.reads += [Access(r.value, irregular=max(r.elements, 1), mark=-2 - r.value) for r in add.reads if r.value != made]
    p.writes[:] = [w._replace(value=add.writes[0].value) for w in p.writes]
    p.events.update(add.events)


def as_operands(program: Program, pieces: Sequence[Piece]) -> None:
    """Give cheap elementwise work the loops of the matrix that a product reads, where that is a view of its result.

    TorchInductor copies such a view: it is not in memory yet, since work that reads one tensor or less is kept open that long.
    """
    made = {p.writes[0].value: p for p in pieces if p.kind == "pointwise" and len(p.writes) == 1}
    readers = Counter(v for p in pieces for v in dict.fromkeys(r.value for r in p.reads))
    for user in pieces:
        event = program.trace.events[user.event]
        if user.kind == "opaque" and event.op.startswith(_FIXED):
            for t in {t.memory: t for _, v in event.args for t in raw_tensors(v)}.values():
                p = made.get(program.current.get(t.memory, -1))
                if p is not None and readers[p.writes[0].value] > 1 and sum(r.elements > 1 for r in p.reads) <= 1:
                    _merge(p, [t.shape[i] for i in loop_order(t)])


_FIXED = ("aten.mm.", "aten.convolution")


def _merge(p: Piece, wanted: Sequence[int]) -> None:
    """Make loops one until their sizes are the wanted ones, if what is written allows it; reads may then be in no order."""
    sizes = [n for n in wanted if n != 1]
    at = 0
    while at + 1 < len(p.dims):
        if at < len(sizes) and p.dims[at] == sizes[at]:
            at += 1
        elif all(_goes_on(a, at) for a in p.writes):
            p.dims = joined_box(p.dims, at)
            p.reads[:] = [_joined(a, at) if _goes_on(a, at) else _unordered(a) for a in p.reads]
            p.writes[:] = [_joined(a, at) for a in p.writes]
        else:
            return


def _goes_on(a: Access, at: int) -> bool:
    """Whether a loop goes on where the next ends."""
    return bool(a.irregular) or a.strides[at] == a.strides[at + 1] * a.box[at + 1]


def _joined(a: Access, at: int) -> Access:
    return a if a.irregular else a._replace(strides=joined_loop(a.strides, at), box=joined_box(a.box, at))


def _unordered(a: Access) -> Access:
    return Access(a.value, irregular=a.elements, mark=PART)
