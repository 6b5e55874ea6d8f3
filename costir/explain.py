"""One operator of a report, step by step: formula, rule, numbers, source line."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from costir import document, ir
from costir.document import change, number, plain_number, seconds, threshold_facts
from costir.errors import CostirError, nearest
from costir.ops import registry
from costir.ops.kernel import KERNEL, members
from costir.page import Document, Fact
from costir.report import Report, Row
from costir.symbolic import Expr, gather, show

SHORT_NAMES = {v: k for k, v in ir.SHORT_DTYPE.items() if k in ("fp64", "fp32", "fp16", "bf16", "fp8", "fp4", "int8", "int4")}


def matching(rows: Sequence[Row], pattern: str) -> tuple[Row, ...]:
    """The rows that a pattern means: a module path or a part of one, an operator, with `*` for anything.

    "layers.0.mlp" finds what "layers.*.mlp" stands for; "mlp", "up_proj", "mm", "aten.mm" and "mlp.*" work as well.

    Raises:
        CostirError: where nothing matches, with the nearest names.
    """
    wanted = [p for p in pattern.strip().split(".") if p]
    found = tuple(r for r in rows if r.path == pattern or r.op == pattern or _matches(r, wanted))
    if found:
        return found
    known = (
        {m.path for r in rows for m in members(r.call)}
        | {r.path for r in rows}
        | {r.name for r in rows}
        | {p for r in rows for p in r.path.split(".")}
    )
    raise CostirError(f"no operator matches {pattern[:80]!r}", nearest(pattern[:80], known - {"", "*"}))


def _matches(row: Row, wanted: Sequence[str]) -> bool:
    own = (row.path.split("."), row.op.split("."), [*row.path.split("."), row.name])
    inside = [p for m in members(row.call) for p in ([*m.path.split("."), m.name], m.op.split("."))]
    for parts in (*own, *inside):
        for start in range(len(parts) - len(wanted) + 1):
            if wanted and all(_same(w, p) for w, p in zip(wanted, parts[start:], strict=False)):
                return True
    return False


def _same(wanted: str, part: str) -> bool:
    return (part == "*" and wanted.isdigit()) or fnmatch.fnmatchcase(part, wanted)


Why = Callable[[ir.Call], Sequence[Any]]  # the reasons of a kernel: records with `about`, `what` and `text`


def explained(r: Report, rows: Sequence[Row], why: Why | None = None) -> Document:
    """The document of some rows; `why` says why kernels are as they are."""
    facts = []
    for row in rows:
        kernel = row.call.op.startswith(KERNEL)
        name = f"{row.path} {row.name if kernel else row.op}".strip()
        reasons = [Fact(x.about, f"{x.what}: {x.text}") for x in (why(row.call) if why is not None else ())]
        facts += [
            Fact("kernel" if kernel else "operator", name),
            *_facts(r, row),
            *reasons,
            *([Fact("", "")] if row is not rows[-1] else []),
        ]
    return Document(
        f"{r.subject}: {len(rows)} operator{'s' if len(rows) > 1 else ''} explained", document.head(r), (), tuple(facts)
    )


def _facts(r: Report, row: Row) -> list[Fact]:
    facts = [Fact("line", row.source or "unknown"), Fact("runs", _runs(row)), Fact("phase", row.phase)]
    facts += _members(row)
    facts += [Fact("reads", text) for text in _operands(row.call)]
    facts += [Fact("gives", tensor_text(t)) for t in row.call.outputs]
    facts.append(Fact("rule", rule_text(row)))
    for label, quantity in (
        ("matmul", "matmul_flops"),
        ("vector", "vector_flops"),
        ("special", "special_flops"),
        ("bytes", "bytes"),
    ):
        facts += _steps(label, row, quantity, r.sizes)
    facts += _intensity(row)
    for i, chip in enumerate(r.chips):
        facts += _on_chip(r, row, i, chip.name)
    return [*facts, Fact("note", row.note)] if row.note else facts


def _members(row: Row) -> list[Fact]:
    """The operators of a kernel, with the modules and lines that they come from."""
    if not row.call.op.startswith(KERNEL):
        return []
    facts = [Fact("computes", f"{m.path} {m.op}{f' ({m.source})' if m.source else ''}".strip()) for m in members(row.call)]
    return [*facts, *(Fact("again", f"{path} {op}".strip()) for op, path in row.call.args["again"])]


def _runs(row: Row) -> str:
    count = row.count
    return str(count.expr) if count.expr is None or not count.expr.free_symbols else f"{count.expr} = {count.number}"


def rule_text(row: Row) -> str:
    """The rule and what it counts, in words."""
    if row.status == "unknown":
        return f"none for {row.op}: its cost is unknown, and totals are lower bounds"
    entry = registry.find(row.rule) or registry.find(row.op)
    return f"{row.rule}: {entry.counts} ({entry.kind})" if entry is not None else row.rule


def _operands(call: ir.Call) -> list[str]:
    if call.op.startswith(KERNEL):
        return [tensor_text(t) for t in call.args["reads"]]
    out = []
    for name, value in call.args.items():
        for t in ir.tensors(value):
            out.append(f"{name}: {tensor_text(t)}")
    return out


def tensor_text(t: ir.Tensor) -> str:
    """A tensor as people write it: bf16[B*T, D], a weight."""
    shape = ", ".join(f"{show(d)}{' (expanded)' if i in t.expanded else ''}" for i, d in enumerate(t.shape))
    role = "" if t.role == "activation" else f", {t.role}"
    return f"{SHORT_NAMES.get(t.dtype, t.dtype)}[{shape}]{role}"


def _steps(label: str, row: Row, name: str, sizes: Mapping[str, int]) -> list[Fact]:
    """Formula of one run, of all runs, with numbers put in."""
    q = row.quantities[name]
    if q.expr is None:
        return [Fact(label, "unknown")] if name == "bytes" or (name == "matmul_flops" and row.status == "unknown") else []
    if q.expr == 0:
        return []
    unit = " B" if name == "bytes" else " FLOPs"
    facts = []
    if name == "bytes":
        facts = [Fact("read", _once(row.cost.read)), Fact("write", _once(row.cost.write))]
    formula = gather(q.expr)
    text = show(formula)
    filled = put_in(text, sizes)
    result = f"{q.number}{unit}" + (
        f" = {number(q.number, unit.strip() if unit == ' B' else '')}" if (q.number or 0) >= 1000 else ""
    )
    steps = f"{text} = {filled} = {result}" if filled != text else result
    return [*facts, Fact(label, steps)]


def _once(e: Expr) -> str:
    return f"{show(gather(e))} per run"


def put_in(formula: str, sizes: Mapping[str, int]) -> str:
    """The formula's text with numbers for the letters: 2*B*D*F -> 2*16*4096*16384."""
    return re.sub(r"[A-Za-z_]\w*", lambda m: str(sizes.get(m[0], m[0])), formula)


def _intensity(row: Row) -> list[Fact]:
    q = row.quantities["intensity"]
    if q.number is None:
        return []
    return [
        Fact(
            "intensity",
            f"{plain_number(float(q.number))} FLOP/B",
            gather(q.expr) if q.expr is not None and q.expr.free_symbols else None,
        )
    ]


def _on_chip(r: Report, row: Row, i: int, chip: str) -> list[Fact]:
    t = row.times[i]
    if t.lower is None:
        return [Fact(chip, "no time: not all of its cost is known")]
    parts = [f"{n} {seconds(v)}" for n, v in (("matmul", t.compute), ("vector", t.vector), ("memory", t.memory)) if v]
    facts = [Fact(chip, f"{', '.join(parts)}: {t.binds or 'nothing'} binds, at least {seconds(t.lower)}")]
    threshold = row.thresholds[i] if row.thresholds else None
    if threshold is not None:
        where = change(threshold, r.base)
        facts += [*([Fact("changes at", where)] if where else []), *threshold_facts(threshold, "critical")]
    return facts


def as_data(r: Report, rows: Sequence[Row], node: Any, why: Why | None = None) -> list[dict[str, Any]]:
    """The rows for JSON: the node's record, what its rule counts, its operands."""
    out = []
    for row in rows:
        extra: dict[str, Any] = {
            "counts": rule_text(row),
            "inputs": _operands(row.call),
            "outputs": [tensor_text(t) for t in row.call.outputs],
        }
        if why is not None:
            extra["why"] = [{"about": x.about, "what": x.what, "text": x.text} for x in why(row.call)]
        out.append({**node(row, r), **extra})
    return out
