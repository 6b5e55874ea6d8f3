"""The clock of a GPU, on a line of time that a host and a GPU share."""

from __future__ import annotations

import pytest
import torch
from fake_gpu import META, Machine, Model, installed

from costir.measuring import clock as clocks
from costir.measuring.clock import HOST, CudaClock
from costir.measuring.timing import timed


def tiny():
    x = torch.ones(16, device=META)
    return lambda: x * 2.0


def test_a_gpus_time_is_not_the_hosts(monkeypatch):
    """The host takes 7 us to start a kernel of 2 us: only one whose queue is full shows its own time."""
    model = Model()
    with installed(monkeypatch, model):
        memory = torch.ones(1 << 26, device=META)
        clock = CudaClock(torch.device("cuda", 0), lambda: memory.fill_(1.0))
        assert clock.busy == pytest.approx(model.kernel + 2**28 / model.slow, rel=0.01)
        assert timed(tiny(), clock=clock).best == pytest.approx(model.kernel, rel=0.01)
        assert clock.host(tiny(), 100) == pytest.approx(100 * model.launch, rel=1e-6)
        assert clock.round(lambda: (tiny()(), tiny()()), 64) == pytest.approx(64 * 4 * model.kernel, rel=0.01)
        monkeypatch.setattr(clock, "keep_busy", lambda: None)  # nothing that goes before
        assert timed(tiny(), clock=clock).best == pytest.approx(model.launch, rel=0.05)


def test_an_operator_that_waits_for_itself_is_timed_with_its_wait(monkeypatch):
    model = Model()
    with installed(monkeypatch, model) as (machine, _):
        memory = torch.ones(1 << 26, device=META)
        clock, f = CudaClock(torch.device("cuda", 0), lambda: memory.fill_(1.0)), tiny()
        waits = lambda: (f(), machine.wait())
        assert clock.round(waits, 10) == pytest.approx(10 * (model.launch + model.kernel), rel=0.3)


def test_events_need_timing_and_an_end():
    machine = Machine(Model())
    a, b = machine.event(True), machine.event(True)
    machine.kernel(1.0)
    a.record()
    machine.kernel(1.0)
    b.record()
    assert not a.query()
    with pytest.raises(RuntimeError):
        a.elapsed_time(b)
    machine.wait()
    assert a.query()
    assert a.elapsed_time(b) == pytest.approx(1000)


def test_the_hosts_clock_is_perf_counter(monkeypatch):
    now = iter((10.0, 13.0))
    monkeypatch.setattr(clocks, "perf_counter", lambda: next(now))
    assert HOST.round(lambda: None, 3) == 3.0
