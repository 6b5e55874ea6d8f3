"""Where torch takes another way at some sizes, a point is counted by a run there, whatever was asked before."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import costir
from costir.errors import SizeError
from costir.recount import equals, ones
from costir.symbolic import size


class Attention(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


def heads(B=2, N=4, T=8, H=8, V=8):
    """The fused operator takes values as wide as the keys only; else torch runs the products one by one."""
    return Attention(), (torch.randn(B, N, T, H), torch.randn(B, N, T, H), torch.randn(B, N, T, V)), {}


class Pieces(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x):
        return self.linear(x.unfold(1, 8, 8).transpose(2, 3).flatten(1, 2))


def pieces(B=2, T=32, D=8):
    """One window of all is a view: nothing is copied."""
    return Pieces(D), (torch.randn(B, T, D),), {}


class Rows(nn.Module):
    def forward(self, x):
        return x.movedim(0, 1).reshape(-1, 48) + 1


def rows(B=16, T=6):
    """Where B is 48 the rows are there already, and nothing is copied."""
    return Rows(), (torch.randn(B, T),), {}


POINTS = {
    rows: [{}, {"B": 48}, {"B": 96}, {"T": 48}],
    heads: [{}, {"H": 7}, {"H": 16, "V": 16}, {"H": 16}, {"V": 4, "T": 4}],
    pieces: [{}, {"T": 8}, {"T": 15}, {"B": 1}, {"B": 1, "T": 8}, {"D": 1}],
}


def cost_at(analysis, point):
    """The bytes at a point, or None where they are refused."""
    try:
        return analysis.at(**point).bytes
    except SizeError:
        return None


@pytest.mark.parametrize("build", POINTS, ids=lambda f: f.__name__)
def test_a_point_costs_the_same_whatever_was_asked_before(build):
    points = POINTS[build]
    right = [costir.analyze(build, sizes=point).at().bytes for point in points]
    found = costir.analyze(build)
    first = [cost_at(dataclasses.replace(found), point) for point in points]  # a copy remembers nothing of other points
    assert all(said in (seen, None) for said, seen in zip(first, right, strict=True))
    assert sum(said is not None for said in first) >= 2
    for start in range(len(points)):
        analysis = dataclasses.replace(found)
        order = [*range(start, len(points)), *range(start)]
        assert [cost_at(analysis, points[i]) for i in order] == [first[i] for i in order]


def test_dimensions_of_one_and_equal_ones():
    graph = costir.analyze(heads).graph
    T, H, V = map(size, "THV")
    assert ones(graph, {"B": 2, "N": 4, "T": 1, "H": 3, "V": 5}) == {(T, 1)}
    assert {T, V} in equals(graph, {"B": 2, "N": 4, "T": 7, "H": 9, "V": 7})
    assert not any({H, V} <= g for g in equals(graph, {"B": 2, "N": 4, "T": 7, "H": 9, "V": 7}))


def test_a_model_that_fails_at_ones_has_no_number_there():
    class Third(nn.Module):
        def forward(self, x):
            return x[:, 2] * 2

    def build(B=2, T=9):
        return Third(), (torch.randn(B, T),), {}

    with pytest.raises(SizeError, match="T > 2"):
        costir.analyze(build).at(T=1)
