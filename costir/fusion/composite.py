"""Operators that are made of several steps, taken apart as TorchInductor's decompositions do: which rows are summed, what is
read again. Only where memory is touched matters here, not what is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from costir.dataflow import step_of
from costir.fusion.lower import Args, Lower, Lowering, reduced_dims
from costir.fusion.moves import MOVES
from costir.fusion.pieces import Program
from costir.fusion.space import Access, Ints
from costir.ops import registry
from costir.trace import Trace
from costir.tracing.recorder import Event, RawTensor, raw_tensors


def _given(*found: Any) -> list[RawTensor]:
    return [t for t in found if isinstance(t, RawTensor)]


def _dim(args: Args, rank: int) -> Ints:
    return (args["dim"] % max(rank, 1),)


def _kept(shape: Ints, reduced: Sequence[int]) -> Ints:
    return tuple([1 if i in reduced else d for i, d in enumerate(shape)])


def _between(low: Lower, reads: Sequence[RawTensor], shape: Ints) -> RawTensor:
    """What a decomposition computes per element before it goes on: stored or not like the result of an operator."""
    out = low.program.temp(shape)
    low.pointwise([out], reads)
    return out


# ---- softmax and losses ------------------------------------------------------------------------------------------------


def _softmax(low: Lower, args: Args, event: Event) -> bool:
    """The largest of a row, the sum of its exponentials, then each element."""
    x, out = args["self"], event.outputs[0]
    reduced = _dim(args, len(x.shape))
    top, sums = (low.program.temp(_kept(x.shape, reduced)) for _ in range(2))
    low.reduction([x], x.shape, reduced, [top], True)
    low.reduction([x, top], x.shape, reduced, [sums], True)
    low.pointwise([out], [x, top, sums])
    return True


def _softmax_backward(low: Lower, args: Args, event: Event) -> bool:
    grad, y, out = args["grad_output"], args["output"], event.outputs[0]
    reduced = _dim(args, len(y.shape))
    sums = low.program.temp(_kept(y.shape, reduced))
    log = "log_softmax" in event.op
    found = grad if log else _between(low, [grad, y], y.shape)
    low.reduction([found], y.shape, reduced, [sums], True)
    low.pointwise([out], [found, y, sums])
    return True


def _logsumexp(low: Lower, args: Args, event: Event) -> bool:
    x, out = args["self"], event.outputs[0]
    reduced = reduced_dims(args, len(x.shape))
    top = low.program.temp(_kept(x.shape, reduced))
    low.reduction([x], x.shape, reduced, [top], True)
    low.reduction([x, top], x.shape, reduced, [out], bool(args.get("keepdim")))
    return True


def _nll(low: Lower, args: Args, event: Event) -> bool:
    """Picks one element of each row, then sums them."""
    x, target, weight = args["self"], args["target"], args.get("weight")
    picked = low.program.temp(target.shape, x.dtype)
    more = [_picked(low, t, target) for t in _given(x, weight)]
    reduce = args.get("reduction", 1) != 0
    out, total = event.outputs
    low.pointwise([picked if reduce else out], [target], more)
    if reduce:
        whole = tuple(range(len(target.shape)))
        low.reduction([picked], target.shape, whole, [out], False)
        low.reduction([target], target.shape, whole, [total], False)
    else:
        low.pointwise([total], [])
    return True


def _picked(low: Lower, table: RawTensor, index: RawTensor) -> Access:
    n = 1
    for d in index.shape:
        n *= d
    return Access(low.program.value(table), irregular=max(n, 1), mark=index.ref)


def _nll_backward(low: Lower, args: Args, event: Event) -> bool:
    out, target = event.outputs[0], args["target"]
    lead, rest = target.shape[:1], target.shape[1:]
    wide = target._replace(shape=(*lead, 1, *rest), stride=(*target.stride[:1], 0, *target.stride[1:]))
    if len(out.shape) != len(wide.shape):
        return False
    total = args.get("total_weight") if args.get("reduction", 1) == 1 else None
    grad = args["grad_output"]
    if grad.shape == target.shape and grad.shape:
        grad = grad._replace(shape=wide.shape, stride=(*grad.stride[:1], 0, *grad.stride[1:]))
    more = [_picked(low, w, target) for w in _given(args.get("weight"))]
    low.pointwise([out], _given(wide, grad, total), more)
    return True


def _loss(low: Lower, args: Args, event: Event) -> bool:
    reads, out = [t for _, v in event.args for t in raw_tensors(v)], event.outputs[0]
    if args.get("reduction", 1) == 0:
        low.pointwise([out], reads)
    else:
        shape = max((t.shape for t in reads), key=len)
        low.reduction(reads, shape, tuple(range(len(shape))), [out], False)
    return True


def _elementwise(low: Lower, args: Args, event: Event) -> bool:
    low.pointwise(event.outputs, [t for _, v in event.args for t in raw_tensors(v)])
    return True


def _twice(low: Lower, args: Args, event: Event) -> bool:
    """An activation or its gradient: an element is used in two places, x and a function of x."""
    x, reads = args["self"], [t for _, v in event.args for t in raw_tensors(v)]
    low.pointwise(event.outputs, [*reads, _between(low, [x], x.shape)])
    return True


# ---- norms -------------------------------------------------------------------------------------------------------------


def _layer_norm(low: Lower, args: Args, event: Event) -> bool:
    """Mean and deviation of each row, then each element. RMS norm has one statistic."""
    x, out, *stats = args["input"], *event.outputs
    n = len(args["normalized_shape"])
    reduced = tuple(range(len(x.shape) - n, len(x.shape)))
    stats = [_rows(s, x.shape, n) for s in stats]
    low.reduction([x], x.shape, reduced, stats, True)
    normed = low.normed[stats[-1].memory] = _between(low, [x, *stats], x.shape)
    low.pointwise([out], [normed, *_given(args.get("weight"), args.get("bias"))])
    return True


def _rows(stat: RawTensor, shape: Ints, n: int) -> RawTensor:
    """A statistic per row as a tensor of the operand's rank."""
    if len(stat.shape) == len(shape):
        return stat
    missing = len(shape) - len(stat.shape)
    return stat._replace(shape=(*stat.shape, *(1,) * missing), stride=(*stat.stride, *(0,) * missing))


def _layer_norm_backward(low: Lower, args: Args, event: Event) -> bool:
    x, grad, n = args["input"], args["grad_out"], len(args["normalized_shape"])
    rank = len(x.shape)
    rows, inner = tuple(range(rank - n)), tuple(range(rank - n, rank))
    stats = [_rows(s, x.shape, n) for s in _given(args.get("mean"), args["rstd"])]
    weight = _given(args.get("weight"))
    given = iter(event.outputs)
    mask = args["output_mask"]
    normed = low.normed.get(stats[-1].memory) or _between(low, [x, *stats], x.shape)
    if mask[0]:
        dx = next(given)
        scaled = _between(low, [grad, *weight], x.shape) if weight else grad
        sums = [low.program.temp(_kept(x.shape, inner)) for _ in range(1 if "rms" in event.op else 2)]
        if len(sums) == 2:
            low.reduction([scaled], x.shape, inner, sums[:1], True)
        low.reduction([scaled, normed], x.shape, inner, sums[-1:], True)
        low.pointwise([dx], [scaled, normed, *sums, *stats[-1:]])
    if mask[1]:
        _columns(low, [grad, normed], x.shape, rows, next(given))
    if len(mask) > 2 and mask[2]:
        _columns(low, [grad], x.shape, rows, next(given))
    return True


def _columns(low: Lower, reads: Sequence[RawTensor], shape: Ints, rows: Ints, out: RawTensor) -> None:
    low.reduction(reads, shape, rows, [out], False)


def _channel(t: RawTensor, rank: int) -> RawTensor:
    """A vector over channels as a tensor of the operand's rank."""
    return t._replace(shape=(1, t.shape[0], *(1,) * (rank - 2)), stride=(0, t.stride[0], *(0,) * (rank - 2)))


def _batch_norm(low: Lower, args: Args, event: Event) -> bool:
    """Statistics per channel, the running ones moved in place, then each element. In eval only the last."""
    x, out = args.get("input", args.get("self")), event.outputs[0]
    if not isinstance(x, RawTensor) or len(x.shape) < 2:
        return False
    rank = len(x.shape)
    affine = [_channel(t, rank) for t in _given(args.get("weight"), args.get("bias"))]
    running = _given(args.get("running_mean"), args.get("running_var"))
    training = (
        "no_training" not in event.op and "no_update" not in event.op and bool(args.get("training", args.get("train", True)))
    )
    saved = [t for t in event.outputs[1:] if t.shape == (x.shape[1],)]
    if not training:
        low.pointwise([out], [x, *(_channel(t, rank) for t in running), *affine])
        return True
    stats = saved[:2] if len(saved) >= 2 else [low.program.temp((x.shape[1],)) for _ in range(2)]
    low.reduction([x], x.shape, tuple(i for i in range(rank) if i != 1), stats, False)
    for old, new in zip(running, stats, strict=False):
        low.pointwise([old], [old, new])
    moved = low.normed[stats[0].memory] = _between(low, [x, _channel(stats[0], rank)], x.shape)
    low.pointwise([out], [moved, *(_channel(t, rank) for t in stats[1:]), *affine])
    return True


def _batch_norm_backward(low: Lower, args: Args, event: Event) -> bool:
    x, grad = args["input"], args.get("grad_out") or args["grad_output"]
    rank = len(x.shape)
    rest = tuple(i for i in range(rank) if i != 1)
    training = bool(args.get("train", args.get("update", True)))
    names = ("save_mean", "save_invstd", "save_var") if training else ("running_mean", "running_var")
    mean, scale = _given(*(args.get(k) for k in names))
    weight = [_channel(t, rank) for t in _given(args.get("weight"))]
    vectors = [t for t in event.outputs if t.shape == (x.shape[1],)]
    while len(vectors) < 2:
        vectors.append(low.program.temp((x.shape[1],)))
    dw, db = vectors
    moved = low.normed.get(mean.memory) or _between(low, [x, _channel(mean, rank)], x.shape)
    dot = low.program.temp((x.shape[1],))
    low.reduction([grad], x.shape, rest, [db], False)
    low.reduction([grad, moved], x.shape, rest, [dot], False)
    low.pointwise([dw], [dot, scale])
    dx = next((t for t in event.outputs if t.shape == x.shape), None)
    if dx is not None:
        sums = [moved, _channel(dot, rank), _channel(db, rank)] if training else []
        low.pointwise([dx], [grad, *sums, _channel(scale, rank), *weight])
    return True


def _grouped(t: RawTensor, groups: int) -> RawTensor:
    """A tensor [N, C, ...] as [N, groups, C/groups, ...]."""
    (n, c, *rest), (sn, sc, *more) = t.shape, t.stride
    each = c // groups
    return t._replace(shape=(n, groups, each, *rest), stride=(sn, sc * each, sc, *more))


def _of_groups(t: RawTensor, groups: int, rank: int) -> RawTensor:
    """A vector over channels as a tensor of the grouped operand's rank."""
    return _grouped(_channel(t, rank - 1), groups)


def _group_norm(low: Lower, args: Args, event: Event) -> bool:
    """Mean and deviation of each group of channels, then each element."""
    out, *stats = event.outputs
    x, groups = _grouped(args["input"], args["group"]), args["group"]
    rank = len(x.shape)
    low.reduction([x], x.shape, tuple(range(2, rank)), stats, False)
    affine = [_of_groups(t, groups, rank) for t in _given(args.get("weight"), args.get("bias"))]
    low.pointwise([_grouped(out, groups)], [x, *(_rows(s, x.shape, rank - 2) for s in stats), *affine])
    return True


def _group_norm_backward(low: Lower, args: Args, event: Event) -> bool:
    """Sums along each channel, of these along each group; then each element, and the sums over the batch."""
    groups, mask, given = args["group"], args["output_mask"], iter(event.outputs)
    grad, x = args["grad_out"], args["input"]
    wide = _grouped(x, groups).shape
    rank, few = len(wide), wide[:3]
    dots, sums = (low.program.temp(x.shape[:2]) for _ in range(2))
    low.reduction([grad, x], x.shape, tuple(range(2, len(x.shape))), [dots], False)
    low.reduction([grad], x.shape, tuple(range(2, len(x.shape))), [sums], False)
    weight, stats = _given(args.get("weight")), [args["mean"], args["rstd"]]
    both = [_grouped(t, groups) for t in (dots, sums)]
    if mask[0]:
        scales = [low.program.temp(few[:2]) for _ in range(2)]
        for t, scale in zip(both, scales, strict=True):
            low.reduction([t, *(_of_groups(w, groups, 3) for w in weight)], few, (2,), [scale], False)
        factors = [low.program.temp(few[:2]) for _ in range(2)]
        low.pointwise(factors[:1], [*scales, *stats])
        low.pointwise(factors[1:], [factors[0], scales[1], *stats])
        rows = [_rows(t, wide, rank - 2) for t in (stats[1], *factors)]
        vectors = [_of_groups(w, groups, rank) for w in weight]
        low.pointwise([_grouped(next(given), groups)], [_grouped(grad, groups), _grouped(x, groups), *rows, *vectors])
    if mask[1]:
        of_rows = [_rows(t, few, 1) for t in stats]
        low.reduction([*both, *of_rows], few, (0,), [_split(next(given), groups)], False)
    if mask[2]:
        low.reduction(both[1:], few, (0,), [_split(next(given), groups)], False)
    return True


def _split(t: RawTensor, groups: int) -> RawTensor:
    """A vector over channels as [groups, channels of a group]."""
    each, step = t.shape[0] // groups, t.stride[0]
    return t._replace(shape=(groups, each), stride=(step * each, step))


def _table() -> dict[str, Lowering]:
    out: dict[str, Lowering] = {
        "_softmax": _softmax, "_log_softmax": _softmax, "_safe_softmax": _softmax, "_softmax_backward_data": _softmax_backward,
        "_log_softmax_backward_data": _softmax_backward, "logsumexp": _logsumexp, "nll_loss_forward": _nll,
        "nll_loss2d_forward": _nll,
        "nll_loss_backward": _nll_backward, "nll_loss2d_backward": _nll_backward, "native_layer_norm": _layer_norm,
        "_fused_rms_norm": _layer_norm, "native_layer_norm_backward": _layer_norm_backward,
        "_fused_rms_norm_backward": _layer_norm_backward, **MOVES,
    }  # fmt: skip
    for names, function in (
        ("mse_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy binary_cross_entropy_with_logits", _loss),
        ("mse_loss_backward smooth_l1_loss_backward huber_loss_backward soft_margin_loss_backward "
         "binary_cross_entropy_backward",
         _elementwise),
        ("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm "
         "_batch_norm_with_update _batch_norm_no_update", _batch_norm),
        ("native_group_norm", _group_norm), ("native_group_norm_backward", _group_norm_backward),
        ("native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward", _batch_norm_backward),
        ("gelu gelu_backward silu silu_backward mish mish_backward hardswish hardswish_backward elu leaky_relu "
         "log_sigmoid_forward", _twice),
    ):  # fmt: skip
        out |= dict.fromkeys(names.split(), function)
    return out


COMPOSITES: dict[str, Lowering] = _table()


_OUTLIVE = frozenset(("weight", "buffer", "state", "input", "grad"))


def _operands(event: Event) -> Iterable[RawTensor]:
    yield from event.outputs
    for _, v in event.args:
        yield from raw_tensors(v)


def _is_view(event: Event) -> bool:
    entry = registry.find(event.op)
    return entry is not None and entry.kind == "view"


def lower(trace: Trace, alone: frozenset[int] = frozenset()) -> Program:
    """The pieces of a trace, in order; what the caller gets, or what outlives the run, is marked `kept`."""
    program = Program(trace)
    lowering = Lower(program, COMPOSITES)
    for i, event in enumerate(trace.events):
        program.at = i
        step = step_of(event)
        if i in alone:
            lowering.opaque(event, step.reads, step.writes)
        elif not step.view and not _is_view(event):
            lowering.event(event, step)
        elif event.op.startswith("aten._local_scalar_dense"):
            lowering.opaque(event, tuple(raw_tensors(event.args[0][1])), ())
    outlive = _outliving(trace, program)
    for memory, number in program.current.items():
        value = program.values[number]
        value.kept = value.maker is not None and memory in outlive
    return program


def _outliving(trace: Trace, program: Program) -> set[int]:
    """The memories that somebody has or gets: what was there before, what the caller is given, the cache after the step."""
    found = {t.memory for t in trace.outputs} | {w.tensor.memory for w in trace.cache}
    for t in (t for e in trace.events for t in _operands(e)):
        if t.role in _OUTLIVE or (t.role == "cache" and not program.is_new(t)):
            found.add(t.memory)
    return found
