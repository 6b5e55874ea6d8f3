"""Closed forms of collectives against simulations that know no formula, and against published values."""

from __future__ import annotations

from fractions import Fraction

import pytest
import simulate

from costir.collectives import ALGORITHMS, KINDS, form
from costir.errors import CostirError
from costir.symbolic import ONE, evaluate, number, size, to_fraction

N = size("N")


def share_of(algorithm: str, kind: str, *lengths: int) -> Fraction:
    """The share, from the form in letters."""
    names = [size(f"L{i}") for i in range(len(lengths))]
    found = evaluate(form(algorithm, kind, names).share, dict(zip(names, lengths, strict=True)))
    direct = form(algorithm, kind, [number(x) for x in lengths]).share
    assert found == direct
    return to_fraction(found)


def hops_of(algorithm: str, kind: str, *lengths: int) -> int:
    return int(form(algorithm, kind, [number(x) for x in lengths]).hops)


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
@pytest.mark.parametrize(
    ("algorithm", "kind", "run"),
    [
        ("ring", "all_gather", simulate.gather_ring),
        ("ring", "reduce_scatter", simulate.scatter_ring),
        ("ring_two_way", "all_gather", lambda n: simulate.gather_ring(n, both=True)),
        ("line", "all_gather", simulate.gather_line),
        ("ring", "all_to_all", simulate.exchange_ring),
        ("direct", "all_gather", simulate.gather_direct),
        ("direct", "all_to_all", simulate.exchange_direct),
        ("peers", "all_gather", lambda n: simulate.gather_direct(n, lambda a, b: [(a, b)])),
        ("peers", "all_to_all", lambda n: simulate.exchange_direct(n, lambda a, b: [(a, b)])),
    ],
)
def test_one_axis_step_by_step(algorithm, kind, run, n):
    links = run(n)
    assert share_of(algorithm, kind, n) == links.busiest == links.time
    assert hops_of(algorithm, kind, n) == links.rounds


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9])
def test_chunks_both_ways_round(n):
    links = simulate.exchange_ring(n, both=True)
    assert share_of("ring_two_way", "all_to_all", n) == links.busiest == links.time
    assert hops_of("ring_two_way", "all_to_all", n) == links.rounds


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9, 16])
def test_chunks_along_a_line_keep_the_middle_busy(n):
    assert share_of("line", "all_to_all", n) * n * n == simulate.exchange_line(n)


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_doubling(n):
    links = simulate.gather_doubling(n)
    assert share_of("tree", "all_gather", n) == links.busiest == links.time
    assert hops_of("tree", "all_gather", n) == links.rounds


@pytest.mark.parametrize("n", [4, 6, 8, 16, 30])
def test_two_trees_fill_the_ports(n):
    assert share_of("tree", "all_reduce", n) == 2 * simulate.two_trees(n).busiest


@pytest.mark.parametrize("lengths", [(4, 4), (3, 3), (2, 2, 2), (3, 3, 3)])
@pytest.mark.parametrize("both", [False, True])
def test_equal_axes_of_a_torus_are_all_busy(lengths, both):
    name = "ring_two_way" if both else "ring"
    links = simulate.gather_torus(lengths, both)
    assert share_of(name, "all_gather", *lengths) == links.busiest == links.time


@pytest.mark.parametrize("lengths", [(2, 4), (8, 2), (3, 5)])
def test_unequal_axes_are_a_bound(lengths):
    links = simulate.gather_torus(lengths)
    least = share_of("ring", "all_gather", *lengths)
    assert least <= links.time < 2 * least


@pytest.mark.parametrize(
    ("lengths", "both"), [((4, 4), True), ((2, 6), True), ((3, 5), True), ((4, 3), False), ((3, 3, 3), True)]
)
def test_chunks_on_a_torus(lengths, both):
    assert share_of("ring_two_way" if both else "ring", "all_to_all", *lengths) == simulate.exchange_torus(lengths, both)


def test_twice_and_once_a_switch_that_adds_up():
    for name, algorithm in ALGORITHMS.items():
        if "all_reduce" not in algorithm.others:
            for lengths in ([N], [N, size("M")]):
                gather, reduce = form(name, "all_gather", lengths), form(name, "all_reduce", lengths)
                assert (reduce.share - 2 * gather.share).equals(0)
                assert (reduce.hops - 2 * gather.hops).equals(0)
    assert share_of("in_switch", "all_reduce", 8) == 1


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if not n.startswith("book")])
@pytest.mark.parametrize("kind", KINDS)
def test_one_device_sends_nothing(name, kind):
    if ALGORITHMS[name].others.get(kind, 1) is None:
        with pytest.raises(CostirError, match=f"{name} does no {kind}"):
            form(name, kind, [N])
        return
    assert form(name, kind, [ONE]).share == form(name, kind, [ONE, ONE]).hops == 0
    assert evaluate(form(name, kind, [N]).share, {N: 1}) == 0


def test_what_there_is_not():
    with pytest.raises(CostirError, match="no algorithm 'rng'"):
        form("rng", "all_gather", [N])
    with pytest.raises(CostirError, match="no collective 'gather'"):
        form("ring", "gather", [N])


@pytest.mark.parametrize(("g", "nodes"), [(2, 2), (8, 2), (4, 3), (1, 4), (8, 1)])
def test_nodes_step_by_step(g, nodes):
    """A group of g devices in each of several nodes, with rates that make seconds of shares."""
    import dataclasses

    from costir.chip import FrozenMap
    from costir.hardware import load_chip
    from costir.ir import Transfer
    from costir.mesh import Mesh
    from costir.network import Network

    h100 = load_chip("h100")
    links = {n: dataclasses.replace(link, domain=g if n == "nvlink" else None) for n, link in h100.links.items()}
    net = Network(dataclasses.replace(h100, links=FrozenMap(links)), Mesh.of(["X"]), {"X": g * nodes})
    for kind, run in (("all_gather", simulate.gather_nodes), ("all_to_all", simulate.exchange_nodes)):
        transfer = Transfer(kind, ("X",), size("X"), ONE)
        found = [evaluate(level.seconds(ONE) * level.rate, {size("X"): g * nodes}) for level in net.levels(transfer)]
        assert tuple(found) == run(g, nodes)
        near, far = run(g, nodes)
        seconds = evaluate(net.seconds(transfer), {size("X"): g * nodes})
        assert to_fraction(seconds) == max(near / 450_000_000_000, far / 50_000_000_000)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_device_sends_nothing_whatever_its_axis_is_called(algorithm, kind):
    """The length of an axis is a letter in the forms; where it is 1 there is nobody to send to."""
    try:
        found = form(algorithm, kind, [size("X")])
    except CostirError:  # the algorithm does not do this kind
        return
    alone = {size("X"): 1}
    assert evaluate(found.share, alone) == 0
    assert evaluate(found.hops, alone) == 0
