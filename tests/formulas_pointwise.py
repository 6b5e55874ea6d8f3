# ruff: noqa: E501 - tables of samples, one a line
"""Definitions of elementwise functions, run on counting numbers one element at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from oracles_pointwise import Num, erf, exp, log, log1p, sigmoid, sin, size_of, small, special, sqrt, tanh


class Row(NamedTuple):
    """An operator: how to call it on the samples, and its definition for one element of each tensor argument."""

    args: Callable[[SimpleNamespace], tuple[Any, ...]]
    formula: Callable[..., Any] | None = None
    kwargs: dict[str, Any] = {}  # noqa: RUF012


def one(domain: str, formula: Callable[..., Any] | None = None, **kwargs: Any) -> Row:
    """A function of tensors: "x" any, "n" negative, "p" in (0.1, 0.9), "q" above 1, "g" a gradient; "xy" two tensors."""
    return Row(lambda e: tuple(getattr(e, d) for d in domain), formula, kwargs)


def lib(f: Callable[[float], float] | None = None) -> Callable[..., Any]:
    """One special function, whose value is given by `f` or not compared."""
    return lambda x, *_: special(x, f or (lambda v: math.nan))


def opaque(*_: Any) -> Num:
    return special(0.0, lambda v: math.nan)


C = math.sqrt(2 / math.pi)
K = 0.044715
R2 = 1 / math.sqrt(2)
PDF = 1 / math.sqrt(2 * math.pi)


def gelu(x: Num) -> Num:
    return x * 0.5 * (1 + erf(x * R2))


def gelu_tanh(x: Num) -> Num:
    return 0.5 * x * (1 + tanh(C * (x + K * (x * x * x))))


def gelu_back(g: Num, x: Num) -> Num:
    return g * (0.5 * (1 + erf(x * R2)) + x * (PDF * exp(x * x * -0.5)))


def gelu_tanh_back(g: Num, x: Num) -> Num:
    square = x * x
    t = tanh(C * (x + K * (square * x)))
    left, right = 0.5 * x, 1 + t
    inner = C * (1 + 3 * K * square)
    return g * (0.5 * right + left * (1 - t * t) * inner)


def silu_back(g: Num, x: Num) -> Num:
    s = sigmoid(x)
    return g * (s * (1 + x * (1 - s)))


def mish_back(g: Num, x: Num) -> Num:
    t = tanh(log1p(exp(x)))
    return g * (t + x * sigmoid(x) * (1 - t * t))


def softplus(x: Num) -> Num:
    return log1p(exp(x))


def softplus_back(g: Num, x: Num) -> Num:
    z = exp(x)
    return g * z / (z + 1)


def log_sigmoid(x: Num) -> Num:
    return small(x, 0) - log1p(exp(-size_of(x)))


def log_sigmoid_back(g: Num, x: Num, z: Num) -> Num:
    """For x < 0: g (1 - z/(1 + z)); for x >= 0: g (0 + z/(1 + z)), one multiplication by the sign either way."""
    sign, most = (1.0, 1.0) if x.v < 0 else (-1.0, 0.0)
    return g * (most - sign * (z / (1 + z)))


def floored(x: Num) -> Num:
    return Num(math.floor(x.v))


def remainder(x: Num, y: Num) -> Num:
    return x - floored(x / y) * y


def fmod(x: Num, y: Num) -> Num:
    return x - Num(math.trunc((x / y).v)) * y


def logaddexp(x: Num, y: Num) -> Num:
    return Num(max(x.v, y.v)) + log1p(exp(-size_of(x - y)))


def logaddexp2(x: Num, y: Num) -> Num:
    return Num(max(x.v, y.v)) + special(special(-size_of(x - y), lambda v: 2**v), lambda v: math.log2(1 + v))


def sinc(x: Num) -> Num:
    y = x * math.pi
    return sin(y) / y


def power(n: float) -> Callable[[Num], Num]:
    """x**n by squaring and multiplying, from the bits of n."""

    def raise_(x: Num) -> Num:
        result: Num | None = None
        base, bits = x, int(abs(n))
        while bits:
            if bits & 1:
                result = base if result is None else result * base
            bits >>= 1
            if bits:
                base = base * base
        return 1 / result if n < 0 else result  # type: ignore[return-value,operator]

    return raise_


def elu(alpha: float, scale: float = 1, inner: float = 1) -> Callable[[Num], Num]:
    def f(x: Num) -> Num:
        y = special(x if inner == 1 else x * inner, math.expm1)
        for factor in (alpha, scale):
            y = y if factor == 1 else y * factor
        return y

    return f


def elu_back(alpha: float, scale: float, inner: float, result: bool) -> Callable[[Num, Num], Num]:
    def f(g: Num, x: Num) -> Num:
        if result:
            y = g * (x + alpha * scale)
        else:
            y = g * exp(x if inner == 1 else x * inner)
            y = y if alpha == 1 else y * alpha
            y = y if scale == 1 else y * scale
        return y if inner == 1 else y * inner

    return f


_SPECIALS: dict[str, tuple[str, Callable[[float], float] | None]] = {
    "exp": ("x", math.exp), "exp2": ("x", lambda v: 2**v), "expm1": ("x", math.expm1), "log": ("p", math.log),
    "log2": ("p", math.log2), "log10": ("p", math.log10), "log1p": ("p", math.log1p), "sin": ("x", math.sin),
    "cos": ("x", math.cos), "tan": ("x", math.tan), "asin": ("p", math.asin), "acos": ("p", math.acos),
    "atan": ("x", math.atan), "sinh": ("x", math.sinh), "cosh": ("x", math.cosh), "tanh": ("x", math.tanh),
    "asinh": ("x", math.asinh), "acosh": ("q", math.acosh), "atanh": ("p", math.atanh), "sqrt": ("p", math.sqrt),
    "rsqrt": ("p", lambda v: v**-0.5), "erf": ("x", math.erf), "erfc": ("x", math.erfc), "erfinv": ("p", None),
    "sigmoid": ("x", lambda v: 1 / (1 + math.exp(-v))), "lgamma": ("q", math.lgamma), "digamma": ("q", None), "i0": ("x", None),
    "angle": ("x", None),
    **{f"special_{n}": ("p", None) for n in ["i0e", "i1", "i1e", "ndtri", "log_ndtr", "erfcx", "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "spherical_bessel_j0"]},
}  # fmt: skip

ROWS: dict[str, Row] = {
    **{name: one(domain, lib(f)) for name, (domain, f) in _SPECIALS.items()},
    "atan2": one("xy", opaque), "arctan2": one("xy", opaque), "igamma": one("qq", opaque), "igammac": one("qq", opaque),
    "special_zeta": one("qq", opaque), "polygamma": Row(lambda e: (2, e.q), opaque), "polygamma_": Row(lambda e: (e.q, 2), opaque),
    "add": one("xy", lambda x, y: x + y), "sub": one("xy", lambda x, y: x - y), "rsub": one("xy", lambda x, y: y - x),
    "subtract": one("xy", lambda x, y: x - y), "mul": one("xy", lambda x, y: x * y), "multiply": one("xy", lambda x, y: x * y),
    "div": one("xy", lambda x, y: x / y), "true_divide": one("xy", lambda x, y: x / y), "divide": one("xy", lambda x, y: x / y),
    "floor_divide": one("xy", lambda x, y: floored(x / y)), "neg": one("x", lambda x: -x), "negative": one("x", lambda x: -x),
    "square": one("x", lambda x: x * x), "reciprocal": one("x", lambda x: 1 / x), "remainder": one("xy", remainder),
    "fmod": one("xy", fmod), "frac": one("x", lambda x: x - Num(math.trunc(x.v))),
    "deg2rad": one("x", lambda x: x * (math.pi / 180)), "rad2deg": one("x", lambda x: x * (180 / math.pi)),
    "addcmul": one("xyp", lambda x, y, z: x + y * z), "addcdiv": one("xyp", lambda x, y, z: x + y / z),
    "lerp": one("xyp", lambda x, y, w: x + w * (y - x)), "ldexp": one("xy", lambda x, y: x * special(y, lambda v: 2**v)),
    "_add_relu": one("xy", lambda x, y: Num(max((x + y).v, 0))),
    "sinc": one("x", sinc), "hypot": one("xy", lambda x, y: sqrt(x * x + y * y)),
    "xlogy": one("xp", lambda x, y: x * log(y)), "special_xlog1py": one("xp", lambda x, y: x * log1p(y)),
    "special_entr": one("p", lambda x: -x * log(x)), "logaddexp": one("xy", logaddexp), "logaddexp2": one("xy", logaddexp2),
    "logit": one("p", lambda x: log(x / (1 - x))), "logit_backward": one("gp", lambda g, x: g / (x * (1 - x))),
    "pow": Row(lambda e: (e.p, 3), power(3)), "float_power": Row(lambda e: (e.p, 5), power(5)),
    "mvlgamma": Row(lambda e: (e.q, 1), lambda x: special(x, math.lgamma) + 0.0),
    "silu": one("x", lambda x: x * sigmoid(x)), "silu_backward": one("gx", silu_back),
    "sigmoid_backward": one("gp", lambda g, y: g * ((1 - y) * y)), "tanh_backward": one("gp", lambda g, y: g * (1 - y * y)),
    "mish": one("x", lambda x: x * tanh(softplus(x))), "mish_backward": one("gx", mish_back),
    "hardsigmoid": one("p", lambda x: (x + 3) / 6), "hardsigmoid_backward": one("gp", lambda g, x: g / 6),
    "hardswish": one("p", lambda x: x * (x + 3) / 6), "hardswish_backward": one("gp", lambda g, x: g * (x / 3 + 0.5)),
    "leaky_relu": one("n", lambda x: x * 0.01),
    "leaky_relu_backward": Row(lambda e: (e.g, e.n, 0.1, False), lambda g, x: g * 0.1),
    "_prelu_kernel": one("np", lambda x, w: x * w), "prelu": Row(lambda e: (e.n, e.row), lambda x, w: x * w),
    "softshrink": one("q", lambda x: x - 0.5),
    "rrelu_with_noise": Row(lambda e: (e.n, e.p, 0.25, 0.25, False), lambda x, _: x * 0.25),
    "rrelu_with_noise_functional": Row(lambda e: (e.n, e.p, 0.25, 0.25, False), lambda x, _: x * 0.25),
    "rrelu_with_noise_backward": Row(lambda e: (e.g, e.n, e.p, 0.25, 0.25, False, False), lambda g, x, _: g * 0.25),
    "gelu": one("x", gelu), "gelu_backward": one("gx", gelu_back),
    "elu": Row(lambda e: (e.n, 0.5, 2.0, 3.0), elu(0.5, 2, 3)), "celu": Row(lambda e: (e.n, 0.5), lambda x: 0.5 * special(x / 0.5, math.expm1)),
    "selu": Row(lambda e: (e.n,), elu(1.6732632423543772, 1.0507009873554805)),
    "elu_backward": Row(lambda e: (e.g, 0.5, 2.0, 3.0, False, e.n), elu_back(0.5, 2, 3, False)),
    "softplus": one("x", softplus), "softplus_backward": Row(lambda e: (e.g, e.x, 1, 20), softplus_back),
    "log_sigmoid_forward": one("x", log_sigmoid),
    "log_sigmoid_backward": Row(lambda e: (e.g, e.x, (-e.x.abs()).exp()), log_sigmoid_back),
    "native_dropout": Row(lambda e: (e.x, 0.5, True), lambda x: x * 1.0 * 2.0),
    "_fused_dropout": Row(lambda e: (e.x, 0.5), lambda x: x * 1.0 * 2.0),
    "native_dropout_backward": Row(lambda e: (e.g, e.b, 2.0), lambda g, m: g * m * 2.0),
    "_masked_scale": Row(lambda e: (e.g, e.b.byte(), 2.0), lambda g, m: g * m * 2.0),
    "polar": one("px", None),
}  # fmt: skip

# The same operators under other arguments: (operator, how to call it, definition).
VARIANTS: tuple[tuple[str, Row], ...] = (
    ("add", Row(lambda e: (e.x, e.y), lambda x, y: x + 3 * y, {"alpha": 3})),
    ("add", Row(lambda e: (e.x, e.y), lambda x, y: x - y, {"alpha": -1})),
    ("add", Row(lambda e: (e.x, 2.0), lambda x: x + 2.0)),
    ("sub", Row(lambda e: (e.x, e.row), lambda x, y: x - y)),
    ("rsub", Row(lambda e: (e.x, e.y), lambda x, y: y - 2 * x, {"alpha": 2})),
    ("mul", Row(lambda e: (e.x, e.expanded), lambda x, y: x * y)),
    ("mul", Row(lambda e: (e.x, e.x), lambda x, y: x * y)),
    ("div", Row(lambda e: (e.x, e.y), lambda x, y: floored(x / y), {"rounding_mode": "floor"})),
    ("addcmul", Row(lambda e: (e.x, e.y, e.p), lambda x, y, z: x + 2 * (y * z), {"value": 2})),
    ("addcdiv", Row(lambda e: (e.x, e.y, e.p), lambda x, y, z: x + 2 * (y / z), {"value": 2})),
    ("lerp", Row(lambda e: (e.x, e.y, 0.3), lambda x, y: x + 0.3 * (y - x))),
    *(("pow", Row(lambda e, n=n: (e.p, n), power(n))) for n in (1, 2, 3, 4, 5, 7, -1, -2, -3, 2.0)),
    ("pow", Row(lambda e: (e.p, 0.5), lambda x: sqrt(x))),
    ("pow", Row(lambda e: (e.p, -0.5), lambda x: special(x, lambda v: v**-0.5))),
    ("pow", Row(lambda e: (e.p, 1.7), lambda x: special(x, lambda v: v**1.7))),
    ("pow", Row(lambda e: (e.p, e.y), opaque)), ("pow", Row(lambda e: (2.0, e.x), lambda x: special(x, lambda v: 2**v))),
    ("gelu", Row(lambda e: (e.x,), gelu_tanh, {"approximate": "tanh"})),
    ("gelu_backward", Row(lambda e: (e.g, e.x), gelu_tanh_back, {"approximate": "tanh"})),
    ("elu", Row(lambda e: (e.n,), elu(1))),
    ("elu_backward", Row(lambda e: (e.g, 1.0, 1.0, 1.0, False, e.n), elu_back(1, 1, 1, False))),
    ("elu_backward", Row(lambda e: (e.g, 0.5, 1.0, 1.0, True, e.n / 4), elu_back(0.5, 1, 1, True))),
    ("softplus", Row(lambda e: (e.p, 2.0), lambda x: softplus(x * 2) / 2)),
    ("softplus_backward", Row(lambda e: (e.g, e.p, 2.0, 20.0), lambda g, x: softplus_back(g, x * 2))),
    ("log_sigmoid_backward", Row(lambda e: (e.g, e.x, torch.empty(0)), None)),
    ("celu", Row(lambda e: (e.n, 1.0), elu(1))),
)  # fmt: skip
