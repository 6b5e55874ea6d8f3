"""What an analysis is made of: its operators, those that are unknown, its numbers at one point."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import sympy as sp

from costir.errors import SizeError
from costir.ir import Call, Cost, Node
from costir.symbolic import ZERO, Expr, expand, total

Number = int | Fraction | float  # a float where the exact value is no fraction: N*log2(N) of a transform


@dataclass(frozen=True)
class Op:
    """One line of the result: an operator of a module, or `count` equal ones. Quantities are for all of them together."""

    node: Node

    @property
    def call(self) -> Call:
        """The operator call."""
        return self.node.call

    @property
    def cost(self) -> Cost:
        """The cost of one call."""
        return self.node.cost

    @property
    def op(self) -> str:
        """ATen name, "aten.mm.default"."""
        return self.node.call.op

    @property
    def path(self) -> str:
        """Module path; "*" stands for the index of a repeated block."""
        return self.node.call.path

    @property
    def source(self) -> str:
        """ "file.py:12" of the user's line, or ""."""
        return self.node.call.source

    @property
    def phase(self) -> str:
        """forward, backward or optimizer."""
        return self.node.call.phase

    @property
    def count(self) -> Expr:
        """How often it runs."""
        return self.node.call.count

    @property
    def rule(self) -> str:
        """The cost rule, by the operator that it is registered for ("aten.mm"); "unknown" where there is none."""
        return self.node.rule

    @property
    def status(self) -> str:
        """costed, free, flops_only or unknown."""
        return self.node.cost.status

    @property
    def operators(self) -> tuple[str, ...]:
        """The names of the operators that it does: of a kernel all in it, those that it computes once more last."""
        from costir.ops.kernel import operators

        return operators(self.node.call)

    @functools.cached_property
    def matmul_flops(self) -> Expr:
        """FLOPs of contractions."""
        return expand(self.count * self.cost.matmul)

    @functools.cached_property
    def vector_flops(self) -> Expr:
        """FLOPs of elementwise arithmetic and reductions."""
        return expand(self.count * self.cost.vector)

    @functools.cached_property
    def special_flops(self) -> Expr:
        """Evaluations of special functions."""
        return expand(self.count * self.cost.special)

    @functools.cached_property
    def flops(self) -> Expr:
        """All FLOPs."""
        return total((self.matmul_flops, self.vector_flops, self.special_flops))

    @functools.cached_property
    def read(self) -> Expr:
        """Bytes read."""
        return expand(self.count * self.cost.read)

    @functools.cached_property
    def write(self) -> Expr:
        """Bytes written."""
        return expand(self.count * self.cost.write)

    @functools.cached_property
    def bytes(self) -> Expr:
        """Bytes read and written."""
        return total((self.read, self.write))

    @functools.cached_property
    def network(self) -> Expr:
        """Bytes sent to other devices."""
        return expand(self.count * self.cost.network)

    @property
    def intensity(self) -> Expr:
        """FLOPs per byte."""
        return self.flops / self.bytes if self.bytes != 0 else ZERO


@dataclass(frozen=True)
class Unknown:
    """An operator without a rule."""

    op: str
    path: str
    source: str
    count: Expr

    def __str__(self) -> str:
        namespace, name, _ = self.op.split(".", 2)
        place = " ".join(p for p in (self.path and f"in {self.path}", self.source and f"at {self.source}") if p)
        return f"{namespace}::{name} ({self.count} x{' ' if place else ''}{place})"


class Point:
    """All quantities as exact numbers at one point of the sizes."""

    def __init__(self, sizes: Mapping[str, int], values: Mapping[str, Number]) -> None:
        self.sizes = dict(sizes)
        self._values = dict(values)

    def __getattr__(self, name: str) -> Number:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None

    def __iter__(self) -> Iterator[tuple[str, Number]]:
        return iter(self._values.items())

    def __repr__(self) -> str:
        return f"Point({', '.join(f'{k}={v}' for k, v in {**self.sizes, **self._values}.items())})"


@dataclass(frozen=True)
class Origin:
    """What was analysed, to look at it once more.

    Attributes:
        subject: a `Family`, an exported program, a graph module, or the path of an exported program.
        optimizer: makes the optimizer from the parameters, for the train phase.
        names: new names of a program's symbols.
        fixed: sizes that are numbers in the analysis.
        whole: the analysis before they became numbers; None where there are none.
        evidence: the traces that the formulas come from; None where there are none.
        operators: the graph of operators, where the analysis has kernels instead.
    """

    subject: Any
    optimizer: Any = None
    names: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=dict)
    whole: Any = field(default=None, compare=False, repr=False)
    evidence: Any = field(default=None, compare=False, repr=False)
    operators: Any = field(default=None, compare=False, repr=False)


def is_size(v: Any) -> bool:
    """Whether a value is a whole number from 1 to 10**12, as int, float or numpy scalar."""
    try:
        return not isinstance(v, bool | str) and int(v) == v and 1 <= v <= 10**12
    except (TypeError, ValueError, OverflowError):
        return False


def exact(e: Expr, quantity: str) -> Number:
    """An expression without sizes as a number.

    Raises:
        SizeError: where it is none: infinite, or not defined.
    """
    if not e.is_Rational:
        e = sp.nsimplify(e.doit())
    if e.is_Rational:
        return int(e) if e.is_Integer else Fraction(int(e.p), int(e.q))
    if e.is_number and e.is_real:
        return float(e)
    raise SizeError(f"{quantity} has no value at these sizes")
