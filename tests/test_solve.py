"""Critical sizes: published values, and a brute-force scan that knows nothing of algebra."""

import itertools
import time
from dataclasses import replace
from fractions import Fraction

import pytest
import sympy as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costir.crossing import polynomial_crossings
from costir.errors import ChipError, SizeError
from costir.hardware import load_chip
from costir.ir import Call, Conventions, Cost, Costed, Graph, Node, Tensor
from costir.laurent import Laurent
from costir.solve import per_node, threshold, thresholds
from costir.solve_cases import positive
from costir.symbolic import ONE, evaluate, size

B, D, F, T, S, K, G, H, L, N, V = (size(n) for n in "BDFTSKGHLNV")
V5E = load_chip("tpu_v5e@book")
H100 = load_chip("h100@book")
C, W = Fraction(197 * 10**12), Fraction(82 * 10**10)


def matmul(weight=2, activation=2, output=2, math="bfloat16", b=B, d=D, f=F):
    return Cost(matmul=2 * b * d * f, read=activation * b * d + weight * d * f, write=output * b * f, math=math)


def attention(t, s, grouped):
    q = 2 * B * t * K * grouped * H
    return Cost(matmul=4 * B * t * s * K * grouped * H, read=q + 4 * B * s * K * H, write=q, math="bfloat16")


@pytest.mark.parametrize(
    ("cost", "d", "expected"),
    [
        (matmul(), 8192, 255.2),
        (matmul(), 1024, 452.6),
        (matmul(weight=1), 4096, 136.1),
        (matmul(weight=1), 1024, 226.3),
    ],
)
def test_published_critical_batches(cost, d, expected):
    found = threshold(cost, V5E, "B", {"B": 1, "D": d, "F": d})
    assert round(found.at_base, 1) == expected
    assert float(evaluate(found.value, {D: d, F: d})) == pytest.approx(found.at_base)
    assert bool(evaluate(found.when, {D: d, F: d}))
    assert (found.below, found.above) == ("memory", "compute")


@pytest.mark.parametrize(
    ("cost", "chip", "limit"),
    [
        (matmul(), V5E, 240.24),
        (matmul(weight=1), V5E, 120.12),
        (matmul(1, 1, 1, "int8"), V5E, 240.24 * 2 / 2),
        (matmul(), H100, 295.5),
    ],
)
def test_limits_for_large_widths(cost, chip, limit):
    found = threshold(cost, chip, "B", {"B": 1, "D": 8192, "F": 8192})
    if cost.math == "int8":
        assert chip.matmul_rate("int8") == 2 * chip.matmul_rate("bfloat16")
    assert float(found.limit) == pytest.approx(limit, rel=1e-3)
    # The same by a very large number.
    big = {D: 10**12, F: 10**12}
    assert float(evaluate(found.value, big)) == pytest.approx(float(found.limit), rel=1e-6)


def test_none_where_the_widths_are_too_small():
    found = threshold(matmul(), V5E, "B", {"B": 1, "D": 480, "F": 480})
    assert found.at_base is None
    assert found.reason == "intensity tops out at D*F/(D + F) = 240 < ridge 240.2 however large B is"
    assert not bool(evaluate(found.when, {D: 480, F: 480}))
    assert bool(evaluate(found.when, {D: 481, F: 481}))


def test_the_condition_is_the_one_of_the_derivation():
    found = threshold(matmul(3, 5, 7), V5E, "B", {"B": 1, "D": 8192, "F": 8192})
    ridge = sp.Rational(C / W)
    closed = ridge * 3 * D * F / (2 * D * F - ridge * (5 * D + 7 * F))
    assert sp.simplify(found.value - closed) == 0
    condition = 2 * D * F - ridge * (5 * D + 7 * F)
    for d in (100, 700, 1400, 1440, 1441, 1442, 1500, 10**4):
        at = {D: d, F: d}
        assert bool(evaluate(found.when, at)) == bool(evaluate(condition, at) > 0)


def brute(compute, memory, limit=10**5):
    """The first whole size at which compute time is at least memory time, by trying them all; None where there is none."""
    return next((x for x in range(1, limit) if compute(x) >= memory(x)), None)


ITEM = st.sampled_from([1, 2, 4])


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.integers(100, 20000),
    st.integers(100, 20000),
)
def test_against_a_scan(w, a, o, d, f):
    found = threshold(matmul(w, a, o), V5E, "B", {"B": 1, "D": d, "F": f})
    assume(found.at_base is None or found.at_base < 3000)
    scanned = brute(lambda x: 2 * x * d * f / C, lambda x: (a * x * d + w * d * f + o * x * f) / W, 4000)
    if found.at_base is None:
        assert scanned is None
        assert found.reason
    else:
        assert scanned - 1 <= found.at_base <= scanned


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["T", "S", "G"]), st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 64))
def test_attention_against_a_scan(unknown, t, s, g):
    sizes = {"B": 3, "T": t, "S": s, "K": 2, "H": 64, "G": g}
    found = threshold(attention(T, S, G), V5E, unknown, sizes)
    ridge = C / W

    def bound(x):
        z = sizes | {unknown: x}
        return Fraction(z["T"] * z["S"] * z["G"], z["T"] * z["G"] + z["S"]) >= ridge

    scanned = next((x for x in range(1, 3000) if bound(x)), None)
    if found.at_base is None:
        assert scanned is None
        assert "ridge" in found.reason
    elif found.at_base < 2900:
        assert scanned - 1 <= found.at_base <= max(scanned, 1)
    assert set(found.cancels) == {"B", "K", "H"}


def test_prefill_without_grouping():
    found = threshold(attention(T, T, ONE), V5E, "T", {"B": 1, "T": 8, "K": 8, "H": 128})
    assert round(found.at_base, 1) == 480.5
    assert found.cancels == ("B", "H", "K")


def test_what_cancels_is_said():
    found = threshold(attention(T, S, G), V5E, "B", {"B": 1, "T": 1, "S": 4096, "K": 8, "H": 128, "G": 4})
    assert found.at_base is None
    assert "since B cancels" in found.reason
    assert "B" in found.cancels


def test_tokens():
    sizes = {"B": 1, "T": 8192, "D": 4096, "F": 14336}
    found = threshold(matmul(b=B * T), H100, "tokens", sizes)
    same = threshold(matmul(), H100, "B", sizes)
    assert found.unknown == "tokens"
    assert found.at_base == same.at_base
    assert found.value == same.value
    assert found.note == "at T = 8192 every B >= 1 is past it"
    assert threshold(matmul(b=B * T), H100, "B*T", sizes).at_base == same.at_base
    alone = threshold(matmul(b=B * T), H100, "B", sizes)
    assert alone.at_base == pytest.approx(same.at_base / 8192)
    assert "every B >= 1 is past it" in alone.note


def test_tokens_where_length_matters_on_its_own():
    costs = [matmul(b=B * T), attention(T, T, ONE)]
    sizes = {"B": 1, "T": 64, "D": 4096, "F": 4096, "K": 32, "H": 128}
    found = threshold(costs, V5E, "tokens", sizes)
    assert "B solved at T = 64" in found.note

    def work(b):
        return (2 * b * 64 * 4096**2 + 4 * b * 64**2 * 4096) / C

    def move(b):
        return (2 * (2 * b * 64 * 4096 + 4096**2) + 8 * b * 64 * 4096) / W

    scanned = brute(work, move)
    assert 64 * (scanned - 1) <= found.at_base <= 64 * scanned


def test_other_unknowns():
    sizes = {"B": 1000, "D": 1024, "F": 4096}
    found = threshold(matmul(), V5E, "D", sizes)
    scanned = brute(lambda x: 2 * 1000 * x * 4096 / C, lambda x: 2 * (1000 * x + x * 4096 + 1000 * 4096) / W)
    assert scanned - 1 <= found.at_base <= scanned


def test_falls_with_size_where_it_does():
    # Bytes grow faster than FLOPs: compute-bound below.
    cost = Cost(matmul=10**6 * T, read=T**2, write=ONE, math="bfloat16")
    found = threshold(cost, V5E, "T", {"T": 1})
    assert (found.below, found.above) == ("compute", "memory")
    past = brute(lambda x: Fraction(x**2 + 1) / W, lambda x: 10**6 * x / C)
    assert past - 1 <= found.at_base <= past


def test_two_roots_are_an_interval():
    ridge = C / W
    # Intensity is above the ridge between 10 and 50 exactly: ridge*bytes - flops = (T - 10)*(T - 50).
    cost = Cost(matmul=60 * T, read=(T**2 + 500) / sp.Rational(ridge), math="bfloat16")
    found = threshold(cost, V5E, "T", {"T": 1})
    assert found.at_base == pytest.approx(10)
    assert found.note == "compute-bound for 10 < T < 50"
    assert found.value == 10


def test_high_degrees_are_solved_in_numbers():
    cost = Cost(matmul=T**3 * D, read=T * 10**6 + D * 10**9, write=ONE, math="bfloat16")
    found = threshold(cost, V5E, "T", {"T": 1, "D": 64})
    scanned = brute(lambda x: x**3 * 64 / C, lambda x: Fraction(x * 10**6 + 64 * 10**9 + 1) / W)
    assert found.value is None
    assert scanned - 1 <= found.at_base <= scanned
    assert found.note == "numeric, at D = 64"


def test_ceil_is_searched_over_whole_numbers():
    padded = 128 * sp.ceiling(B / 128)
    cost = Cost(matmul=2 * padded * 8192 * 8192, read=2 * (padded * 8192 + 8192**2), write=2 * padded * 8192, math="bfloat16")
    found = threshold(cost, V5E, "B", {"B": 1})

    def up(x):
        return -(-x // 128) * 128

    scanned = brute(lambda x: 2 * up(x) * 8192**2 / C, lambda x: 2 * (2 * up(x) * 8192 + 8192**2) / W)
    assert found.at_base == scanned == 129
    assert "numeric, at the base sizes" in found.note
    assert found.value is None


def test_floor_in_another_size_leaves_an_exact_root():
    cost = Cost(matmul=2 * B * sp.floor(D / 2) * F, read=2 * (B * D + sp.floor(D / 2) * F), write=2 * B * F, math="bfloat16")
    found = threshold(cost, V5E, "B", {"B": 1, "D": 4097, "F": 8192})
    scanned = brute(lambda x: 2 * x * 2048 * 8192 / C, lambda x: 2 * (x * 4097 + 2048 * 8192 + x * 8192) / W)
    assert scanned - 1 < found.at_base < scanned
    assert float(found.value) == found.at_base
    assert found.note == "at D = 4097, F = 8192"


def test_ceil_beyond_the_first_numbers():
    padded = 128 * sp.ceiling(B / 128)
    cost = Cost(matmul=2 * padded * 1024 * 1024, read=2 * (padded * 1024 + 1024**2), write=2 * padded * 1024, math="bfloat16")
    # Without padding it is 452.6; blocks of 128 reach it with the fourth, which starts at 385.
    assert threshold(cost, V5E, "B", {"B": 1}).at_base == 385


def test_a_limit_of_zero_and_none():
    # T* = I/(D**2 - I*D) falls to 0 with D; D**3 as the fixed part lets it grow without bound.
    falls = Cost(matmul=2 * T * D**2, read=2 * T * D + 2, math="bfloat16")
    assert threshold(falls, V5E, "T", {"T": 1, "D": 1000}).limit == 0
    grows = Cost(matmul=2 * T * D**2, read=2 * T * D + 2 * D**3, math="bfloat16")
    assert threshold(grows, V5E, "T", {"T": 1, "D": 1000}).limit is None


def test_a_dot_product_never():
    cost = Cost(matmul=2 * N - 1, read=4 * N, write=sp.Integer(2), math="bfloat16")
    found = threshold(cost, V5E, "N", {"N": 1024})
    assert found.at_base is None
    assert "tops out at 0.5 < ridge 240.2 however large N is" in found.reason


def test_a_size_that_does_not_occur():
    found = threshold(matmul(), V5E, "T", {"B": 1, "D": 64, "F": 64, "T": 5})
    assert found.at_base is None
    assert found.reason == "intensity is 0.9697 < ridge 240.2 at every T, since it does not depend on T"


def test_none_in_a_curve_that_rises_and_falls():
    # Intensity peaks at T = 30 below the ridge; neither end says so.
    cost = Cost(matmul=60 * T, read=(T**2 + 1000) / sp.Rational(C / W), math="bfloat16")
    found = threshold(cost, V5E, "T", {"T": 1})
    assert found.at_base is None
    assert found.reason == "memory time is longer than compute time at every T >= 1"


def test_no_contraction():
    found = threshold(Cost(vector=B, read=B, write=B), V5E, "B", {"B": 1})
    assert found.at_base is None
    assert "no contraction" in found.reason


@pytest.mark.parametrize(
    ("unknown", "message"), [("Q", "unknown size 'Q'"), ("tokens", "tokens means"), ("B*Q", "unknown size 'Q'")]
)
def test_unknown_sizes(unknown, message):
    with pytest.raises(SizeError, match=message):
        threshold(matmul(), V5E, unknown, {"B": 1, "D": 2, "F": 3})


def test_a_chip_without_the_type():
    with pytest.raises(ChipError, match="float64"):
        threshold(matmul(math="float64"), V5E, "B", {"B": 1, "D": 2, "F": 3})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True), st.booleans())
def test_crossings_of_known_roots(found, up):
    x = sp.Symbol("x")
    polynomial = sp.Poly(sp.expand(sp.prod([x - r for r in found]) * (1 if up else -1)), x)
    crossings = polynomial_crossings([Fraction(int(c)) for c in reversed(polynomial.all_coeffs())])
    assert [float(c.value) for c in crossings] == pytest.approx(sorted(found))
    assert crossings[-1].up == up
    assert all(a.up != b.up for a, b in itertools.pairwise(crossings))


def llama():
    """A decoder in the book's letters with every block's operators, 32 layers."""
    sizes = {"B": 1, "T": 8192, "D": 4096, "F": 14336, "N": 32, "K": 8, "H": 128, "V": 128256, "L": 32}
    rows = B * T

    def linear(d, f, path, count=L):
        weight = Tensor((f, d), "bfloat16", role="weight")
        return Node(Call("aten.mm.default", {"mat2": weight}, (), path=path, count=count), matmul(b=rows, d=d, f=f), "mm")

    def vector(numel, path, times):
        cost = Cost(vector=times * numel, read=4 * numel, write=2 * numel, math="bfloat16")
        return Node(Call("aten.mul.Tensor", {}, (), path=path, count=L), cost, "mul")

    q = 2 * rows * N * H
    core = Cost(matmul=4 * B * T**2 * N * H, special=B * N * T**2, read=q + 4 * rows * K * H, write=q, math="bfloat16")
    nodes = [
        linear(D, N * H, "layers.*.q_proj"), linear(D, K * H, "layers.*.k_proj"), linear(D, K * H, "layers.*.v_proj"),
        linear(N * H, D, "layers.*.o_proj"), linear(D, F, "layers.*.gate_proj"), linear(D, F, "layers.*.up_proj"),
        linear(F, D, "layers.*.down_proj"), linear(D, V, "lm_head", ONE),
        Node(Call("aten.sdpa.default", {}, (), path="layers.*.attn", count=L), core, "sdpa"),
        *(vector(rows * d, f"layers.*.x{i}", i + 1) for i, d in enumerate([D, F, N * H, K * H] * 12)),
    ]  # fmt: skip
    return Costed(Graph("llama", sizes, ()), tuple(nodes), Conventions())


WIDTHS = {"layers.*.gate_proj mm": (4096, 14336), "layers.*.q_proj mm": (4096, 4096), "layers.*.k_proj mm": (4096, 1024)}


def test_a_whole_model_in_tokens():
    costed = llama()
    start = time.process_time()
    rows = thresholds(costed, H100, "tokens")
    assert time.process_time() - start < 1.5
    by = {r.what: r for r in rows}
    assert rows[0].what == "whole"
    assert len(rows) == len({n.cost for n in costed.nodes if n.cost.matmul != 0}) + 1
    c, w = H100.matmul_rate("bfloat16"), H100.memory_bandwidth
    for name, (d, f) in WIDTHS.items():
        scanned = brute(lambda x, d=d, f=f: 2 * x * d * f / c, lambda x, d=d, f=f: 2 * (x * d + d * f + x * f) / w)
        assert scanned - 1 <= by[name].at_base <= scanned
    assert "the same for layers.*.v_proj mm" in by["layers.*.k_proj mm"].note


def test_a_whole_model_against_its_times():
    costed = replace(llama(), nodes=llama().nodes[:13])
    point = {size(n): v for n, v in costed.graph.sizes.items() if n != "B"}
    work = evaluate(sum(n.call.count * n.cost.matmul for n in costed.nodes), point | {T: 4})
    move = evaluate(sum(n.call.count * n.cost.nbytes for n in costed.nodes), point | {T: 4})
    sizes = dict(costed.graph.sizes) | {"T": 4}
    short = Costed(Graph("llama", sizes, ()), costed.nodes, costed.conventions)
    found = thresholds(short, H100, "B")[0]
    c, w = H100.matmul_rate("bfloat16"), H100.memory_bandwidth
    assert "T = 4" in found.note
    at = found.at_base
    for b, past in ((at * 0.999, False), (at * 1.001, True)):
        assert (float(work.subs(B, b)) / float(c) > float(move.subs(B, b)) / float(w)) == past


def test_every_node_has_its_own():
    costed = llama()
    rows = per_node(costed, H100, "tokens")
    assert len(rows) == len(costed.nodes)
    assert rows[0].what == "layers.*.q_proj mm"
    assert "no contraction" in rows[-1].reason


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.integers(-3, 3).filter(bool), min_size=1, max_size=4)
)
def test_where_a_sum_is_positive(terms):
    sum_ = Laurent({tuple((n, x) for n, x in zip("XY", k, strict=True) if x): Fraction(c) for k, c in terms.items()})
    found = positive(sum_)
    for x, y in itertools.product(range(1, 9), repeat=2):
        here = found.xreplace({size("X"): sp.Integer(x), size("Y"): sp.Integer(y)})
        assert (here == sp.true) == (sum_.value({"X": x, "Y": y}) > 0)


@pytest.mark.parametrize(("terms", "settled"), [
    ({(): 1, (("X", 1),): -1}, False),  # 1 > X
    ({(("X", 1),): 5, (): -4}, True),  # 5*X > 4
    ({(("X", 1),): 1, (): -1}, None),  # X > 1
    ({(("X", 2),): 1, (("X", 1),): -1, (): 1}, True),  # X**2 + 1 > X
])  # fmt: skip
def test_sizes_are_one_or_more(terms, settled):
    found = positive(Laurent({k: Fraction(c) for k, c in terms.items()}))
    assert found == (found if settled is None else sp.true if settled else sp.false)
    assert (found in (sp.true, sp.false)) == (settled is not None)
