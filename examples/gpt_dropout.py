"""A GPT stack as in Korthikanti et al. 2022 (arXiv 2205.05198): 16 bits, attention written out, dropout.

costir analyze examples/gpt_dropout.py --phase backward
"""

import math

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, D, N):
        super().__init__()
        self.heads = N
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.query, self.key, self.value, self.out = (nn.Linear(D, D) for _ in range(4))
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def split(self, x):
        B, T, D = x.shape
        return x.view(B, T, self.heads, D // self.heads).transpose(1, 2)

    def attention(self, x):
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(x.shape[-1] // self.heads)
        weights = functional.dropout(scores.softmax(-1), 0.1)
        return self.out((weights @ v).transpose(1, 2).reshape(x.shape))

    def forward(self, x):
        x = x + functional.dropout(self.attention(self.norm1(x)), 0.1)
        return x + functional.dropout(self.down(functional.gelu(self.up(self.norm2(x)))), 0.1)


class Stack(nn.Module):
    def __init__(self, D, N, L):
        super().__init__()
        self.blocks = nn.ModuleList(Block(D, N) for _ in range(L))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def build(B=2, T=64, D=32, N=4, L=6):
    return Stack(D, N, L).bfloat16(), (torch.randn(B, T, D, dtype=torch.bfloat16),), {}
