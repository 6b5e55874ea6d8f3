"""Running a user's Python file, once, and saying clearly what went wrong in it."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, TracebackType

from costir.errors import LoadError

LARGEST = 5_000_000  # bytes
_loaded: dict[tuple[str, int, int], ModuleType] = {}


def import_file(path: Path) -> ModuleType:
    """The file as a module of its own name; a file that has not changed is not run again.

    Raises:
        LoadError: where it cannot be read, is no Python, or raises; names the line.
    """
    try:
        state = path.stat()
        key = (str(path.resolve()), state.st_mtime_ns, state.st_size)
        if key in _loaded:
            return _loaded[key]
        if state.st_size > LARGEST:
            raise LoadError(f"{path} has {state.st_size} bytes; at most {LARGEST} are read")
        _check_syntax(path, path.read_bytes())
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from None
    _loaded[key] = module = _run(path, hashlib.sha256(repr(key).encode()).hexdigest()[:12])
    return module


def _check_syntax(path: Path, source: bytes) -> None:
    try:
        ast.parse(source, filename=str(path))
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise LoadError(f"{path}{line} is not valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise LoadError(f"{path} is not valid Python: {error}") from None


def _run(path: Path, tag: str) -> ModuleType:
    name = f"costir_user_{path.stem}_{tag}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and annotations look their module up
    try:
        with folder_on_path(path):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise LoadError(
            f"{where(error.__traceback__, path)} raises {_said(error)}", "costir imports the file to find the model"
        ) from error
    return module


def _said(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__


def where(traceback: TracebackType | None, path: Path) -> str:
    """ "file.py:12", the innermost line of the user's file that led to an exception."""
    line = 0
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(path):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return f"{path}:{line}" if line else str(path)


@contextlib.contextmanager
def folder_on_path(path: Path) -> Iterator[None]:
    """The file's own folder first on sys.path, as `python file.py` has it."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
