"""Parts of an estimate: code that others drive out, calls that do not come from Python, memory of products, rows of tables."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from calibrations import made_up
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from costir.calibration import Calibration, Curve
from costir.cost import cost_of
from costir.hardware import load_chip
from costir.load.subject import family_of
from costir.measuring import calibrate, frames, interrupted, kernel, measure, nodes, overheads, parameters, profile, timing
from costir.measuring.clock import HOST
from costir.measuring.estimate import Estimator, total
from costir.measuring.lookup import lookups
from costir.measuring.pace import Pace
from costir.measuring.profile import Event
from costir.measuring.reuse import reuse
from costir.measuring.subject import Recorded, _inner, subject
from costir.measuring.subject import _written as written
from costir.trace import record_calls


def changed(curves=None, **numbers):
    """The made-up machine with other curves and numbers."""
    c = made_up()
    return Estimator(Calibration(c.about, c.noise, {**c.numbers, **numbers}, {**c.curves, **(curves or {})}))


def call_of(function, *operands):
    return list(record_calls(function, *operands))[-1]


def line(axis, points):
    return Curve((axis,), (tuple(points),), tuple(points.values()))


def test_channels_of_a_convolution_fill_whole_vectors():
    """20 take as long as 32 where a vector has 16 numbers, and as 24 where it has 8; few of an image are packed together."""
    weights = {n: torch.rand(32, n, 3, 3) for n in (3, 20, 24, 32)}

    def kernel(inside, **numbers):
        call = call_of(lambda x: torch.conv2d(x, weights[inside], None, 1, 1), torch.rand(1, inside, 14, 14))
        return changed(**numbers).of(Recorded(call, (), (), (), False, 0)).kernel

    assert kernel(20, vector=16.0) == kernel(32)
    assert kernel(20, vector=8.0) == kernel(24)
    assert kernel(20) < kernel(24) < kernel(32)
    assert kernel(3, vector=16.0) == kernel(3)


def test_a_call_takes_no_less_in_a_type_that_is_multiplied_faster():
    """Small products of bf16 are calls; large ones take their share of the work."""
    c = made_up()
    e = Estimator(c, {"fp32": 1e11, "bf16": 4e11})

    def seconds(n, dtype):
        x = torch.rand(n, n).to(dtype)
        return e.of(Recorded(call_of(torch.mm, x, x), (), (), (), False, 0)).kernel

    assert seconds(4, torch.bfloat16) == pytest.approx(seconds(4, torch.float32), rel=0.01)
    assert seconds(1024, torch.bfloat16) == pytest.approx(seconds(1024, torch.float32) / 4, rel=0.01)


def flat(seconds):
    """As much after whatever came between."""
    return Curve(("bytes", "us"), ((1, 1 << 26), (1, 16000)), (seconds,) * 4)


# ------------------------------------------------------------------------------------------------ code of other operators


def test_code_that_is_gone_weighs_by_what_it_took_to_get_it_back():
    """Far from any cache that of another operator may be much more than where both run in turn."""
    lost = Curve(("bytes", "us"), ((1, 4096), (1, 1000)), (1e-9, 1e-9, 1e-9, 1e-5))
    e = changed({"interrupted": lost}, gone_relu=3.0, apart_relu=0.5)
    relu = Recorded(call_of(torch.relu, torch.rand(8)), (), (), (), False, 4096)
    exp = Recorded(call_of(torch.exp, torch.rand(8)), (), (), (), False, 4096)
    found = e.all([relu, exp], 0)
    assert found[0].apart == pytest.approx(3 * found[1].apart, rel=0.05)


def test_code_that_is_gone_is_measured_after_what_all_share_is_back(monkeypatch):
    """On a machine where it takes 1 us to get back the code of k0, 2 us that of k1, and so on, and 50 us for what all share."""
    now, back = [0.0], set()
    names = [f"k{i}" for i in range(13)]

    def run(name):
        now[0] += 1e-6 + (0 if "all" in back else 5e-5) + (0 if name in back else 1e-6 * (1 + names.index(name)))
        back.update(("all", name))

    work = lambda: (back.clear(), now.__setitem__(0, now[0] + 8e-3))
    monkeypatch.setattr(interrupted, "between", lambda *_: work)
    monkeypatch.setattr(interrupted.time, "perf_counter", lambda: now[0])
    calls = {n: (lambda n=n: run(n)) for n in names}
    found = interrupted._gone(calls, dict.fromkeys(names, 1e-6), calls["k0"], HOST)
    assert [found[n] for n in names[1:]] == pytest.approx([1e-6 * (1 + i) for i in range(1, 13)])


def test_code_is_driven_out_by_the_operators_that_ran_since():
    """Of an operator with little code by its own curve; the others weigh by the code that they have."""
    turns = {"turn_light": line("others", {1: 1e-6, 4: 3e-6}), "turn_heavy": line("others", {1: 8e-6, 4: 16e-6})}
    apart = {f"apart_{name}": 0.5 for name in made_up().curves} | {"apart_gelu": 2.0}
    e = changed(turns, **apart)
    average = sum(v**1.5 for v in apart.values()) / len(apart)
    x = torch.rand(8)
    relu, gelu = call_of(torch.relu, x), call_of(torch.nn.functional.gelu, x)

    def own(call, since, others, inner=False):
        first = [Recorded(c, (), (), (), False, 0) for c in (relu, gelu)]
        return e.all([*first, Recorded(call, (), (), (), False, since, others, inner=inner)], 0)[-1].apart

    assert own(relu, 0, ()) == 0  # right after itself
    heavy = 2**1.5 / average
    assert heavy > 4
    assert own(relu, 8, (gelu.op,)) == pytest.approx(0.5 * 3e-6)  # as many as were measured, and no more
    light = 0.5**1.5 / average
    assert light < 1
    assert own(gelu, 8, (relu.op,)) == pytest.approx(2 * 8e-6 * light)  # fewer than one: less in proportion
    assert own(gelu, 8, (relu.op,), inner=True) == pytest.approx(8e-6 * light)
    assert own(relu, 8, ("aten.unknown.default",)) == 0


def test_turns_are_measured_for_operators_with_little_and_with_much_code(monkeypatch):
    """On a machine where an operator takes 1 us more for every other one in turn, ten times as much where it has much code."""
    names = [f"k{i}" for i in range(8)]
    apart = {n: 2.0 if i % 4 == 0 else 0.5 for i, n in enumerate(names)}
    monkeypatch.setattr(
        interrupted, "_in_turn", lambda calls, hot, k, clock: {n: (k - 1) * (1e-5 if apart[n] > 1 else 1e-6) for n in calls}
    )
    found = interrupted._turns(dict.fromkeys(names), {}, apart, HOST)
    assert found["turn_light"].grid == ((1, 3, 7),)
    assert found["turn_light"].seconds == pytest.approx((2e-6, 6e-6, 14e-6))
    assert found["turn_heavy"].seconds == pytest.approx((5e-6, 15e-6, 35e-6))


def test_surfaces_say_what_work_between_costs_beyond_running_in_turn(monkeypatch):
    """Calls on a clock of its own: 5 us in turn, 1 us more per MB between; the first 7 us more per ms, and a disturbance."""
    now, disturbed = SimpleNamespace(between=(0, 0), round=0), itertools.cycle([1e-3, 0, 0, 0, 0])

    def row(calls):
        size, passed = now.between
        extra = 5e-6 + 1e-6 * size / 2**20 + next(disturbed)
        return [2e-6 * k + extra + (7e-9 * passed if k == 0 else 0) for k in range(len(calls))]

    monkeypatch.setattr(interrupted, "_row", row)
    monkeypatch.setattr(interrupted, "between", lambda size, passed, memory: lambda: setattr(now, "between", (size, passed)))
    calls = [None] * 4
    own, common = interrupted._surfaces(calls, [2e-6 * k for k in range(4)], [1.0] * 4, HOST)
    assert own.at(1 << 24, 1000) == pytest.approx(16e-6, rel=0.01)
    assert own.at(1 << 12, 1) == pytest.approx(interrupted.LEAST)
    assert common.at(1 << 20, 16000) == pytest.approx(7e-9 * 15999, rel=0.01)


# -------------------------------------------------------------------------------------------------------- who calls


class Loops(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(3):
            x = x * 2.0
        return torch.relu(self.layer(x))


def recorded(phase):
    family = family_of(lambda B=2: (Loops(), (torch.rand(B, 4),), {}), {})
    return subject(family, {"B": 2}, phase).record()


def test_calls_from_python_are_told_from_those_that_torch_makes():
    calls = [(r.call.name, r.inner) for r in recorded("forward")]
    assert calls == [("mul", False)] * 3 + [("t", False), ("addmm", True), ("relu", False)]
    back = [r for r in recorded("backward") if r.call.phase == "backward"]
    engine = [r for r in back if r.call.name in ("threshold_backward", "mm", "sum", "mul")]
    assert engine
    assert all(r.inner for r in engine)


def test_a_loop_comes_to_the_same_place_again():
    assert _inner(["a", "b", "a", "b"], [(1, 1)] * 4) == [False, True, False, True]
    assert _inner(["a", "a", "b"], [(1, 1), (1, 2), (2, 2)]) == [False, False, False]


def test_a_backward_node_is_paid_for_once():
    """A linear layer's node makes several calls, and collecting gradients is no node of its own."""
    calls = [r for r in recorded("backward") if r.call.phase == "backward"]
    paid = [x.framework for x in changed(node=5e-6, leaf=0.0).all(calls, 0)]
    number = 1 + 1 + 1 + 1  # the loss's sum, relu, the linear layer and its transposed weight: the input wants no gradient
    assert sum(r.begins for r in calls) == number
    assert sum(paid) == pytest.approx(5e-6 * number)
    assert sum(r.call.name in ("mm", "t", "sum") for r in calls) > 3


def test_nodes_whose_memory_has_left_the_caches_take_longer(monkeypatch):
    """On a clock where a node takes 3 us, and 2 us more after every MB of work."""
    now = SimpleNamespace(t=0.0, work=0)

    def backward(leaf, n, work):
        now.work = 0
        work()
        return (50e-6 + n * (3e-6 + 2e-6 * now.work / 2**20),)

    monkeypatch.setattr(nodes, "_backward", backward)
    monkeypatch.setattr(nodes, "between", lambda size, us, memory: lambda: setattr(now, "work", size))
    curve = nodes.nodes()
    assert curve.at(1 << 22, 1) == curve.at(1 << 22, 16000) == pytest.approx(8e-6, rel=0.01)
    calls = recorded("backward")
    plain, cold = (total(calls, e.all(calls, 0), 2, e.c) for e in (changed(), changed({"node": flat(7e-6)})))
    assert cold - plain == pytest.approx(7e-6 * sum(r.begins for r in calls))


def test_objects_of_parameters_are_counted_once_for_each_part_of_a_step():
    """Dropped gradients, added gradients, an optimizer's loop: each comes to every parameter; a backward pass alone has two."""
    curves = {"objects_zero": flat(1e-6), "objects_leaf": flat(2e-6), "objects_step": flat(4e-6)}
    for phase, each in (("forward", 0.0), ("backward", 3e-6), ("train", 7e-6)):
        calls, leaves = recorded(phase), 0 if phase == "forward" else 2
        plain, cold = (total(calls, e.all(calls, 0), leaves, e.c) for e in (changed(), changed(curves)))
        assert cold - plain == pytest.approx(each * leaves)


def test_objects_of_parameters_are_timed_after_their_code_is_back(monkeypatch):
    """Where work between drives out objects, 1 us each, and code, 100 us, that one parameter alone gets back."""
    state = SimpleNamespace(gone=False)

    def part(n):
        now[0] += n * (5e-6 + 1e-6 * state.gone) + 1e-4 * (state.gone and n == 1)

    now = [0.0]
    monkeypatch.setattr(parameters.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(parameters, "between", lambda size, us, memory: lambda: setattr(state, "gone", us > 1))
    fake = lambda n: SimpleNamespace(
        parameters=[torch.zeros(16, requires_grad=True)] * n,
        optimizer=SimpleNamespace(zero_grad=lambda: part(n), step=lambda: part(n)),
    )
    monkeypatch.setattr(parameters, "_made", fake)
    monkeypatch.setattr(parameters, "_loss", lambda made: SimpleNamespace(backward=lambda: part(len(made.parameters))))
    found = parameters.parameters()
    assert set(found) == {"objects_zero", "objects_leaf", "objects_step"}
    for curve in found.values():
        assert curve.at(1 << 22, 1) < 1e-8
        assert curve.at(1 << 22, 4000) == pytest.approx(1e-6)


def test_what_comes_from_python_is_left_out_of_calls_that_do_not():
    e, x = changed(python=0.3e-6), torch.rand(8)
    r = Recorded(call_of(torch.relu, x), (), (), (), False, 0)
    outer, inner = e.of(r), e.of(dataclasses.replace(r, inner=True))
    assert outer.total - inner.total == pytest.approx(0.3e-6)
    assert outer.inside == pytest.approx(inner.inside)  # a profiler sees neither


def test_lines_of_python_are_counted_and_spread_over_its_calls():
    def inner(x):
        y = -x
        return y

    def outer(x):
        return inner(inner(x))

    before = sys.gettrace()
    assert timing.lines(lambda: outer(1)) == 1 + 1 + 2 * 2
    assert sys.gettrace() is before
    x = torch.rand(8)
    relu = Recorded(call_of(torch.relu, x), (), (), (), False, 0, moved=1 << 20)
    calls = [relu, dataclasses.replace(relu, inner=True), relu]
    e = changed({"frame": line("bytes", {1 << 12: 1e-6, 1 << 20: 3e-6})}, lines=4.0, line=0.25e-6, pairs=3)
    plain, spread = ([a.around for a in e.all(calls, n)] for n in (0, 6))
    far = 3e-6 - 1e-6  # what a line takes longer after so many bytes
    assert [b - a for a, b in zip(plain, spread, strict=True)] == pytest.approx(
        [3 * (0.25e-6 + far), 0, 3 * (0.25e-6 + far)]
    )  # 3 for each from Python, which a single operator does not drive out
    many = [a.around for a in e.all(calls, 24)]
    assert many[2] - plain[2] == pytest.approx(12 * 0.25e-6 + 4 * far)  # the rest finds its code


@pytest.mark.parametrize(("kinds", "turn"), [(1, 0), (2, 0.5), (3, 1), (5, 1)])
def test_lines_of_python_that_take_turns_drive_each_other_out(kinds, turn):
    """Again and again a line takes 0.2 us, and 1 us where three modules take turns: with two, half of the difference."""
    x = torch.rand(8)
    calls = [
        Recorded(call_of(f, x), (), (), (), False, 0) for f in (torch.relu, torch.exp, torch.neg, torch.cos, torch.sin)[:kinds]
    ]
    curves = {"frame": line("bytes", {1 << 12: 5e-6, 1 << 20: 7e-6})}
    e = changed(curves, lines=4.0, line=0.2e-6, line_in_turn=1e-6, pairs=3)
    plain, spread = (e.all(calls, n * kinds)[0].around for n in (0, 4))
    assert spread - plain == pytest.approx(4 * (0.2e-6 + 0.8e-6 * turn))


def test_a_training_step_leaves_nothing_of_the_code_of_its_forward_pass():
    """A line then takes what it takes in a module that runs once: 5 us, not the 1 us of modules in turn."""
    x = torch.rand(8)
    forward = Recorded(call_of(torch.relu, x), (), (), (), False, 0)
    backward = dataclasses.replace(forward, call=dataclasses.replace(forward.call, phase="backward"))
    curves = {"frame": line("bytes", {1 << 12: 5e-6, 1 << 20: 7e-6})}
    e = changed(curves, lines=4.0, line=0.2e-6, line_in_turn=1e-6, pairs=3)
    plain, spread = (e.all([forward, backward], n)[0].around for n in (0, 3))
    assert spread - plain == pytest.approx(3 * 5e-6)


def test_what_a_line_costs_is_measured_beside_the_operator(monkeypatch):
    """On a clock where a line takes 2 us and an operator 5 us: the operator is not counted, nor the work before."""
    now = SimpleNamespace(t=0.0)

    def passes(seconds):
        now.t += seconds

    pairs = [(lambda n=n: passes(5e-6 + 2e-6 * n), lambda: passes(5e-6)) for n in (3, 7)]
    monkeypatch.setattr(frames, "_pairs", lambda: pairs)
    numbers = iter((3, 0, 7, 0))
    monkeypatch.setattr(frames, "lines", lambda f: next(numbers))
    monkeypatch.setattr(frames, "between", lambda size, us, memory: lambda: passes(size * 1e-9))
    monkeypatch.setattr(frames, "time", SimpleNamespace(perf_counter=lambda: now.t))
    monkeypatch.setattr(frames, "timed", lambda f, *rounds, clock: SimpleNamespace(usual=HOST.round(f, 1)))
    monkeypatch.setattr("costir.measuring.clock.perf_counter", lambda: now.t)
    curve, found = frames.frames()
    assert found == pytest.approx({"lines": 5, "pairs": 2, "line": 2e-6, "line_in_turn": 2e-6})
    assert curve.seconds == pytest.approx([2e-6] * len(curve.seconds))


# ---------------------------------------------------------------------------------------------------------- memory


def test_memory_that_differs_from_step_to_step_counts_by_its_median():
    kb = 1024
    a, b, c = (1 << 20, 64 * kb), (2 << 20, 64 * kb), (3 << 20, 256 * kb)
    steps = [[([], [a]), ([], [x])] for x in (b, c, a, a)]
    found, _ = reuse(["x", "y"], *steps)
    assert found[1].writes == (64 * kb,)  # never before, 64 kB, 64 kB
    (alone, _), _ = reuse(["x", "y"], steps[1])
    assert alone.writes == (320 * kb,)


def test_operands_and_results_of_products_have_curves_of_their_own():
    pools = (1 << 20, 1 << 26)
    far = {"first": 101e-6, "result": 51e-6, "sum": 61e-6, "read": 11e-6, "write": 11e-6}
    e = changed({f"far_{k}": Curve(("pool",), (pools,), (1e-6, s)) for k, s in far.items()})
    x, y, bias = torch.rand(512, 512), torch.rand(512, 512), torch.rand(512)

    def cold(function, *operands, first=1, out=1):
        call = call_of(function, *operands)
        backs = tuple(first if t.numel == 512 * 512 else 1 for t in call.inputs)
        return e.of(Recorded(call, (), backs, (out,), False, 0)).cold

    assert cold(torch.mm, x, y, first=1 << 26) == pytest.approx(2 * 101e-6 - 2 * e.c.curves["far_first"].at(3 << 20), rel=1e-6)
    plain, with_bias = cold(torch.mm, x, y, out=1 << 26), cold(torch.addmm, bias, x, y, out=1 << 26)
    assert plain == pytest.approx(51e-6 - e.c.curves["far_result"].at(3 << 20), rel=1e-6)
    assert with_bias == pytest.approx(61e-6 - e.c.curves["far_sum"].at((3 << 20) + 2048), rel=1e-3)


def test_rows_of_a_table_that_is_far_away_are_fetched_one_by_one():
    """1024 rows took 100 us more from all over memory than from a table in the cache."""
    c = made_up().curves["embedding"]
    far = line("columns", {16: c.at(1024, 16) + 100e-6, 1024: c.at(1024, 1024) + 100e-6})
    reads = Curve(("pool",), ((1 << 20, 1 << 26),), (1e-6, 2e-6))
    e = changed({"far_rows": far, "far_read": reads})
    table = torch.rand(1 << 16, 16)
    call = call_of(nn.functional.embedding, torch.arange(512), table)

    def cold(back):
        return e.of(Recorded(call, (), (back, 1), (1,), False, 0)).cold

    assert cold(1 << 26) == pytest.approx(50e-6, rel=1e-6)
    assert cold(1) == 0
    assert 0 < cold(1 << 23) < 50e-6


# --------------------------------------------------------------------------------------------------------- lookups


def curves_of(function, *operands, strides=()):
    call = call_of(function, *operands)
    return lookups(call, strides, cost_of(call)[0])


def test_a_bias_is_copied_into_the_result_first():
    x, w, b = torch.rand(6, 8), torch.rand(8, 5), torch.rand(5)
    assert [(f.curve, f.sizes) for f in curves_of(torch.addmm, b, x, w)] == [("mm_nn", (6, 5, 8)), ("bias", (6, 5))]
    assert [f.curve for f in curves_of(torch.mm, x, w)] == ["mm_nn"]


def test_division_by_a_number_is_a_product():
    x = torch.rand(6)
    assert curves_of(lambda t: t / 2.0, x)[0].curve == "unary"
    assert curves_of(torch.div, x, x)[0].curve == "div"
    assert curves_of(lambda t: -t, x)[0].curve == "neg"


def test_a_step_of_a_recurrent_layer_takes_as_long_as_any_other():
    """A curve on which a step takes 3 us and the layer 10 us: at every length what that says, where logarithms would not."""
    curves = {
        name: Curve(("steps", "batch", "width"), ((8, 64), (1, 16), (32, 512)), (34e-6,) * 4 + (202e-6,) * 4)
        for name in ("lstm", "gru")
    }
    e = changed(curves)
    for steps in (1, 8, 20, 64, 100):
        call = call_of(nn.LSTM(64, 64).eval(), torch.rand(steps, 4, 64))
        call = next(c for c in record_calls(nn.LSTM(64, 64).eval(), torch.rand(steps, 4, 64)) if "rnn" in c.name)
        assert e.of(Recorded(call, (), (), (), False, 0)).kernel == pytest.approx(10e-6 + 3e-6 * steps)


def test_a_first_layer_has_half_the_backward_work():
    layer = nn.Conv2d(4, 4, 3, padding=1)
    backward = {}
    for wanted in (False, True):
        x = torch.rand(1, 4, 8, 8, requires_grad=wanted)
        (call,) = [c for c in record_calls(layer, x, backward=True) if c.name == "convolution_backward"]
        backward[wanted] = lookups(call, (), cost_of(call)[0])[0]
    assert backward[True].times == 2 * backward[False].times
    assert backward[True].sizes == backward[False].sizes


# ------------------------------------------------------------------------------------------------------- measuring


def test_an_optimizers_calls_are_looked_for_in_its_own_part():
    def recorded(name, phase):
        return Recorded(dataclasses.replace(call_of(torch.relu, torch.rand(2)), op=f"aten.{name}.default", phase=phase), (), (),
                        (), False, 0)  # fmt: skip

    calls = [
        recorded("mul", "backward"),
        recorded("add_", "backward"),
        recorded("mul", "optimizer"),
        recorded("add_", "optimizer"),
    ]
    seen = [Event("aten::mul", 0, 1), Event("Optimizer.step#AdamW.step", 5, 20), Event("aten::mul", 6, 8),
            Event("aten::add_", 9, 12)]  # fmt: skip
    assert profile._one_run(seen, calls) == [1, None, 2, 3]
    assert profile._one_run(seen[2:], calls[2:]) == [2, 3]  # nothing announced


def test_calls_that_the_profiler_did_not_show_do_not_break_a_bound():
    """Of two equal rows the small one was seen: neither its time nor its bound stands for the large one."""
    row = measure.Row(
        "forward", "a", "relu", 1, 8e-6, 16e-6, None, "memory", measure.Estimate(16e-6), False, 0, 0, False, 0, 8e-6
    )
    small = dataclasses.replace(row, bound=1e-6, estimate=2e-6, measured=1.5e-6, parts=measure.Estimate(2e-6), held=1e-6)
    both = measure._together([row, small])
    assert both.bound == pytest.approx(9e-6)
    assert both.measured == pytest.approx(1.5e-6 * 9)  # stretched by the estimate
    assert both.error == pytest.approx(2 / 1.5 - 1)
    assert both.violated == 0
    fast = measure._together([row, dataclasses.replace(small, measured=0.5e-6)])
    assert fast.violated == pytest.approx(0.5)
    assert measure._together([row]).measured is None


def test_bandwidths_leave_out_the_time_of_a_call(monkeypatch):
    """A machine that takes 1 us a call and moves 100 GB/s: that is what it is found to do at every size, whoever moves."""
    monkeypatch.setattr(calibrate, "WORKING_SETS", (8192, 1 << 17, 1 << 20))
    sizes = []

    def noted(make):
        return lambda memory: (sizes.append(memory.nbytes), make(memory))[1]

    movers = {k: (noted(make), times) for k, (make, times) in calibrate.MOVERS.items()}
    monkeypatch.setattr(calibrate, "MOVERS", movers)
    time = lambda f, rounds=3: 1e-6 + sizes[-1] * (2 if "mul_" in str(f) else 1) / 100e9
    c = SimpleNamespace(time=time, timed=lambda f, rounds: SimpleNamespace(seen=time(f)))
    found = calibrate._envelope(calibrate._bandwidths(c))
    for rate in found.values():
        assert rate == pytest.approx(100e9, rel=0.02)


def test_what_the_system_takes_is_a_share_of_the_time(monkeypatch):
    """A clock that goes by 1 us and loses 50 us in every ms."""
    ticks = itertools.accumulate(itertools.cycle([1e-6] * 950 + [51e-6]))
    monkeypatch.setattr(overheads, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    assert overheads._lost() == pytest.approx(0.05, abs=0.003)
    steady = itertools.accumulate(itertools.repeat(1e-6))
    monkeypatch.setattr(overheads, "time", SimpleNamespace(perf_counter=lambda: next(steady)))
    assert overheads._lost() == 0


def test_what_other_processes_take_is_no_part_of_it(monkeypatch):
    """A clock that loses 50 us in every ms to the system, and half of its time to a process that it is switched off for."""
    now, calls, switches = 0.0, 0, 0

    def clock():
        nonlocal now, calls, switches
        calls += 1
        now += 1e-6 + (50e-6 if calls % 950 == 0 else 0)
        if calls % 4000 == 0:
            now, switches = now + 4e-3, switches + 1
        return now

    monkeypatch.setattr(overheads, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(overheads, "_switches", lambda: switches)
    assert overheads._lost() == pytest.approx(0.05, abs=0.01)


def test_switches_are_counted():
    before = overheads._switches()
    time.sleep(0.001)
    assert overheads._switches() > before


def test_other_types_than_float32_take_as_much_longer_as_their_rates_are_lower():
    e = Estimator(made_up(), {"fp32": 100.0, "fp64": 50.0, "bf16": 400.0})
    times = {}
    for kind in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
        a = torch.zeros(1024, 1024, dtype=kind)
        times[kind] = [
            e.of(Recorded(call_of(f, a, a), ((1024, 1), (1024, 1)), (0, 0), (0,), False, 0)) for f in (torch.mm, torch.add)
        ]
    single = times.pop(torch.float32)
    assert not any(x.alike for x in single)
    assert all(x.alike for both in times.values() for x in both)
    products = {k: v[0].kernel / single[0].kernel for k, v in times.items()}
    assert products == pytest.approx({torch.float64: 2, torch.bfloat16: 0.25, torch.complex64: 4}, rel=0.01)
    assert [times[k][1].kernel / single[1].kernel for k in times] == pytest.approx([2, 1, 2], rel=0.01)  # made up: 0.1 ns each


def test_an_estimate_is_never_below_its_bound(tmp_path):
    """A machine whose curves are too fast for its own rate: by 100 times, and by a hair."""
    call = call_of(torch.mm, *(torch.zeros(256, 256) for _ in range(2)))
    r, c = Recorded(call, ((256, 1), (256, 1)), (0, 0), (0,), False, 0), made_up()
    parts = Estimator(c).of(r)
    for rate, alike in ((2 * 256**3 / parts.kernel / 100, True), (2 * 256**3 / parts.kernel * 0.99, False)):
        path = tmp_path / f"{rate:.0f}.toml"
        path.write_text(calibrate._chip_file(c, {"fp32": rate}, {8192: 1e11, 2**29: 2e10}))
        row = measure.row_of(r, None, parts, load_chip(str(path)), c, 0.0)
        assert row.parts.kernel == pytest.approx(2 * 256**3 / rate, rel=1e-3)
        assert row.alike is alike


def test_attention_in_one_operator_is_the_sum_of_its_parts():
    """Against the products of the same layer run operator by operator."""
    layer, x = nn.MultiheadAttention(32, 4, batch_first=True).eval(), torch.rand(3, 5, 32)
    with torch.no_grad():
        fused = list(record_calls(lambda x: layer(x, x, x)[0], x))
    found = next(lookups(c, (), cost_of(c)[0]) for c in fused if c.name == "_native_multi_head_attention")
    apart = [c for c in record_calls(lambda x: layer.train()(x, x, x)[0], x) if c.name in ("addmm", "bmm", "mm", "baddbmm")]
    work = sum(2 * x.times * math.prod(x.sizes) for x in found if x.curve.startswith(("mm", "bmm")))
    assert work == sum(float(cost_of(c)[0].matmul) for c in apart)
    assert {x.curve for x in found} >= {"softmax", "sum_rows"}
    assert all(x.curve in made_up().curves for x in found)


def test_the_second_of_two_steps_is_profiled():
    """Right after one like it, as in a loop, and not after the start of the profiler."""
    ran, x = [], torch.rand(4)
    found = profile.events(lambda: (ran.append(0), torch.neg(x) if len(ran) % 2 else torch.abs(x)))
    assert len(ran) == 2
    names = {e.name for e in found}
    assert "aten::abs" in names
    assert not names & {"aten::neg", profile.STEP}


def test_random_numbers_are_copies_of_a_few():
    a, b = kernel.rand(3, 5), kernel.rand(kernel.KEPT + 7)
    assert a.shape == (3, 5)
    assert torch.equal(b[: kernel.KEPT][:15], a.view(-1))
    a.zero_()  # nobody else's
    assert kernel.rand(15).any()
    with torch.device("meta"):
        assert kernel.rand(4).is_meta


def test_a_clock_of_the_profiler_is_exact_to_nanoseconds():
    """In seconds since 1970 a float knows a time to 0.2 us: durations would be multiples of it."""
    found = profile.events(lambda: [torch.rand(4).neg() for _ in range(200)])
    lengths = {round((e.end - e.start) * 1e9) for e in found if e.name == "aten::neg"}
    assert len({n % 238 for n in lengths}) > 5


@pytest.mark.parametrize(("slow", "said"), [(0.0, 0.05), (0.3, 0.05), (0.6, 0.6)])
def test_memory_that_others_crowd_is_noticed(slow, said):
    """A product 5 % slower than calibrated; memory may be slower by as much as is usual where caches are shared."""
    assert Pace(1.05, 1 + slow, 1.0).loaded == pytest.approx(said)


def test_memory_that_nobody_wrote_is_written_before_it_is_timed():
    """Pages of `torch.empty` are not there until they are written; values stay as they are."""
    weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    family = family_of(lambda B=2: (Scales(weight), (torch.rand(B, 3),), {}), {})
    names = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "copy_" in str(function):
                names.append(args[0].data_ptr())
            return function(*args, **(kwargs or {}))

    with Noted():
        subject(family, {"B": 2}, "forward")
    assert weight.data_ptr() in names
    assert weight.tolist() == [1.0, 2.0, 3.0]
    written(torch.ones(1).expand(5))  # of memory that it shows several times nothing is written


class Scales(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return x * self.weight
