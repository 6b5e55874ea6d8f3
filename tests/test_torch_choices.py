"""What torch chooses on its own while a model runs: the same operators as a run without costir, at each size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import costir
from costir.errors import SizeError

FUSED = ("flash_attention", "encoder_layer_fwd", "native_multi_head_attention")


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(func._schema.name.split("::")[1])
        return func(*args, **(kwargs or {}))


def fused_in_a_run(build, point):
    model, args, options = build(**point)
    with torch.no_grad(), Names() as names:
        model(*args, **options)
    return {f for f in FUSED if any(f in n for n in names.seen)}


class Attention(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


def heads(B=2, N=4, T=8, H=8, V=8):
    return Attention(), (torch.randn(B, N, T, H), torch.randn(B, N, T, H), torch.randn(B, N, T, V)), {}


def layer(B=2, T=6, D=16, F=32):
    return nn.TransformerEncoderLayer(D, 4, F, batch_first=True).eval(), (torch.randn(B, T, D),), {}


def layer_in_training(B=2, T=6, D=16, F=32):
    return nn.TransformerEncoderLayer(D, 4, F, batch_first=True), (torch.randn(B, T, D),), {}


def attention(B=2, T=6, D=16):
    return nn.MultiheadAttention(D, 4, batch_first=True).eval(), (torch.randn(B, T, D),) * 3, {}


@pytest.mark.parametrize("build", [heads, layer, layer_in_training, attention], ids=lambda f: f.__name__)
def test_the_operators_of_a_run(build):
    said = {f for f in FUSED if any(f in n.op for n in costir.analyze(build).nodes)}
    assert said == fused_in_a_run(build, {})


@pytest.mark.parametrize("sizes", [{}, {"H": 7}, {"V": 16}])
def test_the_way_is_a_condition(sizes):
    analysis = costir.analyze(heads, sizes=sizes)
    answered = 0
    for h, v in ((8, 8), (7, 7), (7, 8), (16, 8), (16, 16)):
        try:
            found = analysis.at(H=h, V=v).bytes
        except SizeError:
            continue
        answered += 1
        assert found == costir.analyze(heads, sizes={"H": h, "V": v}).at().bytes
        assert analysis.evaluate("bytes", H=h, V=v)["bytes"] == found
    assert answered
