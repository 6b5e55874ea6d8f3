"""Chains of matrices against every order of products, einsum against its loop and against what torch runs."""

from __future__ import annotations

import itertools

import pytest
import torch
from oracles import EXACT, T, cost_of, made, sums

from costir.errors import NotationError
from costir.symbolic import size
from costir.trace import record_calls

# Chains.


def every_order(sizes):
    """Multiply-adds of each way to put brackets around a chain of matrices sizes[i] x sizes[i+1]."""
    if len(sizes) == 2:
        return [0]
    return [
        left + right + sizes[0] * sizes[i] * sizes[-1]
        for i in range(1, len(sizes) - 1)
        for left, right in itertools.product(every_order(sizes[: i + 1]), every_order(sizes[i:]))
    ]


@pytest.mark.parametrize("sizes", [(2, 3, 4), (2, 7, 3, 5), (6, 1, 6, 1, 6), (4, 5, 3, 2, 6, 2)])
@pytest.mark.parametrize("op", ["aten.linalg_multi_dot", "aten.chain_matmul"])
def test_a_chain_takes_the_cheapest_order(op, sizes):
    chain = tuple(T(a, b) for a, b in itertools.pairwise(sizes))
    name = "tensors" if "dot" in op else "matrices"
    assert cost_of(made(op, T(sizes[0], sizes[-1]), **{name: chain})).matmul == 2 * min(every_order(sizes))


@pytest.mark.parametrize(
    "shapes", [[(2, 3), (3, 4), (4, 5)], [(5, 2), (2, 6), (6, 2), (2, 3)], [(3,), (3, 4), (4,)], [(3,), (3, 4)]]
)
def test_a_chain_costs_what_torch_runs(shapes):
    matrices = [torch.randn(s) for s in shapes]
    ran = sums(record_calls(torch.linalg.multi_dot, matrices))
    out = torch.linalg.multi_dot(matrices).shape
    cost = cost_of(made("aten.linalg_multi_dot", T(*out), tensors=tuple(T(*s) for s in shapes)))
    assert cost.matmul == ran["matmul"]


def test_a_chain_of_symbols_goes_left_to_right():
    a, b, c, d = (size(n) for n in "abcd")
    cost = cost_of(made("aten.linalg_multi_dot", T(a, d), tensors=(T(a, b), T(b, c), T(c, d))))
    assert cost.matmul == 2 * a * b * c + 2 * a * c * d
    assert "left to right" in cost.note
    assert cost.nbytes == 4 * (a * b + b * c + c * d + a * d + 2 * a * c)


# einsum.


EQUATIONS = [
    "bd,df->bf",
    "bij,bjk->bik",
    "i,j->ij",
    "ij,ij->ij",
    "ij->ji",
    "ij->i",
    "ij,kj",
    "ii->i",
    "bd,d->b",
    "ab,c->c",
    "i,i->",
]


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("seed", [0, 1])
def test_einsum_does_what_its_loop_does(equation, seed):
    """Multiplications of the loop over all indices; one operand: additions of the loop."""
    sizes = {c: 2 + (ord(c) * (3 + seed)) % 5 for c in equation if c.isalpha()}
    left, _, right = equation.partition("->")
    output = right if "->" in equation else "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    letters, terms = sorted(sizes), left.split(",")
    products, sums_, cells = 0, 0, {}
    for point in itertools.product(*(range(sizes[c]) for c in letters)):
        at = dict(zip(letters, point, strict=True))
        key = tuple(at[c] for c in output)
        products += len(terms) - 1
        sums_ += key in cells
        cells[key] = True
    tensors = [T(*(sizes[c] for c in term)) for term in terms]
    call = made("costir.einsum", T(*(sizes[c] for c in output)), equation=equation, operands=tuple(tensors))
    cost, exact = cost_of(call), cost_of(call, EXACT)
    summed = set(left) - {","} - set(output)
    if len(terms) == 1:
        assert (cost.matmul, cost.vector) == (0, sums_)
    elif summed:
        assert (cost.matmul, exact.matmul, cost.vector) == (2 * products, products + sums_, 0)
    else:
        assert (cost.matmul, cost.vector) == (0, products)


def test_einsum_of_three_goes_left_to_right():
    call = made("costir.einsum", T(2, 5), equation="ab,bc,cd->ad", operands=(T(2, 3), T(3, 4), T(4, 5)))
    cost = cost_of(call)
    assert cost.matmul == 2 * 2 * 3 * 4 + 2 * 2 * 4 * 5
    assert cost.nbytes == 4 * (6 + 12 + 20 + 10) + 4 * 2 * 8  # [a, c] is written and read between
    hadamard = made("costir.einsum", T(2), equation="ab,ab,ab->a", operands=(T(2, 3), T(2, 3), T(2, 3)))
    assert (cost_of(hadamard).vector, cost_of(hadamard).matmul) == (6, 12)


@pytest.mark.parametrize("equation", ["ab,bc,cd->ad", "ab,bc,bd->acd", "bqd,bkd->bqk", "...i,ij->...j", "bhid,bhjd->bhij"])
def test_einsum_agrees_with_what_torch_runs(equation):
    sizes = dict(zip("abcdijqkh", (2, 3, 4, 5, 3, 4, 2, 3, 2), strict=True))
    shapes = [
        [7] * (3 * t.startswith("...")) + [sizes[c] for c in t if c.isalpha()] for t in equation.split("->")[0].split(",")
    ]
    tensors = [torch.randn(s) for s in shapes]
    ran = sums(record_calls(lambda: torch.einsum(equation, *tensors)))
    out = torch.einsum(equation, *tensors).shape
    cost = cost_of(made("aten.einsum", T(*out), equation=equation, tensors=tuple(T(*s) for s in shapes)))
    assert (cost.matmul, cost.vector) == (ran["matmul"], ran["vector"])


def test_einsum_names_what_does_not_fit():
    with pytest.raises(NotationError, match="'bd' has 2 indices for 3 dimensions"):
        cost_of(made("costir.einsum", T(2), equation="bd->b", operands=(T(2, 3, 4),)))
    with pytest.raises(NotationError, match="has 2 operands but 1 were given"):
        cost_of(made("costir.einsum", T(2), equation="bd,df->bf", operands=(T(2, 3),)))
    with pytest.raises(NotationError, match="in its output that no operand has"):
        cost_of(made("costir.einsum", T(2), equation="bd->bz", operands=(T(2, 3),)))
