"""Memory traffic under fusing: facts known by hand, laws over many models, formulas against fusing at other sizes."""

from __future__ import annotations

import json

import families
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import costir
from costir import cli, trace
from costir.cost import cost_of
from costir.fused import fused_trace
from costir.fusion.kernels import fuse
from costir.load.family import Family
from costir.load.subject import family_of
from costir.symbolic import size

KINDS = ("eager", "inductor", "xla", "ideal")


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *xs):
        return self.function(*xs)


def moved(t, kind):
    """Bytes and FLOPs of a trace under a kind of traffic."""
    costs = [cost_of(trace.concrete(e))[0] for e in fused_trace(t, kind).events]
    return float(sum(c.nbytes for c in costs)), tuple(
        sum(getattr(c, f) for c in costs) for f in ("matmul", "vector", "special")
    )


def run(function, *shapes, phase="forward"):
    module = function if isinstance(function, nn.Module) else Function(function)
    args = tuple(torch.empty(s) for s in shapes)
    return trace.run(Family("model", lambda: (module, args, {}), {}), {}, phase)


def softmax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


N, D = 640, 48


@pytest.mark.parametrize(
    ("function", "operands", "eager", "inductor", "xla"),
    [
        (lambda a, b, c: a * b + c, 3, 6, 4, 4),
        (lambda x: x.cos().cos(), 1, 4, 2, 2),
        (softmax, 1, 8, 2, 4),
        (gelu, 1, 22, 2, 2),
        (lambda x: x.t().contiguous() + 1, 1, 4, 2, 2),
        (lambda x: F.softmax(x, -1), 1, 2, 2, 2),
        (lambda x: (x.exp(), x.sin()), 1, 4, 3, 4),  # siblings that read the same
        (lambda x: (x.sum(0), x.sum(1)), 1, 2, 2, 2),  # sums of rows and of columns are two kernels
        (lambda x: x.exp().sum(0) * 2, 1, 3, 1, 1),
        (lambda x, y: torch.cat([x, y], 1).exp(), 2, 8, 4, 4),
    ],
    ids=lambda v: None,
)
def test_passes_over_the_data(function, operands, eager, inductor, xla):
    """How often N x D elements cross the memory, counted by hand; vectors of N or D are less than a fifth of one."""
    t = run(function, *[(N, D)] * operands)
    for kind, passes in (("eager", eager), ("inductor", inductor), ("xla", xla)):
        assert passes <= moved(t, kind)[0] / (4 * N * D) < passes + 0.2, kind


def a_row_into(cache, x):
    cache[-1:] = x.exp()
    return x @ cache.T


def rows_copied_into(cache, x):
    cache.index_copy_(0, torch.zeros(1, dtype=torch.long), x)
    return (cache * x).sum(-1)


def columns_into(cache, x):
    cache[:, : D // 4] = x.exp()[:, : D // 4]
    cache[:, D // 4 : D // 2] = x.sin()[:, D // 4 : D // 2]
    return x.sum()


def halves_into(cache, x):
    cache[: N // 2] = x[: N // 2].exp()
    cache[N // 2 :] = x[N // 2 :].sin()
    return cache * 2


def half_of_zeros(x):
    out = torch.zeros_like(x)
    out[:, : D // 2] = x[:, : D // 2].exp()
    return out


@pytest.mark.parametrize(
    ("function", "operands", "ideal"),
    [
        (a_row_into, [(N, D), (1, D)], 1),  # the cache read, the row written
        (rows_copied_into, [(N, D), (1, D)], 1),
        (columns_into, [(N, D), (N, D)], 1.5),  # x read, two quarters of the cache written
        (halves_into, [(N, D), (N, D)], 3),  # x read, cache and result written: nothing of the cache is needed
        (half_of_zeros, [(N, D)], 1.5),  # half of x read, the whole result written
        (lambda x: x.exp()[:, : D // 8].clone(), [(N, D)], 0.25),  # no more than is asked for
        (lambda i, w: F.embedding(i.long(), w * 2), [(8,), (N, D)], 0),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_the_ideal_of_what_is_written_or_read_in_part(function, operands, ideal):
    t = trace.run(Family("model", lambda: (Function(function), tuple(torch.zeros(s) for s in operands), {}), {}), {}, "forward")
    found = {kind: moved(t, kind)[0] / (4 * N * D) for kind in KINDS}
    assert ideal <= found["ideal"] < ideal + 0.06
    assert all(found["ideal"] <= found[kind] <= found["eager"] for kind in ("inductor", "xla"))


@pytest.mark.parametrize("write", ["index_copy_", "index_put_"])
def test_rows_that_an_index_names_are_written_where_they_are_made(write):
    """One kernel reads what it takes and writes those rows: as TorchInductor does, whose kernel reads no row of the cache."""

    def function(cache, x):
        rows = torch.arange(4)
        return cache.index_copy_(0, rows, x * 2) if write == "index_copy_" else cache.index_put_((rows,), x * 2)

    t = trace.run(Family("cache", lambda: (Function(function), (torch.zeros(N, D), torch.zeros(4, D)), {}), {}), {}, "forward")
    kernels = [k for k in fuse(t, "inductor").kernels if k.nbytes]
    assert [k.nbytes for k in kernels] == [2 * 4 * 4 * D]


def test_a_library_call_stands_alone():
    t = run(lambda x, w: F.gelu(x @ w) * 2, (64, 32), (32, 96))
    product, rest = fused_trace(t, "inductor").events
    assert product.op == "aten.mm.default"
    assert [m[0] for m in dict(rest.args)["members"]] == ["aten.gelu.default", "aten.mul.Tensor"]


def test_what_the_backward_pass_needs_is_cut_where_it_is_least():
    """exp(exp(x)): x is there anyway, so nothing is kept, and the backward kernel computes both again."""
    t = run(nn.Sequential(Scale(), Function(lambda x: x.exp().exp().sum())), (N, D), phase="backward")
    kernels = fused_trace(t, "inductor").events
    wide = [tuple(w.shape) for k in kernels if k.phase == "forward" for w in k.outputs if w.memory >= 0 and len(w.shape) == 2]
    assert wide == []


class Residual(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.table, self.norm = nn.Embedding(50, D), nn.LayerNorm(D)
        wide = (nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D)) for _ in range(layers))
        self.layers = nn.ModuleList(wide)

    def forward(self, x):
        h = self.table(x.long())
        for layer in self.layers:
            h = h + layer(self.norm(h))
        return self.norm(h)


@pytest.mark.parametrize("layers", [3, 5])
def test_no_kernel_adds_up_a_whole_residual_stream_again(layers):
    """Sums of at most four operands are added up again, as TorchInductor does; longer ones are in memory."""
    kernels = fused_trace(run(Residual(layers), (N,), phase="backward"), "inductor").events
    again = [[op for op, _ in dict(k.args).get("again", ())] for k in kernels]
    assert max(a.count("aten.add.Tensor") for a in again) <= 3


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.ones(D))

    def forward(self, x):
        return x * self.by


LAWFUL = [m for m in families.load_all().values() if not m.refused][::5]


@pytest.mark.parametrize("model", LAWFUL, ids=lambda m: m.name)
def test_ideal_is_least_and_eager_most(model):
    """Over many models: fusing changes no FLOPs and never raises bytes."""
    t = trace.run(family_of(model.build, {}), model.base, model.phase)
    found = {kind: moved(t, kind) for kind in KINDS}
    assert len({flops for _, flops in found.values()}) == 1
    for kind in ("inductor", "xla"):
        assert found["ideal"][0] <= found[kind][0] <= found["eager"][0]


def block(B=2, T=6, D=8, F=20, L=3):
    N = 2

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
            self.up, self.down = nn.Linear(D, F), nn.Linear(F, D)

        def forward(self, x):
            q, k, v = (
                z.view(B, T, N, D // N).transpose(1, 2) for z in self.qkv(self.norm(x)).split(self.norm.normalized_shape[0], -1)
            )
            x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, D))
            return x + self.down(nn.functional.gelu(self.up(x)))

    return nn.Sequential(*(Block() for _ in range(L))), (torch.empty(B, T, D),), {}


@pytest.fixture(scope="module", params=["forward", "backward"])
def analysis(request):
    return costir.analyze(block, phase=request.param)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_formulas_are_what_fusing_gives_at_other_sizes(analysis, kind):
    """Held out: a run at sizes of which the formulas know nothing, fused there."""
    fused = analysis.under(kind)
    assert fused.flops == analysis.flops
    for point in ({"B": 3, "T": 10, "D": 12, "F": 28, "L": 5}, {"B": 5, "T": 9, "D": 24, "F": 11, "L": 2}):
        there = moved(trace.run(family_of(block, {}), point, analysis.phase), kind)[0]
        assert float(fused.bytes.xreplace({size(n): v for n, v in point.items()})) == there


class Masked(nn.Module):
    """A layer without biases on a residual stream, which makes a mask of its own."""

    def __init__(self, d):
        super().__init__()
        self.qkv, self.out, self.scale = (
            nn.Linear(d, 3 * d, bias=False),
            nn.Linear(d, d, bias=False),
            nn.Parameter(torch.ones(d)),
        )

    def forward(self, x):
        q, k, v = self.qkv(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * self.scale).chunk(3, -1)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return x + self.out(F.softmax((q @ k.transpose(1, 2)).masked_fill(~mask, -1e9), -1) @ v)


def masked(B=2, T=6, D=8, L=4):
    return nn.Sequential(*(Masked(D) for _ in range(L))), (torch.randn(B, T, D),), {}


@pytest.mark.parametrize(("phase", "alike"), [("forward", False), ("backward", True)])
def test_layers_that_a_compiler_makes_differ_have_formulas(phase, alike):
    """A mask is made once; without a gradient every fourth sum is stored, and where that has no formula a note says so."""
    a = costir.analyze(masked, phase=phase)
    fused = a.under("inductor")
    assert alike != any("sums of a residual stream" in n for n in fused.graph.notes)
    sizes = {"B": 3, "T": 7, "D": 16, "L": 4}
    ideal, found, eager = (
        float(x.bytes.xreplace({size(n): v for n, v in sizes.items()})) for x in (a.under("ideal"), fused, a)
    )
    assert ideal < found < eager
    assert abs(found / moved(trace.run(family_of(masked, {}), sizes, phase), "inductor")[0] - 1) < (1e-9 if alike else 0.05)


def test_kernels_have_names_and_times(analysis):
    fused = analysis.under("inductor")
    assert any(k.operators[0] == "gelu" for k in fused.kernels)
    chip = "h100"
    eager, ours, least = (analysis.under(kind).on(chip).at().lower for kind in ("eager", "inductor", "ideal"))
    assert least <= ours <= eager
    assert "costir.kernel.default" in {k.op for k in fused.kernels}


def test_keep_before_and_after_is_the_same(analysis):
    a = analysis
    assert a.keep(["B"]).under("inductor").bytes == a.under("inductor").keep(["B"]).bytes
    assert a.under("inductor").under("eager").bytes == a.bytes
    assert a.under("inductor").keep(["B"]).under("eager").bytes == a.keep(["B"]).bytes


def test_notation_moves_what_it_must():
    a = costir.analyze("bf16[B,64] . [64,32]")
    assert {a.under(kind).bytes for kind in KINDS} == {a.bytes}


def test_a_graph_without_memory_is_refused(tmp_path):
    program = torch.export.export(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.randn(2, 4),))
    with pytest.raises(costir.CostirError, match="needs the model itself") as caught:
        costir.analyze(program, traffic="inductor")
    assert "--traffic eager" in caught.value.hint


def test_unknown_traffic_is_refused(capsys):
    with pytest.raises(costir.CostirError, match="traffic='fast' is not known"):
        costir.analyze(block, traffic="fast")
    assert cli.main(["analyze", "examples/mlp.py", "--traffic", "inductr"]) == 2
    assert "did you mean inductor" in capsys.readouterr().err
    assert cli.main(["solve", "examples/mlp.py", "--traffic", "all", "--chip", "h100"]) == 2
    assert "which costir solve does not" in capsys.readouterr().err


def test_all_kinds_side_by_side(capsys):
    assert cli.main(["analyze", "examples/mlp.py", "--traffic", "all", "--chip", "h100", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    moved = [data["traffic"][kind]["bytes"]["value"] for kind in ("ideal", "inductor", "eager")]
    assert data["schema"] == "costir/traffic/1"
    assert moved == sorted(moved)
    assert all(v["chips"]["h100_sxm"]["time"] > 0 for v in data["traffic"].values())


def test_explain_says_why_and_why_not(capsys):
    assert cli.main(["analyze", "examples/mlp.py", "--traffic", "inductor", "--explain", "act"]) == 0
    said = capsys.readouterr().out
    assert "kept out" in said
    assert "library call" in said
    assert cli.main(["analyze", "examples/mlp.py", "--traffic", "all", "--explain", "act"]) == 0
    assert capsys.readouterr().out == said
