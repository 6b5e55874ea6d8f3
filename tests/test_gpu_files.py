"""What a GPU's chip file is for and what it is not for: names, refusals, and the collectives that go into it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from calibrations import made_up
from fake_gpu import Model, installed
from test_collectives_measured import made_up as made_up_collectives

from costir import calibrate_commands, cli
from costir.calibration import Calibration, Curve
from costir.collective_times import Collectives, to_toml
from costir.errors import ChipError
from costir.hardware import here_path, load_chip
from costir.measuring import calibrate as calibrating
from costir.measuring import gpu, processes

GPU = Model().gpu()


@pytest.fixture
def text():
    """A GPU's chip file in a moment."""
    about = gpu._about(GPU, "fp32", {}, 0.0)
    envelope = {1 << 20: 5e12, 1 << 32: 2e12}
    numbers = {
        **dict.fromkeys(("launch", "kernel", "grad", "node", "view", "module"), 1e-6),
        **{f"bandwidth_{k}": v for k, v in envelope.items()},
    }
    c = Calibration(about, 0.01, numbers, {"exp": Curve(("n",), ((16, 1024),), (2e-6, 2e-6))})
    return gpu._text(GPU, c, {"fp32": 5e13, "bf16": 8e14}, envelope)


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--device", "cuda"], "no GPU is there that torch can use"), (["--device", "CUDA:1"], "no GPU is there"),
     (["--device", "tpu"], "no device 'tpu' can be calibrated"), (["--device", "cuda:x"], "no device 'cuda:x'"),
     (["--device", "cuda:-1"], "no device 'cuda:-1'"),
     (["--device", "cuda", "--threads", "4"], "--threads does not go with a GPU"),
     (["--device", "cuda", "--collectives", "--processes", "2"], "--device does not go with --collectives")],
)  # fmt: skip
def test_refusals_are_one_sentence(monkeypatch, tmp_path, capsys, words, message):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["calibrate", *words]) == 2
    found = capsys.readouterr()
    assert message in found.err
    assert len(found.err.strip().splitlines()) == 2  # the sentence, and what to do
    assert "Traceback" not in found.err
    assert found.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [["measure", "examples/mlp.py"], ["measure", "examples/mlp.py", "--mesh", "X=2", "--parallel", "dp=X"], ["demo", "matmul"],
     ["solve", "x[B,64] . w[64,64]", "--dtype", "fp32", "--for", "B", "--measure"]],
)  # fmt: skip
def test_models_are_not_run_by_a_gpus_calibration(text, monkeypatch, tmp_path, capsys, command):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert cli.main([*command, "--chip", "here-gpu"]) == 2
    assert "run costir calibrate --device cuda, which measures this GPU" in capsys.readouterr().err
    here_path("here-gpu").parent.mkdir()
    here_path("here-gpu").write_text(text)
    assert cli.main([*command, "--chip", "here-gpu"]) == 2
    assert (
        "here-gpu is a GPU's calibration, and models are run on the CPU here\n        use --chip here"
        in capsys.readouterr().err
    )


def test_names_of_ones_own_chips(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ChipError, match=r"no chip called here-gpu2: .*here-gpu2.toml does not exist.*--device cuda:2"):
        load_chip("here-gpu2")
    with pytest.raises(ChipError, match=r"unknown chip 'here-gpus'; did you mean.*here-gpu"):
        load_chip("here-gpus")
    assert [calibrate_commands.here_name(i) for i in (None, 0, 1)] == ["here", "here-gpu", "here-gpu1"]


def test_a_cpus_calibration_says_that_there_is_a_gpu(monkeypatch, tmp_path, capsys):
    text = calibrating._chip_file(made_up(), {"fp32": 1e11}, {8192: 1e11, 2**29: 2e10})
    monkeypatch.setattr(calibrating, "calibrate", lambda threads, progress, **_: (made_up(), text))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for there, words, said in ((True, [], True), (True, ["--device", "cpu"], False), (False, [], False)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert cli.main(["calibrate", *words]) == 0
        assert ("costir calibrate --device cuda measures it" in capsys.readouterr().out) is said
    assert load_chip("here").kind == "cpu"


# ----------------------------------------------------------------------------------------------------------- collectives


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """As if processes had answered at once, on GPUs."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    c = made_up_collectives()
    about = {**c.about, "device": "cuda", "gpu": GPU.name, "cpu": calibrating.cpu_name()}
    mine = Collectives(about, c.noise, c.slower, c.missing, c.fits)
    monkeypatch.setattr(processes, "together", lambda *_: mine)
    monkeypatch.setattr(processes, "device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(gpu, "seen", lambda d: GPU)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    here_path().parent.mkdir()
    return mine


COLLECTIVES = ["calibrate", "--collectives", "--processes", "2"]


def test_collectives_of_gpus_go_to_the_gpus_file(quick, text, capsys):
    path = here_path("here-gpu")
    assert cli.main(COLLECTIVES) == 2
    said = capsys.readouterr().err
    assert f"{path} does not exist" in said
    assert "run costir calibrate --device cuda first, or name the chip: --chip h100" in said
    path.write_text(text)
    assert cli.main(COLLECTIVES) == 0
    assert "costir analyze model.py --mesh X=2 --chip here-gpu" in capsys.readouterr().out
    assert load_chip("here-gpu").collectives is not None
    assert calibrate_commands._kept(path, GPU.name).strip() == to_toml(quick).strip()
    assert calibrate_commands._kept(path, "another") == calibrate_commands._kept(path) == ""


def test_collectives_are_not_put_into_a_file_of_something_else(quick, text, monkeypatch, capsys):
    cpu = calibrating._chip_file(made_up(), {"fp32": 1e11}, {8192: 1e11, 2**29: 2e10})
    here_path().write_text(cpu)
    for words in (["-o", str(here_path())], ["--chip", "here"]):
        assert cli.main([*COLLECTIVES, *words]) == 2
        assert "is the calibration of a CPU, and these are the collectives of GPUs" in capsys.readouterr().err
    here_path("here-gpu").write_text(text)
    monkeypatch.setattr(gpu, "seen", lambda d: replace(GPU, name="Imaginary X2"))
    assert cli.main(COLLECTIVES) == 2
    assert "it was calibrated on Imaginary X1, and this is Imaginary X2" in capsys.readouterr().err
    monkeypatch.setattr(processes, "device", lambda: torch.device("cpu"))
    assert cli.main([*COLLECTIVES, "-o", str(here_path("here-gpu"))]) == 2
    assert "is the calibration of a GPU, and these are the collectives of CPUs" in capsys.readouterr().err
    assert here_path().read_text() == cpu
    assert here_path("here-gpu").read_text() == text


def test_calibrating_the_gpu_again_keeps_its_collectives(quick, text, monkeypatch):
    here_path("here-gpu").write_text(text + "\n" + to_toml(quick))
    c = load_chip("here-gpu").calibration
    monkeypatch.setattr(gpu, "calibrate", lambda device, progress: (c, text))
    with installed(monkeypatch, Model()):
        assert cli.main(["calibrate", "--device", "cuda"]) == 0
        assert load_chip("here-gpu").collectives is not None
