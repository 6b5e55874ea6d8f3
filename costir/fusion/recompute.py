"""What the backward pass keeps of the forward pass, and what it computes again: torch.compile's minimum cut.

AOTAutograd's partitioner (torch/_functorch/partitioners.py) saves the values that cut the forward from the backward pass at
the least bytes; elementwise work behind the cut is done once more in the backward pass, inside its kernels. Matrix products,
reductions and random numbers are never done again, nor is what the backward pass must have in memory anyway.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable
from typing import Any

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from costir.fusion.moves import WINDOWS
from costir.fusion.pieces import Piece, Program
from costir.ops import registry

_FAR, _PER_STEP = 100, 1.1  # a value further from the backward pass weighs more, by this factor per step


def recompute(program: Program, pieces: list[Piece]) -> list[Piece]:
    """The pieces with those that the backward pass computes again put before it."""
    forward = [p for p in pieces if p.phase == "forward"]
    backward = [p for p in pieces if p.phase == "backward"]
    if not forward or not backward:
        return pieces
    made = {w.value: p for p in forward for w in p.writes}
    wanted = {r.value for p in backward for r in p.reads} | {v for p in backward for v in p.after}
    saved = _cut(program, forward, backward, wanted)
    again = _needed(program, made, wanted, saved)
    if not again:
        return pieces
    copies = _copies(program, [p for p in forward if id(p) in again], saved)
    for p in backward:
        p.reads[:] = [r._replace(value=copies[0].get(r.value, r.value)) for r in p.reads]
    return _placed(pieces, copies[1])


def _cut(program: Program, forward: list[Piece], backward: list[Piece], wanted: set[int]) -> set[int]:
    """The values that are saved: a minimum cut between what is there and what the backward pass reads."""
    users: dict[int, list[Piece]] = {}
    for p in (*forward, *backward):
        for v in dict.fromkeys(r.value for r in p.reads):
            users.setdefault(v, []).append(p)
    graph, far, apart = nx.DiGraph(), _distances(forward, users), _far_apart(forward, users)
    graph.add_nodes_from(("source", "sink"))
    for i, p in enumerate(forward):
        if i in apart or _never_again(program, p, users):
            graph.add_edge("source", ("piece", i))
        for r in p.reads:
            graph.add_edge(("out", r.value), ("piece", i))
        for w in p.writes:
            graph.add_edge(("piece", i), ("in", w.value))
    made = {w.value for p in forward for w in p.writes}
    for v in {r.value for p in forward for r in p.reads} | made | wanted:
        graph.add_edge(("in", v), ("out", v), capacity=_weight(program, v, users.get(v, ()), far.get(v, 1), v in made))
        if v not in made:
            graph.add_edge("source", ("in", v))
        if v in wanted:
            graph.add_edge(("out", v), "sink")
    _, (near, _) = nx.minimum_cut(graph, "source", "sink", flow_func=boykov_kolmogorov)
    return {v for kind, v in (n for n in near if isinstance(n, tuple)) if kind == "in" and ("out", v) not in near}


def _far_apart(forward: list[Piece], users: dict[int, list[Piece]]) -> set[int]:
    """Positions of work on a value that is used before a library call, too: the two uses are not in one kernel.

    So the sums of a residual stream are kept, each of them, and no kernel adds up all blocks again.
    """
    order = {id(p): i for i, p in enumerate(forward)}
    after = [sorted({order[id(u)] for w in p.writes for u in users.get(w.value, ()) if id(u) in order}) for p in forward]
    apart = set[int]()
    for i, p in enumerate(forward):
        if after[i] and p.kind != "opaque":
            first = _library_call_after(forward, after, after[i])
            apart.update(k for k in after[i] if k > first and forward[k].kind != "opaque")
    return apart


def _library_call_after(forward: list[Piece], after: list[list[int]], start: list[int]) -> int:
    """The first work that cannot be in a kernel with what leads to it from `start`, by position; the last of these if none."""
    waiting, last, seen = [(i, True) for i in start], start[-1], set(start)
    while waiting:
        i, joins = heapq.heappop(waiting)
        if not joins:
            return i
        for k in after[i]:
            if k <= last and k not in seen:
                seen.add(k)
                heapq.heappush(waiting, (k, forward[i].kind != "opaque" and forward[k].kind != "opaque"))
    return last


def _distances(forward: list[Piece], users: dict[int, list[Piece]]) -> dict[int, int]:
    """Steps from each value to the backward pass."""
    far: dict[int, int] = {}
    for p in reversed(forward):
        for w in p.writes:
            far[w.value] = 1 + min((0 if u.phase != "forward" else _of(u, far) for u in users.get(w.value, ())), default=_FAR)
    for v, readers in users.items():
        if v not in far:
            far[v] = 1 + min(0 if u.phase != "forward" else _of(u, far) for u in readers)
    return far


def _of(p: Piece, far: dict[int, int]) -> int:
    return min((far.get(w.value, _FAR) for w in p.writes), default=_FAR)


def _weight(program: Program, v: int, users: Iterable[Piece], far: int, made: bool) -> int:
    """Bytes, more where it is far; twice where nothing else would bring it into memory. Parameters are there for free."""
    value = program.values[v]
    if not made and value.tensor.role in ("weight", "buffer"):
        return 0
    weight = int(value.nbytes * _PER_STEP ** max(min(far, _FAR), 1))
    in_memory = not made or value.kept or any(u.kind == "opaque" for u in users)
    return weight if in_memory or program.pieces_of(v) == "opaque" else 2 * weight


def _never_again(program: Program, p: Piece, users: dict[int, list[Piece]]) -> bool:
    """Whether a piece's work is done once: products, reductions, random numbers, what must be in memory later anyway."""
    if p.kind != "pointwise" or p.after or any(program.values[w.value].whole or program.values[w.value].kept for w in p.writes):
        return True
    event = program.trace.events[p.event]
    entry = registry.find(event.op)
    if event.op.split(".")[1] in (*WINDOWS, "max_pool2d_with_indices", "embedding"):
        return True
    if p.chooses or (entry is not None and entry.kind in ("random", "dropout", "optimizer")):
        return True
    if any(u.kind == "opaque" and u.phase != "forward" for w in p.writes for u in users.get(w.value, ())):
        return True
    taken = sum(program.values[v].nbytes for v in {r.value for r in p.reads})
    return sum(program.values[w.value].nbytes for w in p.writes) * 4 < taken


def _needed(program: Program, made: dict[int, Piece], wanted: set[int], saved: set[int]) -> set[int]:
    """The pieces, by identity, that the backward pass does again."""
    again, stack = set[int](), [v for v in wanted if v in made and v not in saved]
    while stack:
        p = made[stack.pop()]
        if id(p) not in again:
            again.add(id(p))
            stack += [r.value for r in p.reads if r.value in made and r.value not in saved]
    return again


def _copies(program: Program, again: list[Piece], saved: set[int]) -> tuple[dict[int, int], list[Piece]]:
    """The same pieces for the backward pass, on values of its own."""
    names: dict[int, int] = {}
    out = []
    for p in again:
        for w in p.writes:
            if w.value not in saved:
                program.values.append(dataclasses.replace(program.values[w.value], kept=False, memory=-1))
                names[w.value] = len(program.values) - 1
        reads = [r._replace(value=names.get(r.value, r.value)) for r in p.reads]
        writes = [w._replace(value=names[w.value]) for w in p.writes if w.value in names]
        out.append(Piece(p.event, p.kind, p.dims, p.reduced, reads, writes, "backward", [], dict(p.events)))
    return names, out


def _placed(pieces: list[Piece], copies: list[Piece]) -> list[Piece]:
    """Each copy before the first piece that reads it."""
    made: dict[int, Piece] = {w.value: c for c in copies for w in c.writes}
    out: list[Piece] = []
    done: set[int] = set()

    def place(p: Any) -> None:
        for r in p.reads:
            c = made.get(r.value)
            if c is not None and id(c) not in done:
                done.add(id(c))
                place(c)
                out.append(c)

    for p in pieces:
        if p.phase == "backward":
            place(p)
        out.append(p)
    return out
