"""Matching the calls of traces: every call of every trace is in exactly one item, as often as it ran."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costir.errors import LiftError
from costir.ir import Constraint
from costir.lifting.align import Item, Key, align, fold_path, occurrences, unequal_lists
from costir.lifting.implied import without_implied
from costir.symbolic import size
from costir.tracing.recorder import Event, RawTensor

_LENGTHS = st.lists(st.integers(1, 6), min_size=2, max_size=4, unique=True)


def _event(*shape: int, path: str = "f", op: str = "aten.relu.default", ref: int = 0, source: str = "m.py:1") -> Event:
    x = RawTensor(shape, "float32", (), "activation", ref)
    return Event(op, (("self", x),), (x._replace(ref=ref + 1),), path, source, "forward")


def _align(*traces: list[Event]) -> list[Item]:
    known: dict[Key, Key] = {}
    return align([occurrences(t, lambda k: known.setdefault(k, k)) for t in traces])


def _calls(item: Item, trace: int) -> list[tuple[int, ...]]:
    """The shapes that an item stands for in one trace."""
    if item.ramp is None:
        return [item.ints[trace]] * item.counts[trace]
    *start, rounds = item.ints[trace]
    return [tuple(s + i * d for s, d in zip(start, item.ramp[trace], strict=True)) for i in range(rounds)] * item.counts[trace]


def _covered(items: list[Item], traces: list[list[Event]]) -> None:
    for n, t in enumerate(traces):
        want = sorted((*e.args[0][1].shape, *e.outputs[0].shape) for e in t)
        assert sorted(c for i in items for c in _calls(i, n)) == want


@settings(deadline=None)
@given(st.lists(st.integers(2, 9), min_size=3, max_size=3, unique=True), st.integers(1, 3))
def test_growing_loops_are_covered(lengths: list[int], operands: int) -> None:
    traces = []
    for n in lengths:
        events = []
        for t in range(1, n + 1):
            events += [_event(5, 7 * n + k, ref=10 * t + k) for k in range(operands - 1)]
            events.append(_event(5, t, ref=10 * t + 9))
        traces.append(events)
    _covered(_align(*traces), traces)


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=3), st.integers(1, 3))
def test_layers_are_covered(depths: list[int], kinds: int) -> None:
    traces = [[_event(3 + k, 50 + d, path=f"layers.{i}.f") for i in range(d) for k in range(kinds)] for d in depths]
    _covered(_align(*traces), traces)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=4, unique=True), st.integers(0, 2), st.integers(0, 2), st.integers(2, 4)
)
def test_places_whose_shapes_are_equal_in_one_trace(rounds: list[int], before: int, behind: int, places: int) -> None:
    """What comes once, then rounds of several places, then what comes once: each place is one item, equal or not."""
    traces = []
    for k, n in enumerate(rounds):
        width = (lambda p: 9) if k == 0 else (lambda p, k=k: 100 * k + p)
        ends = [_event(5, 90 + k + i, path="f") for i in range(before + behind)]
        traces.append([*ends[:before], *(_event(5, width(p)) for _ in range(n) for p in range(places)), *ends[before:]])
    items = _align(*traces)
    _covered(items, traces)
    inner = {i.counts for i in items if i.ints[-1][1] >= 100 * (len(rounds) - 1)}
    assert inner == {tuple(rounds)}


def test_the_same_memory_twice_is_another_call() -> None:
    x, y = RawTensor((4, 4), "float32", (), "activation", 1), RawTensor((4, 4), "float32", (), "activation", 2)
    square = Event("aten.mul.Tensor", (("self", x), ("other", x)), (y,), "f", "m.py:1", "forward")
    other = Event("aten.mul.Tensor", (("self", x), ("other", y)), (y._replace(ref=3),), "f", "m.py:1", "forward")
    items = _align([square, other, other], [square, other])
    assert sorted(i.counts for i in items) == [(1, 1), (2, 1)]


def test_what_cannot_be_matched_names_its_line() -> None:
    with pytest.raises(LiftError, match=r"aten.relu at m.py:1 in f"):
        _align([_event(2, 3)], [_event(2, 3, op="aten.gelu.default")])
    with pytest.raises(LiftError, match="follow no formula"):
        _align([_event(1), _event(2), _event(4)], [_event(1), _event(2), _event(4), _event(8)])


def test_paths_without_indices() -> None:
    assert fold_path("model.layers.3.mlp.0") == "model.layers.*.mlp.*"
    assert fold_path("rnn.weight_ih_l12_reverse") == "rnn.weight_ih_l*_reverse"
    assert fold_path("block3.conv1") == "block3.conv1"


def _reduced(*conditions: object) -> list[object]:
    return [c.condition for c in without_implied([Constraint(c) for c in conditions])]  # type: ignore[arg-type]


def test_conditions_that_follow_from_others_are_dropped() -> None:
    import sympy as sp

    T, D, N, B = (size(n) for n in "TDNB")
    divides = lambda a, b: sp.Eq(sp.Mod(a, b, evaluate=False), 0, evaluate=False)
    assert _reduced(sp.Ne(T, 1), sp.Gt(T, 1)) == [sp.Gt(T, 1)]
    assert _reduced(sp.Ge(T, 16), sp.Ge(T, 64)) == [sp.Ge(T, 64)]
    assert _reduced(sp.Lt(T, D), sp.Le(T, D)) == [sp.Lt(T, D)]
    assert _reduced(divides(D, N), divides(B * T * D, N)) == [divides(D, N)]
    assert _reduced(divides(D, 4), divides(D, 2)) == [divides(D, 4)]

    assert _reduced(sp.Gt(T, 1), sp.Gt(D, 1)) == [sp.Gt(T, 1), sp.Gt(D, 1)]
    assert _reduced(sp.Gt(T, 1), sp.Gt(T, 1)) == [sp.Gt(T, 1)]
    assert _reduced(sp.Ge(T, 64), sp.Lt(T, 16)) == [sp.Ge(T, 64), sp.Lt(T, 16)]
    assert _reduced(divides(D, N), sp.Gt(sp.floor(D / N), 8)) == [divides(D, N), sp.Gt(D / N, 8)]


def test_divisibilities_that_follow_from_several_others_are_dropped() -> None:
    import sympy as sp

    B, D, N, V, X, Y = (size(n) for n in "BDNVXY")
    divides = lambda a, b: sp.Eq(sp.Mod(a, b, evaluate=False), 0, evaluate=False)
    plain = [divides(B, X), divides(N, Y), divides(V, X * Y), divides(D, X * Y)]
    joint = [divides(B * N, X * Y), divides(2 * D * V + 98 * D * Y + V, X * Y)]
    assert _reduced(*joint, *plain) == plain
    kept = [divides(B * N, X * Y), divides(B, X), divides(N, X), divides(D + N, X)]  # of Y nothing else is said, nor of D
    assert _reduced(*kept) == kept


def _joined(*widths: int) -> Event:
    parts = tuple(RawTensor((3, w), "float32", (), "activation", i) for i, w in enumerate(widths))
    out = RawTensor((3, sum(widths)), "float32", (), "activation", 9)
    return Event("aten.cat.default", (("tensors", parts), ("dim", 1)), (out,), "f", "m.py:1", "forward")


def test_parts_that_are_equal_by_chance_stay_apart() -> None:
    traces = [[_joined(5, 7)], [_joined(5, 5)]]
    unequal = unequal_lists(traces)
    known: dict[Key, Key] = {}
    (item,) = align([occurrences(t, lambda k: known.setdefault(k, k), unequal) for t in traces])
    assert item.ints == ((3, 5, 3, 7, 1, 3, 12), (3, 5, 3, 5, 1, 3, 10))


def test_lists_of_any_length_become_one_operand() -> None:
    traces = [[_joined(*[5] * n)] for n in (2, 3, 4)]
    unequal = unequal_lists(traces)
    known: dict[Key, Key] = {}
    (item,) = align([occurrences(t, lambda k: known.setdefault(k, k), unequal) for t in traces])
    assert item.ints == tuple((n, 3, 5, 1, 3, 5 * n) for n in (2, 3, 4))
