"""How costir itself computes an answer: from traced models and notation strings, chips, and solved crossings.

    derive:
      let:
        f: {subject: "int8[B,D] . int8[D,F]", quantity: flops}
        b: {subject: "int8[B,D] . int8[D,F]", quantity: bytes}
        C: {chip: tpu_v5e@book, quantity: matrix.int8}
        W: {chip: tpu_v5e@book, quantity: memory.bandwidth}
      cross: [f/C, b/W]        # the sizes at which the two are equal ...
      for: B                   # ... solved for this one
      large: [D, F]            # its limit as these grow

On a mesh: {subject: "bf16[B,D_N] . bf16[D_N,F] -> bf16[B,F]", mesh: {N: 4}, quantity: critical D, chip: tpu_v5e@book};
there `critical` is against the network, and `network_time` is what the collectives take on the chip's links, by `algorithm`.

`let` names quantities; `formula` puts them together (by default the last one is the answer).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from costir import symbolic as sym
from costir.chip import Chip
from costir.errors import CostirError, FormulaError, nearest
from costir.exercises.bounds import substituted
from costir.exercises.quantities import exact
from costir.exercises.subjects import chip_located, located
from costir.formula import parse_formula
from costir.hardware import load_chip
from costir.symbolic import Expr

OF_OPERATORS = ("flops", "matmul_flops", "vector_flops", "special_flops", "bytes", "read", "write", "operators")
TOTALS = (
    "flops",
    "matmul_flops",
    "vector_flops",
    "special_flops",
    "bytes",
    "read",
    "write",
    "network",
    "params",
    "weight_bytes",
    "intensity",
)
OF_CACHES = {
    "cache_bytes": "total",
    "cache_per_sequence": "per_sequence",
    "cache_per_token": "per_token",
    "weights_read": "weights",
    "step_bytes": "step",
    "products": "products",
    "attention": "attention",
}
MOST_TERMS, MOST_DEGREE = 1000, 40  # of what is solved


def derive(spec: Mapping[str, Any], folder: str) -> Expr:
    """The answer as an expression over the exercise's letters.

    Args:
        spec: see above.
        folder: where files that subjects name are looked for.

    Raises:
        CostirError: where a subject cannot be analysed, or a quantity, chip or letter is not known.
    """
    known: dict[str, Expr] = {}
    for name, quantity in spec["let"].items():
        known[name] = _quantity(quantity, known, folder)
    if "cross" in spec:
        if "for" not in spec:
            raise CostirError("a crossing needs the size to solve for", "add for: B")
        one, other = (_formula(str(f), known) for f in spec["cross"])
        known["crossing"] = _crossing(one, other, str(spec["for"]))
    result = _formula(str(spec["formula"]), known) if "formula" in spec else list(known.values())[-1]
    if spec.get("large"):
        result = sym.limit(result, [sym.size(n) for n in spec["large"]])
    result = substituted(result, {n: parse_formula(str(f)).expr for n, f in spec.get("rename", {}).items()})
    if not sym.is_real_value(result):
        raise CostirError(f"what is derived, {sym.show(result)[:40]}, has no value", "check divisions by zero and the limit")
    return result


def _formula(text: str, known: Mapping[str, Expr]) -> Expr:
    return substituted(parse_formula(text).expr, known)


def _crossing(a: Expr, b: Expr, unknown: str) -> Expr:
    """The one positive value of a size at which two times are equal."""
    if sym.spread(a - b) > MOST_TERMS or sym.degree(a - b) > MOST_DEGREE:
        raise CostirError(f"the two sides are too large to be solved for {unknown}", "write the answer")
    found = [r for r in sym.roots(a - b, sym.size(unknown)) if r != 0 and not r.is_negative]
    if len(found) != 1:
        raise CostirError(f"the two sides are equal at {len(found)} values of {unknown}, not at one")
    return found[0]


def _quantity(q: Any, known: Mapping[str, Expr], folder: str) -> Expr:
    if not isinstance(q, Mapping):
        return _formula(str(q), known)
    if "subject" in q:
        return _of_subject(q, folder)
    if "chip" not in q:
        raise CostirError(f"quantity {q['quantity']!r} is of nothing", "give a subject, a chip, or both")
    values = _chip(q, folder).values
    if q["quantity"] not in values:
        raise CostirError(f"chip {q['chip']} has no {q['quantity']!r}", nearest(q["quantity"], values))
    return sym.number(values[q["quantity"]])


def _chip(q: Mapping[str, Any], folder: str) -> Chip:
    return load_chip(chip_located(str(q["chip"]), folder), {k: str(v) for k, v in q.get("set", {}).items()})


@functools.lru_cache(maxsize=256)
def _analysis(subject: str, options: tuple[tuple[str, str], ...], mesh: tuple[tuple[str, int], ...] = ()) -> Any:
    from costir.api import analyze

    given: dict[str, Any] = dict(options)
    return analyze(subject, mesh=dict(mesh), **given) if mesh else analyze(subject, **given)


def _of_subject(q: Mapping[str, Any], folder: str) -> Expr:
    subject = str(q["subject"])
    subject = located(subject, folder)
    options = tuple((k, str(q[k])) for k in ("dtype", "count", "attention", "phase") if k in q)
    analysis = _analysis(subject, options, tuple(q.get("mesh", {}).items()))
    name = str(q["quantity"])
    found = _chosen(analysis, name, str(q["op"])) if "op" in q else _whole(analysis, name, q, folder)
    sizes = {n: sym.number(exact(v)) for n, v in q.get("sizes", {}).items()}
    unknown = [n for n in sizes if n not in analysis.sizes]
    if unknown:
        raise CostirError(f"{subject} has no size {unknown[0]}", nearest(unknown[0], analysis.sizes))
    return substituted(found, sizes)


def _whole(analysis: Any, name: str, q: Mapping[str, Any], folder: str) -> Expr:
    if name in TOTALS:
        found: Expr = getattr(analysis, name)
        return found
    if name == "operators":
        return sym.total(n.count for n in analysis.nodes)
    if name in OF_CACHES:
        if analysis.cache is None:
            raise CostirError(f"{name!r} is of a step with a cache", "add phase: decode")
        return sym.number(getattr(analysis.cache, OF_CACHES[name]))
    if name == "network_time" and "chip" in q:
        roof = analysis.on(_chip(q, folder), algorithm=str(q.get("algorithm", ""))).roofline
        return sym.at_branch(roof.network, {sym.size(n): v for n, v in analysis.sizes.items()})[0]
    word, _, unknown = name.partition(" ")
    if word not in ("critical", "limit") or not unknown:
        raise CostirError(f"no quantity {name!r}", nearest(name, (*TOTALS, *OF_CACHES, "operators", "critical B", "limit B")))
    if "chip" not in q:
        raise CostirError(f"{name!r} depends on the chip", "add chip: tpu_v5e@book")
    threshold = analysis.on(_chip(q, folder), algorithm=str(q.get("algorithm", ""))).critical(unknown)
    value = threshold.value if word == "critical" else threshold.limit
    if value is None:
        raise CostirError(f"there is no {name}: {threshold.reason}")
    return sym.number(value)


def _chosen(analysis: Any, name: str, op: str) -> Expr:
    """A quantity of the operators of one name, or under one path."""
    if name not in OF_OPERATORS:
        raise CostirError(f"{name!r} is no quantity of operators", nearest(name, OF_OPERATORS))
    nodes = [n for n in analysis.nodes if op in (n.op.partition(".")[2].partition(".")[0], n.op) or n.path == op]
    if not nodes:
        raise CostirError(f"no operator {op!r}", nearest(op, {n.op for n in analysis.nodes}))
    return sym.total(getattr(n, "count" if name == "operators" else name) for n in nodes)


__all__ = ["FormulaError", "derive"]
