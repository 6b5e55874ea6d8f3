"""The optimizer's step: one steady step, counted by hand where torch runs one tensor after the other."""

from __future__ import annotations

import pytest
import sympy as sp
import torch
import training_models as models
from torch import nn

import costir
from costir import trace
from costir.symbolic import size


def plain(B=6, D=8, F=12):
    return nn.Sequential(nn.Linear(D, F), nn.ReLU(), nn.Linear(F, D, bias=False)), (torch.zeros(B, D),), {}


def deep(B=6, D=8, F=12, L=2):
    return nn.Sequential(*(plain(B, D, F)[0] for _ in range(L))), (torch.zeros(B, D),), {}


def matrices(B=6, D=8, F=12):
    return nn.Sequential(nn.Linear(D, F, bias=False), nn.ReLU(), nn.Linear(F, D, bias=False)), (torch.zeros(B, D),), {}


def step_of(build, optimizer):
    """Totals of the optimizer's step."""
    analysis = costir.analyze(build, phase="train", optimizer=optimizer)
    assert not analysis.unknown
    nodes = [n for n in analysis.nodes if n.phase == "optimizer"]
    assert all(n.path == "optimizer" for n in nodes)
    return analysis, {
        q: sp.expand(sum(getattr(n, q) for n in nodes))
        for q in ("matmul_flops", "vector_flops", "special_flops", "read", "write")
    }


# Per parameter, from the single-tensor paths of torch.optim, one line an operator: (vector, special, elements read, written).
BY_HAND = {
    "adamw": [
        (1, 0, 1, 1),  # decay: mul_
        (3, 0, 2, 1),  # first moment: lerp_ reads it and the gradient
        (1, 0, 1, 1),
        (3, 0, 2, 1),  # second moment: mul_, addcmul_ with the gradient twice
        (0, 1, 1, 1),
        (1, 0, 1, 1),
        (1, 0, 1, 1),  # sqrt, divide, add eps
        (3, 0, 3, 1),
    ],  # addcdiv_
    "sgd": [(2, 0, 2, 1)],
    "momentum": [(1, 0, 1, 1), (1, 0, 2, 1), (2, 0, 2, 1)],  # buffer: mul_, add_; the parameter: add_ with alpha
    "adagrad": [(2, 0, 2, 1), (0, 1, 1, 1), (1, 0, 1, 1), (3, 0, 3, 1)],  # addcmul_ with the factor 1, sqrt, add_, addcdiv_
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_step_by_hand(name):
    analysis, step = step_of(plain, name)
    vector, special, read, write = (sum(column) for column in zip(*BY_HAND[name], strict=True))
    tensors = 0 if name in ("sgd", "momentum") else 3  # each counts its steps: one add to one number
    P = analysis.params
    assert sp.expand(step["vector_flops"] - vector * P - tensors) == 0
    assert sp.expand(step["special_flops"] - special * P) == 0
    assert sp.expand(step["read"] - 4 * read * P - 4 * tensors) == 0
    assert sp.expand(step["write"] - 4 * write * P - 4 * tensors) == 0


@pytest.mark.parametrize("name", trace.OPTIMIZERS)
def test_every_optimizer(name):
    analysis, step = step_of(matrices if name == "muon" else plain, name)
    assert step["vector_flops"].subs({size(n): v for n, v in analysis.sizes.items()}) > 0
    states = [
        n for n in analysis.nodes if n.phase == "optimizer" and n.op.split(".")[1] in ("zeros_like", "zeros", "new_zeros")
    ]
    assert not states  # made by the first step, which is not the one counted


def test_radam_is_past_its_warm_up():
    """From the sixth step on its update is rectified, by a division that the first five lack."""
    analysis, _ = step_of(plain, "radam")
    assert any(n.op == "aten.sqrt.default" for n in analysis.nodes if n.phase == "optimizer")


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"amsgrad": True}])
@pytest.mark.parametrize("build", [plain, deep])
def test_variants_of_adamw(options, build):
    """Lists of tensors cost as much as tensors one by one; one kernel reads p, g, m, v and writes p, m, v."""
    family_step = lambda o: step_of(build, lambda params: torch.optim.AdamW(params, **o))
    analysis, step = family_step(options)
    _, single = family_step({})
    if "foreach" in options:
        assert all(sp.expand(step[q] - single[q]) == 0 for q in ("vector_flops", "special_flops", "write"))
    elif "fused" in options:
        assert sp.expand(step["vector_flops"] - single["vector_flops"]) == 0
        tensors = sp.expand((step["write"] - 12 * analysis.params) / 4)
        assert sp.expand(step["read"] - 16 * analysis.params - 8 * tensors) == 0
        assert tensors.free_symbols <= {size("L")}
    else:
        extra = {"read": 8, "write": 4}  # the larger of two second moments
        assert all(sp.expand(step[q] - single[q] - extra[q] * analysis.params) == 0 for q in extra)


def test_an_optimizer_that_reads_its_numbers_says_so():
    analysis, _ = step_of(plain, "adafactor")
    assert any("each is taken as 1" in n for n in analysis.notes)


class Own(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p -= 0.1 * p.grad


def test_an_optimizer_of_ones_own():
    analysis, step = step_of(plain, Own)
    assert sp.expand(step["vector_flops"] - 2 * analysis.params) == 0
    assert {n.source.split(":")[0] for n in analysis.nodes if n.op == "aten.sub_.Tensor"} == {"test_optimizers.py"}


def test_only_what_is_trained_is_stepped():
    analysis, step = step_of(models.frozen, "sgd")
    D, F = size("D"), size("F")
    assert sp.expand(step["vector_flops"] - 2 * (D * F + D)) == 0
    assert sp.expand(analysis.params - (2 * D * F + D + F)) == 0


def test_the_files_own_optimizer_comes_first(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "def model(D=8):\n    return nn.Linear(D, D)\n"
        "def inputs(B=4, D=8):\n    return torch.zeros(B, D)\n"
        "def optimizer(params):\n    return torch.optim.SGD(params, lr=0.1)\n"
    )
    ops = {n.op.split(".")[1] for n in costir.analyze(str(file), phase="train").nodes if n.phase == "optimizer"}
    assert "addcdiv_" not in ops
    asked = {
        n.op.split(".")[1] for n in costir.analyze(str(file), phase="train", optimizer="adamw").nodes if n.phase == "optimizer"
    }
    assert "addcdiv_" in asked


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("adamwx", "unknown optimizer 'adamwx'; did you mean adamw"),
        (lambda params: torch.optim.LBFGS(params), "the optimizer's step fails.*closure"),
        (lambda params: torch.optim.SGD(params, lr=-1), "making the optimizer fails.*Invalid learning rate"),
    ],
)
def test_optimizers_that_cannot_be_used(optimizer, message):
    with pytest.raises(costir.CostirError, match=message):
        costir.analyze(plain, phase="train", optimizer=optimizer)


@pytest.mark.parametrize("made", ["adam", [1, 2]])
def test_what_is_no_optimizer_is_named(made):
    with pytest.raises(costir.CostirError, match=f"the optimizer is a {type(made).__name__}, which has no step"):
        costir.analyze(lambda B=2: (nn.Linear(2, 2), (torch.rand(B, 2),), {}), phase="train", optimizer=lambda p: made)
