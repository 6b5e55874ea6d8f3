"""Memory that an operator needs only while it runs: copies of operands in a layout that its kernel can read.

What torch's CPU operators allocate beside their results, and free before they return:

- a product copies an operand whose rows or columns do not lie one after the other, such as the gradient of a sum, which is one
  number shown many times (`addmm_impl_cpu_` of ATen/native/LinearAlgebra.cpp; a batched product copies one matrix at a time,
  `bmm_out_or_baddbmm_`; on a GPU it is the same for one matrix, `prepare_matrix_for_cublas` of ATen/native/cuda/Blas.cpp);
- a convolution of fp32 runs in oneDNN on operands in blocks of channels: forward on copies of input and weight, then of the
  result; backward on copies of gradient and input, with a stride on two of the input's gradient. A stem, of at most 3 channels,
  is read as it is (`use_mkldnn` of ATen/native/Convolution.cpp, and oneDNN's memory format propagation).

Not among them: scratch memory that grows with the number of threads (attention has some, and convolutions), blocks that are
filled up where channels are no multiple of 16, and products of bf16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from costir.tracing.recorder import Event, RawTensor

_STEM = 3  # channels
_SMALL = 20480  # elements of an input of one image that torch convolves itself
_FEW = 400  # multiplications of a matrix product in a batch that torch does itself
_PRODUCTS = {"aten.mm.default": ("self", "mat2"), "aten.addmm.default": ("mat1", "mat2")}
_BATCHED = {"aten.bmm.default": ("self", "mat2"), "aten.baddbmm.default": ("batch1", "batch2")}


class Copy(NamedTuple):
    """A tensor that is there only while an operator runs."""

    shape: tuple[int, ...]
    dtype: str


def workspace(e: Event) -> Iterator[Copy]:
    """The tensors that an operator makes for itself, beside its results."""
    args = dict(e.args)
    if e.op in _PRODUCTS:
        yield from (Copy(x.shape, x.dtype) for n in _PRODUCTS[e.op] if not _readable(x := args[n], x.shape, x.stride))
    elif e.op in _BATCHED:
        a, b = (args[n] for n in _BATCHED[e.op])
        if math.prod(a.shape[1:]) * b.shape[2] >= _FEW:
            yield from (Copy(x.shape[1:], x.dtype) for x in (a, b) if not _readable(x, x.shape[1:], x.stride[1:]))
    elif e.op == "aten.convolution.default" and _in_blocks(args):
        yield from _forward(args["input"], args["weight"], e.outputs[0], args["groups"])
    elif e.op == "aten.convolution_backward.default" and _in_blocks(args):
        yield from _backward(args["grad_output"], args["input"], args["weight"], args)


def _readable(x: RawTensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether BLAS takes a matrix as it lies: rows or columns without gaps, a whole one apart."""
    (m, n), (row, column) = shape, stride
    return x.nnz is not None or (column == 1 and row >= max(1, n)) or (row == 1 and column >= max(1, m))


def _in_blocks(args: dict[str, Any]) -> bool:
    """Whether torch gives a convolution to oneDNN."""
    x, w = args["input"], args["weight"]
    wide = args["groups"] > 1 or min(w.shape[2:]) > _STEM or x.shape[0] > 1 or math.prod(x.shape) > _SMALL
    return bool(x.dtype == "float32" and len(x.shape) == 4 and not args["transposed"] and wide)


def _is_stem(x: RawTensor, groups: int) -> bool:
    return x.shape[1] <= _STEM and groups == 1


def _forward(x: RawTensor, w: RawTensor, y: RawTensor, groups: int) -> Iterator[Copy]:
    """Input, weight and result in blocks are freed but for the result before that is copied: the larger of the two counts."""
    if _is_stem(x, groups) or math.prod(x.shape) + math.prod(w.shape) < math.prod(y.shape):
        yield Copy(y.shape, y.dtype)
    else:
        yield Copy(x.shape, x.dtype)
        yield Copy(w.shape, w.dtype)


def _backward(gradient: RawTensor, x: RawTensor, w: RawTensor, args: dict[str, Any]) -> Iterator[Copy]:
    """Gradient and input in blocks, beside both results; or, with a stride, the input's gradient three times, one of them the
    result, before there is that of the weight. Of the two the nearer to the larger counts: that weight is counted in both."""
    if 0 in gradient.stride:  # made contiguous before it is put into blocks
        yield Copy(gradient.shape, gradient.dtype)
    strided = args["output_mask"][0] and args["groups"] == 1 and max(args["stride"]) > 1
    if strided and math.prod(gradient.shape) + 2 * math.prod(w.shape) < math.prod(x.shape):
        yield from (Copy(x.shape, x.dtype), Copy(x.shape, x.dtype))
        return
    yield Copy(gradient.shape, gradient.dtype)
    if not _is_stem(x, args["groups"]):
        yield Copy(x.shape, x.dtype)
