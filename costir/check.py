"""Is a formula that a person wrote right for this model, right in a limit, or what does it miss?

    check(analysis, "flops = 2*B*D*F").right
    check(analysis, "intensity = B*D*F/(B*D + D*F)").message
        -> "misses the write of Z [B, F], + 2*B*F bytes; right in the limit of large D"
    check(analysis, "critical B = 240", chip)

Formulas are compared as functions, by exact values at many points, so that their form does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from costir import sampling, solve
from costir import symbolic as sym
from costir.attribution import Subject
from costir.diagnosis import Finding, Quantity, diagnose
from costir.errors import CostirError, FormulaError, nearest
from costir.formula import Formula, parse_formula
from costir.hardware import Chip
from costir.ir import Costed, Threshold
from costir.roofline import times
from costir.sampling import Point, Values, as_float, short
from costir.symbolic import Expr


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a check.

    Attributes:
        right: whether the formula is right as it stands, or to the digits that it shows.
        kind: "right"; "at_base" (right with base values put in); "digits" (a number, right as rounded); "limit" (right as
            some sizes grow); or what is wrong: "factor", "macs", "elements", "bits", "inverted", "other_quantity",
            "exact_count", "causal", "missing", "extra", "bound", "direction", "undefined", "different".
        message: one sentence.
        quantity: what was checked, "flops", "critical B".
        given, expected: the two expressions; `expected` is None where it has no closed form or is too long.
        given_at_base, expected_at_base: their values at the base sizes; None where there is none.
        difference: expected minus given, where it is a short sum, else None.
        notes: how ambiguous places of the text were read.
    """

    right: bool
    kind: str
    message: str
    quantity: str
    given: Expr
    expected: Expr | None
    given_at_base: float | None
    expected_at_base: float | None
    difference: Expr | None = None
    notes: tuple[str, ...] = ()


# Written name (small letters, no spaces or underscores) -> quantity.
_NAMES = {
    "flops": "flops", "flop": "flops", "totalflops": "flops", "ops": "flops", "operations": "flops",
    "matmulflops": "matmul_flops", "matmul": "matmul_flops", "contractions": "matmul_flops",
    "bytes": "bytes", "nbytes": "bytes", "traffic": "bytes", "totalbytes": "bytes", "memory": "bytes",
    "read": "read", "reads": "read", "bytesread": "read", "readbytes": "read",
    "write": "write", "writes": "write", "written": "write", "byteswritten": "write", "writebytes": "write",
    "intensity": "intensity", "arithmeticintensity": "intensity", "ai": "intensity", "flopsperbyte": "intensity",
    "params": "params", "parameters": "params", "nparams": "params", "numparams": "params",
    "weightbytes": "weight_bytes", "parambytes": "weight_bytes", "bytesofweights": "weight_bytes",
    "sent": "network", "network": "network", "bytessent": "network", "sentbytes": "network", "communication": "network",
    "time": "time", "seconds": "time", "t": "time", "runtime": "time", "lower": "time",
}  # fmt: skip
_UNITS = {
    "flops": ("FLOP",), "matmul_flops": ("FLOP",), "bytes": ("byte", "bit"), "read": ("byte", "bit"),
    "write": ("byte", "bit"), "weight_bytes": ("byte", "bit"), "intensity": ("FLOP/byte",), "time": ("s",),
    "params": ("param",), "network": ("byte", "bit"),
}  # fmt: skip


def check(analysis: Subject, text: str, chip: Chip | None = None) -> Verdict:
    """Check a formula "QUANTITY = EXPRESSION" against an analysis.

    Args:
        analysis: gives the sizes, the totals and the nodes.
        text: the quantities are flops, matmul_flops, bytes, read, write, intensity, params, weight_bytes, on a mesh sent
            (bytes that one device sends), and on a chip time (perfect overlap) and "critical B" for any size; "B > 240" is
            read as the critical B. On the right, params and weight_bytes stand for the model's, and on a chip C and W for its
            matmul peak and memory bandwidth, where no size has these names.
        chip: for time and critical sizes.

    Raises:
        FormulaError: where the text cannot be read, or names no quantity.
        SizeError, ChipError: from the computation of the expected value.
        CostirError: a time on a mesh.
    """
    constants = _constants(analysis, chip)
    formula = parse_formula(text, {*analysis.sizes, *constants})
    name = _quantity_name(formula, analysis.sizes)
    if (name == "time" or name.startswith("critical")) and any(n.cost.transfers for n in analysis.nodes):
        raise CostirError(f"{name} is not checked where devices send each other something: links are in no such formula",
                          "check flops or bytes; costir solve gives critical sizes on a mesh")  # fmt: skip
    if name == "network" and analysis.network == 0:
        raise CostirError("nothing is sent here", "write the mesh, for example --mesh X=4, or check another quantity")
    given = _in_units(formula, name, constants)
    points = sampling.sample(analysis.sizes, analysis.graph.constraints)
    quantity, row = _expected(analysis, name, chip, points)
    values = sampling.values(given, points)
    base = Finding(False, "undefined", "it has no value at these sizes")
    if values is not None:
        base = _direction(formula, row) or _compare(formula, given, values, quantity, analysis, points)
    return Verdict(
        base.right, base.kind, base.message, name, given, quantity.expr,
        None if values is None else as_float(values[0]), None if quantity.values is None else as_float(quantity.values[0]),
        base.difference, (*formula.notes, *_unknown(analysis)),
    )  # fmt: skip


def _unknown(analysis: Subject) -> tuple[str, ...]:
    """What the expected value leaves out."""
    ops = dict.fromkeys(n.call.op for n in analysis.nodes if n.cost.status in ("unknown", "flops_only"))
    return (f"operators of unknown cost are left out of the expected value: {', '.join(ops)}",) if ops else ()


def _constants(analysis: Subject, chip: Chip | None) -> dict[str, Expr]:
    """Number and bytes of the parameters; C and W of the chip, C only where the contractions have one compute type."""
    own = {"params": analysis.params, "parameters": analysis.params, "weight_bytes": analysis.weight_bytes}
    own = {n: v for n, v in own.items() if n not in analysis.sizes}
    if chip is None:
        return own
    types = {n.cost.math for n in analysis.nodes if n.cost.matmul != 0}
    found = {"W": sym.number(chip.memory_bandwidth)}
    if len(types) == 1:
        found["C"] = sym.number(chip.matmul_rate(types.pop() or "float32"))
    return own | {n: v for n, v in found.items() if n not in analysis.sizes}


def _quantity_name(formula: Formula, sizes: Mapping[str, int]) -> str:
    """The quantity on the left: one of the table, or "critical B"."""
    known = "flops, matmul_flops, bytes, read, write, intensity, params, weight_bytes, sent, time, critical B"
    if formula.lhs is None:
        raise FormulaError("the formula does not say of which quantity it is", f"write for example flops = ...; known: {known}")
    plain = re.sub(r"[\s_]", "", formula.lhs).lower()
    if formula.lhs not in sizes and plain in _NAMES:
        if formula.relation not in ("=", "~"):
            raise FormulaError(f"{formula.lhs} is checked for equality, not {formula.relation!r}", f"write {formula.lhs} = ...")
        return _NAMES[plain]
    size = re.sub(r"^(?:critical|crit)[\s_]*|[\s_]*(?:critical|crit|c|star)$", "", formula.lhs) or formula.lhs
    for candidate in (formula.lhs, size):
        if candidate in sizes or (candidate == "tokens" and {"B", "T"} <= set(sizes)):
            return f"critical {candidate}"
    hint = nearest(plain, _NAMES)
    also = f"{hint} " if hint.startswith("did") else ""
    raise FormulaError(f"{formula.lhs[:40]!r} is no quantity that can be checked", f"{also}known: {known}")


def _in_units(formula: Formula, name: str, constants: Mapping[str, Expr]) -> Expr:
    """The given expression in the quantity's unit, with the chip's constants put in."""
    given = sym.evaluate(formula.expr, {sym.size(n): v for n, v in constants.items()})
    allowed = _UNITS.get(name, ("token",))
    if formula.unit and formula.unit not in allowed:
        raise FormulaError(
            f"{name} is measured in {allowed[0]}, not in {formula.unit}", "leave the unit out, or write that one"
        )
    return given / 8 if formula.unit == "bit" else given


def _expected(analysis: Subject, name: str, chip: Chip | None, points: Sequence[Point]) -> tuple[Quantity, Threshold | None]:
    """What the formula should give."""
    if name != "time" and not name.startswith("critical "):
        expr: Expr = getattr(analysis, name)
        return Quantity(name, expr, sampling.values(expr, points)), None
    if chip is None:
        raise CostirError(f"{name} depends on the chip", "name one, for example --chip tpu_v5e")
    if name == "time":
        return _time(analysis, chip, points), None
    costed = Costed(analysis.graph, tuple(analysis.nodes), analysis.conventions)
    row = solve.whole(costed, chip, name.removeprefix("critical "))
    if row.value is not None:
        return Quantity(name, row.value, sampling.values(row.value, points), limit=row.limit), row
    base = None if row.at_base is None else tuple([Fraction(row.at_base)] * len(points))
    return Quantity(name, None, base, limit=row.limit), row


def _time(analysis: Subject, chip: Chip, points: Sequence[Point]) -> Quantity:
    """The sum of the operators' lower bounds, and the other times that people take for it."""
    parts = [(n.call.count, times(n.cost, chip)) for n in analysis.nodes if n.cost.flops != 0 or n.cost.nbytes != 0]
    units = [[_values(count * e, points) for e in (t.compute, t.vector, t.memory)] for count, t in parts]
    lower = _sum([tuple(max(at) for at in zip(*us, strict=True)) for us in units], len(points))
    together = _sum([values for us in units for values in us], len(points))
    others = {"the time without overlap, compute and memory added": together}
    for k, word in enumerate(("the compute time", "the time of elementwise arithmetic", "the memory time")):
        others[f"{word} alone"] = _sum([us[k] for us in units], len(points))
    expr = sym.total(count * t.lower for count, t in parts) if len(parts) <= 3 else None
    return Quantity("time", expr, lower, others=others)


def _sum(rows: Sequence[Values], count: int) -> Values:
    """The sum of rows of `count` values, value by value."""
    return tuple(sum((row[i] for row in rows), Fraction(0)) for i in range(count))


def _values(e: Expr, points: Sequence[Point]) -> Values:
    found = sampling.values(e, points)
    if found is None:
        raise FormulaError(f"{sym.show(e)[:60]} has no value at the sizes that were tried")
    return found


def _direction(formula: Formula, row: Threshold | None) -> Finding | None:
    """A critical size that does not exist, or stands on the wrong side of the relation."""
    if row is None:
        return None
    if row.at_base is None:
        return Finding(False, "different", f"there is none: {row.reason}")
    up = row.above == "compute"
    if (formula.relation[0] == ">") != up and formula.relation[0] in "<>":
        side = "above" if up else "below"
        return Finding(False, "direction", f"it is compute-bound {side} the critical {row.unknown}, not on the other side")
    return None


def _compare(
    formula: Formula, given: Expr, values: Values, quantity: Quantity, analysis: Subject, points: Sequence[Point]
) -> Finding:
    """Equal, equal at the base, equal as rounded, equal in a limit, or wrong in a way that can be named."""
    expected = quantity.values
    if expected is None:
        return Finding(False, "different", f"{quantity.name} has no value at these sizes")
    everywhere = bool(given.free_symbols) and (quantity.expr is not None or quantity.name == "time")
    n = len(points) if everywhere else 1  # a plain number, or a value known at the base alone, is compared there
    if sampling.same(values[:n], expected[:n]) and (everywhere or quantity.expr == given):
        return Finding(True, "right", "right")
    if (found := _at_base(formula, given, quantity, analysis, points)) is not None:
        return found
    wrong = diagnose(quantity, given, values[:n], analysis, points)
    limit = _limit(given, quantity, analysis.sizes, points) if wrong.kind not in ("bound", "factor", "inverted") else None
    if limit is None:
        return wrong
    exact = f"the exact value at the base sizes is {short(expected[0])}"
    reason = exact if wrong.kind == "different" else wrong.message
    return replace(wrong, kind="limit", message=f"{reason}; right in the limit of {limit}")


def _at_base(formula: Formula, given: Expr, quantity: Quantity, analysis: Subject, points: Sequence[Point]) -> Finding | None:
    """Right with the base values of the sizes that do not occur in it, exactly or to the digits that it shows."""
    base, names = analysis.sizes, {str(s) for s in given.free_symbols}
    fixed = {n: v for n, v in base.items() if n not in names}
    where = ", ".join(
        f"{n} = {v}" for n, v in fixed.items() if quantity.expr is None or sym.size(n) in quantity.expr.free_symbols
    )
    if quantity.expr is not None and fixed and names:
        mixed = [{**p, **fixed} for p in points]
        a, b = sampling.values(given, mixed), sampling.values(quantity.expr, mixed)
        if a is not None and b is not None and sampling.same(a, b):
            return Finding(True, "at_base", f"right at {where}")
    if (names and quantity.expr is not None) or (quantity.name == "time" and names) or not quantity.values:
        return None
    number, expected = sampling.value(given, base), quantity.values[0]
    at = f" at {where}" if where else ""
    if number is not None and sampling.same((number,), (expected,)):
        return Finding(True, "at_base", f"right{at}")
    if number is not None and formula.digits >= 2 and _rounds(expected, number, formula.digits):
        return Finding(True, "digits", f"right to the {formula.digits} digits given{at}: {short(expected, formula.digits + 2)}")
    return None


def _rounds(exact: Fraction, shown: Fraction, digits: int) -> bool:
    """Whether the exact value is the shown one when rounded to as many significant digits."""
    return f"{as_float(exact):.{digits - 1}e}" == f"{as_float(shown):.{digits - 1}e}"


def _limit(given: Expr, quantity: Quantity, base: Point, points: Sequence[Point]) -> str | None:
    """The fewest sizes that must grow for the formula to be right: "large D", "large D and F"; None where none do."""
    if quantity.limit is not None and not given.free_symbols and not quantity.limit.free_symbols:
        exact, number = sym.to_fraction(quantity.limit), sym.to_fraction(given)
        if exact is not None and number is not None and (exact == number or _rounds(exact, number, 3)):
            names = sorted(str(x) for x in quantity.expr.free_symbols) if quantity.expr is not None else []
            return f"large {' and '.join(names) or 'other sizes'}, {short(exact)}"
    if quantity.expr is None or given == 0:
        return None
    names = sorted({str(s) for s in given.free_symbols | quantity.expr.free_symbols} & set(base))
    found = sampling.growing(given, quantity.expr, names, points[1:4])
    return " or ".join(f"large {' and '.join(c)}" for c in found[:3]) or None


__all__ = ["Subject", "Verdict", "check"]
