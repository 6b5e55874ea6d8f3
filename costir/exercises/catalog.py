"""The bank: exercises as YAML, checked against `schema.json`, as frozen records.

The built-in bank is one file for each prefix of an id, so that one exercise is found without reading them all.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from costir.chip import FrozenMap
from costir.errors import CostirError, nearest
from costir.exercises import vetting, yamlfile
from costir.exercises.quantities import exact
from costir.exercises.records import Choice, Exercise, Letter, Other, Part, Words

BUILT_IN = Path(__file__).parent / "bank"
# In the order of the book: the lessons first.
ORDER = ("seed", "rl", "tpu", "sh", "tf", "tr", "at", "inf", "ai", "pr", "jax", "gpu")
_FALLBACK_TOLERANCE = {"number": Fraction(1, 20), "bound": Fraction(1, 20)}
NOTHING: FrozenMap[Any] = FrozenMap({})


class Bank:
    """Exercises by id.

    Args:
        path: a user's own bank, or None for the built-in one.
        trusted: whether Python files that the bank names may be run; the built-in one is.

    Raises:
        CostirError: where a file cannot be read or breaks the format; the message says where.
    """

    def __init__(self, path: str | Path | None = None, trusted: bool = False) -> None:
        self.path = None if path is None else Path(path)
        self._all: dict[str, Exercise] | None = None if self.path is None else _own(self.path, trusted)

    @property
    def key(self) -> str:
        """What tells banks apart where progress is kept: the whole path, "" for the built-in one."""
        return "" if self.path is None else str(self.path.resolve())

    def exercises(self) -> Mapping[str, Exercise]:
        """All exercises, in order."""
        if self._all is None:
            self._all = {e.ident: e for prefix in ORDER for e in _file(BUILT_IN / f"{prefix}.yaml").values()}
        return self._all

    def find(self, ident: str) -> Exercise:
        """The exercise of an id.

        Raises:
            CostirError: for an id that there is not, with the nearest ones.
        """
        found = self._get(ident.strip())
        if found is None:
            raise CostirError(f"no exercise {ident.strip()[:60]!r}", nearest(ident.strip()[:60], self.exercises()))
        return found

    def _get(self, name: str) -> Exercise | None:
        if self._all is not None:
            return self._all.get(name)
        prefix = name.partition(".")[0]
        return _file(BUILT_IN / f"{prefix}.yaml").get(name) if prefix in ORDER else None

    def locate(self, text: str) -> tuple[Exercise, str]:
        """The exercise and the part that "rl.q1" or "rl.q1.intensity" names; "" where no part is named."""
        names = text.strip().split(".")
        for count in range(len(names), 0, -1):
            found = self._get(".".join(names[:count]))
            if found is not None:
                return found, ".".join(names[count:])
        return self.find(text), ""


@functools.cache
def built_in() -> Bank:
    """The bank that comes with costir."""
    return Bank()


def _own(path: Path, trusted: bool) -> dict[str, Exercise]:
    """A bank that nobody vouches for: looked at whole before anything is made of it."""
    found = records_of(path)
    for exercise in found.values():
        for fault in vetting.faults(exercise, trusted):
            raise CostirError(f"{path.name}, exercise {exercise.ident}, {fault.where}: {fault.message}", fault.hint)
    return found


def records_of(path: Path) -> dict[str, Exercise]:
    """The exercises of a user's own bank, checked against the schema alone.

    Raises:
        CostirError: where the file cannot be read or breaks the schema.
    """
    data = yamlfile.read(path)
    validate(data, path.name)
    return _records(data, path)


@functools.cache
def _file(path: Path) -> dict[str, Exercise]:
    return _records(yamlfile.read(path), path)


def _records(data: Mapping[str, Any], path: Path) -> dict[str, Exercise]:
    chapter = data.get("chapter", "")
    out: dict[str, Exercise] = {}
    for record in data["exercises"]:
        try:
            exercise = _exercise(record, chapter, path)
        except CostirError as error:
            raise CostirError(f"{path.name}, exercise {record['id']}: {error.message}", error.hint) from error
        if exercise.ident in out:
            raise CostirError(f"{path.name} has exercise {exercise.ident} twice", "ids must differ")
        out[exercise.ident] = exercise
    return out


def validate(data: Any, name: str) -> None:
    """Check data against the schema.

    Raises:
        CostirError: with the place of the first fault, in words.
    """
    import jsonschema

    schema = json.loads((Path(__file__).parent / "schema.json").read_text(encoding="utf-8"))
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(data))
    if error is None:
        return
    place = list(error.absolute_path)
    if len(place) > 1 and place[0] == "exercises" and isinstance(data["exercises"][place[1]], dict):
        place[1] = str(data["exercises"][place[1]].get("id", place[1]))
    where = ".".join(str(p) for p in place) or "the top"
    raise CostirError(f"{name}, at {where}: {_in_words(error)}", "docs/exercises.md describes the format")


def _in_words(error: Any) -> str:
    """A fault that the schema found; what it says of conditions is not for people."""
    missing = {m for e in (error, *(error.context or ())) if e.validator == "required" for m in e.validator_value}
    if error.validator in ("anyOf", "required") and missing & {"answer", "derive"} and "kind" in error.instance:
        return "neither answer nor derive is there"
    if error.validator == "not":
        return "limit and exact are both there; limit goes with an exact answer, exact with a limit"
    return yamlfile.clean(str(error.message))[:200]


def _exercise(r: Mapping[str, Any], chapter: Any, path: Path) -> Exercise:
    letters = FrozenMap({n: _letter(n, v) for n, v in r.get("symbols", {}).items()})
    parts = tuple(_part(p, letters) for p in r["parts"])
    names = [p.ident for p in parts]
    if len(set(names)) < len(names):
        raise CostirError(f"two parts have one id: {', '.join(sorted(n for n in set(names) if names.count(n) > 1))}")
    prompt = _words(r["prompt"])
    return Exercise(
        r["id"], r["id"].partition(".")[0], _words(r.get("title", chapter or r["id"])), r.get("source", ""), prompt, letters,
        parts, tuple(map(_words, r.get("hints", ()))), tuple(map(_words, r.get("solution", ()))), str(path.parent),
    )  # fmt: skip


_FOLDED = re.compile(r"(?<=[\u2e80-\uffef])[ \n]+(?=[\u2e80-\uffef])")  # Chinese text has no space where a line was folded


def _words(value: Any) -> Words:
    if isinstance(value, str):
        return Words(FrozenMap({"en": value} if value else {}))
    return Words(FrozenMap({str(k): _FOLDED.sub("", str(v)).strip() for k, v in value.items()}))


def _letter(name: str, value: Any) -> Letter:
    if isinstance(value, str):
        return Letter(name, _words(value))
    unit = value.get("unit", "")
    number = exact(value["value"]) if "value" in value else None
    rate = "/" in unit or unit in ("s", "Hz", "GB")
    return Letter(
        name, _words({k: value[k] for k in ("en", "zh") if k in value}), unit, number, value.get("whole", not rate),
        value.get("devices", False),
    )  # fmt: skip


def _values(r: Mapping[str, Any]) -> FrozenMap[Fraction]:
    return FrozenMap({n: exact(v) for n, v in r.get("with", {}).items()})


def _also(r: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(a) for a in r.get("also", ()))


def _part(r: Mapping[str, Any], letters: Mapping[str, Letter]) -> Part:
    given = {n: x.value for n, x in letters.items() if x.value is not None}
    tolerance, between = r.get("tolerance"), None
    if isinstance(tolerance, list):
        between = (exact(tolerance[0]), exact(tolerance[1]))
        tolerance = None
    return Part(
        r["id"], _also(r), _words(r.get("ask", r["id"])), r["kind"], str(r.get("answer", "")),
        FrozenMap({**given, **_values(r)}), r.get("unit", ""),
        exact(tolerance) if tolerance is not None else _FALLBACK_TOLERANCE.get(r["kind"], Fraction(0)), between,
        str(r.get("limit", r.get("exact", ""))), "exact" in r, FrozenMap(_shared(r.get("derive", {}))), tuple(_others(r)),
        tuple(_choices(r)), FrozenMap({str(t): _words(w) for t, w in r.get("terms", {}).items()}),
    )  # fmt: skip


def _shared(derive: Mapping[str, Any]) -> Mapping[str, Any]:
    """A derivation with what its quantities share, `of`, in each of them."""
    common = derive.get("of", {})
    each = {
        n: {**common, **q} if common and isinstance(q, Mapping) and "cross" not in q else q
        for n, q in derive.get("let", {}).items()
    }
    return {k: each if k == "let" else v for k, v in derive.items() if k != "of"}


def _others(r: Mapping[str, Any]) -> Iterator[Other]:
    for kind, key, words in (("convention", "conventions", "name"), ("slip", "slips", "where"), ("mistake", "mistakes", "why")):
        for o in r.get(key, ()):
            yield Other(kind, str(o["answer"]), _values(o), _words(o[words]), o.get("id", ""), _also(o))


def _choices(r: Mapping[str, Any]) -> Iterator[Choice]:
    for c in r.get("choices", ()):
        ident = {True: "yes", False: "no"}.get(c["id"], str(c["id"])) if isinstance(c["id"], bool) else str(c["id"])
        yield Choice(ident, _words(c["text"]), c.get("right", False), _words(c.get("why", "")), _also(c))


_PLAIN = re.compile(r"[\W_]+")


def plain(name: str) -> str:
    """A name without case, spaces and punctuation."""
    return _PLAIN.sub("", name).casefold()


def part_of(exercise: Exercise, name: str) -> tuple[Part, Other | None]:
    """The part that a name means, and the convention where the name is that of one.

    Raises:
        CostirError: where there is none, or the beginning fits several.
    """
    wanted = name.strip()
    targets: list[tuple[str, Part, Other | None]] = []
    for p in exercise.parts:
        targets += [(n, p, None) for n in (p.ident, *p.also)]
        targets += [(n, p, o) for o in p.others if o.ident for n in (o.ident, *o.also)]
    for exactly in (lambda n: n == wanted, lambda n: plain(n) == plain(wanted), lambda n: plain(n).startswith(plain(wanted))):
        found = {(p.ident, o.ident if o else ""): (p, o) for n, p, o in targets if exactly(n)}
        if len(found) == 1:
            return next(iter(found.values()))
    raise CostirError(
        f"exercise {exercise.ident} has no part {wanted[:40]!r}", f"its parts: {', '.join(p.ident for p in exercise.parts)}"
    )
