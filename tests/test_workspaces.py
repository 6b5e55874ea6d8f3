"""Peak memory of small random models, and what operators allocate inside, against every allocation of torch's CPU allocator."""

import gc
import random

import pytest
import torch
import torch.nn.functional as F
from memory_oracle import real_peak
from torch import nn
from torch.profiler import ProfilerActivity, profile

from costir import memory, trace
from costir.lifting.workspaces import workspace
from costir.load.family import Family
from costir.tracing.recorder import Recorder, Scope

ATEN = torch.ops.aten
N, K, M = 64, 96, 160


@pytest.fixture(autouse=True)
def two_threads():
    """Scratch memory grows with the number of threads; with one alone, torch runs small convolutions itself."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def inside(call):
    """The most bytes that a call holds, those of its results included."""
    call()
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        out = call()
    now = most = 0
    for e in sorted((e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += e.nbytes()
        most = max(most, now)
    del out
    return most


def said(call):
    """The same by rule."""
    recorder = Recorder(Scope(), None)
    recorder.recording = True
    with recorder:
        out = call()
    (event,) = recorder.events
    copies = sum(torch.empty(c.shape, dtype=getattr(torch, c.dtype), device="meta").nbytes for c in workspace(event))
    return copies + sum(t.nbytes for t in (out if isinstance(out, tuple) else (out,)) if t is not None)


one, ones = torch.ones(()), torch.ones
PRODUCTS = {
    "plain": (ATEN.mm, (ones(N, K), ones(K, M))),
    "transposed": (ATEN.mm, (ones(K, N).t(), ones(M, K).t())),
    "gradient of a sum": (ATEN.mm, (one.expand(N, M), ones(M, K))),
    "gradient of a sum over rows": (ATEN.mm, (ones(K, N), ones(1, M).expand(N, M))),
    "gradient of a sum over columns": (ATEN.mm, (ones(N, 1).expand(N, M), ones(M, K))),
    "with bias": (ATEN.addmm, (ones(K), one.expand(N, M), ones(M, K))),
    "every second column": (ATEN.mm, (ones(N, 2 * K)[:, ::2], ones(K, M))),
    "batched": (ATEN.bmm, (ones(4, N, K), ones(4, M, K).mT)),
    "batched gradient of a sum": (ATEN.bmm, (ones(4, K, N), one.expand(4, N, M))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_copy_what_blas_cannot_read(name):
    op, args = PRODUCTS[name]
    assert said(lambda: op(*args)) == inside(lambda: op(*args))


CONVOLUTIONS = [
    (8, 3, 32, 32, 3, 1, 1), (4, 32, 64, 16, 3, 1, 1), (4, 64, 64, 16, 1, 1, 1), (16, 32, 64, 32, 3, 2, 1),
    (16, 64, 32, 32, 1, 2, 1), (4, 64, 64, 16, 3, 1, 64), (16, 64, 64, 16, 3, 2, 64), (16, 64, 16, 32, 3, 2, 1),
]  # fmt: skip


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions_work_on_copies(case):
    batch, c, out, side, kernel, stride, groups = case
    x, w = torch.ones(batch, c, side, side), torch.ones(out, c // groups, kernel, kernel)
    rest = ([stride] * 2, [kernel // 2] * 2, [1, 1], False, [0, 0], groups)
    forward = lambda: ATEN.convolution(x, w, None, *rest)
    gradient = torch.ones_like(forward())
    assert said(forward) == pytest.approx(inside(forward), rel=0.05)
    mask = [c > 3, True, False]
    backward = lambda: ATEN.convolution_backward(gradient, x, w, None, *rest, mask)
    assert said(backward) == pytest.approx(inside(backward), rel=0.08)  # and scratch of every thread


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Attention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


class Recurrent(nn.GRU):
    def forward(self, x):
        return super().forward(x)[0]


def of_rows(pick):
    """A layer of some kind on rows of 32."""
    act = pick([nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh])()
    return pick([
        lambda: nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 128), act, nn.Linear(128, 32)),
        lambda: nn.Sequential(nn.Linear(32, 32, bias=False), act, nn.Dropout(0.1)),
        lambda: Residual(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), act, nn.Linear(64, 32))),
        lambda: Residual(nn.Sequential(nn.LayerNorm(32), Attention(32, 2, batch_first=True))),
        lambda: Recurrent(32, 32, batch_first=True),
    ])()  # fmt: skip


def of_images(pick, c, out):
    kernel, stride = pick([(1, 1), (3, 1), (3, 2)])
    norm = pick([nn.BatchNorm2d(out), nn.GroupNorm(4, out), nn.Identity()])
    return [nn.Conv2d(c, out, kernel, stride, kernel // 2), norm, pick([nn.ReLU, nn.GELU, nn.SiLU])()]


def made(seed):
    """A random small model as a family, with one of three losses, and two points."""

    def build(B=4, T=16):
        pick = random.Random(seed).choice
        if seed % 3 < 2:
            layers = [of_rows(pick) for _ in range(pick([1, 2, 3]))]
            lead, x = ([nn.Embedding(50, 32)], torch.zeros(B, T, dtype=torch.long)) if seed % 2 else ([], torch.randn(B, T, 32))
            return nn.Sequential(*lead, *layers, nn.Linear(32, 10)), (x,), {}
        c, layers = 3, []
        for out in [pick([16, 32, 64]) for _ in range(pick([1, 2, 3]))]:
            layers, c = [*layers, *of_images(pick, c, out)], out
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10)), (torch.randn(B, 3, T, T),), {}

    classes = lambda out: F.cross_entropy(out.flatten(0, -2), torch.zeros(out[..., 0].numel(), dtype=torch.long))
    loss = [None, classes, lambda out: F.mse_loss(out, torch.zeros_like(out))][seed % 7 % 3]
    return Family("made", build, {"B": 4, "T": 16}, loss=loss)


@pytest.mark.parametrize("seed", [0, 2, 3, 5, 6])
def test_the_peak_of_random_models(seed):
    family = made(seed)
    for sizes in ({"B": 8, "T": 16}, {"B": 12, "T": 24}):
        with trace.no_collection():
            found = max(m.total for m in memory.moments(trace.run(family, sizes, "train")))
        assert found == pytest.approx(real_peak(family, sizes), rel=0.05), sizes
