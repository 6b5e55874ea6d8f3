"""The sum of two vectors of n numbers."""

import torch
from torch import Tensor, nn


class Add(nn.Module):  # type: ignore[misc]
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


def build(n: int = 65536) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    return Add(), (torch.randn(n), torch.randn(n))
