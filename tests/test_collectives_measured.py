"""Measured collectives: fits, files, commands, and one real run of two processes. How fast they are is not tested."""

from __future__ import annotations

import json
import random

import pytest

from costir import calibrate_commands, cli
from costir.collective_times import Collectives, Fit, Line, fitted, split, to_toml
from costir.errors import ChipError, CostirError
from costir.hardware import load_chip
from costir.ir import Transfer
from costir.measuring import processes
from costir.mesh import Mesh
from costir.network import Network, Wiring
from costir.symbolic import evaluate, number, size

SIZES = tuple(1 << p for p in range(10, 27, 2))
ABOUT = {
    "backend": "gloo",
    "device": "cpu",
    "processes": "2",
    "hosts": "1",
    "threads": "1",
    "cpu": "a",
    "torch": "2",
    "date": "x",
}
CHIP = 'name = "mine"\n\n[matrix]\nfp32 = 1e11\n\n[memory]\nbandwidth = 2e10\n'


def made_up(kinds=("all_reduce", "all_gather"), latency=1e-4, bandwidth=2e9) -> Collectives:
    fits = tuple(fitted(k, 2, [(v, latency + v / bandwidth) for v in SIZES]) for k in kinds)
    return Collectives(ABOUT, 0.03, {"compute": 1.25}, {"all_to_all": "gloo does not support it"}, fits)


# ------------------------------------------------------------------------------------------------------------------ fits


@pytest.mark.parametrize(("latency", "bandwidth"), [(1e-4, 1e9), (3e-6, 4.5e11), (0.02, 2e7), (1e-9, 1e9)])
def test_latency_and_bandwidth_are_recovered(latency, bandwidth):
    found = fitted("all_reduce", 2, [(v, latency + v / bandwidth) for v in SIZES])
    assert found.until is None
    assert found.lines[0].latency == pytest.approx(latency, rel=1e-6)
    assert found.lines[0].bandwidth == pytest.approx(bandwidth, rel=1e-9)
    assert found.worst < 1e-9


def test_two_regimes_are_recovered():
    low, high = Line(1e-4, 5e9), Line(5e-4, 1e9)
    for border in (1 << 17, 1 << 19):
        found = fitted("all_gather", 4, [(v, (low if v <= border else high).at(v)) for v in SIZES])
        assert found.until is not None
        assert max(v for v in SIZES if v <= border) <= found.until < min(v for v in SIZES if v > border)
        for line, truth in zip(found.lines, (low, high), strict=True):
            assert line.latency == pytest.approx(truth.latency, rel=1e-6)
            assert line.bandwidth == pytest.approx(truth.bandwidth, rel=1e-6)
        assert found.worst < 1e-9


def test_where_lines_cross_between_their_points_they_are_joined_there():
    low, high = Line(1e-4, None), Line(0.0, 1e9)
    found = fitted("broadcast", 2, [(v, max(low.at(v), high.at(v))) for v in SIZES])
    assert found.lines[0].bandwidth is None
    assert found.until == pytest.approx(1e5, rel=1e-6)
    assert found.at(90_000) == pytest.approx(1e-4)
    assert found.at(3e5) == pytest.approx(3e-4)


def test_the_fit_minimises_relative_errors():
    """Moving either number of a noisy fit makes the sum of squared relative errors larger."""
    rng = random.Random(1)
    points = [(v, (1e-4 + v / 1e9) * rng.uniform(0.93, 1.07)) for v in SIZES]
    found = fitted("all_reduce", 2, points)
    squares = lambda a, b: sum(((a + v / b) / t - 1) ** 2 for v, t in points)
    a, b = found.lines[0].latency, found.lines[0].bandwidth
    best = squares(a, b)
    assert found.until is None
    assert all(squares(a * x, b * y) > best for x, y in ((1.001, 1), (0.999, 1), (1, 1.001), (1, 0.999)))
    assert found.worst == pytest.approx(max(abs(found.at(v) / t - 1) for v, t in points))
    assert 0 < found.median <= found.worst


def test_noise_alone_makes_no_second_regime():
    rng = random.Random(2)
    for _ in range(20):
        points = [(v, (1e-4 + v / 1e9) * rng.uniform(0.8, 1.25)) for v in SIZES]
        assert fitted("all_reduce", 2, points).until is None


def test_a_larger_payload_never_takes_less_time():
    fit = Fit("all_reduce", 2, (Line(1e-3, 1e9), Line(1e-5, 1e9)), 1000, ((1, 1e-3), (2, 1e-3)))
    times = [fit.at(v) for v in (0, 500, 1000, 1001, 5000, 10**6, 10**7)]
    assert times == sorted(times)
    falling = fitted("all_reduce", 2, [(1024, 2e-4), (4096, 1.5e-4), (16384, 1e-4)])  # what noise can look like
    assert falling.at(1e6) >= falling.at(0) > 0


# ----------------------------------------------------------------------------------------------------------------- files


def test_collectives_are_read_back(tmp_path):
    path = tmp_path / "my.toml"
    c = made_up()
    steps = [(v, 1e-4 if v < 2e5 else v / 1e9) for v in SIZES]
    c = Collectives(c.about, c.noise, c.slower, c.missing, (*c.fits, fitted("broadcast", 2, steps)))
    path.write_text(CHIP + to_toml(c))
    again = load_chip(str(path)).collectives
    assert again is not None
    assert (dict(again.about), again.noise, dict(again.slower), dict(again.missing)) == (
        ABOUT,
        0.03,
        {"compute": 1.25},
        c.missing,
    )
    assert again.groups == (2,)
    for kind in ("all_reduce", "all_gather", "broadcast"):
        assert again.fit(kind, 2).until == c.fit(kind, 2).until
        for v in (1, 1000, 10**5, 10**6, 10**9):
            assert again.seconds(kind, v, 2) == pytest.approx(c.seconds(kind, v, 2), rel=1e-4)
    assert again.seconds("all_reduce", 10**9, 1) == 0


def test_what_was_not_measured_is_not_guessed():
    c = made_up()
    with pytest.raises(ChipError, match=r"all_reduce over 4 devices was not measured, only over 2;.*with 4 processes"):
        c.seconds("all_reduce", 1000, 4)
    with pytest.raises(ChipError, match=r"all_to_all was not measured: gloo said 'gloo does not support it'"):
        c.seconds("all_to_all", 1000, 2)
    with pytest.raises(ChipError, match="permute was not measured"):
        c.seconds("permute", 1000, 2)


@pytest.mark.parametrize(
    ("old", "new"),
    [("format = 1", "format = 2"), ("noise = 0.0300", 'noise = "much"'), ("devices = 2", "devices = 1"),
     ("bytes = [1024", "bytes = [0"), ("latency = [0.0001]", "latency = [-1]"), ("bandwidth = [2e+09]", "bandwidth = []"),
     ('kind = "all_reduce"', 'kind = "gossip"')],
)  # fmt: skip
def test_damaged_collectives_are_one_sentence(tmp_path, old, new):
    path = tmp_path / "c.toml"
    text = CHIP + to_toml(made_up())
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ChipError, match="run costir calibrate --collectives again"):
        load_chip(str(path))


def test_collectives_are_cut_out_of_a_file_wherever_they_are():
    theirs = to_toml(made_up())
    for text in (CHIP + theirs, f'name = "mine"\n{theirs}\n[matrix]\nfp32 = 1e11\n\n[memory]\nbandwidth = 2e10\n'):
        rest, cut = split(text)
        assert "collectives" not in rest
        assert "fp32" in rest
        assert cut.strip() == theirs.strip()
    assert split(CHIP) == (CHIP, "")


# --------------------------------------------------------------------------------------------------------------- network

B, D, X = (size(n) for n in "BDX")


def on_two(tmp_path, c, **settings):
    path = tmp_path / "my.toml"
    path.write_text(CHIP + to_toml(c))
    return Network(load_chip(str(path)), Mesh.of(["X"]), {"B": 64, "D": 256, "X": 2}, Wiring(**settings))


def test_the_network_takes_what_was_measured(tmp_path):
    """A gradient of 4*B*D bytes: the formula's time is that of the record, on both sides of the border between two lines."""
    steps = [(v, 1e-4 if v < 2e5 else v / 1e9) for v in SIZES]
    c = Collectives(ABOUT, 0.03, {}, {}, (*made_up().fits, fitted("broadcast", 2, steps)))
    net = on_two(tmp_path, c)
    again = net.chip.collectives
    for kind in ("all_reduce", "broadcast"):
        found = net.seconds(Transfer(kind, ("X",), X, 4 * B * D))
        for b, d in ((1, 1), (64, 256), (100, 1000), (4000, 512), (1 << 14, 1 << 12)):
            assert float(evaluate(found, {B: b, D: d})) == pytest.approx(again.seconds(kind, 4 * b * d, 2))
            known = Transfer(kind, ("X",), X, number(4 * b * d))
            assert float(net.seconds(known)) == pytest.approx(again.seconds(kind, 4 * b * d, 2))
    assert [str(k.condition) for k in net.constraints] == ["Eq(X, 2)"]
    with pytest.raises(ChipError, match="reduce_scatter over 2 devices was not measured;"):
        net.seconds(Transfer("reduce_scatter", ("X",), X, 4 * B * D))


def test_links_that_are_asked_for_by_hand_come_before_what_was_measured(tmp_path):
    with pytest.raises(ChipError, match="no link to other chips"):
        on_two(tmp_path, made_up(), algorithm="ring").seconds(Transfer("all_reduce", ("X",), X, 4 * B * D))


# -------------------------------------------------------------------------------------------------------------- commands


@pytest.fixture
def quick(monkeypatch):
    """As if the processes had answered at once."""
    monkeypatch.setattr(processes, "together", lambda *_: made_up())
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def test_collectives_are_added_to_the_file_that_is_there(quick, tmp_path, capsys):
    path = tmp_path / "my.toml"
    path.write_text("# made by costir 0.1.0\n" + CHIP + "# a note of mine\n")
    for _ in range(2):  # the second replaces the first
        assert cli.main(["calibrate", "--collectives", "--processes", "2", "-o", str(path)]) == 0
        shown = capsys.readouterr().out
        assert "100 us" in shown
        assert "2 GB/s" in shown
        assert "all_to_all: gloo does not support it" in shown
    text = path.read_text()
    assert text.count("[collectives]") == 1
    assert "# a note of mine" in text
    assert load_chip(str(path)).collectives is not None
    assert cli.main(["chips", str(path)]) == 0
    assert "collectives.all_reduce over 2" in capsys.readouterr().out
    assert cli.main(["calibrate", "--collectives", "--processes", "2", "-o", str(path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["collectives"][0]["lines"] == [{"latency": pytest.approx(1e-4), "bandwidth": pytest.approx(2e9)}]
    assert found["missing"] == {"all_to_all": "gloo does not support it"}


def test_a_known_chip_is_copied_for_its_collectives(quick, tmp_path):
    path = tmp_path / "my.toml"
    assert cli.main(["calibrate", "--collectives", "--processes", "2", "--chip", "h100", "-o", str(path)]) == 0
    ours, theirs = load_chip(str(path)), load_chip("h100")
    assert ours.values == theirs.values
    assert ours.collectives is not None
    assert cli.main(["calibrate", "--collectives", "--processes", "2", "-o", str(path)]) == 0  # it is known as costir's own


def test_calibrating_the_machine_again_keeps_its_collectives(tmp_path):
    from costir.measuring.calibrate import cpu_name

    path = tmp_path / "my.toml"
    c = made_up()
    mine = Collectives({**c.about, "cpu": cpu_name()}, c.noise, c.slower, c.missing, c.fits)
    path.write_text(CHIP + to_toml(mine))
    assert calibrate_commands._kept(path).strip() == to_toml(mine).strip()
    path.write_text(CHIP + to_toml(c))  # of another machine
    assert calibrate_commands._kept(path) == ""
    path.write_text("no chip")
    assert calibrate_commands._kept(path) == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [([], "collectives need several processes"), (["--processes", "1"], "two processes or more, not 1"),
     (["--processes", "0"], "two processes or more, not 0"), (["--processes", "10000"], "up to 64 processes, not 10000")],
)  # fmt: skip
def test_too_few_processes_are_one_sentence(quick, tmp_path, capsys, words, message):
    assert cli.main(["calibrate", "--collectives", "-o", str(tmp_path / "my.toml"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_torchrun_and_processes_must_agree(quick, monkeypatch, tmp_path, capsys):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    assert cli.main(["calibrate", "--collectives", "-o", str(tmp_path / "my.toml")]) == 2
    assert "two processes or more, not 1" in capsys.readouterr().err
    assert cli.main(["calibrate", "--collectives", "--processes", "2", "-o", str(tmp_path / "my.toml")]) == 2
    assert "torchrun has started 1 processes, not 2" in capsys.readouterr().err


def test_a_file_of_another_machine_is_named(quick, tmp_path, capsys):
    path = tmp_path / "my.toml"
    about = '[calibration]\nformat = 7\nnoise = 0.1\ncurves = 0\n[calibration.about]\ncpu = "a 486"\n'
    about += "[calibration.number]\nview = 1e-6\nbandwidth_8192 = 1e9\n"
    path.write_text("# made by costir 0.1.0\n" + CHIP + about + "[calibration.curve]\n")
    assert cli.main(["calibrate", "--collectives", "--processes", "2", "-o", str(path)]) == 2
    assert "is of another machine: it was calibrated on a 486" in capsys.readouterr().err


def test_what_goes_with_collectives_only_is_refused_without(capsys):
    assert cli.main(["calibrate", "--processes", "2"]) == 2
    assert "--processes and --chip go with --collectives" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------- processes


def test_an_interrupted_run_leaves_the_file_as_it_was(quick, monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "together", interrupted)
    path = tmp_path / "my.toml"
    path.write_text("# made by costir 0.1.0\n" + CHIP)
    assert cli.main(["calibrate", "--collectives", "--processes", "2", "-o", str(path)]) == 130
    assert path.read_text() == "# made by costir 0.1.0\n" + CHIP
    assert list(tmp_path.iterdir()) == [path]


def test_two_real_processes_measure_collectives(tmp_path, capsys):
    """The whole way once, with two payloads: processes are started, time collectives, and end."""
    said = []
    try:
        found = processes.together(
            "costir.measuring.collectives:measure", {"sizes": (1 << 10, 1 << 16), "budget": 5.0}, 2, lambda *a: said.append(a)
        )
    except CostirError as error:
        if "no process can be started here" in str(error):
            pytest.skip(str(error))
        raise
    assert found.about["backend"] == "gloo"
    assert found.about["processes"] == "2"
    assert found.groups == (2,)
    kinds = {f.kind for f in found.fits} | set(found.missing)
    assert kinds == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"}
    assert all(t > 0 for f in found.fits for _, t in f.points)
    assert all(f.points[0][0] == 1 << 10 for f in found.fits)
    assert all(v >= 1 for v in found.slower.values())
    assert any("over 2" in what for what, _ in said)


def test_what_a_process_raises_is_raised_here(tmp_path, monkeypatch):
    (tmp_path / "two_tasks.py").write_text(
        "from costir.errors import CostirError\n"
        "def refuse(arguments, say): raise CostirError('no group here', 'find one')\n"
        "def fail(arguments, say): return 1 / arguments\n"
        "def end(arguments, say): import os; os._exit(7)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CostirError, match="no group here; find one"):
        processes.together("two_tasks:refuse", None, 1)
    with pytest.raises(CostirError, match="process 0 of 1 raised ZeroDivisionError: division by zero"):
        processes.together("two_tasks:fail", 0, 1)
    with pytest.raises(CostirError, match="process 0 of 1 ended with code 7"):
        processes.together("two_tasks:end", 0, 1)
