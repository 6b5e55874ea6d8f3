"""Masks whose numbers a processor cannot guess, and operators that torch runs another way where no recorder looks on."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
import torch.nn.functional as F
from calibrations import made_up
from torch import nn

from costir.cost import cost_of
from costir.load.subject import family_of
from costir.measuring.contents import HISTORY, apart, unforeseen
from costir.measuring.estimate import Estimator
from costir.measuring.lookup import lookups
from costir.measuring.profile import events
from costir.measuring.subject import subject
from costir.trace import record_calls


def guessed(numbers):
    """The share of wrong guesses of a two-bit counter for each history: what a processor's predictor does at the least."""
    counters, wrong = {}, 0
    for i in range(HISTORY, len(numbers)):
        before = tuple(numbers[i - HISTORY : i])
        state = counters.get(before, 2)
        wrong += (state >= 2) != bool(numbers[i])
        counters[before] = min(3, state + 1) if numbers[i] else max(0, state - 1)
    return wrong / (len(numbers) - HISTORY)


def coins(share, n=16000):
    rng = random.Random(0)
    return [rng.random() < share for _ in range(n)]


@pytest.mark.parametrize(
    "numbers",
    [
        [i % 2 > 0 for i in range(16000)],
        [i % 128 > 64 for i in range(16000)],
        [i % 120 > i // 120 for i in range(14400)],  # a triangle
        coins(0.5),
        coins(0.1),
        coins(0.99),
        [a for a in coins(0.5, 4000) for _ in range(4)],
    ],
)
def test_as_often_as_a_predictor_of_branches_is_wrong(numbers):
    """Against a predictor that goes through them one by one."""
    assert unforeseen(torch.tensor(numbers)) == pytest.approx(guessed(numbers), rel=0.25, abs=0.02)


def test_a_short_mask_has_nothing_to_guess_by():
    assert unforeseen(torch.tensor(True)) == 0
    assert unforeseen(torch.rand(HISTORY) > 0.5) == 0


def test_what_does_not_lie_in_memory_is_not_looked_at():
    class Marked(torch.Tensor):
        pass

    mask = torch.rand(100) > 0.5
    for other in (mask.to_sparse(), mask.as_subclass(Marked), mask.to("meta")):
        assert unforeseen(other) == 0
    for other in (torch.zeros(64).to_sparse(), torch.zeros(64).as_subclass(Marked), torch.zeros(64, device="meta")):
        assert apart("sqrt", other) == 0
    assert unforeseen(mask[:0]) == 0


def test_rows_that_a_mask_picks_are_looked_for_first():
    """The mask becomes numbers; then rows are picked, or written to."""
    x, mask = torch.rand(40, 6), torch.arange(40) % 4 == 0

    def found(function):
        return [(look.curve, look.sizes) for look in lookups(list(record_calls(function))[-1], (), None)]

    assert found(lambda: x[mask]) == [("nonzero", (40,)), ("index", (10, 6))]
    assert found(lambda: x.index_put((mask,), torch.rand(10, 6)))[:2] == [("nonzero", (40,)), ("index", (10, 6))]
    add = lambda: x.index_put((mask,), torch.rand(10, 6), accumulate=True)
    assert found(add) == [("nonzero", (40,)), ("index_put", (10, 6))]
    assert found(lambda: torch.nonzero(mask)) == [("nonzero", (40,))]


def test_a_mask_that_is_repeated_is_looked_at_as_it_is_gone_through():
    """Expanded, it has no memory of its own."""
    row = torch.rand(500) > 0.5
    assert unforeseen(row[:, None].expand(500, 64)) < 0.05
    assert unforeseen(row.expand(64, 500)) > 0.2


def test_wrong_branches_take_their_share_of_what_a_random_mask_does():
    """On a machine where a choice takes 3 ns more for each number of a random mask."""
    c = made_up()
    regular = c.curves["where"]
    mixed = dataclasses.replace(c.curves["mixed"], seconds=tuple(regular.at(n) + 3e-9 * n for n in c.curves["mixed"].grid[0]))
    e = Estimator(c.changed({"mixed": mixed}, {}))

    class Choice(nn.Module):
        def __init__(self, mask):
            super().__init__()
            self.register_buffer("mask", mask)

        def forward(self, x):
            return torch.where(self.mask, x, 0.0)

    def kernel(mask):
        model = subject(family_of(lambda: (Choice(mask), (torch.rand(len(mask)),), {}), {}), {}, "forward")
        (r,) = (r for r in model.record() if r.call.name == "where")
        return e.of(r).kernel

    n = 1 << 15
    plain, coin = kernel(torch.arange(n) % 2 > 0), kernel(torch.tensor(coins(0.5, n)))
    assert plain == pytest.approx(regular.at(n))
    assert coin - plain == pytest.approx(3e-9 * n, rel=0.1)
    assert kernel(torch.tensor(coins(0.1, n))) - plain == pytest.approx(0.2 * 3e-9 * n, rel=0.2)


def test_roots_of_zero_are_told_from_others():
    """By groups of sixteen numbers, which are computed at once; what is not in order in memory is not looked at."""
    x = torch.ones(64, 16)
    assert apart("sqrt", x) == 0
    x[::4, 3] = 0
    assert apart("sqrt", x) == 0.25
    assert apart("log", x - 1) == 1
    assert apart("exp", torch.cat((x, x - 200))) == 0.5
    assert apart("exp", x + 100) == 1  # too large
    assert apart("neg", x) == apart("sqrt", x.t()) == apart("sqrt", x.double()) == apart("sqrt", x[:0]) == 0
    assert apart("sqrt", torch.zeros(3)) == 1
    many = torch.ones(1 << 20)
    many[: 1 << 18] = 0
    assert apart("sqrt", many) == pytest.approx(0.25, abs=0.01)  # of a large one some groups are looked at, from all over


def test_roots_of_zero_take_as_long_as_they_were_calibrated_to():
    """On a machine where they take 2 ns more each, of an optimizer whose table has three rows of four that nobody looks up."""
    c = made_up()
    grid = c.curves["sqrt_apart"].grid
    slow = dataclasses.replace(c.curves["sqrt_apart"], seconds=tuple(c.curves["sqrt"].at(n) + 2e-9 * n for n in grid[0]))
    e = Estimator(c.changed({"sqrt_apart": slow}, {}))

    def model():
        return nn.Embedding(1024, 16), (torch.arange(256),), {}

    found = subject(family_of(model, {}), {}, "train")
    (r,) = (r for r in found.record() if r.call.name == "sqrt")
    assert e.of(r).kernel - c.curves["sqrt"].at(1024 * 16) == pytest.approx(0.75 * 2e-9 * 1024 * 16, rel=0.1)


@pytest.mark.parametrize(
    ("model", "phase", "op"),
    [
        (lambda x: F.max_pool1d(x, 2), "forward", "max_pool1d"),
        (lambda x: F.max_pool1d(x, 2), "train", "max_pool1d"),  # of an input, whose gradient nobody asks for
        (lambda x: F.max_pool1d(x, 2, return_indices=True)[0], "forward", "max_pool2d_with_indices"),
        (lambda x: F.max_pool2d(x[:, :, None], (1, 2)), "forward", "max_pool2d_with_indices"),
    ],
)
def test_what_pools_an_axis_is_what_the_profiler_sees(model, phase, op):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return model(x) * self.w

    found = subject(family_of(lambda: (Pooled(), (torch.rand(2, 3, 32),), {}), {}), {}, phase)
    assert [r.call.name for r in found.record() if "pool" in r.call.name] == [op]
    assert op in {e.name.removeprefix("aten::") for e in events(found.step)}


def test_a_mask_is_looked_at_as_often_as_it_is_repeated():
    """A random column of 64 that stands for 64 rows of 64 x 64 is foreseen: of 4096 numbers each follows its neighbour."""

    class Choice(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.rand(64, 64) > 0.5)

        def forward(self, x):
            return torch.where(self.mask[:, None], x, 0.0), torch.where(self.mask[..., None], x, 0.0)

    found = subject(family_of(lambda: (Choice(), (torch.rand(64, 64, 64),), {}), {}), {}, "forward")
    rows, numbers = (r.unforeseen for r in found.record() if r.call.name == "where")
    assert numbers < 0.05
    assert rows > 0.2


@pytest.mark.parametrize("phase", ["forward", "train"])
def test_pooling_along_one_axis_is_recorded_as_it_runs(phase):
    """The recorder sees another operator than the profiler, which does not change what torch runs."""

    def model():
        return nn.Sequential(nn.Conv1d(1, 4, 3), nn.MaxPool1d(2)), (torch.rand(2, 1, 32),), {}

    found = subject(family_of(model, {}), {}, phase)
    pooled = [r.call for r in found.record() if "pool" in r.call.name and r.call.phase == "forward"]
    seen = {e.name.removeprefix("aten::") for e in events(found.step)}
    assert [c.name for c in pooled] == ["max_pool1d" if phase == "forward" else "max_pool2d_with_indices"]
    assert len(pooled[0].outputs) == (1 if phase == "forward" else 2)
    assert pooled[0].name in seen
    (read,) = lookups(pooled[0], (), cost_of(pooled[0])[0])
    curve = "max_in_a_row" if phase == "forward" else "max_window"
    assert (read.curve, read.sizes) == (curve, (2 * 4 * 15, 2))
