"""Reading a .pt2 file: only data, no pickled Python objects; every failure in one sentence."""

from __future__ import annotations

import contextlib
import logging
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from costir.errors import LoadError
from costir.units import si

_MEMBERS = ("models/", "serialized_exported_program.json", "archive_format")
_HINT = "write it with torch.export.save(torch.export.export(...), 'model.pt2')"


def read_archive(path: str) -> Any:
    """The `ExportedProgram` in a file.

    Raises:
        LoadError: no such file, not an exported program, corrupt, larger than memory, or it holds pickled objects.
    """
    file = Path(path)
    if not file.is_file():
        raise LoadError(f"no such file: {path!r}", _HINT)
    _check_archive(file)
    try:
        with _no_pickle(file.name), contextlib.redirect_stderr(None), _no_logging():
            return torch.export.load(file)
    except LoadError:
        raise
    except Exception as error:
        _check_sums(file)
        text = (str(error).strip().splitlines() or [""])[0][:160]
        text = text.removesuffix(" Please check the warnings above for possible errors.")
        raise LoadError(f"{file.name} cannot be read as an exported program: {type(error).__name__}: {text}",
                        "export it again with the torch that is installed here, " + torch.__version__) from error  # fmt: skip


def _check_archive(file: Path) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise LoadError(f"{file.name} is no exported program: it is not an archive, or it is cut short", _HINT) from error
    if not any(part in m.filename for m in members for part in _MEMBERS):
        raise LoadError(f"{file.name} is an archive, but holds no exported program", _HINT)
    needed, free = sum(m.file_size for m in members), _free_memory()
    if needed > free:
        have, left = si(needed, "B"), si(free, "B")
        raise LoadError(f"{file.name} holds {have}, and torch reads all of it into memory, of which {left} are free",
                        "analyse the module or config it came from: that needs no weights")  # fmt: skip


def _check_sums(file: Path) -> None:
    """Whether the parts of an archive are those that were written: asked once reading has failed, since it reads them all."""
    try:
        with zipfile.ZipFile(file) as archive:
            wrong = archive.testzip()
    except Exception as error:  # what a damaged archive raises depends on where the damage is
        raise LoadError(f"{file.name} is damaged: {error}", "copy or export it again") from error
    if wrong:
        raise LoadError(f"{file.name} is damaged: {wrong} in it is not what was written", "copy or export it again")


@contextlib.contextmanager
def _no_logging() -> Iterator[None]:
    """torch logs the traceback of what it tried first; costir says itself what is wrong."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _free_memory() -> int:
    """Bytes of memory that are free, or a large number where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 2**40


@contextlib.contextmanager
def _no_pickle(name: str) -> Iterator[None]:
    """torch falls back to unpickling, which runs code that the file names: allow tensors only."""
    from torch.export.pt2_archive import _package

    load, pickle = torch.load, _package.pickle

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise LoadError(
            f"{name} holds pickled Python objects, which costir does not load", "export the model without custom objects"
        )

    def tensors_only(*args: Any, **kwargs: Any) -> Any:
        try:
            return load(*args, **{**kwargs, "weights_only": True})
        except Exception as error:
            if "weights_only" in str(error) or "Unsupported" in str(error):
                refuse()
            raise

    class Refusing:
        loads = staticmethod(refuse)

        def __getattr__(self, attribute: str) -> Any:
            return getattr(pickle, attribute)

    torch.load, _package.pickle = tensors_only, Refusing()
    try:
        yield
    finally:
        torch.load, _package.pickle = load, pickle
