"""Whatever a user names as the subject of an analysis, as something to analyse.

    load_subject("model.py:GPT")  load_subject("config.json")  load_subject("program.pt2")  load_subject("X[B,D] . Y[D,F]")

Importing this package imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from costir.errors import LoadError, NotationError, nearest
from costir.ir import Graph, traced_phase
from costir.load.family import Built, ExportedSubject, Family
from costir.load.notation import parse

EXPORTED = (".pt2",)


def load_subject(
    subject: str,
    *,
    model: str = "",
    input: Sequence[str] = (),
    dtype: str = "",
    sizes: Mapping[str, int] | None = None,
    phase: str = "forward",
    cache: str = "dynamic",
    mesh: Mapping[str, int] | None = None,
) -> Family | Graph | ExportedSubject:
    """Decide by its looks what a subject is, and load it.

    Args:
        subject: `model.py`, `model.py:Name`, a config.json or its folder, a `.pt2` program, or a notation string.
        model: the class to take (`--model`).
        input: shapes of example inputs, `x: bf16[B, T, D]` (`--input`).
        dtype: `--dtype`.
        sizes: base sizes (`--size`). For an exported program the reader of the program applies them.
        mesh: devices along named axes, for a notation string.
        phase: "forward", "backward" or "train"; a notation string has only a forward pass; "prefill" and "decode" for
            models that take a cache.
        cache: for a config in these two: the library's "dynamic" or "static" cache; what else it is counts as dynamic.

    Raises:
        LoadError: where it is nothing that can be analysed; NotationError where a notation string has a slip.
        SizeError: where `sizes` names a size that the subject has not, or an absurd value.
    """
    found = named_file(subject, model=model, input=input, dtype=dtype, phase=phase)
    if found is None:
        return parse(subject, dtype, sizes or {}, mesh)
    path, name = found
    if path.suffix == ".py":
        from costir.load import python_file

        return python_file.load(path, name, input, dtype, sizes, traced_phase(phase))
    if path.suffix in EXPORTED:
        return ExportedSubject(str(path))
    from costir.load import hf

    return hf.load(path, model, dtype, sizes, phase, "static" if cache == "static" else "dynamic")


def named_file(
    subject: str, *, model: str = "", input: Sequence[str] = (), dtype: str = "", phase: str = "forward"
) -> tuple[Path, str] | None:
    """The file that a subject names, and the model in it; None for a notation string. Opens nothing: see `load_subject`.

    Raises:
        LoadError: where it is nothing that can be loaded, or not with these options.
    """
    found = _file(subject)
    if found is None:
        _refuse_as_notation(subject, model, input, phase)
        return None
    path, name = found
    if path.suffix == ".py":
        return path, _one_name(name, model)
    if path.suffix in EXPORTED:
        _refuse(f"the exported program {path}", model=model, input=input, dtype=dtype)
    elif path.is_dir() or path.suffix == ".json":
        _refuse(f"the config {path}", input=input)
    else:
        raise LoadError(
            f"{path} is no .py, .json or .pt2 file", "give a Python file, a config.json, an exported program or a notation"
        )
    return path, name


def _file(subject: str) -> tuple[Path, str] | None:
    """The existing file that a subject names, and the name after a colon; None where there is no such file."""
    for text, name in ((subject, ""), subject.rpartition(":")[::2]):
        try:
            if text.strip() and Path(text).exists():
                return Path(text), name
        except (OSError, ValueError):
            continue
    return None


def _one_name(name: str, model: str) -> str:
    if name and model and name != model:
        raise LoadError(f"the subject names {name!r} and --model names {model!r}", "give one of them")
    return name or model


def _refuse(what: str, **options: object) -> None:
    given = [k for k, v in options.items() if v]
    if given:
        raise LoadError(f"{what} takes no --{given[0]}", "leave it out")


def _refuse_as_notation(subject: str, model: str, input: Sequence[str], phase: str) -> None:
    if "[" not in subject:
        raise _no_such_file(subject)
    _refuse("a notation string", model=model, input=input)
    if phase != "forward":
        raise LoadError(
            f"a notation string has no {phase} phase", "write the backward products as strings of their own, or a Python file"
        )


def _no_such_file(subject: str) -> LoadError:
    """No such file, with the nearest names in its folder."""
    shown = subject if len(subject) <= 120 else subject[:117] + "..."
    text = subject.rpartition(":")[0] if ".py:" in subject else subject
    hint = "a notation string has brackets, as in 'X[B,D] . Y[D,F]'"
    try:
        path = Path(text)
        names = [p.name for p in path.parent.iterdir() if not p.name.startswith(".")] if path.parent.is_dir() else []
        close = nearest(path.name, names) if names else ""
    except (OSError, ValueError):
        close = ""
    return LoadError(f"no such file: {shown!r}, and it is no notation", close if close.startswith("did you mean") else hint)


__all__ = ["Built", "ExportedSubject", "Family", "NotationError", "load_subject", "named_file"]
