"""`costir mfu` as it is typed: bad input, formats, files."""

from __future__ import annotations

import contextlib
import csv
import io
import json

import pytest

from costir import cli, commands
from costir.utilisation import mfu

MATMUL = "bf16[B,D] . bf16[D,F] -> bf16[B,F]"


def run(capsys, *arguments):
    code = cli.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_what_takes_long_is_told_as_by_analyze(capsys, monkeypatch):
    """A model is traced for many seconds: on a terminal one sees that something happens, and what."""
    told = []

    @contextlib.contextmanager
    def progress(what, after=2.0):
        told.append(what)
        yield

    monkeypatch.setattr(commands, "progress", progress)
    assert run(capsys, "mfu", MATMUL, *RUN)[0] == 0
    assert told == [f"analysing {MATMUL}", "counting"]


RUN = ("--chip", "h100", "--rate", "100step/s")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mfu", MATMUL, "--rate", "1step/s"], "needs a chip"),
        (["mfu", MATMUL, "--chip", "h100"], "--rate 10000tok/s"),
        (["mfu", MATMUL, "--chip", "h1000", "--rate", "1step/s"], "h100"),
        (["mfu", MATMUL, "--chip", "v100", "--rate", "1step/s"], "no matmul path for bfloat16"),
        (["mfu", MATMUL, "--chip", "h100", "--rate", "9tok/s"], "--tokens B"),
        (["mfu", "bf16[N] . bf16[N,F]", "--chip", "h100", "--rate", "9seq/s"], "no size B"),
        (["mfu", MATMUL, *RUN, "--tokens", "Q"], "no size 'Q'"),
        (["mfu", MATMUL, *RUN, "--tokens", "B*B"], "twice"),
        (["mfu", MATMUL, *RUN, "--devices", "0"], "--devices"),
        (["mfu", MATMUL, *RUN, "--devices", "many"], "--devices"),
        (["mfu", MATMUL, *RUN, "--sweep", "B=1:4"], "neither --sweep nor --for"),
        (["mfu", MATMUL, *RUN, "--for", "B"], "neither --sweep nor --for"),
        (["mfu", MATMUL, *RUN, "--phase", "train"], "no train phase"),
        (["mfu", MATMUL, *RUN, "--keep", "Q"], "Q"),
        (["mfu", MATMUL, *RUN, "--rat", "1"], "--rate"),
        (["mfo", MATMUL, *RUN], "did you mean mfu"),
        (["mfu", "nothing.py", *RUN], "nothing.py"),
        (["mfu", "X[N], Y[N] -> Z[N]", *RUN], "no matmul"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, arguments, says):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("costir: ")
    assert says in err
    assert "internal error" not in err
    assert len(err.splitlines()) <= 3


def test_json_is_what_python_says(capsys):
    arguments = ("mfu", MATMUL, "--chip", "h100,tpu_v5e@book", "--rate", "800tok/s", "--tokens", "B", "--devices", "8")
    code, out, _ = run(capsys, *arguments, "--size", "B=4,D=8,F=16", "--format", "json")
    data = json.loads(out)
    found = mfu(MATMUL, ["h100", "tpu_v5e@book"], rate="800tok/s", tokens="B", devices=8, sizes={"B": 4, "D": 8, "F": 16})
    assert code == 0
    assert data["schema"] == "costir/mfu/1"
    assert (data["phase"], data["phase_assumed"], data["devices"], data["tokens_per_step"]) == ("forward", True, 8, 4)
    assert (data["steps_per_second"], data["measured"]) == (200, {"text": "800tok/s", "value": 800, "unit": "tok/s"})
    assert [c["peak"] for c in data["chips"]] == [989_400_000_000_000, 197_000_000_000_000]
    full = data["rows"][0]
    assert full["flops_per_step"] == {"expr": "2*B*D*F", "value": 1024}
    assert (full["flops_per_token"], full["flops_per_second"]) == (256, 1024 * 200 // 8)
    assert [r["convention"] for r in data["rows"]] == ["full", "causal", "parameters"]
    for row in data["rows"]:
        for i, chip in enumerate(("h100_sxm", "tpu_v5e@book")):
            assert row["utilisation"][chip] == float(found.share(row["convention"], i))


def test_csv_has_a_line_per_convention_and_chip(capsys):
    _, out, _ = run(capsys, "mfu", MATMUL, *RUN, "--chip", "a100", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(r["convention"], r["chip"]) for r in rows] == [
        (c, chip) for c in ("full", "causal") for chip in ("h100_sxm", "a100_sxm_80")
    ]
    assert {r["flops_per_step_expr"] for r in rows} == {"2*B*D*F"}
    assert {r["flops_per_token"] for r in rows} == {""}


@pytest.mark.parametrize("suffix", ["txt", "md", "json", "csv", "tex", "html"])
def test_files_of_every_format_are_written_and_known_again(capsys, tmp_path, suffix):
    path = tmp_path / f"out.{suffix}"
    for _ in range(2):
        assert run(capsys, "mfu", MATMUL, *RUN, "-o", path) == (0, "", f"wrote {path}\n")
    assert "full" in path.read_text()


def test_a_file_for_the_command_line(capsys, tmp_path):
    """Stated options come through: the phase, what is kept, a chip set by hand; what the file prints does not reach stdout."""
    (tmp_path / "noisy.py").write_text(
        "import torch\nprint('hello from the model file')\n"
        "def model(D=8):\n    return torch.nn.Linear(D, D, bias=False)\n"
        "def inputs(B=2, T=4, D=8):\n    return (torch.zeros(B, T, D),)\n"
    )
    arguments = ("mfu", tmp_path / "noisy.py", "--chip", "h100", "--set", "vector.fp32=1e9", "--rate", "1Mtok/s")
    code, out, _ = run(capsys, *arguments, "--phase", "backward", "--keep", "B")
    assert code == 0
    assert "hello" not in out
    assert "assumed" not in out
    assert "put in    T = 4, D = 8" in out
    assert "fp32 1 GFLOP/s on the vector unit, set by hand" in out
    full = next(line for line in out.splitlines() if line.startswith("MFU, full"))
    assert full.split()[-5:] == ["384", "384", "M", "38.40", "%"]
    assert "a step, full attention    3.072 kFLOP = 1536*B" in out
