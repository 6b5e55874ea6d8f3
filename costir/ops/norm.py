"""Cost rules for normalisation layers: layer, RMS, group, batch and weight normalisation, forward and backward.

For a row of n normalised elements (layer norm: a token; group norm: a group; batch norm in training: a channel):

    mean          n - 1 adds, 1 divide
    variance      n subtracts, n squares, n - 1 adds, 1 divide
    1/sqrt        1 add (eps), 1 rsqrt
    normalise     n multiplies; weight: n more; bias: n adds more

so 5n + 1 and 1 rsqrt per row, 7n + 1 with weight and bias. Bytes: operands once, results once; batch norm's statistics
(4 numbers a channel) are not charged as writes.
"""

from __future__ import annotations

from costir.ir import Call, Conventions, Cost
from costir.ops.families import charge, family, maybe, operands, register, targets, tensor, truth
from costir.ops.registry import read_once, written
from costir.symbolic import ONE, ZERO, Expr, product


def _affine(call: Call) -> int:
    """1 for each of weight and bias that is given."""
    return sum(maybe(call, name) is not None for name in ("weight", "bias"))


def _layer_norm(call: Call) -> tuple[Expr, Expr]:
    x = tensor(call, "input")
    rows = x.numel / product(call.args["normalized_shape"])
    return (5 + _affine(call)) * x.numel + rows, rows


family(
    "native_layer_norm layer_norm",
    "norm layer",
    "per row: 5n + 1 and 1 rsqrt; weight n multiplies, bias n adds more",
    _layer_norm,
)


def _rms_norm(call: Call) -> tuple[Expr, Expr]:
    x = tensor(call, "input")
    rows = x.numel / product(call.args["normalized_shape"])
    return (3 + _affine(call)) * x.numel + rows, rows


family(
    "_fused_rms_norm rms_norm",
    "norm layer",
    "per row: n squares, n - 1 adds, 1 divide, 1 add, 1 rsqrt, n multiplies: 3n + 1; weight n more",
    _rms_norm,
)


def _group_norm(call: Call) -> tuple[Expr, Expr]:
    x = tensor(call, "input")
    rows = call.args["N"] * call.args["group"]
    return (5 + _affine(call)) * x.numel + rows, rows


family(
    "native_group_norm",
    "norm layer",
    "per group of n elements: 5n + 1 and 1 rsqrt; weight n multiplies, bias n adds more",
    _group_norm,
)


def _wants(call: Call, index: int) -> bool:
    """Whether the gradient of that operand is asked for."""
    mask = call.args.get("output_mask")
    return True if mask is None else truth(mask[index])


def _layer_norm_backward(call: Call) -> tuple[Expr, Expr]:
    x = tensor(call, "input")
    width = product(call.args["normalized_shape"])
    return _normal_backward(call, x.numel, width), ZERO


def _normal_backward(call: Call, n: Expr, width: Expr) -> Expr:
    """Layer and group norm: x^ = (x - mean) rstd is 2n; dx is 7n (8n with a weight); dw 2n - width; db n - width."""
    vector = ZERO
    if _wants(call, 0) or _wants(call, 1):
        vector = vector + 2 * n
    if _wants(call, 0):
        vector = vector + (8 if maybe(call, "weight") is not None else 7) * n
    if _wants(call, 1):
        vector = vector + 2 * n - width
    if _wants(call, 2):
        vector = vector + n - width
    return vector


family(
    "native_layer_norm_backward",
    "norm layer",
    "x^ 2n; dx 7n, 8n with weight (two sums, two means, 4n to combine); dw 2n - D; db n - D",
    _layer_norm_backward,
)
family(
    "native_group_norm_backward",
    "norm layer",
    "x^ 2n; dx 7n, 8n with weight; dw 2n - C; db n - C",
    lambda c: (_normal_backward(c, tensor(c, "input").numel, c.args["C"]), ZERO),
)


def _rms_norm_backward(call: Call) -> tuple[Expr, Expr]:
    x = tensor(call, "input")
    n, width = x.numel, product(call.args["normalized_shape"])
    vector = n if _wants(call, 0) or _wants(call, 1) else ZERO
    if _wants(call, 0):
        vector = vector + (6 if maybe(call, "weight") is not None else 5) * n
    if _wants(call, 1):
        vector = vector + 2 * n - width
    return vector, ZERO


family(
    "_fused_rms_norm_backward",
    "norm layer",
    "x^ n; dx 5n, 6n with weight (one sum and mean, 3n to combine); dw 2n - D",
    _rms_norm_backward,
)

# ---- batch norm --------------------------------------------------------------------------------------------------------


def _trains(call: Call) -> bool:
    """Whether the statistics come from the batch."""
    if call.name in ("_native_batch_norm_legit_no_training", "_batch_norm_no_update", "batch_norm_elemt"):
        return False
    if call.name in ("_batch_norm_with_update", "_batch_norm_with_update_functional"):
        return True
    return truth(call.args.get("training", call.args.get("train", call.args.get("update", True))))


def _batch_norm(call: Call, conventions: Conventions) -> Cost:
    x = tensor(call, "input")
    channels = x.shape[1]
    n = x.numel
    if _trains(call):
        vector = (5 + _affine(call)) * n + channels
        if maybe(call, "running_mean") is not None:
            vector = vector + 7 * channels
    else:
        vector = (2 + _affine(call)) * n + channels
    write = written(targets(call)[:1])
    return charge(call, vector=vector, special=channels, read=read_once(operands(call)), write=write)


register(
    "native_batch_norm batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training cudnn_batch_norm miopen_batch_norm _batch_norm_with_update "
    "_batch_norm_with_update_functional _batch_norm_no_update",
    "norm layer",
    "eval: subtract, multiply, weight, bias per element, add and rsqrt per channel; training: 5n + 1 and 1 rsqrt per channel, "
    "running statistics 7 per channel",
    _batch_norm,
)


def _batch_norm_backward(call: Call, conventions: Conventions) -> Cost:
    x = tensor(call, "input")
    n, channels = x.numel, x.shape[1]
    weighted = ONE if maybe(call, "weight") is not None else ZERO
    special = ZERO
    if _trains(call):
        vector = (9 * n + weighted * channels) if _wants(call, 0) else 5 * n - 2 * channels
    else:
        special = channels
        vector = channels
        vector = vector + (n + weighted * channels if _wants(call, 0) else ZERO)
        vector = vector + (4 * n - channels if _wants(call, 1) else ZERO) + (n - channels if _wants(call, 2) else ZERO)
    return charge(call, vector=vector, special=special)


register(
    "native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward",
    "norm layer",
    "training: x^ 2n, the two sums 3n - 2 and means 2, dx 4n (1 per channel more with weight), dw and db are the sums; "
    "eval: dx n, dw 4n - 1, db n - 1, 1 rsqrt",
    _batch_norm_backward,
)

# ---- weight norm -------------------------------------------------------------------------------------------------------


def _weight_norm(call: Call) -> tuple[Expr, Expr]:
    v, out = tensor(call, "v"), tensor(call, "g")
    return 3 * v.numel, out.numel


family(
    "_weight_norm_interface",
    "norm layer",
    "per row: n squares, n - 1 adds, 1 sqrt, 1 divide, n multiplies",
    _weight_norm,
)
family(
    "_weight_norm_interface_backward",
    "norm layer",
    "per row: n multiplies and n - 1 adds for the sum, 3 divides, 3n to combine",
    lambda c: (5 * tensor(c, "saved_v").numel + 2 * tensor(c, "saved_g").numel, ZERO),
)
