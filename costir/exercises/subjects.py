"""Which files the subjects of a bank may name: those in the bank's own folder; and code among them only where it is trusted."""

from __future__ import annotations

from pathlib import Path

from costir.errors import CostirError

READ_AS_DATA = (".json", "")  # a config, or a folder that has one: nothing in them is run


def located(subject: str, folder: str, trusted: bool = True) -> str:
    """A subject as the analysis takes it: a notation as it is, a file by its whole path.

    Args:
        subject: `X[B,D] . Y[D,F]`, `config.json`, `model.py:Name`.
        folder: that of the bank.
        trusted: whether Python files and exported programs, which can run anything, may be named.

    Raises:
        CostirError: where it names a file outside the folder, or one that would be run and is not trusted.
    """
    if "[" in subject:
        if any(_exists(text) for text in (subject, subject.rpartition(":")[0])):
            raise CostirError(f"subject {subject[:80]!r} is a file and looks like a notation", "name the file without brackets")
        return subject
    file, colon, model = subject.partition(":")
    path = _inside("subject", file, folder)
    if not trusted and path.suffix not in READ_AS_DATA:
        raise CostirError(
            f"subject {subject[:80]!r} would be run, and this bank is not trusted",
            "read the file, then add --trust (Bank(path, trusted=True) in Python); notations and config.json need no trust",
        )
    return f"{path}{colon}{model}"


def chip_located(chip: str, folder: str) -> str:
    """A chip by its name as it is, a chip file by its whole path.

    Raises:
        CostirError: where it names a file outside the folder of the bank.
    """
    name, at, preset = chip.partition("@")
    return f"{_inside('chip', name, folder)}{at}{preset}" if name.endswith(".toml") or set(name) & set("/\\") else chip


def _inside(what: str, file: str, folder: str) -> Path:
    home = Path(folder).resolve()
    path = _resolved(home / file, what)
    ways = (path, _resolved(path / "config.json", what))
    if Path(file).is_absolute() or ".." in Path(file).parts or not all(p.is_relative_to(home) for p in ways):
        raise CostirError(f"{what} {file[:80]!r} is outside the folder of the bank", "put the file beside the bank")
    return path


def _exists(text: str) -> bool:
    try:
        return bool(text.strip()) and Path(text).exists()
    except (OSError, ValueError):
        return False


def _resolved(path: Path, what: str) -> Path:
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links, a name with a zero byte
        raise CostirError(f"{what} {path.name[:80]!r} is no file name", "name a file beside the bank") from error
