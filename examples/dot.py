"""A dot product: the smallest thing that a roofline can say something about.

costir analyze examples/dot.py --chip tpu_v5e
"""

import torch
from torch import nn


class Dot(nn.Module):
    def forward(self, x, y):
        return torch.dot(x, y)


def model():
    return Dot()


def inputs(N=4096):
    return torch.randn(N, dtype=torch.bfloat16), torch.randn(N, dtype=torch.bfloat16)
