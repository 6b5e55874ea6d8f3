"""What the devices of a mesh send each other, summed by phase, kind of collective and axes."""

from __future__ import annotations

from dataclasses import dataclass

from costir.ir import Costed
from costir.symbolic import Expr, expand, total


@dataclass(frozen=True, slots=True)
class Communication:
    """All collectives of one kind along the same axes in one phase.

    Attributes:
        phase: forward, backward or optimizer.
        kind: all_gather, reduce_scatter, all_reduce, all_to_all, broadcast or permute.
        axes: the mesh axes that they run along.
        count: how many there are.
        payload: bytes of the whole arrays, docs/devices.md.
        sent: bytes that each device sends to others.
    """

    phase: str
    kind: str
    axes: tuple[str, ...]
    count: Expr
    payload: Expr
    sent: Expr


def communication(costed: Costed) -> tuple[Communication, ...]:
    """The collectives of a graph, in order of appearance."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[tuple[Expr, Expr, Expr]]] = {}
    for node in costed.nodes:
        n = node.call.count
        for t in node.cost.transfers:
            groups.setdefault((node.call.phase, t.kind, t.axes), []).append((n, n * t.payload, n * t.sent))
    return tuple(
        Communication(*key, *(expand(total(column)) for column in zip(*rows, strict=True))) for key, rows in groups.items()
    )
