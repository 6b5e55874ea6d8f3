"""What torch.distributed calls its operators -> what they do: a kind of collective, on which tensors, along which axes.

A collective becomes the call "costir.KIND.default" with this device's tensor as "self", the names of the axes and the number
of devices, and this device's result. fully_shard lays many weights into one flat tensor before it gathers them; these copies
keep their operands, so that the length of the flat tensor is known to be the sum of theirs.
Reserving memory and finding a shard in it are free, and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from costir.errors import TraceError

Said = tuple[str, dict[str, Any], Any]
AxesOf = Callable[[Any], tuple[str, ...]]

# Functional collectives: operator -> kind. They take a tensor (or a list) first, and the name of the group.
_FUNCTIONAL = {
    "all_reduce": "all_reduce", "all_reduce_": "all_reduce", "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce", "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather", "all_gather_into_tensor_out": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter", "all_to_all_single": "all_to_all", "broadcast": "broadcast",
    "broadcast_": "broadcast", "shard_dim_alltoall": "all_to_all",
}  # fmt: skip
# Collectives on groups: operator -> kind, the argument that is sent, the one that is received.
_ON_GROUPS = {
    "allreduce_": ("all_reduce", "tensors", "tensors"),
    "allreduce_coalesced_": ("all_reduce", "tensors", "tensors"),
    "_allgather_base_": ("all_gather", "input_tensor", "output_tensor"),
    "allgather_into_tensor_coalesced_": ("all_gather", "inputs", "outputs"),
    "_reduce_scatter_base_": ("reduce_scatter", "input_tensor", "output_tensor"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", "inputs", "outputs"),
    "alltoall_base_": ("all_to_all", "input", "output"),
    "broadcast_": ("broadcast", "tensors", "tensors"),
    "send": ("permute", "tensors", "tensors"),
}
_SILENT = (
    "aten.empty.", "aten.as_strided.", "_c10d_functional.wait_tensor", "profiler.", "c10d.barrier", "c10d.monitored_barrier_",
    "c10d.recv_",
)  # fmt: skip
_SPACES = ("_c10d_functional.", "_c10d_functional_autograd.", "c10d.", "_dtensor.")


def translate(op: str, args: dict[str, Any], out: Any, axes_of: AxesOf) -> list[Said]:
    """The calls that stand for one call of torch; none for those that do nothing of their own.

    Raises:
        TraceError: a collective that is not known.
    """
    if op.startswith(_SILENT):
        return []
    if op.startswith("fsdp."):
        return _copies(op, args, out)
    if not op.startswith(_SPACES):
        return [(op, args, out)]
    space, name, _ = op.split(".")
    if space == "c10d" and name in _ON_GROUPS:
        kind, sent, received = _ON_GROUPS[name]
        pairs = list(zip(_flat(args[sent]), _flat(args[received]), strict=True))
    elif space != "c10d" and name in _FUNCTIONAL:
        kind = _FUNCTIONAL[name]
        pairs = list(zip(_flat(args.get("input", args.get("inputs", args.get("self")))), _flat(out), strict=True))
    else:
        raise TraceError(
            f"the collective {op} is not known", "only collectives of one axis or several of the mesh can be costed"
        )
    if kind == "all_to_all" and sum(map(bool, args.get("input_split_sizes", ()))) == 1:
        kind = "permute"  # all to one neighbour
    axes = axes_of(_group(args))
    devices = dist.get_world_size(_resolved(_group(args)))
    return [(f"costir.{kind}.default", {"self": a, "axes": axes, "devices": devices}, b) for a, b in pairs]


def _flat(given: Any) -> list[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        return [given]
    return [t for x in given or () for t in _flat(x)]


def _group(args: Mapping[str, Any]) -> Any:
    """The process group of a call, or its name."""
    for name in ("group_name", "process_group"):
        if args.get(name) is not None:
            return args[name]
    raise TraceError("a collective does not say among which devices it runs")


def _resolved(group: Any) -> Any:
    if isinstance(group, str):
        return dist.distributed_c10d._resolve_process_group(group)
    return dist.ProcessGroup.unbox(group) if isinstance(group, torch.ScriptObject) else group


def _copies(op: str, args: dict[str, Any], out: Any) -> list[Said]:
    """fully_shard's copies into and out of flat tensors; how it divides the flat tensor costs nothing."""
    name = op.split(".")[1]
    if name == "all_gather_copy_in":
        return [("fsdp.copy_in.default", {"tensors": args["all_gather_inputs"]}, out[0])]
    if name == "split_with_sizes_copy":
        return [("fsdp.copy_out.default", {"self": args["all_gather_output"]}, args["out"])]
    if name == "chunk_cat":
        return [("fsdp.chunk_cat.default", {"tensors": args["tensors"]}, args["out"].view(-1))]
    raise TraceError(f"the operator {op} of fully_shard is not known")
