"""Steps of serving: what they cost and what their caches take, against real runs, published numbers and counting by hand."""

import csv
import dataclasses
import functools
import itertools
import json
import random
from pathlib import Path

import jsonschema
import pytest
import sympy as sp
import torch
from serving_models import HYBRID, TINY
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import costir
from costir import cli
from costir.analysis import Analysis
from costir.cost import cost, cost_of
from costir.errors import CostirError, LoadError, TraceError
from costir.hardware import load_chip
from costir.ir import Call, Conventions, Tensor
from costir.load import load_subject
from costir.served import met
from costir.symbolic import size
from costir.trace import concrete, run

transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).parent.parent
B, S, T, D, F, L, N, K, V = (size(n) for n in "BSTDFLNKV")


def saved(tmp_path, config):
    (tmp_path / "it").mkdir(exist_ok=True)
    (tmp_path / "it" / "config.json").write_text(json.dumps(config))
    return str(tmp_path / "it")


@pytest.fixture(scope="module")
def llama():
    return costir.analyze(str(ROOT / "examples" / "llama3-8b"), phase="decode")


def counted(analysis, **conventions):
    """The same graph under other conventions."""
    return Analysis(cost(analysis.graph, Conventions(**conventions)), analysis.phase)


# ------------------------------------------------------------------------------------------------------------- real runs


def cache_numbers(cache, model):
    """Bytes of the tensors in a real cache, and of those that RecurrentGemma's modules keep beside it."""
    kept = [vars(layer).get(n) for layer in cache.layers for n in ("keys", "values", "conv_states", "recurrent_states")]
    kept += [vars(m).get(n) for m in model.modules() for n in ("conv1d_state", "recurrent_states")]
    held = {t.untyped_storage()._cdata: t for t in tree_leaves(kept) if isinstance(t, torch.Tensor)}
    return sum(t.numel() * t.element_size() for t in held.values())


def real_step(config, batch, length, phase, kind="dynamic"):
    """Matmul FLOPs and cache bytes of a real step on this machine, experts one by one, attention written out."""
    config = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
    cls = getattr(transformers, config.architectures[0])
    torch.manual_seed(0)
    model = cls(config).eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    options = {"max_cache_len": length} if kind == "static" else {}
    cache = {"dynamic": transformers.DynamicCache, "static": transformers.StaticCache}[kind](config=config, **options)
    before = torch.randint(0, 90, (batch, length if phase == "prefill" else length - 1))
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        if phase == "decode":
            model(before, cache=cache, use_cache=True)
            before = torch.randint(0, 90, (batch, 1))
        with counter:
            model(before, cache=cache, use_cache=True, logits_to_keep=1)
    return counter.get_total_flops(), cache_numbers(cache, model)


def traced_step(tmp_path, config, batch, length, phase, kind="dynamic"):
    family = load_subject(saved(tmp_path, config), phase=phase, cache=kind)
    sizes = {**family.sizes, "B": batch, "S" if phase == "decode" else "T": length}
    trace = run(family, sizes)
    flops = sum(cost_of(concrete(e))[0].matmul for e in trace.events)
    itemsize = {"float32": 4, "bfloat16": 2}
    held = sum(torch.Size(w.tensor.shape).numel() * itemsize[w.tensor.dtype] for w in trace.cache)
    return flops, held


@pytest.mark.parametrize("name", TINY)
def test_a_decode_step_costs_what_a_real_one_costs(name, tmp_path):
    assert traced_step(tmp_path, TINY[name], 2, 20, "decode") == real_step(TINY[name], 2, 20, "decode")


@pytest.mark.parametrize("name", HYBRID)
def test_recurrent_states_cost_what_real_ones_cost(name, tmp_path):
    assert traced_step(tmp_path, HYBRID[name], 2, 20, "decode") == real_step(HYBRID[name], 2, 20, "decode")


@pytest.mark.parametrize(("name", "phase", "length", "kind"), [
    ("llama", "prefill", 9, "dynamic"), ("mistral", "decode", 7, "dynamic"), ("mistral", "prefill", 20, "dynamic"),
    ("deepseek", "prefill", 9, "dynamic"), ("llama", "decode", 9, "static"), ("mistral", "decode", 20, "static"),
    ("gemma3", "decode", 12, "dynamic"),
])  # fmt: skip
def test_windows_prefill_and_static_caches_cost_what_real_ones_cost(name, phase, length, kind, tmp_path):
    traced, real = traced_step(tmp_path, TINY[name], 2, length, phase, kind), real_step(TINY[name], 2, length, phase, kind)
    assert traced == real


# ---------------------------------------------------------------------------------------------------------- known numbers


def test_llama_3_8b(llama):
    here = llama.keep(["B", "S"])
    assert here.matmul_flops.subs({B: 1, S: 2048}) == 16_083_058_688
    assert here.cache.per_token == 131_072
    assert (llama.cache.batch, llama.cache.length) == ("B", "S")
    assert sp.expand(llama.cache.per_sequence - 4 * S * L * K * D / N) == 0
    assert llama.cache.fixed == 0
    assert sp.expand(llama.matmul_flops - (llama.cache.on(load_chip("h100")).serving.products + 4 * B * S * D * L)) == 0


def test_llama_3_8b_on_an_h100_by_hand(llama):
    """Weights; per token 32 layers, keys and values, 8 heads of 128 in bf16; torch.cat has one layer's values twice."""
    weights = 2 * (2 * 128256 * 4096 + 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336 + 2 * 4096) + 4096)
    layer = 2 * 8 * 128
    held = lambda b, s: weights + b * (32 * 2 * layer * s + layer * (s - 1))
    most = next(b for b in range(1000, 0, -1) if held(b, 8192) <= 84_942_979_072)
    fit = llama.memory.largest("B", "h100", S=8192)
    assert fit.value == most == 63
    assert held(1, 8192) < fit.needed < 1.0001 * held(1, 8192)
    m = llama.memory.at(B=8, S=4096)
    assert m.parts["cache"] == 8 * (32 * 2 * layer * 4096 + layer * 4095)
    assert m.parts["parameters"] == weights + 2 * 64 * 4  # the rotary embedding's frequencies


def test_the_least_bytes_of_a_step_are_weights_and_cache_once(llama):
    c = llama.cache
    norms = 2 * (2 * L + 1) * D
    assert sp.expand(c.weights - (2 * L * (3 * D * F + 2 * D * D + 2 * D * K * D / N) + 2 * V * D + 2 * B * D + norms)) == 0
    assert sp.expand(c.cache_read - c.total) == 0
    assert sp.expand(c.cache_written - 4 * B * L * K * D / N) == 0
    # torch.cat reads all but the new row and writes all, then attention reads all.
    assert sp.expand(c.cache_moved - (3 * c.total - c.cache_written)) == 0


def test_serving_counts_the_cache_once_and_never_more_than_the_program(llama):
    served = counted(llama, cache="serving")
    assert served.matmul_flops == llama.matmul_flops
    assert sp.expand(served.cache.cache_moved - (served.cache.total + served.cache.cache_written)) == 0
    copied = llama.cache.cache_moved - served.cache.cache_moved
    assert sp.expand(llama.bytes - served.bytes - copied) == 0


def test_the_ideal_reads_weights_and_cache_once_and_writes_results_and_what_is_new(llama):
    """The new row is written and not read: as many bytes as the whole cache after the step."""
    ideal, step = llama.under("ideal"), llama.cache.step
    logits, beside = 2 * B * V, 8 * B + 2 * D / N  # beside: the tokens, and the frequencies of the positions
    assert sp.expand(ideal.bytes - step - logits - beside) == 0
    assert all(getattr(ideal.cache, q) == getattr(llama.cache, q) for q in ("step", "cache_moved", "weights", "cache_written"))


def test_types_of_storage_change_bytes_and_nothing_else(llama):
    a = counted(llama, weights="int4", kv="fp8")
    assert (a.flops, a.params) == (llama.flops, llama.params)
    assert sp.expand(2 * a.cache.total - llama.cache.total) == 0
    assert sp.expand(2 * a.cache.cache_moved - llama.cache.cache_moved) == 0
    assert sp.expand(4 * a.weight_bytes - llama.weight_bytes) == 0
    assert sp.expand(4 * a.cache.weights - llama.cache.weights) == 0


def test_bounds_on_a_chip(llama):
    chip = load_chip("tpu_v5e@book")
    C, W = sp.Rational("1.97e14"), sp.Rational("8.2e11")
    a = llama.keep(["B", "S"])
    b, c = a.cache.on(chip), a.cache
    at = {B: 8, S: 4096}
    t = sp.Max((16_083_058_688 - 524_288 * 2048) * 8 / C, c.weights.subs(at) / W) + c.total.subs(at) / W
    assert b.latency.subs(at).doit() == t
    assert b.tokens_per_second.subs(at).doit() == 8 / t
    (root,) = sp.solve((b.parts[0][0] - b.parts[0][1]).subs(B, x := sp.Symbol("x")), x)
    assert b.critical == root
    assert abs(float(root) - 240.2) < 0.2
    assert b.fits == (chip.memory_capacity - a.weight_bytes) / c.per_sequence
    assert sp.simplify(c.outgrows * c.per_sequence - a.weight_bytes) == 0


# ----------------------------------------------------------------------------------------------------------------- experts


@pytest.mark.parametrize(("experts", "each", "tokens"), [(4, 2, 1), (4, 2, 2), (5, 2, 3), (4, 1, 3)])
def test_the_expected_number_of_experts_met(experts, each, tokens):
    choices = list(itertools.combinations(range(experts), each))
    drawn = [len(set().union(*map(set, d))) for d in itertools.product(choices, repeat=tokens)]
    weight = Tensor((sp.Integer(experts), D, F), role="weight", ref=1)
    call = Call("aten._grouped_mm.default", {"self": Tensor((each * B, D), ref=0), "mat2": weight}, ())
    assert experts * met(call, weight).subs(B, tokens) == sp.Rational(sum(drawn), len(drawn))


def test_choices_of_unknown_tokens_are_taken_one_by_one():
    weight = Tensor((sp.Integer(3), D, F), role="weight", ref=1)
    call = Call("aten._grouped_mm.default", {"self": Tensor((sp.Integer(2), D), ref=0), "mat2": weight}, ())
    assert 3 * met(call, weight) == sp.Rational(sum(len({i, j}) for i in range(3) for j in range(3)), 9)


# ---------------------------------------------------------------------------------------------------------------- families


def family_file(tmp_path, text):
    path = tmp_path / "step.py"
    path.write_text(
        "import torch\nfrom torch import nn\nfrom torch.nn.functional import scaled_dot_product_attention as sdpa\n" + text
    )
    return str(path)


CAT = """
class Step(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.k = nn.Linear(D, D, bias=False)
    def forward(self, x, k_cache, v_cache):
        k = torch.cat([k_cache, self.k(x)[:, None]], 2)
        v = torch.cat([v_cache, x[:, None]], 2)
        return sdpa(x[:, None], k, v), k, v
def build(B=4, S=96, D=40):
    return Step(D), (torch.randn(B, 1, D), torch.randn(B, 1, S, D), torch.randn(B, 1, S, D)), {}
"""


def test_a_family_with_caches_as_arguments(tmp_path):
    a = costir.analyze(family_file(tmp_path, CAT), phase="decode")
    c = a.cache
    assert (c.total, c.per_token, c.batch, c.length) == (8 * B * D * S, 8 * D, "B", "S")
    assert (c.cache_read, c.cache_written) == (sp.expand(8 * B * D * (S + 1)), 8 * B * D)
    assert c.cache_moved == sp.expand(8 * B * D * (3 * S + 2))
    assert costir.analyze(family_file(tmp_path, CAT)).cache is None


def test_a_cache_that_is_counted_as_engines_do_is_not_fused(tmp_path):
    a = costir.analyze(family_file(tmp_path, CAT), phase="decode", cache_kind="serving")
    with pytest.raises(CostirError, match="traffic ideal counts the program as it runs"):
        a.under("ideal")


IN_PLACE = """
class Step(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.k = nn.Linear(D, D, bias=False)
    def forward(self, x, memory):
        memory[:, -1:] = self.k(x)
        return x @ memory.mT
def build(B=4, S=96, D=40):
    return Step(D), (torch.randn(B, 1, D), torch.randn(B, S, D)), {}
CACHE = ("memory",)
"""


def test_a_family_that_names_its_cache_and_writes_into_it(tmp_path):
    c = costir.analyze(family_file(tmp_path, IN_PLACE), phase="decode").cache
    assert (c.total, c.cache_read, c.cache_written, c.cache_moved) == (4 * B * D * S, 4 * B * D * S, 4 * B * D,
                                                                       sp.expand(4 * B * D * (S + 1)))  # fmt: skip


def test_grouped_keys_written_out_for_every_head_are_copies(tmp_path):
    text = """
class Step(nn.Module):
    def forward(self, q, kv_cache):
        wide = kv_cache[:, :, None].expand(-1, -1, q.shape[1] // kv_cache.shape[1], -1, -1).flatten(1, 2)
        return (q @ wide.mT).softmax(-1) @ wide
def build(B=4, K=3, G=5, S=96, H=8):
    return Step(), (torch.randn(B, K * G, 1, H), torch.randn(B, K, S, H)), {}
"""
    a = costir.analyze(family_file(tmp_path, text), phase="decode", cache_kind="serving")
    H = size("H")
    assert a.cache.cache_read == 4 * B * K * S * H
    assert a.cache.cache_moved == 4 * B * K * S * H


def test_attention_over_a_cache_has_the_intensity_of_the_book():
    a = costir.analyze(str(ROOT / "costir/exercises/bank/attention.py:grouped"))
    G, q = size("G"), size("T")
    node = next(n for n in a.nodes if "scaled_dot" in n.op)
    intensity = sp.simplify(node.matmul_flops / node.bytes)
    assert sp.simplify(intensity - q * S * G / (q * G + S)) == 0
    assert sp.limit(intensity.subs(q, 1), S, sp.oo) == G
    prefill = intensity.subs({S: q, G: 1}).subs(q, x := sp.Symbol("x"))
    ridge = sp.Rational("1.97e14") / sp.Rational("8.2e11")
    assert abs(float(sp.solve(prefill - ridge, x)[0]) - 480.5) < 0.05


# ---------------------------------------------------------------------------------------------------------------- the book


@pytest.fixture(scope="module")
def toy():
    """Grouped-query decoder with gated MLPs, one matrix for embedding and output, int8 weights and cache."""
    return counted(traced_toy(), weights="int8", kv="int8")


@functools.cache
def traced_toy():
    return costir.analyze(str(ROOT / "costir/exercises/bank/toy.py:decode"), phase="decode", dtype="bf16")


# What "How to Scale Your Model" gives for inference, in its letters: A parameters, pb bytes of weights, kv bytes of one cache,
# C FLOP/s and W bytes/s of all chips together. Where its editions differ, or it counts roughly, the name says what is
# compared.
A, PB, KV, C, W, CAPACITY = sp.symbols("A pb kv C W M", positive=True)
BOOK = {
    "KV cache of a sequence": 2 * S * L * K * size("H"),
    "parameters, norms left out": L * (3 * D * F + 2 * D * size("H") * (N + K)) + V * D,
    "least step, all parameters read (the book's)": (B * KV + PB) / W,
    "tokens per second, all parameters read": B * W / (B * KV + PB),
    "general step, attention by its cache": B * KV / W + sp.Max(2 * B * A / C, PB / W),
    "sequences whose caches outweigh the weights": PB / KV,
    "sequences that fit": (CAPACITY - PB) / KV,
    "scores against projections": S / (2 * D),
}


def from_the_trace(a):
    """The same, each put together from what was traced."""
    c, H = a.cache, size("H")
    # Heads as wide as the model together; what is left without heads is the MLP and the output matrix.
    square = c.attention.subs({N: 1, H: D, K: 1}) / (c.products.subs({N: 1, H: D, K: 1}) - c.products.subs({N: 0, K: 0, H: D}))
    return {
        "KV cache of a sequence": c.per_sequence,
        "parameters, norms left out": a.params,
        "least step, all parameters read (the book's)": (c.total + a.weight_bytes) / W,
        "tokens per second, all parameters read": B * W / (c.total + a.weight_bytes),
        "general step, attention by its cache": c.cache_read / W + sp.Max(c.products / C, a.weight_bytes / W),
        "sequences whose caches outweigh the weights": c.outgrows,
        "sequences that fit": (CAPACITY - a.weight_bytes) / c.per_sequence,
        "scores against projections": square,
    }


@pytest.mark.parametrize("what", BOOK)
def test_formulas_of_the_book_come_out_of_a_traced_step(what, toy):
    draw = random.Random(what)
    traced = from_the_trace(toy)[what]
    for _ in range(3):
        point = {size(n): draw.randint(2, 5000) for n in "BSDFLNKHV"} | {x: draw.randint(1, 10**12) for x in (C, W, CAPACITY)}
        stored = {A: toy.params.subs(point), PB: toy.weight_bytes.subs(point), KV: toy.cache.per_sequence.subs(point)}
        assert traced.subs(point).doit() == BOOK[what].subs(stored).subs(point).doit()


def test_numbers_of_the_book(toy):
    """Rows of the book that are numbers, from the traced formulas at its sizes."""
    c, H = toy.cache, size("H")
    llama70 = {L: 80, K: 8, H: 128, D: 8192, F: 28672, N: 64}
    assert c.per_token.subs(llama70) == 163_840
    assert traced_toy().cache.per_sequence.subs({L: 40, K: 40, H: 128, S: 8192}) == 6_710_886_400
    assert c.per_token.subs({L: 64, K: 8, H: 256}) == 262_144
    untied = toy.params.subs({**llama70, V: 2 * 128256})  # the toy's one matrix of 2*V rows stands for its two of V
    assert untied == 70_552_387_584
    free = 8 * 16 * 10**9 - untied
    assert round(float(free / c.per_sequence.subs({**llama70, S: 8192})), 1) == 42.8  # 43.2 in the book, from 70e9 parameters
    step = (32 * c.per_sequence.subs({**llama70, S: 8192}) + 70 * 10**9) / (8 * sp.Rational("8.1e11"))
    assert round(float(step) * 1e3, 1) == 17.4


# ----------------------------------------------------------------------------------------------------------------- windows


def test_a_window_ends_the_growth_of_the_cache(tmp_path):
    config = {**TINY["mistral"], "sliding_window": 300, "max_position_embeddings": 1024}
    family = load_subject(saved(tmp_path, config), phase="decode", cache="dynamic")
    a = costir.analyze(
        dataclasses.replace(family, sizes={"B": 2, "S": 1024}, depth=(), per_layer={}, divisible=()), phase="decode"
    )
    kept = {length: 2 * 2 * 2 * 8 * 4 * min(length, 299) for length in (100, 299, 300, 1000)}
    assert {s: a.cache.per_sequence.subs(S, s) for s in kept} == kept
    assert {s: a.cache.cache_read.subs({S: s, B: 1}) for s in (100, 1000)} == {100: kept[100], 1000: kept[299] // 299 * 300}
    assert (a.cache.per_token.subs(S, 100), a.cache.per_token.subs(S, 1000)) == (256, 0)
    assert [str(x) for x in a.constraints if "window" in x.source] == ["S >= 300 (a sliding window of 300)"]
    assert a.matmul_flops.subs({B: 1, S: 100}) < a.matmul_flops.subs({B: 1, S: 300}) == a.matmul_flops.subs({B: 1, S: 1000})


# ------------------------------------------------------------------------------------------------------------ command line


def test_what_the_command_line_says(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    path = family_file(tmp_path, CAT)
    assert cli.main(["analyze", path, "--phase", "decode", "--chip", "h100", "--sweep", "B=1,8"]) == 0
    text = capsys.readouterr().out
    assert "step: decode step" in text
    assert "cache    counted as the program runs: it moves 371.2 kB a step, 2.96 x the 125.4 kB of --cache serving" in text
    assert "cache per token" in text
    assert "step >=" in text
    assert cli.main(["analyze", path, "--phase", "decode", "--format", "json", "--chip", "h100", "--sweep", "B=1,8"]) == 0
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, json.loads((Path(costir.__file__).parent / "schema.json").read_text()))
    assert data["serving"]["per_token"] == {"expr": "8*D", "value": 320}
    assert data["serving"]["counted"] == "traced"
    assert (
        data["sweep"][1]["serving"]["h100_sxm"]["tokens_per_second"]
        > data["sweep"][0]["serving"]["h100_sxm"]["tokens_per_second"]
    )
    assert cli.main(["analyze", path, "--phase", "decode", "--cache", "serving", "--format", "csv", "--sweep", "B=1,8"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [float(r["cache"]) for r in rows] == [8 * b * 40 * 96 for b in (1, 8)]
    assert cli.main(["solve", path, "--phase", "decode", "--for", "B", "--chip", "h100"]) == 0
    assert "critical batch" in capsys.readouterr().out
    assert cli.main(["mfu", path, "--phase", "decode", "--chip", "h100", "--rate", "1tok/s"]) == 2
    assert "invalid choice: 'decode'" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------------ errors


def test_what_has_no_phase_of_serving(tmp_path):
    with pytest.raises(LoadError, match="BertForMaskedLM keeps no cache of tokens"):
        costir.analyze(saved(tmp_path, {"model_type": "bert", "architectures": ["BertForMaskedLM"]}), phase="decode")
    with pytest.raises(LoadError, match="has an encoder"):
        costir.analyze(saved(tmp_path, {"model_type": "t5", "is_encoder_decoder": True}), phase="prefill")
    with pytest.raises(LoadError, match="has no decode phase"):
        costir.analyze("X[B,D] . Y[D,F]", phase="decode")
    plain = "def build(B=4, D=8):\n    return nn.Linear(D, D), (torch.randn(B, D),), {}\n"
    with pytest.raises(TraceError, match="no buffer is a cache: it is given input") as error:
        costir.analyze(family_file(tmp_path, plain), phase="decode")
    assert "CACHE = ('name',)" in error.value.hint
    with pytest.raises(TraceError, match="is given no 'other' to be its cache"):
        costir.analyze(family_file(tmp_path, plain + "CACHE = 'other'\n"), phase="decode")
    with pytest.raises(LoadError, match=r"CACHE in .* is an object of type int"):
        costir.analyze(family_file(tmp_path, plain + "CACHE = 3\n"), phase="decode")
    with pytest.raises(CostirError, match="the cache 'serving' is for steps of serving, and phase forward keeps no cache"):
        costir.analyze("X[B,D] . Y[D,F]", cache_kind="serving")
    with pytest.raises(CostirError, match="kv=float8_e4m3fn is for steps of serving"):
        costir.analyze("X[B,D] . Y[D,F]", dtype="bf16,kv=fp8")
    with pytest.raises(LoadError, match=r"a static cache is one of transformers"):
        costir.analyze(family_file(tmp_path, CAT), phase="decode", cache_kind="static")
    with pytest.raises(CostirError, match="cache_kind='paged' is not known"):
        costir.analyze("X[B,D] . Y[D,F]", cache_kind="paged")
