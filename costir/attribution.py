"""Which part of a model accounts for a difference: a tensor, an operator, a group of them, or two such."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from costir import sampling
from costir import symbolic as sym
from costir.ir import SHORT_DTYPE, Call, Conventions, Graph, Node, Tensor
from costir.sampling import Point, Values
from costir.symbolic import Expr

MOST = 400


class Subject(Protocol):
    """What is checked against: an analysis, or anything with these attributes."""

    @property
    def graph(self) -> Graph:
        """The symbolic graph."""
        ...

    @property
    def nodes(self) -> Sequence[Node]:
        """Its operators with their costs."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """Base values of the sizes."""
        ...

    @property
    def conventions(self) -> Conventions:
        """What was counted."""
        ...

    @property
    def flops(self) -> Expr:
        """All FLOPs."""
        ...

    @property
    def matmul_flops(self) -> Expr:
        """FLOPs of contractions."""
        ...

    @property
    def bytes(self) -> Expr:
        """Bytes moved."""
        ...

    @property
    def read(self) -> Expr:
        """Bytes read."""
        ...

    @property
    def write(self) -> Expr:
        """Bytes written."""
        ...

    @property
    def network(self) -> Expr:
        """Bytes that one device sends."""
        ...

    @property
    def params(self) -> Expr:
        """Number of parameters."""
        ...

    @property
    def weight_bytes(self) -> Expr:
        """Bytes of the parameters."""
        ...

    @property
    def intensity(self) -> Expr:
        """FLOPs per byte."""
        ...


@dataclass(frozen=True, slots=True)
class Atom:
    """A part that a formula may miss: words, amount, values at the points."""

    label: str
    expr: Expr
    values: Values


def attribute(gap: Values, known: Sequence[Atom]) -> tuple[Atom, ...] | None:
    """The part, or the two parts, whose amount is the gap at every point."""
    if not any(gap) or any(g < 0 for g in gap):
        return None
    by_value: dict[Values, Atom] = {}
    for atom in known:
        by_value.setdefault(atom.values, atom)
    if gap in by_value:
        return (by_value[gap],)
    for atom in by_value.values():
        rest = tuple(g - v for g, v in zip(gap, atom.values, strict=True))
        if rest in by_value and by_value[rest] is not atom:
            return (atom, by_value[rest])
    return None


def part_of(gap: Values, known: Sequence[Atom], most: int) -> tuple[Atom, Expr] | None:
    """The part of which the gap is a simple share (1/4, 1/2, 2/3, ...) or multiple up to `most`, with that number."""
    if not any(gap) or any(g < 0 for g in gap):
        return None
    for atom in known:
        c = sampling.constant_ratio(gap, atom.values)
        if c is not None and c.denominator <= 4 and c <= most:
            return atom, sym.number(c)
    return None


def atoms(name: str, analysis: Subject, points: Sequence[Point]) -> list[Atom]:
    """The parts of an additive quantity, the smallest first."""
    found: list[Atom] = []
    for label, expr in _parts(name, analysis):
        if expr == 0 or len(found) >= MOST:
            continue
        values = sampling.values(expr, points)
        if values is not None and any(values):
            found.append(Atom(label, expr, values))
    return found


def _parts(name: str, analysis: Subject) -> Iterator[tuple[str, Expr]]:
    if name in ("params", "weight_bytes"):
        yield from _weights(name, analysis)
        return
    if name in ("bytes", "read", "write"):
        for node in analysis.nodes:
            yield from _tensors(name, node, analysis.graph.name)
    amount = attrgetter({"bytes": "nbytes", "matmul_flops": "matmul"}.get(name, name))
    groups: dict[str, list[Expr]] = {}
    for node in analysis.nodes:
        each = node.call.count * amount(node.cost)
        yield node_label(node), each
        for key in _keys(node):
            groups.setdefault(key, []).append(each)
    for key, members in groups.items():
        yield key, sym.total(members)
    if name == "flops":
        yield "all elementwise arithmetic", sym.total(n.call.count * (n.cost.vector + n.cost.special) for n in analysis.nodes)
        yield "all special functions", sym.total(n.call.count * n.cost.special for n in analysis.nodes)
    if name == "bytes":
        yield "all writes", sym.total(n.call.count * n.cost.write for n in analysis.nodes)
        yield "all reads", sym.total(n.call.count * n.cost.read for n in analysis.nodes)


def node_label(node: Node) -> str:
    """An operator in words."""
    return f"{node.call.path} ({node.call.name})" if node.call.path else node.call.name


def _keys(node: Node) -> Iterator[str]:
    """The groups that an operator is in: its kind, its phase, every module around it, every module of that name."""
    yield f"every {node.call.name}"
    yield f"the {node.call.phase} pass" if node.call.phase != "optimizer" else "the optimizer"
    steps = [s for s in node.call.path.split(".") if s]
    for i in range(1, len(steps)):
        yield f"all of {'.'.join(steps[:i])}"
    if steps:
        yield f"every {steps[-1]}"


def _weights(name: str, analysis: Subject) -> Iterator[tuple[str, Expr]]:
    groups: dict[str, list[Expr]] = {}
    for w in analysis.graph.weights:
        if w.tensor.role != "weight":
            continue
        each = w.count * w.tensor.numel * (w.tensor.itemsize if name == "weight_bytes" else 1)
        yield w.path, each
        steps = w.path.split(".")
        for key in [f"all of {'.'.join(steps[:i])}" for i in range(1, len(steps))] + [f"every {s}" for s in steps[-2:]]:
            groups.setdefault(key, []).append(each)
    for key, members in groups.items():
        yield key, sym.total(members)


def _tensors(name: str, node: Node, text: str) -> Iterator[tuple[str, Expr]]:
    """The read of each distinct operand and the write of each result."""
    if node.cost.status != "costed":
        return
    call = node.call
    names = _operand_names(call, text)
    seen: set[int] = set()
    if name != "write":
        for i, t in enumerate(call.inputs):
            if t.ref < 0 or t.ref not in seen:
                yield f"the read of {names[i]} {_shape(t)}", call.count * t.nbytes
            seen.add(t.ref)
    if name != "read":
        for i, t in enumerate(call.outputs):
            result = names[len(call.inputs) + i]
            yield f"the write of {result} {_shape(t)}", call.count * t.nbytes


def _shape(t: Tensor) -> str:
    return f"[{', '.join(sym.show(d) for d in t.shape)}]"


def _operand_names(call: Call, text: str) -> list[str]:
    """Operands and results by name: those of a notation string, else the arguments' names and the operator's path."""
    count = len(call.inputs) + len(call.outputs)
    if call.op == "costir.einsum":
        written = re.findall(r"([A-Za-z_]\w*)?\s*\[", text)
        named = [w if w and w not in SHORT_DTYPE and w not in SHORT_DTYPE.values() else "" for w in written]
        named += [""] * (len(call.outputs) if "->" not in text else 0)
        operands = [n or f"operand {i + 1}" for i, n in enumerate(named[: len(call.inputs)])]
        if len(named) == count:
            return operands + [n or "the result" for n in named[len(call.inputs) :]]
    where = f" of {node_path}" if (node_path := call.path) else ""
    inputs: list[str] = []
    for key, argument in call.args.items():
        several = isinstance(argument, tuple | list)
        tensors = [t for t in (argument if several else (argument,)) if isinstance(t, Tensor)]
        inputs += [f"{key}{f' {i + 1}' if several else ''} of {call.name}{where}" for i, _ in enumerate(tensors)]
    inputs += [f"an operand of {call.name}{where}"] * (len(call.inputs) - len(inputs))
    return inputs + [f"the result of {call.name}{where}"] * len(call.outputs)
