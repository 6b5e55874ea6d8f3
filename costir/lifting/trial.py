"""Where the program changes its way at a size without comparing it: the boundary is found by running it at more sizes."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence

import sympy as sp

from costir.errors import LiftError
from costir.ir import Constraint
from costir.lifting.far import FACTORS, far_point
from costir.lifting.points import Point
from costir.symbolic import Boolean, Integer, holds, size
from costir.trace import Trace

BY_TRIAL = "found by trial"
_LOW = (2, 3, 5)  # small sizes to try
_BETWEEN = 3  # points at which what holds at both ends must hold, too
_BETWEEN_GUESSED = 16  # of a form that was guessed
_LARGEST = 100_000  # a boundary is looked for up to here
_UNITS = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64)


class UntrackedError(LiftError):
    """The program goes by sizes in a way that no condition on them tells: they must stay what they are.

    Attributes:
        names: the sizes.
        line: where it does so.
    """

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message, "choose base sizes like those that matter, or keep the size as a number with --keep")
        self.names = tuple(names)


@dataclasses.dataclass(frozen=True)
class Trial:
    """What was found, to be tried at other points.

    Attributes:
        agrees: whether a run at a point is what was found; None where the model does not run there.
        trace: the run at a point.
        seen: the points at which it holds.
        names: the sizes that vary.
        conditions: what holds at all of them.
        guessed: some of it was guessed.
    """

    agrees: Callable[[Mapping[str, int]], bool | None]
    trace: Callable[[Mapping[str, int]], Trace]
    seen: Sequence[Mapping[str, int]]
    names: Sequence[str]
    conditions: Sequence[Boolean]
    guessed: bool = False

    def limits(self, far: Mapping[str, int]) -> list[Constraint]:
        """Conditions on single sizes under which a run agrees, where one at a far point does not.

        Raises:
            UntrackedError: a size decides in a way that is no range and no remainder.
            LiftError: no single size decides.
        """
        culprits = [n for n in self.names if self._fails(n, far)]
        if not culprits:
            point = ", ".join(f"{n}={far[n]}" for n in self.names)
            raise LiftError(f"at sizes far from the base ({point}) the model does otherwise{self.line(far)}, and no single "
                            "size decides it", "choose larger base sizes, or keep sizes as numbers with --keep")  # fmt: skip
        return [c for n in culprits for c in self._of(n, self._moved(n, far))]

    def _moved(self, name: str, far: Mapping[str, int]) -> Point:
        """The first point seen with one size far away."""
        near = self.seen[0]
        alone = {**near, name: far[name]}
        if self._legal(alone):
            return alone
        return far_point(self.conditions, [near], [name], {name: FACTORS[0]}) or dict(near)

    def _fails(self, name: str, far: Mapping[str, int]) -> bool:
        return self.agrees(self._moved(name, far)) is False

    def _legal(self, point: Mapping[str, int]) -> bool:
        return all(holds(c, {size(n): v for n, v in point.items()}) for c in self.conditions)

    def _of(self, name: str, failing: Mapping[str, int]) -> list[Constraint]:
        at = self.line(failing)
        found = self._remainder(name, failing, at) or self._range(name, failing, at)
        if found is None:
            raise UntrackedError(f"the model does otherwise{at}", [name])
        return found

    def _remainder(self, name: str, failing: Mapping[str, int], at: str) -> list[Constraint] | None:
        """The size must be a multiple of a number, as it was everywhere."""
        common = math.gcd(*(p[name] for p in self.seen))
        for unit in (u for u in _UNITS if common % u == 0):
            first = unit * (failing[name] // unit | 1)
            tried = [{**failing, name: first + unit * k} for k in (0, 5, 8)]
            if all(self.agrees(p) for p in tried if self._legal(p)):
                condition = sp.Eq(sp.Mod(size(name), Integer(unit), evaluate=False), 0, evaluate=False)
                return [Constraint(condition, f"{BY_TRIAL}{at}", branch=True)]
        return None

    def _range(self, name: str, failing: Mapping[str, int], at: str) -> list[Constraint] | None:
        """The size must lie in a range, at both ends of which and in between runs agree."""
        if failing[name] > _LARGEST:
            return None
        near = {**self.seen[0]}
        low, high = min(p[name] for p in self.seen), max(p[name] for p in self.seen)
        up = [v for v in range(high, failing[name] + 1) if self._legal({**near, name: v})]
        down = [v for v in range(low, 1, -1) if self._legal({**near, name: v})]
        if len(up) < 2 or not self.agrees({**near, name: up[0]}):
            return None
        top = self._last(near, name, up)
        bottom = 1
        if any(self.agrees({**near, name: v}) is False for v in _LOW if v in down):
            bottom = self._last(near, name, down)
        inside = [v for v in range(max(2, bottom), top + 1) if self._legal({**near, name: v})]
        drawn = random.Random(name).sample(inside, min(_BETWEEN_GUESSED if self.guessed else _BETWEEN, len(inside)))
        if any(self.agrees({**near, name: v}) is False for v in drawn):
            return None
        found = [Constraint(sp.Le(size(name), Integer(top)), f"{BY_TRIAL}{at}", branch=True)]
        if bottom > 1:
            found.append(Constraint(sp.Ge(size(name), Integer(bottom)), f"{BY_TRIAL}{at}", branch=True))
        return found

    def _last(self, near: Mapping[str, int], name: str, values: Sequence[int]) -> int:
        """The last of the values up to which runs agree, the first of which does."""
        good, bad = 0, len(values)
        while bad - good > 1:
            middle = (good + bad) // 2
            if self.agrees({**near, name: values[middle]}):
                good = middle
            else:
                bad = middle
        return values[good]

    def line(self, point: Mapping[str, int]) -> str:
        """Where the run at a point first does otherwise than that at the first point seen: " at model.py:12", or ""."""
        here, there = self.trace(self.seen[0]).events, self.trace(point).events
        for a, b in zip(here, there, strict=False):
            if (a.op, a.source) != (b.op, b.source):
                return f" at {b.source or a.source}"
        rest = here[len(there) :] or there[len(here) :]
        return f" at {rest[0].source}" if rest and rest[0].source else ""
