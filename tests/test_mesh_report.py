"""What reports say of a mesh: the table of what is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import costir
from costir.cli import main

MLP = str(Path(__file__).parents[1] / "examples" / "mlp.py")
STEP = ["analyze", MLP, "--mesh", "X=4,Y=2", "--parallel", "fsdp=X,tp=Y", "--phase", "train", "--chip", "h100"]


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    """The report of a training step as data."""
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*STEP, "--format", "json"]) == 0
    return json.loads(out.getvalue())


def test_what_is_sent_adds_up_to_the_totals_of_the_step(said: dict[str, Any]) -> None:
    rows, (chip,) = said["communication"], said["chips"]
    assert sum(r["sent"]["value"] for r in rows) == said["totals"]["network"]["value"]
    assert sum(r["times"][chip["name"]] for r in rows) == pytest.approx(chip["times"]["network"])
    assert sum(r["runs"]["value"] for r in rows) == sum(n["count"]["value"] for n in said["nodes"] if "transfers" in n)
    assert {(r["phase"], r["kind"], *r["axes"]) for r in rows} == {
        ("forward", "all_gather", "X"), ("forward", "all_reduce", "Y"), ("backward", "reduce_scatter", "X"),
    }  # fmt: skip


def test_a_gathered_megabyte_takes_what_a_link_needs_for_it(said: dict[str, Any]) -> None:
    """450 GB/s one way; of V bytes, (N - 1)/N come from others."""
    gather = next(r for r in said["communication"] if r["kind"] == "all_gather")
    payload = 2 * 4 * 1024 * 4096 / 2  # two matrices of float32, halved by tp
    assert gather["payload"]["value"] == payload
    assert gather["times"]["h100_sxm"] == pytest.approx(payload * 3 / 4 / 450e9)


def test_the_table_names_collectives_axes_and_shares(capsys: Any) -> None:
    assert main([*STEP, "--format", "markdown"]) == 0
    table = capsys.readouterr().out.split("What the devices send each other")[1].split("\n\n")[1].splitlines()
    cells = [[c.strip(" *`").replace("\\", "") for c in line.strip("|").split("|")] for line in table]
    assert cells[0] == ["collective", "over", "runs", "payload", "= formula", "sent", "time", "share"]
    assert [c[:3] for c in cells[2:]] == [
        ["forward all_gather", "X", "1"], ["forward all_reduce", "Y", "1"], ["backward reduce_scatter", "X", "1"],
        ["total", "X", "2"], ["total", "Y", "1"], ["total", "", "3"],
    ]  # fmt: skip
    assert cells[2][4] == "8*D*F/Y"
    shares = [float(c[-1].removesuffix(" %")) for c in cells[2:]]
    assert sum(shares[:3]) == pytest.approx(shares[-1], abs=0.2)


def test_lengths_that_the_links_allow_are_conditions_of_the_report(capsys: Any) -> None:
    """Nodes of 8 chips behind NVLink are full, a torus of a TPU v5e is 16 long; without a chip nothing is said of either."""
    from costir import analyze
    from costir.errors import SizeError

    step = ["analyze", MLP, "--mesh", "X=16", "--parallel", "fsdp=X", "--chip"]
    assert main([*step, "h100,tpu_v5e"]) == 0
    shown = capsys.readouterr().out
    assert "(X % 8 == 0) | (X <= 8) (nodes of 8: h100_sxm)" in shown
    assert "X <= 16 (tpu_v5e: ici)" in shown
    assert main(step[:-1]) == 0
    assert "nodes" not in capsys.readouterr().out
    found = analyze(MLP, mesh={"X": 16}, parallel="fsdp=X", sizes={"B": 768, "D": 768, "F": 768}).on("h100")
    with pytest.raises(SizeError):
        found.at(X=12)  # a node and a half


def test_model_flops_of_a_job_on_a_mesh_are_those_of_the_whole_model() -> None:
    """Three matmuls' worth of 4*B*D*F, over 8 devices' time at 66.9 TFLOP/s."""
    from costir import analyze, mfu
    from costir.errors import CostirError

    job = {"mesh": {"X": 4, "Y": 2}, "parallel": "fsdp=X,tp=Y", "time": "50us"}
    found = mfu(MLP, "h100", **job)
    assert found.devices == 8
    assert float(found.full) == pytest.approx(12 * 64 * 1024 * 4096 / (8 * 66.9e12 * 50e-6), rel=1e-3)
    assert found.full == mfu(MLP, "h100", devices=8, time="50us").full
    assert any("divided over X=4 * Y=2 devices by fsdp=X,tp=Y" in n for n in found.notes)
    with pytest.raises(CostirError, match="has 8 devices, not 4"):
        mfu(MLP, "h100", **job, devices=4)
    with pytest.raises(CostirError, match="is of one device of a mesh"):
        mfu(analyze(MLP, phase="train", mesh={"X": 2}, parallel="dp=X"), "h100", time="1ms")


def test_a_formula_is_checked_on_a_mesh(capsys: Any) -> None:
    mesh = ["--mesh", "X=4", "--parallel", "fsdp=X"]
    assert main(["check", MLP, "params = 2*D*F/X", *mesh]) == 0
    assert main(["check", MLP, "params = 2*D*F", *mesh]) == 1
    assert "misses + 2*D*F/X" in capsys.readouterr().out
    assert main(["check", MLP, "time = 2*B*D*F/C", *mesh, "--chip", "h100"]) == 2
    assert "time is not checked where devices send each other something" in capsys.readouterr().err
    assert main(["mfu", MLP, *mesh, "--time", "50us", "--chip", "h100"]) == 0
    assert "a step on 4 chips" in capsys.readouterr().out


@pytest.mark.parametrize("way", ["dp=X", "fsdp=X", "tp=X"])
def test_flops_of_all_devices_are_those_of_the_whole_model_and_what_is_repeated(way: str) -> None:
    """The whole model is analysed by itself; what an MLP repeats by dp and tp is counted by hand."""
    from sympy import expand

    from costir import analyze
    from costir.repeated import repeated

    whole = analyze(MLP, phase="train")
    divided = analyze(MLP, phase="train", mesh={"X": 4}, parallel=way)
    b, d, f, x = (divided.symbols[n] for n in "BDFX")
    more = repeated(divided)
    assert more is not None
    assert expand(x * divided.flops - whole.flops - more) == 0
    adds = 2 * d * f * (x - 1)  # of gradients, on their way
    by_hand = {
        "dp=X": adds + 2 * d * f * x + 4 * d * f * (x - 1),  # each device averages, and takes the optimizer's step
        "fsdp=X": adds,
        "tp=X": b * d * (x - 1) + 5 * b * d * (x - 1),  # partial results are added up; loss and its gradient are everywhere
    }
    assert expand(more - by_hand[way]) == 0
    assert repeated(whole) is None
    kept = repeated(divided.keep(["B", "D"]).keep(["B"]))
    assert kept == more.subs({n: divided.sizes[str(n)] for n in (d, f, x)})


def test_a_shortcut_is_said_to_be_taken_where_one_device_has_a_batch_of_one() -> None:
    gpt = Path(__file__).parents[1] / "examples" / "gpt.py"
    found = costir.analyze(gpt, mesh={"X": 8}, parallel="dp=X", phase="backward", sizes={"B": 8})
    (said,) = [n for n in found.notes if "shortcut" in n]
    assert said.startswith("at B/X = 1 torch takes a shortcut: -")


def test_without_a_batch_of_the_users_each_device_has_one() -> None:
    """The base batch of a config is 1, which 8 devices would not divide."""
    config = Path(__file__).parents[1] / "examples" / "llama3-8b"
    found = costir.analyze(config, mesh={"X": 8}, parallel="fsdp=X", sizes={"L": 2})
    assert found.sizes["B"] == 8
    assert any(n.startswith("B = 8, one for each device") for n in found.notes)
    with pytest.raises(costir.CostirError, match="8 devices along X do not divide the batch, B = 1"):
        costir.analyze(config, mesh={"X": 8}, parallel="fsdp=X", sizes={"L": 2, "B": 1})


@pytest.mark.parametrize(
    ("written", "unknown", "sizes"),
    [
        ("x[B,D] . W[D_X,F] -> y[B,F]", "B", {}),
        ("A[I, J_X] . B[J_X, K] -> C[I, K]", "J", {}),
        ("A[I, J_X] . B[J_X, K] -> C[I, K]", "X", {"J": 65536}),
        ("x[B,T,D_X] . W[D_X,F] -> y[B,T,F]", "tokens", {}),
    ],
)
def test_a_crossing_says_when_a_third_unit_takes_longer(written: str, unknown: str, sizes: dict[str, int]) -> None:
    """Where two units are equal, the third is looked up at sizes next to it."""
    on = costir.analyze(written, mesh={"X": 4}, sizes=sizes).on("tpu_v5e@book")
    seen = set()
    for against in ("memory", "network"):
        found = on.critical(unknown, against)
        if found.at_base is None:
            continue
        moved = "T" if unknown == "tokens" and "T solved" in found.note else "B" if unknown == "tokens" else unknown
        base = on.analysis.sizes
        rest = base["T"] if moved == "B" and unknown == "tokens" else base["B"] if moved == "T" else 1
        times = on.roofline.units_at({**base, moved: found.at_base / rest})
        third = "network" if against == "memory" else "memory"
        assert times["compute"] == pytest.approx(times[against])
        assert (found.beside == third) is (times[third] > times["compute"] * 1.001)
        seen.add(found.beside)
    assert seen - {""}


def test_units_between_whole_sizes_are_those_of_whole_sizes() -> None:
    on = costir.analyze("A[I, J_X] . B[J_X, K] -> C[I, K]", mesh={"X": 4}).on("h100")
    at = on.at(J=8192)
    assert on.roofline.units_at({"J": 8192.0}) == pytest.approx(
        {"compute": at.compute, "vector": at.vector, "memory": at.memory, "network": at.network}
    )


def test_sentences_of_thresholds(capsys: Any) -> None:
    assert main(["shard", "x[B,D] . W[D_X,F] -> y[B,F]", "--mesh", "X=4", "--chip", "tpu_v5e"]) == 0
    said = capsys.readouterr().out
    assert "B: none, compute time is 0.1733 x network time at every B, since B cancels" in said
    assert "memory takes longer below and compute above, but network longer than both there" in said
    assert main(["shard", "x[B_X,D] . W[D,F] -> y[B_X,F]", "--mesh", "X=4", "--chip", "tpu_v5e", "--keep", "B"]) == 0
    assert " on each of 4 devices" in capsys.readouterr().out


SEQUENCE = """
import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, D, F):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, F, bias=False), nn.Linear(F, D, bias=False)

    def forward(self, x):
        return self.down(self.up(self.norm(x)))


def build(B=8, T=64, D=32, F=64):
    return MLP(D, F), (torch.randn(B, T, D),), {}


sp_plan = {"norm": "sequence", "up": "colwise_sequence", "down": "rowwise_sequence"}
"""


def test_a_plan_that_makes_devices_do_the_whole_work_is_said(tmp_path: Path, capsys: Any) -> None:
    """A norm of style "sequence" takes its input for a part of the sequence; here each of 4 devices has all of it."""
    (tmp_path / "model.py").write_text(SEQUENCE)
    assert main(["analyze", str(tmp_path / "model.py"), "--mesh", "Y=4", "--parallel", "sp=Y"]) == 0
    said = capsys.readouterr().out
    assert " x the whole model's work: a plan may take what each device has whole for a part of it" in said
    assert main([*STEP]) == 0
    assert "the whole model's work" not in capsys.readouterr().out


def test_the_table_of_algorithms_says_what_each_is(capsys: Any) -> None:
    """Two ways round a ring is one along Y, though what goes over X goes through a switch."""
    where = ["--mesh", "X=4,Y=4", "--parallel", "fsdp=X,tp=Y", "--chip", "tpu_v5p", "--link", "X=dcn"]
    assert main(["solve", MLP, *where, "--for", "B"]) == 0
    said = capsys.readouterr().out
    assert "ring_two_way: a ring, both ways round" in said
    assert "line: a line, both ways" in said


def test_a_batch_that_devices_divide_is_proposed(capsys: Any) -> None:
    assert main(["analyze", MLP, "--mesh", "X=3,Y=5", "--parallel", "hsdp=X/Y"]) == 2
    assert "choose a multiple of 15: --size B=75" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("formula", "right", "said"),
    [
        ("4*B*F*(X-1)/X", True, "right"),
        ("2*B*F*(X-1)/X", False, "half of it: an all_reduce scatters sums and gathers them"),
        ("8*B*F*(X-1)/X", False, "counts 4 bytes per element"),
        ("4*B*F", False, "right in the limit of large X"),
        ("B*F - B*F/X", False, "exactly 4 times that"),
    ],
)
def test_formulas_of_what_is_sent_are_checked(formula: str, right: bool, said: str) -> None:
    """2*(X - 1)/X of an array of B*F elements of 2 bytes."""
    from costir.check import check

    a = costir.analyze("x[B,D] . W[D_X,F] -> y[B,F]", mesh={"X": 4})
    found = check(a, f"sent = {formula}")
    assert found.right is right
    assert said in found.message
    with pytest.raises(costir.errors.CostirError, match="nothing is sent here"):
        check(costir.analyze("x[B,D] . W[D,F] -> y[B,F]"), "sent = 4*B*F")
