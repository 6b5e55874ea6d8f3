"""Models on real processes: the log of their collectives against the analysis, and what is made of it. Speed is not tested."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_measuring import made_up

import costir
from costir import cli
from costir.collective_times import KINDS, Collectives, fitted, to_toml
from costir.errors import CostirError, LoadError
from costir.hardware import load_chip
from costir.measuring import calibrate as calibrating
from costir.measuring import mesh_measure, processes
from costir.measuring.mesh_records import Asked, Ran
from costir.measuring.recorded_group import RecordedGroup, Sent, logged
from costir.parallel import plan_of

LATENCY, BANDWIDTH = 1e-4, 1e9


def measured_collectives(devices=2) -> Collectives:
    fits = tuple(fitted(k, devices, [(v, LATENCY + v / BANDWIDTH) for v in (1024, 1 << 16, 1 << 22)]) for k in KINDS)
    about = {"backend": "gloo", "processes": str(devices), "cpu": calibrating.cpu_name()}
    return Collectives(about, 0.02, {"compute": 2.0, "memory": 3.0}, {}, fits)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("chip") / "made-up.toml"
    text = calibrating._chip_file(made_up(), {"fp32": 1e11}, {8192: 1e11, 2**29: 2e10})
    path.write_text(text + to_toml(measured_collectives()))
    return path


def asked(path, subject, parallel, phase="train", **sizes) -> Asked:
    return Asked(subject, plan_of({"X": 2}, parallel), load_chip(str(path)), sizes, phase, "", "", (), None)


# -------------------------------------------------------------------------------------------------------------- the log


class Inner:
    """In place of gloo: does nothing, at once."""

    def __getattr__(self, name):
        if name.endswith(("_single", "_single_coalesced")):  # torch's names from 2.13 on; older versions have the others
            raise AttributeError(name)
        return lambda *_: SimpleNamespace(wait=lambda: True)


def test_the_log_has_kinds_and_payloads_as_the_analysis_counts_them():
    """By hand, for a group of four and tensors of 8 and 32 floats."""
    group, part, whole = RecordedGroup(Inner(), 1, 4), torch.zeros(8), torch.zeros(32)
    with logged() as log:
        group.allreduce([whole], None)
        group.broadcast([whole], None)
        group.all_gather_single(whole, part, None)
        group._allgather_base(whole, part, None)
        group.allgather([[part] * 4], [part], None)
        group.reduce_scatter_single(part, whole, None)
        group.reduce_scatter([part], [[part] * 4], None)
        group.all_to_all_single(part, part, [], [], None)
        group.send([part], 0, 0)
    kinds = ["all_reduce", "broadcast", *["all_gather"] * 3, *["reduce_scatter"] * 2, "all_to_all", "permute"]
    assert [(s.kind, s.payload, s.devices) for s in log] == [(k, 32 if k == "permute" else 128, 4) for k in kinds]
    group.allreduce([whole], None)  # nothing is logged any more
    assert len(log) == len(kinds)


def test_logs_of_real_processes_are_what_the_analysis_finds(path):
    """dp, tp and fsdp on two processes: kind by kind as many bytes, and for tp and fsdp call by call."""
    small = {"B": 4, "D": 32, "F": 64}
    runs = [asked(path, "examples/mlp.py", f"{p}=X", **small) for p in ("dp", "tp", "fsdp")]
    runs.append(asked(path, "examples/gpt.py", "tp=X", "backward", B=2, T=8, D=16, V=32))
    try:
        found = processes.together("mesh_tasks:several", runs, 2)
    except CostirError as error:
        if "no process can be started here" in str(error):
            pytest.skip(str(error))
        raise
    for a, ran in zip(runs, found, strict=True):
        traced, notes = mesh_measure._traced(a)
        assert not notes
        of_run = Counter[tuple]((s.kind, s.payload, s.devices) for s in ran.sent)
        of_trace = Counter[tuple]()
        for kind, payload, devices, times in traced:
            of_trace[kind, payload, devices] += times
        total = lambda c: {k: sum(p * n for (kind, p, _), n in c.items() if kind == k) for k in KINDS}
        assert total(of_run) == total(of_trace), str(a.plan)
        assert sum(total(of_run).values()) > 0
        if str(a.plan) != "dp=X":
            assert of_run == of_trace, str(a.plan)
        assert ran.seconds > 0
        assert ran.computation > 0
        assert ran.operators > 0
        assert all(s.seconds > 0 for s in ran.sent)


# ------------------------------------------------------------------------------------------------------------ comparing


def ran(sent, **changes) -> Ran:
    estimate = {"compute": 1e-3, "memory": 2e-3, "overhead": 1e-3}
    plain = Ran("m", {"B": 4}, 2e-2, 0.01, 1.1e-2, tuple(sent), estimate, 7, 0.0)
    return replace(plain, **changes)


def test_parts_are_predicted_from_the_analysis(path):
    traced = [("all_gather", 10**6, 2, 2), ("reduce_scatter", 4 * 10**6, 2, 1)]
    sent = [Sent("all_gather", 10**6, 2, 2e-3, 0.0)] * 2 + [Sent("reduce_scatter", 4 * 10**6, 2, 3e-3, 0.0)]
    m = mesh_measure._compared(asked(path, "m.py", "fsdp=X"), ran(sent), load_chip(str(path)).collectives, traced, [])
    computation, gather, scatter = m.parts
    assert computation.predicted == pytest.approx(2 * 1e-3 + 3 * 2e-3 + 2 * 1e-3)  # memory is slower than the rest
    assert m.slower == pytest.approx(2.5)
    assert (gather.calls, gather.payload, gather.traced) == (2, 2 * 10**6, 2 * 10**6)
    assert gather.predicted == pytest.approx(2 * (LATENCY + 1e6 / BANDWIDTH))
    assert gather.measured == pytest.approx(4e-3)
    assert gather.error == pytest.approx(2.2 / 4 - 1)
    assert scatter.predicted == pytest.approx(LATENCY + 4e6 / BANDWIDTH)
    assert m.total.predicted == pytest.approx(sum(p.predicted for p in m.parts))
    assert m.overlap + sum(p.measured for p in m.parts) == pytest.approx(m.total.measured)
    assert m.verdict
    assert not m.notes


def test_what_runs_in_other_pieces_than_in_the_analysis_is_said(path):
    """dp: the analysis has a reduction for each parameter, DistributedDataParallel one for each bucket."""
    traced, sent = [("all_reduce", 1000, 2, 3)], [Sent("all_reduce", 3000, 2, 1e-3, 0.0)]
    m = mesh_measure._compared(asked(path, "m.py", "dp=X"), ran(sent), load_chip(str(path)).collectives, traced, [])
    assert m.parts[1].predicted == pytest.approx(LATENCY + 3000 / BANDWIDTH)
    assert m.parts[1].traced == m.parts[1].payload
    assert m.notes == ("all_reduce: 3 in the analysis run as 1; their payloads are taken from the run",)


def test_differing_bytes_and_a_busy_machine_are_said(path, monkeypatch, capsys):
    traced, sent = [("all_reduce", 1000, 2, 1)], [Sent("all_reduce", 3000, 2, 1e-3, 0.0)]
    monkeypatch.setattr(mesh_measure, "_traced", lambda a: (traced, []))
    monkeypatch.setattr(mesh_measure, "together", lambda *_: ran(sent, loaded=0.5))
    command = ["measure", "examples/mlp.py", "--mesh", "X=2", "--parallel", "tp=X", "--chip", str(path)]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert "differ from the analysis: all_reduce: 1 kB traced, 3 kB sent" in shown
    assert "verdict  none" in shown
    assert "50% slower" in shown
    monkeypatch.setattr(mesh_measure, "together", lambda *_: ran(sent, spread=0.4))
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert "verdict  none" in shown
    assert "timings spread by 40%" in shown
    assert cli.main([*command, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["summary"]["verdict"] is False
    assert [p["part"] for p in found["parts"]] == ["computation", "all_reduce"]
    assert cli.main([*command, "--format", "csv"]) == 0
    assert "all_reduce,1,3000,1000" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--mesh", "X=2", "--parallel", "dp=X", "--why"], "--why does not go with --mesh"),
     (["--mesh", "X=2", "--parallel", "dp=X", "--sweep", "B=1,2"], "--sweep does not go with --mesh"),
     (["--mesh", "X=1", "--parallel", "dp=X"], "a mesh of 1 processes cannot be measured here"),
     (["--mesh", "X=4", "--parallel", "dp=X"], "no measured collectives over 4 devices, only over 2"),
     (["--mesh", "X=2", "--parallel", "dp=Y"], "names the axis 'Y', which the mesh does not have"),
     (["--parallel", "dp=X"], "add for example --mesh"), (["--mesh", "X=2"], "--parallel")],
)  # fmt: skip
def test_what_cannot_be_measured_is_one_sentence(path, capsys, words, message):
    assert cli.main(["measure", "examples/mlp.py", "--chip", str(path), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_chip_without_collectives_says_what_to_run(tmp_path, capsys):
    path = tmp_path / "c.toml"
    path.write_text(calibrating._chip_file(made_up(), {"fp32": 1e11}, {8192: 1e11, 2**29: 2e10}))
    assert cli.main(["measure", "examples/mlp.py", "--mesh", "X=2", "--parallel", "dp=X", "--chip", str(path)]) == 2
    assert f"run costir calibrate --collectives --processes 2 -o {path}" in capsys.readouterr().err


def test_a_module_cannot_be_sent_to_processes(path):
    with pytest.raises(LoadError, match="give the path of its file"):
        costir.measure_on_mesh(torch.nn.Linear(2, 2), {"X": 2}, "dp=X", chip=str(path))
