"""Modules in training mode: which parts of a model run in a forward pass as they would in training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from costir.load.family import Family


def watched(family: Family) -> tuple[Family, Callable[[], tuple[str, ...]]]:
    """The family, and what there is to say about the mode of its modules once it was built."""
    found: dict[str, None] = {}

    def build(**sizes: int) -> Any:
        made = family.build(**sizes)
        if isinstance(made, tuple) and made and isinstance(made[0], nn.Module):
            found.update(dict.fromkeys(training_parts(made[0])))
        return made

    return replace(family, build=build), lambda: (note(found),) if found else ()


def training_parts(module: nn.Module) -> list[str]:
    """The classes of submodules in training mode that then do something else than in eval mode, each once."""
    return list(dict.fromkeys(type(m).__name__ for m in module.modules() if m.training and _differs(m)))


def _differs(m: nn.Module) -> bool:
    if isinstance(m, _DropoutNd):
        return bool(m.p > 0)
    if isinstance(m, _BatchNorm):
        return bool(m.track_running_stats)
    rate = getattr(m, "dropout", 0.0)  # a recurrent layer's, between its layers; attention's, on its scores
    several = getattr(m, "num_layers", 2) > 1
    return isinstance(m, nn.RNNBase | nn.MultiheadAttention) and rate > 0 and several


def note(parts: Any) -> str:
    """The note of a forward pass in training mode."""
    return f"the model is in training mode: {', '.join(parts)} as in training; .eval() for inference"


__all__ = ["note", "training_parts", "watched"]
