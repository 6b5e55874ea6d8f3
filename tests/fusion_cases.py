"""Small models whose kernels are compared with TorchInductor's: a module with a scalar result and its inputs, at a width."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

CASES: dict[str, Callable[[int], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {}


def case(make: Any) -> Any:
    """Register a function from a width to (module, inputs)."""
    CASES[make.__name__] = make
    return make


class Loss(nn.Module):
    """The squares of a module's or function's result, summed."""

    def __init__(self, inner: Any, width: int) -> None:
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x * self.scale)
        return (out * out).sum()


def rows(width: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(6 * width, width),)


def _halves(x):
    out, half = torch.empty_like(x), x.shape[-1] // 2
    out[..., :half] = -x[..., half:]
    out[..., half:] = x[..., :half]
    return torch.tanh(out)


@case
def halves_in_place(width):
    return Loss(_halves, width), rows(width)


@case
def conv_group_norm_silu(width):
    layers = nn.Conv2d(3, width, 3), nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 3, 3)
    return _Squares(nn.Sequential(*layers)), (torch.randn(4, 3, 12, 12),)


class _Squares(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x)
        return (out * out).sum()


@case
def softmax(width):
    return Loss(lambda x: F.softmax(x, -1), width), rows(width)


@case
def written_out_gelu(width):
    return Loss(lambda x: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x))), width), rows(width)


@case
def layer_norm(width):
    return Loss(nn.LayerNorm(width), width), rows(width)


@case
def rms_norm(width):
    return Loss(lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), width), rows(width)


@case
def gelu_mlp(width):
    return Loss(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)), width), rows(width)


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False) for a, b in ((width, 3 * width), (width, 3 * width), (3 * width, width))
        )

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


@case
def swiglu_mlp(width):
    return Loss(Gated(width), width), rows(width)


class Attention(nn.Module):
    def __init__(self, width, fused):
        super().__init__()
        self.fused, self.qkv, self.out = fused, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, 4, d // 4).transpose(1, 2) for z in self.qkv(x).split(d, -1))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.softmax((q @ k.transpose(-1, -2)) / math.sqrt(d // 4), -1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, d))


@case
def attention_written_out(width):
    return Loss(Attention(width, False), width), (torch.randn(2, 40, width),)


@case
def attention_fused(width):
    return Loss(Attention(width, True), width), (torch.randn(2, 40, width),)


class CrossEntropy(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.head = nn.Linear(width, 5 * width, bias=False)

    def forward(self, x, target):
        return F.cross_entropy(self.head(x), target)


@case
def cross_entropy(width):
    return CrossEntropy(width), (torch.randn(4 * width, width), torch.randint(0, 5 * width, (4 * width,)))


@case
def conv_bn_relu(width):
    inner = nn.Sequential(nn.Conv2d(8, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    return Loss(inner, 12), (torch.randn(2, 8, 12, 12),)


@case
def conv_bn_relu_eval(width):
    model, given = conv_bn_relu(width)
    return model.eval(), given


class Residual(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers + 1))
        wide = (nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers))
        self.layers = nn.ModuleList(wide)

    def forward(self, x):
        for norm, layer in zip(self.norms, self.layers, strict=False):
            x = x + layer(norm(x))
        return self.norms[-1](x)


@case
def residual_stream(width):
    return Loss(Residual(width, 3), width), rows(width)
