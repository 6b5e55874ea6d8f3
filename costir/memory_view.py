"""What a run holds in memory, as part of a report: numbers and formulas, then facts in words, then data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from costir.errors import CostirError
from costir.network import AS_BUILT, Wiring
from costir.page import Cell, Column, Entry, Fact, Table
from costir.report import Fit, Memory, Quantity
from costir.symbolic import Expr, evaluate, expand, gather, show, size
from costir.units import si

if TYPE_CHECKING:
    from costir.analysis import Analysis
    from costir.hardware import Chip

_DEPTH = "L"
LONGEST = 150  # characters of a formula that may stand in a line of its own


def memory_of(
    analysis: Analysis, chips: Sequence[Chip], unknown: str, curve: bool = False, wiring: Wiring = AS_BUILT
) -> Memory:
    """The memory of an analysis, with the largest value of a size, or the fewest devices along an axis, on each chip, and the
    curve where asked for."""
    point = {size(n): v for n, v in analysis.sizes.items()}

    def value(e: Expr) -> Quantity:
        return Quantity(e, evaluate(e, point))

    try:
        found = analysis.memory
        unknown = solved_size(unknown, analysis.sizes)
        known = [c for c in chips if c.memory_capacity is not None and unknown]
        if unknown in analysis.graph.mesh.names:
            fits = tuple(found.fewest(unknown, c, wiring) for c in known)
        else:
            fits = tuple(found.largest(unknown, c) for c in known)
        drawn = tuple((m.phase, m.path, m.op, m.parts) for m in found.curve) if curve else ()
    except CostirError as error:
        if curve:
            raise
        return Memory(Quantity(None, None), problem=error.message)
    lacks = "without the workspace of its recurrent layers, which is not known" if _has_workspace(analysis) else ""
    copied = "as the program runs, which copies its cache" if analysis.conventions.cache == "serving" else ""
    note = "; ".join(
        t for t in (lacks, copied, _halves(analysis), found.note, *(f"from {n} = {v} on" for n, v in found.least.items())) if t
    )
    parts = {name: value(e) for name, e in found.parts.items()}
    others = tuple((p.where, value(p.total)) for p in found.peaks[1:])
    layer, token = kept_by_layer(found.parts["activations"], analysis.sizes)
    kept = tuple(None if e is None else value(e) for e in (layer, token))
    return Memory(value(found.formula), found.peaks[0].where, parts, others, fits, drawn, note, kept=(kept[0], kept[1]))


def kept_by_layer(activations: Expr, sizes: Mapping[str, int]) -> tuple[Expr | None, Expr | None]:
    """What activations grow by with each layer, and that for one of B*T tokens; None where they do not grow so."""
    if _DEPTH not in sizes:
        return None, None
    grown = expand(activations)
    layer = grown.coeff(size(_DEPTH), 1)
    if layer == 0 or expand(grown - layer * size(_DEPTH)).has(size(_DEPTH)):
        return None, None
    tokens = {size("B"), size("T")}  # a length that is one number here is in no formula, and nothing is per token
    return layer, expand(layer / (size("B") * size("T"))) if tokens <= layer.free_symbols else None


def _halves(analysis: Analysis) -> str:
    """What a training step of weights in 16 bits leaves out of what most trainers hold."""
    types = {w.tensor.dtype for w in analysis.graph.weights if w.tensor.role == "weight"} & {"bfloat16", "float16"}
    if analysis.phase != "train" or not types:
        return ""
    return (
        f"weights, gradients and states in {' and '.join(sorted(types))}, as the model runs; many trainers add some in float32"
    )


def _has_workspace(analysis: Analysis) -> bool:
    """Whether an operator takes memory that a fake run does not show: a forward pass alone takes scratch for all its gates."""
    return any(n.op.startswith("aten.mkldnn_rnn_layer") for n in analysis.nodes)


def solved_size(unknown: str, sizes: Mapping[str, int]) -> str:
    """The size that "the largest that fits" is about: the one asked for, else the batch, else the first; "" where none."""
    if unknown in sizes:
        return unknown
    return "B" if "B" in sizes else next(iter(sizes), "")


def facts(m: Memory) -> Iterable[Fact]:
    """The peak, where it is, its parts, and what fits."""
    if m.problem:
        yield Fact("peak memory", f"not known: {m.problem}")
        return
    yield Fact("peak memory", _bytes(m.peak), _formula(m.peak.expr))
    several = f"one of {len(m.others)} other moments" if len(m.others) > 1 else "another moment"
    more = f"; at other sizes it may be {several}" if m.others else ""
    yield Fact("", f"in the {m.where}{more}")
    if m.note:
        yield Fact("", m.note)
    for name, q in m.parts.items():
        if q.number:
            yield Fact(f"  {name}", _bytes(q), _formula(q.expr))
        if name == "activations":
            for what, one in zip(("each layer", "each of its tokens"), m.kept, strict=True):
                if one is not None:
                    yield Fact(f"    {what}", _bytes(one), _formula(one.expr))
    for fit in m.fits:
        yield Fact("fits" if len(m.fits) == 1 else f"fits {fit.chip}", fit_text(fit))


def fit_text(f: Fit) -> str:
    """One line: "yes, 61.2 GB of 84.94 GB (57 of 79.1 GiB); largest B = 12"."""
    word = "yes" if f.needed <= f.capacity else "no"
    binary = f"{f.needed / 2**30:.3g} of {f.capacity / 2**30:.3g} GiB"
    return f"{word}, {si(f.needed, 'B')} of {si(f.capacity, 'B')} ({binary}); {largest_text(f)}"


def largest_text(f: Fit) -> str:
    """The largest value, and what ends it; of an axis the fewest devices."""
    if f.fewest:
        return f"fewest along {f.unknown}: {f.value}" if f.value else f"no number along {f.unknown} fits"
    if f.value is None:
        return f"every {f.unknown} fits"
    if f.value == 0:
        return f"not even {f.unknown} = 1 fits" if not f.within else f"no {f.unknown} fits where {f.within}"
    return f"largest {f.unknown} = {f.value}" + (f", by {f.within}" if f.within else "")


def fits_table(fits: Sequence[Fit]) -> Table:
    """One line per chip."""
    fewest = any(f.fewest for f in fits)
    columns = [Column("chip"), Column("memory", right=True), Column("needed", right=True), Column("fits"),
               Column("fewest" if fewest else "largest", right=True),
               Column("= ceiling of" if fewest else "= floor of", formula=True), Column("remark")]  # fmt: skip
    lines: list[Entry] = []
    for f in fits:
        value: Cell = f"{f.unknown} = {f.value}" if f.value else largest_text(f)
        formula: Cell = (
            (f.formula if f.fewest else gather(f.formula))
            if f.formula is not None and f.formula.free_symbols and f.value and _is_exact(f)
            else ""
        )
        remark = f"{'of those with' if f.fewest else 'the formulas hold where'} {f.within}" if f.within else ""
        fitting = "yes" if f.needed <= f.capacity else "no"
        lines.append(Entry("operator", (f.chip, si(f.capacity, "B"), si(f.needed, "B"), fitting, value, formula, remark)))
    return Table(tuple(columns), tuple(lines))


def _is_exact(f: Fit) -> bool:
    """Whether the value is the formula, but for rounding: of an axis, up to the next number that meets its conditions."""
    return f.fewest or not f.within


def data(m: Memory) -> dict[str, Any]:
    """As the schema has it."""

    def quantity(q: Quantity) -> dict[str, Any]:
        return {"expr": None if q.expr is None else show(q.expr), "value": q.number}

    out: dict[str, Any] = {
        "peak": quantity(m.peak), "where": m.where, "parts": {n: quantity(q) for n, q in m.parts.items()},
        "kept": {n: None if q is None else quantity(q) for n, q in zip(("layer", "layer_and_token"), m.kept, strict=True)},
        "others": [{"where": w, "peak": quantity(q)} for w, q in m.others], "note": m.note, "problem": m.problem,
        "fits": [
            {"chip": f.chip, "capacity": f.capacity, "needed": f.needed, "for": f.unknown,
             "fewest" if f.fewest else "largest": f.value, "formula": None if f.formula is None else show(f.formula),
             "within": f.within}
            for f in m.fits
        ],
    }  # fmt: skip
    if m.curve:
        out["curve"] = [{"phase": p, "path": path, "op": op, "bytes": dict(parts)} for p, path, op, parts in m.curve]
    return out


def _bytes(q: Quantity) -> str:
    return "?" if q.number is None else si(float(q.number), "B")


def _formula(e: Expr | None) -> Expr | None:
    if e is None or not e.free_symbols:
        return None
    return e if len(show(e)) <= LONGEST else None
