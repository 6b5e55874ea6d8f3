"""Backward and the optimizer's step: against what torch itself runs on real tensors, and against FlopCounterMode."""

from __future__ import annotations

import collections
import functools
import inspect

import pytest
import sympy as sp
import torch
import training_models as models
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import costir
from costir import trace
from costir.cost import cost_of
from costir.load.family import Family
from costir.symbolic import size

ELSEWHERE = {
    "B": 5,
    "T": 12,
    "D": 48,
    "F": 20,
    "L": 3,
    "V": 37,
    "N": 6,
    "I": 24,
    "P": 6,
    "C": 5,
    "K": 3,
    "H": 10,
    "E": 6,
    "k": 3,
}


def family(build):
    return Family(
        build.__name__, build, {k: v.default for k, v in inspect.signature(build).parameters.items() if type(v.default) is int}
    )


@functools.cache
def traced(build):
    f = family(build)
    return trace.run(f, f.sizes, "train")


def loss_of(out):
    loss = getattr(out, "loss", None)
    loss = out if loss is None else loss
    return loss if loss.dim() == 0 else loss.sum()


class Listing(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "_assert" not in func._schema.name:
            self.ops.append(f"{func.namespace}.{func._schema.name.split('::')[1]}.{func._overloadname}")
        return func(*args, **(kwargs or {}))


def really(build):
    """The operators of a real training step, the second one, by phase."""
    torch.manual_seed(0)
    module, args, kwargs = build()
    module.train()
    stepper = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad])
    with Listing() as forward:
        loss = loss_of(module(*args, **kwargs))
    with Listing() as backward:
        loss.backward()
    stepper.step()
    with Listing() as step:
        stepper.step()
    return forward.ops, backward.ops, step.ops


REAL = [
    models.mlp,
    models.frozen,
    models.trained_input,
    models.conv,
    models.vit,
    models.checkpointed,
    models.checkpointed_reentrant,
    models.custom,
    models.tied,
    models.partly_fixed,
    models.autocast,
    models.gpt,
    models.gru,
    models.llama,
    models.gpt2,
    models.bert,
]


@pytest.mark.parametrize("build", REAL)
def test_the_operators_are_those_of_a_real_step(build):
    for phase, ops in zip(("forward", "backward", "optimizer"), really(build), strict=True):
        assert [e.op for e in traced(build).events if e.phase == phase] == ops, phase


@pytest.mark.parametrize("build", [*REAL, models.lstm, models.views, models.mixtral])
def test_no_operator_is_unknown(build):
    assert not {e.op for e in traced(build).events if cost_of(trace.concrete(e))[0].status == "unknown"}


@pytest.mark.parametrize(
    "build",
    [
        models.vit,
        models.checkpointed,
        models.checkpointed_reentrant,
        models.custom,
        models.tied,
        models.views,
        models.gpt,
        models.llama,
        models.gpt2,
        models.bert,
        models.mixtral,
        models.lstm,
    ],
)
def test_contractions_of_the_backward_pass_know_where_they_stem_from(build):
    """Each has the module and the line of a contraction of the forward pass."""
    heavy = [e for e in traced(build).events if cost_of(trace.concrete(e))[0].matmul != 0]
    there = {(e.path, e.source) for e in heavy if e.phase == "forward"}
    back = {(e.path, e.source) for e in heavy if e.phase == "backward"}
    own = {(p, s) for p, s in back if p == "square"}  # a gradient written by the user has its own lines
    assert (back - own) <= there
    assert {p for p, _ in back} == {p for p, _ in there}


def test_each_linear_layer_has_two_products_backward():
    """One for the input and one for the weight; a tied or twice used layer has them for each use."""
    for build, expected in ((models.gpt, 2), (models.tied, None)):
        backward = collections.Counter(
            e.path for e in traced(build).events if e.phase == "backward" and e.op == "aten.mm.default"
        )
        if expected:
            assert set(backward.values()) == {expected}
        else:
            assert backward == {"twice": 4, "head": 2}


def test_the_gradient_of_an_embedding_belongs_to_it():
    found = {e.path for e in traced(models.gpt).events if e.op == "aten.embedding_dense_backward.default"}
    assert found == {"tokens", "positions"}


def test_gradients_are_not_copied():
    """A gradient that nobody else holds is taken as it is: torch copies it otherwise."""
    assert not [e for e in traced(models.gpt).events if e.phase == "backward" and e.op == "aten.new_empty_strided.default"]


def counted(build, sizes):
    with torch.device("meta"):
        module, args, kwargs = build(**sizes)
    with FlopCounterMode(display=False) as counter:
        loss_of(module.train()(*args, **kwargs)).backward()
    return counter.get_total_flops()


def summed(build, sizes, phase):
    """Trace at the sizes, then count."""
    costs = [cost_of(trace.concrete(e))[0] for e in trace.run(family(build), sizes, phase).events]
    return {q: sum(getattr(c, q) for c in costs) for q in ("matmul", "vector", "special", "read", "write")}


def same_numbers(analysis, build, sizes):
    point = analysis.at(**sizes)
    found = {
        "matmul": point.matmul_flops,
        "vector": point.vector_flops,
        "special": point.special_flops,
        "read": point.read,
        "write": point.write,
    }
    return found == summed(build, sizes, analysis.phase)


@pytest.mark.parametrize(
    "build",
    [
        models.mlp,
        models.frozen,
        models.trained_input,
        models.conv,
        models.custom,
        models.tied,
        models.views,
        models.partly_fixed,
        models.autocast,
    ],
)
def test_formulas_of_a_training_step(build):
    analysis = costir.analyze(build, phase="train")
    assert not analysis.unknown
    for sizes in (family(build).sizes, {n: ELSEWHERE[n] for n in family(build).sizes}):
        assert analysis.at(**sizes).matmul_flops == counted(build, sizes)
        assert same_numbers(analysis, build, sizes)


@pytest.mark.parametrize(("attention", "products"), [("sdpa", 7), ("eager", 6)])
def test_attention_backward_computes_the_scores_again(attention, products):
    """Two products forward and five backward: dV, dP, dQ, dK, in one kernel the scores again. The rest: three times 2*m*k*n."""

    def build(B=2, T=6):
        return models.llama(B, T, attention=attention)

    (D, F, N, K, H, L, V), (B, T) = (32, 48, 4, 2, 8, 2, 50), map(size, "BT")
    linear = L * 2 * B * T * (2 * D * N * H + 2 * D * K * H + 3 * D * F) + 2 * B * T * D * V
    assert (
        sp.expand(costir.analyze(build, phase="backward").matmul_flops - 3 * linear - 2 * products * L * B * T * T * N * H) == 0
    )


@pytest.mark.parametrize("build", [models.checkpointed, models.checkpointed_reentrant])
def test_checkpointing_runs_the_blocks_forward_twice(build):
    plain, again = (collections.Counter() for _ in range(2))
    for counts, b in ((plain, models.vit), (again, build)):
        for e in traced(b).events:
            flops = cost_of(trace.concrete(e))[0].matmul
            counts[e.phase, e.path.startswith("blocks") or "head"] += flops
    assert again["forward", True] == plain["forward", True]
    blocks = plain["forward", True]
    if build is models.checkpointed:  # stops early: the block's last layer is not needed again
        assert blocks > again["backward", True] - plain["backward", True] > blocks / 2
    else:
        assert again["backward", True] - plain["backward", True] == blocks


def test_a_training_step_of_the_small_gpt_has_as_many_operators_at_every_batch():
    counts = {}
    for B in (2, 8, 32):
        counts[B] = collections.Counter(e.phase for e in trace.run(family(models.gpt), {"B": B, "T": 96}, "train").events)
    assert counts[2] == counts[8] == counts[32]
    assert counts[8] == {"forward": 134, "backward": 254, "optimizer": 382}


# ---- what is differentiated ----


class Returning(nn.Module):
    def __init__(self, how, D):
        super().__init__()
        self.layer, self.how = nn.Linear(D, D), how

    def forward(self, x):
        y = self.layer(x)
        return self.how(y)


class Output:
    def __init__(self, **fields):
        self.__dict__.update(fields)


def ending(how):
    def build(B=4, D=8):
        return Returning(how, D), (torch.zeros(B, D),), {}

    return build


HAS_LOSS = [
    lambda y: (y.pow(2).mean(), y),
    lambda y: (y, y.pow(2).mean()),
    lambda y: {"logits": y, "loss": y.pow(2).mean()},
    lambda y: Output(loss=y.pow(2).mean(), logits=y),
    lambda y: y.pow(2).mean(),
]


@pytest.mark.parametrize("how", HAS_LOSS)
def test_a_scalar_or_a_named_loss_is_differentiated(how):
    analysis = costir.analyze(ending(how), phase="backward")
    assert any(n.op == "aten.pow.Tensor_Scalar" and n.phase == "backward" for n in analysis.nodes)
    assert not analysis.notes


@pytest.mark.parametrize("how", [lambda y: y, lambda y: (y, y * 2), lambda y: Output(logits=y), lambda y: {"out": y}])
def test_else_the_sum_is_and_a_note_says_so(how):
    assert any("sum of the first output" in n for n in costir.analyze(ending(how), phase="backward").notes)


@pytest.mark.parametrize(
    ("how", "phase", "message"),
    [
        (lambda y: y.detach(), "backward", "no output depends on a parameter"),
        (lambda y: Output(loss=y.detach().mean()), "train", "its loss does not depend on a parameter"),
        (lambda y: y.argmax(-1), "backward", "no output depends on a parameter"),
    ],
)
def test_nothing_to_differentiate(how, phase, message):
    with pytest.raises(costir.CostirError, match=message):
        costir.analyze(ending(how), phase=phase)


def test_no_parameters():
    def build(B=4, D=8):
        return nn.Softmax(-1), (torch.zeros(B, D),), {}

    with pytest.raises(costir.CostirError, match=r"no parameter is trained \(the model has none\)") as caught:
        costir.analyze(build, phase="train")
    assert "forward" in caught.value.hint
    assert "backward where an input has requires_grad" in caught.value.hint  # a backward pass alone is refused, too:
    with pytest.raises(costir.CostirError, match="no output depends on a parameter"):
        costir.analyze(build, phase="backward")


def test_frozen_parameters_and_an_input_that_asks_for_its_gradient():
    """The hint of a refused training step is right: a backward pass is possible."""

    def build(B=4, D=8):
        return nn.Linear(D, D).requires_grad_(False), (torch.zeros(B, D, requires_grad=True),), {}

    with pytest.raises(costir.CostirError, match=r"no parameter is trained \(all are frozen\)"):
        costir.analyze(build, phase="train")
    assert {n.phase for n in costir.analyze(build, phase="backward").nodes} == {"forward", "backward"}


def test_train_means_train_mode():
    """Dropout draws, batch norm takes the batch's statistics and moves its own."""

    def build(B=4, D=8):
        return nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.Dropout(0.5)).eval(), (torch.zeros(B, D),), {}

    ops = {p: {n.op.split(".")[1] for n in costir.analyze(build, phase=p).nodes} for p in ("backward", "train")}
    assert "native_dropout" in ops["train"] or "bernoulli_" in ops["train"]
    assert not {"native_dropout", "bernoulli_"} & ops["backward"]
    norms = {p: next(n for n in costir.analyze(build, phase=p).nodes if "batch_norm" in n.op) for p in ("backward", "train")}
    assert norms["train"].vector_flops != norms["backward"].vector_flops


def test_a_module_of_ones_own_is_given_back_as_it_was():
    module = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.LSTM(12, 8)).eval()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    parameters = list(module.parameters())

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return self.inner(x)[0]

    outer = First().eval()
    analysis = costir.analyze(outer, (torch.zeros(4, 8),), input="B, _", phase="train")
    assert not analysis.unknown
    assert all(a is b for a, b in zip(parameters, module.parameters(), strict=True))
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert not any(m.training for m in outer.modules())
    assert all(p.grad is None for p in parameters)
    outer(torch.zeros(4, 8))  # runs on its real weights again


def plain(B=6, D=8, F=12):
    return nn.Sequential(nn.Linear(D, F), nn.ReLU(), nn.Linear(F, D, bias=False)), (torch.zeros(B, D),), {}


def test_phases_build_on_each_other():
    analyses = {p: costir.analyze(plain, phase=p) for p in ("forward", "backward", "train")}
    phases = {p: {n.phase for n in a.nodes} for p, a in analyses.items()}
    assert phases == {
        "forward": {"forward"},
        "backward": {"forward", "backward"},
        "train": {"forward", "backward", "optimizer"},
    }
    for smaller, larger in (("forward", "backward"), ("backward", "train")):
        kept = [n for n in analyses[larger].nodes if n.phase in phases[smaller]]
        assert sp.expand(sum(n.matmul_flops for n in kept) - analyses[smaller].matmul_flops) == 0
