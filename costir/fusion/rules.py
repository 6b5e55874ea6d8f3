"""What may be one kernel: the rules of each compiler, in the order in which they are asked. Data; `group` applies them.

"inductor" follows the Triton rules of TorchInductor in torch 2.13 (scheduler.py, choices.py, codegen/simd.py), with split and
mixed-order reductions and layout optimisation off. "xla" is XLA's simplest: elementwise work joins what reads it, reductions
end a kernel, nothing is joined only because it reads the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from costir.fusion.group import Group, Grouping

Test = Callable[["Grouping", "Group", "Group"], bool]


@dataclass(frozen=True)
class Rule:
    """One condition for two groups to be one kernel.

    Attributes:
        name: a word for it.
        otherwise: what to say where it does not hold, about "it" (the other group).
        test: whether it holds for (the earlier, the later group).
    """

    name: str
    otherwise: str
    test: Test


@dataclass(frozen=True)
class RuleSet:
    """A compiler's rules.

    Attributes:
        name: as users type it.
        rules: all must hold for two groups to be joined.
        siblings: groups that only read the same may be joined.
        reorder: the loops of elementwise work may be put in another order to make it fit.
        reread: a result is computed again by each of its readers where that reads at most so many bytes per byte of result.
        recompute: the backward pass computes elementwise work again where that saves memory.
        words: what it is, for readers.
    """

    name: str
    rules: tuple[Rule, ...]
    siblings: bool
    reorder: bool
    reread: float
    recompute: bool
    words: str


def _known(g: Grouping, a: Group, b: Group) -> bool:
    return not (a.opaque or b.opaque)


def _phase(g: Grouping, a: Group, b: Group) -> bool:
    return a.phase == b.phase


def _shares(g: Grouping, a: Group, b: Group) -> bool:
    return g.shared(a, b) >= LEAST_SHARED or (g.depends(a, b) and g.shared(a, b) > 0)


def _sizes(g: Grouping, a: Group, b: Group) -> bool:
    if a.reduces and b.reduces:
        return (a.rows, a.length) == (b.rows, b.length)
    if not a.reduces and not b.reduces:
        return a.rows == b.rows
    one, other = (b, a) if a.reduces else (a, b)
    return one.rows == other.rows or (
        one.rows == other.rows * other.length and all(fits(p.dims, other.rows) for p in one.pieces)
    )


def fits(dims: tuple[int, ...], rows: int) -> bool:
    """Whether loops in this order run over `rows` rows and then along each."""
    done = 1
    for d in dims:
        if done == rows:
            return True
        if rows % done:
            return False
        left = rows // done
        if left % d == 0:
            done *= d
        else:
            return d % left == 0
    return done == rows


def _in_step(g: Grouping, a: Group, b: Group) -> bool:
    return g.in_step(a, b)


def _between(g: Grouping, a: Group, b: Group) -> bool:
    return not g.path_around(a, b)


def _few(g: Grouping, a: Group, b: Group) -> bool:
    return len(a.pieces) + len(b.pieces) <= MOST_PIECES


def _near(g: Grouping, a: Group, b: Group) -> bool:
    return g.depends(a, b) or max(abs(a.first - b.last), abs(b.first - a.last)) <= MOST_DISTANCE


def _no_reduction_before(g: Grouping, a: Group, b: Group) -> bool:
    return not a.reduces or any(p.event == q.event for p in a.pieces for q in b.pieces)


LEAST_SHARED = 10  # bytes
MOST_PIECES = 64
MOST_DISTANCE = 64

KNOWN = Rule("opaque", "it is a library call, which stands alone", _known)
PHASE = Rule("phase", "forward, backward and optimizer are compiled apart", _phase)
SHARES = Rule("shares", "they have no memory in common, read in the same order", _shares)
SIZES = Rule("sizes", "their loops are of other sizes", _sizes)
IN_STEP = Rule("order", "it needs elements that other iterations of the loop make", _in_step)
BETWEEN = Rule("cycle", "something that is not in the kernel must run in between", _between)
FEW = Rule("pieces", f"the kernel would have more than {MOST_PIECES} parts", _few)
NEAR = Rule("distance", f"it is more than {MOST_DISTANCE} parts away and shares inputs only", _near)
LAST = Rule("reduction", "a reduction ends a kernel, unless torch has both as one operator", _no_reduction_before)

RULE_SETS = {
    "inductor": RuleSet(
        "inductor", (KNOWN, PHASE, SIZES, SHARES, FEW, NEAR, IN_STEP, BETWEEN), True, True, math.inf, True,
        "TorchInductor's fusing by its Triton rules",
    ),
    "inductor, sums stored": RuleSet(
        "inductor", (KNOWN, PHASE, SIZES, SHARES, FEW, NEAR, IN_STEP, BETWEEN), True, True, 1.5, True,
        "the same, but what several kernels read is stored unless reading again costs no more: alike in every layer",
    ),
    "xla": RuleSet(
        "xla", (KNOWN, PHASE, LAST, SIZES, SHARES, IN_STEP, BETWEEN), False, False, 1.5, False,
        "elementwise work joins what reads it, reductions end a kernel",
    ),
}  # fmt: skip
ALIKE = {"inductor": "inductor, sums stored"}  # where kernels differ from layer to layer: rules of which they do not
