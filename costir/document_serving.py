"""A step of serving in words: what its cache takes, what it must read, and the bounds that follow on each chip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from costir.page import Cell, Column, Fact
from costir.report import Point, Quantity, Report, Served
from costir.symbolic import Expr, simplify
from costir.units import si


def cache_counted(r: Report) -> Iterable[Fact]:
    """How the traffic of the cache was counted, in one line."""
    if r.served is None:
        return
    if r.conventions.cache == "serving":
        yield Fact(
            "cache", "counted as engines serve: read once, only what is new written, of experts those expected to be met"
        )
        return
    q = r.served.quantities
    moved, least = (_number(q["cache_moved"]), _number(q["cache_read"]) + _number(q["cache_written"]))
    times = f", {moved / least:.3g} x the {si(least, 'B')} of --cache serving" if least and moved / least > 1.005 else ""
    said = "counted as the program runs: it moves" if r.conventions.traffic == "eager" else "one by one, the operators move"
    yield Fact("cache", f"{said} {si(moved, 'B')} a step{times}")


def _number(q: Quantity) -> float:
    return float(q.number or 0)


def _formula(q: Quantity) -> Expr | None:
    return simplify(q.expr) if q.expr is not None and q.expr.free_symbols else None


def serving_facts(r: Report) -> Iterable[Fact]:
    """The cache, the least bytes of a step, and what bounds it."""
    if r.served is None:
        return
    s, q = r.served, r.served.quantities
    each = " per sequence" if s.batch else ""
    if q["per_token"].value != 0:
        yield Fact("cache per token", si(_number(q["per_token"]), "B"), _formula(q["per_token"]))
    yield Fact(f"cache{each}", si(_number(q["per_sequence"]), "B"), _formula(q["per_sequence"]))
    yield Fact("a step reads", f"at least {si(_number(q['step']), 'B')}, weights and cache once", _formula(q["step"]))
    if s.batch and q["outgrows"].number is not None:
        text = f"the cache is larger than the weights from {s.batch} = {_plain(q['outgrows'])} on"
        yield Fact("", text, _formula(q["outgrows"]))
    for chip, bounds in zip(r.chips, s.bounds, strict=True):
        yield from _on_chip(r, s, bounds, f" {chip.name}" if len(r.chips) > 1 else "")


def _on_chip(r: Report, s: Served, found: Mapping[str, Quantity], chip: str) -> Iterable[Fact]:
    latency, rate = _number(found["latency"]), _number(found["tokens_per_second"])
    what = "prefill" if r.phase == "prefill" else "step"
    yield Fact(f"{what}{chip}", f"at least {si(latency, 's')}, at most {si(rate, 'tok/s')}: weights and cache read once")
    yield from _critical(s, found, chip)
    if found["fits"].number is not None and s.batch:
        fits = float(found["fits"].number or 0)
        length = f" of {s.length} = {r.sizes.get(s.length, r.fixed.get(s.length))} tokens" if s.length else ""
        words = f"{max(0, int(fits))} sequences{length} beside the weights" if fits > 0 else "not even the weights"
        yield Fact("memory holds" + chip, words, _formula(found["fits"]) if fits > 0 else None)


def critical_facts(r: Report) -> Iterable[Fact]:
    """The critical batch of the products with weights on each chip, where the critical size asked for is the batch."""
    if r.served is None or r.unknown_size != r.served.batch:
        return
    for chip, bounds in zip(r.chips, r.served.bounds, strict=True):
        yield from _critical(r.served, bounds, f" {chip.name}" if len(r.chips) > 1 else "")


def _critical(s: Served, found: Mapping[str, Quantity], chip: str) -> Iterable[Fact]:
    if found["critical"].number is not None:
        words = "reading weights takes longer below, multiplying by them above"
        yield Fact("critical batch" + chip, f"{s.batch} = {_plain(found['critical'])}, {words}", _formula(found["critical"]))


def _plain(q: Quantity) -> str:
    value = _number(q)
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def serving_columns(r: Report) -> list[Column]:
    """The columns that a sweep of a step of serving has more."""
    if r.served is None:
        return []
    several = len(r.chips) > 1
    names = [f"{c.name} {word}" if several else word for c in r.chips for word in ("step >=", "tok/s <=")]
    return [Column("cache", right=True), *(Column(n, right=True) for n in names)]


def serving_cells(p: Point) -> list[Cell]:
    """The cells of one point under these columns."""
    units = ["B", *("s", "") * (len(p.served) // 2)]
    return [si(v, unit) for v, unit in zip(p.served, units, strict=False)]
