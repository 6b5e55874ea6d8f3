"""What a student has done: parts that were right, hints that were shown. One small file in the user's own state folder."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import platformdirs

from costir.exercises.records import Exercise

MOST_HINTS = 1000


def state_path() -> Path:
    """Where it is kept: `exercises.json` in the state folder of the platform, or in $COSTIR_STATE."""
    folder = os.environ.get("COSTIR_STATE") or platformdirs.user_state_dir("costir", appauthor=False)
    return Path(folder) / "exercises.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """Right parts and hints seen, by bank and exercise.

    Attributes:
        right, hints: of all banks, as they are kept.
        bank: the key of the bank that is asked about, see `Bank.key`; "" for the built-in one.
    """

    right: Mapping[str, tuple[str, ...]]
    hints: Mapping[str, int]
    bank: str = ""

    def _key(self, exercise: str) -> str:
        return f"{self.bank}#{exercise}" if self.bank else exercise

    def done(self, exercise: Exercise) -> bool:
        """Whether all parts that can be checked were right."""
        asked = {p.ident for p in exercise.parts if p.kind != "open"}
        return bool(asked) and asked <= set(self.right.get(self._key(exercise.ident), ()))

    def was_right(self, exercise: str, part: str) -> bool:
        """Whether a part was right before."""
        return part in self.right.get(self._key(exercise), ())

    def hints_seen(self, exercise: str) -> int:
        """How many hints were shown."""
        return self.hints.get(self._key(exercise), 0)

    def with_right(self, exercise: str, part: str) -> Progress:
        """With one more part that was right."""
        key = self._key(exercise)
        return replace(self, right={**self.right, key: tuple(dict.fromkeys((*self.right.get(key, ()), part)))})

    def with_hint(self, exercise: str) -> Progress:
        """With one more hint that was shown."""
        return replace(self, hints={**self.hints, self._key(exercise): self.hints_seen(exercise) + 1})


def load(bank: str = "") -> tuple[Progress, str]:
    """What was kept, and what there is to say about it, or "".

    A file that cannot be understood is put aside, so that nothing is written over it.
    """
    path = state_path()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        right = {str(k): tuple(str(p) for p in v) for k, v in data["right"].items()}
        return Progress(right, {str(k): _count(v) for k, v in data["hints"].items()}, bank), ""
    except FileNotFoundError:
        return Progress({}, {}, bank), ""
    except OSError as error:
        return Progress({}, {}, bank), f"progress cannot be read from {path}: {(error.strerror or str(error)).lower()}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Progress({}, {}, bank), _put_aside(path)


def _count(value: object) -> int:
    """A number of hints, whatever somebody wrote there."""
    if not isinstance(value, (int, float)):
        raise TypeError
    return int(min(max(value, 0), MOST_HINTS)) if value == value else 0


def _put_aside(path: Path) -> str:
    beside = next(
        p for i in itertools.count(1) if not (p := path.with_name(f"{path.name}.broken{i if i > 1 else ''}")).exists()
    )
    try:
        path.replace(beside)
    except OSError as error:
        return f"{path} is broken and stays in the way: {(error.strerror or str(error)).lower()}"
    return f"{path.name} is broken, so progress begins anew; what it held is kept in {beside}"


def save(progress: Progress) -> str:
    """Keep it. Returns why it could not be kept, or ""."""
    path = state_path()
    text = json.dumps({"right": {k: list(v) for k, v in progress.right.items()}, "hints": dict(progress.hints)}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        return f"progress cannot be kept in {path}: {(error.strerror or str(error)).lower()}"
    return ""
