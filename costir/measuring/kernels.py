"""What calibration runs: operators of torch over grids of sizes. No model is among them, and none is fitted to one.

A kernel is a name, its axes, and a function that makes something to time from one point of the grid. The names are those by
which `estimate` looks up a call.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from costir.measuring.heavy import convolutions, images, products
from costir.measuring.kernel import Kernel, Run, rand
from costir.measuring.lookup import PICKED
from costir.measuring.pools import far
from costir.measuring.seldom import seldom

SIZES = (16, 256, 2048, *(1 << p for p in (13, 15, 17, 18, 19, 20, 22)))  # elements; larger ones get fresh pages at every call
ROWS, COLUMNS = (4, 64, 1024, 16384), (16, 64, 256, 1024)
MOST_ROWS = 1 << 23  # numbers: beyond, the time grows with the number


def _elements(name: str, make: Callable[[Tensor, Tensor], Run], sizes: tuple[int, ...] = SIZES) -> Kernel:
    return Kernel(name, {"n": sizes}, lambda n: make(rand(n) + 0.5, rand(n) + 0.5))


def _rows(name: str, make: Callable[[Tensor], Run]) -> Kernel:
    """Over rows of columns; of a table's gradient, whose zeros are written whole however few there are, over those picked."""
    axes = {"picked" if name == "embedding_backward" else "rows": ROWS, "columns": COLUMNS}
    return Kernel(name, axes, lambda *, columns, **rows: make(rand(*rows.values(), columns)), MOST_ROWS)


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


def kernels() -> list[Kernel]:
    """All of them, the cheapest first, but early those that are timed again and again."""
    out = [_elements(name, make) for name, make in POINTWISE.items()]
    out += [_rows(name, make) for name, make in BY_ROWS.items()]
    return out + far() + seldom() + products() + convolutions() + images()
