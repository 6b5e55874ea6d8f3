"""Matrix products against loops over numbers that count, torch's own flop counter, and bytes of real tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    BYTES,
    EXACT,
    STANDARD,
    Case,
    RealBytes,
    T,
    add_up,
    arr,
    columns,
    cost_of,
    dot,
    flat,
    indices,
    made,
    matmul,
    sums,
    verify,
    verify_symbols,
    without_sample,
)
from torch.utils.flop_counter import FlopCounterMode

from costir.ir import Conventions
from costir.symbolic import Integer, size
from costir.trace import record_calls

MKN = ({"M": 2, "K": 3, "N": 5}, {"M": 4, "K": 1, "N": 2})
BMKN = ({"B": 2, "M": 2, "K": 3, "N": 4}, {"B": 3, "M": 1, "K": 4, "N": 2})


def scaled(t, product, added, alpha, beta):
    """beta*added + alpha*product, element by element."""
    for p, a in zip(flat(product), flat(added), strict=True):
        p = p * alpha if alpha not in (1, -1) else p
        if beta != 0:
            a = a * beta if beta not in (1, -1) else a
            _ = p + a


def added(op, build, product, shape, sizes, alpha=1, beta=1, **more):
    """The case of an operator beta*self + alpha*product."""

    def reference(t, **s):
        scaled(t, product(t, **s), arr(t, *shape(**s)), alpha, beta)

    return Case(op, lambda **s: build(alpha=alpha, beta=beta, **s), reference, sizes, ("self",) if beta == 0 else (), **more)


def mm2(t, M, K, N, **_):
    return matmul(t, arr(t, M, K), arr(t, K, N))


def bmm3(t, B, M, K, N):
    return [mm2(t, M, K, N) for _ in range(B)]


def addbmm3(t, B, M, K, N):
    a, b = arr(t, B, M, K), arr(t, B, K, N)
    return [[dot(t, [x for e in a for x in e[m]], [r[n] for e in b for r in e]) for n in range(N)] for m in range(M)]


def outer2(t, M, N):
    return [[x * y for y in arr(t, N)] for x in arr(t, M)]


def bias(t, out, n):
    for row in out:
        for y, b in zip(row, arr(t, n), strict=True):
            _ = y + b


def linear2(t, M, K, N):
    bias(t, mm2(t, M, K, N), N)


def linear_grads(t, M, K, N, wanted=(True, True, True)):
    grad, x, w = arr(t, M, N), arr(t, M, K), arr(t, N, K)
    if wanted[0]:
        matmul(t, grad, w)
    if wanted[1]:
        matmul(t, columns(grad), x)
    if wanted[2]:
        for column in columns(grad):
            add_up(column)


def trilinear_reference(t, B, I, J, O, with_bias=False):
    x, y, w = arr(t, B, I), arr(t, B, J), arr(t, O, I, J)
    for b, o in indices(B, O):
        row = [dot(t, x[b], [w[o][i][j] for i in range(I)]) for j in range(J)]
        out = dot(t, row, y[b])
        if with_bias:
            _ = out + arr(t)


def abc(t, A, B, C, D):
    """(a b, b c) then (c d): left to right."""
    matmul(t, matmul(t, arr(t, A, B), arr(t, B, C)), arr(t, C, D))


def addmm(op):
    def build(M, K, N, alpha, beta):
        return made(op, T(M, N), self=T(N), mat1=T(M, K), mat2=T(K, N), alpha=alpha, beta=beta)

    return build


def baddbmm(op, out):
    def build(B, M, K, N, alpha, beta):
        shape = {"bmn": (B, M, N), "mn": (M, N)}[out]
        return made(op, T(*shape), self=T(*shape), batch1=T(B, M, K), batch2=T(B, K, N), alpha=alpha, beta=beta)

    return build


FACTORS = ((1, 1), (0.5, 1), (1, 0), (2, 3), (-1, 1), (1, 0.5))
CASES = [
    Case("aten.mm", lambda M, K, N: made("aten.mm", T(M, N), self=T(M, K), mat2=T(K, N)), mm2, MKN),
    Case(
        "aten.mm",
        lambda M, K, N: made(
            "aten.mm",
            *(T(*s, dtype="complex64") for s in [(M, N)]),
            self=T(M, K, dtype="complex64"),
            mat2=T(K, N, dtype="complex64"),
        ),
        lambda t, M, K, N: matmul(t, arr(t, M, K, complex_=True), arr(t, K, N, complex_=True)),
        MKN,
    ),
    Case("aten.mm", lambda M, K, N: made("aten.mm.out", T(M, N), self=T(M, K), mat2=T(K, N), out=T(M, N)), mm2, MKN, ("out",)),
    Case("aten.bmm", lambda B, M, K, N: made("aten.bmm", T(B, M, N), self=T(B, M, K), mat2=T(B, K, N)), bmm3, BMKN),
    Case(
        "aten._foreach_mm",
        lambda M, K, N: made("aten._foreach_mm", (T(M, N), T(K, M)), self=(T(M, K), T(K, N)), mat2=(T(K, N), T(N, M))),
        lambda t, M, K, N: (mm2(t, M, K, N), mm2(t, K, N, M)),
        MKN,
    ),
    Case(
        "aten.mv",
        lambda M, K: made("aten.mv", T(M), self=T(M, K), vec=T(K)),
        lambda t, M, K: mm2(t, M, K, 1),
        ({"M": 2, "K": 5}, {"M": 4, "K": 1}),
    ),
    *(
        Case(
            op,
            lambda K, op=op, other=other: made(op, T(), **{"self": T(K), other: T(K)}),
            lambda t, K: mm2(t, 1, K, 1),
            ({"K": 5}, {"K": 1}),
        )
        for op, other in (("aten.dot", "tensor"), ("aten.vdot", "other"))
    ),
    Case(
        "aten.linalg_vecdot",
        lambda M, K, N: made("aten.linalg_vecdot", T(M, N), x=T(M, K, N), y=T(K, N), dim=1),
        mm2,
        MKN,
    ),
    Case("aten.inner", lambda M, K, N: made("aten.inner", T(M, N), self=T(M, K), other=T(N, K)), mm2, MKN),
    *(
        Case(op, lambda M, N, op=op: made(op, T(M, N), self=T(M), vec2=T(N)), outer2, ({"M": 3, "N": 4}, {"M": 1, "N": 5}))
        for op in ("aten.outer", "aten.ger")
    ),
    *(
        Case(op, lambda B, M, K, N, op=op: made(op, T(B, M, N), self=T(B, M, K), other=T(K, N)), bmm3, BMKN)
        for op in ("aten.matmul", "aten.linalg_matmul")
    ),
    Case(
        "aten.tensordot",
        lambda B, M, K, N: made(
            "aten.tensordot", T(M, N), self=T(M, B, K), other=T(B, K, N), dims_self=[1, 2], dims_other=[0, 1]
        ),
        lambda t, B, M, K, N: mm2(t, M, B * K, N),
        BMKN,
    ),
    Case("aten.linear", lambda M, K, N: made("aten.linear", T(M, N), input=T(M, K), weight=T(N, K), bias=T(N)), linear2, MKN),
    Case("aten.linear", lambda M, K, N: made("aten.linear", T(M, N), input=T(M, K), weight=T(N, K)), mm2, MKN),
    Case(
        "aten.mkldnn_linear",
        lambda M, K, N: made("aten.mkldnn_linear", T(M, N), self=T(M, K), weight=T(N, K), bias=T(N)),
        linear2,
        MKN,
    ),
    *(
        added(op, addmm(op), mm2, lambda M, K, N: (M, N), MKN, *f)
        for op in ("aten.addmm", "aten.addmm_", "aten._sparse_addmm")
        for f in FACTORS
    ),
    *(
        added(op, baddbmm(op, "bmn"), bmm3, lambda B, M, K, N: (B, M, N), BMKN, *f)
        for op in ("aten.baddbmm", "aten.baddbmm_")
        for f in FACTORS
    ),
    *(
        added(op, baddbmm(op, "mn"), addbmm3, lambda B, M, K, N: (M, N), BMKN, *f)
        for op in ("aten.addbmm", "aten.addbmm_")
        for f in FACTORS
    ),
    *(
        added(
            op,
            lambda M, K, alpha, beta, op=op: made(op, T(M), self=T(M), mat=T(M, K), vec=T(K), alpha=alpha, beta=beta),
            lambda t, M, K: mm2(t, M, K, 1),
            lambda M, K: (M,),
            ({"M": 2, "K": 5}, {"M": 4, "K": 1}),
            *f,
        )
        for op in ("aten.addmv", "aten.addmv_")
        for f in FACTORS
    ),
    *(
        added(
            op,
            lambda M, N, alpha, beta, op=op: made(op, T(M, N), self=T(M, N), vec1=T(M), vec2=T(N), alpha=alpha, beta=beta),
            outer2,
            lambda M, N: (M, N),
            ({"M": 3, "N": 4}, {"M": 1, "N": 5}),
            *f,
        )
        for op in ("aten.addr", "aten.addr_")
        for f in FACTORS
    ),
    Case(
        "aten._addmm_activation",
        lambda M, K, N: made("aten._addmm_activation", T(M, N), self=T(N), mat1=T(M, K), mat2=T(K, N), use_gelu=True),
        lambda t, M, K, N: [
            0.5 * x * (1 + (x * 0.7).f())
            for x in flat([[y + b for y, b in zip(r, arr(t, N), strict=True)] for r in mm2(t, M, K, N)])
        ],
        MKN,
    ),
    Case(
        "aten._addmm_activation",
        lambda M, K, N: made("aten._addmm_activation", T(M, N), self=T(N), mat1=T(M, K), mat2=T(K, N), use_gelu=False),
        linear2,
        MKN,
    ),
    *(
        Case(
            op,
            lambda M, K, N, op=op: made(
                op, (T(M, K), T(N, K), T(N)), self=T(M, K), grad_output=T(M, N), weight=T(N, K), output_mask=(True,) * 3
            ),
            linear_grads,
            MKN,
        )
        for op in ("aten.linear_backward", "aten.mkldnn_linear_backward")
    ),
    Case(
        "aten.linear_backward",
        lambda M, K, N: made(
            "aten.linear_backward",
            (T(N, K), T(N)),
            self=T(M, K),
            grad_output=T(M, N),
            weight=T(N, K),
            output_mask=(False, True, True),
        ),
        lambda t, M, K, N: linear_grads(t, M, K, N, (False, True, True)),
        MKN,
        ("weight",),
    ),
    Case(
        "aten.mkldnn_linear_backward_weights",
        lambda M, K, N: made(
            "aten.mkldnn_linear_backward_weights",
            (T(N, K), T(N)),
            grad_output=T(M, N),
            input=T(M, K),
            weight=T(N, K),
            bias_defined=True,
        ),
        lambda t, M, K, N: linear_grads(t, M, K, N, (False, True, True)),
        MKN,
        ("weight",),
    ),
    Case(
        "aten.mkldnn_linear_backward_input",
        lambda M, K, N: made(
            "aten.mkldnn_linear_backward_input", T(M, K), input_size=(M, K), grad_output=T(M, N), weight=T(N, K)
        ),
        lambda t, M, K, N: linear_grads(t, M, K, N, (True, False, False)),
        MKN,
    ),
    Case(
        "aten.matmul_backward",
        lambda M, K, N: made(
            "aten.matmul_backward", (T(M, K), T(K, N)), grad=T(M, N), self=T(M, K), other=T(K, N), mask=(True, True)
        ),
        lambda t, M, K, N: linear_grads(t, M, K, N, (True, True, False)),
        MKN,
    ),
    Case(
        "aten.matmul_backward",
        lambda M, K, N: made("aten.matmul_backward", T(K, N), grad=T(M, N), self=T(M, K), other=T(K, N), mask=(False, True)),
        lambda t, M, K, N: linear_grads(t, M, K, N, (False, True, False)),
        MKN,
        ("other",),
    ),
    Case(
        "aten._trilinear",
        lambda B, I, J, O: made(
            "aten._trilinear",
            T(B, O),
            i1=T(B, I),
            i2=T(O, I, J),
            i3=T(B, J),
            expand1=[1, 3],
            expand2=[0],
            expand3=[1, 2],
            sumdim=[2, 3],
        ),
        trilinear_reference,
        ({"B": 2, "I": 3, "J": 4, "O": 5}, {"B": 4, "I": 6, "J": 2, "O": 3}),
    ),
    Case(
        "aten.bilinear",
        lambda B, I, J, O: made("aten.bilinear", T(B, O), input1=T(B, I), input2=T(B, J), weight=T(O, I, J), bias=T(O)),
        lambda t, B, I, J, O: trilinear_reference(t, B, I, J, O, True),
        ({"B": 2, "I": 3, "J": 4, "O": 5}, {"B": 4, "I": 6, "J": 2, "O": 3}),
    ),
    Case(
        "costir.einsum",
        lambda B, D, F: made("costir.einsum", T(B, F), equation="bd,df->bf", operands=(T(B, D), T(D, F))),
        lambda t, B, D, F: mm2(t, B, D, F),
        ({"B": 2, "D": 3, "F": 4}, {"B": 5, "D": 1, "F": 2}),
    ),
    Case(
        "aten.einsum",
        lambda B, M, K, N: made("aten.einsum", T(B, M, N), equation="...mk, ...kn", tensors=(T(B, M, K), T(B, K, N))),
        bmm3,
        BMKN,
    ),
]
MAIN = ("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.linear", "costir.einsum", "aten._trilinear")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_counts(case):
    for sizes in case.sizes:
        verify(case, sizes)
    verify_symbols(case)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([c for c in CASES if c.op in MAIN]), st.data())
def test_counts_at_drawn_sizes(case, data):
    verify(case, {k: data.draw(st.integers(1, 6), label=k) for k in case.sizes[0]})


def test_every_rule_has_a_sample():
    chains = {"aten.linalg_multi_dot", "aten.chain_matmul"}  # in test_rules_einsum.py, by all orders
    assert without_sample("costir.ops.contract", CASES) == chains
    assert without_sample("costir.ops.einsum", CASES) == set()


# Against torch.


FUNCTIONS = {
    "mm": (torch.mm, [(3, 4), (4, 5)]),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    "addmm": (torch.addmm, [(5,), (3, 4), (4, 5)]),
    "baddbmm": (torch.baddbmm, [(5,), (2, 3, 4), (2, 4, 5)]),
    "linear": (torch.nn.functional.linear, [(2, 3, 4), (5, 4), (5,)]),
    "matmul": (torch.matmul, [(2, 3, 4), (4, 5)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_agrees_with_flop_counter_on_meta(name):
    function, shapes = FUNCTIONS[name]
    args = [torch.empty(s, device="meta", requires_grad=True) for s in shapes]
    with FlopCounterMode(display=False) as counter:
        function(*args).sum().backward()
    assert (
        sums([c for c in record_calls(function, *args, backward=True) if "mm" in c.op])["matmul"] == counter.get_total_flops()
    )


RUN = {
    **FUNCTIONS,
    "expanded bias": (lambda b, x, y: torch.addmm(b.expand(3, 5), x, y), [(5,), (3, 4), (4, 5)]),
    "same operand twice": (lambda x: torch.mm(x, x), [(4, 4)]),
    "mv": (torch.mv, [(3, 4), (4,)]),
    "dot": (torch.dot, [(4,), (4,)]),
    "vdot": (torch.vdot, [(4,), (4,)]),
    "addmv": (torch.addmv, [(3,), (3, 4), (4,)]),
    "addr": (torch.addr, [(3, 4), (3,), (4,)]),
    "addbmm": (torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)]),
    "addmm_": (lambda c, x, y: c.addmm_(x, y), [(3, 5), (3, 4), (4, 5)]),
    "bilinear": (torch.nn.functional.bilinear, [(2, 3), (2, 4), (5, 3, 4), (5,)]),
}


@pytest.mark.parametrize("name", RUN)
def test_bytes_are_those_of_real_tensors(name):
    function, shapes = RUN[name]
    args = [torch.randn(s) for s in shapes]
    calls = record_calls(function, *args)
    with torch.no_grad(), RealBytes() as real:
        function(*args)
    log = [(c, r) for c, r in zip(calls, real.log, strict=True) if c.op.startswith(r[0])]
    assert len(log) == len(calls)
    checked = [(cost_of(c), r) for c, r in log if cost_of(c).status == "costed"]
    assert checked
    for cost, (op, read, write) in checked:
        assert (cost.read, cost.write) == (read, write), op


def test_beta_zero_reads_nothing_of_the_added_term():
    x, y, c = torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(2, 3, 5)
    (call,) = record_calls(lambda: torch.baddbmm(c, x, y, beta=0))
    cost = cost_of(call)
    assert (cost.read, cost.write, cost.vector) == (4 * (24 + 40), 4 * 30, 0)


def test_dot_product_is_2k_minus_1_exactly():
    K = size("K")
    assert cost_of(made("aten.dot", T(), self=T(K), tensor=T(K)), EXACT).matmul == 2 * K - 1


def test_the_product_is_computed_in_the_wider_operand_type():
    half = made("aten.mm", T(2, 4, dtype="bfloat16"), self=T(2, 3, dtype="bfloat16"), mat2=T(3, 4, dtype="bfloat16"))
    assert cost_of(half).math == "bfloat16"
    assert BYTES["bfloat16"] == 2


def test_doubling_the_batch_doubles_a_linear_layer():
    B, D, F = (size(n) for n in "BDF")
    cost = cost_of(made("aten.mm", T(B, F), self=T(B, D), mat2=T(D, F)), STANDARD)
    assert cost.matmul.subs(B, 2 * B) == 2 * cost.matmul
    assert Conventions().count == "standard"
    assert cost.matmul.subs({B: 3, D: 4, F: 5}) == Integer(120)
