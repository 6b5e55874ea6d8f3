"""Experts on a mesh, against transformers' own engine on real tensors, and against counts of what each expert gets."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_parallel import Log, agree, fake_group, heard, parallel

import costir

MIXTRAL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
           "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 8,
           "num_experts_per_tok": 2, "vocab_size": 512, "max_position_embeddings": 256}  # fmt: skip
FIELDS = {"hidden_size": "D", "intermediate_size": "F", "num_hidden_layers": "L", "num_attention_heads": "N",
          "num_key_value_heads": "K", "vocab_size": "V", "num_local_experts": "E", "num_experts_per_tok": "k"}  # fmt: skip
OTHERS = {"B": 24, "T": 16, "D": 192, "F": 96, "N": 48, "K": 24, "L": 2, "V": 96, "E": 24, "k": 3}


def round_robin(router: Any, args: Any, out: Any) -> Any:
    """A router's result with the experts taken in turn, so that all get equally many rows."""
    logits, weights, chosen = out
    return logits, weights, torch.arange(chosen.numel()).reshape(chosen.shape) % router.num_experts


def evenly_routed(sizes: dict[str, int]) -> Any:
    """A mixture of experts whose router takes them in turn."""
    from transformers import MixtralConfig, MixtralForCausalLM

    model = MixtralForCausalLM(MixtralConfig(**{**MIXTRAL, **{f: sizes[s] for f, s in FIELDS.items()}}))
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(round_robin)
    return model


def experts_apart(model: Any, axis: Any, patch: pytest.MonkeyPatch) -> None:
    """transformers' engine; the other devices' counts, which a group of one process does not get, are its own."""
    import transformers.distributed.expert_parallel as engine
    from transformers.distributed import DistributedConfig
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    send = engine.all_to_all_single

    def counts(received: torch.Tensor, sent: torch.Tensor, group: Any) -> None:
        send(received, sent, group=group)
        received.copy_(sent)

    if dist.get_backend() == "fake":
        patch.setattr(engine, "all_to_all_single", counts)
    tensors, experts, _ = model._resolve_parallel_plans(DistributedConfig(tp_size=axis.size(), ep_size=axis.size()))
    apply_tensor_parallelism(model, axis, tensors)
    engine.apply_expert_parallelism(model, axis, axis, experts)


def mixtral_heard(mesh: dict[str, int], way: str, sizes: dict[str, int]) -> Log:
    """What transformers' engine sends."""

    def wrap(model: Any, axes: dict[str, Any]) -> Any:
        experts_apart(model, axes["Y"], patch)
        return parallel(model, axes, {}, list(model.model.layers), "fsdp=X") if "fsdp" in way else model

    with fake_group(math.prod(mesh.values())), pytest.MonkeyPatch.context() as patch:
        ids = torch.zeros(sizes["B"] // mesh.get("X", 1), sizes["T"], dtype=torch.long)
        return heard(evenly_routed(sizes), wrap, mesh, {"input_ids": ids, "labels": ids}, lambda out: out.loss)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small mixture of experts."""
    path = tmp_path_factory.mktemp("mixtral")
    (path / "config.json").write_text(json.dumps(MIXTRAL))
    return path


def expert_flops(a: costir.Analysis, phase: str) -> Any:
    """FLOPs of the experts' products, with the devices along Y taken together."""
    return sum(n.call.count * n.cost.matmul for n in a.costed.nodes if n.call.name == "_grouped_mm" and n.call.phase == phase)


@pytest.fixture(scope="module")
def trained(folder: Path) -> costir.Analysis:
    """Forward and backward with experts on devices of their own."""
    return costir.analyze(folder, mesh={"Y": 2}, parallel="ep=Y", phase="backward", sizes={"B": 8, "T": 32})


def test_experts_send_what_the_engine_sends(trained: costir.Analysis) -> None:
    agree(trained, mixtral_heard, "ep=Y", **OTHERS)
    assert not trained.unknown
    assert any("as many rows as it sends" in n for n in trained.graph.notes)


def test_weights_that_are_gathered_send_what_the_engine_sends(folder: Path) -> None:
    way = "fsdp=X,ep=Y"
    both = costir.analyze(folder, mesh={"X": 2, "Y": 2}, parallel=way, phase="backward", sizes={"B": 8, "T": 32})
    agree(both, mixtral_heard, way, **OTHERS)


def test_experts_on_all_devices_compute_what_they_do_on_one(folder: Path, trained: costir.Analysis) -> None:
    """In training rows go to their experts' devices; without gradients each device leaves out those of others' experts."""
    from sympy import simplify

    alone = costir.analyze(folder, phase="backward", sizes={"B": 8, "T": 32})
    served = costir.analyze(folder, mesh={"Y": 2}, parallel="ep=Y", sizes={"B": 8, "T": 32})
    for a, phases in ((trained, ("forward", "backward")), (served, ("forward",))):
        for phase in phases:
            assert simplify(expert_flops(a, phase) * a.symbols["Y"] - expert_flops(alone, phase)) == 0
    assert {c.kind for c in served.communication} == {"all_reduce", "all_gather"}


def test_more_choices_than_are_followed_are_refused(folder: Path) -> None:
    from costir.errors import CostirError

    with pytest.raises(CostirError, match="reads what comes of a router's choices, and more than 4194304 of them"):
        costir.analyze(folder, mesh={"Y": 2}, parallel="ep=Y", phase="backward", sizes={"B": 32768, "T": 256})
