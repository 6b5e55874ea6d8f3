"""Matrix products: every operator that multiplies and sums over a shared index.

A multiply-add is 2 FLOPs, so a product of [m, k] and [k, n] is 2*m*k*n; counted exactly it is (2k-1)*m*n. A complex
multiply-add is four real ones. Adding a bias is one vector FLOP per output element and no part of the contraction, as in
torch's `torch.utils.flop_counter` (which leaves it out). `beta = 0` means that the added term is neither read nor added.
Operators on packed, scaled, grouped and sparse matrices are in `contract_packed`, einsum is in `einsum`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from costir.ir import Call, Conventions, Cost, Tensor, tensors
from costir.ops.families import is_one
from costir.ops.registry import ONE, ZERO, compute_dtype, dot_flops, product, read_once, rule, total, written
from costir.symbolic import Expr

STANDARD = Conventions()


# Helpers shared by the modules of contractions.


def operands(call: Call, *unread: str) -> tuple[Tensor, ...]:
    """The tensors that the call reads: all arguments but `out=` buffers and those named in `unread`."""
    overload = call.op.rsplit(".", 1)[-1]
    buffers = overload.endswith(("out", "output"))
    return tuple(tensors(tuple(v for k, v in call.args.items() if k not in unread and not (buffers and k.startswith("out")))))


def mac_flops(macs: Expr, dots: Expr, conventions: Conventions, complex_: bool = False) -> Expr:
    """FLOPs of `macs` multiply-adds that end in `dots` sums: 2*macs; exactly, the first addition of each sum is free."""
    full = dot_flops(macs, ONE, STANDARD, complex_)
    if conventions.count != "exact":
        return full
    return full - dots * (2 if complex_ else 1)


def contraction(
    call: Call,
    conventions: Conventions,
    factors: Sequence[Tensor],
    *,
    macs: Expr,
    dots: Expr,
    vector: Expr = ZERO,
    special: Expr = ZERO,
    unread: Iterable[str] = (),
    note: str = "",
) -> Cost:
    """The cost of a call whose main work is `macs` multiply-adds of `factors`.

    The factors alone decide the type that the product is computed in: scales, biases and saved statistics do not.
    `unread` names arguments that the kernel does not touch.
    """
    matmul = mac_flops(macs, dots, conventions, any(t.is_complex for t in factors))
    read = read_once(operands(call, *unread))
    return Cost(matmul, vector, special, read, written(call.outputs), math_type(call, factors), note=note)


def math_type(call: Call, factors: Sequence[Tensor]) -> str:
    """The type in which the product of `factors` is computed."""
    return compute_dtype(replace(call, args={str(i): t for i, t in enumerate(factors)}))


def sparse_macs(a: Tensor, b: Tensor, outputs: Expr, length: Expr) -> Expr:
    """Multiply-adds of a matrix product: outputs*length, or per stored element of the sparse operand one per row or column."""
    if a.nnz is not None:
        return a.nnz * (b.shape[-1] if len(b.shape) > 1 else ONE)
    if b.nnz is not None:
        return b.nnz * (a.shape[-2] if len(a.shape) > 1 else ONE)
    return outputs * length


def scale_and_add(outputs: Expr, alpha: Any, beta: Any, complex_: bool) -> Expr:
    """Vector FLOPs of `beta*added + alpha*product`: an add unless beta = 0, a multiply for each factor but 0, 1 and -1."""
    add = ZERO if beta == 0 else outputs * (2 if complex_ else 1)
    factors = [f for f in (alpha, beta) if f != 0 and not is_one(f)]
    return total([add, *(outputs * ((6 if isinstance(f, complex) else 2) if complex_ else 1) for f in factors)])


def bias_add(call: Call, bias: Any) -> Expr:
    """One add per output element where there is a bias."""
    out = call.outputs[0]
    return out.numel * (2 if out.is_complex else 1) if isinstance(bias, Tensor) else ZERO


def _product(call: Call, conventions: Conventions, a: Tensor, b: Tensor, length: Expr) -> Cost:
    """A plain product whose outputs are dot products of `length`."""
    out = call.outputs[0]
    return contraction(call, conventions, (a, b), macs=sparse_macs(a, b, out.numel, length), dots=out.numel)


def _added(call: Call, conventions: Conventions, a: Tensor, b: Tensor, length: Expr) -> Cost:
    """beta*self + alpha*(a @ b) with dot products of `length`."""
    out = call.outputs[0]
    alpha, beta = call.args["alpha"], call.args["beta"]
    macs = sparse_macs(a, b, out.numel, length)
    vector = scale_and_add(out.numel, alpha, beta, out.is_complex)
    unread = ("self",) if beta == 0 else ()
    return contraction(call, conventions, (a, b), macs=macs, dots=out.numel, vector=vector, unread=unread)


ADDED = "one add per output (none, and no read of the added term, where beta = 0), a multiply per output for each other factor"


# Products of two operands.


@rule("aten.mm", "aten.bmm", kind="contraction", counts="2*m*k*n per matrix; 2*nnz*n where one is sparse; complex 8*m*k*n")
def mm(call: Call, conventions: Conventions) -> Cost:
    """self [..., m, k] times mat2 [..., k, n]: k multiply-adds per output."""
    a, b = call.args["self"], call.args["mat2"]
    return _product(call, conventions, a, b, a.shape[-1])


@rule("aten._foreach_mm", kind="contraction", counts="2*m*k*n for each pair of matrices")
def foreach_mm(call: Call, conventions: Conventions) -> Cost:
    """A list of matrix products."""
    pairs = tuple(zip(call.args["self"], call.args["mat2"], strict=True))
    macs = total(a.shape[0] * a.shape[1] * b.shape[1] for a, b in pairs)
    return contraction(call, conventions, pairs[0], macs=macs, dots=total(t.numel for t in call.outputs))


@rule("aten.mv", kind="contraction", counts="2*m*k; 2*nnz where the matrix is sparse")
def mv(call: Call, conventions: Conventions) -> Cost:
    """self [m, k] times vec [k]."""
    a, b = call.args["self"], call.args["vec"]
    return _product(call, conventions, a, b, a.shape[-1])


@rule("aten.dot", "aten.vdot", kind="contraction", counts="2*k; exactly 2*k - 1")
def dot(call: Call, conventions: Conventions) -> Cost:
    """The dot product of two vectors; conjugation is free."""
    a, b = (call.args[n] for n in ("self", "tensor" if "tensor" in call.args else "other"))
    return _product(call, conventions, a, b, a.shape[0])


@rule("aten.linalg_vecdot", kind="contraction", counts="2 per element of the broadcast operands")
def vecdot(call: Call, conventions: Conventions) -> Cost:
    """Dot products along `dim` of two broadcastable tensors."""
    x, y, out = call.args["x"], call.args["y"], call.outputs[0]
    dim = int(call.args["dim"])
    # `dim` counts in the broadcast shape, which has one dimension more than the result.
    from_end = dim - len(out.shape) - 1 if dim >= 0 else dim
    lengths = [t.shape[from_end] for t in (x, y) if len(t.shape) >= -from_end]
    macs = out.numel * next((n for n in lengths if n != 1), ONE)
    return contraction(call, conventions, (x, y), macs=macs, dots=out.numel)


@rule("aten.inner", kind="contraction", counts="2*k per output, k the last dimension")
def inner(call: Call, conventions: Conventions) -> Cost:
    """Dot products of all rows of `self` with all rows of `other`."""
    a, b = call.args["self"], call.args["other"]
    return _product(call, conventions, a, b, a.shape[-1] if a.shape else ONE)


@rule("aten.outer", "aten.ger", kind="contraction", counts="one vector multiply per output: nothing is summed")
def outer(call: Call, conventions: Conventions) -> Cost:
    """self [m] and vec2 [n] to [m, n]."""
    out = call.outputs[0]
    vector = out.numel * (6 if out.is_complex else 1)
    return contraction(call, STANDARD, operands(call), macs=ZERO, dots=ZERO, vector=vector)


@rule("aten.matmul", "aten.linalg_matmul", kind="contraction", counts="2*k per output, k the last dimension of `self`")
def matmul(call: Call, conventions: Conventions) -> Cost:
    """Vectors, matrices and batches of them, broadcast: each output is a dot product over the last dimension of `self`."""
    a, b = call.args["self"], call.args["other"]
    return _product(call, conventions, a, b, a.shape[-1])


@rule("aten.tensordot", kind="contraction", counts="2 per output and combination of the contracted dimensions")
def tensordot(call: Call, conventions: Conventions) -> Cost:
    """Contracts `dims_self` of self with `dims_other` of other."""
    a, b = call.args["self"], call.args["other"]
    return _product(call, conventions, a, b, product(a.shape[int(d)] for d in call.args["dims_self"]))


@rule("aten.linear", "aten.mkldnn_linear", kind="contraction", counts="2*k per output; the bias is one vector add per output")
def linear(call: Call, conventions: Conventions) -> Cost:
    """input [..., k] times the transpose of weight [n, k], plus bias [n]."""
    x = call.args["input"] if "input" in call.args else call.args["self"]
    w, out = call.args["weight"], call.outputs[0]
    macs = sparse_macs(x, w, out.numel, x.shape[-1]) if w.nnz is None else w.nnz * product(x.shape[:-1])
    return contraction(call, conventions, (x, w), macs=macs, dots=out.numel, vector=bias_add(call, call.args["bias"]))


# Products with an added term.


@rule("aten.addmm", "aten.addmm_", "aten._sparse_addmm", kind="contraction",
      counts=f"2*m*k*n, 2*nnz*n where one is sparse; {ADDED}")  # fmt: skip
def addmm(call: Call, conventions: Conventions) -> Cost:
    """beta*self + alpha * mat1 [m, k] @ mat2 [k, n]."""
    a, b = call.args["mat1"], call.args["mat2"]
    return _added(call, conventions, a, b, a.shape[-1])


@rule("aten._addmm_activation", kind="contraction", counts=f"2*m*k*n; {ADDED}; GELU 4 and one erf per output, ReLU 0")
def addmm_activation(call: Call, conventions: Conventions) -> Cost:
    """addmm followed by ReLU (a comparison, 0) or GELU, 0.5*x*(1 + erf(x/sqrt 2))."""
    cost = addmm(call, conventions)
    if not call.args["use_gelu"]:
        return cost
    outputs = call.outputs[0].numel
    return replace(cost, vector=cost.vector + 4 * outputs, special=outputs)


@rule("aten.baddbmm", "aten.baddbmm_", kind="contraction", counts=f"2*b*m*k*n; {ADDED}")
def baddbmm(call: Call, conventions: Conventions) -> Cost:
    """beta*self + alpha * batch1 [b, m, k] @ batch2 [b, k, n]."""
    a, b = call.args["batch1"], call.args["batch2"]
    return _added(call, conventions, a, b, a.shape[-1])


@rule("aten.addbmm", "aten.addbmm_", kind="contraction", counts=f"2*b*m*k*n: the batch is summed; {ADDED}")
def addbmm(call: Call, conventions: Conventions) -> Cost:
    """beta*self + alpha * the sum over b of batch1 [b, m, k] @ batch2 [b, k, n]: dot products of length b*k."""
    a, b = call.args["batch1"], call.args["batch2"]
    return _added(call, conventions, a, b, a.shape[0] * a.shape[2])


@rule("aten.addmv", "aten.addmv_", kind="contraction", counts=f"2*m*k; {ADDED}")
def addmv(call: Call, conventions: Conventions) -> Cost:
    """beta*self + alpha * mat [m, k] @ vec [k]."""
    a, b = call.args["mat"], call.args["vec"]
    return _added(call, conventions, a, b, a.shape[-1])


@rule("aten.addr", "aten.addr_", kind="contraction", counts=f"one vector multiply per output (nothing is summed); {ADDED}")
def addr(call: Call, conventions: Conventions) -> Cost:
    """beta*self + alpha * the outer product of vec1 [m] and vec2 [n]."""
    out, beta = call.outputs[0], call.args["beta"]
    vector = out.numel * (6 if out.is_complex else 1) + scale_and_add(out.numel, call.args["alpha"], beta, out.is_complex)
    factors = (call.args["vec1"], call.args["vec2"])
    return contraction(call, STANDARD, factors, macs=ZERO, dots=ZERO, vector=vector, unread=("self",) if beta == 0 else ())


# Backward of fused linear layers: each gradient is a product as large as the forward one.


def _linear_grads(call: Call, conventions: Conventions, x: Tensor, mask: Sequence[bool]) -> Cost:
    grad, w = call.args["grad_output"], call.args["weight"]
    grads = [t.numel for t, wanted in zip((x, w), mask, strict=False) if wanted]
    bias = grad.numel - w.shape[0] if mask[2] else ZERO
    unread = [n for n, wanted in (("weight", mask[0]), ("self", mask[1]), ("input", mask[1])) if not wanted]
    macs = len(grads) * grad.numel * w.shape[1]
    return contraction(call, conventions, (grad, w), macs=macs, dots=total(grads), vector=bias, unread=unread)


@rule("aten.linear_backward", "aten.mkldnn_linear_backward", kind="contraction",
      counts="2*m*k*n for each gradient of input and weight that is asked for; bias: m - 1 adds per column")  # fmt: skip
def linear_backward(call: Call, conventions: Conventions) -> Cost:
    """Gradients of `linear` for self [..., k], weight [n, k] and grad_output [..., n], as `output_mask` asks."""
    return _linear_grads(call, conventions, call.args["self"], call.args["output_mask"])


@rule("aten.mkldnn_linear_backward_weights", kind="contraction", counts="2*m*k*n; bias: m - 1 adds per column")
def linear_backward_weights(call: Call, conventions: Conventions) -> Cost:
    """Gradients of weight and bias alone."""
    return _linear_grads(call, conventions, call.args["input"], (False, True, bool(call.args["bias_defined"])))


@rule("aten.mkldnn_linear_backward_input", kind="contraction", counts="2*m*k*n")
def linear_backward_input(call: Call, conventions: Conventions) -> Cost:
    """Gradient of the input alone."""
    return _linear_grads(call, conventions, call.outputs[0], (True, False, False))


@rule("aten.matmul_backward", kind="contraction", counts="2*m*k*n for each gradient that is asked for")
def matmul_backward(call: Call, conventions: Conventions) -> Cost:
    """Gradients of `matmul` for self [..., m, k] and other [..., k, n], as `mask` asks."""
    grad, a, b = call.args["grad"], call.args["self"], call.args["other"]
    mask = call.args["mask"]
    dots = total(t.numel for t, wanted in zip((a, b), mask, strict=True) if wanted)
    unread = [n for n, wanted in (("other", mask[0]), ("self", mask[1])) if not wanted]
    macs = sum(map(bool, mask)) * grad.numel * a.shape[-1]
    return contraction(call, conventions, (grad, a, b), macs=macs, dots=dots, unread=unread)


# Chains.


@rule("aten.linalg_multi_dot", "aten.chain_matmul", kind="contraction",
      counts="the cheapest order of products where all sizes are numbers; left to right where some are symbols")  # fmt: skip
def multi_dot(call: Call, conventions: Conventions) -> Cost:
    """A chain of matrices (the first and the last may be vectors). Products between are written and read once."""
    chain = call.args["tensors"] if "tensors" in call.args else call.args["matrices"]
    first, last = chain[0].shape, chain[-1].shape
    sizes = [first[0] if len(first) == 2 else ONE, *(t.shape[0] for t in chain[1:]), last[1] if len(last) == 2 else ONE]
    known = all(s.is_number for s in sizes)
    steps = _cheapest(sizes) if known else [(sizes[0], s, sizes[i + 2]) for i, s in enumerate(sizes[1:-1])]
    macs = total(m * k * n for m, k, n in steps)
    outputs = [m * n for m, _, n in steps]
    between = total(outputs[:-1]) * chain[0].itemsize
    note = "" if known or len(chain) < 3 else "products taken from left to right"
    cost = contraction(call, conventions, chain, macs=macs, dots=total(outputs), note=note)
    return replace(cost, read=cost.read + between, write=cost.write + between)


def _cheapest(sizes: Sequence[Expr]) -> list[tuple[Expr, Expr, Expr]]:
    """The (m, k, n) of the products of matrices sizes[i] x sizes[i+1] in the order with the fewest multiply-adds."""
    count = len(sizes) - 1
    best: dict[tuple[int, int], tuple[Expr, list[tuple[Expr, Expr, Expr]]]] = {(i, i + 1): (ZERO, []) for i in range(count)}
    for span in range(2, count + 1):
        for i in range(count - span + 1):
            j = i + span
            options = []
            for k in range(i + 1, j):
                (left, before), (right, after) = best[i, k], best[k, j]
                last = (sizes[i], sizes[k], sizes[j])
                options.append((left + right + product(last), [*before, *after, last]))
            best[i, j] = min(options, key=lambda option: option[0])
    return best[0, count][1]
