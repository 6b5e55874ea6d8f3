"""Calibration files, curves, matching, estimates and measurements: everything but how fast this machine is."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch
from torch import nn

import costir
from costir import calibration, cli
from costir.calibration import Calibration, Curve
from costir.errors import ChipError, CostirError
from costir.hardware import load_chip
from costir.load.subject import family_of
from costir.measuring import calibrate as calibrating
from costir.measuring import measure as measuring
from costir.measuring.estimate import Estimator, bandwidth
from costir.measuring.kernels import Kernel, kernels
from costir.measuring.knee import crossing
from costir.measuring.lookup import lookups
from costir.measuring.profile import Event, _matched
from costir.measuring.subject import Recorded, _distances, subject
from costir.measuring.timing import timed
from costir.measuring.why import why
from costir.ops import registry  # noqa: F401
from costir.trace import record_calls

NUMBERS = {
    "view": 1e-6, "view_grad": 1e-6, "module": 2e-6, "grad": 1e-6, "node": 1e-6, "leaf": 1e-6, "start": 1e-5, "optimizer": 1e-6,
    "fresh": 5e-11, "bandwidth_8192": 1e11, "bandwidth_2097152": 5e10, "bandwidth_536870912": 2e10,
}  # fmt: skip


def made_up() -> Calibration:
    """A machine on which everything takes 1 us and 0.1 ns per number."""
    curves = {}
    for k in kernels():
        seconds = tuple(min(1e3, 1e-6 + 1e-10 * math.prod(p.values())) for p in k.points())
        curves[k.name] = Curve(tuple(k.axes), tuple(k.axes.values()), seconds)
    about = {**calibrating.machine(), "threads": "1", "seconds": "0"}
    return Calibration(about, 0.02, dict(NUMBERS), curves)


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


# --------------------------------------------------------------------------------------------------- curves and files


def test_a_curve_is_a_power_law_between_its_points():
    c = Curve(("n", "m"), ((1, 10, 1000), (2, 32)), tuple(3e-6 * n**0.5 * m**2 for n in (1, 10, 1000) for m in (2, 32)))
    for n, m in ((1, 2), (10, 32), (31, 7), (500, 3), (1000, 32), (9000, 100)):
        assert c.at(n, m) == pytest.approx(3e-6 * n**0.5 * m**2)
    assert c.at(0.01, 1) == pytest.approx(c.at(1, 2))  # below the grid it stays


def test_a_calibration_is_read_back(chip):
    c, again = made_up(), chip.calibration
    assert again.noise == c.noise
    assert again.threads == 1
    assert dict(again.numbers) == pytest.approx(dict(c.numbers))
    assert set(again.curves) == set(c.curves)
    for name, curve in c.curves.items():
        assert again.curves[name].grid == curve.grid
        assert again.curves[name].seconds == pytest.approx(curve.seconds, rel=1e-3)
    assert float(chip.matmul_rate("float32")) == 1e11
    assert float(chip.memory_bandwidth) == 2e10


@pytest.mark.parametrize(
    ("old", "new"),
    [("format = 2", "format = 1"), ("noise = 0.0200", 'noise = "much"'), ("view = 1e-06", "view = -1"), ("ns = [", "ns = [7, "),
     ('axes = ["n"]', 'axes = ["m"]'), ("[calibration.number]", "[calibration.nummer]")],
)  # fmt: skip
def test_a_damaged_calibration_is_one_sentence(tmp_path, old, new):
    path = tmp_path / "c.toml"
    text = calibrating._chip_file(made_up(), {"fp32": 1e11}, {8192: 1e11, 2**29: 2e10})
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ChipError, match="run costir calibrate again"):
        load_chip(str(path))


def test_the_envelope_never_rises():
    found = calibrating._envelope(iter([(8, 5.0), (8, 9.0), (16, 4.0), (32, 7.0), (64, 1.0)]))
    assert found == {8: 9.0, 16: 7.0, 32: 7.0, 64: 1.0}
    c = made_up()
    assert [bandwidth(c, s) for s in (1, 8192, 10**6, 2**21, 10**8, 10**12)] == [1e11, 1e11, 1e11, 5e10, 5e10, 2e10]


def test_calibrating_writes_a_chip_that_every_verb_takes(monkeypatch, tmp_path, capsys):
    """With a few small kernels: the whole takes half a minute."""
    few = [k for k in kernels() if k.name in ("unary", "mm_nn", "mm_nt", "mm_tn", "streamed")]
    small = [Kernel(k.name, {a: g[:2] for a, g in k.axes.items()}, k.make) for k in few]
    monkeypatch.setattr(calibrating, "kernels", lambda: small)
    monkeypatch.setattr(calibrating, "WORKING_SETS", (1 << 13, 1 << 16))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert cli.main(["calibrate", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == str(tmp_path / "costir" / "here.toml")
    assert found["rates"]["fp32"] > 1e8
    assert all(v >= 0 for v in found["numbers"].values())
    assert cli.main(["analyze", "X[B,D] . Y[D,F]", "--chip", "here", "--dtype", "fp32"]) == 0
    assert "GFLOP/s" in capsys.readouterr().out
    assert cli.main(["calibrate", "-o", str(tmp_path / "x.txt")]) == 2
    assert ".toml" in capsys.readouterr().err


def test_without_a_calibration_it_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for command in (["measure", "examples/mlp.py"], ["measure", "examples/mlp.py", "--chip", "h100"]):
        assert cli.main(command) == 2
        assert "costir calibrate" in capsys.readouterr().err


def test_timing_finds_what_a_call_takes():
    import time

    found = timed(lambda: time.sleep(0.002), rounds=3, at_least=0.004)
    assert 0.002 <= found.best < 0.02
    assert found.spread >= 0


# ---------------------------------------------------------------------------------------------------------- estimates


def calls_of(function, *args, backward=False):
    return list(record_calls(function, *args, backward=backward))


def test_operators_find_their_curves():
    x, w = torch.rand(6, 8), torch.rand(8, 5)
    one = lambda f, *a: lookups(calls_of(f, *a)[-1], ((8, 1), (5, 1)), measuring.cost_of(calls_of(f, *a)[-1])[0])[0]
    assert (one(torch.mm, x, w).curve, one(torch.mm, x, w).sizes) == ("mm_nn", (6, 5, 8))
    assert one(torch.exp, x).curve == "exp"
    assert one(torch.exp, x).sizes == (48,)
    assert one(lambda t: t.softmax(-1), x).sizes == (6, 8)
    assert one(lambda t: t.sum(0), x).curve == "sum_rows"
    assert one(lambda t: t.sum(1), x).sizes == (6, 8)
    assert one(lambda t: t + t[:1], x).curve == "broadcast"
    assert one(torch.erfinv, x).alike  # it has no curve
    assert not one(torch.add, x, x).alike


def test_every_operator_of_some_models_has_an_estimate(chip):
    estimator = Estimator(chip.calibration)
    models = [
        (nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)), torch.rand(4, 8)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), torch.rand(1, 3, 8, 8)),
        (nn.LSTM(4, 6), torch.rand(5, 2, 4)), (nn.TransformerEncoderLayer(8, 2, 16, 0.0), torch.rand(3, 2, 8)),
    ]  # fmt: skip
    for model, x in models:
        for call in record_calls(model, x, backward=True):
            found = estimator.of(Recorded(call, (), (), (), True, 100))
            assert found.total > 0
            assert found.kernel >= found.call > 0


def test_weights_that_were_not_used_lately_take_longer(chip):
    c = made_up()
    curve = c.curves["streamed"]
    slow = tuple(2e-6 * (1 + p["pool"] / 2**20) for p in next(k for k in kernels() if k.name == "streamed").points())
    estimator = Estimator(
        Calibration(c.about, c.noise, c.numbers, {**c.curves, "streamed": Curve(curve.axes, curve.grid, slow)})
    )
    layer = nn.Linear(64, 64)
    family = family_of(lambda B=4: (layer, (torch.rand(B, 64),), {}), {})
    call = next(r.call for r in subject(family, {"B": 4}, "forward").record() if r.call.name == "addmm")
    roles = [t.role for t in call.inputs]
    backs = [tuple(d if r == "weight" else 0 for r in roles) for d in (100, 1 << 26)]
    near, far = (estimator.of(Recorded(call, (), back, (), False, 0)) for back in backs)
    assert near.cold == 0
    assert far.cold > 0


def test_work_beyond_the_caches_drives_out_no_more_code():
    """A steep last step of what an interruption costs is not carried on: at gigabytes it would be milliseconds."""
    c = made_up()
    steep = Curve(("apart",), ((1 << 12, 1 << 20, 1 << 24),), (1e-6, 4e-6, 50e-6))
    estimator = Estimator(Calibration(c.about, c.noise, c.numbers, {**c.curves, "interrupted": steep}))
    call = calls_of(torch.relu, torch.rand(8))[0]
    apart = [estimator.of(Recorded(call, (), (), (), False, since)).apart for since in (1 << 20, 1 << 24, 1 << 32)]
    assert apart == pytest.approx([4e-6, 50e-6, 50e-6])


def test_how_far_back_memory_was_touched():
    kb = 1024
    a, b, c = (1 << 20, 256 * kb), (2 << 20, 64 * kb), (3 << 20, 128 * kb)
    spans = [([a], [b]), ([b], [c]), ([c], [a])]
    far, since = _distances(["x", "y", "x"], spans)
    # Every operand was written last by the call before, so that only its own bytes were touched since.
    assert far[1][0] == [64 * kb]
    assert far[2][0] == [128 * kb]
    assert far[0][0] == [256 * kb]  # by the last call of the step before
    assert far[0][1] == [128 * kb + 384 * kb + 64 * kb]  # b's memory: read by the second call, then c twice, a, and a again
    assert since[0] == (0, 0)  # x ran right before
    assert since[2] == (192 * kb, 1)
    assert since[1] == (384 * kb + 320 * kb, 1)


def test_a_view_touches_nothing():
    a, b, c = (1 << 20, 1 << 18), (2 << 20, 1 << 16), (3 << 20, 1 << 16)
    steps = [("aten.mm.default", ([a], [b])), ("aten.relu.default", ([b], [c]))]
    plain = _distances(*zip(*steps, strict=True))
    seen = _distances(*zip(("aten.t.default", ([a], [a])), *steps, strict=True))
    assert [far[1:] for far in seen] == list(plain)
    assert plain[0][0] == ([3 * (1 << 16) + (1 << 18)], [2 * (1 << 16)])


# -------------------------------------------------------------------------------------------------------- measurement


def test_calls_are_matched_with_the_events_that_are_theirs():
    events = [Event("aten::linear", 0, 9), Event("aten::t", 1, 2), Event("aten::addmm", 3, 8), Event("aten::copy_", 4, 5),
              Event("aten::copy_", 10, 13), Event("aten::relu", 14, 15)]  # fmt: skip
    assert _matched(events, ["aten::t", "aten::addmm", "aten::copy_", "", "aten::relu"]) == [1, 5, 3, None, 1]
    assert _matched(events, ["aten::mm", "aten::relu"]) == [None, 1]  # one that did not run does not shift the others


class Small(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.a, self.b = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)) + x)


def small(B=8, D=64):
    return Small(D), (torch.rand(B, D),), {}


@pytest.mark.parametrize("phase", ["forward", "backward", "train"])
def test_a_measurement_adds_up(chip, free, phase):
    m = costir.measure(small, chip=chip, phase=phase)
    assert m.measured > 0
    assert m.estimate > 0
    inside = sum(r.measured or 0 for r in m.rows)
    assert inside + m.between == pytest.approx(m.measured, rel=0.2)
    assert m.operators == sum(r.count for r in m.rows)
    assert {r.op for r in m.rows} >= {"addmm", "relu"}
    assert all(r.measured for r in m.rows if r.op in ("addmm", "relu"))
    split = why(m)
    assert sum(p.seconds for p in split.parts) == pytest.approx(m.measured)
    assert "%" in split.advice
    flops = sum(r.flops for r in m.rows if r.phase == "forward" and r.op == "addmm")
    assert flops >= 2 * 2 * 8 * 64 * 64


def test_a_notation_string_is_multiplied_for_real(chip, free):
    m = costir.measure("x[B,32] . w[32,16]", chip=chip, sizes={"B": 4}, dtype="fp32")
    assert sum(r.flops for r in m.rows) == 2 * 4 * 32 * 16


def test_a_busy_machine_gets_no_verdict(chip, monkeypatch):
    monkeypatch.setattr(measuring, "_loaded", lambda c: 0.8)
    m = costir.measure(small, chip=chip)
    assert not m.summary.verdict
    assert any("no verdict" in n for n in m.notes)


def test_a_file_of_another_machine_is_named(chip, free, monkeypatch):
    monkeypatch.setattr(measuring, "cpu_name", lambda: "Another CPU")
    assert any("Another CPU" in n for n in costir.measure(small, chip=chip).notes)


def test_what_cannot_run_is_one_sentence(chip, free):
    class Bad(nn.Module):
        def forward(self, x):
            return x @ x.numpy()

    with pytest.raises(CostirError, match="a real run of"):
        costir.measure(lambda B=2: (Bad(), (torch.rand(B, 3),), {}), chip=chip)
    with pytest.raises(CostirError, match="was not measured here"):
        costir.measure(small, chip="h100")


def test_where_two_straight_parts_cross():
    draw = random.Random(1)
    for knee in (8.6, 20.0, 70.0):
        points = [(2**i, max(1e-3, 1e-3 * 2**i / knee) * draw.uniform(0.99, 1.01)) for i in range(12)]
        assert crossing(points) == pytest.approx(knee, rel=0.1)
    assert crossing([(2**i, 1e-3 * 2**i) for i in range(8)]) is None


# --------------------------------------------------------------------------------------------------------- command line

MODEL = """
import torch
from torch import nn
def model(D=32): return nn.Sequential(nn.Linear(D, D), nn.ReLU())
def inputs(B=4, D=32): return torch.rand(B, D)
"""


@pytest.fixture
def files(tmp_path, chip, free):
    (tmp_path / "m.py").write_text(MODEL)
    return tmp_path / "m.py", chip.path


def test_measure_on_the_command_line(files, capsys, tmp_path):
    model, path = files
    assert cli.main(["measure", str(model), "--chip", path, "--why"]) == 0
    out = capsys.readouterr().out
    for word in ("addmm", "total", "verdict", "roofline floor", "residual", "would help most", "bounds"):
        assert word in out
    assert cli.main(["measure", str(model), "--chip", path, "--format", "json"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert set(summary) >= {"total_error", "median_error", "within_10", "within_25", "bound_violations", "noise"}
    pictures = [tmp_path / "a.svg", tmp_path / "b.png"]
    assert cli.main(["measure", str(model), "--chip", path, "--plot", f"roofline={pictures[0]}"]) == 0
    sweep = ["measure", str(model), "--chip", path, "--sweep", "B=1:4:x2"]
    assert cli.main([*sweep, "--plot", f"sweep={pictures[1]}"]) == 0
    out = capsys.readouterr().out
    assert "overhead rules" in out
    assert all(p.stat().st_size > 5000 for p in pictures)


def test_a_measured_critical_size(files, capsys):
    _, path = files
    assert cli.main(["solve", "x[B,64] . w[64,64]", "--for", "B", "--chip", path, "--dtype", "fp32", "--measure"]) == 0
    out = capsys.readouterr().out
    assert "measured" in out
    assert "solved" in out


@pytest.mark.parametrize(
    "options",
    [["--plot", "pie"], ["--plot", "sweep"], ["--why", "--sweep", "B=1,2"], ["--chip", "h100,b200"], ["--size", "Q=3"],
     ["--sweep", "B=1,2", "--sweep", "D=1,2"], ["--plot", "roofline=x.pdf"]],
)  # fmt: skip
def test_wrong_questions(files, capsys, options):
    model, path = files
    chosen = [] if "--chip" in options else ["--chip", path]
    assert cli.main(["measure", str(model), *chosen, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("costir: ")
    assert calibration.FORMAT == 2
