"""Pipelines, against torch's own stages and schedule, a simulation of schedules, and the model on one device."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from sympy import Integer, simplify
from test_parallel import LLAMA
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import costir
from costir.errors import CostirError
from costir.hardware import load_chip
from costir.ir import Pipeline, Transfer
from costir.mesh import Mesh
from costir.network import Network
from costir.parallel.world import _forget
from costir.stages import bubble

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

tp_plan = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}

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
    return costir.analyze(file, mesh={"P": 3}, parallel="pp=P", phase="train", micro_batches=3)


class Heard(TorchDispatchMode):  # type: ignore[misc]
    """Bytes of each message that a stage sends to the next, of each collective by kind and number of devices; torch's FLOPs."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[int] = []
        self.collectives: list[tuple[str, int, int]] = []
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        name = func._schema.name
        if name == "c10d::send":
            self.sent += [nbytes(t) for t in args[0] if t.is_floating_point()]
        elif name == "_c10d_functional::all_reduce":
            group = torch.distributed.distributed_c10d._resolve_process_group(args[2])
            self.collectives.append(("all_reduce", group.size(), nbytes(args[0])))
        elif name in ON_GROUPS:
            kind, whole, place = ON_GROUPS[name]
            size = torch.distributed.ProcessGroup.unbox(args[place]).size()
            given = args[whole] if isinstance(args[whole], list) else [args[whole]]
            self.collectives.append((kind, size, sum(map(nbytes, given))))
        out = func(*args, **(kwargs or {}))
        real = not any(isinstance(t, FakeTensor) for t in tree_leaves(out))  # of these, DTensor only asks for a shape
        if real and func._overloadpacket in flop_registry:  # FlopCounterMode counts whole tensors where they are divided
            self.flops += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out

    def total(self, kind: str, devices: int) -> tuple[int, int]:
        """How many there are, and bytes of their whole arrays."""
        found = [b for k, n, b in self.collectives if (k, n) == (kind, devices)]
        return len(found), sum(found)


# What torch calls a collective: its kind, and which arguments are the whole array and the group.
ON_GROUPS = {
    "c10d::_allgather_base_": ("all_gather", 0, 2), "c10d::_reduce_scatter_base_": ("reduce_scatter", 1, 2),
    "c10d::allreduce_": ("all_reduce", 0, 1),
}  # fmt: skip


def nbytes(t: torch.Tensor) -> int:
    return t.numel() * t.element_size()


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


@dataclass(frozen=True)
class Ran:
    """What one stage did by torch's own schedule."""

    heard: Heard
    flops: int
    params: int


def divided(part: nn.Module, mesh: Any, ways: dict[str, str]) -> nn.Module:
    """A stage divided over the other axes of the mesh as one would do it by hand."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if "tp" in ways:
        styles = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
        parallelize_module(part, mesh[ways["tp"]], styles, src_data_rank=None)
    if "fsdp" in ways:
        for block in part.blocks:
            fully_shard(block, mesh=mesh[ways["fsdp"]])
        fully_shard(part, mesh=mesh[ways["fsdp"]])
    if "dp" not in ways:
        return part
    group = mesh[ways["dp"]].get_group()
    copied = nn.parallel.DistributedDataParallel(part, process_group=group)

    def hook(state: Any, bucket: Any) -> Any:  # a group that sends nothing gives torch's own hook no result
        torch.distributed.all_reduce(bucket.buffer(), group=group)
        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    hook.__annotations__ = {"bucket": torch.distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    copied.register_comm_hook(None, hook)
    return copied


def torch_stage(file: Path, index: int, mesh: dict[str, int], micro: int, sizes: dict[str, int], ways: Any = (),
                schedule: str = "ScheduleGPipe") -> Ran:  # fmt: skip
    """What one stage along P sends, computes and holds, on real tensors and a group that sends nothing."""
    import torch.distributed as dist
    from torch.distributed import pipelining
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from costir.load.user_file import import_file

    user, ways, axes = import_file(file), dict(ways), list(mesh)
    after = math.prod(mesh[a] for a in axes[axes.index("P") + 1 :])
    dist.init_process_group("fake", store=FakeStore(), rank=index * after, world_size=math.prod(mesh.values()))
    try:
        grid = dist.init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
        module = divided(Part(user.Model(sizes["V"], sizes["D"], sizes["L"]), index, mesh["P"]), grid, ways)
        local = sizes["B"] // math.prod(mesh[a] for w, a in ways.items() if w != "tp")
        ids = torch.zeros(local, sizes["T"], dtype=torch.long)
        middle = torch.zeros(local, sizes["T"], sizes["D"], requires_grad=True)
        given, made = (ids if index == 0 else middle), middle
        if index == mesh["P"] - 1:
            made = torch.zeros(local, sizes["T"], sizes["V"], requires_grad=True)
        args = {"input_args": (given,), "output_args": (made,), "group": grid["P"].get_group()}
        stage = pipelining.PipelineStage(module, index, mesh["P"], torch.device("cpu"), **args)
        runner = getattr(pipelining, schedule)(stage, micro, loss_fn=lambda out, target: user.loss(out), scale_grads=False)
        whole = torch.zeros(local * micro, sizes["T"], dtype=torch.long)
        target = torch.zeros(local * micro, sizes["T"])
        agreed = pytest.MonkeyPatch.context()  # before they run, stages agree that shapes are known
        with agreed as patch, Heard() as heard:
            patch.setattr(dist, "recv", lambda tensor, *args, **kwargs: tensor.fill_(1))
            runner.step(*((whole,) if index == 0 else ()), **({"target": target} if index == mesh["P"] - 1 else {}))
        held = sum(getattr(p, "_local_tensor", p).numel() for p in module.parameters())
        return Ran(heard, heard.flops, held)
    finally:
        _forget(DTensor._op_dispatcher.sharding_propagator)
        dist.destroy_process_group()


def stages_of(analysis: costir.Analysis) -> dict[str, costir.Analysis]:
    return {a.graph.plan: a for a in (analysis, *analysis.alternatives)}


@pytest.mark.parametrize("index", [0, 1, 2])
def test_stages_send_and_compute_what_torch_stages_do(file: Path, piped: costir.Analysis, index: int) -> None:
    name = ("first stage", "middle stages", "last stage")[index]
    sizes = {"B": 5, "T": 7, "D": 24, "L": 9, "V": 50}
    ran = torch_stage(file, index, {"P": 3}, 3, sizes)
    have = stages_of(piped)[name].at(**sizes)
    assert (have.network, have.matmul_flops, have.params) == (sum(ran.heard.sent), ran.flops, ran.params)
    assert set(ran.heard.sent) == {5 * 7 * 24 * 4}


@pytest.fixture(scope="module", params=["fsdp=X,tp=Y,pp=P", "dp=X,pp=P"])
def grid(request: Any, file: Path) -> tuple[dict[str, str], dict[str, int], costir.Analysis]:
    """The stages of a step of four micro-batches on a mesh of several axes: strategies and mesh, too."""
    ways = {way: axis for way, _, axis in (part.partition("=") for part in request.param.split(","))}
    mesh = {a: n for a, n in {"X": 2, "P": 3, "Y": 4}.items() if a in ways.values()}
    sizes = {"B": 4, "D": 32, "L": 3, "V": 64}
    found = costir.analyze(file, mesh=mesh, parallel=request.param, phase="train", micro_batches=4, sizes=sizes)
    return {w: a for w, a in ways.items() if w != "pp"}, mesh, found


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_on_a_mesh_stages_send_and_compute_what_torch_stages_do(
    file: Path, grid: tuple[dict[str, str], dict[str, int], costir.Analysis], index: int, schedule: str
) -> None:
    ways, mesh, analysis = grid
    stage = stages_of(analysis)[("first stage", "middle stages", "last stage")[index]]
    sizes = {"B": 6, "T": 7, "D": 24, "L": 6, "V": 50}
    ran = torch_stage(file, index, mesh, 4, sizes, ways, schedule)
    point = {s: n for name, n in {**sizes, **mesh}.items() for s in (stage.symbols[name],)}
    assert stage.graph.mesh.names == tuple(mesh)
    assert stage.params.subs(point) == ran.params
    assert stage.matmul_flops.subs(point) == ran.flops
    seen: dict[tuple[str, str], tuple[int, int]] = {}
    for c in stage.communication:
        count, payload = seen.get((c.kind, *c.axes), (0, 0))
        seen[c.kind, *c.axes] = count + int(c.count.subs(point)), payload + int(c.payload.subs(point))
    assert seen.pop(("permute", "P")) == (len(ran.heard.sent), sum(ran.heard.sent))
    if "tp" in ways:
        assert seen.pop(("all_reduce", "Y")) == ran.heard.total("all_reduce", 4)
    if "dp" in ways:  # torch joins gradients to buckets: fewer reductions of as many bytes
        assert seen.pop(("all_reduce", "X"))[1] == ran.heard.total("all_reduce", 2)[1]
    else:
        for kind in ("all_gather", "reduce_scatter"):
            assert seen.pop((kind, "X")) == ran.heard.total(kind, 2)
    assert not seen


def test_stages_together_are_the_model(file: Path, piped: costir.Analysis) -> None:
    whole = costir.analyze(file, phase="train", micro_batches=3)
    first, middle, last = (stages_of(piped)[n] for n in ("first stage", "middle stages", "last stage"))
    p = piped.symbols["P"]
    for quantity in ("matmul_flops", "flops", "params"):
        parts = [getattr(a, quantity) for a in (first, middle, last)]
        assert simplify(parts[0] + (p - 2) * parts[1] + parts[2] - getattr(whole, quantity)) == 0
    assert [(c.phase, c.kind, str(c.count)) for c in middle.communication] == [
        ("forward", "permute", "3"), ("backward", "permute", "3"),
    ]  # fmt: skip


def test_all_devices_of_a_mesh_together_run_the_model(
    file: Path, grid: tuple[dict[str, str], dict[str, int], costir.Analysis]
) -> None:
    _, mesh, analysis = grid
    first, middle, last = (stages_of(analysis)[n] for n in ("first stage", "middle stages", "last stage"))
    sizes = {"B": 6, "T": 7, "D": 24, "L": 6, "V": 50}
    point = {s: {**sizes, **mesh}[n] for n, s in analysis.symbols.items()}
    others = math.prod(n for a, n in mesh.items() if a != "P")
    stages = (first, *[middle] * (mesh["P"] - 2), last)
    head = 6 * sizes["B"] * sizes["T"] * sizes["D"] * sizes["V"] * (mesh.get("Y", 1) - 1)  # tp repeats it, by this plan
    assert others * sum(a.matmul_flops.subs(point) for a in stages) == 4 * (flops_of(file, sizes) + head)


def flops_of(file: Path, sizes: dict[str, int]) -> int:
    """FLOPs of contractions of the whole model's forward and backward pass, as torch counts them."""
    from costir.load.user_file import import_file

    user = import_file(file)
    with torch.device("meta"), FlopCounterMode(display=False) as counted:
        module = user.Model(sizes["V"], sizes["D"], sizes["L"])
        user.loss(module(torch.zeros(sizes["B"], sizes["T"], dtype=torch.long))).backward()
    return counted.get_total_flops()


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose head is its table of tokens."""
    head = "nn.LayerNorm(D), nn.Linear(D, V)"
    assert head in MODEL
    path = tmp_path_factory.mktemp("tied") / "model.py"
    path.write_text(MODEL.replace(head, "nn.LayerNorm(D), nn.Linear(D, V, bias=False); self.head.weight = self.tokens.weight"))
    return path


def test_a_shared_weight_is_held_twice_and_its_gradient_added_up_once(tied: Path) -> None:
    from costir.load.user_file import import_file

    stages = stages_of(costir.analyze(tied, mesh={"P": 3}, parallel="pp=P", phase="backward", micro_batches=2))
    first, middle, last = (stages[n] for n in ("first stage", "middle stages", "last stage"))
    v, d = (first.symbols[n] for n in "VD")
    whole = sum(p.numel() for p in import_file(tied).Model(40, 16, 6).parameters())
    assert first.at().params + middle.at().params + last.at().params == whole + 40 * 16
    for stage in (first, last):
        (shared,) = [c for c in stage.communication if c.kind == "all_reduce"]
        assert (shared.phase, shared.axes, shared.count) == ("backward", ("P",), 1)
        assert shared.payload == shared.sent == 4 * v * d
    assert all(c.kind == "permute" for c in middle.communication)
    assert any("tokens.weight and head.weight are one weight" in n for n in first.notes)


@pytest.mark.parametrize(("mesh", "link"), [({"P": 4, "X": 8}, "scaleout"), ({"X": 2, "P": 4}, "nvlink")])
def test_two_ends_of_a_pipeline_exchange_over_the_links_between_them(mesh: dict[str, int], link: str) -> None:
    chip = load_chip("h100")
    seconds = Network(chip, Mesh.of(mesh)).seconds(Transfer("all_reduce", ("P",), Integer(2), Integer(10**9)))
    assert float(seconds) == pytest.approx(10**9 / float(chip.links[link].one_way))


def test_the_optimizer_runs_on_the_weights_of_a_stage(file: Path) -> None:
    whole = costir.analyze(file, phase="train", optimizer="sgd")
    stages = stages_of(costir.analyze(file, mesh={"P": 3}, parallel="pp=P", phase="train", optimizer="sgd"))
    first, middle, last = (stages[n] for n in ("first stage", "middle stages", "last stage"))
    p = first.symbols["P"]
    for quantity in ("flops", "read", "write"):
        moved = {"flops": 0, "read": 2, "write": 2}[quantity] * first.communication[0].payload * (p - 1)
        parts = [getattr(a, quantity) for a in (first, middle, last)]
        assert simplify(parts[0] + (p - 2) * parts[1] + parts[2] - getattr(whole, quantity) - moved) == 0
    for stage in stages.values():
        steps = sum(n.flops for n in stage.nodes if n.phase == "optimizer")
        assert simplify(steps - 2 * stage.params) == 0  # p -= lr*g


def test_a_step_waits_for_passes_and_not_for_what_comes_after(file: Path) -> None:
    sizes = {"B": 8, "D": 64, "L": 4}
    a = costir.analyze(file, mesh={"P": 2, "X": 4}, parallel="pp=P,dp=X", phase="train", micro_batches=2, sizes=sizes)
    on = a.on("h100")
    own = {"costir.all_reduce.default", "aten.div.out", "aten.copy_.default"}  # DistributedDataParallel's
    times = zip(on.roofline.nodes, on.roofline.per_node(), strict=True)
    after = sum(float(t.lower) for n, t in times if n.call.phase == "optimizer" or n.call.op in own)
    assert 0 < after < float(on.at().lower)
    assert on.step == pytest.approx(after + (float(on.at().lower) - after) * 3 / 2)
    assert a.pipeline is not None
    assert (a.pipeline.stages, a.pipeline.idle, a.pipeline.factor) == (2, Fraction(1, 3), Fraction(3, 2))


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
            found = bubble(replace(piped.graph, pipeline=Pipeline("P", micro), sizes={**piped.sizes, "P": stages}))
            taken = simulated(schedule, stages, micro, 2, 5)
            assert found is not None
            assert found.factor * micro * 7 == taken
            assert found.idle == 1 - Fraction(micro * 7, taken)


def test_the_report_is_of_the_slowest_stage(piped: costir.Analysis) -> None:
    from costir import render, views
    from costir.build import build

    report = build(piped.on("h100").analysis, [load_chip("h100")])
    out = render.render(views.analysis(report))
    assert "What a device of each stage holds at the least" in out
    assert json.loads(render.render(views.analysis(report), "json"))["pipeline"]["memory"][0]["in_flight"] == 1
    assert "last stage (slowest)" in out
    assert "1.667 x the stage's forward and backward passes, 40 % of that idle" in out
    assert piped.on("h100").analysis.graph.plan == "last stage" == piped.graph.plan
    assert piped.keep(["B", "T"]).graph.pipeline == Pipeline("P", 3)


def kept(module: nn.Module, given: torch.Tensor) -> int:
    """Bytes of the memories that autograd saves in a forward pass, the parameters' left out."""
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    found: dict[int, int] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = module(given)
    assert result.requires_grad
    return sum(b for key, b in found.items() if key not in own)


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_stage_holds_what_torch_stages_hold(file: Path, piped: costir.Analysis, index: int, schedule: str) -> None:
    from torch.distributed.pipelining import PipelineStage

    from costir.load.user_file import import_file

    stage = stages_of(piped)[("first stage", "middle stages", "last stage")[index]]
    sizes = {"B": 5, "T": 7, "D": 24, "L": 9, "V": 50}
    point = {stage.symbols[n]: v for n, v in sizes.items()} | {stage.symbols["P"]: 3}
    flying: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        before = PipelineStage.backward_one_chunk
        counted = lambda self, *args, **kwargs: (flying.append(len(self.fwd_cache)), before(self, *args, **kwargs))[1]
        patch.setattr(PipelineStage, "backward_one_chunk", counted)
        torch_stage(file, index, {"P": 3}, 3, sizes, (), schedule)
    part = Part(import_file(file).Model(50, 24, 9), index, 3)
    optimizer = torch.optim.AdamW(part.parameters())
    for p in part.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    x = torch.zeros(5, 7, 24, requires_grad=True)
    blocks = [kept(nn.Sequential(*part.blocks[:n]), x) for n in (2, 3)]
    m = stage.stage_memory
    assert m.parameters.subs(point) == m.gradients.subs(point) == sum(nbytes(p) for p in part.parameters())
    assert m.optimizer_state.subs(point) == sum(nbytes(t) for s in optimizer.state.values() for t in s.values())
    assert m.block.subs(point) == blocks[1] - blocks[0]
    assert max(flying) == (3 if schedule == "ScheduleGPipe" else m.in_flight)
    one, always = 3 * (blocks[1] - blocks[0]), (m.parameters + m.optimizer_state).subs(point)
    grads = m.gradients.subs(point)
    at_starts = [n * one + (grads if i else 0) for i, n in enumerate(flying)]
    at_ends = [(n - 1) * one + grads for n in flying]
    assert m.least("gpipe" if schedule == "ScheduleGPipe" else "1f1b").subs(point) == always + max(*at_starts, *at_ends)


def test_what_fsdp_gathers_is_held_at_the_end_of_a_backward_pass(
    grid: tuple[dict[str, str], dict[str, int], costir.Analysis],
) -> None:
    ways, _, analysis = grid
    for stage in stages_of(analysis).values():
        m, x = stage.stage_memory, stage.symbols["X"]
        whole = stage.weight_bytes * (x if "fsdp" in ways else 1)
        assert simplify(m.gradients - whole) == 0
        assert simplify(m.gathered - (whole if "fsdp" in ways else 0)) == 0


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
    ("self.head(self.norm(x))", "F.linear(self.norm(x), self.tokens.weight)", "reads a weight that another part"),
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
    ({"P": 2, "X": 2}, "pp=P,cp=X", {}, "pp and cp=X do not go together"),
    ({"P": 2}, "pp=P", {"phase": "decode"}, "pp is of phase forward, backward and train, not decode"),
    ({"P": 2, "X": 2}, "pp=P,dp=X", {"recompute": "blocks"}, "of pp alone"),
    ({"P": 2}, "pp=P", {"recompute": "all"}, "computed again"),
    ({"P": 2}, "pp=P", {"traffic": "inductor"}, "is of one device"),
    ({"L": 2}, "pp=L", {}, "L is a size of model and an axis of the mesh"),
])  # fmt: skip
def test_what_is_refused(file: Path, mesh: dict[str, int], way: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(CostirError) as problem:
        costir.analyze(file, mesh=mesh, parallel=way, **{"phase": "backward", **more})
    assert said in str(problem.value.message)
    assert problem.value.hint


def test_formulas_of_critical_sizes_hold_for_any_number_of_stages(piped: costir.Analysis) -> None:
    from costir.document import threshold_facts
    from costir.solve import whole

    costed, chip = stages_of(piped)["first stage"].costed, load_chip("h100")
    graphs = [replace(costed.graph, sizes={**costed.graph.sizes, "P": n}) for n in (2, 3)]
    found = [whole(replace(costed, graph=g), chip, "D", "network") for g in graphs]
    assert found[0].value is not None
    assert found[1].value is not None
    assert simplify(found[0].value - found[1].value) == 0
    said = [fact.text for t in found for fact in threshold_facts(replace(t, at_base=None), "whole")]
    assert "formula" not in said
