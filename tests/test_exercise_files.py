"""Banks, grade files and state files that nobody vouches for: what is refused, and in which words."""

from __future__ import annotations

import csv
import io
import json
import time

import pytest
from exercise_banks import bank_of, derived, refused

from costir.errors import CostirError
from costir.exercises.catalog import Bank, built_in
from costir.exercises.grade import grade
from costir.hardware import CHIPS

pytestmark = pytest.mark.usefixtures("own_state")


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
def test_files_outside_the_folder_of_a_bank_are_never_run(exercise, tmp_path, spy, subject, trust):
    bank = bank_of(tmp_path / "bank", derived(subject.format(up=tmp_path)))
    options = ["--bank", bank, *(["--trust"] if trust else [])]
    for verb in (["check", "my.1", "1"], ["solution", "my.1"], ["list"]):
        refused(exercise(*verb, *options), "my.1", "subject")
    assert not spy.exists()


@pytest.mark.parametrize("parallel", ["data=X,inside.py:twice", "data=X,{up}/spy.py:twice", "dp=X,", "inside.py:twice"])
def test_what_runs_along_a_mesh_is_named_and_no_file(exercise, tmp_path, spy, parallel):
    """On the command line --parallel may name a function of a file."""
    of = f'subject: config.json, mesh: {{X: 4}}, parallel: "{parallel.format(up=tmp_path)}", quantity: flops'
    bank = bank_of(tmp_path / "bank", f"{{id: p, kind: formula, derive: {{let: {{f: {{{of}}}}}}}}}")
    for verb in (["check", "my.1", "1"], ["verify"], ["list"]):
        refused(exercise(*verb, "--bank", bank, "--trust"), "my.1", "let.f")
    assert not spy.exists()


def test_python_files_are_run_where_the_bank_is_trusted(exercise, tmp_path, spy):
    bank = bank_of(tmp_path / "bank", derived("inside.py:twice"), "{B: batch}")
    for verb in (["check", "my.1", "1"], ["solution", "my.1"], ["list"]):
        refused(exercise(*verb, "--bank", bank), "inside.py", "--trust")
    with pytest.raises(CostirError, match="trusted"):
        Bank(bank)
    assert not spy.exists()
    assert exercise("check", "my.1", "3B", "--bank", bank, "--trust")[0] == 0
    assert spy.exists()
    assert Bank(bank, trusted=True).find("my.1")


def test_chip_files_lie_in_the_folder_of_a_bank(exercise, tmp_path):
    (tmp_path / "bank").mkdir()
    text = (CHIPS / "tpu_v5e.toml").read_text(encoding="utf-8")
    for path in (tmp_path / "bank" / "mine.toml", tmp_path / "other.toml"):
        path.write_text(text, encoding="utf-8")
    one = '{{id: p, kind: number, derive: {{let: {{w: {{chip: "{}", quantity: memory.bandwidth}}}}}}}}'
    bank = bank_of(tmp_path / "bank", one.format("mine.toml"))
    assert exercise("check", "my.1", "8.2e11", "--bank", bank)[0] in (0, 1)
    assert exercise("verify", "--bank", bank)[0] == 0
    for name in ("../other.toml", tmp_path / "other.toml", "/etc/passwd"):
        refused(exercise("list", "--bank", bank_of(tmp_path / "bank", one.format(name))), "chip", "outside")


def test_a_config_beside_a_bank_needs_no_trust(tmp_path):
    bank = bank_of(tmp_path, derived("config.json"))
    assert Bank(str(bank)).find("my.1")


# ------------------------------------------------------------------------------------------------------------- no hanging


@pytest.mark.parametrize(
    "number", ["'1e99999999'", "'1e-99999999'", "'1_0e1_00_000_00'", "'1e+000999999999'", "0x1" + "0" * 9000]
)
def test_huge_numbers_are_refused_before_they_are_made(exercise, tmp_path, number):
    for part in (f"{{id: p, kind: number, answer: a, with: {{a: {number}}}}}",):
        refused(exercise("list", "--bank", bank_of(tmp_path, part)), "number", "my.1")
    bank = bank_of(tmp_path, "{id: p, kind: number, answer: a}", f"{{a: {{en: rows, value: {number}}}}}")
    refused(exercise("list", "--bank", bank), "number", "my.1")


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
def test_derivations_that_would_grow_without_bound_are_refused(exercise, tmp_path, derive):
    bank = bank_of(tmp_path, f"{{id: p, kind: formula, derive: {{{derive}}}}}", "{x: rows, y: columns}")
    started = time.process_time()
    refused(exercise("check", "my.1", "1", "--bank", bank), "too large", "my.1")
    assert time.process_time() - started < 10


# ------------------------------------------------------------------------------------------- what is in a file of answers

HEAD = "student,id,part,answer\n"


def graded(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return [(r.student, r.verdict.exercise, r.verdict.part, r.verdict.answer, r.verdict.right) for r in grade(path, "en").rows]


ROW = ("Ada", "seed.q_dot", "bytes", "4n+2", True)


@pytest.mark.parametrize("text", [
    "student,id,part,answer\nAda,seed.q_dot,bytes,4n+2\n", "student;id;part;answer\nAda;seed.q_dot;bytes;4n+2\n",
    "student\tid\tpart\tanswer\nAda\tseed.q_dot\tbytes\t4n+2\n", "学生,题号,小题,答案\nAda,seed.q_dot,bytes,4n+2\n",
    "\n\nstudent,id,part,answer,,\nAda,seed.q_dot,bytes,4n+2,,\n", "姓名;题号;小问;作答\r\nAda;seed.q_dot;bytes;4n+2\r\n",
    '"student";"id";"part";"answer"\r"Ada";"seed.q_dot";"bytes";"4n+2"\r',
])  # fmt: skip
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
def test_what_spreadsheets_save_is_read(tmp_path, text, encoding):
    assert graded(tmp_path / "a.csv", text.encode(encoding)) == [ROW]
    assert graded(tmp_path / "a.tsv", text.encode(encoding)) == [ROW]


def test_utf_16_is_read_in_every_format(exercise, tmp_path):
    assert graded(tmp_path / "a.yaml", "Ada: {seed.q_dot: {bytes: 4n+2}}".encode("utf-16")) == [ROW]
    assert graded(tmp_path / "a.json", '{"Ada": {"seed.q_dot": {"bytes": "4n+2"}}}'.encode("utf-16")) == [ROW]
    (tmp_path / "b.csv").write_bytes(b"\xff\xfea")
    refused(exercise("grade", tmp_path / "b.csv"), "UTF-16")


def test_commas_of_an_answer_in_the_last_column_are_its_own(tmp_path):
    found = graded(tmp_path / "a.csv", HEAD + "X,rl.q1,lower,max(2BDF/C,(BD+DF+BF)/W)\nY,rl.q1,lower,1,\nZ,rl.q1,lower\n")
    assert [f[3] for f in found] == ["max(2BDF/C,(BD+DF+BF)/W)", "1", ""]
    assert found[0][4]


def test_commas_of_an_answer_in_another_column_are_refused(exercise, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,part,answer,student\nrl.q1,lower,1,X\nrl.q1,lower,max(2BDF/C,(BD+DF+BF)/W),X\n")
    refused(exercise("grade", path), "line 3", "quotes")
    path.write_text("id,answer,answer\nrl.q1,1,2\n")
    refused(exercise("grade", path), "two columns", "answer")


@pytest.mark.parametrize(("name", "text", "words"), [
    ("a.yaml", "Ada:\n  rl.q2: 1\nBo:\n  rl.q2: 2\nAda:\n  rl.q1: 3\n", ("'Ada'", "line 5", "twice")),
    ("a.yaml", "Ada: {rl.q1: {read: 1, 'read': 2}}", ("'read'", "line 1", "twice")),
    ("a.yaml", "- {id: rl.q1, answer: [1, 1], part: b, answer: 2}", ("'answer'", "twice")),
    ("a.json", '{"Ada": {"rl.q2": 1}, "Ada": {"rl.q1": 2}}', ("'Ada'", "twice")),
])  # fmt: skip
def test_a_key_that_is_there_twice_is_refused(exercise, tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    refused(exercise("grade", tmp_path / name), *words)


def test_values_that_are_the_same_are_no_keys(tmp_path):
    text = "- {student: Ada, id: seed.q_dot, part: bytes, answer: Ada}\n- {student: Ada, id: seed.q_dot, answer: [Ada, Ada]}"
    assert len(graded(tmp_path / "a.yaml", text)) == 2
    assert len(graded(tmp_path / "b.yaml", "Ada: {rl.q1: rl.q1}\nBo: {rl.q1: {rl: Ada, Ada: rl}}")) == 3


ESCAPES = "\x1b]0;gone\x07\x9b31m\x7f\u202e"


def test_no_control_character_reaches_the_terminal(exercise, tmp_path):
    escaped = json.dumps(ESCAPES)
    csv_file, json_file, yaml_file = (tmp_path / f"a.{s}" for s in ("csv", "json", "yaml"))
    csv_file.write_text(f"{HEAD}Ada{ESCAPES},rl.q2,{ESCAPES},{ESCAPES}1\n", encoding="utf-8")
    json_file.write_text(f'{{"Ada": {{"rl.q2": {escaped}}}, {escaped}: {{"rl.q2": 1}}}}')
    yaml_file.write_text(f"Ada: {{rl.q2: {escaped}}}\n{escaped}: {{rl.q2: 1}}\n")
    bank = bank_of(
        tmp_path, f"{{id: p, kind: number, answer: 1, ask: {escaped}}}", f"{{a: {escaped}}}", more=f"  hints: [{escaped}]\n"
    )
    files, kinds = (csv_file, json_file, yaml_file), ("text", "csv", "markdown")
    shown = [exercise("grade", f, "--all", "--format", k) for f in files for k in kinds]
    shown += [exercise(verb, "my.1", "--bank", bank) for verb in ("show", "hint", "solution")]
    for code, out, err in shown:
        assert code in (0, 1)
        assert len(out) > 20
        assert not set(out + err) & set(ESCAPES[:1] + "\x07\x9b\x7f\u202e")


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", " =1"])
def test_a_spreadsheet_runs_nothing(exercise, tmp_path, text):
    records = [{"student": "Bo", "id": "rl.q2", "answer": a} for a in (text, "-1.5e3")]
    (tmp_path / "a.json").write_text(json.dumps([{**records[0], "student": text}, records[1]]))
    rows = list(csv.reader(io.StringIO(exercise("grade", tmp_path / "a.json", "--format", "csv")[1])))
    assert rows[1][0] == rows[1][3] == f"'{text}"
    assert rows[2][0:4:3] == ["Bo", "-1.5e3"]


# --------------------------------------------------------------------------------------------------------------- progress


def state_file(tmp_path, text=None):
    path = tmp_path / "state" / "exercises.json"
    if text is not None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("count", "said"), [("-5", "1 of"), ("1e400", "of"), ("-Infinity", "1 of"), ("NaN", "1 of"), ("1", "2 of")]
)
def test_any_number_of_hints_seen_is_taken(exercise, tmp_path, count, said):
    state_file(tmp_path, f'{{"right": {{}}, "hints": {{"rl.q2": {count}}}}}')
    for _ in range(2):
        code, out, err = exercise("hint", "rl.q2")
        assert (code, err) == (0, "")
        assert said in out
        said = "of"


@pytest.mark.parametrize(
    "text", ['{"right": {"rl.q2": ["ti', "[]", '{"right": {}}', '{"right": {}, "hints": {"a": "x"}}', "[" * 100_000, ""]
)
def test_a_broken_state_file_is_put_aside_and_said_once(exercise, tmp_path, text):
    path = state_file(tmp_path, text)
    aside = path.with_name("exercises.json.broken")
    assert str(aside) in exercise("check", "rl.q2", "120.12")[2]
    assert aside.read_text() == text
    assert "rl.q2" in path.read_text()
    assert exercise("next")[2] == ""
    path.write_text("{")
    exercise("next")
    assert (aside.read_text(), path.with_name("exercises.json.broken2").read_text()) == (text, "{")


def test_banks_do_not_share_progress(exercise, tmp_path):
    ours = [bank_of(tmp_path / f, "{id: p, kind: number, answer: 2}") for f in "xy"]
    for path in ours:
        path.write_text(path.read_text().replace("my.1", "rl.q2").replace("id: p,", f"id: {BUILT_IN.parts[0].ident},"))
    done = lambda *more: [
        e["done"] for e in json.loads(exercise("list", "--format", "json", *more)[1])["exercises"] if e["id"] == "rl.q2"
    ]
    assert exercise("check", "rl.q2", "2", "--bank", ours[0])[0] == 0
    assert (done("--bank", ours[0]), done("--bank", ours[1]), done()) == ([True], [False], [False])
    assert exercise("check", "rl.q2", "120.12")[0] == 0
    assert (done("--bank", ours[1]), done()) == ([False], [True])
    ours[0].write_text(ours[0].read_text() + "  hints: [one, two]\n")
    exercise("hint", "rl.q2")
    assert "1 " in exercise("hint", "rl.q2", "--bank", ours[0])[1]
    assert "two" in exercise("hint", "rl.q2", "--bank", ours[0].parent / ".." / "x" / "my.yaml")[1]


BUILT_IN = built_in().find("rl.q2")


@pytest.mark.parametrize("number", ["0", "-1"])
def test_hints_are_counted_from_1(exercise, number):
    refused(exercise("hint", "rl.q1", number), f"no hint {number}")


@pytest.mark.parametrize("verb", ["show", "hint", "solution", "check"])
def test_a_part_that_there_is_not_is_refused_by_every_verb(exercise, verb):
    refused(exercise(verb, "rl.q1.zzz"), "zzz", "its parts")
    if verb != "check":
        assert exercise(verb, "rl.q1.read")[0] == 0
