"""einsum: any sum of products, by its indices."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace

from costir.errors import NotationError
from costir.ir import Call, Conventions, Cost, Tensor
from costir.ops.contract import contraction, mac_flops, math_type, operands
from costir.ops.registry import ZERO, product, read_once, rule, total, written
from costir.symbolic import Expr

COUNTS = (
    "two operands: 2 per combination of all indices, a vector multiply per output where nothing is summed; one operand: n - 1 "
    "adds per sum; more: pairwise from left to right, an index is summed once nothing later needs it"
)


@dataclass(frozen=True)
class Equation:
    """The indices of each operand and of the output, one letter a dimension, with the size of each."""

    operands: tuple[str, ...]
    output: str
    sizes: dict[str, Expr]


@dataclass(frozen=True)
class Work:
    """FLOPs of an einsum, and the elements of its intermediate results."""

    matmul: Expr = ZERO
    vector: Expr = ZERO
    between: Expr = ZERO


def parse(equation: str, shapes: Sequence[tuple[Expr, ...]]) -> Equation:
    """Reads "bd,df->bf" as torch does: "..." stands for further dimensions; without "->" each index that occurs once is kept.

    Raises:
        NotationError: where the equation does not fit the shapes.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        given = f"einsum {equation!r} has {len(terms)} operands but {len(shapes)} were given"
        raise NotationError(given, "write one term per operand")
    spare = [c for c in string.ascii_letters if c not in equation]
    widest = max((len(s) - len(t.replace("...", "")) for t, s in zip(terms, shapes, strict=True) if "..." in t), default=0)
    batch = "".join(spare[:widest])
    sizes: dict[str, Expr] = {}
    indices = []
    for term, shape in zip(terms, shapes, strict=True):
        rank = len(shape) - len(term.replace("...", ""))
        full = term.replace("...", batch[len(batch) - rank :] if rank > 0 else "")
        if len(full) != len(shape):
            seen = f"einsum {equation!r}: {term!r} has {len(full)} indices for {len(shape)} dimensions"
            raise NotationError(seen, "write one letter per dimension")
        for letter, dim in zip(full, shape, strict=True):
            sizes[letter] = dim if sizes.get(letter, 1) == 1 else sizes[letter]
        indices.append(full)
    if not arrow:
        joined = "".join(terms).replace(".", "")
        right = ("..." if batch else "") + "".join(sorted(c for c in set(joined) if joined.count(c) == 1))
    output = right.replace("...", batch)
    if not set(output) <= set(sizes):
        raise NotationError(f"einsum {equation!r} has an index in its output that no operand has", "use the operands' letters")
    return Equation(tuple(indices), output, sizes)


def pairwise(equation: Equation, conventions: Conventions, complex_: bool = False) -> Work:
    """The work of contracting from left to right, dropping each index as soon as no later operand and no output needs it."""
    first, *rest = equation.operands
    if not rest:
        adds = _size(equation, set(first)) - _size(equation, set(equation.output))
        return Work(vector=adds * (2 if complex_ else 1))
    have, matmul, vector, between = set(first), [], [], []
    for i, term in enumerate(rest):
        joint = have | set(term)
        needed = set(equation.output).union(*rest[i + 1 :])
        macs, outputs = _size(equation, joint), _size(equation, joint & needed)
        if joint <= needed:
            vector.append(macs * (6 if complex_ else 1))
        else:
            matmul.append(mac_flops(macs, outputs, conventions, complex_))
        have = joint & needed
        between.append(outputs)
    return Work(total(matmul), total(vector), total(between[:-1]))


def _size(equation: Equation, letters: set[str]) -> Expr:
    return product(equation.sizes[c] for c in sorted(letters))


@rule("costir.einsum", "aten.einsum", kind="contraction", counts=COUNTS)
def einsum(call: Call, conventions: Conventions) -> Cost:
    """An einsum of `equation`. Results between two products are written and read once."""
    factors = call.args["operands"] if "operands" in call.args else call.args["tensors"]
    complex_ = any(t.is_complex for t in factors)
    work = pairwise(parse(call.args["equation"], [t.shape for t in factors]), conventions, complex_)
    between = work.between * call.outputs[0].itemsize
    note = "products taken from left to right" if len(factors) > 2 else ""
    read = read_once(operands(call)) + between
    return Cost(work.matmul, work.vector, ZERO, read, written(call.outputs) + between, math_type(call, factors), note=note)


@rule("aten.bilinear", kind="contraction", counts="2*b*o*i*j + 2*b*o*j (input1 first); the bias is one vector add per output")
def bilinear(call: Call, conventions: Conventions) -> Cost:
    """input1 [..., i], weight [o, i, j], input2 [..., j] to [..., o], with the product of input1 and weight first."""
    x, y, w = call.args["input1"], call.args["input2"], call.args["weight"]
    bias, out = call.args["bias"], call.outputs[0]
    work = pairwise(parse("...i,oij,...j->...o", [x.shape, w.shape, y.shape]), conventions, x.is_complex)
    cost = contraction(call, conventions, (x, w, y), macs=ZERO, dots=ZERO)
    return replace(cost, matmul=work.matmul, vector=out.numel if isinstance(bias, Tensor) else ZERO)


@rule("aten._trilinear", kind="contraction", counts="the first two, then the third: 2*b*o*i*j + 2*b*o*j for nn.Bilinear")
def trilinear(call: Call, conventions: Conventions) -> Cost:
    """sum over `sumdim` of i1*i2*i3, each with dimensions of size 1 put in at expand1, expand2, expand3.

    As torch computes it: i1*i2 first, summed over the dimensions that i3 lacks. The result between stays inside the operator.
    """
    factors = [call.args[n] for n in ("i1", "i2", "i3")]
    gaps = [{int(d) for d in call.args[n]} for n in ("expand1", "expand2", "expand3")]
    rank = len(factors[0].shape) + len(gaps[0])
    letters = string.ascii_letters[:rank]
    summed = {int(d) for d in call.args["sumdim"]}
    terms = ["".join(c for d, c in enumerate(letters) if d not in gap) for gap in gaps]
    output = "".join(c for d, c in enumerate(letters) if d not in summed)
    work = pairwise(parse(f"{','.join(terms)}->{output}", [t.shape for t in factors]), conventions, factors[0].is_complex)
    cost = contraction(call, conventions, factors, macs=ZERO, dots=ZERO)
    return replace(cost, matmul=work.matmul, vector=work.vector)
