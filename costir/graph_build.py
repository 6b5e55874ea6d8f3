"""A torch.fx graph with costs from an analysis: for families from a trace at the base sizes, for notation from its calls.

The graph shows what runs, in order, with data edges; it is there to be read, searched and rewritten by tools that know fx. Its
operands are placeholders: weights and inputs hold no data. Values that no operator reads are its outputs.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from costir.graph_pass import NodeCost, node_cost
from costir.ir import LOOP, Call, Conventions, Cost, Costed, Node, Tensor
from costir.lifting.align import occurrences
from costir.symbolic import Expr, Integer, Symbol, evaluate, size
from costir.trace import Trace, concrete
from costir.tracing.paths import fold_path
from costir.tracing.recorder import Event, RawTensor, raw_tensors

Ints = tuple[int, ...]


def from_trace(trace: Trace, costed: Costed, name: str) -> fx.GraphModule:
    """The graph of a trace at the base sizes, each node with the formula that the analysis has for it.

    Args:
        trace: the run.
        costed: the analysis of the same model and phase.
        name: of the graph module.
    """
    builder = _Builder()
    prices = _Prices(costed, trace.sizes)
    for w in trace.weights:
        builder.names[w.tensor.ref] = w.path
    for event in trace.events:
        builder.operands(event)
    for event in trace.events:
        builder.call(event, prices.of(event))
    return builder.finish(name)


def from_calls(costed: Costed, name: str) -> fx.GraphModule:
    """The graph of calls that have no trace, such as those of a notation string."""
    builder = _Builder()
    known: dict[Any, Cost] = {}
    point = {size(n): Integer(v) for n, v in costed.graph.sizes.items()}
    for w in costed.graph.weights:
        builder.names[w.tensor.ref] = w.path
    events = [(_event(n.call, point), node_cost((n.call,), costed.conventions, known)) for n in costed.nodes]
    for event, _ in events:
        builder.operands(event)
    for event, price in events:
        builder.call(event, price)
    return builder.finish(name)


def _event(call: Call, point: Mapping[Symbol, Expr]) -> Event:
    """A symbolic call as an event with the numbers of the base sizes."""

    def raw(x: Any) -> Any:
        if isinstance(x, Tensor):
            shape = tuple([int(evaluate(d, point)) for d in x.shape])
            return RawTensor(shape, x.dtype, x.expanded, x.role, x.ref)
        if isinstance(x, tuple):
            return tuple([raw(i) for i in x])
        return int(evaluate(x, point)) if isinstance(x, Expr) else x

    args = tuple((k, raw(v)) for k, v in call.args.items())
    return Event(call.op, args, raw(call.outputs), call.path, call.source, call.phase)


class _Prices:
    """Finds the formula of a traced call among the analysis's nodes: same operator, module, line and phase, same numbers."""

    def __init__(self, costed: Costed, sizes: Mapping[str, int]) -> None:
        self.conventions: Conventions = costed.conventions
        self.point = {size(n): Integer(int(v)) for n, v in sizes.items()}
        self.values: dict[Any, int] = {}
        self.known: dict[Any, Cost] = {}
        self.found: dict[Any, NodeCost] = {}
        self.nodes: dict[Any, list[tuple[Ints, Call]]] = {}
        for node in costed.nodes:
            key = (node.call.op, fold_path(node.call.path), node.call.source, node.call.phase)
            self.nodes.setdefault(key, []).extend(self._rounds(node))

    def _rounds(self, node: Node) -> Iterable[tuple[Ints, Call]]:
        """A node's numbers at the base sizes with its call; one for each round of a loop."""
        if node.call.rounds is None:
            yield self._numbers(node.call), _once(node.call)
            return
        for r in range(int(evaluate(node.call.rounds, self.point))):
            call = _once(_at_round(node.call, r))
            yield self._numbers(call), call

    def _numbers(self, call: Call) -> Ints:
        return tuple(_ints((tuple(call.args.values()), call.outputs), self._value))

    def _value(self, e: Any) -> int:
        if e not in self.values:
            self.values[e] = int(evaluate(e, self.point))
        return self.values[e]

    def of(self, event: Event) -> NodeCost:
        """The cost of an event: symbolic where its formula is found, else its numbers at the base sizes."""
        key = (event.op, fold_path(event.path), event.source, event.phase)
        (occurrence,) = occurrences([event], lambda k: k)
        tree = (tuple(v for _, v in occurrence.event.args), occurrence.event.outputs)
        handle = (key, tuple(_ints(tree, int)), *_form(tree))
        if handle not in self.found:
            self.found[handle] = node_cost((self._match(*handle) or concrete(event),), self.conventions, self.known)
        return self.found[handle]

    def _match(self, key: Any, ints: Ints, kinds: Any, layout: Any) -> Call | None:
        """The call with these numbers and types; of several the one whose operands share memory alike."""
        matches = [(c, _form((tuple(c.args.values()), c.outputs))) for i, c in self.nodes.get(key, ()) if i == ints]
        alike = [(c, form[1]) for c, form in matches if form[0] == kinds]
        return next((c for c, other in alike if other == layout), alike[0][0] if alike else None)


def _once(call: Call) -> Call:
    return Call(call.op, call.args, call.outputs, call.path, call.source, call.phase)


def _at_round(call: Call, r: int) -> Call:
    """A call of a loop in its round `r`."""
    point = {LOOP: Integer(r)}

    def put(x: Any) -> Any:
        if isinstance(x, Tensor):
            nnz = None if x.nnz is None else evaluate(x.nnz, point)
            return Tensor(
                tuple(evaluate(d, point) for d in x.shape),
                x.dtype,
                x.expanded,
                x.role,
                x.ref,
                nnz,
                evaluate(x.index_bytes, point),
            )
        if isinstance(x, tuple):
            return tuple(put(i) for i in x)
        return evaluate(x, point) if isinstance(x, Expr) else x

    return Call(call.op, {k: put(v) for k, v in call.args.items()}, put(call.outputs), call.path, call.source, call.phase)


def _ints(x: Any, value: Callable[[Any], int]) -> Iterable[int]:
    """All whole numbers of arguments and outputs in order."""
    if isinstance(x, (RawTensor, Tensor)):
        yield from map(value, x.shape)
        if x.nnz is not None:
            yield value(x.nnz)
    elif isinstance(x, tuple):
        for i in x:
            yield from _ints(i, value)
    elif isinstance(x, Expr) or (isinstance(x, int) and not isinstance(x, bool)):
        yield value(x)


def _form(tree: Any) -> tuple[Any, Any]:
    """What arguments and outputs are besides their numbers: types, roles, flags; and which operands are expanded or shared."""
    first: dict[int, int] = {}
    kinds: list[Any] = []
    layout: list[Any] = []

    def read(x: Any) -> None:
        if isinstance(x, (RawTensor, Tensor)):
            kinds.append((x.dtype, x.role))
            layout.append((x.expanded, first.setdefault(x.ref, len(first))))
        elif isinstance(x, tuple):
            for i in x:
                read(i)
        elif isinstance(x, (bool, str)):
            kinds.append(x)

    read(tree)
    return tuple(kinds), tuple(layout)


class _Builder:
    """Makes the fx graph: a placeholder for each operand that no call made, then the calls."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.names: dict[int, str] = {}  # of weights and buffers, by memory
        self.holders: dict[int, fx.Node] = {}
        self.parts: dict[int, tuple[fx.Node, int]] = {}  # results of calls with several, not taken out yet
        self.made: set[int] = set()
        self.used: dict[str, int] = {}
        self.phase = "forward"

    def operands(self, event: Event) -> None:
        """Placeholders for what a call reads and no call before it made."""
        for t in raw_tensors(event.args):
            if t.ref not in self.made:
                self.made.add(t.ref)
                name = re.sub(r"\W|^(?=\d)", "_", self.names.get(t.ref, t.role if t.role != "activation" else "operand"))
                used = self.used[name] = self.used.get(name, -1) + 1
                node = self.graph.placeholder(f"{name}_{used}" if used else name)
                node.meta.update(val=_meta(t), path=self.names.get(t.ref, ""), role=t.role)
                self.holders[t.ref] = node
        self.made.update(o.ref for o in event.outputs)

    def call(self, event: Event, price: NodeCost) -> None:
        """The node of a call."""
        target, schema = _target(event.op)
        self.phase = event.phase
        args, kwargs = self._arguments(event, schema)
        node = self.graph.call_function(target, args, kwargs)
        node.meta.update(costir=price, path=event.path, source=event.source, phase=event.phase)
        if event.path:
            parts = event.path.split(".")
            node.meta["nn_module_stack"] = {".".join(parts[: i + 1]): (".".join(parts[: i + 1]), "") for i in range(len(parts))}
        if event.source:
            file, _, line = event.source.rpartition(":")
            node.meta["stack_trace"] = f'File "{file}", line {line}, in {event.path.rsplit(".", 1)[-1] or "forward"}'
        single = schema is None or (len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor")
        if len(event.outputs) == 1 and single:
            node.meta["val"] = _meta(event.outputs[0])
            self.holders[event.outputs[0].ref] = node
            self.parts.pop(event.outputs[0].ref, None)
            return
        node.meta["val"] = tuple(_meta(o) for o in event.outputs)
        for place, o in zip(_places(event, schema), event.outputs, strict=False):
            self.parts[o.ref] = (node, place)

    def _arguments(self, event: Event, schema: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if schema is None:
            return (), {k: self._argument(v) for k, v in event.args}
        positional, keyword = [], {}
        for given, a in zip(event.args, schema.arguments, strict=False):
            value = self._argument(given[1])
            plain = a.has_default_value() and not isinstance(value, fx.Node) and _same(value, a.default_value)
            if a.kwarg_only and not plain:
                keyword[a.name] = value
            elif not a.kwarg_only:
                positional.append((value, plain))
        while positional and positional[-1][1]:
            positional.pop()
        return tuple(v for v, _ in positional), keyword

    def _argument(self, x: Any) -> Any:
        if isinstance(x, RawTensor):
            return self._holder(x)
        if isinstance(x, tuple):
            return [self._argument(i) for i in x]
        if isinstance(x, str):
            name = x.removeprefix("torch.")
            found = getattr(torch, name, None)
            return found if isinstance(found, (torch.dtype, torch.layout, torch.memory_format)) else x
        return int(x) if type(x) is not bool and isinstance(x, int) else x

    def _holder(self, t: RawTensor) -> fx.Node:
        if t.ref in self.parts:
            whole, place = self.parts.pop(t.ref)
            item = self.graph.call_function(operator.getitem, (whole, place))
            item.meta.update(val=_meta(t), path=whole.meta["path"], source=whole.meta["source"], phase=self.phase,
                             costir=NodeCost(Cost(status="free"), "no operator"))  # fmt: skip
            self.holders[t.ref] = item
        return self.holders[t.ref]

    def finish(self, name: str) -> fx.GraphModule:
        """The module; its outputs are the values that no node reads."""
        self.graph.output(tuple(n for n in self.graph.nodes if n.op == "call_function" and not n.users))
        self.graph.lint()
        return fx.GraphModule(torch.nn.Module(), self.graph, class_name=re.sub(r"\W", "_", name) or "GraphModule")


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def _meta(t: RawTensor) -> torch.Tensor:
    """A tensor of the shape at the base sizes, without memory."""
    dtype = getattr(torch, t.dtype, torch.float32)
    shape = [1 if i in t.expanded else d for i, d in enumerate(t.shape)]
    return torch.empty(shape, dtype=dtype, device="meta").expand(t.shape)


def _target(op: str) -> tuple[Any, Any]:
    """The operator and its schema; a named stand-in, without schema, for what is no operator of torch's."""
    if op == "costir.einsum":
        return torch.ops.aten.einsum.default, torch.ops.aten.einsum.default._schema
    namespace, name, overload = op.split(".", 2)
    packet = (
        getattr(getattr(torch.ops, namespace, None), name, None)
        if namespace not in ("costir", "higher_order", "torch")
        else None
    )
    found = getattr(packet, overload or "default", None)
    if found is not None:
        return found, found._schema

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{op} stands for what ran; the graph cannot run it")

    stand_in.__name__ = stand_in.__qualname__ = name
    stand_in.__module__ = namespace
    return stand_in, None


def _places(event: Event, schema: Any) -> Sequence[int]:
    """The positions of the tensors among an operator's results; masked-out gradients and numbers have none."""
    mask = dict(event.args).get("output_mask")
    if isinstance(mask, tuple) and sum(map(bool, mask)) == len(event.outputs):
        return [i for i, m in enumerate(mask) if m]
    returns = [i for i, r in enumerate(schema.returns) if "Tensor" in str(r.type)] if schema is not None else []
    return returns if len(returns) == len(event.outputs) else range(len(event.outputs))
