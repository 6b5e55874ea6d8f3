# ruff: noqa: E501 - tables of samples, one a line
"""Fourier transforms and factorisations: plain loops on counting numbers, published counts."""

import formulas_spatial as f
import numpy as np
import pytest
import torch
from oracles_pointwise import Num, nums, read_bytes, run, tally, write_bytes

from costir.ir import Call, Conventions, Tensor
from costir.ops.registry import find
from costir.ops.table import load_rules
from costir.symbolic import equal, evaluate, size

load_rules()
t = torch.randn


def cost_of(call):
    return find(call.op).rule(call, Conventions())


@pytest.mark.parametrize("n", [4, 16])
def test_fft_is_radix_two(n):
    x = t(3, n, dtype=torch.complex64)
    call, out, bound = run("_fft_c2c", x, [1], 0, True)
    tally()
    rows = [f.radix2([(Num(z.real), Num(z.imag)) for z in row]) for row in x.tolist()]
    assert (cost_of(call).vector, 0) == tally()
    want = np.array([[complex(a.v, b.v) for a, b in row] for row in rows])
    assert np.allclose(out.numpy(), want, atol=1e-3)
    assert (cost_of(call).read, cost_of(call).write) == (read_bytes(bound), write_bytes(out))
    real, _, _ = run("_fft_r2c", x.real.clone(), [1], 0, True)
    back, _, _ = run("_fft_c2r", torch.fft.rfft(x.real), [1], 0, n)
    assert 2 * cost_of(real).vector == 2 * cost_of(back).vector == cost_of(call).vector
    scaled, _, _ = run("_fft_c2c", x, [1], 2, True)
    assert cost_of(scaled).vector == cost_of(call).vector + 2 * 3 * n


def _spd(n):
    a = t(n, n)
    return a @ a.T + n * torch.eye(n)


FACTORISATIONS = [
    ("linalg_cholesky_ex", lambda n: (_spd(n),), lambda a: f.cholesky(nums(a))),
    ("linalg_lu_factor_ex", lambda n: (_spd(n),), lambda a: f.lu(nums(a))),
    ("linalg_lu", lambda n: (_spd(n),), lambda a: f.lu(nums(a))),
    ("_linalg_det", lambda n: (_spd(n),), lambda a: f.lu(nums(a))),
    ("_linalg_slogdet", lambda n: (_spd(n),), lambda a: f.lu(nums(a))),
    ("linalg_inv_ex", lambda n: (_spd(n),), lambda a: f.gauss_jordan(nums(a))),
    ("linalg_solve_triangular", lambda n: (_spd(n).tril(), t(n, 4)), lambda a, b: f.forward_substitution(nums(a), nums(b))),
    ("triangular_solve", lambda n: (t(n, 4), _spd(n).tril(), False), lambda b, a, *_: f.forward_substitution(nums(a), nums(b))),
    ("_linalg_solve_ex", lambda n: (_spd(n), t(n, 4)), lambda a, b: f.solve(nums(a), nums(b))),
    ("linalg_qr", lambda n: (t(2 * n, n), "r"), lambda a, _: f.householder(nums(a))),
    ("geqrf", lambda n: (t(2 * n, n),), lambda a: f.householder(nums(a))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "build", "loops"), FACTORISATIONS, ids=[r[0] for r in FACTORISATIONS])
def test_leading_terms(name, build, loops):
    gaps = []
    for n in (8, 24):
        args = build(n)
        kwargs = {"upper": False} if name == "linalg_solve_triangular" else {}
        call, out, bound = run(name, *args, **kwargs)
        tally()
        loops(*args)
        gaps.append(abs(sum(tally()) / float(cost_of(call).flops) - 1))
        assert (cost_of(call).read, cost_of(call).write) == (read_bytes(bound), write_bytes(out))
    assert gaps[1] < max(0.75 * gaps[0], 1e-9)
    assert gaps[1] < 0.25


LU = torch.linalg.lu_factor(_spd(4))
PUBLISHED = [  # Golub and Van Loan, tables of operation counts, at m = 6, n = 4
    ("_linalg_svd", (t(6, 4),), 4 * 36 * 4 + 8 * 6 * 16 + 9 * 64), ("_linalg_svd", (t(4, 6), False, False), 4 * 6 * 16 - 4 * 64 / 3),
    ("_linalg_eigh", (_spd(4),), 9 * 64), ("_linalg_eigh", (_spd(4), "L", False), 4 * 64 / 3), ("linalg_eig", (t(4, 4),), 25 * 64),
    ("linalg_eigvals", (t(4, 4),), 10 * 64), ("_linalg_eigvals", (t(4, 4),), 10 * 64), ("linalg_pinv", (t(6, 4), 1e-15), 1920 + 2 * 6 * 16),
    ("linalg_qr", (t(6, 4),), 4 * 6 * 16 - 4 * 64 / 3), ("linalg_matrix_exp", (t(4, 4),), 640), ("linalg_ldl_factor_ex", (_spd(4),), 64 / 3),
    ("linalg_ldl_solve", (*torch.linalg.ldl_factor(_spd(4)), t(4, 3)), 2 * 16 * 3), ("linalg_lu_solve", (*LU, t(4, 3)), 2 * 16 * 3),
    ("cholesky_solve", (t(4, 3), _spd(4)), 2 * 16 * 3), ("cholesky_inverse", (_spd(4),), 2 * 64 / 3), ("linalg_lstsq", (t(6, 4), t(6, 3)),
     2 * 6 * 16 - 2 * 64 / 3 + 4 * 6 * 4 * 3), ("linalg_householder_product", (t(6, 4), t(4)), 2 * 6 * 16 - 2 * 64 / 3),
    ("ormqr", (t(6, 4), t(4), t(6, 5)), 4 * 6 * 5 * 4), ("linalg_cross", (t(5, 3), t(5, 3)), 9 * 5), ("cholesky", (_spd(4),), 64 / 3),
    ("linalg_cholesky", (_spd(4),), 64 / 3), ("linalg_inv", (_spd(4),), 128), ("inverse", (_spd(4),), 128),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "flops"), PUBLISHED, ids=[r[0] for r in PUBLISHED])
def test_published_counts(name, args, flops):
    call, _, _ = run(name, *args)
    assert float(cost_of(call).flops) == pytest.approx(flops)


def test_complex_matrices_cost_four_times():
    real, _, _ = run("linalg_inv_ex", _spd(4))
    both, _, _ = run("linalg_inv_ex", _spd(4).to(torch.complex64))
    assert cost_of(both).vector == 4 * cost_of(real).vector


def test_symbolic_sides_are_named_in_the_note():
    M, N = size("M"), size("N")
    call = Call("aten.linalg_qr.default", {"A": Tensor((M, N)), "mode": "r"}, (Tensor((M, N)), Tensor((N, N))))
    assert cost_of(call).note == "taken as M >= N"
    assert equal(evaluate(cost_of(call).vector, {M: 6, N: 3}), cost_of(run("linalg_qr", t(6, 3), "r")[0]).vector)
