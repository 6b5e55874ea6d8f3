"""Cost rules for elementwise operators, their in-place, `_foreach_` and backward forms.

A row gives the vector FLOPs and the special function evaluations per element of the result. Every element is charged the
dearer branch of a function that is defined by cases (elu, softplus). A constant factor of 1 or -1 is not a multiplication.
Integer arithmetic counts like floating arithmetic; arithmetic on truth values is logic and counts 0.
Bytes: every distinct operand read once, every result written once.
"""

from __future__ import annotations

from typing import Any

from costir.ir import Call, Conventions, Cost
from costir.ops.families import (
    boolean,
    charge,
    count,
    elements,
    family,
    first,
    is_one,
    maybe,
    per_element,
    register,
    targets,
    tensor,
    truth,
    unknown,
    whole,
)
from costir.symbolic import ZERO, Expr

# ---- comparisons, rounding, signs, bits and logic: no arithmetic -------------------------------------------------------

family(
    "relu relu_ sign sign_ sgn sgn_ abs abs_ positive clamp clamp_ clamp_min clamp_min_ clamp_max clamp_max_ clip clip_ "
    "maximum minimum fmax fmin max.other min.other where masked_fill masked_fill_ eq eq_ ne ne_ lt lt_ le le_ gt gt_ ge ge_ "
    "greater greater_equal less less_equal not_equal isnan isinf isfinite isposinf isneginf isin isreal isclose signbit "
    "heaviside heaviside_ nan_to_num nan_to_num_ copysign copysign_ nextafter nextafter_ frexp threshold threshold_ "
    "threshold_backward hardtanh hardtanh_ hardtanh_backward relu6 relu6_ hardshrink hardshrink_backward softshrink_backward "
    "_foreach_abs _foreach_abs_ _foreach_sign _foreach_sign_ _foreach_clamp_max _foreach_clamp_max_ _foreach_clamp_min "
    "_foreach_clamp_min_ _foreach_maximum _foreach_maximum_ _foreach_minimum _foreach_minimum_ equal",
    "comparison",
    "0: a choice between values, no arithmetic",
    per_element(0),
)
family(
    "floor floor_ ceil ceil_ round round_ trunc trunc_ fix fix_ _foreach_floor _foreach_floor_ _foreach_ceil _foreach_ceil_ "
    "_foreach_round _foreach_round_ _foreach_trunc _foreach_trunc_",
    "rounding",
    "0: a change of format",
    per_element(0),
)
family(
    "bitwise_and bitwise_and_ bitwise_or bitwise_or_ bitwise_xor bitwise_xor_ bitwise_not bitwise_not_ bitwise_left_shift "
    "bitwise_left_shift_ bitwise_right_shift bitwise_right_shift_ __and__ __iand__ __or__ __ior__ __xor__ __ixor__ __lshift__ "
    "__ilshift__ __rshift__ __irshift__ logical_and logical_and_ logical_or logical_or_ logical_xor logical_xor_ logical_not "
    "logical_not_ gcd gcd_ lcm lcm_",
    "logic",
    "0: bits and truth values",
    per_element(0),
)
family(
    "real imag conj_physical conj_physical_ _conj_physical complex", "complex parts", "0: parts and signs only", per_element(0)
)

# ---- arithmetic --------------------------------------------------------------------------------------------------------

# Real FLOPs of one complex operation: (a+bi)(c+di) is 4 multiplies and 2 adds; a division multiplies by the conjugate
# (6), forms c*c + d*d (3) and divides twice (2).
COMPLEX = {"add": 2, "mul": 6, "div": 11, "reciprocal": 6}


def _arithmetic(real: int, complex_: int, scaled: str = "") -> Any:
    """FLOPs per result element; `scaled` names a factor that costs one more multiplication where it is not 1."""

    def formula(call: Call) -> tuple[Expr, Expr]:
        amount = ZERO
        for t in targets(call):
            if boolean(t):
                continue
            factor = call.args.get(scaled)
            extra = 0 if not scaled or is_one(factor) else (COMPLEX["mul"] if t.is_complex else 1)
            amount = amount + elements(t) * ((complex_ if t.is_complex else real) + extra)
        return amount, ZERO

    return formula


_ADD = _arithmetic(1, 2, "alpha")


def _add(call: Call, conventions: Conventions) -> Cost:
    """A sparse tensor added in place into a dense one touches its stored elements only."""
    other = maybe(call, "other")
    if other is None or other.nnz is None or not call.name.endswith("_") or first(call).nnz is not None:
        vector, special = _ADD(call)
        return charge(call, vector=vector, special=special)
    touched = other.nnz * first(call).itemsize
    work = other.nnz * (1 if is_one(call.args.get("alpha")) else 2)
    return charge(call, vector=work, read=other.nbytes + touched, write=touched)


register(
    "add add_ sub sub_ rsub subtract subtract_ _foreach_add _foreach_add_ _foreach_sub _foreach_sub_",
    "add",
    "1 add per output, 1 more multiply where alpha is not 1 or -1; complex 2 (and 6); sparse: stored elements",
    _add,
)
family("_add_relu _add_relu_", "add", "1 add per output; the comparison 0", _arithmetic(1, 2, "alpha"))
family(
    "mul mul_ multiply multiply_ _foreach_mul _foreach_mul_", "multiply", "1 multiply per output; complex 6", _arithmetic(1, 6)
)
family(
    "div div_ true_divide divide divide_ floor_divide floor_divide_ _foreach_div _foreach_div_",
    "divide",
    "1 divide per output, rounding 0; complex 11",
    _arithmetic(1, 11),
)
family(
    "neg neg_ negative negative_ _foreach_neg _foreach_neg_", "negate", "1 subtract from zero per output; complex 2",
    _arithmetic(1, 2),
)  # fmt: skip
family("square square_", "square", "1 multiply per output; complex 6", _arithmetic(1, 6))
family(
    "reciprocal reciprocal_ _foreach_reciprocal _foreach_reciprocal_", "divide", "1 divide per output; complex 6",
    _arithmetic(1, 6),
)  # fmt: skip
family(
    "remainder remainder_ fmod fmod_",
    "remainder",
    "divide, multiply, subtract per output (rounding 0)",
    _arithmetic(3, 14),
)
family("frac frac_ _foreach_frac _foreach_frac_", "add", "1 subtract per output", per_element(1))
family("deg2rad deg2rad_ rad2deg rad2deg_", "multiply", "1 multiply per output", per_element(1))
family(
    "addcmul addcmul_ _foreach_addcmul _foreach_addcmul_",
    "fused arithmetic",
    "multiply, add per output, 1 more multiply where value is not 1",
    _arithmetic(2, 8, "value"),
)
family(
    "addcdiv addcdiv_ _foreach_addcdiv _foreach_addcdiv_",
    "fused arithmetic",
    "divide, add per output, 1 more multiply where value is not 1",
    _arithmetic(2, 13, "value"),
)
for _op, _work in (("addcmul", 3), ("addcdiv", 3)):
    for _form in (f"_foreach_{_op}", f"_foreach_{_op}_"):
        for _overload in ("ScalarList", "Tensor"):
            family(
                f"{_form}.{_overload}", "fused arithmetic", "3 per output: the factors differ by tensor", _arithmetic(_work, 14)
            )
family("lerp lerp_ _foreach_lerp _foreach_lerp_", "fused arithmetic", "subtract, multiply, add per output", _arithmetic(3, 10))
family("ldexp ldexp_", "special", "1 exp2, 1 multiply per output", per_element(1, 1))

# ---- special functions -------------------------------------------------------------------------------------------------

_SPECIAL = (
    "exp exp_ exp2 exp2_ expm1 expm1_ log log_ log2 log2_ log10 log10_ log1p log1p_ sin sin_ cos cos_ tan tan_ asin asin_ acos "
    "acos_ atan atan_ atan2 atan2_ arctan2 arctan2_ sinh sinh_ cosh cosh_ tanh tanh_ asinh asinh_ acosh acosh_ atanh atanh_ "
    "sqrt sqrt_ rsqrt rsqrt_ erf erf_ erfc erfc_ erfinv erfinv_ sigmoid sigmoid_ lgamma lgamma_ digamma digamma_ polygamma "
    "polygamma_ i0 i0_ igamma igamma_ igammac igammac_ special_i0e special_i1 special_i1e special_ndtri special_log_ndtr "
    "special_erfcx special_zeta special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 "
    "special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 "
    "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0 angle "
    "_foreach_exp _foreach_exp_ _foreach_expm1 _foreach_expm1_ _foreach_log _foreach_log_ _foreach_log2 _foreach_log2_ "
    "_foreach_log10 _foreach_log10_ _foreach_log1p _foreach_log1p_ _foreach_sin _foreach_sin_ _foreach_cos _foreach_cos_ "
    "_foreach_tan _foreach_tan_ _foreach_asin _foreach_asin_ _foreach_acos _foreach_acos_ _foreach_atan _foreach_atan_ "
    "_foreach_sinh _foreach_sinh_ _foreach_cosh _foreach_cosh_ _foreach_tanh _foreach_tanh_ _foreach_sqrt _foreach_sqrt_ "
    "_foreach_rsqrt _foreach_rsqrt_ _foreach_erf _foreach_erf_ _foreach_erfc _foreach_erfc_ _foreach_lgamma _foreach_lgamma_ "
    "_foreach_sigmoid _foreach_sigmoid_"
)
# (vector, special) for a complex operand, from the textbook forms in terms of real functions.
_COMPLEX_SPECIAL = {
    "exp": (2, 3),  # exp(x) (cos y + i sin y)
    "log": (3, 3),  # log(sqrt(x*x + y*y)) + i atan2(y, x)
    "angle": (0, 1),  # atan2(y, x)
    "sin": (2, 4),  # sin x cosh y + i cos x sinh y
    "cos": (3, 4),  # cos x cosh y - i sin x sinh y
    "sqrt": (7, 3),  # r = sqrt(x*x + y*y); sqrt((r + x)/2) + i sqrt((r - x)/2)
}


def _special(call: Call, conventions: Conventions) -> Cost:
    n = count(targets(call))
    if not any(t.is_complex for t in call.inputs):
        return charge(call, special=n)
    known = _COMPLEX_SPECIAL.get(call.name.removeprefix("_foreach_").rstrip("_"))
    if known is None:
        return unknown(call, f"complex {call.name} is not counted")
    return charge(call, vector=known[0] * n, special=known[1] * n)


register(_SPECIAL, "special", "1 special function per output; complex by its real functions", _special)


def _abs_complex(call: Call, conventions: Conventions) -> Cost:
    n = count(targets(call))
    return charge(call, vector=3 * n, special=n) if first(call).is_complex else charge(call)


for _name in ("abs.default", "abs.out"):
    register(_name, "comparison", "0; complex: 2 multiplies, add, sqrt per output", _abs_complex)

family("sinc sinc_", "special", "sin(pi x)/(pi x): multiply, divide, 1 sin per output", per_element(2, 1))
family("hypot hypot_", "special", "2 multiplies, add, 1 sqrt per output", per_element(3, 1))
family("polar", "special", "1 cos, 1 sin, 2 multiplies per output", per_element(2, 2))
family("xlogy xlogy_ special_xlog1py", "special", "1 multiply, 1 log per output", per_element(1, 1))
family("special_entr", "special", "-x log x: negate, multiply, 1 log per output", per_element(2, 1))
family("logaddexp logaddexp2", "special", "subtract, negate, add, 1 exp, 1 log1p per output", per_element(3, 2))
family("logit logit_", "special", "log(x/(1 - x)): subtract, divide, 1 log per output", per_element(2, 1))
family("logit_backward", "special", "subtract, multiply, divide per output", per_element(3))


def power_work(exponent: Any) -> tuple[int, int]:
    """(vector, special) of x**exponent: whole exponents by repeated squaring, a negative one divides once, else 1 pow.

    x**2 is 1 multiply, x**3 2, x**4 2, x**-1 1 divide; x**0.5 and x**-0.5 are one sqrt, rsqrt.
    """
    n = whole(exponent)
    if n is None:
        return 0, 1
    steps = max(abs(n).bit_length() + abs(n).bit_count() - 2, 0)
    return steps + (1 if n < 0 else 0), 0


def _power(call: Call, conventions: Conventions) -> Cost:
    exponent = call.args.get("exponent")
    if isinstance(exponent, tuple | list):
        works = [power_work(e) for e in exponent]
    else:
        works = [power_work(None if maybe(call, "exponent") is not None else exponent)] * len(targets(call))
    scale = 1
    if any(t.is_complex for t in targets(call)):
        if any(s for _, s in works):
            return unknown(call, "complex pow is not counted")
        scale = COMPLEX["mul"]
    vector = sum((w[0] * scale * t.numel for w, t in zip(works, targets(call), strict=False)), ZERO)
    special = sum((w[1] * t.numel for w, t in zip(works, targets(call), strict=False)), ZERO)
    return charge(call, vector=vector, special=special)


register(
    "pow pow_ float_power float_power_ _foreach_pow _foreach_pow_",
    "power",
    "whole exponent: repeated squaring (x**2 is 1, x**3 and x**4 are 2; negative: 1 divide more); else 1 pow per output",
    _power,
)


# FLOPs for the polynomial of degree 1 and for each degree more, by the usual three-term recurrences.
_POLYNOMIALS = {
    "special_chebyshev_polynomial_t": (0, 3),  # 2x q - p
    "special_chebyshev_polynomial_u": (1, 3),
    "special_chebyshev_polynomial_v": (2, 3),
    "special_chebyshev_polynomial_w": (2, 3),
    "special_shifted_chebyshev_polynomial_t": (2, 3),  # the same of 2x - 1
    "special_shifted_chebyshev_polynomial_u": (3, 3),
    "special_shifted_chebyshev_polynomial_v": (4, 3),
    "special_shifted_chebyshev_polynomial_w": (4, 3),
    "special_hermite_polynomial_h": (1, 4),  # 2x q - 2k p
    "special_hermite_polynomial_he": (0, 3),  # x q - k p
    "special_laguerre_polynomial_l": (1, 6),  # ((2k + (1 - x)) q - k p)/(k + 1)
    "special_legendre_polynomial_p": (0, 5),  # ((2k + 1) x q - k p)/(k + 1)
}


def _polynomial(call: Call, conventions: Conventions) -> Cost:
    n = whole(call.args.get("n"))
    if n is None:
        return unknown(call, "the degree of the polynomial is a tensor")
    first_degree, step = _POLYNOMIALS[call.name]
    return charge(call, vector=(first_degree + step * (n - 1) if n > 0 else 0) * count(targets(call)))


register(
    " ".join(_POLYNOMIALS),
    "special",
    "by three-term recurrence, per output and degree: Chebyshev 3, Hermite 4 (He 3), Laguerre 6, Legendre 5",
    _polynomial,
)
family("mvlgamma mvlgamma_", "special", "p lgammas and p adds per output", lambda c: (
    (whole(c.args["p"]) or 1) * count(targets(c)), (whole(c.args["p"]) or 1) * count(targets(c))))  # fmt: skip

# ---- activations -------------------------------------------------------------------------------------------------------

family("silu silu_", "activation", "x sigmoid(x): multiply, 1 sigmoid per output", per_element(1, 1))
family("silu_backward", "activation", "g s (1 + x (1 - s)): 5 and 1 sigmoid per output", per_element(5, 1))
family("sigmoid_backward", "activation", "g (1 - y) y: 3 per output", per_element(3))
family("tanh_backward", "activation", "g (1 - y y): 3 per output", per_element(3))
family("mish mish_", "activation", "x tanh(log1p(exp x)): multiply, 3 special per output", per_element(1, 3))
family("mish_backward", "activation", "g (t + x s (1 - t t)): 6 and 4 special per output", per_element(6, 4))
family("hardsigmoid hardsigmoid_", "activation", "add, divide per output", per_element(2))
family("hardsigmoid_backward", "activation", "1 divide per output", per_element(1))
family("hardswish hardswish_", "activation", "add, multiply, divide per output", per_element(3))
family("hardswish_backward", "activation", "g (x/3 + 1/2): 3 per output", per_element(3))
family(
    "leaky_relu leaky_relu_ leaky_relu_backward _prelu_kernel prelu softshrink rrelu_with_noise_backward rrelu_with_noise "
    "rrelu_with_noise_ rrelu_with_noise_functional",
    "activation",
    "1 multiply (softshrink: add) per element",
    lambda c: (targets(c)[0].numel, ZERO),
)
family("_prelu_kernel_backward", "activation", "2 multiplies per element", lambda c: (2 * tensor(c, "self").numel, ZERO))
family("glu", "activation", "a sigmoid(b): multiply, 1 sigmoid per output", per_element(1, 1))
family(
    "glu_backward",
    "activation",
    "g s and (1 - s) g s a: 4 and 1 sigmoid per element of the output's gradient",
    lambda c: (4 * tensor(c, "grad_output").numel, tensor(c, "grad_output").numel),
)


def _gelu(call: Call) -> tuple[Expr, Expr]:
    n = count(targets(call))
    return ((8 if call.args.get("approximate") == "tanh" else 4) * n, n)


def _gelu_backward(call: Call) -> tuple[Expr, Expr]:
    n = count(targets(call))
    return (17 * n, n) if call.args.get("approximate") == "tanh" else (9 * n, 2 * n)


family(
    "gelu gelu_", "activation", "x/2 (1 + erf(x/sqrt 2)): 4 and 1 erf per output; tanh form: 8 and 1 tanh", _gelu
)  # fmt: skip
family("gelu_backward", "activation", "9, 1 erf, 1 exp per output; tanh form: 17 and 1 tanh", _gelu_backward)


def _factors(call: Call, *wanted: str) -> int:
    """How many of the named constants are real factors, not 1."""
    return sum(not is_one(call.args.get(name)) for name in wanted)


family(
    "elu elu_",
    "activation",
    "alpha (exp(x) - 1): 1 expm1, 1 multiply for each of alpha, scale, input scale that is not 1",
    lambda c: (_factors(c, "alpha", "scale", "input_scale") * count(targets(c)), count(targets(c))),
)


family(
    "celu celu_",
    "activation",
    "alpha expm1(x/alpha): 1 special per output; 2 more (divide, multiply) where alpha is not 1",
    lambda c: (2 * _factors(c, "alpha") * count(targets(c)), count(targets(c))),
)
family("selu selu_", "activation", "elu with both constants: 2 multiplies and 1 expm1 per output", per_element(2, 1))


def _elu_backward(call: Call) -> tuple[Expr, Expr]:
    n = count(targets(call))
    scales = _factors(call, "scale", "input_scale")
    if truth(call.args.get("is_result")):
        return (2 + scales) * n, ZERO
    return (1 + _factors(call, "alpha") + scales + _factors(call, "input_scale")) * n, n


family(
    "elu_backward", "activation", "g (y + alpha): 2 per output; from the input: 1 and 1 exp; scales as in elu", _elu_backward
)
family(
    "softplus",
    "activation",
    "log1p(exp x): 2 special per output; 2 more (multiply, divide) where beta is not 1",
    lambda c: (2 * _factors(c, "beta") * count(targets(c)), 2 * count(targets(c))),
)
family(
    "softplus_backward",
    "activation",
    "g z/(z + 1): 3 and 1 exp per output, 1 more where beta is not 1",
    lambda c: ((3 + _factors(c, "beta")) * count(targets(c)), count(targets(c))),
)
family(
    "log_sigmoid_forward",
    "activation",
    "min(0, x) - log1p(exp(-|x|)): negate, subtract, 2 special per output",
    lambda c: (2 * c.outputs[0].numel, 2 * c.outputs[0].numel),
)


def _log_sigmoid_backward(call: Call) -> tuple[Expr, Expr]:
    n = tensor(call, "grad_output").numel
    return (5 * n, ZERO) if tensor(call, "buffer").numel != 0 else (6 * n, n)


family(
    "log_sigmoid_backward", "activation", "5 per output; 1 and 1 exp more where exp(-|x|) was not kept", _log_sigmoid_backward
)

# ---- dropout -----------------------------------------------------------------------------------------------------------

family(
    "native_dropout _fused_dropout",
    "dropout",
    "2 multiplies (mask, scale) per element; drawing the mask 0",
    lambda c: (2 * c.outputs[0].numel, ZERO),
)
family("native_dropout_backward _masked_scale", "dropout", "2 multiplies per output", per_element(2))
