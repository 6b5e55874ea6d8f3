"""The totals of a report term by term: which operators each term comes from, and what of a rule of thumb is in them.

The rules are those for language models: 2 FLOPs per parameter and token (6 in training, Kaplan et al., arXiv 2001.08361,
section 2.1), plus attention. They are read off the exact expressions, with what they leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costir import document
from costir.document import number, plain_number
from costir.layout import Column
from costir.page import Document, Entry, Fact, Table
from costir.report import Report, Row, plain
from costir.symbolic import ZERO, Expr, coefficient, evaluate, expand, leading_ratio, limit, show, size, terms, total

TOTAL = "total"  # what is explained so, where no operator has this name
SUMMED = ("matmul_flops", "vector_flops", "special_flops", "bytes")
_SHOWN = 3  # modules that are named beside a term
_LENGTHS = ("T", "S")
_DEPTH = "L"
_WIDTH = "D"


@dataclass(frozen=True, slots=True)
class Part:
    """What one operator, or one parameter, adds to a term."""

    phase: str
    path: str
    name: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Term:
    """All of a total that grows alike.

    Attributes:
        expr: the term, 6*B*D*F*L*T.
        value: at the base sizes. share: of the whole total there; None where that is 0.
        parts: who it comes from.
    """

    expr: Expr
    value: float
    share: float | None
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Thumb:
    """The matmul FLOPs of a token as a multiple of the parameters, and what that leaves out.

    Attributes:
        per_token: matmul FLOPs over B*T.
        factor: of the parameters: 2 in a forward pass.
        rest: what the weights' matmuls are more (or less) than that, term by term: parameters that multiply nothing, weights
            used twice, experts that are not chosen. Parts name the parameters, with the sign of the term.
        attention: the terms that grow with the length.
        grows_to: FLOPs over parameters and tokens as the width D grows; None where there is no D.
        equal_at: the length at which attention takes as much as all the rest; None where it has none.
        deep: what that tends to as the layers grow in number; None where it says nothing more.
    """

    per_token: Expr
    factor: Expr
    rest: tuple[Term, ...]
    attention: Expr
    grows_to: Expr | None
    equal_at: Expr | None
    deep: Expr | None


def terms_of(parts: Iterable[Part], sizes: Mapping[str, int]) -> tuple[Term, ...]:
    """The terms of a sum, largest at the base sizes first."""
    point = {size(n): v for n, v in sizes.items()}
    found: dict[Expr, list[Part]] = {}
    for p in parts:
        for e in terms(expand(p.expr)):
            if e != 0:
                found.setdefault(coefficient(e)[1], []).append(Part(p.phase, p.path, p.name, e))
    sums = [(total(p.expr for p in some), tuple(some)) for some in found.values()]
    values = [float(plain(evaluate(e, point)) or 0) for e, _ in sums]
    whole = sum(values)
    made = [Term(e, v, v / whole if whole else None, some) for (e, some), v in zip(sums, values, strict=True) if e != 0]
    return tuple(sorted(made, key=lambda t: -abs(t.value)))


def by_quantity(r: Report) -> dict[str, tuple[Term, ...]]:
    """The terms of each total that is a sum over operators, and of the parameters."""
    found = {q: terms_of([_part(row, q) for row in r.rows], r.sizes) for q in SUMMED}
    return {**found, "params": terms_of(_parameters(r), r.sizes)}


def _part(row: Row, quantity: str) -> Part:
    e = row.quantities[quantity].expr
    return Part(row.phase, row.path, row.name, ZERO if e is None else e)


def _parameters(r: Report) -> list[Part]:
    return [Part("", path.rpartition(".")[0], path.rpartition(".")[2], e) for path, e in r.weights]


def thumb(r: Report, params: Sequence[Term]) -> Thumb | None:
    """The rule of thumb for a language model; None where tokens are no product B*T that all matmuls grow with."""
    if not {"B", "T"} <= set(r.sizes):
        return None
    matmul = total(_part(row, "matmul_flops").expr for row in r.rows)  # of the base's regime, as all that is here
    per_token = expand(matmul / (size("B") * size("T")))
    if per_token == 0 or size("B") in per_token.free_symbols or not params:
        return None
    lengths = {size(n) for n in _LENGTHS}
    attention = total(e for e in terms(per_token) if e.free_symbols & lengths)
    weights = expand(per_token - attention)
    factor = _factor(weights, params)
    if factor is None:
        return None
    less = [Part("", p.path, p.name, -factor * p.expr) for t in params for p in t.parts]
    more = [Part(p.phase, p.path, p.name, e) for p, e in _free_of_length(r, lengths)]
    rest = terms_of(_netted([*more, *less]), r.sizes)
    rate = expand(attention / size("T"))
    equal_at = expand(weights / rate) if rate != 0 and not rate.free_symbols & lengths else None
    grows_to = leading_ratio(per_token, total(t.expr for t in params), size(_WIDTH)) if _WIDTH in r.sizes else None
    return Thumb(per_token, factor, rest, attention, grows_to, equal_at, _deep(equal_at))


def _netted(parts: Sequence[Part]) -> list[Part]:
    """Without modules whose matmuls are just what the factor gives for their parameters."""
    by_module: dict[str, list[Part]] = {}
    for p in parts:
        by_module.setdefault(p.path, []).append(p)
    return [p for some in by_module.values() if expand(total(x.expr for x in some)) != 0 for p in some]


def _free_of_length(r: Report, lengths: set[Any]) -> Iterable[tuple[Part, Expr]]:
    for row in r.rows:
        part = _part(row, "matmul_flops")
        for e in terms(expand(part.expr / (size("B") * size("T")))):
            if not e.free_symbols & lengths:
                yield part, e


def _factor(weights: Expr, params: Sequence[Term]) -> Expr | None:
    """How many FLOPs the largest kind of parameter costs per token, of those that occur in both."""
    flops = {m: c for c, m in map(coefficient, terms(weights))}
    for term in params:
        c, m = coefficient(term.expr)
        if m in flops and m != 1:
            return flops[m] / c
    return None


def _deep(equal_at: Expr | None) -> Expr | None:
    if equal_at is None or size(_DEPTH) not in equal_at.free_symbols:
        return None
    return limit(equal_at, [size(_DEPTH)])


# -------------------------------------------------------------------------------------------------------------- document


def explained(r: Report) -> Document:
    """The totals term by term."""
    found = by_quantity(r)
    tables = [_table(document.TOTAL_WORDS[q], some, q, r) for q, some in found.items() if some]
    return Document(
        f"{document.title(r)}, totals explained", document.head(r), tuple(tables), tuple(_facts(r, found["params"]))
    )


def _base(r: Report) -> dict[Any, int]:
    return {size(n): v for n, v in r.sizes.items()}


def _table(title: str, some: Sequence[Term], quantity: str, r: Report) -> Table:
    q = r.totals[quantity]
    unit = document.UNITS.get(quantity, "")
    columns = (Column("term", formula=True), Column("value", right=True), Column("share", right=True), Column("from"))
    lines = [Entry("operator", (t.expr, number(t.value, unit), _share(t.share), sources(t.parts))) for t in some]
    least = not r.complete and quantity != "params"
    return Table(columns, (*lines, Entry("rule"), Entry("total", ("total", number(q.number, unit, least), "", ""))), title)


def _share(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %".replace("-0.0 %", "0.0 %")


def sources(parts: Sequence[Part]) -> str:
    """The modules and operators of some parts: "layers.*.mlp: gate_proj mm, up_proj mm"."""
    modules: dict[tuple[str, str], dict[str, None]] = {}
    for p in parts:
        parent, _, last = p.path.rpartition(".")
        inside = f"{last} {p.name}".strip() if last not in ("*", "") else p.name
        above = parent if last != "*" else p.path
        modules.setdefault((p.phase if p.phase != "forward" else "", above), {}).setdefault(inside)
    texts = []
    for (phase, module), names in modules.items():
        shown = ", ".join(list(names)[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        texts.append(" ".join(x for x in (phase, f"{module}: {shown}" if module else shown) if x))
    more = f"; and {len(texts) - _SHOWN} modules more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more


def _facts(r: Report, params: Sequence[Term]) -> Iterable[Fact]:
    rule = thumb(r, params)
    if rule is None:
        return
    value: Callable[[Expr], float] = lambda e: float(plain(evaluate(e, _base(r))) or 0)
    whole = value(rule.per_token)
    estimate = rule.factor * (r.totals["params"].expr or ZERO)
    share: Callable[[Expr], str] = lambda e: _share(abs(value(e)) / whole)
    yield Fact("per token", f"{number(whole)} matmul FLOPs", rule.per_token)
    text = f"{show(rule.factor)} x parameters = {number(value(estimate))}, {share(estimate)} of it"
    yield Fact("rule of thumb", f"{text}; the rest:" if rule.rest or rule.attention != 0 else text)
    for t in rule.rest:
        yield Fact("", f"{'+' if t.value > 0 else '-'} {number(abs(t.value))}, {share(t.expr)}, {sources(t.parts)}", t.expr)
    if rule.attention != 0:
        yield Fact("", f"+ {number(value(rule.attention))}, {share(rule.attention)}, attention", rule.attention)
    if rule.grows_to is not None:
        yield Fact("", f"as D grows, matmul FLOPs / (parameters x tokens) tends to {show(rule.grows_to)}")
    if rule.equal_at is not None:
        yield Fact("attention", f"as much as all other matmuls at T = {plain_number(value(rule.equal_at))}", rule.equal_at)
    if rule.deep is not None:
        yield Fact("", f"tends to T = {plain_number(value(rule.deep))} with many layers", rule.deep)


# ------------------------------------------------------------------------------------------------------------------ data


def as_data(r: Report) -> dict[str, Any]:
    """The terms for JSON, by quantity; and the rule of thumb, where there is one."""
    found = by_quantity(r)
    rule = thumb(r, found["params"])
    out: dict[str, Any] = {"terms": {q: [_term(t) for t in some] for q, some in found.items()}}
    if rule is not None:
        pair: Callable[[Expr | None], Any] = lambda e: (
            None if e is None else {"expr": show(e), "value": plain(evaluate(e, _base(r)))}
        )
        out["rule_of_thumb"] = {
            "per_token": pair(rule.per_token), "factor": pair(rule.factor), "rest": [_term(t) for t in rule.rest],
            "attention": pair(rule.attention), "grows_to": pair(rule.grows_to),
            "attention_equal_at": pair(rule.equal_at), "deep": pair(rule.deep),
        }  # fmt: skip
    return out


def _term(t: Term) -> dict[str, Any]:
    parts = [{"phase": p.phase, "path": p.path, "name": p.name, "expr": show(p.expr)} for p in t.parts]
    return {"expr": show(t.expr), "value": t.value, "share": t.share, "from": parts}


def as_rows(r: Report) -> Iterable[list[Any]]:
    """The terms for CSV."""
    yield ["total", "term", "value", "share", "from"]
    for quantity, some in by_quantity(r).items():
        for t in some:
            yield [quantity, show(t.expr), t.value, t.share, sources(t.parts)]
