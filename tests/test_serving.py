"""Steps of serving: what they cost and what their caches take, against real runs, published numbers and counting by hand."""

import itertools
import json
from pathlib import Path

import pytest
import sympy as sp
import torch
from serving_models import TINY
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import costir
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


def cache_numbers(cache):
    """Bytes of the tensors in a real cache."""
    held = [t for layer in cache.layers for t in (layer.keys, layer.values)]
    return sum(t.numel() * t.element_size() for t in held)


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
    return counter.get_total_flops(), cache_numbers(cache)


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
    with pytest.raises(CostirError, match="cache_kind='paged' is not known"):
        costir.analyze("X[B,D] . Y[D,F]", cache_kind="paged")
