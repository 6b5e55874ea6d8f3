"""Formulas of a model that branches on its sizes: by cases, each under the conditions that not all branches share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sympy as sp

from costir.ir import Constraint
from costir.symbolic import Boolean, Expr, expand, is_equation


def own_conditions(branches: Iterable[Iterable[Constraint]]) -> list[list[Boolean]]:
    """The conditions of each branch, without those that all of them have."""
    asked = [{str(c.condition): c.condition for c in constraints} for constraints in branches]
    shared = set.intersection(*map(set, asked))
    return [[c for text, c in a.items() if text not in shared] for a in asked]


def by_case(formulas: Sequence[Expr], branches: Sequence[Sequence[Constraint]]) -> Expr:
    """One formula for all branches, that of the first where the others agree with it; else by cases.

    Outside all of them there is no value (sympy says nan). The last case stands for all the rest only where it is just that.
    """
    first = formulas[0]
    same = [_is_case(first, f, constraints) for f, constraints in zip(formulas, branches, strict=True)]
    if all(same):
        return first
    conditions = [sp.And(*own) for own in own_conditions(branches)]
    there = sp.Or(*(c for c, s in zip(conditions, same, strict=True) if s))
    cases = [(first, there), *((f, c) for f, c, s in zip(formulas, conditions, same, strict=True) if not s)]
    if len(cases) == 2 and sp.Not(there) == cases[1][1]:
        cases[1] = (cases[1][0], sp.true)
    return sp.Piecewise(*cases)


def _is_case(formula: Expr, mine: Expr, constraints: Iterable[Constraint]) -> bool:
    """Whether a formula gives that of a branch, where this branch has sizes of one value only (L == 1)."""
    only = {c.condition.lhs: c.condition.rhs for c in constraints if is_equation(c.condition)}
    point = {s: v for s, v in only.items() if s.is_Symbol and v.is_Integer}
    return formula == mine or (bool(point) and expand(formula.xreplace(point) - mine.xreplace(point)) == 0)
