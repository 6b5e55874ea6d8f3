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

On several devices, with the letters W and C of the exercise for rates of the chip where numbers are not asked:

    let:
      t: {subject: "x[B,D] . W[D_X,F] -> y[B,F]", mesh: {X: 4}, plan: all_gather W, quantity: network_time,
          chip: tpu_v5p@book, algorithm: book, set: {link.ici.link_one_way: W/2}}
      v: {collective: all_reduce, bytes: 2*D*F, mesh: {N: 8}, quantity: network_time, chip: h100@book}
      m: {subject: "layers.py:pair", mesh: {X: 4}, parallel: dp=X, phase: backward, quantity: compute_time, chip: h100@book}
      X: {cross: [t, m], for: X}    # a crossing, to go on with

There `critical` is against the network. docs/exercises.md has all keys.

`let` names quantities; `formula` puts them together (by default the last one is the answer).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from costir import symbolic as sym
from costir.chip import Chip
from costir.errors import CostirError, FormulaError, nearest
from costir.exercises import devices
from costir.exercises.bounds import substituted
from costir.exercises.quantities import exact
from costir.exercises.subjects import chip_located, located
from costir.formula import parse_formula
from costir.hardware import load_chip
from costir.network import Wiring
from costir.on_chip import OnChip, fastest, planned
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
        known["crossing"] = _crossed(spec, known)
    result = _formula(str(spec["formula"]), known) if "formula" in spec else list(known.values())[-1]
    if spec.get("large"):
        result = _grown(result, [sym.size(n) for n in spec["large"]])
    result = substituted(result, {n: parse_formula(str(f)).expr for n, f in spec.get("rename", {}).items()})
    if not sym.is_real_value(result):
        raise CostirError(f"what is derived, {sym.show(result)[:40]}, has no value", "check divisions by zero and the limit")
    return result


def _grown(e: Expr, large: Sequence[Any]) -> Expr:
    """The limit as sizes grow; that of a Max is the Max of the limits."""
    sides = sym.extremes(e)
    if any(sym.all_extremes(part) for part in sides or (e,)):
        raise CostirError(f"the limit of {sym.show(e)[:60]} is not found", "take the limit of each part of the Max")
    if not sides:
        return sym.limit(e, large)
    return sym.apply(type(e).__name__, [sym.limit(part, large) for part in sides])


def _formula(text: str, known: Mapping[str, Expr]) -> Expr:
    return substituted(parse_formula(text).expr, known)


def _crossed(spec: Mapping[str, Any], known: Mapping[str, Expr]) -> Expr:
    if "for" not in spec:
        raise CostirError("a crossing needs the size to solve for", "add for: B")
    one, other = (_formula(str(f), known) for f in spec["cross"])
    return _crossing(one, other, str(spec["for"]))


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
    if "cross" in q:
        return _crossed(q, known)
    if "collective" in q and "." not in q["quantity"]:
        return _of_collective(q, known, folder)
    if "subject" in q and "." not in q["quantity"]:
        return _of_subject(q, known, folder)
    if "chip" not in q:
        raise CostirError(f"quantity {q['quantity']!r} is of nothing", "give a subject, a collective, a chip, or both")
    values = _lettered(q, known, folder).values
    if q["quantity"] not in values:
        raise CostirError(f"chip {q['chip']} has no {q['quantity']!r}", nearest(q["quantity"], values))
    return sym.number(values[q["quantity"]])


def _chip(q: Mapping[str, Any], known: Mapping[str, Expr], folder: str) -> Chip:
    """The chip of a quantity, with the numbers that are set; where letters are set, with its own."""
    letters = _letters(q, known)
    return load_chip(chip_located(str(q["chip"]), folder), {k: str(v) for k, v in q.get("set", {}).items() if k not in letters})


def _lettered(q: Mapping[str, Any], known: Mapping[str, Expr], folder: str) -> Chip:
    """The chip of a quantity, with letters where they are set."""
    return devices.lettered(_chip(q, known, folder), _letters(q, known))


_TYPED = re.compile(r"\s*[+-]?[0-9_.]+([eE][+-]?[0-9]+)?\s*[kKMGTPE]?i?\s*")  # a number as settings take it, "820G" too


def _letters(q: Mapping[str, Any], known: Mapping[str, Expr]) -> dict[str, Expr]:
    """What is set to a formula."""
    return {k: _formula(v, known) for k, v in q.get("set", {}).items() if isinstance(v, str) and not _TYPED.fullmatch(v)}


def _number(value: Any, known: Mapping[str, Expr]) -> Expr:
    """A number of the file exactly, or a formula."""
    return _formula(value, known) if isinstance(value, str) else sym.number(exact(value))


def _wiring(q: Mapping[str, Any]) -> Wiring:
    return Wiring(str(q.get("algorithm", "")), tuple((str(a), str(link)) for a, link in q.get("links", {}).items()))


Pairs = tuple[tuple[str, Any], ...]


@functools.lru_cache(maxsize=256)
def _analysis(subject: str, options: Pairs, mesh: Pairs = (), base: Pairs = ()) -> Any:
    from costir.api import analyze

    given: dict[str, Any] = dict(options)
    return analyze(subject, mesh=dict(mesh) or None, sizes=dict(base) or None, **given)


OPTIONS = ("dtype", "count", "attention", "phase", "parallel")


def _of_subject(q: Mapping[str, Any], known: Mapping[str, Expr], folder: str) -> Expr:
    subject = str(q["subject"])
    subject = located(subject, folder)
    options = tuple((k, str(q[k])) for k in OPTIONS if k in q)
    analysis = _analysis(subject, options, tuple(q.get("mesh", {}).items()), tuple(q.get("base", {}).items()))
    if "plan" in q:
        analysis = planned(analysis, str(q["plan"]))
    name = str(q["quantity"])
    if "over" in q and ("op" in q or name not in devices.OF_TRANSFERS):
        raise CostirError(f"{name!r} is not of collectives, which are over axes", "leave over: out")
    found = _chosen(analysis, name, str(q["op"])) if "op" in q else _whole(analysis, name, q, known, folder)
    sizes = {n: _number(v, known) for n, v in q.get("sizes", {}).items()}
    unknown = [n for n in sizes if n not in analysis.sizes]
    if unknown:
        raise CostirError(f"{subject} has no size {unknown[0]}", nearest(unknown[0], analysis.sizes))
    return substituted(found, sizes)


OF_COLLECTIVES = ("collective", "quantity", "bytes", "mesh", "axes", "chip", "set", "algorithm", "links")


def _of_collective(q: Mapping[str, Any], known: Mapping[str, Expr], folder: str) -> Expr:
    other = next((k for k in q if k not in OF_COLLECTIVES), "")
    if other:
        raise CostirError(f"{other} is not for a collective", f"a collective has {', '.join(OF_COLLECTIVES)}")
    if "bytes" not in q or "mesh" not in q:
        lacks = "mesh" if "bytes" in q else "bytes"
        raise CostirError(f"the collective {q['collective']} has no {lacks}", "write for example bytes: V, mesh: {X: 4}")
    chip = _lettered(q, known, folder) if "chip" in q else None
    payload, axes = _number(q["bytes"], known), q.get("axes", ())
    return devices.collective(str(q["collective"]), payload, q["mesh"], axes, chip, _wiring(q), str(q["quantity"]))


def _whole(analysis: Any, name: str, q: Mapping[str, Any], known: Mapping[str, Expr], folder: str) -> Expr:
    if name == "network" and "over" in q:
        return devices.sent(analysis, q["over"])
    if name in TOTALS:
        found: Expr = getattr(analysis, name)
        return found
    if name == "operators":
        return sym.total(n.count for n in analysis.nodes)
    if name in OF_CACHES:
        if analysis.cache is None:
            raise CostirError(f"{name!r} is of a step with a cache", "add phase: decode")
        return sym.number(getattr(analysis.cache, OF_CACHES[name]))
    if name.startswith("held "):
        return _held(analysis, name.removeprefix("held "))
    return _on_chip(analysis, name, q, known, folder)


def _held(analysis: Any, part: str) -> Expr:
    """Bytes that a run holds at its peak, by what they are."""
    parts: Mapping[str, Expr] = analysis.memory.parts
    if part not in parts:
        raise CostirError(f"a run holds no {part[:40]!r}", nearest(part[:40], parts))
    return parts[part]


NAMES = (*TOTALS, *OF_CACHES, *devices.UNITS, "latency", "operators", "critical B", "limit B", "critical B per device",
         "held parameters", "held optimizer state")  # fmt: skip


def _on_chip(analysis: Any, name: str, q: Mapping[str, Any], known: Mapping[str, Expr], folder: str) -> Expr:
    """Times, and sizes at which they cross. Of several ways without a plan the fastest at the base sizes counts."""
    timed = name in devices.UNITS or name == "latency"
    plain, share, _ = name.partition(" per device")
    word, _, unknown = plain.partition(" ")
    if not timed and (word not in ("critical", "limit") or not unknown):
        raise CostirError(f"no quantity {name!r}", nearest(name, NAMES))
    if "chip" not in q:
        raise CostirError(f"{name!r} depends on the chip", "add chip: tpu_v5e@book")
    chip, wiring = _chip(q, known, folder), _wiring(q)
    way = analysis if "plan" in q else fastest(analysis, chip, wiring)
    if timed:
        return devices.seconds(way, _lettered(q, known, folder), wiring, name, q.get("over", ()))
    if any(e.free_symbols for e in _letters(q, known).values()):
        raise CostirError(f"{name!r} is of a chip whose rates are numbers", "solve two times: cross: [f, t], for: B")
    chip = _lettered(q, known, folder)
    threshold = OnChip(way, chip, wiring).critical(unknown)
    value = threshold.value if word == "critical" else threshold.limit
    if value is None:
        raise CostirError(f"there is no {name}: {threshold.reason or f'it is not where {threshold.within}'}")
    return sym.number(value) / threshold.split if share else sym.number(value)


def _chosen(analysis: Any, name: str, op: str) -> Expr:
    """A quantity of the operators of one name, or under one path."""
    if name not in OF_OPERATORS:
        raise CostirError(f"{name!r} is no quantity of operators", nearest(name, OF_OPERATORS))
    nodes = [n for n in analysis.nodes if op in (n.op.partition(".")[2].partition(".")[0], n.op) or n.path == op]
    if not nodes:
        raise CostirError(f"no operator {op!r}", nearest(op, {n.op for n in analysis.nodes}))
    return sym.total(getattr(n, "count" if name == "operators" else name) for n in nodes)


__all__ = ["FormulaError", "derive"]
