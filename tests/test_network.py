"""Collectives as calls: their cost, and their time on a chip's links. Values of the scaling book and by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import costir
from costir.analysis import analysis_of
from costir.cli import main
from costir.cost import cost, cost_of
from costir.errors import ChipError, CostirError, SizeError
from costir.hardware import chip_names, load_chip
from costir.ir import Call, Conventions, Graph, Tensor, Transfer, condition_text
from costir.mesh import Mesh
from costir.network import Network, Wiring, closes, shape_of
from costir.roofline import roofline
from costir.symbolic import ONE, apply, at_branch, equal, evaluate, number, product, size, to_fraction

B, D, F, X, Y = (size(n) for n in "BDFXY")
V5E, H100 = load_chip("tpu_v5e@book"), load_chip("h100")


def collective(kind, tensor, axes=("X",), devices=X):
    return Call(f"costir.{kind}.default", {"self": tensor, "axes": axes, "devices": devices}, (tensor,))


def seconds(chip, kind, payload, wiring=None, **mesh):
    net = Network(chip, Mesh.of(mesh), {}, wiring or Wiring())
    axes = tuple(mesh)
    return to_fraction(net.seconds(Transfer(kind, axes, net.mesh.group(axes), number(payload))))


# ------------------------------------------------------------------------------------------------------------- the rule

SHARD = Tensor((B, F), "bfloat16")
RULES = [  # kind, payload for an input of 2*B*F bytes on each of X devices, bytes that one sends, its adds
    ("all_gather", 2 * B * F * X, 2 * B * F * (X - 1), 0),
    ("reduce_scatter", 2 * B * F, 2 * B * F * (X - 1) / X, B * F * (X - 1) / X),
    ("all_reduce", 2 * B * F, 4 * B * F * (X - 1) / X, B * F * (X - 1) / X),
    ("all_to_all", 2 * B * F * X, 2 * B * F * (X - 1) / X, 0),
    ("broadcast", 2 * B * F, 2 * B * F * (X - 1) / X, 0),
    ("permute", 2 * B * F, 2 * B * F, 0),
]


@pytest.mark.parametrize(("kind", "payload", "sent", "adds"), RULES)
def test_what_a_collective_costs(kind, payload, sent, adds):
    found, rule = cost_of(collective(kind, SHARD))
    assert rule == f"costir.{kind}"
    (moved,) = found.transfers
    assert (moved.kind, moved.axes, moved.devices) == (kind, ("X",), X)
    assert equal(moved.payload, payload)
    assert equal(found.network, sent)
    assert equal(found.read, sent)
    assert equal(found.write, sent)
    assert equal(found.flops, number(0) + adds)


def test_bytes_sent_counted_in_simulations():
    """What one device puts onto its links in the shortest schedules, chunk by chunk."""
    import simulate

    for n in (2, 3, 8):
        runs = {"all_gather": simulate.gather_direct(n), "all_to_all": simulate.exchange_direct(n)}
        for kind, links in runs.items():
            out = {part for port, part in links.carried.items() if port[0] == "out"}
            assert {to_fraction(Transfer(kind, ("X",), number(n), ONE).sent)} == out
        ring = simulate.scatter_ring(n)
        assert {to_fraction(Transfer("reduce_scatter", ("X",), number(n), ONE).sent)} == set(ring.carried.values())


def test_sums_are_conserved_where_dot_products_are_counted_exactly():
    """Splitting the sum over J: 2J-1 per dot product over all devices, the adds of the reduction among them."""
    exact, left, right = Conventions(count="exact"), Tensor((B, D / X), "bfloat16"), Tensor((D / X, F), "bfloat16")
    product = Call("costir.einsum", {"equation": "ij,jk->ik", "operands": (left, right)}, (SHARD,))
    one = Call("costir.einsum", {"equation": "ij,jk->ik", "operands": (Tensor((B, D)), Tensor((D, F)))}, (SHARD,))
    local = cost_of(product, exact)[0].flops + cost_of(collective("all_reduce", SHARD), exact)[0].flops
    assert equal(X * local, cost_of(one, exact)[0].flops)


# ------------------------------------------------------------------------------------------------------- published times

GPUS = {"X": 8}
BOOK = [  # chip, kind, bytes, mesh, wiring, seconds, source
    ("tpu_v5e@book", "all_gather", 33554432, {"X": 4}, {}, 5.59241e-4, "sharding: one axis of 4 without wraparound, 560 us"),
    ("tpu_v5e@book", "all_gather", 33554432, {"X": 16}, {"algorithm": "book"}, 3.72827e-4, "sharding: two ways round, 377 us"),
    ("tpu_v5e@book", "all_gather", 8388608, {"X": 4, "Y": 4}, {"algorithm": "book"}, 4.66034e-5, "sharding: two axes, 46 us"),
    ("h100", "all_gather", 536870912, GPUS, {}, 1.04392e-3, "GPUs: in a node, 1.04 ms"),
    ("h100", "all_gather", 33554432, GPUS, {"algorithm": "book"}, 7.45654e-5, "GPUs: about V/W, 75 us"),
    ("h100", "reduce_scatter", 33554432, GPUS, {}, 6.52447e-5, "GPUs: V*(N-1)/(N*W), 65 us"),
]


@pytest.mark.parametrize(("chip", "kind", "payload", "mesh", "wiring", "expected", "source"), BOOK)
def test_times_of_the_scaling_book(chip, kind, payload, mesh, wiring, expected, source):
    assert float(seconds(load_chip(chip), kind, payload, Wiring(**wiring), **mesh)) == pytest.approx(expected, rel=1e-5), source


def test_bus_bandwidths_of_nccl_tests():
    """nccl-tests calls V*(n-1)/n over the time (twice that for all_reduce) the bus bandwidth: here it is the link's."""
    for n in (2, 4, 8):
        for kind, factor in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
            time = seconds(H100, kind, 10**9, X=n)
            assert Fraction(factor * (n - 1), n) * 10**9 / time == 450 * 10**9
        assert Fraction(n - 1, n) * Fraction(10**9, n) / seconds(H100, "all_to_all", 10**9, X=n) == 450 * 10**9


def test_latency_is_added_where_asked():
    """Chapter 3: 1 us for each of the X/2 hops; it rules below 45 kB per hop."""
    late = Wiring("book", latency=True)
    assert seconds(V5E, "all_gather", 1000, late, X=8) == Fraction(4, 10**6)
    assert seconds(V5E, "all_gather", 1000, Wiring("book"), X=8) == Fraction(1000, 90 * 10**9)
    threshold = 45_000 * 8
    assert seconds(V5E, "all_gather", threshold, late, X=8) == Fraction(4, 10**6) == Fraction(threshold, 90 * 10**9)


def test_data_sheet_and_planning_rate():
    v5e = load_chip("tpu_v5e")
    sheet, plan = (seconds(v5e, "all_gather", 10**9, Wiring(planned=p), X=4) for p in (False, True))
    assert sheet == Fraction(3, 4) * Fraction(1, 50)
    assert plan == Fraction(3, 4) * Fraction(1, 45)


# ---------------------------------------------------------------------------------------------------------------- links


def test_shapes_of_all_chips():
    near = lambda name: load_chip(name).links.items()
    shapes = {n: {k: shape_of(link) for k, link in near(n) if k not in ("host", "sibling")} for n in chip_names()}
    assert shapes["tpu_v5e"] == {"ici": "torus", "dcn": "switch"}
    assert shapes["h100_sxm"] == {"nvlink": "switch", "scaleout": "switch"}
    assert shapes["mi300x"] == {"xgmi": "mesh"}
    assert shapes["gaudi3"] == {"roce": "mesh"}
    assert shapes["h100_pcie"] == {"nvlink": "switch"}
    assert shapes["trainium2"] == {"neuronlink": "", "scaleout": "switch"}


@pytest.mark.parametrize(
    ("chip", "length", "ring"),
    [("tpu_v5e", 16, True), ("tpu_v5e", 8, False), ("tpu_v5p", 8, True), ("tpu_v5p", 6, False), ("tpu_v3", 6, True)],
)
def test_which_axes_close(chip, length, ring):
    assert bool(closes(load_chip(chip).links["ici"], number(length))) is ring


def test_an_axis_that_closes_is_twice_as_fast():
    assert seconds(V5E, "all_gather", 10**9, X=16) * 2 == seconds(V5E, "all_gather", 10**9, Wiring("line"), X=16)


def test_axes_in_and_between_nodes():
    """Of a mesh of 4 by 8 the last axis fills a node; the first goes over each chip's own port."""
    net = Network(H100, Mesh.of({"X": 4, "Y": 8}), {})
    over_x, over_y = (net.seconds(Transfer("all_gather", (a,), net.mesh.length(a), ONE)) for a in "XY")
    assert over_y == Fraction(7, 8) / (450 * 10**9)
    assert over_x == Fraction(3, 4) / (50 * 10**9)
    both = net.seconds(Transfer("all_gather", ("X", "Y"), number(32), ONE))
    assert both == max(Fraction(7, 8) / (450 * 10**9), Fraction(3, 4) / (400 * 10**9))
    # X of 4 beside Y of 2: two neighbours of X in each node of 8 are not enough for all of it
    assert Network(H100, Mesh.of({"X": 4, "Y": 2})).seconds(Transfer("all_gather", ("X",), number(4), ONE)) == Fraction(
        3, 4
    ) / (450 * 10**9)
    wide = Network(H100, Mesh.of({"X": 8, "Y": 2})).seconds(Transfer("all_gather", ("X",), number(8), ONE))
    assert wide == Fraction(1, 2) / (4 * 50 * 10**9)


def test_the_scaling_book_s_reduction_of_a_sharded_array():
    """Chapter on GPUs: V/W_gpu/min(Y, 8) in the node, V/W_node * 8/max(8, Y) between, for X large."""
    for y in (2, 4, 8, 16):
        x = 2**20
        found = Network(H100, Mesh.of({"X": x, "Y": y})).seconds(Transfer("all_gather", ("X",), number(x), ONE / y))
        book = max(Fraction(1, min(y, 8)) / (450 * 10**9) * (y < 8), Fraction(8, max(8, y)) / (400 * 10**9))
        assert float(found) == pytest.approx(float(book), rel=1e-4)


def test_axes_pinned_to_the_data_center_network():
    pinned = Wiring(links=(("X", "dcn"),))
    v5p = load_chip("tpu_v5p")
    assert seconds(v5p, "all_reduce", 10**9, pinned, X=4) == Fraction(3, 2) / Fraction("6.25")
    net = Network(v5p, Mesh.of({"X": 2, "Y": 8}), {}, pinned)
    both = net.seconds(Transfer("all_gather", ("X", "Y"), number(16), ONE))
    assert both == max(Fraction(7, 8) / (200 * 10**9), Fraction(1, 16) / Fraction("6.25e9"))


def test_an_axis_between_nodes_leaves_the_node_to_the_others():
    """With Y on the network, neighbours along X are in one node, whatever the order of the axes."""
    alone = costir.collective("all_reduce", 1e9, "h100", {"X": 2}).seconds
    for mesh in ({"X": 2, "Y": 8}, {"Y": 8, "X": 2}, {"X": 2, "Y": 3}):
        found = costir.collective("all_reduce", 1e9, "h100", mesh, axes=("X",), links={"Y": "scaleout"})
        assert found.seconds == alone
        over = costir.collective("all_reduce", 1e9, "h100", mesh, axes=("Y",), links={"Y": "scaleout"})
        assert over.seconds == pytest.approx(2 * 1e9 * (1 - 1 / mesh["Y"]) / 50e9)


def test_an_algorithm_of_a_torus_leaves_the_network_between_pods_as_it_is():
    """Two ways round a ring is meant for the axis on the torus; the other goes through a switch, as without it."""
    mesh, wires = {"X": 4, "Y": 4}, {"links": {"X": "dcn"}}
    for name, times in (("ring_two_way", 1), ("line", 2)):
        near = costir.collective("all_gather", 1e9, "tpu_v5p", mesh, axes=("Y",), algorithm=name, **wires)
        assert near.seconds == pytest.approx(times * 1e9 * 3 / 4 / 200e9)
        far = costir.collective("all_gather", 1e9, "tpu_v5p", mesh, axes=("X",), algorithm=name, **wires)
        assert far.seconds == pytest.approx(1e9 * 3 / 4 / 6.25e9)
    names = [r.name for r in costir.collective("all_gather", 1e9, "tpu_v5p", mesh, axes=("X",), **wires).rows]
    assert names == ["ring", "book", "tree", "direct", "in_switch"]
    with pytest.raises(CostirError, match="ring_two_way does not run on tpu_v5p's dcn, a switch"):
        costir.collective("all_gather", 1e9, "tpu_v5p", {"X": 4}, algorithm="ring_two_way", **wires)


def out_of(chip, link, devices):
    """Bytes/s that leave one device of a group at the most, from the chip's file."""
    shape = shape_of(link)
    if shape == "torus":
        return 2 * float(link.link_one_way)
    return min(float(link.one_way), (devices - 1) * float(link.peer_one_way)) if shape == "mesh" else float(link.one_way)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "permute"])
@pytest.mark.parametrize("chip", ["h100", "mi300x", "gaudi3", "v100", "trainium1", "trainium2", "tpu_v5e"])
def test_no_algorithm_is_faster_than_what_leaves_a_device(chip, kind):
    """What a device sends, over all links that it has to the others; a switch that adds up takes the array once."""
    link = Network(load_chip(chip), Mesh()).near
    for devices in (2, 3, 5, 8):
        found = costir.collective(kind, 1e9, chip, {"X": devices})
        one_of_them = {r.name: r.bandwidth for r in found.rows}
        assert len(one_of_them) > 1
        for name, took in one_of_them.items():
            sent = 1e9 if (name, kind) == ("in_switch", "all_reduce") else found.sent
            assert took >= sent / out_of(chip, link, devices) * (1 - 1e-9), (name, devices)


def test_a_formula_of_a_collective_holds_where_it_says():
    """At every length that meets the conditions, the formula gives the time that is found there."""
    cases = (
        ("h100", "all_reduce", (2, 4, 8, 16, 32, 40, 64, 1024)),
        ("tpu_v5e", "all_gather", (2, 5, 8, 16)),
        ("mi300x", "broadcast", (2, 3, 8)),
    )
    for chip, kind, lengths in cases:
        there = {n: costir.collective(kind, 1e9, chip, {"X": n}).taken for n in lengths}
        for row in there.values():
            for n, other in there.items():
                point = {X: number(n)}
                if all(c.xreplace(point) == True for c in row.where):  # noqa: E712 - sympy's own true
                    letters = {size(k): v for k, v in {**row.rates, **other.rates}.items()}
                    assert float(evaluate(row.formula, {**point, **letters, size("V"): number(10**9)})) == pytest.approx(
                        other.bandwidth
                    )


def test_conditions_of_lengths_are_said_plainly():
    said = lambda chip, mesh, **more: [
        condition_text(c) for c in costir.collective("all_reduce", 1e9, chip, mesh, **more).taken.where
    ]
    assert said("h100", {"X": 16}) == ["X >= 8", "X <= 36"]
    assert said("mi300x", {"X": 4}) == ["X >= 2"]
    assert said("tpu_v5p", {"X": 6, "Y": 4}) == ["(X % 4 != 0) | (Y % 4 != 0)"]


def test_letters_of_the_formulas_are_no_axes():
    for name in ("V", "W_nvlink", "t_nvlink"):
        with pytest.raises(SizeError, match=f"{name} is a letter of the formulas"):
            costir.collective("all_reduce", 1e9, "h100", {name: 8})


def test_a_link_for_an_axis_that_is_not_there_is_refused(capsys):
    with pytest.raises(SizeError, match="a link is asked for the axis 'Q', which is none here"):
        costir.collective("all_reduce", 1e9, "h100", {"X": 8}, links={"Q": "scaleout"})
    with pytest.raises(SizeError, match="axis 'Q'"):
        costir.plan("examples/mlp.py", "h100", devices=8, batch=64, links={"Q": "scaleout"})
    assert main(["shard", "A[I,J_X] . B[J_X,K]", "--mesh", "X=4", "--chip", "h100", "--link", "Q=scaleout"]) == 2
    assert "axis 'Q'" in capsys.readouterr().err


def test_names_of_algorithms_are_those_that_users_know():
    with pytest.raises(CostirError) as problem:
        costir.collective("all_reduce", 1e9, "h100", {"X": 8}, algorithm="book_switch")
    assert "book," in problem.value.hint
    assert "_switch," not in problem.value.hint.replace("in_switch", "")
    for chip in ("h100", "mi300x", "trainium2"):
        names = [r.name for r in costir.collective("all_gather", 1e9, chip, {"X": 4}).rows]
        for name in names:
            assert [r.name for r in costir.collective("all_gather", 1e9, chip, {"X": 4}, algorithm=name).rows] == [name]


@pytest.mark.parametrize(
    ("chip", "mesh", "wiring", "message"),
    [
        ("l4", {"X": 2}, {}, "l4 has no link to other chips (it has host)"),
        ("inferentia2", {"X": 2}, {}, "inferentia2 has no known rate for its link neuronlink"),
        ("tpu_v5e", {"X": 2, "Y": 2, "Z": 2}, {}, "tpu_v5e's ici is a 2D torus, and the mesh has 3 axes on it"),
        ("tpu_v5e", {"X": 32}, {}, "an axis of tpu_v5e's torus has at most 16 chips, and X has 32"),
        ("h100_pcie", {"X": 4}, {}, "h100_pcie's nvlink reaches 2 chips and the mesh has 4"),
        ("h100", {"X": 4}, {"algorithm": "line"}, "line does not run on h100_sxm's nvlink, a switch"),
        ("tpu_v5e", {"X": 4}, {"algorithm": "tree"}, "tree does not run on tpu_v5e's ici, a torus"),
        ("trainium2", {"X": 4}, {"algorithm": "peers"}, "peers does not run on trainium2's neuronlink, of which only the rate"),
        ("tpu_v5e", {"X": 4}, {"algorithm": "rng"}, "no algorithm 'rng'"),
        ("tpu_v5e", {"X": 4}, {"links": (("X", "wifi"),)}, "tpu_v5e has no link 'wifi'"),
    ],
)  # fmt: skip
def test_what_cannot_be(chip, mesh, wiring, message):
    net = Network(load_chip(chip), Mesh.of(mesh), {}, Wiring(**wiring))
    transfer = Transfer("all_gather", tuple(mesh), net.mesh.devices, ONE)
    with pytest.raises((ChipError, CostirError)) as caught:
        assert net.constraints == () and net.seconds(transfer)  # noqa: PT018
    assert caught.value.message.startswith(message)
    assert caught.value.hint


def test_a_mesh_knows_its_axes():
    mesh = Mesh.of(["X", "Y"])
    assert (mesh.devices, mesh.stride("X"), mesh.stride("Y")) == (X * Y, Y, 1)
    with pytest.raises(SizeError, match="the mesh has no axis 'Z'"):
        mesh.length("Z")
    with pytest.raises(SizeError, match="the mesh has no axis 'Z'"):
        Mesh().length("Z")


# ------------------------------------------------------------------------------------------------------------- rooflines


def two_chips(**sizes):
    """X[B,D] . Y[D,F] split over D, and the sum of what comes out."""
    left, right = Tensor((B, D / X), "bfloat16"), Tensor((D / X, F), "bfloat16")
    product = Call("costir.einsum", {"equation": "ij,jk->ik", "operands": (left, right)}, (SHARD,))
    base = {"B": 1024, "D": 8192, "F": 4096, "X": 2, **sizes}
    return cost(Graph("split", base, (product, collective("all_reduce", SHARD)), mesh=Mesh.of(["X"])))


def test_network_is_a_fourth_resource():
    roof = roofline(two_chips(), V5E)
    at = roof.at()
    b, d, f = 1024, 8192, 4096
    compute, network = 2 * b * d * f / 2 / 1.97e14, 2 * b * f / 4.5e10
    assert (at.compute, at.network) == (pytest.approx(compute), pytest.approx(network))
    assert at.bound == "network"
    assert [n.bound for n in roof.per_node()] == ["compute", "network"]
    assert roof.at(D=2 * d).bound == "compute"
    assert equal(at_branch(roof.network, {X: 2, B: 1, F: 1, D: 1})[0], 4 * B * F * (1 - 1 / X) / number("4.5e10"))


def test_three_kinds_of_overlap():
    times = {o: roofline(two_chips(), V5E, overlap=o).at() for o in ("none", "op", "full")}
    product, gather = roofline(two_chips(), V5E).per_node()
    assert times["op"].lower == pytest.approx(product.lower + gather.lower)
    assert times["none"].lower == times["none"].upper == pytest.approx(product.upper + gather.upper)
    full = times["full"]
    assert full.lower == max(full.compute, full.vector, full.memory, full.network)
    assert times["full"].lower < times["op"].lower < times["none"].lower


def test_axes_overlap_only_in_full():
    """All-gathers over X and over Y use different links."""
    graph = cost(two_axes())
    one, other = (n.network for n in roofline(graph, V5E).per_node())
    assert roofline(graph, V5E, overlap="full").at().lower == pytest.approx(max(one, other))
    assert roofline(graph, V5E).at().lower == pytest.approx(one + other)


@pytest.mark.parametrize(
    ("chip", "mesh", "links"),
    [
        ("h100", {"X": 2, "Y": 4}, {}),  # both inside a node
        ("h100", {"X": 4, "Y": 8}, {}),  # X between nodes, Y inside
        ("h100", {"X": 4, "Y": 4}, {}),  # X on both
        ("h100", {"X": 4, "Y": 4}, {"Y": "scaleout"}),
        ("mi300x", {"X": 2, "Y": 4}, {}),
        ("tpu_v5p", {"X": 4, "Y": 8}, {}),
        ("tpu_v5p", {"X": 4, "Y": 8}, {"X": "dcn"}),
    ],
)
def test_collectives_over_one_link_take_turns(chip, mesh, links):
    """In full overlap a link carries everything that goes over it: counted here by hand from the collectives alone."""
    groups = (("X",), ("Y",), ("X", "Y"), ("X",))
    calls = tuple(collective("all_gather", SHARD, axes, product(size(a) for a in axes)) for axes in groups)
    graph = Graph("three", {"B": 2**20, "F": 4096, **mesh}, calls, mesh=Mesh.of(list(mesh)))
    took: dict[str, float] = {}
    for axes in groups:
        v = 2 * 2**20 * 4096 * float(np.prod([mesh[a] for a in axes]))
        far = [a for a in axes if links.get(a)]
        if chip == "tpu_v5p":
            near = [a for a in axes if a not in far]
            n, g = (int(np.prod([mesh[a] for a in some])) for some in (axes, near))
            for a in near:
                took[a] = took.get(a, 0) + v * (g - 1) / g / len(near) / 2 / 100e9
            took["dcn"] = took.get("dcn", 0) + v * (n - g) / (n * g) / 6.25e9
        else:
            node = {a: n for a, n in mesh.items() if not links.get(a)}
            inside = {"Y": node.get("Y", 1)} | ({"X": min(mesh["X"], 8 // node.get("Y", 1))} if "X" in node else {})
            n, g = int(np.prod([mesh[a] for a in axes])), int(np.prod([inside.get(a, 1) for a in axes]))
            for pairs in ["in"] if chip == "h100" else [*axes, *(["X and Y"] if len(axes) > 1 else [])]:  # pairs have links
                took[pairs] = took.get(pairs, 0) + (v * (g - 1) / g / 450e9 if chip == "h100" else v / n / 64e9)
            took["out"] = took.get("out", 0) + v * (n - g) / (n * g) / 50e9
    on = analysis_of(graph).on(chip, overlap="full", links=links)
    assert on.at().network * (1 + 1e-9) > on.at().lower > max(on.at().compute, on.at().memory)
    assert on.at().lower == pytest.approx(max(took.values()))
    wide = on.at(B=np.array([2**20, 2**21]))
    assert wide.lower == pytest.approx([on.at().lower, on.at(B=2**21).lower])


def test_many_meshes_at_once():
    """Closed forms, piece by piece where the links change: 16 chips close the ring, 8 fill a node."""
    lengths = np.array([1, 2, 4, 8, 16])
    found = roofline(two_chips(), V5E).at(X=lengths).network
    one_by_one = [float(roofline(two_chips(X=int(x)), V5E).at().network) for x in lengths]
    assert found == pytest.approx(one_by_one)
    assert found[0] == 0
    lengths = np.array([1, 2, 8, 64, 512])
    assert roofline(two_chips(), H100).at(X=lengths).network == pytest.approx(
        [float(roofline(two_chips(X=int(x)), H100).at().network) for x in lengths]
    )


def test_two_axes_of_nodes_at_once():
    """Conditions of nodes have parts of several shapes: of one axis, of both, and of none."""
    both = analysis_of(two_axes()).on("h100")
    lengths = np.array([2, 4, 16, 64])
    for more in ({}, {"Y": 8}, {"Y": np.array([4, 2, 8, 1])}):
        found = both.at(X=lengths, **more)
        at = [{"X": int(x), **{k: int(np.broadcast_to(v, 4)[i]) for k, v in more.items()}} for i, x in enumerate(lengths)]
        assert found.lower == pytest.approx([both.at(**point).lower for point in at])
    with pytest.raises(SizeError, match="nodes of 8"):
        both.at(X=np.array([8, 3]), Y=np.array([2, 3]))


def two_axes():
    """All-gathers over X and over Y."""
    calls = tuple(collective("all_gather", SHARD, (a,), size(a)) for a in "XY")
    return Graph("two", {"B": 1024, "F": 4096, "X": 4, "Y": 4}, calls, mesh=Mesh.of(["X", "Y"]))


@pytest.mark.parametrize("name", ["mod", "equal", "logical_and", "x0", "lambda"])
def test_an_axis_may_be_called_as_a_function_is(name):
    """Compiled formulas have names of their own."""
    named = lambda n: costir.analyze(f"A[I, J_{n}] . B[J_{n}, K] -> C[I, K]", mesh={n: 4}).on("h100")
    assert named(name).at(**{name: 16}) == named("X").at(X=16)


def test_latency_that_is_not_known_is_said():
    split = analysis_of(two_chips().graph)
    said = "has no latency for nvlink: --set link.nvlink.latency=1e-6 gives one"
    assert any(said in n for n in split.on("h100", latency=True).roofline.notes)
    assert not any("latency" in n for n in split.on("h100").roofline.notes)
    assert not any("latency" in n for n in split.on("tpu_v5e", latency=True).roofline.notes)


def test_meshes_beyond_the_links_are_refused():
    with pytest.raises(SizeError, match="X <= 16"):
        roofline(two_chips(), V5E).at(X=32)


def test_one_device_costs_what_it_cost_before():
    one = roofline(two_chips(X=1), V5E).at()
    alone = costir.analyze("bf16[B,D] . bf16[D,F]", sizes={"B": 1024, "D": 8192, "F": 4096}).on(V5E).at()
    assert (one.compute, one.memory, one.network, one.lower) == (alone.compute, alone.memory, 0, alone.lower)


def test_numbers_for_a_mesh():
    kept = analysis_of(two_chips().graph).keep(["D"])
    assert str(kept.graph.mesh.length("X")) == "2"
    assert all(t.devices == 2 for n in kept.costed.nodes for t in n.cost.transfers)
    assert evaluate(kept.costed.nodes[1].cost.network, {}) == 2 * 1024 * 4096


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"])
@pytest.mark.parametrize(("chip", "algorithm"), [("h100", "ring"), ("h100", "direct"), ("h100", "tree"), ("mi300x", "ring"),
                                                 ("mi300x", "peers")])  # fmt: skip
def test_axes_behind_one_switch_are_one_group(chip, algorithm, kind):
    if (algorithm, kind) == ("tree", "all_to_all"):
        return
    times = [costir.collective(kind, 1e9, chip, mesh, algorithm=algorithm) for mesh in ({"X": 8}, {"X": 2, "Y": 4})]
    assert times[0].seconds == pytest.approx(times[1].seconds)
    rate = {"h100": 450e9, "mi300x": 7 * 64e9}[chip]  # a chip sends no faster than over all its links
    assert times[1].seconds >= times[1].sent / rate * (1 - 1e-9)


@pytest.mark.parametrize(("mesh", "said"), [
    ({"X": 10}, "10 devices along X do not fill h100_sxm's nodes of 8 evenly"),
    ({"X": 3, "Y": 5}, "3 devices along X, 5 apart, do not fill h100_sxm's nodes of 8 evenly"),
    ({"X": 2, "Y": 12}, "12 devices along Y do not fill"),
])  # fmt: skip
def test_nodes_that_are_not_full_are_refused(mesh, said):
    with pytest.raises(ChipError) as problem:
        costir.collective("all_reduce", 1e9, "h100", mesh)
    assert said in problem.value.message
    assert "--link" in problem.value.hint


@pytest.mark.parametrize(
    "mesh", [{"X": 6}, {"X": 2, "Y": 3}, {"X": 24}, {"X": 3, "Y": 8}, {"X": 3, "Y": 2, "Z": 4}, {"X": 5, "Y": 16}]
)
def test_nodes_that_are_full_are_taken(mesh):
    assert costir.collective("all_gather", 1e9, "h100", mesh).seconds > 0


def test_an_axis_stands_once_in_a_group():
    with pytest.raises(SizeError, match="the axis X stands twice in the group X, X"):
        costir.collective("all_reduce", 1e9, "h100", {"X": 8}, axes=("X", "X"))


def test_the_conditions_of_a_formula_hold_where_it_was_taken():
    """sympy takes 1 - 8/(X*Y) for a negative number, and a relation that is true at the point for false."""
    X, Y = size("X"), size("Y")
    point = {X: 4, Y: 8}
    both = apply("max", [ONE - 8 / (X * Y), 1 / (X * Y)])
    found, where = at_branch(both, point)
    assert found == ONE - 8 / (X * Y)
    assert where
    assert all(c.xreplace(point) == True for c in where)  # noqa: E712 - sympy's own true
