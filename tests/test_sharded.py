"""Sharded notation: every way to compute a product is carried out on devices of numpy arrays, and counted."""

from __future__ import annotations

import itertools
import math
import re
import string
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import costir
from costir.errors import CostirError, NotationError, SizeError
from costir.load.layouts import SUM, Numbers, best, cost_of, ways
from costir.load.notation import parse
from costir.on_chip import led_by, planned
from costir.solve import whole
from costir.symbolic import equal, evaluate, size

# ------------------------------------------------------------------------------------------ a mesh of devices of arrays


class Devices:
    """One array, on all devices of a mesh: a part of it on each, as a layout says.

    Every dimension is written with a digit of its own for each mesh axis, and a rest, so that a split over X is one place of
    the digit of X, whatever else splits the dimension.
    """

    def __init__(self, lengths, dims, arrays):
        self.lengths, self.dims, self.arrays, self.order = lengths, dims, arrays, list(lengths)

    def digit(self, dim, axis):
        """The numpy axis of a dimension's digit."""
        return self.dims.index(dim) * (len(self.order) + 1) + self.order.index(axis)

    @classmethod
    def spread(cls, whole, dims, layout, lengths, rng):
        """A whole array in this layout; a sum is in random parts of it."""
        out = cls(lengths, dims, {})
        sums = [a for a, p in layout if p == SUM]
        places = list(itertools.product(*(range(lengths[a]) for a in sums)))
        parts = {at: rng.integers(-9, 9, whole.shape) for at in places[1:]}
        parts[places[0]] = whole - sum(parts.values())
        for at in itertools.product(*(range(n) for n in lengths.values())):
            here = dict(zip(lengths, at, strict=True))
            x = parts[tuple(here[a] for a in sums)]
            for a, p in layout:
                if p is not None and p != SUM:
                    x = np.take(x, [here[a]], axis=out.digit(p, a))
            out.arrays[at] = x
        return out

    def groups(self, axis):
        """The devices that differ along one axis only, in order."""
        i = self.order.index(axis)
        for at in self.arrays:
            if at[i] == 0:
                yield [(*at[:i], k, *at[i + 1 :]) for k in range(self.lengths[axis])]

    def move(self, step):
        """One step of what devices can do together, a mesh axis after the other."""
        for axis in step.axes:
            old, new = dict(step.before)[axis], dict(step.after)[axis]
            digits = [None if p in (None, SUM) else self.digit(p, axis) for p in (old, new)]
            now = {}
            for group in self.groups(axis):
                now.update(zip(group, together(step.kind, [self.arrays[d] for d in group], *digits), strict=True))
            self.arrays = now


def together(kind, xs, old, new):
    """What each device of a group has after a step, from what all had; `old` and `new` are numpy axes."""
    n = len(xs)
    if kind == "slice":
        return [np.split(x, n, axis=new)[i] for i, x in enumerate(xs)]
    if kind == "all_gather":
        return [np.concatenate(xs, axis=old)] * n
    if kind == "all_reduce":
        return [sum(xs)] * n
    if kind == "reduce_scatter":
        return np.split(sum(xs), n, axis=new)
    assert kind == "all_to_all"
    return [np.concatenate([np.split(x, n, axis=new)[i] for x in xs], axis=old) for i in range(n)]


def carried_out(way, wholes, dims, out, layouts, lengths, rng):
    """The result on all devices, the multiplications of one device, and the whole result."""
    spread = [Devices.spread(w, d, layout, lengths, rng) for w, d, layout in zip(wholes, dims, layouts, strict=True)]
    for devices, steps in zip(spread, way.operands, strict=True):
        for step in steps:
            devices.move(step)
    digits = [(d, a) for d in dict.fromkeys(itertools.chain(*dims)) for a in (*lengths, "")]
    letters = {x: string.ascii_letters[i] for i, x in enumerate(digits)}
    spell = lambda ds: "".join(letters[d, a] for d in ds for a in (*lengths, ""))
    equation = ",".join(map(spell, dims)) + "->" + spell(out)
    arrays = {at: np.einsum(equation, *(s.arrays[at] for s in spread)) for at in spread[0].arrays}
    first = [next(iter(s.arrays.values())) for s in spread]
    extents = {
        c: n
        for term, x in zip(equation.split("->")[0].split(","), first, strict=True)
        for c, n in zip(term, x.shape, strict=True)
    }
    result = Devices(lengths, out, arrays)
    for step in way.result:
        result.move(step)
    return result, math.prod(extents.values()), np.einsum(equation, *wholes)


I, J, K, L = (("I", 0), ("J", 0), ("K", 0), ("L", 0))
SHAPES = [
    ((I, J), (J, K), (I, K)),
    ((L, I, J), (L, J, K), (L, I, K)),
    ((I, J), (J,), (I,)),
    ((I, J), (J, K), (K, I)),
    ((I, J), (I, J), (I, J)),
]


def layouts_for(draw, dims, axes, sums):
    return tuple((a, draw(st.sampled_from([None, *dims, *([SUM] if sums else [])]))) for a in axes)


@st.composite
def problems(draw):
    left, right, out = draw(st.sampled_from(SHAPES))
    axes = draw(st.sampled_from([("X",), ("X", "Y")]))
    lengths = {"X": draw(st.sampled_from([1, 2, 3])), "Y": draw(st.sampled_from([1, 2]))}
    layouts = [layouts_for(draw, d, axes, draw(st.booleans())) for d in (left, right)]
    return left, right, out, layouts, layouts_for(draw, out, axes, draw(st.booleans())), lengths


@settings(max_examples=60, deadline=None)
@given(problems())
def test_every_way_gives_the_product_in_the_layout_that_was_asked_for(problem):
    """And FLOPs over all devices are those of one device without a mesh, times the waste that is named."""
    left, right, out, layouts, target, lengths = problem
    found = ways([left, right], out, layouts, target)
    assume(found)
    rng, lengths = np.random.default_rng(0), {a: lengths[a] for a, _ in target}
    rest = {I: 2, J: 1, K: 1, L: 1}
    shape = lambda dims: [n for d in dims for n in (*lengths.values(), rest[d])]
    wholes = [rng.integers(-9, 9, shape(dims)) for dims in (left, right)]
    extents = {d: n * math.prod(lengths.values()) for d, n in rest.items()}
    numbers = Numbers(extents, lengths, (Fraction(1),) * 3)
    products = math.prod(extents[d] for d in dict.fromkeys((*left, *right)))
    summed = [a for a, p in target if p == SUM]
    for way in found:
        result, multiplied, expected = carried_out(way, wholes, [left, right], out, layouts, lengths, rng)
        for axis in summed:
            result.arrays = {d: sum(result.arrays[x] for x in g) for g in result.groups(axis) for d in g}
        made = Devices.spread(expected, out, tuple((a, None if p == SUM else p) for a, p in target), lengths, rng)
        assert all((result.arrays[at] == made.arrays[at]).all() for at in made.arrays)
        assert multiplied * math.prod(lengths.values()) == products * math.prod(lengths[a] for a in way.repeated)
        assert cost_of(way, [left, right], out, numbers)[1] == multiplied


@settings(max_examples=40, deadline=None)
@given(problems())
def test_no_way_beats_those_that_are_kept(problem):
    left, right, out, layouts, target, lengths = problem
    found = ways([left, right], out, layouts, target)
    assume(found)
    numbers = Numbers({I: 6, K: 18, J: 12, L: 12}, lengths, (Fraction(2),) * 3)
    cost = lambda w: cost_of(w, [left, right], out, numbers)
    kept = best(found, [left, right], out, numbers)
    for way in found:
        assert any(cost(k)[0] <= cost(way)[0] and cost(k)[1] <= cost(way)[1] for k in kept)


# ------------------------------------------------------------------------------------------------------- the four cases

CASES = [  # notation, collectives of the way that sends least: kind, axes, bytes of the payload; elements have 2 bytes
    ("A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y]", []),
    ("A[I,J_X] . B[J,K] -> C[I,K]", [("all_gather", "X", "2*I*J")]),
    ("A[I,J_X] . B[J_X,K] -> C[I,K]", [("all_reduce", "X", "2*I*K")]),
    ("A[I,J_X] . B[J_X,K] -> C[I,K_X]", [("reduce_scatter", "X", "2*I*K")]),
    ("A[I_X,J] . B[J,K_X] -> C[I_X,K]", [("all_gather", "X", "2*J*K")]),
    ("A[I_X,J] . B[J,K_X] -> C[I,K_X]", [("all_gather", "X", "2*I*J")]),
    ("A[I_X,J_Y] . B[J_Y,K] -> C[I_X,K]", [("all_reduce", "Y", "2*I*K/X")]),
    ("A[I_X,J_Y] . B[J_Y,K] -> C[I_X,K_Y]", [("reduce_scatter", "Y", "2*I*K/X")]),
    ("A[I_XY,J] . B[J,K] -> C[I_XY,K]", []),
    ("A[I_XY,J] . B[J,K] -> C[I,K]", [("all_gather", "XY", "2*I*K")]),
    ("A[I,J_X] . B[J_X,K] -> C[I,K] {U_X}", []),
    ("A[I,J] {U_X} -> A[I,J_X]", [("reduce_scatter", "X", "2*I*J")]),
    ("A[I,J] {U_XY} -> A[I,J_XY]", [("reduce_scatter", "XY", "2*I*J")]),
    ("A[I,J] {U_XY} -> A[I_X,J_Y]", [("reduce_scatter", "X", "2*I*J"), ("reduce_scatter", "Y", "2*I*J/X")]),
    ("A[I,J] {U_X} -> A[I,J]", [("all_reduce", "X", "2*I*J")]),
    ("A[I_X,J] -> A[I,J_X]", [("all_to_all", "X", "2*I*J")]),
    ("A[I_X,J] -> A[I,J]", [("all_gather", "X", "2*I*J")]),
    ("int8[I,J_X] . bf16[J_X,K] -> C[I,K]", [("all_gather", "X", "I*J"), ("all_gather", "X", "2*J*K")]),
    ("X1[B_X,D] . W[D,F_Y] . V[F_Y,D] -> Z[B_X,D]", [("all_reduce", "Y", "2*B*D/X")]),
    ("P[B,H_X,T,S] . V[B,S,H_X,D] -> O[B,T,H_X,D]", []),
]


def transfers(graph, conventions=None):
    costed = costir.analyze(graph).costed
    return [(t.kind, "".join(t.axes), t.payload) for n in costed.nodes for t in n.cost.transfers]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_what_is_communicated(text, expected):
    found = transfers(parse(text, mesh={"X": 4, "Y": 2}))
    names = {n: size(n) for n in "BDFIJKXYHTS"}
    assert [(k, a) for k, a, _ in found] == [(k, a) for k, a, _ in expected]
    for (_, _, payload), (_, _, formula) in zip(found, expected, strict=True):
        assert equal(payload, eval(formula, dict(names)))


@pytest.mark.parametrize("text", ["x[B,D_XY] . W[D,F_XY] -> h[B,F_XY]", "h[B_X,F_Y] . V[F_Y,D_X] -> y[B_X,D_Y]"])
def test_a_way_is_found_by_all_its_words(text):
    """Also where the words of another way contain them."""
    a = costir.analyze(text, mesh={"X": 4, "Y": 4})
    plans = [x.graph.plan for x in (a, *a.alternatives)]
    assert len(plans) > 1
    assert [planned(a, plan).graph.plan for plan in plans] == plans


def test_ways_are_of_one_product_on_a_mesh():
    with pytest.raises(CostirError, match="no way to compute it") as e:
        planned(costir.analyze("A[I,J] . B[J,K] -> C[I,K]"), "all_reduce")
    assert e.value.hint.startswith("there is one way")


def test_of_two_ways_with_the_same_words_the_one_that_is_just_these_counts():
    a = costir.analyze("A[I,J_X] . B[J_X,K] -> C[I,K]", mesh={"X": 4})
    short, long = ("all_reduce C over X", "all_gather B over X, then all_reduce C over X")
    named = lambda plan: replace(a, costed=replace(a.costed, graph=replace(a.graph, plan=plan, alternatives=())))
    both = led_by(named(long), (named(long), named(short)))
    assert planned(both, short).graph.plan == short


def test_gathering_first_and_reducing_after_are_both_there():
    a = costir.analyze("A[I,J_X] . B[J,K] -> C[I,K]", mesh={"X": 4})
    assert [x.graph.plan for x in (a, *a.alternatives)] == ["all_gather A over X", "all_reduce C over X"]
    assert a.flops / a.alternatives[0].matmul_flops == size("X")
    assert any("waste: computed X = 4 times over" in n for n in a.notes)
    assert not any("waste" in n for n in a.alternatives[0].notes)


def test_the_faster_way_is_taken_on_a_chip():
    """Few rows: the sum of the result is small beside the weights; many rows: the other way round."""
    text = "x[B,D] . W[D_X,F] -> y[B,F]"
    few = costir.analyze(text, mesh={"X": 4}, sizes={"B": 16, "D": 8192, "F": 8192}).on("tpu_v5e@book")
    many = costir.analyze(text, mesh={"X": 4}, sizes={"B": 2**20, "D": 2048, "F": 8192}).on("tpu_v5e@book")
    assert few.analysis.graph.plan == "all_reduce y over X"
    assert many.analysis.graph.plan == "all_gather W over X"
    for on in (few, many):
        others = [x.on("tpu_v5e@book").at().lower for x in on.analysis.alternatives]
        assert on.at().lower == min(on.at().lower, *others)


# --------------------------------------------------------------------------------------------------------- exact values


@pytest.mark.parametrize(
    ("n", "algorithm", "total", "each"),
    [
        (2, "", 78800 / 9, 4377.8),
        (4, "", 26266.67, 6566.7),
        (8, "", 61288.89, 7661.1),
        (4, "ring", 26266.67, 6566.7),
        (4, "ring_two_way", 13133.33, 3283.3),
        (8, "ring_two_way", 30644.44, 3830.6),
        (4, "book", 17511.11, 4377.8),
        (8, "book", 35022.22, 4377.8),
    ],
)
def test_the_critical_width_of_a_split_sum(n, algorithm, total, each):
    a = costir.analyze("A[I,J_X] . B[J_X,K] -> C[I,K]", mesh={"X": n})
    t = a.on("tpu_v5e@book", algorithm=algorithm).critical("J")
    assert t.at_base == pytest.approx(total, abs=0.01)
    assert t.at_base / t.devices == pytest.approx(each, abs=0.06)
    assert (t.below, t.above, t.cancels) == ("network", "compute", ("I", "K"))
    assert "I" not in str(t.value)


def test_solving_for_the_axis():
    """On how many chips does the sum cost as much as the products? 2*(X - 1)*C/W = J."""
    a = costir.analyze("A[I,J_X] . B[J_X,K] -> C[I,K]", mesh={"X": 4}, sizes={"J": 65536})
    t = a.on("tpu_v5e@book").critical("X")
    assert t.at_base == pytest.approx(1 + 65536 / 8755.5556, rel=1e-6)
    assert (t.below, t.above) == ("compute", "network")


def test_gathering_weights_needs_a_batch():
    """Chapter 3: gathering W[D_X,F] is bound by compute where B > C/W, with W both ways round: 2,189 on a v5e."""
    a = costir.analyze("x[B,D] . W[D_X,F] -> y[B,F]", mesh={"X": 16})
    gather = next(x for x in (a, *a.alternatives) if "gather" in x.graph.plan)
    t = gather.on("tpu_v5e@book", algorithm="book")
    found = whole(gather.costed, t.chip, "B", "network", t.wiring)
    assert found.at_base == pytest.approx(1.97e14 / 9e10)
    assert found.cancels == ("D", "F")
    reduce = next(x for x in (a, *a.alternatives) if "reduce" in x.graph.plan)
    found = whole(reduce.costed, t.chip, "X", "network", t.wiring)
    assert found.at_base == pytest.approx(4096 * 9e10 / (2 * 1.97e14))


# -------------------------------------------------------------------------------------------------------- one device


@pytest.mark.parametrize(
    "text", ["A[I,J_X] . B[J_X,K] -> C[I,K]", "A[I_X,J] . B[J,K_X] -> C[I,K]", "bf16[B_X,D] . int8[D,F_X] -> [B,F]"]
)
def test_one_device_is_the_analysis_without_a_mesh(text):
    plain = costir.analyze(text.replace("_X", ""))
    one = costir.analyze(text, mesh={"X": 1})
    for a in (one, *one.alternatives):
        for q in ("matmul_flops", "flops", "read", "write", "bytes", "params", "weight_bytes"):
            assert equal(evaluate(getattr(a, q), {size("X"): 1}), getattr(plain, q))
        assert evaluate(a.network, {size("X"): 1}) == 0
    assert one.on("h100").at().lower == pytest.approx(plain.on("h100").at().lower, rel=1e-12)


def test_many_points_at_once():
    a = costir.analyze("A[I,J_X] . B[J_X,K] -> C[I,K]", mesh={"X": 4})
    sizes = 16 * np.arange(1, 100_001)
    found = a.evaluate("flops", "network", J=sizes, X=16)
    assert found["network"].shape == (100_000,)
    assert found["flops"][1] == 2 * 4096 * 32 * 4096 / 16 + 4096 * 4096 * 15 / 16
    on = a.on("h100")
    at = on.roofline.at(J=sizes, X=np.full(100_000, 16))
    assert at.lower.shape == (100_000,)


# -------------------------------------------------------------------------------------------------------------- slips


@pytest.mark.parametrize(
    ("text", "mesh", "message"),
    [
        ("A[I,J_X] . B[J_X,K] -> C[I,K]", {}, "the mesh axis X has no length; add its length: --mesh X=4"),
        ("A[I,J_Z] . B[J_Z,K] -> C[I,K]", {"X": 4}, "the mesh has no axis 'Z'"),
        ("A[I_X,J_X] . B[J,K] -> C[I,K]", {"X": 4}, "the axis X stands twice in A; it can split one dimension only"),
        ("A[I,J_XX] . B[J,K] -> C[I,K]", {"X": 4}, "the axis X stands twice in A"),
        ("A[I_X,J] {U_X} . B[J,K] -> C[I,K]", {"X": 4}, "the axis X stands twice in A"),
        ("A[I,X] . B[X,K] -> C[I,K]", {"X": 4}, "X is a dimension and a mesh axis"),
        ("A[I,10_X] . B[10_X,K] -> C[I,K]", {"X": 4}, "10 does not split evenly over X = 4 devices"),
        ("A[I,J] . B[J,K] -> C[I,K] {U_X}", {"X": 4}, "nothing is summed over X, so that the result is no sum over it"),
        ("A[I,J_] . B[J,K] -> C[I,K]", {"X": 4}, "J_ has no mesh axis after the _, as I_X has"),
        ("A[I,J] {X} . B[J,K] -> C[I,K]", {"X": 4}, "a sum over devices that is not made yet is written {U_X}"),
        ("A[I,J_X] . B[J_X,K] -> C[I,K]", {"X": 0}, "the mesh axis X has 0 devices, which is no whole number from 1 to 10**7"),
    ],
)
def test_what_is_refused(text, mesh, message):
    with pytest.raises((NotationError, SizeError)) as caught:
        costir.analyze(text, mesh=mesh)
    assert message in str(caught.value)


def test_uneven_sizes_and_wrong_counts():
    with pytest.raises(SizeError, match="J = 4097 does not split evenly over X = 4 devices"):
        costir.analyze("A[I,J_X] . B[J_X,K] -> C[I,K]", mesh={"X": 4}, sizes={"J": 4097})
    with pytest.raises(SizeError, match="X is 4 devices and not 8"):
        costir.analyze("A[I,J_X] . B[J_X,K] -> C[I,K]", mesh={"X": 4}, devices=8)
    assert costir.analyze("A[B_X,J] . B1[J,K]", mesh={"X": 3}).sizes["B"] == 3
    with pytest.raises(CostirError, match="no way to compute it has 'scatter'"):
        planned(costir.analyze("A[I,J_X] . B[J,K] -> C[I,K]", mesh={"X": 4}), "scatter")
    with pytest.raises(SizeError, match=r"J % X == 0"):
        costir.analyze("A[I,J_X] . B[J_X,K] -> C[I,K]", mesh={"X": 4}).at(J=4098)


# ------------------------------------------------------------------------------------------------------- command line

SPLIT = ["A[I,J_X] . B[J_X,K] -> C[I,K]", "--mesh", "X=4", "--chip", "tpu_v5e@book"]


def run(capsys, *arguments):
    from costir.cli import main

    code = main(list(arguments))
    return code, capsys.readouterr()


def test_solve_says_it_in_total_and_per_device_and_by_algorithm(capsys):
    code, said = run(capsys, "solve", *SPLIT, "--for", "J")
    assert code == 0
    for words in (
        "J = 26267, network binds below and compute above", "6566.7 on each of X = 4 devices", "does not depend on I, K",
        "78800*(X - 1)/9", "ring_two_way: a ring, both ways round", "13133", "17511", "X over ici: a line, both ways; 45 GB/s",
    ):  # fmt: skip
        assert words in said.out
    assert "line: a line, both ways (taken)" in said.out


def test_analyze_shows_both_ways_and_the_overlap(capsys):
    code, said = run(capsys, "analyze", "A[I,J_X] . B[J,K] -> C[I,K]", *SPLIT[1:], "--overlap", "full")
    assert code == 0
    assert "all_gather A over X (taken)" in said.out
    assert "all_reduce C over X" in said.out
    assert "full: all units work all the time" in said.out
    code, said = run(capsys, "analyze", "A[I,J_X] . B[J,K] -> C[I,K]", *SPLIT[1:], "--way", "all_reduce")
    assert "all_reduce C over X (taken)" in said.out


@pytest.mark.parametrize("name", ["markdown", "csv", "latex", "html"])
def test_every_format(capsys, name):
    code, said = run(capsys, "analyze", *SPLIT, "--format", name)
    assert code == 0
    assert "reduce" in said.out


def test_json_follows_the_schema(capsys):
    import json
    from pathlib import Path

    import jsonschema

    schema = json.loads((Path(costir.__file__).parent / "schema.json").read_text())
    for verb in ("analyze", "solve"):
        code, said = run(capsys, verb, *SPLIT, "--format", "json")
        assert code == 0
        data = json.loads(said.out)
        jsonschema.validate(data, schema)
    assert data["mesh"] == {"X": 4}
    assert next(w["plan"] for w in data["ways"]) == "all_reduce C over X"
    assert data["nodes"][1]["transfers"][0]["payload"]["expr"] == "2*I*K"
    assert {a["name"] for a in data["algorithms"]} == {"ring", "ring_two_way", "line", "book"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["A[I,J_Z] . B[J_Z,K]", "--mesh", "X=4"], "the mesh has no axis 'Z'"),
        ([*SPLIT[:3], "--devices", "8"], "X is 4 devices and not 8"),
        ([*SPLIT, "--algorithm", "tree"], "tree does not run on tpu_v5e@book's ici, a torus"),
        ([*SPLIT, "--link", "X"], "--link 'X' is not NAME=VALUE"),
        ([*SPLIT[:3], "--chip", "l4"], "l4 has no link to other chips (it has host)"),
        ([*SPLIT, "--mesh", "X=2"], "--mesh gives the axis 'X' twice"),
    ],
)
def test_one_sentence_each(capsys, arguments, message):
    code, said = run(capsys, "analyze", *arguments)
    assert code == 2
    assert message in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("written", "mesh"),
    [
        ("A[I, J_x] . B[J_x, K] -> C[I, K]", {"x": 4}),
        ("A[I, J_dp] . B[J_dp, K] -> C[I, K]", {"dp": 4}),
        ("A[I, J_N1] . B[J_N1, K] -> C[I, K]{U_N1}", {"N1": 4}),
        ("A[I_tp, J_dp_x] . B[J_dp_x, K] -> C[I_tp, K_dp]", {"dp": 4, "tp": 2, "x": 3}),
    ],
)
def test_axes_have_any_names(written, mesh):
    """The same as with capital letters, which are read wherever they stand."""
    letters, same = dict(zip(mesh, "XYZ", strict=False)), written
    for name, letter in letters.items():
        same = same.replace(f"_{name}", f"_{letter}")
    same = re.sub(r"(?<=_[XYZ])_(?=[XYZ])", "", same)
    named = costir.analyze(written, mesh=mesh)
    plain = costir.analyze(same, mesh={letters[n]: v for n, v in mesh.items()})
    assert named.at().network == plain.at().network
    assert named.at().flops == plain.at().flops
    assert (named.at().network > 0) is ("{U_" not in written)


def test_a_name_that_is_split_is_said():
    """d_model is d over `model` where the mesh has that axis, and a size where it has not."""
    assert "d_model is d split over model" in costir.analyze("A[d_model, J] . B[J, K]", mesh={"model": 2}).notes
    assert "d_model" in costir.analyze("A[d_model, J_X] . B[J_X, K]", mesh={"X": 2}).sizes
