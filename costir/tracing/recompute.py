"""Modules whose forward pass is run again in the backward pass, instead of keeping what it made: activation checkpointing."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from costir.errors import TraceError, nearest

NONE, BLOCKS, ALL = "none", "blocks", "all"


@contextlib.contextmanager
def recomputing(root: nn.Module, choice: str) -> Iterator[None]:
    """Call the chosen modules of `root` through `torch.utils.checkpoint` (not reentrant), where gradients are followed.

    Args:
        root: the model.
        choice: "none"; "blocks", the members of lists of modules; "all", the model as one; or a pattern of module paths.

    Raises:
        TraceError: where nothing is chosen.
    """
    chosen = chosen_modules(root, choice)
    if not chosen:
        yield
        return
    original = nn.Module.__call__

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in chosen or not torch.is_grad_enabled():
            return original(self, *args, **kwargs)
        return checkpoint(original, self, *args, use_reentrant=False, **kwargs)

    nn.Module.__call__ = call
    try:
        yield
    finally:
        nn.Module.__call__ = original


def chosen_modules(root: nn.Module, choice: str) -> dict[int, str]:
    """The modules that a choice means, by identity, with their paths; of modules in one another only the outermost.

    Raises:
        TraceError: where it means none.
    """
    if choice == NONE:
        return {}
    if choice == ALL:
        return {id(root): ""}
    named = {n: m for n, m in root.named_modules() if n}
    found = _members(named) if choice == BLOCKS else [n for n in named if matches(n, choice)]
    outer: list[str] = []
    for n in found:
        if not any(n.startswith(f"{o}.") for o in outer):
            outer.append(n)
    if not outer and choice == BLOCKS:
        raise TraceError("the model has no list of blocks to compute again", "--recompute all, or a pattern such as 'encoder*'")
    if not outer:
        raise TraceError(f"no module matches {choice[:80]!r}", nearest(choice[:80], {fold(n) for n in named}))
    return {id(named[n]): n for n in outer}


def _members(named: dict[str, nn.Module]) -> list[str]:
    """The members of every list of modules, and of every sequence of modules of one class."""
    lists = [n for n, m in named.items() if isinstance(m, nn.ModuleList) or _uniform(m)]
    return [n for n in named if n.rpartition(".")[0] in lists and any(True for _ in named[n].parameters())]


def _uniform(m: nn.Module) -> bool:
    return isinstance(m, nn.Sequential) and len(m) > 1 and len({type(c) for c in m}) == 1


def fold(path: str) -> str:
    """The path with `*` for indices."""
    return ".".join("*" if p.isdigit() else p for p in path.split("."))


def matches(path: str, pattern: str) -> bool:
    """Whether a pattern means a path, part by part from its end: "mlp", "layers.*.mlp", "layers.3", "model.layers.*"."""
    parts, wanted = path.split("."), [p for p in pattern.strip().split(".") if p]
    return 0 < len(wanted) <= len(parts) and all(map(fnmatch.fnmatchcase, parts[-len(wanted) :], wanted))
