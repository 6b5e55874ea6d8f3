"""Models on a mesh, against torch's own engine: what it sends on meshes that were traced, and on one that was not."""

from __future__ import annotations

import collections
import contextlib
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import costir
from costir.errors import CostirError, SizeError
from costir.symbolic import size

EXAMPLES = Path(__file__).parents[1] / "examples"
Log = dict[tuple[str, str, str], list[int]]  # phase, kind, axis -> number, payload in bytes


class Listener(TorchDispatchMode):  # type: ignore[misc]
    """Every collective of a run on real tensors, below DTensor: written without anything of costir."""

    KINDS: ClassVar = {
        "all_reduce": ("all_reduce", 0), "all_gather_into_tensor": ("all_gather", "out"),
        "reduce_scatter_tensor": ("reduce_scatter", 0), "allreduce_": ("all_reduce", 0), "broadcast_": ("broadcast", 0),
        "_allgather_base_": ("all_gather", 0), "_reduce_scatter_base_": ("reduce_scatter", 1),
        "all_to_all_single": ("all_to_all", 0), "alltoall_base_": ("all_to_all", 1),
    }  # fmt: skip

    def __init__(self, axes: dict[str, str], devices: dict[str, int]) -> None:
        super().__init__()
        self.axes, self.devices, self.phase = axes, devices, "forward"
        self.log: Log = collections.defaultdict(lambda: [0, 0])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.distributed.tensor import DTensor

        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        if name in self.KINDS and func.namespace in ("c10d", "_c10d_functional"):
            kind, which = self.KINDS[name]
            if name == "all_to_all_single" and sum(map(bool, args[2])) == 1:
                kind = "permute"  # all of it to one neighbour
            whole = out if which == "out" else args[which]
            tensors = whole if isinstance(whole, list) else [whole]
            for axis in [self._axis(a) for a in args if not isinstance(a, torch.Tensor | list)]:
                if axis:
                    row = self.log[self.phase, kind, axis]
                    row[0] += len(tensors)
                    together = self.devices[axis] if kind == "all_to_all" else 1
                    row[1] += sum(t.numel() * t.element_size() for t in tensors) * together
        return out

    def _axis(self, given: Any) -> str:
        if isinstance(given, torch.ScriptObject):
            with contextlib.suppress(RuntimeError):
                given = dist.ProcessGroup.unbox(given)
        return self.axes.get(getattr(given, "group_name", given) if not isinstance(given, int | bool | float) else "", "")


@contextlib.contextmanager
def fake_group(devices: int) -> Any:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=devices)
    try:
        yield
    finally:
        dist.destroy_process_group()


def heard(module: Any, wrap: Any, mesh: dict[str, int], inputs: dict[str, Any], loss: Any = None, times: int = 1) -> Log:
    """What torch's engine sends on this mesh, forward and backward, so many times."""
    from torch.distributed.device_mesh import init_device_mesh

    torch_mesh = init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
    axes = {a: torch_mesh[a] for a in mesh}
    module = wrap(module, axes) or module
    with Listener({line.get_group().group_name: a for a, line in axes.items()}, mesh) as listener:
        for _ in range(times):
            listener.phase = "forward"
            out = module(**inputs)
            value = loss(out) if loss else out
            listener.phase = "backward"
            value.backward()
    return dict(listener.log)


def said(analysis: costir.Analysis, **sizes: int) -> Log:
    """What the closed forms say at these sizes."""
    from costir.symbolic import Integer, size

    values = {size(n): Integer(v) for n, v in {**analysis.sizes, **sizes}.items()}
    return {
        (c.phase, c.kind, "".join(c.axes)): [int(c.count.xreplace(values)), int(c.payload.xreplace(values))]
        for c in analysis.communication
    }


def parallel(module: Any, axes: dict[str, Any], tp: dict[str, str], blocks: Any, way: str, again: bool = False) -> Any:
    """torch's own calls, as its tutorials make them; with `again`, blocks are computed again in the backward pass."""
    from torch.distributed._composable import checkpoint
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    styles = {
        "colwise": ColwiseParallel(), "rowwise": RowwiseParallel(),
        "gather": ColwiseParallel(output_layouts=Replicate()), "embedding": RowwiseParallel(input_layouts=Replicate()),
    }  # fmt: skip
    along = {strategy: axes[a] for strategy, a in _parts(way)}
    if "tp" in along:
        parallelize_module(module, along["tp"], {n: styles[s] for n, s in tp.items()}, src_data_rank=None)
    for b in blocks if again else ():
        checkpoint(b)
    if "fsdp" in along:
        for b in (*blocks, module):
            fully_shard(b, mesh=along["fsdp"])
    if "dp" in along:
        from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

        _pre_dp_module_transform(module)  # weights that tp divides, as DistributedDataParallel takes them
        return _ddp(module, axes)
    return module


MLP = {"up": "colwise", "down": "rowwise"}
BLOCK = {"attention.query": "colwise", "attention.key": "colwise", "attention.value": "colwise", "attention.out": "rowwise",
         "up": "colwise", "down": "rowwise"}  # fmt: skip
# The first two are what costir may have traced; the last is neither among its probes nor a multiple of them.
MESHES = ({"X": 4, "Y": 2}, {"X": 2, "Y": 4}, {"X": 3, "Y": 8})


def mlp_heard(mesh: dict[str, int], way: str, sizes: dict[str, int]) -> Log:
    with fake_group(math.prod(mesh.values())):
        return mlp_log(mesh, way, sizes)


def mlp_log(mesh: dict[str, int], way: str, sizes: dict[str, int]) -> Log:
    """What an MLP sends in the process group that there is."""
    from costir.load.user_file import import_file

    file = import_file(EXAMPLES / "mlp.py")
    parts = math.prod(mesh[a] for s, a in _parts(way) if s in ("dp", "fsdp"))
    wrap = lambda m, axes: parallel(m, axes, MLP, (), way)
    x = torch.zeros(sizes["B"] // parts, sizes["D"])
    return heard(file.MLP(sizes["D"], sizes["F"]), wrap, mesh, {"x": x}, file.loss)


def gpt_heard(mesh: dict[str, int], way: str, sizes: dict[str, int], again: bool = False, times: int = 1) -> Log:
    from costir.load.user_file import import_file

    file = import_file(EXAMPLES / "gpt.py")
    parts = math.prod(mesh[a] for s, a in _parts(way) if s in ("dp", "fsdp"))
    tp = {f"blocks.{i}.{n}": s for i in range(sizes["L"]) for n, s in BLOCK.items()} | {"tokens": "embedding", "head": "gather"}
    with fake_group(math.prod(mesh.values())):
        model = file.GPT(*(sizes[n] for n in "DNLV"))
        ids = torch.zeros(sizes["B"] // parts, sizes["T"], dtype=torch.long)
        wrap = lambda m, axes: parallel(m, axes, tp, list(m.blocks), way, again)
        return heard(model, wrap, mesh, {"ids": ids, "targets": ids}, times=times)


def _parts(way: str) -> list[tuple[str, str]]:
    return [tuple(p.split("=")) for p in way.split(",")]  # type: ignore[misc]


def _ddp(module: Any, axes: dict[str, Any]) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    def now(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """torch's default hook, whose future nobody completes in a group that sends nothing."""
        allreduce_hook(state, bucket)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    now.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    ddp = torch.nn.parallel.DistributedDataParallel(module, process_group=axes["X"].get_group(), init_sync=False)
    if dist.get_backend() != "fake":
        return ddp
    ddp.register_comm_hook(axes["X"].get_group(), now)
    return ddp


def agree(analysis: costir.Analysis, listen: Any, way: str, **sizes: int) -> None:
    axes = [a for _, a in _parts(way)]
    for mesh in MESHES:
        mesh = {a: mesh[a] for a in axes}
        want = listen(mesh, way, {**analysis.sizes, **sizes})
        have = said(analysis, **mesh, **sizes)
        if "dp=X" in way:  # DistributedDataParallel joins parameters to buckets
            want, have = ({k: v[1] for k, v in log.items()} for log in (want, have))
        assert have == want, mesh


@pytest.mark.parametrize("way", ["dp=X", "tp=Y", "fsdp=X", "fsdp=X,tp=Y", "dp=X,tp=Y"])
def test_an_mlp_sends_what_the_engine_sends(way: str) -> None:
    mesh = {a: MESHES[0][a] for _, a in _parts(way)}
    analysis = costir.analyze(EXAMPLES / "mlp.py", mesh=mesh, parallel=way, phase="backward")
    agree(analysis, mlp_heard, way, B=48, D=96, F=192)
    assert not analysis.unknown


@pytest.mark.parametrize("way", ["fsdp=X,tp=Y", "dp=X,tp=Y"])
def test_a_gpt_sends_what_the_engine_sends(way: str) -> None:
    mesh = {a: MESHES[0][a] for _, a in _parts(way)}
    analysis = costir.analyze(EXAMPLES / "gpt.py", mesh=mesh, parallel=way, phase="backward", sizes={"V": 48, "N": 8, "B": 8})
    agree(analysis, gpt_heard, way, B=24, T=32, D=192, N=24, L=3, V=96)
    assert not analysis.unknown


@pytest.mark.parametrize(("way", "more", "step"), [
    ("fsdp=X,tp=Y", {"recompute": "blocks"}, (True, 1)), ("dp=X,tp=Y", {"recompute": "blocks"}, (True, 1)),
    ("fsdp=X,tp=Y", {"recompute": "blocks", "micro_batches": 3}, (True, 3)),
])  # fmt: skip
def test_a_step_of_parts_sends_what_the_engine_sends(way: str, more: dict[str, Any], step: tuple[bool, int]) -> None:
    """Blocks that are computed again, by torch's own checkpoint; several batches one after the other."""
    mesh, sizes = {a: MESHES[0][a] for _, a in _parts(way)}, {"V": 48, "N": 8, "B": 8}
    analysis = costir.analyze(EXAMPLES / "gpt.py", mesh=mesh, parallel=way, phase="backward", sizes=sizes, **more)
    listen = lambda *given: gpt_heard(*given, *step)
    agree(analysis, listen, way, B=24, T=32, D=192, N=24, L=3, V=96)


@pytest.mark.parametrize(("mesh", "way", "more", "said"), [
    ({"X": 4}, "tp=Y", {}, "tp=Y names the axis 'Y', which the mesh does not have"),
    ({"X": 4}, "zap=X", {}, "no strategy 'zap'"),
    ({"X": 4}, "fsdp", {}, "--parallel 'fsdp' is not STRATEGY=AXIS"),
    ({"X": 4}, "fsdp=X,tp=X", {}, "the axis X is used twice, by fsdp=X and tp=X"),
    ({"X": 4, "Y": 2}, "fsdp=X", {}, "nothing runs along the axis Y"),
    ({"X": 4, "Y": 2}, "fsdp=X,dp=Y", {}, "fsdp=X and dp=Y exclude each other"),
    ({"X": 4, "Y": 2}, "hsdp=X,tp=Y", {}, "hsdp takes 2 axes, not X"),
    ({"X": 4, "Y": 2}, "fsdp=X,tp=Y", {"devices": 16}, "the mesh X=4 * Y=2 has 8 devices, not 16"),
    ({"X": 4}, " ", {}, "the mesh has X, and nothing says what runs along it"),
    ({}, "fsdp=X", {}, "--parallel divides a model over a mesh, and there is none"),
    ({"F": 4}, "fsdp=F", {}, "F is a size of mlp and an axis of the mesh"),
    ({"X": 7}, "dp=X", {}, "shards would be uneven: 7 devices along X do not divide the batch, B = 64"),
    ({"Y": 3}, "tp=Y", {}, "shards would be uneven: 3 devices along Y do not divide 4096, dimension 0 of up.weight"),
    ({"X": 4096}, "tp=X", {"sizes": {"F": 1024}}, "shards would be uneven"),
    ({"X": 2}, "tp=X", {"plan": {"nowhere": "colwise"}}, "the plan for tp names 'nowhere', and no module has that path"),
    ({"X": 2}, "tp=X", {"plan": {"up": "zap"}}, "the plan for tp names the style 'zap', which is not known"),
    ({"X": 2}, "sp=X", {}, "MLP has no plan for sp, which says where the sequence is divided"),
    ({"X": 2}, "ep=X", {}, "MLP has no plan for ep"),
    ({"X": 2}, "tp=X", {"plan": 3}, "plan= is no plan"),
])  # fmt: skip
def test_what_is_refused(mesh: dict[str, int], way: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(CostirError) as problem:
        costir.analyze(EXAMPLES / "mlp.py", mesh=mesh, parallel=way, **more)
    assert said in str(problem.value.message)
    assert problem.value.hint


class Grouped(torch.nn.Module):
    """Attention with fewer heads of keys and values, and a gated layer: all widths by their own letters."""

    def __init__(self, D: int, N: int, K: int, H: int, F: int) -> None:
        super().__init__()
        self.H, layer = H, lambda rows, columns: torch.nn.Linear(rows, columns, bias=False)
        self.q, self.k, self.v, self.o = layer(D, N * H), layer(D, K * H), layer(D, K * H), layer(N * H, D)
        self.gate, self.up, self.down = layer(D, F), layer(D, F), layer(F, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, self.H)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


def grouped(B: int = 8, T: int = 64, D: int = 2048, N: int = 16, K: int = 8, H: int = 128, F: int = 5632) -> Any:
    return Grouped(D, N, K, H, F), (torch.zeros(B, T, D),), {}


def test_sizes_that_are_multiples_of_many_others_stay_small_enough_for_a_mesh() -> None:
    """H of N of K, D and F of H: with what the mesh divides they make weights of more bytes than there are numbers for."""
    plan = dict.fromkeys(("q", "k", "v", "gate", "up"), "colwise") | dict.fromkeys(("o", "down"), "rowwise")
    found = costir.analyze(grouped, mesh={"X": 2, "Y": 2}, parallel="fsdp=X,tp=Y", plan=plan)
    one = costir.analyze(grouped)
    for more in ({}, {"X": 4, "Y": 8, "B": 16}, {"X": 7, "Y": 4, "B": 21, "D": 7 * 64, "K": 4, "N": 28, "H": 14, "F": 7 * 44}):
        whole = {n: v for n, v in more.items() if n in one.sizes}
        here = {**found.sizes, **more}
        assert here["X"] * here["Y"] * found.at(**more).matmul_flops == one.at(**whole).matmul_flops


def test_one_device_is_no_mesh() -> None:
    alone = costir.analyze(EXAMPLES / "mlp.py", phase="train")
    one = costir.analyze(EXAMPLES / "mlp.py", phase="train", mesh={"X": 1}, parallel="fsdp=X")
    assert (one.costed, one.constraints) == (alone.costed, alone.constraints)


@pytest.mark.parametrize("way", ["fsdp=X", "dp=X", "tp=X"])
def test_formulas_of_several_devices_are_not_those_of_one(way: str) -> None:
    """FSDP copies what it gathers, from one device, too: at X = 1 the formulas would say more than one device does."""
    several = costir.analyze(EXAMPLES / "mlp.py", phase="backward", mesh={"X": 4}, parallel=way)
    assert several.at(X=2).sizes["X"] == 2
    with pytest.raises(SizeError, match=r"X >= 2 \(on one device nothing is divided\)"):
        several.at(X=1)
    with pytest.raises(SizeError, match="X >= 2"):
        several.on("h100").at(X=np.array([1, 2]))


def test_a_group_that_is_gone_leaves_nothing_behind() -> None:
    assert not dist.is_initialized()
    costir.analyze(EXAMPLES / "mlp.py", mesh={"X": 2}, parallel="tp=X")
    assert not dist.is_initialized()


def test_products_over_all_devices_add_up_to_the_whole(tmp_path: Path) -> None:
    from sympy import simplify

    whole = costir.analyze(EXAMPLES / "mlp.py", phase="backward")
    divided = costir.analyze(EXAMPLES / "mlp.py", phase="backward", mesh={"X": 4, "Y": 2}, parallel="hsdp=X/Y")
    x, y = (divided.symbols[n] for n in "XY")
    assert simplify(divided.matmul_flops * x * y - whole.matmul_flops) == 0
    assert simplify(divided.params * y - whole.params) == 0
    assert [(c.kind, c.axes) for c in divided.communication if c.phase == "backward"] == [
        ("reduce_scatter", ("Y",)), ("all_reduce", ("X",)),
    ]  # fmt: skip


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 256,
         "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 512,
         "max_position_embeddings": 256}  # fmt: skip


def llama_heard(mesh: dict[str, int], way: str, sizes: dict[str, int]) -> Log:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.distributed import DistributedConfig
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    fields = {"hidden_size": "D", "intermediate_size": "F", "num_hidden_layers": "L", "num_attention_heads": "N",
              "num_key_value_heads": "K", "vocab_size": "V"}  # fmt: skip
    config = LlamaConfig(**{**LLAMA, **{f: sizes[s] for f, s in fields.items()}})

    def wrap(model: Any, axes: dict[str, Any]) -> Any:
        plan = model._resolve_parallel_plans(DistributedConfig(tp_size=mesh["Y"]))[0]
        apply_tensor_parallelism(model, axes["Y"], plan)
        return parallel(model, axes, {}, list(model.model.layers), way.replace(",tp=Y", ""))

    with fake_group(math.prod(mesh.values())):
        ids = torch.zeros(sizes["B"] // mesh["X"], sizes["T"], dtype=torch.long)
        return heard(LlamaForCausalLM(config), wrap, mesh, {"input_ids": ids, "labels": ids}, lambda out: out.loss)


@pytest.mark.parametrize("way", ["fsdp=X,tp=Y", "dp=X,tp=Y"])
def test_a_transformers_model_by_its_own_plan_sends_what_the_engine_sends(way: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    analysis = costir.analyze(tmp_path, mesh=MESHES[0], parallel=way, phase="backward", sizes={"B": 8, "T": 32})
    agree(analysis, llama_heard, way, B=24, T=16, D=192, F=96, N=48, K=24, L=2, V=96)
    assert not analysis.unknown


def test_tensor_parallelism_goes_up_to_the_heads_of_keys_and_values(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(CostirError, match="does not divide the 4 heads of keys and values evenly"):
        costir.analyze(tmp_path, mesh={"Y": 8}, parallel="tp=Y", sizes={"B": 8, "T": 32})


def tied_heard(mesh: dict[str, int], way: str, sizes: dict[str, int]) -> Log:
    """As transformers loads a model: made with its weights apart, divided, tied."""
    from transformers import LlamaConfig, LlamaForCausalLM, initialization
    from transformers.distributed import DistributedConfig
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    with initialization.no_tie_weights():
        model = LlamaForCausalLM(LlamaConfig(**{**LLAMA, "tie_word_embeddings": True}))

    def wrap(model: Any, axes: dict[str, Any]) -> Any:
        plan = model._resolve_parallel_plans(DistributedConfig(tp_size=mesh["Y"]))[0]
        apply_tensor_parallelism(model, axes["Y"], plan)
        model.tie_weights(recompute_mapping=False)
        assert model.lm_head.weight is model.model.embed_tokens.weight
        return model

    with fake_group(mesh["Y"]):
        ids = torch.zeros(sizes["B"], sizes["T"], dtype=torch.long)
        return heard(model, wrap, mesh, {"input_ids": ids, "labels": ids}, lambda out: out.loss)


def test_a_transformers_model_with_tied_weights_is_divided_and_stays_tied(tmp_path: Path) -> None:
    from sympy import simplify

    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 2, "tie_word_embeddings": True}))
    whole = costir.analyze(tmp_path, phase="backward", sizes={"B": 8, "T": 32})
    divided = costir.analyze(tmp_path, mesh={"Y": 2}, parallel="tp=Y", phase="backward", sizes={"B": 8, "T": 32})
    assert simplify(divided.matmul_flops * divided.symbols["Y"] - whole.matmul_flops) == 0
    have = said(divided, Y=2, **{"B": 8, "T": 32, "D": 64, "F": 256, "N": 8, "K": 4, "L": 4, "V": 512})
    assert have == tied_heard({"Y": 2}, "tp=Y", {"B": 8, "T": 32})


SHARING = """
import torch
from torch import nn

class Shared(nn.Module):
    def __init__(self, V, D, L):
        super().__init__()
        self.embed, self.head = nn.Embedding(V, D), nn.Linear(D, V, bias=False)
        self.head.weight = self.embed.weight
        block = nn.Linear(D, D)
        self.blocks = nn.ModuleList([nn.Sequential(block) for _ in range(L)])

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def build(B=8, V=64, D=16, L=2):
    return Shared(V, D, L), (torch.zeros(B, dtype=torch.long),), {}

tp_plan = {"embed": "embedding", "head": "colwise_gather"}
"""


@pytest.mark.parametrize(("way", "said"), [
    ("tp=X", "embed.weight and head.weight are one weight, and torch makes two of it when it divides the model"),
    ("fsdp=X", "blocks.0 and blocks.1 share a weight, and fully_shard takes none that is in two blocks"),
])  # fmt: skip
def test_weights_that_torch_would_not_share_any_more_are_refused(tmp_path: Path, way: str, said: str) -> None:
    (tmp_path / "shared.py").write_text(SHARING)
    with pytest.raises(CostirError) as problem:
        costir.analyze(tmp_path / "shared.py", mesh={"X": 2}, parallel=way)
    assert said in problem.value.message
    assert problem.value.hint
    assert "all_reduce" in {c.kind for c in costir.analyze(
        tmp_path / "shared.py", mesh={"X": 2}, parallel="dp=X", phase="backward").communication}  # fmt: skip


def test_traffic_of_kernels_is_of_one_device() -> None:
    for traffic in ("inductor", "xla", "ideal"):
        with pytest.raises(CostirError, match=f"--traffic {traffic} is of one device"):
            costir.analyze(EXAMPLES / "mlp.py", mesh={"X": 2}, parallel="fsdp=X", traffic=traffic)


def test_critical_batch_and_width_of_the_scaling_book_follow_from_a_traced_mlp() -> None:
    """FSDP pays where B/X > C/W, TP where F > Y*C/W (How to Scale Your Model, chapter 5); C and W of a TPU v5e."""
    ratio = Fraction(197 * 10**12, 90 * 10**9)
    fsdp = costir.analyze(EXAMPLES / "mlp.py", mesh={"X": 4}, parallel="fsdp=X", dtype="bf16")
    tp = costir.analyze(EXAMPLES / "mlp.py", mesh={"Y": 4}, parallel="tp=Y", dtype="bf16")
    batch = fsdp.on("tpu_v5e@book", algorithm="book").critical("B")
    width = tp.on("tpu_v5e@book", algorithm="book").critical("F")
    assert batch.value == ratio * fsdp.symbols["X"]
    assert width.value == ratio * tp.symbols["Y"]


def test_the_best_split_of_the_scaling_book_follows_from_a_traced_mlp() -> None:
    """X = sqrt(B*Mx*N/(F*My)), and the batch per chip from which on both axes together pay: added and overlapped."""
    import sympy as sp

    both = costir.analyze(EXAMPLES / "mlp.py", mesh={"X": 4, "Y": 2}, parallel="fsdp=X,tp=Y", dtype="bf16")
    b, f, x, y = (both.symbols[n] for n in "BFXY")
    n, mx, my, w, c = sp.symbols("N Mx My W C", positive=True)
    payload = {(t.kind, t.axes): t.payload for t in both.communication}
    # a ring two ways round on M axes of the torus; an all-reduce passes its payload twice
    gather = payload["all_gather", ("X",)].subs(y, n / x) / (w * mx)
    reduce = 2 * payload["all_reduce", ("Y",)].subs(y, n / x) / (w * my)
    best = sp.solve(sp.diff(gather + reduce, x), x)
    assert [sp.simplify(s**2 - b * mx * n / (f * my)) for s in best] == [0]
    compute = both.matmul_flops.subs(y, n / x) / c
    numbers = {f: 32768, c: 2550, w: 1, mx: 2, my: 1}
    least = {}
    for name, sent in (("added", gather + reduce), ("overlapped", gather)):
        share = sp.simplify((compute / sent.subs(x, best[0])).subs(numbers) / sp.sqrt(b / n))  # of the time is computation
        assert not share.free_symbols  # it grows as the root of the batch per chip, whatever the width is
        least[name] = round(float(1 / share**2), 1)
    assert least == {"added": 396.9, "overlapped": 99.2}


def test_a_factor_before_a_remainder_is_not_printed() -> None:
    import sympy as sp

    from costir.ir import condition_text
    from costir.symbolic import size

    asked = sp.Eq(32 * sp.Mod(1024, size("X"), evaluate=False), 0, evaluate=False)
    assert condition_text(asked) == "1024 % X == 0"


def test_gradients_are_averaged_on_their_way_into_buckets(tmp_path: Path) -> None:
    """Two passes over each gradient, as torch's own reducer makes them in a real process group: into the bucket, and back."""
    from costir.load.user_file import import_file

    file = import_file(EXAMPLES / "mlp.py")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        ddp = torch.nn.parallel.DistributedDataParallel(file.MLP(32, 64))
        with torch.profiler.profile(record_shapes=True) as profile:
            file.loss(ddp(torch.zeros(4, 32))).backward()
    finally:
        dist.destroy_process_group()
    sides = ([[64, 32]], [[32, 64]], [[2048]])
    names = [e.name for e in profile.events() if [s for s in e.input_shapes if s][:1] in sides and e.name in PASSES]
    analysis = costir.analyze(EXAMPLES / "mlp.py", mesh={"X": 4}, parallel="dp=X", phase="backward")
    square = lambda n: size("D") * size("F") in (n.call.outputs[0].numel, *(t.numel for t in n.call.inputs[:1]))
    nodes = [n for n in analysis.costed.nodes if n.call.phase == "backward" and n.call.name in ("div", "div_", "copy_")]
    passes = [n.call.name for n in nodes if square(n) for _ in range(int(n.call.count))]
    assert sorted(PASSES[n] for n in names) == sorted(passes) == ["copy_", "copy_", "div", "div"]


PASSES = {"aten::mul": "div", "aten::div": "div", "aten::div_": "div_", "aten::copy_": "copy_"}
