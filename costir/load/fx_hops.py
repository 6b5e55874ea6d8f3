"""Operators that take graphs: go into the one that surely runs; name the others as unknown."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from costir.load.fx_walk import Condition, source_of, value
from costir.symbolic import Expr

if TYPE_CHECKING:
    from costir.load.fx_walk import Walker

# Wrappers: the last operands are those of the one graph that they run.
_WRAPPERS = (
    "wrap", "wrap_with_set_grad_enabled", "wrap_with_autocast", "invoke_subgraph", "tag_activation_checkpoint", "hints_wrapper",
    "wrap_activation_checkpoint", "strict_mode", "inductor_compiled_code", "invoke_quant", "invoke_quant_packed",
)  # fmt: skip


def note(walker: Walker, node: fx.Node, hop: Any) -> None:
    """Note the calls of a higher-order operator."""
    name = hop.name().split("::")[-1]
    args = map_arg(node.args, walker.of)
    kwargs = map_arg(node.kwargs, walker.of)
    if name in _WRAPPERS and _wrapper(walker, node, name, args):
        return
    if name == "cond" and _cond(walker, node, args):
        return
    if name in ("scan", "map_impl", "map") and _loop(walker, node, name, args):
        return
    if name in ("auto_functionalized", "auto_functionalized_v2") and _mutating(walker, node, name, args, kwargs):
        return
    if name == "with_effects" and isinstance(args[1], torch._ops.OpOverload):
        out = value(node)
        walker.recorder.note_operator(args[1], args[2:], kwargs, out[1] if len(out) == 2 else out[1:])
        return
    if name == "flex_attention":
        walker.recorder.note_call(
            "costir.flex_attention.default", dict(zip(("query", "key", "value"), args, strict=False)), value(node)[0]
        )
        walker.notes["flex_attention is counted dense; its score function and block mask are not counted"] = None
        return
    operands = tuple(t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
    out = tuple(t for t in tree_leaves(value(node)) if isinstance(t, torch.Tensor))
    walker.recorder.note_call(f"higher_order.{name}.default", {"operands": operands}, out)


def _enter(walker: Walker, body: fx.GraphModule, operands: Any, out: Any = None) -> Any:
    """Walk a sub-graph on operands; its results, linked with `out`."""
    placeholders = [n for n in body.graph.nodes if n.op == "placeholder"]
    for p, operand in zip(placeholders, operands, strict=True):
        if value(p) is None:
            walker.made[p] = operand
        walker.recorder.link(walker.of(p), operand)
    walker.walk(body)
    (last,) = next(n for n in reversed(body.graph.nodes) if n.op == "output").args
    results = map_arg(last, walker.of)
    walker.recorder.link(
        out, results if isinstance(results, (tuple, list)) or not isinstance(out, (tuple, list)) else (results,)
    )
    return results


def _wrapper(walker: Walker, node: fx.Node, name: str, args: Any) -> bool:
    """A wrapper runs its one graph, perhaps under autocast."""
    flat = [a for x in args for a in (x if isinstance(x, (tuple, list)) else (x,))]
    bodies = [i for i, a in enumerate(flat) if isinstance(a, fx.GraphModule)]
    if len(bodies) != 1:
        return False
    body = flat[bodies[0]]
    count = sum(n.op == "placeholder" for n in body.graph.nodes)
    operands = flat[len(flat) - count :]
    if len(flat) - count <= bodies[0]:
        return False
    forced = walker.forced
    with contextlib.ExitStack() as stack:
        if name == "wrap_with_autocast":
            device, dtype, enabled, cache = args[:4]
            stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache))
            walker.forced = bool(enabled)
        results = _enter(walker, body, operands, value(node))
    walker.forced = forced
    if value(node) is None:
        walker.made[node] = results
    return True


def _cond(walker: Walker, node: fx.Node, args: Any) -> bool:
    """A branch on sizes runs the side that the example's sizes take, on condition; one on data is unknown."""
    predicate, true_graph, false_graph, operands = args
    if isinstance(predicate, torch.Tensor) or not all(isinstance(g, fx.GraphModule) for g in (true_graph, false_graph)):
        return False
    taken = predicate
    if isinstance(predicate, torch.SymBool):
        taken = predicate.node.hint
        if taken is None:
            return False
        condition = walker.symbols.condition(predicate)
        walker.conditions.append(Condition(condition if taken else ~condition, source_of(node), True))
    _enter(walker, true_graph if taken else false_graph, operands, value(node))
    return True


def _loop(walker: Walker, node: fx.Node, name: str, args: Any) -> bool:
    """scan and map run their graph once for each slice of their operands, and stack the results."""
    if name == "scan":
        body, carried, xs, *rest = args
    else:
        (body, xs, *rest), carried = args, ()
    extra = tuple(rest[-1]) if rest and isinstance(rest[-1], (tuple, list)) else ()
    if not isinstance(body, fx.GraphModule) or not xs:
        return False
    placeholders = [value(n) for n in body.graph.nodes if n.op == "placeholder"]
    slices = placeholders[len(carried) : len(carried) + len(xs)]
    if any(v is None for v in slices) or len(placeholders) != len(carried) + len(xs) + len(extra):
        return False
    rounds: Expr = walker.symbols.number(xs[0].shape[0])
    recorder, before = walker.recorder, walker.recorder.times
    recorder.times = before * rounds
    for x, part in zip(xs, slices, strict=True):
        recorder.link(part, x)
        recorder.note_call("aten.select.int", {"self": x, "dim": 0, "index": None}, part)
    results = _enter(walker, body, (*carried, *slices, *extra))
    recorder.times = before
    _stack(walker, node, results[len(carried) :], len(carried))
    return True


def _stack(walker: Walker, node: fx.Node, results: Any, skip: int) -> None:
    """The rounds' results become one tensor with a dimension more: each is read and written once."""
    for whole in (value(node) or ())[skip:]:
        if isinstance(whole, torch.Tensor):
            walker.recorder.note_call("aten.stack.default", {"tensors": (whole,), "dim": 0}, whole)


def _mutating(walker: Walker, node: fx.Node, name: str, args: Any, kwargs: Any) -> bool:
    """A functional form of an operator that writes into its operands: it runs in place on them."""
    target = args[0]
    if not isinstance(target, torch._ops.OpOverload):
        return False
    given = {k: v for k, v in kwargs.items() if not k.startswith("_")}
    if name == "auto_functionalized_v2":
        bases = kwargs.get("_all_bases", ())
        for argument in target._schema.arguments:
            index = kwargs.get(f"_{argument.name}_base_index")
            if index is not None:
                given[argument.name] = bases[index]
    if any(a.name not in given and not a.has_default_value() for a in target._schema.arguments):
        return False
    out = value(node)
    written = [a.name for a in target._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    results = list(out) if isinstance(out, (tuple, list)) else [out]
    for result, operand in zip(results[len(target._schema.returns) :], [given.get(n) for n in written], strict=False):
        walker.recorder.link(result, operand)
    walker.recorder.note_operator(target, (), given, tuple(results[: len(target._schema.returns)]))
    return True
