"""Work that hides inside functions, wrappers and higher-order operators."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from families import Run, model
from torch import nn
from torch.utils.checkpoint import checkpoint


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x @ w).square()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g = 2 * g * (x @ w)
        return g @ w.mT, x.mT @ g


@model({"B": 3, "D": 9}, {"B": 1, "D": 5}, phase="backward")
def autograd_function(B=4, D=6):
    return Run(lambda self, x: Square.apply(x, self.w), w=nn.Parameter(torch.randn(D, D))), (torch.randn(B, D),), {}


@model({"B": 3, "D": 9}, {"B": 2, "D": 5}, phase="train")
def trained_mlp(B=4, D=6):
    return nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D), nn.LayerNorm(D)), (torch.randn(B, D),), {}


@model({"B": 3, "D": 9, "L": 5}, {"B": 2, "D": 5, "L": 3}, phase="backward")
def checkpointed(B=4, D=6, L=3):
    def run(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x

    return (
        Run(run, layers=nn.ModuleList(nn.Sequential(nn.Linear(D, D), nn.Tanh()) for _ in range(L))),
        (torch.randn(B, D, requires_grad=True),),
        {},
    )


@model({"B": 3, "D": 9}, {"B": 2, "D": 5})
def compiled(B=4, D=6):
    f = nn.Linear(D, D)
    return Run(lambda self, x: self.g(x), f=f, g=torch.compile(lambda x: f(x).relu() + 1)), (torch.randn(B, D),), {}


@model({"B": 3, "D": 9}, {"B": 2, "D": 5})
def vmapped(B=4, D=6):
    def run(self, x):
        return torch.func.vmap(lambda row: self.f(row).tanh())(x)

    return Run(run, f=nn.Linear(D, D)), (torch.randn(B, D),), {}


@model({"B": 3, "D": 9}, {"B": 2, "D": 5})
def functional_gradient(B=4, D=6):
    def run(self, x):
        return torch.func.grad(lambda w: (x @ w).square().sum())(self.w)

    return Run(run, w=nn.Parameter(torch.randn(D, D))), (torch.randn(B, D),), {}


@model({"B": 3, "D": 9}, {"B": 2, "D": 5})
def functional_call(B=4, D=6):
    def run(self, x):
        weights = {k: v * 2 for k, v in self.f.named_parameters()}
        return torch.func.functional_call(self.f, weights, (x,))

    return Run(run, f=nn.Linear(D, D)), (torch.randn(B, D),), {}


@model({"B": 3, "T": 9}, {"B": 2, "T": 5})
def mapped_steps(B=4, T=6):
    from torch._higher_order_ops.map import map as hop_map

    return Run(lambda self, x: hop_map(lambda row: self.f(row).relu(), x), f=nn.Linear(4, 4)), (torch.randn(T, B, 4),), {}


@model({"B": 3, "T": 9}, {"B": 2, "T": 5})
def scanned(B=4, T=6):
    from torch._higher_order_ops.scan import scan

    def run(self, x):
        def step(h, row):
            h = torch.tanh(h + row)
            return h, h.clone()

        return scan(step, torch.zeros(x.shape[1], 4), x)[1]

    return Run(run), (torch.randn(T, B, 4),), {}


@model({"B": 3, "T": 9}, {"B": 2, "T": 5})
def counted_while(B=4, T=6):
    from torch._higher_order_ops.while_loop import while_loop

    def run(self, x):
        n = x.shape[1]
        return while_loop(lambda i, y: i < n, lambda i, y: (i + 1, self.f(y)), (torch.tensor(0), x))[1]

    return Run(run, f=nn.Linear(4, 4)), (torch.randn(B, T, 4),), {}


@model({"B": 3, "N": 2, "T": 9, "H": 16}, {"B": 2, "N": 4, "T": 5, "H": 32})
def flexible_attention(B=2, N=3, T=16, H=8):
    from torch.nn.attention.flex_attention import flex_attention

    q = lambda: torch.randn(B, N, T, H)
    return Run(lambda self, q, k, v: flex_attention(q, k, v)), (q(), q(), q()), {}


@model({"B": 3, "T": 9, "D": 8}, {"B": 2, "T": 5, "D": 16})
def library_encoder(B=2, T=6, D=12):
    layer = nn.TransformerEncoderLayer(D, 2, 4 * D, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), (torch.randn(B, T, D),), {}


@model({"B": 3, "T": 9, "D": 8}, {"B": 2, "T": 5, "D": 16})
def library_attention(B=2, T=6, D=12):
    return Run(lambda self, x: self.a(x, x, x)[0], a=nn.MultiheadAttention(D, 4, batch_first=True)), (torch.randn(B, T, D),), {}


@model({"B": 3, "T": 9, "D": 8, "L": 3}, {"B": 2, "T": 5, "D": 16, "L": 1})
def library_lstm(B=2, T=6, D=12, L=2):
    return (
        Run(lambda self, x: self.r(x)[0], r=nn.LSTM(D, D, L, batch_first=True, bidirectional=True)),
        (torch.randn(B, T, D),),
        {},
    )


@model({"B": 3, "T": 9, "D": 8}, {"B": 2, "T": 5, "D": 16}, phase="backward")
def attention_gradients(B=2, T=6, D=12):
    def run(self, x):
        q, k, v = self.qkv(x).view(x.shape[0], x.shape[1], 3, 4, -1).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    return Run(run, qkv=nn.Linear(D, 3 * D)), (torch.randn(B, T, D),), {}


@model({"B": 3, "I": 14}, {"B": 2, "I": 11}, phase="train")
def trained_cnn(B=2, I=12):
    return (
        nn.Sequential(
            nn.Conv2d(3, 6, 3, 2),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 4),
        ),
        (torch.randn(B, 3, I, I),),
        {},
    )
