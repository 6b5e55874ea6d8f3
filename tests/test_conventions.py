"""Storage types, exact counts and causal attention: what each option changes and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sympy as sp
import torch
import training_models as models
from torch import nn
from torch.nn import functional

import costir
from costir import trace
from costir.load.family import Family
from costir.symbolic import size

B, T, S, D, F, N, K, H, L, V = (size(n) for n in "BTSDFNKHLV")


def zero(e):
    return sp.expand(e) == 0


def plain(B=6, D=8, F=12):
    return nn.Sequential(nn.Linear(D, F), nn.ReLU(), nn.Linear(F, D, bias=False)), (torch.zeros(B, D),), {}


# ---- storage types ----


def test_bf16_halves_the_bytes_and_sets_the_rate():
    single, half = costir.analyze(plain), costir.analyze(plain, dtype="bf16")
    assert zero(single.bytes - 2 * half.bytes)
    assert zero(single.flops - half.flops)
    assert {n.cost.math for n in half.nodes if n.matmul_flops != 0} == {"bfloat16"}
    assert zero(half.weight_bytes - 2 * half.params)


@pytest.mark.parametrize(("dtype", "stored", "other"), [("bf16,weights=int8", 1, 2), ("weights=int4", sp.Rational(1, 2), 4)])
def test_weights_stored_in_another_type(dtype, stored, other):
    """x [B, D] and h [B, F] are read and written in the type of the arithmetic, each weight once in its own."""
    analysis = costir.analyze(plain, dtype=dtype)
    activations = B * D + B * F + 2 * B * F + B * F + B * D  # x, h; relu reads and writes; h, y
    assert zero(analysis.bytes - other * activations - stored * analysis.params)
    assert zero(analysis.weight_bytes - stored * analysis.params)
    assert {n.cost.math for n in analysis.nodes if n.matmul_flops != 0} == {"bfloat16" if other == 2 else "float32"}
    assert zero(analysis.flops - costir.analyze(plain).flops)


class OfWeightsAlone(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(D, D)), nn.Parameter(torch.zeros(D, D))

    def forward(self, x):
        return x + self.a.t() @ self.b.transpose(0, 1)


def test_views_of_a_weight_are_the_weight():
    """Read as stored; a product of two weights is computed in the type of the arithmetic all the same."""

    def build(D=8):
        return OfWeightsAlone(D), (torch.zeros(D, D),), {}

    product = next(n for n in costir.analyze(build, dtype="bf16,weights=int8").nodes if n.op == "aten.mm.default")
    assert (product.read, product.write, product.cost.math) == (2 * D**2, 2 * D**2, "bfloat16")


def test_rows_of_a_table_are_read_as_stored():
    def build(B=6, D=8):
        return nn.Embedding(10, D), (torch.zeros(B, dtype=torch.long),), {}

    rows = next(n for n in costir.analyze(build, dtype="bf16,weights=int8").nodes if n.op == "aten.embedding.default")
    assert zero(rows.read - (8 * B + B * D))
    assert zero(rows.write - 2 * B * D)


def test_a_step_writes_weights_as_they_are_stored():
    """p -= lr*g: reads and writes p in its own type, reads g in the gradient's."""
    step = [
        n
        for n in costir.analyze(plain, phase="train", optimizer="sgd", dtype="bf16,weights=int8").nodes
        if n.phase == "optimizer"
    ]
    P = 2 * D * F + F
    assert zero(sum(n.read for n in step) - 3 * P)
    assert zero(sum(n.write for n in step) - P)


def test_autocast_reads_single_and_computes_in_bf16():
    analysis = costir.analyze(models.autocast)
    assert {n.cost.math for n in analysis.nodes if n.matmul_flops != 0} == {"bfloat16"}
    assert zero(analysis.weight_bytes - 4 * analysis.params)
    casts = [n for n in analysis.nodes if n.op == "aten._to_copy.default" and any(t.role == "weight" for t in n.call.inputs)]
    assert zero(sum(n.read for n in casts) - 4 * analysis.params)
    assert zero(sum(n.write for n in casts) - 2 * analysis.params)


@pytest.mark.parametrize("dtype", ["bf17", "bf16,weights", "bf16,activations=int8", "bf16,weights=nope"])
def test_slips_in_types(dtype):
    with pytest.raises(costir.CostirError, match=r"data type|cannot read"):
        costir.analyze(plain, dtype=dtype)


# ---- exact counts ----


def test_exact_counts_take_one_from_every_dot_product():
    standard, exact = costir.analyze(plain), costir.analyze(plain, count="exact")
    assert zero(standard.matmul_flops - exact.matmul_flops - (B * F + B * D))
    assert zero(standard.vector_flops - exact.vector_flops)
    assert zero(standard.bytes - exact.bytes)


def test_exact_counts_of_attention_and_convolution():
    def attention(B=2, T=6, S=10, N=4, H=8):
        class Attention(nn.Module):
            def forward(self, q, k):
                return functional.scaled_dot_product_attention(q, k, k)

        return Attention(), (torch.zeros(B, N, T, H), torch.zeros(B, N, S, H)), {}

    def conv(B=2, D=8):
        return nn.Conv1d(D, 5, 3), (torch.zeros(B, D, 12),), {}

    taken = costir.analyze(attention).matmul_flops - costir.analyze(attention, count="exact").matmul_flops
    assert zero(taken - (B * N * T * S + B * N * T * H))
    taken = costir.analyze(conv).matmul_flops - costir.analyze(conv, count="exact").matmul_flops
    assert zero(taken - B * 5 * 10)


# ---- causal attention ----


def attending(causal=True, mask=None):
    def build(B=2, T=6, N=4, H=8):
        class Attention(nn.Module):
            def forward(self, q):
                given = torch.ones(T, T, dtype=torch.bool).tril() if mask else None
                return functional.scaled_dot_product_attention(q, q, q, attn_mask=given, is_causal=causal and not mask)

        return Attention(), (torch.zeros(B, N, T, H),), {}

    return build


def test_causal_counts_the_triangle():
    """Query i sees i + 1 keys: 1 + 2 + ... + T pairs, two products of width H each."""
    full, causal = (costir.analyze(attending(), attention=a) for a in ("full", "causal"))
    assert zero(full.matmul_flops - 4 * B * N * H * T * T)
    for t in (6, 13):
        pairs = sum(1 for i in range(t) for j in range(t) if j <= i)
        assert causal.at(T=t).matmul_flops == 4 * 2 * 4 * 8 * pairs
    assert zero(full.bytes - causal.bytes)


@pytest.mark.parametrize(
    ("build", "note"),
    [
        (attending(mask=True), "some masks are tensors"),
        (attending(causal=False), "changes nothing"),
        (plain, "changes nothing"),
    ],
)
def test_where_causal_is_not_known_a_note_says_so(build, note):
    full, causal = (costir.analyze(build, attention=a) for a in ("full", "causal"))
    assert zero(full.matmul_flops - causal.matmul_flops)
    assert any(note in n for n in causal.notes)
    assert not any("attention=causal" in n for n in full.notes)


def test_causal_decoders_of_transformers_tell_the_kernel():
    """As in a real run: no mask is written out, no key or value is repeated for grouped heads."""
    events = trace.run(Family("llama", models.llama, {}), {}, "forward").events
    attention = [e for e in events if "attention" in e.op]
    assert attention
    for e in attention:
        args = dict(e.args)
        assert args["is_causal"] is True
        assert args["attn_mask"] is None
        assert args["key"].shape[1] == 2


def test_packed_sequences_keep_their_mask():
    """Position ids that start anew within a row are several sequences: the mask is a tensor, and a note says so."""

    def build():
        module, _, kwargs = models.llama()
        positions = torch.tensor([[0, 1, 2, 0, 1, 2]] * 2)
        return module, (), {**kwargs, "position_ids": positions}

    causal = costir.analyze(build, attention="causal")
    assert any("some masks are tensors" in n for n in causal.notes)


def llama_config(folder: Path, **fields):
    """The shape of Llama-3-8B with everything smaller."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 224,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "vocab_size": 250,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        **fields,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder / "config.json")


def llama_by_hand(d, f, n, k, h, layers, vocab, pairs, products=2):
    """FLOPs per token forward: products of the layers and the head, and attention over this many pairs per token."""
    linear = layers * 2 * (2 * d * n * h + 2 * d * k * h + 3 * d * f) + 2 * d * vocab
    return linear, layers * 2 * products * n * h * pairs


def test_a_decoder_full_causal_and_trained(tmp_path):
    path = llama_config(tmp_path)
    t = 64
    per_token = lambda **how: sp.Rational(costir.analyze(path, sizes={"B": 2, "T": t}, **how).at().matmul_flops, 2 * t)
    sizes = (64, 224, 8, 2, 8, 3, 250)
    linear, dense = llama_by_hand(*sizes, t)
    _, triangle = llama_by_hand(*sizes, sp.Rational(t + 1, 2))
    assert per_token() == linear + dense
    assert per_token(attention="causal") == linear + triangle
    _, recomputed = llama_by_hand(*sizes, t, 7)
    assert per_token(phase="backward") == 3 * linear + recomputed


def test_the_hand_formula_is_that_of_published_numbers():
    """Llama-3-8B at T = 8192: 19.30 GFLOP per token forward, 17.16 causal, 57.91 for three times the forward pass."""
    sizes, t = (4096, 14336, 32, 8, 128, 32, 128256), 8192
    linear, dense = llama_by_hand(*sizes, t)
    assert round((linear + dense) / 1e9, 2) == 19.30
    assert round(float(linear + llama_by_hand(*sizes, sp.Rational(t + 1, 2))[1]) / 1e9, 2) == 17.16
    assert round(3 * (linear + dense) / 1e9, 2) == 57.91
