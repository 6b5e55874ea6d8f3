"""Operators that torch cannot take apart on symbolic sizes (an LSTM on CPU): traced at several sizes, and lifted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import sympy as sp
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from costir.errors import LoadError
from costir.ir import Call
from costir.load.family import Built, Family
from costir.load.fx_recorder import SymbolicRecorder
from costir.symbolic import Expr, Integer, Symbol, evaluate, size


def lifted_calls(target: Any, args: Any, kwargs: Any, recorder: SymbolicRecorder) -> tuple[Call, ...]:
    """The calls that an operator makes, with path, line and phase as set in the recorder.

    Raises:
        CostirError: a size has no value, or no formula fits.
    """
    from costir.lift import lift

    symbols = recorder.symbols
    hints = {symbols.name(s): v for s, v in symbols.hints.items()}
    operands, tree = tree_flatten((args, kwargs))
    recipes = [_recipe(x, recorder) for x in operands]  # read now: inside a trace, shapes are whole numbers
    used = {str(s) for r in recipes if isinstance(r, _Recipe) for e in (*r.shape, *r.stride) for s in e.free_symbols}
    base = {n: v for n, v in hints.items() if n in used}
    if not base or any(v is None for v in base.values()):
        raise LoadError("a size has no value in the program's example")

    def build(**sizes: int) -> Built:
        point = {size(n): Integer(int(v)) for n, v in sizes.items()}
        module = _One(target)
        made = [module.made(r, point) if isinstance(r, _Recipe) else r for r in recipes]
        positional, keyword = tree_unflatten(made, tree)
        return Built(module.eval(), tuple(positional), keyword)

    graph = lift(Family("operator", build, {n: v for n, v in base.items() if v is not None})).graph
    if any(isinstance(c.condition, sp.Eq) and c.condition.lhs in map(size, base) for c in graph.constraints):
        raise LoadError("a size had to stay a number")
    return tuple(
        dataclasses.replace(c, path=recorder.path, source=recorder.source, phase=recorder.phase, count=c.count * recorder.times)  # type: ignore[arg-type]
        for c in graph.calls
    )


class _Recipe(NamedTuple):
    """How to make an operand at concrete sizes; a whole number has no type."""

    shape: tuple[Expr, ...]
    stride: tuple[Expr, ...] = ()
    dtype: torch.dtype | None = None
    weight: bool = False
    requires_grad: bool = False  # torch picks another product for weights that are trained


def _recipe(x: Any, recorder: SymbolicRecorder) -> Any:
    number = recorder.symbols.number
    if isinstance(x, torch.SymInt):
        return _Recipe((number(x),))
    if not isinstance(x, torch.Tensor):
        return x
    weight = recorder.describe(x).role == "weight"
    return _Recipe(tuple(map(number, x.shape)), tuple(map(number, x.stride())), x.dtype, weight, x.requires_grad)


class _One(nn.Module):  # type: ignore[misc]
    """A module that runs one operator, some of whose operands are its parameters."""

    def __init__(self, target: Any) -> None:
        super().__init__()
        self.target = target

    def made(self, recipe: _Recipe, point: Mapping[Symbol, Integer]) -> Any:
        """The operand at a point of the sizes."""
        shape, stride = ([int(evaluate(e, point)) for e in part] for part in (recipe.shape, recipe.stride))
        if recipe.dtype is None:
            return shape[0]
        made = torch.empty_strided(shape, stride, dtype=recipe.dtype)
        if not recipe.weight:
            return made
        held = nn.Parameter(made, requires_grad=recipe.requires_grad)
        self.register_parameter(f"p{len(self._parameters)}", held)
        return held

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        return self.target(*args, **kwargs)
