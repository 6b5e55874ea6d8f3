"""A divided sequence, against torch's own ring attention on real tensors, and against a count of the scores of each device."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sympy import simplify
from test_parallel import EXAMPLES, LLAMA, MESHES, Log, fake_group, heard, parallel, said

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


def llama_heard(mesh: dict[str, int], way: str, sizes: dict[str, int]) -> Log:
    """What torch's engine sends where every device has a part of each sequence."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**{**LLAMA, **{f: sizes[s] for f, s in FIELDS.items()}}))
    with fake_group(math.prod(mesh.values())), pytest.MonkeyPatch.context() as patch:

        def wrap(model: Any, axes: dict[str, Any]) -> None:
            group = axes["Y"].get_group()
            attention = "scaled_dot_product_attention"
            patch.setattr(torch.nn.functional, attention, lambda q, k, v, **rest: Ring.apply(group, q, k, v))
            if "fsdp" in way:
                axes["XY"] = axes["X"]._get_root_mesh()["X", "Y"]._flatten("XY")
                parallel(model, axes, {}, list(model.model.layers), "fsdp=XY")

        ids = torch.zeros(sizes["B"] // mesh.get("X", 1), sizes["T"] // mesh["Y"], dtype=torch.long)
        return heard(model, wrap, mesh, {"input_ids": ids, "labels": ids}, lambda out: out.loss)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama."""
    path = tmp_path_factory.mktemp("llama")
    (path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}))
    return path


@pytest.fixture(scope="module")
def divided(folder: Path) -> costir.Analysis:
    """Forward and backward on parts of sequences."""
    return costir.analyze(folder, mesh={"Y": 4}, parallel="cp=Y", phase="backward", attention="causal", sizes={"B": 8, "T": 64})


def test_a_divided_sequence_sends_what_the_ring_sends(divided: costir.Analysis) -> None:
    assert not divided.unknown
    for mesh in MESHES:
        want = llama_heard({"Y": mesh["Y"]}, "cp=Y", {**divided.sizes, **OTHERS})
        have = said(divided, Y=mesh["Y"], **OTHERS)
        weights = have.pop(("backward", "all_reduce", "Y"))[1]  # gradients, as by DistributedDataParallel
        assert weights == 4 * divided.at(**OTHERS, Y=mesh["Y"]).params
        have.pop(("forward", "broadcast", "Y"))  # of its buffers
        assert have == want


def test_divided_sequences_and_weights_send_what_torch_sends(folder: Path) -> None:
    way = "fsdp=X,cp=Y"
    both = costir.analyze(folder, mesh={"X": 2, "Y": 2}, parallel=way, phase="backward", sizes={"B": 8, "T": 64})
    for mesh in MESHES:
        assert said(both, **mesh, **OTHERS) == llama_heard(mesh, way, {**both.sizes, **OTHERS})


def test_all_devices_together_make_the_scores_that_are_not_masked(folder: Path, divided: costir.Analysis) -> None:
    alone = costir.analyze(folder, phase="backward", attention="causal", sizes={"B": 8, "T": 64})
    assert simplify(divided.matmul_flops * divided.symbols["Y"] - alone.matmul_flops) == 0
    length, devices = 24, 4
    parts = [[*range(r * 3, r * 3 + 3), *range((7 - r) * 3, (7 - r) * 3 + 3)] for r in range(devices)]
    assert sorted(q for part in parts for q in part) == list(range(length))
    scores = [sum(q + 1 for q in part) for part in parts]  # a query meets itself and what is before it
    assert set(scores) == {length * (length + 1) // 2 // devices}


def test_what_a_device_computes_of_all_scores(divided: costir.Analysis) -> None:
    """One square of its own part, and half a square for each other device: (Z + 1)/(2*Z) of an equal share of all scores."""
    full = cost(divided.graph, replace(divided.conventions, attention="full"))
    attention = [n for n in full.nodes if n.call.name.startswith("_scaled_dot_product")]
    b, t, d, layers, y = (divided.symbols[n] for n in "BTDLY")
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


@pytest.mark.parametrize(("mesh", "way", "sizes", "said"), [
    ({"Z": 4}, "cp=Z", {"T": 20}, "cp gives each of 4 devices along Z two parts of the sequence, and T = 20"),
    ({"Z": 2, "Y": 2}, "cp=Z,sp=Y", {}, "cp=Z and sp=Y exclude each other"),
    ({"Z": 2, "Y": 2}, "tp=Y,cp=Z", {}, "tp=Y and cp=Z exclude each other"),
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
