"""An `nn.Module` that exists already, with example inputs, as a family: only named input dimensions vary."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from costir.errors import LoadError, SizeError
from costir.load.dtypes import dtype_name
from costir.load.family import Built, Family, with_sizes


def is_module(subject: Any) -> bool:
    """Whether it is an `nn.Module`."""
    return isinstance(subject, nn.Module)


def is_program(subject: Any) -> bool:
    """Whether it is an exported program or a graph module whose nodes carry values."""
    if isinstance(subject, torch.export.ExportedProgram):
        return True
    carried = {"val", "example_value"}
    return isinstance(subject, torch.fx.GraphModule) and any(carried & n.meta.keys() for n in subject.graph.nodes)


def in_dtype(build: Callable[..., Any], dtype: str) -> Callable[..., Any]:
    """The family built with another default floating type; "" changes nothing."""
    if not dtype:
        return build

    @functools.wraps(build)
    def built(**sizes: int) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, dtype))
        try:
            return build(**sizes)
        finally:
            torch.set_default_dtype(before)

    return built


def _named(specs: Sequence[str], inputs: Mapping[Any, torch.Tensor]) -> dict[Any, list[str]]:
    """Names of the dimensions of each input: from "x: B, T, D", "x: bf16[B, T, D]", or "B, T, D" by position.

    Raises:
        LoadError: a spec is of no input, or says another shape or type than the input has.
    """
    found: dict[Any, list[str]] = {}
    for position, spec in enumerate(specs):
        label, colon, dims = spec.rpartition(":")
        key: Any = label.strip() if colon else position
        if key not in inputs:
            known = ", ".join(str(k) for k in inputs)
            raise LoadError(f"no example input {key!r} for the dimensions {spec!r}", f"the inputs are {known}")
        given = inputs[key]
        inside = dims[dims.index("[") + 1 : dims.rindex("]")] if "[" in dims and "]" in dims else dims
        parts = [p.strip() for p in inside.replace(",", " ").split()]
        if len(parts) != given.dim():
            raise LoadError(f"{spec!r} names {len(parts)} dimensions, but the input has shape {tuple(given.shape)}")
        wrong = next((i for i, p in enumerate(parts) if p.isdigit() and int(p) != given.shape[i]), None)
        if wrong is not None:
            raise LoadError(f"{spec!r} says {parts[wrong]} where the input has shape {tuple(given.shape)}", _SAY)
        said = dims.partition("[")[0].strip() if "[" in dims else ""
        if said and dtype_name(said) != str(given.dtype).removeprefix("torch."):
            raise LoadError(f"{spec!r} says {said}, but the input is {str(given.dtype).removeprefix('torch.')}", _SAY)
        found[key] = parts
    return found


_SAY = "name its dimensions as they are, or give another example input"


def family_of_module(module: nn.Module, inputs: Any, specs: Sequence[str], sizes: Mapping[str, int], dtype: str = "") -> Family:
    """A family that runs this module on inputs of other sizes. Its weights are only looked at, never changed.

    Args:
        module: the module.
        inputs: a tensor, a tuple of arguments, or a dict of keyword arguments.
        specs: names of dimensions, "x: B, T, D" or, by position, "B, T, D"; whole numbers and "_" stay as they are.
        sizes: base sizes that differ from the example's.
        dtype: not supported for an existing module.

    Raises:
        LoadError: there are no inputs, or names and shapes do not agree.
    """
    if inputs is None:
        raise LoadError(
            "a module needs example inputs", "costir.analyze(module, (x,), input='x: B, T, D') or a family build(**sizes)"
        )
    if dtype:
        raise LoadError("an existing module keeps its own types", "convert it first: module.to(torch.bfloat16)")
    keyword = dict(inputs) if isinstance(inputs, Mapping) else {}
    given = () if keyword else tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    table: dict[Any, torch.Tensor] = {
        k: v for k, v in (keyword or dict(enumerate(given))).items() if isinstance(v, torch.Tensor)
    }
    parameters = [p for p in _signature_names(module) if not keyword]
    aliases = {name: i for i, name in enumerate(parameters) if i in table}
    dims = {aliases.get(k, k): v for k, v in _named(specs, {**table, **{a: table[i] for a, i in aliases.items()}}).items()}
    base: dict[str, int] = {}
    for key, parts in dims.items():
        for part, n in zip(parts, table[key].shape, strict=True):
            if part == "_" or part.isdigit():
                continue
            if base.setdefault(part, n) != n:
                raise SizeError(f"{part} is {base[part]} in one input and {n} in another", "give different names")
    module = getattr(module, "_orig_mod", module)

    def build(**point: int) -> Built:
        def resized(key: Any, t: Any) -> Any:
            if key not in dims or not isinstance(t, torch.Tensor):
                return t
            shape = [point.get(p, n) for p, n in zip(dims[key], t.shape, strict=True)]
            return t if tuple(shape) == tuple(t.shape) else torch.zeros(shape, dtype=t.dtype)

        return Built(module, tuple(resized(i, t) for i, t in enumerate(given)), {k: resized(k, t) for k, t in keyword.items()})

    return Family(type(module).__name__, build, with_sizes(base, sizes, type(module).__name__))


def _signature_names(module: nn.Module) -> list[str]:
    import inspect

    return [p.name for p in inspect.signature(module.forward).parameters.values()]
