"""Where results are written: atomically, and never over a file that costir did not write; each format carries a mark."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

import costir
from costir.errors import CostirError

# How a file that costir wrote is known again: the mark of each format, near its beginning.
_MARKS = re.compile(
    rb"\A(?:# made by costir |<!-- made by costir |% made by costir |\{\s*\"schema\": \"costir/(?:[a-z]+/)?\d)"
    rb"|\A[^\n]*,schema\n[^\n]*,costir/\d+\n|<meta name=\"generator\" content=\"costir\"|Software\0costir |<dc:title>costir "
)


def marked(text: str, name: str) -> str:
    """The text with the line that says who made it, where the format does not say so already."""
    by = f"made by costir {costir.__version__}"
    line = {"text": f"# {by}\n", "markdown": f"<!-- {by} -->\n", "latex": f"% {by}\n"}.get(name, "")
    return line + text


def may_write(path: Path, force: bool = False) -> Path:
    """The path, resolved, if a file may and can be written there: asked before work that takes long. Nothing stays behind.

    Raises:
        CostirError: where the folder does not exist or takes no files, or a file is there that costir did not write.
    """
    path = path.expanduser().resolve()
    try:
        path.exists()
    except OSError as error:  # such as a name that is too long
        raise _refused(path, str(error.strerror)) from error
    if not path.parent.is_dir():
        raise CostirError(f"no folder {path.parent}", "make it first, or give another file")
    if path.is_dir():
        raise CostirError(f"{path} is a folder", "give a file name")
    if path.is_file() and path.stat().st_size and not force and not _ours(path):
        raise CostirError(f"{path} was not written by costir, so it stays as it is", "give another name, or --force")
    if not path.exists() or path.is_file():  # what is neither, such as /dev/stdout, is written without a file beside it
        _try(path)
    return path


def _try(path: Path) -> None:
    """Make the file that would be renamed to this one, and remove it: rights alone do not say what a file system allows.

    Raises:
        CostirError: the system refuses; says why.
    """
    import tempfile

    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise _refused(path, f"{path.parent} takes no new file ({error.strerror})") from error


def _refused(path: Path, why: str) -> CostirError:
    return CostirError(f"cannot write {path}: {why}", "give another file")


def _ours(path: Path) -> bool:
    with path.open("rb") as file:
        return bool(_MARKS.search(file.read(4096)))


def write(data: bytes, path: Path, force: bool = False) -> Path:
    """Write a file whole or not at all; returns where.

    Raises:
        CostirError: see `may_write`; or where the disk refuses.
    """
    path = may_write(path, force)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return path
        _replace(data, path)
    except OSError as error:
        raise _refused(path, str(error.strerror)) from error
    return path


def _replace(data: bytes, path: Path) -> None:
    import tempfile

    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # mkstemp makes files for the owner only; a new file gets what the user's umask allows, an old one keeps its mode.
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


# ------------------------------------------------------------------------------------------------------- standard streams


class _Gone(io.TextIOBase):
    """Standard output that was closed before the program began: writing to it is writing to a pipe that nobody reads."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def isatty(self) -> bool:
        return False


def open_streams() -> None:
    """Make sure that there are streams: what is closed at the start is None to Python, and its number goes to the next file."""
    if sys.stdout is None or sys.stderr is None:
        for _ in range(3):  # the numbers of standard streams are taken up
            if os.open(os.devnull, os.O_RDWR) > 2:
                break
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - stays open to the end
    if sys.stdout is None:
        sys.stdout = _Gone()


def to_stdout(text: str) -> None:
    """Write to standard output, at once.

    Raises:
        BrokenPipeError: nobody reads it.
        CostirError: it takes no more; names it.
    """
    if sys.stdout.closed:
        raise BrokenPipeError
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        name = _name_of_stdout()
        forget_stdout()
        raise CostirError(f"cannot write to standard output{name}: {error.strerror}", "send it elsewhere") from error


def flush() -> None:
    """See that what was printed is written; raises as `to_stdout` does."""
    if not sys.stdout.closed and not isinstance(sys.stdout, _Gone):
        to_stdout("")


def forget_stdout() -> None:
    """Send what Python still holds for standard output nowhere, so that it does not complain at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _name_of_stdout() -> str:
    try:
        return f" ({Path(f'/proc/self/fd/{sys.stdout.fileno()}').readlink()})"
    except (OSError, ValueError):
        return ""


class _Borrowed:
    """A stream that whoever gets it cannot close."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def close(self) -> None:
        self._stream.flush()


@contextlib.contextmanager
def prints_to_stderr() -> Iterator[None]:
    """What a user's program prints goes to standard error; where it closes its streams, ours stay open."""
    lent = cast(TextIO, _Borrowed(sys.stderr))
    with contextlib.redirect_stdout(lent), contextlib.redirect_stderr(lent):
        yield
