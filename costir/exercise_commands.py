"""`costir exercise ...`: parsed options in, exit code out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from costir import commands, exercise_views, exercises
from costir.errors import CostirError
from costir.exercises import catalog, progress
from costir.exercises import grade as grading
from costir.exercises.messages import language, message
from costir.exercises.records import Exercise

DONE, WRONG = 0, 1


def run(o: argparse.Namespace) -> int:
    """The verb after `exercise`."""
    if o.action is None:
        raise CostirError("costir exercise needs a verb", "list, next, show, check, hint, solution, grade or verify")
    code: int = _ACTIONS[o.action](o)
    return code


def _bank(o: argparse.Namespace) -> catalog.Bank:
    return catalog.Bank(Path(o.bank), o.trust) if o.bank else catalog.built_in()


def _state(bank: catalog.Bank) -> progress.Progress:
    state, trouble = progress.load(bank.key)
    if trouble:
        print(f"costir: {trouble}", file=sys.stderr)
    return state


def _exercise(bank: catalog.Bank, name: str) -> Exercise:
    """The exercise that is named, by itself or with one of its parts."""
    exercise, part = bank.locate(name)
    if part:
        catalog.part_of(exercise, part)
    return exercise


def _chapter(o: argparse.Namespace, bank: catalog.Bank) -> list[Exercise]:
    """The exercises of a chapter: by the first part of the id, or a word of the title."""
    every = list(bank.exercises().values())
    if not o.chapter:
        return every
    wanted = o.chapter.casefold()
    found = [e for e in every if wanted in (e.chapter.casefold(), e.ident.casefold())] or [
        e for e in every if any(wanted in t.casefold() for t in e.title.by_language.values())
    ]
    if not found:
        names = dict.fromkeys(e.chapter for e in every)
        raise CostirError(f"no chapter {o.chapter[:40]!r}", f"chapters: {', '.join(names)}")
    return found


def _list(o: argparse.Namespace) -> int:
    bank = _bank(o)
    view = exercise_views.listing(_chapter(o, bank), _state(bank), language(o.lang))
    commands.emit(view, commands.format_of(o), o)
    return DONE


def _next(o: argparse.Namespace) -> int:
    bank, lang = _bank(o), language(o.lang)
    every, state = _chapter(o, bank), _state(bank)
    following = next((e for e in every if not state.done(e) and any(p.kind != "open" for p in e.parts)), None)
    if following is None:
        print(message("all_done", lang, count=len(every)))
        return DONE
    commands.emit(exercise_views.card(following, lang), commands.format_of(o), o)
    return DONE


def _one(o: argparse.Namespace) -> int:
    """`show` and `solution`: one exercise, by its view."""
    view = exercise_views.card if o.action == "show" else exercise_views.solution
    commands.emit(view(_exercise(_bank(o), o.id), language(o.lang)), commands.format_of(o), o)
    return DONE


def _hint(o: argparse.Namespace) -> int:
    """Each call says one hint more; without a place to remember that, `hint ID 2` asks for the second."""
    bank = _bank(o)
    exercise = _exercise(bank, o.id)
    if o.number is not None and o.number < 1:
        raise CostirError(f"there is no hint {o.number}", "they are counted from 1")
    state = _state(bank)
    index = state.hints_seen(exercise.ident) if o.number is None else o.number - 1
    commands.emit(exercise_views.hint(exercise, index, language(o.lang)), commands.format_of(o), o)
    if o.number is None and index < len(exercise.hints):
        _keep(state.with_hint(exercise.ident))
    return DONE


def _check(o: argparse.Namespace) -> int:
    lang, known = language(o.lang), _bank(o)
    exercise, part = known.locate(o.id)
    if part:
        catalog.part_of(exercise, part)
    name = commands.format_of(o)
    if not o.answer and sys.stdin.isatty():
        return _asked(exercise, part, lang, known)
    typed = o.answer or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not typed:
        raise CostirError(
            "there is no answer", f"write for example: costir exercise check {exercise.ident} {exercise.parts[0].ident}=..."
        )
    found = [exercises.check(exercise.ident, text, p, lang, known) for p, text in _pairs(exercise, part, typed)]
    commands.emit(exercise_views.verdicts(found, lang), name, o)
    _remember(found, known)
    return DONE if all(v.right for v in found) else WRONG


def _pairs(exercise: Exercise, part: str, typed: Sequence[str]) -> Iterator[tuple[str | None, str]]:
    """Parts with answers: `b=...` names its part; unnamed ones are for the named part, in order, or for whichever they fit."""
    unnamed = 0
    for text in typed:
        name, equals, rest = text.partition("=")
        named = _named(exercise, name) if equals and not part else None
        if named is not None and not rest.startswith("="):
            yield named, rest
            continue
        unnamed += 1
        if part:
            yield part, text
        else:
            yield (exercise.parts[unnamed - 1].ident if len(typed) == len(exercise.parts) > 1 else None), text


def _named(exercise: Exercise, name: str) -> str | None:
    """The part that stands before an equals sign, by its whole name."""
    plain = catalog.plain(name)
    if not plain or name.rstrip()[-1:] in "<>~":
        return None
    for p in exercise.parts:
        names = [p.ident, *p.also, *(n for other in p.others if other.ident for n in (other.ident, *other.also))]
        if name.strip() in names or plain in {catalog.plain(n) for n in names}:
            return name.strip()
    return None


def _asked(exercise: Exercise, part: str, lang: str, known: catalog.Bank) -> int:
    """Ask for each part at a prompt, where no shell eats `>`; a wrong answer may be tried again."""
    from costir import render_text

    print(render_text.text(exercise_views.card(exercise, lang).document(), 100), end="")
    print(message("skip", lang))
    asked = [p for p in exercise.parts if p.kind != "open" and (not part or p.ident == part)]
    right = True
    for p in asked:
        while True:
            try:
                text = input(message("ask_part", lang, part=p.ident, ask=p.ask.say(lang)))
            except EOFError:
                print()
                return WRONG
            if not text.strip():
                right = False
                break
            verdict = exercises.check(exercise.ident, text, p.ident, lang, known)
            print(f"  {verdict.message}")
            if verdict.right:
                _remember([verdict], known)
                break
    return DONE if right else WRONG


def _remember(found: Sequence[exercises.Verdict], bank: catalog.Bank) -> None:
    state = before = _state(bank)
    for v in found:
        if v.right and v.part and not state.was_right(v.exercise, v.part):
            state = state.with_right(v.exercise, v.part)
    if state is not before:
        _keep(state)


def _keep(state: progress.Progress) -> None:
    trouble = progress.save(state)
    if trouble:
        print(f"costir: {trouble}", file=sys.stderr)


def _grade(o: argparse.Namespace) -> int:
    lang, name = language(o.lang), commands.format_of(o)
    with commands.progress(f"grading {o.file}"):
        found = grading.grade(o.file, lang, _bank(o))
    commands.emit(exercise_views.grades(found, lang, brief=not o.all), name, o)
    return DONE if found.all_right else WRONG


def _verify(o: argparse.Namespace) -> int:
    from costir.exercises import verifying

    name = commands.format_of(o)
    bank = catalog.records_of(Path(o.bank)) if o.bank else catalog.built_in().exercises()
    with commands.progress("deriving"):
        found = list(verifying.verify(bank.values(), o.trust or not o.bank))
    commands.emit(exercise_views.faults(found, len(bank)), name, o)
    return WRONG if found else DONE


_ACTIONS = {
    "list": _list, "next": _next, "show": _one, "check": _check, "hint": _hint, "solution": _one, "grade": _grade,
    "verify": _verify,
}  # fmt: skip
