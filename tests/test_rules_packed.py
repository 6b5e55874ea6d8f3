"""Products of packed, scaled, grouped and sparse operands against loops over numbers that count, and real tensors."""

from __future__ import annotations

import pytest
import torch
from oracles import Case, RealBytes, T, arr, cost_of, dot, flat, made, matmul, verify, verify_symbols, without_sample
from test_rules_contract import MKN, bias, linear2, mm2, scaled

from costir.symbolic import size
from costir.trace import record_calls

BF, F8 = "bfloat16", "float8_e4m3fn"


def scales(t, M, K, N):
    """A product, times the scale of its row and that of its column, plus a bias."""
    out = [[y * 2 * 3 for y in row] for row in mm2(t, M, K, N)]
    bias(t, out, N)


def grouped_rows(t, G, M, K, N, scaled_by=0):
    """G groups of M rows, each with its own matrix."""
    for _ in range(G):
        for y in flat(mm2(t, M, K, N)):
            for _ in range(scaled_by):
                y = y * 2


def dequantized(t, M, K, N):
    w = [[q * 2 + 3 for q in row] for row in arr(t, K, N)]
    matmul(t, arr(t, M, K), w)


def per_column(t, M, K, N, silu=False):
    for y in flat(mm2(t, M, K, N)):
        y = y * 2
        if silu:
            _ = y * y.f()


def kept(t, M, K, N, places=None):
    """Rows of a sparse matrix with `places(m)` stored elements, times a dense one."""
    b = arr(t, K, N)
    return [[dot(t, arr(t, len(ks)), [b[k][n] for k in ks]) for n in range(N)] for ks in (places(m, K) for m in range(M))]


def two_of_four(t, M, K, N):
    """K is the number of kept elements, half the dense width."""
    return kept(t, M, 2 * K, N, lambda m, k: range(0, k, 2))


def sparse(M, K, per_row=1):
    return T(M, K, nnz=M * per_row, index_bytes=8 * M * per_row + 8 * (M + 1))


def one_each(t, M, K, N):
    return kept(t, M, K, N, lambda m, k: [m % k])


def sampled(t, M, K, N, P, alpha=1, beta=1):
    """P outputs of an [M, N] product."""
    scaled(t, [dot(t, arr(t, K), arr(t, K)) for _ in range(P)], arr(t, P), alpha, beta)


def packed(op, dtype="uint8", **names):
    def build(M, K, N):
        weight = T(N, K / 2, dtype="uint8") if dtype == "uint8" else T(N / 8, K / 64, 32, 4, dtype="int32")
        more = {n: T(*(N if s == "N" else 2 for s in shape), dtype=BF) for n, shape in names.items()}
        return made(op, T(M, N, dtype=BF), self=T(M, K, dtype=BF), mat2=weight, qGroupSize=32, **more)

    return build


QUANT = ({"M": 2, "K": 64, "N": 8}, {"M": 3, "K": 128, "N": 16})
GROUPED = ({"G": 2, "M": 3, "K": 4, "N": 5}, {"G": 3, "M": 1, "K": 2, "N": 6})


def grouped(op, layout, **more):
    def build(G, M, K, N):
        a, b, out = {
            "rows": ((G * M, K), (G, K, N), (G * M, N)),
            "columns": ((G, M, K), (K, G * N), (M, G * N)),
            "inner": ((M, G * K), (G * K, N), (G, M, N)),
            "batch": ((G, M, K), (G, K, N), (G, M, N)),
        }[layout]
        dtype = F8 if "scaled" in op else BF
        offs = {} if layout == "batch" else {"offs": T(G, dtype="int32")}
        return made(
            op,
            T(*out, dtype=BF),
            self=T(*a, dtype=dtype),
            mat2=T(*b, dtype=dtype),
            **offs,
            **{k: v(G) for k, v in more.items()},
        )

    return build


CASES = [
    Case(
        "aten._int_mm",
        lambda M, K, N: made("aten._int_mm", T(M, N, dtype="int32"), self=T(M, K, dtype="int8"), mat2=T(K, N, dtype="int8")),
        mm2,
        MKN,
    ),
    Case(
        "aten._scaled_mm",
        lambda M, K, N: made(
            "aten._scaled_mm",
            T(M, N, dtype=BF),
            self=T(M, K, dtype=F8),
            mat2=T(K, N, dtype=F8),
            scale_a=T(M, 1),
            scale_b=T(1, N),
            bias=T(N, dtype=BF),
        ),
        scales,
        MKN,
    ),
    Case(
        "aten._scaled_mm_v2",
        lambda M, K, N: made(
            "aten._scaled_mm_v2",
            T(M, N, dtype=BF),
            self=T(M, K, dtype=F8),
            mat2=T(K, N, dtype=F8),
            scale_a=(T(M, 1),),
            recipe_a=(1,),
            swizzle_a=(0,),
            scale_b=(T(1, N),),
            recipe_b=(1,),
            swizzle_b=(0,),
            bias=T(N, dtype=BF),
        ),
        scales,
        MKN,
    ),
    *(
        Case("aten._grouped_mm", grouped("aten._grouped_mm", layout), grouped_rows, GROUPED)
        for layout in ("rows", "columns", "inner", "batch")
    ),
    Case(
        "aten._scaled_grouped_mm",
        grouped("aten._scaled_grouped_mm", "rows", scale_a=lambda G: T(G), scale_b=lambda G: T(G)),
        lambda t, **s: grouped_rows(t, **s, scaled_by=2),
        GROUPED,
    ),
    Case(
        "aten._scaled_grouped_mm_v2",
        grouped(
            "aten._scaled_grouped_mm_v2",
            "rows",
            scale_a=lambda G: (T(G),),
            recipe_a=lambda G: (1,),
            swizzle_a=lambda G: (0,),
            scale_b=lambda G: (T(G),),
            recipe_b=lambda G: (1,),
            swizzle_b=lambda G: (0,),
        ),
        lambda t, **s: grouped_rows(t, **s, scaled_by=2),
        GROUPED,
    ),
    Case("aten._weight_int4pack_mm", packed("aten._weight_int4pack_mm", "int32", qScaleAndZeros="2N2"), dequantized, QUANT),
    Case(
        "aten._weight_int4pack_mm_for_cpu", packed("aten._weight_int4pack_mm_for_cpu", qScaleAndZeros="2N2"), dequantized, QUANT
    ),
    Case(
        "aten._weight_int4pack_mm_with_scales_and_zeros",
        packed("aten._weight_int4pack_mm_with_scales_and_zeros", qScale="2N", qZeros="2N"),
        dequantized,
        QUANT,
    ),
    Case(
        "aten._weight_int8pack_mm",
        lambda M, K, N: made(
            "aten._weight_int8pack_mm",
            T(M, N, dtype=BF),
            self=T(M, K, dtype=BF),
            mat2=T(N, K, dtype="int8"),
            scales=T(N, dtype=BF),
        ),
        per_column,
        QUANT,
    ),
    *(
        Case(
            "aten._mixed_dtypes_linear",
            lambda M, K, N, silu=silu: made(
                "aten._mixed_dtypes_linear",
                T(M, N, dtype=BF),
                input=T(M, K, dtype=BF),
                weight=T(K, N, dtype="int8"),
                scale=T(N, dtype=BF),
                activation="silu" if silu else "relu",
            ),
            lambda t, silu=silu, **s: per_column(t, **s, silu=silu),
            QUANT,
        )
        for silu in (True, False)
    ),
    Case(
        "aten._dyn_quant_matmul_4bit",
        lambda M, K, N: made(
            "aten._dyn_quant_matmul_4bit",
            T(M, N),
            inp=T(M, K),
            packed_weights=T(N * K / 2, dtype="uint8"),
            block_size=32,
            in_features=K,
            out_features=N,
        ),
        dequantized,
        QUANT,
    ),
    Case(
        "aten._sparse_mm", lambda M, K, N: made("aten._sparse_mm", T(M, N), sparse=sparse(M, K), dense=T(K, N)), one_each, MKN
    ),
    Case("aten.smm", lambda M, K, N: made("aten.smm", T(M, N), self=sparse(M, K), mat2=T(K, N)), one_each, MKN),
    Case("aten.hspmm", lambda M, K, N: made("aten.hspmm", T(M, N), mat1=sparse(M, K), mat2=T(K, N)), one_each, MKN),
    Case(
        "aten.sspaddmm",
        lambda M, K, N: made(
            "aten.sspaddmm",
            T(M, N, nnz=M * N, index_bytes=8 * M),
            self=sparse(M, N),
            mat1=sparse(M, K),
            mat2=T(K, N),
            alpha=2,
            beta=3,
        ),
        lambda t, M, K, N: scaled(t, one_each(t, M, K, N), arr(t, M, N), 2, 3),
        MKN,
    ),
    Case(
        "aten.sparse_sampled_addmm",
        lambda M, K, N, P: made(
            "aten.sparse_sampled_addmm",
            T(M, N, nnz=P, index_bytes=8 * P),
            self=T(M, N, nnz=P, index_bytes=8 * P),
            mat1=T(M, K),
            mat2=T(K, N),
            alpha=2,
            beta=0,
        ),
        lambda t, **s: sampled(t, **s, alpha=2, beta=0),
        ({"M": 2, "K": 3, "N": 5, "P": 4}, {"M": 3, "K": 2, "N": 2, "P": 1}),
    ),
    Case(
        "aten._sparse_semi_structured_mm",
        lambda M, K, N: made(
            "aten._sparse_semi_structured_mm",
            T(M, N, dtype=BF),
            mat1=T(M, K, dtype=BF),
            mat1_meta=T(M, K / 8, dtype="int16"),
            mat2=T(2 * K, N, dtype=BF),
        ),
        two_of_four,
        QUANT,
    ),
    Case(
        "aten._sparse_semi_structured_addmm",
        lambda M, K, N: made(
            "aten._sparse_semi_structured_addmm",
            T(M, N, dtype=BF),
            input=T(M, dtype=BF),
            mat1=T(M, K, dtype=BF),
            mat1_meta=T(M, K / 8, dtype="int16"),
            mat2=T(2 * K, N, dtype=BF),
            alpha=2,
        ),
        lambda t, M, K, N: scaled(t, two_of_four(t, M, K, N), arr(t, M, N), 2, 1),
        QUANT,
    ),
    Case(
        "aten._sparse_semi_structured_linear",
        lambda M, K, N: made(
            "aten._sparse_semi_structured_linear",
            T(M, N, dtype=BF),
            input=T(M, 2 * K, dtype=BF),
            weight=T(N, K, dtype=BF),
            meta=T(N, K / 8, dtype="int16"),
            bias=T(N, dtype=BF),
        ),
        lambda t, M, K, N: bias(t, two_of_four(t, M, K, N), N),
        QUANT,
    ),
    Case(
        "aten._cslt_sparse_mm",
        lambda M, K, N: made(
            "aten._cslt_sparse_mm", T(M, N, dtype=BF), compressed_A=T(M, 9 * K / 8, dtype=BF), dense_B=T(2 * K, N, dtype=BF)
        ),
        two_of_four,
        QUANT,
    ),
    Case(
        "aten._addmm_activation",
        lambda M, K, N: made("aten._addmm_activation", T(M, N), self=T(N), mat1=T(M, K), mat2=T(K, N)),
        linear2,
        MKN,
    ),
    *(
        Case(
            op,
            lambda M, K, N, op=op: made(op, T(M, N), self=T(M, N), mat1=sparse(M, K), mat2=T(K, N), beta=0),
            one_each,
            MKN,
            ("self",),
        )
        for op in ("aten._sparse_addmm", "aten.addmm")
    ),
    Case("aten.mm", lambda M, K, N: made("aten.mm", T(M, N), self=sparse(M, K), mat2=T(K, N)), one_each, MKN),
    Case(
        "aten.mm", lambda M, K, N: made("aten.mm", T(N, M), self=T(N, K), mat2=T(K, M, nnz=M, index_bytes=8 * M)), one_each, MKN
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_counts(case):
    for sizes in case.sizes:
        verify(case, sizes)
    verify_symbols(case)


def test_every_rule_has_a_sample():
    assert without_sample("costir.ops.contract_packed", CASES) == {"aten._sparse_sparse_matmul"}


def test_a_product_of_two_sparse_matrices_is_unknown_not_zero():
    call = made("aten._sparse_sparse_matmul", T(2, 4, nnz=3), self=sparse(2, 3), other=sparse(3, 4))
    cost = cost_of(call)
    assert cost.status == "unknown"
    assert "where the two matrices store elements" in cost.note
    both = made("aten._sparse_mm", T(2, 4, nnz=3), sparse=sparse(2, 3), dense=sparse(3, 4))
    assert cost_of(both).status == "unknown"


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("nnz", [2, 5])
def test_a_real_sparse_matrix_costs_its_stored_elements(layout, nnz):
    dense = torch.zeros(4, 6)
    dense.view(-1)[torch.arange(nnz) * 4] = 1.0
    x = torch.randn(6, 5)
    matrix = dense.to_sparse_csr() if layout == "csr" else dense.to_sparse()
    product = next(c for c in record_calls(torch.sparse.mm, matrix, x) if "mm" in c.op)
    cost = cost_of(product)
    index = 8 * nnz + 8 * 5 if layout == "csr" else 2 * 8 * nnz
    assert cost.matmul == 2 * nnz * 5
    assert (cost.read, cost.write) == (4 * nnz + index + 4 * 30, 4 * 20)


def test_math_type_is_that_of_the_matrices():
    by_name = {str(c): cost_of(c.build(**c.sizes[0])) for c in CASES}
    assert by_name["aten._scaled_mm"].math == F8
    assert by_name["aten._int_mm"].math == "int8"
    assert by_name["aten._weight_int8pack_mm"].math == BF
    assert by_name["aten._weight_int4pack_mm"].math == BF


def test_int4_weights_are_read_at_half_a_byte():
    M, K, N = size("M"), size("K"), size("N")
    cost = cost_of(packed("aten._weight_int4pack_mm_for_cpu", qScaleAndZeros="2N2")(M, K, N))
    assert (cost.read - 2 * M * K - 8 * N).expand() == N * K / 2


def test_bytes_of_an_integer_product_are_those_of_real_tensors():
    x, w = torch.randint(-8, 8, (32, 16), dtype=torch.int8), torch.randint(-8, 8, (16, 8), dtype=torch.int8)
    (call,) = record_calls(torch._int_mm, x, w)
    with RealBytes() as real:
        torch._int_mm(x, w)
    assert [("aten._int_mm", cost_of(call).read, cost_of(call).write)] == real.log
