"""An answer that is one of several to choose from, by its id or its words."""

from __future__ import annotations

from dataclasses import replace

from costir.exercises.catalog import plain
from costir.exercises.messages import message
from costir.exercises.records import Choice, Part
from costir.exercises.verdict import Verdict


def chosen(part: Part, said: Verdict, lang: str) -> Verdict:
    """The verdict on a choice; what is typed may be the beginning of one, never more than one."""
    typed = plain(said.answer)
    names = {plain(n): c for c in part.choices for n in (*c.words.by_language.values(), *c.also, c.ident)}
    found: Choice | None = names.get(typed)
    if found is None and (len(typed) >= 3 or (len(typed) == 2 and not typed.isascii())):
        begins = {id(c): c for n, c in names.items() if n.startswith(typed)}
        found = next(iter(begins.values())) if len(begins) == 1 else None
    if found is None:
        listed = "; ".join(f"{c.ident} ({c.words.say(lang)})" for c in part.choices)
        why = message("choose", lang, choices=listed)
        return replace(said, verdict="unreadable", diagnosis=why, message=message("unreadable", lang, why=why))
    if found.right:
        return replace(said, verdict="right", message=message("right", lang))
    why = found.why.say(lang)
    full = message("wrong_because", lang, why=why) if why else message("wrong", lang)
    return replace(said, diagnosis=why, message=full, key="mistake" if why else "")
