"""Streams closed or full, programs that do odd things, damaged files: one sentence, the right exit code, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import costir
from costir.errors import LoadError, NotationError

LINEAR = """
import sys, torch
from torch import nn

{first}

def build(B=2, D=8):
    {inside}
    return {model}, (torch.randn(B, D),), {{}}
"""
PRODUCT = "X[B,D] . Y[D,F] -> Z[B,F]"


def shell(arguments, redirection=""):
    """The exit code, standard output and standard error of a command in a shell."""
    command = f'"$0" -m costir.cli {arguments} {redirection}'
    done = subprocess.run(["bash", "-c", command, sys.executable], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def written(folder, first="", inside="pass", model="nn.Linear(D, D)"):
    path = folder / "model.py"
    path.write_text(LINEAR.format(first=first, inside=inside, model=model))
    return path


@pytest.mark.parametrize("arguments", [f"analyze '{PRODUCT}'", "chips", "exercise list --lang en"])
def test_closed_standard_output_is_a_broken_pipe(arguments):
    assert shell(arguments, ">&-") == (141, "", "")
    assert shell(arguments, ">&- 2>&-") == (141, "", "")


def test_a_file_is_written_without_standard_output(tmp_path):
    out = tmp_path / "a.txt"
    code, _, said = shell(f"analyze '{PRODUCT}' -o {out}", ">&-")
    assert (code, said) == (0, f"wrote {out}\n")
    assert "FLOPs" in out.read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [f"analyze '{PRODUCT}'", "chips --format json", "exercise list --lang en"])
def test_full_standard_output_is_named(arguments):
    code, _, said = shell(arguments, ">/dev/full")
    assert (code, said.splitlines()[0]) == (2, "costir: cannot write to standard output (/dev/full): No space left on device")
    assert len(said.splitlines()) == 2


def test_errors_without_standard_error():
    assert shell("chips nosuch", "2>&-") == (2, "", "")


@pytest.mark.parametrize("where", ["first", "inside"])
@pytest.mark.parametrize("stream", ["sys.stdout", "sys.stderr"])
def test_a_program_that_closes_its_streams(tmp_path, where, stream):
    code, out, said = shell(f"analyze {written(tmp_path, **{where: f'{stream}.close(); print(1)'})}")
    assert code == 0
    assert "parameter bytes" in out
    assert "Traceback" not in said


@pytest.mark.parametrize("where", ["first", "inside"])
def test_a_program_that_raises_no_exception_but_its_base(tmp_path, where):
    code, out, said = shell(f"analyze {written(tmp_path, **{where: 'raise BaseException(12)'})}")
    assert (code, out) == (2, "")
    assert "raise" in said.splitlines()[0]
    assert "BaseException: 12" in said.splitlines()[0]
    assert "Traceback" not in said


@pytest.mark.parametrize("model", ["torch.jit.script(nn.Linear(D, D))", "nn.Sequential(torch.jit.script(nn.Linear(D, D)))"])
def test_torchscript_is_refused(tmp_path, model):
    with pytest.raises(LoadError, match=r"build\(\): .* is a TorchScript module"):
        costir.analyze(written(tmp_path, model=model)).at()


def test_a_damaged_program_is_named_and_nothing_is_logged(tmp_path):
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(nn.Linear(3, 4), (torch.randn(2, 3),)), path)
    with zipfile.ZipFile(path) as archive:
        member = max(archive.infolist(), key=lambda m: m.file_size)
    data = bytearray(path.read_bytes())
    at = member.header_offset + 200 + member.file_size // 2
    data[at] ^= 0xFF
    path.write_bytes(data)
    code, out, said = shell(f"analyze {path}")
    assert (code, out) == (2, "")
    assert said.startswith("costir: model.pt2 is damaged: ")
    assert len(said.splitlines()) == 2


@pytest.mark.parametrize("text", ["bf16[B,D] . int3[D,F]", "bf16[B,D] . W[D,F] -> float12[B,F]", "fp10[B,D] . [D,F]"])
def test_a_slip_in_a_type_is_no_name(text):
    with pytest.raises(NotationError, match="is no data type"):
        costir.analyze(text)


@pytest.mark.parametrize("name", ["W1", "int", "x2", "f", "B3", "points1", "integral2"])
def test_names_that_are_no_types(name):
    assert costir.analyze(f"X[B,D] . {name}[D,F]").graph.weights[0].path == name


def test_a_class_that_transformers_has_not_is_said(tmp_path):
    pytest.importorskip("transformers")
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 50, "n_positions": 16}

    def notes(**more):
        (tmp_path / "config.json").write_text(json.dumps({**config, **more}))
        return " ".join(costir.analyze(tmp_path / "config.json", model=more.pop("asked", "")).notes)

    said = "architectures names Nope, a class that this transformers has not: GPT2LMHeadModel is counted"
    assert said in notes(architectures=["Nope"])
    assert "architectures" not in notes()
    assert "architectures" not in notes(architectures=["Nope", "GPT2Model"])
