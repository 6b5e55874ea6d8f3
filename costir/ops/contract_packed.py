"""Matrix products of packed, scaled, grouped and sparse operands."""

from __future__ import annotations

from dataclasses import replace

from costir.ir import Call, Conventions, Cost, Tensor
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
    """self [m, k] times mat2 [k, n] in fp8 or fp4, times the scales; computed in the type of the matrices."""
    a, b, out = call.args["self"], call.args["mat2"], call.outputs[0]
    vector = 2 * out.numel + bias_add(call, call.args["bias"])
    return contraction(call, conventions, (a, b), macs=out.numel * a.shape[1], dots=out.numel, vector=vector)


GROUPED = "2*m*k*n: each row (or column, or element of k) meets one group only; the bias one add per output"
GROUPS = "the matrices of all groups are read"


def _own_rows(call: Call) -> Call:
    """The call with the rows of its own groups, where others stand behind them: neither read nor written.

    So it is on a device that has some experts of the `candidates` among which the rows are spread evenly.
    """
    candidates, a, out = call.args.get("candidates"), call.args["self"], call.outputs[0]
    if candidates is None:
        return call
    rows = a.shape[0] * call.args["mat2"].shape[0] / candidates
    args = {**call.args, "self": replace(a, shape=(rows, a.shape[1]))}
    return replace(call, args=args, outputs=(replace(out, shape=(rows, out.shape[1])),))


def _grouped(call: Call, conventions: Conventions, scales: int) -> Cost:
    call = _own_rows(call)
    a, b, out = call.args["self"], call.args["mat2"], call.outputs[0]
    macs = a.shape[-2] * a.shape[-1] * b.shape[-1]
    if len(a.shape) == len(b.shape) == 3:
        macs *= a.shape[0]
    vector = scales * out.numel + bias_add(call, call.args["bias"])
    return contraction(call, conventions, (a, b), macs=macs, dots=out.numel, vector=vector, note=GROUPS)


@rule("aten._grouped_mm", kind="contraction", counts=GROUPED)
def grouped_mm(call: Call, conventions: Conventions) -> Cost:
    """Rows in groups: [m, k] x [e, k, n]; columns: [e, m, k] x [k, n]; of k: [m, k] x [k, n] to [e, m, n]; or e products."""
    return _grouped(call, conventions, 0)


@rule("aten._scaled_grouped_mm", "aten._scaled_grouped_mm_v2", kind="contraction",
      counts=f"{GROUPED}; a vector multiply per output for each of the two scales")  # fmt: skip
def scaled_grouped_mm(call: Call, conventions: Conventions) -> Cost:
    """_grouped_mm in fp8 with scales."""
    return _grouped(call, conventions, 2)


EPILOGUE = "the bias one vector add per output; SiLU one special function and a multiply"

# Weights packed in 4 or 8 bits. The weight's bytes are those of its packed form; its sizes come from input and output.


@rule("aten._weight_int4pack_mm", "aten._weight_int4pack_mm_for_cpu", "aten._weight_int4pack_mm_with_scales_and_zeros",
      kind="contraction", counts="2*m*k*n; a multiply and an add per weight to scale it back")  # fmt: skip
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


@rule("aten._mixed_dtypes_linear", kind="contraction", counts=f"2*k per output, a multiply by the scale; {EPILOGUE}")
def mixed_dtypes_linear(call: Call, conventions: Conventions) -> Cost:
    """input [..., k] in half precision times an int8 or int4 weight, with a scale per column, then an optional ReLU or SiLU."""
    x, out = call.args["input"], call.outputs[0]
    silu = call.args["activation"] == "silu"
    vector = out.numel * (2 if silu else 1) + bias_add(call, call.args["bias"])
    special = out.numel if silu else ZERO
    return contraction(call, conventions, (x,), macs=out.numel * x.shape[-1], dots=out.numel, vector=vector, special=special)


@rule("aten._dyn_quant_matmul_4bit", kind="contraction", counts="2*m*k*n; a multiply and an add per weight to scale it back")
def dyn_quant_matmul_4bit(call: Call, conventions: Conventions) -> Cost:
    """inp [m, in_features] times a packed int4 weight [out_features, in_features]."""
    x, out = call.args["inp"], call.outputs[0]
    k, n = call.args["in_features"], call.args["out_features"]
    return contraction(call, conventions, (x,), macs=out.numel * k, dots=out.numel, vector=2 * n * k)


# Sparse operands: the work is that of the stored elements. Values and index arrays are read.


def _sparse_product(
    call: Call, conventions: Conventions, a: Tensor, b: Tensor, vector: Expr = ZERO, unread: tuple[str, ...] = ()
) -> Cost:
    macs, dots = a.unique * (b.shape[1] if len(b.shape) > 1 else ONE), call.outputs[0].unique
    return contraction(call, conventions, (a, b), macs=macs, dots=dots, vector=vector, unread=unread)


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


@rule("aten._sparse_semi_structured_linear", kind="contraction", counts=f"{SEMI}; {EPILOGUE}")
def semi_linear(call: Call, conventions: Conventions) -> Cost:
    """input [..., k] times the transpose of the 2:4 sparse weight [n, k/2], then an optional ReLU or SiLU."""
    x, w, out = call.args["input"], call.args["weight"], call.outputs[0]
    silu = call.args["activation"] == "silu"
    vector = bias_add(call, call.args["bias"]) + (out.numel if silu else ZERO)
    macs, special = out.numel * w.shape[1], out.numel if silu else ZERO
    return contraction(call, conventions, (x, w), macs=macs, dots=out.numel, vector=vector, special=special, note=SEMI_NOTE)


@rule("aten._cslt_sparse_mm", kind="contraction", counts=f"{SEMI}; bias and alpha one add and one multiply per output")
def cslt_sparse_mm(call: Call, conventions: Conventions) -> Cost:
    """A compressed 2:4 sparse matrix times dense_B [k, n]."""
    a, b, out = call.args["compressed_A"], call.args["dense_B"], call.outputs[0]
    vector = bias_add(call, call.args["bias"]) + (out.numel if isinstance(call.args["alpha"], Tensor) else ZERO)
    macs = out.numel * b.shape[0] * Rational(1, 2)
    return contraction(call, conventions, (a, b), macs=macs, dots=out.numel, vector=vector, note=SEMI_NOTE)
