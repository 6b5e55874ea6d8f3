"""Which stage of a pipeline runs what: the calls of a whole model told apart.

There are those of blocks; those that the blocks' input comes of, which the first stage runs; those that work on what the blocks
give, which the last stage runs; and what depends on no weight, such as tables of angles, which every stage makes for itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costir.errors import LiftError
from costir.ir import Call, Costed, Tensor, Weight
from costir.symbolic import Expr, Symbol

FIRST, BLOCK, LAST, EVERY = "first", "block", "last", "every"
_BLOCKS = re.compile(r"(.*?\*)(?:\.|$)")


@dataclass(frozen=True)
class Parts:
    """Which stage runs what.

    Attributes:
        blocks: the path of the blocks, "layers.*". depth: the size that is their number.
        where: for each call FIRST, BLOCK, LAST or EVERY.
        weights: the same for each weight.
        handed: what one block hands to the next.
    """

    blocks: str
    depth: Symbol
    where: tuple[str, ...]
    weights: tuple[str, ...]
    handed: Tensor


def told_apart(costed: Costed) -> Parts:
    """Which calls and weights belong to blocks, to what is before them and to what is behind them.

    Args:
        costed: a graph with its costs.

    Raises:
        LiftError: where that cannot be told.
    """
    graph = costed.graph
    blocks, depth = _blocks(graph.calls)
    calls, passes = _renumbered(graph.calls)
    free = [n.cost.status == "free" for n in costed.nodes]
    where, made = _forward(calls, blocks, free)
    _afterwards(calls, blocks, where, made, free)
    costly = [(c, w) for c, w, costs_nothing in zip(calls, where, free, strict=True) if not costs_nothing]
    handed = _handed(calls, where, made, passes)
    _refuse_shared(costly)
    held = tuple(_holder(w, calls, where, blocks) for w in graph.weights)
    _refuse_uneven([(w.path, w.count) for w, h in zip(graph.weights, held, strict=True) if h == BLOCK], depth)
    for c, w in costly:
        shapes = {s for t in (*c.inputs, *c.outputs) for d in t.shape for s in d.free_symbols}
        even = (c.count / depth).free_symbols if w == BLOCK else c.count.free_symbols
        if even or depth in shapes or c.rounds is not None:
            raise LiftError(
                f"pp cannot divide the blocks: {c.name} in {c.path or 'the model'} runs {c.count} times, on sizes that "
                "blocks do not share", "the blocks have to be alike"
            )  # fmt: skip
    return Parts(blocks, depth, tuple(where), held, handed)


def _blocks(calls: Sequence[Call]) -> tuple[str, Symbol]:
    """The path of the repeated blocks and the size that is their number."""
    found: dict[str, set[Symbol]] = {}
    for c in calls:
        match = _BLOCKS.match(c.path)
        if match and c.count.free_symbols:
            found.setdefault(match[1], set()).update(c.count.free_symbols)
    if len(found) != 1 or len(next(iter(found.values()))) != 1:
        seen = ", ".join(found) or "none"
        raise LiftError(
            f"pp divides one list of blocks whose number is a size, and the model has {seen}", "use fsdp or tp instead"
        )
    ((path, names),) = found.items()
    return path, names.pop()


def _renumbered(calls: Sequence[Call]) -> tuple[list[Call], int]:
    """The calls with a number of its own for each tensor, where memory is used again; and how many forward passes they have."""
    now: dict[int, int] = {}
    every = [t for c in calls for t in (*c.inputs, *c.outputs)]
    weights = {t.ref for t in every if t.role == "weight"}  # these keep theirs
    numbers = itertools.count(1 + max((t.ref for t in every), default=0))
    passes, before = 0, ""

    def put(x: Any) -> Any:
        if isinstance(x, Tensor) and x.ref in weights:
            return replace(x, role="weight")
        if isinstance(x, Tensor) and x.ref >= 0:
            return replace(x, ref=now[x.ref] if x.ref in now else now.setdefault(x.ref, next(numbers)))
        return tuple(put(i) for i in x) if isinstance(x, tuple) else x

    out = []
    for c in calls:
        if c.phase == "forward" != before:
            passes += 1
            now.clear()
        before = c.phase
        args = {k: put(v) for k, v in c.args.items()}
        for ref in {t.ref for t in c.outputs} - {t.ref for t in c.inputs}:
            now.pop(ref, None)
        out.append(replace(c, args=args, outputs=put(c.outputs)))
    return out, passes


def _inside(path: str, blocks: str) -> bool:
    return path == blocks or path.startswith(f"{blocks}.")


def _forward(calls: Sequence[Call], blocks: str, free: Sequence[bool]) -> tuple[list[str], dict[int, str]]:
    """The forward pass told apart by what depends on what; "" for other phases. And who makes each tensor."""
    where = [""] * len(calls)
    made: dict[int, str] = {}
    loose: list[int] = []
    behind = False  # whether blocks have run already in this pass
    for i, c in enumerate(calls):
        inside = _inside(c.path, blocks)
        behind = c.phase == "forward" and (behind or inside)
        if c.phase != "forward":
            continue
        where[i] = BLOCK if inside else _by_operands(c, made, behind)
        if where[i] == EVERY:
            loose.append(i)
        made.update(_made(c, where[i]))
    readers: dict[int, set[str]] = {}
    for i in range(len(calls) - 1, -1, -1):
        c = calls[i]
        if where[i] == EVERY and i in loose:
            used = {w for t in c.outputs for w in readers.get(t.ref, set()) if w}
            alone = used - {EVERY}
            where[i] = alone.pop() if len(used) == 1 and alone <= {FIRST, LAST} and alone else EVERY
            if where[i] == EVERY and used and not free[i] and any(t.role == "weight" for t in c.inputs):
                raise LiftError(f"pp: a weight that {c.name} reads in {c.path or 'the model'} is needed in several stages")
            made.update(_made(c, where[i]))
        for t in c.inputs if where[i] else ():
            readers.setdefault(t.ref, set()).add(where[i])
    return where, made


def _by_operands(c: Call, made: Mapping[int, str], behind: bool) -> str:
    """Behind the blocks what depends on them; before them what depends on weights; the rest where it is read.

    Weights that are gathered are for what runs next.
    """
    if c.op.startswith("fsdp."):
        return LAST if behind else FIRST
    froms, weighs, others = set(), False, False
    for t in c.inputs:
        if t.role == "weight":
            weighs = True
        elif t.role in ("buffer", "input"):
            others = True
        else:
            others = True
            froms.add(
                made.get(t.ref, BLOCK if behind else EVERY)
            )  # what no call makes is made by a block that stands for others
    if froms & {BLOCK, LAST}:
        if FIRST in froms:
            raise LiftError(
                f"pp: {c.name} in {c.path or 'the model'} reads what is before the blocks and what is behind them",
                "only what one block hands to the next is passed on",
            )
        return LAST
    return FIRST if FIRST in froms or (weighs and others) else EVERY


def _afterwards(calls: Sequence[Call], blocks: str, where: list[str], made: dict[int, str], free: Sequence[bool]) -> None:
    """The backward pass is where the forward pass was: by line, else by module, else by what it reads; the optimizer by module.

    Of what costs nothing, and is of several stages, it is left open.
    """
    lines: dict[tuple[str, str], set[str]] = {}
    modules: dict[str, set[str]] = {}
    for c, w in zip(calls, where, strict=True):
        if w in (FIRST, LAST):
            lines.setdefault((c.path, c.source), set()).add(w)
            modules.setdefault(c.path, set()).add(w)
    for i, c in enumerate(calls):
        if where[i]:
            continue
        if _inside(c.path, blocks):
            where[i] = BLOCK
        else:
            read = {made[t.ref] for t in c.inputs if t.ref in made} & {FIRST, LAST}
            choices = (lines.get((c.path, c.source), set()), modules.get(c.path, set()), read)
            found = next((s for s in choices if len(s) == 1), {""})
            where[i] = next(iter(found))
            if not where[i] and not free[i]:
                raise LiftError(f"pp: no stage is known for {c.name} of the {c.phase} pass in {c.path or 'the model'}")
        made.update(_made(c, where[i]))


def _made(c: Call, where: str) -> Mapping[int, str]:
    """What a call makes, and is no view of what it reads."""
    return dict.fromkeys({t.ref for t in c.outputs} - {t.ref for t in c.inputs}, where)


def _handed(calls: Sequence[Call], where: Sequence[str], made: Mapping[int, str], passes: int) -> Tensor:
    """The one tensor that the blocks take from what is before them, and hand on."""
    into: dict[int, Tensor] = {}
    out: dict[int, Tensor] = {}
    for c, w in zip(calls, where, strict=True):
        for t in c.inputs if _made(c, w) and not any(t.role == "weight" for t in c.outputs) else ():
            if c.phase == "forward" and t.role not in ("weight", "buffer", "input"):
                if w == BLOCK and made.get(t.ref) == FIRST:
                    into[t.ref] = t
                elif w == LAST and made.get(t.ref, BLOCK) == BLOCK:
                    out[t.ref] = t
    if len(into) != passes or len(out) != passes or len({t.shape for t in (*into.values(), *out.values())}) != 1:
        raise LiftError(
            f"pp: the blocks take {len(into)} tensors from what is before them and give {len(out)} to what is behind them",
            "a pipeline passes on one tensor",
        )
    return next(iter(into.values()))


def _refuse_shared(calls: Iterable[tuple[Call, str]]) -> None:
    """Refuse weights that several parts of the model read.

    Raises:
        LiftError: names what reads one.
    """
    readers: dict[int, set[str]] = {}
    for c, w in calls:
        for t in c.inputs:
            if t.role == "weight":
                found = readers.setdefault(t.ref, set())
                found.add(w)
                if len(found) > 1:
                    raise LiftError(
                        f"pp: {c.name} in {c.path or 'the model'} reads a weight that another part of the model reads, too",
                        "only the first and the last stage can share one, by two modules that hold it",
                    )


def _refuse_uneven(weights: Iterable[tuple[str, Expr]], depth: Symbol) -> None:
    """Refuse blocks that share a weight.

    Raises:
        LiftError: names it.
    """
    for path, count in weights:
        if (count / depth).free_symbols:
            raise LiftError(
                f"pp cannot divide the blocks: {path} is there {count} times", "each block needs weights of its own"
            )


def _holder(w: Weight, calls: Sequence[Call], where: Sequence[str], blocks: str) -> str:
    """Which stage holds a weight."""
    if _inside(w.path, blocks):
        return BLOCK
    if w.tensor.role != "weight":
        return EVERY
    module = w.path.rpartition(".")[0]
    found = {s for c, s in zip(calls, where, strict=True) if c.path == module and s in (FIRST, LAST)}
    if len(found) != 1:
        raise LiftError(
            f"pp: no stage is known that holds {w.path}", "put it into a module of its own, before or behind the blocks"
        )
    return found.pop()
