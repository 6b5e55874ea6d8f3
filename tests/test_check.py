"""Verdicts on formulas: what is right, what is nearly right, and what each classic slip is called."""

from dataclasses import dataclass, field

import pytest
import sympy as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import costir
from costir.check import check
from costir.errors import CostirError, FormulaError, SizeError
from costir.hardware import load_chip
from costir.ir import Call, Constraint, Conventions, Cost, Graph, Node, Tensor, Weight
from costir.sampling import sample
from costir.symbolic import ONE, Expr, size, total

B, D, F, T, N, H, L = (size(n) for n in "BDFTNHL")
V5E = load_chip("tpu_v5e@book")


@dataclass
class Subject:
    graph: Graph
    nodes: tuple[Node, ...]
    conventions: Conventions = field(default_factory=Conventions)

    @property
    def sizes(self):
        return self.graph.sizes

    def sum(self, pick) -> Expr:
        return total(n.call.count * pick(n.cost) for n in self.nodes)

    flops = property(lambda self: self.sum(lambda c: c.flops))
    matmul_flops = property(lambda self: self.sum(lambda c: c.matmul))
    bytes = property(lambda self: self.sum(lambda c: c.nbytes))
    read = property(lambda self: self.sum(lambda c: c.read))
    network = property(lambda self: self.sum(lambda c: c.network))
    write = property(lambda self: self.sum(lambda c: c.write))
    params = property(lambda self: self.graph.params)
    weight_bytes = property(lambda self: self.graph.weight_bytes)
    intensity = property(lambda self: self.flops / self.bytes)


def tensor(*shape, dtype="bfloat16", role="activation"):
    return Tensor(shape, dtype, role=role)


def node(op, inputs, output, path="", count=ONE, **work):
    args = {f"x{i}": t for i, t in enumerate(inputs)}
    cost = Cost(read=total(t.nbytes for t in inputs), write=output.nbytes, math=inputs[0].dtype, **work)
    return Node(Call(op, args, (output,), path=path, count=count), cost, op)


def product(dtype="bfloat16", **sizes):
    x, y, z = tensor(B, D, dtype=dtype), tensor(D, F, dtype=dtype, role="weight"), tensor(B, F, dtype=dtype)
    call = Call("costir.einsum", {"equation": "ab,bc->ac", "operands": (x, y)}, (z,), path="Z")
    cost = Cost(matmul=2 * B * D * F, read=x.nbytes + y.nbytes, write=z.nbytes, math=dtype)
    sizes = {"B": 16, "D": 8192, "F": 8192} | sizes
    graph = Graph("X[B,D] . Y[D,F] -> Z[B,F]", sizes, (call,), (Weight("Y", y),))
    return Subject(graph, (Node(call, cost, "einsum"),))


def block(**sizes):
    """L layers of a projection with bias, attention, an MLP with relu."""
    x, w, up, down = tensor(B * T, D), tensor(D, D, role="weight"), tensor(D, F, role="weight"), tensor(F, D, role="weight")
    bias, q, h = tensor(D, role="weight"), tensor(B, N, T, H), tensor(B * T, F)
    nodes = (
        node("aten.addmm.default", (x, w, bias), x, "layers.*.proj", L, matmul=2 * B * T * D * D, vector=B * T * D),
        node("aten.scaled_dot_product_attention.default", (q, q, q), q, "layers.*.attn", L, matmul=4 * B * N * T * T * H),
        node("aten.mm.default", (x, up), h, "layers.*.mlp.up", L, matmul=2 * B * T * D * F),
        node("aten.relu.default", (h,), h, "layers.*.mlp.act", L),
        node("aten.mm.default", (h, down), x, "layers.*.mlp.down", L, matmul=2 * B * T * D * F),
    )
    weights = tuple(
        Weight(f"layers.*.{p}", t, L) for p, t in [("proj.weight", w), ("proj.bias", bias), ("mlp.up", up), ("mlp.down", down)]
    )
    return Subject(Graph("block", {"B": 2, "T": 64, "D": 128, "F": 512, "N": 4, "H": 32, "L": 3} | sizes, (), weights), nodes)


RIGHT = [
    "flops = 2*B*D*F",
    "flops = 2BDF",
    "FLOPs=BDF+FDB",
    "matmul_flops = 2BDF",
    "bytes = 2(BD+DF+BF)",
    "read = 2D(B+F)",
    "write = 2BF",
    "intensity = BDF/(BD+DF+BF)",
    "intensity = 1/(1/B+1/D+1/F)",
    r"AI = \frac{2BDF}{2BD+2DF+2BF}",
    "params = DF",
    "weight_bytes = 2DF",
    "bytes = 16(BD+DF+BF) bits",
    "time = max(2BDF/C, 2(BD+DF+BF)/W)",
    "time = max(BDF/98.5e12, (BD+DF+BF)/4.1e11)",
    "critical B = C*D*F/(W*D*F - C*(D+F))",
    "B > CDF/(WDF - C(D+F))",
    "B_crit = 255.2",
    "B* = 255",
    "B >= 255.213",
    "flops = 2*16*8192*8192",
    "flops = 2*B*8192^2",
    "flops = 2.147e9",
    "flops = 2147483648",
    "time = 164.3 us",
    "intensity = 15.94",
]


@pytest.mark.parametrize("text", RIGHT)
def test_right(text):
    verdict = check(product(), text, V5E)
    assert verdict.right, verdict.message


WRONG = [
    ("flops = B*D*F", "macs", "counts a multiply-add as one FLOP"),
    ("flops = 6BDF", "factor", "three times too much"),
    ("flops = 3BDF", "factor", "exactly 2/3 times"),
    ("flops = (2D-1)BF", "limit", "counts 2k - 1 FLOPs per dot product of length k; here 2k are counted"),
    ("bytes = BD+DF+BF", "elements", "counts elements, not bytes: an element has 2 bytes here"),
    ("bytes = 4(BD+DF+BF)", "factor", "counts 4 bytes per element; an element has 2 here"),
    ("bytes = 16(BD+DF+BF)", "bits", "counts bits"),
    ("bytes = 2(BD+DF)", "limit", "misses the write of Z [B, F], + 2*B*F bytes; right in the limit of large D"),
    ("bytes = 2(DF+BF)", "limit", "misses the read of X [B, D], + 2*B*D bytes; right in the limit of large F"),
    ("bytes = 2BD+2BF", "limit", "misses the read of Y [D, F], + 2*D*F bytes; right in the limit of large B"),
    ("bytes = 2BF", "limit", "misses all reads, + 2*B*D + 2*D*F bytes"),
    ("bytes = 2(BD+DF+2BF)", "limit", "has too much: the write of Z [B, F], - 2*B*F bytes"),
    ("intensity = B*D*F/(B*D+D*F)", "limit", "misses the write of Z [B, F], + 2*B*F bytes; right in the limit of large D"),
    ("intensity = B", "limit", "right in the limit of large D and F"),
    ("intensity = 2BDF/(BD+DF+BF)", "elements", "divides by elements, not bytes"),
    ("intensity = (BD+DF+BF)/(BDF)", "inverted", "bytes per FLOP"),
    ("intensity = BDF/(2(BD+DF+BF))", "macs", "counts a multiply-add as one FLOP"),
    ("params = 2DF", "other_quantity", "that is the bytes of the parameters"),
    ("write = 2(BD+DF)", "other_quantity", "that is the bytes read alone"),
    ("time = 2BDF/C", "bound", "that is the compute time alone"),
    ("time = 2BDF/C + 2(BD+DF+BF)/W", "bound", "without overlap"),
    ("critical B = 240", "limit", "the exact value at the base sizes is 255.2; right in the limit of large D and F, 240.2"),
    ("B > C/W", "limit", "right in the limit of large D and F"),
    ("B < 255.2", "direction", "compute-bound above"),
    ("critical B = 480", "different", "wrong: 480 at the base sizes where it is 255.2"),
    ("flops = 2BDF + 7", "limit", "has 7 too much"),
    ("flops = log(B - 16)", "undefined", "no value"),
    ("flops = 2.2e9", "different", "1.024 times it"),
]


@pytest.mark.parametrize(("text", "kind", "message"), WRONG, ids=[w[0] for w in WRONG])
def test_wrong(text, kind, message):
    verdict = check(product(), text, V5E)
    assert not verdict.right
    assert message in verdict.message
    assert verdict.kind == kind


def test_values_at_the_base():
    verdict = check(product(), "flops = BDF")
    assert (verdict.given_at_base, verdict.expected_at_base) == (16 * 8192**2, 2 * 16 * 8192**2)
    assert verdict.expected == 2 * B * D * F


BLOCK = {
    "flops = L*(2BTD^2 + BTD + 4BT^2*N*H + 4BTDF)": ("right", "right"),
    "flops = L*(2BTD^2 + 4BT^2*N*H + 4BTDF)": ("limit", "misses all elementwise arithmetic, + B*D*L*T FLOPs"),
    "flops = L*(2BTD^2 + BTD + 4BTDF)": ("limit", "misses layers.*.attn (scaled_dot_product_attention), + 4*B*H*L*N*T**2"),
    "flops = L*(2BTD^2 + BTD + 4BT^2*N*H)": ("limit", "misses every mm, + 4*B*D*F*L*T"),
    "flops = L*(2BTD^2 + BTD + 2BT^2*N*H + 4BTDF)": ("limit", "counts half of attention, as for a causal mask"),
    "flops = L*(2BTD^2 + BTD + 4BT^2*N*H + 2BTDF)": ("different", "misses layers.*.mlp.up (mm), + 2*B*D*F*L*T"),
    "flops = 2BTD^2 + BTD + 4BT^2*N*H + 4BTDF": ("different", ""),
    "params = L(D^2 + 2DF)": ("limit", "misses layers.*.proj.bias, + D*L parameters"),
    "params = L(D^2 + D)": ("limit", "misses all of layers.*.mlp, + 2*D*F*L parameters"),
    "weight_bytes = L(D^2 + D + 2DF)": ("other_quantity", "that is the number of parameters"),
    "bytes = L(2(2BTD + D^2 + D) + 8BTNH + 2(BTD + DF + BTF) + 2(BTF + DF + BTD))": (
        "missing",
        "misses layers.*.mlp.act (relu), + 4*B*F*L*T",
    ),
}


@pytest.mark.parametrize(("text", "expected"), BLOCK.items(), ids=range(len(BLOCK)))
def test_block(text, expected):
    verdict = check(block(), text)
    kind, message = expected
    assert message in verdict.message
    assert verdict.right == (kind == "right")


def test_float32_is_not_bfloat16():
    verdict = check(product("float32"), "intensity = BDF/(BD+DF+BF)")
    assert verdict.message == "counts 2 bytes per element; an element has 4 here"
    assert check(product("float32"), "intensity = BDF/(2(BD+DF+BF))").right


def test_no_critical_size():
    verdict = check(product(D=480, F=480), "critical B = 240", V5E)
    assert not verdict.right
    assert "there is none: intensity tops out at D*F/(D + F) = 240 < ridge 240.2 however large B is" in verdict.message


def test_a_number_in_the_limit():
    x = tensor(N)
    dot = node("aten.dot.default", (x, x), tensor(), matmul=2 * N - 1)
    subject = Subject(Graph("dot", {"N": 1024}, ()), (dot,))
    assert check(subject, "intensity = (2N-1)/(4N+2)").right
    half = check(subject, "intensity = 1/2")
    assert (half.right, half.kind) == (False, "limit")
    assert half.message.endswith("right in the limit of large N")


def test_a_whole_model_has_its_threshold_at_the_base():
    large = block(D=4096, F=16384, N=32, H=128, T=600)
    value = check(large, "T > 1", V5E).expected_at_base
    sizes = dict(large.sizes) | {"T": round(value)}
    for t, past in ((round(value * 0.99), False), (round(value * 1.01), True)):
        at = {size(n): v for n, v in (sizes | {"T": t}).items()}
        ridge = V5E.matmul_rate("bfloat16") / V5E.memory_bandwidth
        assert (large.matmul_flops.subs(at) / large.bytes.subs(at) > ridge) == past
    assert check(large, f"T > {value:.4g}", V5E).kind == "digits"
    assert not check(large, f"T > {value * 1.1:.4g}", V5E).right


def test_a_size_named_like_a_constant_is_the_size():
    c, w = size("C"), size("W")
    x, y = tensor(c, w), tensor(w)
    made = node("aten.mv.default", (x, y), tensor(c), matmul=2 * c * w)
    assert check(Subject(Graph("mv", {"C": 5, "W": 7}, ()), (made,)), "flops = 2CW", V5E).right


def test_only_points_inside_the_constraints_count():
    import sympy as sp

    x = tensor(D)
    made = node("aten.x.default", (x,), x, vector=sp.floor(D / N) * N)
    loose = Subject(Graph("g", {"D": 12, "N": 4}, ()), (made,))
    strict = Subject(Graph("g", {"D": 12, "N": 4}, (), constraints=(Constraint(sp.Eq(sp.Mod(D, N), 0)),)), (made,))
    assert not check(loose, "flops = D").right
    assert check(strict, "flops = D").right


def test_points_of_a_sample_keep_the_constraints():
    import sympy as sp

    conditions = [sp.Eq(sp.Mod(D, N), 0), sp.Eq(sp.Mod(F, 2 * H), 0), sp.Eq(sp.Mod(D / N, 3), 0), sp.Le(T, 512)]
    points = sample({"D": 12, "N": 4, "F": 8, "T": 64, "H": 2}, [Constraint(c) for c in conditions])
    assert len(points) == 8
    assert points[0] == {"D": 12, "N": 4, "F": 8, "T": 64, "H": 2}
    assert all(p["D"] % (3 * p["N"]) == 0 and p["F"] % (2 * p["H"]) == 0 and p["T"] <= 512 for p in points)


def test_unknown_operators_are_said():
    s = product()
    odd = Node(Call("my.op.default", {}, ()), Cost(status="unknown"), "")
    verdict = check(Subject(s.graph, (*s.nodes, odd)), "flops = 2BDF")
    assert "my.op.default" in verdict.notes[0]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("2BDF", FormulaError, "does not say of which quantity"),
        ("foo = 2", FormulaError, "'foo' is no quantity"),
        ("flops > 2BDF", FormulaError, "checked for equality"),
        ("flops = 2BQ", FormulaError, "'Q' is not a size here, in 'BQ'"),
        ("bytes = 3 ms", FormulaError, "measured in byte, not in s"),
        ("critical Q = 3", FormulaError, "'critical Q' is no quantity"),
        ("time = 3 s", CostirError, "depends on the chip"),
        ("critical B = 3", CostirError, "depends on the chip"),
    ],
)
def test_errors(text, error, message):
    with pytest.raises(error, match=message):
        check(product(), text)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=4, max_size=4), st.integers(1, 3))
def test_right_exactly_where_the_polynomials_are_equal(c, scale):
    text = f"bytes = {scale}*(2BD + 2DF + 2BF) + {c[0]}*B + ({c[1]})*D + ({c[2]})*B*F^2 + ({c[3]})"
    assert check(product(), text).right == (scale == 1 and not any(c))


@settings(max_examples=100, deadline=None)
@given(
    st.text("BDF0123456789+-*/^()=. xCW", max_size=25),
    st.sampled_from(["flops = ", "bytes=", "intensity = ", "time = ", "B > "]),
)
def test_any_formula_gets_a_verdict_or_a_sentence(tail, head):
    try:
        verdict = check(product(), head + tail, V5E)
    except (FormulaError, SizeError):
        return
    assert verdict.message
    assert "\n" not in verdict.message


def test_the_parameters_stand_for_the_models():
    """Layers without bias do one multiply-add per parameter and row."""
    module = lambda B=4, D=8, F=16: (
        nn.Sequential(nn.Linear(D, F, bias=False), nn.Linear(F, D, bias=False)),
        (torch.ones(B, D),),
        {},
    )
    a = costir.analyze(module)
    assert check(a, "flops = 2*B*params").right
    assert check(a, "matmul_flops = B weight_bytes / 2").right
    assert check(a, "weight_bytes = 4*params").right
    assert check(a, "weight_bytes = 4*parameters").right
    wrong = check(a, "flops = 6*B*params")
    assert not wrong.right
    assert wrong.given == sp.expand(6 * B * 2 * D * F)


def test_a_size_of_that_name_goes_before():
    a = costir.analyze(lambda params=4, D=8: (nn.Linear(D, D, bias=False), (torch.ones(params, D),), {}))
    assert check(a, "flops = 2*params*D**2").right
