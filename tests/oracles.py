"""Independent answers for the cost rules: numbers that count their own arithmetic, a byte count over real tensors, and calls
built from an operator's schema.

A reference is a plain loop over `Num`s. It says what is a contraction by `dot` and by `tally.contraction()`; all other
arithmetic counts as vector work. Nothing here calls a rule's formula.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from sympy import Integer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import costir.ops  # noqa: F401 - fills the table of rules
from costir.ir import Call, Conventions, Cost, Tensor
from costir.ops.registry import RULES, find
from costir.symbolic import equal, evaluate, size

STANDARD, EXACT = Conventions(), Conventions(count="exact")


# Numbers that count.


@dataclass
class Tally:
    """What was done: multiplies and adds of contractions, vector operations, special functions."""

    mul: int = 0
    add: int = 0
    vector: int = 0
    special: int = 0
    depth: int = 0

    @contextlib.contextmanager
    def contraction(self) -> Iterator[None]:
        """Arithmetic inside is part of a contraction."""
        self.depth += 1
        yield
        self.depth -= 1

    def saw(self, kind: str, n: int = 1) -> None:
        name = kind if self.depth else "vector"
        setattr(self, name, getattr(self, name) + n)


@dataclass
class Num:
    """A real number without a value: only the arithmetic on it matters."""

    tally: Tally

    def __mul__(self, other: Any) -> Num:
        self.tally.saw("mul")
        return Num(self.tally)

    def __add__(self, other: Any) -> Num:
        self.tally.saw("add")
        return Num(self.tally)

    __rmul__ = __truediv__ = __mul__
    __radd__ = __sub__ = __rsub__ = __add__

    def f(self) -> Num:
        """exp, tanh, sigmoid, erf, ...: one special function."""
        self.tally.special += 1
        return Num(self.tally)


@dataclass
class Cx:
    """A complex number of two `Num`s."""

    re: Num
    im: Num

    def __mul__(self, other: Any) -> Cx:
        if not isinstance(other, Cx):
            return Cx(self.re * other, self.im * other)
        return Cx(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)

    def __add__(self, other: Any) -> Cx:
        return Cx(self.re + other.re, self.im + other.im)


def arr(t: Tally, *shape: int, complex_: bool = False) -> Any:
    """Nested lists of fresh numbers."""
    if not shape:
        return Cx(Num(t), Num(t)) if complex_ else Num(t)
    return [arr(t, *shape[1:], complex_=complex_) for _ in range(shape[0])]


def dot(t: Tally, xs: Sequence[Any], ys: Sequence[Any]) -> Any:
    """x0*y0 + x1*y1 + ..., the first product being no addition."""
    with t.contraction():
        acc = xs[0] * ys[0]
        for x, y in zip(xs[1:], ys[1:], strict=True):
            acc = acc + x * y
    return acc


def columns(b: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(c) for c in zip(*b, strict=True)]


def matmul(t: Tally, a: Any, b: Any) -> Any:
    """[m, k] @ [k, n], as dot products."""
    cols = columns(b)
    return [[dot(t, row, col) for col in cols] for row in a]


def add_up(xs: Sequence[Any]) -> Any:
    """Sum of numbers: one addition fewer than numbers."""
    acc = xs[0]
    for x in xs[1:]:
        acc = acc + x
    return acc


def flat(x: Any) -> list[Any]:
    return [z for y in x for z in flat(y)] if isinstance(x, list) else [x]


def accumulate(cells: dict[Any, Any], key: Any, value: Any) -> None:
    """cells[key] += value; the first value is stored, not added."""
    cells[key] = cells[key] + value if key in cells else value


def indices(*sizes: int) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, sizes))


# Calls from schemas.


def T(*shape: Any, dtype: str = "float32", **more: Any) -> Tensor:
    """A tensor of these sizes."""
    return Tensor(tuple(Integer(s) if isinstance(s, int) else s for s in shape), dtype, **more)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_plain(v) for v in value)
    return Integer(value) if type(value) is int else value


def made(op: str, outputs: Any, **args: Any) -> Call:
    """A call whose arguments are those of the operator's schema, defaults filled in; "aten.mm" means its default overload.

    Fails on an argument that the schema does not have, and on a missing one.
    """
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    if op.startswith("costir."):
        return Call(op, {k: _plain(v) for k, v in args.items()}, outputs)
    schema = schema_of(op)
    full = {}
    for argument in schema.arguments:
        optional = argument.has_default_value() or str(argument.type).startswith("Optional")
        assert argument.name in args or optional, f"{op} needs {argument.name}"
        full[argument.name] = _plain(args.pop(argument.name, argument.default_value))
    assert not args, f"{op} has no argument {sorted(args)}"
    return Call(".".join([*schema.name.split("::"), schema.overload_name or "default"]), full, outputs)


def schema_of(op: str) -> Any:
    """The schema of "aten.mm.out", or for "aten.mm" of the default overload, else the first."""
    _, packet, *rest = op.split(".")
    overloads = getattr(torch.ops.aten, packet)
    names = overloads.overloads()
    return getattr(overloads, rest[0] if rest else "default" if "default" in names else names[0])._schema


def cost_of(call: Call, conventions: Conventions = STANDARD) -> Cost:
    entry = find(call.op)
    assert entry is not None, f"{call.op} has no rule"
    return entry.rule(call, conventions)


def sums(calls: Sequence[Call], conventions: Conventions = STANDARD) -> dict[str, Any]:
    """FLOPs of operators run one after the other, by their rules."""
    costs = [cost_of(c, conventions) for c in calls]
    return {f: sum((getattr(c, f) for c in costs), Integer(0)) for f in ("matmul", "vector", "special")}


# Bytes.

BYTES = {str(d).removeprefix("torch."): d.itemsize for d in vars(torch).values() if isinstance(d, torch.dtype)}


def stored(t: Tensor) -> int:
    """Bytes of a tensor of known sizes: stride-0 dimensions are stored once, a sparse tensor is values and indices."""
    if t.nnz is not None:
        return int(t.nnz) * BYTES[t.dtype] + int(t.index_bytes)
    return math.prod(int(d) for i, d in enumerate(t.shape) if i not in t.expanded) * BYTES[t.dtype]


def expected_bytes(call: Call, unread: Sequence[str], writes: int | None) -> tuple[int, int]:
    """(read, written): all tensors but those in `unread`, each memory once; the first `writes` outputs."""
    seen: dict[int, int] = {}
    for i, t in enumerate(t for k, v in call.args.items() if k not in unread for t in tree_leaves(v) if isinstance(t, Tensor)):
        seen[t.ref if t.ref >= 0 else -1 - i] = stored(t)
    return sum(seen.values()), sum(stored(t) for t in call.outputs[:writes])


class RealBytes(TorchDispatchMode):
    """Bytes per operator over real tensors: each operand once at its stored size, each result once."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        ins = {(t.data_ptr(), t.shape, t.stride()): t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        outs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.log.append((f"aten.{func.overloadpacket.__name__}", sum(map(_real, ins.values())), sum(map(_real, outs))))
        return out


def _real(t: torch.Tensor) -> int:
    n = math.prod(1 if st == 0 else s for s, st in zip(t.shape, t.stride(), strict=True))
    return n * t.element_size()


# Cases.


@dataclass(frozen=True)
class Case:
    """One rule's sample.

    Attributes:
        op: the operator.
        build: sizes (numbers or symbols) -> the call.
        reference: a tally and sizes -> runs the maths on counting numbers.
        sizes: two or more sets of sizes.
        unread: arguments that the kernel does not read.
        writes: how many outputs it writes; None for all.
        exact: whether the reference also settles the exact count.
        conventions: what is counted.
        target: the argument that is written instead of the outputs.
    """

    op: str
    build: Callable[..., Call]
    reference: Callable[..., Any]
    sizes: tuple[Mapping[str, int], ...]
    unread: tuple[str, ...] = ()
    writes: int | None = None
    exact: bool = True
    conventions: Conventions = field(default_factory=Conventions)
    target: str = ""

    def __str__(self) -> str:
        return self.op


def verify(case: Case, sizes: Mapping[str, int]) -> None:
    """The rule at these sizes against the reference, exactly counted too, and its bytes."""
    call = case.build(**{k: Integer(v) for k, v in sizes.items()})
    assert call.op.startswith(case.op)
    t = Tally()
    case.reference(t, **sizes)
    cost = cost_of(call, case.conventions)
    assert (cost.matmul, cost.vector, cost.special) == (2 * t.mul, t.vector, t.special), f"{case.op} at {dict(sizes)}"
    if case.exact:
        exact = Conventions(count="exact", attention=case.conventions.attention)
        assert cost_of(call, exact).matmul == t.mul + t.add, f"{case.op} exactly at {dict(sizes)}"
    read, write = expected_bytes(call, case.unread, case.writes)
    write = stored(call.args[case.target]) if case.target else write
    assert (cost.read, cost.write) == (read, write), f"bytes of {case.op} at {dict(sizes)}"


def verify_symbols(case: Case) -> None:
    """Formulas evaluated at each size are the numbers at that size."""
    symbolic = case.build(**{k: size(k) for k in case.sizes[0]})
    for conventions in (case.conventions, Conventions(count="exact", attention=case.conventions.attention)):
        formula = cost_of(symbolic, conventions)
        for sizes in case.sizes:
            number = cost_of(case.build(**{k: Integer(v) for k, v in sizes.items()}), conventions)
            for name in ("matmul", "vector", "special", "read", "write"):
                at = evaluate(getattr(formula, name), {size(k): v for k, v in sizes.items()})
                assert equal(at, getattr(number, name)), f"{case.op} {name} at {dict(sizes)}: {at}"


def without_sample(module: str, cases: Sequence[Case]) -> set[str]:
    """Operators whose rule is in `module` and that no case covers."""
    covered = {c.op for c in cases}
    return {op for op, entry in RULES.items() if entry.rule.__module__ == module and op not in covered}
