"""What a GPU's calibration runs: the kernels of the CPU's, on grids that reach further, and products and attention by type.

A kernel has the name that the CPU's has; that of another type than float32 has the type after it, `mm_nt_bf16`. Nothing here
says where tensors are made: that is for the caller, by `with torch.device(...)`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from costir.measuring.clock import Clock, Run
from costir.measuring.kernel import Kernel, Make
from costir.measuring.kernels import BY_ROWS, POINTWISE, kernels
from costir.measuring.overheads import _MANY, _chain, _Nested
from costir.measuring.timing import timed

SIZES = (16, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)  # elements
ROWS, COLUMNS = (16, 256, 4096, 16384), (64, 256, 1024, 4096)
EDGES, LONG = (16, 64, 256, 1024, 4096, 8192), (1, 16, 64, 256, 1024, 4096, 8192)  # of matrices; of their first axis
WIDE = (64, 512, 2048, 8192)  # of matrices of other types
HEADS, LENGTHS, WIDTHS = (8, 64), (128, 512, 2048), (64, 128)
A_NUMBER, IN_ROWS = 48, 24  # bytes that kernels hold for each: elementwise (the indices of `where` among them), by rows
QUEUED = 256  # kernels: no queue is full of these

# Some of the CPU's as they are: the rest is made for caches of a CPU, or has an operator that only a CPU has.
_SAME = (
    "enlarged", "enlarged_backward", "conv_line", "conv_line_backward",
    "bmm_nn", "bmm_nt", "bmm_tn", "conv1_strided", "conv3_strided", "grouped", "halves", "ragged", "depthwise", "lstm", "gru",
    "max_window", "max_window_backward", "avg_window", "batch_norm", "batch_norm_training", "batch_norm_backward",
    "streamed", "far_read", "far_write", "far_update", "conv1_strided_backward", "conv3_strided_backward",
    "grouped_backward", "halves_backward", "ragged_backward", "depthwise_backward",
)  # fmt: skip
_CONVOLUTIONS = {"side": (4, 14, 56, 224), "inside": (3, 16, 64, 256), "outside": (16, 64, 256)}


@dataclass(frozen=True, slots=True)
class Type:
    """A type of numbers that matrices are multiplied in.

    Attributes:
        name: as in chip files.
        dtype: of the operands.
        precision: of float32's products, "ieee" or "tf32".
    """

    name: str
    dtype: torch.dtype
    precision: str = "ieee"


FP32 = Type("fp32", torch.float32)
TYPES = (
    FP32, Type("bf16", torch.bfloat16), Type("fp16", torch.float16), Type("tf32", torch.float32, "tf32"),
    Type("fp64", torch.float64), Type("fp8", torch.float8_e4m3fn),
)  # fmt: skip


def products(of: Type, room: int) -> list[Kernel]:
    """Products of random numbers in a type: numbers that are all alike take less power, and so less time.

    Args:
        of: the type. float32 in the three layouts of the CPU's, others with the second matrix transposed, as in nn.Linear.
        room: bytes that may be held.
    """
    if of != FP32:
        return [Kernel(f"mm_nt_{of.name}", dict.fromkeys("mnk", _within(WIDE, room)), _product(of.dtype, "nt"))]
    rows = dict.fromkeys("mnk", _within(EDGES, room))
    first, last = {**rows, "m": _within(LONG, room)}, {**rows, "k": _within(LONG, room)}
    axes = {"nt": first, "nn": first, "tn": last}
    return [Kernel(f"mm_{layout}", a, _product(of.dtype, layout)) for layout, a in axes.items()]


def _within(edges: tuple[int, ...], room: int) -> tuple[int, ...]:
    """Those of which three matrices of 8 bytes a number fit; narrower ones are made from wider random numbers."""
    return tuple(e for e in edges if 3 * 8 * e * e <= room)


def _product(dtype: torch.dtype, layout: str) -> Make:
    def matrix(rows: int, columns: int, turned: bool) -> torch.Tensor:
        wide = torch.float32 if dtype.itemsize < 4 else dtype  # what random numbers are made in
        return (
            torch.rand(columns, rows, dtype=wide).to(dtype).t() if turned else torch.rand(rows, columns, dtype=wide).to(dtype)
        )

    def make(m: int, n: int, k: int) -> Run:
        a, b = matrix(m, k, layout == "tn"), matrix(k, n, layout == "nt")
        if dtype.itemsize > 1:
            return lambda: torch.mm(a, b)
        one = torch.ones(())  # what 8-bit numbers are scaled by
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return make


def others(room: int) -> list[Kernel]:
    """All but products of matrices, what matters most first: time may run out."""
    known = {k.name: k for k in kernels()}
    sizes = tuple(n for n in SIZES if A_NUMBER * n <= room)
    rows = tuple(r for r in ROWS if IN_ROWS * r * COLUMNS[-1] <= room)
    out = [replace(known[name], axes={"n": sizes}) for name in POINTWISE if name not in ("empty", "zeros")]
    out.append(Kernel("zeros", {"n": sizes}, _zeros))
    out += [replace(known[name], axes=dict(zip(known[name].axes, (rows, COLUMNS), strict=True))) for name in BY_ROWS]
    lengths = tuple(n for n in LENGTHS if 4 * 4 * HEADS[-1] * n * n <= room)  # where scores are held, four of them
    heads = {"heads": HEADS, "length": lengths, "width": WIDTHS}
    for suffix, dtype in (("", torch.float32), ("_bf16", torch.bfloat16)):
        out += [Kernel(f"attention{suffix}", heads, _attention(dtype, False)),
                Kernel(f"attention_backward{suffix}", heads, _attention(dtype, True))]  # fmt: skip
    sides = tuple(s for s in _CONVOLUTIONS["side"] if 4 * 256 * s * s * 12 <= room)
    out += [replace(known[f"conv{k}{b}"], axes={**_CONVOLUTIONS, "side": sides}) for k in (1, 3) for b in ("", "_backward")]
    return out + [_kept(known[name], room) for name in _SAME]


def _kept(kernel: Kernel, room: int) -> Kernel:
    """With no more memory than there is, and without the CPU's limit to the work."""
    axes = {a: tuple(x for x in grid if a != "pool" or 2 * x <= room) for a, grid in kernel.axes.items()}
    return replace(kernel, axes=axes, largest=1 << 62)


def _zeros(n: int) -> Run:
    """Here, since the CPU's makes its result where tensors are made by default when it is called."""
    here = torch.empty(0).device
    return lambda: torch.zeros(n, device=here)


def _attention(dtype: torch.dtype, backward: bool) -> Make:
    """Whatever torch chooses for `scaled_dot_product_attention`; backward as its autograd runs it."""

    def make(heads: int, length: int, width: int) -> Run:
        q, k, v = (torch.rand(1, heads, length, width).to(dtype).requires_grad_(backward) for _ in range(3))
        if not backward:
            return lambda: F.scaled_dot_product_attention(q, k, v)
        with torch.enable_grad():
            out = F.scaled_dot_product_attention(q, k, v)
        g = torch.ones_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), g, retain_graph=True)

    return make


# ------------------------------------------------------------------------------------------------------------- overheads


def overheads(clock: Clock, on: torch.device) -> dict[str, float]:
    """Seconds of the host around the GPU's work, and the least that a kernel takes there.

    `launch`: until an operator that starts a kernel has returned; `grad`: what autograd adds to it, where it follows; `node`:
    what a node of the backward pass takes beside its operator; `start`: entering and leaving a backward pass; `view`,
    `view_grad`: a view, without and with autograd; `module`: one more `nn.Module.__call__`. And `kernel`: the GPU's time for
    16 numbers.
    """
    with on:
        x, y = torch.rand(8, 8), torch.rand(8, 8, requires_grad=True)
        small, leaf = torch.rand(16), torch.rand(16, requires_grad=True)
    deep, flat = _Nested(16), _Nested(0)

    def step(n: int) -> Run:
        def run() -> None:
            leaf.grad = None
            _chain(leaf, n).sum().backward()

        return run

    def host(function: Run, kernels: int) -> float:
        loops = max(1, QUEUED // max(1, kernels))
        function()
        return min(clock.host(function, loops) for _ in range(7)) / loops

    with torch.enable_grad():
        launch = host(lambda: _chain(small, _MANY), _MANY) / _MANY
        followed = host(lambda: _chain(leaf, _MANY), _MANY) / _MANY
        short, long = host(step(1), 4), host(step(1 + _MANY), 2 * _MANY)
        node = (long - short) / _MANY - followed - launch
        found: dict[str, Any] = {
            "launch": launch, "grad": followed - launch, "node": node, "start": short - 2 * (followed + launch) - 2 * node,
            "view": host(lambda: x.view(64), 1), "view_grad": host(lambda: y.view(64), 1),
            "module": (host(lambda: deep(small), 1) - host(lambda: flat(small), 1)) / 16,
        }  # fmt: skip
    unary = lambda: small * 2.0
    found["kernel"] = timed(unary, 5, clock=clock).best
    return {k: max(0.0, v) for k, v in found.items()}


__all__ = ["FP32", "TYPES", "Type", "others", "overheads", "products"]
