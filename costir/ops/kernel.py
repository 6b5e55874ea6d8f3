"""The cost of a fused kernel: the arithmetic of its members, the memory that it moves.

`costir.kernel` has "reads" and "writes", the parts of memory that it moves, each once; "members", operators with their
arguments, results, path and line, whose arithmetic counts here; "again", operators whose result it computes once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from costir.ir import Call, Conventions, Cost
from costir.ops import registry
from costir.ops.registry import rule, written
from costir.symbolic import total

KERNEL = "costir.kernel"


def members(call: Call) -> Iterator[Call]:
    """The operators of a kernel as calls of their own; a call that is no kernel is its own member."""
    if not call.op.startswith(f"{KERNEL}."):
        yield call
        return
    for op, args, outputs, path, source in call.args["members"]:
        yield Call(op, dict(args), outputs, path, source, call.phase)


def operators(call: Call) -> tuple[str, ...]:
    """The names of all operators in a kernel, those that it computes again last."""
    again = call.args["again"] if call.op.startswith(f"{KERNEL}.") else ()
    return tuple([m.op.split(".")[1] for m in members(call)] + [op.split(".")[1] for op, _ in again])


_NAMED = 3  # operators of a kernel that its short name lists


def kernel_name(names: Sequence[str]) -> str:
    """A kernel by its operators, each once: "silu, mul", "add, pow, mean, 3 more"."""
    distinct = list(dict.fromkeys(names))
    if len(distinct) <= _NAMED + 1:
        return ", ".join(distinct)
    return f"{', '.join(distinct[:_NAMED])}, {len(distinct) - _NAMED} more"


@rule(KERNEL, kind="fused kernel", counts="the FLOPs of its members; each part of memory that it needs once")
def kernel(call: Call, conventions: Conventions) -> Cost:
    """Members' FLOPs; what is read and written once."""
    costs = [c for m in members(call) if (c := _of(m, conventions)) is not None]
    parts: dict[str, Any] = {f: total(getattr(c, f) for c in costs) for f in ("matmul", "vector", "special")}
    working = [c for c in costs if c.flops != 0 and c.math]
    floats = [c.math for c in working if c.math.startswith(("float", "bfloat", "complex"))]
    math = next((c.math for c in working if c.matmul != 0), (floats or [c.math for c in working] or [""])[0])
    note = "; ".join(dict.fromkeys(c.note for c in costs if c.note))
    moved = {"read": written(call.args["reads"]), "write": written(call.args["writes"])}
    return Cost(**parts, **moved, math=math, note=note)


def _of(call: Call, conventions: Conventions) -> Cost | None:
    entry = registry.find(call.op)
    return entry.rule(call, conventions) if entry is not None else None
