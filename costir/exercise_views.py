"""What `costir exercise` shows: lists, prompts, verdicts, hints, solutions, grades."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from costir.exercises.checker import Verdict, figure, reference_of
from costir.exercises.grade import Grades
from costir.exercises.messages import message
from costir.exercises.progress import Progress
from costir.exercises.records import Exercise, Letter, Part
from costir.exercises.vetting import Fault
from costir.page import Column, Document, Entry, Fact, Table
from costir.render import View
from costir.symbolic import show

ANSWER_SHOWN = 48
_STYLE = {"right": "operator", "rounding": "operator", "wrong": "unknown", "unreadable": "unknown"}


_PLAIN_NUMBER = re.compile(r"[-+][0-9.]+(e[-+]?[0-9]+)?", re.IGNORECASE)


def _cells(rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Lines of a CSV file. A spreadsheet runs what begins with "=" and the like, so a ' is put before, which makes it text."""
    return [[f"'{c}" if isinstance(c, str) and _is_run(c) else c for c in row] for row in rows]


def _is_run(cell: str) -> bool:
    return cell.lstrip()[:1] in tuple("=+-@") and _PLAIN_NUMBER.fullmatch(cell) is None


def listing(exercises: Sequence[Exercise], progress: Progress, lang: str) -> View:
    """A line per exercise."""
    say = functools.partial(message, lang=lang)
    rows = [
        (e.ident, e.title.say(lang), ", ".join(p.ident for p in e.parts), say("done") if progress.done(e) else "")
        for e in exercises
    ]
    columns = (Column("id"), Column(say("chapter")), Column(say("parts"), formula=True), Column(say("done")))
    table = Table(columns, tuple(Entry("operator", r) for r in rows))
    data = {
        "schema": "costir/exercises/1",
        "exercises": [{**_record(e, lang), "done": progress.done(e)} for e in exercises],
    }
    head = ("id", "chapter", "parts", "done")
    return View(lambda: Document(say("list"), (), (table,)), lambda: data, lambda: _cells([head, *rows]))


def _record(e: Exercise, lang: str) -> dict[str, Any]:
    return {
        "id": e.ident, "chapter": e.title.say(lang), "source": e.source, "prompt": e.prompt.say(lang),
        "symbols": {n: {"meaning": x.words.say(lang), "unit": x.unit, "value": None if x.value is None else float(x.value)}
                    for n, x in e.letters.items()},
        "parts": [{"id": p.ident, "ask": p.ask.say(lang), "kind": p.kind, "unit": p.unit,
                   "choices": {c.ident: c.words.say(lang) for c in p.choices}} for p in e.parts],
    }  # fmt: skip


def card(e: Exercise, lang: str) -> View:
    """The prompt, the letters and what is asked."""
    return View(
        lambda: _card(e, lang), lambda: {"schema": "costir/exercise/1", **_record(e, lang)}, lambda: _cells(_card_rows(e, lang))
    )


def _card(e: Exercise, lang: str) -> Document:
    say = functools.partial(message, lang=lang)
    head = [Fact("", line) for line in e.prompt.say(lang).splitlines() if line.strip()]
    letters = [(n, _given(x), x.words.say(lang)) for n, x in e.letters.items()]
    tables = (
        [Table((Column(say("letters")), Column(""), Column("", formula=True)), tuple(Entry("operator", r) for r in letters))]
        if letters
        else []
    )
    asked = [(p.ident, p.ask.say(lang), _kind(p, lang)) for p in e.parts]
    tables.append(
        Table(
            (Column(say("asked")), Column("", formula=True), Column("", formula=True)),
            tuple(Entry("operator", r) for r in asked),
        )
    )
    source = [Fact(say("source"), e.source)] if e.source else []
    how = Fact(say("how"), f"costir exercise check {e.ident} {e.parts[0].ident}=...")
    return Document(f"{e.ident}, {e.title.say(lang)}", tuple(head), tuple(tables), (*source, how))


def _given(x: Letter) -> str:
    """= 8.1e11 byte/s, or the unit alone."""
    if x.value is None:
        return x.unit
    text = f"{float(x.value):.10g}" if 1e-3 <= x.value < 10**6 else re.sub(r"\.?0*e([-+])0*", r"e\1", f"{float(x.value):.9e}")
    return f"= {text.replace('e+', 'e')} {x.unit}".rstrip()


def _kind(p: Part, lang: str) -> str:
    """What form the answer has."""
    if p.kind == "choice":
        return " | ".join(f"{c.ident}: {c.words.say(lang)}" for c in p.choices)
    return f"[{p.unit}]" if p.unit and p.unit != "1" else ""


def _card_rows(e: Exercise, lang: str) -> list[Sequence[Any]]:
    return [
        ("exercise", "part", "ask", "kind", "unit"),
        *((e.ident, p.ident, p.ask.say(lang), p.kind, p.unit) for p in e.parts),
    ]


def verdicts(found: Sequence[Verdict], lang: str) -> View:
    """What came of some answers."""
    data = {"schema": "costir/verdicts/1", "verdicts": [as_data(v) for v in found], "right": all(v.right for v in found)}
    head = ("exercise", "part", "answer", "verdict", "diagnosis", "message")
    rows = [(v.exercise, v.part, v.answer, v.verdict, v.diagnosis, v.message) for v in found]
    return View(lambda: _verdicts(found, lang), lambda: data, lambda: _cells([head, *rows]))


def as_data(v: Verdict) -> dict[str, Any]:
    """A verdict for JSON."""
    return {
        "exercise": v.exercise, "part": v.part, "answer": v.answer, "verdict": v.verdict, "diagnosis": v.diagnosis,
        "key": v.key, "message": v.message, "notes": list(v.notes),
    }  # fmt: skip


def _verdicts(found: Sequence[Verdict], lang: str) -> Document:
    facts: list[Fact] = []
    for v in found:
        facts.append(Fact(v.part or message("answer", lang), v.message))
        facts += [Fact(message("read_as", lang), n) for n in v.notes]
    return Document(found[0].exercise if found else "", tuple(facts))


def hint(e: Exercise, index: int, lang: str) -> View:
    """One hint, counted from 0; the last one again where there are no more."""
    say = functools.partial(message, lang=lang)
    count = len(e.hints)
    if not count:
        return View(
            lambda: Document(e.ident, (Fact(say("hint"), say("no_hints")),)), lambda: {"id": e.ident, "hint": ""}, lambda: []
        )
    index = min(index, count - 1)
    text = e.hints[index].say(lang)
    after = Fact("", say("more_hints" if index + 1 < count else "last_hint", id=e.ident))
    label = say("hint_of", number=index + 1, count=count)
    data = {"schema": "costir/hint/1", "id": e.ident, "number": index + 1, "count": count, "hint": text}
    return View(
        lambda: Document(e.ident, (Fact(label, text),), (), (after,)), lambda: data,
        lambda: _cells([("id", "number", "hint"), (e.ident, index + 1, text)]),
    )  # fmt: skip


def faults(found: Sequence[tuple[Exercise, Fault]], count: int) -> View:
    """What is wrong with a bank of so many exercises; its author reads it, so it is in the language of error messages."""
    lines = [(e.ident, f.where, f.message, f.hint) for e, f in found]
    head = ("exercise", "where", "fault", "hint")
    data = {"schema": "costir/faults/1", "exercises": count, "faults": [dict(zip(head, line, strict=True)) for line in lines]}
    said = f"faults found: {len(found)}, exercises read: {count}" if found else f"no fault found, exercises read: {count}"
    tables = (Table(tuple(Column(h) for h in head), tuple(Entry("operator", line) for line in lines)),) if found else ()
    return View(lambda: Document(said, (), tables), lambda: data, lambda: _cells([head, *lines]))


def solution(e: Exercise, lang: str) -> View:
    """Step by step, then each part's answer and where costir derives it from."""
    answers = [(p, _answer(e, p, lang)) for p in e.parts]
    data = {
        "schema": "costir/solution/1", "id": e.ident, "steps": [s.say(lang) for s in e.solution],
        "answers": {p.ident: a for p, a in answers}, "derived": {p.ident: _derivation(p) for p, _ in answers if p.derive},
    }  # fmt: skip
    rows = [("id", "part", "answer"), *((e.ident, p.ident, a) for p, a in answers)]
    return View(lambda: _solution(e, answers, lang), lambda: data, lambda: _cells(rows))


def _solution(e: Exercise, answers: Sequence[tuple[Part, str]], lang: str) -> Document:
    say = functools.partial(message, lang=lang)
    head = [Fact(f"{i + 1}.", s.say(lang)) for i, s in enumerate(e.solution)]
    lines = [(p.ident, a) for p, a in answers]
    table = Table((Column(say("answer")), Column("")), tuple(Entry("operator", r) for r in lines))
    facts: list[Fact] = []
    for p, _ in answers:
        for o in p.others:
            if o.kind != "mistake":
                value = next(k for k in reference_of(e, p).others if k.other is o)
                shown = _shown(value.expr, value.number, o.answer, p)
                facts.append(
                    Fact(say("also" if o.kind == "convention" else "printed"), f"{p.ident}: {shown}, {o.words.say(lang)}")
                )
        if p.derive:
            facts.append(Fact(say("derived"), f"{p.ident}: {_derivation(p)}"))
    order = [say("also"), say("printed"), say("derived")]
    return Document(
        f"{e.ident}, {say('solution')}", tuple(head), (table,), tuple(sorted(facts, key=lambda f: order.index(f.label)))
    )


def _answer(e: Exercise, p: Part, lang: str) -> str:
    if p.kind == "choice":
        return "; ".join(c.words.say(lang) for c in p.choices if c.right)
    if p.kind == "open":
        return "-"
    known = reference_of(e, p).right
    return _shown(known.expr, known.number, p.answer, p)


def _shown(expr: Any, value: Any, text: str, p: Part) -> str:
    """C/(2*W) = 243.2 token."""
    from costir.exercises.reference import unit_of

    unit = f" {p.unit}" if p.unit and p.unit != "1" else ""
    written = text or show(expr)
    if value is None:
        return f"{written}{unit}"
    shown = f"{figure(value / unit_of(p.unit).scale)}{unit}"
    plain = not expr.free_symbols and written.strip().replace(".", "").isdigit()
    return shown if plain else f"{written} = {shown}"


def _derivation(p: Part) -> str:
    """In one line: what the engine is asked, and what is made of it."""
    spec = p.derive
    parts = [f"{n} = {_quantity(q)}" for n, q in spec["let"].items()]
    if "cross" in spec:
        parts.append(f"{' = '.join(str(c) for c in spec['cross'])} solved for {spec['for']}")
    if "formula" in spec:
        parts.append(str(spec["formula"]))
    if "large" in spec:
        parts.append(f"limit of large {', '.join(spec['large'])}")
    return "; ".join(parts)


_ASIDE = ("dtype", "count", "attention", "phase", "op", "parallel", "plan", "algorithm")


def _quantity(q: Any) -> str:
    if not isinstance(q, Mapping):
        return str(q)
    if "cross" in q:
        return f"{' = '.join(str(c) for c in q['cross'])} solved for {q['for']}"
    own = "." in q["quantity"]  # a number of the chip
    what = "" if own else q.get("subject") or (f"{q['collective']} of {q.get('bytes')} bytes" if "collective" in q else "")
    on = f" on {q['chip']}" if "chip" in q and what else ""
    rest = [f"{k} {v}" for k, v in q.items() if k in _ASIDE and not own]
    rest += [f"over {', '.join(q['over'])}"] if "over" in q else []
    given = {**({} if own else {**q.get("mesh", {}), **q.get("sizes", {})}), **q.get("set", {})}
    tail = f" ({', '.join([*rest, *(f'{n} = {v}' for n, v in given.items())])})" if rest or given else ""
    return f"{q['quantity']} of {what or q.get('chip')}{on}{tail}"


def grades(found: Grades, lang: str, brief: bool = True) -> View:
    """Scores by student, then the answers that are not right (or all)."""
    data = {
        "schema": "costir/grades/1", "right": found.all_right,
        "students": {s: {"right": r, "answered": n} for s, (r, n) in found.by_student().items()},
        "answers": [{"student": g.student, **as_data(g.verdict)} for g in found.rows],
    }  # fmt: skip
    head = ("student", "exercise", "part", "answer", "verdict", "diagnosis", "message")
    rows = lambda: _cells([head, *([g.student, *(getattr(g.verdict, c) for c in head[1:])] for g in found.rows)])
    return View(lambda: _grades(found, lang, brief), lambda: data, rows)


def _grades(found: Grades, lang: str, brief: bool) -> Document:
    say = functools.partial(message, lang=lang)
    scores = [
        Entry("operator", (student or "-", str(right), str(count), f"{100 * right / count:.0f} %"))
        for student, (right, count) in found.by_student().items()
    ]
    columns = (Column(say("student")), *(Column(say(k), right=True) for k in ("score", "answered", "share")))
    lines = tuple(Entry(_STYLE.get(v.verdict, "operator"), cells) for v, cells in _detail(found, brief))
    names = (
        Column(say("student")),
        Column("id"),
        Column(say("typed")),
        Column(say("verdict")),
        Column(say("says"), formula=True),
    )
    tables = [Table(columns, tuple(scores))]
    if lines:
        tables.append(Table(names, lines, say("not_right") if brief else ""))
    return Document(say("grades"), (), tuple(tables))


def _detail(found: Grades, brief: bool) -> Iterator[tuple[Verdict, tuple[str, ...]]]:
    for g in found.rows:
        v = g.verdict
        if not (brief and v.right):
            typed = " ".join(c for c in v.answer[:ANSWER_SHOWN].split() if c.isprintable())
            name = f"{v.exercise}.{v.part}" if v.part else v.exercise
            yield (
                v,
                (g.student or "-", name, typed, v.verdict, v.diagnosis if v.diagnosis and v.verdict == "wrong" else v.message),
            )
