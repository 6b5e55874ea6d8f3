"""What stands above an answer is what was counted, and what is free to move."""

import math
from dataclasses import replace

import pytest
import sympy as sp
import torch
from torch import nn
from torch.nn import functional

import costir
from costir.build import build
from costir.document import head, size_facts
from costir.hardware import load_chip
from costir.ir import Constraint
from costir.symbolic import Integer, size


class Attention(nn.Module):
    """Two attentions, one after the other, each told in its own way that it is causal."""

    def __init__(self, *kinds):
        super().__init__()
        self.kinds = kinds

    def forward(self, q):
        for kind in self.kinds:
            q = getattr(self, kind)(q)
        return q

    def told(self, q):
        return functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    def masked(self, q):
        mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
        return functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    def by_hand(self, q):
        scores = q @ q.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.softmax(scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -1e9), -1) @ q


def family(*kinds):
    return lambda B=2, T=16: (Attention(*kinds), (torch.ones(B, 2, T, 8),), {})


FULL = "attention full T x T"
CAUSAL = "causal attention only its unmasked scores"


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (("told",), CAUSAL),
        (("by_hand",), f"{FULL}, as no operator is told that its attention is causal"),
        (("masked",), f"{FULL}, as no operator is told that its attention is causal"),
        (("told", "masked"), f"{CAUSAL} where an operator is told so"),
    ],
    ids=str,
)
def test_the_convention_is_the_one_that_was_kept(kinds, words):
    asked, full = (costir.analyze(family(*kinds), attention=a) for a in ("causal", "full"))
    counted = [f.text.split("; ")[1] for f in head(build(asked)) if f.label == "counted"]
    assert counted == [words]
    assert (asked.matmul_flops == full.matmul_flops) == words.startswith(FULL)
    assert [f.text.split("; ")[1] for f in head(build(full)) if f.label == "counted"] == [FULL]


def test_a_size_with_one_value_stands_apart():
    T, S = size("T"), size("S")
    sizes = {"B": 2, "T": 16, "S": 16}
    pinned = Constraint(sp.Eq(T, Integer(16), evaluate=False), "for other values")
    tied = Constraint(sp.Eq(S, T, evaluate=False))
    other = Constraint(sp.Eq(sp.Mod(T, 4), 0, evaluate=False))
    assert [(f.label, f.text) for f in size_facts(sizes, [pinned])] == [("at", "B = 2, S = 16"), ("only at", "T = 16")]
    assert [(f.label, f.text) for f in size_facts(sizes, [tied, other])] == [("at", "B = 2, T = 16, S = 16")]
    assert size_facts({}, []) == []


@pytest.mark.parametrize(
    ("kinds", "chips", "said"),
    [
        (("told",), ["h100"], True),
        (("told",), ["cpu", "h100"], True),
        (("told",), ["cpu"], False),
        (("told",), [], False),
        (("by_hand",), ["h100"], False),
    ],
    ids=str,
)
def test_operators_of_a_cpu_on_another_chip(kinds, chips, said):
    a = costir.analyze(family(*kinds))
    gpu = load_chip("h100")
    on = [replace(gpu, kind="cpu") if c == "cpu" else gpu for c in chips]
    notes = [n for n in build(a, on).notes if n.startswith("traced as on a CPU")]
    wanted = "traced as on a CPU: _scaled_dot_product_flash_attention_for_cpu stands for the chip's own operator"
    assert notes == ([wanted] if said else [])
