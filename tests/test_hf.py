"""Configs as families. Counts come from torch's own counter on the meta device, and from published numbers."""

import importlib
import json
import logging
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import costir
from costir.errors import CostirError, LoadError, SizeError
from costir.load import load_subject
from costir.load.hf_sizes import DECODER, TABLE, VISION_TABLE

transformers = pytest.importorskip("transformers")
no_init_weights = importlib.import_module("transformers.initialization").no_init_weights
ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
LLAMA = json.loads((EXAMPLES / "llama3-8b" / "config.json").read_text())
GPT2 = json.loads((EXAMPLES / "gpt2" / "config.json").read_text())
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
T5 = {"model_type": "t5", "architectures": ["T5WithLMHeadModel"], "is_encoder_decoder": True, "num_layers": 6, "d_model": 512}
WHISPER = {
    "model_type": "whisper", "encoder_layers": 4, "decoder_layers": 4,
    "encoder_attention_heads": 6, "decoder_attention_heads": 6,
    "d_model": 384, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "vocab_size": 51865,
}  # fmt: skip
VIT = {"model_type": "vit", "architectures": ["ViTForImageClassification"]}
QWEN3_MOE = {
    "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 128, "dtype": "bfloat16",
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3_text", "num_hidden_layers": 12, "hidden_size": 64, "intermediate_size": 128, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
}  # fmt: skip
LLAMA_SIZES = {"B": 1, "T": 2048, "D": 4096, "F": 14336, "V": 128256, "L": 32, "N": 32}
BERT_SIZES = {"B": 1, "T": 512, "D": 768, "F": 3072, "V": 30522, "L": 12, "N": 12}
T5_SIZES = {"B": 1, "T": 128, "S": 512, "D": 512, "F": 2048, "V": 32128, "L": 6, "N": 8, "H": 64}
MOE_SIZES = {"B": 1, "T": 2048, "D": 64, "F": 96, "V": 128, "L": 2, "N": 4, "K": 2, "H": 16, "E": 8, "k": 2, "F_moe": 32}


def load(tmp_path, config, **options):
    folder = tmp_path / "it"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return load_subject(str(folder), **options)


def build_on_meta(family, **sizes):
    with torch.device("meta"), torch.no_grad():
        return family.build(**{**family.sizes, **sizes})


def flops(family, **sizes):
    """Matmul FLOPs by torch's counter, which is right where attention is written out."""
    with FakeTensorMode(), torch.no_grad(), no_init_weights():
        module, args, kwargs = family.build(**{**family.sizes, **sizes})
        module.set_attn_implementation("eager")
        with FlopCounterMode(display=False) as counter:
            module(*args, **kwargs)
    return counter.get_total_flops()


@pytest.mark.parametrize(("folder", "square", "linear"), [("gpt2", 36864, 247064064), ("llama3-8b", 524288, 15009316864)])
def test_published_flops(folder, square, linear):
    """The inputs are the whole text of every sequence, with logits for every token."""
    family = load_subject(str(EXAMPLES / folder / "config.json"))
    B, T = 3, 41
    assert flops(family, B=B, T=T) == square * B * T * T + linear * B * T


@pytest.mark.parametrize(
    ("folder", "params"), [("gpt2", 124_439_808), ("llama3-8b", 8_030_261_248), ("mixtral-8x7b", 46_702_792_704)]
)
def test_published_parameters(folder, params):
    module = build_on_meta(load_subject(str(EXAMPLES / folder))).module
    assert sum(p.numel() for p in module.parameters()) == params
    assert not module.training


def test_one_pass_without_cache():
    kwargs = build_on_meta(load_subject(str(EXAMPLES / "gpt2")), L=1, T=7).kwargs
    assert kwargs.keys() == {"input_ids", "use_cache"}
    assert kwargs["use_cache"] is False
    assert (kwargs["input_ids"].shape, kwargs["input_ids"].dtype) == ((1, 7), torch.int64)


@pytest.mark.parametrize(
    ("config", "sizes", "limits"),
    [
        (GPT2, {"B": 1, "T": 1024, "D": 768, "V": 50257, "L": 12, "N": 12}, {"T": 1024}),
        ({**GPT2, "n_inner": 3000}, {"B": 1, "T": 1024, "D": 768, "F": 3000, "V": 50257, "L": 12, "N": 12}, {"T": 1024}),
        (LLAMA, {**LLAMA_SIZES, "K": 8}, {}),
        ({**LLAMA, "head_dim": 128}, {**LLAMA_SIZES, "K": 8, "H": 128}, {}),
        ({**LLAMA, "num_key_value_heads": 32}, LLAMA_SIZES, {}),
        (BERT, BERT_SIZES, {"T": 512}),
        (VIT, {"B": 1, "D": 768, "F": 3072, "L": 12, "N": 12, "I": 224, "P": 16}, {}),
        (T5, T5_SIZES, {}),
        ({**T5, "num_decoder_layers": 2}, {**T5_SIZES, "L_dec": 2}, {}),
        (WHISPER, {"B": 1, "T": 128, "S": 1500, "D": 384, "F": 1536, "V": 51865, "L": 4, "N": 6}, {"T": 448}),
        (QWEN3_MOE, MOE_SIZES, {}),
        ({"model_type": "resnet"}, {"B": 1, "I": 224}, {}),
        ({"model_type": "roberta", "max_position_embeddings": 514}, {**BERT_SIZES, "V": 50265}, {"T": 512}),
        ({"model_type": "mamba2"}, {"B": 1, "T": 1024, "D": 4096, "V": 32768, "L": 64}, {}),
    ],
)
def test_sizes(tmp_path, config, sizes, limits):
    family = load(tmp_path, config)
    assert dict(family.sizes) == sizes
    assert dict(family.limits) == limits


@pytest.mark.parametrize(
    ("config", "point"),
    [
        (GPT2, {"B": 3, "T": 5, "D": 48, "V": 97, "L": 2, "N": 6}),
        (LLAMA, {"B": 3, "T": 5, "D": 48, "F": 40, "V": 97, "L": 2, "N": 6, "K": 3}),
        ({**LLAMA, "head_dim": 128}, {"B": 3, "T": 5, "D": 48, "F": 40, "V": 97, "L": 2, "N": 6, "K": 2, "H": 10}),
        (BERT, {"B": 3, "T": 5, "D": 48, "F": 40, "V": 97, "L": 2, "N": 6}),
        (VIT, {"B": 3, "D": 48, "F": 40, "L": 2, "N": 6, "I": 24, "P": 8}),
        (T5, {"B": 3, "T": 5, "S": 7, "D": 48, "F": 40, "V": 97, "L": 2, "N": 6, "H": 10}),
        (WHISPER, {"B": 3, "T": 5, "S": 20, "D": 48, "F": 40, "V": 97, "L": 2, "N": 6}),
        (QWEN3_MOE, {"B": 3, "T": 5, "D": 48, "F": 40, "V": 97, "L": 3, "N": 6, "K": 3, "H": 8, "E": 6, "k": 3, "F_moe": 24}),
        ({"model_type": "resnet"}, {"B": 3, "I": 64}),
        ({"model_type": "clip"}, {"B": 3, "T": 5, "D": 48, "F": 40, "V": 97, "L": 2, "N": 6, "I": 64, "P": 32}),
    ],
)  # fmt: skip
def test_other_sizes_reach_the_model(tmp_path, config, point):
    """Dimensions that the sizes name are found in the parameters and inputs; the model runs on fake tensors."""
    family = load(tmp_path, config)
    assert set(point) == set(family.sizes)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        with no_init_weights():
            module, args, kwargs = family.build(**point)
        module(*args, **kwargs)
    dims = {d for t in (*module.parameters(), *kwargs.values()) if isinstance(t, torch.Tensor) for d in t.shape}
    seen = [n for n in ("B", "D", "F", "F_moe", "V", "E", "T", "I") if n in point and not (n == "F" and "F_moe" in point)]
    assert {n: point[n] for n in seen if point[n] not in dims} == {}  # a mixture without dense layers has no F
    stacks = {len(m) for m in module.modules() if isinstance(m, torch.nn.ModuleList)}
    assert "L" not in point or point["L"] in stacks


def test_multiples(tmp_path):
    """What the configuration class wants where nothing in the sizes says so."""
    mamba = load(tmp_path, {"model_type": "mamba2"})
    # Heads of width 64, two of them per 64 of the doubled width, and 8 groups that share a state; whole chunks of text.
    assert mamba.multiples == {"T": 256, "D": 256}
    assert build_on_meta(mamba, D=256, L=1).module.config.num_heads == 8
    with pytest.raises(SizeError, match="D=100 gives no whole num_heads; choose a multiple of 32"):
        build_on_meta(mamba, D=100, L=1)
    deepseek = {"model_type": "deepseek_v3", "n_group": 4, "n_routed_experts": 16}
    assert load(tmp_path, deepseek).multiples == {"E": 4}
    assert load(tmp_path, LLAMA).multiples == {}


def test_lists_per_layer_follow_the_depth(tmp_path):
    family = load(tmp_path, GEMMA3)
    kinds = ("sliding_attention",) * 5 + ("full_attention",)
    assert family.per_layer["layer_types"] == kinds * 2
    assert family.depth == ("L",)
    assert family.trusted_layers
    explicit = load(tmp_path, {**GEMMA3, "layer_types": list(kinds * 2)})
    for L in (3, 12, 15):
        assert tuple(build_on_meta(explicit, L=L).module.config.layer_types) == (kinds * 3)[:L]


def test_layers_that_differ_by_position_are_not_trusted(tmp_path):
    assert not load(tmp_path, {**QWEN3_MOE, "decoder_sparse_step": 2}).trusted_layers
    assert not load(tmp_path, {**QWEN3_MOE, "mlp_only_layers": [0]}).trusted_layers


def test_types(tmp_path):
    def dtype_of(config, **options):
        family = load(tmp_path, config, **options)
        return {p.dtype for p in build_on_meta(family, L=1).module.parameters()}, family.notes[0]

    assert dtype_of(LLAMA) == ({torch.bfloat16}, "bfloat16 from config")
    assert dtype_of(GPT2) == ({torch.float32}, "float32 (the config names no type)")
    assert dtype_of(LLAMA, dtype="fp16,weights=int8") == ({torch.float16}, "float16 as asked")
    with pytest.raises(LoadError, match="torch builds no modules in int8"):
        load(tmp_path, LLAMA, dtype="int8")


def test_training_gets_labels(tmp_path):
    for config, labels in ((GPT2, ("B", "T")), (BERT, ("B", "T")), (T5, ("B", "T")), (VIT, ("B",))):
        family = load(tmp_path, config, phase="train")
        built = build_on_meta(family, L=1)
        assert tuple(built.kwargs["labels"].shape) == tuple(family.sizes[n] for n in labels)
        assert "labels" not in build_on_meta(load(tmp_path, config), L=1).kwargs


def test_the_class(tmp_path):
    def name(config, **options):
        return load(tmp_path, config, **options).name

    assert name(LLAMA) == "LlamaForCausalLM (it)"
    assert name({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}).startswith("LlamaForSequenceClassification")
    assert name({**LLAMA, "architectures": ["NoSuchModel"]}).startswith("LlamaForCausalLM")
    assert name({"model_type": "bert"}).startswith("BertForMaskedLM")
    assert name({"model_type": "bert"}, model="BertModel").startswith("BertModel")
    assert name(T5).startswith("T5ForConditionalGeneration")
    assert name({"architectures": ["GPT2LMHeadModel"], "n_layer": 2}).startswith("GPT2LMHeadModel")
    with pytest.raises(LoadError, match="no model class 'Path'"):
        name(LLAMA, model="Path")


def test_known_type_with_remote_code_is_built_without_it(tmp_path):
    marker = tmp_path / "ran"
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "modeling_x.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    config = {**GPT2, "auto_map": {"AutoConfig": "modeling_x.X", "AutoModelForCausalLM": "modeling_x.X"}}
    build_on_meta(load(tmp_path, config), L=1)
    assert not marker.exists()
    with pytest.raises(LoadError, match=r"the model type 'mine' needs remote code \(auto_map\), which is never run"):
        load(tmp_path, {**config, "model_type": "mine"})
    assert not marker.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", r"config.json:1 is not valid JSON"),
        ('{"a": 1,\n}', r"config.json:\d is not valid JSON"),
        ("[1]", "holds no JSON object"),
        ("{}", "has no model_type"),
        ('{"model_type": "lama"}', r"knows no model type 'lama'; did you mean llama"),
        ('{"model_type": ["llama"]}', r"has no model_type|knows no model type"),
        ('{"model_type": "llama", "hidden_size": "wide"}', r"LlamaConfig refuses the file"),
        ('{"model_type": "llama", "num_hidden_layers": 1000000000}', r"L=1000000000 layers is beyond all reason"),
        ('{"model_type": "llama", "hidden_size": -4096}', r"hidden_size=-4096 is no size"),
        ('{"model_type": "autoformer"}', r"no example input is known for"),
    ],
)
def test_refusals(tmp_path, content, says):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(CostirError, match=says) as caught:
        load_subject(str(path))
    assert "\n" not in str(caught.value)


def test_other_refusals(tmp_path, monkeypatch):
    with pytest.raises(LoadError, match=r"cannot read .*config.json: No such file"):
        load_subject(str(tmp_path))
    with pytest.raises(SizeError, match=r"has no size 'Q'; known: B, D, F, K, L, N, T, V"):
        load(tmp_path, LLAMA, sizes={"Q": 2})
    with pytest.raises(LoadError, match="takes no --input"):
        load(tmp_path, LLAMA, input=["x: [B]"])
    import costir.load.hf as hf

    monkeypatch.setattr(hf.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LoadError, match=r"needs transformers, which is not installed; pip install 'costir\[hf\]'"):
        load(tmp_path, LLAMA)


def test_quiet_and_offline(tmp_path, capfd):
    import huggingface_hub.constants as hub

    before = hub.HF_HUB_OFFLINE, transformers.logging.get_verbosity()
    build_on_meta(load(tmp_path, {**LLAMA, "unknown_field": 1, "quantization_config": {"quant_method": "fp8"}}), L=1)
    assert (hub.HF_HUB_OFFLINE, transformers.logging.get_verbosity()) == before
    assert logging.getLogger("transformers").level == before[1]
    assert capfd.readouterr() == ("", "")


def test_the_table_is_documented():
    text = (ROOT / "docs" / "sizes.md").read_text()
    rows = {line.split("|")[1].strip(" `"): line for line in text.splitlines() if line.startswith("| `")}
    for letter, fields in {**TABLE, **VISION_TABLE}.items():
        assert [f.strip(" `") for f in rows[letter].split("|")[3].split(",")] == list(fields)
    for fields in DECODER.values():
        assert all(f"`{f}`" in text for f in fields)


SHORT_GPT2 = {**GPT2, "n_positions": 8, "n_ctx": 8, "n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 16}


def test_longer_than_the_positions(tmp_path):
    """transformers itself fails there; at the longest length it runs."""
    family = load(tmp_path, SHORT_GPT2)
    build = lambda t: transformers.GPT2LMHeadModel(transformers.GPT2Config(**SHORT_GPT2))(torch.zeros(1, t, dtype=torch.long))
    build(8)
    with pytest.raises(IndexError):
        build(9)
    assert load(tmp_path, SHORT_GPT2, sizes={"T": 8}).sizes == family.sizes
    with pytest.raises(SizeError, match=r"it has no T=9: it ends at T = 8; choose a smaller T"):
        load(tmp_path, SHORT_GPT2, sizes={"T": 9})
    with pytest.raises(SizeError, match=r"T <= 8 .* does not meet; choose a smaller T"):
        costir.analyze(family).at(T=9)


def test_sizes_that_the_configuration_refuses(tmp_path):
    """The reason is that of the class itself, word for word."""
    content = {**LLAMA, "hidden_size": 100, "num_attention_heads": 8}
    with pytest.raises(Exception, match="not a multiple") as told:
        transformers.LlamaConfig(**content)
    reason = str(told.value.__cause__ or told.value).splitlines()[-1].strip().rstrip(".")
    with pytest.raises(SizeError) as found:
        costir.analyze(load(tmp_path, {**content, "hidden_size": 64, "head_dim": 8}, sizes={"D": 100, "T": 4}))
    assert reason in found.value.message
    assert "D=100" in found.value.message
