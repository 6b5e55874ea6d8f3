"""Rules for products, attention, convolutions, normalized images and layers that are one operator. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from costir.ir import Call
from costir.measuring.lookup_parts import Lookup, Rule, Strides, ints, rows_of, shape

Shape = tuple[int, ...]
BLOCK = 8  # channels
FEW_CHANNELS = 4  # of an image: they are packed together
STEPS = (8, 64)  # of recurrent layers, that are timed
BATCHES = (4, 32, 256)  # of batched products, that are timed; fewer are so many products one after the other
ENLARGED = 16  # places of the window of the transposed convolution that is timed
KEYS = 512  # of a block, in torch's attention on a CPU


def _layout(strides: Strides, first: int) -> str:
    """nn, nt or tn, from the strides of the two matrices."""
    a, b = (strides[i] if i < len(strides) else () for i in (first, first + 1))
    if b and len(b) > 1 and b[-1] != 1 and b[-2] == 1:
        return "nt"
    return "tn" if a and len(a) > 1 and a[-1] != 1 and a[-2] == 1 else "nn"


def _product(first: int) -> Rule:
    def rule(call: Call, strides: Strides) -> list[Lookup]:
        a, b = (shape(t) for t in call.inputs[first : first + 2])
        if len(a) == 1 or len(b) == 1:
            m, k, n = (1, a[0], b[-1] if len(b) > 1 else 1) if len(a) == 1 else (a[0], a[1], 1)
            return [Lookup("mm_nt", (m, n, k))]
        layout = _layout(strides, first)
        if len(a) == 2:
            bias = [Lookup("bias", (a[0], b[1]))] if first else []  # it is copied into the result before
            return [Lookup(f"mm_{layout}", (a[0], b[1], a[1])), *bias]
        batch, *sizes = a[0], a[1], b[2], a[2]
        if batch < BATCHES[0]:
            return [Lookup(f"mm_{layout}", tuple(sizes))] * batch
        return [Lookup(f"bmm_{layout}", (batch, *sizes))]

    return rule


def _attention(curve: str, first: int) -> Rule:
    def rule(call: Call, strides: Strides) -> list[Lookup]:
        q, k = (shape(t) for t in call.inputs[first : first + 2])
        share = _seen(q[-2], k[-2]) if call.args.get("is_causal") is True else 1.0
        return [Lookup(curve, (math.prod(q[:-2]), math.sqrt(q[-2] * k[-2]), q[-1]), share)]

    return rule


def _seen(queries: int, keys: int) -> float:
    """The share of the scores that torch's causal attention computes: of a block of queries, whole blocks of KEYS keys."""
    block = next(size for least, size in ((768, 256), (192, 64), (0, 32)) if queries >= least)
    scores = 0
    for first in range(0, queries, block):
        last = min(first + block, queries)
        scores += (last - first) * min(keys, -(-last // KEYS) * KEYS)
    return scores / max(1, queries * keys)


def _convolution(backward: bool) -> Rule:
    def rule(call: Call, strides: Strides) -> list[Lookup]:
        x, w = (shape(t) for t in (call.inputs[1:3] if backward else call.inputs[:2]))
        out = shape(call.inputs[0] if backward else call.outputs[0])
        kernel, suffix = math.prod(w[2:]), "_backward" if backward else ""
        side = math.sqrt(x[0] * math.prod(out[2:]))  # a batch is that many more pixels
        groups = max(1, int(call.args.get("groups", 1)))
        once = 0.5 if backward and _first_mask(call) is False else 1.0  # of a first layer: nobody wants its input's gradient
        if call.args.get("transposed") is True:  # the channels of its input are the first of its weights
            side, alike = math.sqrt(x[0] * math.prod(x[2:])), kernel != ENLARGED or groups > 1
            return [Lookup("enlarged" + suffix, (side, w[0], w[1] * kernel / ENLARGED), once, alike)]
        if groups > 1 and w[1] == 1:
            return [Lookup("depthwise" + suffix, (side, out[1], math.sqrt(kernel)))]
        if groups > 1:
            rest = math.gcd(BLOCK, w[1], out[1] // groups)
            curve = "grouped" if rest == BLOCK else "halves" if rest == BLOCK // 2 else "ragged"
            return [Lookup(curve + suffix, (side, math.sqrt(w[1] * out[1] / groups), groups), kernel / 9)]
        return [_whole(call, x, w, (side, out[1]), suffix, once)]

    return rule


def _whole(call: Call, x: Shape, w: Shape, result: tuple[float, int], suffix: str, once: float) -> Lookup:
    """A convolution of all channels with all; `result` is its side and its channels.

    Channels and places of a window are one sum: a larger window of fewer channels is as much work, as well done.
    """
    kernel, strided, (side, outside) = math.prod(w[2:]), max(ints(call.args.get("stride", 1))) != 1, result
    line = not strided and kernel > 1 and math.prod(x[2:-1]) == 1 and x[0] > 1  # along one axis; alone it is as an image
    larger = kernel / (3 if line else 1 if kernel == 1 else 9)
    sizes, times = (w[1] * max(1.0, larger), outside), min(1.0, larger) * once
    if line:
        return Lookup(f"conv_line{suffix}", (side**2, *sizes), times)
    channels = (w[1] if w[1] > FEW_CHANNELS else 0, outside) if kernel > 1 else ()
    curve = f"conv{1 if kernel == 1 else 3}{'_strided' if strided else ''}{suffix}"
    return Lookup(curve, (side, *sizes), times, channels=channels)


def _first_mask(call: Call) -> Any:
    mask = call.args.get("output_mask")
    return mask[0] if isinstance(mask, tuple) and mask else None


def _image(curve: str) -> Rule:
    def rule(call: Call, strides: Strides) -> list[Lookup]:
        sizes = shape(call.inputs[0])
        if len(sizes) < 3:
            return [Lookup("layer_norm", rows_of(call.inputs[0]))]
        return [Lookup(curve, (sizes[1], math.sqrt(sizes[0] * math.prod(sizes[2:]))))]

    return rule


def _batch_norm(call: Call, strides: Strides) -> list[Lookup]:
    training = call.args.get("training", call.args.get("train")) is True or (
        "legit" in call.name and "no_training" not in call.name
    )
    return _image("batch_norm_training" if training else "batch_norm")(call, strides)


def _group_norm(curve: str, first: int) -> Rule:
    """A row is a group of channels of one image."""

    def rule(call: Call, strides: Strides) -> list[Lookup]:
        sizes = shape(call.inputs[first])
        rows = sizes[0] * max(1, int(call.args.get("group", 1)))
        return [Lookup(curve, (rows, max(1, math.prod(sizes) / rows)))]

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
    batch, length, width = shape(call.args["query"])
    heads = max(1, int(call.args["num_head"]))
    wanted = call.args.get("need_weights", True) is True and call.args.get("average_attn_weights", True) is True
    averaged = [Lookup("sum_rows", (heads, length * length), batch)] if wanted else []
    return [*_heads(batch, length, width, heads), *averaged]


def _encoder_layer(call: Call, strides: Strides) -> list[Lookup]:
    """A layer of nn.TransformerEncoder in one operator: its parts, which it runs one after the other."""
    batch, length, width = shape(call.args["src"])
    hidden, _ = shape(call.args["ffn_weight_1"])
    rows, heads = batch * length, max(1, int(call.args["num_heads"]))
    n = rows * width
    up, down = (Lookup("mm_nt", (rows, n, k)) for n, k in ((hidden, width), (width, hidden)))
    return [
        *_heads(batch, length, width, heads),
        up, Lookup("gelu" if call.args.get("use_gelu") else "relu", (rows * hidden,)), down,
        Lookup("layer_norm", (rows, width), 2.0), Lookup("binary", (n,), 2.0),
    ]  # fmt: skip


def _recurrent(backward: bool) -> Rule:
    def rule(call: Call, strides: Strides) -> list[Lookup]:
        return _layer(call, "_backward" if backward else "")

    return rule


def _layer(call: Call, suffix: str) -> list[Lookup]:
    """oneDNN's layer: input [steps, batch, width], weights [gates*hidden, ...]."""
    steps, batch, width = (*shape(call.inputs[0]), 1, 1)[:3]
    hidden = shape(call.inputs[2])[-1] if len(call.inputs) > 2 else width
    gates = max(1, round(shape(call.inputs[1])[0] / max(hidden, 1))) if len(call.inputs) > 1 else 4
    curve, rest = ("gru" if gates == 3 else "lstm") + suffix, (batch, math.sqrt((width + hidden) / 2 * hidden))
    few, many = STEPS
    share = (steps - few) / (many - few)  # a step takes as long as any other
    return [Lookup(curve, (few, *rest), 1 - share), Lookup(curve, (many, *rest), share)]


HEAVY_RULES: Mapping[str, Rule] = {
    "mm": _product(0), "bmm": _product(0), "addmm": _product(1), "baddbmm": _product(1), "mv": _product(0), "dot": _product(0),
    "_scaled_dot_product_flash_attention_for_cpu": _attention("attention", 0),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention("attention_backward", 1),
    "convolution": _convolution(False), "convolution_backward": _convolution(True), "_convolution": _convolution(False),
    "mkldnn_convolution": _convolution(False), "native_batch_norm": _batch_norm, "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm, "cudnn_batch_norm": _batch_norm,
    "native_batch_norm_backward": _image("batch_norm_backward"), "native_group_norm": _group_norm("group_norm", 0),
    "native_group_norm_backward": _group_norm("layer_norm_backward", 1),
    "_transformer_encoder_layer_fwd": _encoder_layer, "_native_multi_head_attention": _attention_layer,
    "mkldnn_rnn_layer": _recurrent(False), "mkldnn_rnn_layer_backward": _recurrent(True),
}  # fmt: skip


__all__ = ["BATCHES", "BLOCK", "HEAVY_RULES", "STEPS"]
