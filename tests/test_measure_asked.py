"""What `costir measure` is asked: refused early and in a sentence, answered in every format."""

from __future__ import annotations

import pytest
import torch
from calibrations import made_up
from torch import nn

import costir
from costir import cli
from costir.errors import ChipError
from costir.hardware import load_chip
from costir.measuring import calibrate as calibrating
from costir.measuring import measure as measuring


@pytest.fixture(scope="module")
def chip(tmp_path_factory):
    path = tmp_path_factory.mktemp("chip") / "made-up.toml"
    path.write_text(calibrating._chip_file(made_up(), {"fp32": 1e11}, {8192: 1e11, 2**21: 5e10, 2**29: 2e10}))
    return load_chip(str(path))


@pytest.fixture
def free(monkeypatch):
    """As if the machine were free and as fast as the made-up one: its speed is not what is tested."""
    monkeypatch.setattr(measuring, "_loaded", lambda c: 0.0)
    monkeypatch.setattr(measuring, "LOADED", 1e9)


@pytest.mark.parametrize("given", [None, 3, ["here"]])
def test_what_is_no_chip_is_refused(given):
    def build(B=2):
        return nn.Linear(4, 4), (torch.zeros(B, 4),), {}

    analysis = costir.analyze(build)
    for asked in (lambda: costir.measure(build, chip=given), lambda: analysis.memory.largest("B", given),
                  lambda: costir.plan(build, given, devices=2, batch=8)):  # fmt: skip
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
