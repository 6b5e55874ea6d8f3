"""Programs that carry their own symbols cost what the model that they came from costs."""

from __future__ import annotations

import functools
import io
import warnings
import zipfile

import pytest
import sympy as sp
import torch
from torch import nn
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import costir
from costir.errors import CostirError, LoadError, SizeError
from costir.load.exported import read_file

QUANTITIES = ("matmul_flops", "vector_flops", "special_flops", "read", "write", "params", "weight_bytes")


class MLP(nn.Module):
    def __init__(self, D=16, F=40):
        super().__init__()
        self.up, self.down = nn.Linear(D, F), nn.Linear(F, D, bias=False)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.b, self.up = nn.Conv2d(8, 6, 3, stride=2, groups=2), nn.ConvTranspose2d(6, 4, 2, stride=2)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.n(self.a(x))), 2)
        return self.up(self.b(x)).mean((2, 3))


class Attention(nn.Module):
    def __init__(self, D=32):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.LayerNorm(D)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, T, 3, 4, D // 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + nn.functional.dropout(self.out(y.transpose(1, 2).reshape(B, T, D)), 0.1, self.training)


class Tower(nn.Module):
    """Layers, a buffer that is written, a region without gradients, tied weights."""

    def __init__(self, V=50, D=32):
        super().__init__()
        self.emb, self.head = nn.Embedding(V, D), nn.Linear(D, V, bias=False)
        self.layers = nn.ModuleList([Attention(D) for _ in range(3)])
        self.head.weight = self.emb.weight
        self.register_buffer("seen", torch.zeros(D))

    def forward(self, ids):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        self.seen.add_(1)
        with torch.no_grad():
            y = x * 2
        return self.head(x + y), torch.einsum("btd,bsd->bts", x, y)


class Written(nn.Module):
    """Attention by hand, masks, in-place operators, cat, cumsum, topk."""

    def forward(self, x):
        T, D = x.shape[1], x.shape[2]
        s = x @ x.transpose(1, 2) / D**0.5
        s = s.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
        y = s @ x
        y = y.mul_(2).clamp(min=0)
        z = torch.cat([y, x], -1).to(torch.float64).float()
        twice = x.reshape(-1, D) * x.reshape(-1, D)  # the same memory, read once
        return twice, z.cumsum(1), z.topk(2, -1)[0], z[:, ::2], z.std(-1), nn.functional.pad(z, (1, 1))


class Layers(nn.Module):
    """Layers that torch takes apart when they run."""

    def __init__(self):
        super().__init__()
        self.m = nn.MultiheadAttention(32, 4, batch_first=True)
        self.g = nn.GRU(32, 16, batch_first=True)
        self.gn = nn.GroupNorm(4, 32)
        self.t = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def forward(self, x):
        y = self.t(self.m(x, x, x, need_weights=False)[0])
        z = nn.functional.interpolate(x.transpose(1, 2), scale_factor=2)
        return self.g(y)[0], self.gn(x.transpose(1, 2)), z, nn.functional.one_hot(x.argmax(-1), 32)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(16, 24, 2, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


def tower(B=5, T=8):
    return Tower().eval(), (torch.zeros(B, T, dtype=torch.int64),), {}


def training_tower(B=5, T=8):
    return Tower().train(), (torch.zeros(B, T, dtype=torch.int64),), {}


def mlp(B=5, T=8):
    return MLP(), (torch.randn(B, T, 16),), {}


def conv(B=5, T=32):
    return Conv().eval(), (torch.randn(B, 3, T, 40),), {}


def attention(B=5, T=8):
    return Attention().eval(), (torch.randn(B, T, 32),), {}


def written(B=5, T=8):
    return Written(), (torch.randn(B, T, 32),), {}


def layers(B=5):
    return Layers().eval(), (torch.randn(B, 8, 32),), {}


def recurrent(B=5):
    return Recurrent().eval(), (torch.randn(B, 8, 16),), {}


FAMILIES = {
    "mlp": (mlp, {0: "B", 1: "T"}),
    "conv": (conv, {0: "B", 2: "T"}),
    "attention": (attention, {0: "B", 1: "T"}),
    "tower": (tower, {0: "B", 1: "T"}),
    "training_tower": (training_tower, {0: "B", 1: "T"}),
    "written": (written, {0: "B", 1: "T"}),
    "layers": (layers, {0: "B"}),
    "recurrent": (recurrent, {0: "B"}),
}


@functools.cache
def _exported(build, dims):
    module, args, _ = build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return export(module, args, dynamic_shapes=(dict.fromkeys(dims, Dim.AUTO),))


def exported(build, dims, fresh=False):
    """The program of a family with these dimensions dynamic; a fresh one where a test writes into it."""
    return (_exported.__wrapped__ if fresh else _exported)(build, tuple(dims))


def names_of(program, dims):
    """torch's symbols of the dynamic dimensions of the last input, under the names given."""
    last = [n for n in program.graph.nodes if n.op == "placeholder"][-1].meta["val"]
    return {str(last.shape[d]): name for d, name in dims.items()}


def same(a, b, **point):
    found, wanted = dict(a.at(**point)), dict(b.at(**point))
    assert {q: found[q] for q in QUANTITIES} == {q: wanted[q] for q in QUANTITIES}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_program_costs_what_its_model_costs(name, monkeypatch):
    # Programs are exported without the fused encoder layers that a model in eval mode runs with.
    monkeypatch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)
    build, dims = FAMILIES[name]
    program = exported(build, dims)
    found = costir.analyze(program, names=names_of(program, dims))
    wanted = costir.analyze(build)
    assert list(found.sizes) == list(wanted.sizes)
    assert not found.unknown
    for k in (0, 1, 3):
        same(found, wanted, **{n: v + 4 * k for n, v in wanted.sizes.items()})


def test_layers_are_folded_under_the_same_paths_and_lines_as_the_tracers():
    program = exported(tower, {0: "B", 1: "T"})
    found = costir.analyze(program, names=names_of(program, {0: "B", 1: "T"}))
    wanted = costir.analyze(tower)
    table = lambda a: sorted((n.op, n.path, n.source, str(n.count), str(n.flops)) for n in a.nodes)
    assert table(found) == table(wanted)
    assert ("layers.*.qkv", 3) in {(n.path, n.count) for n in found.nodes}


@pytest.mark.parametrize("name", ["mlp", "conv", "attention"])
def test_contractions_are_those_that_torch_counts(name):
    build, dims = FAMILIES[name]
    program = exported(build, dims)
    found = costir.analyze(program, names=names_of(program, dims))
    for k in (0, 2):
        point = {n: v + 4 * k for n, v in found.sizes.items()}
        module, args, _ = build(**point)
        with FlopCounterMode(display=False) as counter:  # on meta, where it sees every contraction
            module.to("meta")(args[0].to("meta"))
        assert found.at(**point).matmul_flops == counter.get_total_flops()


def test_decomposed_programs_cost_the_same_contractions_and_copy_their_buffers_back():
    program = exported(tower, {0: "B", 1: "T"})
    names = names_of(program, {0: "B", 1: "T"})
    whole, core = costir.analyze(program, names=names), costir.analyze(program.run_decompositions(), names=names)
    assert sp.expand(whole.matmul_flops - core.matmul_flops) == 0
    assert [n.op for n in core.nodes if n.op.startswith("aten.copy_")] == ["aten.copy_.default"]
    assert next(n for n in core.nodes if n.op.startswith("aten.copy_")).bytes == 2 * 4 * 32


def test_symbols_keep_torchs_names_unless_renamed_and_sizes_move_the_base():
    program = exported(mlp, {0: "B"})
    plain = costir.analyze(program)
    (symbol,) = plain.sizes
    assert symbol.startswith("s")
    assert costir.analyze(program, names={symbol: "tokens"}, sizes={"tokens": 7}).sizes == {"tokens": 7}
    with pytest.raises(SizeError, match="did you mean tokens"):
        costir.analyze(program, names={symbol: "tokens"}, sizes={"token": 7})
    with pytest.raises(LoadError, match="no symbol 's999999'"):
        costir.analyze(program, names={"s999999": "B"})
    with pytest.raises(LoadError, match="two symbols"):
        costir.analyze(program, names={symbol: "B", "x": "B"})


def test_ranges_and_guards_become_constraints():
    class Halves(nn.Module):
        def forward(self, x):
            return x.reshape(2, -1) * 2

    program = export(Halves(), (torch.randn(6),), dynamic_shapes=({0: 2 * Dim("n", min=3, max=64)},))
    found = costir.analyze(program)
    (name,) = found.sizes
    assert found.flops == 2 * found.symbols[name]
    with pytest.raises(SizeError):
        found.at(**{name: 65})
    auto = export(Halves(), (torch.randn(6),), dynamic_shapes=({0: Dim.AUTO},))
    found = costir.analyze(auto)
    (name,) = found.sizes
    assert f"{name} % 2 == 0" in map(str, found.constraints)
    with pytest.raises(SizeError):
        found.at(**{name: 7})
    assert found.at(**{name: 8}).flops == 8


class Branch(nn.Module):
    def __init__(self, on_data):
        super().__init__()
        self.on_data = on_data

    def forward(self, x):
        y = x @ x.transpose(0, 1)
        return torch.cond(x.sum() > 0 if self.on_data else x.shape[0] > 3, lambda a: a.sin() + 1, lambda a: a.cos(), (y,))


def test_a_branch_on_data_is_unknown_by_name():
    program = export(Branch(True), (torch.randn(6, 8),), dynamic_shapes=({0: Dim.DYNAMIC},))
    found = costir.analyze(program, names=names_of(program, {0: "B"}))
    assert [u.op for u in found.unknown] == ["higher_order.cond.default"]
    assert found.matmul_flops == 2 * 8 * found.symbols["B"] ** 2


def test_a_branch_on_sizes_takes_the_examples_side_on_condition():
    class Sized(nn.Module):
        def forward(self, x):
            return torch.cond(x.shape[0] > 3, lambda a: a.sin() + 1, lambda a: a.cos(), (x,))

    program = export(Sized(), (torch.randn(6, 8),), dynamic_shapes=({0: Dim.DYNAMIC},))
    found = costir.analyze(program, names=names_of(program, {0: "B"}))
    assert (found.special_flops, found.vector_flops) == (8 * found.symbols["B"], 8 * found.symbols["B"])
    assert "B > 3" in [str(c.condition) for c in found.constraints if c.branch]
    with pytest.raises(SizeError, match="B > 3"):
        found.at(B=3)


def test_a_while_loop_is_unknown_by_name():
    from torch._higher_order_ops.while_loop import while_loop

    class Loop(nn.Module):
        def forward(self, x):
            return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x @ x), (torch.tensor(0), x))

    assert [u.op for u in costir.analyze(export(Loop(), (torch.randn(6, 6),))).unknown] == ["higher_order.while_loop.default"]


class Scan(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        from torch._higher_order_ops.scan import scan

        def step(carry, row):
            new = torch.tanh(carry @ self.w + row)
            return new, new + 1

        return scan(step, torch.zeros(4, 8), x)[1]


def test_a_scan_runs_its_body_once_a_round():
    program = export(Scan(), (torch.randn(6, 4, 8),), dynamic_shapes=({0: Dim.DYNAMIC},))
    found = costir.analyze(program, names=names_of(program, {0: "T"}))
    T = found.symbols["T"]
    assert sp.expand(found.matmul_flops - T * 2 * 4 * 8 * 8) == 0
    assert sp.expand(found.special_flops - T * 4 * 8) == 0
    assert not found.unknown


def test_an_operator_that_runs_only_on_numbers_is_costed_as_a_function_of_sizes():
    """torch takes the sizes of a padded tensor for numbers where the program was loaded from a file."""
    from costir.load.fx_run import Specialised, running

    program = exported(mlp, {0: "B", 1: "T"})
    x = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"][-1]
    from costir.load.fx_recorder import SymbolicRecorder
    from costir.load.symints import Symbols

    recorder = SymbolicRecorder(Symbols({}))
    with pytest.raises(Specialised, match="for a number"), running(x.fake_mode, recorder):
        x.new_empty(int(x.shape[0]))
    with running(x.fake_mode, recorder):
        assert x.shape[0] > 2  # a question is answered, and leaves no guard
    assert "evaluate_sym_node" not in vars(x.fake_mode.shape_env)


def test_a_map_runs_its_body_once_a_row():
    from functorch.experimental.control_flow import map as map_rows

    class Rows(nn.Module):
        def forward(self, x, w):
            return map_rows(lambda r, w: torch.sin(r @ w), x, w)

    program = export(Rows(), (torch.randn(6, 4, 8), torch.randn(8, 8)), dynamic_shapes=({0: Dim.DYNAMIC}, None))
    found = costir.analyze(program)
    (T,) = found.symbols.values()
    assert sp.expand(found.matmul_flops - T * 2 * 4 * 8 * 8) == 0
    # a row: reads x, w, writes the product; reads it, writes its sine; then the stack reads and writes all of that
    assert sp.expand(found.bytes - T * 4 * (32 + 64 + 32 + 32 + 32 + 32 + 32)) == 0


def test_functional_forms_of_operators_that_write_cost_the_operator():
    @torch.library.custom_op("costir_tests::add_into", mutates_args=("y",))
    def add_into(x: torch.Tensor, y: torch.Tensor) -> None:
        y.add_(x)

    @add_into.register_fake
    def _(x, y):
        return None

    class Adds(nn.Module):
        def forward(self, x):
            y = torch.zeros_like(x)
            torch.ops.costir_tests.add_into(x, y)
            return y * 2

    program = export(Adds(), (torch.randn(6, 8),), dynamic_shapes=({0: Dim.DYNAMIC},)).run_decompositions()
    assert any("auto_functionalized" in str(n.target) for n in program.graph.nodes)
    assert [u.op for u in costir.analyze(program).unknown] == ["costir_tests.add_into.default"]


def test_autocast_regions_cast_as_they_do_when_they_run():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(16, 8, bias=False)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.l(x)

    build = lambda B=6: (Mixed().eval(), (torch.randn(B, 16),), {})
    program = exported(build, {0: "B"})
    found = costir.analyze(program, names=names_of(program, {0: "B"}))
    (mm,) = [n for n in found.nodes if n.matmul_flops != 0]
    assert {t.dtype for t in mm.call.inputs} == {"bfloat16"}
    same(found, costir.analyze(build), B=9)


def test_rows_that_data_decide_are_a_size_without_a_base():
    class Pick(nn.Module):
        def forward(self, x, m):
            return x[m] * 2

    program = export(Pick(), (torch.randn(6, 8), torch.ones(6, dtype=torch.bool)))
    with pytest.raises(SizeError, match="u0 that data decide"):
        costir.analyze(program)
    found = costir.analyze(program, names={"u0": "rows"}, sizes={"rows": 4})
    assert found.flops == 8 * found.symbols["rows"]


def test_symbolic_graphs_of_make_fx():
    def f(x, w):
        return (x @ w).relu().sum()

    graph = make_fx(f, tracing_mode="symbolic")(torch.randn(6, 7), torch.randn(7, 9))
    x, w = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
    found = costir.analyze(graph, names={str(x.shape[0]): "M", str(x.shape[1]): "K", str(w.shape[1]): "N"})
    M, K, N = (found.symbols[n] for n in "MKN")
    assert sp.expand(found.flops - (2 * M * K * N + M * N - 1)) == 0
    assert sp.expand(found.bytes - 4 * (M * K + K * N + M * N + 2 * M * N + M * N + 1)) == 0


def test_equal_example_sizes_that_share_a_symbol_are_noted():
    graph = make_fx(lambda x, w: x @ w, tracing_mode="symbolic")(torch.randn(6, 6), torch.randn(6, 9))
    assert any("share one symbol" in n for n in costir.analyze(graph).notes)


def test_joint_graphs_have_a_backward_phase_and_others_have_not():
    graphs = []

    def keep(graph, example):
        graphs.append(graph)
        return graph.forward

    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    module = MLP()
    torch._dynamo.reset()
    boxed = lambda g, e: make_boxed_func(keep(g, e))
    torch.compile(module, backend=aot_autograd(fw_compiler=boxed, bw_compiler=boxed), dynamic=True)(
        torch.randn(6, 16)
    ).sum().backward()
    forward, backward = graphs
    first, second = costir.analyze(forward), costir.analyze(backward, phase="backward")
    (name,) = first.sizes
    B = first.symbols[name]
    assert first.matmul_flops == 2 * 2 * B * 16 * 40
    assert second.matmul_flops == (2 + 1) * 2 * B * 16 * 40  # the input needs no gradient
    assert {n.phase for n in second.nodes} == {"backward"}
    with pytest.raises(LoadError, match="backward pass only"):
        costir.analyze(backward)
    with pytest.raises(LoadError, match="forward pass only"):
        costir.analyze(forward, phase="backward")
    with pytest.raises(LoadError, match="no optimizer"):
        costir.analyze(forward, phase="train")


def test_exported_joint_graphs_split_at_the_loss():
    from torch.export.experimental import _export_forward_backward

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(16, 8)

        def forward(self, x):
            return self.l(x).sum()

    program = export(Loss(), (torch.randn(6, 16),), dynamic_shapes=({0: Dim.AUTO},))
    joint = _export_forward_backward(program)
    forward, both = costir.analyze(joint), costir.analyze(joint, phase="backward")
    (B,) = both.symbols.values()
    assert forward.matmul_flops == 2 * B * 16 * 8
    assert both.matmul_flops == 2 * 2 * B * 16 * 8  # the input needs no gradient
    assert [n.phase for n in both.nodes if n.matmul_flops != 0] == ["forward", "backward"]


def test_the_module_of_a_program_costs_what_the_program_costs():
    program = exported(mlp, {0: "B", 1: "T"})
    names = names_of(program, {0: "B", 1: "T"})
    same(costir.analyze(program.module(), names=names), costir.analyze(program, names=names), B=9)


@pytest.mark.parametrize("name", ["tower", "written"])
def test_a_saved_program_is_the_program(tmp_path, name):
    build, dims = FAMILIES[name]
    program = exported(build, dims)
    file = tmp_path / f"{name}.pt2"
    torch.export.save(program, file)
    same(costir.analyze(str(file), names=names_of(program, dims)), costir.analyze(build), B=9, T=33)


class Evil:
    def __reduce__(self):
        return (eval, ("__import__('builtins').exit(3)",))


def test_files_that_are_no_programs_are_refused_in_one_sentence(tmp_path):
    program = exported(mlp, {0: "B"})
    good = tmp_path / "good.pt2"
    torch.export.save(program, good)
    cut, text, other, evil, missing = (tmp_path / f"{n}.pt2" for n in ("cut", "text", "other", "evil", "missing"))
    cut.write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    text.write_text("hello")
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a.txt", "b")
    broken, harmful = tmp_path / "broken.pt2", io.BytesIO()
    torch.save(Evil(), harmful)
    with zipfile.ZipFile(good) as a, zipfile.ZipFile(broken, "w") as b, zipfile.ZipFile(evil, "w") as c:
        for item in a.infolist():
            data = a.read(item)
            b.writestr(item.filename, data[: len(data) // 2] if item.filename.endswith("model.json") else data)
            c.writestr(item.filename, harmful.getvalue() if "sample_inputs" in item.filename else data)
    cases = {cut: "cut short", text: "no exported program", other: "holds no exported program", broken: "cannot be read",
             evil: "pickled Python objects", missing: "no such file"}  # fmt: skip
    for file, message in cases.items():
        with pytest.raises(LoadError, match=message) as caught:
            read_file(str(file), {}, {})
        assert "\n" not in str(caught.value)
    with pytest.raises(CostirError, match="no optimizer"):
        read_file(str(good), {}, {}, "train")


def test_a_file_larger_than_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    from costir.load import pt2

    file = tmp_path / "m.pt2"
    torch.export.save(exported(mlp, {0: "B"}), file)
    monkeypatch.setattr(pt2, "_free_memory", lambda: 1000)
    monkeypatch.setattr(torch.export, "load", lambda *a: pytest.fail("it was read"))
    with pytest.raises(LoadError, match="into memory"):
        read_file(str(file), {}, {})
