"""Results of "How to Scale Your Model" on training over devices, with C and W for the rates of the chip: derived, and compared.

W is a mesh axis of a torus both ways round, Wg what leaves a GPU over NVLink, Wn what leaves a node of eight.
"""

from __future__ import annotations

import pytest
import sympy as sp
import torch
from torch import nn

import costir
from costir.exercises.catalog import BUILT_IN
from costir.exercises.derive import derive
from costir.formula import parse_formula
from costir.symbolic import equal, roots, size

TORUS = {"chip": "tpu_v5p@book", "algorithm": "book", "set": {"matrix.bf16": "C", "link.ici.link_one_way": "W/2"}}
NODES = {"chip": "h100@book", "set": {"matrix.bf16": "C", "link.nvlink.one_way": "Wg", "link.scaleout.one_way": "Wn/8"}}
GATHER = {"collective": "all_gather", "bytes": "V"}


def found(formula, /, large=(), **let):
    return derive({"let": let, "formula": formula, "large": list(large)}, ".")


def is_(expression, formula):
    return equal(expression, parse_formula(formula).expr)


# ------------------------------------------------------------------------------------------------------------ collectives


def test_several_axes_share_the_bytes_and_add_their_hops():
    """max(t*(X + Y)/2, V/(2*W)): the longer of latency and bytes."""
    on = {**GATHER, **TORUS, "mesh": {"X": 4, "Y": 4}, "set": {"link.ici.link_one_way": "W/2", "link.ici.latency": "t"}}
    hops, moved = {**on, "quantity": "latency"}, {**on, "quantity": "network_time"}
    assert is_(found("max(hops, moved)", hops=hops, moved=moved), "max(t*(X + Y)/2, V/(2*W))")


def test_a_hop_carries_two_shards():
    """2*V/(X*W) for each of X/2 hops."""
    on = {**GATHER, **TORUS, "mesh": {"X": 8}, "set": {"link.ici.link_one_way": "W/2", "link.ici.latency": "1"}}
    each = found("t/n", t={**on, "quantity": "network_time"}, n={**on, "quantity": "latency"})
    assert is_(each, "2*V/(X*W)")


@pytest.mark.parametrize("length", [2, 4, 8])
def test_messages_of_less_than_rate_times_latency_wait_for_it(length):
    """W*t for one way round: 45 kB a hop on a v5e, however long the ring is."""
    taken = costir.collective("all_gather", 1e6, "tpu_v5e@book", {"X": length}, algorithm="ring").taken
    assert taken.least / length == pytest.approx(45e3)


def test_chunks_of_an_all_to_all_travel_a_quarter_of_the_ring():
    """X**2/4 chunk hops from one device, half each way: V/8 on each link, of chunks of V/X**2."""
    on = {"collective": "all_to_all", "bytes": "V", **TORUS, "algorithm": "ring_two_way", "mesh": {"X": 8}}
    busiest = found("t*W/2", t={**on, "quantity": "network_time"})
    assert is_(2 * busiest / (size("V") / size("X") ** 2), "X^2/4")


@pytest.mark.parametrize(("sizes", "smaller"), [({"I": 512}, "2*I*J/W"), ({"K": 512}, "2*J*K/W")])
def test_where_one_axis_splits_both_the_smaller_is_gathered(sizes, smaller):
    on = {"subject": "A[I_X,J] . B[J,K_X]", "mesh": {"X": 4}, **TORUS, "base": {**{"I": 8192, "J": 8192, "K": 8192}, **sizes}}
    assert is_(found("t", t={**on, "quantity": "network_time"}), smaller)


def test_what_reaches_k_of_n_devices_is_k_of_n_of_an_all_to_all():
    on = {"collective": "all_to_all", "bytes": "V*min(k/N, 1)", **NODES, "mesh": {"N": 8}}
    assert is_(found("t", t={**on, "quantity": "network_time"}), "(N - 1)/N*min(k/N, 1)*V/(N*Wg)")


@pytest.mark.parametrize("inner", [1, 2, 4, 8, 16])
def test_a_tree_adds_up_what_is_split_inside(inner):
    """V*(d - 1)/(d*max(Y, s)*W) at each level. Out of 32 nodes (d = 32, s = 8, W a port) exactly so up to Y = 8; beyond it is
    (X - 1)/X with X = 256/Y partners instead of 31/32. In a node (d = 8, s = 1) exactly so where nothing is split."""
    on = {"subject": "bf16[D,F_Y] {U_X} -> bf16[D_X,F_Y]", "mesh": {"X": 256 // inner, "Y": inner}, "quantity": "network_time"}
    at = {"sizes": {"X": 256 // inner, **({"Y": inner} if inner > 1 else {})}}  # an axis of one device is left out
    fabric = found("t", t={**on, **at, "chip": "h100@book"})
    wanted = f"2*D*F*31/(32*{max(inner, 8)}*50e9)" if inner <= 8 else f"2*D*F*({256 // inner} - 1)/(256*50e9)"
    assert is_(fabric, wanted)
    if inner == 1:
        assert is_(found("t", t={**on, **at, "chip": "h100@book", "set": {"link.nvlink.one_way": 1e9}}), "2*D*F*7/(8*1e9)")


def test_a_gather_over_nodes_is_as_slow_as_its_slower_level():
    """max(V/Wg, V/Wn) for many nodes, as the book rounds the level in a node."""
    t = found("t", t={**GATHER, **NODES, "algorithm": "book", "mesh": {"M": 1024, "N": 8}, "quantity": "network_time"})
    each = [sp.limit(e.subs(size("N"), 8), size("M"), sp.oo) for e in t.args]
    assert equal(sp.Max(*each), parse_formula("max(V/Wg, V/Wn)").expr)


def test_a_rack_of_72_sends_3600_gigabytes_a_second():
    ports = found("72*W", W={"chip": "gb200_nvl72", "quantity": "link.scaleout.one_way"})
    assert is_(ports, "4*18*400e9/8")


# ----------------------------------------------------------------------------------------- one way to divide, then two at once

DATA = {"subject": "x[B_XYZ,D] . W[D_XYZ,F] . V[F_XYZ,E] -> y[B_XYZ,E]", "mesh": {"X": 4, "Y": 4, "Z": 4},
        "base": {"B": 2**22}, "sizes": {"E": "D"}, **TORUS}  # fmt: skip
TENSOR = {"subject": "x[B,D_YZ] . W[D,F_YZ] . V[F_YZ,E] -> y[B,E_YZ]", "mesh": {"Y": 4, "Z": 4}, "sizes": {"E": "D"}, **TORUS}


def test_weights_gathered_over_three_axes():
    """4*B*D*F/(X*C) against 4*D*F/(3*W): B*3*W/C chips at the most."""
    math, moved = {**DATA, "quantity": "compute_time"}, {**DATA, "quantity": "network_time"}
    assert is_(found("m", m=math), "4*B*D*F/(X*Y*Z*C)")
    assert is_(found("t", t=moved), "4*D*F/(3*W)")
    chips = {"sizes": {"E": "D", "X": "n/(Y*Z)"}}
    assert is_(found("n", m={**math, **chips}, t=moved, n={"cross": ["m", "t"], "for": "n"}), "B*3*W/C")


def test_matrices_divided_over_two_axes():
    """4*B*D*F/(Y*C) against 4*B*D/(2*W): as far as Y = 2*F*W/C, from F = Y*C/(2*W) on."""
    one = {"sizes": {"E": "D", "Y": "n/Z"}}
    math, moved = {**TENSOR, **one, "quantity": "compute_time"}, {**TENSOR, **one, "quantity": "network_time"}
    assert is_(found("m", m=math), "4*B*D*F/(n*C)")
    assert is_(found("t", t=moved), "4*B*D/(2*W)")
    assert is_(found("n", m=math, t=moved, n={"cross": ["m", "t"], "for": "n"}), "2*F*W/C")
    assert is_(found("F", m=math, t=moved, F={"cross": ["m", "t"], "for": "F"}), "n*C/(2*W)")


BOTH = {  # how three axes are shared out: the two products, axes of the weights, of the activations, and X devices for weights
    "two for weights": (
        ("x[B_XU,D_Y] . W[D_XU,F_Y] -> h[B_XU,F_Y]", "all_gather x over Y, then all_gather W over X, U"),
        ("h[B_XU,F_Y] . V[F_Y,D_XU] -> y[B_XU,D_Y]", "all_gather V over X, U, then reduce_scatter y over Y"),
        ["X", "U"],
        ["Y"],
        {"X": "X/U", "Y": "N/X"},
    ),
    "two for activations": (
        ("x[B_X,D_YU] . W[D_X,F_YU] -> h[B_X,F_YU]", "all_gather x over U, Y, then all_gather W over X"),
        ("h[B_X,F_YU] . V[F_YU,D_X] -> y[B_X,D_YU]", "all_gather V over X, then reduce_scatter y over U, Y"),
        ["X"],
        ["U", "Y"],
        {"Y": "N/(X*U)"},
    ),
}


@pytest.fixture(scope="module", params=BOTH.values(), ids=BOTH)
def both(request):
    """Seconds of both products on N devices, X of them for weights: moving weights, activations, and the arithmetic."""
    first, second, weights, activations, sizes = request.param
    on = {"mesh": {"X": 16, "U": 4, "Y": 4}, "base": {"B": 2**22, "D": 8192, "F": 32768}, "sizes": sizes, **TORUS}
    ways = {f"p{i}": {"subject": text, "plan": plan, **on} for i, (text, plan) in enumerate((first, second))}
    times = lambda **more: found("p0 + p1", **{n: {**way, **more} for n, way in ways.items()})
    moved = (times(quantity="network_time", over=axes) for axes in (weights, activations))
    return *moved, times(quantity="compute_time"), len(weights), len(activations)


def test_weights_and_activations_move_on_axes_of_their_own(both):
    weights, activations, math, m_x, m_y = both
    assert is_(weights, f"4*D*F*X/(N*W*{m_x})")  # Y = N/X
    assert is_(activations, f"4*B*D/(X*W*{m_y})")
    assert is_(math, "4*B*D*F/(N*C)")


def test_the_fewest_tokens_where_one_move_follows_the_other(both):
    """4*a**2/(Mx*My*F) tokens a chip, a = C/W: with fewer no X makes it compute-bound. From the discriminant."""
    weights, activations, math, m_x, m_y = both
    X, B, N = size("X"), size("B"), size("N")
    quadratic = sp.numer(sp.together(weights + activations - math))
    (least,) = (r for r in roots(sp.discriminant(quadratic, X), B) if r != 0)
    assert is_(least / N, f"4*(C/W)^2/({m_x}*{m_y}*F)")
    (best,) = roots(sp.diff(weights + activations, X), X)[-1:]
    ratio = (math / (weights + activations)).subs(X, sp.Abs(best))
    assert equal(ratio.subs(B, least), sp.Integer(1))
    assert equal(ratio, parse_formula(f"sqrt(B*F)*sqrt({m_x}*{m_y})/(2*C/W*sqrt(N))").expr)


def test_a_quarter_of_them_where_both_move_at_once(both):
    """a**2/(Mx*My*F): the longer of the two moves is least where they are equal."""
    weights, activations, math, m_x, m_y = both
    X, B, N = size("X"), size("B"), size("N")
    (best,) = (r for r in roots(weights - activations, X) if not r.could_extract_minus_sign())
    ratio = (math / activations).subs(X, best)
    assert equal(ratio, parse_formula(f"sqrt(B*F)*sqrt({m_x}*{m_y})/(C/W*sqrt(N))").expr)
    (least,) = roots(ratio.subs(B, size("b") ** 2) ** 2 - 1, size("b"))[-1:]
    assert is_(least**2 / N, f"(C/W)^2/({m_x}*{m_y}*F)")


# ------------------------------------------------------------------------------------------------------------ on nodes of GPUs

GRADIENT = {"subject": "x[B_X,D] . g[B_X,F] -> w[D,F]", "plan": "all_reduce w over X"}
INPUT = {"subject": "g[B_X,F] . W[F,D] -> x[B_X,D]"}


RACKS = {"chip": "gb200_nvl72", "mesh": {"X": 72 * 16}}


@pytest.mark.parametrize(("on", "tokens"), [
    ({"chip": "h100@book", "mesh": {"X": 1024}}, 2475),
    ({"chip": "b200@book", "mesh": {"X": 1024}}, 5625),
    ({**RACKS, "set": {"matrix.bf16": 2.25e15, "link.nvlink.one_way": 1e15}}, 625),
    ({**RACKS, "set": {"matrix.bf16": 2.25e15}}, sp.Rational(71, 72) * 2500),
])  # fmt: skip
def test_tokens_of_a_gpu_for_data_parallelism_over_many_nodes(on, tokens):
    """C/W with what leaves a node: two gradients of 2*B*D*F FLOPs against an AllReduce of 2*2*D*F bytes. Racks of 72 could send
    enough for 625 tokens; what binds is then NVLink inside."""
    let = {
        "dw": {**GRADIENT, **on, "quantity": "compute_time"},
        "dx": {**INPUT, **on, "quantity": "compute_time"},
        "sums": {**GRADIENT, **on, "quantity": "network_time"},
        "B": {"cross": ["dw + dx", "sums"], "for": "B"},
    }
    assert found("B/X", large=["X"], **let) == tokens


@pytest.mark.parametrize(("rate", "tokens"), [(4.5e11, 2200), (3e11, 3300)])
def test_tokens_of_a_gpu_inside_a_node(rate, tokens):
    """An H100, and an H800 with its narrower NVLink."""
    on = {
        "chip": "h100@book",
        "algorithm": "book",
        "mesh": {"X": 8},
        "base": {"B": 2**20},
        "set": {"link.nvlink.one_way": rate},
    }
    each = {"subject": "x[B_X,D] . W[D_X,F] -> y[B_X,F]", "plan": "all_gather W over X", "quantity": "critical B per device"}
    assert found("B", B={**on, **each}) == tokens


def turns(stages, batches):
    """Messages one after another, where a stage passes a micro-batch on as soon as it has it and the one before is gone."""
    there = [[0] * batches for _ in range(stages)]
    for s in range(1, stages):
        for b in range(batches):
            there[s][b] = max(there[s - 1][b], there[s][b - 1] if b else 0) + 1
    return there[-1][-1]


@pytest.mark.parametrize(("s", "m"), [(2, 1), (2, 4), (4, 4), (8, 32)])
def test_a_pipeline_passes_on_micro_batches(s, m):
    """2*B*D/(W*m) for each of m + s - 2 messages: a `permute` of the activations of a micro-batch over the port of a GPU."""
    on = {"collective": "permute", "bytes": "2*B*D/m", "mesh": {"S": 8}, "links": {"S": "scaleout"}, "chip": "h100@book"}
    hop = found("t", t={**on, "quantity": "network_time"})
    assert is_(turns(s, m) * hop, f"2*B*D/(50e9*m)*({m} + {s} - 2)")


def test_plain_data_parallelism_fits_a_tenth_of_the_memory():
    """Weights bf16, Adam's two moments fp32: 10 bytes for each parameter, on every device."""
    step = {"subject": "layers.py:pair", "phase": "train", "mesh": {"X": 4}, "parallel": "dp=X", "dtype": "bf16"}
    let = {
        "w": {**step, "quantity": "held parameters"},
        "s": {**step, "quantity": "held optimizer state"},
        "p": {**step, "quantity": "params"},
        "M": {"chip": "tpu_v5p@book", "quantity": "memory.capacity"},
    }
    assert derive({"let": let, "formula": "M/((w + s)/p)"}, str(BUILT_IN)) == 9_600_000_000


# --------------------------------------------------------------------------------- what torch's own strategies send in training


class Pair(nn.Module):
    def __init__(self, D, F):
        super().__init__()
        self.up, self.down = nn.Linear(D, F, bias=False), nn.Linear(F, D, bias=False)

    def forward(self, x):
        return self.down(self.up(x))


class Blocks(nn.Module):
    """A block in a list, so that fsdp gives its weights up after the forward pass."""

    def __init__(self, D, F):
        super().__init__()
        self.blocks = nn.ModuleList([Pair(D, F)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def blocks(B=64, D=256, F=640):
    return Blocks(D, F), (torch.empty(B, D, requires_grad=True),), {}


PLAN = {"blocks.0.up": "colwise", "blocks.0.down": "rowwise"}


@pytest.mark.parametrize(
    ("parallel", "mesh", "forward", "in_all"),
    [
        ("dp=X", {"X": 4}, "0", "8*D*F"),
        ("fsdp=X", {"X": 4}, "4*D*F", "12*D*F"),  # gathered again for the backward pass
        ("tp=Y", {"Y": 4}, "4*B*D", "8*B*D"),  # an AllReduce each way
        # the book prints 12*B*D/X: a sharded In is gathered once more; torch's plan keeps it whole
        ("fsdp=X,tp=Y", {"X": 4, "Y": 2}, "4*D*F/Y + 4*B*D/X", "12*D*F/Y + 8*B*D/X"),
    ],
)
def test_bytes_that_a_layer_moves_in_training(parallel, mesh, forward, in_all):
    """By the book's count: V for a gather or a scatter, twice that for an AllReduce. 6 FLOPs for a parameter and token."""
    a = costir.analyze(
        blocks, mesh=mesh, parallel=parallel, phase="backward", dtype="bf16", plan=PLAN if "tp" in parallel else None
    )
    moved = [(c.phase, (2 if c.kind == "all_reduce" else 1) * c.payload) for c in a.communication]
    assert is_(sp.Add(*(v for phase, v in moved if phase == "forward")), forward)
    assert is_(sp.Add(*(v for _, v in moved)), in_all)
    devices = a.graph.mesh.devices
    assert is_(a.matmul_flops * devices, "6*B*(2*D*F)")
