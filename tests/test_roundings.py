"""Sizes that a program makes of sizes by floats: exact where a formula in whole numbers says it, else kept, with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from families import Run
from torch import nn

import costir
from costir.errors import LiftError


def first(share: Callable[[int], int]) -> Any:
    """Of B, T the first so many, that a share of T says, times 2."""

    def build(B=4, T=60):
        return Run(lambda self, x: x[:, : share(x.shape[1])] * 2), (torch.randn(B, T),), {}

    return build


SHARES = [
    lambda n: int(0.3 * n),
    lambda n: math.ceil(0.15 * n),
    lambda n: int(n * 0.375),
    lambda n: round(n / 2),
    lambda n: round(n / 3),
    lambda n: round(n * 1.5) // 2,
    lambda n: n - int(n * 0.75),
]


@pytest.mark.parametrize("number", range(len(SHARES)))
def test_shares_are_what_python_computes(number: int) -> None:
    found = costir.analyze(first(SHARES[number]))
    for t in range(8, 140):
        assert found.at(T=t).flops == 4 * SHARES[number](t)


@pytest.mark.parametrize(("share", "word"), [(lambda n: int(math.sqrt(n)), "sqrt"), (lambda n: int(math.log2(n)), "log2"),
                                             (lambda n: int(n**0.5), "**")])  # fmt: skip
def test_what_follows_no_formula_is_kept_and_said(share: Callable[[int], int], word: str) -> None:
    found = costir.analyze(first(share))
    (kept,) = found.constraints
    assert str(kept).startswith(f"T == 60 (test_roundings.py:{share.__code__.co_firstlineno} takes {word}")
    assert found.at(B=3).flops == 3 * share(60)


def by_bytes(measure: Callable[[torch.Tensor], int]) -> Any:
    def build(B=4, T=6):
        return (
            Run(lambda self, x: self.inner(x) if measure(x) > 1000 else x + 1, inner=nn.Linear(T, T)),
            (torch.randn(B, T),),
            {},
        )

    return build


@pytest.mark.parametrize(("measure", "said"), [(lambda x: x.nbytes, "4*B*T <= 1000"), (lambda x: x.stride(0), "T <= 1000"),
                                               (lambda x: x.stride()[0], "T <= 1000")])  # fmt: skip
def test_bytes_and_strides_that_decide_are_conditions(measure: Callable[[torch.Tensor], int], said: str) -> None:
    found = costir.analyze(by_bytes(measure))
    assert [str(c.condition) for c in found.constraints] == [said]
    assert found.at(B=5, T=40).matmul_flops == 0
    assert found.at(B=5, T=1001).matmul_flops == 2 * 5 * 1001**2


def test_what_decides_unseen_is_not_blamed_on_sizes_of_1() -> None:
    with pytest.raises(LiftError, match="no comparison of sizes tells when") as caught:
        costir.analyze(by_bytes(lambda x: x.untyped_storage().nbytes()))
    assert "2 or more" not in str(caught.value)
