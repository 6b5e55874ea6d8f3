"""Cost rules for the copies of fully_shard: weights into one flat tensor before it is gathered, and out of it afterwards."""

from __future__ import annotations

from costir.ir import Call, Conventions, Cost
from costir.ops.registry import rule, traffic


@rule("fsdp.copy_in", "fsdp.copy_out", "fsdp.chunk_cat", kind="copy", counts="0 FLOPs; reads once, writes once")
def flat(call: Call, conventions: Conventions) -> Cost:
    """0 FLOPs; reads once, writes once."""
    return traffic(call)
