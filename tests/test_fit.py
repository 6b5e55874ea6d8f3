"""Fitting: an expression evaluated at the probes is found again exactly, or nothing is said; never another one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from costir.lifting.fit import Fitter, UnsureError, independent
from costir.lifting.points import generic, telling
from costir.lifting.steps import Derived, combined, derived
from costir.symbolic import size
from costir.tracing.dims import Dim
from costir.tracing.notes import Step, watch

BASES = [{"B": 2, "T": 12, "D": 16, "N": 4}, {"B": 4, "T": 4, "D": 8}, {"A": 7, "C": 13}, {"B": 3, "T": 20, "D": 60, "N": 5}]
FAR = [{n: 31 + 7 * i + 13 * k for i, n in enumerate("ABCDNT")} for k in range(5)] + [dict.fromkeys("ABCDNT", 60)]


def _points(base: dict[str, int]) -> list[dict[str, int]]:
    return [*next(generic(base, list(base), {}, 1)), base]


def _vector(f: Callable[[dict[str, int]], int], points: list[dict[str, int]]) -> tuple[int, ...]:
    return tuple(f(p) for p in points)


def _value(e: sp.Expr, point: dict[str, int]) -> sp.Expr:
    return e.xreplace({size(n): sp.Integer(v) for n, v in point.items()})


@st.composite
def products(draw: st.DrawFn) -> tuple[dict[str, int], sp.Expr]:
    base = draw(st.sampled_from(BASES))
    e = sp.Integer(draw(st.integers(1, 12)))
    for n in base:
        e *= size(n) ** draw(st.integers(0, 3))
    return base, e


@settings(deadline=None, max_examples=60)
@given(products())
def test_products_are_found_exactly(case: tuple[dict[str, int], sp.Expr]) -> None:
    base, e = case
    points = _points(base)
    found = Fitter(points, list(base)).fit(tuple(int(_value(e, p)) for p in points))
    assert found is not None
    assert sp.expand(found - e) == 0


@settings(deadline=None, max_examples=60)
@given(products(), st.integers(-4, 4))
def test_products_and_a_number_are_found_exactly(case: tuple[dict[str, int], sp.Expr], c: int) -> None:
    base, e = case
    points = _points(base)
    found = Fitter(points, list(base)).fit(tuple(int(_value(e + c, p)) for p in points))
    assert found is not None
    assert sp.expand(found - e - c) == 0


FORMS: list[tuple[str, Callable[..., int]]] = [
    ("a + b", lambda a, b, c: a + b),
    ("a - b", lambda a, b, c: abs(a - b)),
    ("2*a - 1", lambda a, b, c: 2 * a - 1),
    ("a*(a + 1)/2", lambda a, b, c: a * (a + 1) // 2),
    ("a*(a - 1)/2*b", lambda a, b, c: a * (a - 1) // 2 * b),
    ("(a + 2*b)*c", lambda a, b, c: (a + 2 * b) * c),
    ("(a + b)*c", lambda a, b, c: (a + b) * c),
    ("(a + 1)*b", lambda a, b, c: (a + 1) * b),
    ("a//2", lambda a, b, c: a // 2),
    ("ceil(a/3)", lambda a, b, c: -(-a // 3)),
    ("(a//2)*b", lambda a, b, c: a // 2 * b),
    ("2*a + 3*b", lambda a, b, c: 2 * a + 3 * b),
    ("a*b + c", lambda a, b, c: a * b + c),
    ("a**2 + a", lambda a, b, c: a * a + a),
    ("isqrt(a)", lambda a, b, c: math.isqrt(a)),
    ("a % 7", lambda a, b, c: a % 7 + 1),
    ("gcd", lambda a, b, c: math.gcd(a, b)),
    ("bits", lambda a, b, c: a.bit_length()),
    ("a*b % 11", lambda a, b, c: a * b % 11 + 1),
    ("max", lambda a, b, c: max(a, b)),
    ("a ^ b", lambda a, b, c: (a ^ b) + 1),
]
BRANCHED = {"a - b", "max", "gcd", "bits"}  # programs cannot compute these without a comparison, which is a condition
LINEAR = {"a + b", "2*a - 1", "a*(a + 1)/2", "a*(a - 1)/2*b", "(a + 2*b)*c", "(a + b)*c", "(a + 1)*b", "2*a + 3*b", "a**2 + a"}


@pytest.mark.parametrize(("name", "form"), FORMS, ids=[n for n, _ in FORMS])
def test_other_forms_are_found_or_refused_but_never_mistaken(name: str, form: Callable[..., int]) -> None:
    for base, names in [(b, names) for b in BASES if len(b) >= 3 for names in itertools.permutations(b, 3)]:
        f = lambda p, names=names: form(*(p[n] for n in names))
        tuples = list(generic(base, list(base), {}, 0))
        points = [*tuples[0], base, tuples[1][2]]
        try:
            found = Fitter(points, list(base)).fit(_vector(f, points))
            left = []
        except UnsureError as unsure:  # shares that are the same at these points: another point will tell
            found, left = None, list(unsure.forms)
        assert not left or any(all(_value(e, p).doit() == f(p) for p in FAR) for e in left)
        if name in LINEAR:
            assert found is not None
        if found is not None and name not in BRANCHED:
            values = [_value(found, p).doit() for p in FAR]  # a quotient that is not whole lies outside its own condition
            assert all(v == f(p) for v, p in zip(values, FAR, strict=True) if v.is_Integer)


def test_what_the_program_computed_is_taken_exactly() -> None:
    def program(T: int, W: int) -> tuple[int, int, int, int]:
        return (T + W - 1) // W, -T % 8, 8 * ((int(8 * T / 3) + 7) // 8), T // 2 * W

    base = {"T": 21, "W": 4}
    points = [*next(generic(base, ["T", "W"], {}, 0)), base]
    runs: list[tuple[Step, ...]] = []
    for p in points:
        steps: dict[Step, None] = {}
        with watch({}, steps):
            program(Dim(p["T"]), Dim(p["W"]))
        runs.append(tuple(steps))
    fitter = Fitter(points, ["T", "W"], derived(runs))
    columns = list(zip(*(program(p["T"], p["W"]) for p in points), strict=True))
    for i, column in enumerate(columns):
        found = fitter.fit(column)
        assert found is not None
        for p in FAR:
            q = {"T": p["T"], "W": p["N"]}
            assert _value(found, q).doit() == program(**q)[i]


@settings(deadline=None)
@given(st.sampled_from(["+", "-", "*", "//", "%"]), st.integers(1, 300), st.integers(1, 40), st.integers(-3, 3))
def test_steps_as_expressions(op: str, t: int, w: int, c: int) -> None:
    from fractions import Fraction

    left = size("T") + size("W") + c
    plain = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "//": lambda a, b: a // b,
        "%": lambda a, b: a % b,
    }[op]
    e = combined(op, Fraction(1), left, size("W"))
    assert _value(e, {"T": t, "W": w}).doit() == plain(t + w + c, w)


def test_points_that_do_not_tell_sizes_apart_are_not_used() -> None:
    assert not independent({"A": 2, "B": 3}, {"A": 4, "B": 6}, ["A", "B"])
    assert independent({"A": 2, "B": 3}, {"A": 4, "B": 9}, ["A", "B"])


def test_a_step_of_unknown_numbers_says_nothing() -> None:
    points = _points(BASES[2])
    strange = (5, 77, 1, 3)
    fitter = Fitter(points, ["A", "C"], {(9, 8, 7, 6): [Derived("+", sp.Rational(1), strange, (1, 1, 1, 1))]})
    assert fitter.stepped((9, 8, 7, 6)) is None


def test_a_unit_that_the_points_do_not_tell_is_not_guessed() -> None:
    """330, 394 and 8192 are 512, 512 and 8192 in multiples of 256 and of 512 alike; 600 tells them apart."""
    points = [{"F": 495}, {"F": 591}, {"F": 12288}]
    place = "m.py", 1, 1
    steps = derived([[Step(place, "floor", Fraction(2, 3), p["F"], 1, 2 * p["F"] // 3)] for p in points])
    with pytest.raises(UnsureError) as caught:
        Fitter(points, ["F"], steps).fit((512, 512, 8192))
    told = telling(caught.value.forms, points[0], ["F"])
    assert told is not None
    points.append(told)
    for unit in (256, 512):
        steps = derived([[Step(place, "floor", Fraction(2, 3), p["F"], 1, 2 * p["F"] // 3)] for p in points])
        vector = tuple(-(-(2 * p["F"] // 3) // unit) * unit for p in points)
        assert str(Fitter(points, ["F"], steps).fit(vector)) == f"{unit}*ceiling(floor(2*F/3)/{unit})"
