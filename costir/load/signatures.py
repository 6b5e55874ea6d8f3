"""From the parameters of a function or constructor to sizes."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from costir.errors import LoadError

# Base values of sizes that a file names and gives no value for; they fit each other (D = N*H, I a multiple of P).
BASE_SIZES = {
    "B": 1, "T": 1024, "S": 1024, "D": 1024, "F": 4096, "V": 32000, "L": 2, "N": 16, "K": 4, "G": 4, "H": 64, "E": 8, "k": 2,
    "C": 3, "I": 224, "P": 16,
}  # fmt: skip
OTHER_BASE_SIZE = 256
LAYER_NAMES = frozenset(
    {"L", "layers", "n_layers", "num_layers", "n_layer", "depth", "num_hidden_layers", "n_blocks", "num_blocks"}
)


def base_size(name: str) -> int:
    """The base value of a size for which the user gave none."""
    return BASE_SIZES.get(name, OTHER_BASE_SIZE)


@dataclass(frozen=True)
class Plan:
    """How to call something from sizes.

    Attributes:
        sizes: base values in order.
        arguments: parameter -> size name, or a nested plan for a dataclass that holds sizes.
        make: what to call.
        notes: parameters that were left at their defaults because they are no sizes.
    """

    make: Callable[..., Any]
    sizes: dict[str, int]
    arguments: dict[str, str | Plan]
    notes: tuple[str, ...] = ()

    def __call__(self, sizes: Mapping[str, int]) -> Any:
        """Call it at these sizes; other entries of `sizes` are ignored."""
        return self.make(**{p: sizes[a] if isinstance(a, str) else a(sizes) for p, a in self.arguments.items()})


def function_plan(function: Callable[..., Any], what: str, given: Mapping[str, int]) -> Plan:
    """A plan for `model`, `inputs`, `build`: every parameter is a size, its default the base value.

    Raises:
        LoadError: where a parameter has neither a default nor a given size, or a default that cannot be a size.
    """
    sizes: dict[str, int] = {}
    notes = []
    for name, p in _parameters(function, what).items():
        if p.kind is p.VAR_KEYWORD:
            if not given and not sizes:
                raise LoadError(
                    f"{what} takes **{name} and names no sizes", "name them with base values: def build(B=8, D=512)"
                )
            sizes.update({k: v for k, v in given.items() if k not in sizes})
        elif p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY):
            raise LoadError(f"{what}: the parameter {name!r} cannot be given by name", "make it a plain parameter")
        elif p.default is p.empty or p.default is None:
            if name not in given:
                raise LoadError(
                    f"{what}: the size {name!r} has no base value", f"write {name}=... in its place, or --size {name}=..."
                )
            sizes[name] = given[name]
        elif _is_size(p.default):
            sizes[name] = p.default
        elif isinstance(p.default, float) and p.default >= 2 and p.default.is_integer():
            raise LoadError(f"{what}: the default {name}={p.default!r} is not a whole number", f"write {name}={int(p.default)}")
        else:
            notes.append(f"{what}: {name}={p.default!r} is no size and stays as it is")
    return Plan(function, sizes, {n: n for n in sizes}, tuple(notes))


def constructor_plan(cls: type, dims: Iterable[str], given: Mapping[str, int]) -> Plan:
    """A plan for a constructor.

    A parameter is a size of the inputs where the name is the same, or the same but for case; else a size of its own where
    its default is a whole number; else it keeps its default. A dataclass (`config: GPTConfig`) is filled in the same way.

    Raises:
        LoadError: where a parameter has no default and no size.
    """
    dims = tuple(dims)
    sizes: dict[str, int] = {}
    arguments: dict[str, str | Plan] = {}
    for name, p in _parameters(cls, f"{cls.__name__}()").items():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        size = _match(name, dims)
        own = _is_size(p.default)
        if size or own or name in given:
            arguments[name] = size or name
            sizes[size or name] = p.default if own else given.get(name, base_size(size or name))
        elif p.default is p.empty and isinstance(p.annotation, type) and dataclasses.is_dataclass(p.annotation):
            nested = constructor_plan(p.annotation, dims, given)
            arguments[name] = nested
            sizes.update(nested.sizes)
        elif p.default is p.empty:
            raise LoadError(
                f"{cls.__name__}: the constructor parameter {name!r} has no size",
                f"give it a default, --size {name}=..., or the name of an input dimension ({', '.join(dims) or 'none'})",
            )
    return Plan(cls, sizes, arguments)


def _match(name: str, dims: tuple[str, ...]) -> str:
    """The input dimension that a parameter stands for: the same name, else the only one that differs in case."""
    if name in dims:
        return name
    near = [d for d in dims if d.lower() == name.lower()]
    return near[0] if len(near) == 1 else ""


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 1


def _parameters(function: Callable[..., Any], what: str) -> dict[str, inspect.Parameter]:
    return dict(signature(function, what).parameters)


def signature(function: Callable[..., Any], what: str) -> inspect.Signature:
    """The signature, with annotations evaluated where they can be.

    Raises:
        LoadError: where Python has none.
    """
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, TypeError, AttributeError, SyntaxError):
        pass
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise LoadError(f"the parameters of {what} cannot be read", "write them out, with base values") from None
