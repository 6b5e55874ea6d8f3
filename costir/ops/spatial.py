"""Cost rules for pooling, interpolation and sampling of images. Windows are counted dense: padding counts as elements.

An average over k elements is k - 1 adds and 1 divide. Weights of interpolation that depend on the position only are not
counted: they are computed once per row or column. Bytes: operands once, results once.
"""

from __future__ import annotations

from typing import Any

from costir.ir import Call, Conventions, Cost, Tensor
from costir.ops.families import charge, family, maybe, per_element, register, spread, targets, tensor
from costir.symbolic import ZERO, Expr, ceil_div, common_divisor, maximum, product

# ---- pooling -----------------------------------------------------------------------------------------------------------

family(
    "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
    "adaptive_max_pool1d adaptive_max_pool2d "
    "adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d mkldnn_max_pool2d mkldnn_max_pool3d max_unpool2d "
    "max_unpool3d quantized_max_pool2d",
    "pooling",
    "0: comparisons; writes the indices too",
    per_element(0),
)
family(
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward "
    "adaptive_max_pool3d_backward fractional_max_pool2d_backward fractional_max_pool3d_backward max_pool2d_backward",
    "pooling",
    "1 add per gradient element",
    lambda c: (tensor(c, "grad_output").numel, ZERO),
)


def _window(call: Call, rank: int) -> Expr:
    """Elements of one pooling window."""
    return product(spread(call.args["kernel_size"], rank))


def _rank(call: Call) -> int:
    """Spatial dimensions, from the operator's name: avg_pool2d has 2."""
    return next(int(c) for c in call.name.replace("grid_sampler_", "") if c.isdigit())


family(
    "avg_pool1d avg_pool2d avg_pool3d",
    "pooling",
    "per output of a window of k: k - 1 adds, 1 divide",
    lambda c: (_window(c, _rank(c)) * targets(c)[0].numel, ZERO),
)
family(
    "avg_pool2d_backward avg_pool3d_backward",
    "pooling",
    "per gradient element: 1 divide, k adds",
    lambda c: ((_window(c, _rank(c)) + 1) * tensor(c, "grad_output").numel, ZERO),
)


def window_total(size: Expr, outputs: Expr) -> Expr:
    """Elements in all windows along one dimension of adaptive pooling: I + O - gcd(I, O).

    Window i runs from floor(i I/O) to ceil((i+1) I/O), so that neighbours share an element wherever i I/O is no whole number:
    at O - gcd(I, O) of the O - 1 boundaries between them.
    """
    return size + outputs - common_divisor(size, outputs)


def _adaptive(call: Call, conventions: Conventions) -> Cost:
    x, small = tensor(call, "self"), targets(call)[0]
    extra = ZERO
    if "grad_output" in call.args:
        small = tensor(call, "grad_output")
        extra = small.numel
    rank = _rank(call)
    windows = [window_total(a, b) for a, b in zip(x.shape[-rank:], small.shape[-rank:], strict=True)]
    return charge(call, vector=product((*x.shape[:-rank], *windows)) + extra)


register(
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "mkldnn_adaptive_avg_pool2d",
    "pooling",
    "per output of a window of k: k - 1 adds, 1 divide; windows overlap where sizes do not divide",
    _adaptive,
)
register(
    "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_avg_pool3d_backward "
    "mkldnn_adaptive_avg_pool2d_backward",
    "pooling",
    "per gradient element of a window of k: 1 divide, k adds",
    _adaptive,
)

# ---- interpolation -----------------------------------------------------------------------------------------------------

family(
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d",
    "interpolation",
    "0: copies",
    per_element(0),
)
family(
    "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward _upsample_nearest_exact1d_backward "
    "_upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward",
    "interpolation",
    "1 add per gradient element",
    lambda c: (tensor(c, "grad_output").numel, ZERO),
)


def separable(taps: int, rank: int) -> int:
    """FLOPs per output of weighting `taps` neighbours along each of `rank` dimensions, one dimension after the other.

    A weighted sum of t numbers is 2t - 1; one sum joins t results of the dimension before.
    """
    sums: int = sum(taps**i for i in range(rank))
    return sums * (2 * taps - 1)


def separable_backward(taps: int, rank: int) -> int:
    """FLOPs per gradient element: the weights multiplied down the tree, then one add into each neighbour."""
    multiplies: int = sum(taps ** (i + 1) for i in range(rank))
    return multiplies + int(taps**rank)


for _name, _taps, _dims in (
    ("upsample_linear1d", 2, 1), ("upsample_bilinear2d", 2, 2), ("upsample_trilinear3d", 2, 3), ("upsample_bicubic2d", 4, 2)
):  # fmt: skip
    family(
        _name,
        "interpolation",
        f"{separable(_taps, _dims)} per output: weighted sums of {_taps} along each of {_dims} dimensions",
        per_element(separable(_taps, _dims)),
    )
    _back = separable_backward(_taps, _dims)
    family(
        f"{_name}_backward",
        "interpolation",
        f"{_back} per gradient element: {_back - _taps**_dims} multiplies, {_taps**_dims} adds",
        lambda c, back=_back: (back * tensor(c, "grad_output").numel, ZERO),  # type: ignore[misc]
    )

_SUPPORT = {"bilinear": 2, "bicubic": 4, "lanczos": 6}


def _taps_antialiased(call: Call, big: Expr, small: Expr) -> Expr:
    """Neighbours that one output weighs along a dimension: the filter's width, stretched where the image shrinks."""
    width = next(v for k, v in _SUPPORT.items() if k in call.name)
    return ceil_div(width * maximum((big, small)), small)


def _antialiased(call: Call, conventions: Conventions) -> Cost:
    backward = "grad_output" in call.args
    given = tensor(call, "grad_output") if backward else (maybe(call, "self", "input") or call.inputs[0])
    made = targets(call)[0]
    image, out = (made, given) if backward else (given, made)
    along_w = _taps_antialiased(call, image.shape[-1], out.shape[-1])
    along_h = _taps_antialiased(call, image.shape[-2], out.shape[-2])
    planes = product(image.shape[:-2])
    between = planes * image.shape[-2] * out.shape[-1]
    if backward:
        vector = 2 * along_h * out.numel + 2 * along_w * between
    else:
        vector = (2 * along_w - 1) * between + (2 * along_h - 1) * out.numel
    return charge(call, vector=vector)


register(
    "_upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa",
    "interpolation",
    "width, then height: a weighted sum of t neighbours, 2t - 1; t = 2 (cubic 4, Lanczos 6), times the factor of shrinking",
    _antialiased,
)
register(
    "_upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward _upsample_lanczos2d_aa_backward",
    "interpolation",
    "height, then width: per gradient element t multiplies and t adds",
    _antialiased,
)

# ---- sampling at computed places ---------------------------------------------------------------------------------------

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
# Four cubic weights from one fraction: two of 5 + 6 FLOPs for the outer taps' polynomial of x + 1 and 2 - x (1 add each),
# and the inner one's 5 for x and for 1 - x (1 add).
_CUBIC_WEIGHTS = (1 + 6) + 5 + (1 + 5) + (1 + 6)


def _place(call: Call, rank: int) -> int:
    """FLOPs per sampled place before any channel is touched: coordinates, fractions, corner weights."""
    mode = int(call.args.get("interpolation_mode", 0))
    pixel = 3 if call.args.get("align_corners") else 4  # (x + 1)/2 (W - 1), or ((x + 1) W - 1)/2
    if mode == _NEAREST:
        return pixel * rank
    if mode == _BICUBIC:
        return (pixel + 1 + _CUBIC_WEIGHTS) * rank
    return int((pixel + 2) * rank + 2**rank * (rank - 1))


def _per_channel(call: Call, rank: int) -> int:
    """FLOPs per sampled place and channel."""
    mode = int(call.args.get("interpolation_mode", 0))
    if mode == _NEAREST:
        return 0
    return separable(4, rank) if mode == _BICUBIC else 2 * 2**rank - 1


def _places(grid: Tensor) -> Expr:
    """Sampled places: all of the grid but its last dimension, the coordinates."""
    return product(grid.shape[:-1])


def _grid_sample(call: Call) -> tuple[Expr, Expr]:
    rank = _rank_of_grid(call)
    return _place(call, rank) * _places(tensor(call, "grid")) + _per_channel(call, rank) * targets(call)[0].numel, ZERO


def _rank_of_grid(call: Call) -> int:
    """Spatial dimensions of the sampled image."""
    return len(tensor(call, "grid").shape) - 2


family(
    "grid_sampler grid_sampler_2d grid_sampler_3d cudnn_grid_sampler _grid_sampler_2d_cpu_fallback",
    "interpolation",
    "per place: coordinates 4 (aligned 3) each, fractions 2, corner weights; per channel: 2 * 2^d - 1 (bicubic 35, nearest 0)",
    _grid_sample,
)


def _grid_sample_backward(call: Call) -> tuple[Expr, Expr]:
    rank = _rank_of_grid(call)
    grad = tensor(call, "grad_output").numel
    mode = int(call.args.get("interpolation_mode", 0))
    corners = {_BILINEAR: 2**rank, _NEAREST: 1, _BICUBIC: 4**rank}[mode]
    mask: Any = call.args.get("output_mask")
    to_image = ZERO if mask is not None and not mask[0] else grad * ((2 * corners) if mode != _NEAREST else 1)
    to_grid = ZERO if mode == _NEAREST else grad * 3 * rank * corners
    return (_place(call, rank) + rank) * _places(tensor(call, "grid")) + to_image + to_grid, ZERO


family(
    "grid_sampler_2d_backward grid_sampler_3d_backward cudnn_grid_sampler_backward _grid_sampler_2d_cpu_fallback_backward",
    "interpolation",
    "per place as forward and 1 scale per coordinate; per channel and corner: multiply, add for the image, 3 per coordinate "
    "for the grid",
    _grid_sample_backward,
)


def _affine_grid(call: Call) -> tuple[Expr, Expr]:
    out = targets(call)[0]
    return 2 * out.shape[-1] * out.numel, ZERO


family(
    "affine_grid_generator cudnn_affine_grid_generator",
    "interpolation",
    "per coordinate of d: d multiplies, d adds",
    _affine_grid,
)
