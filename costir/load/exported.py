"""Graphs that carry their own symbols: `torch.export` programs, and fx graphs whose nodes carry fake tensors.

torch's symbols (s77) become sizes, under new names where the user gives some; their values in the program's example are the
base sizes. Operators are costed as they run, see `costir.load.fx_walk`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import sympy as sp
import torch
from torch import fx

from costir.errors import LoadError, SizeError
from costir.ir import Call, Constraint, Graph, Role, Tensor, Weight
from costir.load.family import with_sizes
from costir.load.fx_guards import guard_conditions
from costir.load.fx_walk import Condition, Walker, backward_nodes, value
from costir.load.pt2 import read_archive
from costir.load.symints import Places, Symbols
from costir.symbolic import Integer, size, total
from costir.tracing.paths import fold_path

Program = Any  # torch.export.ExportedProgram or torch.fx.GraphModule


def read_file(path: str, names: Mapping[str, str], sizes: Mapping[str, int], phase: str = "forward") -> Graph:
    """The graph of a program that `torch.export.save` wrote.

    Args:
        path: the file.
        names: new names for its symbols, {"s77": "B"}.
        sizes: base sizes that differ from the program's example, by their new names.
        phase: "forward"; "backward" for a joint graph of both passes.

    Raises:
        LoadError: the file cannot be read, or see `read_program`.
        SizeError: see `read_program`.
    """
    return read_program(read_archive(path), names, sizes, phase)


def read_program(program: Program, names: Mapping[str, str], sizes: Mapping[str, int], phase: str = "forward") -> Graph:
    """The graph of a program.

    Args:
        program: a `torch.export.ExportedProgram`, or a `torch.fx.GraphModule` whose nodes carry values.
        names: new names for its symbols, {"s77": "B"}.
        sizes: base sizes that differ from the program's example, by their new names.
        phase: "forward"; "backward" for a joint graph of both passes.

    Returns:
        Its calls, with repeated ones folded, weights, and the constraints that the program puts on its sizes.

    Raises:
        LoadError: a node carries no shape; a name for no symbol; a phase that the program has not.
        SizeError: `sizes` names no size; a size that data decide has no base value.
    """
    signature = getattr(program, "graph_signature", None)
    graph_module = program.graph_module if signature is not None else program
    loss = getattr(getattr(signature, "backward_signature", None), "loss_output", "")
    _check_phase(graph_module, phase, loss)
    symbols = Symbols(names, Places(graph_module))
    symbols.divisible.update(_divisible(graph_module))
    walker = Walker(graph_module, symbols, loss)
    weights = _weights(walker, program, graph_module, signature)
    _inputs(walker, graph_module)
    walker.walk(graph_module)
    if signature is not None:
        _copy_back(walker, graph_module, signature)
    symbols.check_names()
    base = _base_sizes(symbols, sizes)
    found = [*_ranges(program, symbols), *walker.conditions, *guard_conditions(program, graph_module, symbols)]
    calls = [c for c in walker.recorder.calls if phase != "forward" or c.phase == "forward"]
    notes = (*walker.notes, *_duck_note(symbols, graph_module))
    return Graph(_name(graph_module), base, folded(calls), weights, _constraints(found, base), notes)


def _check_phase(graph_module: fx.GraphModule, phase: str, loss: str) -> None:
    nodes = [n for n in graph_module.graph.nodes if n.op in ("call_function", "call_method")]
    backward = backward_nodes(graph_module.graph, loss)
    if phase == "train":
        raise LoadError("a program holds no optimizer, so it has no train phase", "analyse the module or family it came from")
    if phase == "backward" and not any(n in backward for n in nodes):
        raise LoadError("the program holds a forward pass only", "analyse the module or family it came from, or a joint graph")
    if phase == "forward" and nodes and all(n in backward for n in nodes):
        raise LoadError("the graph holds a backward pass only", "ask for phase='backward'")


def _divisible(graph_module: fx.GraphModule) -> set[tuple[Any, Any]]:
    """What the program's symbols are known to be divisible by."""
    found: set[tuple[Any, Any]] = set()
    for node in graph_module.graph.nodes:
        v = value(node)
        if isinstance(v, torch.SymBool):
            e = v.node.expr
            if isinstance(e, sp.Eq) and type(e.lhs).__name__ in ("Mod", "PythonMod") and e.rhs == 0:
                found.add((e.lhs.args[0], e.lhs.args[1]))
    return found


def _weights(walker: Walker, program: Program, graph_module: fx.GraphModule, signature: Any) -> tuple[Weight, ...]:
    """Parameters and buffers, each stored tensor once; tells the recorder what their memory holds."""
    listed: list[tuple[str, torch.Tensor, Role]] = []
    holders: dict[Any, torch.Tensor] = {}
    for node in graph_module.graph.nodes:
        found = _weight(walker, node, graph_module, program, signature)
        if found is None:
            continue
        path, role, stored = found
        held = walker.of(node)
        key = stored.untyped_storage()._cdata if isinstance(stored, torch.Tensor) and stored.layout is torch.strided else path
        if key in holders:
            walker.recorder.link(held, holders[key])
            continue
        holders[key] = held
        walker.recorder.set_role(held, role)
        listed.append((path, held, role))
    merged: dict[Any, list[Any]] = {}
    for path, held, role in listed:
        tensor = dataclasses.replace(walker.recorder.describe(held), role=role, ref=-1)
        entry = merged.setdefault((fold_path(path), tensor), [path, tensor, 0])
        entry[2] += 1
        if entry[2] > 1:
            entry[0] = fold_path(path)
    return tuple(Weight(path, tensor, Integer(n)) for path, tensor, n in merged.values())


def _weight(
    walker: Walker, node: fx.Node, graph_module: fx.GraphModule, program: Program, signature: Any
) -> tuple[str, Role, Any] | None:
    """The path, role and stored tensor of a node that is a parameter or buffer, else None."""
    if node.op == "get_attr":
        walker._attribute(graph_module, node)
        held = walker.of(node)
        if not isinstance(held, torch.Tensor):
            return None
        stored: Any = graph_module
        for part in str(node.target).split("."):
            stored = getattr(stored, part)
        return str(node.target), "weight" if isinstance(stored, torch.nn.Parameter) else "buffer", stored
    if node.op != "placeholder" or not isinstance(value(node), torch.Tensor):
        return None
    if signature is None:
        return (str(node.target), "weight", None) if isinstance(value(node), torch.nn.Parameter) else None
    if node.name in signature.inputs_to_parameters:
        path = signature.inputs_to_parameters[node.name]
        return path, "weight", program.state_dict.get(path)
    path = signature.inputs_to_buffers.get(node.name) or signature.inputs_to_lifted_tensor_constants.get(node.name)
    return (path, "buffer", program.state_dict.get(path, program.constants.get(path))) if path else None


def _inputs(walker: Walker, graph_module: fx.GraphModule) -> None:
    """Note the sizes of inputs in order, so that they come first; their memory is input where it is nothing else."""
    for node in graph_module.graph.nodes:
        v = value(node)
        if node.op == "placeholder" and isinstance(v, torch.Tensor):
            walker.recorder.set_role(v, "input")
            walker.recorder.describe(v)
        elif node.op == "placeholder" and isinstance(v, torch.SymInt):
            walker.symbols.number(v)


def _copy_back(walker: Walker, graph_module: fx.GraphModule, signature: Any) -> None:
    """A functional program returns the new values of buffers that its module writes; torch copies them back at the end."""
    inputs = {n.name: n for n in graph_module.graph.nodes if n.op == "placeholder"}
    nodes = {n.name: n for n in graph_module.graph.nodes}
    targets = {
        **{v: k for k, v in signature.inputs_to_buffers.items()},
        **{v: k for k, v in signature.inputs_to_parameters.items()},
    }
    changed = {
        **signature.buffers_to_mutate,
        **getattr(signature, "parameters_to_mutate", {}),
        **signature.user_inputs_to_mutate,
    }
    for result, target in changed.items():
        new, old = nodes.get(result), inputs.get(targets.get(target, target))
        if new is None or old is None:
            continue
        a, b = walker.of(old), walker.of(new)
        if walker.recorder.describe(a).ref != walker.recorder.describe(b).ref:
            walker.recorder.note_operator(torch.ops.aten.copy_.default, (a, b), {}, a)


def _base_sizes(symbols: Symbols, given: Mapping[str, int]) -> dict[str, int]:
    """Every size with its value in the program's example, or the one given."""
    hints = {symbols.name(s): v for s, v in symbols.hints.items()}
    base = with_sizes({n: v or 0 for n, v in hints.items()}, given, "the program")
    for n, v in hints.items():
        if v is None and n not in given:
            raise SizeError(
                f"the program has a size {n} that data decide, so it has no base value", f"give one: sizes={{{n!r}: 64}}"
            )
    return base


def _ranges(program: Program, symbols: Symbols) -> list[Condition]:
    """The range of each symbol that the program gives; a size is at least 1 in any case."""
    ranges = dict(getattr(program, "range_constraints", None) or {})
    if not ranges:
        for environment in symbols.environments.values():
            ranges.update(environment.var_to_range)
    found = []
    for s, r in ranges.items():
        if str(s) not in symbols.hints:
            continue
        name = size(symbols.name(str(s)))
        if r.lower.is_Integer and r.lower > 1:
            found.append(Condition(sp.Ge(name, int(r.lower)), "", False))
        if r.upper.is_Integer and int(r.upper) < 2**31:
            found.append(Condition(sp.Le(name, int(r.upper)), "", False))
    return found


def _constraints(found: list[Condition], base: Mapping[str, int]) -> tuple[Constraint, ...]:
    """Conditions on the sizes of the program, each once."""
    kept: dict[str, Constraint] = {}
    for c in found:
        if c.condition in (sp.true, sp.false) or not {str(s) for s in c.condition.free_symbols} <= set(base):
            continue
        kept.setdefault(str(c.condition), Constraint(c.condition, c.source, c.branch))
    return tuple(kept.values())


def _duck_note(symbols: Symbols, graph_module: fx.GraphModule) -> list[str]:
    """torch gives equal dimensions of an example one symbol: say so where that joined two dimensions."""
    if not any(getattr(e, "duck_shape", False) for e in symbols.environments.values()):
        return []
    seen: list[str] = []
    for node in graph_module.graph.nodes:
        v = value(node)
        if node.op == "placeholder" and isinstance(v, torch.Tensor):
            seen.extend(str(d.node.expr) for d in v.shape if isinstance(d, torch.SymInt))
    twice = [symbols.name(s) for s in dict.fromkeys(seen) if seen.count(s) > 1 and s in symbols.hints]
    return [f"{', '.join(twice)}: dimensions that were equal in the example share one symbol"] if twice else []


def _name(graph_module: fx.GraphModule) -> str:
    for node in graph_module.graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        first = next(iter(stack.values()), None)
        if isinstance(first, tuple) and str(first[0]) in ("", "L['self']"):
            kind = first[1]
            return kind.rsplit(".", 1)[-1] if isinstance(kind, str) else str(kind.__name__)
    return "exported program" if type(graph_module).__name__ == "GraphModule" else type(graph_module).__name__


def folded(calls: list[Call]) -> tuple[Call, ...]:
    """Equal calls merged, those of repeated blocks under a path with "*"."""
    merged: dict[Any, list[Any]] = {}
    for call in map(_normal, calls):
        key = (call.op, fold_path(call.path), call.source, call.phase, tuple(call.args.items()), call.outputs)
        entry = merged.setdefault(key, [call, call.path, []])
        entry[2].append(call.count)
        if entry[1] != call.path:
            entry[1] = fold_path(call.path)
    return tuple(dataclasses.replace(call, path=path, count=total(counts)) for call, path, counts in merged.values())


def _normal(call: Call) -> Call:
    """The call with its memory numbered from 0, and without the index of a view, which costs nothing."""
    first: dict[int, int] = {}

    def renumber(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x if x.ref < 0 else dataclasses.replace(x, ref=first.setdefault(x.ref, len(first)))
        return tuple(renumber(i) for i in x) if isinstance(x, tuple) else x

    args = {k: None if k == "index" and call.name == "select" else renumber(v) for k, v in call.args.items()}
    return dataclasses.replace(call, args=args, outputs=tuple(renumber(o) for o in call.outputs))


__all__ = ["folded", "read_file", "read_program"]
