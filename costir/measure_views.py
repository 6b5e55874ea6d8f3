"""What `costir measure` shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from costir.document import plain_number, seconds, subject_title
from costir.measuring.knee import Knee
from costir.measuring.measure import Measurement, Row
from costir.measuring.pace import middle
from costir.measuring.why import Why
from costir.page import Cell, Column, Document, Entry, Fact, Table
from costir.render import View
from costir.units import si

SMALL = 0.005  # operators below this share of the time are one line
OFF, OF_ALL = 0.25, 0.01  # of an operator's time, and of all: estimates that are further off are named
SCHEMA = "costir/measure/1"
NONE = 1e-9  # seconds: less is a rounding
MATCHED = (
    "operators in place by torch's profiler, the whole without it, the best of many steps; only while nothing else ran here"
)
ALIKE = "* another operator's curve stands in for one that was not calibrated"


# --------------------------------------------------------------------------------------------------------------- measure


def measured(found: Sequence[Measurement], swept: str, reason: Why | None, brief: bool = True) -> View:
    """One measurement in detail, or a line for each of a sweep."""
    return View(
        lambda: _document(found, swept, reason, brief), lambda: _data(found, swept, reason), lambda: _rows(found, reason)
    )


def _document(found: Sequence[Measurement], swept: str, reason: Why | None, brief: bool) -> Document:
    m = found[0]
    sizes = ", ".join(f"{n} = {v}" for n, v in m.sizes.items() if n != swept)
    head = [Fact("at", sizes)] if sizes else []
    about = m.chip.calibration.about if m.chip.calibration else {}
    head += [Fact("machine", f"{about.get('cpu')}, calibrated {about.get('date')}, {about.get('threads')} thread(s)"),
             Fact("timed", MATCHED), Fact("pace", _pace(found))]  # fmt: skip
    tables = [_sweep(found, swept)] if swept else [_operators(m, brief)]
    tail = list(_result(found, swept))
    if reason is not None:
        tables.append(_parts(m, reason))
        tail.append(Fact("would help most", reason.advice))
    tail += [Fact("note", n) for n in _notes(found, swept)]
    return Document(f"{subject_title(m.name, m.phase)}, measured", tuple(head), tuple(tables), tuple(tail))


def _notes(found: Sequence[Measurement], swept: str) -> Iterator[str]:
    """What is to be known, each once; of a sweep, at which points, where not at all."""
    for note in dict.fromkeys(n for m in found for n in m.notes):
        where = [str(m.sizes[swept]) for m in found if note in m.notes] if swept else []
        yield note if len(where) in (0, len(found)) else f"{swept} = {', '.join(where)}: {note}"


def _pace(found: Sequence[Measurement]) -> str:
    p = middle(*(m.pace for m in found))
    return (
        f"products take {p.product:.2f}, memory {p.memory:.2f}, calls {p.call:.2f}, code that ran long ago {p.code:.2f} times "
        "as long as when they were calibrated, and others empty the shared cache "
        f"{p.leaving:.2g} times as fast; so does the estimate"
    )


def _off(m: Measurement) -> Iterator[tuple[float, str]]:
    """What the estimate is wrong about, by how many seconds: operators, and what lies between them."""
    for r in m.rows:
        wrong = r.estimate - (r.measured or 0)
        if r.error is not None and abs(r.error) > OFF and abs(wrong) > OF_ALL * m.measured:
            why = "no curve of its own was calibrated" if r.alike else f"{r.binds} binds it"
            phase = f"{r.phase} " if m.phase != "forward" and r.path != r.phase else ""
            yield wrong, f"{phase}{f'{r.path} {r.op}'.strip()}: estimate {r.error:+.0%}, {_signed(wrong)}; {why}"
    wrong = m.around - m.between
    if abs(wrong) > OF_ALL * m.measured and abs(wrong) > OFF * m.between and any(r.measured for r in m.rows):
        yield wrong, f"between operators: estimate {_signed(wrong)}; modules, Python, autograd"


def _signed(x: float) -> str:
    return ("-" if x < 0 else "+") + seconds(abs(x))


_TIMES = tuple(Column(t, right=True) for t in ("bound", "estimate", "measured", "error"))


def _cells(bound: float, estimate: float, measured: float | None) -> tuple[str, ...]:
    error = f"{estimate / measured - 1:+.0%}" if measured else "-"
    return seconds(bound), seconds(estimate), seconds(measured) if measured else "-", error


def _operators(m: Measurement, brief: bool) -> Table:
    columns = (Column("module / operator"), Column("runs", right=True), *_TIMES, Column("binds"))
    lines: list[Entry] = []
    before, small = "", []
    for r in m.rows:
        if brief and max(r.estimate, r.measured or 0) < SMALL * m.measured:
            small.append(r)
            continue
        if r.phase != before and m.phase != "forward":
            lines.append(Entry("phase", (r.phase, *[""] * 6)))
        before = r.phase
        name = "  " + f"{r.path} {r.op}".strip() + ("*" if r.alike else "")
        lines.append(Entry("operator", (name, str(r.count), *_cells(r.bound, r.estimate, r.measured), r.binds)))
    if small:
        lines.append(Entry("small", (f"  {len(small)} small operators", str(sum(r.count for r in small)), *_sum(small), "")))
    near = m.between >= 0.05 * m.measured  # a smaller difference of two timings is mostly their noise
    between = (seconds(m.around), seconds(m.between), f"{m.around / m.between - 1:+.0%}" if near else "-")
    lines.append(Entry("operator", ("  between operators", "", "", *between, "overhead")))
    lines += [Entry("rule"), Entry("total", ("total", str(m.operators), *_cells(m.bound, m.estimate, m.measured), ""))]
    return Table(columns, tuple(lines))


def _sum(rows: Sequence[Row]) -> tuple[str, ...]:
    inside = [r.measured for r in rows if r.measured]
    return _cells(sum(r.bound for r in rows), sum(r.estimate for r in rows), sum(inside) or None)


def _sweep(found: Sequence[Measurement], swept: str) -> Table:
    columns = (
        Column(swept, right=True),
        Column("operators", right=True),
        *_TIMES,
        Column("overhead", right=True),
        Column("binds"),
    )
    lines = []
    for m in found:
        share = overhead(m) / m.estimate if m.estimate else 0.0
        cells: tuple[Cell, ...] = (
            str(m.sizes[swept]),
            str(m.operators),
            *_cells(m.bound, m.estimate, m.measured),
            f"{share:.0%}",
        )
        lines.append(Entry("operator", (*cells, binds(m))))
    return Table(columns, tuple(lines))


def overhead(m: Measurement) -> float:
    """Seconds of the estimate that no work is done in."""
    return m.estimate - sum(r.parts.kernel - r.parts.call + r.parts.cold + r.parts.fresh for r in m.rows)


def binds(m: Measurement) -> str:
    """What takes most of the estimated time."""
    if overhead(m) > m.estimate / 2:
        return "overhead"
    share = {b: sum(r.estimate for r in m.rows if r.binds == b) for b in ("memory", "compute")}
    return max(share, key=lambda b: share[b])


def _beyond(m: Measurement) -> bool:
    """Whether the measured time is outside the error bar of the estimate."""
    return abs(m.summary.total_error) > m.summary.error_bar


def _result(found: Sequence[Measurement], swept: str) -> Iterator[Fact]:
    m = found[0]
    if swept:
        ruled = [x.sizes[swept] for x in found if binds(x) == "overhead"]
        yield Fact("overhead rules", f"up to {swept} = {max(ruled)}" if ruled else f"nowhere in this range of {swept}")
    if not all(x.summary.verdict for x in found):
        yield Fact("verdict", f"none: {no_verdict(found)}")
        return
    if swept:
        errors = sorted(abs(x.summary.total_error) for x in found)
        beyond = ", ".join(str(x.sizes[swept]) for x in found if _beyond(x))
        outside = f"; outside the error bar at {swept} = {beyond}: the calibration does not explain these" if beyond else ""
        yield Fact(
            "verdict", f"total within {errors[-1]:.0%} everywhere, {errors[len(errors) // 2]:.0%} in the median{outside}"
        )
        return
    s = m.summary
    bar = f"estimate {seconds(m.estimate)} +- {s.error_bar:.0%}, measured {seconds(m.measured)} (spread {s.noise:.0%})"
    far = "; that is outside the error bar: the calibration does not explain this step" if _beyond(m) else ""
    yield Fact("verdict", f"total {s.total_error:+.1%}; {bar}{far}")
    yield Fact("operators", f"of 1 % of the time and more: median error {s.median_error:.0%}, within 10 %: {s.within_10:.0%}, "
                            f"within 25 %: {s.within_25:.0%}")  # fmt: skip
    yield from (Fact("off", text) for _, text in sorted(_off(m), key=lambda x: -abs(x[0]))[:3])
    broken = [r for r in m.rows if r.violated > max(s.noise, 0.02)]
    yield Fact("bounds", "all hold" if not broken else "; ".join(f"{r.path} {r.op} is {r.violated:.0%} below" for r in broken))
    by = {b: sum(r.measured or 0 for r in m.rows if r.binds == b) for b in ("overhead", "memory", "compute")}
    yield Fact(
        "binds",
        ", ".join(f"{b} {v / m.measured:.0%}" for b, v in by.items()) + f", between operators {m.between / m.measured:.0%}",
    )


def _parts(m: Measurement, reason: Why) -> Table:
    columns = (Column("where the time goes"), Column("time", right=True), Column("share", right=True))
    shown = [(p.words, p.seconds if abs(p.seconds) >= NONE else 0.0) for p in reason.parts]
    lines = [Entry("operator", (words, seconds(s), f"{s / m.measured:.1%}")) for words, s in shown]
    return Table(columns, (*lines, Entry("rule"), Entry("total", ("measured", seconds(m.measured), "100.0%"))), "why")


# ------------------------------------------------------------------------------------------------------------------ data

_HEAD = ("phase", "path", "operator", "count", "bound", "estimate", "measured", "error", "binds", "sizes")


def _rows(found: Sequence[Measurement], reason: Why | None) -> Iterator[tuple[Any, ...]]:
    """A row for every operator; with --why also one for every part of the whole, and a column that tells them apart."""
    if reason is None:
        yield _HEAD
        for m in found:
            yield from (*(_flat(m, r) for r in m.rows), _total(m))
        return
    m = found[0]
    yield ("table", *_HEAD)
    yield from (("operators", *row) for row in (*(_flat(m, r) for r in m.rows), _total(m)))
    for p in reason.parts:
        known = {"path": p.words, "operator": p.key, "measured": p.seconds, "sizes": _sizes(m)}
        yield ("why", *(known.get(column) for column in _HEAD))


def _sizes(m: Measurement) -> str:
    return ",".join(f"{n}={v}" for n, v in m.sizes.items())


def _flat(m: Measurement, r: Row) -> tuple[Any, ...]:
    return (r.phase, r.path, r.op, r.count, r.bound, r.estimate, r.measured, r.error, r.binds, _sizes(m))


def _total(m: Measurement) -> tuple[Any, ...]:
    return ("", "", "total", m.operators, m.bound, m.estimate, m.measured, m.summary.total_error, "", _sizes(m))


def _data(found: Sequence[Measurement], swept: str, reason: Why | None) -> dict[str, Any]:
    points = [_point(m) for m in found]
    first = points[0]
    out: dict[str, Any] = {"schema": SCHEMA, "name": found[0].name, "phase": found[0].phase, "swept": swept, **first}
    if swept:
        out["points"] = points
    if reason is not None:
        out["why"] = {"parts": {p.key: p.seconds for p in reason.parts}, "advice": reason.advice}
    return out


def _point(m: Measurement) -> dict[str, Any]:
    s = m.summary
    seen = any(r.measured is not None for r in m.rows)  # in a sweep operators are not timed
    return {
        "sizes": dict(m.sizes),
        "summary": {
            "total_error": s.total_error, "median_error": s.median_error if seen else None,
            "within_10": s.within_10 if seen else None, "within_25": s.within_25 if seen else None,
            "bound_violations": s.bound_violations if seen else None, "noise": s.noise, "error_bar": s.error_bar,
            "loaded": s.loaded, "verdict": s.verdict,
        },
        "total": {"bound": m.bound, "estimate": m.estimate, "measured": m.measured, "between": m.between if seen else None,
                  "between_estimate": m.around},
        "pace": {k: getattr(m.pace, k) for k in ("product", "memory", "call", "leaving", "code")},
        "operators": [
            {"phase": r.phase, "path": r.path, "op": r.op, "count": r.count, "bound": r.bound, "estimate": r.estimate,
             "measured": r.measured, "error": r.error, "binds": r.binds, "alike": r.alike} for r in m.rows
        ],
        "notes": list(m.notes),
    }  # fmt: skip


def no_verdict(found: Sequence[Measurement]) -> str:
    """Why there is none."""
    if all(m.summary.sound for m in found):
        return "the machine was not as free as when it was calibrated"
    return next(n for m in found if not m.summary.sound for n in m.notes if "no verdict" in n).partition(": no verdict")[0]


# ------------------------------------------------------------------------------------------------------------------ knee


SAME_RATE = 1e-3  # two bandwidths that differ by less are one: a chip file rounds


def _times(k: Knee, roofline: float | None) -> str:
    """The measured critical size over the solved one and that of the roofline."""
    over = ((k.solved, "the solved one"), (roofline, "the roofline's"))
    return "".join(f", {k.value / of:.2f} times {name}" for of, name in over if of and k.value)


def _solved(k: Knee) -> str:
    """Where the estimated curve's parts cross, and what its ends come to."""
    if k.solved is None:
        return "none: the estimated curve has no two parts"
    moved, done = ([sum(getattr(r, what) for r in m.rows) / m.estimate for m in k.measurements] for what in ("nbytes", "flops"))
    best = max(range(len(done)), key=lambda i: done[i])
    first, most = (f"{k.unknown} = {k.points[i][0]}" for i in (0, best))
    rates = f"{first} moves {si(moved[0], 'B/s')}, {most} does {si(done[best], 'FLOP/s')}"
    return f"{k.unknown} = {plain_number(k.solved)}, for what operators were calibrated to reach here: {rates}"


def knee_data(k: Knee, roofline: float | None) -> dict[str, Any]:
    """The same as numbers; seconds."""
    points = [
        {k.unknown: size, "measured": seconds, "estimate": m.estimate}
        for (size, seconds), m in zip(k.points, k.measurements, strict=True)
    ]
    verdict = all(m.summary.verdict for m in k.measurements)
    return {"measured": {
        "for": k.unknown, "roofline": roofline, "solved": k.solved, "measured": k.value, "straight": k.straight,
        "verdict": verdict, "points": points,
    }}  # fmt: skip


def knee_facts(k: Knee, roofline: float | None, rate: float, main: float) -> list[Fact]:
    """The measured critical size beside the solved one.

    Args:
        roofline: the one that is solved for the memory that the weights lie in, of `rate` bytes/s at best; the report above has
            the one for the chip's `main`.
    """
    value = "none: the curve has no two parts" if k.value is None else f"{k.unknown} = {plain_number(k.value)}"
    lines = "the lines through the first and the last three points cross"
    if not k.straight:
        lines = "the fastest run and the most work per second meet: the curve's ends are no straight lines here"
    near = "none" if roofline is None else f"{k.unknown} = {plain_number(roofline)}"
    there = f"the best kernel's rates in the main memory ({si(rate, 'B/s')}), as above"
    if abs(rate / main - 1) > SAME_RATE:
        held = "in the cache that holds the weights" if rate > main else "as calibrated"
        there = f"the best kernel's rates {held} ({si(rate, 'B/s')}); above for the main memory's ({si(main, 'B/s')})"
    facts = [
        Fact("roofline", f"{near}, for {there}"),
        Fact("solved", _solved(k)),
        Fact("measured", f"{value}{_times(k, roofline)}; where {lines}"),
        Fact("points", ", ".join(f"{v}: {seconds(t)}" for v, t in k.points)),
        Fact("estimates", ", ".join(f"{v}: {seconds(m.estimate)}" for (v, _), m in zip(k.points, k.measurements, strict=True))),
    ]
    if any(not m.summary.verdict for m in k.measurements):
        facts.append(Fact("verdict", f"none: {no_verdict(k.measurements)}"))
    return facts
