"""The dispatch mode that writes down every ATen operator of a run: shapes, memory, module path, line, phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from costir.errors import TraceError
from costir.tracing.bounds import BOUNDED, note_bounds
from costir.tracing.frames import is_library_file, user_frame, where
from costir.tracing.lifetimes import Lifetimes
from costir.tracing.routing import CHOICES, Routing, choose, exchange, of_all_experts
from costir.tracing.values import LIMIT, Known, Values, computable

_SKIP = {"prim::device", "aten::_assert_async", "aten::_assert_scalar", "aten::_assert_tensor_metadata", "aten::sym_size"}
_NEAR = 3  # autograd nodes that one operator makes
_LISTS = ("aten._foreach_", "aten._fused_adam", "aten._fused_sgd", "aten._fused_adagrad")  # elementwise over lists of tensors


class RawTensor(NamedTuple):
    """A tensor operand in one trace.

    `ref` names what it shows of its memory, `memory` the whole memory, of which it shows the elements by `offset` and `stride`.
    """

    shape: tuple[int, ...]
    dtype: str
    expanded: tuple[int, ...]
    role: str
    ref: int
    nnz: int | None = None
    index_numel: int = 0
    index_dtype: str = ""
    memory: int = -1
    offset: int = 0
    stride: tuple[int, ...] = ()


def raw_tensors(x: Any) -> Iterator[RawTensor]:
    """The tensors in a nested argument."""
    if isinstance(x, RawTensor):
        yield x
    elif isinstance(x, tuple):
        for item in x:
            yield from raw_tensors(item)


class Event(NamedTuple):
    """One operator call in one trace."""

    op: str
    args: tuple[tuple[str, Any], ...]
    outputs: tuple[RawTensor, ...]
    path: str
    source: str
    phase: str
    site: int = 0  # tells calls on one line apart
    times: int = 1  # how often it runs: in the second micro-batch of a step, which stands for all others


@dataclass
class Scope:
    """Where the program is: module path, phase, and what backward nodes stem from.

    Attributes:
        path: of the running module.
        phase: of the run.
        origin: by autograd's sequence number, the place of the first operator seen after the node was made: its own.
        owners: by the identity of a parameter, its module's path, no line, and a number within the module.
        times: how often what is running runs alike in the step.
    """

    path: str = ""
    phase: str = "forward"
    origin: dict[int, tuple[str, str, int]] = field(default_factory=dict)
    owners: dict[int, tuple[str, str, int]] = field(default_factory=dict)
    times: int = 1

    def stem(self, node: Any) -> tuple[str, str, int] | None:
        """The place in the forward pass of an autograd node; of one that collects a gradient, the module of its parameter.

        A node that no operator followed (the second one of an in-place write to a view) has the place of the one before it.
        """
        number = node._sequence_nr()
        known = next((self.origin[n] for n in range(number, number - _NEAR, -1) if n in self.origin), None)
        return known or self.owners.get(id(getattr(node, "variable", None)))


def _schema(func: Any, cache: dict[Any, Any] = {}) -> tuple[tuple[str, Any], ...]:  # noqa: B006 - a cache on purpose
    if func not in cache:
        cache[func] = tuple((a.name, a.default_value if a.has_default_value() else None) for a in func._schema.arguments)
    return cache[func]  # type: ignore[no-any-return]


def _operands(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors among arguments, those in lists included."""
    found = []
    for x in (*args, *kwargs.values()):
        if isinstance(x, torch.Tensor):
            found.append(x)
        elif isinstance(x, (list, tuple)):
            found.extend([t for t in x if isinstance(t, torch.Tensor)])
    return found


def _small(out: Any) -> bool:
    results = out if isinstance(out, (tuple, list)) else (out,)
    return all(o.numel() <= LIMIT for o in results if isinstance(o, torch.Tensor))


def _members(args: dict[str, Any], out: Any) -> list[tuple[dict[str, Any], Any]]:
    """A call on lists, taken apart: member by member where all its lists are equally long."""
    lists = {len(v) for v in args.values() if isinstance(v, (list, tuple)) and len(v)}
    n = lists.pop() if len(lists) == 1 else 1
    if n == 1 or not isinstance(next(iter(args.values())), (list, tuple)):
        return [(args, out)]

    def pick(x: Any, i: int) -> Any:
        return (x[i],) if isinstance(x, (list, tuple)) and len(x) == n else x

    return [({k: pick(v, i) for k, v in args.items()}, pick(out, i)) for i in range(n)]


def dtype_name(dtype: torch.dtype) -> str:
    """The name without the prefix "torch."."""
    return str(dtype)[6:]


def own_part(t: Any) -> Any:
    """Of a tensor that is divided among devices, what this device holds."""
    return getattr(t, "_local_tensor", t)


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Notes each operator call into `events`; holds no tensor and no memory, so that the run frees what it would without."""

    supports_higher_order_operators = True

    def __init__(self, scope: Scope, values: Values | None) -> None:
        super().__init__()
        self.scope = scope
        self.values = values
        self.world: Any = None  # the mesh of devices that the model runs on
        self.home: str | None = None  # the module that a call is made for, where another one runs
        self.recording = False
        self.routed = False
        self.unfollowed = False  # a router chose for more rows than have values
        self.events: list[Event] = []
        self.roles: dict[int, str] = {}
        self.steps_for: dict[int, int] = {}  # memory of parameters, gradients and states -> a number of the parameter
        self.step_paths: dict[int, str] = {}  # the number -> the parameter's module, for a model that is cut into stages
        self.notes: dict[str, None] = {}
        self.routing: list[Routing] = []
        self.lifetimes = Lifetimes(lambda: len(self.events))
        self._shown: dict[Any, int] = {}
        self._sparse_ones: list[Any] = []

    def describe(self, t: torch.Tensor) -> RawTensor:
        """The record of a tensor."""
        if t.layout is not torch.strided:
            return self._describe_sparse(t)
        memory = t.untyped_storage()
        storage = memory._cdata
        number = self.lifetimes.number(memory)
        shape, stride = tuple(t.shape), t.stride()
        offset = t.storage_offset()
        ref = self._shown.setdefault((storage, offset, shape, stride), len(self._shown))
        expanded = tuple(i for i, s in enumerate(stride) if s == 0) if 0 in stride else ()
        role = self.roles.get(storage, "activation")
        return RawTensor(shape, dtype_name(t.dtype), expanded, role, ref, None, 0, "", number, offset, stride)

    def _describe_sparse(self, t: torch.Tensor) -> RawTensor:
        ref = self._shown.setdefault(id(t), len(self._shown))
        self._sparse_ones.append(t)  # no other gets its identity
        role = self.roles.get(id(t), "activation")
        with _disable_current_modes():  # a fake copy of a sparse tensor has lost its number of elements
            parts: tuple[torch.Tensor, ...]
            if t.layout in (torch.sparse_csr, torch.sparse_bsr):
                parts, values = (t.crow_indices(), t.col_indices()), t.values()
            elif t.layout in (torch.sparse_csc, torch.sparse_bsc):
                parts, values = (t.ccol_indices(), t.row_indices()), t.values()
            elif t.layout is torch.sparse_coo:
                parts, values = (t._indices(),), t._values()
            else:
                return RawTensor(tuple(t.shape), dtype_name(t.dtype), (), role, ref)
            index = sum(p.numel() for p in parts)
            return RawTensor(
                tuple(t.shape), dtype_name(t.dtype), (), role, ref, values.numel(), index, dtype_name(parts[0].dtype)
            )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.world is not None and self.world.passes(types):
            return NotImplemented
        if isinstance(func, torch._ops.HigherOrderOperator):
            from costir.tracing import hops

            return hops.run(self, func, args, kwargs)
        out = self._run(func, args, kwargs)
        if self.recording and func._schema.name not in _SKIP and not (self.world is not None and self.world.paused):
            self._note(func, args, kwargs, out)
        return out

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        n = len(args)
        given = {k: args[i] if i < n else kwargs.get(k, d) for i, (k, d) in enumerate(_schema(func))}
        op = f"{func.namespace}.{func._schema.name.split('::')[1]}.{func._overloadname}"
        if self.world is None:
            self.note_call(op, given, out)
            return
        if op == "aten._grouped_mm.default" and out.dim() == 2:
            experts = of_all_experts(self.values, self.routing, len(given["self"]), given["offs"])
            if experts is not None:
                given["candidates"] = experts
                self.notes[f"routing at {where(user_frame(2))} is taken as balanced over the candidates"] = None
        for name, arguments, result, home in self.world.calls(op, given, out):
            self.home = home
            if name == "fsdp.copy_out.default" and self.world.front is not None:
                self.roles.update({t.untyped_storage()._cdata: "weight" for t in result})
            self.note_call(name, arguments, result)
        self.home = None

    def note_call(self, op: str, args: dict[str, Any], out: Any) -> None:
        """Write down a call with named arguments; one on lists of tensors, such as an optimizer's, as a call per member."""
        if not self.recording:
            return
        place = self._place() if self.home is None else (self.home, "", 0)
        for given, result in _members(args, out) if op.startswith(_LISTS) else ((args, out),):
            outputs = result if isinstance(result, (tuple, list)) else (result,)
            flat = [o for item in outputs for o in (item if isinstance(item, (tuple, list)) else (item,))]
            results = tuple([self.describe(o) for o in flat if isinstance(o, torch.Tensor)])
            record = tuple([(k, self._arg(v)) for k, v in given.items()])
            path, source, site = place
            if self.scope.phase == "optimizer":
                parameter = self._parameter(given, flat)
                site, path = hash((site, parameter)), self.step_paths.get(parameter, path)
            self.events.append(Event(op, record, results, path, source, self.scope.phase, site, self.scope.times))
            self.lifetimes.event(op, self.scope.phase)

    def _place(self) -> tuple[str, str, int]:
        """Module path, line, and position within the line of what is running."""
        scope, frame = self.scope, user_frame(3)
        path, source, site = scope.path, where(frame), frame.f_lasti if frame is not None else 0
        if scope.phase == "backward":
            node = torch._C._current_autograd_node()
            stem = scope.stem(node) if node is not None else None
            if stem is not None:
                path, source, site = path or stem[0], source or stem[1], site or stem[2]
        scope.origin.setdefault(torch.autograd._get_sequence_nr() - 1, (path, source, site))
        return path, source, site

    def _parameter(self, args: dict[str, Any], results: list[Any]) -> int:
        """Which parameter an optimizer works on: known by its memory, and handed on to what is computed from it."""
        memory = [t.untyped_storage()._cdata for t in _operands(args.values(), {}) if t.layout is torch.strided]
        found = next((self.steps_for[m] for m in memory if m in self.steps_for), 0)
        for t in results:
            if isinstance(t, torch.Tensor) and t.layout is torch.strided:
                self.steps_for.setdefault(t.untyped_storage()._cdata, found)
        return found

    def _arg(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return self.describe(x)
        if isinstance(x, (list, tuple)):
            return tuple([self._arg(i) for i in x])
        if isinstance(x, torch.dtype):
            return dtype_name(x)
        if isinstance(x, (bool, int, float, complex, str, type(None))):
            return x
        return str(x)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operator's result, with real values beside it where they are known."""
        name = func._schema.name.split("::")[1]
        if name == "_grouped_mm" and isinstance(args[0], torch.Tensor):
            return _grouped_mm(*args, **kwargs)
        if name == "wait_tensor":  # torch's fake kernel makes a new tensor; real ones hand on what they are given
            return args[0]
        if self.values is None:
            return func(*args, **kwargs)
        if name == "lift_fresh" and type(args[0]) is torch.Tensor and args[0].numel() <= LIMIT:
            return self._lift_fresh(func, args, kwargs)
        known = self.values.operands(_operands(args, kwargs))
        if name in BOUNDED:
            note_bounds(name, args, self.values)
        try:
            out = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            return self._read(func, args, kwargs, known, error)
        if isinstance(out, torch.Tensor) and out.layout is not torch.strided and name.startswith(("_to_sparse", "to_sparse")):
            return self._sparse(self.values.compute(func, args, kwargs, known) if known is not None else None)
        usable = known is not None and computable(func, known) and _small(out)
        if self.world is not None and exchange(self.values, self.world.exchanged(func, args)):
            self.notes[f"each device is taken to receive as many rows as it sends, {where(user_frame(1))}"] = None
        if func._schema.is_mutable:
            self._write(func, args, kwargs, known if usable else None)
        elif usable and known is not None:
            self.values.later(func, args, kwargs, known, out)
        elif name in CHOICES:
            self.routing += choose(self.values, name, args, kwargs, out)
            self.unfollowed = self.unfollowed or max(o.numel() for o in tree_leaves(out)) > LIMIT
        return out

    def _write(self, func: Any, args: Any, kwargs: Any, known: list[Known] | None) -> None:
        """An operator writes into its operands: follow it on real values, or forget them."""
        assert self.values is not None
        written = [a for a, s in zip(args, func._schema.arguments, strict=False) if s.alias_info and s.alias_info.is_write]
        targets = _operands(written, kwargs)
        if not any(self.values.get(t) for t in targets):
            return
        self.values.settle()
        if known is None or self.values.compute(func, args, kwargs, known) is None:
            self.values.forget(targets)

    def _sparse(self, value: Any) -> Any:
        """A sparse tensor keeps its real indices: how many there are is what its operators cost."""
        if value is None:
            place = where(user_frame()) or "the model"
            raise TraceError(
                f"data-dependent: {place} makes a sparse tensor from values that a fake run does not have",
                "make it from constants",
            )
        return value

    def _lift_fresh(self, func: Any, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        with _disable_current_modes():
            value = args[0].detach().clone()
        assert self.values is not None
        self.values.put(out, value)
        return out

    def _read(self, func: Any, args: Any, kwargs: Any, known: list[Known] | None, error: Exception) -> Any:
        """The program reads values (bool, item, nonzero, mask): answer from known values, or refuse with the line."""
        name = func._schema.name.split("::")[1]
        frame = user_frame(2)
        line = where(frame) or "the model"
        number = name == "_local_scalar_dense" and args[0].is_floating_point()
        if known is None and number and self.scope.phase == "optimizer":
            reader = where(frame) or "the optimizer"
            self.notes[f"{reader} reads numbers of the weights or gradients: each is taken as 1"] = None
            return 1.0
        if known is None and self.unfollowed:
            raise TraceError(
                f"{line} reads what comes of a router's choices, and more than {LIMIT} of them are not followed",
                "choose smaller base sizes; what is found holds for larger ones, too",
            ) from error
        if known is None:
            what = "branches on or reads the value of a tensor" if "scalar" in name or name in ("equal", "is_nonzero") else (
                f"makes a tensor whose shape depends on values ({name})")  # fmt: skip
            raise TraceError(
                f"data-dependent: {line} {what}, which no size determines",
                "costir gives costs as functions of sizes; fix the branch by an argument, or analyse each side on its own",
            ) from error
        data = any(k.data for k in known)
        is_branch = name in ("is_nonzero", "equal") or (name == "_local_scalar_dense" and args[0].dtype == torch.bool)
        if data and is_branch and frame is not None and not is_library_file(frame.f_code.co_filename):
            raise TraceError(
                f"data-dependent: {line} branches on the values of an input, which no size determines",
                "costir gives costs as functions of sizes; fix the branch by an argument, or analyse each side on its own",
            ) from error
        assert self.values is not None
        value = self.values.compute(func, args, kwargs, known)
        if value is None:
            raise TraceError(f"data-dependent: {line} reads values that a fake run does not have ({name})") from error
        if data:
            self.notes[f"{line} reads the values of an input: the formulas hold for the example's"] = None
        if any(k.routed for k in known):
            self.routed = True
            self.notes[f"routing at {line} is taken as balanced over the candidates"] = None
        if not isinstance(value, torch.Tensor) and not isinstance(value, (tuple, list)):
            return value
        out = torch.utils._pytree.tree_map(
            lambda v: args[0].new_empty(v.shape, dtype=v.dtype) if isinstance(v, torch.Tensor) else v, value
        )
        self.values.learn(out, value, known)
        return out


def _grouped_mm(a: torch.Tensor, b: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> torch.Tensor:
    """The result's shape for any type: torch's own fake kernel takes bf16 alone."""
    dtype = out_dtype or a.dtype
    if a.dim() == 2 and b.dim() == 2 and offs is not None:
        return a.new_empty((offs.shape[0], a.shape[0], b.shape[1]), dtype=dtype)
    if a.dim() == 3 and b.dim() == 2:
        return a.new_empty((a.shape[1], b.shape[1]), dtype=dtype)
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=dtype)
