"""Where a model cannot run there is no number: what operators ask of sizes, against runs of the model at each point."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import costir
from costir.errors import SizeError
from costir.ir import condition_text
from costir.lifting.asked import alike, at_least
from costir.symbolic import Integer, ceil_div, floor_div, holds, size


class Of(nn.Module):
    """A module of a function and its parts."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args):
        return self.function(self, *args)


def wide_kernel(B=2, I=30):
    return nn.Conv2d(3, 4, 7), (torch.randn(B, 3, I, I),), {}


def dilated(B=2, I=30):
    return nn.Conv1d(3, 4, 5, stride=3, padding=2, dilation=2), (torch.randn(B, 3, I),), {}


def stages(B=2, I=40):
    return nn.Sequential(nn.Conv1d(3, 4, 7, 2), nn.MaxPool1d(2), nn.Conv1d(4, 4, 3, 2)), (torch.randn(B, 3, I),), {}


def halves(B=2, I=64):
    return nn.Sequential(*[nn.AvgPool1d(2)] * 4), (torch.randn(B, 3, I),), {}


def windows(B=2, T=30):
    return Of(lambda m, x: x.unfold(1, 5, 3) * 2), (torch.randn(B, T),), {}


def best(B=2, V=30, k=5):
    return Of(lambda m, x: x.topk(k, -1)[0].softmax(-1)), (torch.randn(B, V),), {}


def grouped_heads(N=4, K=2, T=8):
    attend = F.scaled_dot_product_attention
    return Of(lambda m, q, k: attend(q, k, k, enable_gqa=True)), (torch.randn(1, N, T, 8), torch.randn(1, K, T, 8)), {}


def group_norm(C=12, G=4):
    return nn.GroupNorm(G, C), (torch.randn(2, C, 5),), {}


def mirrored(B=2, I=20):
    return nn.ReflectionPad1d(3), (torch.randn(B, 3, I),), {}


def up_again(B=2, I=32):
    up = nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1)
    return (
        nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), up, nn.Conv2d(4, 3, 3, padding=1)),
        (torch.randn(B, 3, I, I),),
        {},
    )


def pooled_twice(B=2, T=20, D=4):
    def run(m, x):
        y = F.max_pool1d(x.transpose(1, 2), 2).transpose(1, 2)
        return m.linear(torch.cat([y, y], 1))

    return Of(run, linear=nn.Linear(D, D)), (torch.randn(B, T, D),), {}


def down_and_up(B=2, I=32):
    """A network of which the upper half is padded where it came out too short."""

    def run(m, x):
        y = F.interpolate(F.max_pool2d(x, 2), scale_factor=2)
        return m.last(y if y.shape[-1] == x.shape[-1] else m.fix(F.pad(y, (0, 1, 0, 1))))

    return Of(run, fix=nn.Conv2d(3, 3, 3, padding=1), last=nn.Conv2d(3, 3, 1)), (torch.randn(B, 3, I, I),), {}


def same_padding(K=3, I=20):
    return nn.Conv1d(3, 4, K, padding="same"), (torch.randn(2, 3, I),), {}


def distances(P=9, D=5):
    return Of(lambda m, x: torch.cdist(x, x)), (torch.randn(P, D),), {}


def some_distances(P=9, Q=30, D=5):
    return Of(lambda m, x, y: torch.cdist(x, y)), (torch.randn(P, D), torch.randn(Q, D)), {}


def thirds(B=2, T=20):
    return Of(lambda m, x: torch.cat([c * 2 for c in x.chunk(3, 1)], 1)), (torch.randn(B, T),), {}


def any_window(B=2, I=20, K=5, S=3, P=2):
    return nn.Conv1d(3, 4, K, S, P), (torch.randn(B, 3, I),), {}


def runs(build, point):
    try:
        model, args, options = build(**point)
        with torch.no_grad():
            model(*args, **options)
    except (RuntimeError, ValueError):
        return False
    return True


def counted(build, point):
    """FLOPs and bytes of a family that has no other sizes than these."""
    found = costir.analyze(build, sizes=point).at()
    return found.flops, found.bytes


@pytest.mark.parametrize(
    ("build", "moved"),
    [
        (wide_kernel, {"I": range(1, 12)}), (dilated, {"I": range(1, 12)}), (stages, {"I": range(1, 24)}),
        (halves, {"I": range(1, 24)}), (windows, {"T": range(1, 12)}), (best, {"V": range(1, 12), "k": range(1, 12, 2)}),
        (grouped_heads, {"N": range(1, 9), "K": range(1, 5)}), (group_norm, {"C": range(1, 13), "G": range(1, 7)}),
        (mirrored, {"I": range(1, 8)}),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)  # fmt: skip
def test_a_number_where_the_model_runs_and_none_where_it_does_not(build, moved):
    analysis = costir.analyze(build)
    failed = 0
    for values in itertools.product(*moved.values()):
        point = dict(zip(moved, values, strict=True))
        if runs(build, point):
            assert min(analysis.at(**point).flops, analysis.at(**point).bytes) >= 0
            continue
        failed += 1
        with pytest.raises(SizeError):
            analysis.at(**point)
    assert failed


@pytest.mark.parametrize(
    ("build", "moved"),
    [
        (up_again, {"I": range(30, 36)}), (down_and_up, {"I": range(30, 36)}),
        (pooled_twice, {"T": range(18, 24)}), (same_padding, {"K": range(2, 7)}),
        (distances, {"P": (8, 24, 25, 26, 40)}), (some_distances, {"Q": (17, 25, 26, 40), "P": (5, 30)}),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)  # fmt: skip
def test_another_way_of_running_is_no_wrong_number(build, moved):
    analysis, right = costir.analyze(build), 0
    for values in itertools.product(*moved.values()):
        point = dict(zip(moved, values, strict=True))
        try:
            found = analysis.at(**point)
        except SizeError:
            assert build is some_distances
            continue
        right += 1
        assert (found.flops, found.bytes) == counted(build, point), point
    assert right >= 2


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (wide_kernel, ["I >= 7"]), (stages, ["I >= 17"]), (halves, ["I >= 16"]), (grouped_heads, ["N % K == 0"]),
        (best, ["V >= k"]), (thirds, ["T >= 2"]), (any_window, ["I + 2*P >= K"]),
        (distances, ["P <= 25"]), (same_padding, ["Mod(K, 2) == 1"]),
        (lambda B=2, I=32: (nn.Conv2d(3, 4, 3, padding=1), (torch.randn(B, 3, I, I),), {}), []),
        (lambda B=2, T=9, D=8: (nn.Linear(D, D), (torch.randn(B, T, D),), {}), []),
    ],
)  # fmt: skip
def test_conditions_are_short_and_only_those_that_say_something(build, said):
    assert [condition_text(c.condition) for c in costir.analyze(build).constraints] == said


def test_an_entry_must_be_there_at_a_point_of_ones_too():
    def build(B=2, T=9):
        return Of(lambda m, x: x[:, 3] * 2), (torch.randn(B, T),), {}

    with pytest.raises(SizeError, match="hold where T > 3"):
        costir.analyze(build).at(T=1)


I, J, N = size("I"), size("J"), size("N")
FORMS = [
    (floor_div(I - 7, Integer(2)) + 1, 1), (ceil_div(ceil_div(I - 6, Integer(2)) - 2, Integer(2)), 1),
    (floor_div(3 * I + 1, Integer(5)) - 4, 0), (ceil_div(2 * I, Integer(3)), 7), (5 - I, 0), (I - J, 1), (I * J - 6, 0),
    (2 * floor_div(I, Integer(3)) - ceil_div(J, Integer(2)), 0), (I + J - 2, 0), (floor_div(I * J, Integer(4)) - 1, 0),
    (I - 2 * ceil_div(I, Integer(3)), 0), (I * J - 2 * J * ceil_div(I, Integer(3)), 0),
    (J * floor_div(I - 5, Integer(3)) + J, 0),
    (I / J - 3 / J + 1, 0),
]  # fmt: skip


@pytest.mark.parametrize(("form", "least"), FORMS, ids=str)
def test_a_bound_holds_where_the_number_is_large_enough(form, least):
    condition = at_least(form, Integer(least))
    for i, j in itertools.product(range(1, 40), range(1, 12)):
        assert holds(condition, {I: i, J: j}) == bool(form.xreplace({I: Integer(i), J: Integer(j)}) >= least), (i, j)


PAIRS = [
    (2 * floor_div(I, Integer(2)), I, "I % 2 == 0"), (ceil_div(I, Integer(64)), Integer(1), "I <= 64"),
    (floor_div(I - 1, Integer(3)) + 1, ceil_div(I, Integer(3)), "True"),
    (I + 2 * floor_div(N - 1, Integer(2)) - N + 1, I, "Mod(N, 2) == 1"),
    (4 * ceil_div(I, Integer(4)), I, "I % 4 == 0"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "said"), PAIRS, ids=str)
def test_two_forms_of_one_number(a, b, said):
    condition = alike(a, b)
    assert condition_text(condition) == said
    for i, n in itertools.product(range(1, 140), range(1, 9)):
        point = {I: Integer(i), N: Integer(n)}
        assert holds(condition, {I: i, N: n}) == bool(a.xreplace(point) == b.xreplace(point))
