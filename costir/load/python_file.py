"""A Python file as a family. The file is run: it is the user's own.

What is looked for, in a file or as `model.py:Name`:

- `build(**sizes) -> (module, args, kwargs)`, or any function of that kind by name;
- `model(**sizes) -> module` and `inputs(**sizes) -> tensor | tuple | dict | (tuple, dict)`;
- an nn.Module class whose `forward` has jaxtyping annotations, or any class or `model()` with `--input`.

Parameter names are the sizes, defaults the base sizes. Optional: `optimizer(params)` and `loss(output)`;
`tp_plan` and `sp_plan` say how matrices are divided among devices.
`CACHE` names the arguments of `forward` that hold a cache.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from costir.errors import LoadError, SizeError, nearest
from costir.load.annotations import Spec, read_input, shape_of
from costir.load.dtypes import MODULE_DTYPES, math_dtype
from costir.load.family import Built, CacheUse, Family, with_sizes
from costir.load.signatures import LAYER_NAMES, Plan, base_size, constructor_plan, function_plan, signature
from costir.load.user_file import folder_on_path, import_file, where

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def load(
    path: Path,
    name: str = "",
    inputs: Sequence[str] = (),
    dtype: str = "",
    sizes: Mapping[str, int] | None = None,
    phase: str = "forward",
) -> Family:
    """The family in a Python file.

    Args:
        path: the file; it is run.
        name: the class or function to take where the file has several.
        inputs: `--input` texts, one per argument of `forward`.
        dtype: `--dtype`; its floating type becomes torch's default type while the model is built.
        sizes: base sizes that replace the file's.
        phase: "forward" alone is inference: a class is made in eval mode. What a function of the file makes stays as it is.

    Raises:
        LoadError: no such name, nothing to analyse, several candidates, a parameter that has no size.
        SizeError: `sizes` has a name that the model has not.
    """
    given = dict(sizes or {})
    specs = tuple(read_input(text) for text in inputs)
    module = _imported(path)
    name = name or _choose(module, path, bool(specs))
    found = getattr(module, name, None)
    if name == "model" and callable(found) and not specs and not inspect.isclass(found):
        return _finish(module, path, path.stem, *_model_and_inputs(module, path, given), given, dtype)
    if inspect.isclass(found) and _is_module_class(found):
        return _finish(module, path, name, *_class(found, specs, given, dtype, phase), given, dtype)
    if inspect.isfunction(found):
        make = _function_and_flags(found, specs, given, dtype) if specs else _build(found, given)
        return _finish(module, path, path.stem if name in ("build", "model") else name, *make, given, dtype)
    if found is None:
        raise LoadError(f"{path} has no {name!r}", nearest(name, _names(module) or ["nothing"]))
    raise LoadError(
        f"{name} in {path} is {_a(found)}, not a class or function", "write a function build() that returns it and its inputs"
    )


def _imported(path: Path) -> ModuleType:
    """The file as a module; whatever it raises, an error that names the line."""
    try:
        return import_file(path)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        said = f"{type(error).__name__}: {str(error)[:200]}".rstrip(": ")
        raise LoadError(
            f"{where(error.__traceback__, path)} raises {said}", "costir imports the file to find the model"
        ) from error


def _choose(module: ModuleType, path: Path, with_inputs: bool) -> str:
    """The only thing in the file that can be analysed."""
    found = ["build"] if callable(getattr(module, "build", None)) and not with_inputs else []
    if callable(getattr(module, "model", None)) and (with_inputs or callable(getattr(module, "inputs", None))):
        found.append("model")
    classes = [n for n, c in vars(module).items() if _is_module_class(c) and c.__module__ == module.__name__]
    ready = classes if with_inputs else [n for n in classes if _annotated(getattr(module, n))]
    if len(found) == 1:
        return found[0]  # a function written for this purpose goes before the classes it uses
    found += ready
    if len(found) == 1:
        return found[0]
    if found:
        raise LoadError(f"{path} has several models: {', '.join(found)}", f"pick one with {path.name}:{found[-1]}")
    has = (
        f"it has the classes {', '.join(classes)}, without shapes"
        if classes
        else f"it has {', '.join(_names(module)[:8]) or 'nothing'}"
    )
    raise LoadError(
        f"{path} has no build(), no model() with inputs(), and no nn.Module class with jaxtyping annotations; {has}",
        f"write build(), or add --model {classes[-1] if classes else 'NAME'} --input 'x: bf16[B, T, D]'",
    )


def _names(module: ModuleType) -> list[str]:
    """Classes and functions that the file defines."""
    return [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]


def _a(value: Any) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _is_module_class(value: Any) -> bool:
    from torch import nn

    return inspect.isclass(value) and issubclass(value, nn.Module)


def _annotated(cls: Any) -> bool:
    """Whether an argument of `forward` carries a jaxtyping shape."""
    parameters = signature(cls.forward, f"{cls.__name__}.forward").parameters.values()
    return any(isinstance(getattr(p.annotation, "dim_str", None), str) for p in parameters)


# ---------------------------------------------------------------- the three kinds, each a builder with its plans


Parts = tuple[Callable[[Mapping[str, int]], Built], list[dict[str, int]], tuple[str, ...]]


def _build(function: Callable[..., Any], given: Mapping[str, int]) -> Parts:
    what = f"{function.__name__}()"
    plan = function_plan(function, what, given)

    def make(sizes: Mapping[str, int]) -> Built:
        made = plan(sizes)
        if not isinstance(made, tuple) or not 2 <= len(made) <= 3 or not isinstance(made[1], tuple | list):
            raise LoadError(f"{what} returned {_a(made)}", "return (module, args, kwargs), with args a tuple and kwargs a dict")
        return Built(_check_module(made[0], what), tuple(made[1]), dict(made[2] or {}) if len(made) == 3 else {})

    return make, [plan.sizes], plan.notes


def _model_and_inputs(module: ModuleType, path: Path, given: Mapping[str, int]) -> Parts:
    inputs = getattr(module, "inputs", None)
    if not callable(inputs):
        raise LoadError(
            f"{path} has model() and no inputs()", "write inputs(B=..., ...) that returns what forward takes, or use --input"
        )
    model_plan = function_plan(module.model, "model()", given)
    inputs_plan = function_plan(inputs, "inputs()", given)
    for name in model_plan.sizes.keys() & inputs_plan.sizes.keys():
        a, b = model_plan.sizes[name], inputs_plan.sizes[name]
        if a != b and name not in given:
            raise LoadError(
                f"{path}: {name} is {a} in model() and {b} in inputs()", f"use one base value, or --size {name}=..."
            )

    def make(sizes: Mapping[str, int]) -> Built:
        return Built(_check_module(model_plan(sizes), "model()"), *_arguments(inputs_plan(sizes)))

    return make, [inputs_plan.sizes, model_plan.sizes], model_plan.notes + inputs_plan.notes


def _arguments(given: Any) -> Inputs:
    """What inputs() returned, as args and kwargs: a tensor, a tuple, a dict by name, or (tuple, dict)."""
    if isinstance(given, dict):
        return (), dict(given)
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], tuple | list) and isinstance(given[1], dict):
        return tuple(given[0]), dict(given[1])
    if isinstance(given, tuple | list):
        return tuple(given), {}
    return (given,), {}


def _class(cls: Any, flags: Sequence[Spec], given: Mapping[str, int], dtype: str, phase: str) -> Parts:
    specs = _input_specs(cls, flags)
    dims = tuple(dict.fromkeys(n for s in specs for n in s.names))
    plan = constructor_plan(cls, dims, given)
    type_, notes = _made_in(specs, dtype)
    make = _plan_and_specs(plan, specs, f"{cls.__name__}()", type_)
    if phase != "forward":
        return make, [{n: plan.sizes.get(n, base_size(n)) for n in dims}, plan.sizes], notes

    def in_eval(sizes: Mapping[str, int]) -> Built:
        built = make(sizes)
        built.module.eval()
        return built

    notes = (*notes, f"{cls.__name__} in eval mode, as for inference")
    return in_eval, [{n: plan.sizes.get(n, base_size(n)) for n in dims}, plan.sizes], notes


def _function_and_flags(function: Callable[..., Any], specs: Sequence[Spec], given: Mapping[str, int], dtype: str) -> Parts:
    what = f"{function.__name__}()"
    plan = function_plan(function, what, {k: v for k, v in given.items() if k in inspect.signature(function).parameters})
    dims = tuple(dict.fromkeys(n for s in specs for n in s.names))
    type_, notes = _made_in(specs, dtype)
    make = _plan_and_specs(plan, specs, what, type_)
    return make, [{n: plan.sizes.get(n, base_size(n)) for n in dims}, plan.sizes], (*plan.notes, *notes)


def _made_in(specs: Sequence[Spec], asked: str) -> tuple[str, tuple[str, ...]]:
    """The floating type of the inputs, in which the model is made too where no other is asked for, and a note on it."""
    found = {s.dtype: s for s in reversed(specs) if s.dtype in MODULE_DTYPES}
    if math_dtype(asked) or len(found) != 1:
        return "", ()
    ((dtype, spec),) = found.items()
    return dtype, (f"made in {dtype}, the type of the input{f' {spec.name}' if spec.name else ''}",)


def _plan_and_specs(plan: Plan, specs: Sequence[Spec], what: str, dtype: str) -> Callable[[Mapping[str, int]], Built]:
    def make(sizes: Mapping[str, int]) -> Built:
        with default_dtype(dtype):
            args = tuple(s.tensor(sizes) for s in specs if not s.name)
            return Built(_check_module(plan(sizes), what), args, {s.name: s.tensor(sizes) for s in specs if s.name})

    return make


def _input_specs(cls: Any, flags: Sequence[Spec]) -> list[Spec]:
    """One shape per argument of `forward` that needs one: from `--input`, else from its annotation."""
    parameters = list(signature(cls.forward, f"{cls.__name__}.forward").parameters.values())[1:]
    names = [p.name for p in parameters]
    open_ended = any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)
    by_name = {s.name: s for s in flags if s.name}
    unnamed = [s for s in flags if not s.name]
    for name in by_name:
        if name not in names and not open_ended:
            raise LoadError(f"{cls.__name__}.forward has no argument {name!r}", nearest(name, names or ["no arguments"]))
    specs = []
    for p in parameters:
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            continue
        spec = by_name.pop(p.name, None) or (unnamed.pop(0) if unnamed else None)
        if spec is None and p.default is p.empty:
            spec = shape_of(p.annotation, p.name)
            if spec is None:
                raise LoadError(
                    f"the argument {p.name!r} of {cls.__name__}.forward has no shape",
                    f"annotate it, as in Float[Tensor, \"B D\"], or add --input '{p.name}: bf16[B, D]'",
                )
        if spec is not None:
            name = "" if p.kind is p.POSITIONAL_ONLY else p.name
            specs.append(Spec(name, spec.dtype, spec.dims))
    return [*specs, *by_name.values(), *unnamed]


def _check_module(made: Any, what: str) -> Any:
    import torch
    from torch import nn

    if not isinstance(made, nn.Module):
        raise LoadError(f"{what} gave {_a(made)} in the place of the model", "return an nn.Module")
    scripted = next((n for n, m in made.named_modules() if isinstance(m, torch.jit.ScriptModule)), None)
    if scripted is not None:
        which = f"{scripted} in the model" if scripted else "the model"
        raise LoadError(
            f"{what}: {which} is a TorchScript module, which hides its operators", "give the nn.Module it is made of"
        )
    return made


def _finish(
    module: ModuleType,
    path: Path,
    name: str,
    make: Callable[[Mapping[str, int]], Built],
    parts: Sequence[Mapping[str, int]],
    notes: tuple[str, ...],
    given: Mapping[str, int],
    dtype: str,
) -> Family:
    """The family: sizes merged in order, the file's folder on the path and torch's default type set while it builds."""
    sizes: dict[str, int] = {}
    for part in parts:
        sizes.update({k: v for k, v in part.items() if k not in sizes})
    math = math_dtype(dtype)

    def build(**point: int) -> Built:
        unknown = [n for n in point if n not in sizes]
        if unknown:
            raise SizeError(f"{name} has no size {unknown[0]!r}", nearest(unknown[0], sizes))
        with folder_on_path(path), default_dtype(math):
            return make({**sizes, **point})

    sizes = with_sizes(sizes, given, name)
    return Family(
        name=name,
        build=build,
        sizes=sizes,
        optimizer=_optional(module, "optimizer"),
        loss=_optional(module, "loss"),
        notes=notes,
        source=str(path),
        depth=tuple(n for n in sizes if n in LAYER_NAMES),
        plans={n: p for n in ("tp", "sp") if isinstance(p := getattr(module, f"{n}_plan", None), dict)},
        cache=CacheUse(_cache_names(module, path)),
    )


def _cache_names(module: ModuleType, path: Path) -> tuple[str, ...]:
    """The arguments of forward that hold a cache, where the file says so: `CACHE = ("memory",)`."""
    given = getattr(module, "CACHE", ())
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, tuple | list) or not all(isinstance(n, str) for n in names):
        raise LoadError(
            f"CACHE in {path} is {_a(given)}", "write the names of arguments of forward: CACHE = ('k_cache', 'v_cache')"
        )
    return tuple(names)


def _optional(module: ModuleType, name: str) -> Callable[[Any], Any] | None:
    found = getattr(module, name, None)
    return found if inspect.isfunction(found) else None


@contextlib.contextmanager
def default_dtype(name: str) -> Iterator[None]:
    """torch's default floating type while a model is built; "" leaves it."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, name) if name else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
