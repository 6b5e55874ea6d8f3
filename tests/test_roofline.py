"""Times on a chip, against arithmetic on plain numbers."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import costir
from costir.errors import ChipError, SizeError
from costir.hardware import load_chip
from costir.ir import Call, Conventions, Cost, Costed, Graph, Node
from costir.roofline import roofline, times
from costir.symbolic import ONE, evaluate, size

B, D, F, L = (size(n) for n in "BDFL")
V5E = load_chip("tpu_v5e@book")
H100 = load_chip("h100")
MATMUL = Cost(matmul=2 * B * D * F, read=2 * (B * D + D * F), write=2 * B * F, math="bfloat16")
RELU = Cost(vector=B * F, special=B * F, read=2 * B * F, write=2 * B * F, math="float32")


def costed(*parts, **sizes):
    graph = Graph("g", sizes, ())
    nodes = tuple(Node(Call("aten.x.default", {}, (), count=count), cost, "x") for cost, count in parts)
    return Costed(graph, nodes, Conventions())


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 10**5), st.integers(1, 10**4), st.integers(1, 10**4))
def test_one_matmul_against_plain_arithmetic(b, d, f):
    t = times(MATMUL, V5E).at({"B": b, "D": d, "F": f})
    compute, memory = 2 * b * d * f / 1.97e14, 2 * (b * d + d * f + b * f) / 8.2e11
    assert t.compute == pytest.approx(compute, rel=1e-12)
    assert t.memory == pytest.approx(memory, rel=1e-12)
    assert t.lower == max(t.compute, t.memory)
    assert t.upper == t.compute + t.memory
    assert t.lower <= t.upper <= 2 * t.lower * (1 + 1e-12)
    # Bound by compute exactly where the intensity is above the ridge.
    assert (t.bound == "compute") == (Fraction(b * d * f, b * d + d * f + b * f) > Fraction(197 * 10**12, 82 * 10**10))


def test_times_are_exact():
    t = times(MATMUL, V5E)
    assert evaluate(t.compute, {B: 1, D: 1, F: 1}) == Fraction(2, 197 * 10**12)
    assert str(t.lower).startswith("Max(")


def test_vector_rate_that_is_not_known_is_said():
    t = times(RELU, dataclasses.replace(V5E, vector=H100.vector.__class__({})))
    assert t.vector == 0
    assert not t.complete
    assert "is not timed" in t.notes[0]


def test_vector_and_special_work_share_the_vector_unit():
    t = times(RELU, H100).at({"B": 1000, "F": 1000})
    assert t.vector == pytest.approx(2e6 / float(H100.vector_rate("float32")))
    assert t.bound == "memory"


def test_totals_are_sums_of_bounds():
    r = roofline(costed((MATMUL, L), (RELU, L), B=64, D=512, F=2048, L=3), H100)
    t = r.at()
    nodes = r.per_node()
    assert len(nodes) == 2
    assert t.lower == pytest.approx(sum(n.lower for n in nodes))
    one = times(MATMUL, H100).at({"B": 64, "D": 512, "F": 2048})
    assert nodes[0].lower == pytest.approx(3 * one.lower)
    assert t.upper == pytest.approx(t.compute + t.vector + t.memory)
    assert t.lower >= max(t.compute, t.vector, t.memory)
    assert r.complete
    assert float(evaluate(r.memory, {B: 64, D: 512, F: 2048, L: 3})) == pytest.approx(t.memory)


def test_the_lower_bound_of_a_model_is_above_each_unit_alone():
    r = roofline(costed((MATMUL, ONE), (RELU, ONE), B=4096, D=4096, F=4096), H100)
    t, nodes = r.at(), r.per_node()
    assert [n.bound for n in nodes] == ["compute", "memory"]
    assert t.lower == pytest.approx(nodes[0].compute + nodes[1].memory)
    assert t.lower > 1.01 * max(t.compute, t.vector, t.memory)


def test_many_sizes_at_once():
    r = roofline(costed((MATMUL, ONE), B=64, D=512, F=2048), V5E)
    sweep = np.array([1, 10, 100, 1000, 10**5, 10**9])
    t = r.at(B=sweep)
    for i, b in enumerate(sweep):
        one = r.at(B=int(b))
        assert (t.lower[i], t.upper[i], t.bound[i]) == (pytest.approx(one.lower), pytest.approx(one.upper), one.bound)


def test_unknown_operators_make_totals_partial():
    r = roofline(costed((MATMUL, ONE), (Cost(status="unknown"), ONE), B=64, D=512, F=2048), V5E)
    assert not r.complete
    assert r.unknown == ("aten.x.default",)


def test_a_type_without_a_rate_is_named():
    odd = dataclasses.replace(MATMUL, math="float64")
    r = roofline(costed((MATMUL, ONE), (odd, ONE), B=64, D=512, F=2048), V5E)
    assert not r.complete
    assert any("float64" in note for note in r.notes)
    with pytest.raises(ChipError, match="float64"):
        roofline(costed((odd, ONE), B=64, D=512, F=2048), V5E)


def test_unknown_size():
    r = roofline(costed((MATMUL, ONE), B=64, D=512, F=2048), V5E)
    with pytest.raises(SizeError, match="unknown size Bx"):
        r.at(Bx=3)
    with pytest.raises(SizeError, match="no value for F"):
        times(MATMUL, V5E).at({"B": 1, "D": 2})


def test_nothing_takes_no_time():
    t = times(Cost(status="free"), V5E).at({})
    assert (t.lower, t.upper, t.bound) == (0, 0, "none")


def test_times_follow_the_branch_that_the_model_takes():
    class Either(nn.Module):
        def __init__(self, D):
            super().__init__()
            self.a, self.b = nn.Linear(D, D), nn.Linear(D, 8 * D)

        def forward(self, x):
            return self.a(x) if x.shape[1] <= 100 else self.b(x)

    def family(B=2, T=20, D=16):
        return Either(D), (torch.zeros(B, T, D),), {}

    on = costir.analyze(family).on("h100")
    again = costir.analyze(family, sizes={"T": 200}).on("h100")
    assert on.at(T=200).lower == pytest.approx(float(again.roofline.at().lower))
    assert on.at(T=100).lower == pytest.approx(float(on.roofline.at(T=100).lower))
    for bad in ({"T": 200}, {"T": np.array([20, 200])}, {"D": 0}, {"B": 1.5}, {"B": -1}):
        with pytest.raises(SizeError):
            on.roofline.at(**bad)
