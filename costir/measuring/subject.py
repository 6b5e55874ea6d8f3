"""A model for real: built with its memory and values, and a step of it that can be run again and again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from costir import trace
from costir.errors import CostirError, TraceError
from costir.ir import Call
from costir.load.family import Family
from costir.tracing.paths import paths
from costir.tracing.recorder import RawTensor, Recorder, Scope

LARGEST = 16 << 30  # bytes of weights and inputs


@dataclass(frozen=True)
class Recorded:
    """One operator call of a real run: the call, the layout of its operands, and where their memory was used last.

    Attributes:
        call: as `cost_of` takes it.
        strides: of each tensor operand, in the order of `call.inputs`.
        far: for each tensor operand, the bytes that were touched since its memory was touched before; -1 for never.
        tracked: autograd follows the call.
    """

    call: Call
    strides: tuple[tuple[int, ...], ...]
    far: tuple[int, ...]
    tracked: bool


@dataclass(frozen=True)
class Subject:
    """A built model and its step.

    Attributes:
        module: with real parameters.
        step: runs the phase once.
        modules: how many modules are called in one step.
        leaves: how many parameters get a gradient in one step.
    """

    family: Family
    sizes: Mapping[str, int]
    phase: str
    module: nn.Module
    step: Callable[[], Any]
    record: Callable[[], list[Recorded]]
    modules: int
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
    module.train(phase == "train" or (module.training and phase != "forward"))
    args, kwargs = tree_map(_usable, (args, kwargs))
    stepper = trace.stepper_of(optimizer or family.optimizer or trace.OPTIMIZERS["adamw"], module) if phase == "train" else None
    runs = _Runs(family, module, args, kwargs, phase, stepper)
    try:
        runs.step()
        modules = runs.count()
    except CostirError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0][:160]
        raise TraceError(
            f"a real run of {family.name} fails: {type(error).__name__}: {first}", "it must run on this machine"
        ) from error
    leaves = sum(p.requires_grad for p in module.parameters()) if phase != "forward" else 0
    return Subject(family, dict(sizes), phase, module, runs.step, runs.record, modules, leaves)


def _usable(x: Any) -> Any:
    """Inputs as given; memory that was never written may hold numbers that are slow to compute with."""
    if isinstance(x, torch.Tensor) and x.is_floating_point() and not torch.isfinite(x).all():
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
        """Forward; with the phase also backward, and the optimizer's step."""
        with torch.set_grad_enabled(self.phase != "forward"):
            out = self.module(*self.args, **self.kwargs)
            if self.phase == "forward":
                return out
            loss = trace.loss_of(self.family, out)
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

    def record(self) -> list[Recorded]:
        """One step, written down operator by operator."""
        scope = Scope()
        recorder = _RealRecorder(scope)
        for role, tensors in (("weight", self.module.parameters()), ("buffer", self.module.buffers()),
                              ("input", tree_leaves((self.args, self.kwargs)))):  # fmt: skip
            for t in tensors:
                if isinstance(t, torch.Tensor):
                    recorder.roles.setdefault(t.untyped_storage()._cdata, role)
        recorder.recording = True
        with recorder, paths(self.module, scope):
            self.step(scope)
        return recorder.recorded()


class _RealRecorder(Recorder):
    """The recorder of traces, on real tensors, with their layouts and addresses."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope, None)
        self.layouts: dict[int, tuple[tuple[int, ...], int, int]] = {}  # by ref: strides, memory, bytes
        self.tracked: list[bool] = []

    def describe(self, t: torch.Tensor) -> RawTensor:
        raw = super().describe(t)
        if t.layout is torch.strided:
            storage = t.untyped_storage()
            self.layouts[raw.ref] = (t.stride(), storage._cdata, t.numel() * t.element_size())
        return raw

    def note_call(self, op: str, args: dict[str, Any], out: Any) -> None:
        before = len(self.events)
        super().note_call(op, args, out)
        self.tracked += [torch.is_grad_enabled() and self.scope.phase == "forward"] * (len(self.events) - before)

    def recorded(self) -> list[Recorded]:
        """The calls in order, each with how far back its operands were used; a second time round, as in a loop of steps."""
        calls = [trace.concrete(e) for e in self.events]
        touched, last = 0, dict[int, int]()
        out: list[Recorded] = []
        for again in (False, True):
            for call, tracked in zip(calls, self.tracked, strict=True):
                inputs = call.inputs
                known = [self.layouts.get(t.ref, ((), -1, 0)) for t in inputs]
                far = tuple(touched - last[m] if m in last else -1 for _, m, _ in known)
                moved = [*known, *(self.layouts.get(t.ref, ((), -1, 0)) for t in call.outputs)]
                for _, memory, _ in moved:
                    last[memory] = touched
                touched += sum(size for memory, size in {m: s for _, m, s in moved}.items() if memory >= 0)
                if again:
                    out.append(Recorded(call, tuple(s for s, _, _ in known), far, tracked))
        return out


@contextlib.contextmanager
def one_thread(threads: int) -> Iterator[None]:
    """As many threads as the machine was calibrated with."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
