"""Sizes of 1: the program is run there and counted, where its formulas may be those for 2 and more.

At sizes of 1 torch takes shortcuts: a reshape copies nothing, a row counts as contiguous. Only a run shows whether it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costir.cost import cost_of
from costir.errors import CostirError, SizeError
from costir.ir import LOOP, Conventions, Cost, Graph, Tensor
from costir.load.family import Family
from costir.symbolic import Expr, Integer, show, size, total

SHORTCUT = "torch takes a shortcut"
_MOST_CALLS = 20_000  # a longer run takes seconds


def ones(graph: Graph, values: Mapping[str, int]) -> frozenset[tuple[Expr, int]]:
    """The dimensions of a graph's tensors that are 1 (or 0) at these sizes and larger at others, with their value.

    Args:
        graph: calls with shapes in the sizes.
        values: every size.
    """
    found = _at(graph, values)
    return frozenset((d, int(v)) for d, v in found.items() if v.is_Integer and v <= 1)


def where_one(graph: Graph, values: Mapping[str, int]) -> str:
    """What is 1 at these sizes, "B = 1" or "B/X = 1", for a sentence; "" where nothing is."""
    sizes = ", ".join(f"{n} = 1" for n, v in values.items() if v == 1)
    return sizes or ", ".join(sorted(f"{show(d)} = 1" for d, v in ones(graph, values) if v == 1))


def equals(graph: Graph, values: Mapping[str, int]) -> frozenset[frozenset[Expr]]:
    """Which dimensions of a graph's tensors are equal at these sizes and not at others: torch may take another way there."""
    groups: dict[Expr, set[Expr]] = {}
    for d, v in _at(graph, values).items():
        groups.setdefault(v, set()).add(d)
    return frozenset(frozenset(g) for g in groups.values() if len(g) > 1)


_RESHAPED = ("aten._unsafe_view", "aten.view")


def by_chance(graph: Graph, values: Mapping[str, int]) -> frozenset[tuple[Expr, int]]:
    """Dimensions of a copy that are equal, at these sizes, to a plain number of the shape that it was made for.

    `x.mT.reshape(-1, 4)` copies, but for the sizes at which x.mT has rows of 4 already.
    """
    point = {size(n): Integer(v) for n, v in values.items()}
    found = set()
    for copy, view in zip(graph.calls, graph.calls[1:], strict=False):
        if copy.name == "clone" and view.op.startswith(_RESHAPED):
            plain = {d for t in view.outputs for d in t.shape if d.is_Integer and d > 1}
            dims = [(d, d.xreplace(point)) for t in copy.outputs for d in t.shape if d.free_symbols and not d.has(LOOP)]
            found |= {(d, int(v)) for d, v in dims if v in plain}
    return frozenset(found)


def _at(graph: Graph, values: Mapping[str, int]) -> dict[Expr, Expr]:
    """The dimensions that depend on sizes, with their values; none where a run there would take too long."""
    point = {size(n): Integer(v) for n, v in values.items()}
    tensors = {t for c in graph.calls for t in (*c.inputs, *c.outputs) if isinstance(t, Tensor)}
    dims = {d for t in tensors for d in t.shape if d.free_symbols and not d.has(LOOP)}
    if sum(int(c.count.xreplace(point)) for c in graph.calls if c.count.xreplace(point).is_Integer) > _MOST_CALLS:
        return {}
    return {d: d.xreplace(point) for d in dims}


def has_shortcut(graph: Graph) -> bool:
    """Whether the base itself was seen to move other bytes than the formulas say."""
    return any(SHORTCUT in n for n in graph.notes)


def shortcuts(graph: Graph, values: Mapping[str, int]) -> Any:
    """What at these sizes may make torch take another way than the formulas': a key, alike where it is alike; None: nothing."""
    small, seen = ones(graph, values) | by_chance(graph, values), has_shortcut(graph)
    return (small, equals(graph, values) if seen else None) if small or seen else None


def counted(family: Family, values: Mapping[str, int], phase: str, optimizer: Any, conventions: Conventions) -> dict[str, Expr]:
    """What a run at these sizes costs, by the names of `Analysis`.

    Args:
        family: what to run.
        values: every size.
        phase: "forward", "backward" or "train".
        optimizer: makes the optimizer, for "train".
        conventions: what counts.

    Raises:
        SizeError: the model does not run at these sizes.
    """
    from costir.fused import fused_trace
    from costir.trace import concrete, run

    try:
        traced = run(family, values, phase, optimizer)
        calls = [concrete(e) for e in fused_trace(traced, conventions.traffic).events]
    except CostirError as error:
        raise SizeError(error.message, error.hint) from error
    costs: list[Cost] = [cost_of(c, conventions)[0] for c in calls]
    parts = {"matmul_flops": "matmul", "vector_flops": "vector", "special_flops": "special", "read": "read", "write": "write"}
    found = {name: total(getattr(c, part) for c in costs) for name, part in parts.items()}
    found["flops"] = total((found["matmul_flops"], found["vector_flops"], found["special_flops"]))
    found["bytes"] = found["read"] + found["write"]
    found["intensity"] = found["flops"] / found["bytes"] if found["bytes"] != 0 else Integer(0)
    return found
