"""What an operator of a run is estimated to take: its curve, its memory, and what ran between."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from calibrations import made_up
from torch import nn

from costir.calibration import Calibration, Curve
from costir.cost import cost_of
from costir.load.subject import family_of
from costir.measuring.estimate import Estimate, Estimator, _passed
from costir.measuring.interrupted import rising
from costir.measuring.kernels import kernels
from costir.measuring.lookup import lookups
from costir.measuring.lookup_parts import Lookup
from costir.measuring.reuse import reuse
from costir.measuring.subject import Recorded, subject
from costir.ops import registry  # noqa: F401
from costir.trace import record_calls


def calls_of(function, *args, backward=False):
    return list(record_calls(function, *args, backward=backward))


def test_operators_find_their_curves():
    x, w = torch.rand(6, 8), torch.rand(8, 5)
    one = lambda f, *a: lookups(calls_of(f, *a)[-1], ((8, 1), (5, 1)), cost_of(calls_of(f, *a)[-1])[0])[0]
    assert (one(torch.mm, x, w).curve, one(torch.mm, x, w).sizes) == ("mm_nn", (6, 5, 8))
    assert one(torch.exp, x).curve == "exp"
    assert one(torch.exp, x).sizes == (48,)
    assert one(lambda t: t.softmax(-1), x).sizes == (6, 8)
    assert one(lambda t: t.sum(0), x).curve == "sum_rows"
    assert one(lambda t: t.sum(1), x).sizes == (6, 8)
    assert one(lambda t: t + t[:1], x).curve == "broadcast"
    assert one(torch.erfinv, x).alike  # it has no curve
    assert not one(torch.add, x, x).alike


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda x: x.sort(-1), Lookup("sort", (12, 5))), (lambda x: x.sort(1), Lookup("sort", (15, 4), alike=True)),
        (lambda x: x.topk(2), Lookup("topk", (12, 5))), (lambda x: x.max(-1), Lookup("max_columns", (12, 5))),
        (lambda x: x.softmax(1), Lookup("softmax", (15, 4), alike=True)),
        (lambda x: x.cumsum(-1), Lookup("cumsum", (12, 5))), (lambda x: x.cumsum(0), Lookup("cumsum_rows", (3, 20))),
    ],
)  # fmt: skip
def test_rows_lie_along_the_axis_that_an_operator_goes_along(function, found):
    """Of [3, 4, 5]; what does not go along the last axis has a star, unless its curve is that of another axis."""
    call = calls_of(function, torch.rand(3, 4, 5))[-1]
    assert lookups(call, (), cost_of(call)[0]) == [found]


def test_every_operator_of_some_models_has_an_estimate():
    estimator = Estimator(made_up())
    models = [
        (nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)), torch.rand(4, 8)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), torch.rand(1, 3, 8, 8)),
        (nn.LSTM(4, 6), torch.rand(5, 2, 4)), (nn.TransformerEncoderLayer(8, 2, 16, 0.0), torch.rand(3, 2, 8)),
    ]  # fmt: skip
    for model, x in models:
        for call in record_calls(model, x, backward=True):
            found = estimator.of(Recorded(call, (), (), (), True, 100))
            assert found.total > 0
            assert found.kernel >= found.call > 0


def test_weights_that_were_not_used_lately_take_longer():
    c = made_up()
    curve = c.curves["streamed"]
    slow = tuple(2e-6 * (1 + p["pool"] / 2**20) for p in next(k for k in kernels() if k.name == "streamed").points())
    estimator = Estimator(
        Calibration(c.about, c.noise, c.numbers, {**c.curves, "streamed": Curve(curve.axes, curve.grid, slow)})
    )
    layer = nn.Linear(64, 64)
    family = family_of(lambda B=4: (layer, (torch.rand(B, 64),), {}), {})
    call = next(r.call for r in subject(family, {"B": 4}, "forward").record() if r.call.name == "addmm")
    roles = [t.role for t in call.inputs]
    backs = [tuple(d if r == "weight" else 0 for r in roles) for d in (100, 1 << 26)]
    near, far = (estimator.of(Recorded(call, (), back, (), False, 0)) for back in backs)
    assert near.cold == 0
    assert far.cold > 0


def test_large_weights_beside_small_ones_make_these_no_slower():
    """A machine that multiplies 4e10 times a second, and fetches 1 MB of weights in 10 us more where there are 8 MB of them.

    On the grid, weights of [4096, 1024] are fetched, those of [1024, 256] are not; nor are those of [2048, 512], between them.
    """
    c = made_up()
    shape = next(k for k in kernels() if k.name == "mm_nt")
    pools = next(k for k in kernels() if k.name == "streamed")

    def fetched(nbytes):
        return 10e-6 * nbytes / 2**20 if nbytes >= 8 << 20 else 0.0

    def product(m, n, k):
        return m * n * k / 4e10 + fetched(max(m, n) * k * 4)

    streamed = tuple(1e-6 + fetched(p["pool"]) / (p["pool"] >> 20) for p in pools.points())
    curves = {
        "mm_nt": Curve(tuple(shape.axes), tuple(shape.axes.values()), tuple(product(**p) for p in shape.points())),
        "streamed": Curve(tuple(pools.axes), tuple(pools.axes.values()), streamed),
    }
    estimator = Estimator(c.changed(curves, {}))
    for m, n, k in ((1, 2048, 512), (1, 512, 2048), (1, 4096, 256), (1, 4096, 4096), (4, 2048, 512), (128, 1024, 1024)):
        assert estimator.seconds(Lookup("mm_nt", (m, n, k))) == pytest.approx(product(m, n, k), rel=0.02)
    assert curves["mm_nt"].at(1, 2048, 512) > 1.2 * product(1, 2048, 512)  # what interpolation alone makes of it


def surfaces(**named):
    """A calibration in which an interruption costs 1 us for each 1 MB and each ms, whatever is interrupted."""
    c = made_up()
    grid = ((1 << 20, 1 << 24), (1000, 16000))
    seconds = tuple(1e-6 * (b / 2**20) * (t / 1000) for b in grid[0] for t in grid[1])
    curve, none = Curve(("bytes", "us"), grid, seconds), Curve(("bytes", "us"), grid, (1e-12,) * 4)
    curves = {**c.curves, "interrupted": none, "resumed": none, **dict.fromkeys(named, curve)}
    numbers = {**c.numbers, "gone_relu": 2.0, **named.get("numbers", {})}
    return Calibration(c.about, c.noise, numbers, curves)


def slow(name, seconds, moved, path="", since=1 << 22):
    """A call that takes so long, as far as pauses are concerned."""
    call = replace(calls_of(getattr(torch, name), torch.rand(8))[0], path=path)
    return Recorded(call, (), (), (), False, since, (), moved), seconds


def memories():
    """A machine on which 1 MB takes 2 us to read or write, 10 us from far; and 1 us more for each ms since its use.

    Once it has left the core's own cache it takes 2 us more for each.
    """
    c = made_up()
    pools = (1 << 20, 1 << 26)
    far = {"read": 10e-6, "write": 10e-6, "update": 10e-6, "first": 52e-6, "result": 32e-6, "sum": 22e-6}
    flat = {f"far_{k}": Curve(("pool",), (pools,), (2e-6, x)) for k, x in far.items()}
    aged = Curve(("bytes", "us"), ((1 << 12, 1 << 23), (1, 1000, 16000)), (2e-6, 3e-6, 18e-6, 3e-6, 5e-6, 35e-6))
    curves = {**c.curves, **flat, "aged_read": aged, "aged_write": aged, "aged_update": aged}
    return Estimator(Calibration(c.about, c.noise, c.numbers, curves))


def cold_of(function, *operands, read=0.0, made=0.0, back=1, work=0.0):
    """What the last call of a function takes longer."""
    call, estimator = calls_of(function, *operands)[-1], memories()
    r = Recorded(call, (), (back,) * len(call.inputs), (1,) * len(call.outputs), False, 0)
    ages = [[read] * len(call.inputs), [made] * len(call.outputs)]
    return estimator.fetching.cold(r, estimator._alone(r, None)[1], work, *ages)


def test_memory_that_was_not_used_for_long_takes_longer():
    """By bytes and by time, and from main memory at most."""
    x = torch.rand(1 << 18)  # reads 1 MB, writes 1 MB
    near = 2e-6 * 5 ** (1 / 6)  # to read or to write it in a working set of both
    assert cold_of(torch.relu, x) == pytest.approx(0, abs=1e-12)
    assert cold_of(torch.relu, x, back=1 << 26) == pytest.approx(10e-6 - near)
    assert cold_of(torch.relu, x, read=1e-3) == pytest.approx(3e-6 - near)
    assert cold_of(torch.relu, x, back=1 << 23, read=1e-3) == pytest.approx(2e-6 * 5**0.5 + 2e-6 - near)
    assert cold_of(torch.relu, x, back=1 << 26, read=1e-3) == pytest.approx(10e-6 - near)
    assert cold_of(torch.relu, x, read=1.0) == pytest.approx(10e-6 - near)
    assert cold_of(torch.relu, x, made=16e-3) == pytest.approx(10e-6 - near)


def test_what_is_fetched_behind_the_work_takes_no_longer():
    x = torch.rand(1 << 18)
    both = 2 * 2e-6 * 5 ** (1 / 6)
    assert cold_of(torch.tanh, x, read=16e-3, made=16e-3, work=25e-6) == 0
    assert cold_of(torch.tanh, x, read=16e-3, made=16e-3, work=15e-6) == pytest.approx(20e-6 - 15e-6)
    assert cold_of(torch.tanh, x, read=16e-3, made=16e-3, work=1e-6) == pytest.approx(20e-6 - both)
    a = torch.rand(512, 512)
    assert cold_of(torch.mm, a, a, read=16e-3, work=1.0) > 0  # a product copies its operands first


def test_of_a_table_only_the_rows_that_are_picked_are_fetched():
    table, few = torch.rand(1 << 14, 256), torch.arange(64)  # 16 MB, of which 64 kB are picked
    cold = cold_of(torch.nn.functional.embedding, few, table, read=16e-3)
    assert 0 < cold < 2.1 * 10e-6 / 16


def test_time_between_calls_goes_round_the_step():
    ends = [1.0, 3.0, 6.0]
    assert _passed(ends, 2, 1) == 0
    assert _passed(ends, 2, 2) == 2
    assert _passed(ends, 0, 1) == 0
    assert _passed(ends, 0, 3) == 5  # its own memory, one step ago
    assert _passed(ends, 1, 2) == 1.0 + 6.0 - 6.0


def test_code_that_ran_long_ago_is_fetched_again(monkeypatch):
    """By bytes and by time, each as far as it was measured; an operator right after itself finds all of it."""
    step = [slow("relu", 1e-3, 1 << 22), slow("tanh", 3e-3, 1 << 22), slow("tanh", 7e-3, 1 << 22, since=0)]
    monkeypatch.setattr(
        Estimator, "_alone", lambda self, r, cost, share: next((Estimate(s), [Lookup("relu", (8,))]) for x, s in step if x is r)
    )
    own = [e.apart for e in Estimator(surfaces(interrupted=1)).all([r for r, _ in step], 0)]
    assert own == pytest.approx([2 * 4 * 10e-6, 2 * 4 * 1e-6, 0], abs=1e-9)
    far = [(replace(r, since=1 << 34), s * 1e3) for r, s in step[:2]]
    monkeypatch.setattr(
        Estimator, "_alone", lambda self, r, cost, share: next((Estimate(s), [Lookup("relu", (8,))]) for x, s in far if x is r)
    )
    capped = [e.apart for e in Estimator(surfaces(interrupted=1)).all([r for r, _ in far], 0)]
    assert capped == pytest.approx([2 * 16 * 16e-6] * 2, rel=1e-3)


def test_what_all_share_is_fetched_after_a_long_call(monkeypatch):
    step = [slow("relu", 2e-3, 1 << 23, "a"), slow("tanh", 1e-6, 1 << 10, "a"), slow("tanh", 1e-6, 1 << 10, "b")]
    monkeypatch.setattr(Estimator, "_alone", lambda self, r, cost, share: next((Estimate(s), []) for x, s in step if x is r))
    found = Estimator(surfaces(resumed=1)).all([r for r, _ in step], 0)
    assert [e.framework for e in found] == pytest.approx(
        [1e-6, 8 * 2e-6, 1e-6], rel=1e-3
    )  # below the grid as at its first point
    assert [e.inside for e in found] == pytest.approx([e.kernel for e in found])  # it lies before the operator


def found_for(function, *operands, strides=None):
    call = calls_of(function, *operands)[-1]
    return lookups(call, strides or tuple(t.stride() for t in operands), cost_of(call)[0])


def test_a_mean_is_a_sum_and_a_division():
    assert found_for(lambda t: t.mean(1), torch.rand(6, 8)) == [Lookup("sum_columns", (6, 8)), Lookup("unary_", (6,))]


def test_numbers_that_are_repeated_have_a_curve_of_their_own():
    """As in the backward pass of a mean; how often each is repeated is one axis, whatever the shape."""
    call = calls_of(lambda t: t.view(6, 1, 1).expand(6, 4, 5) / 2, torch.rand(6))[-1]
    assert lookups(call, ((1, 0, 0),), cost_of(call)[0]) == [Lookup("expanded", (6, 20))]


def test_a_sum_across_the_memory_of_an_operand_is_a_transposition():
    x, y = torch.rand(2, 8, 4), torch.rand(2, 4, 8)
    assert found_for(torch.add, x, y.mT, strides=(x.stride(), y.mT.stride())) == [Lookup("permuted", (64 / 8, 8))]
    assert found_for(torch.add, x, x) == [Lookup("binary", (64,))]


def test_how_far_back_memory_was_touched():
    kb = 1024
    a, b, c = (1 << 20, 256 * kb), (2 << 20, 64 * kb), (3 << 20, 128 * kb)
    spans = [([a], [b]), ([b], [c]), ([c], [a])]
    (first, second, third), everything = reuse(["x", "y", "x"], spans)
    assert everything == 448 * kb
    # Every operand was written last by the call before, together with what that one read.
    assert first.reads == (384 * kb,)  # a, and c that it was made of
    assert second.reads == (320 * kb,)
    assert third.reads == (192 * kb,)
    assert first.writes == (448 * kb,)  # b was read by the second call, then came c and a
    assert (first.since, first.others) == (0, ())  # x ran right before
    assert (third.since, third.others) == (192 * kb, ("y",))
    assert (second.since, second.others) == (448 * kb, ("x",))
    assert [x.moved for x in (first, second, third)] == [320 * kb, 192 * kb, 384 * kb]
    assert [x.read for x in (first, second, third)] == [(1,), (1,), (1,)]
    assert [x.made for x in (first, second, third)] == [(2,), (2,), (2,)]


def test_memory_that_is_touched_again_counts_once():
    kb = 1024
    a, b = (1 << 20, 64 * kb), (2 << 20, 128 * kb)
    found, _ = reuse(["x", *["y"] * 5], [([a], []), *[([b], [])] * 5])
    assert found[0].reads == (192 * kb,)
    assert (found[0].since, found[0].others) == (128 * kb, ("y",))


def test_small_tensors_share_a_page():
    found, everything = reuse(["x", "y"], [([(0, 16), (64, 16)], []), ([(4090, 16)], [])])
    assert everything == 8192
    assert found[0].reads == (4096 + 16, 4096 + 16)  # their own bytes, and the page that the other one touched beside theirs


def test_the_ends_of_a_memory_may_be_anothers():
    """Pages that a neighbour touches, too, do not make the middle young."""
    kb = 1024
    a, b, c = ((1 << 20) + 2 * kb, 64 * kb), ((1 << 20) + 66 * kb, 64 * kb), (3 << 20, 256 * kb)
    found, _ = reuse(["x", "y", "z"], [([a], []), ([c], []), ([b], [])])
    assert found[0].reads[0] > 256 * kb  # not from b alone, which begins in the page where a ends
    assert found[0].read == (3,)


def test_memory_that_no_step_touched_before_was_left_alone_for_a_step():
    kb = 1024
    new = [((4 + i) << 20, 64 * kb) for i in range(4)]
    steps = [[([(1 << 20, 256 * kb)], [n]), ([n], [])] for n in new]
    found, _ = reuse(["x", "y"], *steps)
    assert found[0].writes == (256 * kb + 2 * 64 * kb,)  # what a step reads and has just written, and itself
    assert found[0].made == (2,)
    assert found[1].reads == (256 * kb + 64 * kb,)


def test_a_view_touches_nothing():
    a, b, c = (1 << 20, 1 << 18), (2 << 20, 1 << 16), (3 << 20, 1 << 16)
    plain, _ = reuse(["aten.mm.default", "aten.relu.default"], [([a], [b]), ([b], [c])])
    seen, _ = reuse(["aten.t.default", "aten.mm.default", "aten.relu.default"], [([a], [a]), ([a], [b]), ([b], [c])])
    assert [(x.reads, x.writes, x.since) for x in seen[1:]] == [(x.reads, x.writes, x.since) for x in plain]
    assert seen[0].moved == 0


def test_parts_of_a_fused_layer_are_the_operators_that_it_runs():
    """Its products against those of the same layer run operator by operator."""
    layer = nn.TransformerEncoderLayer(32, 4, 48, 0.0, batch_first=True, activation="gelu").eval()
    x = torch.rand(3, 5, 32)
    fused = calls_of(lambda t: layer(t), x)
    assert [c.name for c in fused] == ["_transformer_encoder_layer_fwd"]
    found = lookups(fused[0], (), cost_of(fused[0])[0])
    apart = [c for c in record_calls(layer.train(), x) if c.name in ("addmm", "bmm", "mm")]
    work = lambda x: 2 * x.sizes[-1] * x.sizes[-2] * x.sizes[-3] * (x.sizes[0] if len(x.sizes) == 4 else 1)
    products = sorted(work(x) for x in found if x.curve.startswith(("mm", "bmm")))
    linear = sorted(float(cost_of(c)[0].matmul) for c in apart if c.name in ("addmm", "mm"))
    scores = 2 * 3 * 5 * 5 * 32
    assert products == sorted([*linear, scores, scores])
    assert {x.curve for x in found} >= {"softmax", "gelu", "layer_norm"}
    assert all(x.curve in made_up().curves for x in found)


@pytest.mark.parametrize(
    ("channels", "groups", "stride", "kernel", "curve", "sizes", "times"),
    [
        (16, 1, 1, 3, "conv3", (6, 16, 16), 1), (16, 1, 1, 1, "conv1", (6, 16, 16), 1),
        (16, 1, 2, 1, "conv1_strided", (3, 16, 16), 1), (16, 1, 2, 3, "conv3_strided", (3, 16, 16), 1),
        (16, 16, 1, 3, "depthwise", (6, 16, 3), 1),
        (16, 16, 1, 5, "depthwise", (6, 16, 5), 1), (16, 2, 1, 3, "grouped", (6, 8, 2), 1),
        (24, 2, 1, 3, "halves", (6, 12, 2), 1),
        (20, 2, 1, 3, "ragged", (6, 10, 2), 1),
    ],
)  # fmt: skip
def test_convolutions_in_groups_have_curves_of_their_own(channels, groups, stride, kernel, curve, sizes, times):
    layer = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    x = torch.rand(1, channels, 6, 6, requires_grad=True)
    calls = [c for c in record_calls(layer, x, backward=True) if "convolution" in c.name]
    for call, suffix in zip(calls, ("", "_backward"), strict=True):
        (found,) = lookups(call, (), cost_of(call)[0])
        assert (found.curve, found.sizes, found.times, found.alike) == (curve + suffix, sizes, times, False)
        assert found.curve in made_up().curves


def test_what_rises_is_kept_and_what_falls_is_levelled():
    steady = {(a, b): float(a * b) for a in (1, 2, 4) for b in (1, 3)}
    assert rising(steady) == steady
    assert rising({(1,): 1.0, (2,): 9.0, (3,): 3.0}) == {(1,): 1.0, (2,): 6.0, (3,): 6.0}


def test_memory_that_was_left_alone_is_no_further_than_main_memory():
    c = memories().c
    near = Curve(("pool",), ((1 << 20, 1 << 26),), (2e-6, 3e-6))
    e, x = Estimator(Calibration(c.about, c.noise, c.numbers, {**c.curves, "far_read": near})), torch.rand(1 << 18)
    r = Recorded(calls_of(torch.relu, x)[-1], (), (1,), (1,), False, 0)
    cold = e.fetching.cold(r, e._alone(r, None)[1], 0.0, [1.0], [0.0])
    assert cold == pytest.approx(3e-6 - 2e-6 * 1.5 ** (1 / 6))
