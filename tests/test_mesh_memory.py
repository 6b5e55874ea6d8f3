"""Memory of one device of a mesh, against every allocation and free of torch's engine on real tensors."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sequence_model
import test_experts
import test_parallel as engine
import test_ring
import torch
from mesh_memory_oracle import real_serving_step, real_step
from torch import nn

import costir
from costir import memory, trace
from costir.errors import CostirError
from costir.hardware import load_chip
from costir.load import load_subject
from costir.load.family import Family
from costir.load.user_file import import_file
from costir.parallel import plan_of
from costir.parallel.family import distributed
from costir.symbolic import holds, number, size

MESH = {"X": 3, "Y": 4, "Z": 2}
FOLDERS = {"sequence_model": Path(sequence_model.__file__).parent}
Sizes = dict[str, int]


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-3)


def axes_of(way: str) -> list[str]:
    return [a for _, axes in engine._parts(way) for a in axes.split("/")]


def real(make: Callable[[], Any], tp: dict[str, str], way: str, mesh: Sizes, batch: int, *shape: int, **more: Any) -> Sizes:
    """What a step really holds on this mesh; the batch is that of all devices."""
    parts = math.prod(mesh[a] for s, axes in engine._parts(way) if s not in ("tp", "sp", "ep") for a in axes.split("/"))

    def wrap(module: Any, axes: dict[str, Any]) -> Any:
        return engine.parallel(module, axes, tp, list(getattr(module, "blocks", ())), way, more.get("again", False))

    data = (batch // parts, *shape), more.get("dtype", torch.float32)
    inputs = dict.fromkeys(more["names"], data)
    return real_step(make, more.get("wrap", wrap), mesh, inputs, more["loss"], more["optimizer"], more.get("options"))


def real_mlp(way: str, mesh: Sizes, s: Sizes) -> Sizes:
    file = import_file(engine.EXAMPLES / "mlp.py")
    make = lambda: file.MLP(s["D"], s["F"])
    return real(make, engine.MLP, way, mesh, s["B"], s["D"], names=["x"], loss=file.loss, optimizer=sgd)


def real_gpt(way: str, mesh: Sizes, s: Sizes, again: bool = False) -> Sizes:
    file = import_file(engine.EXAMPLES / "gpt.py")
    tp = {f"blocks.{i}.{n}": style for i in range(s["L"]) for n, style in engine.BLOCK.items()}
    tp |= {"tokens": "embedding", "head": "gather"}
    make = lambda: file.GPT(*(s[n] for n in "DNLV"))
    ids = {"names": ["ids", "targets"], "dtype": torch.long, "again": again}
    return real(make, tp, way, mesh, s["B"], s["T"], loss=lambda out: out, optimizer=adamw, **ids)


def real_llama(way: str, mesh: Sizes, s: Sizes) -> Sizes:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.distributed import DistributedConfig
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    def wrap(model: Any, axes: dict[str, Any]) -> Any:
        apply_tensor_parallelism(model, axes["Y"], model._resolve_parallel_plans(DistributedConfig(tp_size=mesh["Y"]))[0])
        return engine.parallel(model, axes, {}, list(model.model.layers), "fsdp=X")

    make = lambda: LlamaForCausalLM(LlamaConfig(**engine.LLAMA)).train()
    ids = {"names": ["input_ids", "labels"], "dtype": torch.long, "options": {"use_cache": False}}
    return real(make, {}, way, mesh, s["B"], s["T"], loss=lambda out: out.loss, optimizer=adamw, wrap=wrap, **ids)


def real_sequence(way: str, mesh: Sizes, s: Sizes) -> Sizes:
    """Matrices and the sequence between them by torch's styles, then what divides the batch."""

    def wrap(module: Any, axes: dict[str, Any]) -> Any:
        matrices = lambda m, axis: test_ring.by_plan(m, axis, way)
        return matrices(module, axes["Y"]) if way == "sp=Y" else test_ring.divided(module, axes, way, matrices, patch)

    make = lambda: sequence_model.GPT(*(s[n] for n in "DNV"))
    ids = {"names": ["ids", "targets"], "dtype": torch.long, "wrap": wrap}
    with pytest.MonkeyPatch.context() as patch:
        return real(make, {}, way, mesh, s["B"], s["T"], loss=lambda out: out, optimizer=adamw, **ids)


def real_mixture(way: str, mesh: Sizes, s: Sizes) -> Sizes:
    """Experts apart by transformers' engine; there ids and labels are one tensor, as it has them."""

    def wrap(model: Any, axes: dict[str, Any]) -> Any:
        test_experts.experts_apart(model, axes["Y"], patch)
        return engine.parallel(model, axes, {}, list(model.model.layers), way.removesuffix("ep=Y").rstrip(",") or "ep=Y")

    make = lambda: test_experts.evenly_routed(s).train()
    names = {"names": ["input_ids", "labels"], "dtype": torch.long, "options": {"use_cache": False}, "wrap": wrap}
    with pytest.MonkeyPatch.context() as patch:
        return real(make, {}, way, mesh, s["B"], s["T"], loss=lambda out: out.loss, optimizer=adamw, **names)


def followed(family: Family, way: str, mesh: Sizes, sizes: Sizes) -> tuple[memory.Moment, ...]:
    """What a trace of the step says, operator by operator."""
    divided = distributed(dataclasses.replace(family, cache=None), plan_of(mesh, way))
    with trace.no_collection():
        return memory.moments(trace.run(divided, {**divided.sizes, **sizes}, "train"))


def agree(moments: tuple[memory.Moment, ...], found: Sizes, more: int = 0) -> None:
    """Parts to the byte; the peak but for a few scalars that no operator shows, and up to `more` bytes that none makes."""
    for part in ("parameters", "gradients", "optimizer state"):
        assert moments[-1].parts[part] == found[part], part
    assert found["peak"] - more - 64 <= max(m.total for m in moments) <= found["peak"] + 64


CASES = {
    "mlp": (real_mlp, {"B": 48, "D": 96, "F": 384}),
    "gpt": (real_gpt, {"B": 12, "T": 24, "D": 96, "N": 8, "L": 2, "V": 48}),
    "sequence_model": (real_sequence, {"B": 24, "T": 48, "D": 96, "N": 12, "V": 96}),
}


@pytest.mark.parametrize(("name", "way"), [
    ("mlp", "dp=X"), ("mlp", "dp=X,tp=Y"), ("mlp", "fsdp=X"), ("mlp", "tp=Y"), ("mlp", "fsdp=X,tp=Y"),
    ("gpt", "dp=X,tp=Y"), ("gpt", "fsdp=X,tp=Y"), ("sequence_model", "sp=Y"), ("sequence_model", "fsdp=X,sp=Y"),
    ("sequence_model", "dp=X,sp=Y"), ("sequence_model", "hsdp=X/Y"), ("sequence_model", "hsdp=X/Z,tp=Y"),
])  # fmt: skip
def test_a_device_holds_what_torchs_allocator_gives_it(name: str, way: str) -> None:
    listen, sizes = CASES[name]
    mesh = {a: MESH[a] for a in axes_of(way)}
    family = load_subject(str(FOLDERS.get(name, engine.EXAMPLES) / f"{name}.py"))
    agree(followed(family, way, mesh, sizes), listen(way, mesh, sizes))


@pytest.mark.parametrize("way", ["dp=X,tp=Y", "fsdp=X,tp=Y"])
def test_a_device_that_computes_blocks_again_holds_what_torchs_allocator_gives_it(way: str) -> None:
    """torch's checkpoint keeps the state of the random numbers for each block, which no operator makes."""
    listen, sizes = CASES["gpt"]
    mesh = {a: MESH[a] for a in axes_of(way)}
    family = dataclasses.replace(load_subject(str(engine.EXAMPLES / "gpt.py")), recompute="blocks")
    agree(followed(family, way, mesh, sizes), listen(way, mesh, sizes, True), sizes["L"] * torch.get_rng_state().nbytes)


@pytest.mark.parametrize("way", ["dp=X", "fsdp=X", "tp=Y", "fsdp=X,tp=Y"])
def test_the_formulas_of_an_mlp_at_other_sizes_and_meshes(way: str) -> None:
    mesh = {a: MESH[a] for a in axes_of(way)}
    sizes = {"B": 48, "D": 96, "F": 384}
    found = costir.analyze(engine.EXAMPLES / "mlp.py", mesh=mesh, parallel=way, phase="train", sizes=sizes)
    for point in ({"B": 420, "D": 210, "F": 70}, {"B": 70, "D": 420, "F": 140}):
        there = {a: {"X": 7, "Y": 5}[a] for a in mesh}
        assert found.memory.at(**point, **there).total == real_mlp(way, there, {**found.sizes, **point})["peak"]
    assert sum(found.memory.parts.values()).expand() == found.memory.formula


@pytest.mark.parametrize("way", ["fsdp=X,sp=Y", "hsdp=X/Y"])
def test_the_formulas_of_divided_sequences_and_of_copies_at_other_sizes_and_meshes(way: str) -> None:
    found = costir.analyze(sequence_model.__file__, mesh={"X": 2, "Y": 2}, parallel=way, phase="train")
    sizes = {"B": 48, "T": 24, "D": 192, "N": 12, "V": 48}
    for mesh in ({"X": 3, "Y": 4}, {"X": 2, "Y": 3}):
        assert found.memory.at(**mesh, **sizes).total == pytest.approx(real_sequence(way, mesh, sizes)["peak"], abs=64)


class Tower(nn.Module):
    """Blocks of two layers each, so that most operators occur twice in a block."""

    def __init__(self, D: int, L: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(D, 2 * D), nn.Tanh(), nn.Linear(2 * D, D)) for _ in range(L))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()


def tower(B: int = 8, D: int = 16, L: int = 3) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return Tower(D, L), (torch.zeros(B, D),), {}


def test_the_formulas_of_blocks_whose_weights_are_gathered_one_ahead() -> None:
    found = costir.analyze(tower, mesh={"X": 4}, parallel="fsdp=X", phase="train").memory
    options = {"names": ["x"], "loss": lambda out: out, "optimizer": adamw}
    for x, b, d, layers in ((2, 2, 64, 6), (3, 300, 24, 5), (5, 5, 50, 2), (2, 8, 8, 1)):
        want = real(lambda d=d, n=layers: Tower(d, n), {}, "fsdp=X", {"X": x}, b, d, **options)["peak"]
        assert found.at(X=x, B=b, D=d, L=layers).total == pytest.approx(want, abs=64), (x, b, d, layers)


class Stack(nn.Module):
    """Blocks of a width that is so many times the model's."""

    def __init__(self, F: int, L: int, wider: int, bias: bool) -> None:
        super().__init__()
        pair = lambda: (nn.Linear(F, wider * F, bias), nn.Linear(wider * F, F, bias))
        self.blocks = nn.ModuleList(nn.Sequential(a, nn.GELU(), b) for a, b in (pair() for _ in range(L)))
        self.out = nn.Linear(F, 3 * F)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.out(x).square().mean()


@pytest.mark.parametrize(("wider", "bias", "tp"), [(2, False, 2), (3, True, 3)])
def test_lengths_that_the_mesh_makes_equal_at_the_base(wider: int, bias: bool, tp: int) -> None:
    """Y divides wider*F into F there: shards are told apart by their order, and what is held by other runs."""

    def build(B: int = 48, F: int = 96, L: int = 2) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        return Stack(F, L, wider, bias), (torch.zeros(B, F),), {}

    styles, way = {"blocks.*.0": "colwise", "blocks.*.2": "rowwise", "out": "colwise_gather"}, "fsdp=X,tp=Y"
    found = costir.analyze(build, mesh={"X": 2, "Y": tp}, parallel=way, phase="train", plan=styles)
    for (x, y), b, f, layers in (((2, tp), 48, 96, 4), ((5, 3), 30, 120, 3), ((2, 7), 200, 56, 5)):
        mesh = {"X": x, "Y": y}
        plan = {f"blocks.{i}.{n}": s for i in range(layers) for n, s in (("0", "colwise"), ("2", "rowwise"))} | {
            "out": "gather"
        }
        make = lambda f=f, n=layers: Stack(f, n, wider, bias)
        with engine.fake_group(x * y):
            wrap = lambda m, axes, plan=plan: engine.parallel(m, axes, plan, list(m.blocks), way)
            assert engine.said(found, **mesh, B=b, F=f, L=layers) == engine.heard(
                make(), wrap, mesh, {"x": torch.zeros(b // x, f)}
            )
        options = {"names": ["x"], "loss": lambda out: out, "optimizer": adamw}
        want = real(make, plan, way, mesh, b, f, **options)["peak"]
        assert found.memory.at(**mesh, B=b, F=f, L=layers).total == pytest.approx(want, abs=64), mesh


def test_one_device_holds_what_it_holds_without_a_mesh() -> None:
    alone = costir.analyze(engine.EXAMPLES / "mlp.py", phase="train").memory
    one = costir.analyze(engine.EXAMPLES / "mlp.py", phase="train", mesh={"X": 1}, parallel="fsdp=X").memory
    assert one.peaks == alone.peaks


def test_what_fits_is_solved_for_sizes_of_the_model() -> None:
    found = costir.analyze(engine.EXAMPLES / "mlp.py", mesh={"X": 4}, parallel="fsdp=X", phase="train")
    fit = found.memory.largest("B", "h100")
    assert fit.value is not None
    assert fit.value % 4 == 0
    assert found.memory.at(B=fit.value).total <= fit.capacity < found.memory.at(B=fit.value + 4).total
    with pytest.raises(CostirError, match="X is an axis of the mesh: with more devices, each holds less"):
        found.memory.largest("X", "h100")
    with pytest.raises(CostirError, match="B is no axis of the mesh"):
        found.memory.fewest("B", "h100")


@pytest.mark.parametrize(("way", "chip", "batch"), [
    ("fsdp=X", "h100", 2**26), ("fsdp=X", "a100", 2**26), ("fsdp=X", "h100", 2**20), ("fsdp=X,tp=Y", "h100", 9 * 2**20),
    ("dp=X", "h100", 2**25), ("dp=X", "h100", 7),
])  # fmt: skip
def test_the_fewest_devices_are_those_of_a_scan(way: str, chip: str, batch: int) -> None:
    """Every number of devices, one after the other: whether the formulas hold there on the chip, and what a device holds."""
    mesh = dict.fromkeys(axes_of(way), 7 if batch == 7 else 2)
    found = costir.analyze(engine.EXAMPLES / "mlp.py", mesh=mesh, parallel=way, phase="train", sizes={"B": batch})
    on, capacity = found.on(chip), load_chip(chip).memory_capacity
    fit = found.memory.fewest("X", chip)
    values = {size(n): number(v) for n, v in found.sizes.items() if n != "X"}
    able = [x for x in range(2, 4100) if all(holds(c.condition, {**values, size("X"): x}) for c in on.roofline.constraints)]
    enough = [x for x in able if found.memory.at(X=x).total <= capacity]
    assert fit.value == min(enough, default=0)
    assert fit.fewest
    if fit.formula is not None:
        at = float(fit.formula.xreplace({size(n): number(v) for n, v in found.sizes.items()}))
        assert not [x for x in able if at <= x < fit.value]


class Spread(nn.Module):
    """Asks whether its batch is 1, as transformers' masks do."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(32, dtype=x.dtype)[None, :, None]
        return self.down(self.up(x + places if x.shape[0] == 1 else x + places.expand(x.shape[0], -1, -1)).relu())


def test_one_element_of_the_batch_for_each_device_fits_where_a_run_shows_it() -> None:
    """The formulas leave it out, as the model asks for it; what is held there is another analysis' to say."""
    build = lambda B=8: (Spread(), (torch.randn(B, 32, 64),), {})
    few, most = (costir.analyze(build, mesh={"X": x}, parallel="dp=X", phase="train", sizes={"B": 8}) for x in (2, 8))
    with pytest.raises(CostirError, match="B/X != 1"):
        few.memory.at(X=8)
    held = most.memory.at().total
    enough, less = (dataclasses.replace(load_chip("h100"), memory_capacity=held + more) for more in (0, -1))
    assert few.memory.fewest("X", enough).value == 8
    assert few.memory.fewest("X", less).value == 0
    assert few.memory.largest("B", enough, X=8).value == 8
    assert few.memory.largest("B", less, X=8).value == 0


@pytest.mark.parametrize("way", ["ep=Y", "fsdp=X,ep=Y"])
def test_experts_on_devices_of_their_own_hold_what_torchs_allocator_gives_them(way: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(test_experts.MIXTRAL))
    mesh, sizes = {a: {"X": 2, "Y": 4}[a] for a in axes_of(way)}, {**test_experts.OTHERS, "E": 8, "k": 2}
    found = followed(load_subject(str(tmp_path), phase="train"), way, mesh, sizes)
    want = real_mixture(way, mesh, sizes)
    agree(found, {**want, "peak": want["peak"] + found[-1].parts["inputs"] - want["inputs"]})


def test_a_transformers_model_holds_what_torchs_allocator_gives_it(tmp_path: Path) -> None:
    """There ids and labels are one tensor, here they are two."""
    (tmp_path / "config.json").write_text(json.dumps(engine.LLAMA))
    mesh, sizes = {"X": 4, "Y": 2}, {"B": 8, "T": 32}
    found = followed(load_subject(str(tmp_path), phase="train"), "fsdp=X,tp=Y", mesh, sizes)
    want = real_llama("fsdp=X,tp=Y", mesh, sizes)
    twice = found[-1].parts["inputs"] - want["inputs"]
    agree(found, {**want, "peak": want["peak"] + twice})


def real_serving(mesh: Sizes, s: Sizes, phase: str) -> Sizes:
    """A step of serving of a Llama, whose matrices Y divides, and X the texts."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.distributed import DistributedConfig
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    def wrap(model: Any, axes: dict[str, Any]) -> None:
        plan = model._resolve_parallel_plans(DistributedConfig(tp_size=mesh["Y"]))[0]
        apply_tensor_parallelism(model, axes["Y"], plan)

    make = lambda: LlamaForCausalLM(LlamaConfig(**engine.LLAMA)).eval()
    before, new = (0, s["T"]) if phase == "prefill" else (s["S"] - 1, 1)
    return real_serving_step(make, wrap, mesh, s["B"] // mesh.get("X", 1), before, new)


@pytest.mark.parametrize(("phase", "length", "way"), [("decode", "S", "dp=X,tp=Y"), ("prefill", "T", "tp=Y")])
def test_a_step_of_serving_holds_what_torchs_allocator_gives_it(phase: str, length: str, way: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(engine.LLAMA))
    found = costir.analyze(tmp_path, mesh=dict.fromkeys(axes_of(way), 2), parallel=way, phase=phase, keep=("B", length))
    cache = 2 * engine.LLAMA["num_hidden_layers"] * engine.LLAMA["num_key_value_heads"] * (64 // 8) * 4
    for there in ({"X": 2, "Y": 4}, {"X": 3, "Y": 2}):
        mesh, sizes = {a: there[a] for a in axes_of(way)}, {"B": 12, length: 60}
        family = distributed(load_subject(str(tmp_path), phase=phase), plan_of(mesh, way))
        want = real_serving(mesh, sizes, phase)
        with trace.no_collection():
            steps = memory.moments(trace.run(family, {**family.sizes, **sizes}))
        assert max(m.total for m in steps) == pytest.approx(want["peak"], abs=64)
        assert steps[-1].parts["cache"] == want["cache"] == cache * 12 * 60 // math.prod(mesh.values())
        if mesh == dict(found.graph.mesh.axes):
            assert found.memory.at(**sizes).total == max(m.total for m in steps)
