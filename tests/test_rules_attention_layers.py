"""Attention written out and layers in one operator, against what torch runs where it does not fuse them."""

from __future__ import annotations

import pytest
import torch
from oracles import T, cost_of, expected_bytes, made, sums

from costir.trace import record_calls

MATH = torch.ops.aten._scaled_dot_product_attention_math


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"attn_mask": (5, 7)}, {"enable_gqa": True}, {"dropout_p": 0.5}],
    ids=lambda o: "".join(o) or "plain",
)
@pytest.mark.parametrize("heads", [2, 4])
def test_math_attention_costs_what_torch_runs(options, heads):
    """Its FLOPs and bytes are the sums over the operators that it dispatches to."""
    q, k = torch.randn(3, heads * (1 + ("enable_gqa" in options)), 5, 4), torch.randn(3, heads, 7, 4)
    v = torch.randn(3, heads, 7, 6)
    options = {n: torch.randn(o) if n == "attn_mask" else o for n, o in options.items()}
    calls = record_calls(lambda: MATH(q, k, v, **options))
    names = {"attn_mask": T(5, 7)} if "attn_mask" in options else options
    B, N = q.shape[:2]
    out, weights = T(B, N, 5, 6), T(B, N, 5, 7)
    call = made(
        "aten._scaled_dot_product_attention_math",
        (out, weights),
        query=T(*q.shape),
        key=T(*k.shape),
        value=T(*v.shape),
        **names,
    )
    cost, parts = cost_of(call), [cost_of(c) for c in calls if c.name not in ("empty_like",)]
    for field in ("matmul", "vector", "special", "read", "write"):
        assert getattr(cost, field) == sum(getattr(p, field) for p in parts), field
    assert cost.math == "float32"


# Layers.


@pytest.mark.parametrize(("B", "T_", "D", "N"), [(2, 3, 8, 2), (1, 5, 12, 4)])
def test_fused_self_attention_costs_its_parts(B, T_, D, N):
    x, w, b = T(B, T_, D), T(3 * D, D), T(3 * D)
    weights = {"qkv_weight": w, "qkv_bias": b, "proj_weight": T(D, D), "proj_bias": T(D), "embed_dim": D, "num_head": N}
    call = made("aten._native_multi_head_attention", (x, T(B, T_, T_)), query=x, key=x, value=x, **weights)
    lean = made("aten._triton_multi_head_attention", x, query=x, key=x, value=x, **weights)
    cost, lean_cost, slow = cost_of(call), cost_of(lean), mha_parts_without_scale(B, T_, D, N)
    assert (lean_cost.matmul, lean_cost.vector, lean_cost.special) == slow
    averages = N * B * T_ * T_  # sums over heads, and divides
    assert (cost.matmul, cost.vector - averages, cost.special) == slow
    assert (cost.read, cost.write) == expected_bytes(call, (), None)


def mha_parts_without_scale(B, T_, D, N):
    """The fused layer scales Q, [B, T, D]; the slow path scales the scores, [B, N, T, T]."""
    parts = mha_parts_slow(B, T_, D, N)
    return parts["matmul"], parts["vector"] - B * N * T_ * T_ + B * T_ * D, parts["special"]


def mha_parts_slow(B, T_, D, N):
    with torch.enable_grad():
        layer = torch.nn.MultiheadAttention(D, N, batch_first=True)
        torch.nn.init.normal_(layer.in_proj_bias)
        x = torch.randn(B, T_, D)
        calls = record_calls(lambda: layer.train()(x, x, x, need_weights=False))
    return sums([c for c in calls if not c.name.startswith("dropout")])


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize(("B", "T_", "D", "width", "N"), [(2, 5, 8, 16, 2), (3, 4, 12, 6, 4)])
def test_encoder_layer_fast_path_costs_its_slow_path(activation, B, T_, D, width, N):
    layer = torch.nn.TransformerEncoderLayer(D, N, width, batch_first=True, activation=activation, dropout=0.0)
    x = torch.randn(B, T_, D)
    (fast,) = (c for c in record_calls(layer.eval(), x) if c.name == "_transformer_encoder_layer_fwd")
    slow = sums(record_calls(layer.train(), x))
    cost = cost_of(fast)
    assert cost.matmul == slow["matmul"] == 2 * B * T_ * (4 * D * D + 2 * D * width) + 4 * B * T_ * T_ * D
    assert cost.special == slow["special"]
    assert cost.vector == slow["vector"] - B * N * T_ * T_ + B * T_ * D
    assert (cost.read, cost.write) == expected_bytes(fast, (), None)
