"""The formula reader: what it reads, what it refuses and where it points, and that nothing ever escapes but FormulaError."""

import random
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costir.errors import FormulaError
from costir.formula import parse_formula
from costir.symbolic import evaluate, size

NAMES = ("B", "D", "F", "T", "C", "W", "L", "N", "G", "Bk")
POINT = {"B": 3, "D": 5, "F": 7, "T": 11, "C": 13, "W": 17, "L": 19, "N": 23, "G": 29, "Bk": 31}
B, D, F, T, C, W, L, N, G, Bk = (POINT[n] for n in NAMES)

# The value at POINT, computed by Python from the same letters.
READ = [
    ("2*B*D*F", 2 * B * D * F),
    ("2BDF", 2 * B * D * F),
    ("2 B D F", 2 * B * D * F),
    ("2×B·D⋅F", 2 * B * D * F),
    ("２ＢＤＦ", 2 * B * D * F),
    ("B^2", B**2),
    ("B**2D", B**2 * D),
    ("B²D³", B**2 * D**3),
    ("B^{2}D", B**2 * D),
    ("2^BD".replace("B", "3"), 8 * D),
    ("-B^2", -(B**2)),
    ("B^-1", Fraction(1, B)),
    ("2Bk", 2 * Bk),
    ("BBk", B * Bk),
    ("BDF/(BD+DF+BF)", Fraction(B * D * F, B * D + D * F + B * F)),
    ("B(D+F)(D-F)", B * (D + F) * (D - F)),
    ("1/2B", Fraction(1, 2 * B)),
    ("1/2*B", Fraction(B, 2)),
    ("B/D/F", Fraction(B, D * F)),
    ("B÷D", Fraction(B, D)),
    ("B-D-F", B - D - F),
    ("B − D", B - D),
    (r"\frac{2BDF}{C}", Fraction(2 * B * D * F, C)),
    (r"$\dfrac{2 B \cdot D}{\left(C + W\right)}$", Fraction(2 * B * D, C + W)),
    (r"\frac12 B", Fraction(B, 2)),
    (r"2 \times B", 2 * B),
    (r"\left\lceil \frac{T}{4} \right\rceil", 3),
    ("ceil(T/4) + floor(T/4)", 5),
    ("⌈T/4⌉⌊T/4⌋", 6),
    ("max(B, D, F) - min(B, D)", F - B),
    ("sqrt(B^2)", B),
    ("√(B^2)", B),
    ("log2(8) + log_2(16) + log(9)/log(3)", 9),
    ("1e3B", 1000 * B),
    ("1.5e-3", Fraction(3, 2000)),
    ("2 x 10^9", 2 * 10**9),
    ("1,000,000 B", 10**6 * B),
    ("½B", Fraction(B, 2)),
    ("--B", B),
    ("{[(B)]}", B),
    ("max(1, 2)", 2),
]


@pytest.mark.parametrize(("text", "expected"), READ, ids=[t for t, _ in READ])
def test_reads(text, expected):
    found = evaluate(parse_formula(text, NAMES).expr, {size(n): v for n, v in POINT.items()})
    assert abs(Fraction(str(found.evalf(30)) if not found.is_Rational else str(found)) - expected) < Fraction(1, 10**20)


@pytest.mark.parametrize(
    ("text", "lhs", "relation", "shown"),
    [
        ("flops = 2BDF", "flops", "=", "2*B*D*F"),
        ("D >= 2C/W", "D", ">=", "2*C/W"),
        (r"$D \geq \frac{2C}{W}$", "D", ">=", "2*C/W"),
        ("2C/W <= D", "D", ">=", "2*C/W"),
        ("240 < B", "B", ">", "240"),
        ("B ＞ 240", "B", ">", "240"),
        ("critical B = 240", "critical B", "=", "240"),
        ("B* = 240", "critical B", "=", "240"),
        ("B_{crit} ≈ 240", "B_crit", "~", "240"),
        (r"\text{flops} = 2BD", "flops", "=", "2*B*D"),
        ("B == D", "B", "=", "D"),
    ],
)
def test_relation(text, lhs, relation, shown):
    f = parse_formula(text, NAMES)
    assert (f.lhs, f.relation, str(f.expr)) == (lhs, relation, shown)


@pytest.mark.parametrize(
    ("text", "value", "unit", "digits"),
    [
        ("240 FLOP/byte", 240, "FLOP/byte", 3),
        ("9.8 ms", Fraction(98, 10000), "s", 2),
        ("9.8ms", Fraction(98, 10000), "s", 2),
        ("12 us", Fraction(12, 10**6), "s", 2),
        ("12 µs", Fraction(12, 10**6), "s", 2),
        ("16 GiB", 2**34, "byte", 2),
        ("19.30 GFLOP/token", 19300000000, "FLOP/token", 4),
        ("197 TFLOP/s", 197 * 10**12, "FLOP/s", 3),
        ("50%", Fraction(1, 2), "", 2),
        ("(8) bits", 8, "bit", 0),
    ],
)
def test_units(text, value, unit, digits):
    f = parse_formula(text, NAMES)
    assert (Fraction(int(f.expr.p), int(f.expr.q)), f.unit, f.digits) == (value, unit, digits)


def test_a_users_names_win_over_units():
    assert str(parse_formula("4 GB", ("G", "B")).expr) == "4*B*G"
    assert parse_formula("4 GB", ("B",)).unit == "byte"


def test_ambiguous_places_are_said():
    assert parse_formula("1/2B", NAMES).notes == ("/2B is read as /(2B)",)
    assert parse_formula("1/2 B", NAMES).notes
    assert not parse_formula("B/(2D)", NAMES).notes


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        ("2B+*D", 4, "expected a number"),
        ("2*Q", 3, "'Q' is not a size here"),
        ("2*BQD", 4, "'QD' is not a size here, in 'BQD'"),
        ("2*b", 3, "did you mean B?"),
        ("foo(B)", 1, "'foo' is not a size here"),
        ("(B", 3, "expected ')' to close '(' of character 1"),
        ("B)", 2, "unexpected ')'"),
        ("B # D", 3, "unexpected '#'"),
        ("B = D = F", 7, "second relation"),
        ("2B = 3D", 1, "must be a name"),
        ("", 1, "nothing to read"),
        ("flops =", 8, "nothing to read"),
        ("1/0", 2, "division by zero"),
        ("1/(B-B)", 2, "division by zero"),
        ("9**9**9**9", 5, "exponent out of range"),
        ("2^B", 2, "exponent that is no plain number"),
        ("log(0)", 1, "no real value"),
        ("sqrt(-2)", 1, "no real value"),
        ("max(B, 2,000)", 10, "starts with 0"),
        ("1e999", 1, "out of range"),
        (r"B \foo D", 3, "not a command"),
        ("ceil", 1, "expected '('"),
        ("floor(B, D)", 1, "floor of 2 arguments"),
        ("__import__('os')", 12, 'unexpected "\'"'),
        ("B.__class__", 2, "unexpected '.'"),
        ("lambda: B", 7, "unexpected ':'"),
    ],
)
def test_points_at_the_character(text, place, word):
    with pytest.raises(FormulaError) as caught:
        parse_formula(text, NAMES)
    assert word in str(caught.value)
    assert f"at character {place} " in str(caught.value) or (place == 1 and "character" in str(caught.value))
    assert "\n" not in str(caught.value)


def test_exponent_letter_that_is_a_size():
    with pytest.raises(FormulaError, match="two ways"):
        parse_formula("2E3", ("E",))
    assert parse_formula("2E3", ("B",)).expr == 2000


HOSTILE = [
    "(" * 9000,
    "B^" * 4000 + "2",
    "-" * 9000 + "B",
    "B+" * 4900 + "B",
    "B*" * 4900 + "B",
    "(B+D)*" * 1600 + "B",
    "1/(B+D)+" * 1200 + "1",
    "(B+D+F+T)^64",
    "((((((B^64)^64)^64)^64)^64)^64)^64",
    "9" * 9999,
    "max(" * 500 + "B" + ")" * 500,
    "ceil(B)" * 1400,
    "\\frac" * 1900,
    "\\frac{" * 1500,
    "√" * 9000,
    "⌈" * 5000,
    "²" * 9999,
    "B²" * 4000,
    "x" * 9999,
    "B" * 9999,
    "=" * 9999,
    "{" * 9999,
    "1e400*" * 1600 + "1",
    "(1e300)^64",
    "2^64" * 2000,
    "log(" * 30 + "B" + ")" * 30,
    "sqrt(1e399+1)" * 20,
    "max(B+D,max(D+F," * 10 + "1" + "))" * 10,
    "㎳" * 3000,
    "\u200b" * 9999,
    "a" * 10001,
    "_" * 9999,
    "B_{" * 3000,
    ("log_2 " * 1600),
    "(" + "+".join(f"B^{i}D^{j}" for i in range(20) for j in range(20)) + ")^2",
    "floor(log(1e300)^60)" * 20,
    "1.0000000001^64" * 600,
    "1/3+" * 2000 + "1",
    "+".join(f"1/{n}" for n in range(3, 1500)),
    "B D/" * 2000 + "F",
    "+".join(f"B/(D+{n})" for n in range(1000)),
    "!" * 10000,
    "$" * 9999,
    "\\left" * 1900,
    "^" * 500,
    ",1" * 4000,
    "max(" + "1," * 4000 + "1)",
]


def outcome(text, names):
    """The error's text, or "read"."""
    try:
        parse_formula(text, names)
    except FormulaError as e:
        return str(e)
    return "read"


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_read_or_refused_in_a_second(text):
    start = time.process_time()
    for names in (NAMES, None):
        assert len(outcome(text, names)) < 600
    assert time.process_time() - start < 2


ALPHABET = "BDFTCWxe0123456789.,+-*/^(){}[]<>=~%_ √²⁻½×÷·≥⌈⌉⌊⌋\\$'\"\n" + "log max ceil"
PIECES = [
    "B",
    "D",
    "2",
    "0",
    "1e3",
    "+",
    "-",
    "*",
    "/",
    "^",
    "(",
    ")",
    "{",
    "}",
    ",",
    "=",
    ">=",
    "\\frac",
    "\\sqrt",
    "max",
    "log",
    "_2",
    "ceil",
    " ",
    "ms",
    "FLOP/byte",
    "%",
    "²",
    "√",
    "⌈",
    "⌉",
    "\\text{flops}",
    "\\left",
    "9**9",
    "1/",
    "__class__",
    "lambda",
    "if",
    "0x1F",
    "1_0",
]


def only_formula_errors(text):
    for names in (NAMES, None, ()):
        try:
            f = parse_formula(text, names)
        except FormulaError:
            continue
        assert names is None or {str(s) for s in f.expr.free_symbols} <= set(names)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(st.text(max_size=60), st.text(ALPHABET, max_size=60), st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
)
def test_any_text_is_read_or_refused(text):
    only_formula_errors(text)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([t for t, _ in READ]), st.integers(0, 2**32))
def test_mutated_formulas_are_read_or_refused(text, seed):
    rng = random.Random(seed)
    chars = list(text)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(chars) + 1)
        chars[at : at + rng.randint(0, 2)] = rng.choice([rng.choice(ALPHABET), rng.choice(PIECES), ""])
    only_formula_errors("".join(chars))


trees = st.recursive(
    st.one_of(st.sampled_from(NAMES), st.integers(0, 20).map(str)),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, st.integers(0, 3)).map(lambda t: f"({t[0]})**{t[1]}"),
        inner.map(lambda t: f"-({t})"),
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(trees)
def test_python_arithmetic_means_what_python_says(text):
    said = outcome(text, NAMES)
    if said != "read":
        assert "division by zero" in said  # 0**0, which Python calls 1
        return
    f = parse_formula(text, NAMES)
    assert evaluate(f.expr, {size(n): v for n, v in POINT.items()}) == eval(text, {}, dict(POINT))
