"""What `costir measure` is asked: refused early and in a sentence, answered in every format."""

from __future__ import annotations

import csv
import io
import math
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from calibrations import Still, made_up
from torch import nn

import costir
from costir import cli, measure_views, output
from costir.errors import ChipError, CostirError
from costir.hardware import load_chip
from costir.load.subject import family_of
from costir.measuring import calibrate as calibrating
from costir.measuring import measure, subject
from costir.measuring.knee import Knee
from costir.measuring.why import why
from costir.render import render

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def chip(tmp_path_factory):
    path = tmp_path_factory.mktemp("chip") / "made-up.toml"
    path.write_text(calibrating._chip_file(made_up(), {"fp32": 1e11}, {8192: 1e11, 2**21: 5e10, 2**29: 2e10}))
    return load_chip(str(path))


@pytest.mark.parametrize("given", [None, 3, ["here"]])
def test_what_is_no_chip_is_refused(given):
    def build(B=2):
        return nn.Linear(4, 4), (torch.zeros(B, 4),), {}

    analysis = costir.analyze(build)
    for asked in (lambda: costir.measure(build, chip=given), lambda: analysis.memory.largest("B", given),
                  lambda: costir.plan(build, given, devices=2, batch=8),
                  lambda: costir.measure_on_mesh("model.py", {"X": 2}, "dp=X", chip=given)):  # fmt: skip
        with pytest.raises(ChipError, match="is no chip"):
            asked()


@pytest.mark.parametrize("verb", [["analyze"], ["solve", "--for", "B"]])
def test_an_analysis_says_that_its_bytes_come_from_the_main_memory(chip, capsys, verb):
    """A measurement's bound is lower where caches hold what is read."""
    said = "bytes at the main memory's rate; costir measure lets caches, up to 100 GB/s, serve what fits"
    asked = [verb[0], "X[B,64] . Y[64,64]", "--dtype", "fp32", *verb[1:], "--chip"]
    assert cli.main([*asked, chip.path]) == 0
    assert said in capsys.readouterr().out
    for other in ([chip.path, "--set", "memory.bandwidth=5e10"], ["h100"]):
        assert cli.main([*asked, *other]) == 0
        assert "main memory" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rate", "says"),
    [
        (5e10, "in the cache that holds the weights (50 GB/s); above for the main memory's (20 GB/s)"),
        (2.0001e10, "in the main memory (20 GB/s), as above"),
        (1e10, "as calibrated (10 GB/s); above for the main memory's (20 GB/s)"),
    ],
)
def test_two_sizes_of_the_roofline_say_why_they_are_two(chip, rate, says):
    m = measure.measure(family_of(lambda B=4: (nn.Linear(8, 8), (torch.rand(B, 8),), {}), {}), chip, clock=Still())
    facts = measure_views.knee_facts(Knee("B", ((1, 1e-3), (2, 1e-3)), 6.0, True, (m, m)), 5.3, rate, 2e10)
    assert {f.label: f.text for f in facts}["roofline"] == f"B = 5.3, for the best kernel's rates {says}"


def test_a_solved_critical_size_says_what_the_ends_of_its_curve_reach(chip):
    m = measure.measure(family_of(lambda B=4: (nn.Linear(8, 8), (torch.rand(B, 8),), {}), {}), chip, clock=Still())
    row = replace(m.rows[0], nbytes=4e9, flops=1e9)
    runs = ((1e9, 0.5, 0.8), (99e9, 1.0, 0.8), (99e9, 2.0, 0.8), (99e9, 4.0, 1.6), (99e9, 8.0, 3.2), (99e9, 16.0, 6.4))
    ends = tuple(replace(m, rows=(row, replace(row, flops=f)), measured=s, estimate=e) for f, s, e in runs)
    points = tuple((2**i, s) for i, (_, s, _) in enumerate(runs))
    facts = measure_views.knee_facts(Knee("B", points, 5.0, False, ends), 3.0, 3e10, 2e10)
    said = {f.label: f.text for f in facts}
    reached = "B = 1 moves 10 GB/s, B = 2 does 125 GFLOP/s"
    assert said["solved"] == f"B = 4, for what operators were calibrated to reach here: {reached}"
    assert said["measured"].startswith("B = 5, 1.25 times the solved one, 1.67 times the roofline's; where the fastest run and")
    assert said["estimates"].startswith("1: 800 ms, 2: 800 ms")


def test_where_the_time_goes_is_in_a_csv_too(chip):
    """Rows of their own, told apart by a column; without the question there is no such column."""
    m = costir.measure(lambda B=2: (nn.Linear(4, 4), (torch.zeros(B, 4),), {}), chip=chip)

    def rows(reason):
        return list(csv.DictReader(io.StringIO(render(measure_views.measured([m], "", reason), "csv"))))

    plain, asked = rows(None), rows(why(m))
    assert "table" not in plain[0]
    assert [{**r, "table": "operators"} for r in plain] == [r for r in asked if r["table"] == "operators"]
    parts = {r["operator"]: float(r["measured"]) for r in asked if r["table"] == "why"}
    assert parts == {p.key: p.seconds for p in why(m).parts}
    assert sum(parts.values()) == pytest.approx(m.measured)


def test_every_point_of_a_sweep_has_its_whole_in_a_csv_and_its_own_notes(chip):
    """Operators are not timed there, so that the whole is what was measured; a note says of which points it is."""
    m = costir.measure(lambda B=2: (nn.Linear(4, 4), (torch.zeros(B, 4),), {}), chip=chip)
    other = replace(m, sizes={"B": 4}, measured=2 * m.measured, notes=("busy: no verdict", "everywhere"))
    view = measure_views.measured([replace(m, notes=("everywhere",)), other], "B", None)
    rows = list(csv.DictReader(io.StringIO(render(view, "csv"))))
    wholes = [(r["sizes"], float(r["measured"])) for r in rows if r["operator"] == "total"]
    assert wholes == [("B=2", m.measured), ("B=4", 2 * m.measured)]
    text = render(view, "text")
    assert "B = 4: busy: no verdict" in text
    assert re.search(r"(?m)^ +note +everywhere$", text)


# ------------------------------------------------------------------------------------------------------ refused before work


@pytest.mark.parametrize(
    ("options", "home", "says"),
    [
        (["-o", "/proc/x.toml"], "", "cannot write /proc/x.toml: /proc takes no new file"),
        (
            ["-o", f"/tmp/{'x' * 245}.toml"],
            "",
            "takes no new file",
        ),  # the name alone is possible, that of the file before it not
        (["-o", f"/tmp/{'x' * 300}.toml"], "", "cannot write"),
        ([], "/proc", "cannot make the folder /proc/costir"),
    ],
    ids=["folder", "long", "too long", "here"],
)
@pytest.mark.parametrize("what", [[], ["--collectives", "--processes", "2"]], ids=["machine", "collectives"])
def test_a_calibration_that_cannot_be_written_does_not_begin(capsys, monkeypatch, options, home, says, what):
    def begun(*_, **__):
        pytest.fail("it measures")

    monkeypatch.setattr(calibrating, "calibrate", begun)
    monkeypatch.setattr("costir.measuring.processes.together", begun)
    monkeypatch.setenv("XDG_CONFIG_HOME", home)
    assert cli.main(["calibrate", *what, *options]) == 2
    assert says in capsys.readouterr().err


def test_asking_whether_a_file_may_be_written_leaves_nothing(tmp_path):
    assert output.may_write(tmp_path / "x.toml") == (tmp_path / "x.toml").resolve()
    assert not list(tmp_path.iterdir())
    (tmp_path / "old.toml").write_text("# made by costir 0\n")
    output.may_write(tmp_path / "old.toml")
    assert (tmp_path / "old.toml").read_text() == "# made by costir 0\n"
    assert output.may_write(Path("/dev/null")) == Path("/dev/null")


@pytest.mark.parametrize(
    ("subject", "says"),
    [
        ("nosuch.py", "no such file: 'nosuch.py'"),
        ("pyproject.toml", "is no .py, .json or .pt2 file"),
        ("examples/mlp.py:A", "names 'A' and --model names 'B'"),
        ("x[B,D] . w[D", "expected ',' or ']'"),
        ("program.pt2", "is an exported program, which cannot be run"),
    ],
)
@pytest.mark.parametrize("mesh", [[], ["--mesh", "X=2", "--parallel", "dp=X"]], ids=["one", "mesh"])
def test_a_wrong_subject_is_refused_before_torch_is_loaded(chip, tmp_path, subject, says, mesh):
    (tmp_path / "program.pt2").touch()
    subject = str(tmp_path / subject) if subject.endswith(".pt2") else subject
    asked = ["measure", subject, "--chip", chip.path, *mesh, *(["--model", "B"] if ":" in subject else [])]
    code = f"import sys; from costir.cli import main; print(main({asked!r}), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert done.stdout.split() == ["2", "False"]
    assert says in done.stderr


@pytest.mark.parametrize("named", [True, False])
def test_a_calibration_says_how_its_own_file_is_used(tmp_path, monkeypatch, capsys, chip, named):
    monkeypatch.setattr(calibrating, "calibrate", lambda *_, **__: (made_up(), Path(chip.path).read_text()))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert cli.main(["calibrate", *(["-o", str(tmp_path / "mine.toml")] if named else [])]) == 0
    known = str(tmp_path / "mine.toml") if named else "here"
    assert f"costir measure model.py --chip {known}; costir analyze model.py --chip {known}" in capsys.readouterr().out


@pytest.mark.parametrize("asked", [["measure", "m.py"], ["demo", "width"]])
def test_a_chip_that_was_never_measured_is_refused_before_torch_is_loaded(asked):
    code = f"import sys; from costir.cli import main; print(main({[*asked, '--chip', 'h100']!r}), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert done.stdout.split() == ["2", "False"]
    assert "was not measured here" in done.stderr


def test_patience_is_what_was_asked_for(tmp_path, monkeypatch, chip):
    asked = []

    def fake(threads, progress, **options):
        asked.append(options)
        return made_up(), Path(chip.path).read_text()

    monkeypatch.setattr(calibrating, "calibrate", fake)
    file = str(tmp_path / "mine.toml")
    assert cli.main(["calibrate", "-o", file, "--patience", "120"]) == 0
    assert cli.main(["calibrate", "-o", file]) == 0
    assert asked == [{"patience": 120.0}, {"patience": None}]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["-1"], "is not possible"),
        (["nan"], "is not possible"),
        (["1e9"], "is not possible"),
        (["5", "--device", "cuda"], "is for the CPU"),
        (["5", "--collectives"], "is for the CPU"),
    ],
)
def test_a_patience_that_nobody_has(tmp_path, capsys, asked, says):
    assert cli.main(["calibrate", "-o", str(tmp_path / "mine.toml"), "--patience", *asked]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("asked", [["--keep", "B"], ["--for", "B"], ["--traffic", "ideal"], ["--micro-batches", "2"],
                                   ["--count", "exact"], ["--attention", "causal"], ["--recompute", "all"]])  # fmt: skip
def test_what_a_run_has_no_choice_of_is_refused(chip, capsys, asked):
    assert cli.main(["measure", str(ROOT / "examples" / "mlp.py"), "--chip", chip.path, *asked]) == 2
    assert f"leave out {asked[0]}" in capsys.readouterr().err


def test_calibrating_leaves_what_it_did_not_write(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "costir").mkdir()
    notes = tmp_path / "costir" / "here.toml"
    notes.write_text("my notes")
    assert cli.main(["calibrate"]) == 2
    assert "was not written by costir, so it stays as it is" in capsys.readouterr().err
    assert notes.read_text() == "my notes"
    assert cli.main(["calibrate", "-o", ""]) == 2
    assert "-o names no file" in capsys.readouterr().err


def test_types_are_multiplied_in_all_layouts():
    """A machine that does best where the second matrix is transposed, as a linear layer has it."""
    asked = []

    def timed(run, rounds, at_least):
        a, b = run.args
        asked.append((a.is_contiguous(), b.is_contiguous()))
        return SimpleNamespace(seen=1e-3 if not b.is_contiguous() else 4e-3)

    found = calibrating._rates(SimpleNamespace(timed=timed))
    assert found == pytest.approx(dict.fromkeys(("bf16", "fp16", "fp64"), 2 * 1024**3 / 1e-3))
    assert set(asked) == {(True, True), (True, False), (False, True)}


@pytest.mark.parametrize("x", [torch.ones(4, 4).to(torch.float8_e4m3fn), torch.eye(4).to_sparse(), torch.arange(4)])
def test_inputs_of_every_kind_are_taken_as_they_are(x):
    assert subject._usable(x) is x
    assert torch.isfinite(subject._usable(torch.full((3,), math.inf))).all()


def test_an_optimizer_is_a_name_or_makes_one(chip):
    layer = torch.nn.Linear(8, 8)
    with pytest.raises(CostirError, match="SGD is no name of an optimizer and makes none"):
        costir.measure(layer, torch.rand(2, 8), chip=chip, phase="train", optimizer=torch.optim.SGD(layer.parameters(), 0.1))


def test_the_advice_for_a_step_near_its_bound_is_what_binds_it(chip):
    found = measure.measure(family_of(lambda B=4: (torch.nn.Linear(8, 8), (torch.rand(B, 8),), {}), {}), chip, clock=Still())
    for binds, words in (("compute", "a higher rate"), ("memory", "more bandwidth")):
        long = replace(found.rows[0].parts, kernel=found.measured)
        rows = tuple(replace(r, binds=binds, bound=found.measured, parts=long) for r in found.rows[-1:])
        assert words in why(replace(found, rows=rows)).advice


def test_what_the_estimate_is_wrong_about_is_ranked_by_seconds_and_what_lies_between_is_part_of_it(chip):
    found = measure.measure(family_of(lambda B=4: (torch.nn.Linear(8, 8), (torch.rand(B, 8),), {}), {}), chip, clock=Still())
    row = replace(found.rows[-1], path="up", op="mm", estimate=1.0, measured=2.0, binds="memory", alike=False)
    small = replace(row, path="low", estimate=0.3, measured=0.2)
    said = replace(found, rows=(small, row), measured=4.0, between=0.1, around=0.9)
    assert [text for _, text in sorted(measure_views._off(said), key=lambda x: -abs(x[0]))] == [
        "up mm: estimate -50%, -1 s; memory binds it",
        "between operators: estimate +800 ms; modules, Python, autograd",
        "low mm: estimate +50%, +100 ms; memory binds it",
    ]


def test_a_model_that_waits_is_no_slow_machine(chip):
    class Waits(nn.Module):
        def forward(self, x):
            time.sleep(0.03)
            return x + 1

    m = measure.measure(family_of(lambda B=4: (Waits(), (torch.rand(B, 8),), {}), {}), chip, clock=Still(), operators=False)
    assert not m.summary.verdict
    assert any("so that others had it or the model waits: no verdict" in n for n in m.notes)
    assert not any("slower than" in n for n in m.notes)


@pytest.mark.parametrize("pulse", ["1e-12", "1.0"])
def test_a_pulse_that_cannot_be_is_damage(chip, tmp_path, pulse):
    text = Path(chip.path).read_text().replace("[calibration.number]", f"[calibration.number]\npulse = {pulse}")
    (tmp_path / "damaged.toml").write_text(text)
    with pytest.raises(ChipError, match="numbers that cannot be"):
        load_chip(str(tmp_path / "damaged.toml"))


def test_a_model_may_set_the_default_dtype(chip):
    class Doubles(nn.Module):
        def forward(self, x):
            torch.set_default_dtype(torch.float64)
            return x * 2.0

    try:
        m = measure.measure(
            family_of(lambda B=4: (Doubles(), (torch.rand(B, 8, dtype=torch.float32),), {}), {}), chip, clock=Still()
        )
        assert m.measured > 0
    finally:
        torch.set_default_dtype(torch.float32)
