"""Matched numbers -> calls and weights whose shapes are expressions in the sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy as sp

from costir.errors import LiftError
from costir.ir import ITEMSIZE, LOOP, Call, Constraint, Tensor, Weight
from costir.lifting.align import Item
from costir.lifting.asked import alike, asked, branched, defined
from costir.lifting.fit import Fitter
from costir.lifting.shapes import EXACT, proposals
from costir.symbolic import ZERO, Boolean, Expr, Integer, holds, size, sum_over
from costir.tracing.recorder import RawTensor


class Lifter:
    """Turns matched numbers into expressions, one call at a time, remembering where fractions must be whole."""

    def __init__(self, fitter: Fitter | None) -> None:
        self.fitter = fitter
        self.fractions: dict[Expr, str] = {}
        self.asked: dict[Boolean, Constraint] = {}  # what operators ask of sizes, or torch of them before it chooses one
        self.routed = False
        self.rows: set[Expr] = set()  # row counts that a router decides: their sum is exact, each need not be whole

    def fit(self, vector: Sequence[int]) -> Expr | None:
        """The expression of a vector, or None."""
        if all(v == vector[0] for v in vector):
            return Integer(int(vector[0]))
        return self.fitter.fit(tuple(int(v) for v in vector)) if self.fitter is not None else None

    def call(self, item: Item) -> Call:
        """The symbolic call of an item."""
        reader = _Reader(self, item)
        args = {k: reader.read(v) for k, v in item.event.args}
        name = item.event.op.split(".")[1]
        outputs = tuple(reader.output(o, n, args, name) for n, o in enumerate(item.event.outputs))
        if self.routed and name in ("nonzero", "index", "masked_select"):
            self.rows.update(
                d for o in outputs for d in o.shape if not d.is_Integer and any(not f.is_integer for f in sp.Add.make_args(d))
            )
        count = self._sure(item.counts, item) * item.key.times
        rounds = self._sure([v[-1] for v in item.ints], item) if item.ramp else None
        call = Call(item.event.op, args, outputs, item.path, item.event.source, item.event.phase, count, rounds)  # type: ignore[arg-type]
        for c in asked(call):
            self.ask(c, item)
        for c in branched(call):
            self.ask(c, item, branch=True)
        return call

    def weight(self, item: Item) -> Weight:
        """The symbolic weight of an item."""
        tensor, count = _Reader(self, item).read(item.event.outputs[0]), self._sure(item.counts, item)
        if item.ramp is None:
            return Weight(item.path, tensor, count)
        rounds = self._sure([v[-1] for v in item.ints], item)  # widths grow from layer to layer: all their elements in one row
        return Weight(item.path, dataclasses.replace(tensor, shape=(sum_over(tensor.numel, LOOP, rounds),)), count)

    def _sure(self, vector: Sequence[int], item: Item) -> Expr:
        e = self.fit(vector)
        if e is None:
            raise LiftError(_no_formula(item, "the number of calls", vector))
        self.note(e, item)
        return e

    def note(self, e: Expr, item: Item) -> None:
        """Remember a quotient that must be whole."""
        if e.is_Integer or e.is_Symbol or e in self.fractions:
            return
        if any(not f.is_integer for f in sp.Add.make_args(e)):
            self.fractions[e] = item.event.source

    def ask(self, condition: Boolean, item: Item, branch: bool = False) -> None:
        """Remember a condition of an operator, where all points meet it."""
        if condition in (sp.true, sp.false) or condition in self.asked or self.fitter is None:
            return
        if all(holds(condition, {size(n): v for n, v in p.items()}) for p in self.fitter.points):
            self.asked[condition] = Constraint(condition, item.event.source or item.event.op.split(".")[1], branch)

    def whole(self) -> list[Constraint]:
        """Where dimensions are whole, `D % N == 0` for every D/N that was found, simplest first; then where operators run."""
        return [*self._divisible(), *self.asked.values()]

    def _divisible(self) -> list[Constraint]:
        found: dict[str, Constraint] = {}
        for e in self.fractions:
            condition = _whole(e)
            if condition is not None:
                found.setdefault(str(condition), Constraint(condition))
        free = {str(_whole(r)) for r in self.rows}
        kept = [c for text, c in found.items() if text not in free]
        return sorted(kept, key=lambda c: len(str(c.condition)))


def _whole(e: Expr) -> Any:
    """The condition that an expression is a whole number, or None where it always is. A number is whole if its square is."""
    broken = [t for t in sp.Add.make_args(e) if not t.is_integer]
    term = broken[0] if len(broken) == 1 else sp.together(sum(broken))
    top, bottom = sp.fraction(sp.cancel(term) if term.is_rational_function() else term)
    if bottom == 1:
        return None
    root = sp.sqrt(top), sp.sqrt(bottom)
    if all(r.is_integer for r in root):
        top, bottom = root
    if top.could_extract_minus_sign():
        top = -top
    return sp.Eq(sp.Mod(top, bottom, evaluate=False), 0, evaluate=False)


class _Reader:
    """Walks an item's arguments and outputs, taking one number after the other."""

    def __init__(self, lifter: Lifter, item: Item) -> None:
        self.lifter, self.item, self.next = lifter, item, 0

    def vector(self) -> tuple[int, ...]:
        i = self.next
        self.next += 1
        return tuple([v[i] for v in self.item.ints])

    def number(self, guesses: Iterator[Expr] | None = None, exact: bool = False) -> Expr:
        i, vector = self.next, self.vector()
        if self.item.ramp is not None:
            step = self.lifter.fit([r[i] for r in self.item.ramp])
            start = self.lifter.fit(vector)
            if start is None or step is None:
                raise LiftError(_no_formula(self.item, "a size", vector))
            return start + step * LOOP
        fitter = self.lifter.fitter
        # The operator's own definition comes before any guess.
        if fitter is not None and guesses is not None and len(set(vector)) > 1 and (
            (exact and vector not in fitter.known) or fitter.plain(vector) is None
        ):  # fmt: skip
            self._propose(guesses, vector)
        e = self.lifter.fit(vector)
        if e is None:
            raise LiftError(_no_formula(self.item, "a size", vector))
        self.lifter.note(e, self.item)
        return e

    def _propose(self, guesses: Iterator[Expr], vector: tuple[int, ...]) -> None:
        fitter = self.lifter.fitter
        assert fitter is not None
        for e in guesses:
            if fitter.propose(vector, sp.sympify(e)):
                return

    def read(self, x: Any) -> Any:
        """An argument: tensors and whole numbers become symbolic, the rest stays."""
        if isinstance(x, RawTensor):
            return self.tensor(x)
        if isinstance(x, tuple):
            return tuple([self.read(i) for i in x])
        if isinstance(x, int) and not isinstance(x, bool):
            return self.number()
        return x

    def tensor(self, x: RawTensor) -> Tensor:
        shape = tuple([self.number() for _ in x.shape])
        return self._finish(x, shape)

    def output(self, x: RawTensor, number: int, args: Mapping[str, Any], name: str) -> Tensor:
        shape = []
        for dim in range(len(x.shape)):
            found = self.number(proposals(name, args, number, dim), name in EXACT)
            own = defined(name, args, number, dim) if self.item.ramp is None else None
            if own is not None and own != found:
                self.lifter.ask(alike(own, found), self.item, branch=True)
            shape.append(found)
        return self._finish(x, tuple(shape))

    def _finish(self, x: RawTensor, shape: tuple[Expr, ...]) -> Tensor:
        nnz, index = None, ZERO
        if x.nnz is not None:
            nnz = self.number()
            index = self.number() * ITEMSIZE[x.index_dtype]
        return Tensor(shape, x.dtype, x.expanded, x.role, x.ref, nnz, index)  # type: ignore[arg-type]


def _no_formula(item: Item, what: str, vector: Sequence[int]) -> str:
    name = item.event.op.rsplit(".", 1)[0]
    at = f" at {item.event.source}" if item.event.source else ""
    seen = ", ".join(str(v) for v in vector)
    return f"{what} of {name}{at} in {item.path or 'the model'} follows no formula found (seen: {seen})"
