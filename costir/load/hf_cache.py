"""One step of serving a causal transformers model: a prompt into an empty cache, or one token after those in the cache.

The cache is the library's own, made from the model's configuration: layers of a sliding window, latent and recurrent states are
what the library keeps of them. It is filled by the model itself, which reads the S - 1 tokens before the one that is decoded.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costir.errors import LoadError, TraceError
from costir.load.family import CacheUse
from costir.load.hf_inputs import Input, InputPlan

SERVING = ("prefill", "decode")
ARGUMENTS = ("cache", "past_key_values", "cache_params")  # by the version of the library, and the kind of model
CACHES = {"dynamic": "DynamicCache", "static": "StaticCache"}
LAST_LOGITS = "logits of the last token alone, as generate() asks for"


def serving_plan(cls: Any, config: Any, plan: InputPlan, phase: str) -> InputPlan:
    """The inputs of a step: T tokens of each sequence (prefill), or one where S tokens are in the cache after it (decode).

    Raises:
        LoadError: where the class keeps no cache, or has an encoder.
    """
    parameters = inspect.signature(cls.forward).parameters
    if getattr(config, "is_encoder_decoder", False):
        raise LoadError(f"{cls.__name__} has an encoder, and --phase {phase} is for decoders alone", "use --phase forward")
    if set(plan.inputs) != {"input_ids"} or "T" not in plan.sizes or not _argument(parameters):
        raise LoadError(
            f"{cls.__name__} keeps no cache of tokens, so it has no phase {phase}",
            "name a causal class: --model LlamaForCausalLM",
        )
    options = {**plan.options, "use_cache": True} if "use_cache" in parameters else dict(plan.options)
    if phase == "prefill":
        last = "logits_to_keep" in parameters
        notes = (*plan.notes, LAST_LOGITS) if last else plan.notes
        return replace(plan, options={**options, "logits_to_keep": 1} if last else options, notes=notes)
    lengths = {"S" if n == "T" else n: v for n, v in plan.sizes.items()}
    limits = {"S" if n == "T" else n: v for n, v in plan.limits.items()}
    return replace(plan, inputs={"input_ids": Input(("B", 1), integer=True)}, sizes=lengths, limits=limits, multiples={},
                   options=options)  # fmt: skip


def _argument(parameters: Mapping[str, Any]) -> str:
    return next((n for n in ARGUMENTS if n in parameters), "")


def cache_use(cls: Any, plan: InputPlan, phase: str, kind: str) -> CacheUse:
    """How the step uses a cache of this kind, "dynamic" or "static"."""
    name = _argument(inspect.signature(cls.forward).parameters)
    keep_last = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(cls.forward).parameters else {}

    def fill(module: Any, kwargs: dict[str, Any], sizes: Mapping[str, int]) -> None:
        import torch

        length = sizes["S" if phase == "decode" else "T"]
        kwargs[name] = _empty(module.config, kind, length)
        if phase == "decode":
            before = torch.zeros((kwargs["input_ids"].shape[0], length - 1), dtype=torch.int64)
            module(**{**kwargs, "input_ids": before, **keep_last})
            if not any(getattr(layer, "is_initialized", True) for layer in getattr(kwargs[name], "layers", ())):
                raise TraceError(f"{cls.__name__} leaves its cache empty", "name a causal class: --model LlamaForCausalLM")

    return CacheUse((name,), fill, lambda module, sizes: _grows(module.config, kind, phase, sizes))


def _empty(config: Any, kind: str, length: int) -> Any:
    """A cache of the library's own for a configuration."""
    import transformers

    options = {"max_cache_len": length} if kind == "static" else {}
    return getattr(transformers, CACHES[kind])(config=config, **options)


def _grows(config: Any, kind: str, phase: str, sizes: Mapping[str, int]) -> list[tuple[str, str, int, int, bool]]:
    """Where layers of the cache stop growing: after W - 1 tokens where it is dynamic, after W where it is static."""
    layers = _empty(config, "dynamic", 0).layers
    windows = {w for layer in layers if type(w := getattr(layer, "sliding_window", None)) is int}
    op = "<" if kind == "dynamic" else "<="
    length = sizes["S" if phase == "decode" else "T"]
    found = [(f"a sliding window of {w}", op, length, w, False) for w in sorted(windows)]
    return [("a token is there before it", ">", length, 1, True), *found] if phase == "decode" else found


__all__ = ["SERVING", "cache_use", "serving_plan"]
