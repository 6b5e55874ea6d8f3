"""Critical sizes of a model that branches on its sizes: solved by the formulas of a branch, given only where that branch is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import sympy as sp

from costir import solve
from costir.cases import own_conditions
from costir.errors import ChipError
from costir.hardware import Chip
from costir.ir import Costed, Threshold, condition_text
from costir.network import AS_BUILT, Wiring
from costir.symbolic import Integer, number, size


def whole(
    branches: Sequence[Costed], chip: Chip, unknown: str, against: str = "memory", wiring: Wiring = AS_BUILT
) -> Threshold:
    """The critical size of the whole by the formulas of the base's branch; where it has none, by those of one that has.

    Args:
        branches: the same model in each of its branches, that of the base sizes first.
        chip, unknown, against, wiring: as for `solve.whole`.

    Raises:
        SizeError, ChipError: as `solve.whole`.
    """
    first = solve.whole(branches[0], chip, unknown, against, wiring)
    if len(branches) < 2:
        return first
    here, *others = names(branches)
    if first.at_base is None:
        for branch, name in zip(branches[1:], others, strict=True):
            found = _in(branch, chip, unknown, against, wiring)
            if found is not None:
                return replace(found, note=_join(found.note, f"in the branch where {name}; none where {here}"))
    return replace(first, note=_join(first.note, f"in the branch where {here}"))


def names(branches: Sequence[Costed]) -> list[str]:
    """Each branch by the conditions that not all of them share: "T > 8 and D <= 64"."""
    own = own_conditions(b.graph.constraints for b in branches)
    return [" and ".join(map(condition_text, conditions)) or "no other condition holds" for conditions in own]


def _in(branch: Costed, chip: Chip, unknown: str, against: str, wiring: Wiring) -> Threshold | None:
    """The critical size by a branch's formulas, where the model takes that branch there; else None."""
    try:
        found = solve.whole(branch, chip, unknown, against, wiring)
    except ChipError:
        return None
    if found.at_base is None:
        return None
    sizes = branch.graph.sizes
    moved, *rest = solve.factors(unknown, sizes)
    there = Fraction(found.at_base) / math.prod(sizes[n] for n in rest)
    point = {size(n): Integer(v) for n, v in sizes.items()} | {size(moved): number(there)}
    asked = [c.condition for c in branch.graph.constraints if not c.condition.has(sp.Mod, sp.Ne)]
    return found if all(c.xreplace(point) != sp.false for c in asked) else None


def _join(*notes: str) -> str:
    return "; ".join(n for n in notes if n)
