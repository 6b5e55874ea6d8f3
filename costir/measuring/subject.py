"""A model for real: built with its memory and values, and a step of it that can be run again and again."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map

from costir import trace
from costir.errors import ChipError, CostirError, TraceError
from costir.ir import Call
from costir.load.family import Family
from costir.measuring.contents import BRANCHING, apart, unforeseen
from costir.measuring.lookup_heavy import HEAVY_RULES
from costir.measuring.reuse import Span, reuse
from costir.measuring.timing import lines
from costir.tracing.paths import paths
from costir.tracing.recorder import RawTensor, Recorder, Scope, own_part

RECORDED = 4  # steps
PICKING = ("embedding", "_embedding_bag", "_embedding_bag_forward_only", "index", "index_select")  # rows of their first operand
REPEATING = ("where", "masked_fill")  # a mask for each of their results
CONVOLUTIONS = ("convolution", "convolution_backward")
NO_NODE = -1


@dataclass(frozen=True)
class Recorded:
    """One operator call of a real run: the call, the layout of its operands, and where their memory was used last.

    Attributes:
        call: as `cost_of` takes it.
        strides: of each tensor operand, in the order of `call.inputs`.
        far: for each tensor operand, the bytes that were touched since its memory was touched before; -1 for what has none.
        out: the same for the results' memory.
        tracked: autograd follows the call.
        since: the bytes that were touched since one of its kind ran; 0 for one right after another.
        others: the kinds that ran since, each once.
        moved: the bytes that it touches itself.
        read, made: for each tensor operand and result, how many calls ago its memory was touched; 0 for what has none.
        inner: torch itself calls it: a part of a larger function, or the backward engine. Others come from Python.
        begins: the backward engine has come to another node.
        unforeseen: the share of a mask's numbers at which a processor takes the wrong branch (`contents.unforeseen`).
        exceptional: the share of the operand that is computed apart (`contents.apart`).
    """

    call: Call
    strides: tuple[tuple[int, ...], ...]
    far: tuple[int, ...]
    out: tuple[int, ...]
    tracked: bool
    since: int
    others: tuple[str, ...] = ()
    moved: int = 0
    read: tuple[int, ...] = ()
    made: tuple[int, ...] = ()
    inner: bool = False
    begins: bool = False
    unforeseen: float = 0.0
    exceptional: float = 0.0

    @property
    def kind(self) -> str:
        """The operator, and where it has code of several kinds, which."""
        return kind_of(self.call)


@dataclass(frozen=True)
class Subject:
    """A built model and its step.

    Attributes:
        module: with real parameters.
        step: runs the phase once.
        modules: how many modules are called in one step.
        lines: how many lines of Python its forward pass comes to.
        leaves: how many parameters get a gradient in one step.
    """

    family: Family
    sizes: Mapping[str, int]
    phase: str
    module: nn.Module
    step: Callable[[], Any]
    record: Callable[..., list[Recorded]]
    modules: int
    lines: int
    leaves: int


def subject(family: Family, sizes: Mapping[str, int], phase: str, optimizer: trace.Optimizer | None = None) -> Subject:
    """Build the model for real, at these sizes.

    Raises:
        TraceError: where it cannot be built or run here.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, args, kwargs = trace.build(family, sizes)
    for t in (*module.parameters(), *module.buffers(), *tree_leaves((args, kwargs))):
        if isinstance(t, torch.Tensor) and t.is_meta:
            raise TraceError(f"{family.name} is built on the meta device", "a measured run needs real tensors")
        _written(t)
    module.train(phase == "train" or (module.training and phase != "forward"))
    args, kwargs = tree_map(_usable, (args, kwargs))
    stepper = trace.stepper_of(optimizer or family.optimizer or trace.OPTIMIZERS["adamw"], module) if phase == "train" else None
    runs = _Runs(family, module, args, kwargs, phase, stepper)
    runs.step()
    modules, number = runs.count(), lines(runs.forward)
    leaves = sum(p.requires_grad for p in module.parameters()) if phase != "forward" else 0
    return Subject(family, dict(sizes), phase, module, runs.step, runs.record, modules, number, leaves)


def _ours(error: BaseException) -> bool:
    """Whether costir's own code raised it."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is not None and str(at.tb_frame.f_globals.get("__name__", "")).startswith("costir.")


def _written(x: Any) -> None:
    """Write memory: what nobody has written yet (`torch.empty`) is one page of zeros for all, faster to read than memory is."""
    if not isinstance(x, torch.Tensor) or is_lazy(x) or x.is_nested:
        return  # made by the first run, or of many
    if x.layout is torch.strided and x.device.type == "cpu" and 0 not in x.stride():
        with torch.no_grad():
            x.data.copy_(x.data.clone())


def _usable(x: Any) -> Any:
    """Inputs as given; memory that was never written may hold numbers that are slow to compute with."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.is_nested or not x.is_floating_point():
        return x
    if x.dtype.itemsize > 1 and not torch.isfinite(x).all():  # torch asks no numbers of one byte
        return torch.randn_like(x)
    return x


@dataclass
class _Runs:
    """The step, plain and recorded."""

    family: Family
    module: nn.Module
    args: Any
    kwargs: Any
    phase: str
    stepper: Any

    def step(self, scope: Scope | None = None) -> Any:
        """Forward; with the phase also backward, and the optimizer's step.

        Raises:
            TraceError: where the model fails.
        """
        try:
            return self._step(scope)
        except CostirError:
            raise
        except (Exception, SystemExit) as error:
            if _ours(error):
                raise
            first = str(error).strip().partition("\n")[0][:160]
            raise TraceError(
                f"a real run of {self.family.name} fails: {type(error).__name__}: {first}",
                "it must run on this machine, again and again",
            ) from error

    def _step(self, scope: Scope | None) -> Any:
        loss = self.forward()
        if self.phase == "forward":
            return loss
        with torch.enable_grad():
            if scope is not None:
                scope.phase = "backward"
            if self.stepper is not None:
                self.stepper.zero_grad()
            else:
                self.module.zero_grad()
            loss.backward()
            if self.stepper is not None:
                if scope is not None:
                    scope.phase, scope.path = "optimizer", "optimizer"
                self.stepper.step()
        return None

    def forward(self) -> Any:
        """The output; with a backward pass the loss."""
        with torch.set_grad_enabled(self.phase != "forward"):
            out = self.module(*self.args, **self.kwargs)
            return out if self.phase == "forward" else trace.loss_of(self.family, out)

    def count(self) -> int:
        """How many modules one forward pass calls."""
        calls = 0

        def note(*_: Any) -> None:
            nonlocal calls
            calls += 1

        handle = nn.modules.module.register_module_forward_pre_hook(note)
        try:
            self.step()
        finally:
            handle.remove()
        return calls

    def record(self, world: Any = None) -> list[Recorded]:
        """One step, written down operator by operator, with where its memory lies: in several steps, each may have another.

        `world` is the mesh of processes that it runs on, None for this one alone.
        """
        steps = [self._recorded(world) for _ in range(RECORDED)]
        seen = steps[-1]
        if any(step.kinds() != seen.kinds() for step in steps):
            raise TraceError(f"{self.family.name} does something else in every step", "make its steps alike")
        calls = [_unwatched(c) if i in seen.unwatched else c for i, c in enumerate(map(trace.concrete, seen.events))]
        found, _ = reuse(list(map(kind_of, calls)), *(step.spans for step in steps))
        out = []
        inner = _inner([e.op for e in seen.events], seen.places)
        for i, (call, x) in enumerate(zip(calls, found, strict=True)):
            strides = tuple(seen.strides.get(t.ref, ()) for t in call.inputs)
            begins = seen.nodes[i] not in (NO_NODE, seen.nodes[i - 1] if i else NO_NODE)
            out.append(Recorded(call, strides, x.reads, x.writes, seen.tracked[i], x.since, x.others, x.moved, x.read, x.made,
                                inner[i], begins, *seen.contents[i]))  # fmt: skip
        return out

    def _recorded(self, world: Any) -> _RealRecorder:
        scope = Scope()
        recorder = _RealRecorder(scope)
        recorder.world = world
        for role, tensors in (("weight", self.module.parameters()), ("buffer", self.module.buffers()),
                              ("input", tree_leaves((self.args, self.kwargs)))):  # fmt: skip
            for t in map(own_part, tensors):
                if isinstance(t, torch.Tensor):
                    recorder.roles.setdefault(t.untyped_storage()._cdata if t.layout is torch.strided else id(t), role)
        recorder.recording = True
        with recorder, paths(self.module, scope):
            self.step(scope)
        return recorder


Place = tuple[int, int]  # a frame of Python, and how far it is


class _RealRecorder(Recorder):
    """The recorder of traces, on real tensors, with their layouts and addresses."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope, None)
        self.strides: dict[int, tuple[int, ...]] = {}  # by ref
        self.tracked: list[bool] = []
        self.spans: list[tuple[list[Span], list[Span]]] = []  # of every call's operands and results
        self.places: list[Place] = []
        self.nodes: list[int] = []  # of the backward engine
        self.contents: list[tuple[float, float]] = []
        self.unwatched: set[int] = set()  # calls that would be another one without a recorder

    def kinds(self) -> list[tuple[str, int, int]]:
        """What a step does, its sizes left open: every call's operator, and how many tensors it takes and gives."""
        return [(e.op, len(taken), len(given)) for e, (taken, given) in zip(self.events, self.spans, strict=True)]

    def describe(self, t: torch.Tensor) -> RawTensor:
        raw = super().describe(t)
        if t.layout is torch.strided and not t.is_nested:
            self.strides[raw.ref] = t.stride()
        return raw

    def note_call(self, op: str, args: dict[str, Any], out: Any) -> None:
        before = len(self.events)
        super().note_call(op, args, out)
        spans = _read(op, [t for t in tree_leaves(list(args.values())) if isinstance(t, torch.Tensor)])
        made = [_span(t) for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        place = _place() if len(self.events) > before else (0, 0)
        node = _node() if self.scope.phase == "backward" else NO_NODE
        contents = _contents(op, args, out)
        if _pools_a_row(op, args):
            self.unwatched.add(before)
        for _ in range(len(self.events) - before):
            self.tracked.append(torch.is_grad_enabled() and self.scope.phase == "forward")
            self.spans.append((spans, made))
            self.places.append(place)
            self.nodes.append(node)
            self.contents.append(contents)


def _contents(op: str, args: Mapping[str, Any], out: Any) -> tuple[float, float]:
    """What an operator cannot foresee of its mask, and what it computes apart; one that has overwritten it is not looked at.

    A mask that is repeated is gone through as often.
    """
    name = op.split(".")[1]
    tensors = [t for t in tree_leaves(list(args.values())) if isinstance(t, torch.Tensor)]
    masks = [t for t in tensors if t.dtype is torch.bool] if name.rstrip("_") in BRANCHING else []
    if name.rstrip("_") in REPEATING and isinstance(out, torch.Tensor):
        masks = [m.expand(out.shape) for m in masks if type(m) is torch.Tensor]
    return max(map(unforeseen, masks), default=0.0), apart(name, tensors[0]) if tensors else 0.0


def _pools_a_row(op: str, args: Mapping[str, Any]) -> bool:
    """Whether torch is asked for the largest numbers along one axis: without autograd that has a kernel of its own.

    A recorder sees the operator for images, which is what runs where a gradient will be asked for, or the indices are.
    """
    if op != "aten.max_pool2d_with_indices.default" or (torch.is_grad_enabled() and args["self"].requires_grad):
        return False
    frame = _caller()
    return frame is not None and frame.f_code.co_name == "_max_pool1d" and frame.f_globals.get("__name__") == F.__name__


def kind_of(call: Call) -> str:
    """Which code runs: of convolutions that of each curve is another, and they share little of it."""
    return f"{call.op} {HEAVY_RULES[call.name](call, ())[0].curve}" if call.name in CONVOLUTIONS else call.op


def _unwatched(call: Call) -> Call:
    """What torch runs where no recorder looks on (`_pools_a_row`)."""
    return replace(call, op="aten.max_pool1d.default", outputs=call.outputs[:1])


def _node() -> int:
    """The number of the node that the backward engine runs; those that collect gradients are counted by parameter."""
    node = torch._C._current_autograd_node()
    return NO_NODE if node is None or "AccumulateGrad" in node.name() else int(node._sequence_nr())


def _caller() -> FrameType | None:
    """The frame that called torch: that below the dispatch mode."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not Recorder.__torch_dispatch__.__code__:
        frame = frame.f_back
    return frame.f_back if frame is not None else None


def _place() -> Place:
    """Where Python is while an operator runs."""
    frame = _caller()
    return (id(frame), frame.f_lasti) if frame is not None else (0, 0)


def _inner(ops: Sequence[str], places: Sequence[Place]) -> list[bool]:
    """Whether torch itself makes each call: Python has not moved since the one before.

    A loop comes to the same place again: with the operator that began there.
    """
    out: list[bool] = []
    place, first = (-1, -1), ""
    for op, here in zip(ops, places, strict=True):
        out.append(here == place and op != first)
        if not out[-1]:
            place, first = here, op
    return out


def _read(op: str, tensors: Sequence[torch.Tensor]) -> list[Span]:
    """The memory of operands; of a table, as much as the rows that are picked."""
    spans = list(map(_span, tensors))
    if op.split(".")[1] in PICKING and len(tensors) > 1 and tensors[0].dim():
        table, index = tensors[:2]
        rows = index.numel() if index.dtype is not torch.bool else len(table)
        spans[0] = spans[0][0], min(spans[0][1], rows * spans[0][1] // max(1, len(table)))
    return spans


def _span(t: torch.Tensor) -> Span:
    if t.layout is not torch.strided or t.is_nested or t.numel() == 0:
        return 0, 0
    return t.data_ptr(), t.numel() * t.element_size()


@contextlib.contextmanager
def one_thread(threads: int) -> Iterator[None]:
    """As many threads as the machine was calibrated with.

    Raises:
        ChipError: where it has fewer cores.
    """
    before, cores = torch.get_num_threads(), os.cpu_count() or threads
    if threads > cores:
        raise ChipError(f"calibrated with {threads} threads, and this machine has {cores} cores", "run costir calibrate again")
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
