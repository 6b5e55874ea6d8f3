"""Graph -> costed graph: one rule per call, equal calls once."""

from __future__ import annotations

import dataclasses
from typing import Any

from costir.ir import LOOP, SHORT_DTYPE, Call, Conventions, Cost, Costed, Graph, Node, Tensor, Weight
from costir.ops import registry
from costir.ops.registry import read_once, written
from costir.ops.torch_formula import torch_formula
from costir.served import served
from costir.symbolic import Expr, sum_over


def cost(graph: Graph, conventions: Conventions = Conventions()) -> Costed:
    """The cost of every call of a graph.

    Args:
        graph: calls with shapes in the size names.
        conventions: what counts; see `Conventions`.
    """
    known: dict[Any, tuple[Cost, str]] = {}
    nodes = []
    for call in graph.calls:
        handle = (call.op, tuple(call.args.items()), call.outputs, call.rounds)
        found = known.get(handle)
        if found is None:
            found = known[handle] = cost_of(call, conventions)
        nodes.append(Node(call, *found))
    graph = dataclasses.replace(
        graph,
        weights=tuple(_kept_as(w, conventions) for w in graph.weights),
        cache=tuple(_kept_as(w, conventions) for w in graph.cache),
    )
    return Costed(graph, tuple(nodes), conventions)


def cost_of(call: Call, conventions: Conventions = Conventions()) -> tuple[Cost, str]:
    """The cost of one call, and the rule that gave it by the operator that it is registered for: "aten.mm".

    A rule for one overload has the overload's name; where there is none it is "unknown".
    """
    result, name = _by_rule(call, conventions)
    stored = stored_as(call, conventions)
    if stored != call:  # the arithmetic stays as it was, the traffic changes
        moved, _ = _by_rule(stored, conventions)
        result = dataclasses.replace(result, read=moved.read, write=moved.write)
    return (served(stored, result) if conventions.cache == "serving" else result), name


def _by_rule(call: Call, conventions: Conventions) -> tuple[Cost, str]:
    entry = registry.find(call.op)
    if entry is not None:
        result = entry.rule(call, conventions)
        name = call.op if call.op in registry.RULES else call.op.rsplit(".", 1)[0]
    else:
        result = _unknown(call)
        name = "unknown"
    if call.rounds is not None:
        result = _summed(result, call.rounds)
    return result, name


def _unknown(call: Call) -> Cost:
    """No rule: the operands must be read and the results written at least; the work is unknown, unless torch has a formula."""
    flops = torch_formula(call)
    read, write = read_once(call.inputs), written(call.outputs)
    if flops is not None:
        note = "FLOPs from a formula registered with torch; bytes unknown, at least operands and results"
        math = registry.compute_dtype(call)
        return Cost(matmul=flops, read=read, write=write, math=math, status="flops_only", note=note)
    return Cost(read=read, write=write, status="unknown", note="no rule: bytes of operands and results, FLOPs unknown")


def _summed(c: Cost, rounds: Expr) -> Cost:
    """The cost of all rounds of a loop whose shapes grow."""
    parts = {f: sum_over(getattr(c, f), LOOP, rounds) for f in ("matmul", "vector", "special", "read", "write")}
    moved = tuple(dataclasses.replace(t, payload=sum_over(t.payload, LOOP, rounds)) for t in c.transfers)
    return dataclasses.replace(c, **parts, transfers=moved)


def _storage(conventions: Conventions) -> dict[str, str]:
    """The storage types that differ from the traced ones, by role."""
    asked = {"weight": conventions.weights, "cache": conventions.kv}
    return {role: SHORT_DTYPE.get(name, name) for role, name in asked.items() if name}


def _kept_as(w: Weight, conventions: Conventions) -> Weight:
    dtype = _storage(conventions).get(w.tensor.role) if w.tensor.is_float else None
    return dataclasses.replace(w, tensor=dataclasses.replace(w.tensor, dtype=dtype)) if dtype else w


def stored_as(call: Call, conventions: Conventions) -> Call:
    """The call with its weights and caches stored as the types that were asked for, those that it writes included."""
    types = _storage(conventions)
    if not types:
        return call

    def swap(x: Any) -> Any:
        if isinstance(x, Tensor) and x.role in types and x.is_float:
            return dataclasses.replace(x, dtype=types[x.role])
        return tuple(swap(i) for i in x) if isinstance(x, tuple) else x

    return dataclasses.replace(call, args={k: swap(v) for k, v in call.args.items()}, outputs=swap(call.outputs))
