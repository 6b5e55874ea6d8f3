"""Faults of a bank that a schema cannot see: found when it is read, or by `costir exercise verify`."""

from __future__ import annotations

import json

import pytest
from exercise_banks import bank_of, derived, refused

from costir.exercises.catalog import built_in
from costir.exercises.vetting import faults

pytestmark = pytest.mark.usefixtures("own_state")

LETTERS = "{B: {en: batch, unit: token}, P: {en: parameters, value: 7e9}, W: {en: bandwidth, unit: byte/s, value: 8.2e11}}"


def part(text):
    return f"{{id: t, {text}}}"


FAULTS = [
    ("kind: formula, answer: 2*Q/W", "'Q'"), ("kind: formula, answer: 2*P/W, mistakes: [{answer: 2*(zz, why: z}]", "mistake 1"),
    ("kind: formula, answer: 2*P/W, mistakes: [{answer: P, why: y}, {answer: 2*zz, why: z}]", "mistake 2"),
    ("kind: formula, answer: B*P/W, limit: zz", "limit"), ("kind: formula, answer: B*P/W, exact: zz", "exact"),
    ("kind: formula, answer: B*P/W, terms: {zz: x}", "zz"), ("kind: formula, answer: B/(P-P)", "zero"),
    ("kind: formula, answer: 2*P/W, slips: [{answer: zz, where: x}]", "slip 1"),
    ("kind: formula, answer: 2*P/W, conventions: [{id: c, answer: zz, name: x}]", "convention c"),
    ("kind: formula, answer: 2*P/W, conventions: [{id: t, answer: 1, name: x}]", "2 parts or conventions"),
    ("kind: bound, answer: 2*P/W", "relation"), ("kind: bound, answer: B = 2*P/W", "relation"),
    ("kind: number, answer: B > 2", "relation"), ("kind: number, answer: 2*B", "B has no value"),
    ("kind: number, answer: P/W, with: {W: 0}", "no value"), ("kind: number, answer: P/W, with: {Z: 1}", "'Z'"),
    ("kind: number, answer: 2*P/W, unit: furlong", "furlong"), ("kind: number, answer: 2 ms, unit: byte", "it is in s"),
    ("kind: number, answer: 2*P/W, unit: ms, tolerance: [20, 22]", "0.01707 ms"),
    ("kind: number, answer: 2*P/W, tolerance: [22, 20]", "range"), ("kind: number", "neither answer nor derive"),
    ("kind: formula, answer: B, limit: B, exact: B", "both"),
    ("kind: choice, choices: [{id: a, text: a, right: true}, {id: a, text: b}]", "twice"),
    ("kind: choice, choices: [{id: a, text: a}, {id: b, text: b}]", "none of them"),
    ("kind: choice, choices: [{id: a, text: a, right: true}, {id: b, text: b, right: true}]", "2 of them"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "word"), FAULTS)
def test_a_fault_is_found_when_the_bank_is_read(exercise, tmp_path, text, word):
    bank = bank_of(tmp_path, part(text), LETTERS)
    verbs = ["list"], ["show", "my.1"], ["check", "my.1", "1"]
    said = {refused(exercise(*verb, "--bank", bank), "my.1", word) for verb in verbs}
    assert len(said) == 1
    assert "is not valid under" not in said.pop()


def test_units_of_symbols_are_looked_at(exercise, tmp_path):
    refused(
        exercise("list", "--bank", bank_of(tmp_path, part("kind: number, answer: 1"), "{a: {en: x, unit: parsec}}")),
        "parsec",
        "symbol a",
    )


WRONG = [
    ("kind: number, answer: 2*P/W, derive: {let: {f: {chip: tpu_v5e@book, quantity: memory.bandwidth}}}", "is derived"),
    ("kind: number, derive: {let: {f: '3', g: f/(f - 3)}}", "has no value"),
    ("kind: number, derive: {let: {f: 2*f}}", "without a value"),
    ("kind: number, derive: {let: {f: {chip: tpu_v5e@book, quantity: zz}}}", "zz"),
    ("kind: formula, answer: 2*P/W, mistakes: [{answer: P*2/W, why: forgot}]", "right answer"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "word"), WRONG)
def test_verify_finds_what_takes_time(exercise, tmp_path, text, word):
    bank = bank_of(tmp_path, part(text), LETTERS)
    assert exercise("list", "--bank", bank)[0] == 0
    code, out, err = exercise("verify", "--bank", bank)
    assert (code, err) == (1, "")
    assert word in out
    assert "faults found: 1, exercises read: 1" in out
    assert "exercise my.1, part" not in out


def test_verify_shows_all_faults(exercise, tmp_path):
    texts = [text for text, word in FAULTS if word not in ("both", "neither answer nor derive", "2 parts or conventions")]
    parts = [f"{{id: t{i}, {text}}}" for i, text in enumerate(texts)]
    code, out, _ = exercise("verify", "--bank", bank_of(tmp_path, "\n  - ".join(parts), LETTERS), "--format", "json")
    assert code == 1
    assert {f["where"].split(",")[0] for f in json.loads(out)["faults"]} == {f"part t{i}" for i in range(len(parts))}
    good = bank_of(tmp_path, derived("X[a,b] . Y[b,c]").replace("derive:", "answer: 2*a*b*c, derive:"), "{a: x, b: y, c: z}")
    assert exercise("verify", "--bank", good) == (0, "no fault found, exercises read: 1\n", "")


def test_the_bank_that_comes_with_costir_has_no_fault_that_is_quickly_seen():
    assert [f for e in built_in().exercises().values() for f in faults(e, trusted=True)] == []


@pytest.mark.parametrize(("unit", "answer", "right"), [
    ("GB", "2*P/1e9", ("14", "14 GB", "1.4e10 bytes")), ("GB", "(2*P) bytes", ("14", "14 GB")),
    ("byte", "2*P", ("1.4e10", "14 GB")), ("GB", "2*P", ("1.4e10", "1.4e10 GB")),
])  # fmt: skip
def test_an_answer_is_in_the_unit_of_the_part(exercise, tmp_path, unit, answer, right):
    """As docs/exercises.md says."""
    bank = bank_of(tmp_path, part(f"kind: number, unit: {unit}, answer: {answer}"), "{P: {en: parameters, value: 7e9}}")
    assert [exercise("check", "my.1", text, "--bank", bank)[0] for text in right] == [0] * len(right)
    assert exercise("check", "my.1", "14e3" if unit == "GB" else "14", "--bank", bank)[0] == 1
