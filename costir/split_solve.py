"""The best split of N devices into two axes X and Y, in closed form: X*Y = N, and the network takes a*X + b/X + c seconds then.

Weights are gathered along one axis and activations added along the other, so that the first part grows with X and the second
with Y = N/X. Where collectives run one after the other the sum is least where its slope is 0; where they run at once, over
different axes, the longer of the two is least where both are equal:

    added       X = sqrt(b/a)               network 2*sqrt(a*b) + c
    overlapped  a*X + c1 = b/X + c2         network that

With contractions that take m seconds whatever X is, compute binds from the batch on at which the network takes m.
(How to Scale Your Model, chapter 5: X = sqrt(B*M_X*N/(F*M_Y)).)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import sympy as sp

from costir.analysis import Analysis
from costir.errors import ChipError, CostirError
from costir.hardware import Chip
from costir.ir import condition_text
from costir.mesh import ONE_DEVICE, batch_of
from costir.network import AS_BUILT, Network, Wiring, shape_of
from costir.split_search import met_by
from costir.splits import Placement, Timed, factored, placements
from costir.symbolic import (
    Boolean,
    Expr,
    at_branch,
    both,
    evaluate,
    expand,
    fraction,
    number,
    ratio,
    roots,
    size,
    total,
)

WAYS = ("added", "overlapped")
_LONG = 8  # terms of a coefficient that is still given in all sizes


@dataclass(frozen=True, slots=True)
class Even:
    """A split into whole numbers that divide what they have to divide, and the seconds of its collectives."""

    lengths: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class Best:
    """The best split in one placement, where collectives over different axes are "added" or "overlapped".

    Attributes:
        way: which.
        value: the devices along the first axis, an expression in the sizes and N; None where there is no closed form.
        at_base: its value. when: the condition under which it lies between 1 and N.
        network: seconds at it.
        batch: the batch from which on contractions take longer than the network, the axes split like this; None where there is
            no closed form. batch_at_base: its value; None where there is no such batch.
        reason: why there is none, where there is none.
    """

    way: str
    value: Expr | None = None
    at_base: float | None = None
    when: Boolean | None = None
    network: float | None = None
    batch: Expr | None = None
    batch_at_base: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class SplitFor:
    """The best splits in one placement on a chip.

    Attributes:
        where: the placement. links: what each group of axes communicates over, in words.
        network: by the axes that it goes over, in the sizes and N: the first axis X as a letter, the other as N/X.
        best: added and overlapped. even: the fastest whole split, and those around `best`; empty where none is even.
    """

    where: Placement
    links: tuple[str, ...]
    network: Mapping[str, Expr]
    best: tuple[Best, ...]
    even: tuple[Even, ...]
    around: Mapping[str, tuple[Even, ...]]


@dataclass(frozen=True)
class SplitSolution:
    """What `solve_split` found.

    Attributes:
        analysis: of one device. chip: where. devices: N. letter: the symbol of their number in formulas.
        axes: the two axes. batch_size: what is the batch, "" where no size is.
        torus: whether axes lie on a torus. rows: a placement each, the fastest first.
    """

    analysis: Analysis
    chip: Chip
    devices: int
    letter: str
    axes: tuple[str, str]
    batch_size: str
    torus: bool
    rows: tuple[SplitFor, ...]


def solve_split(analysis: Analysis, chip: Chip, devices: int, wiring: Wiring = AS_BUILT) -> SplitSolution:
    """The best split of a number of devices into the two axes of an analysis.

    Args:
        analysis: on a mesh of two axes whose lengths are sizes.
        chip: where it runs. devices: how many there are.
        wiring: how the mesh lies on the chip's links, where that is decided; else every placement is solved.

    Raises:
        CostirError: the mesh has not two axes, or nothing is sent along them.
        ChipError: the chip cannot carry such a mesh.
    """
    axes = analysis.graph.mesh.names
    if len(axes) != 2:
        has = f"{len(axes)} axes" if axes else "none"
        raise CostirError(f"the best split is of two axes, and the mesh has {has}", "give two: --mesh X=8,Y=4")
    letter = next(n for n in ("N", "devices", "N_devices") if n not in analysis.sizes)
    batch = batch_of(analysis.sizes)
    torus = shape_of(Network(chip, ONE_DEVICE).near) == "torus"
    rows, problem = [], None
    for where in placements(chip, axes, (), wiring):
        try:
            timed = Timed(analysis.costed, chip, where, wiring, "none")
        except ChipError as error:
            problem = problem or error
            continue
        rows.append(_solved(timed, axes, devices, letter, batch, analysis))
    if not rows:
        assert problem is not None
        raise problem
    rows.sort(key=lambda r: min((e.seconds for e in r.even), default=float("inf")))
    return SplitSolution(analysis, chip, devices, letter, (axes[0], axes[1]), batch, torus, tuple(rows))


def _solved(timed: Timed, axes: Sequence[str], devices: int, letter: str, batch: str, analysis: Analysis) -> SplitFor:
    """One placement."""
    even = _even(timed, devices, analysis.sizes)
    point = even[0][1] if even else _usual(timed.where, analysis.sizes)
    whole = _Whole(timed, axes, letter, point)
    sizes = {**analysis.sizes, letter: devices}
    best = [_best(whole, way, axes[0], letter, batch, sizes) for way in WAYS]
    if link := _shared(timed, point):
        best[WAYS.index("overlapped")] = Best("overlapped", reason=f"over both axes they go over {link}, one after the other")
    splits = [e for e, _ in even]
    return SplitFor(
        timed.where, timed.roof.links, whole.network, tuple(best), tuple(splits[:1]),
        {b.way: _around(splits, axes[0], b.at_base) for b in best if b.at_base is not None},
    )  # fmt: skip


def _shared(timed: Timed, point: Mapping[str, int]) -> str:
    """A link that collectives over different axes use at a point, where they cannot go on at once; "" where there is none."""
    here = {size(n): number(v) for n, v in point.items()}
    used: dict[str, tuple[str, ...]] = {}
    for transfer in (t for n in timed.roof.nodes for t in n.cost.transfers):
        for link, seconds in timed.roof.fabric.busy(transfer).items():
            if evaluate(seconds, here) != 0 and used.setdefault(link, transfer.axes) != transfer.axes:
                return link
    return ""


def _around(splits: Sequence[Even], axis: str, at: float) -> tuple[Even, ...]:
    """The whole splits next to a value of the first axis: the last below, the first above."""
    below = max((e for e in splits if e.lengths[axis] <= at), key=lambda e: e.lengths[axis], default=None)
    above = min((e for e in splits if e.lengths[axis] > at), key=lambda e: e.lengths[axis], default=None)
    return tuple(e for e in (below, above) if e is not None)


def _even(timed: Timed, devices: int, sizes: Mapping[str, int]) -> list[tuple[Even, dict[str, int]]]:
    """The whole splits where the formulas hold, the fastest first, with all sizes there."""
    where = timed.where
    rows = np.array([r for r in factored(devices, len(where.parted)) if _rising(where, r)], dtype=float)
    if not len(rows):
        return []
    at = {n: np.asarray(float(v)) for n, v in sizes.items()}
    at |= {p: rows[:, k] for k, p in enumerate(where.parted)}
    at |= {a: np.prod([at[p] for p in where.parts(a)], axis=0) for a in where.axes}
    able, _ = met_by(timed.constraints, at, len(rows))
    _, times = timed.seconds({n: np.broadcast_to(v, able.shape)[able] for n, v in at.items()})
    network = np.sum([times[label] for label in timed.labels[3:]], axis=0) + np.zeros(int(able.sum()))
    found = []
    for k, i in enumerate(np.flatnonzero(able)):
        values = {n: int(np.broadcast_to(v, able.shape)[i]) for n, v in at.items()}
        found.append((Even({a: values[a] for a in where.axes}, float(network[k])), values))
    return sorted(found, key=lambda f: f[0].seconds)


def _rising(where: Placement, lengths: Sequence[int]) -> bool:
    """Whether the parts of each axis rise, for their order does not matter."""
    named = dict(zip(where.parted, lengths, strict=True))
    return all([named[p] for p in where.parts(a)] == sorted(named[p] for p in where.parts(a)) for a in where.axes)


def _usual(where: Placement, sizes: Mapping[str, int]) -> dict[str, int]:
    """A point where all axes of a torus close, for meshes that no whole split is on."""
    parts = {p: 4 for a in where.axes for p in where.parts(a) if p != a}
    whole = {a: 4 ** len(where.parts(a)) for a in where.axes if len(where.parts(a)) > 1}
    return {**sizes, **parts, **whole}


class _Whole:
    """The seconds of the network and of compute as sums of powers of the first axis, N/X for the other, around a point.

    Attributes:
        network: by label. conditions: where these formulas hold. compute: of contractions.
    """

    def __init__(self, timed: Timed, axes: Sequence[str], letter: str, point: Mapping[str, int]) -> None:
        here = {size(n): number(v) for n, v in point.items()}
        first, second = (size(a) for a in axes)
        self.lengths = {first, second, size(letter)}
        self.conditions: list[Boolean] = []
        self.single = True

        def told(e: Expr) -> Expr:
            branch, conditions = at_branch(e, here)
            self.conditions += conditions
            forms = [expand(branch.xreplace(t)) for t in _joined(timed.where)]
            self.single = self.single and all(f == forms[0] for f in forms)
            return expand(forms[0].xreplace({second: size(letter) / first}))

        self.network = {label: told(e) for label, e in timed.networks.items()}
        self.compute = told(timed.compute)
        tables = _joined(timed.where)
        self.conditions = [c.xreplace(tables[0]).xreplace({second: size(letter) / first}) for c in self.conditions]

    def outside(self, point: Mapping[sp.Symbol, Expr], axis: str) -> str:
        """Why these formulas do not hold at a point, for lengths that are not whole; "" where they do."""
        for c in self.conditions:
            if isinstance(c, sp.core.relational.Relational) and not c.has(sp.Mod) and c.xreplace(dict(point)) == sp.false:
                at = f"{float(point[size(axis)]):.4g}"
                mine = c.free_symbols <= self.lengths
                where = f"outside {condition_text(c)}" if mine else "where another link takes longer"
                return f"by the formulas around the fastest even split it would be at {axis} = {at}, {where}"
        return ""


def _joined(where: Placement) -> list[dict[sp.Symbol, Expr]]:
    """Ways to write the parts of an axis by the axis alone, for expressions in which only their product stands."""
    out = []
    for turn in range(max(where.spread)):
        table: dict[sp.Symbol, Expr] = {}
        for a in where.axes:
            parts = where.parts(a)
            if len(parts) > 1:
                table |= {size(p): size(a) if i == turn % len(parts) else number(1) for i, p in enumerate(parts)}
        out.append(table)
    return out


@dataclass(frozen=True)
class _Curve:
    """a*X + b/X + c: the seconds of a network over the devices along the first axis."""

    a: Expr
    b: Expr
    c: Expr

    @staticmethod
    def of(e: Expr, axis: sp.Symbol) -> _Curve | None:
        """The curve that an expression is; None where it has other powers of the axis."""
        a, b, c = (e.coeff(axis, k) for k in (1, -1, 0))
        return _Curve(a, b, c) if expand(e - a * axis - b / axis - c) == 0 and not c.has(axis) else None


@dataclass(frozen=True)
class _Least:
    """Where the network takes least: along the first axis, in seconds, and 0 = balance where contractions take as long."""

    value: Expr
    seconds: Expr
    balance: Expr | None
    square: Expr | None = None  # of the value, where it is a plain root


def _best(w: _Whole, way: str, axis: str, letter: str, batch: str, sizes: Mapping[str, int]) -> Best:
    """The least network time in one way, and the batch from which on contractions take longer."""
    curves = [_Curve.of(e, size(axis)) for e in w.network.values()]
    known = [c for c in curves if c is not None]
    if not w.single or len(known) < len(curves) or w.compute.has(size(axis)):
        return Best(way, reason=f"the times are no sum of {axis}, 1/{axis} and what does not depend on it")
    point = {size(n): number(v) for n, v in sizes.items()}
    least = (_added if way == "added" else _overlapped)(known, w.compute, axis, point)
    if isinstance(least, str):
        return Best(way, reason=least)
    at_base, seconds = (float(evaluate(e, point)) for e in (least.value, least.seconds))
    outside = w.outside({**point, size(axis): evaluate(least.value, point)}, axis)
    if outside:
        return Best(way, reason=outside)
    inside = None if least.square is None else _between(least.square, size(letter))
    start = _from_batch(least.balance, w.compute - least.seconds, size(batch), point) if batch else None
    reason = "" if start or not batch else f"at no {batch} do contractions take longer"
    if start:
        there = {**point, size(batch): number(start[1])}
        beyond = w.outside({**there, size(axis): evaluate(least.value, there)}, axis)
        reason = beyond and f"contractions would take longer from {batch} = {start[1]:.4g}, but there {beyond}"
        start = None if beyond else start
    kept = {size(letter), *({size(batch)} if batch else ())}
    value, when, first = _shown((least.value, inside, start[0] if start else None), kept, point)
    return Best(way, value, at_base, when, seconds, first, start[1] if start else None, reason)


def _added(known: Sequence[_Curve], m: Expr, axis: str, point: Mapping[sp.Symbol, Expr]) -> _Least | str:
    """One after the other: the sum is least where its slope is 0."""
    a, b, c = (total(getattr(k, n) for k in known) for n in "abc")
    up, down = (bool(evaluate(e, point) > 0) for e in (a, b))
    if not (up and down):
        why = "only grows with" if up else "only falls with" if down else "does not depend on"
        return f"the network's time {why} {axis}"
    square = ratio(b, a)
    return _Least(_root(square), 2 * _root(expand(a * b)) + c, (m - c) ** 2 - 4 * a * b, square)


def _overlapped(known: Sequence[_Curve], m: Expr, axis: str, point: Mapping[sp.Symbol, Expr]) -> _Least | str:
    """At once: the longer of the two is least where both are equal, and one of them grows there and the other falls."""
    if len(known) != 2:
        return f"collectives go over {len(known)} groups of axes"
    one, two = known
    a, b, gap = expand(one.a - two.a), expand(two.b - one.b), expand(two.c - one.c)
    if evaluate(a, point) == 0 or not evaluate(b / a, point) > 0:
        return f"nowhere do both grow and fall with {axis}"
    half, square = ratio(gap, 2 * a), ratio(b, a)
    value = _root(square) if gap == 0 else half + _root(half**2 + square)
    at = float(evaluate(value, point))
    slopes = [float(evaluate(k.a, point)) - float(evaluate(k.b, point)) / at**2 for k in known]
    if slopes[0] * slopes[1] > 0:
        return f"nowhere do both grow and fall with {axis}"
    rising, falling = (one, two) if slopes[0] > 0 else (two, one)
    plain = rising.b == 0 and falling.a == 0
    balance = (m - rising.c) * (m - falling.c) - rising.a * falling.b if plain else None
    return _Least(value, one.a * value + one.b / value + one.c, balance, square if gap == 0 else None)


def _between(square: Expr, devices: sp.Symbol) -> Boolean:
    """The condition that a root lies between 1 and the number of devices."""
    over, under = fraction(square)
    high, low = fraction(ratio(square, devices**2))
    return both([sp.Ge(over, under), sp.Le(high, low)])


def _root(e: Expr) -> Expr:
    """A square root that is printed as one: sqrt(2*B*N/F)."""
    return cast(Expr, sp.Pow(e, sp.Rational(1, 2), evaluate=False))


def _from_batch(balance: Expr | None, lead: Expr, batch: sp.Symbol,
                point: Mapping[sp.Symbol, Expr]) -> tuple[Expr | None, float] | None:  # fmt: skip
    """The batch at which contractions start to take longer than the network, as an expression and as a number.

    Args:
        balance: 0 where both take as long, without square roots, and perhaps elsewhere; None where there is no such form.
        lead: contractions minus network, in seconds.
        batch: the unknown. point: all sizes.
    """
    gains = expand(lead.xreplace({s: v for s, v in point.items() if s != batch}))

    def ahead(value: float) -> float:
        return float(gains.xreplace({batch: sp.Float(value, 40)}).evalf(30))

    found: list[tuple[Expr | None, float]] = []
    for root in roots(expand(balance), batch) if balance is not None else ():
        at = evaluate(root, point)
        if at.is_real and at > 0 and ahead(float(at) * 0.999) < 0 < ahead(float(at) * 1.001):
            found.append((root, float(at)))
    if found or balance is not None:
        return max(found, key=lambda r: r[1]) if found else None
    return _by_halves(ahead)


def _by_halves(ahead: Callable[[float], float]) -> tuple[None, float] | None:
    """Where a function becomes positive for good, to 12 digits; None where it does not below 10**15."""
    low, high = 1e-3, 1e15
    if ahead(low) > 0 or ahead(high) < 0:
        return None
    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if ahead(middle) > 0 else (middle, high)
    return None, high


def _shown(found: Sequence[Any], kept: Collection[sp.Symbol], point: Mapping[sp.Symbol, Expr]) -> tuple[Any, ...]:
    """Formulas in all sizes where they are short, else with numbers for all but N and the batch."""
    fixed = {s: v for s, v in point.items() if s not in kept}
    long = [e is not None and sum(len(x.args) for x in sp.preorder_traversal(e) if x.is_Add) > _LONG for e in found]
    return tuple(e.xreplace(fixed) if long else e for e, long in zip(found, long, strict=True))
