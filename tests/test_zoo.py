"""Whole analyses of small transformers models of many kinds, against torch's own counter and against counting at a point."""

import importlib
import json
import logging
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import costir
from costir import trace
from costir.cost import cost_of
from costir.load import load_subject

pytest.importorskip("transformers")
no_init_weights = importlib.import_module("transformers.initialization").no_init_weights
EXAMPLES = Path(__file__).parent.parent / "examples"
DECODER = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4, "vocab_size": 100}
GPTJ = {"model_type": "gptj", "n_embd": 256, "n_head": 2, "n_layer": 4, "rotary_dim": 64, "vocab_size": 100, "n_positions": 64}
NEOX = {
    "model_type": "gpt_neox", **DECODER, "hidden_size": 192, "intermediate_size": 96, "max_position_embeddings": 64,
    "rotary_pct": 0.25,
}  # fmt: skip
FALCON = {"model_type": "falcon", **DECODER, "max_position_embeddings": 64}
BLOOM = {"model_type": "bloom", "hidden_size": 64, "n_head": 4, "n_layer": 4, "vocab_size": 100}
GLM4 = {
    "model_type": "glm4", **DECODER, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", **DECODER, "num_hidden_layers": 8, "first_k_dense_replace": 2, "intermediate_size": 96,
    "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2,
    "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA4 = {
    "model_type": "llama4_text", **DECODER, "num_hidden_layers": 16, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 32, "intermediate_size_mlp": 96, "num_local_experts": 4, "num_experts_per_tok": 1,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
MAMBA2 = {
    "model_type": "mamba2", "hidden_size": 64, "num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 8,
    "chunk_size": 8, "num_hidden_layers": 4, "vocab_size": 100,
}  # fmt: skip
VIT = {
    "model_type": "vit", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4, "intermediate_size": 96,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
PHI = {"model_type": "phi", **DECODER, "hidden_size": 128, "intermediate_size": 96, "max_position_embeddings": 64}
LFM2 = {
    "model_type": "lfm2", **DECODER, "num_key_value_heads": 2, "intermediate_size": 1536, "full_attn_idxs": [0, 1, 2, 3],
    "max_position_embeddings": 64,
}  # fmt: skip
RWKV = {
    "model_type": "rwkv", "hidden_size": 64, "num_hidden_layers": 8, "rescale_every": 2, "vocab_size": 100,
    "context_length": 8,
}  # fmt: skip
SQUEEZED = {
    "model_type": "squeezebert", **DECODER, "intermediate_size": 96, "max_position_embeddings": 32, "embedding_size": 64,
}  # fmt: skip
SLIDING = {
    "model_type": "qwen3", **DECODER, "num_hidden_layers": 12, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "max_position_embeddings": 64, "use_sliding_window": True, "sliding_window": 16,
}  # fmt: skip
MISTRAL = {
    "model_type": "mistral", **DECODER, "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 64,
}  # fmt: skip


def analysed(tmp_path, config, **options):
    folder = tmp_path / "it"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return costir.analyze(str(folder), **options), load_subject(str(folder))


def counted(family, point):
    """FLOPs of contractions, all FLOPs, and bytes of one run at a point, operator by operator."""
    costs = [cost_of(trace.concrete(e))[0] for e in trace.run(family, point).events]
    return sum(c.matmul for c in costs), sum(c.flops for c in costs), sum(c.nbytes for c in costs)


def torch_flops(family, point):
    """Torch's own count, which is right where attention is written out."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), no_init_weights():
        module, args, kwargs = family.build(**point)
        module.set_attn_implementation("eager")
        with FlopCounterMode(display=False) as counter:
            module(*args, **kwargs)
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("folder", "formula"),
    [("gpt2", "36864*B*T**2 + 247064064*B*T"), ("llama3-8b", "524288*B*T**2 + 15009316864*B*T")],
)
def test_published_formulas(folder, formula):
    found = costir.analyze(str(EXAMPLES / folder), keep=["B", "T"])
    assert str(found.matmul_flops) == formula


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (GPTJ, {"B": 2, "T": 24, "D": 512, "L": 6, "N": 4}),  # the rotated part is half of each head, at the base alone
        (NEOX, {"B": 2, "T": 24, "D": 120, "L": 6}),  # 7 of 30 dimensions are rotated: their frequencies number 4
        (FALCON, {"B": 3, "T": 20, "D": 96, "L": 5, "N": 6}),
        (BLOOM, {"B": 2, "T": 24, "D": 96, "L": 6}),  # biases are made for a power of two of heads
        (GLM4, {"B": 2, "T": 24, "D": 80, "H": 16, "L": 3}),  # half of an even head is rotated
        (PHI, {"B": 2, "T": 24, "D": 192, "F": 80, "L": 3}),  # half of a head is rotated, and half of that must be whole
        (LFM2, {"B": 2, "T": 24, "D": 96, "F": 1200}),  # 2/3 of F, rounded up to a multiple of 256 and not of 512
        (RWKV, {"B": 2, "T": 5, "D": 48, "L": 6}),  # weights are halved after every second layer
        (SQUEEZED, {"B": 2, "T": 20, "F": 80, "L": 3, "N": 8}),  # heads divide a width that must stay; the base is the longest
        (MAMBA2, {"B": 2, "T": 40, "L": 3}),  # whole chunks
        (VIT, {"B": 2, "D": 96, "I": 48, "L": 6}),
    ],
    ids=lambda x: x.get("model_type"),
)
def test_formulas_agree_with_counting(tmp_path, config, change):
    found, family = analysed(tmp_path, config)
    point = {**found.sizes, **change}
    said = found.at(**point)
    assert (said.matmul_flops, said.flops, said.bytes) == counted(family, point)
    assert not found.unknown
    assert said.matmul_flops == torch_flops(family, point)


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (DEEPSEEK, {"B": 2, "T": 16, "D": 96, "E": 16, "F_moe": 48, "L": 5}),
        (LLAMA4, {"B": 2, "T": 16, "D": 96, "F": 48, "L": 8}),
    ],
    ids=lambda x: x.get("model_type"),
)
def test_mixtures_agree_with_counting(tmp_path, config, change):
    """Torch's own counter does not see grouped products, so only this package's count is compared."""
    found, family = analysed(tmp_path, config)
    point = {**found.sizes, **change}
    said = found.at(**point)
    assert (said.matmul_flops, said.flops, said.bytes) == counted(family, point)


def test_layers_that_carry_their_number_still_repeat(tmp_path):
    """Dense layers first, then experts: the depth is a size, and whole depth is never traced."""
    found, _ = analysed(tmp_path, {**DEEPSEEK, "num_hidden_layers": 60})
    assert any(str(c.condition) == "L >= 3" for c in found.constraints)
    assert len(found.nodes) < 400


def test_depths_that_lack_a_kind_of_layer_are_refused(tmp_path):
    """Of five sliding layers and a full one, the first two need no full mask."""
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    found, _ = analysed(tmp_path, {**SLIDING, "num_hidden_layers": 26, "layer_types": (kinds * 5)[:26]})
    with pytest.raises(costir.CostirError, match="L >= 6"):
        found.at(L=2)


def test_depth_stays_where_layers_follow_no_pattern(tmp_path):
    full = [i in (2, 3, 7, 9, 10) for i in range(12)]
    found, family = analysed(
        tmp_path, {**SLIDING, "layer_types": ["full_attention" if f else "sliding_attention" for f in full]}
    )
    assert any(str(c.condition) == "Eq(L, 12)" for c in found.constraints)
    point = {**found.sizes, "B": 2, "D": 96, "N": 6}
    said = found.at(**point)
    assert (said.matmul_flops, said.flops, said.bytes) == counted(family, point)


def test_one_form_for_one_number(tmp_path):
    """Patches along a side are I/P everywhere, as I is a multiple of P."""
    found, _ = analysed(tmp_path, VIT)
    assert "floor" not in str(found.flops)
    assert "I % P == 0" in [str(c) for c in found.constraints]


def test_conditions_that_no_dimension_shows(tmp_path):
    found, _ = analysed(tmp_path, MISTRAL)
    assert "N % K == 0" in [str(c).split(" (")[0] for c in found.constraints]
    with pytest.raises(costir.CostirError, match="N % K == 0"):
        found.at(K=3)


def test_shortcuts_at_one_are_counted_where_they_are_taken(tmp_path):
    """At a batch of 1 torch leaves copies out; the contractions are the same, and a number at that point is what runs there."""
    found, family = analysed(tmp_path, FALCON)
    matmul, _, nbytes = counted(family, found.sizes)
    said = found.at()
    assert said.matmul_flops == matmul
    assert said.bytes == nbytes


def test_quiet(tmp_path, capfd):
    """What transformers has to say about missing kernels is not the reader's concern."""
    before = logging.getLogger("transformers").level
    analysed(tmp_path, MAMBA2)
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("transformers").level == before
