"""Results of "How to Scale Your Model" on sharded matmuls and collectives, derived here and compared as expressions.

`W2` is a link's bandwidth both ways together, as the book counts on TPUs; `Wg` what leaves a GPU over NVLink; `Wn` what leaves
a node. Where editions differ the convention is in the row.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import sympy as sp

import costir
from costir.collectives import form
from costir.hardware import load_chip
from costir.ir import Transfer
from costir.mesh import Mesh
from costir.network import Network, Wiring
from costir.roofline import roofline
from costir.solve import whole
from costir.symbolic import at_branch, equal, number, roots, size

B, D, F, I, J, K, N, V, X, Y, Z = (size(n) for n in "BDFIJKNVXYZ")
C, W2, Wg, Wn = (size(n) for n in ("C", "W2", "Wg", "Wn"))
BOOK = Wiring("book")
EXAMPLES = Path(__file__).parents[1] / "examples"


def share(algorithm, kind, *lengths):
    return at_branch(form(algorithm, kind, lengths).share, dict.fromkeys((X, Y, N), 16))[0]


FORMULAS = [  # result, what costir finds, what the book has
    ("AllGather, both ways round: V/W2", V * share("book", "all_gather", X) / (W2 / 2), V / W2),
    ("its hops: X/2", form("book", "all_gather", [X]).hops, X / 2),
    ("AllGather, one way or on a line: V*(X-1)/(X*W)", share("ring", "all_gather", X), (X - 1) / X),
    ("the same on a line", share("line", "all_gather", X), (X - 1) / X),
    ("over two axes: V/(2*W2)", V * share("book", "all_gather", X, Y) / (W2 / 2), V / (2 * W2)),
    ("and (X + Y)/2 hops", form("book", "all_gather", [X, Y]).hops, (X + Y) / 2),
    ("ReduceScatter as AllGather", share("book", "reduce_scatter", X), share("book", "all_gather", X)),
    ("AllReduce twice that", share("book", "all_reduce", X), 2 * share("book", "all_gather", X)),
    ("AllToAll, both ways: V/(4*W2)", V * share("book", "all_to_all", X) / (W2 / 2), V / (4 * W2)),
    ("with chunks to the far end half each way it is that exactly", share("ring_two_way", "all_to_all", X), number(1) / 8),
    ("AllToAll over AllGather, one way: 1/2", share("ring", "all_to_all", X) / share("ring", "all_gather", X), number(1) / 2),
    ("both ways: 1/4", share("book", "all_to_all", X) / share("book", "all_gather", X), number(1) / 4),
    ("in a node: V*(N-1)/(N*Wg)", V * share("direct", "all_gather", N) / Wg, V * (N - 1) / (N * Wg)),
    ("about V/Wg", V * share("book_switch", "all_gather", N) / Wg, V / Wg),
    ("AllToAll in a node: V*(N-1)/(N**2*Wg)", V * share("direct", "all_to_all", N) / Wg, V * (N - 1) / (N**2 * Wg)),
    ("about V/(N*Wg)", V * share("book_switch", "all_to_all", N) / Wg, V / (N * Wg)),
    ("a level of a tree with N children: N/(N-1) of a child's rate", Wg / share("direct", "all_gather", N), Wg * N / (N - 1)),
    ("a switch that adds up: V/Wg for AllReduce", V * share("in_switch", "all_reduce", N) / Wg, V / Wg),
]  # fmt: skip


@pytest.mark.parametrize(("result", "found", "stored"), FORMULAS, ids=[f[0] for f in FORMULAS])
def test_collectives(result, found, stored):
    assert equal(found, stored)


def test_the_busiest_direction_where_chunks_to_the_far_end_all_go_one_way():
    """Exercise 10.6: V*(X + 2)/(8*X*W) instead of V/(8*W): counted chunk by chunk."""
    for n in (2, 4, 8):
        hops = [min(d, n - d) for d in range(1, n)]
        forward = sum(h for d, h in enumerate(hops, 1) if d <= n // 2)
        assert number(forward) / n**2 == (number(n) + 2) / (8 * n)


def network(text, mesh, algorithm="book", chip="tpu_v5p@book", plan="", links=(), **sizes):
    """Seconds of the collectives of a product, as an expression in the sizes and the rate of a link."""
    on = load_chip(chip)
    a = costir.analyze(text, mesh=mesh, sizes=sizes)
    a = next(x for x in (a, *a.alternatives) if plan in x.graph.plan)
    seconds = roofline(a.costed, on, Wiring(algorithm, links)).network
    return at_branch(seconds, {size(n): v for n, v in a.sizes.items()})[0]


TWO_WAY = number(2 * 90 * 10**9)
WAY_OUT = number(8 * 50 * 10**9)  # of a node of H100s


@pytest.mark.parametrize(
    ("text", "mesh", "stored"),
    [
        ("A[I,J_X] . B[J_X,K] -> C[I,K]", {"X": 4}, 2 * 2 * I * K / TWO_WAY),  # case 3, AllReduce
        ("A[I,J_X] . B[J_X,K] -> C[I,K_X]", {"X": 4}, 2 * I * K / TWO_WAY),  # case 3, ReduceScatter: half
        ("A[I,J_X] . B[J,K] -> C[I,K]", {"X": 4}, 2 * I * J / TWO_WAY),  # case 2
        ("A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y]", {"X": 4, "Y": 4}, number(0)),  # case 1
        ("A[I_X,J] . B[J,K_X] -> C[I_X,K]", {"X": 4}, 2 * J * K / TWO_WAY),  # case 4, the second gathered
        ("A[I_X,J] . B[J,K_X] -> C[I,K_X]", {"X": 4}, 2 * I * J / TWO_WAY),  # case 4, the first
        ("A[I_X,J_Y] . B[J_Y,K] -> C[I_X,K]", {"X": 4, "Y": 4}, 4 * I * K / X / TWO_WAY),  # an array that is split already
    ],
)
def test_the_four_cases(text, mesh, stored):
    assert equal(network(text, mesh), stored)


def critical(text, unknown, mesh, chip, algorithm="book", plan="", **sizes):
    a = costir.analyze(text, mesh=mesh, sizes=sizes)
    a = next(x for x in (a, *a.alternatives) if plan in x.graph.plan)
    return whole(a.costed, load_chip(chip), unknown, "network", Wiring(algorithm))


DATA = "x[B_X,D] . W[D_X,F] -> y[B_X,F]"  # data parallel with weights gathered as they are needed
GATHER = "all_gather W"
TENSOR = "x[B,D_Y] . W[D,F_Y] -> y[B,F_Y]"  # activations gathered, weights stay


def test_gathering_first_or_adding_up_after():
    """x[B,D] . W[D_X,F], one way and the other, on a v5p: C/W2 = 2550."""
    text, mesh = "x[B,D] . W[D_X,F] -> y[B,F]", {"X": 4}
    gather, reduce = (network(text, mesh, plan=p) for p in ("gather W", "reduce y"))
    assert equal(gather, 2 * D * F / TWO_WAY)
    assert equal(reduce, 4 * B * F / TWO_WAY)
    assert critical(text, "B", mesh, "tpu_v5p@book", plan="gather W").at_base == pytest.approx(2550)
    assert equal(critical(text, "X", mesh, "tpu_v5p@book", plan="reduce y").value, D / (2 * 2550))
    # adding up wins over a gather that is bound by compute for D > 2*C/W2, and over one bound by the network for D > 2*B
    assert equal(reduce / (2 * B * D * F / number("4.59e14")), number(5100) / D)
    assert equal(reduce / gather, 2 * B / D)


@pytest.mark.parametrize(
    ("chip", "n", "each"),
    [
        ("h100@book", 8, 2200),
        ("b200@book", 8, 2500),
        ("tpu_v5p@book", 8, 2550),
    ],
)
def test_tokens_per_device_for_data_parallelism(chip, n, each):
    """C/W: gathering the weights takes 2*D*F/W, the products 2*B*D*F/(X*C)."""
    t = critical(DATA, "B", {"X": n}, chip, plan=GATHER)
    assert (t.at_base / t.devices, t.cancels) == (pytest.approx(each), ("D", "F"))


def test_three_axes_need_a_third_of_the_tokens():
    text = "x[B_XYZ,D] . W[D_XYZ,F] -> y[B_XYZ,F]"
    t = critical(text, "B", {"X": 4, "Y": 4, "Z": 4}, "tpu_v5p@book", plan=GATHER)
    assert t.at_base / t.devices == pytest.approx(850)


def test_tokens_per_gpu_across_nodes():
    """C/W of a node's way out: 2475, with the exact (N-8)/N of what has to come from elsewhere."""
    t = critical(DATA, "B", {"X": 1024}, "h100@book", "", GATHER)
    assert t.at_base / t.devices == pytest.approx(2475 * (1024 - 8) / 1024)


def test_how_far_tensor_parallelism_goes():
    """Y < F*W/C: 11.76 for F = 30000 on a v5p. On GPUs that is 12.7 for F = 28000, beyond the node of 8."""
    one = critical(TENSOR, "Y", {"Y": 8}, "tpu_v5p@book", plan="gather x", F=30000)
    assert equal(one.value, F / 2550)
    assert one.at_base == pytest.approx(11.76, abs=0.01)
    inside = critical(TENSOR, "Y", {"Y": 4}, "h100@book", plan="gather x", F=16000)
    assert equal(inside.value, F / 2200)


def test_tensor_parallelism_over_two_nodes():
    """The way out of a node alone allows 8 + F*W/C = 19.3 for F = 28000; but with two nodes it is the node's own switch that
    binds, at 8/7 of 450e9, which is 514e9 (both are the book's)."""
    two = critical(TENSOR, "Y", {"Y": 16}, "h100@book", "", "gather x", F=28000)
    assert two.at_base == pytest.approx(28000 * 514.2857e9 / 9.9e14, rel=1e-6)
    fast = load_chip("h100@book", {"link.nvlink.one_way": "4.5e12"})
    a = costir.analyze(TENSOR, mesh={"Y": 16}, sizes={"F": 28000})
    a = next(x for x in (a, *a.alternatives) if "gather x" in x.graph.plan)
    out = whole(a.costed, dataclasses.replace(fast, links=_slow_ports(fast)), "Y", "network", Wiring())
    assert equal(out.value, 8 + F / 2475)
    assert out.at_base == pytest.approx(19.3131, abs=1e-4)


def _slow_ports(chip):
    """The chip's links, with ports as they were before its switch was made faster."""
    port = dataclasses.replace(chip.links["scaleout"], one_way=load_chip("h100@book").links["scaleout"].one_way)
    return type(chip.links)({**chip.links, "scaleout": port})


def test_tensor_parallelism_goes_as_far_in_int8():
    """Half of the bytes at twice the rate: Y does not change."""
    bf16 = critical("bf16[B,D_Y] . bf16[D,F_Y] -> bf16[B,F_Y]", "Y", {"Y": 8}, "tpu_v5p@book", F=30000)
    int8 = critical("int8[B,D_Y] . int8[D,F_Y] -> int8[B,F_Y]", "Y", {"Y": 8}, "tpu_v5p@book", F=30000)
    assert int8.at_base == pytest.approx(bf16.at_base)


LARGE = 2**22  # a batch at which weights are gathered rather than activations
FSDP_TP = [  # weights gathered over X and U, activations moved over Y
    ("x[B_XU,D_Y] . W[D_XU,F_Y] -> h[B_XU,F_Y]", "gather W"),
    ("h[B_XU,F_Y] . V[F_Y,D_XU] -> y[B_XU,D_Y]", "gather V over X, U, then reduce_scatter y"),
]


def test_weights_and_activations_that_both_move():
    """FSDP on two axes and tensor parallelism on one: 4*D*F/(2*Y*W2) and 4*B*D/(X*W2) for both products."""
    mesh = {"X": 4, "U": 4, "Y": 4}
    found = sum(network(text, mesh, plan=plan, B=LARGE) for text, plan in FSDP_TP)
    assert equal(found, 4 * D * F / (2 * Y * TWO_WAY) + 4 * B * D / (X * size("U") * TWO_WAY))


def test_slices_joined_by_the_data_center_network():
    """The gradients of a slice of M chips, summed over slices: 8*D*F/(M*W) for two matrices, hidden by twice their products."""
    on = {"mesh": {"P": 64, "M": 16}, "links": (("P", "dcn"),), "B": LARGE}
    rate, flops = number("6.25e9"), number("4.59e14")
    inside = network("x[B_M,D] . g[B_M,F] -> W[D_M,F]", {"M": 16}, B=LARGE)  # the reduce_scatter within the slice
    found = network("x[B_PM,D] . g[B_PM,F] -> W[D_M,F]", **on) - inside
    assert equal(2 * found, 8 * D * F / (size("M") * rate))
    per_slice = found / (2 * 2 * D * F / (size("M") * flops))
    assert per_slice == number(73440)


STATIONARY = [  # weights stay; D is split over X, F over Y and Z
    ("x[B,D_XYZ] . W[D_X,F_YZ] -> h[B,F_YZ]", "all_gather x over Y, Z"),
    ("h[B,F_YZ] . V[F_YZ,D_X] -> y[B,D_XYZ]", "reduce_scatter y over Y, Z"),
]
ONE_WAY = [
    ("x[B,D_XYZ] . W[D,F_XYZ] -> h[B,F_XYZ]", "all_gather x over X, Y, Z"),
    ("h[B,F_XYZ] . V[F_XYZ,D] -> y[B,D_XYZ]", "reduce_scatter y over X, Y, Z"),
]


def test_weights_that_stay_split_both_ways():
    """2*B*D/(X*W2) + 4*B*F*X/(N*W2), least at X = sqrt(N*D/(2*F)); better than one way for N > 18*F/D: 72 (in print 81)."""
    mesh = {"X": 4, "Y": 4, "Z": 4}
    both = sum(network(text, mesh, plan=plan) for text, plan in STATIONARY).subs(Z, N / (X * Y))
    one = sum(network(text, mesh, plan=plan) for text, plan in ONE_WAY)
    assert equal(both, 2 * B * D / (X * TWO_WAY) + 4 * B * F * X / (N * TWO_WAY))
    assert equal(one, 4 * B * D / (3 * TWO_WAY))
    best = max(roots(both.diff(X), X), key=lambda r: r.subs({N: 1, D: 1, F: 1}))
    assert equal(best, sp.sqrt(N * D / (2 * F)))
    least = both.subs(X, best)
    assert equal(least, 2 * B * sp.sqrt(8 * D * F / N) / TWO_WAY)
    assert equal(least.subs(F, 4 * D), sp.sqrt(128) * B * D / (sp.sqrt(N) * TWO_WAY))
    (even,) = roots((least / one).subs(N, V**2) - 1, V)
    assert equal(even**2, 18 * F / D)


E, k = size("E"), size("k")
EXPERTS = "x[E,I,D] . W[E,D,F] -> y[E,I,F]"  # I tokens for each expert: B*k/E


def test_tokens_of_a_model_of_experts():
    """E/k as many: each token pays for k experts, and E of them are read, or gathered."""
    read = costir.analyze("bf16[E,I,D] . int8[E,D,F] -> bf16[E,I,F]").on("tpu_v5e@book").critical("I")
    assert equal(read.limit, number("1.97e14") / (2 * number("8.2e11")))
    per_token = E / k
    assert float((read.limit * per_token).subs({E: 256, k: 8})) == pytest.approx(3840, rel=2e-3)  # 120.1 for 120
    on = {"mesh": {"X": 1024}, "chip": "h100@book", "I": LARGE}
    gathered = network("x[E,I_X,D] . W[E,D_X,F] -> y[E,I_X,F]", plan="gather W", algorithm="", **on)
    products = 2 * E * I * D * F / (X * number("9.9e14"))
    each = sp.limit((gathered / products * I / X * per_token), X, sp.oo)
    assert equal(each, E / k * 2475)
    assert each.subs({E: 128, k: 4}) == 79200


def test_experts_on_devices_of_their_own():
    """Tokens go to their experts and back: a copy for each, 8*k/Z of 4*B*D*(Z-8)/(Z*Wn), or, where that is more, all are
    gathered and scattered. So F > 8*a*(Z-8)/Z, up to 8*a = 19,800, and for Z < 8*k F > a*(Z-8)/k."""
    on = Network(load_chip("h100@book"), Mesh.of(["Z"]), {"Z": 64})
    tokens = 2 * B * D

    def seconds(kind, payload):
        found = on.seconds(Transfer(kind, ("Z",), Z, payload))
        return at_branch(found, {Z: 64, B: 4096, D: 4096, k: 4})[0]

    sent, copied = 2 * seconds("all_to_all", k * tokens), 2 * seconds("all_gather", tokens)
    assert equal(sent, 4 * B * D * (Z - 8) / (Z * WAY_OUT) * 8 * k / Z)
    assert equal(copied, 4 * B * D * (Z - 8) / (Z * WAY_OUT))
    products = 4 * B * k * D * F / (Z * number("9.9e14"))
    (few,), (many,) = (roots(products - t, F) for t in (copied, sent))
    assert equal(few, 2475 * (Z - 8) / k)
    assert equal(many, 8 * 2475 * (Z - 8) / Z)
    assert sp.limit(many, Z, sp.oo) == 19800
    assert equal(*(roots(sent - copied, Z)[-1], 8 * k))


@pytest.mark.parametrize("inner", [2, 4, 8, 16, 64])
def test_adding_up_over_nodes_what_is_split_inside_them(inner):
    """V/Wg/min(Y, 8) in the node, V/Wn*8/max(8, Y) beyond: for many nodes, X devices, Y of them neighbours."""
    on = Network(load_chip("h100@book"), Mesh.of(["X", "Y"]), {"X": 2**20, "Y": inner}, Wiring("book"))
    near, far = on.levels(Transfer("reduce_scatter", ("X",), X, V / Y))
    at = {X: 2**20, Y: inner, V: 1}
    found = [level.seconds(V / Y).subs(at) for level in (near, far)]
    assert float(found[1]) == pytest.approx(8 / max(8, inner) / 4e11, rel=1e-4)
    if inner < 8:  # else each device's partners are in other nodes
        assert float(found[0]) == pytest.approx(1 / inner / 4.5e11)


def test_bytes_of_a_shard():
    """V over the product of the axes that split; the mesh holds a copy for each place along the other axes."""
    a = costir.analyze("A[I_X,J] . B[J,K] -> C[I_X,K]", mesh={"X": 4, "Y": 2})
    einsum = next(n for n in a.costed.nodes if n.call.name == "einsum")
    local = einsum.call.inputs[0].nbytes
    assert equal(local, 2 * I * J / X)
    assert equal(local * a.graph.mesh.devices, 2 * I * J * Y)


def test_breaking_a_rate_breaks_the_values():
    """The table above depends on the chip's links, and on nothing else that could stand in for them."""
    v5p = load_chip("tpu_v5p@book")
    ici = dataclasses.replace(v5p.links["ici"], link_one_way=v5p.links["ici"].link_one_way * 2)
    faster = dataclasses.replace(v5p, links=type(v5p.links)({**v5p.links, "ici": ici}))
    a = costir.analyze(DATA, mesh={"X": 8})
    a = next(x for x in (a, *a.alternatives) if GATHER in x.graph.plan)
    t = whole(a.costed, faster, "B", "network", BOOK)
    assert t.at_base / t.devices == pytest.approx(1275)


def test_what_grows_in_a_limit_is_no_number_of_devices():
    """(2*B*F/4947 + 8*F + ...)/(F*Y) as F grows: Y stays."""
    a = costir.analyze(EXAMPLES / "mlp.py", mesh={"X": 8, "Y": 4}, parallel="fsdp=X,tp=Y", dtype="bf16", sizes={"B": 4800})
    t = a.on("h100").critical("X")
    assert equal(t.limit, sp.limit(t.value, F, sp.oo))
    assert t.limit.free_symbols == {B, Y}
