"""Critical sizes lie where the formulas hold. A scan over the sizes that a model can have says which there are."""

from fractions import Fraction

import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from costir.crossing import Domain
from costir.document import change, threshold_facts
from costir.hardware import load_chip
from costir.ir import Call, Constraint, Conventions, Cost, Costed, Graph, Node
from costir.solve import thresholds
from costir.substitute import substituted
from costir.symbolic import Integer, evaluate, size

B, T, D, F, S = (size(n) for n in "BTDFS")
V5E = load_chip("tpu_v5e@book")
C, W = Fraction(V5E.matmul_rate("bfloat16")), Fraction(V5E.memory_bandwidth)
LONGEST = Constraint(sp.Le(T, 300), "the model's longest")


def node(matmul, moved, name="mm"):
    cost = Cost(matmul=sp.expand(matmul), read=sp.expand(moved), math="bfloat16")
    return Node(Call(f"aten.{name}.default", {}, (), path=name), cost, name)


def linear(d=D, f=F):
    return node(2 * B * T * d * f, 2 * (B * T * d + d * f + B * T * f))


def attention(d=D):
    return node(4 * B * T**2 * d, 8 * B * T * d + B * T, "attention")


def model(nodes, sizes, *constraints):
    return Costed(Graph("m", sizes, (), constraints=constraints), tuple(nodes), Conventions())


def flips(costed, name, values):
    """The values at which the sign of compute minus memory time differs from that of the value before."""
    point = {size(n): v for n, v in costed.graph.sizes.items() if n != name}
    work = evaluate(sum(n.call.count * n.cost.matmul for n in costed.nodes), point)
    move = evaluate(sum(n.call.count * n.cost.nbytes for n in costed.nodes), point)
    up = [bool(evaluate(work / C - move / W, {size(name): v}) > 0) for v in values]
    return [v for i, v in enumerate(values) if i and up[i] != up[i - 1]]


@settings(max_examples=60, deadline=None)
@given(st.integers(200, 4000), st.integers(200, 4000), st.integers(2, 2500), st.booleans())
def test_one_size_against_a_scan(d, f, longest, with_attention):
    sizes = {"B": 1, "T": 2, "D": d, "F": f}
    costed = model([linear(), *([attention()] if with_attention else [])], sizes, Constraint(sp.Le(T, longest), "its longest"))
    found = thresholds(costed, V5E, "T")[0]
    scanned = flips(costed, "T", range(1, longest + 1))
    if found.at_base is None:
        assert not scanned
        assert found.reason
        assert found.value is None or found.value.free_symbols
    else:
        assert found.at_base <= longest
        assert scanned == ([] if found.at_base > longest - 1 else [int(found.at_base) + 1]) or found.at_base.is_integer()


def test_the_reason_names_value_and_end():
    sizes = {"B": 1, "T": 128, "D": 1024, "F": 1024}
    found = thresholds(model([linear()], sizes, LONGEST), V5E, "T")[0]
    assert found.reason == "by these formulas it would be at T = 452.6, outside T <= 300 (the model's longest)"
    assert (found.at_base, found.within) == (None, "T <= 300")
    assert change(found, 128) == "not within T <= 300"
    assert thresholds(model([linear()], sizes), V5E, "T")[0].at_base == pytest.approx(452.6, abs=0.05)


def test_a_product_moves_by_the_factor_that_can():
    """452.6 tokens are a batch of 2 with T below 300; with the batch fixed too there are none."""
    sizes = {"B": 1, "T": 128, "D": 1024, "F": 1024}
    assert thresholds(model([linear()], sizes, LONGEST), V5E, "tokens")[0].at_base == pytest.approx(452.6, abs=0.05)
    both = model([linear()], sizes, LONGEST, Constraint(sp.Le(B, 1), "its largest"))
    found = thresholds(both, V5E, "tokens")[0]
    assert found.at_base is None
    assert "outside" in found.reason
    wide = model([linear()], sizes, LONGEST, Constraint(sp.Le(B, 2), "its largest"))
    assert thresholds(wide, V5E, "tokens")[0].at_base is not None


@pytest.mark.parametrize(("b", "t", "value"), [(7, 50, 350), (7, 50, 351), (3, 1, 3), (3, 1, 4), (16, 16, 200)])
def test_reachable_products(b, t, value):
    domain = Domain((Constraint(sp.Le(B, b)), Constraint(sp.Le(T, t))), {"B": 1, "T": 1})
    assert (domain.unreachable(("B", "T"), Fraction(value)) is None) == (value <= b * t)


def test_a_batch_solves_where_the_length_cannot():
    """Attention's intensity depends on T alone: with T at most 300 no batch makes it compute-bound."""
    sizes = {"B": 1, "T": 128, "D": 4096, "F": 4096}
    narrow = thresholds(model([attention()], sizes, LONGEST), V5E, "tokens")[0]
    assert narrow.at_base is None
    assert "however large B is" in narrow.reason or "B cancels" in narrow.reason
    assert "outside T <= 300" in narrow.reason
    assert thresholds(model([attention()], sizes), V5E, "tokens")[0].at_base == pytest.approx(480.6, abs=0.1)


def test_a_size_without_a_value_of_its_own():
    sizes = {"B": 1, "T": 128, "D": 1024, "F": 1024, "S": 128}
    pinned = Constraint(sp.Eq(T, Integer(128), evaluate=False), "for other values of T, the model branches")
    found = thresholds(model([linear()], sizes, pinned), V5E, "T")[0]
    assert found.at_base is None
    assert found.reason.startswith("the formulas hold only where T == 128")
    follows = Constraint(sp.Eq(S, T, evaluate=False), "the model asks for it")
    assert "S == T" in thresholds(model([linear()], sizes, follows), V5E, "S")[0].reason
    assert thresholds(model([linear()], sizes, follows), V5E, "T")[0].at_base == pytest.approx(452.6, abs=0.05)


def test_a_branch_and_a_search():
    stepped = node(2 * B * sp.ceiling(T / 64) * 64 * 1024**2, 2 * (B * T * 2048 + 1024**2))
    sizes = {"B": 1, "T": 128, "D": 1024}
    assert thresholds(model([stepped], sizes), V5E, "T")[0].at_base > 300
    assert thresholds(model([stepped], sizes, LONGEST), V5E, "T")[0].within == "T <= 300"
    above = Constraint(sp.Gt(T, 1000), "m.py:7", branch=True)
    found = thresholds(model([linear()], {**sizes, "T": 2000, "F": 1024}, above), V5E, "T")[0]
    assert (found.at_base, found.within) == (None, "T > 1000")


@settings(max_examples=30, deadline=None)
@given(st.integers(100, 3000), st.integers(100, 3000), st.integers(1, 16), st.sampled_from([16, 128, 1024]), st.booleans())
def test_numbers_for_other_sizes_change_no_answer(d, f, b, t, limited):
    costed = model([linear(), attention()], {"B": b, "T": t, "D": d, "F": f}, *([LONGEST] if limited and t < 300 else []))
    kept = substituted(costed, {D: Integer(d), F: Integer(f)})
    for full, short in zip(thresholds(costed, V5E, "tokens"), thresholds(kept, V5E, "tokens"), strict=True):
        assert (full.at_base, full.unknown, full.within) == (short.at_base, short.unknown, short.within)
        solved = full.note.split(";")[0], short.note.split(";")[0]
        assert full.at_base is None or "solved at" not in full.note or solved[0] == solved[1]


def test_the_second_factor_is_said():
    sizes = {"B": 4, "T": 128, "D": 256, "F": 1024}
    found = thresholds(model([linear(), attention()], sizes), V5E, "tokens")[0]
    assert found.at_base is not None
    assert "T solved at B = 4" in found.note
    assert "none in B at T = 128" in found.note
    alone = thresholds(model([linear(), attention()], sizes), V5E, "B")[0]
    assert alone.at_base is None


@pytest.mark.parametrize(("d", "formula"), [(D, True), (480, False)])
def test_none_is_said_in_one_way(d, formula):
    sizes = {"B": 1, "T": 128, "D": 480, "F": 480}
    found = thresholds(model([linear(d, F if formula else 480)], sizes), V5E, "tokens")[0]
    first, *rest = threshold_facts(found, "whole")
    assert first.text.startswith("tokens: none, intensity tops out at ")
    assert any(f.text == "tokens at other sizes" for f in rest) == formula
