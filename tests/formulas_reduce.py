# ruff: noqa: E501 - tables of samples, one a line
"""Definitions of reductions, scans, softmax, norms and losses, run on counting numbers with plain loops.

Each takes the bound arguments of a call by name and returns the results in order; None stands for a result that is not compared.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from oracles_pointwise import Num, add_up, big, exp, log, log1p, nums, rsqrt, size_of, special, sqrt, val


def by_rows(t: Any, dim: int = -1) -> np.ndarray:
    """Counting numbers [rows, n] of a tensor, with `dim` last."""
    a = np.moveaxis(nums(t), dim, -1)
    return a.reshape(-1, a.shape[-1])


def each(f: Any, t: Any, dim: Any = -1) -> list[Any]:
    """`f` of every row; without a dimension, of all elements."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return [f(list(nums(t).reshape(-1)))]
    dim = dim[0] if isinstance(dim, list | tuple) else dim
    return [f(list(row)) for row in by_rows(t, dim)]


def product_of(xs: list[Num]) -> Num:
    out = xs[0]
    for x in xs[1:]:
        out = out * x
    return out


def mean(xs: list[Any]) -> Any:
    return add_up(xs) / len(xs)


def variance(xs: list[Num], correction: float = 1) -> Num:
    m = mean(xs)
    return add_up([(d := x - m) * d for x in xs]) / (len(xs) - correction)


def top(xs: list[Num]) -> float:
    return max(x.v for x in xs)


def logsumexp(xs: list[Num]) -> Num:
    most = top(xs)
    return log(add_up([exp(x - most) for x in xs])) + most


def softmax(xs: list[Num]) -> list[Num]:
    most = top(xs)
    es = [exp(x - most) for x in xs]
    s = add_up(es)
    return [e / s for e in es]


def log_softmax(xs: list[Num]) -> list[Num]:
    most = top(xs)
    shifted = [x - most for x in xs]
    s = log(add_up([exp(x) for x in shifted]))
    return [x - s for x in shifted]


def norm(order: float) -> Any:
    def f(xs: list[Num]) -> Num:
        if math.isinf(order):
            return Num(max(abs(x.v) for x in xs))
        if order == 1:
            return add_up([size_of(x) for x in xs])
        if order == 2:
            return sqrt(add_up([x * x for x in xs]))
        if order == 3:
            return special(add_up([size_of(x) * size_of(x) * size_of(x) for x in xs]), lambda v: v ** (1 / 3))
        return special(add_up([special(size_of(x), lambda v: v**order) for x in xs]), lambda v: v ** (1 / order))

    return f


def scan(step: Any) -> Any:
    def f(xs: list[Num]) -> list[Num]:
        out = [xs[0]]
        for x in xs[1:]:
            out.append(step(out[-1], x))
        return out

    return f


def logadd(x: Num, y: Num) -> Num:
    return big(x, y) + log1p(exp(-size_of(x - y)))


def pairs(t: Any, u: Any, dim: int) -> list[tuple[list[Num], list[Num]]]:
    return [(list(a), list(b)) for a, b in zip(by_rows(t, dim), by_rows(u, dim), strict=True)]


def softmax_back(g: list[Num], y: list[Num]) -> list[Num]:
    s = add_up([a * b for a, b in zip(g, y, strict=True)])
    return [b * (a - s) for a, b in zip(g, y, strict=True)]


def log_softmax_back(g: list[Num], y: list[Num]) -> list[Num]:
    s = add_up(g)
    return [a - exp(b) * s for a, b in zip(g, y, strict=True)]


# ---- normalisation layers: rows [rows, n], weight and bias per element of a row (or per channel, by index) ----------------


def standardise(xs: list[Num], eps: float) -> tuple[list[Num], Num, Num]:
    """(x^, mean, 1/std) with the differences from the mean formed once."""
    m = mean(xs)
    ds = [x - m for x in xs]
    r = rsqrt(add_up([d * d for d in ds]) / len(xs) + eps)
    return [d * r for d in ds], m, r


def affine(xs: list[Num], weight: Any, bias: Any) -> list[Num]:
    """Multiply by the weight and add the bias, each where given."""
    xs = [x * w for x, w in zip(xs, weight, strict=True)] if weight is not None else xs
    return [x + b for x, b in zip(xs, bias, strict=True)] if bias is not None else xs


def _flat(t: Any) -> Any:
    return None if t is None else list(nums(t).reshape(-1))


def layer_norm(b: dict[str, Any]) -> list[Any]:
    n = math.prod(b["normalized_shape"])
    rows = nums(b["input"]).reshape(-1, n)
    done = [standardise(list(row), b["eps"]) for row in rows]
    out = [affine(x, _flat(b["weight"]), _flat(b["bias"])) for x, _, _ in done]
    return [out, [m for _, m, _ in done], [r for _, _, r in done]]


def rms_norm(b: dict[str, Any]) -> list[Any]:
    n = math.prod(b["normalized_shape"])
    out, scales = [], []
    for row in nums(b["input"]).reshape(-1, n):
        r = rsqrt(add_up([x * x for x in row]) / n + (b["eps"] or 1.1920929e-07))
        out.append(affine([x * r for x in row], _flat(b["weight"]), None))
        scales.append(r)
    return [out, scales]


def group_norm(b: dict[str, Any]) -> list[Any]:
    per = b["C"] // b["group"]
    repeat = lambda t, g: None if t is None else [w for w in _flat(t)[g * per : (g + 1) * per] for _ in range(b["HxW"])]
    out, means, scales = [], [], []
    for i, row in enumerate(nums(b["input"]).reshape(b["N"] * b["group"], -1)):
        x, m, r = standardise(list(row), b["eps"])
        g = i % b["group"]
        out.append(affine(x, repeat(b["weight"], g), repeat(b["bias"], g)))
        means.append(m)
        scales.append(r)
    return [out, means, scales]


def _channels(t: Any) -> np.ndarray:
    """[channels, rest]."""
    a = np.moveaxis(nums(t), 1, 0)
    return a.reshape(a.shape[0], -1)


def _images(rows: Any, like: Any) -> np.ndarray:
    """The inverse of `_channels`."""
    shape = tuple(like.shape)
    a = np.array(rows, dtype=object).reshape(shape[1], shape[0], *shape[2:])
    return np.moveaxis(a, 0, 1)


def batch_norm(b: dict[str, Any]) -> list[Any]:
    rows = []
    for c, xs in enumerate(_channels(b["input"])):
        n = len(xs)
        if b["training"]:
            x, m, r = standardise(list(xs), b["eps"])
            if b["running_mean"] is not None:
                unbiased = special_variance(r, b["eps"]) * (n / (n - 1))
                for old, new in ((b["running_mean"], m), (b["running_var"], unbiased)):
                    _ = Num(float(old[c])) * (1 - b["momentum"]) + new * b["momentum"]
        else:
            r = rsqrt(Num(float(b["running_var"][c])) + b["eps"])
            x = [(v - float(b["running_mean"][c])) * r for v in xs]
        per = lambda t, c=c, n=n: None if t is None else [Num(float(t[c]))] * n
        rows.append(affine(x, per(b["weight"]), per(b["bias"])))
    return [_images(rows, b["input"])]


def special_variance(r: Num, eps: float) -> Num:
    """The variance that 1/std came from, known already: nothing is computed."""
    return Num(r.v**-2 - eps)


def _back_rows(g: list[Num], x: list[Num], m: Any, r: Any, w: Any) -> tuple[list[Num], list[Num]]:
    """(dx, x^) of one normalised row: r (gw - mean(gw) - x^ mean(gw x^))."""
    hat = [(v - m) * r for v in x]
    gw = [a * b for a, b in zip(g, w, strict=True)] if w is not None else g
    n = len(g)
    a = add_up(gw) / n
    c = add_up([p * q for p, q in zip(gw, hat, strict=True)]) / n
    return [(p - (a + q * c)) * r for p, q in zip(gw, hat, strict=True)], hat


def layer_norm_back(b: dict[str, Any]) -> list[Any]:
    n = math.prod(b["normalized_shape"])
    g, x = nums(b["grad_out"]).reshape(-1, n), nums(b["input"]).reshape(-1, n)
    m, r = _flat(b["mean"]), _flat(b["rstd"])
    done = [_back_rows(list(g[i]), list(x[i]), m[i], r[i], _flat(b["weight"])) for i in range(len(g))]
    dw = [add_up([g[i, j] * done[i][1][j] for i in range(len(g))]) for j in range(n)] if b["weight"] is not None else None
    db = [add_up(list(g[:, j])) for j in range(n)] if b["bias"] is not None else None
    return [[d for d, _ in done], dw, db]


def rms_norm_back(b: dict[str, Any]) -> list[Any]:
    n = math.prod(b["normalized_shape"])
    g, x, r = nums(b["grad_out"]).reshape(-1, n), nums(b["input"]).reshape(-1, n), _flat(b["rstd"])
    w = _flat(b["weight"])
    dx, hats = [], []
    for i in range(len(g)):
        hat = [v * r[i] for v in x[i]]
        gw = [p * q for p, q in zip(g[i], w, strict=True)]
        c = add_up([p * q for p, q in zip(gw, hat, strict=True)]) / n
        dx.append([(p - q * c) * r[i] for p, q in zip(gw, hat, strict=True)])
        hats.append(hat)
    return [dx, [add_up([g[i, j] * hats[i][j] for i in range(len(g))]) for j in range(n)]]


def group_norm_back(b: dict[str, Any]) -> list[Any]:
    per, groups, channels = b["C"] // b["group"], b["group"], b["C"]
    g, x = (nums(b[k]).reshape(b["N"] * groups, -1) for k in ("grad_out", "input"))
    m, r, w = _flat(b["mean"]), _flat(b["rstd"]), _flat(b["weight"])
    dx, hats = [], []
    for i in range(len(g)):
        spread = [w[(i % groups) * per + j // b["HxW"]] for j in range(len(g[i]))]
        d, hat = _back_rows(list(g[i]), list(x[i]), m[i], r[i], spread)
        dx.append(d)
        hats.append(hat)
    flat = lambda a: np.array(a, dtype=object).reshape(b["N"], channels, -1)
    gs, hs = flat(g), flat(hats)
    dw = [add_up([p * q for p, q in zip(gs[:, c].reshape(-1), hs[:, c].reshape(-1), strict=True)]) for c in range(channels)]
    return [dx, dw, [add_up(list(gs[:, c].reshape(-1))) for c in range(channels)]]


def batch_norm_back(b: dict[str, Any]) -> list[Any]:
    g, x = _channels(b["grad_out"]), _channels(b["input"])
    dx, dw, db = [], [], []
    for c in range(len(g)):
        n, w = len(g[c]), Num(float(b["weight"][c]))
        if b["train"]:
            m, r = float(b["save_mean"][c]), Num(float(b["save_invstd"][c]))
            hat = [(v - m) * r for v in x[c]]
            s = add_up(list(g[c]))
            t = add_up([p * q for p, q in zip(g[c], hat, strict=True)])
            a, k, wr = s / n, t / n, w * r
            dx.append([(p - a - q * k) * wr for p, q in zip(g[c], hat, strict=True)])
        else:
            r = rsqrt(Num(float(b["running_var"][c])) + b["eps"])
            wr = w * r
            dx.append([p * wr for p in g[c]])
            hat = [(v - float(b["running_mean"][c])) * r for v in x[c]]
            t = add_up([p * q for p, q in zip(g[c], hat, strict=True)])
            s = add_up(list(g[c]))
        dw.append(t)
        db.append(s)
    return [_images(dx, b["input"]), dw, db]


def weight_norm(b: dict[str, Any]) -> list[Any]:
    v, g = nums(b["v"]), _flat(b["g"])
    norms = [sqrt(add_up([x * x for x in row])) for row in v.reshape(len(v), -1)]
    scale = [a / c for a, c in zip(g, norms, strict=True)]
    return [[[x * s for x in row] for row, s in zip(v.reshape(len(v), -1), scale, strict=True)], norms]


def weight_norm_back(b: dict[str, Any]) -> list[Any]:
    gw, v = (nums(b[k]).reshape(len(b["saved_v"]), -1) for k in ("grad_w", "saved_v"))
    dv, dg = [], []
    for row, xs, g, n in zip(gw, v, _flat(b["saved_g"]), _flat(b["saved_norms"]), strict=True):
        d = add_up([p * q for p, q in zip(row, xs, strict=True)]) / n
        scale, share = g / n, d / n
        dv.append([(p - q * share) * scale for p, q in zip(row, xs, strict=True)])
        dg.append(d)
    return [dv, dg]


# ---- losses ------------------------------------------------------------------------------------------------------------


def reduced(losses: list[Any], reduction: int) -> Any:
    """none, mean, sum."""
    return losses if reduction == 0 else mean(losses) if reduction == 1 else add_up(losses)


def elementwise_loss(f: Any) -> Any:
    def g(b: dict[str, Any]) -> list[Any]:
        x, t = nums(b["self"]).reshape(-1), nums(b["target"]).reshape(-1)
        extra = [_flat(b[k].expand(b["self"].shape)) for k in ("weight",) if b.get(k) is not None]
        losses = [f(a, c, b) for a, c in zip(x, t, strict=True)]
        for w in extra:
            losses = [a * c for a, c in zip(losses, w, strict=True)]
        return [reduced(losses, b["reduction"])]

    return g


def loss_back(f: Any) -> Any:
    """The gradient per element, with the constant 1/n of a mean folded into `norm`."""

    def g(b: dict[str, Any]) -> list[Any]:
        x, t = nums(b["self"]).reshape(-1), nums(b["target"]).reshape(-1)
        n = len(x) if b["reduction"] == 1 else 1
        grad = [Num(v) for v in b["grad_output"].expand(b["self"].shape).reshape(-1).tolist()]
        out = [f(a, c, e, 1 / n, b) for a, c, e in zip(x, t, grad, strict=True)]
        if b.get("weight") is not None:
            out = [a * w for a, w in zip(out, _flat(b["weight"].expand(b["self"].shape)), strict=True)]
        return [out]

    return g


def bce(x: Num, t: Num, b: Any) -> Num:
    return (t - 1) * log1p(-x) - t * log(x)


def bce_logits(x: Num, t: Num, b: Any) -> Num:
    log_sigmoid = Num(min(x.v, 0)) - log1p(exp(-size_of(x)))
    if b.get("pos_weight") is not None:
        weight = (Num(float(b["pos_weight"].reshape(-1)[0])) - 1) * t + 1
        return (1 - t) * x - weight * log_sigmoid
    return (1 - t) * x - log_sigmoid


def soft_margin_back(x: Num, t: Num, g: Num, norm: float, b: Any) -> Num:
    z = exp(-(t * x))
    return t * (z / (1 + z)) * g * (-norm)


def nll(b: dict[str, Any]) -> list[Any]:
    x, t = nums(b["self"]), b["target"].reshape(-1).tolist()
    if x.ndim == 4:
        x = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])
    w = _flat(b["weight"])
    losses = [-x[i, c] for i, c in enumerate(t)]
    if w is None:
        return [reduced(losses, b["reduction"])]
    losses = [a * w[c] for a, c in zip(losses, t, strict=True)]
    if b["reduction"] == 0:
        return [losses]
    total = add_up([w[c] for c in t])
    return [add_up(losses) / total if b["reduction"] == 1 else add_up(losses), None]


def nll_back(b: dict[str, Any]) -> list[Any]:
    t, w = b["target"].reshape(-1).tolist(), _flat(b["weight"])
    total = val(float(b["total_weight"]))
    classes = b["self"].shape[1]
    out = [[Num(0) for _ in range(classes)] for _ in t]
    for i, c in enumerate(t):
        g = -Num(float(b["grad_output"].reshape(-1)[i if b["reduction"] == 0 else 0]))
        g = g if w is None else g * w[c]
        out[i][c] = g / total if b["reduction"] == 1 else g
    if b["self"].dim() == 4:
        return [np.moveaxis(np.array(out, dtype=object).reshape(*b["target"].shape, classes), -1, 1)]
    return [out]


def multi_margin(b: dict[str, Any]) -> list[Any]:
    x, losses = nums(b["self"]), []
    for row, t in zip(x, b["target"].tolist(), strict=True):
        base = b["margin"] - row[t]
        hinges = []
        for j in range(len(row)):
            z = big(base + row[j], 0)
            z = z * z if b["p"] == 2 else z
            z = z * Num(float(b["weight"][t])) if b["weight"] is not None else z
            hinges.append(Num(0) if j == t else z)
        losses.append(add_up(hinges) / len(row))
    return [reduced(losses, b["reduction"])]


# ---- distances and segments --------------------------------------------------------------------------------------------


def cdist(b: dict[str, Any]) -> list[Any]:
    f = norm(b["p"])
    x, y = nums(b["x1"]), nums(b["x2"])
    return [[f([p - q for p, q in zip(u, v, strict=True)]) for u in x for v in y]]


def pdist(b: dict[str, Any]) -> list[Any]:
    f = norm(b["p"])
    x = nums(b["self"])
    return [[f([p - q for p, q in zip(x[i], x[j], strict=True)]) for i in range(len(x)) for j in range(i + 1, len(x))]]
