"""What a student has done: parts that were right, hints that were shown. One small file in the user's own state folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from costir.exercises.records import Exercise


def state_path() -> Path:
    """Where it is kept: `exercises.json` in the state folder of the platform, or in $COSTIR_STATE."""
    folder = os.environ.get("COSTIR_STATE") or platformdirs.user_state_dir("costir", appauthor=False)
    return Path(folder) / "exercises.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """Right parts and hints seen, by exercise."""

    right: Mapping[str, tuple[str, ...]]
    hints: Mapping[str, int]

    def done(self, exercise: Exercise) -> bool:
        """Whether all parts that can be checked were right."""
        asked = {p.ident for p in exercise.parts if p.kind != "open"}
        return bool(asked) and asked <= set(self.right.get(exercise.ident, ()))

    def with_right(self, exercise: str, part: str) -> Progress:
        """With one more part that was right."""
        parts = tuple(dict.fromkeys((*self.right.get(exercise, ()), part)))
        return Progress({**self.right, exercise: parts}, self.hints)

    def with_hint(self, exercise: str) -> Progress:
        """With one more hint that was shown."""
        return Progress(self.right, {**self.hints, exercise: self.hints.get(exercise, 0) + 1})


def load() -> Progress:
    """What was kept; nothing where there is no file, or one that cannot be read."""
    try:
        data = json.loads(state_path().read_text(encoding="utf-8"))
        right = {str(k): tuple(str(p) for p in v) for k, v in data["right"].items()}
        return Progress(right, {str(k): int(v) for k, v in data["hints"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Progress({}, {})


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
