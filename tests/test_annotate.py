"""Costs in `node.meta["costir"]`: of graphs of one's own, inside torch.compile, and of analyses."""

from __future__ import annotations

import itertools
import operator

import pytest
import sympy as sp
import torch
from functorch.compile import make_boxed_func
from test_exported import FAMILIES, MLP, Tower, exported, names_of, tower, training_tower
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import costir
from costir.errors import LoadError
from costir.symbolic import size

PARTS = {"matmul": "matmul_flops", "vector": "vector_flops", "special": "special_flops", "read": "read", "write": "write"}


def calls(graph_module):
    return [n for n in graph_module.graph.nodes if n.op == "call_function"]


def sums(graph_module):
    return {p: sp.Add(*(getattr(n.meta["costir"].cost, p) for n in calls(graph_module))) for p in PARTS}


def agree(graph_module, analysis):
    for part, found in sums(graph_module).items():
        assert sp.expand(found - getattr(analysis, PARTS[part])) == 0, part


def test_each_node_of_a_graph_gets_its_cost_and_says_it_in_one_line():
    graph = make_fx(lambda x, w: (x @ w).t().exp(), tracing_mode="symbolic")(torch.randn(6, 7), torch.randn(7, 9))
    x, w = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
    names = {str(x.shape[0]): "M", str(x.shape[1]): "K", str(w.shape[1]): "N"}
    assert costir.annotate(graph, names=names) is graph
    assert [str(n.meta["costir"]) for n in calls(graph)] == [
        'matmul=2*K*M*N, read=4*K*M + 4*K*N, write=4*M*N, rule="aten.mm"',
        'free, rule="aten.t"',
        'special=M*N, read=4*M*N, write=4*M*N, rule="aten.exp"',
    ]
    assert all("costir" not in n.meta for n in graph.graph.nodes if n.op != "call_function")


def test_conventions_apply():
    graph = make_fx(lambda x, w: x @ w, tracing_mode="symbolic")(torch.randn(6, 7), torch.randn(7, 9))
    costir.annotate(graph, count="exact")
    x, w = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
    M, K, N = (size(str(d)) for d in (*x.shape, w.shape[1]))
    assert sp.expand(calls(graph)[0].meta["costir"].flops - M * N * (2 * K - 1)) == 0


def test_a_node_that_torch_takes_apart_costs_what_runs():
    program = exported(tower, {0: "B", 1: "T"}, fresh=True)
    names = names_of(program, {0: "B", 1: "T"})
    graph = costir.annotate(program.graph_module, names=names)
    linear = next(n for n in graph.graph.nodes if n.target is torch.ops.aten.linear.default)
    cost = linear.meta["costir"]
    assert (cost.rule, cost.status) == ("aten.addmm", "costed")
    assert cost.cost.matmul == 2 * size("B") * size("T") * 32 * 96
    agree(graph, costir.analyze(program, names=names))
    with_costs = [n for n in graph.graph.nodes if n.op == "call_function" and "costir" not in n.meta]
    assert not with_costs


def test_sub_graphs_are_annotated_too():
    program = exported(tower, {0: "B", 1: "T"}, fresh=True)
    graph = costir.annotate(program.graph_module)
    inner = [m for m in graph.modules() if isinstance(m, fx.GraphModule) and m is not graph]
    assert any(n.meta["costir"].cost.vector != 0 for m in inner for n in calls(m))


def test_a_backend_of_torch_compile_can_annotate_what_it_gets():
    seen = []

    def backend(graph, example_inputs):
        costir.annotate(graph)
        seen.append(graph)
        return graph.forward

    torch._dynamo.reset()
    module = MLP()
    out = torch.compile(module, backend=backend, dynamic=True)(torch.randn(6, 16))
    assert out.shape == (6, 16)
    (graph,) = seen
    (symbol,) = {s for n in calls(graph) for s in n.meta["costir"].flops.free_symbols}
    assert sp.expand(sums(graph)["matmul"] - 2 * 2 * symbol * 16 * 40) == 0
    wanted = costir.analyze(lambda B=6: (MLP(), (torch.randn(B, 16),), {}))
    found = {p: e.xreplace({symbol: size("B")}) for p, e in sums(graph).items()}
    assert all(sp.expand(found[p] - getattr(wanted, PARTS[p])) == 0 for p in PARTS)


def test_annotating_adds_no_guard_to_what_is_being_compiled():
    counts = []

    def backend(graph, example_inputs):
        environment = next(
            n.meta["example_value"].node.shape_env
            for n in graph.graph.nodes
            if isinstance(n.meta.get("example_value"), torch.SymInt)
        )
        before = (len(environment.guards), dict(environment.replacements))
        costir.annotate(graph)
        counts.append((before, (len(environment.guards), dict(environment.replacements))))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(FAMILIES["attention"][0]()[0], backend=backend, dynamic=True)(torch.randn(5, 8, 32))
    (both,) = counts
    assert both[0] == both[1]


def test_forward_and_backward_graphs_of_aot_autograd_together_cost_a_training_pass():
    seen = []

    def compiler(graph, example_inputs):
        seen.append(costir.annotate(graph))
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    module = nn.Sequential(nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 8))
    torch.compile(module, backend=aot_autograd(fw_compiler=compiler, bw_compiler=compiler), dynamic=True)(
        torch.randn(6, 16)
    ).sum().backward()
    (symbol,) = {s for g in seen for e in sums(g).values() for s in e.free_symbols}
    found = sp.Add(*(sums(g)["matmul"] for g in seen)).xreplace({symbol: size("B")})
    layers = lambda: nn.Sequential(nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 8))
    wanted = costir.analyze(lambda B=6: (layers(), (torch.randn(B, 16),), {}), phase="backward")
    assert sp.expand(found - wanted.matmul_flops) == 0
    assert {n.meta["costir"].calls[0].phase for n in calls(seen[1]) if n.meta["costir"].calls} == {"backward"}


def test_checkpointed_regions_are_entered():
    class Saved(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = MLP()

        def forward(self, x):
            return checkpoint(self.mlp, x, use_reentrant=False)

    seen = []
    torch._dynamo.reset()
    torch.compile(Saved(), backend=lambda g, e: seen.append(costir.annotate(g)) or g.forward, dynamic=True)(
        torch.randn(6, 16, requires_grad=True)
    )
    (symbol,) = {s for e in sums(seen[0]).values() for s in e.free_symbols}
    assert sp.expand(sums(seen[0])["matmul"] - 2 * 2 * symbol * 16 * 40) == 0


def test_what_has_no_rule_is_unknown_by_name():
    @torch.library.custom_op("costir_tests::mystery", mutates_args=())
    def mystery(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @mystery.register_fake
    def _(x):
        return torch.empty_like(x)

    graph = costir.annotate(make_fx(lambda x: mystery(x).sin(), tracing_mode="symbolic")(torch.randn(6, 7)))
    cost = calls(graph)[0].meta["costir"]
    assert cost.status == "unknown"
    assert str(cost).startswith("unknown, read=")
    assert 'rule="costir_tests.mystery"' in str(cost)


def test_a_node_without_a_shape_is_named():
    with pytest.raises(LoadError, match=r"node input_1 of the graph carries no shape .*make the graph with torch.export"):
        costir.annotate(fx.symbolic_trace(nn.Linear(4, 4)))
    graph = make_fx(lambda x: x.sin().cos(), tracing_mode="symbolic")(torch.randn(6, 7))
    del calls(graph)[1].meta["val"]
    with pytest.raises(LoadError, match="node cos of the graph carries no shape"):
        costir.annotate(graph)
    with pytest.raises(LoadError, match="cannot annotate a Linear"):
        costir.annotate(nn.Linear(4, 4))
    with pytest.raises(LoadError, match="no symbol 'zz'"):
        costir.annotate(make_fx(lambda x: x.sin(), tracing_mode="symbolic")(torch.randn(6, 7)), names={"zz": "B"})


@pytest.mark.parametrize("name", FAMILIES)
def test_an_analysis_is_a_graph_with_the_same_costs(name):
    analysis = costir.analyze(FAMILIES[name][0])
    graph = analysis.graph_module
    graph.graph.lint()
    agree(graph, analysis)
    assert graph is analysis.graph_module


def test_the_graph_of_a_training_step_holds_all_three_phases_with_data_edges():
    analysis = costir.analyze(training_tower, phase="train")
    graph = analysis.graph_module
    agree(graph, analysis)
    assert [p for p, _ in itertools.groupby(n.meta["phase"] for n in calls(graph))] == ["forward", "backward", "optimizer"]
    product = next(n for n in calls(graph) if n.meta["path"] == "layers.1.qkv" and n.meta["costir"].cost.matmul != 0)
    assert product.meta["source"].startswith("test_exported.py:")
    assert tuple(product.meta["val"].shape) == (40, 96)
    sources = {n.name for n in product.all_input_nodes}
    assert "layers_1_qkv_bias" in sources
    weight = next(n for n in graph.graph.nodes if n.name == "layers_1_qkv_weight")
    assert any(product in user.users for user in weight.users)


def test_edges_lead_to_the_part_of_a_result_that_is_read():
    graph = costir.analyze(tower).graph_module
    for n in graph.graph.nodes:
        if n.target is operator.getitem:
            whole, index = n.args
            assert whole.meta["val"][index].shape == n.meta["val"].shape
    assert "torch.ops.aten" in graph.code


def test_a_graph_keeps_only_the_symbols_of_the_analysis():
    analysis = costir.analyze(tower, keep=["T"])
    agree(analysis.graph_module, analysis)
    program = exported(tower, {0: "B", 1: "T"}, fresh=True)
    kept = costir.analyze(program, names=names_of(program, {0: "B", 1: "T"}), keep=["T"])
    agree(kept.graph_module, kept)
    assert all("costir" not in n.meta for n in program.graph.nodes)  # the program itself stays as it was


def test_a_notation_string_is_one_product():
    graph = costir.analyze("X[B,D] . Y[D,F] -> Z[B,F]").graph_module
    (node,) = calls(graph)
    assert node.target is torch.ops.aten.einsum.default
    assert str(node.meta["costir"].cost.matmul) == "2*B*D*F"
    assert [n.name for n in node.all_input_nodes] == ["input_1", "y"]


def test_loops_over_a_size_are_unrolled_at_the_base():
    class Loop(nn.Module):
        def forward(self, x):
            out = []
            for i in range(x.shape[0]):
                out.append(x[: i + 1].sum(0) * 2)
            return torch.stack(out)

    analysis = costir.analyze(lambda T=6, D=8: (Loop(), (torch.randn(T, D),), {}))
    graph = analysis.graph_module
    found = sums(graph)
    for part in PARTS:
        assert found[part].xreplace({size("T"): 6, size("D"): 8}) == analysis.at().__getattr__(PARTS[part])


def test_tied_weights_are_one_placeholder():
    assert Tower().head.weight is not None
    names = [n.name for n in costir.analyze(tower).graph_module.graph.nodes if n.op == "placeholder"]
    assert [n for n in names if "emb" in n or "head" in n] == ["emb_weight"]
