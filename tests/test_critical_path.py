"""The critical path: against all paths of small graphs, models whose path is known by hand, and laws."""

from __future__ import annotations

import json
import random

import networkx as nx
import pytest
import torch
from torch import nn

import costir
from costir import cli
from costir.critical_path import longest

CHIP = "h100"


@pytest.mark.parametrize("seed", range(30))
def test_longest_is_the_longest_of_all_paths(seed):
    """Random graphs without cycles, each of their paths added up."""
    r = random.Random(seed)
    n = r.randint(1, 9)
    names = r.sample(range(n), n)  # edges go up in a shuffled order, not in that of the numbers
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((names[i], names[j]) for i in range(n) for j in range(i + 1, n) if r.random() < 0.4)
    weights = [r.randint(0, 20) for _ in range(n)]
    paths = [[i] for i in range(n)]
    paths += [p for i in range(n) for j in range(n) if i != j for p in nx.all_simple_paths(graph, i, j)]
    found = longest(graph, weights)
    assert found in paths
    assert sum(weights[i] for i in found) == max(sum(weights[i] for i in p) for p in paths)


def test_nothing_has_an_empty_path():
    assert longest(nx.DiGraph(), []) == []


def branches(B=64, D=512, F=2048):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.short, self.wide, self.narrow = nn.Linear(D, D), nn.Linear(D, F), nn.Linear(F, D)

        def forward(self, x):
            return self.short(x) + self.narrow(self.wide(x))

    return Branches(), (torch.empty(B, D),), {}


def chain(B=64, D=512, L=3):
    return nn.Sequential(*(nn.Linear(D, D) for _ in range(L))), (torch.empty(B, D),), {}


def single(B=8):
    return nn.Linear(16, 16), (torch.empty(B, 16),), {}


def block(B=2, T=256, D=256, L=5):
    N = 4

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.q, self.k, self.v = nn.LayerNorm(D), nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
            self.out, self.up, self.down = nn.Linear(D, D), nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

        def forward(self, x):
            h = self.norm(x)
            q, k, v = (z.view(B, T, N, D // N).transpose(1, 2) for z in (self.q(h), self.k(h), self.v(h)))
            y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, D)
            x = x + self.out(y)
            return x + self.down(nn.functional.gelu(self.up(x)))

    return nn.Sequential(*(Block() for _ in range(L))), (torch.empty(B, T, D),), {}


@pytest.fixture(scope="module")
def transformer():
    return costir.analyze(block)


def times(analysis):
    """Seconds of each operator, all its runs together, by path and name."""
    out = {}
    for node, t in zip(analysis.costed.nodes, analysis.on(CHIP).per_node(), strict=True):
        key = node.call.path.rpartition(".")[2], node.call.name
        out[key] = out.get(key, 0) + float(t.lower)
    return out


def test_of_two_branches_the_longer_is_the_path():
    a = costir.analyze(branches)
    each = times(a)
    p = a.on(CHIP).critical_path
    assert [s.path for s in p.steps] == ["wide", "narrow", ""]
    assert p.seconds == pytest.approx(sum(t for (path, _), t in each.items() if path != "short"))
    assert p.total == pytest.approx(sum(each.values()))
    assert 0 < p.share < 1


def test_a_chain_is_its_own_path():
    p = costir.analyze(chain).on(CHIP).critical_path
    assert p.share == pytest.approx(1)
    assert p.runs == p.all_runs == 3


@pytest.mark.parametrize("layers", [5, 3])
def test_queries_keys_and_values_run_side_by_side(transformer, layers):
    """Of three equal products one is on the path; all else of a block follows one after the other. All layers are looked at."""
    p = transformer.on(CHIP).critical_path_at(L=layers)
    each = times(transformer.on(CHIP).analysis)
    short = sum(each[x, "addmm"] for x in ("k", "v")) * layers / 5
    assert p.total == pytest.approx(transformer.on(CHIP).at(L=layers).lower)
    assert p.seconds == pytest.approx(p.total - short)
    projections = [s for s in p.steps if s.path in ("*.q", "*.k", "*.v")]
    assert sum(s.runs for s in projections) == layers
    assert sum(s.runs for s in p.steps) == p.runs == p.all_runs - 2 * layers


def test_what_is_written_in_place_is_waited_for():
    """Two halves of one buffer are filled side by side; a value that is written over is read first."""

    class Halves(nn.Module):
        def forward(self, x):
            y = torch.empty_like(x)
            y[:, :256].copy_(x[:, :256].exp())
            y[:, 256:].copy_(x[:, 256:].exp())
            return y

    class Over(nn.Module):
        def forward(self, x):
            y = x.exp()
            z = y.sin()
            y.add_(1)
            return z * 2, y.cos()

    def family(module):
        return lambda B=4096, D=512: (module(), (torch.empty(B, D),), {})

    halves = costir.analyze(family(Halves)).on(CHIP).critical_path
    assert halves.share == pytest.approx(0.5)
    over = costir.analyze(family(Over)).on(CHIP).critical_path
    assert [s.name for s in over.steps] == ["exp", "sin", "add_", "cos"]


def mixed(B=32, D=64, L=3):
    return (
        nn.Sequential(*(nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.GELU()) for _ in range(L))),
        (torch.empty(B, D),),
        {},
    )


@pytest.fixture(scope="module")
def step():
    return costir.analyze(mixed, phase="train")


@pytest.mark.parametrize("traffic", ["eager", "inductor", "xla"])
def test_never_longer_than_the_sum(step, traffic):
    """A training step: gradients of weights and the optimizer's work on each parameter run side by side."""
    on = step.under(traffic).on(CHIP)
    p = on.critical_path
    assert p.total == pytest.approx(on.at().lower, rel=1e-6)
    assert max(s.seconds / s.runs for s in p.steps) < p.seconds < 0.7 * p.total
    assert list(dict.fromkeys(s.phase for s in p.steps)) == ["forward", "backward", "optimizer"]
    assert sum(s.runs for s in p.steps if s.name == "mm") in (
        0,
        3,
    )  # per layer the gradient of the input, or at the end a weight's


def test_sizes_that_are_numbers_now_are_kept(transformer):
    kept = transformer.keep(["B"]).on(CHIP)
    assert kept.critical_path == transformer.on(CHIP).critical_path
    assert kept.critical_path_at(B=7) == transformer.on(CHIP).critical_path_at(B=7)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: costir.analyze("[B,D] . [D,F]").on(CHIP), "needs the model itself"),
        (lambda: costir.analyze(chain, traffic="ideal").on(CHIP), "under ideal traffic no operator stands alone"),
        (lambda: costir.analyze(chain).on(CHIP, overlap="full"), "under full overlap no operator stands alone"),
        (
            lambda: costir.analyze(single, phase="backward", micro_batches=4).on(CHIP),
            "micro-batches would run beside each other",
        ),
    ],
)
def test_where_there_is_no_path(make, said):
    with pytest.raises(costir.CostirError, match=said):
        _ = make().critical_path


def test_long_runs_are_refused(transformer):
    with pytest.raises(costir.CostirError, match="operators run at these sizes: too many"):
        transformer.on(CHIP).critical_path_at(L=10_000)


def test_the_command(capsys):
    assert cli.main(["analyze", "examples/mlp.py", "--chip", "h100,a100", "--critical-path", "--format", "json"]) == 0
    for chip in json.loads(capsys.readouterr().out)["chips"]:
        assert chip["critical_path"]["seconds"] == pytest.approx(chip["times"]["lower"])
        assert [s["path"] for s in chip["critical_path"]["steps"]] == ["up", "act", "down"]
    assert cli.main(["analyze", "examples/mlp.py", "--chip", "h100", "--critical-path"]) == 0
    said = capsys.readouterr().out
    assert "100.0% of the sum" in said
    assert cli.main(["analyze", "examples/mlp.py", "--critical-path"]) == 2
    assert "takes time on a chip" in capsys.readouterr().err
    assert cli.main(["analyze", "examples/mlp.py", "--chip", "h100", "--critical-path", "--explain", "up"]) == 2
    assert "--explain is about operators" in capsys.readouterr().err
    assert cli.main(["analyze", "examples/mlp.py", "--chip", "h100", "--critical-path", "--traffic", "all"]) == 2
    assert "--critical-path choose one" in capsys.readouterr().err
