"""What `costir demo` shows: a table per experiment, two sentences on what to see, and a verdict where there can be one."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import costir
from costir.chip import Chip
from costir.demo_texts import TEXTS, text
from costir.document import seconds
from costir.measuring.demo_records import MEMORY, WAYS, Demo, doubled
from costir.page import Column, Document, Entry, Fact, Table
from costir.render import View
from costir.units import si

SCHEMA = "costir/demo/1"
CLOSE = 0.25  # a prediction within this share of the measurement is close
Say = Callable[..., str]


def demos(found: Sequence[Demo], chip: Chip, lang: str) -> View:
    """Some experiments on one machine."""
    return View(lambda: _document(found, chip, lang), lambda: _data(found, chip, lang), lambda: _rows(found))


# --------------------------------------------------------------------------------------------------------------- columns


@dataclass(frozen=True, slots=True)
class _Column:
    """A column.

    Attributes:
        key: in JSON and CSV; "" for one that is in tables alone.
        title: as it is, or a key of TEXTS.
        value: of a row.
        show: its words in tables; None for one that is in JSON and CSV alone.
    """

    key: str
    title: str
    value: Callable[[Any], Any]
    show: Callable[[Any], str] | None = None


def percent(share: float) -> str:
    """0.0625 is 6.2 %."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def power(n: int) -> str:
    """2^20; other numbers as they are."""
    return f"2^{n.bit_length() - 1}" if n >= 1024 and n & (n - 1) == 0 else str(n)


def _ratio(value: float) -> str:
    return f"{value:.2f}"


def _bandwidth(value: float) -> str:
    return si(value, "B/s", 3)


def _binary(nbytes: int) -> str:
    """4 kiB."""
    return next(f"{nbytes >> p:d} {u}" for p, u in ((20, "MiB"), (10, "KiB"), (0, "B")) if nbytes >> p)


def _own(name: str) -> Callable[[Any], Any]:
    return lambda row: getattr(row, name)


def _field(key: str, title: str, show: Callable[[Any], str] | None = None, name: str = "") -> _Column:
    return _Column(key, title, _own(name or key), show)


_TIMED = (
    _field("predicted", "predicted", seconds),
    _field("measured", "measured", seconds),
    _field("ratio", "ratio", _ratio),
)


def _both(title: str, quantity: str, show: Callable[[Any], str]) -> _Column:
    """A quantity of both ways in one cell."""
    return _Column("", title, lambda f: f"{show(getattr(f.separate, quantity))} / {show(getattr(f.together, quantity))}", str)


def _way(quantity: str) -> Iterable[_Column]:
    """A quantity of both ways, for JSON and CSV."""
    for way in WAYS:
        yield _Column(f"{way}_{quantity}", "", functools.partial(_of_way, way, quantity))


def _of_way(way: str, quantity: str, row: Any) -> Any:
    return getattr(getattr(row, way), quantity)


def _step(size: str) -> tuple[_Column, ...]:
    return (
        _field("size", size, str), _field("operators", "operators", str), _field("flops", ""),
        _field("matmul_flops", "matmul_flops", si, "matmul"), *_TIMED, _field("overhead", "overhead", percent),
        _field("share_of_peak", "of_peak", percent, "share"),
    )  # fmt: skip


COLUMNS: Mapping[str, tuple[_Column, ...]] = {
    "matmul": (
        _field("n", "n", str), _field("flops", "FLOPs", si), _field("intensity", "FLOP/B", lambda v: f"{v:.4g}"), *_TIMED,
        _field("flops_per_second", "FLOP/s", si, "rate"), _field("share_of_peak", "of_peak", percent, "share"),
    ),
    "bandwidth": (
        _field("elements", "elements", power), _Column("", "array", lambda r: 4 * r.elements, _binary),
        _field("bytes", "", None, "moved"),
        _field("level", "fits", str), *_TIMED, _field("bandwidth", "B/s", _bandwidth, "rate"),
        _field("best_bandwidth", "envelope", _bandwidth, "best"),
    ),
    "fusion": (
        _field("case", "case", str), _field("elements", "elements", power),
        _both("passes", "passes", lambda v: f"{v:.3g}"), _field("by_passes", "by_passes", _ratio),
        _field("predicted", "predicted", _ratio), _field("measured", "measured", _ratio), _field("ratio", "ratio", _ratio),
        _both("times", "measured", lambda v: si(v, "s", 3)), _both("special", "special", percent),
        _both("fresh", "fresh", percent),
        *(c for q in ("passes", "predicted", "measured", "special", "fresh", "call") for c in _way(q)),
    ),
    "step": _step("B"),
    "width": _step("D"),
}  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------- words


def _document(found: Sequence[Demo], chip: Chip, lang: str) -> Document:
    say = functools.partial(text, lang=lang)
    facts = [Fact(d.name, line) for d in found for line in sentences(d, lang)]
    facts += [Fact(say("verdict"), verdict(d, lang)) for d in found if d.valid]
    facts += [Fact(say("note"), n) for n in notes(found, lang)]
    return Document(say("title"), tuple(_head(chip, say)), tuple(_table(d, say) for d in found), tuple(facts))


def _head(chip: Chip, say: Say) -> Iterable[Fact]:
    about = chip.calibration.about if chip.calibration else {}
    yield Fact(say("chip"), f"{chip.label}: {chip.name}")
    yield Fact(say("threads"), about.get("threads", "1"))
    yield Fact(say("calibrated"), ", ".join(v for v in (about.get("date", ""), f"torch {about.get('torch', '?')}") if v))
    yield Fact(say("ratio_is"), say("ratio_words"))


def _table(d: Demo, say: Say) -> Table:
    shown = [c for c in COLUMNS[d.name] if c.show is not None]
    titles = [say(c.title) if c.title in TEXTS else c.title for c in shown]
    columns = tuple(Column(t, right=c.key not in ("case", "level")) for t, c in zip(titles, shown, strict=True))
    lines = tuple(Entry("operator", tuple(_cell(c, row, say) for c in shown)) for row in d.rows)
    at = ", ".join(f"{n} = {v}" for n, v in d.sizes.items())
    return Table(columns, lines, say("with", title=say(d.name), sizes=at) if at else say(d.name))


def _cell(c: _Column, row: Any, say: Say) -> str:
    value = c.value(row)
    assert c.show is not None
    return say("memory") if value == MEMORY else c.show(value)


def sentences(d: Demo, lang: str) -> tuple[str, str]:
    """The two sentences on what to see."""
    values = _SEEN[d.name](d, functools.partial(text, lang=lang))
    second = f"{d.name}_2" + ("_none" if values.get("n", "") is None else "")
    return text(f"{d.name}_1", lang, **values), text(second, lang, **values)


def _seen_matmul(d: Demo, say: Say) -> dict[str, Any]:
    rows: Sequence[Any] = d.rows
    half = next((r.n for r in rows if r.flops / r.predicted >= r.peak / 2), None)
    return {**d.formulas, "peak": si(rows[0].peak, "FLOP/s"), "n": half}


def _seen_bandwidth(d: Demo, say: Say) -> dict[str, Any]:
    rows: Sequence[Any] = d.rows
    last = {r.level: r.elements for r in rows}
    return {"levels": ", ".join(f"{say('memory') if k == MEMORY else k} <= {power(n)}" for k, n in last.items())}


def _seen_steps(d: Demo, say: Say) -> dict[str, Any]:
    rows: Sequence[Any] = d.rows
    letter, first, last = {"step": "B", "width": "D"}[d.name], rows[0], rows[-1]
    least, most = min(r.operators for r in rows), max(r.operators for r in rows)
    where = {k: say("nowhere") if v is None else say("at", name=letter, value=f"{v:.3g}") for k, v in doublings(d).items()}
    return {
        "operators": least if least == most else say("between", least=least, most=most),
        "small": first.size, "large": last.size, "first": percent(first.overhead), "last": percent(last.overhead),
        "share": percent(last.matmul / last.predicted / last.peak), **where,
    }  # fmt: skip


_SEEN: Mapping[str, Callable[[Demo, Say], dict[str, Any]]] = {
    "matmul": _seen_matmul,
    "bandwidth": _seen_bandwidth,
    "fusion": lambda d, say: {},
    "step": _seen_steps,
    "width": _seen_steps,
}


def doublings(d: Demo) -> dict[str, float | None]:
    """The size at which a step takes twice as long as at the first size, predicted and measured."""
    rows: Sequence[Any] = d.rows
    return {k: doubled([(r.size, getattr(r, k)) for r in rows]) for k in ("predicted", "measured")}


def verdict(d: Demo, lang: str) -> str:
    """How close the predictions are."""
    errors = [abs(r.predicted / r.measured - 1) for r in d.rows]
    close = sum(e <= CLOSE for e in errors)
    return text("verdict_words", lang, name=d.name, median=percent(statistics.median(errors)), close=close, count=len(errors))


def notes(found: Sequence[Demo], lang: str) -> list[str]:
    """Why there is no verdict: another machine, or one that is not as free as when it was calibrated."""
    differs = {k: v for d in found for k, v in d.differs.items()}
    out = [text(k, lang, then=then, now=now) for k, (then, now) in differs.items()]
    for key in ("slower", "faster", "shared"):
        busy = [d for d in found if d.busy == key]
        if busy:
            share = max(1 - d.core if key == "shared" else abs(d.loaded) for d in busy)
            out.append(text(key, lang, names=", ".join(d.name for d in busy), share=percent(share)))
    return out


# ------------------------------------------------------------------------------------------------------------------ data


def _data(found: Sequence[Demo], chip: Chip, lang: str) -> dict[str, Any]:
    about = dict(chip.calibration.about) if chip.calibration else {}
    return {
        "schema": SCHEMA, "costir": costir.__version__, "language": lang, "chip": chip.label, "calibration": about,
        "demos": [_one(d, lang) for d in found], "notes": notes(found, lang),
    }  # fmt: skip


def _one(d: Demo, lang: str) -> dict[str, Any]:
    return {
        "demo": d.name, "sizes": dict(d.sizes), "formulas": dict(d.formulas),
        "rows": [{c.key: c.value(row) for c in COLUMNS[d.name] if c.key} for row in d.rows],
        **({"doubled_at": doublings(d)} if d.name in ("step", "width") else {}),
        "see": list(sentences(d, lang)), "verdict": verdict(d, lang) if d.valid else None, "loaded": d.loaded,
        "core_share": d.core,
    }  # fmt: skip


def _rows(found: Sequence[Demo]) -> Iterable[Sequence[Any]]:
    keys = list(dict.fromkeys(c.key for d in found for c in COLUMNS[d.name] if c.key))
    yield ["demo", *keys]
    for d in found:
        known = {c.key: c.value for c in COLUMNS[d.name] if c.key}
        yield from ([d.name, *(known[k](row) if k in known else None for k in keys)] for row in d.rows)
