"""Pipelines, against torch's own stages and schedule, a simulation of schedules, and the model on one device."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from sympy import simplify
from test_parallel import LLAMA
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import costir
from costir.errors import CostirError
from costir.stages import waiting

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Model(nn.Module):
    def __init__(self, V, D, L):
        super().__init__()
        self.tokens = nn.Embedding(V, D)
        self.blocks = nn.ModuleList([Block(D) for _ in range(L)])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

def loss(out):
    return out.float().pow(2).mean()

def build(B=4, T=6, D=16, L=6, V=40):
    return Model(V, D, L), (torch.zeros(B, T, dtype=torch.long),), {}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of alike blocks."""
    path = tmp_path_factory.mktemp("stages") / "model.py"
    path.write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def piped(file: Path) -> costir.Analysis:
    """Its stages, of a step of three micro-batches."""
    return costir.analyze(file, mesh={"P": 3}, parallel="pp=P", phase="backward", micro_batches=3)


class Heard(TorchDispatchMode):  # type: ignore[misc]
    """Bytes of each point-to-point message that a stage sends."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name == "c10d::send":
            self.sent += [t.numel() * t.element_size() for t in args[0] if t.is_floating_point()]
        return func(*args, **(kwargs or {}))


class Part(nn.Module):
    """A stage as one would write it by hand."""

    def __init__(self, whole: Any, index: int, count: int) -> None:
        super().__init__()
        each = len(whole.blocks) // count
        self.tokens = whole.tokens if index == 0 else None
        self.blocks = whole.blocks[index * each : (index + 1) * each]
        self.norm, self.head = (whole.norm, whole.head) if index == count - 1 else (None, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.tokens is None else self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def torch_stage(file: Path, index: int, count: int, micro: int, sizes: dict[str, int]) -> tuple[list[int], int, int]:
    """What one stage sends, computes and holds by torch's own schedule, on real tensors and a group that sends nothing."""
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from costir.load.user_file import import_file

    user = import_file(file)
    dist.init_process_group("fake", store=FakeStore(), rank=index, world_size=count)
    try:
        module = Part(user.Model(sizes["V"], sizes["D"], sizes["L"]), index, count)
        ids = torch.zeros(sizes["B"], sizes["T"], dtype=torch.long)
        middle = torch.zeros(sizes["B"], sizes["T"], sizes["D"], requires_grad=True)
        given = ids if index == 0 else middle
        made = {"input_args": (given,), "output_args": (module(given).detach().requires_grad_(),)}
        stage = PipelineStage(module, index, count, torch.device("cpu"), **made)
        schedule = ScheduleGPipe(stage, micro, loss_fn=lambda out, target: user.loss(out), scale_grads=False)
        whole = torch.zeros(sizes["B"] * micro, sizes["T"], dtype=torch.long)
        target = torch.zeros(sizes["B"] * micro, sizes["T"])
        agreed = pytest.MonkeyPatch.context()  # before they run, stages agree that shapes are known
        with agreed as patch, Heard() as heard, FlopCounterMode(display=False) as flops:
            patch.setattr(dist, "recv", lambda tensor, *args, **kwargs: tensor.fill_(1))
            schedule.step(*((whole,) if index == 0 else ()), **({"target": target} if index == count - 1 else {}))
        return heard.sent, flops.get_total_flops(), sum(p.numel() for p in module.parameters())
    finally:
        dist.destroy_process_group()


def stages_of(analysis: costir.Analysis) -> dict[str, costir.Analysis]:
    return {a.graph.plan: a for a in (analysis, *analysis.alternatives)}


@pytest.mark.parametrize("index", [0, 1, 2])
def test_stages_send_and_compute_what_torch_stages_do(file: Path, piped: costir.Analysis, index: int) -> None:
    name = ("first stage", "middle stages", "last stage")[index]
    sizes = {"B": 5, "T": 7, "D": 24, "L": 9, "V": 50}
    sent, flops, params = torch_stage(file, index, 3, 3, sizes)
    have = stages_of(piped)[name].at(**sizes)
    assert (have.network, have.matmul_flops, have.params) == (sum(sent), flops, params)
    assert set(sent) == {5 * 7 * 24 * 4}


def test_stages_together_are_the_model(file: Path, piped: costir.Analysis) -> None:
    whole = costir.analyze(file, phase="backward", micro_batches=3)
    first, middle, last = (stages_of(piped)[n] for n in ("first stage", "middle stages", "last stage"))
    p = piped.symbols["P"]
    for quantity in ("matmul_flops", "flops", "params"):
        parts = [getattr(a, quantity) for a in (first, middle, last)]
        assert simplify(parts[0] + (p - 2) * parts[1] + parts[2] - getattr(whole, quantity)) == 0
    assert [(c.phase, c.kind, str(c.count)) for c in middle.communication] == [
        ("forward", "permute", "3"), ("backward", "permute", "3"),
    ]  # fmt: skip


def simulated(schedule: str, stages: int, micro: int, forward: int, backward: int) -> int:
    """When a step ends: each device takes its tasks in its schedule's order, each task waits for what it needs."""
    orders = []
    for s in range(stages):
        if schedule == "gpipe":
            order = [("f", m) for m in range(micro)] + [("b", m) for m in range(micro)]
        else:  # one forward, one backward: as many forward passes ahead as there are stages behind
            ahead = min(stages - s - 1, micro)
            order = [("f", m) for m in range(ahead)]
            for m in range(micro - ahead):
                order += [("f", ahead + m), ("b", m)]
            order += [("b", m) for m in range(micro - ahead, micro)]
        orders.append(order)
    ends: dict[tuple[str, int, int], int] = {}
    free, at = [0] * stages, [0] * stages
    while any(at[s] < len(orders[s]) for s in range(stages)):
        for s in range(stages):
            while at[s] < len(orders[s]):
                kind, m = orders[s][at[s]]
                needs = ("f", s - 1, m) if kind == "f" else ("b", s + 1, m) if s < stages - 1 else ("f", s, m)
                if needs[1] >= 0 and needs not in ends:
                    break
                start = max(free[s], ends.get(needs, 0))
                ends[kind, s, m] = free[s] = start + (forward if kind == "f" else backward)
                at[s] += 1
    return max(free)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_step_waits_as_a_simulation_of_its_schedule_does(piped: costir.Analysis, schedule: str) -> None:
    for stages in (2, 3, 5, 8):
        for micro in (1, 2, 7, 16):
            longer, idle = waiting(replace(piped.graph, pipeline=micro, sizes={**piped.sizes, "P": stages}))
            taken = simulated(schedule, stages, micro, 2, 5)
            assert longer * micro * 7 == taken
            assert idle == 1 - Fraction(micro * 7, taken)


def test_the_report_is_of_the_slowest_stage(piped: costir.Analysis) -> None:
    from costir import render, views
    from costir.build import build
    from costir.hardware import load_chip

    out = render.render(views.analysis(build(piped.on("h100").analysis, [load_chip("h100")])))
    assert "last stage (slowest)" in out
    assert "1.667 x the stage's time; 40 % of it idle" in out
    assert piped.on("h100").analysis.graph.plan == "last stage" == piped.graph.plan
    assert piped.keep(["B", "T"]).graph.pipeline == 3


def test_what_a_stage_does_not_say(piped: costir.Analysis) -> None:
    for asked in (lambda: piped.memory, lambda: piped.on("h100").critical_path, lambda: piped.under("inductor")):
        with pytest.raises(CostirError) as problem:
            asked()
        assert "leave out pp" in problem.value.hint


def test_a_transformers_model_in_stages(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    whole = costir.analyze(tmp_path, sizes={"B": 4, "T": 32})
    found = stages_of(costir.analyze(tmp_path, mesh={"P": 2}, parallel="pp=P", sizes={"B": 4, "T": 32}))
    p = found["last stage"].symbols["P"]
    assert simplify(sum(a.matmul_flops for a in found.values()).subs(p, 2) - whole.matmul_flops) == 0
    v, d = whole.symbols["V"], whole.symbols["D"]
    assert simplify(found["last stage"].params - found["first stage"].params - d) == 0  # the last norm; V*D in both
    assert found["first stage"].params.coeff(v) == d
    assert found["last stage"].network == 0


@pytest.mark.parametrize(("old", "new", "said"), [
    ("x = block(x)", "x = block(x) + ids.sum()", "a pipeline passes on one tensor"),
    ("self.head(self.norm(x))", "F.linear(self.norm(x), self.tokens.weight)", "share a weight"),
    ("self.head(self.norm(x))", "self.head(self.norm(x) + self.tokens(ids))", "reads what is before"),
    ("[Block(D) for _ in range(L)]", "[Block(D), Block(D)]", "pp divides one list of blocks whose number is a size"),
])  # fmt: skip
def test_models_that_are_no_chain_of_blocks_are_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in MODEL
    (tmp_path / "model.py").write_text(MODEL.replace(old, new))
    with pytest.raises(CostirError, match=said):
        costir.analyze(tmp_path / "model.py", mesh={"P": 2}, parallel="pp=P", phase="backward")


@pytest.mark.parametrize(("mesh", "way", "more", "said"), [
    ({"P": 4}, "pp=P", {}, "stages would be uneven: 4 stages along P do not divide L = 6 blocks"),
    ({"P": 2, "X": 2}, "pp=P,dp=X", {}, "pp goes alone"),
    ({"P": 2}, "pp=P", {"phase": "train"}, "pp is of phase forward and backward, not train"),
    ({"P": 2}, "pp=P", {"recompute": "all"}, "computed again"),
    ({"P": 2}, "pp=P", {"traffic": "inductor"}, "is of one device"),
    ({"L": 2}, "pp=L", {}, "L is a size of model and an axis of the mesh"),
])  # fmt: skip
def test_what_is_refused(file: Path, mesh: dict[str, int], way: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(CostirError) as problem:
        costir.analyze(file, mesh=mesh, parallel=way, **{"phase": "backward", **more})
    assert said in str(problem.value.message)
    assert problem.value.hint
