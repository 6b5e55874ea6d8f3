"""What `costir mfu` shows: the conventions side by side, per token and per second, as shares of each chip's peak."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import costir
from costir.document import LONGEST, MATMUL_WORDS, PHASE_WORDS, plain_number, seconds, subject_title
from costir.model_flops import FORWARDS_IN_A_STEP, Counted
from costir.page import Cell, Column, Document, Entry, Fact, Table
from costir.render import View
from costir.report import plain
from costir.symbolic import gather, show
from costir.units import si
from costir.utilisation import MFU, Peak

SCHEMA = "costir/mfu/1"
UNIT_WORDS = {"tok": "tok/s", "seq": "seq/s", "step": "step/s"}


def utilisation(m: MFU) -> View:
    """A measured run."""
    return View(lambda: _document(m), lambda: _data(m), lambda: _rows(m))


# ----------------------------------------------------------------------------------------------------------------- words


def _document(m: MFU) -> Document:
    return Document(f"{subject_title(m.subject, m.phase)}, utilisation", tuple(_head(m)), (_table(m),), tuple(_facts(m)))


def _head(m: MFU) -> Iterable[Fact]:
    if m.sizes:
        yield Fact("at", ", ".join(f"{n} = {v}" for n, v in m.sizes.items()))
    if m.fixed:
        yield Fact("put in", ", ".join(f"{n} = {v}" for n, v in m.fixed.items()))
    if m.assumed:
        other = "; --phase forward if not" if m.phase != "forward" else ""
        yield Fact("assumed", f"the rate is that of a {PHASE_WORDS[m.phase]}{other}")
    for p in m.peaks:
        yield Fact("chip", _peak_text(p))
    yield Fact("measured", _measured_text(m))
    yield Fact("counted", f"matmuls, {MATMUL_WORDS[m.conventions.count]}")


def _peak_text(p: Peak) -> str:
    unit = " on the vector unit" if p.key.startswith("vector") else ""
    return f"{p.note or p.chip}: {p.dtype} {si(float(p.rate), 'FLOP/s')}{unit}, {'set by hand' if p.by_hand else 'dense'}"


def _measured_text(m: MFU) -> str:
    """The rate as typed, and what follows from it: "10000tok/s; steps of B*T = 8192 tokens take 819.2 ms"."""
    chips = f" on {m.devices} chips" if m.devices > 1 else ""
    step = seconds(float(1 / m.steps))
    if m.tokens is None:
        return (
            f"{m.measured.text} a step{chips}" if m.measured.unit == "s" else f"{m.measured.text}{chips}; a step takes {step}"
        )
    tokens = f"{'*'.join(m.token_sizes)} = {m.tokens} tokens"
    if m.measured.unit == "s":
        return f"{m.measured.text} a step{chips} of {tokens}: {plain_number(float(m.tokens * m.steps))} tok/s"
    return f"{m.measured.text}{chips}; a step of {tokens} takes {step}"


def _table(m: MFU) -> Table:
    per = "token" if m.tokens is not None else "step"
    columns = [Column("utilisation"), Column("counts"), Column(f"FLOPs/{per}", right=True)]
    columns.append(Column("FLOP/s per chip" if m.devices > 1 else "FLOP/s", right=True))
    columns += [Column("of peak" if len(m.peaks) == 1 else p.chip, right=True) for p in m.peaks]
    return Table(tuple(columns), tuple(Entry("operator", tuple(_cells(c, m))) for c in m.counted))


def _cells(c: Counted, m: MFU) -> Iterable[Cell]:
    least = ">= " if _partial(c, m) else ""
    yield label(c, m)
    yield _counts(c, m)
    yield least + si(float(c.flops / (m.tokens or 1)))
    yield least + si(float(_known(m.flops_per_second(c.convention))))
    for i in range(len(m.peaks)):
        yield f"{least}{_percent(_known(m.share(c.convention, i)))}"


def _percent(share: Fraction) -> str:
    """58.53 %; what is small or huge by its first digits."""
    value = float(100 * share)
    return f"{value:.2f} %" if 1 <= value < 1000 else f"{plain_number(value)} %"


def label(c: Counted, m: MFU) -> str:
    """The name that a convention has in use."""
    n = f"{2 * FORWARDS_IN_A_STEP[m.phase]}N"
    words = {"full": "full attention", "causal": "causal attention", "parameters": n, "hardware": "as traced"}
    return f"{'HFU' if c.convention == 'hardware' else 'MFU'}, {words[c.convention]}"


def _counts(c: Counted, m: MFU) -> str:
    times = FORWARDS_IN_A_STEP[m.phase]
    scores = {"full": "all T x S scores", "causal": "unmasked scores only"}
    if c.convention == "parameters":
        few = "" if m.active == m.params else f", those at work of {si(m.params)}"
        return f"{2 * times} x {si(m.active)} parameters{few}"
    if c.convention == "hardware":
        return f"all matmuls of the step, {scores[m.conventions.attention]}"
    if c.convention == "causal" and any(x.convention == "full" and x.flops == c.flops for x in m.counted):
        return "the same: no operator is told that scores are masked"
    return f"{f'{times} x ' if times > 1 else ''}matmuls of the forward pass, {scores[c.convention]}"


def _partial(c: Counted, m: MFU) -> bool:
    return bool(m.unknown) and c.convention != "parameters"


def _known(value: Fraction | None) -> Fraction:
    assert value is not None  # of a convention in m.counted
    return value


def _facts(m: MFU) -> Iterable[Fact]:
    for w in m.warnings:
        yield Fact("above 100 %", w)
    for c in m.counted:
        formula = gather(c.expr)
        if formula.free_symbols and len(show(formula)) <= LONGEST:
            yield Fact(f"a step, {label(c, m).partition(', ')[2]}", si(float(c.flops), "FLOP"), formula)
    if m.phase != "forward":
        yield Fact("MFU", f"a {PHASE_WORDS[m.phase]} counts as 3 x its forward pass (PaLM, arXiv 2204.02311, appendix B)")
        yield Fact("HFU", "counts what is computed again too: scores in the backward pass, checkpointed activations")
    for u in m.unknown:
        yield Fact("unknown", u)
    for n in m.notes:
        yield Fact("note", n)


# ------------------------------------------------------------------------------------------------------------------ data


def _data(m: MFU) -> dict[str, Any]:
    return {
        "schema": SCHEMA, "costir": costir.__version__, "subject": m.subject, "phase": m.phase, "phase_assumed": m.assumed,
        "sizes": dict(m.sizes), "fixed": dict(m.fixed),
        "conventions": {"count": m.conventions.count, "attention": m.conventions.attention},
        "measured": {"text": m.measured.text, "value": plain(m.measured.value), "unit": UNIT_WORDS.get(m.measured.unit, "s")},
        "devices": m.devices, "steps_per_second": plain(m.steps), "tokens_per_step": m.tokens,
        "parameters": m.params, "active_parameters": m.active, "complete": not m.unknown,
        "chips": [
            {"name": p.chip, "note": p.note, "dtype": p.dtype, "peak": plain(p.rate), "from": "setting" if p.by_hand else p.key}
            for p in m.peaks
        ],
        "rows": [_row(c, m) for c in m.counted],
        "unknown": list(m.unknown), "warnings": list(m.warnings), "notes": list(m.notes),
    }  # fmt: skip


def _row(c: Counted, m: MFU) -> dict[str, Any]:
    return {
        "convention": c.convention,
        "label": label(c, m),
        "flops_per_step": {"expr": show(c.expr), "value": plain(c.flops)},
        "flops_per_token": None if m.tokens is None else plain(c.flops / m.tokens),
        "flops_per_second": plain(_known(m.flops_per_second(c.convention))),
        "utilisation": {p.chip: float(_known(m.share(c.convention, i))) for i, p in enumerate(m.peaks)},
    }


def _rows(m: MFU) -> Iterable[list[Any]]:
    per = ["flops_per_second", "flops_per_token", "flops_per_step", "flops_per_step_expr"]
    yield ["convention", "label", "chip", "dtype", "peak", "utilisation", *per, "complete"]
    for c in m.counted:
        row = _row(c, m)
        step = row["flops_per_step"]
        flops = [row["flops_per_second"], row["flops_per_token"], step["value"], step["expr"]]
        for p in m.peaks:
            share = row["utilisation"][p.chip]
            yield [row["convention"], row["label"], p.chip, p.dtype, plain(p.rate), share, *flops, not m.unknown]
