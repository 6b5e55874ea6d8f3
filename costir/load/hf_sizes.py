"""Which field of a transformers configuration is which size: one table for all configuration classes.

docs/sizes.md prints this table. transformers' own `attribute_map` is applied first (GPT-2's `hidden_size` is `n_embd`), so
the standard names stand in front and only what no map covers follows.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from costir.errors import SizeError
from costir.units import LARGEST_SIZE

# letter -> fields; the first that a configuration has names the size.
TABLE: dict[str, tuple[str, ...]] = {
    "D": ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim"),
    "F": ("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "n_inner", "ffn_hidden_size", "mlp_dim", "hidden_dim"),
    "V": ("vocab_size",),
    "L": ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "depth"),
    "N": ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
    "K": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "H": ("head_dim", "attention_head_dim", "d_kv"),
    "E": ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"),
    "k": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"),
    "F_moe": ("moe_intermediate_size",),
}
VISION_TABLE: dict[str, tuple[str, ...]] = {"I": ("image_size",), "P": ("patch_size",)}

# Fields that stand beside another and share its letter while their values are equal; else they are `<letter>_dec`.
DECODER = {
    "F": ("decoder_ffn_dim",),
    "L": ("decoder_layers", "num_decoder_layers"),
    "N": ("decoder_attention_heads",),
}
# Fields that repeat a size: written out in many configurations, equal to it by design.
REPEATED = {
    "D": ("word_embed_proj_dim", "attention_hidden_size", "lru_width"),
    "N": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),  # equal means: heads are not grouped
    "H": ("qk_nope_head_dim",),
}
# Latent attention: a head has a part with positions and a part without, and `head_dim` repeats the smaller one.
LATENT = {"qk_rope_head_dim": {"H": ("v_head_dim",)}}
# What makes layers differ by their position without a list that says so.
POSITIONAL = (
    "decoder_sparse_step", "encoder_sparse_step", "attn_layer_period", "expert_layer_period", "num_kv_shared_layers",
    "global_attn_every_n_layers", "first_k_dense_replace", "mlp_only_layers", "moe_layer_start_index", "moe_layer_interval",
    "interleave_moe_layer_step", "cross_attention_layers", "cla_share_factor", "full_attn_idxs", "attn_layer_indices",
)  # fmt: skip


# Groups of heads that share their state; their number divides that of the heads.
SHARED = ("n_groups", "mamba_n_groups", "mamba_ngroups")

# A configuration that has one of these is a pyramid of stages; the number of stages is no number of equal layers, and one
# number of heads must divide the widths of all stages.
STAGES = ("depths", "hidden_sizes")


@dataclass(frozen=True)
class SizeField:
    """One size of a configuration.

    Attributes:
        letter: its name.
        value: its base value.
        fields: the fields that hold it, each with its section ("" or "text_config").
        scaled: fields in a fixed ratio to it because the configuration wants that (heads of a fixed width), with base values.
    """

    letter: str
    value: int
    fields: tuple[tuple[str, str], ...]
    scaled: tuple[tuple[str, str, int], ...] = ()


def read(owner: Any, name: str) -> Any:
    """A field's value; None where there is none, or where it differs between layers and so has no single one."""
    try:
        return getattr(owner, name, None)
    except Exception:  # transformers has an exception of its own for fields that vary over layers
        return None


def section(config: Any, name: str) -> Any:
    """A sub-configuration; the configuration itself for ""."""
    return getattr(config, name) if name else config


def find_sizes(make: Any, data: Mapping[str, Any], config: Any, text: str, vision: str | None) -> list[SizeField]:
    """The sizes of a configuration, in the order of the table.

    A field is a size where setting it has an effect and it does not follow from another size: Llama's `head_dim` is one
    where the file gives it, and D/N where it does not.

    Args:
        make: from a file's content to a configuration.
        data: the file's content.
        config: the configuration made from it.
        text, vision: the section that holds the text (or only) model's sizes, and the image sizes' one; None for none.
    """
    found: list[SizeField] = []
    for letter, names in TABLE.items():
        if letter not in ("L", "N") or not any(read(section(config, text), n) for n in STAGES):
            found += _size(config, text, letter, _names(section(config, text), letter, names), found)
    if vision is not None and not hasattr(section(config, vision), "window_size"):  # windows tie both to each other
        for letter, names in VISION_TABLE.items():
            found += _size(config, vision, letter, names, found)
    return _independent(make, data, config, found)


def _names(owner: Any, letter: str, usual: tuple[str, ...]) -> tuple[str, ...]:
    """The fields to look for, in a configuration that has fields of another meaning under the usual names."""
    return next((special[letter] for mark, special in LATENT.items() if letter in special and read(owner, mark)), usual)


def _size(config: Any, where: str, letter: str, names: tuple[str, ...], found: list[SizeField]) -> list[SizeField]:
    owner = section(config, where)
    taken = {f for s in found for f in s.fields}
    free = [(where, f) for n in names if (f := _field(owner, n)) and (where, f) not in taken]
    if not free:
        return []
    first = free[0]
    value = read(owner, first[1])
    fields, extra = [first], []
    for name in DECODER.get(letter, ()):
        field = _field(owner, name)
        if field and (where, field) not in (first, *taken):
            if read(owner, field) == value:
                fields.append((where, field))
            else:
                extra.append(SizeField(f"{letter}_dec", read(owner, field), ((where, field),)))
    for name in REPEATED.get(letter, ()):
        field = _field(owner, name)
        if field and read(owner, field) == value and (where, field) not in fields:
            fields.append((where, field))
    return [SizeField(letter, value, tuple(fields)), *extra]


def _field(owner: Any, name: str) -> str:
    """The field behind a name, declared or given by the file, where its value is a positive whole number; else ""."""
    declared = [f.name for f in dataclasses.fields(owner)] if dataclasses.is_dataclass(owner) else []
    key = next((n for n in other_names(owner, name) if n in declared or n in vars(owner)), "")
    value = read(owner, name)
    return key if type(value) is int and value >= 1 else ""


def other_names(owner: Any, name: str) -> list[str]:
    """All names of a field: the one that stores it, then those that `attribute_map` leads there."""
    real = owner.attribute_map.get(name, name)
    return [real, *(a for a, b in owner.attribute_map.items() if b == real)]


def multiples(config: Any, text: str, sizes: list[SizeField]) -> dict[str, int]:
    """What sizes must be multiples of because of fields that are no sizes: groups of experts, heads of a fixed width."""
    owner = section(config, text)
    shared = next((v for n in SHARED if type(v := read(owner, n)) is int and v > 1), 1)
    found = {
        s.letter: math.lcm(*(s.value * shared // math.gcd(b, s.value * shared) for _, _, b in s.scaled))
        for s in sizes
        if s.scaled
    }
    groups = read(owner, "n_group")
    if type(groups) is int and groups > 1 and any(s.letter == "E" for s in sizes):
        found["E"] = groups
    return found


def absurd(config: Any, text: str) -> str:
    """A field that should be a size and is not one, as "hidden_size=-4096"; "" where there is none."""
    owner = section(config, text)
    for letter, names in TABLE.items():
        least = 1 if letter in "DVLN" else 0
        for name in names:
            value = read(owner, name)
            if type(value) is int and not least <= value <= LARGEST_SIZE:
                return f"{name}={value}"
    return ""


def _independent(make: Any, data: Mapping[str, Any], config: Any, found: list[SizeField]) -> list[SizeField]:
    """Without the sizes that setting does not change, and those that follow from others.

    Where the configuration refuses one size alone (D is N*H), one that follows it in a fixed ratio is looked for.
    """
    kept: list[SizeField] = []
    scaled: set[str] = set()
    doubled = {s.letter: _doubled(make, data, config, [s]) for s in found}
    for i, s in enumerate(found):
        own = doubled[s.letter]
        if s.letter in scaled:
            continue
        if own is None:
            partner = next((p for p in found[i + 1 :] if _doubled(make, data, config, [s, p]) is not None), None)
            if partner is not None:
                scaled.add(partner.letter)
                kept.append(dataclasses.replace(s, scaled=tuple((*f, partner.value) for f in partner.fields)))
            continue
        if any(read(section(own, w), f) != 2 * s.value for w, f in s.fields):
            continue
        where, field = s.fields[0]
        others = [c for letter, c in doubled.items() if letter != s.letter and c is not None]
        if _given(data, where, field, config) or all(read(section(c, where), field) == s.value for c in others):
            kept.append(s)
    return kept


def _doubled(make: Any, data: Mapping[str, Any], config: Any, sizes: list[SizeField]) -> Any:
    """The configuration with these sizes doubled, or None where it refuses that."""
    try:
        return make(with_values(data, {s.letter: 2 * s.value for s in sizes}, sizes, config))
    except Exception:
        return None  # validators of configuration classes raise what they like


def _given(data: Mapping[str, Any], where: str, field: str, config: Any) -> bool:
    """Whether the file itself gives the field, under any of its names."""
    content = data.get(where) or {} if where else data
    return any(content.get(n) is not None for n in other_names(section(config, where), field))


def with_values(data: Mapping[str, Any], values: Mapping[str, int], sizes: list[SizeField], config: Any) -> dict[str, Any]:
    """A config file's content at other sizes: fields replaced, per-layer lists cut or continued, token ids kept legal.

    Raises:
        SizeError: where a field in a fixed ratio to a size would not be whole.
    """
    out = copy.deepcopy(dict(data))
    for where in {"", *(w for s in sizes for w, _ in s.fields)}:
        _fix_padding(section(config, where), out.setdefault(where, {}) if where else out)
    for s in sizes:
        if s.letter not in values:
            continue
        # A vocabulary is only ever compared with token ids, which follow it: such a comparison says nothing about sizes.
        value = int(values[s.letter]) if s.letter == "V" else values[s.letter]
        for where, field, here in (*((w, f, value) for w, f in s.fields), *_scaled(s, value)):
            target = out.setdefault(where, {}) if where else out
            for name in other_names(section(config, where), field):
                target.pop(name, None)
            target[field] = here
            if int(value) != s.value:
                _follow(out, target, s, int(value))
    return out


def _fix_padding(owner: Any, target: dict[str, Any]) -> None:
    """Put the padding token at 0 or 1: its row costs what every row costs, but must lie inside any vocabulary."""
    padding = read(owner, "pad_token_id")
    if type(padding) is int and padding > 1:
        for name in other_names(owner, "pad_token_id"):
            target.pop(name, None)
        target[other_names(owner, "pad_token_id")[0]] = 1


def _scaled(size: SizeField, value: int) -> list[tuple[str, str, int]]:
    for _, field, base in size.scaled:
        if base * int(value) % size.value:
            unit = size.value // math.gcd(base, size.value)
            raise SizeError(f"{size.letter}={int(value)} gives no whole {field}", f"choose a multiple of {unit}")
    return [(where, field, base * value // size.value) for where, field, base in size.scaled]


def _follow(out: dict[str, Any], target: dict[str, Any], size: SizeField, value: int) -> None:
    """What must change with a size: lists with one entry per layer, token ids with the vocabulary."""
    if size.letter.startswith("L"):
        _resize_lists(target, size.value, value)
    if size.letter == "V":
        _clamp_tokens(out, value)
        _clamp_tokens(target, value)


def _resize_lists(target: dict[str, Any], old: int, new: int) -> None:
    """Lists with one entry per layer, at another depth: cut, or continued with their shortest period."""
    for name, value in target.items():
        if isinstance(value, list) and len(value) == old and old > 1:
            period = next(p for p in range(1, old + 1) if all(value[i] == value[i - p] for i in range(p, old)))
            target[name] = [value[i] if i < old else value[i % period] for i in range(new)]


def _clamp_tokens(target: dict[str, Any], vocabulary: int) -> None:
    """Special tokens stay inside a smaller vocabulary; embeddings refuse a padding index outside it."""
    for name, value in target.items():
        if name.endswith(("_token_id", "_token_index")) and type(value) is int and value >= vocabulary:
            target[name] = vocabulary - 1


def per_layer(config: Any, text: str, layers: int) -> dict[str, tuple[Any, ...]]:
    """The configuration's lists with one entry per layer, after the configuration has filled in what the file leaves out."""
    lists = {k: v for k, v in vars(section(config, text)).items() if isinstance(v, list | tuple) and len(v) == layers}
    return {k: tuple(v) for k, v in lists.items() if layers > 1 or k == "layer_types"}


def layers_follow_lists(config: Any, text: str) -> bool:
    """Whether no field makes layers differ by position."""
    return not any(read(section(config, text), name) not in (None, 0, 1, [], ()) for name in POSITIONAL)
