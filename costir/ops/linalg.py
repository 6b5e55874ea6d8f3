"""Cost rules for Fourier transforms and factorisations of matrices.

Counts are the textbook's leading terms (Golub and Van Loan, Matrix Computations, 4th ed.; the FFT by the usual
5 n log2 n), for m x n matrices with m >= n, times the batch; complex matrices cost 4 times that. They are vector work: they
do not run as one product. Bytes: operands once, results once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import sympy as sp

from costir.ir import Call, Conventions, Cost, Tensor
from costir.ops.families import charge, family, register, targets, tensor, truth
from costir.symbolic import ONE, ZERO, Expr, Integer, Rational, product

# ---- Fourier -----------------------------------------------------------------------------------------------------------


def _log2(n: Expr) -> Expr:
    """log2(n), exact for powers of two."""
    return sp.log(n, 2)


def _extent(t: Tensor, dims: Iterable[Any]) -> Expr:
    """Points of one transform: the product of the transformed dimensions."""
    return product(t.shape[int(d) % len(t.shape)] for d in dims)


def _fft(call: Call) -> tuple[Expr, Expr]:
    x, out = tensor(call, "self"), targets(call)[0]
    longer = out if call.name == "_fft_c2r" else x
    points = _extent(longer, call.args["dim"])
    rate: Expr = Integer(5) if call.name == "_fft_c2c" else Rational(5, 2)
    scale = (2 if out.is_complex else 1) * out.numel if int(call.args["normalization"]) else ZERO
    return rate * longer.numel * _log2(points) + scale, ZERO


family(
    "_fft_c2c _fft_r2c _fft_c2r",
    "fft",
    "5 n log2 n per complex transform of n points, 2.5 n log2 n where one side is real; normalisation 1 multiply per real",
    _fft,
)

# ---- matrices ----------------------------------------------------------------------------------------------------------


def _shape(t: Tensor) -> tuple[Expr, Expr, Expr]:
    """Batch, larger and smaller side of a stack of matrices; where the order is not known, rows and columns as they are."""
    rows, columns = t.shape[-2], t.shape[-1]
    batch = product(t.shape[:-2])
    if rows.is_number and columns.is_number and rows < columns:
        rows, columns = columns, rows
    return batch, rows, columns


Square = Callable[[Expr, Expr, Call], Expr]


def _matrix(text: str, counts: str, name: str, work: Square, note: str = "") -> None:
    """Register an operator on the matrices of argument `name`: FLOPs `work(m, n, call)` per matrix."""

    def cost(call: Call, conventions: Conventions) -> Cost:
        a = tensor(call, name)
        batch, m, n = _shape(a)
        known = m == n or (m.is_number and n.is_number)
        notes = "; ".join(x for x in (note, "" if known else f"taken as {m} >= {n}") if x)
        return charge(call, vector=batch * work(m, n, call) * (4 if a.is_complex else 1), note=notes)

    register(text, "linear algebra", counts, cost)


def _lu(m: Expr, n: Expr) -> Expr:
    return m * n**2 - n**3 / 3


def _right_sides(call: Call, name: str) -> Expr:
    """How many right-hand sides one matrix gets: a vector is one."""
    a = tensor(call, "A" if "A" in call.args else "LU")
    b = tensor(call, name)
    if len(b.shape) < len(a.shape):
        return ONE
    return b.shape[-1] if truth(call.args.get("left", True)) else b.shape[-2]


_matrix("linalg_cholesky_ex cholesky linalg_cholesky", "n^3/3", "self", lambda m, n, c: n**3 / 3)
_matrix("cholesky_inverse", "2 n^3/3 per inverse from its factor", "self", lambda m, n, c: 2 * n**3 / 3)
_matrix("linalg_lu_factor_ex linalg_lu", "m n^2 - n^3/3 (2 n^3/3 for squares)", "A", lambda m, n, c: _lu(m, n))
_matrix("linalg_inv_ex linalg_inv", "2 n^3", "A", lambda m, n, c: 2 * n**3)
_matrix("inverse", "2 n^3", "self", lambda m, n, c: 2 * n**3)
_matrix("_linalg_det _linalg_slogdet", "2 n^3/3, n - 1 multiplies", "A", lambda m, n, c: _lu(n, n) + n - 1)
_matrix(
    "_linalg_solve_ex",
    "2 n^3/3, 2 n^2 for each of k right-hand sides",
    "A",
    lambda m, n, c: _lu(n, n) + 2 * n**2 * _right_sides(c, "B"),
)
_matrix("linalg_lu_solve", "2 n^2 per right-hand side", "LU", lambda m, n, c: 2 * n**2 * _right_sides(c, "B"))
_matrix("linalg_solve_triangular", "n^2 per right-hand side", "B", lambda m, n, c: _triangular(c, "B", "self"))
_matrix("triangular_solve", "n^2 per right-hand side", "self", lambda m, n, c: _triangular(c, "self", "A"))
_matrix("cholesky_solve", "2 n^2 per right-hand side", "self", lambda m, n, c: 2 * _triangular(c, "self", "input2"))


def _triangular(call: Call, right: str, factor: str) -> Expr:
    """n^2 per right-hand side: the matrix `right` has n k elements, the triangular factor n x n."""
    b = tensor(call, right)
    return b.shape[-2] * b.shape[-1] * tensor(call, factor).shape[-1]


def _svd(m: Expr, n: Expr, call: Call) -> Expr:
    return 4 * m**2 * n + 8 * m * n**2 + 9 * n**3 if truth(call.args.get("compute_uv", True)) else 4 * m * n**2 - 4 * n**3 / 3


_matrix("_linalg_svd", "4 m^2 n + 8 m n^2 + 9 n^3; values only 4 m n^2 - 4 n^3/3", "A", _svd)
_matrix(
    "_linalg_eigh",
    "9 n^3; values only 4 n^3/3",
    "A",
    lambda m, n, c: 9 * n**3 if truth(c.args.get("compute_v", True)) else 4 * n**3 / 3,
)
_matrix("linalg_eig", "25 n^3", "self", lambda m, n, c: 25 * n**3)
_matrix("linalg_eigvals _linalg_eigvals", "10 n^3", "self", lambda m, n, c: 10 * n**3)


def _qr(m: Expr, n: Expr, call: Call) -> Expr:
    triangle = 2 * m * n**2 - 2 * n**3 / 3
    mode = call.args.get("mode", "reduced")
    if mode == "r":
        return triangle
    return 2 * triangle if mode == "reduced" else triangle + 4 * m**2 * n - 4 * m * n**2 + 4 * n**3 / 3


_matrix("linalg_qr", "R: 2 m n^2 - 2 n^3/3; Q the same again", "A", _qr)
_matrix("geqrf", "2 m n^2 - 2 n^3/3", "self", lambda m, n, c: 2 * m * n**2 - 2 * n**3 / 3)
_matrix("linalg_householder_product", "2 m n^2 - 2 n^3/3", "input", lambda m, n, c: 2 * m * n**2 - 2 * n**3 / 3)
_matrix("linalg_ldl_factor_ex", "n^3/3", "self", lambda m, n, c: n**3 / 3)
_matrix("linalg_ldl_solve", "2 n^2 per right-hand side", "B", lambda m, n, c: 2 * _triangular(c, "B", "LD"))
_matrix(
    "linalg_lstsq",
    "by QR: 2 m n^2 - 2 n^3/3, 4 m n per right-hand side",
    "self",
    lambda m, n, c: 2 * m * n**2 - 2 * n**3 / 3 + 4 * m * n * (c.args["b"].shape[-1] if len(c.args["b"].shape) > 1 else ONE),
)
_matrix("linalg_pinv", "by SVD: 4 m^2 n + 8 m n^2 + 9 n^3, 2 m n^2", "self", lambda m, n, c: _svd(m, n, c) + 2 * m * n**2)
_matrix(
    "linalg_matrix_exp",
    "Taylor polynomial of degree 18: 5 products, 10 n^3; squarings depend on data and are not counted",
    "self",
    lambda m, n, c: 10 * n**3,
    note="squarings depend on data and are not counted",
)
_matrix(
    "ormqr",
    "4 m n per reflector",
    "self",
    lambda m, n, c: 4 * c.args["input3"].shape[-2] * c.args["input3"].shape[-1] * c.args["input2"].shape[-1],
)
family(
    "linalg_cross",
    "linear algebra",
    "per vector of 3: 6 multiplies, 3 subtracts: 3 per output; complex 14",
    lambda c: ((14 if targets(c)[0].is_complex else 3) * targets(c)[0].numel, ZERO),
)
