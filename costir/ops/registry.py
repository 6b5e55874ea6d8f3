"""The table of cost rules: one decorator, one function per kind of operator.

    @rule("aten.mm", sample=...)
    def mm(call, conventions): ...

A rule gets one `Call`, whose shapes are expressions or numbers, and returns its `Cost`. It never looks at names of sizes.
Rules are keyed by operator packet ("aten.mm") or overload ("aten.sum.dim_IntList"); the overload wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from costir.errors import RuleError
from costir.ir import Call, Conventions, Cost, Tensor
from costir.symbolic import ONE, ZERO, Expr, number, product, total

Rule = Callable[[Call, Conventions], Cost]


@dataclass(frozen=True)
class Entry:
    """A rule with its documentation: `kind` is contraction, pointwise, reduction, move, ...; `counts` says it in words."""

    rule: Rule
    kind: str
    counts: str


RULES: dict[str, Entry] = {}


def rule(*ops: Any, kind: str = "custom", counts: str = "") -> Callable[[Rule], Rule]:
    """Register a cost rule for operators, one's own included.

        @costir.rule(torch.ops.mylib.hidden_mm)
        def hidden_mm(call, conventions):
            (b, d), (f, _) = (t.shape for t in call.inputs)
            return costir.traffic(call, matmul=2 * b * d * f)

    Args:
        ops: operators as `torch.ops` gives them, or names: "aten.mm", or one overload "aten.sum.dim_IntList".
        kind: a word for the table in docs/counting.md.
        counts: what is counted, in a few words; by default the first line of the function's docstring.

    Raises:
        RuleError: where an operator already has a rule from another place.
    """

    def register(function: Rule) -> Rule:
        entry = Entry(function, kind, counts or (function.__doc__ or function.__name__).strip().splitlines()[0])
        for op in map(_name, ops):
            before = RULES.get(op)
            if before is not None and not (kind == "custom" and _place(before.rule) == _place(function)):
                raise RuleError(f"{op} already has a rule ({before.rule.__module__}.{before.rule.__name__})")
            RULES[op] = entry
        return function

    return register


def _name(op: Any) -> str:
    """ "aten.mm" for a name or for what `torch.ops` gives."""
    if isinstance(op, str):
        return op.replace("::", ".")
    if hasattr(op, "_opoverload"):  # what torch.library.custom_op gives
        return str(op._opoverload._schema.name).replace("::", ".")
    qualified = getattr(op, "_qualified_op_name", None)  # an OpOverloadPacket: "aten::mm"
    if qualified is None and hasattr(op, "_schema"):  # an OpOverload: schema name and overload
        return f"{op._schema.name.replace('::', '.')}.{op._overloadname}"
    if qualified is None:
        raise RuleError(f"{op!r} is no operator", 'give torch.ops.mylib.foo or the name "mylib.foo"')
    return str(qualified).replace("::", ".")


def _place(function: Rule) -> tuple[str, str]:
    """Where a function is defined: defining it again there, in a notebook say, replaces the rule."""
    return function.__module__, function.__qualname__


def find(op: str) -> Entry | None:
    """The rule for an operator overload, its packet's rule, or None."""
    return RULES.get(op) or RULES.get(op.rsplit(".", 1)[0])


def read_once(operands: Iterable[Tensor]) -> Expr:
    """Bytes to read each distinct operand once at its stored size; the same memory given twice is read once."""
    seen: set[int] = set()
    terms = []
    for t in operands:
        if t.ref >= 0 and t.ref in seen:
            continue
        seen.add(t.ref)
        terms.append(t.nbytes)
    return total(terms)


def written(outputs: Iterable[Tensor]) -> Expr:
    """Bytes to write each output once."""
    return total(t.nbytes for t in outputs)


def compute_dtype(call: Call) -> str:
    """The type that a contraction computes in: the widest floating type among its operands, else the first operand's."""
    operands = call.inputs or call.outputs
    floats = [t for t in operands if t.is_float]
    widest = max(floats, key=lambda t: t.itemsize, default=None)
    return (widest or operands[0]).dtype


def traffic(call: Call, *, matmul: Expr = ZERO, vector: Expr = ZERO, special: Expr = ZERO, note: str = "") -> Cost:
    """The usual cost: these FLOPs, every distinct operand read once, every output written once."""
    return Cost(matmul, vector, special, read_once(call.inputs), written(call.outputs), compute_dtype(call), note=note)


def free(note: str = "") -> Cost:
    """No work and no traffic: a view, an allocation."""
    return Cost(status="free", note=note)


def dot_flops(outputs: Expr, length: Expr, conventions: Conventions, complex_: bool = False) -> Expr:
    """FLOPs of `outputs` dot products of `length`: 2*outputs*length, or outputs*(2*length - 1) when counted exactly.

    A complex multiply-add is four real ones: 8 FLOPs; exactly 8*length - 2 per dot product.
    """
    scale = 4 if complex_ else 1
    if conventions.count == "exact":
        return outputs * (2 * scale * length - (2 if complex_ else 1))
    return 2 * scale * outputs * length


__all__ = [
    "ONE", "RULES", "ZERO", "Entry", "Rule", "compute_dtype", "dot_flops", "find", "free", "number", "product", "read_once",
    "rule", "total", "traffic", "written",
]  # fmt: skip
