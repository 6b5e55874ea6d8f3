"""The core of attention, between the projections, in bf16: N heads, or K heads of keys with G query heads each."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

Made = tuple[nn.Module, tuple[Tensor, ...], dict[str, Tensor]]


class Fused(nn.Module):  # type: ignore[misc]
    """Scores stay on the chip."""

    def __init__(self, grouped: bool) -> None:
        super().__init__()
        self.grouped = grouped

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q is [B, heads, T, H], k and v are [B, heads, S, H]."""
        return scaled_dot_product_attention(q, k, v, enable_gqa=self.grouped)


class Unfused(nn.Module):  # type: ignore[misc]
    """Two products and a softmax, one by one: scores go to memory and back."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q is [B, N, T, H], k and v are [B, N, S, H]."""
        return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def _heads(count: int, batch: int, length: int, width: int) -> Tensor:
    return torch.empty(batch, count, length, width, dtype=torch.bfloat16)


def multi_head(B: int = 2, T: int = 64, S: int = 96, N: int = 4, H: int = 32) -> Made:
    """T queries over S keys."""
    return Fused(False), (_heads(N, B, T, H), _heads(N, B, S, H), _heads(N, B, S, H)), {}


def prefill(B: int = 2, T: int = 64, N: int = 4, H: int = 32) -> Made:
    """All tokens of a prompt at once: S = T."""
    return multi_head(B, T, T, N, H)


def grouped(B: int = 2, T: int = 64, S: int = 96, K: int = 4, G: int = 3, H: int = 32) -> Made:
    """T queries over S keys."""
    return Fused(True), (_heads(K * G, B, T, H), _heads(K, B, S, H), _heads(K, B, S, H)), {}


def grouped_prefill(B: int = 2, T: int = 64, K: int = 4, G: int = 3, H: int = 32) -> Made:
    """All tokens of a prompt at once: S = T."""
    return grouped(B, T, T, K, G, H)


def unfused(B: int = 2, T: int = 64, S: int = 96, N: int = 4, H: int = 32) -> Made:
    """As multi_head, with the scores in memory."""
    return Unfused(), (_heads(N, B, T, H), _heads(N, B, S, H), _heads(N, B, S, H)), {}
