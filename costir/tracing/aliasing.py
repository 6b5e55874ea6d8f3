"""Which arguments an operator writes to, by torch's own schemas."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

# Written by every backend although their schemas do not say so.
_UNSAID = {
    "aten.native_batch_norm": ("running_mean", "running_var"),
    "aten.cudnn_batch_norm": ("running_mean", "running_var"),
    "aten.miopen_batch_norm": ("running_mean", "running_var"),
}


@cache
def written_arguments(op: str) -> frozenset[str]:
    """The names of the arguments that an operator writes to; none for one that torch does not know.

    Args:
        op: the overload's full name, "aten.add_.Tensor".
    """
    packet = op.rsplit(".", 1)[0]
    schema = _schema(op)
    said = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write] if schema else []
    return frozenset((*said, *_UNSAID.get(packet, ())))


def _schema(op: str) -> Any:
    parts = op.split(".")
    found: Any = torch.ops
    for part in (parts[0], ".".join(parts[1:-1]), parts[-1] or "default"):
        try:
            found = getattr(found, part)
        except (AttributeError, RuntimeError):
            return None
    return getattr(found, "_schema", None)
