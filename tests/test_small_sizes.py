"""No number where torch raises: entries, parts and windows that are not there at small sizes, widths that heads do not divide.

What runs is seen by running the model on real tensors.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import Run
from torch import nn
from torch.nn import functional as F

import costir
from costir.errors import SizeError

NINE = range(2, 26)


def on_rows(function: Any, B: int, T: int) -> Any:
    """`function` of B, T, 3, then something to count."""
    return Run(lambda self, x: function(x) * 2), (torch.randn(B, T, 3),), {}


def entry(B=2, T=20):
    return on_rows(lambda x: x[:, 5], B, T)


def entry_from_the_end(B=2, T=20):
    return on_rows(lambda x: x[..., -5, :], B, T)


def entry_after_a_new_one(B=2, T=20):
    return on_rows(lambda x: x[:, None, 5], B, T)


def selected(B=2, T=20):
    return on_rows(lambda x: x.select(1, 5), B, T)


def cut_out(B=2, T=20):
    return on_rows(lambda x: x.narrow(1, 2, 5), B, T)


def listed(B=2, T=20):
    return on_rows(lambda x: x[:, [0, 5, 7]], B, T)


def by_tensor(B=2, T=20):
    return on_rows(lambda x: x[:, torch.tensor([0, -8, 7])], B, T)


def gathered(B=2, T=20):
    return on_rows(lambda x: x.gather(1, torch.full((x.shape[0], 1, 3), 6)), B, T)


def part(B=2, T=20):
    return on_rows(lambda x: x.split(4, 1)[2], B, T)


def unbound(B=2, T=20):
    return on_rows(lambda x: x.unbind(1)[5], B, T)


def around(B=2, T=20):
    return on_rows(lambda x: F.pad(x.mT, (6, 5), mode="circular"), B, T)


def written(B=2, T=20):
    def run(self, x):
        y = x * 2
        y[:, 7] = 0
        return y

    return Run(run), (torch.randn(B, T, 3),), {}


LIMITED = [entry, entry_from_the_end, entry_after_a_new_one, selected, cut_out, listed, by_tensor, gathered, part, unbound,
           around, written]  # fmt: skip


@pytest.mark.parametrize("build", LIMITED, ids=lambda b: b.__name__)
def test_a_size_has_a_cost_just_where_the_model_runs(build: Any) -> None:
    found, costs, runs = costir.analyze(build), [], []
    for t in NINE:
        costs.append(found.broken({"B": 2, "T": t}) is None)
        module, args, _ = build(T=t)
        try:
            module(*args)
        except (IndexError, RuntimeError, ValueError):
            runs.append(False)
        else:
            runs.append(build is not part or t >= 12)  # the third part is shorter below: another formula
    assert costs == runs
    with pytest.raises(SizeError, match="hold where"):
        found.at(T=2)


def test_an_entry_is_a_condition_with_its_line() -> None:
    (condition,) = costir.analyze(entry).constraints
    assert str(condition).startswith("T > 5 (test_small_sizes.py:")
    assert not condition.branch


def test_what_a_module_checks_when_it_is_made() -> None:
    def projected(B=2, T=5, D=8, H=24, P=8):
        return Run(lambda self, x: self.l(x)[0], l=nn.LSTM(D, H, proj_size=P)), (torch.randn(T, B, D),), {}

    found = costir.analyze(projected)
    assert [str(c.condition) for c in found.constraints] == ["P < H"]
    assert found.at(H=9).flops > 0
    with pytest.raises(SizeError, match="P < H"):
        found.at(H=8)


def heads(count: int) -> Any:
    def build(B=2, T=6, D=192):
        def run(self, x):
            b, t, d = x.shape
            y = self.inner(x).view(b, t, count, d // count).transpose(1, 2)
            return (y @ y.transpose(-1, -2)).softmax(-1) @ y

        return Run(run, inner=nn.Linear(D, D)), (torch.randn(B, T, D),), {}

    return build


@pytest.mark.parametrize("count", [8, 12, 24])
def test_heads_in_numbers_share_out_a_width(count: int) -> None:
    found = costir.analyze(heads(count))
    assert [str(c) for c in found.constraints] == [f"D % {count} == 0"]
    assert found.at(D=7 * count).matmul_flops == 2 * 2 * 6 * 49 * count**2 + 2 * 2 * 2 * 36 * 7 * count
    with pytest.raises(SizeError, match=f"D % {count} == 0"):
        found.at(D=7 * count + count // 2)


def test_thirds_and_squares_of_three() -> None:
    def thirds(B=2, D=48):
        def run(self, x):
            a, b, c = self.inner(x).chunk(3, -1)
            return a * b + c

        return Run(run, inner=nn.Linear(D, D)), (torch.randn(B, D),), {}

    def unshuffled(B=2, H=24):
        return Run(lambda self, x: F.pixel_unshuffle(x, 3) * 2), (torch.randn(B, 3, H, H),), {}

    assert [str(c) for c in costir.analyze(thirds).constraints] == ["D % 3 == 0"]
    assert [str(c) for c in costir.analyze(unshuffled).constraints] == ["H % 3 == 0"]
