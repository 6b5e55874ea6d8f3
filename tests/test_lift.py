"""Formulas against runs: at any sizes, a formula must give what a run there gives, operator by operator.

The oracle runs the model at the sizes themselves and adds up what each recorded call costs with numbers for shapes; nothing is
matched or fitted. It shares the recorder and the cost rules with the code, which have tests of their own.
"""

from __future__ import annotations

import random

import pytest
from families import MODELS, Model, Sizes, load_all

import costir
from costir import trace
from costir.cost import cost_of
from costir.errors import CostirError
from costir.load.subject import family_of

load_all()
RIGHT = [n for n, m in MODELS.items() if not m.refused]
REFUSED = [n for n, m in MODELS.items() if m.refused]


def counted(model: Model, sizes: Sizes) -> tuple[float, float, float, int]:
    """Contraction FLOPs, all FLOPs, bytes and parameters of a run at these sizes."""
    run = trace.run(family_of(model.build, sizes), sizes, model.phase)
    costs = [cost_of(trace.concrete(e))[0] for e in run.events]
    weights = [w.tensor.shape for w in run.weights if w.tensor.role == "weight"]
    params = sum(_product(shape) for shape in weights)
    return float(sum(c.matmul for c in costs)), float(sum(c.flops for c in costs)), float(sum(c.nbytes for c in costs)), params


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for d in shape:
        result *= int(d)
    return result


def said(analysis: costir.Analysis, sizes: Sizes) -> tuple[float, float, float, int]:
    at = analysis.at(**sizes)
    return float(at.matmul_flops), float(at.flops), float(at.bytes), at.params


@pytest.mark.parametrize("name", RIGHT)
def test_formulas_give_what_runs_give(name: str) -> None:
    model = MODELS[name]
    analysis = costir.analyze(model.build, phase=model.phase)
    assert not analysis.unknown
    for sizes in ({}, *model.points):
        full = {**model.base, **sizes}
        assert said(analysis, full) == counted(model, full), full
    draw = random.Random(name)
    drawn = [{n: draw.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16)) for n in model.base} for _ in range(2)]
    for sizes in (*model.outside, *drawn):
        full = {**model.base, **sizes}
        try:
            got = said(analysis, full)
            want = counted(model, full)
        except CostirError:
            continue  # refused, or sizes that the model does not accept
        assert got == want, full


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_size_determines_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(CostirError) as caught:
        costir.analyze(MODELS[name].build)
    assert MODELS[name].refused in str(caught.value)
    assert caught.value.hint


# The answer may not depend on where the model was looked at: equal sizes, sizes of 1, primes, multiples of each other.
BASES = [
    ("equal_base_sizes", {"B": 1, "T": 4, "D": 8}),
    ("equal_base_sizes", {"B": 7, "T": 7, "D": 7}),
    ("ones_at_base", {"B": 2, "D": 2}),
    ("short_or_long", {"B": 12, "T": 12, "D": 12}),
    ("clamped_to_positions", {"B": 3, "T": 40, "M": 9, "D": 3}),
    ("padded_windows", {"B": 2, "T": 20, "W": 5}),
    ("padded_windows", {"B": 5, "T": 7, "W": 7}),
    ("half_width", {"B": 4, "D": 9}),
    ("fused_qkv", {"B": 2, "T": 2, "N": 4, "K": 4, "H": 4}),
    ("patch_embedding", {"B": 2, "I": 12, "P": 2, "D": 2}),
    ("cache_and_new", {"B": 1, "T": 1, "S": 8}),
    ("even_width", {"B": 3, "D": 15}),
    ("every_third_wide", {"B": 2, "T": 2, "L": 13, "D": 4}),
    ("widest_of_two", {"B": 2, "A": 9, "C": 3}),
    ("library_attention", {"B": 2, "T": 4, "D": 4}),
]


@pytest.mark.parametrize(("name", "base"), BASES)
def test_any_base_gives_the_same_numbers(name: str, base: Sizes) -> None:
    model = MODELS[name]
    analysis = costir.analyze(model.build, sizes=base, phase=model.phase)
    assert said(analysis, base) == counted(model, base)
    right = 0
    for sizes in model.points:
        try:
            got = said(analysis, sizes)
        except CostirError:
            continue
        assert got == counted(model, {**base, **sizes}), sizes
        right += 1
    assert right


def _constraints(name: str) -> list[str]:
    return [
        str(c.condition) if "%" not in str(c) else str(c).split(" (")[0] for c in costir.analyze(MODELS[name].build).constraints
    ]


def test_a_quotient_that_the_model_rounds_asks_for_nothing() -> None:
    assert _constraints("half_width") == []
    assert "floor(D/2)" in str(costir.analyze(MODELS["half_width"].build).matmul_flops)


def test_a_quotient_that_must_be_whole_is_a_condition() -> None:
    assert _constraints("packed_int4") == ["D % 2 == 0"]
    assert _constraints("shifted_windows") == ["I % W == 0"]


def test_a_pinned_size_says_what_was_tried() -> None:
    pinned = [c for c in costir.analyze(MODELS["halving_loop"].build).constraints if str(c.condition) == "Eq(T, 16)"]
    assert len(pinned) == 1
    assert "families_loops.py" in pinned[0].source


def test_tied_sizes_follow_each_other() -> None:
    assert [str(c.condition) for c in costir.analyze(MODELS["width_is_heads_times_head"].build).constraints] == ["Eq(D, H*N)"]


def test_routing_is_noted() -> None:
    notes = costir.analyze(MODELS["routed_experts"].build).notes
    assert any("balanced" in n and "families_data.py" in n for n in notes)


def test_a_small_model_needs_few_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    original = trace.run
    monkeypatch.setattr(trace, "run", lambda *a, **k: runs.append(1) or original(*a, **k))
    costir.analyze(MODELS["prime_sizes"].build)
    assert len(runs) <= 6
