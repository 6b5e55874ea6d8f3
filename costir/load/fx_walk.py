"""A torch.fx graph whose nodes carry values -> the operator calls of each node.

An ATen operator is one call, read off its node's values. What torch takes apart when it runs (aten.linear, reshape,
scaled_dot_product_attention, and torch functions in graphs above the ATen level) is run on those values, which are fake
tensors, and counts as the operators that run. So an exported program costs what its module costs.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import re
from collections.abc import Hashable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten, tree_leaves

from costir.errors import CostirError, LoadError
from costir.ir import Call
from costir.load.fx_recorder import SymbolicRecorder
from costir.load.fx_run import running
from costir.load.symints import Places, Symbols
from costir.ops.registry import find
from costir.tracing.frames import is_user_file

_CHECKS = ("aten::_assert", "aten::sym_constrain_range", "aten::_assert_scalar", "aten::sym_")
_STATE = ("_enter_autocast", "_exit_autocast")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


class Condition(NamedTuple):
    """Something that the program checks or decides about its sizes."""

    condition: Any
    source: str
    branch: bool


def value(node: fx.Node) -> Any:
    """What a node carries: fake tensors, symbolic numbers, nested; None where it carries nothing."""
    return node.meta["val"] if "val" in node.meta else node.meta.get("example_value")


def has_value(node: fx.Node) -> bool:
    """Whether a node carries a value."""
    return "val" in node.meta or "example_value" in node.meta


def source_of(node: fx.Node) -> str:
    """ "file.py:12" of the innermost line that is not torch's own, or ""."""
    frames = [m for m in _FRAME.finditer(node.meta.get("stack_trace") or "") if is_user_file(m["file"])]
    return f"{frames[-1]['file'].rsplit('/', 1)[-1]}:{frames[-1]['line']}" if frames else ""


def path_of(node: fx.Node) -> str:
    """The module path of a node, relative to the model: "layers.3.mlp"."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    if not stack:
        return str(node.meta.get("path", ""))
    entry = list(stack.values())[-1]
    path = str(entry[0] if isinstance(entry, tuple) else entry)
    path = re.sub(
        r"\._modules\['([^']*)'\]|\.?\['?([^'\]]*)'?\]",
        lambda m: f".{m[1] or m[2]}",
        re.sub(r"^L\['[^']*'\]|^L__self__", "", path),
    )
    return re.sub(r"@\d+", "", path.replace("slf.", "")).strip(".")


def mode_of(graph_module: fx.GraphModule) -> FakeTensorMode | None:
    """The fake mode that the graph's values belong to."""
    for node in graph_module.graph.nodes:
        for leaf in tree_leaves(value(node)):
            if isinstance(leaf, FakeTensor):
                return leaf.fake_mode
    return None


class Walker:
    """Walks a graph and its sub-graphs in order.

    Attributes:
        recorder: all calls in order.
        steps: the calls of each node, nodes of sub-graphs included.
        conditions: what the program asserts or decides about its sizes.
        notes: assumptions.
    """

    def __init__(self, graph_module: fx.GraphModule, symbols: Symbols, loss: str = "") -> None:
        self.loss = loss
        self.symbols = symbols
        self.recorder = SymbolicRecorder(symbols)
        self.mode = mode_of(graph_module)
        self.steps: dict[fx.Node, tuple[Call, ...]] = {}
        self.conditions: list[Condition] = []
        self.notes: dict[str, None] = {}
        self.made: dict[fx.Node, Any] = {}  # values of nodes that carry none
        self._ran: dict[Hashable, tuple[tuple[Call, ...], tuple[int, ...]]] = {}
        self.forced = False  # under autocast operators are run, since casts are made as they run

    def walk(self, graph_module: fx.GraphModule) -> None:
        """Note the calls of every node of a graph.

        Raises:
            LoadError: a node carries no value, or calls a module.
        """
        backward = backward_nodes(graph_module.graph, self.loss)
        outer = (self.recorder.path, self.recorder.source, self.recorder.phase)
        for node in graph_module.graph.nodes:
            before = len(self.recorder.calls)
            self.recorder.path = path_of(node) or (outer[0] if not node.meta.get("nn_module_stack") else "")
            self.recorder.source = source_of(node) or outer[1]
            self.recorder.phase = "backward" if node in backward or outer[2] == "backward" else "forward"
            try:
                self._node(graph_module, node)
            except CostirError:
                raise
            except (NotImplementedError, AttributeError, TypeError, KeyError, IndexError) as error:
                what = f"{type(error).__name__}: {_line(error)}"
                hint = "give a graph at the ATen level, as torch.export or aot_autograd make it"
                raise LoadError(f"node {node.name} of the graph cannot be read: {what}", hint) from error
            if node.op in ("call_function", "call_method"):
                self.steps[node] = tuple(self.recorder.calls[before:])
        self.recorder.path, self.recorder.source, self.recorder.phase = outer

    def _node(self, graph_module: fx.GraphModule, node: fx.Node) -> None:
        if node.op == "get_attr":
            self._attribute(graph_module, node)
        elif node.op == "call_module" and node.target != "_guards_fn":
            raise LoadError(f"node {node.name} calls the module {node.target}, which the graph does not show",
                            "trace the model to the ATen level, with torch.export or make_fx")  # fmt: skip
        elif node.op == "placeholder" and not has_value(node) and node not in self.made:
            raise _no_value(node)
        elif node.op in ("call_function", "call_method"):
            self._call(node)

    def _attribute(self, graph_module: fx.GraphModule, node: fx.Node) -> None:
        held: Any = graph_module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        if not isinstance(held, torch.Tensor):
            self.made[node] = held
            return
        if not has_value(node):
            self.made[node] = (
                held if self.mode is None or isinstance(held, FakeTensor) else self.mode.from_tensor(held, static_shapes=True)
            )
        self.recorder.set_role(self.of(node), "weight" if isinstance(held, torch.nn.Parameter) else "buffer")

    def of(self, node: fx.Node) -> Any:
        """The value of a node."""
        if node in self.made:
            return self.made[node]
        if has_value(node):
            return value(node)
        raise _no_value(node)

    def _call(self, node: fx.Node) -> None:
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            from costir.load import fx_hops

            fx_hops.note(self, node, target)
            return
        if (
            target is operator.getitem
            and isinstance(node.args[0], fx.Node)
            and not isinstance(self.of(node.args[0]), torch.Tensor)
        ):
            self._item(node)
            return
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        if name in _STATE:
            self.made[node] = target(*map_arg(node.args, self.of))
            self.forced = name == _STATE[0]
            return
        if not has_value(node) and not _returns_nothing(node):
            raise _no_value(node)
        args, kwargs = map_arg(node.args, self.of), map_arg(node.kwargs, self.of)
        if isinstance(target, torch._ops.OpOverload) and target._schema.name.startswith(_CHECKS):
            self._check(node, args)
            return
        if not any(isinstance(t, torch.Tensor) for t in tree_leaves((args, kwargs, value(node)))):
            return  # arithmetic on sizes
        if isinstance(target, torch._ops.OpOverload) and not self._is_composite(target):
            self.recorder.note_operator(target, args, kwargs, value(node))
        else:
            self._run(node, args, kwargs)

    def _item(self, node: fx.Node) -> None:
        whole, index = self.of(node.args[0]), node.args[1]
        if not has_value(node):
            self.made[node] = whole[index]
        self.recorder.link(self.of(node), whole[index])

    def _check(self, node: fx.Node, args: Any) -> None:
        """An assertion of the program about its sizes."""
        if args and isinstance(args[0], torch.SymBool):
            self.conditions.append(Condition(self.symbols.condition(args[0]), source_of(node), False))

    def _is_composite(self, target: Any) -> bool:
        """Whether torch takes the operator apart when it runs. An operator of one's own that has a rule stays whole."""
        if self.forced:
            return True
        if target.namespace != "aten" and find(
            f"{target.namespace}.{target._schema.name.split('::')[1]}.{target._overloadname}"
        ):
            return False
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd"))

    def _run(self, node: fx.Node, args: Any, kwargs: Any) -> None:
        """Run a node on fake tensors and note the operators that run; what ran before on the same shapes is noted again."""
        before = len(self.recorder.calls)
        key = None if self.forced or not has_value(node) else self._likeness(node, args, kwargs)
        if key is not None and key in self._ran:
            self._repeat(node, tree_leaves((args, kwargs)), *self._ran[key])
            return
        target = getattr(args[0], node.target) if isinstance(node.target, str) else node.target
        try:
            with running(self.mode, self.recorder):
                out = target(*(args[1:] if isinstance(node.target, str) else args), **kwargs)
        except CostirError:
            raise
        except Exception as error:
            del self.recorder.calls[before:]
            self._run_elsewhere(node, target, args, kwargs, error)
            if key is not None:
                self._ran[key] = (tuple(self.recorder.calls[before:]), ())
            return
        if key is not None:
            self._ran[key] = (tuple(self.recorder.calls[before:]), self._homes(out, tree_leaves((args, kwargs))))
        self.recorder.link(self.of(node) if has_value(node) else out, out)

    def _likeness(self, node: fx.Node, args: Any, kwargs: Any) -> Hashable:
        """What a node's calls depend on: its target and its operands' shapes, layouts, types, roles and shared memory."""
        leaves, tree = tree_flatten((args, kwargs))
        number, first, found = self.symbols.number, dict[int, int](), list[Any]()
        for x in leaves:
            if isinstance(x, torch.Tensor) and x.layout is torch.strided:
                sizes = tuple(map(number, (*x.shape, *x.stride(), x.storage_offset())))
                storage = self.recorder.storage(x)
                found.append((sizes, x.dtype, self.recorder.roles.get(storage), first.setdefault(storage, len(first))))
            elif isinstance(x, torch.SymInt):
                found.append(number(x))
            elif isinstance(
                x, (bool, int, float, str, torch.dtype, torch.layout, torch.device, torch.memory_format, type(None))
            ):
                found.append((type(x), x))
            else:
                return None
        return (node.target, str(tree), tuple(found))

    def _homes(self, out: Any, operands: list[Any]) -> tuple[int, ...]:
        """For each result the operand in whose memory it lives, -1 for memory of its own."""
        homes = {
            self.recorder.storage(x): i
            for i, x in enumerate(operands)
            if isinstance(x, torch.Tensor) and x.layout is torch.strided
        }
        return tuple(homes.get(self.recorder.storage(o), -1) if isinstance(o, torch.Tensor) else -1 for o in tree_leaves(out))

    def _repeat(self, node: fx.Node, operands: list[Any], calls: tuple[Call, ...], homes: tuple[int, ...]) -> None:
        """Note calls again, here."""
        r = self.recorder
        for c in calls:
            r.calls.append(
                Call(c.op, c.args, c.outputs, r.path, r.source, "backward" if r.phase == "backward" else "forward", r.times)
            )
        for o, home in zip(tree_leaves(self.of(node)), homes, strict=False):
            if home >= 0:
                r.link(o, operands[home])

    def _run_elsewhere(self, node: fx.Node, target: Any, args: Any, kwargs: Any, error: Exception) -> None:
        """Note what does not run on symbolic sizes: as lifted from concrete ones, or else as one call."""
        from costir.load.fx_lift import lifted_calls

        if not isinstance(node.target, str):
            with contextlib.suppress(CostirError):
                self.recorder.calls.extend(lifted_calls(target, args, kwargs, self.recorder))
                return
        self.notes[f"{node.name} could not be taken apart ({type(error).__name__}: {_line(error)})"] = None
        self._whole(node, args, kwargs)

    def _whole(self, node: fx.Node, args: Any, kwargs: Any) -> None:
        """What could not be taken apart, as one call: an operator by its name, anything else as an unknown one."""
        if isinstance(node.target, torch._ops.OpOverload):
            self.recorder.note_operator(node.target, args, kwargs, value(node))
            return
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        operands = tuple(t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
        self.recorder.note_call(f"torch.{name}.default", {"operands": operands}, value(node))


def backward_nodes(graph: fx.Graph, loss: str = "") -> set[fx.Node]:
    """The nodes of the backward pass: those that torch marked, that depend on gradients of outputs, or that the loss, a node
    of a joint graph, does not depend on."""
    last = next((n for n in graph.nodes if loss and n.name == loss), None)
    if last is not None:
        before, open_ = {last}, [last]
        while open_:
            new = [n for n in open_.pop().all_input_nodes if n not in before]
            before.update(new)
            open_.extend(new)
        after = itertools.dropwhile(lambda n: n is not last, graph.nodes)  # what comes earlier may serve another output
        return {n for n in after if n not in before and n.op != "output"}
    found: set[fx.Node] = set()
    for node in graph.nodes:
        tag = node.meta.get("partitioner_tag")
        marked = tag in ("is_backward", "must_be_in_backward") or node.meta.get("autograd_backward") is True
        tangent = node.op == "placeholder" and str(node.target).startswith("tangents")
        if marked or tangent or (tag is None and any(n in found for n in node.all_input_nodes)):
            found.add(node)
    return found


def _returns_nothing(node: fx.Node) -> bool:
    target = node.target
    return not isinstance(target, torch._ops.OpOverload) or not target._schema.returns


def _no_value(node: fx.Node) -> LoadError:
    return LoadError(f"node {node.name} of the graph carries no shape (meta['val'])",
                     "make the graph with torch.export, aot_autograd or make_fx(tracing_mode='symbolic')")  # fmt: skip


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:160]


def walked(graph_module: fx.GraphModule, names: Mapping[str, str]) -> dict[fx.Node, tuple[Call, ...]]:
    """The operator calls of each node of a graph that carries values.

    Raises:
        LoadError: a node carries no value, or a name is for no symbol.
    """
    symbols = Symbols(names, Places(graph_module))
    walker = Walker(graph_module, symbols)
    for node in graph_module.graph.nodes:
        v = value(node)
        if node.op == "placeholder" and isinstance(v, torch.Tensor):
            walker.recorder.set_role(v, "weight" if isinstance(v, torch.nn.Parameter) else "input")
            walker.recorder.describe(v)
    walker.walk(graph_module)
    symbols.check_names()
    return walker.steps


def copied(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy whose nodes, those of sub-graphs included, can be annotated without touching the original."""
    copy = fx.GraphModule(graph_module, deepcopy(graph_module.graph))
    for node in copy.graph.find_nodes(op="get_attr"):
        held = getattr(copy, str(node.target), None)
        if isinstance(held, fx.GraphModule):
            setattr(copy, str(node.target), copied(held))
    return copy
