"""From the text of a notation string to its operands. Every slip points at its character."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from costir.errors import NotationError, SizeError, nearest
from costir.ir import ITEMSIZE, SHORT_DTYPE
from costir.load.dtypes import dtype_name, is_dtype
from costir.units import parse_size

LONGEST = 2000
MOST_AXES = 52
NAME = re.compile(r"[^\W\d_]\w*")
NUMBER = re.compile(r"\d\w*")
SHARDED = re.compile(r"(\w*[^\W_])_([A-Z]+)$")  # the dimension, and the mesh axes that split it, a letter each
TYPE_LIKE = re.compile(r"(?:q?u?int|float|bfloat|fp|bf|nf|mxfp|complex)\d\w*$")  # no name of a tensor, but a slip in a type
SEPARATORS = ".·,@"


@dataclass(frozen=True)
class Dim:
    """One dimension as written; `value` is None for a name. `at` counts characters from 0; `axes` split it over a mesh."""

    text: str
    at: int
    value: int | None = None
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operand:
    """One operand or the output as written; `dtype` is torch's name or "". Over the axes in `sums` it is still to be summed."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    at: int
    sums: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """The named dimensions."""
        return {d.text for d in self.dims if d.value is None}

    def over(self, mesh: Collection[str]) -> Operand:
        """The same, split over these axes alone."""
        dims = tuple(replace(d, axes=tuple(a for a in d.axes if a in mesh)) for d in self.dims)
        return replace(self, dims=dims, sums=tuple(a for a in self.sums if a in mesh))


def slip(text: str, at: int, why: str) -> NotationError:
    """An error that says what is wrong and shows the character."""
    return NotationError(f"{why} (character {at + 1}):\n    {text}\n    {' ' * at}^")


def read(text: str, mesh: Collection[str] = ()) -> tuple[list[Operand], Operand | None]:
    """The operands of a notation string, and the output where it has one.

    Args:
        text: the notation. mesh: the names of mesh axes; those of several letters are read by them.

    Raises:
        NotationError: where the text has a slip.
    """
    if len(text) > LONGEST:
        raise NotationError(f"the notation has {len(text)} characters; at most {LONGEST} are read")
    reader = _Reader("".join(" " if c.isspace() else c for c in text), mesh)
    operands, output = reader.notation()
    if len({d.text for o in operands for d in o.dims}) > MOST_AXES:
        raise NotationError(f"the notation has more than {MOST_AXES} different dimensions")
    return operands, output


class _Reader:
    """Reads left to right; `at` is the next character."""

    def __init__(self, text: str, mesh: Collection[str]) -> None:
        self.text, self.at, self.mesh = text, 0, mesh

    def slip(self, why: str, at: int | None = None) -> NotationError:
        return slip(self.text, self.at if at is None else at, why)

    def seen(self) -> str:
        """The next character, for a message."""
        return repr(self.text[self.at]) if self.at < len(self.text) else "the end"

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1

    def take(self, *tokens: str) -> bool:
        self.skip()
        for token in tokens:
            if self.text.startswith(token, self.at):
                self.at += len(token)
                return True
        return False

    def word(self, pattern: re.Pattern[str]) -> str:
        self.skip()
        match = pattern.match(self.text, self.at)
        if not match:
            return ""
        self.at = match.end()
        return match[0]

    def notation(self) -> tuple[list[Operand], Operand | None]:
        operands = [self.operand()]
        while True:
            if self.take("->", "→"):
                output = self.operand()
                self.skip()
                if self.at < len(self.text):
                    raise self.slip(f"expected the end after the output, found {self.seen()}")
                return operands, output
            if self.take(*SEPARATORS):
                operands.append(self.operand())
                continue
            self.skip()
            if self.at == len(self.text):
                return operands, None
            raise self.slip(f"expected '.' or '->' after an operand, found {self.seen()}")

    def sums(self) -> tuple[str, ...]:
        """The axes in `{U_XY}`: what the devices along them hold has still to be added up."""
        if not self.take("{"):
            return ()
        self.skip()
        start = self.at
        what, axes = _split(self.word(NAME), self.mesh)
        if what != "U" or not axes or not self.take("}"):
            raise self.slip("a sum over devices that is not made yet is written {U_X}", start)
        return axes

    def operand(self) -> Operand:
        self.skip()
        start = self.at
        words: list[tuple[str, int]] = []
        while word := self.word(NAME):
            words.append((word, self.at - len(word)))
        if not self.take("["):
            what = "'['" if words else "an operand such as X[B,D]"
            raise self.slip(f"expected {what}, found {self.seen()}")
        dtype = ""
        if words and (is_dtype(words[0][0]) or len(words) == 2):
            word, at = words.pop(0)
            if not is_dtype(word):
                raise self.slip(f"{word} is no data type, {nearest(word, {*ITEMSIZE, *SHORT_DTYPE})}", at)
            dtype = dtype_name(word)
        if words and TYPE_LIKE.match(words[0][0]):
            raise self.slip(f"{words[0][0]} is no data type, {nearest(words[0][0], {*ITEMSIZE, *SHORT_DTYPE})}", words[0][1])
        if len(words) > 1:
            raise self.slip(f"expected '[' after the name {words[0][0]}", words[1][1])
        found = Operand(words[0][0] if words else "", dtype, self.dims(), start, self.sums())
        used = [a for d in found.dims for a in d.axes] + list(found.sums)
        twice = next((a for i, a in enumerate(used) if a in used[:i]), None)
        if twice is not None:
            raise self.slip(
                f"the axis {twice} stands twice in {found.name or 'one operand'}; it can split one dimension only", start
            )
        return found

    def dims(self) -> tuple[Dim, ...]:
        if self.take("]"):
            return ()
        found = [self.dim()]
        while self.take(","):
            found.append(self.dim())
        if not self.take("]"):
            self.skip()
            raise self.slip(f"expected ',' or ']', found {self.seen()}")
        return tuple(found)

    def dim(self) -> Dim:
        if text := self.word(NUMBER):
            at = self.at - len(text)
            text, axes = _split(text, self.mesh)
            try:
                return Dim(text, at, parse_size(text), axes)
            except SizeError:
                raise self.slip(f"{text} is no size: a name begins with a letter, a number is whole and positive", at) from None
        text = self.word(NAME)
        if not text:
            self.skip()
            raise self.slip(f"expected a dimension (a name or a number), found {self.seen()}")
        at = self.at - len(text)
        if text.endswith("_"):
            raise self.slip(f"{text} has no mesh axis after the _, as I_X has", at + text.index("_"))
        text, axes = _split(text, self.mesh)
        return Dim(text, at, None, axes)


def _split(text: str, mesh: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """A dimension and the axes that split it: "I_XY" is I over X and Y, "I_dp_tp" over dp and tp where the mesh has these."""
    axes: tuple[str, ...] = ()
    while name := max((a for a in mesh if text.endswith(f"_{a}") and text != f"_{a}"), key=len, default=""):
        text, axes = text[: -len(name) - 1], (name, *axes)
    match = SHARDED.match(text)
    return (match[1], (*match[2], *axes)) if match else (text, axes)
