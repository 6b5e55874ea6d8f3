"""Example inputs for a transformers class, from the signature of its `forward` and its configuration."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from costir.errors import LoadError
from costir.load.hf_sizes import section

BASE_BATCH = 1
LONGEST_BASE = 2048
STEPS = 32  # tokens where the text is read one by one
STEPPED = ("state_size", "attention_hidden_size", "mamba_d_state", "lru_width")
CHUNKS = ("chunk_size", "mamba_chunk_size", "attention_window")
BLOCK_SPARSE = frozenset({"big_bird", "bigbird_pegasus"})
SAMPLES = 16000  # one second of sound
MEL_FIELDS = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "feature_size", "n_mels", "mel_bins")
# Learned positions begin after the padding token: two fewer tokens than the table has rows.
OFFSET_POSITIONS = frozenset({
    "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text", "xmod", "longformer",
    "mpnet", "luke", "layoutlmv3", "markuplm", "ibert", "esm", "ernie_m",
})  # fmt: skip
TOKEN_LABELS = re.compile(r"ForCausalLM$|LMHeadModel$|ForMaskedLM$|ForConditionalGeneration$|ForTokenClassification$")
CLASS_LABELS = re.compile(r"For(Sequence|Image)Classification$")


@dataclass(frozen=True)
class Input:
    """One argument: dimensions are numbers, size names, or (number, size name) for a multiple; integers or floats."""

    shape: tuple[int | str | tuple[int, str], ...]
    integer: bool = False

    def tensor(self, sizes: Mapping[str, int], dtype: Any) -> Any:
        """Zeros at these sizes."""
        import torch

        dims = [d if isinstance(d, int) else sizes[d] if isinstance(d, str) else d[0] * sizes[d[1]] for d in self.shape]
        return torch.zeros(dims, dtype=torch.int64 if self.integer else dtype)


@dataclass(frozen=True)
class InputPlan:
    """What `forward` is given.

    Attributes:
        inputs: by argument name.
        sizes: base values of the sizes that only inputs have (B, T, S).
        limits: largest legal values of these.
        multiples: what these must be multiples of.
        options: other arguments, such as use_cache=False.
        vision: the section that holds the image sizes, or None where no image is given.
        fields: sizes of the inputs that configuration fields hold: letter -> (section, field).
        numbers: values of names in the inputs that turn out to be no sizes of their own.
        notes: what a reader should know.
    """

    inputs: dict[str, Input]
    sizes: dict[str, int]
    numbers: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    multiples: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    vision: str | None = None
    fields: dict[str, tuple[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def plan_inputs(cls: Any, config: Any, text: str, with_labels: bool) -> InputPlan:
    """The inputs of one forward pass without cache.

    Args:
        cls: the model class.
        config: its configuration.
        text: the section with the text model's sizes.
        with_labels: also give labels, so that the model computes its loss.

    Raises:
        LoadError: where no example inputs are known for the class.
    """
    parameters = inspect.signature(cls.forward).parameters
    main = getattr(cls, "main_input_name", "input_ids")
    if (
        not isinstance(main, str) or main not in _KINDS or main not in parameters
    ):  # the attribute is often inherited and names another class's input
        main = next((n for n in parameters if n in _KINDS), "")
    if not main:
        raise _refusal(cls, next(n for n in parameters if n != "self"))
    kind = _KINDS[main]
    plan = kind(cls, config, text, parameters)
    missing = [
        n
        for n, p in parameters.items()
        if p.default is p.empty and p.kind in (0, 1, 3) and n != "self" and n not in plan.inputs
    ]
    if missing:
        raise _refusal(cls, missing[0])
    if "use_cache" in parameters:
        plan.options["use_cache"] = False
    if with_labels and "labels" in parameters:
        target = plan.inputs.get("decoder_input_ids") or plan.inputs.get("input_ids")
        if TOKEN_LABELS.search(cls.__name__) and target is not None:
            plan.inputs["labels"] = target
        elif CLASS_LABELS.search(cls.__name__):
            plan.inputs["labels"] = Input(("B",), integer=True)
    return plan


def _refusal(cls: Any, name: str) -> LoadError:
    return LoadError(
        f"no example input is known for {name!r} of {cls.__name__}.forward",
        "write a Python file with build(**sizes) -> (module, args, kwargs) around this config",
    )


def _text(cls: Any, config: Any, text: str, parameters: Mapping[str, Any]) -> InputPlan:
    """Token ids; an encoder and a decoder get S and T of them."""
    owner = section(config, text)
    longest = _positions(config, owner)
    limits = {} if _unlimited(owner) or not longest else {"T": longest}
    steps = [n for n in STEPPED if getattr(owner, n, None)]
    chunk = _chunk(owner, longest)
    if getattr(getattr(owner, "attn_config", None), "alibi", False):  # biases are made for the longest text and cut
        limits, longest = {"T": longest}, longest // 2
    base = min(longest or 1024, LONGEST_BASE)
    if chunk:  # text is padded to whole chunks: take whole ones
        base = max(4, base // chunk) * chunk
    elif steps:  # a loop over the text is traced step by step
        base = min(base, STEPS)
    if "decoder_input_ids" in parameters:
        ids = {"input_ids": Input(("B", "S"), True), "decoder_input_ids": Input(("B", "T"), True)}
        limits |= {"S": limits["T"]} if limits else {}
        return InputPlan(
            ids,
            {"B": BASE_BATCH, "T": min(base, 128), "S": min(base, 512)},
            limits=limits,
            notes=_length_note(owner, longest, limits),
        )
    inputs = {"input_ids": Input(("B", "T"), True)}
    if "bbox" in parameters:
        inputs["bbox"] = Input(("B", "T", 4), True)
    notes, vision, numbers = _length_note(owner, longest, limits), None, dict[str, int]()
    if "pixel_values" in parameters and getattr(config, "vision_config", None) is not None:
        if "ForConditionalGeneration" in cls.__name__ or "CausalLM" in cls.__name__:
            notes += ("text only: no image is given",)
        else:
            vision = "vision_config"
            inputs["pixel_values"] = _image(section(config, vision))
            numbers = _side(section(config, vision))
            notes += ("sizes of vision_config other than I and P are kept as numbers",)
    multiples = {"T": chunk} if chunk else {}
    return InputPlan(inputs, {"B": BASE_BATCH, "T": base}, numbers, limits, multiples, vision=vision, notes=notes)


def _chunk(owner: Any, longest: int) -> int:
    """The length of the pieces that the text is cut into, where several fit; 0 where it is not cut."""
    names = (*CHUNKS, "block_size") if getattr(owner, "model_type", "") in BLOCK_SPARSE else CHUNKS
    values = [getattr(owner, n, None) for n in names]
    found = [max(v) if isinstance(v, list | tuple) and v else v for v in values]
    chunk = next((v for v in found if type(v) is int and v > 1), 0)
    return chunk if not longest or 4 * chunk <= longest else 0


def _positions(config: Any, owner: Any) -> int:
    """The longest text that the configuration provides positions for; 0 where it does not say."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        value = getattr(owner, name, None)
        if type(value) is int and value > 0:
            return value - 2 if config.model_type in OFFSET_POSITIONS else value
    return 0


def _unlimited(owner: Any) -> bool:
    """Whether positions are computed (rotary, relative, ALiBi) instead of looked up in a table."""
    rotary = any(
        getattr(owner, n, None) for n in ("rope_parameters", "rope_theta", "rotary_dim", "rotary", "rotary_pct", "alibi")
    )
    relative = any(getattr(owner, n, None) for n in ("relative_attention_num_buckets", "relative_attention", "state_size"))
    return rotary or relative


def _length_note(owner: Any, longest: int, limits: Mapping[str, int]) -> tuple[str, ...]:
    if not longest:
        return ()
    return (f"positions: a table of {longest}" if limits else f"the model was trained for at most {longest} tokens",)


def _image(owner: Any) -> Input:
    channels = getattr(owner, "num_channels", 3)
    side = getattr(owner, "image_size", 224)
    if type(side) is int:
        return Input(("B", channels, "I", "I"))
    return Input(("B", channels, *(list(side) * 2)[:2])) if isinstance(side, list | tuple) else Input(("B", channels, 224, 224))


def _side(owner: Any) -> dict[str, int]:
    side = getattr(owner, "image_size", None)
    return {"I": side} if type(side) is int else {}


def _vision(cls: Any, config: Any, text: str, parameters: Mapping[str, Any]) -> InputPlan:
    where = next((n for n in ("vision_config", "encoder") if hasattr(getattr(config, n, None), "image_size")), "")
    owner = section(config, where)
    image = _image(owner)
    if not hasattr(owner, "image_size"):  # a convolutional network takes any
        image = Input(("B", getattr(owner, "num_channels", 3), "I", "I"))
    inputs, sizes, limits = {"pixel_values": image}, {"B": BASE_BATCH}, dict[str, int]()
    if "decoder_input_ids" in parameters or "input_ids" in parameters:
        inputs["decoder_input_ids" if "decoder_input_ids" in parameters else "input_ids"] = Input(("B", "T"), True)
        longest = _positions(config, section(config, text))
        sizes["T"] = min(longest or 128, 128)
        limits = {"T": longest} if longest and not _unlimited(section(config, text)) else {}
    if "I" in image.shape and type(getattr(owner, "image_size", None)) is not int:
        sizes["I"] = 224
    return InputPlan(inputs, sizes, _side(owner), limits, vision=where)


def _features(cls: Any, config: Any, text: str, parameters: Mapping[str, Any]) -> InputPlan:
    """Mel spectra: Whisper's have two frames per position, others as many as there are."""
    mel = next((v for n in MEL_FIELDS if type(v := getattr(config, n, None)) is int), 80)
    decoder = {"decoder_input_ids": Input(("B", "T"), True)} if "decoder_input_ids" in parameters else {}
    longest = getattr(config, "max_target_positions", 0) or 448
    sizes = {"B": BASE_BATCH, **({"T": min(longest, 128)} if decoder else {})}
    limits = {"T": longest} if decoder else {}
    if config.model_type == "whisper":
        frames: dict[str, tuple[str, str]] = {"S": ("", "max_source_positions")}
        inputs = {"input_features": Input(("B", mel, (2, "S"))), **decoder}
        return InputPlan(inputs, {**sizes, "S": config.max_source_positions}, limits=limits, fields=frames)
    return InputPlan({"input_features": Input(("B", "S", mel)), **decoder}, {**sizes, "S": 1024}, limits=limits)


def _samples(cls: Any, config: Any, text: str, parameters: Mapping[str, Any]) -> InputPlan:
    """Sound as samples, or a spectrum of fixed length."""
    if "decoder_input_values" in parameters or "decoder_input_ids" in parameters:
        raise _refusal(cls, "decoder_input_values")
    if type(getattr(config, "max_length", None)) is int and type(getattr(config, "num_mel_bins", None)) is int:
        return InputPlan({"input_values": Input(("B", config.max_length, config.num_mel_bins))}, {"B": BASE_BATCH})
    return InputPlan(
        {"input_values": Input(("B", "T"))}, {"B": BASE_BATCH, "T": SAMPLES}, notes=(f"T counts samples; {SAMPLES} are 1 s",)
    )


_KINDS = {"input_ids": _text, "pixel_values": _vision, "input_features": _features, "input_values": _samples}
