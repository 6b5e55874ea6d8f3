"""Which line of the user's code is running."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import FrameType

_COSTIR = str(Path(__file__).resolve().parents[1])
_TYPED = ("<stdin>", "<string>", "<ipython")  # typed at a prompt, given by -c, or a notebook's cell
_RUN = f"{_COSTIR}/trace.py"  # calls the user's model


@functools.cache
def is_user_file(filename: str) -> bool:
    """Whether a frame's file belongs to the user or to a model library, and not to torch, Python or costir."""
    if filename.startswith("<"):
        return filename.startswith(_TYPED)
    if filename.startswith(_COSTIR):
        return False
    inside = ("/site-packages/torch/", "/dist-packages/torch/", "/site-packages/sympy/", "/contextlib.py", "/functools.py")
    if any(part in filename for part in inside):
        return False
    return is_library_file(filename) or "/lib/python3" not in filename


@functools.cache
def is_library_file(filename: str) -> bool:
    """Whether the file belongs to an installed package."""
    return "/site-packages/" in filename or "/dist-packages/" in filename


def is_check_of_module(frame: FrameType) -> bool:
    """Whether a module of torch's own checks there what it is made from: an LSTM's projection is smaller than its state."""
    return frame.f_code.co_name == "__init__" and "/torch/nn/modules/" in frame.f_code.co_filename


def user_frame(start: int = 1) -> FrameType | None:
    """The innermost frame of user code below costir's own run, or None: who called costir is not asked."""
    frame: FrameType | None = sys._getframe(start)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back if frame.f_code.co_filename != _RUN else None
    return frame


def where(frame: FrameType | None) -> str:
    """ "file.py:12" of a frame, or ""."""
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}" if frame is not None else ""
