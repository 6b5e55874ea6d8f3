"""The analysis as a pass in the compiler's sense: costs in `node.meta["costir"]` of torch.fx graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from costir.cost import cost_of
from costir.ir import Call, Conventions, Cost, Status, traced_phase
from costir.symbolic import Expr, Integer, evaluate, expand, show, size, total

if TYPE_CHECKING:
    from costir.analysis import Analysis

_PARTS = ("matmul", "vector", "special", "read", "write")


@dataclass(frozen=True, slots=True)
class NodeCost:
    """What one node of a graph costs: `node.meta["costir"]`.

    Attributes:
        cost: FLOPs and bytes of the node.
        rule: the operators whose rules gave the cost, "aten.mm"; several where torch takes the node apart when it runs.
        calls: the operator calls that the node runs; none for arithmetic on sizes.
    """

    cost: Cost
    rule: str
    calls: tuple[Call, ...] = ()

    @property
    def status(self) -> Status:
        """costed, free, flops_only or unknown."""
        return self.cost.status

    @property
    def flops(self) -> Expr:
        """All FLOPs."""
        return self.cost.flops

    @property
    def bytes(self) -> Expr:
        """Bytes read and written."""
        return self.cost.nbytes

    def __str__(self) -> str:
        parts = [f"{p}={show(getattr(self.cost, p))}" for p in _PARTS if getattr(self.cost, p) != 0]
        word = [] if self.status == "costed" else [self.status]
        return ", ".join([*word, *parts, f'rule="{self.rule}"'])


def node_cost(calls: Iterable[Call], conventions: Conventions, known: dict[Any, Cost]) -> NodeCost:
    """The cost of the calls of one node together."""
    calls = tuple(calls)
    costs = []
    for call in calls:
        key = (call.op, tuple(call.args.items()), call.outputs, call.rounds)
        if key not in known:
            known[key] = cost_of(call, conventions)[0]
        costs.append(known[key])
    names = [".".join(c.op.split(".")[:2]) for c in calls]
    telling = [n for n, c in zip(names, costs, strict=True) if c.status != "free"] or names
    rule = " + ".join(dict.fromkeys(telling)) or "no operator"
    if len(calls) == 1 and calls[0].count == 1:
        return NodeCost(costs[0], rule, calls)
    parts = {p: expand(total(call.count * getattr(c, p) for call, c in zip(calls, costs, strict=True))) for p in _PARTS}
    found = {c.status for c in costs}
    status = next((s for s in ("unknown", "flops_only", "costed") if s in found), "free")
    math = next((c.math for c in costs if c.matmul != 0), next((c.math for c in costs if c.math), ""))
    notes = "; ".join(dict.fromkeys(c.note for c in costs if c.note))
    return NodeCost(Cost(**parts, math=math, status=status, note=notes), rule, calls)  # type: ignore[arg-type]


def annotate(graph_module: Any, names: Mapping[str, str], conventions: Conventions) -> Any:
    """Put a `NodeCost` into `node.meta["costir"]` of every call of a graph and of the sub-graphs that it surely runs.

    Args:
        graph_module: a `torch.fx.GraphModule` whose nodes carry values.
        names: new names for its symbols, {"s77": "B"}.
        conventions: what counts.

    Returns:
        The same graph module.

    Raises:
        LoadError: a node carries no shape, or a name is for no symbol.
    """
    from torch.fx import GraphModule

    from costir.errors import LoadError
    from costir.load.fx_walk import walked

    if not isinstance(graph_module, GraphModule):
        raise LoadError(
            f"cannot annotate a {type(graph_module).__name__}", "give a torch.fx.GraphModule, such as program.graph_module"
        )
    known: dict[Any, Cost] = {}
    owners: dict[int, Any] = {}
    for node, calls in walked(graph_module, names).items():
        if owners.setdefault(id(node.meta), node) is not node:  # torch.export lets two nodes share one dict
            node.meta = dict(node.meta)
        node.meta["costir"] = node_cost(calls, conventions, known)
    return graph_module


def graph_module(analysis: Analysis) -> Any:
    """The analysis as a torch.fx graph module with a `NodeCost` in `node.meta["costir"]` of every call.

    A family is traced once more at its base sizes; a program's own graph is taken, the program itself stays as it is.

    Raises:
        CostirError: as `costir.analyze` does.
    """
    from costir.graph_build import from_calls, from_trace
    from costir.load.family import Family

    origin = analysis.origin
    if origin is None:
        return from_calls(analysis.costed, analysis.name)
    if isinstance(origin.subject, Family):
        from costir import trace

        family = origin.subject
        return from_trace(
            trace.run(family, family.sizes, traced_phase(analysis.phase), origin.optimizer), analysis.costed, family.name
        )
    return _numbers_in(_of_program(origin.subject, origin.names, analysis.conventions), origin.fixed)


def _of_program(subject: Any, names: Mapping[str, str], conventions: Conventions) -> Any:
    """A copy of a program's graph, annotated."""
    from costir.load.fx_walk import copied
    from costir.load.pt2 import read_archive

    program = read_archive(subject) if isinstance(subject, str) else subject
    return annotate(copied(getattr(program, "graph_module", program)), names, conventions)


def _numbers_in(graph: Any, fixed: Mapping[str, int]) -> Any:
    """Numbers for the sizes that the analysis does not keep."""
    point = {size(n): Integer(v) for n, v in fixed.items()}
    for node in graph.graph.nodes if point else ():
        found = node.meta.get("costir")
        if found is not None:
            parts = {p: evaluate(getattr(found.cost, p), point) for p in _PARTS}
            node.meta["costir"] = replace(found, cost=replace(found.cost, **parts))
    return graph


__all__ = ["NodeCost", "annotate", "graph_module", "node_cost"]
