"""Dimensions that are no plain products."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from families import Run, model
from torch import nn


@model({"B": 3, "I": 40}, {"B": 1, "I": 33}, {"B": 2, "I": 32})
def conv_stride_three(B=2, I=31):
    net = nn.Sequential(nn.Conv2d(3, 8, 5, stride=3, padding=1, dilation=2), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2))
    return net, (torch.randn(B, 3, I, I),), {}


@model({"B": 3, "I": 40}, {"B": 1, "I": 33}, {"B": 2, "I": 38})
def ceil_pool(B=2, I=31):
    net = nn.Sequential(nn.MaxPool2d(3, 2, ceil_mode=True), nn.Conv2d(3, 8, 1), nn.AvgPool2d(2, 2, ceil_mode=True))
    return net, (torch.randn(B, 3, I, I),), {}


@model({"B": 3, "I": 40, "J": 22}, {"B": 1, "I": 33, "J": 50})
def resnet_stem(B=2, I=64, J=48):
    net = nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )
    return net.eval(), (torch.randn(B, 3, I, J),), {}


@model({"B": 3, "I": 40}, {"B": 1, "I": 36}, outside=({"B": 2, "I": 31}, {"B": 2, "I": 33}))
def upsampled(B=2, I=16):
    def run(self, x):
        y = F.interpolate(self.down(x), scale_factor=2, mode="nearest")
        return self.up(torch.cat([x, y], 1))

    return Run(run, down=nn.Conv2d(4, 4, 2, 2), up=nn.Conv2d(8, 4, 3, padding=1)), (torch.randn(B, 4, I, I),), {}


@model({"B": 3, "I": 40}, {"B": 1, "I": 37})
def half_scale(B=2, I=16):
    return (
        Run(lambda self, x: self.f(F.interpolate(x, scale_factor=0.5, mode="bilinear")), f=nn.Conv2d(3, 4, 1)),
        (torch.randn(B, 3, I, I),),
        {},
    )


@model({"B": 3, "T": 40, "W": 6}, {"B": 1, "T": 37, "W": 5}, {"B": 2, "T": 9, "W": 9})
def windows(B=2, T=16, W=4):
    """Overlapping windows: T - W + 1 of them."""
    return Run(lambda self, x: self.f(x.unfold(1, self.w, 1)), w=W, f=nn.Linear(W, 3)), (torch.randn(B, T),), {}


@model({"B": 3, "T": 40}, {"B": 1, "T": 37}, {"B": 2, "T": 17})
def patches_by_stride(B=2, T=20):
    return Run(lambda self, x: self.f(x.unfold(1, 5, 3)), f=nn.Linear(5, 3)), (torch.randn(B, T),), {}


@model({"B": 3, "T": 40}, {"B": 1, "T": 37}, {"B": 2, "T": 64}, {"B": 2, "T": 1})
def padded_to_multiple(B=2, T=21):
    def run(self, x):
        missing = -x.shape[1] % 8
        x = F.pad(x, (0, 0, 0, missing))
        return self.f(x.reshape(x.shape[0], -1, 8 * 4))

    return Run(run, f=nn.Linear(32, 5)), (torch.randn(B, T, 4),), {}


@model({"B": 3, "T": 40, "W": 6}, {"B": 1, "T": 37, "W": 5}, {"B": 2, "T": 30, "W": 10})
def padded_windows(B=2, T=21, W=4):
    def run(self, x):
        w = self.w
        n = (x.shape[1] + w - 1) // w
        x = F.pad(x, (0, 0, 0, n * w - x.shape[1])).reshape(x.shape[0], n, w, 4)
        return (x @ x.mT).softmax(-1) @ self.f(x)

    return Run(run, w=W, f=nn.Linear(4, 4)), (torch.randn(B, T, 4),), {}


@model({"B": 3, "D": 40}, {"B": 1, "D": 37}, {"B": 2, "D": 9})
def half_width(B=2, D=16):
    return nn.Sequential(nn.Linear(D, D // 2), nn.Linear(D // 2, D)), (torch.randn(B, D),), {}


@model({"B": 3, "D": 40}, {"B": 1, "D": 37}, {"B": 2, "D": 9})
def third_width(B=2, D=15):
    return nn.Sequential(nn.Linear(D, D // 3 + 1), nn.Linear(D // 3 + 1, D)), (torch.randn(B, D),), {}


@model({"B": 3, "D": 40}, {"B": 1, "D": 48})
def two_thirds(B=2, D=24):
    """int(8*D/3), rounded up to a multiple of 8, as many MLPs do."""
    hidden = 8 * ((int(8 * D / 3) + 7) // 8)
    return nn.Sequential(nn.Linear(D, hidden), nn.SiLU(), nn.Linear(hidden, D)), (torch.randn(B, D),), {}


@model({"B": 3, "T": 40}, {"B": 1, "T": 37})
def strided_slice(B=2, T=20):
    return Run(lambda self, x: self.f(x[:, ::3]) + self.f(x[:, 1::3][:, :1]), f=nn.Linear(4, 4)), (torch.randn(B, T, 4),), {}


@model({"B": 3, "T": 40, "D": 6}, {"B": 1, "T": 9, "D": 4})
def class_token(B=2, T=20, D=8):
    def run(self, x):
        x = torch.cat([self.cls.expand(x.shape[0], 1, -1), x], 1) + self.pos
        return self.head((x @ x.mT).softmax(-1) @ x)

    return (
        Run(run, cls=nn.Parameter(torch.zeros(1, 1, D)), pos=nn.Parameter(torch.zeros(T + 1, D)), head=nn.Linear(D, 3)),
        (torch.randn(B, T, D),),
        {},
    )


@model({"B": 3, "T": 40}, {"B": 1, "T": 9})
def relative_positions(B=2, T=20):
    def run(self, x):
        n = x.shape[1]
        i = torch.arange(n)
        bias = self.table(i[:, None] - i[None, :] + n - 1).squeeze(-1)
        return (x @ x.mT + bias).softmax(-1) @ x

    return Run(run, table=nn.Embedding(2 * T - 1, 1)), (torch.randn(B, T, 6),), {}


@model({"B": 3, "T": 40}, {"B": 1, "T": 9})
def upper_triangle(B=2, T=20):
    """T*(T+1)/2 pairs."""

    def run(self, x):
        i, j = torch.triu_indices(x.shape[1], x.shape[1])
        return self.f((x @ x.mT)[:, i, j].unsqueeze(-1))

    return Run(run, f=nn.Linear(1, 3)), (torch.randn(B, T, 6),), {}


@model({"B": 3, "T": 4, "S": 9}, {"B": 1, "T": 9, "S": 30}, {"B": 1, "T": 1, "S": 30})
def cache_and_new(B=2, T=3, S=20):
    def run(self, x, past):
        keys = torch.cat([past, self.k(x)], 1)
        return (self.q(x) @ keys.mT).softmax(-1) @ keys

    return Run(run, q=nn.Linear(8, 8), k=nn.Linear(8, 8)), (torch.randn(B, T, 8), torch.randn(B, S, 8)), {}


@model(
    {"B": 3, "T": 4, "N": 6, "K": 3, "H": 8}, {"B": 1, "T": 9, "N": 4, "K": 4, "H": 2}, {"B": 1, "T": 9, "N": 8, "K": 2, "H": 6}
)
def fused_qkv(B=2, T=3, N=4, K=2, H=4):
    def run(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).split([self.n * self.h, self.k * self.h, self.k * self.h], -1)
        q = q.view(b, t, self.n, self.h).transpose(1, 2)
        k, v = (y.view(b, t, self.k, self.h).transpose(1, 2).repeat_interleave(self.n // self.k, 1) for y in (k, v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, -1))

    D = N * H
    return Run(run, n=N, k=K, h=H, qkv=nn.Linear(D, (N + 2 * K) * H), o=nn.Linear(D, D)), (torch.randn(B, T, D),), {}


@model({"B": 3, "D": 24, "N": 6, "H": 4}, {"B": 1, "D": 10, "N": 2, "H": 5})
def width_is_heads_times_head(B=2, D=12, N=3, H=4):
    def run(self, x):
        return self.o(self.q(x).view(-1, self.n, self.h).transpose(0, 1).reshape(-1, self.n * self.h) + x)

    return Run(run, n=N, h=H, q=nn.Linear(D, N * H), o=nn.Linear(D, D)), (torch.randn(B, D),), {}


@model({"B": 3, "N": 6, "K": 6}, {"B": 1, "N": 2, "K": 2}, outside=({"B": 1, "N": 4, "K": 2},))
def equal_heads(B=2, N=4, K=4):
    def run(self, q, k):
        return torch.einsum("bnh,bnh->bn", q, k)

    return Run(run), (torch.randn(B, N, 8), torch.randn(B, K, 8)), {}


@model({"B": 3, "V": 60}, {"B": 1, "V": 8})
def one_hot(B=2, V=40):
    return Run(lambda self, i: self.f(F.one_hot(i, self.v).float()), v=V, f=nn.Linear(V, 5)), (torch.randint(0, 8, (B, 7)),), {}


@model({"B": 3, "E": 60, "k": 4}, {"B": 1, "E": 8, "k": 1})
def top_k_gate(B=2, E=10, k=3):
    def run(self, x):
        w, i = self.gate(x).topk(self.k, -1)
        return self.f(torch.zeros(x.shape[0], self.e).scatter(1, i, w.softmax(-1)))

    return Run(run, k=k, e=E, gate=nn.Linear(6, E), f=nn.Linear(E, 5)), (torch.randn(B, 6),), {}


@model({"B": 3, "I": 4, "J": 5, "K": 6, "M": 7}, {"B": 1, "I": 9, "J": 2, "K": 3, "M": 4})
def einsum_chain(B=2, I=3, J=4, K=5, M=6):
    def run(self, x):
        y = torch.einsum("bij,jk->bik", x, self.a)
        return torch.einsum("bik,km,bin->bmn", y, self.c, x)

    return Run(run, a=nn.Parameter(torch.randn(J, K)), c=nn.Parameter(torch.randn(K, M))), (torch.randn(B, I, J),), {}


@model({"B": 3, "I": 4, "J": 5}, {"B": 1, "I": 9, "J": 2})
def bilinear(B=2, I=3, J=4):
    return nn.Bilinear(I, J, 5), (torch.randn(B, I), torch.randn(B, J)), {}


@model({"B": 3, "T": 40}, {"B": 1, "T": 32}, {"B": 1, "T": 33})
def spectrum(B=2, T=20):
    def run(self, x):
        f = torch.fft.rfft(x)
        return torch.fft.irfft(f * self.w, n=x.shape[-1])

    return Run(run, w=nn.Parameter(torch.randn(T // 2 + 1, dtype=torch.cfloat))), (torch.randn(B, T),), {}


@model({"B": 3, "T": 40}, {"B": 1, "T": 33})
def complex_product(B=2, T=20):
    return (
        Run(lambda self, x: (x @ self.w).abs(), w=nn.Parameter(torch.randn(T, 6, dtype=torch.cfloat))),
        (torch.randn(B, T, dtype=torch.cfloat),),
        {},
    )


@model({"B": 3, "T": 40, "R": 5}, {"B": 1, "T": 33, "R": 2})
def repeated(B=2, T=20, R=3):
    return (
        Run(lambda self, x: self.f(x.repeat_interleave(self.r, 1)) + x.repeat(1, self.r, 1), r=R, f=nn.Linear(4, 4)),
        (torch.randn(B, T, 4),),
        {},
    )


@model({"B": 3, "I": 20, "P": 5, "D": 6}, {"B": 1, "I": 12, "P": 3, "D": 8}, outside=({"B": 1, "I": 13, "P": 3, "D": 8},))
def patch_embedding(B=2, I=16, P=4, D=8):
    def run(self, x):
        y = self.patch(x).flatten(2).mT
        y = torch.cat([self.cls.expand(y.shape[0], -1, -1), y], 1) + self.pos
        return (y @ y.mT).softmax(-1) @ y

    parts = {
        "patch": nn.Conv2d(3, D, P, P),
        "cls": nn.Parameter(torch.zeros(1, 1, D)),
        "pos": nn.Parameter(torch.zeros((I // P) ** 2 + 1, D)),
    }
    return Run(run, **parts), (torch.randn(B, 3, I, I),), {}


@model({"B": 3, "I": 20, "W": 5}, {"B": 1, "I": 12, "W": 3})
def shifted_windows(B=2, I=8, W=4):
    def run(self, x):
        b, n, w = x.shape[0], x.shape[1], self.w
        x = torch.roll(x, (-(w // 2), -(w // 2)), (1, 2))
        x = x.view(b, n // w, w, n // w, w, 6).transpose(2, 3).reshape(-1, w * w, 6)
        y = (x @ x.mT).softmax(-1) @ self.f(x)
        return y.view(b, n // w, n // w, w, w, 6).transpose(2, 3).reshape(b, n, n, 6)

    return Run(run, w=W, f=nn.Linear(6, 6)), (torch.randn(B, I, I, 6),), {}


@model({"B": 3, "T": 20}, {"B": 1, "T": 12}, {"B": 2, "T": 13})
def adaptive_pool(B=2, T=14):
    return nn.Sequential(nn.AdaptiveAvgPool1d(7), nn.Conv1d(4, 4, 3)), (torch.randn(B, 4, T),), {}


@model({"B": 3, "C": 20, "G": 5}, {"B": 1, "C": 12, "G": 3})
def grouped_conv(B=2, C=8, G=4):
    return nn.Sequential(nn.Conv2d(C, 2 * C, 3, groups=G), nn.GroupNorm(G, 2 * C)), (torch.randn(B, C, 9, 9),), {}


@model({"B": 3, "I": 7, "s": 3}, {"B": 1, "I": 12, "s": 2}, {"B": 1, "I": 12, "s": 1})
def transposed_conv(B=2, I=5, s=2):
    return nn.ConvTranspose2d(3, 4, 3, stride=s, padding=1), (torch.randn(B, 3, I, I),), {}


@model({"B": 3, "T": 7, "W": 3}, {"B": 1, "T": 12, "W": 2}, {"B": 1, "T": 12, "W": 11})
def band_mask(B=2, T=10, W=4):
    def run(self, x):
        i = torch.arange(x.shape[1])
        far = (i[:, None] - i[None, :]).abs() > self.w
        return (x @ x.mT).masked_fill(far, float("-inf")).softmax(-1) @ x

    return Run(run, w=W), (torch.randn(B, T, 6),), {}


@model({"I": 20, "J": 30, "nnz": 7}, {"I": 5, "J": 6, "nnz": 3})
def sparse_product(I=8, J=10, nnz=12):
    def run(self, x):
        return torch.sparse.mm(self.m, x)

    index = torch.stack([torch.arange(nnz) % I, torch.arange(nnz) % J])
    return Run(run, m=torch.sparse_coo_tensor(index, torch.ones(nnz), (I, J))), (torch.randn(J, 3),), {}


@model({"B": 3, "T": 40, "D": 8}, {"B": 1, "T": 33, "D": 6})
def rotary(B=2, T=20, D=4):
    def run(self, x):
        angle = torch.outer(torch.arange(x.shape[1]).float(), 1.0 / 10000 ** (torch.arange(0, self.d, 2).float() / self.d))
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., ::2], x[..., 1::2]
        y = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        return y @ y.mT

    return Run(run, d=D), (torch.randn(B, T, D),), {}
