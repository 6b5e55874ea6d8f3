"""Sizes as the program sees them: comparisons and arithmetic are noted, results stay those of plain numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from families import MODELS, load_all
from hypothesis import given, settings
from hypothesis import strategies as st

from costir import trace
from costir.load.subject import family_of
from costir.tracing.dims import Dim
from costir.tracing.notes import Guard, Step, watch

load_all()
NUMBER = st.integers(1, 200)


def _compare(guards: dict[Guard, None], a: Dim, b: int) -> list[bool]:
    return [a < b, a <= b, a > b, a >= b, a == b, a != b, a / 3 < b, a < b + 0.5]


@settings(deadline=None)
@given(NUMBER, NUMBER)
def test_comparisons_come_out_as_for_plain_numbers(a: int, b: int) -> None:
    guards: dict[Guard, None] = {}
    with watch(guards):
        assert _compare(guards, Dim(a), b) == [a < b, a <= b, a > b, a >= b, a == b, a != b, a / 3 < b, a < b + 0.5]
    assert len(guards) >= 7
    for g in guards:
        assert {"<": g.left < g.right, "<=": g.left <= g.right, ">": g.left > g.right, ">=": g.left >= g.right,
                "==": g.left == g.right, "!=": g.left != g.right}[g.op] == g.outcome  # fmt: skip


@settings(deadline=None)
@given(NUMBER, NUMBER)
def test_arithmetic_comes_out_as_for_plain_numbers(a: int, b: int) -> None:
    def results(x: int, y: int) -> list[float]:
        quotients = [
            x // y,
            x % y,
            -x % y,
            -(-x // y),
            int(x / y),
            math.ceil(x / y),
            math.floor(8 * x / 3),
            int(x * 2.5),
            7 // x,
            7 % x,
        ]
        return [x + y, x - y, x * y, 3 - x, x**2, x / y, 2 / x, abs(x), *quotients]

    steps: dict[Step, None] = {}
    with watch({}, steps):
        assert results(Dim(a), Dim(b)) == results(a, b)
    for s in steps:
        exact = {"+": s.left + s.right, "-": s.left - s.right, "*": s.left * s.right}
        if s.op in exact:
            assert s.value == exact[s.op]
        elif s.op == "%":
            assert s.value == s.left % s.right
        else:
            q = s.scale * Fraction(s.left, s.right)
            assert s.value == (math.ceil(q) if s.op == "ceil" else math.floor(q))


def test_nothing_is_noted_outside_a_trace() -> None:
    guards: dict[Guard, None] = {}
    with watch(guards):
        pass
    assert Dim(4) < 5
    assert not guards


def _guards(name: str, **sizes: int) -> list[tuple[str, int, int, bool]]:
    model = MODELS[name]
    full = {**model.base, **sizes}
    return [(g.op, g.left, g.right, g.outcome) for g in trace.run(family_of(model.build, full), full).guards]


def test_branches_are_seen_wherever_they_are() -> None:
    assert ("<=", 20, 8, False) in _guards("short_or_long")
    assert (">", 96, 64, True) in _guards("branch_in_constructor")
    assert (">", 40, 64, False) in _guards("branch_on_product")
    assert ("==", 0, 0, True) in _guards("even_width")
    assert ("<=", 32, 10, False) in _guards("clamped_to_positions")  # ids[:, :32] of 10 positions: no operator shows it


@pytest.mark.parametrize("phase", ["forward", "backward", "train"])
def test_runs_are_the_same_every_time(phase: str) -> None:
    model = MODELS["trained_mlp"]
    family = family_of(model.build, {})
    first, second = (trace.run(family, model.base, phase) for _ in range(2))
    assert first.events == second.events
    assert {e.phase for e in first.events} == {"forward": {"forward"}, "backward": {"forward", "backward"},
                                               "train": {"forward", "backward", "optimizer"}}[phase]  # fmt: skip
