"""What operators ask of the sizes that they get, so that a model runs at all: as conditions, in as few symbols as may be.

A window must fit into its padded input, `topk` cannot take more than there are, heads of queries are shared out evenly. A
program that was run at a few points met all of this there; its formulas say nothing of points where it would have failed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, cast

import sympy as sp

from costir.ir import LOOP, Call, Tensor
from costir.lifting.shapes import EXACT, PROPOSALS, windows
from costir.symbolic import ONE, ZERO, Boolean, Expr, Integer, total

Args = Mapping[str, Any]
_SPAN = 48  # values of each size at which two forms are compared

# Operators that refuse to make a tensor without elements.
_WINDOWED = frozenset((
    "convolution", "_convolution", "mkldnn_convolution", "convolution_overrideable", "max_pool1d", "max_pool2d", "max_pool3d",
    "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d", "unfold", "im2col",
    "_fft_c2r", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d",
))  # fmt: skip


def asked(call: Call) -> list[Boolean]:
    """The conditions under which an operator runs on such sizes; none that always holds.

    Args:
        call: its shapes are expressions in the sizes.
    """
    least = ONE if call.name in _WINDOWED else ZERO
    dims = [d for d in dict.fromkeys(d for o in call.outputs for d in o.shape) if not d.is_positive]
    found = [at_least(d, least) for d in dims]
    found += [at_least(n, ZERO) for n in (call.count, call.rounds) if n is not None and not n.is_nonnegative]
    own = _OWN.get(call.name)
    found += own(call.args) if own is not None else ()
    return [c for c in dict.fromkeys(found) if c not in (sp.true, sp.false)]


def branched(call: Call) -> list[Boolean]:
    """The conditions under which torch chooses this operator on its own and not another: the program asks nothing."""
    choice = _CHOSEN.get(call.name)
    return [c for c in choice(call.args) if c not in (sp.true, sp.false)] if choice is not None else []


def at_least(e: Expr, least: Expr) -> Boolean:
    """The condition e >= least, on the one symbol of `e` where it has one and rises with it; true where it always holds.

    floor(x) >= m is x >= m for whole m; ceiling(x) >= m is x > m - 1.
    """
    if e.has(LOOP):
        return sp.true
    strict, e = False, sp.expand(e)
    while not (e.is_Integer or e.is_Symbol):
        if isinstance(e, sp.floor):  # whole: above b is at least floor(b) + 1
            e, least, strict = e.args[0], sp.floor(least) + 1 if strict else sp.ceiling(least), False
        elif isinstance(e, sp.ceiling):
            e, least, strict = e.args[0], sp.floor(least) if strict else sp.ceiling(least) - 1, True
        else:
            constant, rest = e.as_coeff_Add()
            factor, rest = rest.as_coeff_Mul()
            if (constant == 0 and factor == 1) or not factor.is_positive or rest.is_Add:
                break
            e, least = rest, (least - constant) / factor
    if e.is_integer:
        least, strict = sp.floor(least) + 1 if strict else sp.ceiling(least), False
    gap = sp.expand(e - least)
    if gap.is_number or _always(gap, strict):
        return sp.true if not gap.is_negative else sp.false
    plain = _without_factors(gap)
    if plain != gap:
        return at_least(plain, ONE if strict else ZERO) if plain.is_integer or not strict else _spread(plain, strict)
    found = _from_a_size_on(gap, strict)
    return found if found is not None else _spread(gap, strict)


def _without_factors(gap: Expr) -> Expr:
    """A number of the same sign: without what divides all of it, and without the sizes that all its terms share."""
    top, bottom = sp.fraction(sp.together(gap))
    gap = sp.expand(top) if bottom.is_positive else gap
    for s in gap.free_symbols:
        while all(t.as_powers_dict()[s] >= 1 for t in sp.Add.make_args(gap)):
            gap = sp.expand(gap / s)
    return gap


def _from_a_size_on(gap: Expr, strict: bool) -> Boolean | None:
    """The condition as one on a size alone, where there is one size and it holds from some value on; true if that is 1."""
    if len(gap.free_symbols) != 1 or not gap.has(sp.floor, sp.ceiling):
        return None
    (symbol,) = gap.free_symbols
    span = _span(gap)
    values = [gap.xreplace({symbol: Integer(v)}) for v in (*range(1, span + 1), *range(100 * span, 100 * span + 12))]
    held = [bool(v > 0 if strict else v >= 0) for v in values]
    first = held.index(True) if True in held else len(held)
    if first >= span or not all(held[first:]):
        return None
    return sp.Ge(symbol, first + 1) if first else cast(Boolean, sp.true)


def _span(gap: Expr) -> int:
    """How many values of one size show all that a number with roundings does: several times its widest step, floor(T/64)."""
    widest = max((max(abs(n.p), n.q) for n in gap.atoms(sp.Rational)), default=1)
    return min(max(_SPAN, 4 * int(widest)), 1024)


def _spread(gap: Expr, strict: bool) -> Boolean:
    """gap >= 0 (gap > 0 where strict) with every term on the side on which it is positive."""
    if strict:
        return sp.Gt(gap, 0)
    constant, rest = gap.as_coeff_Add()
    left = sp.Add(*(t for t in sp.Add.make_args(rest) if not t.could_extract_minus_sign()))
    right = left - rest
    if left == 0:
        return sp.Le(right, constant)
    return sp.Gt(left, right) if constant == -1 and right != 0 else sp.Ge(left, right - constant)


def _always(gap: Expr, strict: bool) -> bool:
    """Whether a number is never negative (never 0 either), seen from its signs once every size is 1 and something more."""
    if gap.is_positive or (not strict and gap.is_nonnegative):
        return True
    sizes = sorted(gap.free_symbols, key=str)
    wider = sp.expand(gap.xreplace({s: sp.Symbol(f"_{s}", integer=True, nonnegative=True) + 1 for s in sizes}))
    return bool(wider.is_positive if strict else wider.is_nonnegative)


def at_most(a: Expr, b: Expr) -> Boolean:
    """The condition a <= b of whole numbers."""
    return at_least(b - a, ZERO)


def below(a: Expr, b: Expr) -> Boolean:
    """The condition a < b of whole numbers."""
    return at_least(b - a, ONE)


def whole(a: Expr, b: Expr) -> Boolean:
    """The condition a % b == 0; true where the quotient is seen to be whole."""
    return sp.true if sp.cancel(a / b).is_integer else sp.Eq(sp.Mod(a, b, evaluate=False), 0, evaluate=False)


@functools.lru_cache(maxsize=4096)
def alike(a: Expr, b: Expr) -> Boolean:
    """The condition a == b of two forms of one number, as a remainder of one size where it is one; true for equal forms.

    What is a floor of one size may be a plain product at all points that were looked at: 2*floor(I/2) is I at even I.
    """
    gap = sp.expand(a - b)
    if gap.is_number:
        return sp.true if gap == 0 else sp.false
    symbols = sorted(gap.free_symbols, key=str)
    if len(symbols) > 3 or gap.has(LOOP):
        return sp.true
    span = _span(gap) if len(symbols) == 1 else 16 if len(symbols) == 2 else 7
    points = list(itertools.product(range(1, span + 1), repeat=len(symbols)))
    equal = [sp.expand(gap.xreplace(dict(zip(symbols, map(Integer, p), strict=True)))) == 0 for p in points]
    if all(equal):
        return sp.true
    if len(symbols) == 1:
        if equal == sorted(equal, reverse=True):  # up to a size, and not beyond
            return sp.Le(symbols[0], sum(equal))
        for m, r in ((d, rest) for d in range(2, 17) for rest in range(d)):
            if all(same == (p[0] % m == r) for p, same in zip(points, equal, strict=True)):
                return sp.Eq(sp.Mod(symbols[0], m), r, evaluate=False)
    return sp.Eq(a, b, evaluate=False)


# ---- single operators ----------------------------------------------------------------------------------------------------


def _numbers(*values: Any) -> bool:
    return all(isinstance(v, Expr) for v in values)


def _most(name: str) -> Callable[[Args], list[Boolean]]:
    """An operator that takes `name` of the elements along a dimension."""

    def conditions(args: Args) -> list[Boolean]:
        x, n, dim = args["self"], args[name], args.get("dim", Integer(-1))
        return [at_most(n, x.shape[int(dim)])] if x.shape and _numbers(n, dim) else []

    return conditions


def _multinomial(args: Args) -> list[Boolean]:
    return [] if args.get("replacement") else [at_most(args["num_samples"], args["self"].shape[-1])]


def _select(args: Args) -> list[Boolean]:
    """Entry `index` of a dimension, from the end where it is negative."""
    n, index = args["self"].shape[int(args["dim"])], args["index"]
    return [below(index, n), at_most(-index, n)] if _numbers(index) else []


def _reflect(args: Args) -> list[Boolean]:
    """The edge is not repeated, so one element more than the padding must be there."""
    x, pad = args["self"], args["padding"]
    return [below(p, x.shape[-1 - i // 2]) for i, p in enumerate(pad)]


def _heads(args: Args) -> list[Boolean]:
    """Queries' heads are shared out evenly over those of keys and values."""
    q, k = args["query"], args["key"]
    if not (isinstance(q, Tensor) and isinstance(k, Tensor)) or len(q.shape) != 4 or q.shape[1] == k.shape[1]:
        return []
    return [whole(q.shape[1], k.shape[1])]


def _groups(args: Args) -> list[Boolean]:
    return [whole(args["C"], args["group"])] if _numbers(args["C"], args["group"]) else []


def _convolution(args: Args) -> list[Boolean]:
    w, groups = args["weight"], args.get("groups", ONE)
    return [whole(w.shape[0], groups)] if isinstance(w, Tensor) and _numbers(groups) else []


def _unfolded(args: Args) -> list[Boolean]:
    return [at_least(n, ONE) for n in windows(args)]


_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)  # fmt: skip
_CONVOLUTIONS = ("convolution", "_convolution", "mkldnn_convolution", "convolution_overrideable")
_OWN: dict[str, Callable[[Args], list[Boolean]]] = {
    "topk": _most("k"), "kthvalue": _most("k"), "multinomial": _multinomial, "select": _select,
    "native_group_norm": _groups, "im2col": _unfolded,
    **dict.fromkeys(("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"), _reflect),
    **dict.fromkeys(_ATTENTION, _heads),
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
}  # fmt: skip


# ---- what torch chooses ----------------------------------------------------------------------------------------------------


def _rows(args: Args) -> Expr:
    return sp.Max(args["x1"].shape[-2], args["x2"].shape[-2])


def _few_rows(args: Args) -> list[Boolean]:
    """Distances one by one: where both sets have up to 25 rows, unless the program asks for one way (`compute_mode`)."""
    return [sp.Le(_rows(args), _MATMUL_ROWS)] if args.get("p") == 2.0 and args.get("compute_mode") in (None, ZERO) else []


def _many_rows(args: Args) -> list[Boolean]:
    """Distances by a matrix product."""
    return [sp.Gt(_rows(args), _MATMUL_ROWS)]


_MATMUL_ROWS = 25  # ATen/native/Distance.cpp, cdist_impl
_CHOSEN: dict[str, Callable[[Args], list[Boolean]]] = {"_cdist_forward": _few_rows, "_euclidean_dist": _many_rows}


# ---- what operators define ---------------------------------------------------------------------------------------------------


def defined(name: str, args: Args, output: int, dim: int) -> Expr | None:
    """The size of one dimension of one output by the operator's own definition; None where it is not told here."""
    if name in EXACT:
        return next((sp.sympify(e) for e in PROPOSALS[name](args, output, dim)), None)
    x = args.get("self")
    if name.startswith("upsample_") and isinstance(x, Tensor) and dim >= 2:  # a whole factor; of others torch takes the floor
        scales = [v for k, v in args.items() if k.startswith("scales")]
        scale = scales[dim - 2] if len(scales) == len(x.shape) - 2 else None
        return x.shape[dim] * int(scale) if isinstance(scale, float) and scale.is_integer() else None
    if name == "cat":
        parts = [t for t in args["tensors"] if isinstance(t, Tensor)]
        ranks = {len(t.shape) for t in parts}
        if len(parts) > 1 and len(parts) == len(args["tensors"]) and len(ranks) == 1 and _numbers(args["dim"]):
            return total(t.shape[dim] for t in parts) if int(args["dim"]) % max(ranks) == dim else None
    return None
