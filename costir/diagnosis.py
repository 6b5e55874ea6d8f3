"""What is wrong with a formula: a factor, another quantity, a convention, or a part that is missing or too much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from costir import sampling
from costir import symbolic as sym
from costir.attribution import Subject, atoms, attribute, part_of
from costir.laurent import Laurent
from costir.sampling import Point, Values, constant_ratio, same, short
from costir.symbolic import Expr

ADDITIVE = ("flops", "matmul_flops", "bytes", "read", "write", "params", "weight_bytes", "network")
_FLOPS, _BYTES = ("flops", "matmul_flops"), ("bytes", "read", "write", "weight_bytes", "network")
_WORDS = {
    "flops": "all FLOPs", "matmul_flops": "the FLOPs of the contractions alone", "bytes": "all bytes",
    "read": "the bytes read alone", "write": "the bytes written alone", "params": "the number of parameters",
    "weight_bytes": "the bytes of the parameters", "intensity": "the intensity", "network": "the bytes sent",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a formula should give: an expression or None, its values at the points, its limit, and look-alikes by words."""

    name: str
    expr: Expr | None
    values: Values | None
    limit: Expr | None = None
    others: Mapping[str, Values] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one comparison."""

    right: bool
    kind: str
    message: str
    difference: Expr | None = None


def diagnose(quantity: Quantity, given: Expr, values: Values, analysis: Subject, points: Sequence[Point]) -> Finding:
    """The first explanation that fits exactly; else the two values at the base sizes.

    Args:
        quantity: what was expected.
        given, values: the formula, and its values at the points.
        analysis: where parts and other quantities come from.
        points: the points.
    """
    n = len(values)
    points, expected = points[:n], (quantity.values or ())[:n]
    tries: list[Callable[[], Finding | None]] = [
        lambda: _look_alike(quantity, values, analysis, points) if quantity.name not in ADDITIVE[:5] else None,
        lambda: _factor(quantity, expected, values, analysis),
        lambda: _convention(quantity, expected, values, analysis, points),
        lambda: _parts(quantity, expected, values, analysis, points),
        lambda: _look_alike(quantity, values, analysis, points),
        lambda: _terms(quantity, given),
    ]
    # One point alone cannot tell a factor or a part from a coincidence.
    found = next((f for attempt in tries if (f := attempt()) is not None), None) if n > 1 else None
    if found is not None:
        return found
    times = f", {short(values[0] / expected[0])} times it" if expected[0] else ""
    return Finding(False, "different", f"wrong: {short(values[0])} at the base sizes where it is {short(expected[0])}{times}")


def _look_alike(quantity: Quantity, values: Values, analysis: Subject, points: Sequence[Point]) -> Finding | None:
    """The formula of something else."""
    for words, other in quantity.others.items():
        if same(values, other[: len(values)]):
            return Finding(False, "bound", f"that is {words}; the time here is that of the slowest unit, operator by operator")
    upside_down = tuple(1 / v for v in values) if all(values) else ()
    if quantity.name == "intensity" and upside_down and same(upside_down, (quantity.values or ())[: len(values)]):
        return Finding(False, "inverted", "that is bytes per FLOP; intensity is FLOPs per byte")
    if quantity.name not in (*ADDITIVE, "intensity"):
        return None
    for name, words in _WORDS.items():
        other_values = sampling.values(getattr(analysis, name), points) if name != quantity.name else None
        if other_values is not None and any(other_values) and same(values, other_values):
            return Finding(False, "other_quantity", f"that is {words}, not {_WORDS[quantity.name]}")
    return None


def _factor(quantity: Quantity, expected: Values, values: Values, analysis: Subject) -> Finding | None:
    """Off by a number."""
    if (c := constant_ratio(expected, values)) is None:
        return None
    sizes = {t.itemsize for node in analysis.nodes for t in (*node.call.inputs, *node.call.outputs)}
    itemsize = sym.to_fraction(sizes.pop()) if len(sizes) == 1 else None
    name, flops = quantity.name, quantity.name in _FLOPS
    kinds = {t.kind for node in analysis.nodes for t in node.cost.transfers}
    known: list[tuple[bool, str, str]] = [
        (flops and c == 2, "macs", "counts a multiply-add as one FLOP; it is 2"),
        (flops and c == Fraction(1, 2), "factor", "counts twice too much: a multiply-add is 2 FLOPs, not 4"),
        (flops and c == 3, "factor", "a third of it; is that forward alone? this is forward and backward"),
        (flops and c == Fraction(1, 3), "factor", "three times too much; is that forward and backward? this is one of them"),
        (name == "network" and c == 2 and kinds == {"all_reduce"}, "factor",
         "half of it: an all_reduce scatters sums and gathers them, (N - 1)/N of the array each time"),
        (name in _BYTES and c == itemsize, "elements", f"counts elements, not bytes: an element has {short(c)} bytes here"),
        (name in _BYTES and c == Fraction(1, 8), "bits", "counts bits, not bytes"),
        (name == "intensity" and c == 8, "bits", "counts bits, not bytes"),
        (name == "intensity" and c * (itemsize or 0) == 1, "elements",
         f"divides by elements, not bytes: an element has {short(1 / c)} bytes here"),
        (name == "intensity" and c == 2, "macs",
         "half of it: counts a multiply-add as one FLOP, or an element as twice its bytes"),
    ]  # fmt: skip
    for assumed in (2, 4) if itemsize is not None else ():
        element = itemsize or Fraction(1)
        off = c == element / assumed if name in _BYTES else name == "intensity" and c * element == assumed
        known.append((off, "factor", f"counts {assumed} bytes per element; an element has {short(element)} here"))
    for fits, kind, message in known:
        if fits:
            return Finding(False, kind, message)
    return Finding(False, "factor", f"off by a factor: it is exactly {c if c.denominator < 10**6 else short(c)} times that")


def _convention(
    quantity: Quantity, expected: Values, values: Values, analysis: Subject, points: Sequence[Point]
) -> Finding | None:
    """Another way of counting: (2k-1) per dot product, causal attention."""
    if quantity.name not in _FLOPS:
        return None
    gap = tuple(e - v for e, v in zip(expected, values, strict=True))
    back = tuple(-g for g in gap)
    products = [n for n in analysis.nodes if n.cost.matmul != 0]
    outputs = sampling.values(sym.total(n.call.count * t.numel for n in products for t in n.call.outputs[:1]), points)
    if outputs is not None and any(outputs) and (same(gap, outputs) or same(back, outputs)):
        way = "2k - 1 FLOPs per dot product of length k; here 2k are counted" if same(gap, outputs) else (
            "2k FLOPs per dot product of length k; here 2k - 1 are counted"
        )  # fmt: skip
        return Finding(False, "exact_count", f"counts {way}")
    attention = [n for n in products if _is_attention(n.call.name, [t.role for t in n.call.inputs])]
    work = sampling.values(sym.total(n.call.count * n.cost.matmul for n in attention), points)
    if work is not None and any(work):
        if same(gap, tuple(w / 2 for w in work)):
            return Finding(False, "causal", "counts half of attention, as for a causal mask; here all T x S scores are counted")
        if same(back, work):
            return Finding(False, "causal", "counts attention twice, or all scores where only the causal half is counted")
    return None


def _is_attention(name: str, roles: Iterable[str]) -> bool:
    """Fused attention, or a product of two activations."""
    return "attention" in name or (name in ("bmm", "matmul", "baddbmm", "einsum") and "weight" not in list(roles)[:2])


def _parts(quantity: Quantity, expected: Values, values: Values, analysis: Subject, points: Sequence[Point]) -> Finding | None:
    """A part of the model that accounts for the whole difference."""
    name = quantity.name
    if name in ADDITIVE:
        return _attributed(name, tuple(e - v for e, v in zip(expected, values, strict=True)), analysis, points)
    if name != "intensity" or not all(values):
        return None
    flops, nbytes = sampling.values(analysis.flops, points), sampling.values(analysis.bytes, points)
    if flops is None or nbytes is None:
        return None
    below = tuple(b - f / v for b, f, v in zip(nbytes, flops, values, strict=True))
    above = tuple(f - b * v for b, f, v in zip(nbytes, flops, values, strict=True))
    return _attributed("bytes", below, analysis, points) or _attributed("flops", above, analysis, points)


def _attributed(name: str, gap: Values, analysis: Subject, points: Sequence[Point]) -> Finding | None:
    unit = {"params": "parameters"}.get(name, "FLOPs" if name in _FLOPS else "bytes")
    known = atoms(name, analysis, points)
    for sign, kind, verb in ((1, "missing", "misses"), (-1, "extra", "has too much:")):
        found = attribute(tuple(sign * g for g in gap), known)
        if found is not None:
            amount = sym.simplify(sym.total(a.expr for a in found))
            words = " and ".join(a.label for a in found)
            mark = "+" if sign > 0 else "-"
            shown = sym.show(amount)
            shown = f"({shown})" if amount.is_Add and sign < 0 else shown
            return Finding(False, kind, f"{verb} {words}, {mark} {shown} {unit}", sign * amount)
    for sign, kind, verb in ((1, "missing", "misses"), (-1, "extra", "has too much:")):
        share = part_of(tuple(sign * g for g in gap), known, 1 if sign > 0 else 3)
        if share is not None:
            atom, c = share
            return Finding(
                False, kind, f"{verb} {c} of {atom.label}, which is {sym.show(atom.expr)} {unit}", sign * c * atom.expr
            )
    return None


def _terms(quantity: Quantity, given: Expr) -> Finding | None:
    """The difference as a short sum."""
    if quantity.expr is None or quantity.name not in ADDITIVE:
        return None
    difference = Laurent.of(quantity.expr - given)
    if difference is None or len(difference.terms) > 6:
        return None
    more, less = difference.split()
    parts = [f"misses + {sym.show(more.expr())}"] if more else []
    parts += [f"has {sym.show(less.expr())} too much"] if less else []
    return Finding(False, "missing" if more else "extra", "; ".join(parts), difference.expr())
