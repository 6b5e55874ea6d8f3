"""What calibration runs: operators of torch over grids of sizes. No model is among them, and none is fitted to one.

A kernel is a name, its axes, and a function that makes something to time from one point of the grid. The names are those by
which `estimate` looks up a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from costir.measuring.kernel import Kernel, Make, Run, rand
from costir.measuring.lookup import PICKED, STEPS
from costir.measuring.pools import far

SIZES = (16, 256, 2048, *(1 << p for p in (13, 15, 17, 18, 19, 20, 22)))  # elements; larger ones get fresh pages at every call
ROWS, COLUMNS = (4, 64, 1024, 16384), (16, 64, 256, 1024)
EDGES, LONG = (4, 16, 64, 256, 1024, 4096), (1, 4, 16, 32, 64, 128, 512, 4096)  # of matrices; rows of a batch go further
BOTH = (("", False), ("_backward", True))
MOST_ROWS = 1 << 23  # numbers: beyond, the time grows with the number
LARGEST = 1 << 30  # multiply-adds of one product: beyond, the time grows with the number


def _elements(name: str, make: Callable[[Tensor, Tensor], Run], sizes: tuple[int, ...] = SIZES) -> Kernel:
    return Kernel(name, {"n": sizes}, lambda n: make(rand(n) + 0.5, rand(n) + 0.5))


def _rows(name: str, make: Callable[[Tensor], Run], rows: tuple[int, ...] = ROWS, columns: tuple[int, ...] = COLUMNS) -> Kernel:
    return Kernel(name, {"rows": rows, "columns": columns}, lambda rows, columns: make(rand(rows, columns)), MOST_ROWS)


aten = torch.ops.aten


def _future(n: int) -> Tensor:
    """The mask of a causal attention, 64 x 64 where n numbers are as many."""
    edge = 1 << min(6, (n.bit_length() - 1) // 2)
    return torch.ones(edge, edge).triu(1) > 0


def _unary(name: str) -> Callable[[Tensor, Tensor], Run]:
    f = getattr(torch, name)
    return lambda x, y: lambda: f(x)


_UNARY = ("exp", "log", "tanh", "sigmoid", "sqrt", "rsqrt", "erf", "sin", "cos", "reciprocal")
POINTWISE: dict[str, Callable[[Tensor, Tensor], Run]] = {
    **{f: _unary(f) for f in _UNARY},
    "unary": lambda x, y: lambda: x * 2.0,
    "neg": lambda x, y: lambda: -x,  # without a number that has to become a tensor first
    "binary": lambda x, y: lambda: x + y,
    "unary_": lambda x, y: lambda: x.mul_(1.0),
    "binary_": lambda x, y: lambda: x.add_(y, alpha=1e-9),
    "div": lambda x, y: lambda: x / y,
    "relu": lambda x, y: lambda: torch.relu(x),
    "silu": lambda x, y: lambda: F.silu(x),
    "elu": lambda x, y: (lambda z: lambda: F.elu(z))(x - 1),  # of positive numbers alone it computes nothing
    "hardswish": lambda x, y: lambda: F.hardswish(x),
    "gelu": lambda x, y: lambda: F.gelu(x),
    "gelu_tanh": lambda x, y: lambda: F.gelu(x, approximate="tanh"),
    "pow": lambda x, y: lambda: x.pow(3.0),
    "pow2": lambda x, y: lambda: x.pow(2),
    "clone": lambda x, y: lambda: x.clone(),
    "copy_": lambda x, y: lambda: x.copy_(y),
    "convert": lambda x, y: lambda: x.to(torch.bfloat16),
    "fill_": lambda x, y: lambda: x.fill_(1.0),
    "zeros": lambda x, y: lambda: torch.zeros(x.shape[0]),
    "empty": lambda x, y: lambda: torch.empty(x.shape[0]),
    "compare": lambda x, y: lambda: x > y,
    "where": lambda x, y: (lambda m: lambda: torch.where(m, x, y))(torch.arange(len(x)) % 128 > 64),
    "masked_fill": lambda x, y: (lambda m: lambda: x.view(-1, *m.shape).masked_fill(m, 0.0))(_future(len(x))),
    "sum": lambda x, y: lambda: x.sum(),
    "addcmul_": lambda x, y: lambda: x.addcmul_(y, y, value=1e-9),
    "addcdiv_": lambda x, y: (lambda z: lambda: x.addcdiv_(y, z, value=1e-9))(y + 1),
    "lerp_": lambda x, y: lambda: x.lerp_(y, 0.1),
    "dropout": lambda x, y: lambda: aten.native_dropout(x, 0.1, True),
    "bernoulli": lambda x, y: lambda: x.bernoulli_(0.9),
    "elu_backward": lambda x, y: (lambda z: lambda: aten.elu_backward(x, 1.0, 1.0, 1.0, False, z))(y - 1),
    "relu_backward": lambda x, y: lambda: aten.threshold_backward(x, y, 0),
    "tanh_backward": lambda x, y: lambda: aten.tanh_backward(x, y),
    "sigmoid_backward": lambda x, y: lambda: aten.sigmoid_backward(x, y),
    "hardswish_backward": lambda x, y: lambda: aten.hardswish_backward(x, y),
    "silu_backward": lambda x, y: lambda: aten.silu_backward(x, y),
    "gelu_backward": lambda x, y: lambda: aten.gelu_backward(x, y),
    "gelu_tanh_backward": lambda x, y: lambda: aten.gelu_backward(x, y, approximate="tanh"),
}  # fmt: skip


def _norm_backward(x: Tensor) -> Run:
    w = torch.ones(x.shape[1])
    y, mean, rstd = aten.native_layer_norm(x, [x.shape[1]], w, w, 1e-5)
    return lambda: aten.native_layer_norm_backward(y, x, [x.shape[1]], mean, rstd, w, w, [True, True, True])


def _softmax_backward(log: bool) -> Callable[[Tensor], Run]:
    f = aten._log_softmax_backward_data if log else aten._softmax_backward_data

    def make(x: Tensor) -> Run:
        y = x.log_softmax(-1) if log else x.softmax(-1)
        return lambda: f(x, y, -1, torch.float32)

    return make


def _embedding(x: Tensor) -> Run:
    i = torch.randint(0, PICKED, (x.shape[0],))
    table = rand(PICKED, x.shape[1])
    return lambda: F.embedding(i, table)


def _embedding_backward(x: Tensor) -> Run:
    i = torch.randint(0, 1024, (x.shape[0],))
    return lambda: aten.embedding_dense_backward(x, i, 1024, -1, False)


BY_ROWS: dict[str, Callable[[Tensor], Run]] = {
    "softmax": lambda x: lambda: x.softmax(-1),
    "safe_softmax": lambda x: lambda: aten._safe_softmax(x, -1),
    "log_softmax": lambda x: lambda: x.log_softmax(-1),
    "softmax_backward": _softmax_backward(False),
    "log_softmax_backward": _softmax_backward(True),
    "layer_norm": lambda x: (lambda w: lambda: F.layer_norm(x, (x.shape[1],), w, w))(torch.ones(x.shape[1])),
    "layer_norm_backward": _norm_backward,
    "sum_columns": lambda x: lambda: x.sum(-1),
    "sum_rows": lambda x: lambda: x.sum(0),
    "max_columns": lambda x: lambda: x.max(-1),
    "broadcast": lambda x: (lambda b: lambda: x + b)(rand(x.shape[1])),
    "expanded": lambda x: (lambda y: lambda: y * 2.0)(x[:, :1].expand_as(x)),
    "bias": lambda x: (lambda b: lambda: x.copy_(b.expand_as(x)))(rand(x.shape[1])),
    "transposed": lambda x: lambda: x.t().contiguous(),
    "strided": lambda x: (lambda y: lambda: y.contiguous())(rand(x.shape[0], 3 * x.shape[1])[:, : x.shape[1]]),
    "cat": lambda x: lambda: torch.cat((x, x), -1),
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
}


def _mm(layout: str) -> Make:
    """[m, k] times [k, n]: both in order (nn), the second transposed (nt, as in Linear), the first (tn, its gradient)."""

    def make(m: int, n: int, k: int) -> Run:
        a = torch.ones(k, m).t() if layout == "tn" else torch.ones(m, k)  # large ones: random numbers take longer to make
        b = torch.ones(n, k).t() if layout == "nt" else torch.ones(k, n)
        return _written(a, b)

    return make


def _written(a: Tensor, b: Tensor) -> Run:
    """A product; a large one into memory that it had before: whether the allocator gives it back to the system is chance."""
    m, n = a.shape[0], b.shape[1]
    if m * n < 1 << 18:
        return lambda: torch.mm(a, b)
    out = torch.zeros(m, n)
    return lambda: torch.mm(a, b, out=out)


def _bmm(layout: str) -> Make:
    def make(b: int, m: int, n: int, k: int) -> Run:
        x = torch.ones(b, k, m).transpose(1, 2) if layout == "tn" else torch.ones(b, m, k)
        y = torch.ones(b, n, k).transpose(1, 2) if layout == "nt" else torch.ones(b, k, n)
        return lambda: torch.bmm(x, y)

    return make


def _attention(backward: bool) -> Make:
    def make(heads: int, length: int, width: int) -> Run:
        q, k, v = (rand(1, heads, length, width) for _ in range(3))
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False)[:2]
        if not backward:
            return lambda: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False)
        return lambda: aten._scaled_dot_product_flash_attention_for_cpu_backward(q, q, k, v, out, lse, 0.0, False)

    return make


def _convolved(x: Tensor, w: Tensor, groups: int, backward: bool, stride: int = 1) -> Run:
    pad = w.shape[-1] // 2
    if not backward:
        return lambda: F.conv2d(x, w, None, stride, pad, 1, groups)
    g = torch.ones_like(F.conv2d(x, w, None, stride, pad, 1, groups))
    steps, size, one, none = [stride, stride], [pad, pad], [1, 1], [0, 0]
    wanted = [True, True, False]
    return lambda: aten.convolution_backward(g, x, w, None, steps, size, one, False, none, groups, wanted)


def _conv(kernel: int, backward: bool, stride: int = 1) -> Make:
    """[1, inside, ...] to `outside` channels; `side` is that of the result, the padding such that stride 1 leaves it."""

    def make(side: int, inside: int, outside: int) -> Run:
        x = rand(1, inside, side * stride, side * stride)
        return _convolved(x, rand(outside, inside, kernel, kernel), 1, backward, stride)

    return make


def _grouped(backward: bool) -> Make:
    """3 x 3 in groups, each from `width` channels to as many."""

    def make(side: int, width: int, groups: int) -> Run:
        x = rand(1, groups * width, side, side)
        return _convolved(x, rand(groups * width, width, 3, 3), groups, backward)

    return make


def _depthwise(backward: bool) -> Make:
    """`width` x `width`, every channel by itself."""

    def make(side: int, channels: int, width: int) -> Run:
        return _convolved(rand(1, channels, side, side), rand(channels, 1, width, width), channels, backward)

    return make


def _rnn(gates: int) -> Make:
    """One layer."""

    def make(steps: int, batch: int, width: int) -> Run:
        layer = (torch.nn.LSTM if gates == 4 else torch.nn.GRU)(width, width).eval()
        x = rand(steps, batch, width)
        return lambda: layer(x)

    return make


def _image(f: Callable[[Tensor], Any]) -> Make:
    """By channels and side of the image."""

    def make(channels: int, side: int) -> Run:
        x = rand(1, channels, side, side)
        return lambda: f(x)

    return make


def _batch_norm(training: bool) -> Make:
    def make(channels: int, side: int) -> Run:
        x, w = rand(1, channels, side, side), torch.ones(channels)
        mean, variance = torch.zeros(channels), torch.ones(channels)
        return lambda: F.batch_norm(x, mean, variance, w, w, training)

    return make


def _batch_norm_backward(channels: int, side: int) -> Run:
    x, w = rand(1, channels, side, side), torch.ones(channels)
    mean, scale = x.mean((0, 2, 3)), torch.ones(channels)
    wanted = [True, True, True]
    return lambda: aten.native_batch_norm_backward(x, x, w, w, w, mean, scale, True, 1e-5, wanted)


def _max_pool_backward(channels: int, side: int) -> Run:
    x = rand(1, channels, side, side)
    y, where = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    size, step, pad, one = [3, 3], [2, 2], [1, 1], [1, 1]
    return lambda: aten.max_pool2d_with_indices_backward(y, x, size, step, pad, one, False, where)


def kernels() -> list[Kernel]:
    """All of them, the cheapest first."""
    out = [_elements(name, make) for name, make in POINTWISE.items()]
    out += [_rows(name, make) for name, make in BY_ROWS.items()]
    return out + _products() + _convolutions() + _images() + far()


def _products() -> list[Kernel]:
    small = {"m": (4, 16, 64, 256), "n": (16, 64, 256), "k": (16, 64, 256)}
    edges = dict.fromkeys("mnk", EDGES)
    rows, heads = {**edges, "m": LONG}, {"heads": (4, 32), "length": (32, 128, 512), "width": (16, 64, 128)}
    return [
        *(Kernel(f"mm_{layout}", rows, _mm(layout), LARGEST) for layout in ("nn", "nt")),
        Kernel("mm_tn", {**edges, "k": LONG}, _mm("tn"), LARGEST),
        *(Kernel(f"bmm_{layout}", {"b": (4, 32, 256), **small}, _bmm(layout), LARGEST) for layout in ("nn", "nt", "tn")),
        *(Kernel(f"attention{suffix}", heads, _attention(b)) for suffix, b in BOTH),
    ]


def _convolutions() -> list[Kernel]:
    channels = {"inside": (16, 64, 256), "outside": (16, 64, 256)}
    whole = {"side": (4, 14, 32, 96), **channels, "inside": (3, 16, 64, 256)}
    strided = {"side": (4, 14, 48), **channels}  # of the result
    grouped = {"side": (4, 14, 56), "width": (8, 16, 32), "groups": (4, 16)}
    halves = {**grouped, "width": (4, 12, 20)}  # channels of a group that fill half a block of the library's at the end
    ragged = {**grouped, "width": (6, 18)}  # those that fill less, or more
    each = {"side": (4, 14, 32, 96), "channels": (16, 64, 256), "width": (3, 7)}
    return [
        *(Kernel(f"conv{k}{suffix}", whole, _conv(k, b)) for k in (1, 3) for suffix, b in BOTH),
        *(
            kernel
            for suffix, b in BOTH
            for kernel in (
                *(Kernel(f"conv{k}_strided{suffix}", strided, _conv(k, b, 2)) for k in (1, 3)),
                Kernel(f"grouped{suffix}", grouped, _grouped(b)),
                Kernel(f"halves{suffix}", halves, _grouped(b)),
                Kernel(f"ragged{suffix}", ragged, _grouped(b)),
                Kernel(f"depthwise{suffix}", each, _depthwise(b)),
            )
        ),
    ]


def _images() -> list[Kernel]:
    """And recurrent layers."""
    steps = {"steps": STEPS, "batch": (1, 4, 8, 16), "width": (32, 128, 256, 512)}
    sides = {"channels": (16, 64, 256), "side": (4, 14, 32, 112)}
    return [
        *(Kernel(name, steps, _rnn(g)) for name, g in (("lstm", 4), ("gru", 3))),
        Kernel("max_pool", sides, _image(lambda x: F.max_pool2d(x, 3, 2, 1))),
        Kernel("avg_pool", sides, _image(lambda x: F.adaptive_avg_pool2d(x, 1))),
        Kernel("batch_norm", sides, _batch_norm(False)),
        Kernel("batch_norm_training", sides, _batch_norm(True)),
        Kernel("batch_norm_backward", sides, _batch_norm_backward),
        Kernel("max_pool_backward", sides, _max_pool_backward),
    ]
