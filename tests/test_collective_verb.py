"""`costir collective`: one collective by every algorithm, against hand numbers and published ones."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

import costir
from costir.cli import main
from costir.errors import CostirError
from costir.symbolic import evaluate, number, size


def run(capsys, *arguments):
    code = main(["collective", *arguments])
    return code, capsys.readouterr()


def test_in_a_node():
    """nccl-tests: an all_reduce of 1 GB among 8 at a bus bandwidth of 450 GB/s takes 2*7/8 GB by that."""
    found = costir.collective("all_reduce", 1e9, "h100", {"X": 8})
    assert (found.taken.name, found.devices, found.sent) == ("direct", 8, 1.75e9)
    assert found.seconds == pytest.approx(1.75e9 / 450e9)
    by = {r.name: r.seconds for r in found.rows}
    assert by["in_switch"] == pytest.approx(1e9 / 450e9)
    assert by["tree"] == by["book"] == pytest.approx(2e9 / 450e9)
    assert str(found.taken.formula) == "2*V*(X - 1)/(W_nvlink*X)"


def test_between_nodes():
    found = costir.collective("all_gather", 1e9, "h100", {"X": 64})
    assert found.seconds == pytest.approx(max(7 / 8 * 1e9 / 450e9, 56 / 64 / 8 * 1e9 / 50e9))
    assert len(found.links) == 2


def test_on_a_torus_with_latency_and_both_rates():
    """Chapter 3: a hop takes 1 us at least, in which a link of a v5e moves 45 kB at the planning rate."""
    found = costir.collective("all_gather", 1e6, "tpu_v5e", {"X": 4}, planned=True)
    assert found.taken.name == "line"
    assert found.seconds == pytest.approx(0.75e6 / 45e9)
    assert found.taken.latency == pytest.approx(3e-6)
    assert found.taken.least == pytest.approx(4 * 45_000)
    sheet = costir.collective("all_gather", 1e6, "tpu_v5e", {"X": 4})
    assert (sheet.seconds, sheet.taken.planned) == (pytest.approx(0.75e6 / 50e9), pytest.approx(0.75e6 / 45e9))
    small = costir.collective("all_gather", 1e5, "tpu_v5e", {"X": 4})
    assert small.seconds == small.taken.latency > small.taken.bandwidth


def test_the_formula_gives_the_time():
    for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "permute"):
        for chip, mesh in (("h100", {"X": 8}), ("h100", {"X": 4, "Y": 16}), ("tpu_v5p", {"X": 4, "Y": 8}), ("mi300x", {"X": 8}),
                           ("tpu_v5e", {"X": 16}), ("tpu_v5e", {"X": 5})):  # fmt: skip
            found = costir.collective(kind, 10**8, chip, mesh)
            for row in found.rows:
                point = {size(n): v for n, v in mesh.items()} | {size(n): w for n, w in row.rates.items()}
                assert float(evaluate(row.formula, {**point, size("V"): number(10**8)})) == pytest.approx(row.bandwidth)


def test_chunks_against_gathers():
    """Chapter 3: an all_to_all is half of an all_gather one way round, a quarter both ways."""
    for algorithm, ratio in (("ring", Fraction(1, 2)), ("book", Fraction(1, 4))):
        times = [
            costir.collective(k, 10**9, "tpu_v5e", {"X": 16}, algorithm=algorithm).seconds for k in ("all_to_all", "all_gather")
        ]
        assert times[0] / times[1] == pytest.approx(float(ratio))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all_reduc", "--bytes", "1e9", "--chip", "h100", "--mesh", "X=8"], "no collective 'all_reduc'"),
        (["all_reduce", "--bytes", "lots", "--chip", "h100", "--mesh", "X=8"], "--bytes 'lots' is no number of bytes"),
        (["all_reduce", "--bytes", "1e9", "--chip", "h100"], "a collective needs a mesh"),
        (["all_reduce", "--bytes", "1e9", "--chip", "h100", "--mesh", "X=8", "--axes", "Z"], "the mesh has no axis 'Z'"),
        (["all_reduce", "--bytes", "1e9", "--chip", "l4", "--mesh", "X=8"], "l4 has no link to other chips"),
        (["all_to_all", "--bytes", "1e9", "--chip", "h100", "--mesh", "X=8", "--algorithm", "tree"], "tree does no all_to_all"),
        (
            ["all_reduce", "--bytes", "1e9", "--chip", "tpu_v5e", "--mesh", "X=64"],
            "an axis of tpu_v5e's torus has at most 16 chips",
        ),
    ],
)
def test_one_sentence_each(capsys, arguments, message):
    code, said = run(capsys, *arguments)
    assert code == 2
    assert message in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("name", ["text", "markdown", "json", "csv", "latex", "html"])
def test_every_format(capsys, name):
    code, said = run(capsys, "all_gather", "--bytes", "64Mi", "--chip", "tpu_v5e@book", "--mesh", "X=16", "--format", name)
    assert code == 0
    if name == "json":
        data = json.loads(said.out)
        assert (data["schema"], data["payload"], data["devices"]) == ("costir/collective/1", 2.0**26, 16)
        assert next(a["name"] for a in data["algorithms"] if a["taken"]) == "ring_two_way"
    else:
        assert "ring" in said.out


def test_a_latency_can_be_set(capsys):
    code, said = run(
        capsys, "all_reduce", "--bytes", "1e5", "--chip", "h100", "--mesh", "X=8", "--set", "link.nvlink.latency=1e-6"
    )
    assert code == 0
    assert "latency rules below" in said.out
    with pytest.raises(CostirError, match="unknown setting"):
        costir.load_chip("h100", {"link.wifi.latency": "1e-6"})


@pytest.mark.parametrize("mesh", [{"X": 3, "Y": 8}, {"X": 8, "Y": 8}, {"X": 16, "Y": 1}, {"X": 2, "Y": 32}], ids=str)
def test_a_formula_gives_the_time_of_every_mesh_at_which_it_is_said_to_hold(mesh):
    taken = costir.collective("all_reduce", 2**30, "h100", mesh).taken
    values = {size(k): v for k, v in taken.rates.items()} | {size("V"): number(2**30)}
    held = 0
    for x in range(1, 41):
        for y in (1, 2, 4, 8, 16, 32):
            point = {size("X"): number(x), size("Y"): number(y)}
            there = all(c.xreplace(point) == True for c in taken.where)  # noqa: E712 - sympy's own
            if x * y == 1 or (x * y > 8 and x * y % 8) or not there:
                continue
            held += 1
            want = costir.collective("all_reduce", 2**30, "h100", {"X": x, "Y": y}).seconds
            assert float(evaluate(taken.formula, {**point, **values})) == pytest.approx(want), (x, y)
    assert held > 3


def test_several_chips_at_once_are_refused(capsys):
    code, out = run(capsys, "all_reduce", "--bytes", "1e9", "--chip", "h100,tpu_v5p", "--mesh", "X=8")
    assert code == 2
    assert "one chip, not on h100,tpu_v5p" in out.err
