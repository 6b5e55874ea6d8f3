"""Programs that branch on sizes: each side has its own formulas, and no formula is used outside its side."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy as sp
import torch
from families import MODELS, load_all
from torch import nn

import costir
from costir.errors import SizeError
from costir.symbolic import size

load_all()


def test_both_sides_are_in_one_formula() -> None:
    a = costir.analyze(MODELS["short_or_long"].build)
    assert isinstance(a.matmul_flops, sp.Piecewise)
    B, T, D = size("B"), size("T"), size("D")
    for t, want in ((8, 2 * B * T * D**2), (9, 8 * B * T * D**2)):
        assert sp.expand((a.matmul_flops - want).subs({B: 3, D: 5, T: t})) == 0


def test_numbers_and_arrays_agree_across_a_branch() -> None:
    a = costir.analyze(MODELS["three_ways"].build)
    lengths = np.array([2, 15, 16, 63, 64, 500])
    many = a.evaluate("flops", T=lengths)["flops"]
    assert many.tolist() == [float(a.at(T=int(t)).flops) for t in lengths]


SIDES = {
    "short_at_base": 2,
    "even_width": 2,
    "equal_or_not": 2,
    "decode_or_prefill": 2,
    "three_ways": 3,
    "widest_of_two": 2,
    "asserted": 1,
}


@pytest.mark.parametrize(("name", "regimes"), SIDES.items())
def test_each_side_is_found_once(name: str, regimes: int) -> None:
    assert 1 + len(costir.analyze(MODELS[name].build).others) == regimes


def test_a_branch_carries_its_line() -> None:
    (branch,) = [c for c in costir.analyze(MODELS["short_or_long"].build).constraints if c.branch]
    assert str(branch.condition) == "T > 8"
    assert branch.source.startswith("families_branches.py:")


def test_outside_every_regime_is_refused() -> None:
    a = costir.analyze(MODELS["equal_heads"].build)
    with pytest.raises(SizeError, match="N == K"):
        a.at(N=4, K=2)


def test_the_other_side_of_a_range_of_one_is_a_regime_of_its_own() -> None:
    a = costir.analyze(MODELS["decode_or_prefill"].build)
    assert [[str(c.condition) for c in o.constraints] for o in a.others] == [["Eq(T, 1)"]]


def few_or_many(B: int = 2, T: int = 20, D: int = 8) -> tuple[nn.Module, tuple[torch.Tensor], dict[str, object]]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow, self.wide = nn.Linear(D, D), nn.Linear(D, 4 * D)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.narrow(x) if x.numel() <= 1000 else self.wide(x)

    return Model(), (torch.randn(B, T, D),), {}


@pytest.mark.parametrize("build", [few_or_many, *(MODELS[n].build for n in SIDES)], ids=lambda f: f.__name__)
def test_no_formula_is_stated_outside_its_side(build: Callable[..., Any]) -> None:
    a = costir.analyze(build)
    first, *rest = a.sizes
    stated = 0
    for values in itertools.product((1, 3, 10, 20, 70), repeat=len(rest)):
        point = {first: 2, **dict(zip(rest, values, strict=True))}
        said = a.matmul_flops.subs({size(n): v for n, v in point.items()})
        if not any(o.broken(point) is None for o in (a, *a.others)):
            shared = all(o.broken(point) == a.broken(point) for o in a.others)
            assert said is sp.nan or shared
            stated += said is sp.nan
        elif 1 not in values:  # there a run may say something else
            assert said == a.at(**point).matmul_flops
    assert stated or build is not few_or_many
