"""A divided sequence, against torch's own ring attention on real tensors, and against a count of the scores of each device."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sequence_model
import test_experts
import torch
from sympy import simplify
from test_parallel import EXAMPLES, LLAMA, MESHES, Log, _ddp, _parts, fake_group, heard, said

import costir
from costir.cost import cost
from costir.errors import CostirError

FIELDS = {"hidden_size": "D", "intermediate_size": "F", "num_hidden_layers": "L", "num_attention_heads": "N",
          "num_key_value_heads": "K", "vocab_size": "V"}  # fmt: skip
OTHERS = {"B": 24, "T": 48, "D": 384, "F": 96, "N": 48, "K": 24, "L": 2, "V": 96}
aten = torch.ops.aten


def on_cpu(query: Any, key: Any, value: Any, is_causal: bool) -> Any:
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal)


def on_cpu_backward(grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, is_causal: bool) -> Any:
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, query, key, value, out, logsumexp, 0.0, is_causal
    )


class Ring(torch.autograd.Function):
    """torch's ring with its operator for CPUs, on real tensors."""

    @staticmethod
    def forward(ctx: Any, group: Any, q: Any, k: Any, v: Any) -> Any:
        from torch.distributed.tensor.experimental._context_parallel import _attention

        out, lse = _attention._templated_ring_attention(group, 2, on_cpu, q, k, v, True)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.group = group
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        from torch.distributed.tensor.experimental._context_parallel import _attention

        backward = _attention._templated_ring_attention_backward
        return None, *backward(ctx.group, 2, on_cpu_backward, grad, "grad_out", *ctx.saved_tensors, is_causal=True)


def divided(model: Any, axes: dict[str, Any], way: str, matrices: Any, patch: pytest.MonkeyPatch) -> Any:
    """torch's own calls in the order of torchtitan: matrices, attention, then the weights over all devices of other tokens."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

    along = dict(_parts(way))
    if {"tp", "sp", "ep"} & {*along}:
        matrices(model, axes["Y"])
    data = next((along[s].split("/") for s in ("dp", "fsdp", "hsdp") if s in along), [])
    tokens = [*data[-1:], *([along["cp"]] if "cp" in along else [])]
    if not tokens:
        return model
    name, root = "".join(tokens), axes["X" if data else tokens[0]]._get_root_mesh()
    if "cp" in along:
        group = axes[along["cp"]].get_group()
        ring = lambda q, k, v, is_causal, **rest: Ring.apply(group, q, k, v)
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", ring)
    axes[name] = root[tuple(tokens)]._flatten(name) if len(tokens) > 1 else axes[name]
    if "fsdp" in along or "hsdp" in along:
        mesh = root[data[0], name] if "hsdp" in along else axes[name]
        blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
        for b in (*blocks, model):
            fully_shard(b, mesh=mesh)
        return model
    _pre_dp_module_transform(model)
    return _ddp(model, {"X": axes[name]})


def tokens_of(mesh: dict[str, int], way: str, sizes: dict[str, int]) -> torch.Tensor:
    """One device's part of the batch and of each sequence."""
    along = dict(_parts(way))
    batch = math.prod(mesh[a] for s in ("dp", "fsdp", "hsdp") for a in along.get(s, "").split("/") if a)
    return torch.zeros(sizes["B"] // batch, sizes["T"] // mesh.get(along.get("cp", ""), 1), dtype=torch.long)


def llama_heard(mesh: dict[str, int], way: str, sizes: dict[str, int]) -> Log:
    """What torch's engine sends where every device has a part of each sequence; matrices by transformers' own engine."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.distributed import DistributedConfig
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    def matrices(model: Any, axis: Any) -> None:
        apply_tensor_parallelism(model, axis, model._resolve_parallel_plans(DistributedConfig(tp_size=mesh["Y"]))[0])

    model = LlamaForCausalLM(LlamaConfig(**{**LLAMA, **{f: sizes[s] for f, s in FIELDS.items()}}))
    with fake_group(math.prod(mesh.values())), pytest.MonkeyPatch.context() as patch:
        ids = tokens_of(mesh, way, sizes)
        wrap = lambda m, axes: divided(m, axes, way, matrices, patch)
        return heard(model, wrap, mesh, {"input_ids": ids, "labels": ids}, lambda out: out.loss)


def mixtral_heard(mesh: dict[str, int], way: str, sizes: dict[str, int]) -> Log:
    """The same with experts on devices of their own."""
    with fake_group(math.prod(mesh.values())):
        return mixtral_log(mesh, way, sizes)


def mixtral_log(mesh: dict[str, int], way: str, sizes: dict[str, int]) -> Log:
    """The same in the process group that there is."""
    with pytest.MonkeyPatch.context() as patch:
        ids = tokens_of(mesh, way, sizes)
        wrap = lambda m, axes: divided(m, axes, way, lambda m, axis: test_experts.experts_apart(m, axis, patch), patch)
        inputs = {"input_ids": ids, "labels": ids}
        return heard(test_experts.evenly_routed(sizes), wrap, mesh, inputs, lambda out: out.loss)


def sequence_heard(mesh: dict[str, int], way: str, sizes: dict[str, int]) -> Log:
    """The same of a model in a file."""
    with fake_group(math.prod(mesh.values())):
        return sequence_log(mesh, way, sizes)


def sequence_log(mesh: dict[str, int], way: str, sizes: dict[str, int]) -> Log:
    """The same in the process group that there is."""
    model, ids = sequence_model.GPT(*(sizes[n] for n in "DNV")), tokens_of(mesh, way, sizes)
    with pytest.MonkeyPatch.context() as patch:
        wrap = lambda m, axes: divided(m, axes, way, lambda m, axis: by_plan(m, axis, way), patch)
        return heard(model, wrap, mesh, {"ids": ids, "targets": ids})


def by_plan(model: Any, axis: Any, way: str) -> None:
    """parallelize_module, as torch's tutorial on tensor parallelism calls it."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    rows = {"input_layouts": Shard(1)} if "sp=" in way else {}
    back = {"output_layouts": Shard(1)} if "sp=" in way else {}
    plan = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), **back),
        "head": ColwiseParallel(output_layouts=Replicate(), **rows),
    }
    for i in range(len(model.blocks)):
        plan |= {f"blocks.{i}.{n}": ColwiseParallel(**rows) for n in ("query", "key", "value", "up")}
        plan |= {f"blocks.{i}.{n}": RowwiseParallel(**back) for n in ("out", "down")}
        if "sp=" in way:
            plan |= {f"blocks.{i}.{n}": SequenceParallel(use_local_output=True) for n in ("norm1", "norm2")}
    if "sp=" in way:
        plan["norm"] = SequenceParallel(use_local_output=True)
    parallelize_module(model, axis, plan, src_data_rank=None)


def agree(analysis: costir.Analysis, listen: Any, way: str, meshes: Any, **sizes: int) -> None:
    """Kind by kind; DistributedDataParallel joins parameters to buckets, of as many bytes."""
    for mesh in meshes:
        mesh = {a: mesh[a] for a, _ in analysis.graph.mesh.axes}
        want, have = listen(mesh, way, {**analysis.sizes, **sizes}), said(analysis, **mesh, **sizes)
        if "fsdp=" not in way and "hsdp=" not in way:
            want, have = ({k: v[1] for k, v in log.items()} for log in (want, have))
        assert have == want, mesh


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama."""
    path = tmp_path_factory.mktemp("llama")
    (path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}))
    return path


@pytest.fixture(scope="module")
def ring(folder: Path) -> costir.Analysis:
    """Forward and backward on parts of sequences."""
    return costir.analyze(folder, mesh={"Y": 4}, parallel="cp=Y", phase="backward", attention="causal", sizes={"B": 8, "T": 64})


# The first two are what costir may have traced; the last is neither among its probes nor a multiple of them.
CUBES = ({"X": 2, "Y": 2, "Z": 3}, {"X": 4, "Y": 3, "Z": 2}, {"X": 3, "Y": 4, "Z": 6})
SEQUENCES = {"B": 24, "T": 48, "D": 288, "N": 24, "V": 144}


def test_a_divided_sequence_sends_what_the_ring_sends(ring: costir.Analysis) -> None:
    assert not ring.unknown
    agree(ring, llama_heard, "cp=Y", MESHES, **OTHERS)


@pytest.mark.parametrize("way", [
    "dp=X,cp=Z", "tp=Y,cp=Z", "sp=Y,cp=Z", "hsdp=X/Y,cp=Z", "dp=X,tp=Y,cp=Z", "fsdp=X,tp=Y,cp=Z", "fsdp=X,sp=Y,cp=Z",
])  # fmt: skip
def test_a_divided_sequence_goes_with_other_axes(way: str) -> None:
    mesh = {a: 2 for _, axes in _parts(way) for a in axes.split("/")}
    analysis = costir.analyze(sequence_model.__file__, mesh=mesh, parallel=way, phase="backward", attention="causal")
    assert not analysis.unknown
    agree(analysis, sequence_heard, way, CUBES, **SEQUENCES)


@pytest.mark.parametrize("way", ["fsdp=X,cp=Y", "tp=Y,cp=Z", "fsdp=X,tp=Y,cp=Z"])
def test_a_transformers_model_with_divided_sequences_sends_what_torch_sends(folder: Path, way: str) -> None:
    mesh = {a: 2 for _, a in _parts(way)}
    found = costir.analyze(folder, mesh=mesh, parallel=way, phase="backward", sizes={"B": 8, "T": 64})
    agree(found, llama_heard, way, CUBES, **{**OTHERS, "D": 576, "F": 144, "V": 144})


def test_experts_on_devices_of_their_own_get_rows_of_divided_sequences(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(test_experts.MIXTRAL))
    way, mesh = "fsdp=X,ep=Y,cp=Z", {"X": 2, "Y": 2, "Z": 2}
    found = costir.analyze(tmp_path, mesh=mesh, parallel=way, phase="backward", sizes={"B": 8, "T": 64})
    agree(found, mixtral_heard, way, CUBES, **{**test_experts.OTHERS, "T": 48, "D": 576, "F": 144, "V": 144, "E": 72})


def test_all_devices_together_make_the_scores_that_are_not_masked(folder: Path, ring: costir.Analysis) -> None:
    alone = costir.analyze(folder, phase="backward", attention="causal", sizes={"B": 8, "T": 64})
    assert simplify(ring.matmul_flops * ring.symbols["Y"] - alone.matmul_flops) == 0
    length, devices = 24, 4
    parts = [[*range(r * 3, r * 3 + 3), *range((7 - r) * 3, (7 - r) * 3 + 3)] for r in range(devices)]
    assert sorted(q for part in parts for q in part) == list(range(length))
    scores = [sum(q + 1 for q in part) for part in parts]  # a query meets itself and what is before it
    assert set(scores) == {length * (length + 1) // 2 // devices}


def test_flops_of_all_devices_are_those_of_the_whole_model_and_what_a_ring_repeats() -> None:
    """The whole model is analysed by itself; what is repeated is counted by hand."""
    from sympy import cancel, expand

    from costir.repeated import repeated

    asked = {"phase": "backward", "attention": "causal"}
    whole = costir.analyze(sequence_model.__file__, **asked)
    parts = costir.analyze(sequence_model.__file__, mesh={"Z": 3}, parallel="cp=Z", **asked)
    b, t, d, n, v, z = (parts.symbols[s] for s in "BTDNVZ")
    more = repeated(parts)
    assert more is not None
    assert expand(z * parts.flops - whole.flops - more) == 0
    assert repeated(whole) is None
    matrices, vectors = 12 * d**2 + 2 * d * v, 15 * d + v
    weights = (matrices + vectors) * (2 * z - 1) - vectors * (z - 1)  # averaged, added up; sums over rows have fewer rows
    halves = b * t * d / 2 * (z - 1)  # elements of the halves of queries that meet another device's keys
    by_element = 3 * halves + 2 * halves  # results are merged; the product of result and gradient, summed over a head
    gradients = b * t * d * (2 * z + 1) + halves  # of keys and values on their way, of queries
    assert expand((more - by_element - gradients - weights).subs(n, 0)) == 0  # and a few numbers for each head and query
    assert cancel(more.coeff(n) / (b * t * (z - 1))).is_Integer


def test_what_a_device_computes_of_all_scores(ring: costir.Analysis) -> None:
    """One square of its own part, and half a square for each other device: (Z + 1)/(2*Z) of an equal share of all scores."""
    full = cost(ring.graph, replace(ring.conventions, attention="full"))
    attention = [n for n in full.nodes if n.call.name.startswith("_scaled_dot_product")]
    b, t, d, layers, y = (ring.symbols[n] for n in "BTDLY")
    part = t / y
    scores = 14 * b * d * layers * (part**2 + (y - 1) * part * (part / 2))
    assert simplify(sum(n.call.count * n.cost.matmul for n in attention) - scores) == 0


MIXING = """
import torch
from torch import nn
from torch.nn import functional as F

class Model(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.up = nn.Linear(D, D)
        self.conv = nn.Conv1d(D, D, 3, padding=1)

    def forward(self, x):
        {body}

def build(B=6, T=40, D=24):
    return Model(D), (torch.zeros(B, T, D),), {{}}
"""


@pytest.mark.parametrize(("body", "said"), [
    ("return self.conv(x.transpose(1, 2))", "convolution mixes its positions"),
    ("return self.up(x).cumsum(1)", "cumsum mixes its positions"),
    ("return self.up(x).mean(1)", "mean mixes its positions"),
    ("return self.up(x) @ x.transpose(1, 2)", "bmm mixes its positions"),
    ("return torch.softmax(self.up(x), 1)", "_softmax mixes its positions"),
    ("q = self.up(x)[:, None]; return F.scaled_dot_product_attention(q, q, q, attn_mask=q[:, :, :, :1])", "cp takes no mask"),
    ("q = self.up(x)[:, None]; return F.scaled_dot_product_attention(q, q[:, :, :2], q[:, :, :2])", "cp takes attention of a"),
])  # fmt: skip
def test_what_mixes_positions_elsewhere_is_refused(tmp_path: Path, body: str, said: str) -> None:
    (tmp_path / "model.py").write_text(MIXING.format(body=body))
    with pytest.raises(CostirError, match=said):
        costir.analyze(tmp_path / "model.py", mesh={"Z": 2}, parallel="cp=Z")


SUMMING = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        return self.down(self.up(self.norm(x){mixing}))

def build(B=6, T=176, D=24):
    return Model(D), (torch.zeros(B, T, D),), {{}}

tp_plan = {{"up": "colwise", "down": "rowwise"}}
sp_plan = {{"norm": "sequence", "up": "colwise_sequence", "down": "rowwise_sequence"}}
"""


def test_what_mixes_positions_between_divided_matrices_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SUMMING.format(mixing=".cumsum(1)"))
    for way in ("tp=Y,cp=Z", "sp=Y,cp=Z"):
        with pytest.raises(CostirError, match="cumsum mixes its positions"):
            costir.analyze(tmp_path / "model.py", mesh={"Y": 2, "Z": 2}, parallel=way)


def test_heads_that_all_devices_share_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.py").write_text(SHARING)
    with pytest.raises(CostirError, match="cp takes attention on each device's own heads"):
        costir.analyze(sequence_model.__file__, mesh={"Y": 2, "Z": 2}, parallel=f"tp=Y,cp=Z,{tmp_path}/plan.py:parallelize")


SHARING = """
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

def parallelize(model, mesh):
    shared = {f"blocks.*.{n}": ColwiseParallel(use_local_output=False) for n in ("query", "key", "value")}
    parallelize_module(model, mesh["Y"], shared, src_data_rank=None)
"""


@pytest.mark.parametrize(("way", "sizes", "said"), [
    ("sp=Y,cp=Z", {"T": 72}, "sp divides the 36 positions that cp leaves a device among 8 along Y"),
    ("fsdp=Y,cp=Z", {"V": 44}, "16 devices along Y and Z do not divide 44, dimension 0 of tokens.weight"),
])  # fmt: skip
def test_parts_that_would_be_uneven_are_refused(way: str, sizes: dict[str, int], said: str) -> None:
    with pytest.raises(CostirError, match=said):
        costir.analyze(sequence_model.__file__, mesh={"Y": 8, "Z": 2}, parallel=way, sizes=sizes)


@pytest.mark.parametrize(("mesh", "way", "sizes", "said"), [
    ({"Z": 4}, "cp=Z", {"T": 20}, "cp gives each of 4 devices along Z two parts of the sequence, and T = 20"),
    ({"Z": 2, "Y": 2}, "cp=Z,data=Y", {}, "cp=Z and data=Y exclude each other"),
])  # fmt: skip
def test_what_is_refused(folder: Path, mesh: dict[str, int], way: str, sizes: dict[str, int], said: str) -> None:
    with pytest.raises(CostirError) as problem:
        costir.analyze(folder, mesh=mesh, parallel=way, sizes={"B": 8, "T": 64, **sizes})
    assert said in f"{problem.value.message}; {problem.value.hint}"


def test_attention_that_is_written_out_is_refused() -> None:
    with pytest.raises(CostirError, match="cp cannot divide the sequence: bmm mixes its positions"):
        costir.analyze(EXAMPLES / "gpt.py", mesh={"Z": 2}, parallel="cp=Z", sizes={"T": 88})
    with pytest.raises(CostirError, match="no size that is the length of its sequence"):
        costir.analyze(EXAMPLES / "mlp.py", mesh={"Z": 2}, parallel="cp=Z")


def test_a_ring_is_not_measured_on_cpus(folder: Path) -> None:
    from costir.measuring.mesh_measure import measure_on_mesh

    with pytest.raises(CostirError, match="torch's ring attention has no operator for CPUs"):
        measure_on_mesh(str(folder), {"Z": 2}, "cp=Z")


def test_attention_without_a_mask_goes_round_whole(tmp_path: Path) -> None:
    body = "q = self.up(x)[:, None]; return F.scaled_dot_product_attention(q, q + q, q * q)"
    (tmp_path / "model.py").write_text(MIXING.format(body=body))
    alone = costir.analyze(tmp_path / "model.py")
    found = costir.analyze(tmp_path / "model.py", mesh={"Z": 2}, parallel="cp=Z")
    assert (found.matmul_flops * found.symbols["Z"] - alone.matmul_flops).simplify() == 0
    assert [(c.kind, str(c.payload)) for c in found.communication] == [("all_gather", "8*B*D*T")]
