"""Which curve of the calibration says how long an operator takes, and at which sizes. No torch here.

An operator that has no curve of its own takes that of the one most like it: elementwise by its number of operands, a reduction
by its rows. What is taken for what is in this file, and for what does most work in `lookup_heavy`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

from sympy import Number

from costir.chip import rate_key
from costir.ir import Call, Cost, Tensor
from costir.measuring.lookup_heavy import HEAVY_RULES
from costir.measuring.lookup_parts import Lookup, Rule, Strides, ints, numel, rows_by, rows_of, shape

PICKED = 1024  # rows of tables, that are timed
HEAVY = 0.8  # times the average code of an operator: has much


VIEWS = frozenset((
    "view", "t", "transpose", "expand", "unsqueeze", "_unsafe_view", "permute", "slice", "select", "detach", "alias",
    "split", "split_with_sizes", "squeeze", "as_strided", "unbind", "_reshape_alias", "narrow", "chunk", "unfold",
    "diagonal", "real", "view_as_real", "movedim", "swapaxes", "detach_", "lift_fresh", "_local_scalar_dense", "item",
    "_conj", "_neg_view", "view_as_complex",
    "_record_function_enter_new", "_record_function_exit",
))  # fmt: skip
_EMPTY = frozenset((
    "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
))  # fmt: skip
# Elementwise operators, by the curve that has their name or does the same work.
_SAME = {
    "exp": "exp", "log": "log", "tanh": "tanh", "sigmoid": "sigmoid", "sqrt": "sqrt", "rsqrt": "rsqrt", "erf": "erf",
    "sin": "sin", "cos": "cos", "reciprocal": "reciprocal", "relu": "relu", "silu": "silu", "div": "div",
    "where": "where", "masked_fill": "masked_fill", "addcmul": "addcmul_", "addcdiv": "addcdiv_", "lerp": "lerp_",
    "native_dropout": "dropout", "threshold_backward": "relu_backward", "tanh_backward": "tanh_backward",
    "sigmoid_backward": "sigmoid_backward", "silu_backward": "silu_backward", "fill": "fill_", "zero": "fill_",
    "zeros": "zeros", "zeros_like": "zeros", "ones": "zeros", "ones_like": "zeros", "new_zeros": "zeros",
    "full": "zeros", "full_like": "zeros", "new_ones": "zeros", "new_full": "zeros", "arange": "zeros",
    "hardtanh": "relu", "clamp": "relu", "clamp_min": "relu", "leaky_relu": "relu",
    "hardtanh_backward": "relu_backward", "hardswish": "hardswish",
    "hardswish_backward": "hardswish_backward", "expm1": "exp", "log1p": "log1p", "elu": "elu", "elu_backward": "elu_backward",
    "softplus": "softplus", "mish": "mish", "exp2": "exp", "log2": "log", "tan": "sin", "atan": "atan",
    "remainder": "remainder", "fmod": "remainder", "xlogy": "xlogy", "log_sigmoid_forward": "log_sigmoid",
    "hardsigmoid": "relu", "repeat": "repeat", "_prelu_kernel": "prelu", "_prelu_kernel_backward": "prelu_backward",
    "native_dropout_backward": "binary", "bernoulli": "bernoulli", "neg": "neg",
    "abs": "neg", "sgn": "neg", "sign": "neg", "tril": "tril", "triu": "tril", "upsample_nearest2d": "nearest",
    "upsample_nearest1d": "nearest", "upsample_nearest3d": "nearest", "upsample_bilinear2d": "bilinear",
}  # fmt: skip
_REDUCTIONS = frozenset(("sum", "mean", "amax", "amin", "norm", "linalg_vector_norm", "prod", "any", "all"))
_VARIANCES = frozenset(("var", "var_mean", "std", "std_mean"))
_COMPARE = frozenset((
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or",
    "isnan", "isinf", "isfinite",
))  # fmt: skip
_BY_INPUT = {
    "mse_loss": "mse",
    "smooth_l1_loss": "smooth_l1",
    "huber_loss": "smooth_l1",
    "binary_cross_entropy_with_logits": "bce",
    "binary_cross_entropy": "bce",
    "upsample_nearest2d_backward": "nearest_backward",
    "upsample_bilinear2d_backward": "bilinear_backward",
}  # losses, by what they read: all they make of it may be one number
_ROWS = {
    "_softmax": "softmax", "_log_softmax": "log_softmax", "_softmax_backward_data": "softmax_backward",
    "_log_softmax_backward_data": "log_softmax_backward", "native_layer_norm": "layer_norm",
    "_fused_rms_norm": "layer_norm", "native_layer_norm_backward": "layer_norm_backward",
    "argmax": "max_columns", "max": "max_columns", "topk": "topk", "sort": "sort", "logsumexp": "logsumexp",
    "argmin": "max_columns", "im2col": "permuted", "pixel_shuffle": "permuted", "pixel_unshuffle": "permuted",
    "_fused_rms_norm_backward": "layer_norm_backward",
}  # fmt: skip
_OUTPUT_ROWS = frozenset(("im2col", "pixel_shuffle", "pixel_unshuffle"))  # their results' rows, not their operands'
_COPIES = frozenset((
    "clone", "copy", "contiguous", "_to_copy", "roll", "flip", "index_select",
))  # fmt: skip


def lookups(call: Call, strides: Strides, cost: Cost) -> list[Lookup]:
    """Where to read the time of a call; the times add up. Empty where nothing but a call overhead is known."""
    name = call.name.rstrip("_") if not call.name.startswith("_") else call.name
    inplace = call.name.endswith("_")
    rule = _RULES.get(name)
    if rule is not None:
        return rule(call, strides)
    n = numel(call.outputs[0]) if call.outputs else max((numel(t) for t in call.inputs), default=0)
    if name in _EMPTY:
        return [Lookup("empty", (n,))]
    if name in _ROWS:
        t = call.outputs[0] if name in _OUTPUT_ROWS or not call.inputs else call.inputs[0]
        columns, last = _columns(call, t)
        return [Lookup(_ROWS[name], rows_by(t, columns), alike=name in _OUTPUT_ROWS or not last)]
    if name in _BY_INPUT:
        return [Lookup(_BY_INPUT[name], (numel(call.inputs[0]),))]
    if name in _REDUCTIONS or name in _VARIANCES:
        divided = [Lookup("unary_", (n,))] if name == "mean" else []  # the sum, in place
        return [_reduction(call), *divided]
    return [_elementwise(call, name, strides, inplace, n, cost)]


def _elementwise(call: Call, name: str, strides: Strides, inplace: bool, n: int, cost: Cost) -> Lookup:
    if name in ("addcmul", "addcdiv", "lerp") and not inplace:
        return Lookup("binary", (n,), 1.5, alike=True)  # three read, one written
    operands = [t for t in call.inputs if numel(t) > 1]
    if name == "div" and len(operands) < 2:  # by a number: multiplied by one over it
        return _arithmetic(call, operands, strides, inplace, n)
    if name in _SAME:
        return Lookup(_SAME[name], (n,))
    if name in _COMPARE:
        return Lookup("compare", (n,))
    if name in _COPIES:
        return _copy(call, strides, inplace, n)
    if name in ("add", "sub", "mul", "rsub", "maximum", "minimum", "square", "addcmul"):
        return _arithmetic(call, operands, strides, inplace, n)
    most = max(n, 1, *map(numel, operands))
    if cost.special != 0:
        return Lookup("exp", (most,), float(cost.special) / most, alike=True)
    return Lookup("binary" if len(operands) > 1 else "unary", (most,), alike=True)


def _columns(call: Call, t: Tensor) -> tuple[int, bool]:
    """How many numbers are worked on together, and whether they lie together: all that are normalized, or one axis."""
    sizes, last = shape(t) or (1,), len(t.shape) - 1
    if "normalized_shape" in call.args:
        return math.prod(ints(call.args["normalized_shape"])), True
    dim = ints(call.args["dim"])[0] if call.args.get("dim") not in (None, ()) else -1
    return sizes[dim], last < 0 or dim % len(sizes) == last


def _arithmetic(call: Call, operands: list[Tensor], strides: Strides, inplace: bool, n: int) -> Lookup:
    if len(operands) == 1 and operands[0].expanded and not inplace:
        return Lookup("expanded", _repeated(operands[0]))
    full = [t for t in operands if numel(t) == n and not t.expanded]
    across = _across(strides, operands) if len(full) == 2 else 0
    if across and not inplace:  # at every step the memory of one of both is somewhere else
        return Lookup("permuted", (n / across, across))
    if len(operands) > 1 and len(full) < len(operands) and not inplace and call.outputs:
        out = call.outputs[0]
        return Lookup("broadcast", rows_by(out, min(_run(out, t) for t in operands if t not in full)))
    return Lookup(("binary" if len(operands) > 1 else "unary") + ("_" if inplace else ""), (n,))


def _run(out: Tensor, t: Tensor) -> int:
    """For how many numbers of the result on end an operand is used again and again, or read on and on."""
    sizes, own = shape(out), shape(t)
    own = (1,) * (len(sizes) - len(own)) + own
    first = len(sizes) - len(t.shape)
    kinds = [(d, size == 1 or i - first in t.expanded) for i, (d, size) in enumerate(zip(sizes, own, strict=True)) if d > 1]
    run = itertools.takewhile(lambda kind: kind[1] == kinds[-1][1], reversed(kinds))
    return math.prod(d for d, _ in run)


def _repeated(t: Tensor) -> tuple[float, float]:
    """Of numbers that are repeated: how many there are, and how often."""
    sizes, last = shape(t), len(t.shape)
    while last and last - 1 in t.expanded:
        last -= 1
    return math.prod(sizes[:last]), math.prod(sizes[last:])


def _across(strides: Strides, operands: list[Tensor]) -> int:
    """How long the dimension is that lies together in the second operand, where another one does in the first; 0 where none."""
    both = [
        next((i for i, (s, d) in enumerate(zip(steps, shape(t), strict=False)) if s == 1 and d > 1), None)
        for steps, t in zip(strides, operands, strict=False)
    ]
    if len(both) < 2 or None in both or both[0] == both[1] or len(operands[0].shape) != len(operands[1].shape):
        return 0
    return shape(operands[1])[both[1]]  # type: ignore[index]


def _reduction(call: Call) -> Lookup:
    t, varies = call.inputs[0], call.name in _VARIANCES
    sizes = shape(t)
    which = {d % len(sizes) for d in ints(call.args["dim"])} if call.args.get("dim") not in (None, ()) and sizes else set()
    if varies:
        gone = math.prod(sizes[d] for d in which) if which else numel(t)
        return Lookup("var_columns", rows_by(t, gone), alike=len(sizes) - 1 not in which)
    if not which or len(sizes) < 2:
        return Lookup("sum", (numel(t),))
    if len(sizes) - 1 in which:
        return Lookup("sum_columns", rows_by(t, math.prod(sizes[d] for d in which)))
    return Lookup("sum_rows", rows_by(t, math.prod(sizes[max(which) + 1 :])))


def _copy(call: Call, strides: Strides, inplace: bool, n: int) -> Lookup:
    source = call.inputs[1 if call.name == "copy_" and len(call.inputs) > 1 else 0] if call.inputs else None
    if call.name == "index_select":
        return Lookup("embedding", rows_of(call.outputs[0]))
    if source is not None and call.outputs and source.dtype != call.outputs[0].dtype:
        return Lookup("convert", (n,))
    position = 1 if call.name == "copy_" and len(strides) > 1 else 0
    steps = strides[position] if strides else ()
    sizes = shape(source) if source is not None else ()
    steps = tuple(s for s, d in zip(steps, sizes, strict=False) if d > 1)
    if steps and (steps[-1] != 1 or list(steps) != sorted(steps, reverse=True)):
        curve = "strided" if steps[-1] == 1 else "transposed" if len(steps) == 2 else "permuted"  # matrices: in blocks
        return Lookup(curve, rows_of(call.outputs[0] if call.outputs else source))  # type: ignore[arg-type]
    return Lookup("copy_" if inplace else "clone", (n,))


def _embedding_backward(call: Call, strides: Strides) -> list[Lookup]:
    rows = rows_of(call.inputs[0])
    table = numel(call.outputs[0])
    return [Lookup("embedding_backward", rows), Lookup("fill_", (max(1, table - PICKED * rows[1]),))]


def _cat(call: Call, strides: Strides) -> list[Lookup]:
    rows, columns = rows_of(call.outputs[0])
    return [Lookup("cat", (rows, max(columns / 2, 1)))]


def _pooling(curve: str) -> Rule:
    """By the results, and by how many numbers each is of; backward by the results' gradients."""

    def rule(call: Call, strides: Strides) -> list[Lookup]:
        results = numel(call.inputs[0] if curve.endswith("_backward") else call.outputs[0])
        sizes, rank = ints(call.args.get("kernel_size", ())), 3 if "3d" in call.name else 2
        window = math.prod(sizes) if len(sizes) != 1 else sizes[0] ** rank
        if not sizes:  # adaptive: all of the image, in as many parts as there are results
            window = max(
                1, (numel(call.outputs[0]) if curve.endswith("_backward") else numel(call.inputs[0])) // max(1, results)
            )
        return [Lookup(curve, (results, window), alike=rank == 3)]

    return rule


def _picked(curve: str) -> Rule:
    """Rows of a table, picked by numbers or added to them; rows that are only written take as long as those that are picked."""

    def rule(call: Call, strides: Strides) -> list[Lookup]:
        which = "index" if curve == "index_put" and call.args.get("accumulate") is not True else curve
        index, mask = ([t for t in call.inputs[1:] if t.dtype.startswith(kind)] for kind in ("int", "bool"))
        moved = call.outputs[0] if curve == "index" else call.inputs[-1]
        rows = max((numel(t) for t in index), default=1)
        if mask:  # it becomes numbers first
            return [Lookup("nonzero", (numel(mask[0]),)), Lookup(which, rows_by(moved, math.prod(shape(moved)[1:])))]
        if not index:
            return [Lookup(which, (numel(moved), 1), alike=True)]
        return [Lookup(which, (rows, max(1, numel(moved) / max(1, rows))))]

    return rule


def _single(curve: str) -> Rule:
    """One number for each of an index."""
    return lambda call, strides: [Lookup(curve, (numel(call.inputs[1] if len(call.inputs) > 1 else call.inputs[0]),))]


def _in_a_row(call: Call, strides: Strides) -> list[Lookup]:
    return [Lookup("max_in_a_row", (numel(call.outputs[0]), math.prod(ints(call.args["kernel_size"]))))]


def _transformed(call: Call, strides: Strides) -> list[Lookup]:
    """Fourier transforms, one axis after the other; that of real numbers, or back to them, has half of the results."""
    full = call.outputs[0] if call.name == "_fft_c2r" else call.inputs[0]
    sizes, dims = shape(full), ints(call.args["dim"])
    if not dims:
        return [Lookup("clone", (numel(full),), alike=True)]
    *others, last = dims
    real = call.name != "_fft_c2c"
    rest = [Lookup("fft", (numel(full) / sizes[d] / (2 if real else 1), sizes[d])) for d in others]
    return [Lookup("fft_real" if real else "fft", rows_by(full, sizes[last])), *rest]


def _affine(call: Call, strides: Strides) -> list[Lookup]:
    """Two coordinates and a one for every place, multiplied by the images' matrices."""
    n, *places, two = shape(call.outputs[0])
    number = math.prod(places)
    return [Lookup("bmm_nn", (n, number, two, two + 1), alike=True), Lookup("strided", (n * number, two + 1), two)]


def _bag(call: Call, strides: Strides) -> list[Lookup]:
    mode = int(call.args.get("mode", 0))  # sums, means, largest
    return [Lookup("bag_mean" if mode else "bag", (numel(call.inputs[1]), rows_of(call.inputs[0])[1]), alike=mode > 1)]


def _bag_backward(call: Call, strides: Strides) -> list[Lookup]:
    """As that of picked rows."""
    (_, columns), table, picked = rows_of(call.inputs[0]), numel(call.outputs[0]), numel(call.inputs[1])
    zeros = Lookup("fill_", (max(1, table - PICKED * columns),))
    return [Lookup("embedding_backward", (picked, columns), alike=True), zeros]


def _padded(call: Call, strides: Strides) -> list[Lookup]:
    """What is around is filled in first, everywhere."""
    return [Lookup("fill_", (numel(call.outputs[0]),)), Lookup("strided", rows_of(call.inputs[0]))]


def _summed_up(call: Call, strides: Strides) -> list[Lookup]:
    t, sizes = call.inputs[0], shape(call.inputs[0])
    dim = int(call.args.get("dim", -1)) % max(1, len(sizes))
    if dim >= len(sizes) - 1:
        return [Lookup("cumsum", rows_of(t))]
    return [Lookup("cumsum_rows", rows_by(t, math.prod(sizes[dim + 1 :])))]


def _gated(call: Call, strides: Strides) -> list[Lookup]:
    n = numel(call.outputs[0])
    return [Lookup("sigmoid", (n,)), Lookup("binary", (n,))]


def _gelu(backward: bool) -> Rule:
    def rule(call: Call, strides: Strides) -> list[Lookup]:
        tanh = "_tanh" if call.args.get("approximate") == "tanh" else ""
        return [Lookup(f"gelu{tanh}{'_backward' if backward else ''}", (numel(call.outputs[0]),))]

    return rule


_POWERS = {2.0: "pow2", 3.0: "pow", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


def _power(call: Call, strides: Strides) -> list[Lookup]:
    exponent = call.args.get("exponent")  # a number, or the numbers of a tensor
    curve = _POWERS.get(float(exponent), "pow_any") if isinstance(exponent, (int, float, Number)) else "pow_any"
    return [Lookup(curve, (numel(call.outputs[0]),))]


_RULES: Mapping[str, Rule] = {
    **HEAVY_RULES,
    "embedding": lambda c, s: [Lookup("embedding", rows_of(c.outputs[0]))], "embedding_dense_backward": _embedding_backward,
    "_embedding_bag": _bag, "_embedding_bag_forward_only": _bag,
    **dict.fromkeys(("_embedding_bag_backward", "_embedding_bag_dense_backward"), _bag_backward), "cat": _cat, "stack": _cat,
    **{f"{kind}{rank}d_with_indices{end}": _pooling(f"max_window{end}")
       for kind in ("max_pool", "adaptive_max_pool") for rank in (2, 3) for end in ("", "_backward")},
    **{f"{kind}{rank}d{end}": _pooling(f"avg_window{end}")
       for kind in ("avg_pool", "_adaptive_avg_pool") for rank in (2, 3) for end in ("", "_backward")},
    "index": _picked("index"), "index_put": _picked("index_put"), "_index_put_impl": _picked("index_put"),
    "index_add": _picked("index_add"), "gather": _single("gather"), "scatter_add": _single("scatter_add"),
    "scatter": _single("scatter_add"), "scatter_reduce": _single("scatter_add"),
    "affine_grid_generator": _affine,
    "nonzero": _single("nonzero"), "max_pool1d": _in_a_row, **dict.fromkeys(("_fft_c2c", "_fft_r2c", "_fft_c2r"), _transformed),
    "constant_pad_nd": _padded, "cumsum": _summed_up, "glu": _gated,
    "gelu": _gelu(False), "gelu_backward": _gelu(True), "pow": _power,
    "_safe_softmax": lambda c, s: [Lookup("safe_softmax", rows_of(c.outputs[0]))],
}  # fmt: skip


MATRICES = ("mm_", "bmm_", "attention")
PRODUCTS = (*MATRICES, "conv", "enlarged", "depthwise", "grouped", "halves", "ragged", "lstm", "gru")
_PARTS = {"complex64": ("fp32", 4), "complex128": ("fp64", 4)}  # a product of complex numbers is four of their parts


def of_type(x: Lookup, call: Call, rates: Mapping[str, float]) -> Lookup:
    """The same for the type that the call computes in, where it is neither float32 nor whole numbers: another's curve.

    So is what stands in for sparse operands.
    Products take as much longer as their rate is lower, others as their numbers are wider; narrow ones are computed in float32.
    """
    if any(t.nnz is not None for t in call.inputs):
        return replace(x, alike=True)
    used = [t for t in (*call.outputs, *call.inputs) if t.dtype.startswith(("float", "bfloat", "complex"))]
    own = ("float32", "complex64") if x.curve.startswith("fft") else ("float32",)
    if not used or all(t.dtype in own for t in used) or x.curve == "convert":
        return x
    widest = max(used, key=lambda t: int(t.itemsize))
    key, products = _PARTS.get(widest.dtype, (rate_key(widest.dtype), 1))
    if x.curve.startswith(PRODUCTS):
        slower = products * rates["fp32"] / rates[key] if {"fp32", key} <= rates.keys() else products
        return replace(x, slower=slower, alike=True)
    wider = max(1.0, int(widest.itemsize) / 4)
    return replace(x, sizes=(x.sizes[0] * wider, *x.sizes[1:]), alike=True)
