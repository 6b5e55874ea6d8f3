"""A small analysis by hand, so that what people see is tested apart from how it is found.

The costs are written as literals, not by the rules: a report must show what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy as sp

from costir import ir
from costir.errors import SizeError
from costir.symbolic import ZERO, evaluate, number, size, total

B, T, D, F, L = (size(n) for n in "BTDFL")
SIZES = {"B": 4, "T": 32, "D": 1024, "F": 4096, "L": 3}


@dataclass(frozen=True)
class Sample:
    """Looks like `costir.analysis.Analysis` to the report."""

    costed: ir.Costed
    phase: str = "forward"
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    others: tuple[Sample, ...] = ()
    alternatives: tuple[Sample, ...] = ()
    cache: None = None
    origin: None = None
    symbols: Mapping[str, sp.Symbol] = field(default_factory=lambda: {n: size(n) for n in SIZES})

    @property
    def name(self) -> str:
        return self.costed.graph.name

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.costed.graph.sizes

    @property
    def conventions(self) -> ir.Conventions:
        return self.costed.conventions

    def _sum(self, pick: Any) -> sp.Expr:
        return total(n.call.count * pick(n.cost) for n in self.costed.nodes)

    matmul_flops = property(lambda self: self._sum(lambda c: c.matmul))
    vector_flops = property(lambda self: self._sum(lambda c: c.vector))
    special_flops = property(lambda self: self._sum(lambda c: c.special))
    flops = property(lambda self: self._sum(lambda c: c.flops))
    bytes = property(lambda self: self._sum(lambda c: c.nbytes))
    read = property(lambda self: self._sum(lambda c: c.read))
    write = property(lambda self: self._sum(lambda c: c.write))
    intensity = property(lambda self: self.flops / self.bytes if self.bytes != 0 else ZERO)
    params = property(lambda self: self.costed.graph.params)
    weight_bytes = property(lambda self: self.costed.graph.weight_bytes)

    @property
    def constraints(self) -> tuple[ir.Constraint, ...]:
        return self.costed.graph.constraints

    def broken(self, values: Mapping[str, int]) -> ir.Constraint | None:
        point = {size(n): number(v) for n, v in values.items()}
        return next((c for c in self.constraints if not bool(c.condition.xreplace(point))), None)

    def at(self, **sizes: int) -> Any:
        for name in sizes:
            if name not in self.sizes:
                raise SizeError(f"unknown size {name}")
        point = {size(n): number(v) for n, v in {**self.sizes, **sizes}.items()}
        names = (
            "matmul_flops",
            "vector_flops",
            "special_flops",
            "flops",
            "bytes",
            "read",
            "write",
            "intensity",
            "params",
            "weight_bytes",
        )
        here = next(a for a in (self, *self.others) if a.broken({**self.sizes, **sizes}) is None)
        return type("Point", (), {n: evaluate(getattr(here, n), point) for n in names})()


def tensor(*shape: Any, dtype: str = "bfloat16", role: str = "activation") -> ir.Tensor:
    return ir.Tensor(tuple(number(d) for d in shape), dtype, role=role)


def node(
    path: str,
    op: str,
    args: dict[str, Any],
    out: ir.Tensor,
    count: Any = 1,
    phase: str = "forward",
    source: str = "",
    **cost: Any,
) -> ir.Node:
    call = ir.Call(op, args, (out,), path, source, phase, number(count))
    c = ir.Cost(**{k: v if k in ("math", "status", "note") else number(v) for k, v in cost.items()})
    return ir.Node(call, c, op.rpartition(".")[0] if c.status != "unknown" else "")


def linear(path: str, n_in: Any, n_out: Any, count: Any, phase: str = "forward") -> ir.Node:
    x, w, y = tensor(B * T, n_in), tensor(n_in, n_out, role="weight"), tensor(B * T, n_out)
    return node(path, "aten.mm.default", {"self": x, "mat2": w}, y, count, phase, "model.py:12", math="bfloat16",
                matmul=2 * B * T * n_in * n_out, read=2 * B * T * n_in + 2 * n_in * n_out, write=2 * B * T * n_out)  # fmt: skip


def nodes() -> list[ir.Node]:
    ids = ir.Tensor((B, T), "int64", role="input")
    x = tensor(B, T, D)
    return [
        node("embed", "aten.embedding.default", {"weight": tensor(1000, D, role="weight"), "indices": ids}, x,
             source="model.py:30", read=8 * B * T + 2 * B * T * D, write=2 * B * T * D),
        node("layers.*", "aten.view.default", {"self": x}, x, L, status="free"),
        node("layers.*.norm", "aten.native_layer_norm.default", {"input": x}, x, L, source="model.py:20", math="bfloat16",
             vector=7 * B * T * D, special=B * T, read=2 * B * T * D + 4 * D, write=2 * B * T * D),
        linear("layers.*.mlp.up", D, F, L),
        node("layers.*.mlp", "aten.gelu.default", {"self": tensor(B, T, F)}, tensor(B, T, F), L,
             source="model.py:13", math="bfloat16",
             vector=4 * B * T * F, special=B * T * F, read=2 * B * T * F, write=2 * B * T * F),
        linear("layers.*.mlp.down", F, D, L),
        node("layers.*", "aten.add.Tensor", {"self": x, "other": x}, x, L, source="model.py:22", math="bfloat16",
             vector=B * T * D, read=4 * B * T * D, write=2 * B * T * D),
        node("norm", "aten.relu.default", {"self": tensor(B, D)}, tensor(B, D),
             source="model.py:31", read=2 * B * D, write=2 * B * D),
        node("norm", "aten.neg.default", {"self": tensor(B)}, tensor(B),
             source="model.py:32", vector=B, read=2 * B, write=2 * B),
        linear("head", D, 1000, 1),
    ]  # fmt: skip


WEIGHTS = (
    ir.Weight("embed.weight", tensor(1000, D, role="weight")),
    ir.Weight("layers.*.mlp.up.weight", tensor(D, F, role="weight"), L),
    ir.Weight("layers.*.mlp.down.weight", tensor(F, D, role="weight"), L),
    ir.Weight("head.weight", tensor(D, 1000, role="weight")),
)


def sample(extra: list[ir.Node] | None = None, **changes: Any) -> Sample:
    """The toy language model; `extra` nodes come last."""
    graph_nodes = [*nodes(), *(extra or [])]
    constraint = ir.Constraint(sp.Eq(sp.Mod(D, 8, evaluate=False), 0), "model.py:5")
    constraints = changes.pop("constraints", (constraint,))
    graph = ir.Graph("toy.py", SIZES, tuple(n.call for n in graph_nodes), WEIGHTS, constraints)
    settings = {"notes": ("loss: sum of the outputs",)} | changes
    return Sample(ir.Costed(graph, tuple(graph_nodes), ir.Conventions()), **settings)


def with_unknown() -> Sample:
    """The same with one operator that nobody knows, and one of known FLOPs only."""
    x = tensor(B, T, D)
    strange = node("layers.*.mixer", "mylib.scan.default", {"x": x}, x, L, source="model.py:40", status="unknown")
    half = node(
        "layers.*.mixer",
        "mylib.mix.default",
        {"x": x},
        x,
        L,
        source="model.py:41",
        status="flops_only",
        matmul=2 * B * T * D,
        math="bfloat16",
    )
    return sample([strange, half], unknown=("mylib.scan in layers.*.mixer (model.py:40), 3 calls",))
