"""`costir plan`: every split of its table is what analysing that split by itself says, and what it leaves out cannot be."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

import costir
from costir.cli import main
from costir.collectives import form
from costir.errors import CostirError
from costir.hardware import load_chip
from costir.mesh import Mesh
from costir.network import Network
from costir.symbolic import holds, number, size

MLP = str(Path(__file__).parent.parent / "examples" / "mlp.py")
CHIP, DEVICES, BATCH, MEMORY = "h100", 16, 4096, 110_000_000


@pytest.fixture(scope="module")
def mlp():
    chip = load_chip(CHIP, {"memory.capacity": str(MEMORY)})
    return costir.plan(MLP, chip, devices=DEVICES, batch=BATCH, tokens=10**9, strategies="fsdp,tp")


def alone(split, axes, parallel):
    """The same split, analysed by itself."""
    mesh = {a: split.axes[a] for a in axes}
    a = costir.analyze(MLP, mesh=mesh, parallel=parallel, phase="train", sizes={"B": BATCH})
    return a, a.on(CHIP).at().lower


def test_every_split_is_there(mlp):
    found = {tuple(sorted(s.axes.items())) for s in (*mlp.splits, *mlp.too_large)}
    pairs = {(("fsdp", x), ("tp", DEVICES // x)) for x in (2, 4, 8)}
    assert found == {*pairs, (("fsdp", 16),), (("tp", 16),)}
    assert [s.seconds for s in mlp.splits] == sorted(s.seconds for s in mlp.splits)


def test_each_is_what_it_is_alone(mlp):
    """By the order of axes that the plan chose, and no other order is faster."""
    for s in mlp.splits:
        times = {}
        for axes in itertools.permutations(s.axes):
            parallel = ",".join(f"{a}={a}" for a in axes)
            a, times[axes] = alone(s, axes, parallel)
        held = a.memory.at()
        assert (s.memory.total, dict(s.memory.parts)) == (held.total, dict(held.parts)), s
        assert s.seconds == pytest.approx(times[tuple(s.axes)], rel=1e-9), s
        assert s.seconds == pytest.approx(min(times.values()), rel=1e-9), s
        assert sum(s.times.values()) == pytest.approx(s.seconds)


def test_three_axes_of_a_transformer_are_what_each_split_is_alone(monkeypatch):
    """Copies, shards and tensor parallelism of a GPT: seconds, network and memory of splits that are each analysed alone."""
    monkeypatch.setattr("costir.planning.combinations", lambda names: (tuple(names),))
    gpt, sizes = str(Path(MLP).with_name("gpt.py")), {"T": 64, "D": 256, "N": 8, "L": 4, "V": 512}
    more = {"phase": "backward", "sizes": sizes}
    found = costir.plan(gpt, CHIP, devices=DEVICES, batch=128 * 64, strategies="hsdp,tp", **more)
    assert {tuple(sorted(s.axes.values())) for s in found.splits} == {(2, 2, 4)}
    assert len(found.splits) == 3
    for s in found.splits[::2]:
        a = costir.analyze(gpt, mesh=s.axes, parallel="hsdp=dp/fsdp,tp=tp", phase="backward", sizes={**sizes, "B": 128})
        there = a.on(CHIP)
        assert s.seconds == pytest.approx(float(there.at().lower), rel=1e-12), s
        assert s.memory.total == a.memory.at().total, s
        sent = sum(t for label, t in s.times.items() if label.startswith("network"))
        assert sum(float(n.network) for n in there.roofline.per_node()) == pytest.approx(sent, rel=1e-9), s


def test_the_smallest_mesh(mlp):
    """The fewest devices whose memory is enough, of all lengths of all combinations, by their formulas one after the other."""
    able = set()
    for w in mlp.ways:
        axes = [part.partition("=")[2] for part in w.parallel.split(",") if part]
        for lengths in itertools.product(range(2, DEVICES + 1), repeat=len(axes)):
            at = {size(n): number(v) for n, v in {**mlp.sizes, **dict(zip(axes, lengths, strict=True))}.items()}
            even = all(v & (v - 1) == 0 for v in lengths)
            if even and math.prod(lengths) <= DEVICES and w.memory.xreplace(at) <= MEMORY:
                able.add(math.prod(lengths))
    assert mlp.smallest.devices == min(able) > 1
    assert mlp.smallest.memory.total <= MEMORY
    assert all((s.memory.total <= MEMORY) == s.fits for s in (*mlp.splits, *mlp.too_large))


def test_one_device():
    found = costir.plan(MLP, CHIP, devices=1, batch=64)
    assert (str(found.best), found.best.axes, found.smallest.devices) == ("one device", {}, 1)
    assert found.best.seconds == pytest.approx(costir.analyze(MLP, phase="train", sizes={"B": 64}).on(CHIP).at().lower)


def test_utilisation_and_days(mlp):
    """3 x the forward pass of two matmuls; a step takes so many tokens."""
    flops, best = 3 * 2 * 2 * BATCH * 1024 * 4096, mlp.best
    assert best.mfu == pytest.approx(flops / (DEVICES * 66.9e12 * best.seconds))
    assert mlp.days(best) == pytest.approx(1e9 / BATCH * best.seconds / 86400)


def test_why_the_next_is_worse(mlp):
    for better, worse in itertools.pairwise(mlp.splits):
        name, _, more = better.why.partition(": ")
        grown = {n: worse.times.get(n, 0) - better.times.get(n, 0) for n in {**worse.times, **better.times}}
        assert grown[name.partition(",")[0]] == max(grown.values())
        assert float(more.strip("+ %")) == pytest.approx(100 * (worse.seconds / better.seconds - 1), rel=0.06)


def test_formulas(mlp):
    """The step time of a combination as an expression is that of its best split."""
    way = next(w for w in mlp.ways if w.strategies == "fsdp, tp")
    best = next(s for s in mlp.splits if s.strategies == "fsdp, tp")
    point = {size(n): v for n, v in {**mlp.sizes, **best.axes}.items()}
    assert float(way.time.xreplace({k: number(v) for k, v in point.items()})) == pytest.approx(best.seconds)


def test_links_that_axes_share_are_one_unit_of_full_overlap():
    """tp and fsdp in one node of 8: what they send takes turns on its links, and may take longer than either."""
    found = costir.plan(MLP, CHIP, devices=8, batch=BATCH, strategies="fsdp,tp", overlap="full")
    split = next(s for s in found.splits if len(s.axes) == 2)
    parallel = ",".join(f"{a}={a}" for a in split.axes)
    a = costir.analyze(MLP, mesh=split.axes, parallel=parallel, phase="train", sizes={"B": BATCH}).on(CHIP, overlap="full")
    sent = sum(t for label, t in split.times.items() if label.startswith("network"))
    others = max(t for label, t in split.times.items() if not label.startswith("network"))
    assert split.seconds == pytest.approx(max(sent, others)) == pytest.approx(a.at().lower)
    assert sum(n.network for n in a.roofline.per_node()) == pytest.approx(sent)


def test_a_step_in_parts():
    """Blocks computed again, in two micro-batches: each split is what analysing it with the same options says."""
    more = {"recompute": "all", "micro_batches": 2}
    told = []
    found = costir.plan(MLP, CHIP, devices=8, batch=BATCH, strategies="fsdp,tp", say=lambda *words: told.append(words), **more)
    assert [w[2].partition(":")[0] for w in told if len(w) > 2] == ["fsdp, tp", "fsdp", "tp"]
    assert found.sizes["B"] == BATCH // 2
    for s in found.splits:
        parallel = ",".join(f"{a}={a}" for a in s.axes)
        a = costir.analyze(MLP, mesh=s.axes, parallel=parallel, phase="train", sizes={"B": BATCH // 2}, **more)
        assert s.seconds == pytest.approx(a.on(CHIP).at().lower, rel=1e-9), s
        assert s.memory.total == a.memory.at().total, s
    with pytest.raises(CostirError, match="no whole number of elements in 3 micro-batches"):
        costir.plan(MLP, CHIP, devices=8, batch=BATCH, strategies="fsdp", micro_batches=3)


@pytest.mark.parametrize("overlap", ["none", "full"])
def test_overlap(mlp, overlap):
    """The parts add up without overlap; the longest of them is the time with all of it."""
    found = costir.plan(MLP, CHIP, devices=8, batch=BATCH, strategies="tp", overlap=overlap)
    (only,) = found.splits
    a = costir.analyze(MLP, mesh={"tp": 8}, parallel="tp=tp", phase="train", sizes={"B": BATCH})
    assert only.seconds == pytest.approx(a.on(CHIP, overlap=overlap).at().lower)
    assert only.seconds == pytest.approx({"none": sum, "full": max}[overlap](only.times.values()))


def test_nodes_that_are_not_full_are_said_so():
    """The condition on lengths refuses exactly the meshes that are refused one by one."""
    chip = load_chip(CHIP)
    conditions = [c.condition for c in Network(chip, Mesh.of(["X", "Y"]), {"X": 1, "Y": 1}).full_nodes]
    for x, y in itertools.product(range(1, 20), range(1, 20)):
        try:
            assert Network(chip, Mesh.of(["X", "Y"]), {"X": x, "Y": y}).constraints == ()
            able = True
        except CostirError:
            able = False
        assert all(holds(c, {size("X"): x, size("Y"): y}) for c in conditions) == able, (x, y)


def test_an_axis_over_several_of_a_torus():
    """64 chips along one axis of the batch are 4 x 4 x 4: each of three rings carries a third."""
    found = costir.plan(MLP, "tpu_v5p", devices=64, batch=BATCH, strategies="fsdp", dtype="bf16")
    (only,) = found.splits
    assert only.links == {"fsdp": "4x4x4"}
    share = form("ring_two_way", "all_gather", [number(4)] * 3).share
    a = costir.analyze(MLP, mesh={"X": 64}, parallel="fsdp=X", phase="train", sizes={"B": BATCH}, dtype="bf16")
    payload = sum(n.count * t.payload for n in a.costed.nodes for t in n.cost.transfers for n in [n.call])
    at = {size(n): number(v) for n, v in a.sizes.items()}
    assert only.times["network over fsdp"] == pytest.approx(float(payload.xreplace(at) * share / 100_000_000_000))


REFUSED = [  # what is asked for, what is said
    ([MLP, "--chip", "h100", "--batch", "64"], "a plan needs a number of devices and a batch"),
    ([MLP, "--devices", "8", "--batch", "64"], "a plan is for one chip"),
    ([MLP, "--chip", "h999", "--devices", "8", "--batch", "64"], "h999"),
    ([MLP, "--chip", "h100", "--devices", "8", "--batch", "64", "--strategies", "zp"], "no strategy 'zp'"),
    ([MLP, "--chip", "h100", "--devices", "8", "--batch", "64", "--strategies", "fsdp,pp"], "a plan does not try pp"),
    ([MLP, "--chip", "t4", "--devices", "8", "--batch", "64"], "has no link to other chips"),
    (
        [MLP, "--chip", "h100", "--devices", "7", "--batch", "64", "--strategies", "fsdp"],
        "no split of 7 devices divides mlp evenly",
    ),
    ([MLP, "--chip", "h100", "--devices", "8", "--batch", "4", "--strategies", "fsdp"], "no split of 8 devices"),
    ([MLP, "--chip", "h100", "--devices", "8", "--batch", "64", "--tokens", "many"], "is no number of tokens"),
    (["x[B,D] . W[D,F]", "--chip", "h100", "--devices", "8", "--batch", "64"], "a notation string has no train phase"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_refused(words, said, capsys):
    assert main(["plan", *words]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert "Traceback" not in message


def test_command_line(mlp, capsys, monkeypatch):
    monkeypatch.setattr("costir.planning.plan", lambda *given, **conditions: mlp)
    words = ["plan", MLP, "--chip", CHIP, "--devices", "16", "--batch", "4k", "--tokens", "1G"]
    assert main([*words, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "costir/plan/1"
    assert [s["axes"] for s in data["splits"]] == [dict(s.axes) for s in mlp.splits]
    assert math.isclose(data["splits"][0]["seconds"], mlp.best.seconds)
    for kind in ("text", "markdown", "csv", "latex", "html"):
        assert main([*words, "--format", kind]) == 0
        assert "fsdp" in capsys.readouterr().out


def test_many_points_at_once_are_each_alone(mlp):
    """Arrays of batches and lengths against one point after the other."""
    from costir.splits import Timed, placements

    a = next(w.analysis for w in mlp.ways if w.strategies == "fsdp, tp")
    timed = Timed(a.costed, load_chip(CHIP), placements(load_chip(CHIP), ["fsdp", "tp"], ["fsdp"])[0])
    draw = np.random.default_rng(0)
    at = {"B": draw.integers(1, 99, 40) * 64, "fsdp": 2 ** draw.integers(1, 7, 40), "tp": 2 ** draw.integers(1, 4, 40)}
    took, _ = timed.seconds(at)
    for k in range(40):
        one = timed.roof.at(**{n: int(v[k]) for n, v in at.items()}).lower
        assert took[k] == pytest.approx(float(one), rel=1e-12)
