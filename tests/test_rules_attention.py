"""Attention against loops over numbers that count, the same attention written out, torch's formulas, and real tensors."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Case, T, add_up, arr, cost_of, dot, made, sums, verify, verify_symbols, without_sample
from torch.utils import flop_counter

from costir.ir import Conventions
from costir.ops.attention import causal_pairs
from costir.symbolic import Integer, equal, evaluate, size
from costir.trace import record_calls

CAUSAL = Conventions(attention="causal")


def top_left(T_, S):
    return lambda i, j: j <= i


def bottom_right(T_, S):
    return lambda i, j: j <= i + S - T_


def forward(t, B, N, K, T_, S, H, V, keep=None, mask=False, dropout=False):
    """One query head after the other: scores, softmax over the kept keys, product with the values."""
    kept = keep(T_, S) if keep else lambda i, j: True
    for _, i in itertools.product(range(B * N), range(T_)):
        keys = [j for j in range(S) if kept(i, j)]
        if not keys:
            continue
        q, row = arr(t, H), []
        for _ in keys:
            score = dot(t, q, arr(t, H)) * 0.5
            score = score + arr(t) if mask else score
            row.append((score - arr(t)).f())
        total = add_up(row)
        row = [p / total for p in row]
        row = [p * 1 * 2 for p in row] if dropout else row
        for _ in range(V):
            dot(t, row, arr(t, len(keys)))


def backward(t, B, N, K, T_, S, H, V, keep=None, mask=False, dropout=False, mask_grad=False):
    """The same loop run backwards; the gradients of keys and values are sums over the queries of all heads that share them."""
    kept = keep(T_, S) if keep else lambda i, j: True
    dk, dv, dq = {}, {}, {}

    def grow(cells, key, x, y):
        with t.contraction():
            cells[key] = cells[key] + x * y if key in cells else x * y

    for b, n, i in itertools.product(range(B), range(N), range(T_)):
        q, grad, head = arr(t, H), arr(t, V), n // (N // K)
        keys = [j for j in range(S) if kept(i, j)]
        delta = add_up([g * o for g, o in zip(grad, arr(t, V), strict=True)])
        for j in keys:
            score = dot(t, q, arr(t, H)) * 0.5
            score = score + arr(t) if mask else score
            p = (score - arr(t)).f()
            dp = dot(t, grad, arr(t, V))
            dropped = p * 1 * 2 if dropout else p
            dp = dp * 1 * 2 if dropout else dp
            ds = p * (dp - delta)
            ds = ds * 0.5
            for h in range(H):
                grow(dq, (b, n, i, h), ds, q[h])
                grow(dk, (b, head, j, h), ds, q[h])
            for v in range(V):
                grow(dv, (b, head, j, v), dropped, grad[v])
    if mask_grad:  # one mask for all batches and heads
        for _ in range(T_ * S):
            add_up(arr(t, B * N))


def inputs(B, N, K, T_, S, H, V, layout="BNTH", dtype="float32"):
    def tensor(heads, length, width):
        return {
            "BNTH": T(B, heads, length, width, dtype=dtype),
            "BTNH": T(B, length, heads, width, dtype=dtype),
            "TNH": T(B * length, heads, width, dtype=dtype),
            "1TNH": T(1, B * length, heads, width, dtype=dtype),
        }[layout]

    return tensor(N, T_, H), tensor(K, S, H), tensor(K, S, V), tensor(N, T_, V)


def sdpa(op, layout="BNTH", mask=None, lse=True, **more):
    def build(B, N, K, T_, S, H, V):
        q, k, v, o = inputs(B, N, K, T_, S, H, V, layout)
        names = dict(zip(("q", "k", "v") if "triton" in op else ("query", "key", "value"), (q, k, v), strict=True))
        extra = {mask: T(T_, S)} if mask else {}
        outs = (o, T(B, N, T_)) if lse else o
        return made(op, outs, **names, **extra, **{n: f(B=B, T_=T_, S=S) if callable(f) else f for n, f in more.items()})

    return build


def sdpa_backward(op, layout="BNTH", mask=None, mask_grad=False, **more):
    def build(B, N, K, T_, S, H, V):
        q, k, v, o = inputs(B, N, K, T_, S, H, V, layout)
        extra = {mask: T(T_, S)} if mask else {}
        name = "grad_out_" if "efficient" in op else "grad_out"
        outs = (q, k, v, T(T_, S)) if mask_grad else (q, k, v)
        extra |= {name: o, "query": q, "key": k, "value": v, "out": o, "logsumexp": T(B, N, T_)}
        return made(op, outs, **extra, **{n: f(B=B, T_=T_, S=S) if callable(f) else f for n, f in more.items()})

    return build


SIZES = ({"B": 2, "N": 2, "K": 2, "T_": 3, "S": 4, "H": 3, "V": 3}, {"B": 1, "N": 4, "K": 2, "T_": 5, "S": 2, "H": 2, "V": 3})
EQUAL = tuple({**s, "S": s["T_"]} for s in SIZES)
SEED = {"philox_seed": T(dtype="int64"), "philox_offset": T(dtype="int64")}
RNG = {"rng_state": T(2, dtype="int64"), "unused": T(dtype="int64")}
CUM = {"cum_seq_q": lambda B, **_: T(B + 1, dtype="int32"), "cum_seq_k": lambda B, **_: T(B + 1, dtype="int32")}
MAX = {"max_q": lambda T_, **_: T_, "max_k": lambda S, **_: S}
FLASH = {"cum_seq_q": None, "cum_seq_k": None, **MAX, "dropout_p": 0.0, "return_debug_mask": False}
CU = {
    "cu_seqlens_q": CUM["cum_seq_q"],
    "cu_seqlens_k": CUM["cum_seq_k"],
    "max_seqlen_q": MAX["max_q"],
    "max_seqlen_k": MAX["max_k"],
}
PADDED = {"cu_seqlens_q": None, "cu_seqlens_k": None, "max_seqlen_q": MAX["max_q"], "max_seqlen_k": MAX["max_k"]}


def case(op, build, reference=forward, sizes=SIZES, conventions=None, unread=(), writes=1, exact=True, target="", **options):
    loop = lambda t, **s: reference(t, **s, **options)
    return Case(op, build, loop, sizes, unread, writes, exact, conventions or Conventions(), target)


def back(op, build, unread=(), **more):
    return case(op, build, backward, unread=unread, writes=None, **more)


SDPA, CPU = "aten.scaled_dot_product_attention", "aten._scaled_dot_product_flash_attention_for_cpu"
FUSED, EFF, MEM = (
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_efficient_attention",
    "aten._efficient_attention",
)
CUDNN, OVER, RAW = (
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_fused_attention_overrideable",
    "aten._flash_attention",
)
CASES = [
    case(SDPA, sdpa(SDPA, lse=False)),
    case(SDPA, sdpa(SDPA, lse=False, mask="attn_mask"), mask=True),
    case(SDPA, sdpa(SDPA, lse=False, dropout_p=0.5), dropout=True),
    case(CPU, sdpa(CPU)),
    case(CPU, sdpa(CPU, is_causal=True)),
    *(case(CPU, sdpa(CPU, is_causal=True), keep=top_left, conventions=CAUSAL, sizes=s) for s in (SIZES, EQUAL)),
    case(CPU, sdpa(CPU, mask="attn_mask"), mask=True, conventions=CAUSAL),
    case(FUSED, sdpa(FUSED)),
    case(EFF, sdpa(EFF, mask="attn_bias", compute_log_sumexp=True), mask=True),
    case(CUDNN, sdpa(CUDNN, attn_bias=None, compute_log_sumexp=True)),
    case(OVER, sdpa(OVER, mask="attn_bias"), mask=True),
    case(
        "aten._cudnn_attention_forward",
        sdpa(
            "aten._cudnn_attention_forward",
            **{k: FLASH[k] for k in FLASH if k not in ("dropout_p", "return_debug_mask")},
            compute_log_sumexp=True,
        ),
    ),
    case("aten._triton_scaled_dot_attention", sdpa("aten._triton_scaled_dot_attention", lse=False)),
    case(
        "aten._scaled_dot_product_attention_math_for_mps",
        lambda **s: made(
            "aten._scaled_dot_product_attention_math_for_mps",
            (inputs(**s)[3], T(s["B"], s["N"], s["T_"], s["S"])),
            **dict(zip(("query", "key", "value"), inputs(**s), strict=False)),
        ),
        writes=2,
    ),
    case(f"{MEM}_forward", sdpa(f"{MEM}_forward", "BTNH", bias=None, **PADDED, dropout_p=0.0, custom_mask_type=0)),
    case(
        f"{MEM}_forward",
        sdpa(f"{MEM}_forward", "BTNH", bias=None, **PADDED, dropout_p=0.0, custom_mask_type=1),
        keep=top_left,
        conventions=CAUSAL,
    ),
    case(
        f"{MEM}_forward",
        sdpa(f"{MEM}_forward", "BTNH", bias=None, **PADDED, dropout_p=0.0, custom_mask_type=2),
        keep=bottom_right,
        conventions=CAUSAL,
        sizes=SIZES[:1],
    ),
    case(f"{MEM}_forward", sdpa(f"{MEM}_forward", "1TNH", bias=None, **CU, dropout_p=0.0, custom_mask_type=0)),
    case(f"{RAW}_forward", sdpa(f"{RAW}_forward", "BTNH", **FLASH, is_causal=False)),
    case(
        f"{RAW}_forward",
        sdpa(f"{RAW}_forward", "BTNH", **FLASH, is_causal=True),
        keep=bottom_right,
        conventions=CAUSAL,
        sizes=SIZES[:1],
    ),
    case(f"{RAW}_forward", sdpa(f"{RAW}_forward", "TNH", **{**FLASH, **CUM}, is_causal=False)),
    case(
        f"{RAW}_forward",
        sdpa(f"{RAW}_forward", "TNH", **{**FLASH, **CUM}, is_causal=True),
        keep=bottom_right,
        conventions=CAUSAL,
        sizes=EQUAL,
    ),
    case(
        f"{RAW}_forward_no_dropout_inplace",
        lambda **s: made(
            f"{RAW}_forward_no_dropout_inplace",
            T(s["B"], s["N"], s["T_"]),
            out=inputs(**s, layout="BTNH")[3],
            **dict(zip(("query", "key", "value"), inputs(**s, layout="BTNH"), strict=False)),
            cum_seq_q=None,
            cum_seq_k=None,
            max_q=s["T_"],
            max_k=s["S"],
            dropout_p=0.0,
            is_causal=False,
            return_debug_mask=False,
        ),
        unread=("out",),
        target="out",
    ),
    case("costir.flex_attention", sdpa("costir.flex_attention", lse=False)),
    back(f"{CPU}_backward", sdpa_backward(f"{CPU}_backward", dropout_p=0.0, is_causal=False)),
    back(
        f"{CPU}_backward",
        sdpa_backward(f"{CPU}_backward", dropout_p=0.0, is_causal=True),
        keep=top_left,
        conventions=CAUSAL,
        exact=False,
    ),
    back(f"{CPU}_backward", sdpa_backward(f"{CPU}_backward", mask="attn_mask", dropout_p=0.0, is_causal=False), mask=True),
    back(
        f"{FUSED}_backward",
        sdpa_backward(f"{FUSED}_backward", **CUM, **MAX, dropout_p=0.0, is_causal=False, **SEED),
        unread=tuple(SEED),
    ),
    back(
        f"{FUSED}_backward",
        sdpa_backward(f"{FUSED}_backward", **CUM, **MAX, dropout_p=0.5, is_causal=False, **SEED),
        dropout=True,
    ),
    back(
        f"{EFF}_backward",
        sdpa_backward(f"{EFF}_backward", mask="attn_bias", mask_grad=True, dropout_p=0.0, grad_input_mask=(True,) * 4, **SEED),
        unread=tuple(SEED),
        mask=True,
        mask_grad=True,
    ),
    back(
        f"{CUDNN}_backward",
        sdpa_backward(f"{CUDNN}_backward", mask="attn_bias", **CUM, **MAX, dropout_p=0.0, is_causal=False, **SEED),
        unread=tuple(SEED),
        mask=True,
    ),
    back(
        "aten._cudnn_attention_backward",
        sdpa_backward("aten._cudnn_attention_backward", mask="attn_bias", **CUM, **MAX, dropout_p=0.0, is_causal=False, **SEED),
        unread=tuple(SEED),
        mask=True,
    ),
    back(
        f"{OVER}_backward",
        sdpa_backward(
            f"{OVER}_backward",
            mask="attn_bias",
            grad_input_mask=(True, True, True, False),
            **CUM,
            **MAX,
            dropout_p=0.0,
            is_causal=False,
            **SEED,
        ),
        unread=tuple(SEED),
        mask=True,
    ),
    back(
        f"{MEM}_backward",
        sdpa_backward(
            f"{MEM}_backward", "BTNH", bias=None, **PADDED, dropout_p=0.0, custom_mask_type=0, bias_requires_grad=False, **SEED
        ),
        unread=tuple(SEED),
    ),
    back(
        f"{RAW}_backward",
        sdpa_backward(f"{RAW}_backward", "TNH", **CUM, **MAX, dropout_p=0.0, is_causal=False, **RNG),
        unread=tuple(RNG),
    ),
    back("costir.flex_attention_backward", sdpa_backward("costir.flex_attention_backward")),
]


@pytest.mark.parametrize("sample", CASES, ids=str)
def test_counts(sample):
    for sizes in sample.sizes:
        verify(sample, sizes)
    verify_symbols(sample)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), *[st.integers(1, 6)] * 2, *[st.integers(1, 3)] * 2, st.booleans()
)
def test_counts_at_drawn_sizes(B, K, G, T_, S, H, V, causal):
    sizes = {"B": B, "N": K * G, "K": K, "T_": T_, "S": S, "H": H, "V": V}
    keep, conventions = (top_left, CAUSAL) if causal else (None, None)
    verify(case(CPU, sdpa(CPU, is_causal=causal), keep=keep, conventions=conventions), sizes)
    operator = sdpa_backward(f"{CPU}_backward", dropout_p=0.0, is_causal=causal)
    verify(back(f"{CPU}_backward", operator, keep=keep, conventions=conventions, exact=not causal), sizes)


def test_every_rule_has_a_sample():
    elsewhere = {
        "aten._scaled_dot_product_attention_math",
        "aten._native_multi_head_attention",
        "aten._triton_multi_head_attention",
        "aten._transformer_encoder_layer_fwd",
    }
    assert without_sample("costir.ops.attention", CASES) == elsewhere  # in test_rules_attention_layers.py


@pytest.mark.parametrize("align", ["top left", "bottom right"])
def test_causal_pairs_are_those_of_a_triangle(align):
    T_, S = size("T"), size("S")
    formula = causal_pairs(T_, S, align)
    keep = top_left if align == "top left" else bottom_right
    for t, s in itertools.product(range(1, 8), range(1, 8)):
        pairs = sum(keep(t, s)(i, j) for i in range(t) for j in range(s))
        assert causal_pairs(Integer(t), Integer(s), align) == pairs
        assert evaluate(formula, {T_: t, S: s}) == pairs
    assert causal_pairs(T_, T_, align).expand() == (T_**2 + T_).expand() / 2
    assert not causal_pairs(T_, T_ + 1, align).has(type(formula))


def test_torch_aligns_its_causal_mask_top_left():
    """What is_causal computes for T != S is what a top-left triangle computes."""
    q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4)
    mask = torch.tensor([[j <= i for j in range(5)] for i in range(3)])
    torch.testing.assert_close(
        F.scaled_dot_product_attention(q, k, k, is_causal=True), F.scaled_dot_product_attention(q, k, k, attn_mask=mask)
    )


def test_notes_say_what_was_counted():
    causal = sdpa(CPU, is_causal=True)(**SIZES[0])
    assert cost_of(causal).note == "causal, counted dense T x S"
    assert cost_of(causal, CAUSAL).note == "causal: unmasked pairs only"
    assert cost_of(sdpa(CPU, mask="attn_mask")(**SIZES[0]), CAUSAL).note == "the mask is a tensor: counted dense T x S"
    window = sdpa(f"{RAW}_forward", "BTNH", **FLASH, is_causal=False, window_size_left=2, window_size_right=-1)
    assert "window" in cost_of(window(**SIZES[0])).note
    assert "packed" in cost_of(sdpa(f"{RAW}_forward", "TNH", **{**FLASH, **CUM}, is_causal=False)(**SIZES[0])).note
    assert "score function" in cost_of(sdpa("costir.flex_attention", lse=False)(**SIZES[0])).note


# Against torch.


SHAPES = [((2, 3, 5, 4), (2, 3, 7, 4)), ((1, 4, 3, 8), (1, 2, 6, 8))]


@pytest.mark.parametrize(("query", "key"), SHAPES)
def test_agrees_with_torch_formulas(query, key):
    B, N, T_, H = query
    sizes = {"B": B, "N": N, "K": key[1], "T_": T_, "S": key[2], "H": H, "V": H}
    assert cost_of(sdpa(CPU)(**sizes)).matmul == flop_counter.sdpa_flop_count(query, key, key)
    gradient = sdpa_backward(f"{CPU}_backward", dropout_p=0.0, is_causal=False)(**sizes)
    assert cost_of(gradient).matmul == flop_counter.sdpa_backward_flop_count(query, query, key, key)


@pytest.mark.parametrize(("query", "key"), SHAPES)
def test_a_real_call_reads_its_operands_and_writes_its_result(query, key):
    q, k = torch.randn(query), torch.randn(key)
    calls = record_calls(lambda: F.scaled_dot_product_attention(q, k, k.clone(), enable_gqa=True))
    cost = cost_of(calls[-1])
    assert calls[-1].name == "_scaled_dot_product_flash_attention_for_cpu"
    assert cost.nbytes == 4 * (2 * q.numel() + 2 * k.numel())
    assert cost_of(record_calls(lambda: F.scaled_dot_product_attention(q, k, k, enable_gqa=True))[-1]).nbytes == 4 * (
        2 * q.numel() + k.numel()
    )


@pytest.mark.parametrize("masked", [False, True])
def test_one_kernel_does_the_arithmetic_of_attention_written_out(masked):
    q, k, v, mask = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 6), torch.randn(5, 7)

    def written_out():
        scores = (q @ k.mT) * 0.5
        return torch.softmax(scores + mask if masked else scores, -1) @ v

    fused = made(
        SDPA, T(2, 3, 5, 6), query=T(*q.shape), key=T(*k.shape), value=T(*v.shape), attn_mask=T(5, 7) if masked else None
    )
    assert sums([fused]) == sums(record_calls(written_out))


def test_half_precision_attention_is_computed_in_half_precision():
    q, k, v, o = inputs(**SIZES[0], dtype="bfloat16")
    call = made(CPU, (o, T(2, 2, 3)), query=q, key=k, value=v)
    assert cost_of(call).math == "bfloat16"
    gradient = made(
        f"{CPU}_backward",
        (q, k, v),
        grad_out=o,
        query=q,
        key=k,
        value=v,
        out=o,
        logsumexp=T(2, 2, 3),
        dropout_p=0.0,
        is_causal=False,
    )
    assert cost_of(gradient).math == "bfloat16"


def test_dense_formula_in_symbols():
    names = {n: size(n) for n in ("B", "N", "K", "T_", "S", "H", "V")}
    cost = cost_of(sdpa(CPU)(**names))
    B, N, K, T_, S, H, V = names.values()
    assert equal(cost.matmul, 2 * B * N * T_ * S * (H + V))
    assert equal(cost.nbytes, 4 * (B * N * T_ * (H + V) + B * K * S * (H + V)))
