"""The examples in Markdown files: found, run, and written back with what they print now.

- ```console: lines that begin with `$ ` are run, what follows is their output. `$ costir ...` runs in this process;
  `| head -n 20` and other filters work as in a shell.
- ```python: with `>>> ` prompts, as doctest reads them; without, it is run, and must not raise. Blocks share names.
- ```bash and ```sh: `costir ...` lines are run and must end well; other lines set machines up and are not run here.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costir import cli

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """One fenced block of a file: its language, text, and line."""

    language: str
    text: str
    line: int


def blocks(markdown: str) -> list[Block]:
    """The fenced blocks with a language, in order."""
    return [Block(m[1], m[2], markdown[: m.start()].count("\n") + 2) for m in BLOCK.finditer(markdown)]


def refreshed(markdown: str, folder: Path) -> str:
    """The file with every example's output as it is now; `folder` holds what the examples read."""
    names: dict[str, Any] = {}
    with _inside(folder):
        return BLOCK.sub(lambda m: f"```{m[1]}\n{_run(m[1], m[2], names)}```", markdown)


def _run(language: str, text: str, names: dict[str, Any]) -> str:
    if language == "console":
        return "".join(f"$ {c}\n{console(c)}" for c in commands(text))
    if language == "python" and ">>> " in text:
        return session(text, names)
    if language == "python":
        exec(compile(text, "<example>", "exec", dont_inherit=True), names)
    if language in ("bash", "sh"):
        for command in text.replace("\\\n", " ").splitlines():
            if command.startswith("costir "):
                console(command, must_end_well=True)
    return text


def commands(text: str) -> list[str]:
    """The commands of a console block."""
    return [line[2:] for line in text.splitlines() if line.startswith("$ ")]


def console(command: str, must_end_well: bool = False) -> str:
    """What a command prints to stdout, in the order of a terminal's lines."""
    first, _, rest = command.partition(" | ")
    words = shlex.split(first, comments=True)
    if words[:1] != ["costir"]:
        return _shell(command, "")
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), _once_each():
        code = cli.main(words[1:])
    assert not must_end_well or code in (cli.DONE, cli.WRONG), f"{command}: {errors.getvalue()}"
    assert "Traceback" not in errors.getvalue(), errors.getvalue()
    shown = out.getvalue() + (errors.getvalue() if code == cli.BAD_INPUT else "")
    return _lines(_shell(rest, shown) if rest else shown)


_ANALYSES: dict[str, Any] = {}


@contextlib.contextmanager
def _once_each() -> Iterator[None]:
    """Commands that analyse the same example under the same conditions share the analysis, which cannot be changed."""
    from costir import api

    real = api.analyze

    def analyze(subject: Any, *args: Any, **options: Any) -> Any:
        if not str(subject).startswith("examples/"):
            return real(subject, *args, **options)
        key = repr((subject, args, sorted(options.items())))
        if key not in _ANALYSES:
            _ANALYSES[key] = real(subject, *args, **options)
        return _ANALYSES[key]

    api.analyze = analyze
    try:
        yield
    finally:
        api.analyze = real


def _shell(command: str, given: str) -> str:
    return subprocess.run(["bash", "-c", command], input=given, capture_output=True, text=True, check=False, timeout=60).stdout


def _lines(text: str) -> str:
    """Without spaces at the ends of lines and empty lines at the end."""
    kept = "\n".join(line.rstrip() for line in text.splitlines()).rstrip()
    return kept + "\n" if kept else ""


def session(text: str, names: dict[str, Any]) -> str:
    """An interactive session with what it prints."""
    out = []
    for part in doctest.DocTestParser().parse(text):
        if isinstance(part, str):
            out.append(part)
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(part.source, "<example>", "single", dont_inherit=True), names)
            except Exception as error:
                kind = type(error)
                print(f"Traceback (most recent call last):\n    ...\n{kind.__module__}.{kind.__qualname__}: {error}")
        source = part.source.rstrip("\n").split("\n")
        out.append("\n".join([f">>> {source[0]}", *(f"... {line}".rstrip() for line in source[1:])]) + "\n")
        out.append(_lines(printed.getvalue()))
    return "".join(out)


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
