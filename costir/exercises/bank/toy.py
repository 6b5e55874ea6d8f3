"""A decoder to count: grouped-query attention, a gated MLP, one matrix for embedding and output, no norms.

costir analyze costir/exercises/bank/toy.py:dense
costir analyze costir/exercises/bank/toy.py:decode --phase decode

The base sizes differ and do not divide each other, so that the points at which costir traces stay small.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Cache = tuple[Tensor, Tensor]  # keys and values of one block, [B, K, S, H]


class Attention(nn.Module):
    """N query heads, and K heads for keys and values, all of width H."""

    def __init__(self, D: int, N: int, K: int, H: int) -> None:
        super().__init__()
        self.N, self.K, self.H = N, K, H
        self.query, self.out = nn.Linear(D, N * H, bias=False), nn.Linear(N * H, D, bias=False)
        self.key, self.value = nn.Linear(D, K * H, bias=False), nn.Linear(D, K * H, bias=False)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """From [B, T, D] to [B, T, D]; with a cache, for the last token, whose keys and values are written at its end."""
        B, T, _ = x.shape
        q = self.query(x).view(B, T, self.N, self.H).transpose(1, 2)
        k, v = (f(x).view(B, T, self.K, self.H).transpose(1, 2) for f in (self.key, self.value))
        if cache is not None:
            cache[0][:, :, -1:], cache[1][:, :, -1:] = k, v
            k, v = cache
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(B, T, self.N * self.H))
        return y


class Gated(nn.Module):
    """An MLP of three matrices."""

    def __init__(self, D: int, F: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(i, o, bias=False) for i, o in ((D, F), (D, F), (F, D)))

    def forward(self, x: Tensor) -> Tensor:
        """From [B, T, D] to [B, T, D]."""
        y: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return y


class Block(nn.Module):
    """Attention and MLP, each added to its input."""

    def __init__(self, D: int, F: int, N: int, K: int, H: int) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(D, N, K, H), Gated(D, F)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """From [B, T, D] to [B, T, D]."""
        x = x + self.attention(x, cache)
        y: Tensor = x + self.mlp(x)
        return y


class Decoder(nn.Module):
    """L blocks between an embedding and the same matrix transposed."""

    def __init__(self, D: int, F: int, L: int, N: int, K: int, H: int, V: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(Block(D, F, N, K, H) for _ in range(L))

    def forward(self, ids: Tensor, caches: list[Cache] | None = None) -> Tensor:
        """From [B, T] token numbers to [B, T, V] scores; with the keys and values of each block, for the last token alone."""
        x: Tensor = self.embedding(ids)
        for i, block in enumerate(self.blocks):
            x = block(x, caches[i] if caches is not None else None)
        return x @ self.embedding.weight.T


def dense(
    B: int = 5, T: int = 64, D: int = 80, F: int = 112, L: int = 2, N: int = 6, K: int = 3, H: int = 32, V: int = 1000
) -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]:
    """The model and B texts of T tokens."""
    return Decoder(D, F, L, N, K, H, V), (torch.zeros(B, T, dtype=torch.long),), {}


def decode(
    B: int = 5, S: int = 64, D: int = 80, F: int = 112, L: int = 2, N: int = 6, K: int = 3, H: int = 32, V: int = 1000
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The last of the S tokens of B texts, the others in the cache."""
    caches = [(torch.zeros(B, K, S, H), torch.zeros(B, K, S, H)) for _ in range(L)]
    return Decoder(D, F, L, N, K, H, V), (torch.zeros(B, 1, dtype=torch.long), caches), {}
