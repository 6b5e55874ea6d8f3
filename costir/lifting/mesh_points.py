"""Probes of a mesh: few devices along each axis, and sizes that they divide evenly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from costir.lifting.points import Point

_MOST = 64  # devices of the base's own trace; a larger mesh is stood in for by a smaller one
# Devices along an axis at the three probes. Small, so that they divide what is no size of the model (a table of 96 positions);
# of two axes the ratios from the first probe to the second must be independent.
_COUNTS = ((2, 3, 4), (2, 4, 8), (4, 2, 8), (3, 5, 2), (2, 6, 3), (5, 7, 2))
# Before all others numbers that no model multiplies its widths by: of a width 4*F, each of 4 devices has as much as F is long.
_TELLING = ((5, 7, 9), (7, 10, 5), (9, 7, 10))


def axis_counts(axes: Sequence[str], telling: bool) -> Iterator[dict[str, tuple[int, ...]]]:
    """Devices along each axis at the probes: those that tell most where asked for, then fewest first."""
    if telling and len(axes) <= len(_TELLING):
        yield dict(zip(axes, _TELLING, strict=False))
    choices = itertools.product(_COUNTS, repeat=len(axes))
    for chosen in sorted(choices, key=lambda c: (math.prod(map(max, c)), c)):
        if len(axes) < 2 or len(set(chosen)) == len(chosen):
            yield dict(zip(axes, chosen, strict=True))


def on_mesh(
    points: Sequence[Point], counts: Mapping[str, Sequence[int]], scaled: Mapping[str, Collection[str]]
) -> tuple[Point, ...]:
    """The points with a mesh each, and with multiples of the axes for the sizes that may be divided along them."""
    found = []
    for place, p in enumerate(points):
        mesh = {a: c[place % len(c)] for a, c in counts.items()}
        units = {n: math.prod(mesh.get(a, 1) for a in axes) for n, axes in scaled.items()}
        found.append({**{n: v * units.get(n, 1) for n, v in p.items()}, **mesh})
    return tuple(found)


def base_mesh(mesh: Mapping[str, int]) -> dict[str, int]:
    """The mesh of the base's own trace: where it is large, one that divides whatever it divides."""
    if math.prod(mesh.values()) <= _MOST:
        return dict(mesh)
    return {a: next((d for d in range(2, 64) if v % d == 0), v) for a, v in mesh.items()}
