"""`costir demo`: passes, FLOPs and intensities as numbers, the lesson's GPT, what is said and when there is no verdict."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import io
import json
import math
import re
import time
from pathlib import Path

import pytest
import torch
from calibrations import Still
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from costir import cli, demo_views, render
from costir.calibration import Calibration, Curve, to_toml
from costir.cli import DEMOS
from costir.demo_texts import TEXTS
from costir.hardware import load_chip
from costir.measuring import demo, lesson
from costir.measuring.calibrate import cpu_name
from costir.measuring.demo_records import Demo, Fusion, Product, Scaling, Step, Way, doubled
from costir.measuring.kernels import kernels
from costir.measuring.pace import Pace

PEAK = 1e11
PASSES = {"a*b + c": (6, 4), "softmax": (8, 2), "tanh-GELU": (22, 2), "cos(cos(x)), cos(x)": (4, 2)}
NUMBERS = ("view", "view_grad", "module", "grad", "node", "leaf", "start", "optimizer")


def made_up(about: dict[str, str]) -> Calibration:
    """A calibration in a moment: 2 us a call, and a nanosecond for the product of all sizes."""
    curves = {
        k.name: Curve(
            tuple(k.axes), tuple(k.axes.values()), tuple(min(1e3, 2e-6 + 1e-9 * math.prod(p.values())) for p in k.points())
        )
        for k in kernels()
    }
    numbers = dict.fromkeys(NUMBERS, 1e-6) | {"fresh": 1e-10, "bandwidth_8192": 1e11, "bandwidth_1048576": 1e10}
    return Calibration({"threads": "1", "date": "today", **about}, 0.01, numbers, curves)


HEAD = f'name = "made up"\nkind = "cpu"\n[matrix]\nfp32 = {PEAK}\n[vector]\nfp32 = {PEAK}\n[memory]\nbandwidth = 1e10\n'


@pytest.fixture
def chip(tmp_path, monkeypatch):
    """This machine, made up; it is `--chip here`."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setattr(demo, "clock_of", lambda c, patience: Still())
    monkeypatch.setattr(demo, "pace", lambda c, clock: Pace())
    monkeypatch.setattr("time.process_time", time.perf_counter)  # a core of its own
    path = tmp_path / "costir" / "here.toml"
    path.parent.mkdir()
    path.write_text(HEAD + to_toml(made_up({"cpu": cpu_name(), "torch": torch.__version__})))
    return load_chip("here")


def positive(found: Demo) -> None:
    assert all(r.measured > 0 and r.predicted > 0 for r in found.rows)
    assert all(r.ratio == pytest.approx(r.measured / r.predicted) for r in found.rows)


# --------------------------------------------------------------------------------------------------------- what is counted


def test_matmul_counts_and_predictions(chip):
    found = demo.matmul(chip, (8, 32, 48))
    positive(found)
    assert [r.n for r in found.rows] == [8, 32, 48]
    for r in found.rows:
        assert r.flops == 2 * r.n**3
        assert r.intensity == pytest.approx(r.n / 6)
        assert r.predicted == pytest.approx(chip.calibration.curves["mm_nn"].at(r.n, r.n, r.n))
        assert r.share == pytest.approx(2 * r.n**3 / r.measured / PEAK)
    assert found.formulas == {"flops": "2*n**3", "intensity": "n/6"}


def test_bandwidth_counts_and_predictions(chip, monkeypatch):
    monkeypatch.setattr(demo, "caches", lambda: (("L1", 8192), ("L2", 1 << 20)))
    found = demo.bandwidth(chip, (1 << 10, 1 << 16, 1 << 20))
    positive(found)
    assert [(r.elements, r.level) for r in found.rows] == [(1 << 10, "L1"), (1 << 16, "L2"), (1 << 20, "memory")]
    for r in found.rows:
        assert r.moved == 8 * r.elements
        assert r.best == (1e10 if 4 * r.elements >= 1 << 20 else 1e11)
        curve = chip.calibration.curves["unary_"].at(r.elements)
        assert r.predicted == pytest.approx(max(curve, r.moved / r.best))


def test_bandwidth_is_never_predicted_above_the_best(chip):
    quick = {**chip.calibration.curves, "unary_": Curve(("n",), ((16, 1 << 20),), (1e-9, 1e-8))}
    fast = dataclasses.replace(chip, calibration=dataclasses.replace(chip.calibration, curves=quick))
    (row,) = demo.bandwidth(fast, (1 << 20,)).rows
    assert row.predicted == pytest.approx(8 * (1 << 20) / 1e10)


def test_fusion_passes(chip):
    found = demo.fusion(chip, (1 << 16,))
    positive(found)
    assert [r.case for r in found.rows] == list(PASSES)
    for r in found.rows:
        many, few = PASSES[r.case]
        assert (round(r.separate.passes, 1), r.together.passes) == (many, few)
        assert r.by_passes == pytest.approx(many / few, rel=0.002)
        assert r.predicted == pytest.approx(r.separate.predicted / r.together.predicted)
    assert found.formulas["tanh-GELU, separate"] == "88*C*R"
    assert found.formulas["softmax, separate"] == "32*C*R + 16*R"


class Traffic(TorchDispatchMode):
    """Bytes of the distinct operands and of the results of every operator that runs."""

    def __init__(self):
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        memory = {t.untyped_storage()._cdata: t.nbytes for t in tree_leaves(args) if isinstance(t, torch.Tensor)}
        self.nbytes += sum(memory.values()) + sum(t.nbytes for t in tree_leaves(out) if isinstance(t, torch.Tensor))
        return out


@pytest.mark.parametrize("case", PASSES)
def test_passes_are_those_of_real_operators(case):
    pair = demo.PAIRS[case]
    operands = [torch.rand(8, 4096) for _ in range(pair.operands)]
    for function, passes in zip((pair.separate, pair.together), PASSES[case], strict=True):
        with Traffic() as seen:
            function(*operands)
        assert seen.nbytes / (4 * 8 * 4096) == pytest.approx(passes, abs=0.01)
    if "cos" not in case:
        torch.testing.assert_close(pair.separate(*operands), pair.together(*operands))


def test_fresh_pages_and_special_functions_have_shares(chip, monkeypatch):
    monkeypatch.setattr("costir.measuring.estimate.FRESH", 1 << 18)
    rows = {(r.case, r.elements): r for r in demo.fusion(chip, (1 << 14, 1 << 16)).rows}
    add, soft = rows["a*b + c", 1 << 16], rows["softmax", 1 << 16]
    assert add.separate.special == add.together.special == 0
    assert add.together.fresh == pytest.approx((1 << 18) * 1e-10 / add.together.predicted)
    assert rows["a*b + c", 1 << 14].together.fresh == 0
    assert soft.together.special > 0


# ---------------------------------------------------------------------------------------------------------- the lesson's GPT


def by_hand(B, D, T=96, L=2, V=44):
    """Matmul FLOPs of a step: 12 D^2 weights a layer, scores and their product with v, the head; three times for training."""
    return 3 * 2 * B * T * (L * (12 * D**2 + 2 * T * D) + V * D)


def test_steps_count_as_by_hand(chip):
    found = demo.step(chip, (1, 2))
    positive(found)
    assert [r.size for r in found.rows] == [1, 2]
    assert [r.matmul for r in found.rows] == [by_hand(1, 64), by_hand(2, 64)]
    assert all(r.flops > r.matmul and 0 < r.overhead < 1 and r.operators > 500 for r in found.rows)
    wide = demo.width(chip, (32, 48), batch=2)
    assert [(r.size, r.matmul) for r in wide.rows] == [(32, by_hand(2, 32)), (48, by_hand(2, 48))]
    assert dict(wide.sizes) == {"B": 2, "T": 96, "N": 4, "L": 2, "V": 44}


def test_step_counts_as_torch_counts():
    family = lesson.gpt(B=2)
    module, args, kwargs = family.build(**family.sizes)
    with FlopCounterMode(display=False) as counter:
        module(*args, **kwargs).backward()
    assert counter.get_total_flops() == by_hand(2, 64)


def test_the_lesson_is_the_example():
    place = Path(__file__).parent.parent / "examples" / "gpt.py"
    spec = importlib.util.spec_from_file_location("example_gpt", place)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    family = lesson.gpt(B=3)
    torch.manual_seed(0)
    mine, (tokens, following), _ = family.build(**family.sizes)
    theirs = example.model()
    assert [tuple(p.shape) for p in mine.parameters()] == [tuple(p.shape) for p in theirs.parameters()]
    with torch.no_grad():
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
            q.copy_(p)
    torch.testing.assert_close(mine(tokens, following), theirs(tokens, following))


# ------------------------------------------------------------------------------------------------------------- what is said


def sample(name: str, **changes) -> Demo:
    """An experiment with numbers that one can follow."""
    rows = {
        "matmul": [Product(1e-5, 1.1e-5, 8, 1024.0, 8 / 6, PEAK), Product(1e-3, 1e-3, 320, 65536e3, 320 / 6, PEAK)],
        "bandwidth": [Scaling(2e-6, 2e-6, 1024, "L1", 8192.0, 1e11), Scaling(1e-2, 2e-2, 1 << 26, "memory", 2.0**29, 1e10)],
        "fusion": [Fusion("softmax", 1 << 20, Way(4.0, 4.4, 8.0, 0.1, 0.2, 0.0), Way(1.0, 1.0, 2.0, 0.5, 0.25, 0.0))],
        "step": [Step(1e-3, 1e-3, 1, 700, 2e6, 1e6, 0.9, PEAK), Step(4e-3, 2e-3, 4, 710, 8e6, 4e6, 0.2, PEAK)],
        "width": [Step(1e-3, 1e-3, 32, 700, 2e6, 1e6, 0.9, PEAK), Step(4e-3, 4e-3, 64, 700, 8e6, 4e6, 0.2, PEAK)],
    }  # fmt: skip
    formulas = {"flops": "2*n**3", "intensity": "n/6"} if name == "matmul" else {}
    return dataclasses.replace(Demo(name, tuple(rows[name]), {}, formulas, 0.0, 1.0, {}, ""), **changes)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", DEMOS)
def test_a_table_two_sentences_and_a_verdict(name, lang, chip):
    found = sample(name)
    document = demo_views.demos([found], chip, lang).document()
    (table,) = document.tables
    assert len(table.lines) == len(found.rows)
    assert all(len(line.cells) == len(table.columns) for line in table.lines)
    labels = [f.label for f in document.facts]
    assert labels == [name, name, TEXTS["verdict"][lang == "zh"]]
    words = [table.title, *(f.text for f in document.facts)]
    assert all(w and "{" not in w and bool(re.search("[\u4e00-\u9fff]", w)) == (lang == "zh") for w in words)


def test_sentences_hold_the_numbers():
    assert "n = 320" in demo_views.sentences(sample("matmul"), "en")[1]
    slow = sample("matmul", rows=sample("matmul").rows[:1])
    assert "none of these sizes" in demo_views.sentences(slow, "en")[1]
    assert "L1 <= 2^10, memory <= 2^26" in demo_views.sentences(sample("bandwidth"), "en")[1]
    first, second = demo_views.sentences(sample("step"), "en")
    assert "700 to 710 operators" in first
    assert "90 %" in first
    assert "at B = 2 by the prediction" in second
    assert "nowhere here as measured" in second
    assert "2 of 2 rows" in demo_views.verdict(sample("matmul"), "en")
    assert "1 of 2 rows" in demo_views.verdict(sample("bandwidth"), "en")


def test_doubled():
    assert doubled([(1, 1.0), (2, 1.5), (4, 3.0)]) == pytest.approx(8 / 3)
    assert doubled([(1, 1.0), (2, 2.0), (4, 4.0)]) == pytest.approx(2)
    assert doubled([(1, 1.0), (2, 1.5)]) is None
    assert doubled([(1, 1.0)]) is None


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loaded": 0.5, "busy": "slower"}, "50 %"),
        ({"loaded": -0.4, "busy": "faster"}, "40 %"),
        ({"core": 0.7, "busy": "shared"}, "30 %"),
        ({"differs": {"cpu": ("another one", "this one")}}, "another one"),
        ({"differs": {"torch": ("1.0", "2.0")}}, "torch 1.0"),
    ],
    ids=["slower", "faster", "shared", "cpu", "torch"],
)
def test_no_verdict_where_the_machine_is_not_as_calibrated(changes, said, lang, chip):
    found = sample("matmul", **changes)
    data = demo_views.demos([found], chip, lang).data()
    assert data["demos"][0]["verdict"] is None
    assert len(data["notes"]) == 1
    assert said in data["notes"][0].replace("的 torch 是", "torch")
    facts = demo_views.demos([found], chip, lang).document().facts
    assert [f.label for f in facts] == ["matmul", "matmul", TEXTS["note"][lang == "zh"]]


def test_the_machine_is_looked_at(chip, monkeypatch):
    assert demo.matmul(chip, (8,)).busy == ""
    loads = iter((Pace(), Pace(product=1.3)))
    monkeypatch.setattr(demo, "pace", lambda c, clock: next(loads))
    found = demo.matmul(chip, (8,))
    assert (found.busy, found.loaded) == ("slower", pytest.approx(0.3))
    monkeypatch.setattr(demo, "pace", lambda c, clock: Pace(product=0.7))
    assert demo.matmul(chip, (8,)).busy == "faster"
    monkeypatch.setattr(demo, "pace", lambda c, clock: Pace())
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    assert demo.matmul(chip, (8,)).busy == "shared"
    other = dataclasses.replace(chip, calibration=made_up({"cpu": "another", "torch": "0"}))
    assert set(demo.matmul(other, (8,)).differs) == {"cpu", "torch"}


def test_caches_of_this_machine(tmp_path):
    for i, (level, kind, size) in enumerate([("1", "Data", "48K"), ("1", "Instruction", "32K"), ("3", "Unified", "2M")]):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for key, value in (("level", level), ("type", kind), ("size", size)):
            (folder / key).write_text(value + "\n")
    (tmp_path / "index3").mkdir()  # without files
    assert demo.caches(tmp_path) == (("L1", 48 << 10), ("L3", 2 << 20))
    assert demo.caches(tmp_path / "none") == ()


# ------------------------------------------------------------------------------------------------------------ from a terminal


def run(capsys, *arguments):
    code = cli.main(["demo", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def small(monkeypatch):
    """All five, on sizes that take no time."""
    sizes = {"matmul": (8, 16), "bandwidth": (1024, 4096), "fusion": (1 << 12,), "step": (1, 2), "width": (32, 64)}
    runs = {n: (lambda chip, n=n, f=f: f(chip, sizes[n])) for n, f in demo.DEMOS.items()}
    monkeypatch.setattr(demo, "DEMOS", runs)
    return {n: len(v) * (len(PASSES) if n == "fusion" else 1) for n, v in sizes.items()}


def test_all_as_json(capsys, chip, monkeypatch):
    rows = small(monkeypatch)
    code, out, _ = run(capsys, "all", "--format", "json")
    assert code == 0
    data = json.loads(out)
    assert data["schema"] == demo_views.SCHEMA == "costir/demo/1"
    assert {d["demo"]: len(d["rows"]) for d in data["demos"]} == rows
    assert list(rows) == list(DEMOS) == list(demo.DEMOS)
    assert all(len(d["see"]) == 2 for d in data["demos"])
    assert all(r["measured"] > 0 and r["ratio"] > 0 for d in data["demos"] for r in d["rows"])
    assert set(data["demos"][3]["doubled_at"]) == {"predicted", "measured"}


def test_csv_has_a_line_for_every_row(chip):
    every = [sample(n) for n in DEMOS]
    table = list(csv.DictReader(io.StringIO(render.render(demo_views.demos(every, chip, "en"), "csv"))))
    assert [r["demo"] for r in table] == [d.name for d in every for _ in d.rows]
    assert [float(r["separate_passes"]) for r in table if r["case"] == "softmax"] == [8]
    assert all(float(r["ratio"]) > 0 for r in table)


@pytest.mark.parametrize("format", ["text", "markdown", "latex", "html"])
def test_other_formats(format, chip):
    every = [sample(n) for n in DEMOS]
    for lang, word in (("en", "passes"), ("zh", "读写遍数")):
        out = render.render(demo_views.demos(every, chip, lang), format)
        assert "softmax" in out
        assert "8 / 2" in out
        assert word in out


def test_language_follows_the_locale(capsys, chip, monkeypatch):
    small(monkeypatch)
    code, out, _ = run(capsys, "matmul")
    assert code == 0
    assert "measured" in out
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert "实测" in run(capsys, "matmul")[1]
    assert "measured" in run(capsys, "matmul", "--lang", "en")[1]


def test_errors_are_one_sentence(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for arguments in (("all",), ("matmul", "--chip", "h100")):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "")
        assert "costir calibrate" in err
    assert run(capsys, "nothing")[0] == 2
    assert run(capsys)[0] == 2
    assert run(capsys, "matmul", "--lang", "fr")[0] == 2


def test_a_calibration_that_lacks_something(chip):
    less = dataclasses.replace(chip.calibration, curves={"mm_nn": chip.calibration.curves["mm_nn"]})
    with pytest.raises(Exception, match="has no unary; run costir calibrate again"):
        demo.step(dataclasses.replace(chip, calibration=less), (1,))
