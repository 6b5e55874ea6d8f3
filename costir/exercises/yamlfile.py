"""Read a YAML or JSON file that nobody vouches for: plain data only, with limits on size, depth and references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from costir.errors import CostirError

MOST_BYTES = 20_000_000
DEEPEST = 30
LONGEST_INT = 100  # characters
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(LOADER):  # type: ignore[misc,valid-type]
    """Plain data; whole numbers that are too long to work with stay texts."""


def _int(loader: Any, node: Any) -> int | str:
    whole: int | str = node.value if len(node.value) > LONGEST_INT else LOADER.construct_yaml_int(loader, node)
    return whole


_Loader.add_constructor("tag:yaml.org,2002:int", _int)


def read(path: Path) -> Any:
    """The data of a `.yaml`, `.yml` or `.json` file.

    Raises:
        CostirError: where there is no such file, it is too large, nested too deeply, uses references (`*name`), or is no
            YAML or JSON; the message gives the line.
    """
    return parse(path.name, bytes_of(path), path.suffix.lower() == ".json")


def bytes_of(path: Path) -> bytes:
    """What a file holds.

    Raises:
        CostirError: where it cannot be read or is larger than 20 MB.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise CostirError(f"{path} is larger than {MOST_BYTES // 10**6} MB", "split it")
        return path.read_bytes()
    except OSError as error:
        raise CostirError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}", "check the name") from error


def parse(name: str, data: bytes, is_json: bool = False) -> Any:
    """The data of a text; see `read`."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CostirError(f"{name} is no UTF-8 text (byte {error.start})", "save it as UTF-8") from error
    try:
        if is_json:
            return json.loads(text, parse_int=lambda digits: digits if len(digits) > LONGEST_INT else int(digits))
        _survey(name, text)
        return yaml.load(text, Loader=_Loader)
    except json.JSONDecodeError as error:
        raise CostirError(f"{name} is no JSON: line {error.lineno}, {error.msg[:80]}", "check it with a JSON tool") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, " if mark is not None else ""
        problem = str(getattr(error, "problem", None) or error).splitlines()[0][:100]
        raise CostirError(f"{name} is no YAML: {where}{problem}", "quote texts that contain a colon or a bracket") from error
    except (RecursionError, ValueError) as error:
        raise CostirError(f"{name} cannot be read: {str(error)[:80] or 'nested too deeply'}", "") from error


def _survey(name: str, text: str) -> None:
    """Refuse what could grow without bound when it is built, before it is built."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        where = f"{name}, line {event.start_mark.line + 1}" if event.start_mark else name
        if isinstance(event, yaml.AliasEvent):
            raise CostirError(f"{where}: references (*name) are not read", "write it out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                raise CostirError(f"{where}: nested too deeply", f"at most {DEEPEST} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
