"""Products, convolutions, recurrent layers and what goes over images: what calibration runs of them, over which sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from costir.measuring.kernel import Kernel, Make, Run, rand
from costir.measuring.lookup_heavy import BATCHES, STEPS

EDGES, LONG = (4, 16, 64, 256, 1024, 4096), (1, 2, 4, 16, 32, 64, 128, 512, 4096)  # of matrices; rows of a batch go further
BOTH = (("", False), ("_backward", True))
LARGEST = 1 << 30  # multiply-adds of one product: beyond, the time grows with the number
CHANNELS, SIDES = (16, 32, 64, 256, 512), (4, 14, 22, 32, 96)  # of convolutions
LONGEST = 1 << 26  # places times channels of one along an axis
WIDE = 1 << 22  # side times channels of a convolution: beyond, the time grows with the FLOPs

aten = torch.ops.aten


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


def _line(backward: bool) -> Make:
    """3 along one axis of a batch of 4."""

    def make(places: int, inside: int, outside: int) -> Run:
        x, w = rand(4, inside, places // 4), rand(outside, inside, 3)
        if not backward:
            return lambda: F.conv1d(x, w, None, 1, 1)
        g, wanted = rand(4, outside, places // 4), [True, True, False]
        return lambda: aten.convolution_backward(g, x, w, None, [1], [1], [1], False, [0], 1, wanted)

    return make


def _grouped(backward: bool) -> Make:
    """3 x 3 in groups, each from `width` channels to as many."""

    def make(side: int, width: int, groups: int) -> Run:
        x = rand(1, groups * width, side, side)
        return _convolved(x, rand(groups * width, width, 3, 3), groups, backward)

    return make


def _enlarged(backward: bool) -> Make:
    """Transposed, 4 x 4 with a stride of 2: twice as large."""

    def make(side: int, inside: int, outside: int) -> Run:
        x, w = rand(1, inside, side, side), rand(inside, outside, 4, 4)
        if not backward:
            return lambda: F.conv_transpose2d(x, w, None, 2, 1)
        g = rand(1, outside, 2 * side, 2 * side)
        steps, pad, one, none, wanted = [2, 2], [1, 1], [1, 1], [0, 0], [True, True, False]
        return lambda: aten.convolution_backward(g, x, w, None, steps, pad, one, True, none, 1, wanted)

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


def _lstm_backward(steps: int, batch: int, width: int) -> Run:
    """Of one layer, for its input and its weights; oneDNN has none for a GRU."""
    layer, x = torch.nn.LSTM(width, width), rand(steps, batch, width).requires_grad_()
    with torch.enable_grad():
        y, _ = layer(x)
    wanted, g = [x, *layer.parameters()], torch.ones_like(y)
    return lambda: torch.autograd.grad(y, wanted, g, retain_graph=True)


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


def products() -> list[Kernel]:
    """Of matrices, batches of them, and attention."""
    edges = dict.fromkeys("mnk", EDGES)
    rows, heads = {**edges, "m": LONG}, {"heads": (4, 32), "length": (32, 128, 512), "width": (16, 64, 128)}
    batched = {"b": BATCHES, "m": (1, 16, 64, 256), "n": (1, 16, 64, 256), "k": (4, 16, 64, 256)}
    return [
        *(Kernel(f"mm_{layout}", rows, _mm(layout), LARGEST, _multiplied) for layout in ("nn", "nt")),
        Kernel("mm_tn", {**edges, "k": LONG}, _mm("tn"), LARGEST, _multiplied),
        *(Kernel(f"bmm_{layout}", batched, _bmm(layout), LARGEST, _multiplied) for layout in ("nn", "nt", "tn")),
        *(Kernel(f"attention{suffix}", heads, _attention(b)) for suffix, b in BOTH),
    ]


def _multiplied(**sizes: int) -> int:
    """FLOPs of a product of matrices."""
    return 2 * math.prod(sizes.values())


def _slid(kernel: int, backward: bool) -> Callable[..., int]:
    """FLOPs of a convolution; backward there are two, for the input and for the weights."""

    def flops(side: int, **channels: int) -> int:
        return (4 if backward else 2) * (side * kernel) ** 2 * math.prod(channels.values())

    return flops


def _in_groups(backward: bool) -> Callable[..., int]:
    def flops(side: int, width: int, groups: int) -> int:
        return (4 if backward else 2) * 9 * side**2 * width**2 * groups

    return flops


def _along(backward: bool) -> Callable[..., int]:
    def flops(places: int, **channels: int) -> int:
        return (4 if backward else 2) * 3 * places * math.prod(channels.values())

    return flops


def _stepped(gates: int) -> Callable[..., int]:
    """FLOPs of a recurrent layer, whose input is as wide as its state."""

    def flops(steps: int, batch: int, width: int) -> int:
        return 2 * steps * batch * gates * 2 * width**2

    return flops


def convolutions() -> list[Kernel]:
    """Plain, strided, in groups, of each channel by itself, and those that make an image larger."""
    channels = {"inside": CHANNELS, "outside": CHANNELS}
    whole = {"side": SIDES, **channels, "inside": (3, *CHANNELS)}
    single = {**whole, "side": (1, *SIDES)}  # of an image's mean, by which channels are weighed
    strided = {**whole, "side": (4, 14, 48)}  # of the result
    enlarged = {"side": (4, 14, 32), "inside": (16, 64, 256), "outside": (3, 16, 64, 256)}  # `side` of what is made larger
    grouped = {"side": (4, 14, 56), "width": (8, 16, 32), "groups": (4, 16)}
    halves = {**grouped, "width": (4, 12, 20)}  # channels of a group that fill half a block of the library's at the end
    ragged = {**grouped, "width": (6, 18)}  # those that fill less, or more
    line = {"places": (64, 512, 2048, 1 << 14), "inside": (4, 16, 64, 256), "outside": (16, 64, 256)}
    each = {"side": (4, 14, 32, 96), "channels": (16, 64, 256), "width": (3, 5, 7)}
    return [
        *(
            Kernel(f"conv{k}{suffix}", sizes, _conv(k, b), WIDE, _slid(k, b))
            for k, sizes in ((1, single), (3, whole))
            for suffix, b in BOTH
        ),
        *(
            kernel
            for suffix, b in BOTH
            for kernel in (
                *(Kernel(f"conv{k}_strided{suffix}", strided, _conv(k, b, 2), WIDE, _slid(k, b)) for k in (1, 3)),
                *(
                    Kernel(f"{name}{suffix}", sizes, _grouped(b), flops=_in_groups(b))
                    for name, sizes in (("grouped", grouped), ("halves", halves), ("ragged", ragged))
                ),
                Kernel(f"conv_line{suffix}", line, _line(b), LONGEST, _along(b)),
                Kernel(f"depthwise{suffix}", each, _depthwise(b)),
                Kernel(f"enlarged{suffix}", enlarged, _enlarged(b), flops=_slid(4, b)),
            )
        ),
    ]


def images() -> list[Kernel]:
    """And recurrent layers."""
    steps = {"steps": STEPS, "batch": (1, 4, 8, 16), "width": (32, 128, 256, 512)}
    sides = {"channels": (16, 64, 256), "side": (4, 14, 32, 112)}
    return [
        *(Kernel(name, steps, _rnn(g), flops=_stepped(g)) for name, g in (("lstm", 4), ("gru", 3))),
        Kernel("lstm_backward", {**steps, "batch": (1, 8), "width": (32, 128, 512)}, _lstm_backward, seldom=True),
        Kernel("batch_norm", sides, _batch_norm(False)),
        Kernel("batch_norm_training", sides, _batch_norm(True)),
        Kernel("batch_norm_backward", sides, _batch_norm_backward),
    ]
