"""Elementwise work on fp32 arrays of n elements (softmax: m rows of n), by hand and as one operator."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...], dict[str, Tensor]]


class Run(nn.Module):  # type: ignore[misc]
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arrays: Tensor) -> Tensor:
        """The arrays have one shape."""
        return self.function(*arrays)


def _run(function: Callable[..., Tensor], arrays: int, *shape: int) -> Made:
    return Run(function), tuple(torch.empty(*shape) for _ in range(arrays)), {}


def scale(n: int = 4096) -> Made:
    """In place, by a constant."""
    return _run(lambda x: x.mul_(1.01), 1, n)


def multiply_add(n: int = 4096) -> Made:
    """Two operators."""
    return _run(lambda a, b, c: a * b + c, 3, n)


def addcmul(n: int = 4096) -> Made:
    """The same in one."""
    return _run(lambda a, b, c: torch.addcmul(c, a, b), 3, n)


def gelu(n: int = 4096) -> Made:
    """The tanh form as one types it."""
    return _run(lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))), 1, n)


def fused_gelu(n: int = 4096) -> Made:
    """The same in one operator."""
    return _run(lambda x: nn.functional.gelu(x, approximate="tanh"), 1, n)


def _softmax(x: Tensor) -> Tensor:
    powers = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return powers / powers.sum(dim=-1, keepdim=True)


def softmax(m: int = 256, n: int = 4096) -> Made:
    """Over the last dimension, the maximum subtracted."""
    return _run(_softmax, 1, m, n)


def fused_softmax(m: int = 256, n: int = 4096) -> Made:
    """The same in one operator."""
    return _run(lambda x: torch.softmax(x, dim=-1), 1, m, n)


def cos_twice(n: int = 4096) -> Made:
    """Two operators."""
    return _run(lambda x: torch.cos(torch.cos(x)), 1, n)
