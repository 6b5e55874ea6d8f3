"""Numbers for some of the sizes of a costed graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import sympy as sp

from costir.cost import cost
from costir.ir import Call, Constraint, Cost, Costed, Graph, Node, Tensor, Weight
from costir.mesh import Mesh
from costir.symbolic import Expr, Symbol


def substituted(costed: Costed, values: Mapping[Symbol, Expr]) -> Costed:
    """The costed graph with numbers put in for some sizes, which are then no sizes any more; its alternatives likewise."""
    known: dict[Any, Any] = {}

    def put(x: Any) -> Any:
        if isinstance(x, Expr):
            if x not in known:
                known[x] = x.xreplace(dict(values))
            return known[x]
        if isinstance(x, Tensor):
            if x not in known:
                known[x] = dataclasses.replace(x, shape=put(x.shape), nnz=put(x.nnz), index_bytes=put(x.index_bytes))
            return known[x]
        return tuple(put(i) for i in x) if isinstance(x, tuple) else x

    def put_cost(c: Cost) -> Cost:
        moved = tuple(dataclasses.replace(t, devices=put(t.devices), payload=put(t.payload)) for t in c.transfers)
        parts = {f: put(getattr(c, f)) for f in ("matmul", "vector", "special", "read", "write")}
        return dataclasses.replace(c, **parts, transfers=moved)

    def put_call(c: Call) -> Call:
        args = {k: put(v) for k, v in c.args.items()}
        return dataclasses.replace(c, args=args, outputs=put(c.outputs), count=put(c.count), rounds=put(c.rounds))

    def put_weights(held: tuple[Weight, ...]) -> tuple[Weight, ...]:
        return tuple(Weight(w.path, put(w.tensor), put(w.count)) for w in held)

    nodes = tuple(Node(put_call(n.call), put_cost(n.cost), n.rule) for n in costed.nodes)
    g = costed.graph
    gone = {str(s) for s in values}
    conditions = ((c, sp.sympify(c.condition.xreplace(dict(values)))) for c in g.constraints)
    left = tuple(Constraint(e, c.source) for c, e in conditions if e != sp.true)
    others = tuple(substituted(cost(a, costed.conventions), values).graph for a in g.alternatives)
    graph = Graph(g.name, {n: v for n, v in g.sizes.items() if n not in gone}, tuple(n.call for n in nodes),
                  put_weights(g.weights), left, g.notes, Mesh(tuple((n, put(length)) for n, length in g.mesh.axes)), g.splits,
                  put_weights(g.cache), g.plan, others, g.pipeline)  # fmt: skip
    return Costed(graph, nodes, costed.conventions)
