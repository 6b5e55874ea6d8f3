"""Peak memory: against the real allocations of torch's CPU allocator, and by laws."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from memory_oracle import real_peak
from torch import nn
from torch.utils.checkpoint import checkpoint

import costir
from costir import memory, trace
from costir.cli import main
from costir.cost import cost_of
from costir.errors import CostirError
from costir.lifting.polynomials import never_less
from costir.load import load_subject
from costir.load.family import Family
from costir.memory_view import kept_by_layer, memory_of
from costir.symbolic import Integer, size
from costir.tracing.recompute import chosen_modules

PHASES = ("forward", "train")
RNG_STATE = 5056  # bytes that torch.utils.checkpoint keeps on the CPU for each checkpoint: no tensor of the model


def llama(B=2, T=32, D=64, F=128, L=2, V=100):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=int(D), intermediate_size=int(F), num_hidden_layers=int(L), vocab_size=int(V),
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    ids = torch.zeros(B, T, dtype=torch.long)
    return LlamaForCausalLM(config).train(), (), {"input_ids": ids, "labels": ids, "use_cache": False}


SUBJECTS = {
    "mlp": (
        dataclasses.replace(load_subject("examples/mlp.py"), cache=None),
        {"B": 64, "D": 64, "F": 256},
        {"B": 1024, "D": 32, "F": 64},
    ),
    "gpt": (
        dataclasses.replace(load_subject("examples/gpt.py"), cache=None),
        {"B": 8, "T": 96, "L": 2},
        {"B": 4, "T": 32, "D": 128, "L": 1},
    ),
    "llama": (
        Family("llama", llama, {"B": 2, "T": 32, "D": 64, "F": 128, "L": 2, "V": 100}),
        {"B": 4, "T": 64, "V": 500},
        {"B": 1, "T": 48, "L": 3},
    ),
}


def followed(family, sizes, phase="train", **changes):
    """The peak of a trace, in bytes."""
    with trace.no_collection():
        run = trace.run(dataclasses.replace(family, **changes), {**family.sizes, **sizes}, phase)
    return max(m.total for m in memory.moments(run))


@pytest.mark.parametrize("recompute", ["none", "blocks"])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", SUBJECTS)
def test_the_peak_of_a_step_is_that_of_torchs_allocator(name, which, recompute):
    family, *points = SUBJECTS[name]
    sizes = {**family.sizes, **points[which]}
    recompute = "all" if name == "mlp" and recompute == "blocks" else recompute
    real = real_peak(family, sizes, recompute=recompute)
    found = followed(family, sizes, recompute=recompute)
    states = 0 if recompute == "none" else RNG_STATE * sizes.get("L", 1)
    assert real - states - 64 <= found <= real + 8
    assert found == pytest.approx(real, rel=0.05)


OTHERS = [("gpt", "forward", 1), ("llama", "forward", 1), ("mlp", "backward", 1), ("mlp", "train", 3), ("llama", "train", 3)]


@pytest.mark.parametrize(("name", "phase", "micro_batches"), OTHERS)
def test_other_phases_and_micro_batches(name, phase, micro_batches):
    family, sizes, _ = SUBJECTS[name]
    real = real_peak(family, {**family.sizes, **sizes}, phase, micro_batches=micro_batches)
    assert followed(family, sizes, phase, micro_batches=micro_batches) == pytest.approx(real, rel=1e-4)


class Tower(nn.Module):
    """Blocks whose activations grow with B, parameters that do not: the peak moves from the optimizer to the backward pass."""

    def __init__(self, D, L, checkpointed):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(D, 4 * D), nn.Tanh(), nn.Linear(4 * D, D)) for _ in range(L))
        self.checkpointed = checkpointed

    def forward(self, x):
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x))
        return x.square().mean()


def tower(B=8, D=16, L=3):
    return Tower(D, L, False), (torch.zeros(B, D),), {}


def tower_checkpointed(B=8, D=16, L=3):
    return Tower(D, L, True), (torch.zeros(B, D),), {}


@pytest.fixture(scope="module")
def analysed():
    return costir.analyze(tower, phase="train")


POINTS = [{}, {"B": 1000}, {"B": 1000, "L": 1}, {"B": 3, "D": 40, "L": 7}, {"B": 77, "D": 5, "L": 4}, {"B": 1, "D": 1, "L": 1}]


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_the_formula_is_what_a_run_holds_at_any_sizes(analysed, point):
    family = Family("tower", tower, dict(analysed.sizes))
    sizes = {**analysed.sizes, **point}
    real = real_peak(family, sizes)
    assert analysed.memory.at(**point).total == followed(family, point)
    assert analysed.memory.at(**point).total == pytest.approx(real, abs=64)
    if sizes["L"] >= analysed.memory.least["L"]:
        assert analysed.memory.peak.xreplace({size(n): Integer(v) for n, v in sizes.items()}).doit() >= real - 64


class Again(nn.Module):
    """One layer, again and again."""

    def __init__(self, D, L):
        super().__init__()
        self.layer, self.turns = nn.Linear(D, D), L

    def forward(self, x):
        for _ in range(self.turns):
            x = torch.tanh(self.layer(x))
        return x.square().mean()


def again(B=8, D=16, L=3):
    return Again(D, L), (torch.zeros(B, D),), {}


def test_a_loop_of_fewer_turns_holds_what_a_run_holds():
    m = costir.analyze(again, phase="train").memory
    family = Family("again", again, {"B": 8, "D": 16, "L": 3})
    for point in ({"L": 1}, {"L": 2}, {"L": 1, "B": 200}, {"L": 9, "B": 3}):
        assert (
            m.at(**point).total
            == followed(family, point)
            == pytest.approx(real_peak(family, {**family.sizes, **point}), abs=64)
        )


def test_what_one_more_layer_keeps(analysed):
    """By hand: a block keeps its input for the first product, and the tanh's result for itself and the second."""
    B, D, T = size("B"), size("D"), size("T")
    m = max(analysed.memory.peaks, key=lambda p: p.parts["activations"].xreplace(dict.fromkeys((B, D, size("L")), Integer(99))))
    assert kept_by_layer(m.parts["activations"], analysed.sizes) == (4 * B * D + 16 * B * D, None)
    deep = [max(x.parts["activations"] for x in memory.moments(events(tower, {"L": n}))) for n in (3, 4)]
    assert deep[1] - deep[0] == 20 * analysed.sizes["B"] * analysed.sizes["D"]
    L = size("L")
    both = {"B": 2, "T": 3, "L": 4}
    assert kept_by_layer(L * (B * T * D + B * T**2) + B, both) == (B * T * D + B * T**2, D + T)
    assert kept_by_layer(L * (B * T + T), both) == (B * T + T, 1 + 1 / B)
    assert kept_by_layer(L * B * D, both) == (B * D, None)  # T is a number in it: nothing is per token
    assert kept_by_layer(L**2 * B, both) == kept_by_layer(B * T, both) == (None, None)


def test_the_peak_moves(analysed):
    m = analysed.memory
    assert m.at(B=1).phase == "optimizer"
    assert m.at(B=1000).phase == "backward"
    assert len(m.peaks) > 1


def test_parts_add_up_and_say_what_they_are(analysed):
    m = analysed.memory
    assert sum(m.parts.values()).expand() == m.formula
    assert m.parts["parameters"] == analysed.weight_bytes
    states = 2 * analysed.weight_bytes + 4 * 4 * size("L")  # AdamW: two moments, and a count for each of four parameters
    assert m.parts["optimizer state"].expand() == states.expand()
    large = m.at(B=1000).parts
    assert large["activations"] > large["temporaries"] > large["parameters"] > 0
    assert m.parts["inputs"] == 4 * size("B") * size("D")


def test_the_curve_is_of_the_run_itself(analysed):
    m = analysed.memory
    assert max(x.total for x in m.curve) == m.at().total
    assert [x.phase for x in m.curve] == sorted((x.phase for x in m.curve), key=["forward", "backward", "optimizer"].index)
    assert m.curve[0].parts["gradients"] == 0 < m.curve[-1].parts["gradients"]
    assert max(x.total for x in m.along(B=50)) == m.at(B=50).total


def test_the_largest_batch_fits_and_one_more_does_not(analysed):
    m = analysed.memory
    fit = m.largest("B", "h100")
    assert m.at(B=fit.value).total <= fit.capacity < m.at(B=fit.value + 1).total
    formula = fit.formula.xreplace({size(n): Integer(v) for n, v in analysed.sizes.items()})
    assert int(formula) == fit.value
    deep = m.largest("L", "h100", B=10**6)
    assert m.at(B=10**6, L=deep.value).total <= fit.capacity < m.at(B=10**6, L=deep.value + 1).total
    with pytest.raises(CostirError, match="known from L = 3 on"):
        m.largest("B", "h100", L=1)
    assert m.largest("B", costir.load_chip("h100", {"memory.capacity": "10000"})).value == 0


def events(build, sizes, **changes):
    family = Family("tower", build, {"B": 8, "D": 16, "L": 3}, **changes)
    with trace.no_collection():
        return trace.run(family, {**family.sizes, **sizes}, "train")


def test_recomputing_blocks_is_what_a_checkpointed_model_does():
    own, asked = events(tower_checkpointed, {"B": 1000}), events(tower, {"B": 1000}, recompute="blocks")
    said = [[(e.op, e.path, e.phase, [o.shape for o in e.outputs]) for e in t.events] for t in (own, asked)]
    assert said[0] == said[1]
    held = [[m.parts for m in memory.moments(t)] for t in (own, asked)]
    assert held[0] == held[1]
    plain = events(tower, {"B": 1000})
    assert len(plain.events) < len(asked.events)
    assert max(m.total for m in memory.moments(asked)) < max(m.total for m in memory.moments(plain))


def test_micro_batches_repeat_all_but_the_optimizers_step():
    runs = {k: events(tower, {"B": 1000}, micro_batches=k) for k in (1, 2, 3, 9)}
    costs = {k: [cost_of(trace.concrete(e))[0] for e in t.events] for k, t in runs.items()}
    flops = {k: sum(c.flops * e.times for c, e in zip(costs[k], t.events, strict=True)) for k, t in runs.items()}
    products = {k: sum(c.matmul * e.times for c, e in zip(costs[k], t.events, strict=True)) for k, t in runs.items()}
    assert flops[2] - flops[1] == flops[3] - flops[2] == (flops[9] - flops[3]) / 6
    assert products[9] == 9 * products[1]
    peaks = {k: max(memory.moments(t), key=lambda m: m.total) for k, t in runs.items()}
    assert peaks[9] == peaks[2] == peaks[3]
    assert peaks[9].parts["gradients"] == peaks[9].parts["parameters"]  # those of the batches before are there
    assert peaks[9].total > peaks[1].total


def test_choices_of_modules():
    module = Tower(4, 2, False)
    of = lambda choice: list(chosen_modules(module, choice).values())
    assert of("none") == []
    assert of("all") == [""]
    assert of("blocks") == of("blocks.*") == ["blocks.0", "blocks.1"]
    assert of("blocks.*.1") == ["blocks.0.1", "blocks.1.1"]
    with pytest.raises(CostirError, match="no module matches 'block'"):
        of("block")
    with pytest.raises(CostirError, match="no list of blocks"):
        chosen_modules(nn.Linear(2, 2), "blocks")


def test_a_polynomial_below_another_one():
    b, x = size("B"), size("D")
    terms = lambda e: e.expand().as_coefficients_dict()
    assert never_less(terms(3 * b * x - b), terms(b * x + b))
    assert not never_less(terms(b * x), terms(3 * b))
    assert never_less(terms(b * x), terms(3 * b), {x: 3})
    assert not never_less(terms(2 * b - 3), terms(b - 1))


def test_what_cannot_be_followed_is_refused():
    with pytest.raises(CostirError, match="nothing of it is run"):
        _ = costir.analyze("X[B,D] . Y[D,F]").memory
    with pytest.raises(CostirError, match="no micro-batches in a forward pass"):
        costir.analyze(tower, micro_batches=2)
    with pytest.raises(CostirError, match="nothing is computed again in a forward pass"):
        costir.analyze(tower, recompute="blocks")
    with pytest.raises(CostirError, match="micro_batches=0 is not a whole number"):
        costir.analyze(tower, phase="train", micro_batches=0)
    with pytest.raises(CostirError, match="need a model that is run"):
        costir.analyze("X[B,D] . Y[D,F]", recompute="all")


def test_the_command_line(tmp_path, capsys):
    file = tmp_path / "mlp.py"
    file.write_text(Path("examples/mlp.py").read_text(encoding="utf-8"), encoding="utf-8")
    picture = tmp_path / "m.svg"
    step = ["analyze", str(file), "--phase", "train", "--chip", "h100"]
    assert main([*step, "--plot", f"memory={picture}", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)["memory"]
    assert data["peak"]["value"] == max(sum(m["bytes"].values()) for m in data["curve"])
    assert data["fits"][0]["largest"] > 1000
    assert b"peak" in picture.read_bytes()
    assert main(["solve", str(file), "--for", "B", "--fits", "--phase", "train", "--chip", "h100,a100"]) == 0
    out = capsys.readouterr().out
    assert f"B = {data['fits'][0]['largest']}" in out
    assert "a100_sxm_80" in out
    assert main(["analyze", str(file), "--memory"]) == 0
    assert "peak memory" in capsys.readouterr().out
    assert main(["solve", "X[B,D] . Y[D,F]", "--fits", "--for", "B", "--chip", "h100"]) == 2
    assert "what fits is not known" in capsys.readouterr().err


def test_memory_that_a_fake_run_does_not_show_is_said():
    """torch's LSTM on CPUs takes a workspace, with and without a backward pass; fake tensors give it no size."""

    class Last(nn.Module):
        def __init__(self, kind, D, H):
            super().__init__()
            self.rnn = getattr(nn, kind)(D, H, batch_first=True)

        def forward(self, x):
            return self.rnn(x)[0]

    def of(kind):
        def build(B=4, T=6, D=10, H=12):
            return Last(kind, D, H), (torch.randn(B, T, D),), {}

        return Family(kind, build, {"B": 8, "T": 40, "D": 10, "H": 12})

    lacking = {phase: followed(of("LSTM"), {}, phase) / real_peak(of("LSTM"), of("LSTM").sizes, phase) for phase in PHASES}
    assert max(lacking.values()) < 0.7
    said = {phase: memory_of(costir.analyze(of("LSTM").build, phase=phase), [], "").note for phase in PHASES}
    assert all("workspace of its recurrent layers" in text for text in said.values())
    assert "workspace" not in memory_of(costir.analyze(of("RNN").build), [], "").note
    assert followed(of("RNN"), {}, "forward") == real_peak(of("RNN"), of("RNN").sizes, "forward")
