"""Output sizes as operators define them, in terms of their inputs' sizes: proposals for numbers that are no plain products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sympy import Min

from costir.ir import Tensor
from costir.symbolic import ZERO, Expr, ceil_div, floor_div, total

Args = Mapping[str, Any]
Proposal = Callable[[Args, int, int], Iterator[Any]]  # (arguments, output number, dimension) -> expressions


def _at(values: Any, i: int, default: Any) -> Any:
    if not isinstance(values, tuple):
        return values
    if not values:
        return default
    return values[i] if i < len(values) else values[0]


def _window(size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    """floor((size + 2p - d(k-1) - 1)/s) + 1, written as ceil or floor of a plain quotient where it is one.

    With `ceil_mode` a window may reach over the right edge, but the last must start in the input or its left padding: that
    is the smaller of ceil((size + 2p - d(k-1) - 1)/s) + 1 and ceil((size + p)/s), after torch's `pooling_output_shape`.
    """
    reach = dilation * (kernel - 1) + 1  # what a window spans
    if ceil_mode:
        spare = padding + stride - reach
        over = min(0, int(spare)) if isinstance(spare, int) or spare.is_Integer else Min(spare, ZERO)
        return ceil_div(size + padding + over, stride)
    span = size + 2 * padding - reach + 1
    forms = (ceil_div(span, stride), floor_div(span - 1, stride) + 1)  # equal for whole numbers: take the shorter
    return min(forms, key=lambda e: len(str(e)))


def _conv(args: Args, output: int, dim: int) -> Iterator[Any]:
    x, w = args.get("input", args.get("self")), args["weight"]
    if not isinstance(x, Tensor) or not isinstance(w, Tensor) or output or dim < 2 or dim >= len(x.shape):
        return
    i = dim - 2
    k, s = w.shape[dim], _at(args.get("stride"), i, 1)
    p, d = _at(args.get("padding"), i, 0), _at(args.get("dilation"), i, 1)
    if args.get("transposed"):
        yield (x.shape[dim] - 1) * s - 2 * p + d * (k - 1) + _at(args.get("output_padding"), i, 0) + 1
    else:
        yield _window(x.shape[dim], k, s, p, d, False)


def _pool(args: Args, output: int, dim: int) -> Iterator[Any]:
    x = args["self"]
    n = len(args["kernel_size"]) if isinstance(args.get("kernel_size"), tuple) else 1
    i = dim - (len(x.shape) - n)
    if i < 0:
        return
    k = _at(args["kernel_size"], i, 1)
    yield _window(x.shape[dim], k, _at(args.get("stride"), i, k), _at(args.get("padding"), i, 0),
                  _at(args.get("dilation", 1), i, 1),
                  bool(args.get("ceil_mode")))  # fmt: skip


def windows(args: Args) -> list[Any]:
    """How many windows fit along each dimension of the image that `im2col` unfolds."""
    x = args["self"]
    found = []
    for i, n in enumerate(x.shape[-2:]):
        k, s, p, d = (_at(args[name], i, 1) for name in ("kernel_size", "stride", "padding", "dilation"))
        found.append(_window(n, k, s, p, d, False))
    return found


def _im2col(args: Args, output: int, dim: int) -> Iterator[Any]:
    if dim == len(args["self"].shape) - 2:
        high, wide = windows(args)
        yield high * wide


def _cat(args: Args, output: int, dim: int) -> Iterator[Any]:
    parts = [t for t in args["tensors"] if isinstance(t, Tensor)]
    if len(parts) == 1 and len(parts[0].shape) > dim + 1:  # equal operands, stacked into one by the alignment
        yield parts[0].shape[0] * parts[0].shape[dim + 1]
    yield total(t.shape[dim] for t in parts if len(t.shape) > dim)


def _slice(args: Args, output: int, dim: int) -> Iterator[Any]:
    start, end, step = (args.get(k) for k in ("start", "end", "step"))
    n = args["self"].shape[dim]
    start = 0 if start is None else start
    for stop in (n, end):
        if stop is not None:
            yield ceil_div(stop - start, step or 1)
            yield ceil_div(stop - (n + start), step or 1)
            yield ceil_div(n + stop - start, step or 1)


def _arange(args: Args, output: int, dim: int) -> Iterator[Any]:
    start, step = args.get("start", 0) or 0, args.get("step", 1) or 1
    if all(not isinstance(v, float) for v in (start, args["end"], step)):
        yield ceil_div(args["end"] - start, step)


def _pad(args: Args, output: int, dim: int) -> Iterator[Any]:
    x, pad = args["self"], args.get("pad", args.get("padding"))
    i = 2 * (len(x.shape) - 1 - dim)
    if i + 1 < len(pad):
        yield x.shape[dim] + pad[i] + pad[i + 1]


def _view(args: Args, output: int, dim: int) -> Iterator[Any]:
    size = args.get("size", args.get("shape"))
    x = args["self"]
    others = [d for i, d in enumerate(size) if i != dim]
    if all(d != -1 for d in others):
        rest = x.numel
        for d in others:
            rest = floor_div(rest, d)
        yield rest


def _unfold(args: Args, output: int, dim: int) -> Iterator[Any]:
    x = args["self"]
    if dim < len(x.shape):
        yield floor_div(x.shape[dim] - args["size"], args["step"]) + 1


def _flattened(args: Args, output: int, dim: int) -> Iterator[Any]:
    """Tensors laid into one: flat, or with a row for each device."""
    yield total(t.numel for t in args["tensors"])


def _gathered(args: Args, output: int, dim: int) -> Iterator[Any]:
    yield args["self"].shape[dim] * args["devices"]


def _scattered(args: Args, output: int, dim: int) -> Iterator[Any]:
    yield args["self"].shape[dim] / args["devices"]


def _matched(args: Args, output: int, dim: int) -> Iterator[Any]:
    """Whatever the operator: a sum or difference of two sizes that it was given."""
    found: list[Expr] = []
    for v in args.values():
        for x in v if isinstance(v, tuple) else (v,):
            found.extend(x.shape if isinstance(x, Tensor) else (x,) if isinstance(x, Expr) else ())
    words = list(dict.fromkeys(found))[:12]
    for a in words:
        for b in words:
            yield from (a + b, a - b, a * b)


PROPOSALS: dict[str, Proposal] = {
    **dict.fromkeys(("convolution", "_convolution", "mkldnn_convolution", "convolution_overrideable"), _conv),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d", "avg_pool1d",
                     "max_pool1d"), _pool),
    **dict.fromkeys(("constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
                     "replication_pad2d", "replication_pad3d"), _pad),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias"), _view),
    "copy_in": _flattened, "all_gather": _gathered, "reduce_scatter": _scattered,
    "im2col": _im2col, "cat": _cat, "slice": _slice, "arange": _arange, "unfold": _unfold,
}  # fmt: skip
# Operators whose own definition is exact where a plain product is so only for sizes that divide evenly.
EXACT = frozenset(n for n, p in PROPOSALS.items() if p in (_conv, _pool, _arange, _im2col))


def proposals(name: str, args: Args, output: int, dim: int) -> Iterator[Any]:
    """Expressions for one dimension of one output, likeliest first."""
    own = PROPOSALS.get(name)
    if own is not None:
        yield from own(args, output, dim)
    yield from _matched(args, output, dim)
