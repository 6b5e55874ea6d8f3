"""Which curve of the calibration says how long an operator takes, and at which sizes. No torch here.

An operator that has no curve of its own takes that of the one most like it: elementwise by its number of operands, a reduction
by its rows. What is taken for what is in this file alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from costir.chip import rate_key
from costir.ir import Call, Cost, Tensor

BLOCK = 8  # channels
PICKED = 1024  # rows of tables, that are timed
HEAVY = 0.8  # times the average code of an operator: has much
STEPS = (8, 64)  # of recurrent layers, that are timed
Strides = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """A curve, the sizes to read it at, and how many times it runs; `alike` where another operator stands in."""

    curve: str
    sizes: tuple[float, ...]
    times: float = 1.0
    alike: bool = False


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
    "hardswish_backward": "hardswish_backward", "expm1": "exp", "log1p": "log", "elu": "elu", "elu_backward": "elu_backward",
    "softplus": "log", "mish": "tanh", "exp2": "exp", "log2": "log", "tan": "sin", "atan": "tanh", "pow": "pow",
    "native_dropout_backward": "binary", "bernoulli": "bernoulli", "neg": "neg",
    "abs": "neg", "sgn": "neg", "sign": "neg", "tril": "clone", "triu": "clone",
}  # fmt: skip
_COMPARE = frozenset((
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or",
    "isnan", "isinf", "isfinite",
))  # fmt: skip
_ROWS = {
    "_softmax": "softmax", "_log_softmax": "log_softmax", "_softmax_backward_data": "softmax_backward",
    "_log_softmax_backward_data": "log_softmax_backward", "native_layer_norm": "layer_norm",
    "_fused_rms_norm": "layer_norm", "native_layer_norm_backward": "layer_norm_backward",
    "argmax": "max_columns", "max": "max_columns", "topk": "max_columns",
    "sort": "max_columns", "cumsum": "sum_columns", "logsumexp": "softmax", "argmin": "max_columns",
    "_fused_rms_norm_backward": "layer_norm_backward",
}  # fmt: skip
_OTHER_WORK = frozenset(("sort", "topk", "cumsum"))  # and take much longer than a pass over their rows
_COPIES = frozenset((
    "clone", "copy", "contiguous", "_to_copy", "repeat", "roll", "flip", "constant_pad_nd", "stack", "index_select",
    "gather", "index",
))  # fmt: skip


def lookups(call: Call, strides: Strides, cost: Cost) -> list[Lookup]:
    """Where to read the time of a call; the times add up. Empty where nothing but a call overhead is known."""
    name = call.name.rstrip("_") if not call.name.startswith("_") else call.name
    inplace = call.name.endswith("_")
    rule = _RULES.get(name)
    if rule is not None:
        return rule(call, strides)
    n = _numel(call.outputs[0]) if call.outputs else max((_numel(t) for t in call.inputs), default=0)
    if name in _EMPTY:
        return [Lookup("empty", (n,))]
    if name in _ROWS:
        found = _by_rows(_ROWS[name], call.inputs[0] if call.inputs else call.outputs[0])
        return [replace(found, alike=name in _OTHER_WORK)]
    if name in ("sum", "mean", "amax", "amin", "var", "norm", "linalg_vector_norm", "var_mean", "prod", "any", "all"):
        divided = [Lookup("unary_", (n,))] if name == "mean" else []  # the sum, in place
        return [_reduction(call), *divided]
    if name in ("addcmul", "addcdiv", "lerp") and not inplace:
        return [Lookup("binary", (n,), 1.5, alike=True)]  # three read, one written
    operands = [t for t in call.inputs if _numel(t) > 1]
    if name == "div" and len(operands) < 2:  # by a number: multiplied by one over it
        return [_arithmetic(call, operands, strides, inplace, n)]
    if name in _SAME:
        return [Lookup(_SAME[name], (n,))]
    if name in _COMPARE:
        return [Lookup("compare", (n,))]
    if name in _COPIES:
        return [_copy(call, strides, inplace, n)]
    if name in ("add", "sub", "mul", "rsub", "maximum", "minimum", "square", "addcmul"):
        return [_arithmetic(call, operands, strides, inplace, n)]
    if cost.special != 0:
        return [Lookup("exp", (n,), float(cost.special) / max(n, 1), alike=True)]
    return [
        Lookup(
            "binary" if len(operands) > 1 else "unary",
            (max(n, *(map(_numel, operands)), 1) if operands else n,),
            1.0,
            alike=True,
        )
    ]


def _numel(t: Tensor) -> int:
    return int(t.numel)


def _shape(t: Tensor) -> tuple[int, ...]:
    return tuple(int(d) for d in t.shape)


def _arithmetic(call: Call, operands: list[Tensor], strides: Strides, inplace: bool, n: int) -> Lookup:
    if len(operands) == 1 and operands[0].expanded and not inplace:
        return Lookup("expanded", _repeated(operands[0]))
    across = _across(strides, operands) if len(operands) == 2 else 0
    if across and not inplace:  # at every step the memory of one of both is somewhere else
        return Lookup("transposed", (n / across, across))
    full = [t for t in operands if _numel(t) == n and not t.expanded]
    if len(operands) > 1 and len(full) < len(operands) and not inplace and call.outputs:
        return Lookup("broadcast", _rows_of(call.outputs[0]))
    return Lookup(("binary" if len(operands) > 1 else "unary") + ("_" if inplace else ""), (n,))


def _rows_of(t: Tensor) -> tuple[float, float]:
    shape = _shape(t)
    columns = shape[-1] if shape else 1
    return math.prod(shape) / max(columns, 1), columns


def _repeated(t: Tensor) -> tuple[float, float]:
    """Of numbers that are repeated: how many there are, and how often."""
    shape, last = _shape(t), len(t.shape)
    while last and last - 1 in t.expanded:
        last -= 1
    return math.prod(shape[:last]), math.prod(shape[last:])


def _across(strides: Strides, operands: list[Tensor]) -> int:
    """How long the dimension is that lies together in the second operand, where another one does in the first; 0 where none."""
    both = [
        next((i for i, (s, d) in enumerate(zip(steps, _shape(t), strict=False)) if s == 1 and d > 1), None)
        for steps, t in zip(strides, operands, strict=False)
    ]
    if len(both) < 2 or None in both or both[0] == both[1] or len(operands[0].shape) != len(operands[1].shape):
        return 0
    return _shape(operands[1])[both[1]]  # type: ignore[index]


def _by_rows(curve: str, t: Tensor) -> Lookup:
    return Lookup(curve, _rows_of(t))


def _reduction(call: Call) -> Lookup:
    t = call.inputs[0]
    dims = call.args.get("dim")
    shape = _shape(t)
    if not dims or len(shape) < 2:
        return Lookup("sum", (_numel(t),))
    which = {int(d) % len(shape) for d in (dims if isinstance(dims, tuple) else (dims,))}
    if len(shape) - 1 in which:
        gone = math.prod(shape[d] for d in which)
        return Lookup("sum_columns", (math.prod(shape) / max(gone, 1), gone))
    kept = math.prod(s for d, s in enumerate(shape) if d not in which)
    return Lookup("sum_rows", (math.prod(shape) / max(kept, 1), kept))


def _copy(call: Call, strides: Strides, inplace: bool, n: int) -> Lookup:
    source = call.inputs[1 if call.name == "copy_" and len(call.inputs) > 1 else 0] if call.inputs else None
    if call.name in ("index_select", "gather", "index"):
        return Lookup("embedding", _rows_of(call.outputs[0]))
    if source is not None and call.outputs and source.dtype != call.outputs[0].dtype:
        return Lookup("convert", (n,))
    position = 1 if call.name == "copy_" and len(strides) > 1 else 0
    steps = strides[position] if strides else ()
    shape = _shape(source) if source is not None else ()
    steps = tuple(s for s, d in zip(steps, shape, strict=False) if d > 1)
    if steps and (steps[-1] != 1 or list(steps) != sorted(steps, reverse=True)):
        return Lookup("transposed" if steps[-1] != 1 else "strided", _rows_of(call.outputs[0] if call.outputs else source))  # type: ignore[arg-type]
    return Lookup("copy_" if inplace else "clone", (n,))


# ------------------------------------------------------------------------------------------------------------- products


def _layout(strides: Strides, first: int) -> str:
    """nn, nt or tn, from the strides of the two matrices."""
    a, b = (strides[i] if i < len(strides) else () for i in (first, first + 1))
    if b and len(b) > 1 and b[-1] != 1 and b[-2] == 1:
        return "nt"
    return "tn" if a and len(a) > 1 and a[-1] != 1 and a[-2] == 1 else "nn"


def _product(first: int) -> Callable[[Call, Strides], list[Lookup]]:
    def rule(call: Call, strides: Strides) -> list[Lookup]:
        a, b = (_shape(t) for t in call.inputs[first : first + 2])
        if len(a) == 1 or len(b) == 1:
            m, k, n = (1, a[0], b[-1] if len(b) > 1 else 1) if len(a) == 1 else (a[0], a[1], 1)
            return [Lookup("mm_nt", (m, n, k))]
        layout = _layout(strides, first)
        if len(a) == 2:
            bias = [Lookup("bias", (a[0], b[1]))] if first else []  # it is copied into the result before
            return [Lookup(f"mm_{layout}", (a[0], b[1], a[1])), *bias]
        return [Lookup(f"bmm_{layout}", (a[0], a[1], b[2], a[2]))]

    return rule


def _attention(curve: str, first: int) -> Callable[[Call, Strides], list[Lookup]]:
    def rule(call: Call, strides: Strides) -> list[Lookup]:
        q, k = (_shape(t) for t in call.inputs[first : first + 2])
        heads = math.prod(q[:-2])
        length = math.sqrt(q[-2] * k[-2])
        # torch goes through the queries in blocks, and leaves out the keys that no query of a block sees.
        block = next(size for least, size in ((768, 256), (192, 64), (0, 32)) if q[-2] >= least)
        causal = min(1.0, 0.5 + block / (2 * max(q[-2], 1))) if call.args.get("is_causal") is True else 1.0
        return [Lookup(curve, (heads, length, q[-1]), causal)]

    return rule


def _convolution(backward: bool) -> Callable[[Call, Strides], list[Lookup]]:
    def rule(call: Call, strides: Strides) -> list[Lookup]:
        x, w = (_shape(t) for t in (call.inputs[1:3] if backward else call.inputs[:2]))
        out = _shape(call.inputs[0] if backward else call.outputs[0])
        kernel, suffix = math.prod(w[2:]), "_backward" if backward else ""
        side = math.sqrt(x[0] * math.prod(out[2:]))  # a batch is that many more pixels
        groups = max(1, int(call.args.get("groups", 1)))
        if call.args.get("transposed") is True:  # the channels of its input are the first of its weights
            return [Lookup("conv3" + suffix, (side, w[1] * groups, out[1]), kernel / 9 / groups, True)]
        if groups > 1 and w[1] == 1:
            return [Lookup("depthwise" + suffix, (side, out[1], math.sqrt(kernel)))]
        if groups > 1:
            rest = math.gcd(BLOCK, w[1], out[1] // groups)
            curve = "grouped" if rest == BLOCK else "halves" if rest == BLOCK // 2 else "ragged"
            return [Lookup(curve + suffix, (side, math.sqrt(w[1] * out[1] / groups), groups), kernel / 9)]
        if backward and _first_mask(call) is False:  # of a first layer: nobody wants the gradient of its input
            return [Lookup("conv3_backward", (side, w[1], out[1]), 0.5 * kernel / 9)]
        steps = call.args.get("stride", 1)
        strided = "_strided" if (max(steps) if isinstance(steps, tuple) else steps) != 1 else ""
        base = 1 if kernel == 1 else 3
        return [Lookup(f"conv{base}{strided}{suffix}", (side, w[1], out[1]), kernel / base**2)]

    return rule


def _first_mask(call: Call) -> Any:
    mask = call.args.get("output_mask")
    return mask[0] if isinstance(mask, tuple) and mask else None


def _embedding_backward(call: Call, strides: Strides) -> list[Lookup]:
    rows = _rows_of(call.inputs[0])
    table = _numel(call.outputs[0])
    return [Lookup("embedding_backward", rows), Lookup("fill_", (max(1, table - 1024 * rows[1]),))]


def _cat(call: Call, strides: Strides) -> list[Lookup]:
    rows, columns = _rows_of(call.outputs[0])
    return [Lookup("cat", (rows, max(columns / 2, 1)))]


def _image(curve: str) -> Callable[[Call, Strides], list[Lookup]]:
    def rule(call: Call, strides: Strides) -> list[Lookup]:
        shape = _shape(call.inputs[0])
        if len(shape) < 3:
            return [Lookup("layer_norm", _rows_of(call.inputs[0]))]
        return [Lookup(curve, (shape[1], math.sqrt(shape[0] * math.prod(shape[2:]))))]

    return rule


def _batch_norm(call: Call, strides: Strides) -> list[Lookup]:
    training = call.args.get("training", call.args.get("train")) is True or (
        "legit" in call.name and "no_training" not in call.name
    )
    return _image("batch_norm_training" if training else "batch_norm")(call, strides)


def _max_pool_backward(call: Call, strides: Strides) -> list[Lookup]:
    shape = _shape(call.outputs[0])
    return [Lookup("max_pool_backward", (shape[-3], math.sqrt(math.prod(shape[:-3]) * math.prod(shape[-2:]))))]


def _group_norm(curve: str, first: int) -> Callable[[Call, Strides], list[Lookup]]:
    """A row is a group of channels of one image."""

    def rule(call: Call, strides: Strides) -> list[Lookup]:
        shape = _shape(call.inputs[first])
        rows = shape[0] * max(1, int(call.args.get("group", 1)))
        return [Lookup(curve, (rows, max(1, math.prod(shape) / rows)))]

    return rule


def _heads(batch: int, length: int, width: int, heads: int) -> list[Lookup]:
    """Self-attention with its projections: the heads side by side, the scores written out."""
    rows, each, heads = batch * length, width // heads, batch * heads
    return [
        Lookup("mm_nt", (rows, 3 * width, width)), Lookup("strided", (rows, 3 * width)),
        Lookup("bmm_nt", (heads, length, length, each)), Lookup("softmax", (heads * length, length)),
        Lookup("bmm_nn", (heads, length, each, length)), Lookup("clone", (rows * width,)),
        Lookup("mm_nt", (rows, width, width)),
    ]  # fmt: skip


def _attention_layer(call: Call, strides: Strides) -> list[Lookup]:
    """A forward pass of nn.MultiheadAttention in one operator; weights that are wanted are averaged over the heads."""
    batch, length, width = _shape(call.args["query"])
    heads = max(1, int(call.args["num_head"]))
    wanted = call.args.get("need_weights", True) is True and call.args.get("average_attn_weights", True) is True
    averaged = [Lookup("sum_rows", (heads, length * length), batch)] if wanted else []
    return [*_heads(batch, length, width, heads), *averaged]


def _encoder_layer(call: Call, strides: Strides) -> list[Lookup]:
    """A layer of nn.TransformerEncoder in one operator: its parts, which it runs one after the other."""
    batch, length, width = _shape(call.args["src"])
    hidden, _ = _shape(call.args["ffn_weight_1"])
    rows, heads = batch * length, max(1, int(call.args["num_heads"]))
    n = rows * width
    up, down = (Lookup("mm_nt", (rows, n, k)) for n, k in ((hidden, width), (width, hidden)))
    return [
        *_heads(batch, length, width, heads),
        up, Lookup("gelu" if call.args.get("use_gelu") else "relu", (rows * hidden,)), down,
        Lookup("layer_norm", (rows, width), 2.0), Lookup("binary", (n,), 2.0),
    ]  # fmt: skip


def _gelu(backward: bool) -> Callable[[Call, Strides], list[Lookup]]:
    def rule(call: Call, strides: Strides) -> list[Lookup]:
        tanh = "_tanh" if call.args.get("approximate") == "tanh" else ""
        return [Lookup(f"gelu{tanh}{'_backward' if backward else ''}", (_numel(call.outputs[0]),))]

    return rule


def _power(call: Call, strides: Strides) -> list[Lookup]:
    square = call.args.get("exponent") in (2, 2.0)
    return [Lookup("pow2" if square else "pow", (_numel(call.outputs[0]),))]


def _recurrent(call: Call, strides: Strides) -> list[Lookup]:
    """oneDNN's layer: input [steps, batch, width], weights [gates*hidden, ...]."""
    steps, batch, width = (*_shape(call.inputs[0]), 1, 1)[:3]
    hidden = _shape(call.inputs[2])[-1] if len(call.inputs) > 2 else width
    gates = max(1, round(_shape(call.inputs[1])[0] / max(hidden, 1))) if len(call.inputs) > 1 else 4
    curve, rest = "gru" if gates == 3 else "lstm", (batch, math.sqrt((width + hidden) / 2 * hidden))
    few, many = STEPS
    share = (steps - few) / (many - few)  # a step takes as long as any other
    return [Lookup(curve, (few, *rest), 1 - share), Lookup(curve, (many, *rest), share)]


_RULES: Mapping[str, Callable[[Call, Strides], list[Lookup]]] = {
    "mm": _product(0), "bmm": _product(0), "addmm": _product(1), "baddbmm": _product(1), "mv": _product(0), "dot": _product(0),
    "_scaled_dot_product_flash_attention_for_cpu": _attention("attention", 0),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention("attention_backward", 1),
    "convolution": _convolution(False), "convolution_backward": _convolution(True), "_convolution": _convolution(False),
    "mkldnn_convolution": _convolution(False), "embedding": lambda c, s: [Lookup("embedding", _rows_of(c.outputs[0]))],
    "embedding_dense_backward": _embedding_backward, "cat": _cat, "max_pool2d_with_indices": _image("max_pool"),
    "max_pool2d_with_indices_backward": _max_pool_backward, "avg_pool2d": _image("avg_pool"),
    "_adaptive_avg_pool2d": _image("avg_pool"), "native_batch_norm": _batch_norm, "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm, "cudnn_batch_norm": _batch_norm,
    "native_batch_norm_backward": _image("batch_norm_backward"), "native_group_norm": _group_norm("layer_norm", 0),
    "native_group_norm_backward": _group_norm("layer_norm_backward", 1),
    "_transformer_encoder_layer_fwd": _encoder_layer, "_native_multi_head_attention": _attention_layer, "gelu": _gelu(False),
    "gelu_backward": _gelu(True), "pow": _power, "mkldnn_rnn_layer": _recurrent,
    "_safe_softmax": lambda c, s: [Lookup("safe_softmax", _rows_of(c.outputs[0]))],
}  # fmt: skip


PRODUCTS = ("mm_", "bmm_", "attention", "conv", "depthwise", "grouped", "halves", "ragged", "lstm", "gru")
_PARTS = {"complex64": ("fp32", 4), "complex128": ("fp64", 4)}  # a product of complex numbers is four of their parts


def of_type(x: Lookup, call: Call, rates: Mapping[str, float]) -> Lookup:
    """The same for the type that the call computes in, where it is neither float32 nor whole numbers: another's curve.

    So is what stands in for sparse operands.
    Products take as much longer as their rate is lower, others as their numbers are wider; narrow ones are computed in float32.
    """
    if any(t.nnz is not None for t in call.inputs):
        return replace(x, alike=True)
    used = [t for t in (*call.outputs, *call.inputs) if t.dtype.startswith(("float", "bfloat", "complex"))]
    if not used or all(t.dtype == "float32" for t in used) or x.curve == "convert":
        return x
    widest = max(used, key=lambda t: int(t.itemsize))
    key, products = _PARTS.get(widest.dtype, (rate_key(widest.dtype), 1))
    if x.curve.startswith(PRODUCTS):
        slower = products * rates["fp32"] / rates[key] if {"fp32", key} <= rates.keys() else products
        return replace(x, times=x.times * slower, alike=True)
    wider = max(1.0, int(widest.itemsize) / 4)
    return replace(x, sizes=(x.sizes[0] * wider, *x.sizes[1:]), alike=True)


def known(call: Call, curves: Mapping[str, Any], found: list[Lookup]) -> bool:
    """Whether every curve that is asked for was measured."""
    return bool(found) and all(x.curve in curves for x in found)
