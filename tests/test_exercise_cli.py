"""`costir exercise`: verbs, files, progress, the prompt, grading, banks of one's own that are wrong."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
import time

import pytest

from costir import cli
from costir.exercises import grade
from costir.exercises.catalog import built_in


@pytest.fixture(autouse=True)
def _own_state(monkeypatch, tmp_path):
    monkeypatch.setenv("COSTIR_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")


def run(capsys, *arguments):
    code = cli.main(["exercise", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_list_and_chapters(capsys):
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert all(e in out for e in built_in().exercises())
    code, out, _ = run(capsys, "list", "--chapter", "sh", "--format", "json")
    assert {e["id"].split(".")[0] for e in json.loads(out)["exercises"]} == {"sh"}
    assert run(capsys, "list", "--chapter", "nothing")[0] == 2


def test_show_says_what_is_asked_and_given(capsys):
    code, out, _ = run(capsys, "show", "rl.q2")
    assert code == 0
    assert "1.97e14" in out
    assert "check rl.q2" in out
    assert "批" in run(capsys, "show", "rl.q2", "--lang", "zh")[1]


def test_language_follows_the_locale(capsys, monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert "正确" in run(capsys, "check", "rl.q2", "120.12")[1]


def test_check_exit_codes(capsys):
    assert run(capsys, "check", "rl.q2", "120.12")[0] == 0
    code, out, _ = run(capsys, "check", "rl.q2", "60.06")
    assert code == 1
    assert "halv" in out or "half" in out
    code, out, err = run(capsys, "check", "rl.q99", "1")
    assert (code, out) == (2, "")
    assert "rl.q" in err
    assert run(capsys, "check", "rl.q1.nothing", "1")[0] == 2
    assert run(capsys)[0] == 2


def test_parts_by_name_in_order_and_in_the_id(capsys):
    code, out, _ = run(capsys, "check", "seed.q_dot", "bytes=4n+2", "FLOPs = 2n - 1", "--format", "json")
    assert code == 0
    assert [v["part"] for v in json.loads(out)["verdicts"]] == ["bytes", "flops"]
    assert run(capsys, "check", "seed.q_dot.bytes", "4n+2")[0] == 0
    assert run(capsys, "check", "seed.q_dot", "4n+2", "2n-1", "(2n-1)/(4n+2)", "1/2")[0] == 0
    assert run(capsys, "check", "seed.q_dot", "4n+2", "2n-1", "(2n-1)/(4n+2)", "1/3")[0] == 1


def test_answers_from_a_pipe(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("bytes = 4*n + 2\nFLOPs = n\n"))
    code, out, _ = run(capsys, "check", "seed.q_dot")
    assert code == 1
    assert "multiply-add" in out or "MAC" in out
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run(capsys, "check", "seed.q_dot")[0] == 2


def test_the_prompt_takes_what_a_shell_would_eat(tmp_path):
    parent, child = pty.openpty()
    environment = {**os.environ, "COSTIR_STATE": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "costir.cli", "exercise", "check", "seed.gold1.B_crit", "--lang", "en"],
        stdin=child, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
    )  # fmt: skip
    os.write(parent, b"B > 480\nB > 240\n\x04")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert b"wrong" in out
    os.close(parent)
    os.close(child)


def test_hints_say_more_each_time(capsys):
    said = [run(capsys, "hint", "rl.q2")[1] for _ in range(3)]
    assert "1 of" in said[0]
    assert "2 of" in said[1]
    assert said[0] != said[1]
    assert "1 of" in run(capsys, "hint", "rl.q2", "1")[1]


def test_next_goes_on(capsys):
    first = run(capsys, "next", "--chapter", "rl")[1].split(",")[0]
    assert first == "rl.q1"
    exercise = built_in().find("rl.q1")
    for p in exercise.parts:
        answer = p.answer or next(c.ident for c in p.choices if c.right)
        assert run(capsys, "check", f"rl.q1.{p.ident}", answer)[0] == 0, p.ident
    assert run(capsys, "next", "--chapter", "rl")[1].split(",")[0] == "rl.q2"


def test_progress_that_cannot_be_kept_is_said(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COSTIR_STATE", str(tmp_path / "file" / "below"))
    code, out, err = run(capsys, "check", "rl.q2", "120.12")
    assert code == 0
    assert "right" in out
    assert "progress cannot be kept" in err


def test_a_broken_state_file_is_no_obstacle(capsys, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "exercises.json").write_text('{"right": [1, 2')
    assert run(capsys, "next")[0] == 0


@pytest.mark.parametrize("ident", [e for i, e in enumerate(built_in().exercises()) if i % 7 == 0])
def test_solutions_end_with_the_answers(capsys, ident):
    for lang in ("en", "zh"):
        code, out, _ = run(capsys, "solution", ident, "--lang", lang)
        assert code == 0
        assert all(p.ident in out for p in built_in().find(ident).parts)


# --------------------------------------------------------------------------------------------------------------- grading

ANSWERS = {
    "Ada": {"seed.q_dot": {"bytes": "4n+2", "FLOPs": "2n-1"}, "rl.q2": 120.122},
    "Bo": {"seed.q_dot": {"bytes": "4n", "FLOPs": "n"}, "rl.q2": "60"},
}


def as_csv():
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["student", "id", "part", "answer"])
    for student, answers in ANSWERS.items():
        for ident, given in answers.items():
            for part, answer in given.items() if isinstance(given, dict) else [("", given)]:
                writer.writerow([student, ident, part, answer])
    return out.getvalue()


@pytest.mark.parametrize("suffix", ["json", "yaml", "csv"])
def test_grading_in_every_format(capsys, tmp_path, suffix):
    path = tmp_path / f"answers.{suffix}"
    path.write_text(as_csv() if suffix == "csv" else json.dumps(ANSWERS), encoding="utf-8")
    code, out, _ = run(capsys, "grade", path, "--format", "json")
    assert code == 1
    found = json.loads(out)
    assert found["students"] == {"Ada": {"right": 3, "answered": 3}, "Bo": {"right": 0, "answered": 3}}
    assert all(a["diagnosis"] for a in found["answers"] if a["verdict"] == "wrong")
    code, out, _ = run(capsys, "grade", path)
    assert "Ada" in out
    assert "100 %" in out
    report = tmp_path / "report.csv"
    assert run(capsys, "grade", path, "-o", report)[0] == 1
    assert len(list(csv.reader(report.open()))) == 7


def test_all_right_is_0_and_one_student_needs_no_name(capsys, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("rl.q2: 120.1\nseed.q_dot: {bytes: 4n+2}\n")
    assert run(capsys, "grade", path)[0] == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "a: [b"), ("a.json", "{"), ("a.csv", "x,y\n1,2\n"), ("a.txt", "rl.q2: 1"), ("a.yaml", ""), ("a.yaml", "- 1"),
        ("a.yaml", "a: &x [1]\nb: *x\n"), ("a.yaml", "[" * 5000), ("a.json", "[" * 100000), ("a.yaml", "\0"), ("a.csv", ""),
        ("a.yaml", "!!python/object/apply:os.system ['id']"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_graded(capsys, tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    code, out, err = run(capsys, "grade", path)
    assert (code, out) == (2, "")
    assert err.startswith("costir: ")
    assert "Traceback" not in err
    assert run(capsys, "grade", tmp_path / "none.yaml")[0] == 2


def test_one_bad_answer_does_not_stop_the_others(tmp_path):
    path = tmp_path / "a.csv"
    bad = ["9**9**9**9", "(" * 9999, "no.such", "\U0001f600", "__import__('os')", "x" * 100_000]
    lines = ["id,answer", *(f'rl.q2,"{b}"' for b in bad), "no.such,1", ",", "rl.q2,120.122"]
    path.write_text("\n".join(lines), encoding="utf-8")
    found = grade.grade(path, "en")
    assert [r.verdict.verdict for r in found.rows] == ["unreadable"] * 7 + ["rounding"]


def test_ten_thousand_answers(tmp_path):
    """What costs is what is distinct: students make the same mistakes."""
    path = tmp_path / "a.csv"
    forms = ["4n+2", "4*n", "2(2n+1)", "n", "4n + 2 bytes", "8n", "n+{i}", "1/0"]
    rows = [f"s{i % 100},seed.q_dot,bytes,{forms[i % 8].format(i=i % 40)}" for i in range(10_000)]
    path.write_text("student,id,part,answer\n" + "\n".join(rows))
    started = time.process_time()
    found = grade.grade(path, "en")
    assert len(found.rows) == 10_000
    assert sum(r.verdict.right for r in found.rows) == 3750
    assert time.process_time() - started < 60


# ----------------------------------------------------------------------------------------------------- a bank of one's own

GOOD = """
exercises:
- id: my.1
  prompt: The FLOPs of X[a,b] times Y[b,c]?
  symbols: {a: rows, b: inner, c: columns}
  parts:
  - {id: flops, kind: formula, unit: FLOP, derive: {let: {f: {subject: "X[a,b] . Y[b,c]", quantity: flops}}}}
"""


def test_an_answer_may_be_a_derivation_alone(capsys, tmp_path):
    bank = tmp_path / "my.yaml"
    bank.write_text(GOOD)
    assert run(capsys, "check", "my.1", "2abc", "--bank", bank)[0] == 0
    assert run(capsys, "check", "my.1", "abc", "--bank", bank)[0] == 1
    for verb in (["list"], ["next"], ["show", "my.1"], ["hint", "my.1"], ["solution", "my.1"]):
        assert run(capsys, *verb, "--bank", bank)[0] == 0
    assert "2*a*b*c" in run(capsys, "solution", "my.1", "--bank", bank)[1]


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("kind: formula", "kind: essay", "my.1"), ("id: flops, ", "", "'id'"), ("prompt:", "promt:", "prompt"),
        ("quantity: flops", "quantity: flips", "flips"), ("X[a,b] . Y", "X[a,b . Y", "character"),
        ("id: my.1", "id: my 1", "my 1"),
        ("derive:", "answer: 2*q, derive:", "q"), ("exercises:", "exercise:", "exercise"), ("{a: rows", "{a: *x, b: rows", "*"),
        ("unit: FLOP,", "unit: FLOP, tolerance: 7,", "tolerance"), ("quantity: flops}", "quantity: flops, chip: no}", ""),
    ],
)  # fmt: skip
def test_a_wrong_bank_says_where(capsys, tmp_path, old, new, word):
    bank = tmp_path / "my.yaml"
    assert old in GOOD
    bank.write_text(GOOD.replace(old, new))
    code, out, err = run(capsys, "check", "my.1", "2*a*b*c", "--bank", bank)
    if code == 0:
        assert not word  # a chip that is not needed is not looked up
        return
    assert "Traceback" not in err
    assert word in err + out
    assert code == 2


def test_a_part_may_be_named_with_its_exercise(capsys):
    """As the exercise's own name for it: `rl.q1.read`; an answer for no part says how to name one."""
    assert cli.main(["exercise", "check", "rl.q1", "rl.q1.read=BD+DF", "--lang", "en"]) == 0
    assert "read" in capsys.readouterr().out
    assert cli.main(["exercise", "check", "rl.q1", "foo=1", "--lang", "en"]) == 1
    assert "which one: read=..." in " ".join(capsys.readouterr().out.split())
