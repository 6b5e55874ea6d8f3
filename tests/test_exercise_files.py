"""Banks, grade files and state files that nobody vouches for: what is refused, and in which words."""

from __future__ import annotations

import time

import pytest

from costir import cli
from costir.errors import CostirError
from costir.exercises.catalog import Bank


@pytest.fixture(autouse=True)
def _own_state(monkeypatch, tmp_path):
    monkeypatch.setenv("COSTIR_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = cli.main(["exercise", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def bank_of(folder, part, symbols="{a: rows, b: columns}", name="my.yaml", more=""):
    """A bank of one exercise, my.1, with one part."""
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / name
    path.write_text(
        f"exercises:\n- id: my.1\n  prompt: A question\n  symbols: {symbols}\n  parts:\n  - {part}\n{more}", encoding="utf-8"
    )
    return path


def derived(subject):
    return f'{{id: p, kind: formula, derive: {{let: {{f: {{subject: "{subject}", quantity: flops}}}}}}}}'


def refused(found, *words):
    code, out, err = found
    assert (code, out) == (2, "")
    assert err.startswith("costir: ")
    assert "internal" not in err
    for word in words:
        assert word in err, err
    return err


# ---------------------------------------------------------------------------------------------- what a bank may make run

SPY = """
from pathlib import Path
Path({mark!r}).write_text("ran")
import torch
class Twice(torch.nn.Module):
    def forward(self, x):
        return x + x
def twice(B: int = 64):
    return Twice(), (torch.empty(B, 3),), {{}}
"""


@pytest.fixture
def spy(tmp_path):
    """A Python file beside the folder of the bank, and the mark that it leaves when it is run."""
    mark, file = tmp_path / "mark", tmp_path / "spy.py"
    file.write_text(SPY.format(mark=str(mark)))
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / "inside.py").write_text(file.read_text())
    (tmp_path / "bank" / "link.py").symlink_to(file)
    (tmp_path / "bank" / "[x].py").write_text(file.read_text())
    return mark


@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("subject", ["{up}/spy.py:twice", "../spy.py:twice", "link.py:twice", "{up}/bank/[x].py:twice"])
def test_files_outside_the_folder_of_a_bank_are_never_run(run, tmp_path, spy, subject, trust):
    bank = bank_of(tmp_path / "bank", derived(subject.format(up=tmp_path)))
    options = ["--bank", bank, *(["--trust"] if trust else [])]
    for verb in (["check", "my.1", "1"], ["solution", "my.1"], ["list"]):
        refused(run(*verb, *options), "my.1", "subject")
    assert not spy.exists()


def test_python_files_are_run_where_the_bank_is_trusted(run, tmp_path, spy):
    bank = bank_of(tmp_path / "bank", derived("inside.py:twice"), "{B: batch}")
    for verb in (["check", "my.1", "1"], ["solution", "my.1"], ["list"]):
        refused(run(*verb, "--bank", bank), "inside.py", "--trust")
    with pytest.raises(CostirError, match="trusted"):
        Bank(bank)
    assert not spy.exists()
    assert run("check", "my.1", "3B", "--bank", bank, "--trust")[0] == 0
    assert spy.exists()
    assert Bank(bank, trusted=True).find("my.1")


def test_a_config_beside_a_bank_needs_no_trust(tmp_path):
    bank = bank_of(tmp_path, derived("config.json"))
    assert Bank(str(bank)).find("my.1")


# ------------------------------------------------------------------------------------------------------------- no hanging


@pytest.mark.parametrize(
    "number", ["'1e99999999'", "'1e-99999999'", "'1_0e1_00_000_00'", "'1e+000999999999'", "0x1" + "0" * 9000]
)
def test_huge_numbers_are_refused_before_they_are_made(run, tmp_path, number):
    for part in (f"{{id: p, kind: number, answer: a, with: {{a: {number}}}}}",):
        refused(run("list", "--bank", bank_of(tmp_path, part)), "number", "my.1")
    bank = bank_of(tmp_path, "{id: p, kind: number, answer: a}", f"{{a: {{en: rows, value: {number}}}}}")
    refused(run("list", "--bank", bank), "number", "my.1")


GROWING = ("ab", "bc", "cd", "de", "ef", "fg")


@pytest.mark.parametrize(
    "derive",
    [
        'let: {a: "9^60", b: "a^60", c: "b^60", d: "c^60", e: "d^60"}',
        'let: {a: "x^60", b: "a^60", c: "b^60", d: "c^60", e: "d^60"}',
        "let: {a: x + 1, " + ", ".join(f"{n}: {'*'.join(f'({p}+{i})' for i in range(1, 9))}" for p, n in GROWING) + "}",
        'let: {a: "(x + y + 1)^40", b: "(x + 2*y + 3)^41"}, cross: [a, b], for: x',
        'let: {f: {subject: "X[a,b] . Y[b,c]", quantity: flops}, g: "f^40", h: "g^40", i: "h^40"}, rename: {a: 7^60}',
    ],
)  # fmt: skip
def test_derivations_that_would_grow_without_bound_are_refused(run, tmp_path, derive):
    bank = bank_of(tmp_path, f"{{id: p, kind: formula, derive: {{{derive}}}}}", "{x: rows, y: columns}")
    started = time.process_time()
    refused(run("check", "my.1", "1", "--bank", bank), "too large", "my.1")
    assert time.process_time() - started < 10
