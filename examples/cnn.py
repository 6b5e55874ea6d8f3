"""A small convolutional classifier. I is the side of the image, C the number of channels of the first layer, V of classes.

costir analyze examples/cnn.py --sweep I=32:256:x2
"""

import torch
from torch import nn


def model(C=32, V=10):
    return nn.Sequential(
        nn.Conv2d(3, C, 3, padding=1, bias=False),
        nn.BatchNorm2d(C),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(C, 2 * C, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * C),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * C, V),
    )


def inputs(B=16, I=64):
    return torch.randn(B, 3, I, I)
