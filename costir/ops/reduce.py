"""Cost rules for reductions, scans, softmax, norms and distances. Losses are in loss.py, normalisation layers in norm.py.

A sum of n numbers is n - 1 adds. Picking a largest or smallest is comparison: 0. Bytes: operands once, results once.
"""

from __future__ import annotations

from typing import Any

from costir.ir import Call, Conventions, Cost, tensors
from costir.ops.families import (
    charge,
    family,
    first,
    operands,
    register,
    rows,
    targets,
    tensor,
    truth,
    unknown,
)
from costir.ops.pointwise import power_work
from costir.ops.registry import dot_flops
from costir.symbolic import ONE, ZERO, Expr, total

# ---- choices -----------------------------------------------------------------------------------------------------------

family(
    "max min amax amin aminmax _aminmax argmax argmin all any _is_all_true _is_any_true median nanmedian mode kthvalue "
    "cummax cummin _cummax_helper _cummin_helper _foreach_max",
    "comparison",
    "0: a choice between values",
    lambda c: (ZERO, ZERO),
)

# ---- sums --------------------------------------------------------------------------------------------------------------


def _adds(call: Call) -> Expr:
    """n - 1 adds per result of reducing n elements each; a complex add is 2."""
    x, out = first(call), targets(call)[0]
    if x.numel == 0:
        return ZERO
    return (2 if x.is_complex else 1) * (x.numel - out.numel)


family("sum nansum", "reduction", "n - 1 adds per row; complex 2(n - 1)", lambda c: (_adds(c), ZERO))
family("count_nonzero", "reduction", "n - 1 adds per row", lambda c: (_adds(c), ZERO))
family(
    "mean nanmean",
    "reduction",
    "n - 1 adds, 1 divide per row; complex twice that",
    lambda c: (_adds(c) + (2 if first(c).is_complex else 1) * targets(c)[0].numel, ZERO),
)
family(
    "prod",
    "reduction",
    "n - 1 multiplies per row; complex 6(n - 1)",
    lambda c: ((3 if first(c).is_complex else 1) * _adds(c), ZERO),
)
family("trace", "reduction", "n - 1 adds for n diagonal entries", lambda c: (first(c).shape[0] - 1, ZERO))
family(
    "logsumexp",
    "reduction",
    "per row: n subtracts, n exps, n - 1 adds, 1 log, 1 add",
    lambda c: (2 * first(c).numel, first(c).numel + targets(c)[0].numel),
)


def _variance(call: Call) -> tuple[Expr, Expr]:
    return 4 * first(call).numel, ZERO


family("var var_mean", "reduction", "per row: mean n, subtract n, square n, n - 1 adds, 1 divide: 4n", _variance)
family(
    "std std_mean",
    "reduction",
    "as var, and 1 sqrt per row: 4n",
    lambda c: (_variance(c)[0], targets(c)[0].numel),
)

# ---- norms of vectors --------------------------------------------------------------------------------------------------


def norm_work(order: Any, n: Expr, out: Expr, root: bool = True) -> tuple[Expr, Expr] | None:
    """(vector, special) of `out` norms over `n` elements in all; None where the order is not a known number.

    Order 2: n squares, adds, 1 sqrt; 1: adds; infinite: comparisons; p: n powers, adds, 1 pow.
    """
    order = 2 if order is None else order
    if not isinstance(order, int | float | Expr) or (isinstance(order, Expr) and not order.is_number):
        return None
    p = float(order)
    if abs(p) == float("inf"):
        return ZERO, ZERO
    if p in (0.0, 1.0):
        return n - out, ZERO
    vector, special = power_work(order)
    return vector * n + n - out, special * n + (out if root else ZERO)


def _norm(call: Call, conventions: Conventions) -> Cost:
    order = call.args.get("ord", call.args.get("p", 2))
    works = []
    xs = tuple(tensors(call.args["self"]))
    for x, out in zip(xs, targets(call), strict=True):
        work = norm_work(order, x.numel, out.numel, "powsum" not in call.name)
        if work is None:
            return unknown(call, f"norm of order {order} is not counted")
        size = (3 * x.numel, x.numel) if x.is_complex else (ZERO, ZERO)
        works.append((work[0] + size[0], work[1] + size[1]))
    return charge(call, vector=total(w[0] for w in works), special=total(w[1] for w in works))


register(
    "linalg_vector_norm norm linalg__powsum _foreach_norm _foreach_powsum",
    "norm",
    "order 2, per row: n squares, n - 1 adds, 1 sqrt; 1: n - 1 adds; inf: 0; p: n powers, n - 1 adds, 1 pow",
    _norm,
)


def _dist(call: Call, conventions: Conventions) -> Cost:
    n = max((t.numel for t in operands(call)), key=lambda e: len(e.free_symbols) * 10**9 + (int(e) if e.is_Integer else 0))
    work = norm_work(call.args.get("p"), n, ONE)
    return unknown(call, "order of the norm") if work is None else charge(call, vector=n + work[0], special=work[1])


register("dist", "norm", "n subtracts, then the norm", _dist)


def _renorm(call: Call, conventions: Conventions) -> Cost:
    x = first(call)
    slices = x.shape[int(call.args["dim"])]
    work = norm_work(call.args["p"], x.numel, slices)
    if work is None:
        return unknown(call, "order of the norm")
    return charge(call, vector=work[0] + 2 * slices + x.numel, special=work[1])


register("renorm renorm_", "norm", "the norm of each slice, add and divide per slice, n multiplies", _renorm)

# ---- scans -------------------------------------------------------------------------------------------------------------


def _steps(call: Call) -> Expr:
    """T - 1 steps for each row of length T."""
    x = first(call)
    return x.numel - rows(x, call.args["dim"])


family(
    "cumsum cumsum_",
    "scan",
    "T - 1 adds per row; complex 2(T - 1)",
    lambda c: (_steps(c) * (2 if first(c).is_complex else 1), 0),
)
family(
    "cumprod cumprod_", "scan", "T - 1 multiplies per row; complex 6(T - 1)",
    lambda c: (_steps(c) * (6 if first(c).is_complex else 1), 0),
)  # fmt: skip
family(
    "logcumsumexp _logcumsumexp",
    "scan",
    "T - 1 log-adds per row, each subtract, negate, add, 1 exp, 1 log1p",
    lambda c: (3 * _steps(c), 2 * _steps(c)),
)

# ---- softmax -----------------------------------------------------------------------------------------------------------


def _softmax(call: Call) -> tuple[Expr, Expr]:
    x = tensor(call, "self")
    dim = call.args.get("dim")
    return 3 * x.numel - rows(x, -1 if dim is None else dim), x.numel


family(
    "_softmax softmax _safe_softmax _masked_softmax",
    "softmax",
    "per row: n subtracts, n exps, n - 1 adds, n divides: 3n - 1 and n exps; the maximum 0",
    _softmax,
)
family(
    "_log_softmax log_softmax",
    "softmax",
    "per row: 2n subtracts, n - 1 adds: 3n - 1, n exps and 1 log",
    lambda c: (_softmax(c)[0], first(c).numel + rows(first(c), c.args["dim"])),
)


def _softmax_backward(call: Call) -> tuple[Expr, Expr]:
    y = tensor(call, "output")
    dim = call.args.get("dim")
    return 4 * y.numel - rows(y, -1 if dim is None else dim), ZERO


family(
    "_softmax_backward_data _masked_softmax_backward",
    "softmax",
    "y (g - sum(g y)): 4n - 1 per row",
    _softmax_backward,
)


def _log_softmax_backward(call: Call) -> tuple[Expr, Expr]:
    y = tensor(call, "output")
    return 3 * y.numel - rows(y, call.args["dim"]), y.numel


family("_log_softmax_backward_data", "softmax", "g - exp(y) sum(g): 3n - 1 and n exps per row", _log_softmax_backward)

# ---- distances ---------------------------------------------------------------------------------------------------------


def _pairs(call: Call, pairs: Expr, width: Expr) -> Cost:
    """`pairs` norms of differences of vectors of `width` elements."""
    work = norm_work(call.args.get("p", 2), pairs * width, pairs)
    if work is None:
        return unknown(call, "order of the norm")
    return charge(call, vector=pairs * width + work[0], special=work[1])


def _cdist(call: Call, conventions: Conventions) -> Cost:
    return _pairs(call, call.outputs[0].numel, tensor(call, "x1").shape[-1])


def _pdist(call: Call, conventions: Conventions) -> Cost:
    return _pairs(call, call.outputs[0].numel, tensor(call, "self").shape[-1])


register("_cdist_forward", "distance", "per pair: M subtracts and the norm of M elements", _cdist)
register("_pdist_forward", "distance", "per pair: M subtracts and the norm of M elements", _pdist)


def _distance_backward(call: Call, conventions: Conventions) -> Cost:
    points = tensor(call, "x1") if "x1" in call.args else tensor(call, "self")
    pairs = tensor(call, "cdist" if "x1" in call.args else "pdist").numel
    power = call.args["p"]
    both = 1 if "x1" in call.args else 2
    p = float(power) if isinstance(power, int | float) or getattr(power, "is_number", False) else None
    if p not in (1.0, 2.0, float("inf")):
        return unknown(call, f"gradient of the distance of order {power} is not counted")
    per = (2 + both) * points.shape[-1] + (1 if p == 2 else 0)
    return charge(call, vector=per * pairs)


register(
    "_cdist_backward _pdist_backward",
    "distance",
    "per pair and element: subtract, multiply, add (twice in pdist); order 2: 1 divide per pair",
    _distance_backward,
)


def _euclidean(call: Call, conventions: Conventions) -> Cost:
    a, b = tensor(call, "x1"), tensor(call, "x2")
    width, pairs = a.shape[-1], call.outputs[0].numel
    squares = total(t.numel + t.numel - t.numel / width for t in (a, b))
    return charge(call, matmul=dot_flops(pairs, width + 2, conventions), vector=a.numel + squares, special=pairs)


register(
    "_euclidean_dist",
    "distance",
    "one product of inner length M + 2, 2 FLOPs per multiply-add; doubling x1, squares and sums of both, 1 sqrt per pair",
    _euclidean,
)

# ---- counting and drawing ----------------------------------------------------------------------------------------------

family("bincount", "histogram", "1 add per element", lambda c: (first(c).numel, ZERO))
family(
    "histc histogram _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _histogramdd_bin_edges",
    "histogram",
    "subtract, multiply (its bin), add (the count) per element",
    lambda c: (3 * first(c).numel, ZERO),
)


def _multinomial(call: Call) -> tuple[Expr, Expr]:
    x = first(call)
    if truth(call.args.get("replacement")):
        return 2 * x.numel - x.numel / x.shape[-1], ZERO
    return x.numel, ZERO


family(
    "multinomial",
    "random",
    "1 divide per probability; with replacement n - 1 adds per row more",
    _multinomial,
)


def _segments(call: Call) -> tuple[Expr, Expr]:
    n, out = tensor(call, "data").numel, call.outputs[0].numel
    adds = {"sum": n - out, "prod": n - out, "mean": n}
    return adds.get(call.args["reduce"], ZERO), ZERO


family("segment_reduce", "reduction", "n - 1 adds per segment, mean 1 divide", _segments)
