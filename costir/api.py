"""`costir.analyze`: any subject in, an `Analysis` out. `costir.annotate`: a graph of one's own, with costs in `node.meta`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from costir.analysis import Analysis, Origin, analysis_of
from costir.errors import CostirError, LoadError, SizeError, TraceError, nearest
from costir.ir import Conventions, Graph, Tensor
from costir.load import EXPORTED, ExportedSubject, Family, load_subject
from costir.load.dtypes import split_dtype
from costir.load.family import with_sizes

Phase = Literal["forward", "backward", "train"]


def analyze(
    subject: Any,
    inputs: Any = None,
    *,
    sizes: Mapping[str, int] | None = None,
    phase: str = "forward",
    dtype: str = "",
    attention: str = "full",
    count: str = "standard",
    keep: Iterable[str] = (),
    model: str = "",
    input: Sequence[str] | str = (),
    optimizer: str | Callable[[Any], Any] | None = None,
    names: Mapping[str, str] | None = None,
    **keywords: Any,
) -> Analysis:
    """What a model costs, in closed form.

    Args:
        subject: a file ("model.py", "model.py:Name", "config.json", "program.pt2"), a notation string ("X[B,D] . Y[D,F]"), a
            family `build(**sizes) -> (module, args, kwargs)`, an `nn.Module` with `inputs`, a `torch.export.ExportedProgram`,
            or a `torch.fx.GraphModule` whose nodes carry shapes.
        inputs: for an `nn.Module`: its example inputs, a tuple of tensors or a dict by argument name. Dimensions are named by
            `input`; unnamed ones are numbers.
        sizes: base sizes that differ from the subject's own.
        phase: "forward"; "backward" (forward and backward); "train" (the optimizer's step too).
        dtype: "bf16", or "bf16,weights=int8" for weights stored in another type than the arithmetic.
        attention: "full" counts all scores, "causal" only those that causal attention does not mask.
        count: "standard" takes 2 FLOPs per multiply-add, "exact" 2k - 1 per dot product of length k.
        keep: sizes to keep as symbols; the others become numbers. Empty keeps all.
        model: which class of a file.
        input: shapes of inputs, "x: bf16[B, T, D]"; for a module with `inputs`, the names of their dimensions.
        optimizer: for "train": "adamw", "sgd", ... or a function of the parameters.
        names: new names for the symbols of an exported program or graph, {"s77": "B"} or, by the name of a Dim, {"batch": "B"}.
        keywords: for an `nn.Module`: its example inputs by argument name, as `inputs`.

    Raises:
        CostirError: of a kind that says what is wrong; see costir.errors.
    """
    _one_of("phase", phase, ("forward", "backward", "train"))
    _one_of("attention", attention, ("full", "causal"))
    _one_of("count", count, ("standard", "exact"))
    inputs = _by_keyword(subject, inputs, keywords) if keywords else inputs
    specs = _texts(input)
    conventions = Conventions(cast(Any, count), cast(Any, attention), split_dtype(dtype).weights)
    loaded = _load(subject, inputs, sizes, phase, dtype, model, specs, names)
    if isinstance(loaded, Graph):
        _refuse_mixed(loaded)
        result = replace(analysis_of(loaded, conventions, phase), origin=_program_origin(subject, names or {}))
    else:
        from costir.load.modes import watched
        from costir.regimes import regimes
        from costir.trace import no_collection

        maker = _optimizer(optimizer)
        family, in_training = watched(loaded)
        with no_collection():
            graphs = regimes(family, phase, maker)
        for graph in graphs:
            _refuse_mixed(graph)
        said = in_training() if phase == "forward" else ()
        first, *rest = (analysis_of(replace(g, notes=(*g.notes, *said)), conventions, phase) for g in graphs)
        result = Analysis(first.costed, phase, tuple(rest), Origin(loaded, maker))
    return result.keep(keep) if keep else result


def _by_keyword(subject: Any, inputs: Any, keywords: Mapping[str, Any]) -> Any:
    """Example inputs given by argument name.

    Raises:
        CostirError: where they are none: the subject is no module, has no such argument, or has its inputs already.
    """
    name = next(iter(keywords))
    forward = getattr(subject, "forward", None)
    arguments = inspect.signature(forward).parameters if callable(forward) and not inspect.isclass(subject) else {}
    if not arguments:
        raise CostirError(f"analyze() has no option {name!r}", nearest(name, inspect.signature(analyze).parameters))
    if inputs is not None:
        raise CostirError(f"example inputs are given twice, once as {name!r}", "give all of them by name, or none")
    open_ended = any(p.kind is p.VAR_KEYWORD for p in arguments.values())
    wrong = next((n for n in keywords if n not in arguments and not open_ended), None)
    if wrong is not None:
        raise CostirError(
            f"neither analyze() nor forward() of {type(subject).__name__} has {wrong!r}", nearest(wrong, arguments)
        )
    return dict(keywords)


def _texts(given: Any) -> tuple[str, ...]:
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


def annotate(graph_module: Any, names: Mapping[str, str] | None = None, **conventions: str) -> Any:
    """Put a cost into `node.meta["costir"]` of every operator of a graph whose nodes carry shapes in `meta["val"]`.

    Args:
        graph_module: a `torch.fx.GraphModule` at the ATen level, such as torch.compile's backends and torch.export give.
        names: new names for its size symbols.
        conventions: `count` and `attention`, as for `analyze`.

    Returns:
        The same graph module.

    Raises:
        LoadError: where nodes carry no shapes.
    """
    from costir.graph_pass import annotate as fill

    return fill(graph_module, names or {}, Conventions(**cast(Any, conventions)))


def _load(subject: Any, inputs: Any, sizes: Mapping[str, int] | None, phase: str, dtype: str, model: str,
          specs: tuple[str, ...],
          names: Mapping[str, str] | None) -> Graph | Family:  # fmt: skip
    if names and not _is_program_like(subject):
        raise LoadError("names= renames the symbols of an exported program or graph, and this is none", "name its sizes there")
    if isinstance(subject, Graph | Family):
        return subject
    if isinstance(subject, str | os.PathLike):
        found = load_subject(os.fspath(subject), model=model, input=specs, dtype=dtype, sizes=sizes or {}, phase=phase)
        if isinstance(found, ExportedSubject):
            from costir.load.exported import read_file

            return read_file(found.path, names or {}, sizes or {}, phase)
        return found
    if inspect.isfunction(subject) or inspect.ismethod(subject) or _is_partial(subject):
        return family_of(subject, sizes or {}, dtype)
    from costir.load.exported import read_program
    from costir.load.instance import family_of_module, is_module, is_program

    if is_program(subject):
        return read_program(subject, names or {}, sizes or {}, phase)
    if is_module(subject):
        return family_of_module(subject, inputs, specs, sizes or {}, dtype)
    if callable(subject):
        return family_of(subject, sizes or {}, dtype)
    raise LoadError(
        f"cannot analyse a {type(subject).__name__}", "give a path, a notation string, a build function or an nn.Module"
    )


# Operators that torch refuses unless all these operands have one type, by what their schemas call them. Only those that fake
# tensors let pass: bmm, baddbmm, addmv, dot and attention refuse it there, too.
_ONE_TYPE = {
    "mm": ("self", "mat2"), "addmm": ("self", "mat1", "mat2"), "addbmm": ("self", "batch1", "batch2"), "mv": ("self", "vec"),
    "convolution": ("input", "weight"),
}  # fmt: skip


def _refuse_mixed(graph: Graph) -> None:
    """Refuse products of two types, which fake tensors let pass and torch does not.

    Raises:
        TraceError: names the operator, its line and the types.
    """
    for call in graph.calls:
        if not call.op.startswith("aten.") or not call.op.endswith(".default"):
            continue
        operands = [call.args.get(n) for n in _ONE_TYPE.get(call.name.rstrip("_"), ())]
        types = list(dict.fromkeys(t.dtype for t in operands if isinstance(t, Tensor)))
        if len(types) > 1:
            where = " ".join(p for p in (call.path and f"in {call.path}", call.source and f"at {call.source}") if p)
            raise TraceError(f"{f'{call.name} {where}'.strip()} mixes {' and '.join(types)}, which torch refuses",
                             "give inputs and weights one type: --dtype bf16, module.to(...), or x.to(...)")  # fmt: skip


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


def _is_partial(subject: Any) -> bool:
    import functools

    return isinstance(subject, functools.partial)


def _is_program_like(subject: Any) -> bool:
    """Whether it may be a program with symbols of its own; what else it is, loading says."""
    if isinstance(subject, str | os.PathLike):
        return os.fspath(subject).endswith(EXPORTED)
    from costir.load.instance import is_program

    return is_program(subject)


def _program_origin(subject: Any, names: Mapping[str, str]) -> Origin | None:
    """The program or its file; None for a notation string or a graph, which have no other form."""
    given = os.fspath(subject) if isinstance(subject, os.PathLike) else subject
    if isinstance(given, Graph) or (isinstance(given, str) and not given.endswith(EXPORTED)):
        return None
    return Origin(given, None, names)


def _optimizer(given: str | Callable[[Any], Any] | None) -> Any:
    if given is None or callable(given):
        return given
    from costir.trace import OPTIMIZERS

    if given.lower() not in OPTIMIZERS:
        raise CostirError(f"unknown optimizer {given!r}", nearest(given, OPTIMIZERS))
    return OPTIMIZERS[given.lower()]


def _one_of(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise CostirError(f"{what}={given!r} is not known", f"choose {' or '.join(known)}")
