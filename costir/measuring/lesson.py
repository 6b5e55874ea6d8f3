"""The lesson's GPT: small enough that a step takes milliseconds, with every operator of a large one in it.

Tokens and learned positions are embedded. Each layer normalises, mixes tokens by causal attention that is written out (scores,
mask, softmax, product), normalises again and applies an MLP of four times the width with GELU. A last norm and a head give
logits over the vocabulary; the head is not tied to the embedding. All linear layers have biases. The loss is cross entropy, the
optimizer AdamW.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from costir.load.family import Built, Family

CONTEXT = 96
SIZES = {"B": 8, "T": CONTEXT, "D": 64, "N": 4, "L": 2, "V": 44}


class _Layer(nn.Module):  # type: ignore[misc]
    """One layer, [B, T, D] to [B, T, D]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.project = (nn.Linear(width, width) for _ in range(4))
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        future = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        by_head = (batch, length, self.heads, width // self.heads)
        q, k, v = (f(x).view(by_head).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = (q @ k.transpose(2, 3)) * by_head[-1] ** -0.5
        seen = scores.masked_fill(self.future[:length, :length], -torch.inf)
        mixed = seen.softmax(-1) @ v
        return self.project(mixed.transpose(1, 2).reshape(x.shape))

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the MLP, each added to what came in."""
        x = x + self._attend(self.before_attention(x))
        return x + self.narrow(functional.gelu(self.widen(self.before_mlp(x))))


class GPT(nn.Module):  # type: ignore[misc]
    """Token numbers [B, T] and the next ones to the mean loss."""

    def __init__(self, width: int, heads: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(CONTEXT, width)
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        """The loss."""
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def _build(B: int, T: int, D: int, N: int, L: int, V: int) -> Built:
    text = torch.randint(0, V, (B, T + 1))
    return Built(GPT(D, N, L, V), (text[:, :-1].contiguous(), text[:, 1:].contiguous()), {})


def _adamw(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def gpt(**sizes: int) -> Family:
    """The model as a function of its sizes.

    Args:
        sizes: B sequences of T tokens (at most 96), width D, N heads, L layers, V words, where they are not the lesson's.
    """
    return Family("the lesson's GPT", _build, {**SIZES, **sizes}, optimizer=_adamw, limits={"T": CONTEXT})


__all__ = ["CONTEXT", "GPT", "SIZES", "gpt"]
