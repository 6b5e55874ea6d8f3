"""Which conditions follow from others, so that a reader sees each restriction once."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sympy as sp

from costir.ir import Call, Constraint, Tensor
from costir.symbolic import Expr

_MOST_CHOICES = 16
_ORDER = (sp.Lt, sp.Le, sp.Gt, sp.Ge)


def without_implied(constraints: Sequence[Constraint]) -> list[Constraint]:
    """The constraints in order, without those that follow from others: T > 16 from T > 64, T != 1 from T > 1.

    Quotients that other constraints make whole lose their floor: `floor(D/N) > 64` with `D % N == 0` is `D/N > 64`.
    """
    known = [_plain(c, constraints) for c in constraints]
    kept: list[Constraint] = []
    for i, c in enumerate(known):
        others = [o for j, o in enumerate(known) if j != i and (j < i or not _same(o, c))]
        if c.condition == sp.true or any(_follows(c.condition, o.condition) for o in others):
            continue
        kept.append(c)
    return _without_joint(kept)


def _without_joint(constraints: list[Constraint]) -> list[Constraint]:
    """Without divisibilities that follow from several others: B*N % (X*Y) from B % X and N % Y; the longest go first."""
    found = list(constraints)
    whole = [c for c in found if is_divisibility(c.condition)]
    for c in sorted(whole, key=lambda c: -sp.count_ops(c.condition)):
        top, bottom = c.condition.lhs.args
        others = [o.condition.lhs.args for o in found if o is not c and is_divisibility(o.condition)]
        known = tuple(
            p for p in others if p[0].is_Symbol and p[0] in top.free_symbols and p[1].free_symbols & bottom.free_symbols
        )
        if len(known) > 1 and _together(top / bottom, known):
            found.remove(c)
    return found


@lru_cache(maxsize=4096)
def _together(quotient: Any, known: Any) -> bool:
    """Whether a quotient is whole where these are: tried by putting top = bottom * whole number for one of each top."""
    by_top: dict[Any, list[Any]] = {}
    for top, bottom in known:
        by_top.setdefault(top, []).append(bottom)
    for choice in itertools.islice(itertools.product(*by_top.values()), _MOST_CHOICES):
        put = {
            top: b * sp.Symbol(f"_times{i}", integer=True, positive=True)
            for i, (top, b) in enumerate(zip(by_top, choice, strict=True))
        }
        if sp.cancel(sp.expand(quotient.xreplace(put))).is_integer:
            return True
    return False


def _same(a: Constraint, b: Constraint) -> bool:
    return bool(a.condition == b.condition) or (_follows(a.condition, b.condition) and _follows(b.condition, a.condition))


def _plain(c: Constraint, constraints: Sequence[Constraint]) -> Constraint:
    """The condition with floors of whole quotients taken away."""
    if isinstance(c.condition, sp.Ne) and c.condition.rhs == 0:  # a number of elements: only a factor can be 0
        left = sp.prod([f for f in sp.Mul.make_args(sp.factor(c.condition.lhs)) if not f.is_positive])
        return dataclasses.replace(c, condition=sp.Ne(left, 0))
    if not c.condition.has(sp.floor, sp.ceiling):
        return c
    whole = [o.condition.lhs.args for o in constraints if is_divisibility(o.condition)]
    condition = c.condition
    for top, bottom in whole:
        condition = condition.xreplace({sp.floor(top / bottom): top / bottom, sp.ceiling(top / bottom): top / bottom})
    return Constraint(condition, c.source, c.branch) if condition != c.condition else c


def plain_calls(calls: Sequence[Call], constraints: Sequence[Constraint]) -> tuple[Call, ...]:
    """The calls with floors of quotients taken away that the constraints make whole: one form for one number."""
    pairs = [c.condition.lhs.args for c in constraints if is_divisibility(c.condition)]
    table = {f(top / bottom): top / bottom for top, bottom in pairs for f in (sp.floor, sp.ceiling)}

    def plain(x: Any) -> Any:
        if isinstance(x, Expr):
            return x.xreplace(table) if x.has(sp.floor, sp.ceiling) else x
        if isinstance(x, Tensor):
            return dataclasses.replace(x, shape=plain(x.shape)) if any(d.has(sp.floor, sp.ceiling) for d in x.shape) else x
        return tuple([plain(i) for i in x]) if isinstance(x, tuple) else x

    def plain_call(c: Call) -> Call:
        args = {k: plain(v) for k, v in c.args.items()}
        return dataclasses.replace(c, args=args, outputs=plain(c.outputs), count=plain(c.count))

    return tuple([plain_call(c) for c in calls]) if table else tuple(calls)


def is_divisibility(condition: Any) -> bool:
    """Whether it reads a % b == 0."""
    return isinstance(condition, sp.Eq) and isinstance(condition.lhs, sp.Mod) and condition.rhs == 0


@lru_cache(maxsize=65536)  # a mesh has fifty conditions, and each is held against each, at every attempt
def _follows(weak: Any, strong: Any) -> bool:
    """Whether `weak` holds wherever `strong` does, for positive whole sizes; False where that is not seen at once."""
    if weak == strong:
        return True
    if is_divisibility(weak) and is_divisibility(strong):
        return divides(weak.lhs.args, strong.lhs.args)
    a = _positive(strong)
    if a is None:
        return False
    if isinstance(weak, sp.Ne):
        gap = sp.expand(weak.lhs - weak.rhs)
        return any(_at_least(s * gap, a, 1) for s in (1, -1))
    b = _positive(weak)
    return b is not None and _at_least(b, a, 0)


@lru_cache(maxsize=4096)
def _positive(condition: Any) -> Any:
    """e for a condition that reads e >= 0 on whole numbers, or None."""
    if not isinstance(condition, _ORDER):
        return None
    gap = sp.expand(condition.gts - condition.lts)
    if not all(s.is_integer for s in gap.free_symbols):
        return None
    whole = gap.is_integer
    return (
        gap - 1
        if isinstance(condition, (sp.Lt, sp.Gt)) and whole
        else gap
        if not isinstance(condition, (sp.Lt, sp.Gt))
        else None
    )


def _at_least(b: Any, a: Any, least: int) -> bool:
    """Whether b >= least follows from a >= 0: where b - a is a number, or clearly not negative."""
    rest = sp.expand(b - a - least)
    return bool(rest.is_nonnegative)


@lru_cache(maxsize=4096)
def divides(weak: Any, strong: Any) -> bool:
    """Whether top/bottom of `weak` is whole where that of `strong` is: tried by putting top = bottom * whole number."""
    (t, b), (top, bottom) = weak, strong
    if sp.cancel(t / b * bottom / top).is_integer:
        return True
    if not top.is_Symbol:
        return False
    times = sp.Symbol("_times", integer=True, positive=True)
    return bool(sp.cancel((t / b).subs(top, bottom * times)).is_integer)
