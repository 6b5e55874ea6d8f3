"""A Hugging Face config.json as a family: offline, without weights, without remote code.

Sizes carry the field's letters (docs/sizes.md has the table). The class is the one that `architectures` names, else the
model type's own head: sequence to sequence, masked, causal, ... . Needs the extra `costir[hf]`.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from costir.errors import CostirError, LoadError, SizeError, nearest
from costir.load.dtypes import MODULE_DTYPES, math_dtype
from costir.load.family import Built, Family, with_sizes, within_limits
from costir.load.hf_cache import SERVING, cache_use, serving_plan
from costir.load.hf_inputs import InputPlan, plan_inputs
from costir.load.hf_sizes import SizeField, absurd, find_sizes, layers_follow_lists, multiples, per_layer, section, with_values

LARGEST = 10_000_000  # bytes of a config file
DEEPEST = 10_000  # layers
HEADS = (
    "FOR_IMAGE_TEXT_TO_TEXT", "FOR_SPEECH_SEQ_2_SEQ", "FOR_SEQ_TO_SEQ_CAUSAL_LM", "FOR_MASKED_LM", "FOR_CAUSAL_LM", "FOR_CTC",
    "FOR_ZERO_SHOT_IMAGE_CLASSIFICATION", "FOR_IMAGE_CLASSIFICATION", "FOR_OBJECT_DETECTION", "FOR_SEMANTIC_SEGMENTATION",
    "FOR_DEPTH_ESTIMATION", "FOR_AUDIO_CLASSIFICATION", "FOR_VIDEO_CLASSIFICATION", "",
)  # fmt: skip
# Classes that cannot run on text alone, with the class of their text model.
TEXT_ONLY = {"Llama4ForConditionalGeneration": "Llama4ForCausalLM"}
RELATED = (("D", "N"), ("D", "N_dec"), ("N", "K"), ("I", "P"))  # whole head widths, groups of heads, patches
SECTIONS = ("", "text_config", "vision_config", "audio_config", "encoder", "decoder")


def load(
    path: Path, model: str = "", dtype: str = "", sizes: Mapping[str, int] | None = None, phase: str = "forward",
    cache: str = "dynamic",
) -> Family:  # fmt: skip
    """The family of a config file.

    Args:
        path: config.json, or a folder that holds one.
        model: a transformers class to take instead of the one that the file names.
        dtype: `--dtype`; else the file's own type, else float32.
        sizes: base sizes that replace the file's.
        phase: "backward", "train": labels are given, and the model's own loss is differentiated; "prefill", "decode": a step of
            serving, with a cache.
        cache: the library's "dynamic" cache, or its "static" one.

    Raises:
        LoadError: no transformers, no such file, not JSON, an unknown model type, remote code, a field that the
            configuration class refuses, a class for which no inputs are known.
        SizeError: `sizes` has a name that the model has not, or a length beyond its table of positions.
    """
    path = path / "config.json" if path.is_dir() else path
    data = read_config(path)
    if importlib.util.find_spec("transformers") is None:
        raise LoadError(f"{path} needs transformers, which is not installed", "pip install 'costir[hf]'")
    with quiet_and_offline():
        return _family(path, data, model, dtype, sizes or {}, phase, cache)


def read_config(path: Path) -> dict[str, Any]:
    """The content of a config file.

    Raises:
        LoadError: where there is none, or it is no JSON object.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise LoadError(f"{path} has {path.stat().st_size} bytes; a config has at most {LARGEST}")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from None
    except json.JSONDecodeError as error:
        raise LoadError(f"{path}:{error.lineno} is not valid JSON: {error.msg}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise LoadError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise LoadError(f"{path} holds no JSON object", "a config.json begins with {")
    return data


def _family(path: Path, data: dict[str, Any], model: str, dtype: str, given: Mapping[str, int], phase: str,
            cache: str) -> Family:  # fmt: skip
    config_class = _config_class(path, data)
    original, data = data, _cleaned(data)

    def make(content: Mapping[str, Any]) -> Any:
        return config_class.from_dict(copy.deepcopy(dict(content)))

    try:
        config = make(data)
    except Exception as error:  # validators of configuration classes raise what they like
        raise LoadError(f"{path}: {config_class.__name__} refuses the file: {_first_line(error)}") from None
    wrong = absurd(config, "text_config" if getattr(config, "text_config", None) is not None else "")
    if wrong:
        raise LoadError(f"{path}: {wrong} is no size", "sizes are whole numbers from 1 to 10**12")
    cls = _model_class(path, data, config, model)
    holder = _holder(cls, config)
    inner = section(config, holder)
    text = "" if holder or getattr(config, "text_config", None) is None else "text_config"
    plan = plan_inputs(cls, inner, text, phase in ("backward", "train"))
    if phase in SERVING:
        plan = serving_plan(cls, inner, plan, phase)
    text, vision = holder or text, None if plan.vision is None else holder or plan.vision
    fields = find_sizes(make, data, config, text, vision)
    fields += [SizeField(s, plan.sizes[s], ((holder, f),)) for s, (_, f) in plan.fields.items()]
    what = path.parent.name or str(path)
    sizes = with_sizes(_ordered(plan, fields), given, what)
    within_limits(sizes, plan.limits, what)
    _check_depth(path, sizes)
    torch_dtype, dtype_note = _dtype(config, data, dtype)
    layers = next((f.value for f in fields if f.letter == "L"), 0)
    return Family(
        name=f"{cls.__name__} ({path.parent.name})" if path.name == "config.json" and path.parent.name else cls.__name__,
        build=_builder(
            cls, lambda values: section(make(with_values(data, values, fields, config)), holder), fields, plan, torch_dtype
        ),
        sizes=sizes,
        loss=None,
        notes=(dtype_note, *plan.notes, *_notes(original, cls, model)),
        source=str(path),
        depth=tuple(f.letter for f in fields if f.letter in ("L", "L_dec")),
        trusted_layers=layers_follow_lists(config, text),
        per_layer=per_layer(config, text, layers) if layers else {},
        multiples={**plan.multiples, **multiples(config, text, fields)},
        related=RELATED,
        divisible=(("N", "K"),) if {"N", "K"} <= sizes.keys() else (),
        limits={k: v for k, v in plan.limits.items() if k in sizes},
        cache=cache_use(cls, plan, phase, cache) if phase in SERVING else None,
    )


def _builder(
    cls: Any, config_at: Callable[[Mapping[str, int]], Any], fields: list[SizeField], plan: InputPlan, dtype: str
) -> Callable[..., Built]:
    base = plan.numbers | {f.letter: f.value for f in fields} | plan.sizes

    def build(**sizes: int) -> Built:
        import torch

        point = {**base, **sizes}
        with quiet_and_offline():
            module = cls._from_config(_config_at(config_at, point, sizes), dtype=getattr(torch, dtype))
        module.eval()
        inputs = {n: i.tensor(point, getattr(torch, dtype)) for n, i in plan.inputs.items()}
        return Built(module, (), {**inputs, **plan.options})

    return build


def _config_at(make: Callable[[Mapping[str, int]], Any], point: Mapping[str, int], asked: Mapping[str, int]) -> Any:
    """The configuration at a point.

    Raises:
        SizeError: where the configuration class refuses it, with its reason.
    """
    try:
        return make(point)
    except CostirError:
        raise
    except Exception as error:  # validators of configuration classes raise what they like
        where = ", ".join(f"{n}={int(v)}" for n, v in asked.items())
        raise SizeError(f"no such configuration at {where}: {_reason(error)}", "choose sizes that fit each other") from None


def _reason(error: BaseException) -> str:
    """What a validator found wrong: the innermost message, without the heading of the check."""
    while error.__cause__ is not None:
        error = error.__cause__
    return _first_line(error).rpartition("':")[2].strip().rstrip(".") or type(error).__name__


def _config_class(path: Path, data: Mapping[str, Any]) -> Any:
    """The configuration class of the model type."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    kind = data.get("model_type")
    if not isinstance(kind, str) or not kind:
        named = _named_class(data)
        if named is not None and named.config_class is not None:
            return named.config_class
        raise LoadError(
            f"{path} has no model_type, so it is no transformers config", 'add "model_type": "llama", or the right one'
        )
    if kind not in CONFIG_MAPPING_NAMES:
        if data.get("auto_map"):
            raise LoadError(
                f"{path}: the model type {kind!r} needs remote code (auto_map), which is never run",
                "write a Python file with build(**sizes) that makes the model",
            )
        raise LoadError(f"{path}: this transformers knows no model type {kind!r}", nearest(str(kind), CONFIG_MAPPING_NAMES))
    return CONFIG_MAPPING[kind]


def _cleaned(data: Mapping[str, Any]) -> dict[str, Any]:
    """Without what would fetch code or weights, change the layout of weights, or pick the outputs of a backbone."""
    dropped = {"auto_map", "quantization_config", "use_pretrained_backbone", "_name_or_path"}
    if not str((data.get("architectures") or [""])[0]).endswith("Backbone"):
        dropped |= {"out_features", "out_indices", "stage_names"}  # these depend on the number of layers
    return {k: v for k, v in data.items() if k not in dropped}


def _named_class(data: Mapping[str, Any]) -> Any:
    """The first of `architectures` that transformers has, or None."""
    names = data.get("architectures")
    return next((c for n in names if (c := _class(n)) is not None), None) if isinstance(names, list) else None


def _class(name: Any) -> Any:
    import transformers

    found = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
    return found if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) else None


def _model_class(path: Path, data: Mapping[str, Any], config: Any, asked: str) -> Any:
    """The class to analyse: the one asked for, the file's, or the model type's first head."""
    import transformers.models.auto.modeling_auto as auto

    if asked:
        found = _class(asked)
        if found is None:
            raise LoadError(f"transformers has no model class {asked[:60]!r}", "write for example --model LlamaForCausalLM")
        return found
    named = _named_class(data)
    if named is not None:
        return _class(TEXT_ONLY.get(named.__name__, "")) or named
    for head in HEADS:
        names = getattr(auto, f"MODEL_{head + '_' if head else ''}MAPPING_NAMES")
        if config.model_type in names:
            name = names[config.model_type]
            name = name if isinstance(name, str) else name[0]
            found = _class(TEXT_ONLY.get(name, name))
            if found is not None:
                return found
    found = _class_beside(config)
    if found is None:
        raise LoadError(f"{path}: transformers has no model class for the type {config.model_type!r}", "name one with --model")
    return found


def _class_beside(config: Any) -> Any:
    """A model class for a part that no head covers (a vision tower), from transformers' file beside the configuration's."""
    from transformers import PreTrainedModel

    try:
        module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    except ImportError:
        return None
    found: list[Any] = [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, PreTrainedModel)]
    own = [c for c in found if c.config_class is type(config) and "forward" in vars(c)]
    return max(own, key=lambda c: ("For" in c.__name__, c.__name__.endswith("Model"), c.__name__), default=None)


def _holder(cls: Any, config: Any) -> str:
    """The section of the configuration that is the class's own: "" but for the text model of a larger one."""
    kind = cls.config_class
    if kind is None or isinstance(config, kind):
        return ""
    return next((n for n in SECTIONS[1:] if isinstance(getattr(config, n, None), kind)), "")


def _ordered(plan: InputPlan, fields: list[SizeField]) -> dict[str, int]:
    """B, T, S first, then the sizes of the configuration in the order of the table."""
    return {**plan.sizes, **{f.letter: f.value for f in fields if f.letter not in plan.sizes}}


def _check_depth(path: Path, sizes: Mapping[str, int]) -> None:
    for name in ("L", "L_dec"):
        if sizes.get(name, 0) > DEEPEST:
            raise LoadError(f"{path}: {name}={sizes[name]} layers is beyond all reason", f"at most {DEEPEST} are built")


def _dtype(config: Any, data: Mapping[str, Any], asked: str) -> tuple[str, str]:
    """The type that the model is built in, and a note that says where it is from."""
    if math := math_dtype(asked):
        return math, f"{math} as asked"
    from_config = str(getattr(config, "dtype", None) or "").removeprefix("torch.")
    if from_config in MODULE_DTYPES:
        return from_config, f"{from_config} from config"
    return "float32", "float32 (the config names no type)"


def _notes(data: Mapping[str, Any], cls: Any, asked: str) -> tuple[str, ...]:
    """What the file says and the analysis does not follow."""
    notes, wanted = [], data.get("architectures")
    if wanted and not asked and _named_class(data) is None:
        first = str(wanted[0] if isinstance(wanted, list) else wanted)[:60]
        notes.append(f"architectures names {first}, a class that this transformers has not: {cls.__name__} is counted")
    if data.get("quantization_config"):
        notes.append("quantization_config is left out: weights count in the model's own type; see --dtype bf16,weights=int8")
    return tuple(notes)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[-2:])[:200] if lines else type(error).__name__


@contextlib.contextmanager
def quiet_and_offline() -> Iterator[None]:
    """Neither warnings from transformers nor a request to the hub while a configuration or model is made."""
    import huggingface_hub.constants as hub
    import transformers

    offline, level = hub.HF_HUB_OFFLINE, transformers.logging.get_verbosity()
    hub.HF_HUB_OFFLINE = True
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = offline
        transformers.logging.set_verbosity(level)
