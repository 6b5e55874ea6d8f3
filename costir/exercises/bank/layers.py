"""Parts of decoders: gated MLP, attention with N heads of width H, a layer of both, and a plain pair of matrices.

The optimizer of a training step is Adam whose two moments are fp32, whatever type the weights have.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

Made = tuple[nn.Module, tuple[Tensor, ...], dict[str, Tensor]]


def _matrix(rows: int, columns: int) -> nn.Linear:
    return nn.Linear(rows, columns, bias=False)


class GatedMLP(nn.Module):  # type: ignore[misc]
    """Three matrices."""

    def __init__(self, D: int, F: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = _matrix(D, F), _matrix(D, F), _matrix(F, D)

    def forward(self, x: Tensor) -> Tensor:
        """x is [B, T, D]."""
        out: Tensor = self.down(silu(self.gate(x)) * self.up(x))
        return out


class Attention(nn.Module):  # type: ignore[misc]
    """Every head has keys and values of its own."""

    def __init__(self, D: int, N: int, H: int) -> None:
        super().__init__()
        self.N, self.H = N, H
        self.q, self.k, self.v, self.o = _matrix(D, N * H), _matrix(D, N * H), _matrix(D, N * H), _matrix(N * H, D)

    def forward(self, x: Tensor) -> Tensor:
        """x is [B, T, D]."""
        B, T, _ = x.shape
        q, k, v = (p(x).view(B, T, self.N, self.H).transpose(1, 2) for p in (self.q, self.k, self.v))
        core = scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.o(core.transpose(1, 2).reshape(B, T, self.N * self.H))
        return out


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and MLP behind one shared norm, so that a layer has D gains beside its matrices."""

    def __init__(self, D: int, F: int, N: int, H: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(D)
        self.attention, self.mlp = Attention(D, N, H), GatedMLP(D, F)

    def forward(self, x: Tensor) -> Tensor:
        """x is [B, T, D]."""
        y = self.norm(x)
        out: Tensor = x + self.attention(y) + self.mlp(y)
        return out


class Pair(nn.Module):  # type: ignore[misc]
    """`up` and `down` with nothing between, so that every FLOP is of a matrix."""

    def __init__(self, D: int, F: int) -> None:
        super().__init__()
        self.up, self.down = _matrix(D, F), _matrix(F, D)

    def forward(self, x: Tensor) -> Tensor:
        """x is [B, D]."""
        out: Tensor = self.down(self.up(x))
        return out


def gated_mlp(B: int = 2, T: int = 64, D: int = 256, F: int = 640) -> Made:
    """The MLP alone."""
    return GatedMLP(D, F), (torch.empty(B, T, D),), {}


def attention(B: int = 2, T: int = 64, D: int = 256, N: int = 4, H: int = 32) -> Made:
    """Attention alone."""
    return Attention(D, N, H), (torch.empty(B, T, D),), {}


def layer(B: int = 2, T: int = 64, D: int = 256, F: int = 640, N: int = 4, H: int = 32) -> Made:
    """The whole layer."""
    return Layer(D, F, N, H), (torch.empty(B, T, D),), {}


def pair(B: int = 64, D: int = 256, F: int = 640) -> Made:
    """Two matrices in the middle of a network: their input wants a gradient too."""
    return Pair(D, F), (torch.empty(B, D, requires_grad=True),), {}


class Adam(torch.optim.Optimizer):  # type: ignore[misc]
    """Weights in their own type, moments in fp32."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"rate": 1e-3, "betas": (0.9, 0.999)})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: None = None) -> None:
        """Mean and mean square of the gradient, then the weight."""
        for group in self.param_groups:
            first, second = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state["mean"], state["square"] = (torch.zeros_like(p, dtype=torch.float32) for _ in range(2))
                grad = p.grad.float()
                state["mean"].mul_(first).add_(grad, alpha=1 - first)
                state["square"].mul_(second).addcmul_(grad, grad, value=1 - second)
                p.add_((state["mean"] / (state["square"].sqrt() + 1e-8)).to(p.dtype), alpha=-group["rate"])


def optimizer(params: Iterable[Tensor]) -> Adam:
    """The optimizer."""
    return Adam(params)
