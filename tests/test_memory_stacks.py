"""Peak memory where one line of torch runs many operators: layers of attention, recurrent layers in both directions."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import sympy as sp
import torch
from memory_oracle import real_peak
from torch import nn

import costir
from costir import memory, memory_trials, trace
from costir.errors import CostirError
from costir.lifting import moments as moments_of
from costir.lifting import peaks
from costir.lifting.fit import Fitter
from costir.lifting.held_bytes import Evidence
from costir.lifting.origins import kinds
from costir.lifting.steps import derived
from costir.load.family import Family
from costir.memory_view import kept_by_layer
from costir.symbolic import size


class Encoder(nn.Module):
    def __init__(self, L):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, L, enable_nested_tensor=False), nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.layers(x).mean(1)).square().mean()


def encoder(B=4, L=2):
    return Encoder(L), (torch.randn(B, 12, 16),), {}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(6, 10, bidirectional=True, batch_first=True), nn.Linear(20, 5)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1]).square().mean()


def recurrent(T=8):
    return Recurrent(), (torch.randn(3, T, 6),), {}


def ran(build, sizes):
    with trace.no_collection():
        return trace.run(Family(build.__name__, build, sizes), sizes, "train")


def highest(t):
    return max(m.total for m in memory.moments(t))


@pytest.fixture(scope="module")
def of_encoder():
    """Traces of an encoder at sizes that tell batch and layers apart; the base has fewer layers than any."""
    traces = [ran(encoder, {"B": b, "L": n}) for b, n in ((26, 3), (34, 4), (46, 7), (26, 5))]
    fitter = Fitter([t.sizes for t in traces], ["B", "L"], derived([t.steps for t in traces]))
    return Evidence(tuple(traces), fitter, ("L",), 1, ran(encoder, {"B": 4, "L": 2}))


@pytest.fixture(scope="module")
def moments(of_encoder):
    found = peaks.peaks(of_encoder)
    assert found.even
    return found.moments


@pytest.fixture(scope="module")
def analysed():
    return costir.analyze(recurrent, phase="train")


@pytest.mark.parametrize("point", [{"B": 4, "L": 2}, {"B": 50, "L": 4}], ids=str)
def test_layers_of_attention(moments, point):
    found = memory_trials.said(moments, point)
    assert found == highest(ran(encoder, point))
    assert found == pytest.approx(real_peak(Family("encoder", encoder, point), point), rel=0.05)


@pytest.mark.parametrize("point", [{"T": 5}, {"T": 21}], ids=str)
def test_both_directions_of_a_recurrent_layer(analysed, point):
    sizes = {**analysed.sizes, **point}
    found = memory._highest(analysed.memory, sizes).total  # the formulas themselves
    assert found == highest(ran(recurrent, sizes))
    assert found == pytest.approx(real_peak(Family("recurrent", recurrent, sizes), sizes), rel=0.05)


def test_of_several_moments_the_first_is_one_of_a_model_as_deep_as_the_base(of_encoder, moments):
    base = {"B": 4, "L": 2}
    deeper = dataclasses.replace(moments[0], total=moments[0].total + 10**6, least={"L": 3})
    ranked = memory._sorted([deeper, *moments], base)
    assert deeper in ranked
    assert memory_trials.number(ranked[0].total, base) == highest(of_encoder.base) == memory_trials.said(ranked, base)


def test_what_an_operator_reads_tells_it_apart(of_encoder):
    """The place in the code does not: a linear layer's two gradients come from one line."""
    t = of_encoder.traces[0]
    found = [len(set(kinds(t, steps))) for steps in range(4)]
    assert found == sorted(set(found))
    products = [i for i, e in enumerate(t.events) if e.phase == "backward" and e.op == "aten.mm.default"]
    assert len({kinds(t, 1)[i] for i in products}) > len({kinds(t, 0)[i] for i in products})


def test_without_that_layers_look_uneven(of_encoder, monkeypatch):
    monkeypatch.setattr(peaks, "_STEPS", (0,))
    assert not peaks.peaks(of_encoder).even


def test_a_run_of_few_turns_gives_way_to_a_longer_one(analysed):
    evidence = memory_trials.long_enough(analysed, analysed.origin.evidence)
    turns = [min(t.sizes["T"] for t in e.traces) for e in (analysed.origin.evidence, evidence)]
    assert turns[0] < turns[1] == analysed.memory.least["T"]


def test_formulas_that_a_further_run_does_not_bear_out_are_refused(analysed):
    found, evidence = analysed.memory.peaks, analysed.origin.evidence
    less = [dataclasses.replace(p, total=p.total - 4) for p in found]
    with pytest.raises(CostirError, match=r"a run at T = \d+ holds \d+ bytes"):
        memory_trials.confirm_larger(analysed, evidence, less)


@pytest.mark.parametrize(
    "often",
    [
        lambda n, x: n * (x - 1),
        lambda n, x: 3 * n * (x - 1) + 2,
        lambda n, x: n,
        lambda n, x: n * x - 3,
        lambda n, x: sp.ceiling((n + x) / sp.Integer(3)),
    ],
)
def test_from_how_many_layers_on_an_operator_runs_twice(often, monkeypatch):
    """How often may depend on other sizes: a ring of X devices has X - 1 turns in each layer."""
    evidence = Evidence(
        tuple(SimpleNamespace(sizes={"L": n, "X": x}) for n, x in ((5, 3), (6, 7), (7, 2))), None, ("L",), 1, None
    )
    monkeypatch.setattr(moments_of, "count", lambda *_: often(size("L"), size("X")))
    found = moments_of._least(evidence, (), 2)[size("L")]
    runs = {n: min(often(n, x) for x in range(2, 50)) for n in range(1, 20)}
    assert found == min(n for n, k in runs.items() if k >= 2)


@pytest.mark.parametrize("often", [lambda n, x: 20 - n + 0 * x, lambda n, x: n * (2 - x)])
def test_operators_that_run_unevenly_often_have_no_formula(often, monkeypatch):
    evidence = Evidence(tuple(SimpleNamespace(sizes={"L": n, "X": x}) for n, x in ((5, 3), (6, 7))), None, ("L",), 1, None)
    monkeypatch.setattr(moments_of, "count", lambda *_: often(size("L"), size("X")))
    with pytest.raises(CostirError, match="does not grow evenly with L"):
        moments_of._least(evidence, (), 2)


def test_what_a_token_keeps_of_a_layer_by_hand():
    """Korthikanti et al. 2022: 34*D + 5*N*T bytes with dropout's masks of one byte. Here they take two, and norms keep means
    and deviations."""
    analysis = costir.analyze(Path(__file__).parents[1] / "examples" / "gpt_dropout.py", phase="backward")
    _, token = kept_by_layer(analysis.memory.parts["activations"], analysis.sizes)
    D, N, T = (size(n) for n in "DNT")
    norms, projections, heads, mlp = 2 * 2 * D, 3 * 2 * D, 3 * 2 * D, 2 * 8 * D  # what each of them takes
    masks, scores = 2 * D, (2 + 1 + 2) * N * T
    rule = norms + projections + heads + mlp + masks + scores
    assert rule == 34 * D + 5 * N * T
    assert sp.expand(token - rule) == masks + N * T + 2 * 2 * 2
