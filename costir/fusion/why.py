"""Why an operator is in its kernel, and what keeps the next one out: the rules of `rules`, asked once more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costir.fusion.group import Group
from costir.fusion.kernels import Fused, Kernel
from costir.ops.kernel import kernel_name


@dataclass(frozen=True)
class Reason:
    """One sentence about a kernel.

    Attributes:
        about: "joined" for what is in it, "kept out" for a neighbour.
        what: the operators spoken of.
        text: the sentence.
    """

    about: str
    what: str
    text: str


def reasons(fused: Fused, kernel: Kernel) -> tuple[Reason, ...]:
    """What holds a kernel together, and for each neighbour the rule that keeps it apart."""
    group = _group(fused, kernel)
    if group is None:
        text = "no result needs it, or the same is computed elsewhere: a compiler leaves it out"
        return (Reason("joined", _names(fused, kernel.events), text),)
    return (*_together(fused, kernel, group), *_apart(fused, group))


def _group(fused: Fused, kernel: Kernel) -> Group | None:
    ordered = fused.grouping.ordered()
    return next((g for g, k in zip(ordered, fused.kernels, strict=True) if k is kernel), None)


def _names(fused: Fused, events: Sequence[int]) -> str:
    return kernel_name([fused.trace.events[i].op.split(".")[1] for i in events])


def _together(fused: Fused, kernel: Kernel, group: Group) -> list[Reason]:
    """What is computed where it is read, and what its pieces share."""
    out = []
    if group.opaque:
        return [Reason("joined", _names(fused, kernel.events), "a library call, which stands alone")]
    for p in group.pieces:
        inside = [e for e in p.events if e != p.event]
        if inside:
            text = f"computed where {_names(fused, [p.event])} reads it: nothing else needs it, or reading again costs no more"
            out.append(Reason("joined", _names(fused, sorted(inside)), text))
    values = fused.grouping.program.values
    for v in sorted(group.made):
        users = [p for p in group.pieces if any(r.value == v for r in p.reads)]
        if users:
            maker = next(p for p in group.pieces if any(w.value == v for w in p.writes))
            kept = "in memory for others too" if any(t.memory == values[v].memory for t in kernel.writes) else "never in memory"
            what = _names(fused, [maker.event, *(u.event for u in users)])
            out.append(Reason("joined", what, f"each needs from the other only what the same step of the loop makes; {kept}"))
    if len(group.pieces) > 1 and not any(r.text.startswith("each") for r in out):
        out.append(
            Reason("joined", _names(fused, [p.event for p in group.pieces]), "they read the same memory in the same order")
        )
    return list(dict.fromkeys(out))


def _apart(fused: Fused, group: Group) -> list[Reason]:
    grouping = fused.grouping
    number, out = grouping.number(group), []
    for k in sorted(grouping.after[number] | grouping.before[number]):
        other = grouping.groups[k]
        first, second = (group, other) if k in grouping.after[number] else (other, group)
        rule = grouping.kept_apart(first, second, undo=True)
        if rule is not None:
            where = "next" if first is group else "before"
            text = rule.otherwise if other.opaque or not group.opaque else "this one is a library call, which stands alone"
            out.append(Reason("kept out", f"{where}: {_names(fused, sorted({p.event for p in other.pieces}))}", text))
    return list(dict.fromkeys(out))
