"""Operators that move elements: parts put together, rows that an index picks, windows, and the gradients of these."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from costir.fusion.lower import Args, Lower, Lowering, loop_order
from costir.fusion.space import Access
from costir.tracing.recorder import Event, RawTensor, raw_tensors

# Reads along an index: operator -> (table, index).
GATHERS = {
    "embedding": ("weight", "indices"), "gather": ("self", "index"), "index_select": ("self", "index"),
    "index": ("self", "indices"), "take": ("self", "index"), "_unsafe_index": ("self", "indices"),
}  # fmt: skip
# Each result element needs some few elements of the operand, in no order that a loop could follow: read from memory.
WINDOWS = frozenset((
    "flip", "roll", "repeat", "tile", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "glu", "glu_backward",
    "avg_pool2d", "avg_pool2d_backward", "avg_pool3d",
    "avg_pool1d", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "upsample_nearest2d",
    "upsample_nearest2d_backward",
    "upsample_nearest1d", "upsample_bilinear2d", "reflection_pad2d", "reflection_pad1d", "replication_pad2d",
))  # fmt: skip

LARGEST_WINDOW = 25  # elements of a window whose largest is found where it is needed


def _cat(low: Lower, args: Args, event: Event) -> bool:
    """Each result element comes from one of the parts."""
    out = event.outputs[0]
    parts = [t for t in raw_tensors(args["tensors"]) if 0 not in t.shape and len(t.shape) == len(out.shape)]
    if not parts or event.op.split(".")[1] != "cat":
        return False
    low.pointwise([out], [], [_part(low, t, loop_order(out)) for t in parts])
    return True


def _part(low: Lower, t: RawTensor, order: Sequence[int]) -> Access:
    """An operand that fills a part of the result: its loops count from the beginning of the part."""
    strides = tuple([t.stride[i] for i in order])
    return Access(low.program.value(t), t.offset, strides, tuple([t.shape[i] for i in order]))


def _pad(low: Lower, args: Args, event: Event) -> bool:
    x, out = args["self"], event.outputs[0]
    low.pointwise([out], [], [_part(low, x, loop_order(out))])
    return True


def _placed(low: Lower, args: Args, event: Event) -> bool:
    """The gradient of a slice: zeros around it."""
    grad, out = args["grad_output"], event.outputs[0]
    dim = args["dim"] % len(out.shape)
    if "select" in event.op:
        grad = grad._replace(
            shape=(*grad.shape[:dim], 1, *grad.shape[dim:]), stride=(*grad.stride[:dim], 0, *grad.stride[dim:])
        )
    elif args.get("step", 1) != 1:
        return False
    low.pointwise([out], [], [_part(low, grad, loop_order(out))])
    return True


def _gather(low: Lower, args: Args, event: Event) -> bool:
    """Rows that an index picks: reads the index in step, the table where it says."""
    table, index = (args[k] for k in GATHERS[event.op.split(".")[1]])
    out = event.outputs[0]
    n = 1
    for d in out.shape:
        n *= d
    found = list(raw_tensors(index))
    access = Access(low.program.value(table), irregular=max(n, 1), mark=found[0].ref if found else 0)
    name = event.op.split(".")[1]
    if name == "embedding":
        found = [t._replace(shape=(*t.shape, 1), stride=(*t.stride, 0)) for t in found]
        low.pointwise([out], found, [access])
    elif name == "gather":
        low.pointwise([out], found, [access])
    else:
        low.pointwise([out], [], [access, *(low.whole(t) for t in found)])
    return True


def _window(low: Lower, args: Args, event: Event) -> bool:
    """Reads of the whole operand in an order that no loop follows."""
    reads = [low.whole(t) for _, v in event.args for t in raw_tensors(v)]
    low.pointwise(event.outputs, [], reads)
    return True


def _max_pool(low: Lower, args: Args, event: Event) -> bool:
    """The largest of each window, and where in the window it is, a byte each; who wants indices makes them of that."""
    out, indices = event.outputs
    if not _small_window(args):
        return False
    offsets = low.offsets[indices.memory] = low.program.temp(indices.shape, "int8")
    low.pointwise([out, offsets], [], [low.whole(args["self"])])
    low.pointwise([indices], [offsets])
    return True


def _small_window(args: Args) -> bool:
    sides = args["kernel_size"]
    return prod(sides if len(sides) > 1 else (*sides, *sides)) <= LARGEST_WINDOW


def _max_pool_backward(low: Lower, args: Args, event: Event) -> bool:
    """Zeros, and each gradient added where its window had the largest."""
    if not _small_window(args):
        return False
    indices: RawTensor = args["indices"]
    places = low.offsets.get(indices.memory, indices)
    _scatter(low, event.outputs[0], [args["grad_output"], places], indices.memory)
    return True


def _embedding_backward(low: Lower, args: Args, event: Event) -> bool:
    """Zeros, and each token's gradient added to its row."""
    if args.get("scale_grad_by_freq"):
        return False
    grad, indices = args["grad_output"], args["indices"]
    rows = indices._replace(shape=(*indices.shape, 1), stride=(*indices.stride, 0))
    _scatter(low, event.outputs[0], [grad, rows], indices.memory)
    return True


def _scatter(low: Lower, out: RawTensor, reads: Sequence[RawTensor], mark: int) -> None:
    """Zeros, then one atomic addition for each element of the first operand."""
    low.pointwise([out], [])
    order = loop_order(reads[0])
    _write_some(low, out, reads[0], [low.access(t, reads[0].shape, order) for t in reads], mark)


def _write_some(low: Lower, out: RawTensor, source: RawTensor, reads: Sequence[Access], mark: int) -> None:
    """Each element of a source to a place of the memory behind `out` that an index names; the rest stays."""
    piece = low.program.add("pointwise", tuple(source.shape[i] for i in loop_order(source)), 0, list(reads))
    before = low.program.before(out)
    value = low.program.write(len(low.program.pieces) - 1, out)
    low.program.values[value].whole, low.program.values[value].before = True, before
    if before is not None:
        low.program.values[before].whole = True
        piece.after.append(before)
    piece.writes.append(Access(value, irregular=max(prod(source.shape), 1), mark=mark))


def _put(low: Lower, args: Args, event: Event) -> bool:
    """What stands along one dimension where an index says is written in place."""
    out: RawTensor = args["self"]
    source = args.get("values", args.get("source"))
    places = args["indices"] if "indices" in args else (*(None,) * (args["dim"] % max(len(out.shape), 1)), args["index"])
    named = [(k, t) for k, t in enumerate(places) if isinstance(t, RawTensor)]
    if not isinstance(source, RawTensor) or len(named) != 1 or out.memory < 0 or source.memory == out.memory:
        return False
    k, index = named[0]
    if index.dtype == "bool" or prod(source.shape) != prod(index.shape) * prod(d for i, d in enumerate(out.shape) if i != k):
        return False  # how many are written is not known, or the source is broadcast
    _write_some(low, out, source, [low.access(source, source.shape, loop_order(source)), low.whole(index)], index.memory)
    return True


MOVES: dict[str, Lowering] = {
    "cat": _cat, "constant_pad_nd": _pad, "slice_backward": _placed, "select_backward": _placed,
    "max_pool2d_with_indices": _max_pool, "max_pool2d_with_indices_backward": _max_pool_backward,
    "embedding_dense_backward": _embedding_backward, "index_put_": _put, "index_copy_": _put,
    **dict.fromkeys(GATHERS, _gather), **dict.fromkeys(WINDOWS, _window),
}  # fmt: skip
