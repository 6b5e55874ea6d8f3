"""A GPU that is not there: what operators take by a model of it, counted apart from costir, and torch.cuda with such GPUs.

An operator takes `kernel` seconds and as long as its FLOPs at the rate of its type, or its bytes at the bandwidth of the memory
that all it touches fits into, whichever is longer. The host takes `launch` to start it, and goes on.
"""

from __future__ import annotations

import contextlib
import types
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from costir.measuring.gpu_device import Gpu

META = torch.device("meta")  # tensors without memory: all sizes can be run in no time
WRITE_ONLY = {"fill_", "copy_", "zero_"}


@dataclass
class Model:
    """What a GPU can do."""

    launch: float = 7e-6
    kernel: float = 2e-6
    l2: int = 40 << 20
    fast: float = 6e12
    slow: float = 2e12
    total: int = 80 << 30
    free: int = 70 << 30
    rates: dict = field(default_factory=lambda: {
        "fp32": 5e13, "tf32": 4e14, "bf16": 8e14, "fp16": 7e14, "fp64": 2.5e13, "fp8": 1.5e15,
    })  # fmt: skip

    def gpu(self) -> Gpu:
        return Gpu("Imaginary X1", "NVIDIA", "9.0", "CUDA 12.8", self.total, self.free, self.l2, 132)

    def bandwidth(self, touched: int) -> float:
        return self.fast if touched <= self.l2 else self.slow

    def seconds(self, flops: float, rate: str, moved: int, touched: int) -> float:
        return self.kernel + max(flops / self.rates[rate], moved / self.bandwidth(touched))


def rate_of(t: torch.Tensor) -> str:
    """Which rate a product of such tensors runs at now."""
    if t.dtype == torch.float32:
        return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "fp32"
    return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64", torch.float8_e4m3fn: "fp8"}[t.dtype]


class Counted(TorchDispatchMode):
    """Calls `on_kernel(seconds)` for every operator that would start a kernel."""

    def __init__(self, model: Model, on_kernel, on_view=lambda: None):
        super().__init__()
        self.model, self.on_kernel, self.on_view = model, on_kernel, on_view

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        returns = [r.alias_info for r in func._schema.returns]
        if (returns and all(r is not None and not r.is_write for r in returns)) or "empty" in func.__name__:
            self.on_view()
            return out
        moved, touched = 0, {}
        named = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs
        for a in func._schema.arguments:
            for t in (x for x in tree_leaves(named.get(a.name)) if isinstance(x, torch.Tensor)):
                touched[id(t)] = t.nbytes
                written = a.alias_info is not None and a.alias_info.is_write
                only = written and (func._schema.name.rpartition("::")[2] in WRITE_ONLY or a.is_out)
                moved += t.nbytes * (2 if written and not only else 1)
        for t in (x for x in tree_leaves(out) if isinstance(x, torch.Tensor)):
            if id(t) not in touched:
                touched[id(t)] = t.nbytes
                moved += t.nbytes
        count = flop_registry.get(func._overloadpacket)
        flops, rate = 0, "fp32"
        if count is not None:
            flops = count(*args, **kwargs, out_val=out)
            rate = rate_of(next(x for x in tree_leaves(args) if isinstance(x, torch.Tensor)))
        self.on_kernel(self.model.seconds(flops, rate, moved, sum(touched.values())))
        return out


class ModelClock:
    """A clock that runs a function once, and says what the model says."""

    most_loops = 64
    speed = 1.0
    quiet = True

    def __init__(self, model: Model):
        self.model = model
        self.last, self.seconds = None, 0.0

    def round(self, function, loops):
        if function is not self.last:  # the model says the same each time
            found = []
            with Counted(self.model, found.append):
                function()
            self.last, self.seconds = function, sum(found)
        return loops * self.seconds

    def host(self, function, loops):
        found, views = [], []
        with Counted(self.model, found.append, lambda: views.append(1)):
            function()
        return loops * (len(found) * self.model.launch + len(views) * 1e-6 + 1e-7)


class Machine:
    """Host and GPU on a common line of time; the GPU takes what is queued in order, each after it was queued."""

    def __init__(self, model: Model):
        self.model, self.now, self.ready = model, 0.0, 0.0

    def kernel(self, seconds: float) -> None:
        self.now += self.model.launch
        self.ready = max(self.ready, self.now) + seconds

    def view(self) -> None:
        self.now += 1e-6

    def wait(self, device=None) -> None:
        self.now = max(self.now, self.ready)

    def event(self, enable_timing=False):
        return Event(self, enable_timing)


class Event:
    """torch.cuda.Event, as its documentation describes it."""

    def __init__(self, machine: Machine, timing: bool):
        self.machine, self.timing, self.at = machine, timing, None

    def record(self, stream=None):
        self.at = max(self.machine.ready, self.machine.now)

    def query(self) -> bool:
        return self.at is None or self.machine.now >= self.at

    def elapsed_time(self, end) -> float:
        assert self.timing
        assert end.timing
        if self.at is None or end.at is None or self.machine.now < end.at:
            raise RuntimeError("device not ready")
        return (end.at - self.at) * 1e3


@contextlib.contextmanager
def installed(monkeypatch, model: Model, count: int = 1):
    """torch.cuda with such GPUs; tensors are made without memory, and operators go through the machine."""
    from costir.measuring import clock, gpu

    machine = Machine(model)
    properties = types.SimpleNamespace(
        name="Imaginary X1", major=9, minor=0, total_memory=model.total, L2_cache_size=model.l2, multi_processor_count=132
    )
    asked = []
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: count)
    monkeypatch.setattr(cuda, "get_device_properties", lambda d: asked.append(d) or properties)
    monkeypatch.setattr(cuda, "get_device_name", lambda d=None: properties.name)
    monkeypatch.setattr(cuda, "mem_get_info", lambda d: (model.free, model.total))
    monkeypatch.setattr(cuda, "synchronize", machine.wait)
    monkeypatch.setattr(cuda, "Event", machine.event)
    monkeypatch.setattr(cuda, "device", lambda d: contextlib.nullcontext())
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(clock, "perf_counter", lambda: machine.now)
    monkeypatch.setattr(gpu, "tensors_on", lambda d: META)
    monkeypatch.setattr(gpu, "in_tf32", lambda on: torch.backends.cuda.matmul.fp32_precision == "tf32")
    monkeypatch.setattr(gpu, "WARM", 0.0)
    with Counted(model, machine.kernel, machine.view):
        yield machine, asked
