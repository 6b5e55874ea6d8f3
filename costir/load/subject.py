"""Whatever a user may hand over -> a family, or a graph where its sizes are symbols already."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from costir.errors import CostirError, LoadError, SizeError, nearest
from costir.ir import SERVING, Graph, traced_phase
from costir.load import EXPORTED, ExportedSubject, Family, load_subject
from costir.load.dtypes import split_dtype
from costir.load.family import CacheUse, with_sizes


def load(subject: Any, inputs: Any, sizes: Mapping[str, int] | None, phase: str, dtype: str, model: str,
         specs: tuple[str, ...], names: Mapping[str, str] | None, cache: str = "dynamic",
         mesh: Mapping[str, int] | None = None) -> Graph | Family:  # fmt: skip
    """The subject of `costir.analyze`, whose arguments these are.

    Raises:
        LoadError: what is given cannot be analysed, or not in this phase.
        SizeError: a size that the subject does not have.
    """
    found = _load(subject, inputs, sizes, phase, dtype, model, specs, names, cache, mesh)
    if isinstance(found, Family):
        return replace(found, cache=(found.cache or CacheUse()) if phase in SERVING else None)
    if phase in SERVING:
        raise LoadError(f"{found.name} has no phase {phase}", "give a config.json, or a Python model that takes a cache")
    return found


def _load(subject: Any, inputs: Any, sizes: Mapping[str, int] | None, phase: str, dtype: str, model: str,
          specs: tuple[str, ...], names: Mapping[str, str] | None, cache: str,
          mesh: Mapping[str, int] | None) -> Graph | Family:  # fmt: skip
    if names and not is_program_like(subject):
        raise LoadError("names= renames the symbols of an exported program or graph, and this is none", "name its sizes there")
    if isinstance(subject, Graph | Family):
        return subject
    if isinstance(subject, str | os.PathLike):
        found = load_subject(
            os.fspath(subject), model=model, input=specs, dtype=dtype, sizes=sizes or {}, phase=phase, cache=cache, mesh=mesh
        )
        if isinstance(found, ExportedSubject):
            from costir.load.exported import read_file

            return read_file(found.path, names or {}, sizes or {}, traced_phase(phase))
        return found
    if inspect.isfunction(subject) or inspect.ismethod(subject) or isinstance(subject, functools.partial):
        return family_of(subject, sizes or {}, dtype)
    from costir.load.exported import read_program
    from costir.load.instance import family_of_module, is_module, is_program

    if is_program(subject):
        return read_program(subject, names or {}, sizes or {}, traced_phase(phase))
    if is_module(subject):
        return family_of_module(subject, inputs, specs, sizes or {}, dtype)
    if callable(subject):
        return family_of(subject, sizes or {}, dtype)
    raise LoadError(
        f"cannot analyse a {type(subject).__name__}", "give a path, a notation string, a build function or an nn.Module"
    )


def family_of(build: Callable[..., Any], sizes: Mapping[str, int], dtype: str = "") -> Family:
    """A family from a function whose parameters are the sizes.

    Raises:
        SizeError: a parameter has neither a default nor a given size, or a given size is no parameter.
    """
    parameters = inspect.signature(build).parameters.values()
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    base: dict[str, int] = {}
    for p in parameters:
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            continue
        if p.name in sizes or type(p.default) is int:
            base[p.name] = sizes.get(p.name, p.default if type(p.default) is int else 0)
        elif p.default is p.empty:
            raise SizeError(f"{build.__name__}() needs a size for {p.name!r}", f"give it: sizes={{'{p.name}': 64}}")
    if open_ended:
        base.update({k: v for k, v in sizes.items() if k not in base})
    base = with_sizes(base, sizes, f"{build.__name__}()")
    from costir.load.instance import in_dtype

    return Family(build.__name__, in_dtype(build, split_dtype(dtype).math), base)


def is_program_like(subject: Any) -> bool:
    """Whether it may be a program with symbols of its own; what else it is, loading says."""
    if isinstance(subject, str | os.PathLike):
        return os.fspath(subject).endswith(EXPORTED)
    from costir.load.instance import is_program

    return is_program(subject)


def by_keyword(subject: Any, inputs: Any, keywords: Mapping[str, Any], options: Iterable[str]) -> Any:
    """Example inputs given by argument name; `options` are the names that mean something else.

    Raises:
        CostirError: where they are none: the subject is no module, has no such argument, or has its inputs already.
    """
    name = next(iter(keywords))
    forward = getattr(subject, "forward", None)
    arguments = inspect.signature(forward).parameters if callable(forward) and not inspect.isclass(subject) else {}
    if not arguments:
        raise CostirError(f"analyze() has no option {name!r}", nearest(name, options))
    if inputs is not None:
        raise CostirError(f"example inputs are given twice, once as {name!r}", "give all of them by name, or none")
    open_ended = any(p.kind is p.VAR_KEYWORD for p in arguments.values())
    wrong = next((n for n in keywords if n not in arguments and not open_ended), None)
    if wrong is not None:
        raise CostirError(
            f"neither analyze() nor forward() of {type(subject).__name__} has {wrong!r}", nearest(wrong, arguments)
        )
    return dict(keywords)


def texts(given: Any) -> tuple[str, ...]:
    """`input`, which is text.

    Raises:
        LoadError: where it is something else, such as an example input.
    """
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else (given,)
    if not all(isinstance(t, str) for t in found):
        raise LoadError(
            "input= is the text of shapes, such as 'x: B, T, D'", "example inputs stand second: analyze(module, {...})"
        )
    return found
