"""What the rules for elementwise work, reductions and moves share: which operands are read, which are written, and tables.

A rule family is a table with one row per kind of arithmetic. Names are given as one string: "exp exp_ _foreach_exp".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from costir.ir import Call, Conventions, Cost, Tensor, tensors
from costir.ops.registry import Rule, compute_dtype, read_once, rule, written
from costir.symbolic import ONE, ZERO, Expr, Integer, number, product, total

# Keyword arguments that receive the result in the `out` forms; they are written, not read.
_OUT_NAMES = frozenset({"out", "out0", "out1", "out2", "out3", "out4", "out5", "out6", "grad_input"})


def names(text: str) -> tuple[str, ...]:
    """Full names from a line of short ones: "exp exp_" gives ("aten.exp", "aten.exp_"); a name with a namespace stays."""
    return tuple(n if n.startswith(("prims.", "prim.", "profiler.", "aten.")) else f"aten.{n}" for n in text.split())


def operands(call: Call) -> tuple[Tensor, ...]:
    """The tensors that are read: all arguments but those that only receive a result."""
    return tuple(tensors(tuple(v for k, v in call.args.items() if k not in _OUT_NAMES)))


def targets(call: Call) -> tuple[Tensor, ...]:
    """The tensors that are written: the results; for in-place calls that return nothing, `self`."""
    if call.outputs or not call.name.endswith("_"):
        return call.outputs
    return tuple(tensors(call.args.get("self", call.args.get("input"))))


def elements(t: Tensor) -> Expr:
    """Elements that arithmetic meets: all by shape, of a sparse tensor the stored ones."""
    return t.numel if t.nnz is None else t.nnz


def count(many: Iterable[Tensor]) -> Expr:
    """Number of elements in all of them."""
    return total(elements(t) for t in many)


def math_type(call: Call) -> str:
    """The type that the call computes in, "" for a call without tensors."""
    return compute_dtype(call) if call.inputs or call.outputs else ""


def charge(
    call: Call,
    *,
    vector: Expr | int = ZERO,
    special: Expr | int = ZERO,
    matmul: Expr | int = ZERO,
    read: Expr | None = None,
    write: Expr | None = None,
    note: str = "",
) -> Cost:
    """The cost with these FLOPs; by default each distinct operand is read once and each result written once (bytes)."""
    return Cost(
        number(matmul),
        number(vector),
        number(special),
        read_once(operands(call)) if read is None else read,
        written(targets(call)) if write is None else write,
        math_type(call),
        note=note,
    )


def unknown(call: Call, note: str) -> Cost:
    """Bytes as usual, FLOPs not known."""
    return Cost(read=read_once(operands(call)), write=written(targets(call)), status="unknown", note=note)


def tensor(call: Call, name: str) -> Tensor:
    """The tensor argument of that name."""
    value = call.args[name]
    assert isinstance(value, Tensor), f"{call.op}: argument {name} is no tensor"
    return value


def maybe(call: Call, *wanted: str) -> Tensor | None:
    """The first of the named arguments that is a tensor, or None."""
    for name in wanted:
        value = call.args.get(name)
        if isinstance(value, Tensor):
            return value
    return None


def first(call: Call) -> Tensor:
    """`self`, or else the first tensor operand."""
    value = call.args.get("self")
    return value if isinstance(value, Tensor) else call.inputs[0]


def axis(t: Tensor, dim: Any) -> int:
    """A dimension number as a plain index from 0; a scalar has dimension 0."""
    return int(dim) % max(len(t.shape), 1)


def length(t: Tensor, dim: Any) -> Expr:
    """The extent along one dimension; 1 for a scalar."""
    return t.shape[axis(t, dim)] if t.shape else ONE


def rows(t: Tensor, dim: Any) -> Expr:
    """How many rows run along `dim`: all elements divided by the extent."""
    if not t.shape:
        return ONE
    keep = axis(t, dim)
    return product(d for i, d in enumerate(t.shape) if i != keep)


def spread(values: Any, rank: int) -> tuple[Expr, ...]:
    """A list argument of pooling and the like, one entry per spatial dimension: [2] means [2, 2]."""
    items = tuple(values) if isinstance(values, tuple | list) else (values,)
    return tuple(number(v) for v in (items * rank if len(items) == 1 else items))


def is_one(value: Any) -> bool:
    """Whether a factor changes nothing but the sign, so that no multiplication is counted for it."""
    return value is None or value is True or (isinstance(value, int | float | Expr) and value in (1, -1))


def truth(value: Any) -> bool:
    """A boolean argument."""
    return bool(value)


Formula = Callable[[Call], tuple[Expr | int, Expr | int]]


def family(text: str, kind: str, counts: str, formula: Formula, note: str = "") -> None:
    """Register operators whose cost is the usual traffic and the (vector, special) FLOPs that `formula` gives for a call."""

    def cost(call: Call, conventions: Conventions) -> Cost:
        vector, special = formula(call)
        return charge(call, vector=vector, special=special, note=note)

    register(text, kind, counts, cost)


def register(text: str, kind: str, counts: str, cost: Rule) -> None:
    """Register one rule under many short names."""
    rule(*names(text), kind=kind, counts=counts)(cost)


def per_element(vector: int, special: int = 0) -> Formula:
    """So many FLOPs for each element of the results."""

    def formula(call: Call) -> tuple[Expr, Expr]:
        n = count(targets(call))
        return vector * n, special * n

    return formula


def whole(value: Any) -> int | None:
    """A literal that is a whole number, as an int; None for other values and for symbols."""
    if isinstance(value, bool):
        return None
    if isinstance(value, Integer | int):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def boolean(t: Tensor) -> bool:
    """Whether elements are truth values, on which arithmetic is logic."""
    return t.dtype == "bool"
