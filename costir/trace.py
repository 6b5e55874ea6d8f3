"""Family -> one trace: run a model at one point of its sizes, on fake tensors, and write down every operator.

No memory is allocated and no weight is initialised. Forward, backward and the optimizer's step go into one list of events.
"""

from __future__ import annotations

import contextlib
import gc
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from costir.errors import CostirError, TraceError, nearest
from costir.ir import Call, Tensor
from costir.load.family import Family
from costir.symbolic import ZERO, Integer
from costir.tracing import caches
from costir.tracing.borrowed import borrowed
from costir.tracing.dims import Dim
from costir.tracing.frames import is_library_file, is_user_file
from costir.tracing.lifetimes import IN_A_BUCKET, NOTHING_KNOWN, Lives
from costir.tracing.masks import known_values
from costir.tracing.notes import Escape, Guard, Step, watch
from costir.tracing.patches import patched_torch
from costir.tracing.paths import fold_path, paths
from costir.tracing.recompute import recomputing
from costir.tracing.recorder import Event, RawTensor, Recorder, Scope, own_part
from costir.tracing.routing import Routing
from costir.tracing.values import Values


class RawWeight(NamedTuple):
    """A parameter or buffer of one trace."""

    path: str
    tensor: RawTensor


@dataclass(frozen=True)
class Trace:
    """One run.

    Attributes:
        sizes: the point.
        events: operator calls in order.
        weights: stored parameters and buffers, each once.
        guards: comparisons of sizes that user code made, in order.
        notes: assumptions made on the way.
        routing: made-up choices of routers whose outcome decided row counts.
        steps: arithmetic on sizes that the program did, in order.
        escapes: sizes that the program made plain numbers of.
        memories: the bytes of each memory, by the number that operands name it by.
        outputs: what the caller gets: results of the forward pass, or the loss and the gradients; after an optimizer's step
            nothing but the loss, since all else is written in place.
        cache: the tensors of the cache after the run.
        lives: when each memory was freed, and what it held.
    """

    sizes: Mapping[str, int]
    events: tuple[Event, ...]
    weights: tuple[RawWeight, ...]
    guards: tuple[Guard, ...]
    notes: tuple[str, ...]
    routing: tuple[Routing, ...] = ()
    steps: tuple[Step, ...] = ()
    escapes: tuple[Escape, ...] = ()
    memories: tuple[int, ...] = ()
    outputs: tuple[RawTensor, ...] = ()
    cache: tuple[RawWeight, ...] = ()
    lives: Lives = NOTHING_KNOWN


Optimizer = Callable[[Any], torch.optim.Optimizer]


def _of(name: str, **options: Any) -> Optimizer:
    """An optimizer of torch.optim with these options, made from the parameters."""
    return lambda params: getattr(torch.optim, name)(params, **options)


_PLAIN = ("AdamW", "Adam", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad", "Adafactor", "ASGD", "RMSprop", "Rprop", "Muon")
OPTIMIZERS: dict[str, Optimizer] = {
    **{name.lower(): _of(name) for name in _PLAIN if hasattr(torch.optim, name)},
    "sgd": _of("SGD", lr=0.1),
    "momentum": _of("SGD", lr=0.1, momentum=0.9),
    "nesterov": _of("SGD", lr=0.1, momentum=0.9, nesterov=True),
}
_STEPS = 1000  # taken before the recorded step


def named_optimizer(given: str | Optimizer | None) -> Optimizer | None:
    """An optimizer by its name in torch.optim; a function that makes one, and None, as they are.

    Raises:
        CostirError: an unknown name, or something else.
    """
    if given is None or callable(given):
        return given
    if not isinstance(given, str):
        hint = "give its name, or a function that makes one of parameters: lambda p: torch.optim.SGD(p, 0.1)"
        raise CostirError(f"{type(given).__name__} is no name of an optimizer and makes none", hint)
    if given.lower() not in OPTIMIZERS:
        raise CostirError(f"unknown optimizer {given!r}", nearest(given, OPTIMIZERS))
    return OPTIMIZERS[given.lower()]


def build(family: Family, sizes: Mapping[str, int]) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The family's module and example inputs at these sizes.

    Raises:
        TraceError: where the user's code raises or returns something else; names the line.
    """
    try:
        made = family.build(**{k: Dim(v) for k, v in sizes.items()})
    except CostirError:
        raise
    except Exception as error:
        raise _failed("building the model", error, sizes) from error
    if not (isinstance(made, tuple) and len(made) == 3):
        raise TraceError(f"{family.name} returned {type(made).__name__}", "return (module, args, kwargs)")
    module, args, kwargs = made
    return getattr(module, "_orig_mod", module), tuple(args), dict(kwargs or {})


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection while traces keep their tensors alive: there is nothing to collect, and looking is slow."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def skeleton(family: Family) -> nn.Module | None:
    """The module at the base sizes, built only to be looked at: on the meta device, or on fake tensors where that fails."""
    with warnings.catch_warnings(), patched_torch(shapes=False):
        warnings.simplefilter("ignore")
        for context in (torch.device("meta"), FakeTensorMode(allow_non_fake_inputs=True)):
            try:
                with context:
                    return build(family, family.sizes)[0]
            except CostirError:
                continue
    return None


def run(family: Family, sizes: Mapping[str, int], phase: str = "forward", optimizer: Optimizer | None = None) -> Trace:
    """Trace the family at one point.

    Args:
        family: what to build.
        sizes: every size's value.
        phase: "forward"; "backward" (forward and backward are run, both are recorded with their phase); "train" adds the
            optimizer's step.
        optimizer: makes the optimizer from the parameters, for "train".

    Raises:
        TraceError: the model raises, or branches on data.
    """
    scope, values = Scope(), Values()
    guards, steps, escapes = dict[Guard, None](), dict[Step, None](), dict[Escape, None]()
    recorder, mode = Recorder(scope, values), FakeTensorMode(allow_non_fake_inputs=True)
    mesh = family.world(sizes) if family.world is not None else contextlib.nullcontext()
    with warnings.catch_warnings(), mesh as recorder.world, mode, patched_torch(), watch(guards, steps, escapes):
        warnings.simplefilter("ignore")
        with recorder:  # values of small tensors are followed from the start; the construction itself is not part of the run
            module, args, kwargs = build(family, sizes)
            with borrowed(module, mode), known_values(recorder), recorder.lifetimes.emptied():
                if phase == "train":
                    module.train()
                _refuse_nested((args, kwargs))
                _materialize(module, args, kwargs, sizes)
                cache = caches.Followed(recorder, family.cache, module, args, kwargs) if family.cache is not None else None
                if cache is not None:
                    _fill(cache, sizes, guards)
                recorder.notes.clear()
                weights = _register(recorder, module, (args, kwargs))
                given = _run_phases(recorder, family, module, args, kwargs, sizes, phase, optimizer)
                outputs = tuple([recorder.describe(t) for t in given])
                held = cache.after(guards) if cache is not None else []
    events = cache.events if cache is not None else recorder.events
    routing = tuple(recorder.routing) if recorder.routed else ()
    memories, lives = tuple(recorder.lifetimes.sizes), recorder.lifetimes.lives(recorder.roles)
    return Trace(dict(sizes), tuple(events), weights, tuple(guards), tuple(recorder.notes), routing, tuple(steps),
                 tuple(escapes), memories, outputs, tuple([RawWeight(*h) for h in held]), lives)  # fmt: skip


def _fill(cache: caches.Followed, sizes: Mapping[str, int], guards: dict[Guard, None]) -> None:
    """Let the model fill the cache with what came before the step."""
    try:
        cache.fill({n: Dim(v) for n, v in sizes.items()}, guards)
    except CostirError:
        raise
    except Exception as error:
        raise _failed("the pass that fills the cache", error, sizes) from error


_DOING = {"": "making the optimizer", "forward": "the forward pass", "backward": "the backward pass",
          "optimizer": "the optimizer's step"}  # fmt: skip


def _run_phases(recorder: Recorder, family: Family, module: nn.Module, args: Any, kwargs: Any, sizes: Mapping[str, int],
                phase: str, optimizer: Optimizer | None) -> list[torch.Tensor]:  # fmt: skip
    """Run, and return what the caller gets: see `Trace.outputs`."""
    scope = recorder.scope
    scope.phase = ""
    try:
        stepper = stepper_of(optimizer or family.optimizer or OPTIMIZERS["adamw"], module) if phase == "train" else None
        for path, m in module.named_modules():
            for site, p in enumerate(m._parameters.values()):
                scope.owners.setdefault(id(p), (path, "", -1 - site))
        if recorder.world is not None:
            recorder.world.owners = scope.owners
        recorder.recording = True
        with torch.set_grad_enabled(phase != "forward"), paths(module, scope), recomputing(module, family.recompute):
            results = _micro_batches(recorder, family, module, args, kwargs, phase)
            if phase == "forward":
                return results
            joined = recorder.world.joined if recorder.world is not None else ()
            for p in module.parameters():
                _mark(recorder, "grad", [own_part(p.grad)], IN_A_BUCKET if id(p) in joined else "")
            if joined:
                recorder.roles.update(dict.fromkeys(recorder.world.buckets, "bucket"))
            if stepper is not None:
                scope.phase, scope.path = "optimizer", "optimizer"
                _steady(recorder, stepper, family.staged)
                stepper.step()
                return results
            leaves = [t for t in (*module.parameters(), *_outputs((args, kwargs))) if t.is_leaf and t.grad is not None]
            return [*results, *(t.grad for t in leaves if t.grad is not None)]
    except CostirError:
        raise
    except Exception as error:
        raise _failed(_DOING[scope.phase], error, sizes) from error


def _micro_batches(
    recorder: Recorder, family: Family, module: nn.Module, args: Any, kwargs: Any, phase: str
) -> list[torch.Tensor]:
    """The first micro-batch and one that stands for all others; on a mesh the last one, too, which alone reduces gradients."""
    world, many = recorder.world, 1 if phase == "forward" else family.micro_batches
    runs = [1] if many == 1 else [1, many - 1] if world is None else [1, many - 2, 1]
    runs, results = [times for times in runs if times], []
    for i, times in enumerate(runs):
        if i == 1:
            recorder.lifetimes.second = len(recorder.events)
        if world is not None:
            world.reduce_gradients(i == len(runs) - 1)
        recorder.scope.times = times
        results = _micro_batch(recorder, family, module, args, kwargs, phase)
    recorder.scope.times = 1
    if world is not None and phase != "forward":
        world.end_step()
    return results


def _micro_batch(
    recorder: Recorder, family: Family, module: nn.Module, args: Any, kwargs: Any, phase: str
) -> list[torch.Tensor]:
    """Forward, and backward where asked for: the results, or the loss. The output is held until then, as by a variable."""
    scope = recorder.scope
    scope.phase = "forward"
    out = module(*args, **kwargs)
    if phase == "forward":
        return _outputs(out)
    loss = loss_of(family, out, recorder.notes)
    scope.phase = "backward"
    loss.backward()
    return [loss]


def stepper_of(make: Optimizer, module: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of the parameters that are trained.

    Raises:
        TraceError: where there are none. A backward pass is then refused, too, unless an input asks for its gradient.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    if not trained:
        why = "all are frozen" if any(True for _ in module.parameters()) else "the model has none"
        raise TraceError(
            f"no parameter is trained ({why}), so an optimizer has nothing to do",
            "use --phase forward, or backward where an input has requires_grad",
        )
    made = make(trained)
    if not all(callable(getattr(made, name, None)) for name in ("step", "zero_grad")):
        raise TraceError(
            f"the optimizer is a {type(made).__name__}, which has no step",
            "return one of torch.optim, as torch.optim.AdamW(params)",
        )
    return made


def _steady(recorder: Recorder, stepper: torch.optim.Optimizer, staged: bool) -> None:
    """Take the first step, which makes the states, unrecorded, and let the count of steps be large.

    So the step that is recorded is one like most: no states to make, no warm-up of the method itself left. Of a model that
    will be cut into stages, what works on a parameter is noted at the parameter's module.
    """
    trained = [p for group in stepper.param_groups for p in group["params"]]
    recorder.recording = False
    stepper.step()
    for state in stepper.state.values():
        steps = state.get("step") if isinstance(state, dict) else None
        if isinstance(steps, torch.Tensor):
            steps.fill_(_STEPS)
        elif type(steps) is int:
            state["step"] = _STEPS
    recorder.recording = True
    for p in trained:
        owner = recorder.scope.owners.get(id(p), ("", "", 0))
        kind = _kind(*owner)
        if staged:
            recorder.step_paths[kind] = fold_path(owner[0])
        state = [own_part(t) for t in tree_leaves(dict(stepper.state.get(p, {})))]
        for i, t in enumerate(state):
            _mark(recorder, "state", [t], f"{kind} {i}")  # one by one, as their names tell them apart
        for t in (own_part(p), own_part(p.grad), *state):
            if isinstance(t, torch.Tensor) and t.layout is torch.strided:
                recorder.steps_for[t.untyped_storage()._cdata] = kind
    _mark(recorder, "state", map(own_part, tree_leaves([dict(s) for s in stepper.state.values()])))


def _kind(path: str, _: str, number: int) -> int:
    """The same number for the same parameter of every repeated block, in every trace."""
    return zlib.crc32(f"{re.sub(r'[0-9]+', '*', path)} {number}".encode())


def _mark(recorder: Recorder, role: str, found: Iterable[Any], name: str = "") -> None:
    """Say what memory holds, where it holds nothing else; names say what is alike in repeated blocks."""
    for t in found:
        if isinstance(t, torch.Tensor) and t.layout is torch.strided:
            memory = t.untyped_storage()
            number = recorder.lifetimes.number(memory)
            recorder.lifetimes.names.setdefault(number, name)
            recorder.roles.setdefault(memory._cdata, role)


def loss_of(family: Family, out: Any, notes: dict[str, None] | None = None) -> torch.Tensor:
    """The scalar that backward starts from: the file's own loss, the output's own, a scalar output, or else a sum.

    Raises:
        TraceError: where no output depends on anything that is trained.
    """
    if family.loss is not None:
        out = family.loss(out)
    given = _named_loss(out)
    found = [given] if given is not None else _outputs(out)
    usable = [t for t in found if t.requires_grad and (t.is_floating_point() or t.is_complex())]
    if not usable:
        seen = "its loss does not depend" if given is not None else "no output depends"
        raise TraceError(f"{seen} on a parameter that is trained, so there is nothing to differentiate", "use --phase forward")
    scalar = next((t for t in usable if t.dim() == 0), None)
    if scalar is not None:
        return scalar.real if scalar.is_complex() else scalar
    if given is None and notes is not None:
        notes["loss: sum of the first output (the model gives none)"] = None
    return (usable[0].abs() if usable[0].is_complex() else usable[0]).sum()


def _named_loss(out: Any) -> torch.Tensor | None:
    """The output's own loss: `out.loss` or `out["loss"]`, where it is a tensor."""
    given = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
    return given if isinstance(given, torch.Tensor) else None


def _outputs(out: Any) -> list[torch.Tensor]:
    """All tensors of an output, those in the attributes of an unknown class included."""
    leaves = [t for leaf in tree_leaves(out) for t in (leaf, *tree_leaves(getattr(leaf, "__dict__", None) or ()))]
    return [t for t in leaves if isinstance(t, torch.Tensor)]


def _register(recorder: Recorder, module: nn.Module, inputs: Any) -> tuple[RawWeight, ...]:
    """Tell the recorder what the memory of weights and inputs is; their floating values are unknown from here on."""
    weights, data = [], []
    for role, named in (("weight", module.named_parameters()), ("buffer", module.named_buffers())):
        for path, whole in named:
            t = own_part(whole)
            strided = t.layout is torch.strided
            key = t.untyped_storage()._cdata if strided else id(t)
            if key in recorder.roles:
                continue
            recorder.roles[key] = role
            weights.append(RawWeight(path, recorder.describe(t)._replace(role=role)))
            if role == "weight":
                data.append(t)
    given = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    _mark(recorder, "input", given)
    data += given
    if recorder.values is not None:
        recorder.values.forget_data(data)
    return tuple(weights)


def _materialize(module: nn.Module, args: Any, kwargs: Any, sizes: Mapping[str, int]) -> None:
    """Give lazy parameters their shapes by one forward pass."""
    from torch.nn.parameter import is_lazy

    if any(is_lazy(t) for t in (*module.parameters(), *module.buffers())):
        try:
            with torch.no_grad():
                module(*args, **kwargs)
        except Exception as error:
            raise _failed("the first pass of a lazy module", error, sizes) from error


def _refuse_nested(inputs: Any) -> None:
    for t in tree_leaves(inputs):
        if isinstance(t, torch.Tensor) and t.is_nested:
            raise TraceError(
                "nested tensors are not supported: an input is one",
                "give the values as one tensor whose first dimension is a size of its own, such as the total number of tokens",
            )


def _failed(what: str, error: Exception, sizes: Mapping[str, int]) -> TraceError:
    """The user's exception as one sentence with the line it came from."""
    tb, line = error.__traceback__, ""
    while tb is not None:
        name = tb.tb_frame.f_code.co_filename
        if is_user_file(name) and (not line or not is_library_file(name)):
            line = f"{name.rsplit('/', 1)[-1]}:{tb.tb_lineno}"
        tb = tb.tb_next
    point = ", ".join(f"{k}={int(v)}" for k, v in sizes.items())
    text = (str(error).strip().splitlines() or [""])[0][:200]
    at = f" at {line}" if line else ""
    return TraceError(f"{what} fails{at} with {point or 'no sizes'}: {type(error).__name__}: {text}")


def record_calls(function: Callable[..., Any], *args: Any, backward: bool = False, **kwargs: Any) -> tuple[Call, ...]:
    """The operator calls of a plain function on the tensors given (real, meta or fake), with concrete shapes.

    Args:
        function: what to run.
        args, kwargs: its arguments.
        backward: also run `.backward()` from the sum of the first floating output.
    """
    scope = Scope()
    recorder = Recorder(scope, None)
    recorder.recording = True
    with recorder, torch.set_grad_enabled(backward):
        out = function(*args, **kwargs)
        if backward:
            first = next(t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad)
            total = first.sum() if not first.is_complex() else first.abs().sum()
            scope.phase = "backward"
            total.backward()
    return tuple(concrete(e) for e in recorder.events)


def concrete(event: Event) -> Call:
    """An event as a `Call` whose sizes are numbers."""
    return Call(event.op, {k: _concrete(v) for k, v in event.args}, tuple(_concrete(o) for o in event.outputs),
                event.path, event.source, event.phase, Integer(event.times))  # type: ignore[arg-type]  # fmt: skip


def _concrete(x: Any) -> Any:
    if isinstance(x, RawTensor):
        from costir.ir import ITEMSIZE

        index = Integer(x.index_numel) * ITEMSIZE[x.index_dtype] if x.index_numel else ZERO
        nnz = Integer(x.nnz) if x.nnz is not None else None
        return Tensor(tuple(Integer(d) for d in x.shape), x.dtype, x.expanded, x.role, x.ref, nnz, index)  # type: ignore[arg-type]
    if isinstance(x, tuple):
        return tuple(_concrete(i) for i in x)
    if type(x) is int:
        return Integer(x)
    return x
