"""Matrix products of packed, scaled, grouped and sparse operands, and distances between all pairs of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costir.ir import Call, Conventions, Cost, Tensor, tensors
from costir.ops.contract import ADDED, bias_add, contraction, operands, scale_and_add
from costir.ops.registry import ONE, ZERO, read_once, rule, written
from costir.symbolic import Expr, Rational

# Integer and scaled products.


@rule("aten._int_mm", kind="contraction", counts="2*m*k*n integer operations")
def int_mm(call: Call, conventions: Conventions) -> Cost:
    """int8 self [m, k] times int8 mat2 [k, n] to int32."""
    a, b, out = call.args["self"], call.args["mat2"], call.outputs[0]
    return contraction(call, conventions, (a, b), macs=out.numel * a.shape[1], dots=out.numel)


SCALED = "2*m*k*n; a vector multiply per output for each of the two scales; the bias an add per output"


@rule("aten._scaled_mm", "aten._scaled_mm_v2", kind="contraction", counts=SCALED)
def scaled_mm(call: Call, conventions: Conventions) -> Cost:
    """self [m, k] times mat2 [k, n] in fp8 or fp4, times the scales. The math type is that of the matrices, not of the scales."""
    a, b, out = call.args["self"], call.args["mat2"], call.outputs[0]
    vector = 2 * out.numel + bias_add(call, call.args["bias"])
    return contraction(call, conventions, (a, b), macs=out.numel * a.shape[1], dots=out.numel, vector=vector)


def _grouped(call: Call, conventions: Conventions, scales: int) -> Cost:
    a, b, out = call.args["self"], call.args["mat2"], call.outputs[0]
    macs = a.shape[-2] * a.shape[-1] * b.shape[-1]
    if len(a.shape) == len(b.shape) == 3:
        macs *= a.shape[0]
    vector = scales * out.numel + bias_add(call, call.args["bias"])
    return contraction(call, conventions, (a, b), macs=macs, dots=out.numel, vector=vector, note="all groups' matrices are read")


@rule("aten._grouped_mm", kind="contraction", counts="2*m*k*n: each row (column, or element of k) meets one group only; the bias an add per output")
def grouped_mm(call: Call, conventions: Conventions) -> Cost:
    """[m, k] x [e, k, n] (rows in groups), [e, m, k] x [k, n] (columns), [m, k] x [k, n] -> [e, m, n] (k), or a batch of e products."""
    return _grouped(call, conventions, 0)


@rule("aten._scaled_grouped_mm", "aten._scaled_grouped_mm_v2", kind="contraction", counts="as _grouped_mm, and a vector multiply per output for each of the two scales")
def scaled_grouped_mm(call: Call, conventions: Conventions) -> Cost:
    """_grouped_mm in fp8 with scales."""
    return _grouped(call, conventions, 2)


# Weights packed in 4 or 8 bits. The weight's bytes are those of its packed form; its sizes come from input and output.


@rule("aten._weight_int4pack_mm", "aten._weight_int4pack_mm_for_cpu", "aten._weight_int4pack_mm_with_scales_and_zeros", kind="contraction",
      counts="2*m*k*n; a multiply and an add per weight to scale it back")  # fmt: skip
def int4pack_mm(call: Call, conventions: Conventions) -> Cost:
    """self [m, k] times an int4 weight [n, k], packed, with a scale and a zero per group of weights."""
    a, out = call.args["self"], call.outputs[0]
    k, n = a.shape[-1], out.shape[-1]
    return contraction(call, conventions, (a,), macs=out.numel * k, dots=out.numel, vector=2 * n * k)


@rule("aten._weight_int8pack_mm", kind="contraction", counts="2*m*k*n; a vector multiply by the scale per output")
def int8pack_mm(call: Call, conventions: Conventions) -> Cost:
    """self [m, k] times an int8 weight [n, k], with a scale per output column."""
    a, out = call.args["self"], call.outputs[0]
    return contraction(call, conventions, (a,), macs=out.numel * a.shape[-1], dots=out.numel, vector=out.numel)


@rule("aten._mixed_dtypes_linear", kind="contraction", counts="2*k per output; a vector multiply by the scale and an add of the bias per output; SiLU one special function and a multiply")
def mixed_dtypes_linear(call: Call, conventions: Conventions) -> Cost:
    """input [..., k] in half precision times an int8 or int4 weight, with a scale per column, then an optional ReLU or SiLU."""
    x, out = call.args["input"], call.outputs[0]
    silu = call.args["activation"] == "silu"
    vector = out.numel * (2 if silu else 1) + bias_add(call, call.args["bias"])
    return contraction(
        call, conventions, (x,), macs=out.numel * x.shape[-1], dots=out.numel, vector=vector, special=out.numel if silu else ZERO
    )


@rule("aten._dyn_quant_matmul_4bit", kind="contraction", counts="2*m*k*n; a multiply and an add per weight to scale it back")
def dyn_quant_matmul_4bit(call: Call, conventions: Conventions) -> Cost:
    """inp [m, in_features] times a packed int4 weight [out_features, in_features]."""
    x, out = call.args["inp"], call.outputs[0]
    k, n = call.args["in_features"], call.args["out_features"]
    return contraction(call, conventions, (x,), macs=out.numel * k, dots=out.numel, vector=2 * n * k)


# Sparse operands: the work is that of the stored elements. Values and index arrays are read.


def _sparse_product(call: Call, conventions: Conventions, sparse: Tensor, dense: Tensor, extra: Any = ZERO, unread: tuple[str, ...] = ()) -> Cost:
    stored = sparse.unique
    n = dense.shape[1] if len(dense.shape) > 1 else ONE
    return contraction(call, conventions, (sparse, dense), macs=stored * n, dots=call.outputs[0].unique, vector=extra, unread=unread)


@rule("aten._sparse_mm", kind="contraction", counts="2*nnz*n")
def sparse_mm(call: Call, conventions: Conventions) -> Cost:
    """A sparse matrix [m, k] with nnz stored elements times a dense one [k, n]."""
    a, b = (call.args[n] for n in ("sparse", "dense"))
    if a.nnz is not None and b.nnz is not None:
        return sparse_sparse(call, conventions)
    return _sparse_product(call, conventions, a, b)


@rule("aten.smm", "aten.hspmm", kind="contraction", counts="2*nnz*n")
def smm(call: Call, conventions: Conventions) -> Cost:
    """A sparse matrix times a dense one, to a sparse result."""
    a, b = (call.args[n] for n in (("self", "mat2") if "self" in call.args else ("mat1", "mat2")))
    return _sparse_product(call, conventions, a, b)


@rule("aten.sspaddmm", kind="contraction", counts=f"2*nnz*n; {ADDED}")
def sspaddmm(call: Call, conventions: Conventions) -> Cost:
    """beta*self + alpha * mat1 @ mat2 with sparse self, mat1 and result."""
    a, b, beta = call.args["mat1"], call.args["mat2"], call.args["beta"]
    extra = scale_and_add(call.outputs[0].unique, call.args["alpha"], beta, a.is_complex)
    return _sparse_product(call, conventions, a, b, extra, ("self",) if beta == 0 else ())


@rule("aten.sparse_sampled_addmm", kind="contraction", counts=f"2*nnz*k for the nnz stored outputs; {ADDED}")
def sparse_sampled_addmm(call: Call, conventions: Conventions) -> Cost:
    """beta*self + alpha * (mat1 [m, k] @ mat2 [k, n]) at the places that self stores; these are read even where beta = 0."""
    a, b, out = call.args["mat1"], call.args["mat2"], call.args["self"]
    vector = scale_and_add(out.unique, call.args["alpha"], call.args["beta"], a.is_complex)
    return contraction(call, conventions, (a, b), macs=out.unique * a.shape[1], dots=out.unique, vector=vector)


@rule("aten._sparse_sparse_matmul", kind="contraction", counts="unknown: depends on where the stored elements are")
def sparse_sparse(call: Call, conventions: Conventions) -> Cost:
    """A product of two sparse matrices: only its bytes are known."""
    read, write = read_once(operands(call)), written(call.outputs)
    return Cost(read=read, write=write, status="unknown", note="the work depends on where the two matrices store elements")


SEMI = "m*k*n: two of four elements are zero and skipped (k before compression)"
SEMI_NOTE = "2:4 sparse: half the multiply-adds of the dense product"


@rule("aten._sparse_semi_structured_mm", kind="contraction", counts=SEMI)
def semi_mm(call: Call, conventions: Conventions) -> Cost:
    """mat1 [m, k/2] (two of each four elements) and its metadata times dense mat2 [k, n]."""
    a, b = call.args["mat1"], call.args["mat2"]
    m, half = a.shape
    return contraction(call, conventions, (a, b), macs=m * half * b.shape[1], dots=m * b.shape[1], note=SEMI_NOTE)


@rule("aten._sparse_semi_structured_addmm", kind="contraction", counts=f"{SEMI}; {ADDED}")
def semi_addmm(call: Call, conventions: Conventions) -> Cost:
    """beta*input + alpha * mat1 @ mat2 with 2:4 sparse mat1 [m, k/2]."""
    cost, beta = semi_mm(call, conventions), call.args["beta"]
    vector = scale_and_add(call.outputs[0].numel, call.args["alpha"], beta, False)
    return replace(cost, vector=vector, read=read_once(operands(call, *(("input",) if beta == 0 else ()))))


@rule("aten._sparse_semi_structured_linear", kind="contraction", counts=f"{SEMI}; the bias one add per output; SiLU one special function and a multiply")
def semi_linear(call: Call, conventions: Conventions) -> Cost:
    """input [..., k] times the transpose of the 2:4 sparse weight [n, k/2], then an optional ReLU or SiLU."""
    x, w, out = call.args["input"], call.args["weight"], call.outputs[0]
    silu = call.args["activation"] == "silu"
    vector = bias_add(call, call.args["bias"]) + (out.numel if silu else ZERO)
    macs = out.numel * w.shape[1]
    return contraction(call, conventions, (x, w), macs=macs, dots=out.numel, vector=vector, special=out.numel if silu else ZERO, note=SEMI_NOTE)


@rule("aten._cslt_sparse_mm", kind="contraction", counts=f"{SEMI}; bias and alpha one add and one multiply per output")
def cslt_sparse_mm(call: Call, conventions: Conventions) -> Cost:
    """A compressed 2:4 sparse matrix times dense_B [k, n]."""
    a, b, out = call.args["compressed_A"], call.args["dense_B"], call.outputs[0]
    vector = bias_add(call, call.args["bias"]) + (out.numel if isinstance(call.args["alpha"], Tensor) else ZERO)
    macs = out.numel * b.shape[0] * Rational(1, 2)
    return contraction(call, conventions, (a, b), macs=macs, dots=out.numel, vector=vector, note=SEMI_NOTE)


# Distances.


@rule("aten._euclidean_dist", kind="contraction", counts="2*m*n*(d + 2) (norms ride along as two more columns); 2*d vector per row for its norm, d to double x1, a square root per pair")
def euclidean_dist(call: Call, conventions: Conventions) -> Cost:
    """Distances of all rows of x1 [..., m, d] and x2 [..., n, d] by |x|^2 - 2xy + |y|^2, as torch computes it: one matrix product."""
    x, y, out = call.args["x1"], call.args["x2"], call.outputs[0]
    d = x.shape[-1]
    vector = 3 * x.numel + 2 * y.numel
    return contraction(call, conventions, (x, y), macs=out.numel * (d + 2), dots=out.numel, vector=vector, special=out.numel)


def _per_pair(p: Any, d: Expr) -> tuple[Expr, Expr]:
    """Vector and special FLOPs of one p-distance of vectors of length d; absolute values and comparisons are free."""
    if p == 2:
        return 3 * d, ONE
    if p in (0, 1):
        return 2 * d, ZERO
    if p == float("inf"):
        return d, ZERO
    return 2 * d, d + 1


@rule("aten._cdist_forward", "aten.cdist", "aten._pdist_forward", kind="contraction",
      counts="per pair of rows of length d: p = 2: 3*d vector and a square root; p = 1 or 0: 2*d; inf: d; else 2*d and d + 1 powers")  # fmt: skip
def cdist(call: Call, conventions: Conventions) -> Cost:
    """p-distances of all pairs of rows, one by one (no matrix product)."""
    x = next(tensors(tuple(call.args.values())))
    pairs = call.outputs[0].numel
    vector, special = _per_pair(call.args["p"], x.shape[-1])
    return contraction(call, conventions, (x,), macs=ZERO, dots=ZERO, vector=pairs * vector, special=pairs * special)


@rule("aten._cdist_backward", kind="contraction",
      counts="per pair of rows of length d: p = 2: 4*d vector; 1: 3*d; inf: 3*d; else 4*d and d + 1 powers")  # fmt: skip
def cdist_backward(call: Call, conventions: Conventions) -> Cost:
    """Gradient for x1: per pair and element the difference, its factor, the product with grad, and the sum."""
    x, p = call.args["x1"], call.args["p"]
    pairs, d = call.args["cdist"].numel, x.shape[-1]
    general = p not in (0, 1, 2) and p != float("inf")
    per = ZERO if p == 0 else (3 if p == 1 or p == float("inf") else 4) * d
    return contraction(
        call, conventions, (x, call.args["x2"]), macs=ZERO, dots=ZERO, vector=pairs * per, special=pairs * (d + 1) if general else ZERO
    )
