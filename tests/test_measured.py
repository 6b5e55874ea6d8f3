"""Rates and times as people type them: exact values, and a sentence for each slip."""

from __future__ import annotations

from fractions import Fraction

import pytest

from costir.errors import CostirError
from costir.measured import measured, parse_rate, parse_time


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("10000tok/s", 10_000, "tok"),
        ("10k tok/s", 10_000, "tok"),
        ("1.2Mtokens/s", 1_200_000, "tok"),
        ("10_000 Tokens/s", 10_000, "tok"),
        ("1e4tok/sec", 10_000, "tok"),
        ("3.2step/s", Fraction(16, 5), "step"),
        ("90it/min", Fraction(3, 2), "step"),
        ("50seq/s", 50, "seq"),
        ("1.5 kimages/s", 1500, "seq"),
        ("2Ktok/s", 2000, "tok"),
        (".5samples/h", Fraction(1, 7200), "seq"),
    ],
)
def test_rates(text, value, unit):
    found = parse_rate(text)
    assert (found.value, found.unit, found.text) == (value, unit, text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120ms", Fraction(3, 25)),
        ("0.1 s", Fraction(1, 10)),
        ("850us/step", Fraction(17, 20_000)),
        ("2min", 120),
        ("7ns", Fraction(7, 10**9)),
    ],
)
def test_times(text, seconds):
    assert (parse_time(text).value, parse_time(text).unit) == (seconds, "s")


@pytest.mark.parametrize(
    ("rate", "time", "says"),
    [
        ("", "", "no rate and no time"),
        ("1tok/s", "1s", "both a rate and a time"),
        ("10000", "", "has no unit; write for example 10000tok/s"),
        ("tok/s", "", "does not begin with a number"),
        ("nan tok/s", "", "does not begin with a number"),
        ("3tik/s", "", "unknown unit 'tik/s'; did you mean tok/s"),
        ("3tok", "", "did you mean tok/s"),
        ("3furlong/s", "", "unknown unit"),
        ("3tok/fortnight", "", "unknown unit"),
        ("0tok/s", "", "is zero"),
        ("-5tok/s", "", "is negative"),
        ("10,000tok/s", "", "comma"),
        ("10tok/s/gpu", "", "one per gpu"),
        ("120ms", "", "is a time; give it as --time 120ms"),
        ("1e400tok/s", "", "no machine"),
        ("1" * 100 + "tok/s", "", "does not begin"),
        ("", "12tok/s", "is a rate; give it as --rate 12tok/s"),
        ("", "3sm", "did you mean"),
        ("", "3ms/tok", "unknown unit"),
        ("", "3", "has no unit"),
        ("", "0ms", "is zero"),
        ("", "-1ms", "is negative"),
        ("", "1e300h", "no machine"),
        (5, "", "rate=5 has no unit"),
    ],
)
def test_measurements_that_cannot_be_read(rate, time, says):
    with pytest.raises(CostirError) as error:
        measured(rate, time)
    assert says in str(error.value)
