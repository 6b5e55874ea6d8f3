"""transformers under a fake run: the masks that a real run would make, no more.

transformers takes every fake tensor for one whose values cannot be asked, and then writes out causal masks (and copies of
grouped keys and values) that a real run leaves to the kernel. Where the values are known, a fake run does as the real one.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from costir.tracing.recorder import Recorder


@contextlib.contextmanager
def known_values(recorder: Recorder) -> Iterator[None]:
    """While this holds, transformers asks for the values of small tensors as it does on real ones."""
    if "transformers" not in sys.modules:
        yield
        return
    library = importlib.import_module("transformers.utils.import_utils")
    masks = importlib.import_module("transformers.masking_utils")
    quiet = importlib.import_module("transformers.utils.logging")
    level = quiet.get_verbosity()
    with contextlib.ExitStack() as stack:
        quiet.set_verbosity_error()
        stack.callback(quiet.set_verbosity, level)
        if hasattr(library, "is_fake_tensor"):
            stack.enter_context(mock.patch.object(library, "is_fake_tensor", lambda t: _unknown(recorder, t)))
        if hasattr(masks, "find_packed_sequence_indices"):
            find = _packing(recorder, masks.find_packed_sequence_indices)
            stack.enter_context(mock.patch.object(masks, "find_packed_sequence_indices", find))
        yield


def _unknown(recorder: Recorder, t: Any) -> bool:
    return isinstance(t, torch.Tensor) and (recorder.values is None or recorder.values.get(t) is None)


def _packing(recorder: Recorder, find: Any) -> Any:
    """Which sequence a token belongs to; None, as for one sequence per row, where there are too many positions to look at."""

    def wrapped(position_ids: Any) -> Any:
        found = find(position_ids)
        if found is not None and _unknown(recorder, found):
            (found[:, -1] == 0).all()  # what a real run looks at
            recorder.notes["positions: each row is taken as one sequence"] = None
            return None
        return found

    return wrapped
