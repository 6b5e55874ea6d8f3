"""What TorchInductor itself would put into one kernel: its scheduler runs, and is stopped before it writes code (torch 2.13).

The model is compiled on the CPU as far as the graphs of its forward and backward pass. These are moved to fake CUDA tensors,
so that the rules for GPUs apply (no GPU and no Triton are needed, since nothing is generated), lowered and scheduled; then an
exception ends it, and the kernels are read from the scheduler. Switched off: split and mixed-order reductions (which depend on
the number of multiprocessors), layout optimisation, and the patterns that replace attention written out by fused attention.

    plans = kernels_of(model, args, backward=True)
    sum(k.nbytes for k in plans)
"""

from __future__ import annotations

import contextlib
import copy
import functools
import types
import unittest.mock as mock
from dataclasses import dataclass

import torch
from torch._inductor.fx_passes import fuse_attention

_SETTINGS = {
    "fx_graph_cache": False, "force_disable_caches": True, "split_reductions": False, "layout_optimization": False,
    "pattern_matcher": True, "triton.mix_order_reduction": False,
}  # fmt: skip
_DEVICE = types.SimpleNamespace(
    name="fake", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30, max_threads_per_multi_processor=2048,
    warp_size=32, regs_per_multiprocessor=65536, gcnArchName=None, shared_memory_per_block=48 << 10, is_integrated=False,
    shared_memory_per_block_optin=227 << 10, L2_cache_size=50 << 20, uuid="0", clock_rate=1980000, memory_clock_rate=2619000,
    memory_bus_width=5120, max_threads_per_block=1024, shared_memory_per_multiprocessor=228 << 10,
)  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """One kernel of TorchInductor's.

    Attributes:
        graph: "forward" or "backward".
        kind: "fused" or "library".
        operators: names of the ATen operators in it.
        reads, writes: bytes by buffer.
    """

    graph: str
    kind: str
    operators: tuple[str, ...]
    reads: dict[str, int]
    writes: dict[str, int]

    @property
    def nbytes(self) -> int:
        """Bytes moved."""
        return sum(self.reads.values()) + sum(self.writes.values())


class _StopError(BaseException):
    pass


def kernels_of(function, args, backward=False, settings=None, fullgraph=True):
    """The kernels of a function or module on real CPU tensors; with `backward` also those of its result's gradient."""
    # The patterns are made once per process, when they are first needed: from here on without those of attention.
    fuse_attention._sfdp_init = lambda *_, **__: None
    found = []
    for name, graph, options in _graphs(function, args, backward, fullgraph):
        given = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
        with _fake_cuda():
            moved, inputs, mode = _on_cuda(graph, given)
            found += [k for k in _scheduled(moved, inputs, mode, name, options, settings or {}) if k.kind != "none"]
    return found


def _graphs(function, args, backward, fullgraph):
    """The graphs that torch.compile hands to the code generator, with what it says of them."""
    from functorch.compile import make_boxed_func
    from torch._functorch import config as functorch_config
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    found = []

    def keep(graph, inputs, **options):
        found.append(("backward" if options.get("is_backward") else "forward", copy.deepcopy(graph), options))
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    quiet = {**_SETTINGS, "cpu_backend": "triton"}
    with config.patch(quiet), functorch_config.patch(enable_autograd_cache=False):
        table = {**select_decomp_table(), torch.ops.aten.native_group_norm.default: _group_norm}
        backend = functools.partial(compile_fx, inner_compile=keep, decompositions=table)
        compiled = torch.compile(function, backend=backend, fullgraph=fullgraph)
        if backward:
            out = compiled(*args)
            out.backward()
        else:
            with torch.no_grad():
                compiled(*args)
    return found


def _group_norm(x, weight, bias, n, c, inner, groups, eps):
    """What torch's decomposition does on a GPU; on a CPU, where the graph is made, it does otherwise (torch/_refs)."""
    rows = x.reshape(n, groups, c // groups, inner)
    var, mean = torch.var_mean(rows, dim=[2, 3], unbiased=False, keepdim=True)
    rstd = torch.rsqrt(var + eps)
    out = ((rows - mean) * rstd).view(x.shape)
    ones = (1,) * (x.ndim - 2)
    if weight is not None:
        out = out * weight.view(1, c, *ones)
    if bias is not None:
        out = out + bias.view(1, c, *ones)
    return out, mean.view(n, groups), rstd.view(n, groups)


@contextlib.contextmanager
def _fake_cuda():
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import scheduler, utils

    def yes(*_, **__):
        return True

    def device(*_, **__):
        return _DEVICE

    def zero(*_, **__):
        return 0

    def nothing(*_, **__):
        return None

    cuda = {
        "get_device_properties": device, "_get_device_properties": device, "current_device": zero, "device_count": lambda: 1,
        "get_device_capability": lambda *_, **__: (9, 0), "is_available": yes, "_lazy_init": nothing, "synchronize": nothing,
        "get_rng_state": lambda *_, **__: torch.zeros(16, dtype=torch.uint8), "set_rng_state": nothing,
        "_exchange_device": zero, "_maybe_exchange_device": zero,
    }  # fmt: skip
    interface = {
        "get_device_properties": device, "get_compute_capability": lambda *_, **__: 90, "is_available": yes,
        "raise_if_triton_unavailable": nothing, "is_triton_capable": yes,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for name, value in cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value, create=True))
        for name, value in interface.items():
            stack.enter_context(mock.patch.object(CudaInterface, name, staticmethod(value)))
        stack.enter_context(mock.patch.object(CudaInterface.Worker, "get_device_properties", staticmethod(device)))
        stack.enter_context(mock.patch.object(CudaInterface.Worker, "current_device", staticmethod(zero)))
        # What Python's bindings do with a device guard, which a build without CUDA lacks, done by the dispatcher alone.
        for name, op in (("__invert__", torch.ops.aten.bitwise_not.default), ("copy_", torch.ops.aten.copy_.default)):
            stack.enter_context(mock.patch.object(torch.Tensor, name, lambda *given, op=op: op(*given)))
        for name in ("has_triton", "is_triton_available"):
            for module in (scheduler, utils):
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, yes))
        yield


def _on_cuda(graph, given):
    """The same graph on fake CUDA tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    graph = copy.deepcopy(graph)
    mode, device = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True), torch.device("cuda", 0)
    for n in graph.graph.nodes:
        if n.kwargs.get("device") is not None:
            n.kwargs = {**n.kwargs, "device": device}
    graph.recompile()
    with mode:
        inputs = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in given]
        FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*inputs)
    return graph, inputs, mode


def _scheduled(graph, inputs, mode, name, options, settings):
    """Run the scheduler on a graph and read its kernels."""
    from torch import _guards
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    found = []

    def codegen(lowering):
        lowering.init_wrapper_code()
        lowering._update_scheduler()
        found.extend(_kernel(n, lowering, name) for n in lowering.scheduler.nodes)
        raise _StopError

    flags = {k: options.get(k, False) for k in ("is_backward", "is_inference")}
    context = _guards.TracingContext(mode)
    with (
        config.patch({**_SETTINGS, "cpu_backend": "cpp", **settings}),
        mock.patch.object(GraphLowering, "codegen", codegen),
        V.set_fake_mode(mode),
        _guards.tracing(context),
        torch.no_grad(),
        contextlib.suppress(_StopError),
    ):
        compile_fx_inner(graph, inputs, **flags)
    return found


def _kernel(node, graph, name):
    from torch._inductor import ir, scheduler
    from torch._inductor.dependencies import StarDep, WeakDep

    own = {b for n in node.get_nodes() for b in n.get_buffer_names()}
    library = isinstance(node, scheduler.ExternKernelSchedulerNode)
    empty = isinstance(node, scheduler.NopKernelSchedulerNode) or (library and isinstance(node.node, ir.MultiOutput))
    changed = {m for n in node.get_nodes() for o in n.get_outputs() for m in o.get_mutations()}
    reads, writes = {}, {}
    if not empty:
        for d in node.read_writes.reads:
            # What is added to by atomics is written, as many elements as are added; what is there is no operand.
            added = isinstance(d, StarDep) and not library and d.name in changed
            if not isinstance(d, WeakDep) and d.name not in own and not added:
                reads.setdefault(d.name, []).append(d)
        for d in node.read_writes.writes:
            users = {u.node for u in graph.scheduler.name_to_buf[d.name].users if not u.is_weak}  # weak: an order only
            if users - set(node.get_nodes()):
                writes.setdefault(d.name, []).append(d)
    origins = {o for n in node.get_nodes() if n.node is not None for o in n.node.get_origins() if o.op == "call_function"}
    return Kernel(
        name,
        "none" if empty else "library" if library else "fused",
        tuple(sorted(str(o.target).removeprefix("aten.") for o in origins)),
        {b: _bytes(deps, b, graph) for b, deps in reads.items()},
        {b: _bytes(deps, b, graph) for b, deps in writes.items()},
    )


def _bytes(deps, name, graph):
    """Bytes of a buffer that are touched: each index expression once, never more than the whole."""
    from torch._inductor.dependencies import MemoryDep

    whole, total, seen = _whole(name, graph), 0, set()
    for d in deps:
        if not isinstance(d, MemoryDep):
            return whole  # a library call takes all
        if d.index in seen:
            continue
        seen.add(d.index)
        n = 1
        for s in d.size if d.is_indirect() else [d.get_numel()]:
            n *= int(s)
        total += n * _itemsize(name, graph)
    return total if any(d.is_indirect() for d in deps) and len(seen) == 1 else min(total, whole)


def _buffer(name, graph):
    if name in graph.name_to_buffer:
        return graph.name_to_buffer[name]
    return graph.graph_inputs.get(name, graph.constants.get(name))


def _itemsize(name, graph):
    b = _buffer(name, graph)
    return b.element_size() if isinstance(b, torch.Tensor) else b.get_dtype().itemsize


def _whole(name, graph):
    from torch._inductor import ir

    b = _buffer(name, graph)
    if b is None:
        return 0
    if isinstance(b, torch.Tensor):
        return b.numel() * b.element_size()
    layout = getattr(b, "layout", None)
    if isinstance(layout, ir.MultiOutputLayout):
        users = graph.scheduler.name_to_buf[name].users
        parts = {
            o.get_name()
            for u in users
            if isinstance(getattr(u.node, "node", None), ir.MultiOutput)
            for o in u.node.get_outputs()
        }
        return sum(_whole(p, graph) for p in parts)
    if isinstance(layout, ir.NoneLayout):
        return sum(_whole(m, graph) for m in b.get_mutation_names())
    n = b.get_dtype().itemsize
    for s in b.get_size():
        n *= int(s)
    return n
