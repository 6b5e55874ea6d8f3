"""The command line: exit codes, files, messages. Most run in this process; what only a process has runs in one."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from costir import cli, questions
from costir.errors import CostirError, SizeError

MATMUL = "X[B,D] . Y[D,F] -> Z[B,F]"
GOLDEN = Path(__file__).parent / "golden"


def run(capsys, *arguments):
    code = cli.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def process(*arguments, **options):
    command = [sys.executable, "-m", "costir.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


# ------------------------------------------------------------------------------------------------------------------ verbs


def test_analyze_prints_formulas_and_numbers(capsys):
    code, out, err = run(capsys, "analyze", MATMUL, "--size", "B=16,D=32", "--size", "F=64", "--chip", "tpu_v5e@book")
    assert (code, err) == (0, "")
    assert "2*B*D*F" in out
    assert "65.54 k" in out  # 2*16*32*64 = 65536
    assert "ridge 240.2 FLOP/B" in out
    assert "2 FLOPs per multiply-add" in out


def test_analyze_json_has_the_quantities_of_python(capsys):
    code, out, _ = run(capsys, "analyze", MATMUL, "--format", "json", "--size", "B=16", "--size", "D=32", "--size", "F=64")
    data = json.loads(out)
    assert code == 0
    assert data["totals"]["matmul_flops"] == {"expr": "2*B*D*F", "value": 2 * 16 * 32 * 64}
    assert data["sizes"] == {"B": 16, "D": 32, "F": 64}


def test_exact_count_of_a_dot_product(capsys):
    """(2N - 1) / (4N + 2): N products, N - 1 sums; two vectors read, one number written, 2 bytes each."""
    code, out, _ = run(capsys, "analyze", "bf16[N] . bf16[N]", "--count", "exact", "--format", "json", "--size", "N=1000")
    totals = json.loads(out)["totals"]
    assert code == 0
    assert (totals["flops"]["value"], totals["bytes"]["value"]) == (1999, 4002)


def test_keep_puts_numbers_for_the_others(capsys):
    _, out, _ = run(capsys, "analyze", MATMUL, "--keep", "B", "--size", "D=8,F=4", "--format", "json")
    data = json.loads(out)
    assert data["totals"]["flops"]["expr"] == "64*B"
    assert (data["sizes"], data["fixed"]) == ({"B": data["sizes"]["B"]}, {"D": 8, "F": 4})


def test_the_size_that_is_solved_for_stays_a_letter(capsys):
    code, out, _ = run(capsys, "solve", MATMUL, "--keep", "D", "--for", "B", "--chip", "h100")
    assert code == 0
    assert "critical B" in out


def test_sweep_gives_a_line_per_point(capsys):
    _, out, _ = run(capsys, "analyze", MATMUL, "--sweep", "B=1:4:x2", "--size", "D=8,F=4", "--format", "csv", "--chip", "h100")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(r["B"], r["flops"]) for r in rows] == [("1", "64"), ("2", "128"), ("4", "256")]


def test_several_chips_make_columns(capsys):
    _, out, _ = run(capsys, "analyze", MATMUL, "--chip", "h100,tpu_v5e@book", "--chip", "a100_sxm_80")
    heading = next(ln for ln in out.splitlines() if ln.startswith("module"))
    assert heading.split()[-3:] == ["h100_sxm", "tpu_v5e@book", "a100_sxm_80"]
    assert any(ln.startswith("binds ") for ln in out.splitlines())
    assert "h100 -> h100_sxm" in out


def test_a_chip_file_and_a_setting(capsys):
    _, out, _ = run(capsys, "analyze", MATMUL, "--chip", GOLDEN / "round.toml", "--set", "memory.bandwidth=2e12")
    assert "ridge 50 FLOP/B" in out


@pytest.mark.parametrize(
    ("width", "expected"), [(8192, "255.2"), (1024, "452.6"), (480, "none")], ids=["wide", "narrow", "none"]
)
def test_solve_gives_the_books_critical_batch(capsys, width, expected):
    code, out, _ = run(capsys, "solve", f"bf16[B,{width}] . bf16[{width},{width}]", "--for", "B", "--chip", "tpu_v5e@book")
    assert code == 0
    line = next(ln for ln in out.splitlines() if ln.strip().startswith("whole"))
    assert f"B = {expected}" in line or f"B: {expected}" in line


def test_solve_needs_a_chip(capsys):
    code, out, err = run(capsys, "solve", MATMUL, "--for", "B")
    assert (code, out) == (2, "")
    assert "needs a chip" in err
    assert "--chip h100" in err


@pytest.mark.parametrize(("formula", "code"), [("flops = 2*B*D*F", 0), ("flops = B*D*F", 1), ("bytes = 2*B*D + 2*D*F", 1)])
def test_check_says_yes_or_no(capsys, formula, code):
    found, out, err = run(capsys, "check", MATMUL, formula)
    assert (found, err) == (code, "")
    assert ("right" if code == 0 else "wrong") in out


def test_check_as_json(capsys):
    code, out, _ = run(capsys, "check", MATMUL, "bytes = 2*B*D + 2*D*F", "--format", "json", "--size", "B=2,D=8,F=4")
    data = json.loads(out)
    assert (code, data["right"], data["given"]["value"], data["expected"]["value"]) == (1, False, 96, 112)


def test_chips_lists_and_shows(capsys):
    code, out, _ = run(capsys, "chips")
    assert code == 0
    assert "tpu_v5e" in out
    code, out, _ = run(capsys, "chips", "h100")
    assert code == 0
    assert "h100 -> h100_sxm" in out
    assert "matrix.bf16" in out
    assert "[1]" in out
    _, out, _ = run(capsys, "chips", "tpu_v5e@book", "--format", "json")
    assert json.loads(out)["values"]["memory.bandwidth"]["value"] == 8.2e11
    _, out, _ = run(capsys, "chips", "--format", "csv")
    assert len(list(csv.DictReader(io.StringIO(out)))) > 40


def test_explain_shows_formula_rule_numbers_and_line(capsys):
    code, out, _ = run(capsys, "analyze", MATMUL, "--explain", "einsum", "--size", "B=2,D=8,F=4")
    assert code == 0
    assert "2*B*D*F = 2*2*8*4 = 128 FLOPs" in out
    assert "bf16[D, F]" in out
    code, _, err = run(capsys, "analyze", MATMUL, "--explain", "einsun")
    assert code == 2
    assert "did you mean einsum?" in err


def test_help_and_version(capsys):
    for arguments in ((), ("--help",), ("analyze", "--help"), ("chips", "--help")):
        code, out, err = run(capsys, *arguments)
        assert (code, err) == (0, "")
        assert "usage: costir" in out
    assert run(capsys, "--version")[1].startswith("costir ")


def test_every_verb_takes_the_same_conditions(capsys):
    helps = [run(capsys, verb, "--help")[1] for verb in ("analyze", "solve", "check", "mfu")]
    for option in (
        "--size",
        "--keep",
        "--sweep",
        "--dtype",
        "--attention",
        "--count",
        "--phase",
        "--chip",
        "--set",
        "--for",
        "--format",
    ):
        assert all(option in h for h in helps), option


# ------------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["analyse", "x.py"], "did you mean analyze?"),
        (["model.py"], "costir analyze model.py"),
        (["analyze"], "SUBJECT"),
        (["analyze", MATMUL, "--sise", "B=2"], "--size"),
        (["analyze", MATMUL, "--format", "yaml"], "text"),
        (["analyze", MATMUL, "--size", "B"], "--size B=32"),
        (["analyze", MATMUL, "--size", "B=-1"], "positive whole number"),
        (["analyze", MATMUL, "--size", "B=1e30"], "10**12"),
        (["analyze", MATMUL, "--size", "Q=2"], "Q"),
        (["analyze", MATMUL, "--size", "B=2", "--size", "B=3"], "twice"),
        (["analyze", MATMUL, "--keep", "Q"], "Q"),
        (["analyze", MATMUL, "--sweep", "B=1:2:x1"], "never gets"),
        (["analyze", MATMUL, "--sweep", "D=1:4", "--keep", "B"], "cannot be swept"),
        (["analyze", MATMUL, "--sweep", "Q=1:4"], "Q"),
        (["analyze", MATMUL, "--chip", "h1000"], "h100"),
        (["analyze", MATMUL, "--chip", "h100@nope"], "nope"),
        (["analyze", MATMUL, "--set", "memory.bandwidth=1e12"], "--chip"),
        (["analyze", MATMUL, "--chip", "h100", "--set", "memory.bandwith=1e12"], "memory.bandwidth"),
        (["analyze", MATMUL, "--chip", "h100", "--for", "Q"], "Q"),
        (["analyze", MATMUL, "--plot", "roofline"], "needs a chip"),
        (["analyze", MATMUL, "--plot", "pie", "--chip", "h100"], "roofline"),
        (["analyze", MATMUL, "--plot", "roofline=x.pdf", "--chip", "h100"], ".svg or .png"),
        (["analyze", MATMUL, "-o", "no/such/folder/x.txt"], "no folder"),
        (["analyze", "nothing.py"], "nothing.py"),
        (["check", MATMUL, "flops = 2*B*D*"], "flops"),
        (["check", MATMUL, ""], "no formula"),
        (["check", MATMUL, "flops = 1", "--sweep", "B=1:4"], "neither --sweep nor --for"),
        (["check", MATMUL, "time = 1", "--chip", "h100,a100"], "one chip"),
        (["chips", "h1000"], "h100"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("costir: ")
    assert says in err
    assert "Traceback" not in err
    assert "internal error" not in err
    assert len(err.splitlines()) <= 3
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_ours_is_one_line_with_debug_its_traceback(capsys, monkeypatch):
    from costir import commands

    def broken(_):
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(commands, "chips", broken)
    code, _, err = run(capsys, "chips")
    assert code == 2
    assert err.startswith("costir: internal error, ZeroDivisionError: of all things")
    assert "--debug" in err
    assert "Traceback" not in err
    assert "Traceback" in run(capsys, "chips", "--debug")[2]
    err = run(capsys, "--debug", "chips")[2]
    assert "Traceback" in err
    assert "what --debug prints" not in err  # it is there already


def parsers(p, path=()):
    """Every parser with a verb of its own, by the words that lead to it."""
    yield path, p
    for action in p._actions:
        for word, verb in (action.choices or {}).items() if isinstance(action, argparse._SubParsersAction) else ():
            yield from parsers(verb, (*path, word))


@pytest.mark.parametrize("parser", [pytest.param(p, id=" ".join(path) or "costir") for path, p in parsers(cli.parser())])
def test_every_verb_takes_what_an_internal_error_asks_for(parser):
    assert "--debug" in parser._option_string_actions


def test_interrupted_is_130_without_a_traceback(capsys, monkeypatch):
    from costir import commands

    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "chips", stopped)
    assert run(capsys, "chips") == (130, "", "")


# ----------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("suffix", ["txt", "md", "json", "csv", "tex", "html"])
def test_files_are_known_again_and_no_others_overwritten(capsys, tmp_path, suffix):
    path = tmp_path / f"out.{suffix}"
    assert run(capsys, "analyze", MATMUL, "-o", path)[:2] == (0, "")
    first = path.read_text()
    assert run(capsys, "analyze", MATMUL, "-o", path, "--size", "B=7")[0] == 0
    assert path.read_text() != first
    path.write_text("my own notes")
    code, _, err = run(capsys, "analyze", MATMUL, "-o", path)
    assert (code, path.read_text()) == (2, "my own notes")
    assert "was not written by costir" in err
    assert run(capsys, "analyze", MATMUL, "-o", path, "--force")[0] == 0
    assert path.read_text() == first
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_suffix_chooses_the_format(capsys, tmp_path):
    run(capsys, "analyze", MATMUL, "-o", tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["schema"] == "costir/1"
    run(capsys, "analyze", MATMUL, "-o", tmp_path / "b.json", "--format", "csv")
    assert (tmp_path / "b.json").read_text().startswith("path,op,")


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_plots_are_files_like_others(capsys, tmp_path, kind):
    path = tmp_path / f"roof.{kind}"
    arguments = ("analyze", MATMUL, "--chip", "h100", "--plot", f"roofline={path}")
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, f"wrote {path}\n")
    assert "einsum" in out
    first = path.read_bytes()
    assert run(capsys, *arguments)[0] == 0
    assert path.read_bytes() == first
    path.write_bytes(b"a photograph")
    assert run(capsys, *arguments)[0] == 2
    assert path.read_bytes() == b"a photograph"


def test_a_plot_gets_a_name_from_the_subject():
    assert questions.plot_file("roofline", "models/gpt.py:GPT") == Path("gpt.roofline.svg")
    assert questions.plot_file("roofline", "A[I,J] . B[J,K]") == Path("A_I_J_B_J_K.roofline.svg")
    assert questions.plot_file("roofline=a/b.png", "x.py") == Path("a/b.png")


# ------------------------------------------------------------------------------------------------------------- questions


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("T=2k:16k:x2", [2048, 4096, 8192, 16384]),
        ("T=1:20:+8", [1, 9, 17]),
        ("T=1:4", [1, 2, 3, 4]),
        ("T=1,2,4", [1, 2, 4]),
        ("T=7", [7]),
        ("T=3:100:x3", [3, 9, 27, 81]),
    ],
)
def test_sweeps(text, values):
    assert questions.sweep_points([text]) == [{"T": v} for v in values]


def test_sweeps_combine_and_are_bounded():
    assert questions.sweep_points(["B=1,2", "T=3,4"]) == [
        {"B": 1, "T": 3},
        {"B": 1, "T": 4},
        {"B": 2, "T": 3},
        {"B": 2, "T": 4},
    ]
    assert questions.sweep_points([]) == []
    for bad in (["T=1:1000000"], ["T=1:200", "B=1:200"], ["T=1:8:2"], ["T=8:1"], ["T=1:2:3:4"], ["T=1", "T=2"], ["1T=2"]):
        with pytest.raises(SizeError):
            questions.sweep_points(bad)


def test_sizes_with_suffixes():
    assert questions.size_values(["B=32,T=2k", "D=1e3"]) == {"B": 32, "T": 2048, "D": 1000}


def test_settings_and_chips():
    assert questions.key_values(["a.b=1=2"]) == {"a.b": "1=2"}
    assert questions.chip_names(["a,b", " b ,c"]) == ["a", "b", "c"]
    with pytest.raises(CostirError):
        questions.key_values(["a.b"])


# ------------------------------------------------------------------------------------------------------------- processes


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m costir.cli chips | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("Chips")
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [["--help"], ["chips"], ["chips", "h100"], ["--version"]])
def test_quick_verbs_import_neither_torch_nor_sympy(arguments):
    code = (
        "import sys; from costir import cli; cli.main(sys.argv[1:]);"
        "print({'torch', 'sympy', 'numpy', 'rich', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.stderr == "set()\n"


def test_piped_output_is_plain_and_whole():
    done = process("analyze", MATMUL, "--chip", "h100", env={**os.environ, "COLUMNS": "40"})
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "2*(B*D + B*F + D*F)" in done.stdout
    assert done.stderr == ""


def test_what_the_users_file_prints_does_not_reach_stdout(tmp_path):
    (tmp_path / "noisy.py").write_text(
        "import torch\nprint('hello from the model file')\n"
        "def model(D=8):\n    return torch.nn.Linear(D, D)\n"
        "def inputs(B=2, D=8):\n    return (torch.zeros(B, D),)\n"
    )
    done = process("analyze", tmp_path / "noisy.py", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["totals"]["matmul_flops"] == {"expr": "2*B*D**2", "value": 256}
    assert "hello" in done.stderr


def test_solve_at_every_point_of_a_sweep(capsys):
    """I*D*F / (D*F - I*(D + F)) with I = 1.97e14/8.2e11 and F = D; none where D <= 2*I."""
    widths = (480, 1024, 8192)
    arguments = ("--sweep", f"D={','.join(map(str, widths))}", "--for", "B", "--chip", "tpu_v5e@book", "--format", "json")
    code, out, _ = run(capsys, "solve", "X[B,D] . Y[D,D2] -> Z[B,D2]", "--size", "D2=8192", *arguments)
    assert code == 0
    ridge = 1.97e14 / 8.2e11
    found = [p["critical"]["tpu_v5e@book"] for p in json.loads(out)["sweep"]]
    expected = [ridge * d * 8192 / (d * 8192 - ridge * (d + 8192)) for d in widths]
    assert found == pytest.approx(expected)
    code, out, _ = run(capsys, "solve", "X[B,D] . Y[D,D2] -> Z[B,D2]", *arguments[:-2])
    assert "critical B" in out
