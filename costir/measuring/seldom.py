"""Operators that fewer models use, each over fewer sizes: what calibration runs of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from costir.measuring.heavy import BOTH
from costir.measuring.kernel import Kernel, Make, Run, rand
from costir.measuring.lookup import PICKED

SIZES = (16, 2048, *(1 << p for p in (15, 18, 20)))  # elements
ROWS, COLUMNS = (4, 64, 1024, 8192), (16, 128, 1024)
MOST = 1 << 20  # numbers of rows: beyond, the time grows with the number
PICKS, WIDTHS = (16, 1024, 16384), (1, 16, 128)  # rows of a table that are read or written, and numbers of each
GROUPS, IN_A_GROUP = (4, 64), (64, 1024, 16384)
OUTPUTS, WINDOWS = (64, 2048, 1 << 15, 1 << 18), (2, 4, 9)  # of pooling: results, and what each is of
SHAPES = {2: [1, 2], 4: [2, 2], 9: [3, 3]}  # of windows
IN_A_ROW = (2, 4)  # of pooling along one axis
CHANNELS = 16  # of images that are pooled
KEPT = 5  # largest of a row

aten = torch.ops.aten
Make1 = Callable[[Tensor, Tensor], Run]

_POINTWISE: dict[str, Make1] = {
    "log1p": lambda x, y: lambda: torch.log1p(x),
    "atan": lambda x, y: lambda: torch.atan(x),
    "softplus": lambda x, y: lambda: F.softplus(x),
    "mish": lambda x, y: lambda: F.mish(x),
    "log_sigmoid": lambda x, y: lambda: F.logsigmoid(x),
    "pow_any": lambda x, y: lambda: x.pow(2.5),
    "remainder": lambda x, y: lambda: x % 0.3,
    "xlogy": lambda x, y: lambda: torch.xlogy(x, y),
    "mse": lambda x, y: lambda: F.mse_loss(x, y),
    "smooth_l1": lambda x, y: lambda: F.smooth_l1_loss(x, y),
    "bce": lambda x, y: lambda: F.binary_cross_entropy_with_logits(x, y),
    "tril": lambda x, y: (lambda z: lambda: z.tril())(_square(x)),
    "mixed": lambda x, y: (lambda m: lambda: torch.where(m, x, y))(torch.rand(len(x)) > 0.5),  # what no processor foresees
    "sqrt_apart": lambda x, y: (lambda z: lambda: torch.sqrt(z))(torch.zeros_like(x)),
    "log_apart": lambda x, y: (lambda z: lambda: torch.log(z))(torch.zeros_like(x)),
    "exp_apart": lambda x, y: (lambda z: lambda: torch.exp(z))(x - 200),
    "repeat": lambda x, y: (lambda z: lambda: z.repeat(2))(x[: len(x) // 2]),
    "prelu": lambda x, y: (lambda w: lambda: aten._prelu_kernel(x, w))(torch.tensor([0.2])),
    "prelu_backward": lambda x, y: (lambda w: lambda: aten._prelu_kernel_backward(x, y, w))(torch.tensor([0.2])),
    "nonzero": lambda x, y: (lambda m: lambda: torch.nonzero(m))(torch.arange(len(x)) % 128 > 64),
    "gather": lambda x, y: (lambda i: lambda: x.view(i.shape).gather(0, i))(_picks(x)),
    "scatter_add": lambda x, y: (lambda i: lambda: x.view(i.shape).scatter_add(0, i, y.view(i.shape)))(_picks(x)),
}


def _square(x: Tensor) -> Tensor:
    """As many numbers as matrices, square ones."""
    edge = 1 << min(8, (x.numel().bit_length() - 1) // 2)
    return x[: x.numel() // edge**2 * edge**2].view(-1, edge, edge)


def _picks(x: Tensor) -> Tensor:
    """As many rows as a table may have, of 16 numbers or more."""
    rows = max(1, min(PICKED, x.numel() // 16))
    return torch.randint(0, rows, (rows, x.numel() // rows))


_BY_ROWS: dict[str, Callable[[Tensor], Run]] = {
    "var_columns": lambda x: lambda: x.var(-1),
    "logsumexp": lambda x: lambda: x.logsumexp(-1),
    "cumsum": lambda x: lambda: x.cumsum(-1),
    "cumsum_rows": lambda x: lambda: x.cumsum(0),
    "sort": lambda x: lambda: x.sort(-1),
    "topk": lambda x: lambda: x.topk(KEPT, -1),
    "fft": lambda x: (lambda z: lambda: aten._fft_c2c(z, [1], 0, True))(torch.complex(x, x)),
    "fft_real": lambda x: lambda: aten._fft_r2c(x, [1], 0, True),
    "permuted": lambda x: (lambda y: lambda: y.contiguous())(rand(2, x.shape[1], x.shape[0] // 2).transpose(1, 2)),
}


def _group_norm(rows: int, columns: int) -> Run:
    """A row is a group of eight channels, four of them are an image."""
    x = rand(rows // 4, 4 * 8, columns // 8)
    return lambda: F.group_norm(x, 4)


def _rows(make: Callable[[Tensor], Run]) -> Make:
    return lambda *, columns, **rows: make(rand(*rows.values(), columns))


def _index(picked: int, columns: int) -> Run:
    table, i = rand(PICKED, columns), torch.randint(0, PICKED, (picked,))
    return lambda: table[i]


def _index_put(picked: int, columns: int) -> Run:
    table, i, x = rand(PICKED, columns), torch.randint(0, PICKED, (picked,)), rand(picked, columns)
    return lambda: table.index_put((i,), x, accumulate=True)


def _index_add(picked: int, columns: int) -> Run:
    table, i, x = rand(PICKED, columns), torch.randint(0, PICKED, (picked,)), rand(picked, columns)
    return lambda: table.index_add(0, i, x)


def _bag(mode: int) -> Make:
    """Of four rows each."""

    def make(picked: int, columns: int) -> Run:
        table, i, begins = rand(PICKED, columns), torch.randint(0, PICKED, (picked,)), torch.arange(0, picked, 4)
        return lambda: aten._embedding_bag(table, i, begins, False, mode)

    return make


def _image(outputs: int) -> Tensor:
    """Of which so many results come where each two steps of both sides make one."""
    channels = CHANNELS if outputs >= 16 * CHANNELS else 1
    side = max(1, round(math.sqrt(outputs / channels)))
    return rand(1, channels, 2 * side, 2 * side)


def _pooled(largest: bool, backward: bool) -> Make:
    def make(outputs: int, window: int) -> Run:
        x, size, step, one = _image(outputs), SHAPES[window], [2, 2], [1, 1]
        pad = [1, 1] if window == 9 else [0, 0]
        if largest and not backward:
            return lambda: aten.max_pool2d_with_indices(x, size, step, pad)
        if not backward:
            return lambda: aten.avg_pool2d(x, size, step, pad)
        y, where = aten.max_pool2d_with_indices(x, size, step, pad)
        if largest:
            return lambda: aten.max_pool2d_with_indices_backward(y, x, size, step, pad, one, False, where)
        return lambda: aten.avg_pool2d_backward(y, x, size, step, pad, False, True, None)

    return make


def _in_a_row(outputs: int, window: int) -> Run:
    """The largest of so many numbers on end, and of the next; without autograd torch keeps no indices of them."""
    rows = max(1, outputs >> 6)
    x = rand(1, rows, outputs // rows * window)
    return lambda: torch.max_pool1d(x, window)


def _larger(mode: str, backward: bool) -> Make:
    """Twice as large on both sides; the size is how many numbers there are then."""
    smooth = mode == "bilinear"
    up = aten.upsample_bilinear2d if smooth else aten.upsample_nearest2d
    down = aten.upsample_bilinear2d_backward if smooth else aten.upsample_nearest2d_backward

    def make(n: int) -> Run:
        edge = 1 << max(0, (n.bit_length() - 4) // 3)  # as images of networks are: a power of 2, and few or many channels
        x = rand(1, max(1, n // (4 * edge**2)), edge, edge)
        to, corners = [2 * x.shape[-2], 2 * x.shape[-1]], [False] if smooth else []
        if not backward:
            return lambda: up(x, to, *corners)
        y = up(x, to, *corners)
        return lambda: down(y, to, list(x.shape), *corners)

    return make


def seldom() -> list[Kernel]:
    """All of them."""
    rows, picked = {"rows": ROWS, "columns": COLUMNS}, {"picked": PICKS, "columns": WIDTHS}
    pooled, n = {"outputs": OUTPUTS, "window": WINDOWS}, {"n": SIZES}
    found = [Kernel(name, n, _pointwise(make)) for name, make in _POINTWISE.items()]
    found += [Kernel(name, rows, _rows(make), MOST) for name, make in _BY_ROWS.items()]
    found.append(Kernel("group_norm", {"rows": GROUPS, "columns": IN_A_GROUP}, _group_norm))
    found += [Kernel(f"{name}_window{end}", pooled, _pooled(name == "max", b)) for name in ("max", "avg") for end, b in BOTH]
    found += [Kernel(f"{mode}{end}", n, _larger(mode, b)) for mode in ("nearest", "bilinear") for end, b in BOTH]
    found.append(Kernel("max_in_a_row", {"outputs": OUTPUTS, "window": IN_A_ROW}, _in_a_row))
    rules = (("index", _index), ("index_put", _index_put), ("index_add", _index_add), ("bag", _bag(0)), ("bag_mean", _bag(1)))
    found += [Kernel(name, picked, make) for name, make in rules]
    return [replace(k, seldom=True) for k in found]


def _pointwise(make: Make1) -> Make:
    return lambda n: make(rand(n) + 0.5, rand(n) + 0.5)
