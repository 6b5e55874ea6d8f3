"""What an analysis says that devices send, against real processes over gloo: kind by kind, axis by axis, byte by byte."""

from __future__ import annotations

import collections
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import gloo_gradients
import gloo_processes
import pytest
import sequence_model
import test_experts
from test_parallel import EXAMPLES, Log, _parts

from costir import trace
from costir.cost import cost_of
from costir.ir import Conventions
from costir.load import load_subject
from costir.parallel import plan_of
from costir.parallel.family import distributed


def captured(subject: str, way: str, sizes: dict[str, int]) -> Log:
    """What one trace of a step has, without any formula."""
    family = distributed(dataclasses.replace(load_subject(subject), cache=None), plan_of(gloo_processes.mesh_of(way), way))
    log: Log = collections.defaultdict(lambda: [0, 0])
    for event in trace.run(family, {**family.sizes, **sizes}, "backward").events:
        for sent in cost_of(trace.concrete(event), Conventions())[0].transfers:
            row = log[event.phase, sent.kind, "".join(sent.axes)]
            row[0] += event.times
            row[1] += event.times * int(sent.payload)
    return dict(log)


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_send_over_gloo_what_is_said(tmp_path: Path, processes: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(test_experts.MIXTRAL))
    subjects = {"mlp": str(EXAMPLES / "mlp.py"), "sequence": sequence_model.__file__, "mixtral": str(tmp_path)}
    command = [sys.executable, gloo_processes.__file__, str(tmp_path / "store"), str(tmp_path / "found"), str(processes)]
    subprocess.run(command, check=True, timeout=600)
    logs = json.loads((tmp_path / "found").read_text())
    assert logs.keys() == gloo_processes.CASES[processes].keys()
    for way, (name, sizes) in gloo_processes.CASES[processes].items():
        want = {tuple(row[:3]): row[3:] for row in logs[way]}
        have = captured(subjects[name], way, sizes)
        strategies = {s for s, _ in _parts(way)}
        if strategies & {"dp", "cp"} and not strategies & {"fsdp", "hsdp"}:  # by DistributedDataParallel, in buckets
            want, have = ({k: v[1] for k, v in log.items()} for log in (want, have))
        assert have == want, way


def test_a_divided_model_has_the_gradients_of_the_whole(tmp_path: Path) -> None:
    """Matrices, sequences and weights in four processes: what is sent is what this model needs."""
    command = [sys.executable, gloo_gradients.__file__, str(tmp_path / "store"), str(tmp_path / "found")]
    subprocess.run(command, check=True, timeout=600, capture_output=True)
    worst = json.loads((tmp_path / "found").read_text())
    assert worst.keys() == {*gloo_gradients.WAYS}
    assert all(d < 1e-5 for d in worst.values()), worst
