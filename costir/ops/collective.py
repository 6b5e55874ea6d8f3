"""Collectives: what the devices of a group send each other.

A call's args are {"self": this device's input, "axes": the mesh axes that span the group, "devices": how many devices it has}.
"""

from __future__ import annotations

from typing import cast

from costir.ir import Call, Collective, Conventions, Cost, Transfer
from costir.ops.registry import ONE, ZERO, rule

OPS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "permute")
COUNTS = {
    "all_gather": "no FLOPs; V is the gathered array: each device sends V*(N-1)/N bytes to others",
    "reduce_scatter": "(N-1)/N adds per element of the array V that each device puts in; it sends V*(N-1)/N bytes",
    "all_reduce": "(N-1)/N adds per element of the array V that each device puts in; it sends 2*V*(N-1)/N bytes",
    "all_to_all": "no FLOPs; V is the array over all devices: each sends V*(N-1)/N**2 bytes",
    "broadcast": "no FLOPs; V is the array: V*(N-1)/N bytes per device in the mean",
    "permute": "no FLOPs; V is what one device passes on",
}  # fmt: skip


def _cost(call: Call, conventions: Conventions) -> Cost:
    """What leaves a device is read there, what arrives is written; sums take one add per element and further device."""
    given, devices = call.args["self"], call.args["devices"]
    whole = devices if call.name in ("all_gather", "all_to_all") else ONE
    moved = Transfer(cast(Collective, call.name), tuple(call.args["axes"]), devices, whole * given.nbytes)
    sums = call.name in ("reduce_scatter", "all_reduce")
    adds = given.numel - given.numel / devices if sums else ZERO
    note = f"over {', '.join(moved.axes)}"
    return Cost(vector=adds, read=moved.sent, write=moved.sent, math=given.dtype, note=note, transfers=(moved,))


for _op in OPS:
    rule(f"costir.{_op}", kind="collective", counts=COUNTS[_op])(_cost)
