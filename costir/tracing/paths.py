"""Which module is running: a path such as "model.layers.3.mlp.up_proj" for every moment of a run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from torch import nn

from costir.tracing.recorder import Scope


@cache
def fold_path(path: str) -> str:
    """The path with every index replaced: "layers.3.mlp" -> "layers.*.mlp", "experts.expert_3" -> "experts.expert_*"."""
    return re.sub(r"(_l|\bexpert_)\d+(?=_|\.|$)", r"\1*", re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", path))


@contextlib.contextmanager
def paths(root: nn.Module, scope: Scope) -> Iterator[None]:
    """Keep `scope.path` at the path of the innermost running module of `root`.

    A module that several parents share gets the path through the parent that calls it.
    """
    names: dict[int, str] = {id(m): n for n, m in root.named_modules()}
    children: dict[int, dict[int, str]] = {}
    stack: list[tuple[nn.Module, str]] = []
    original = nn.Module.__call__

    def path_of(module: nn.Module) -> str:
        if stack:
            parent, above = stack[-1]
            known = children.get(id(parent))
            if known is None:
                known = children[id(parent)] = {id(c): n for n, c in parent._modules.items() if c is not None}
            if id(module) in known:
                return f"{above}.{known[id(module)]}" if above else known[id(module)]
        if id(module) in names:
            return names[id(module)]
        return f"{stack[-1][1]}.{type(module).__name__}" if stack else type(module).__name__

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        before = scope.path
        scope.path = path_of(self)
        stack.append((self, scope.path))
        try:
            return original(self, *args, **kwargs)
        finally:
            stack.pop()
            scope.path = before

    nn.Module.__call__ = call
    try:
        yield
    finally:
        nn.Module.__call__ = original
