"""Conditions that torch put on the sizes of a program: guards of its shape environment, and of an exported program."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import sympy as sp
import torch
from torch import fx

from costir.errors import LoadError
from costir.load.fx_walk import Condition, value
from costir.load.symints import Symbols
from costir.symbolic import floor_div

_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: floor_div, ast.Mod: sp.Mod,
    ast.Pow: operator.pow,
}  # fmt: skip
_COMPARE: dict[type, Any] = {ast.Eq: sp.Eq, ast.NotEq: sp.Ne, ast.Lt: sp.Lt, ast.LtE: sp.Le, ast.Gt: sp.Gt, ast.GtE: sp.Ge}
_LONGEST = 2000


def guard_conditions(program: Any, graph_module: fx.GraphModule, symbols: Symbols) -> list[Condition]:
    """The guards on the program's symbols, without what holds for all sizes."""
    found = []
    for environment in symbols.environments.values():
        for guard in getattr(environment, "guards", ()):
            if not all(str(s) in symbols.hints for s in guard.expr.free_symbols):
                continue  # about tensors of another part of the program
            try:
                found.append(Condition(symbols.translate(guard.expr), "", False))
            except LoadError:
                continue  # a condition that costir cannot write down is torch's own, on layouts
    dims = _input_dims(graph_module, symbols)
    for text in getattr(program, "_guards_code", None) or ():
        condition = _parse(text, dims)
        if condition is not None:
            found.append(Condition(condition, "", False))
    return found


def _input_dims(graph_module: fx.GraphModule, symbols: Symbols) -> dict[str, list[Any]]:
    return {
        n.name: [symbols.number(d) for d in value(n).shape]
        for n in graph_module.graph.nodes
        if n.op == "placeholder" and isinstance(value(n), torch.Tensor)
    }


def _parse(text: str, dims: dict[str, list[Any]]) -> Any:
    """A guard written as Python, `(L['x'].size()[0] % 2) == 0`, read without running it; None where it is of another kind."""
    if len(text) > _LONGEST:
        return None
    try:
        return _read(ast.parse(text, mode="eval").body, dims)
    except (SyntaxError, ValueError, KeyError, IndexError, RecursionError):
        return None


def _read(e: ast.expr, dims: dict[str, list[Any]]) -> Any:
    if isinstance(e, ast.Constant) and type(e.value) is int:
        return sp.Integer(e.value)
    if isinstance(e, ast.BinOp) and type(e.op) in _ARITHMETIC:
        return _ARITHMETIC[type(e.op)](_read(e.left, dims), _read(e.right, dims))
    if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
        return -_read(e.operand, dims)
    if isinstance(e, ast.Compare) and len(e.ops) == 1:
        return _COMPARE[type(e.ops[0])](_read(e.left, dims), _read(e.comparators[0], dims))
    if isinstance(e, ast.Subscript) and isinstance(e.slice, ast.Constant) and isinstance(e.value, ast.Call):
        function = e.value.func
        if isinstance(function, ast.Attribute) and function.attr == "size":
            return dims["_".join(_keys(function.value))][e.slice.value]  # type: ignore[index]
    raise ValueError(ast.dump(e)[:80])


def _keys(e: ast.expr) -> list[str]:
    """L['x'][0] as the name of its placeholder: x, 0."""
    if isinstance(e, ast.Subscript) and isinstance(e.slice, ast.Constant):
        return [*_keys(e.value), str(e.slice.value)]
    if isinstance(e, ast.Name) and e.id == "L":
        return []
    raise ValueError("no input")
