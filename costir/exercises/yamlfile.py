"""Read a YAML or JSON file that nobody vouches for: plain data only, with limits on size, depth and references."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import yaml

from costir.errors import CostirError

MOST_BYTES = 20_000_000
DEEPEST = 30
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# What a terminal obeys, what turns the direction of writing, and halves of characters.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
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
    """The data of a text; see `read`. Control characters in its texts are replaced."""
    try:
        text = data.decode("utf-16" if data.startswith(UTF_16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise CostirError(f"{name} is no UTF-8 text (byte {error.start})", "save it as UTF-8") from error
    try:
        if is_json:
            whole = lambda digits: digits if len(digits) > LONGEST_INT else int(digits)
            return _cleaned(json.loads(text, parse_int=whole, object_pairs_hook=functools.partial(_once, name)))
        _survey(name, text)
        return _cleaned(yaml.load(text, Loader=_Loader))
    except json.JSONDecodeError as error:
        raise CostirError(f"{name} is no JSON: line {error.lineno}, {error.msg[:80]}", "check it with a JSON tool") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, " if mark is not None else ""
        problem = str(getattr(error, "problem", None) or error).splitlines()[0][:100]
        raise CostirError(
            f"{name} is no YAML: {where}{clean(problem)}", "quote texts that contain a colon or a bracket"
        ) from error
    except (RecursionError, ValueError) as error:
        raise CostirError(f"{name} cannot be read: {str(error)[:80] or 'nested too deeply'}", "") from error


def _survey(name: str, text: str) -> None:
    """Refuse what could grow without bound when it is built, before it is built."""
    depth = 0
    keys: list[_Keys] = [_Keys(False)]
    for event in yaml.parse(text, Loader=LOADER):
        where = f"{name}, line {event.start_mark.line + 1}" if event.start_mark else name
        if isinstance(event, yaml.AliasEvent):
            raise CostirError(f"{where}: references (*name) are not read", "write it out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            keys[-1].next()
            keys.append(_Keys(isinstance(event, yaml.MappingStartEvent)))
            if depth > DEEPEST:
                raise CostirError(f"{where}: nested too deeply", f"at most {DEEPEST} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            keys.pop()
        elif isinstance(event, yaml.ScalarEvent) and keys[-1].next(event.value):
            raise CostirError(f"{where}: {event.value[:40]!r} is there twice", "the first would be lost; put them together")


class _Keys:
    """The keys of a mapping as they come by; of a list there are none."""

    def __init__(self, mapping: bool) -> None:
        self.seen: set[str] = set()
        self.mapping, self.at_key = mapping, mapping

    def next(self, text: str | None = None) -> bool:
        """One node more. Returns whether it is a key that was there before."""
        twice = self.at_key and text in self.seen
        if self.at_key and text is not None:
            self.seen.add(text)
        self.at_key = self.mapping and not self.at_key
        return twice


def _once(name: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, where each key is there once."""
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise CostirError(f"{name}: {clean(key)[:40]!r} is there twice", "the first would be lost; put them together")
        out[key] = value
    return out


def clean(text: str) -> str:
    """A text without characters that a terminal obeys; lines and tabs stay."""
    return _CONTROL.sub("\ufffd", text)


def _cleaned(data: Any) -> Any:
    if isinstance(data, str):
        return clean(data)
    if isinstance(data, list):
        return [_cleaned(d) for d in data]
    if isinstance(data, dict):
        return {_cleaned(k): _cleaned(v) for k, v in data.items()}
    return data
