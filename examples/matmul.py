"""One matrix product, activations by weights, with the sizes read from the shapes in its annotations.

costir solve examples/matmul.py --for B --chip tpu_v5e --dtype bf16
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Matmul(nn.Module):
    def __init__(self, D: int = 8192, F: int = 8192):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(D, F))

    def forward(self, x: Float[Tensor, "B D"]) -> Float[Tensor, "B F"]:  # noqa: F722 (a shape, no annotation)
        return x @ self.weight
