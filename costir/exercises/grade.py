"""Many answers of many students, from a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costir.errors import CostirError
from costir.exercises import yamlfile
from costir.exercises.catalog import Bank, built_in
from costir.exercises.checker import Verdict, check
from costir.exercises.messages import language, message

MOST_ROWS = 1_000_000
_COLUMNS = {
    "student": "student", "name": "student", "学生": "student", "姓名": "student", "id": "id", "exercise": "id", "题号": "id",
    "练习": "id", "part": "part", "小题": "part", "小问": "part", "answer": "answer", "答案": "answer", "作答": "answer",
}  # fmt: skip
_SEPARATORS = (",", ";", "\t")


@dataclass(frozen=True, slots=True)
class Graded:
    """One answer of one student, and what came of it."""

    student: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Grades:
    """All answers of a file, in its order."""

    rows: tuple[Graded, ...]

    @property
    def all_right(self) -> bool:
        """Whether every answer is right."""
        return all(r.verdict.right for r in self.rows)

    def by_student(self) -> Mapping[str, tuple[int, int]]:
        """Right answers and answers, by student."""
        out: dict[str, tuple[int, int]] = {}
        for r in self.rows:
            right, count = out.get(r.student, (0, 0))
            out[r.student] = (right + r.verdict.right, count + 1)
        return out


Row = tuple[str, str, str, str]  # student, exercise, part, answer


def grade(path: str | Path, lang: str | None = None, bank: Bank | None = None) -> Grades:
    """Check every answer of a file.

    Args:
        path: `.csv` or `.tsv` with columns student, id, part, answer (student and part may be left out), separated by commas,
            semicolons or tabs; or `.yaml` or `.json`: a list of
            records with these names, `{student: {id: {part: answer}}}`, or `{id: {part: answer}}`; a single answer may stand
            for the parts.
        lang: "en" or "zh".
        bank: a bank of one's own.

    Raises:
        CostirError: where the file cannot be read or holds no answers. A single answer never stops the others.
    """
    file, speak, known = Path(path), language(lang), bank or built_in()
    rows = list(_rows(file, known))
    if not rows:
        raise CostirError(f"{file.name} holds no answers", "docs/exercises.md shows the forms that are read")
    seen: dict[tuple[str, str, str], Verdict] = {}
    out = []
    for student, ident, part, answer in rows:
        key = (ident, part, answer)
        if key not in seen:
            seen[key] = _one(ident, part, answer, speak, known)
        out.append(Graded(student, seen[key]))
    return Grades(tuple(out))


def _one(ident: str, part: str, answer: str, lang: str, bank: Bank) -> Verdict:
    try:
        return check(ident, answer, part or None, lang, bank)
    except CostirError as error:
        said = message("unreadable", lang, why=str(error))
        return Verdict("unreadable", ident[:60], part[:60], answer, error.message, said)


def _rows(path: Path, bank: Bank) -> Iterator[Row]:
    if path.suffix.lower() in (".csv", ".tsv"):
        yield from _from_csv(path.name, yamlfile.bytes_of(path))
    elif path.suffix.lower() in (".yaml", ".yml", ".json"):
        yield from _from_data(yamlfile.read(path), path.name, bank)
    else:
        raise CostirError(f"answers cannot be read from {path.name!r}", "give a .csv, .yaml or .json file")


def _from_csv(name: str, data: bytes) -> Iterator[Row]:
    text = yamlfile.clean(_decoded(name, data).replace("\r\n", "\n").replace("\r", "\n"))
    csv.field_size_limit(10_000_000)
    first = text.lstrip("\n").partition("\n")[0]
    separator = max(_SEPARATORS, key=lambda s: len({"id", "answer"} & set(_head(first, s))))
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    head: list[str] | None = None
    try:
        for line in reader:
            if not any(c.strip() for c in line):
                continue
            if head is None:
                head = _checked_head(name, line, separator)
            else:
                row = dict(zip(head, _fitted(name, reader.line_num, line, head, separator), strict=False))
                yield (
                    row.get("student", "").strip(),
                    row.get("id", "").strip(),
                    row.get("part", "").strip(),
                    row.get("answer", ""),
                )
    except csv.Error as error:
        raise CostirError(f"{name} is no CSV: {error}", "save it as comma-separated text") from error


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-16" if data.startswith(yamlfile.UTF_16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        if data.startswith(yamlfile.UTF_16):
            raise CostirError(f"{name} is no UTF-16 text (byte {error.start})", "save it as UTF-8") from error
        return data.decode("gb18030", errors="replace")  # what spreadsheet programs save in China


def _head(line: str, separator: str) -> list[str]:
    return [_COLUMNS.get(c.strip().strip('"').strip().lower(), "") for c in line.split(separator)]


def _checked_head(name: str, line: list[str], separator: str) -> list[str]:
    head = _head(separator.join(line).rstrip(separator + " "), separator)
    if "id" not in head or "answer" not in head:
        raise CostirError(f"{name} has the columns {', '.join(line)[:80]!r}", "it needs id and answer; also student, part")
    for column in head:
        if column and head.count(column) > 1:
            raise CostirError(f"{name} has two columns for {column}", "keep one")
    return head


def _fitted(name: str, number: int, line: list[str], head: list[str], separator: str) -> list[str]:
    """The cells of a line; commas that the last column, the answer, has of its own are put back."""
    line = line[: max(len(head), *(i + 1 for i, c in enumerate(line) if c.strip()))]
    if len(line) <= len(head):
        return line
    if head[-1] != "answer":
        raise CostirError(
            f"{name}, line {number} has {len(line)} cells under {len(head)} columns",
            'write answers that have commas in quotes, "max(a, b)", or make answer the last column',
        )
    return [*line[: len(head) - 1], separator.join(line[len(head) - 1 :])]


def _from_data(data: Any, name: str, bank: Bank) -> Iterator[Row]:
    if isinstance(data, list):
        for i, record in enumerate(data):
            if not isinstance(record, Mapping) or not {"answer"} <= set(record) or not {"id", "exercise"} & set(record):
                raise CostirError(f"{name}, record {i + 1} has no id and answer", "write {student: ..., id: ..., answer: ...}")
            ident = record.get("id", record.get("exercise"))
            yield from _answers(str(record.get("student", "")), str(ident), record["answer"], str(record.get("part", "")))
        return
    if not isinstance(data, Mapping):
        raise CostirError(f"{name} holds no answers", "write {student: {id: answer}}")
    for key, value in data.items():
        if _is_exercise(str(key), bank):
            yield from _answers("", str(key), value)
        elif isinstance(value, Mapping):
            for ident, answer in value.items():
                yield from _answers(str(key), str(ident), answer)
        else:
            yield from _answers("", str(key), value)


def _is_exercise(name: str, bank: Bank) -> bool:
    try:
        bank.locate(name)
    except CostirError:
        return False
    return True


def _answers(student: str, ident: str, value: Any, part: str = "") -> Iterator[Row]:
    if isinstance(value, Mapping):
        for name, answer in value.items():
            yield student, ident, str(name), _text(answer)
    else:
        yield student, ident, part, _text(value)


def _text(answer: Any) -> str:
    """An answer as it would be typed: YAML reads no as False."""
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        return ", ".join(_text(a) for a in answer)
    return "" if answer is None else str(answer)
