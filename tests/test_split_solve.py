"""`costir solve --for split`: the best split of N devices into two axes, by the book's letters and by search."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import costir
from costir.cli import main
from costir.hardware import load_chip
from costir.network import Wiring
from costir.split_solve import solve_split
from costir.symbolic import compile_many, equal, evaluate, number, size

MLP = str(Path(__file__).parent.parent / "examples" / "mlp.py")
V5P = load_chip("tpu_v5p@book")
N = 64
B, F, n = size("B"), size("F"), size("N")
RATIO = 2550  # FLOP/s of a v5p over bytes/s of an axis, both ways


@pytest.fixture(scope="module")
def mlp():
    sizes = {"B": 48_000, "D": 8192, "F": 32768}
    return costir.analyze(MLP, mesh={"X": 8, "Y": 4}, parallel="fsdp=X,tp=Y", dtype="bf16", sizes=sizes)


def on(solution, spread):
    """The two answers where X lies over so many axes of the torus and Y over so many."""
    row = next(r for r in solution.rows if r.where.spread == spread)
    return {b.way: b for b in row.best}, row


@pytest.mark.parametrize(
    ("b", "devices", "f", "x"), [(48e3, 64, 32768, 13.69), (4.19e6, 8960, 28672, 1618), (3e6, 4096, 13824, 1333)]
)
def test_the_book(mlp, b, devices, f, x):
    """Chapter 5: X = sqrt(B*M_X*N/(F*M_Y)) with weights gathered over two axes of the torus and activations over one."""
    best, _ = on(solve_split(mlp, V5P, N, Wiring("book")), (2, 1))
    for way in ("added", "overlapped"):
        assert equal(best[way].value ** 2, 2 * B * n / F)
        at = {B: number(int(b)), n: number(devices), F: number(f)}
        assert float(evaluate(best[way].value, at)) == pytest.approx(x, rel=5e-4)


def test_the_least_batch_of_the_book(mlp):
    """4*a**2/(M_X*M_Y*F) tokens a device where transfers are added, a fourth of that where they overlap."""
    solution = solve_split(mlp, V5P, N, Wiring("book"))
    for spread, axes in (((2, 1), 2), ((1, 2), 2), ((1, 1), 1)):
        best, _ = on(solution, spread)
        assert equal(best["added"].batch / n, number(4 * RATIO**2) / (axes * F))
        assert equal(best["overlapped"].batch / n, number(RATIO**2) / (axes * F))
    best, _ = on(solution, (2, 1))
    assert best["added"].batch_at_base / N == pytest.approx(396.9, abs=0.05)
    assert best["overlapped"].batch_at_base / N == pytest.approx(99.2, abs=0.05)


def least(row, way, sizes):
    """The least network time and where it is, by trying many values of X."""
    names = [*sizes, "N", "X"]
    x = np.geomspace(1.001, N, 400_001)
    times = compile_many(list(row.network.values()), names)(*sizes.values(), float(N), x)
    whole = sum(times) if way == "added" else np.max(np.stack([np.broadcast_to(t, x.shape) for t in times]), axis=0)
    return float(x[whole.argmin()]), float(whole.min())


@pytest.mark.parametrize("way", ["added", "overlapped"])
@pytest.mark.parametrize("spread", [(1, 1), (2, 1), (1, 2)])
def test_exact_rings(mlp, way, spread):
    """(X - 1)/X of an array instead of all: the least is where a search finds it, and compute overtakes it at that batch."""
    best, row = on(solve_split(mlp, V5P, N), spread)
    b, sizes = best[way], {m: float(v) for m, v in mlp.sizes.items() if m not in "XY"}
    x, seconds = least(row, way, sizes)
    assert (b.at_base, b.network) == (pytest.approx(x, rel=1e-4), pytest.approx(seconds, rel=3e-5))
    flops = 4 * sizes["D"] * sizes["F"] / N / 459e12
    for factor, ahead in ((0.999, False), (1.001, True)):
        batch = b.batch_at_base * factor
        assert (batch * flops > least(row, way, {**sizes, "B": batch})[1]) == ahead


def test_axes_that_share_a_link_do_not_overlap(mlp):
    """In a node of 8 both go through the switch; between nodes one does, and a split in which both do is not solved for."""
    rows = solve_split(mlp, load_chip("h100"), 8).rows
    assert {b.reason for r in rows for b in r.best if b.way == "overlapped"} == {
        "over both axes they go over nvlink, one after the other"
    }
    assert all("over both" not in b.reason for r in solve_split(mlp, V5P, N).rows for b in r.best)


@pytest.mark.parametrize("chip", ["tpu_v5p@book", "h100"])
def test_even_splits_are_those_of_the_mesh(mlp, chip):
    """The time of an even split is that of the model analysed on this mesh."""
    solution = solve_split(mlp, load_chip(chip), N)
    row = next(r for r in solution.rows if r.where.axes == ("X", "Y") and r.where.spread == (1, 1))
    (even,) = row.even
    a = costir.analyze(MLP, mesh=dict(even.lengths), parallel="fsdp=X,tp=Y", dtype="bf16",
                       sizes={m: v for m, v in mlp.sizes.items() if m not in "XY"})  # fmt: skip
    assert even.seconds == pytest.approx(a.on(chip).at().network, rel=1e-9)


def test_the_fastest_even_split_is_next_to_the_best(mlp):
    for r in solve_split(mlp, V5P, N).rows:
        assert r.even[0].lengths in [e.lengths for e in r.around["added"]]


@pytest.mark.parametrize(("devices", "given"), [(8, True), (64, False)])
def test_the_least_batch_is_where_the_links_say_so_too(devices, given):
    """Around another split a node's links are used otherwise: where that is so at the least batch, none is given."""
    sizes = {"B": 4800, "D": 1024, "F": 4096, "X": 8, "Y": 4}
    a = costir.analyze(MLP, mesh={"X": 8, "Y": 4}, parallel="fsdp=X,tp=Y", dtype="bf16", sizes={k: sizes[k] for k in "BDF"})
    row = next(r for r in solve_split(a, load_chip("h100"), devices).rows if r.where.axes == ("X", "Y"))
    added = next(b for b in row.best if b.way == "added")
    assert (added.batch_at_base is not None, bool(added.reason)) == (given, not given)
    if added.batch_at_base is not None and added.value is not None:
        at = {**sizes, "B": added.batch_at_base, "N": devices}
        x = float(evaluate(added.value, {size(m): number(v) for m, v in at.items()}))
        network = compile_many([a.on("h100").roofline.network], list(sizes))
        seconds = network(added.batch_at_base, 1024, 4096, x, devices / x)[0]
        assert float(seconds) == pytest.approx(added.batch_at_base * 4 * 1024 * 4096 / devices / 989.4e12, rel=1e-4)


def test_command_line(capsys):
    words = ["solve", MLP, "--mesh", "X=8,Y=4", "--parallel", "fsdp=X,tp=Y", "--dtype", "bf16", "--for", "split"]
    more = ["--chip", "tpu_v5p@book", "--algorithm", "book", "--devices", "64", "--size", "B=48000,F=32768,D=8192"]
    assert main([*words, *more, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    row = next(r for r in data["rows"] if r["torus_axes"] == [2, 1])
    assert row["best"][0]["expr"] == "sqrt(2*B*N/F)"
    assert row["best"][0]["value"] == pytest.approx(13.693, abs=1e-3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mesh", "X=8", "--parallel", "fsdp=X", "--chip", "h100"], "the best split is of two axes, and the mesh has 1"),
        (["--chip", "h100"], "the best split is of two axes, and the mesh has none"),
        (["--mesh", "X=8,Y=4", "--parallel", "fsdp=X,tp=Y", "--chip", "h100,b200"], "on one chip"),
    ],
)
def test_refused(words, said, capsys):
    assert main(["solve", MLP, "--for", "split", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_batch_that_is_split_is_said_per_device(mlp):
    """A traced model knows that its batch is divided along fsdp."""
    t = mlp.on("tpu_v5p@book").critical("B")
    assert (t.devices, str(t.split)) == (8, "X")
