"""A pipeline: the blocks of a model in equal stages on a line of devices, each stage another program.

The calls of one device are told apart: those of blocks; those that the blocks' input comes of, which the first stage runs;
those that work on what the blocks give, which the last stage runs; and what depends on no weight, such as tables of angles,
which every stage makes for itself. A stage has its share of the blocks' calls, and passes on what one block hands to the next:
forward to the stage behind it, its gradient to the stage before it, once for each micro-batch.

With M micro-batches and P stages a step takes the time of M + P - 1 micro-batches on the slowest stage, by GPipe as by 1F1B
(Huang et al., arXiv 1811.06965; Narayanan et al., arXiv 2104.04473, section 2.2): (P - 1)/(M + P - 1) of it is idle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from costir.errors import LiftError, SizeError
from costir.ir import Call, Constraint, Graph, Tensor, Weight, tensors
from costir.mesh import Mesh
from costir.symbolic import Integer, Symbol, divides, size

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


def in_stages(graph: Graph, axis: str, count: int, micro_batches: int) -> tuple[Graph, ...]:
    """The programs of the first, a middle and the last stage, without the middle one where there are two stages.

    Args:
        graph: of one device, forward or forward and backward.
        axis: the mesh axis along which the stages lie.
        count: how many there are.
        micro_batches: passes of a step.

    Raises:
        SizeError: the stages do not divide the blocks.
        LiftError: the calls do not tell which stage they belong to, or more than one tensor is handed on.
    """
    parts = told_apart(graph, 2 if micro_batches > 1 else 1)
    length = graph.sizes[str(parts.depth)]
    if length % count:
        raise SizeError(
            f"stages would be uneven: {count} stages along {axis} do not divide {parts.depth} = {length} blocks",
            "choose another mesh",
        )
    kinds = (FIRST, "middle", LAST) if count > 2 else (FIRST, LAST)
    return tuple(_stage(graph, parts, kind, axis, count, micro_batches) for kind in kinds)


def _stage(graph: Graph, parts: Parts, kind: str, axis: str, count: int, micro_batches: int) -> Graph:
    share, mine = size(axis), (kind, EVERY)
    calls = [replace(c, count=c.count / share) if w == BLOCK else c
             for c, w in zip(graph.calls, parts.where, strict=True) if w == BLOCK or w in mine]  # fmt: skip
    weights = [replace(x, count=x.count / share) if w == BLOCK else x
               for x, w in zip(graph.weights, parts.weights, strict=True) if w == BLOCK or w in mine]  # fmt: skip
    forward = [c for c in calls if c.phase == "forward"]
    backward = [c for c in calls if c.phase == "backward"]
    sends = {"forward": kind != LAST, "backward": bool(backward) and kind != FIRST}
    args = {"self": parts.handed, "axes": (axis,), "devices": share}
    out = replace(parts.handed, ref=-1)
    passed = {p: [Call("costir.permute.default", args, (out,), phase=p, count=Integer(micro_batches))] if wanted else []  # type: ignore[arg-type]
              for p, wanted in sends.items()}  # fmt: skip
    return replace(
        graph,
        calls=(*forward, *passed["forward"], *backward, *passed["backward"]),
        weights=tuple(weights),
        sizes={**graph.sizes, axis: count},
        mesh=Mesh.of([axis]),
        constraints=(*graph.constraints, Constraint(divides(parts.depth, share))),
        notes=(*graph.notes, *_notes(parts, axis, micro_batches)),
        plan=f"{kind} stage{'s' if kind == 'middle' else ''}",
        pipeline=micro_batches,
    )


def _notes(parts: Parts, axis: str, micro_batches: int) -> Iterable[str]:
    each, batches = f"{parts.depth}/{axis} blocks ({parts.blocks})", f"{micro_batches} micro-batch{'es' * (micro_batches > 1)}"
    yield f"all numbers are of the slowest of {axis} stages at the base sizes; each has {each}"
    yield "the first stage runs what is before the blocks, too, the last what is behind them; all run what needs no weights"
    yield (
        f"pipeline of {batches}, GPipe or 1F1B: a step takes ({micro_batches} + {axis} - 1)/{micro_batches} of the time of the "
        f"stage, ({axis} - 1)/({micro_batches} + {axis} - 1) of it idle"
    )


def waiting(graph: Graph) -> tuple[Fraction, Fraction]:
    """How many times longer a step takes than the work of its slowest stage, and the share of it that a stage is idle.

    (1, 0) without a pipeline.
    """
    if not graph.pipeline:
        return Fraction(1), Fraction(0)
    count = int(graph.mesh.devices.xreplace({size(n): Integer(v) for n, v in graph.sizes.items()}))
    turns = graph.pipeline + count - 1
    return Fraction(turns, graph.pipeline), Fraction(count - 1, turns)


# ------------------------------------------------------------------------------------------------ which stage runs what


def told_apart(graph: Graph, passes: int) -> Parts:
    """Which calls and weights belong to blocks, to what is before them and to what is behind them.

    Args:
        graph: of one device.
        passes: forward passes that the graph has: two where one stands for all further micro-batches.

    Raises:
        LiftError: where that cannot be told.
    """
    blocks, depth = _blocks(graph.calls)
    where, made = _forward(graph.calls, blocks)
    _backward(graph.calls, blocks, where, made)
    handed = _handed(graph.calls, where, made, passes)
    held = tuple(_holder(w, graph.calls, where, blocks) for w in graph.weights)
    for c, w in zip(graph.calls, where, strict=True):
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


def _inside(path: str, blocks: str) -> bool:
    return path == blocks or path.startswith(f"{blocks}.")


def _forward(calls: Sequence[Call], blocks: str) -> tuple[list[str], dict[int, str]]:
    """The forward pass told apart by what depends on what; "" for other phases. And who makes each tensor."""
    where = [""] * len(calls)
    made: dict[int, str] = {}
    loose: list[int] = []
    for i, c in enumerate(calls):
        if c.phase != "forward":
            continue
        where[i] = BLOCK if _inside(c.path, blocks) else _by_operands(c, made)
        if where[i] == EVERY:
            loose.append(i)
        made.update(dict.fromkeys((t.ref for t in c.outputs), where[i]))
    readers: dict[int, set[str]] = {}
    for i in range(len(calls) - 1, -1, -1):
        c = calls[i]
        if where[i] == EVERY and i in loose:
            used = {w for t in c.outputs for w in readers.get(t.ref, set()) if w}
            alone = used - {EVERY}
            where[i] = alone.pop() if len(used) == 1 and alone <= {FIRST, LAST} and alone else EVERY
            if where[i] == EVERY and used and any(t.role == "weight" for t in c.inputs):
                raise LiftError(f"pp: a weight that {c.name} reads in {c.path or 'the model'} is needed in several stages")
            made.update(dict.fromkeys((t.ref for t in c.outputs), where[i]))
        for t in c.inputs if where[i] else ():
            readers.setdefault(t.ref, set()).add(where[i])
    return where, made


def _by_operands(c: Call, made: Mapping[int, str]) -> str:
    """Behind the blocks what depends on them; before them what depends on weights; the rest where it is read."""
    froms, weighs, others = set(), False, False
    for t in c.inputs:
        if t.role == "weight":
            weighs = True
        elif t.role in ("buffer", "input"):
            others = True
        else:
            others = True
            froms.add(made.get(t.ref, BLOCK))  # what no call makes is made by a block that stands for others
    if froms & {BLOCK, LAST}:
        if FIRST in froms:
            raise LiftError(
                f"pp: {c.name} in {c.path or 'the model'} reads what is before the blocks and what is behind them",
                "only what one block hands to the next is passed on",
            )
        return LAST
    return FIRST if FIRST in froms or (weighs and others) else EVERY


def _backward(calls: Sequence[Call], blocks: str, where: list[str], made: dict[int, str]) -> None:
    """The backward pass is where the forward pass was: by line, else by module, else by what it reads."""
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
            found = next((s for s in choices if len(s) == 1), None)
            if found is None or c.phase != "backward":
                raise LiftError(f"pp: no stage is known for {c.name} of the {c.phase} pass in {c.path or 'the model'}")
            where[i] = next(iter(found))
        made.update(dict.fromkeys((t.ref for t in c.outputs), where[i]))


def _handed(calls: Sequence[Call], where: Sequence[str], made: Mapping[int, str], passes: int) -> Tensor:
    """The one tensor that the blocks take from what is before them, and hand on."""
    into: dict[int, Tensor] = {}
    out: dict[int, Tensor] = {}
    shared: dict[int, set[str]] = {}
    for c, w in zip(calls, where, strict=True):
        for t in tensors(tuple(c.args.values())):
            if t.role == "weight":
                shared.setdefault(t.ref, set()).add(w)
            elif c.phase == "forward" and t.role not in ("buffer", "input"):
                if w == BLOCK and made.get(t.ref) == FIRST:
                    into[t.ref] = t
                elif w == LAST and made.get(t.ref, BLOCK) == BLOCK:
                    out[t.ref] = t
    if any({FIRST, LAST} <= s for s in shared.values()):
        raise LiftError("pp: the first and the last stage share a weight, which both would need", "untie it, or use fsdp or tp")
    if len(into) != passes or len(out) != passes or len({t.shape for t in (*into.values(), *out.values())}) != 1:
        raise LiftError(
            f"pp: the blocks take {len(into)} tensors from what is before them and give {len(out)} to what is behind them",
            "a pipeline passes on one tensor",
        )
    return next(iter(into.values()))


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
