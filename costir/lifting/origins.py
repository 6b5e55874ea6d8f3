"""A trace -> what each of its events has in common with events of other traces, and of other blocks of its own.

The place in the code does not tell everything apart: a loop inside torch runs the products of all layers and directions of a
recurrent network from one line, a linear layer's two gradients come from one. So events are also told apart by what they read:
by which weights, and by the kind of the events that made the rest, as far back as asked for (colour refinement, Weisfeiler and
Leman 1968).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from costir.lifting.align import fold_path
from costir.trace import Trace
from costir.tracing.recorder import Event, RawTensor, raw_tensors

FURTHEST = 3  # steps back that are looked at
_LIST = 4  # operands; of more, some are a list
_TURNS = "aten.unbind."  # its results are what the turns of a loop read


def kinds(t: Trace, steps: int) -> list[Hashable]:
    """The kind of each event, by its place in the code and by what it reads, that many steps back."""
    found: list[int] = [hash(_place(t, i)) for i in range(len(t.events))]
    if steps:
        reads = _reads(t)
        for _ in range(steps):
            found = [hash((kind, *_told(found, mine))) for kind, mine in zip(found, reads, strict=True)]
    return list(found)


def kinds_of_turns(t: Trace) -> int:
    """How many kinds of events there are: fewer in a loop of few turns, that has no middle ones."""
    return len(set(kinds(t, FURTHEST)))


def _told(found: Sequence[int], reads: Sequence[tuple[int, int] | int]) -> Iterator[Hashable]:
    """What the kinds of an event's operands are; of a list that is as long as a loop, each kind once."""
    told: Iterator[Hashable] = ((found[x[0]], x[1]) if isinstance(x, tuple) else x for x in reads)
    yield from dict.fromkeys(told) if len(reads) > _LIST else told


def operands(e: Event) -> Iterator[RawTensor]:
    """The tensors among the arguments of an event that lie in one memory."""
    yield from (x for _, v in e.args for x in raw_tensors(v) if x.memory >= 0)


def _place(t: Trace, index: int) -> Hashable:
    e = t.events[index]
    second = t.lives.second is not None and index >= t.lives.second
    return e.phase, fold_path(e.path), e.op, e.source, e.site, second


def _reads(t: Trace) -> list[list[tuple[int, int] | int]]:
    """Of each event's operands: the event that made or last wrote what it reads, and as which of its results; or, of what was
    there before the step, a number of its name."""
    names = {w.tensor.memory: hash(fold_path(w.path)) for w in t.weights}
    shown: dict[int, tuple[int, int]] = {}  # by what is shown of a memory
    written: dict[int, tuple[int, int]] = {}  # by memory
    out = []
    for i, e in enumerate(t.events):
        mine: list[tuple[int, int] | int] = []
        for x in operands(e):
            made = shown.get(x.ref) or written.get(x.memory)
            mine.append(made if made is not None else names.get(x.memory, hash(t.lives.names[x.memory])))
        out.append(mine)
        for k, x in enumerate(e.outputs):
            shown[x.ref] = written[x.memory] = (i, -1 if e.op.startswith(_TURNS) else k)
    return out
