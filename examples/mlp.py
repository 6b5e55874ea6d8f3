"""A two-layer perceptron as a family of modules: the parameter names are the sizes, the defaults their base values.

costir analyze examples/mlp.py --chip h100 --phase train
"""

import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, D, F):
        super().__init__()
        self.up = nn.Linear(D, F, bias=False)
        self.act = nn.ReLU()
        self.down = nn.Linear(F, D, bias=False)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


def build(B=64, D=1024, F=4096):
    return MLP(D, F), (torch.randn(B, D),), {}


def optimizer(params):
    return torch.optim.SGD(params, lr=0.1)


def loss(output):
    return output.square().mean()


tp_plan = {"up": "colwise", "down": "rowwise"}
