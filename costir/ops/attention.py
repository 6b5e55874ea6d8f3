"""Scaled dot-product attention, forward and backward, as one fused kernel or written out, and the layers that contain it.

Per head, with T queries, S keys, head widths H (queries, keys) and Hv (values):
- forward: two products, 2*T*S*(H + Hv); per score a scale, a subtraction of the maximum, an addition to the sum, a division
  (one addition less per row) and one exponential: as many as a scale and a softmax written out;
- backward: five products, 2*T*S*(3*H + 2*Hv) (the scores are computed again); per score a scale, a subtraction, an
  exponential, dS = P*(dP - D) and a scale; 2*Hv - 1 per query for D = sum(dO*O).
Work follows the query heads, bytes of K and V the key heads (H heads may share one). A fused kernel reads Q, K, V and the
mask and writes O; what it keeps for the backward pass (log-sum-exp, random state) is left out of its bytes.

`attention = "full"` counts all T*S pairs. "causal" counts the pairs that a causal mask leaves: query i sees keys 0..i
("top left", torch's documented `is_causal`), or the last query sees the last key ("bottom right", the raw flash kernel).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from costir.errors import RuleError
from costir.ir import Call, Conventions, Cost, Tensor
from costir.ops.contract import contraction, mac_flops, math_type, operands
from costir.ops.registry import ONE, ZERO, find, number, product, read_once, rule, total, written
from costir.symbolic import Expr, where_at_most

Align = Literal["top left", "bottom right"]

# Saved by the forward pass for dropout; not read where there is none.
RANDOM = ("philox_seed", "philox_offset", "rng_state", "unused", "dropout_mask")


@dataclass(frozen=True)
class Scores:
    """The scores of one call.

    Attributes:
        pairs: the (query, key) pairs that count, over all batches and query heads.
        rows: queries, over all batches and query heads.
        head, value_head: widths H and Hv.
        note: what a reader should know.
    """

    pairs: Expr
    rows: Expr
    head: Expr
    value_head: Expr
    note: str


def causal_pairs(T: Expr, S: Expr, align: Align = "top left") -> Expr:
    """(query, key) pairs that a causal mask leaves of T x S."""
    if align == "top left":
        return where_at_most(T, S, T * (T + 1) / 2, S * (S + 1) / 2 + (T - S) * S)
    return where_at_most(T, S, T * S - T * (T - 1) / 2, S * (S + 1) / 2)


def _first(call: Call, *names: str) -> Any:
    """The value of the first of these arguments that the operator has, else None."""
    return next((call.args[n] for n in names if n in call.args), None)


def _lengths(call: Call, like: Tensor, seq_dim: int) -> tuple[Expr, Expr, Expr, str]:
    """Heads over all batches, T, S, and a note. `like` has the shape of the output; `seq_dim` is where its queries are."""
    key = _first(call, "key", "k")
    if isinstance(_first(call, "cum_seq_q", "cu_seqlens_q"), Tensor):
        T, S = _first(call, "max_q", "max_seqlen_q"), _first(call, "max_k", "max_seqlen_k")
        if T is None or S is None:
            raise RuleError(f"{call.op} has packed sequences without their longest length", "pass max_q and max_k")
        return product(like.shape[:-1]) / T, T, S, "packed sequences, each taken as long as the longest"
    T, S = like.shape[seq_dim], key.shape[seq_dim]
    return product(like.shape[:-1]) / T, T, S, ""


def _mask_align(call: Call, align: Align) -> Align | None:
    """Where the diagonal of the causal mask is; None without one."""
    kind = call.args.get("custom_mask_type", 0)
    if kind != 0:
        return "top left" if kind == 1 else "bottom right"
    return align if call.args.get("is_causal", False) else None


def scores(call: Call, conventions: Conventions, like: Tensor, seq_dim: int = -2, align: Align = "top left") -> Scores:
    """The scores of an attention call; `like` has the shape of its output."""
    heads, T, S, note = _lengths(call, like, seq_dim)
    query, causal, pairs = _first(call, "query", "q"), _mask_align(call, align), T * S
    notes = [note] if note else []
    if causal and conventions.attention == "causal":
        pairs = causal_pairs(T, S, causal)
        notes.append("causal: unmasked pairs only")
    elif causal:
        notes.append("causal, counted dense T x S")
    elif conventions.attention == "causal" and isinstance(_mask(call), Tensor):
        notes.append("the mask is a tensor: counted dense T x S")
    if any(_limits(call.args.get(n)) for n in ("window_size_left", "window_size_right", "window_size")):
        notes.append("the sliding window is not deducted")
    return Scores(heads * pairs, heads * T, query.shape[-1], like.shape[-1], "; ".join(notes))


def _limits(window: Any) -> bool:
    return window is not None and not (number(window) < 0)


def _mask(call: Call) -> Any:
    return _first(call, "attn_mask", "attn_bias", "bias", "mask")


def _extra(call: Call, pairs: Expr) -> Expr:
    """One per score to add a mask of numbers (a mask of booleans is a choice), two for dropout (mask, scale)."""
    mask, dropout = _mask(call), call.args.get("dropout_p", 0)
    adds = 1 if isinstance(mask, Tensor) and mask.is_float else 0
    return pairs * (adds + (2 if dropout not in (0, None) else 0))


def _unread(call: Call) -> tuple[str, ...]:
    return RANDOM if call.args.get("dropout_p", 0) in (0, None) else ()


FORWARD = (
    "2*T*S*(H + Hv) per query head; per score 4 vector (scale, subtract, sum, divide; one less per row) and one exp; "
    "a float mask 1, dropout 2"
)


def fused_forward(call: Call, conventions: Conventions, seq_dim: int = -2, align: Align = "top left") -> Cost:
    """One kernel: reads Q, K, V and the mask, writes O."""
    s = scores(call, conventions, call.outputs[0], seq_dim, align)
    macs = s.pairs * (s.head + s.value_head)
    dots = s.pairs + s.rows * s.value_head
    factors = [_first(call, *n) for n in (("query", "q"), ("key", "k"), ("value", "v"))]
    return Cost(
        matmul=mac_flops(macs, dots, conventions),
        vector=4 * s.pairs - s.rows + _extra(call, s.pairs),
        special=s.pairs,
        read=read_once(operands(call, *_unread(call))),
        write=call.outputs[0].nbytes,
        math=math_type(call, factors),
        note=s.note,
    )


@rule("aten.scaled_dot_product_attention", "aten._scaled_dot_product_flash_attention_for_cpu",
      "aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_efficient_attention",
      "aten._scaled_dot_product_cudnn_attention", "aten._scaled_dot_product_fused_attention_overrideable",
      "aten._cudnn_attention_forward", "aten._triton_scaled_dot_attention", kind="attention", counts=FORWARD)  # fmt: skip
def sdpa(call: Call, conventions: Conventions) -> Cost:
    """query [..., N, T, H], key [..., K, S, H], value [..., K, S, Hv] to [..., N, T, Hv]."""
    return fused_forward(call, conventions)


@rule("aten._scaled_dot_product_attention_math_for_mps", kind="attention", counts=FORWARD)
def sdpa_with_weights(call: Call, conventions: Conventions) -> Cost:
    """One kernel that also writes the attention weights [..., N, T, S]."""
    return replace(fused_forward(call, conventions), write=written(call.outputs))


@rule("aten._efficient_attention_forward", kind="attention", counts=FORWARD)
def efficient_attention(call: Call, conventions: Conventions) -> Cost:
    """query [B, T, N, H]; custom_mask_type 1 is causal from the top left, 2 from the bottom right."""
    return fused_forward(call, conventions, -3)


@rule("aten._flash_attention_forward", "aten._flash_attention_forward_no_dropout_inplace", kind="attention", counts=FORWARD)
def flash_attention(call: Call, conventions: Conventions) -> Cost:
    """query [B, T, N, H], or [total, N, H] with packed sequences; is_causal lets the last query see the last key."""
    inplace = isinstance(call.args.get("out"), Tensor)
    seen = (
        replace(call, args={k: v for k, v in call.args.items() if k != "out"}, outputs=(call.args["out"],)) if inplace else call
    )
    return fused_forward(seen, conventions, -3, "bottom right")


@rule("costir.flex_attention", kind="attention", counts=f"dense {FORWARD}; score function and block mask not counted")
def flex_attention(call: Call, conventions: Conventions) -> Cost:
    """flex_attention of query [B, N, T, H], key [B, K, S, H], value [B, K, S, Hv], dense."""
    return replace(fused_forward(call, conventions), note="dense T x S; the score function and the block mask are not counted")


BACKWARD = (
    "2*T*S*(3*H + 2*Hv) per query head (scores again); per score 5 vector (scale, subtract, subtract, multiply, scale) and one "
    "exp; 2*Hv - 1 per query; a float mask 1 per score, dropout 4, gradient of the mask 1"
)


def fused_backward(call: Call, conventions: Conventions, seq_dim: int = -2, align: Align = "top left") -> Cost:
    """One kernel: reads dO, Q, K, V, O, log-sum-exp and the mask, writes the gradients."""
    grad = _first(call, "grad_out", "grad_out_")
    s = scores(call, conventions, grad, seq_dim, align)
    q, k, v, mask = call.args["query"], call.args["key"], call.args["value"], _mask(call)
    dropout = ZERO if call.args.get("dropout_p", 0) in (0, None) else 2 * s.pairs
    vector = 5 * s.pairs + s.rows * (2 * s.value_head - 1) + _extra(call, s.pairs) + dropout
    wanted = call.args.get("grad_input_mask", (True,) * 3 + (call.args.get("bias_requires_grad", False),))
    if isinstance(mask, Tensor) and len(wanted) == 4 and wanted[3]:
        vector = vector + s.pairs - mask.unique
    return contraction(
        call,
        conventions,
        (q, k, v),
        macs=s.pairs * (3 * s.head + 2 * s.value_head),
        dots=2 * s.pairs + q.numel + k.numel + v.numel,
        vector=vector,
        special=s.pairs,
        unread=_unread(call),
        note=s.note,
    )


@rule("aten._scaled_dot_product_flash_attention_for_cpu_backward", "aten._scaled_dot_product_flash_attention_backward",
      "aten._scaled_dot_product_efficient_attention_backward", "aten._scaled_dot_product_cudnn_attention_backward",
      "aten._scaled_dot_product_fused_attention_overrideable_backward", "aten._cudnn_attention_backward",
      "costir.flex_attention_backward", kind="attention", counts=BACKWARD)  # fmt: skip
def sdpa_backward(call: Call, conventions: Conventions) -> Cost:
    """Gradients for query [..., N, T, H], key [..., K, S, H], value [..., K, S, Hv]."""
    return fused_backward(call, conventions)


@rule("aten._efficient_attention_backward", kind="attention", counts=BACKWARD)
def efficient_attention_backward(call: Call, conventions: Conventions) -> Cost:
    """query [B, T, N, H]."""
    return fused_backward(call, conventions, -3)


@rule("aten._flash_attention_backward", kind="attention", counts=BACKWARD)
def flash_attention_backward(call: Call, conventions: Conventions) -> Cost:
    """query [B, T, N, H], or [total, N, H] with packed sequences."""
    return fused_backward(call, conventions, -3, "bottom right")


# Written out: what torch runs where no fused kernel fits. The parts are costed by their own rules.


def _part(op: str, out: Tensor, **args: Any) -> Call:
    return Call(op, args, (out,))


def _sum(parts: list[Call], conventions: Conventions) -> Cost:
    """The cost of operators run one after the other."""
    costs = []
    for part in parts:
        entry = find(part.op)
        if entry is None:
            raise RuleError(f"{part.op} has no rule", "import costir.ops before costing")
        costs.append(entry.rule(part, conventions))
    fields = ("matmul", "vector", "special", "read", "write")
    return Cost(**{f: total(getattr(c, f) for c in costs) for f in fields})


def _tensor(like: Tensor, *shape: Expr, dtype: str = "") -> Tensor:
    return Tensor(shape, dtype or like.dtype)


def _causal_mask(q: Tensor, T: Expr, S: Expr) -> tuple[list[Call], Tensor]:
    """torch builds the causal mask of the math path each time: ones, tril, where."""
    keep, bias, scalar = _tensor(q, T, S, dtype="bool"), _tensor(q, T, S), _tensor(q)
    make: Mapping[str, Any] = {"dtype": None, "layout": None, "device": None, "pin_memory": None}
    scalars = [_part("aten.scalar_tensor.default", scalar, s=0.0, **make) for _ in range(2)]
    ones = _part("aten.ones.default", keep, size=(T, S), **make)
    tril = _part("aten.tril.default", keep, self=keep, diagonal=ZERO)
    return [ones, tril, *scalars, _part("aten.where.self", bias, condition=keep, self=scalar, other=scalar)], bias


@rule("aten._scaled_dot_product_attention_math", kind="attention",
      counts="2*T*S*(H + Hv) per query head, a multiply per element of Q and K, softmax; scores written and read")  # fmt: skip
def sdpa_math(call: Call, conventions: Conventions) -> Cost:
    """One by one: repeat K and V for grouped heads, scale Q and K, scores, mask, softmax, dropout, product with V."""
    q, k, v, mask, out = *(call.args[n] for n in ("query", "key", "value")), call.args["attn_mask"], call.outputs[0]
    *lead, T, _ = out.shape
    S, H = k.shape[-2:]
    parts, weights = [_part("aten.mul.Scalar", q, self=q, other=0.5)], _tensor(q, product(lead), T, S)
    if call.args["enable_gqa"] and k.shape[:-2] != q.shape[:-2]:
        wide = [_tensor(t, *lead, *t.shape[-2:]) for t in (k, v)]
        parts += [_part("aten.clone.default", w, self=t, memory_format=None) for w, t in zip(wide, (k, v), strict=True)]
        k, v = wide
    if call.args["is_causal"]:
        built, mask = _causal_mask(q, T, S)
        parts += built
    flat = [replace(t, shape=(product(t.shape[:-2]), *t.shape[-2:]), expanded=(), ref=-1) for t in (q, k, v)]
    keys = _tensor(k, flat[1].shape[0], H, S)
    parts.append(_part("aten.mul.Scalar", k, self=k, other=0.5))
    parts.append(_part("aten.bmm.default", weights, self=flat[0], mat2=keys))
    if isinstance(mask, Tensor):
        parts.append(_part("aten.add.Tensor", weights, self=weights, other=mask, alpha=ONE))
    parts.append(_part("aten._safe_softmax.default", weights, self=weights, dim=number(-1), dtype=None))
    if call.args["dropout_p"] not in (0, None):
        parts.append(_part("aten.bernoulli_.float", weights, self=weights, p=0.5, generator=None))
        parts.append(_part("aten.div_.Scalar", weights, self=weights, other=0.5))
        parts.append(_part("aten.mul.Tensor", weights, self=weights, other=weights))
    parts.append(_part("aten.bmm.default", out, self=weights, mat2=flat[2]))
    dense = "is_causal" if call.args["is_causal"] else ""
    return replace(
        _sum(parts, conventions), math=math_type(call, (q, k, v)), note="masked scores are computed" if dense else ""
    )


# Layers in one operator. Their bytes are those of inputs, weights and outputs; traffic between their parts is not counted.

LAYER_NOTE = "one operator; traffic between its parts is not counted"


def _projected_attention(call: Call, conventions: Conventions, x: Tensor, kv: Tensor, out: Tensor) -> Cost:
    """Projections with biases, scores, softmax and product for x [B, T, D], keys and values from kv [B, S, D]."""
    B, T, D = x.shape
    S, N = kv.shape[1], call.args["num_head" if "num_head" in call.args else "num_heads"]
    weights = _tensor(x, B * N, T, S)
    parts = [
        _part(
            "aten.linear.default", _tensor(x, B, t, D), input=_tensor(x, B, t, D), weight=_tensor(x, D, D), bias=_tensor(x, D)
        )
        for t in (T, S, S, T)
    ]
    parts += [
        _part("aten.mul.Scalar", x, self=x, other=0.5),
        _part("aten.bmm.default", weights, self=_tensor(x, B * N, T, D / N), mat2=_tensor(x, B * N, D / N, S)),
        _part("aten._softmax.default", weights, self=weights, dim=number(-1), half_to_float=False),
        _part("aten.bmm.default", _tensor(x, B * N, T, D / N), self=weights, mat2=_tensor(x, B * N, S, D / N)),
    ]
    return _sum(parts, conventions)


@rule("aten._native_multi_head_attention", "aten._triton_multi_head_attention", kind="attention",
      counts="2*B*(2*T + 2*S)*D^2 with biases, 4*B*T*S*D, scale of Q, softmax; averaged weights 1 per score")  # fmt: skip
def native_multi_head_attention(call: Call, conventions: Conventions) -> Cost:
    """query [B, T, D], key and value [B, S, D], packed projection [3*D, D]."""
    x, kv = call.args["query"], call.args["key"]
    cost = _projected_attention(call, conventions, x, kv, call.outputs[0])
    averaged = call.args.get("need_weights", False) and call.args.get("average_attn_weights", False)
    if averaged:
        cost = replace(cost, vector=cost.vector + call.args["num_head"] * x.shape[0] * x.shape[1] * kv.shape[1])
    read, write = read_once(operands(call)), written(call.outputs)
    return replace(cost, read=read, write=write, math=math_type(call, (x, call.args["qkv_weight"])), note=LAYER_NOTE)


@rule("aten._transformer_encoder_layer_fwd", kind="attention",
      counts="2*B*T*(4*D^2 + 2*D*F) + 4*B*T^2*D; biases, softmax, norms, residual adds and GELU by their rules")  # fmt: skip
def transformer_encoder_layer(call: Call, conventions: Conventions) -> Cost:
    """src [B, T, D]: self-attention and a two-layer MLP of width F, each with a layer norm and a residual add."""
    x, w = call.args["src"], call.args["ffn_weight_1"]
    B, T, D = x.shape
    F, vector = w.shape[0], _tensor(x, D)
    hidden, rows = _tensor(x, B, T, F), _tensor(x, B, T, ONE)
    affine = {"input": x, "normalized_shape": (D,), "weight": vector, "bias": vector, "eps": 1e-5}
    norm = Call("aten.native_layer_norm.default", affine, (x, rows, rows))
    parts = [
        *(norm, norm),
        *(_part("aten.add.Tensor", x, self=x, other=replace(x, ref=-1), alpha=ONE) for _ in range(2)),
        _part("aten.linear.default", hidden, input=x, weight=w, bias=_tensor(x, F)),
        _part("aten.linear.default", x, input=hidden, weight=_tensor(x, D, F), bias=vector),
    ]
    if call.args["use_gelu"]:
        parts.append(_part("aten.gelu.default", hidden, self=hidden, approximate="none"))
    both = (_sum(parts, conventions), _projected_attention(call, conventions, x, x, x))
    flops = {f: total(getattr(c, f) for c in both) for f in ("matmul", "vector", "special")}
    read, write, math = read_once(operands(call)), written(call.outputs), math_type(call, (x, call.args["qkv_weight"]))
    return Cost(**flops, read=read, write=write, math=math, note=LAYER_NOTE)
