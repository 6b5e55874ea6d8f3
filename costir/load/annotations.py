"""Shapes that people write down: jaxtyping annotations (`Float[Tensor, "B T D"]`) and `--input 'x: bf16[B, T, D]'`."""

from __future__ import annotations

import ast
import operator
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from costir.errors import LoadError, SizeError
from costir.ir import ITEMSIZE
from costir.load.dtypes import dtype_name

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 200
INPUT = re.compile(r"\s*(?:(?P<name>[^\W\d]\w*)\s*:)?\s*(?P<dtype>\w+)?\s*\[(?P<dims>[^\[\]]*)\]\s*")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
}  # fmt: skip
_DIVISIONS = (ast.Div, ast.FloorDiv, ast.Mod)


@dataclass(frozen=True)
class Dimension:
    """A dimension as arithmetic on size names: `B`, `512`, `T + 1`, `D // N` (`/` is exact division)."""

    text: str
    tree: ast.expr

    @property
    def names(self) -> tuple[str, ...]:
        """The sizes in it, in order of appearance."""
        return tuple(dict.fromkeys(n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name)))

    def value(self, sizes: Mapping[str, int]) -> int:
        """The dimension at these sizes.

        Raises:
            SizeError: where a division has a remainder, or the result is negative.
        """
        found = self._value(self.tree, sizes)
        if int(found) < 0:
            raise SizeError(f"the dimension {self.text} is {int(found)}", "choose larger sizes")
        return found

    def _value(self, node: ast.expr, sizes: Mapping[str, int]) -> int:
        if isinstance(node, ast.Name):
            return sizes[node.id]
        if isinstance(node, ast.Constant):
            return int(node.value)  # type: ignore[arg-type]
        assert isinstance(node, ast.BinOp)
        left, right = self._value(node.left, sizes), self._value(node.right, sizes)
        if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](left, right)
        if int(right) == 0 or (isinstance(node.op, ast.Div) and int(left) % int(right)):
            raise SizeError(f"{self.text} is not whole at {ast.unparse(node)} = {int(left)}/{int(right)}", "choose other sizes")
        return left // right if isinstance(node.op, ast.Div | ast.FloorDiv) else left % right


def dimension(text: str) -> Dimension:
    """Read one dimension; only names, whole numbers, and + - * / // % are allowed, nothing is evaluated.

    Raises:
        LoadError: for anything else.
    """
    refusal = LoadError(f"{text.strip()[:40]!r} is no dimension", "write a name, a number, or arithmetic on them such as T+1")
    if len(text) > LONGEST:
        raise refusal
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise refusal from None
    if not _allowed(tree):
        raise refusal
    return Dimension(text.strip(), tree)


def _allowed(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (*_OPERATORS, *_DIVISIONS)) and _allowed(node.left) and _allowed(node.right)
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and type(node.value) is int)


@dataclass(frozen=True)
class Spec:
    """One example input: its name in `forward` ("" for the next position), its type ("" for the default one), its shape."""

    name: str
    dtype: str
    dims: tuple[Dimension, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The sizes in its shape, in order of appearance."""
        return tuple(dict.fromkeys(n for d in self.dims for n in d.names))

    def tensor(self, sizes: Mapping[str, int]) -> Tensor:
        """Zeros of this shape and type; costs do not depend on the values."""
        import torch

        dtype = getattr(torch, self.dtype) if self.dtype else torch.get_default_dtype()
        return torch.zeros([d.value(sizes) for d in self.dims], dtype=dtype)


def read_input(text: str) -> Spec:
    """Read `--input`: "x: bf16[B, T, D]", "ids: int64[B, T]", "[B, D]".

    Raises:
        LoadError: where the text is no such thing.
    """
    match = INPUT.fullmatch(text) if len(text) <= LONGEST else None
    if not match:
        raise LoadError(f"cannot read --input {text[:60]!r}", "write for example --input 'x: bf16[B, T, D]'")
    dims = match["dims"].strip()
    dtype = _torch_dtype(dtype_name(match["dtype"])) if match["dtype"] else ""
    return Spec(match["name"] or "", dtype, tuple(dimension(d) for d in dims.split(",")) if dims else ())


def _torch_dtype(name: str) -> str:
    import torch

    if not isinstance(getattr(torch, name, None), torch.dtype) or ITEMSIZE[name] < 1:
        raise LoadError(
            f"an input cannot be {name}: torch has no plain tensors of that type", "use bf16, fp32, int64, bool, ..."
        )
    return name


def shape_of(annotation: Any, name: str) -> Spec | None:
    """The shape in a jaxtyping annotation, or None where `annotation` carries none. jaxtyping itself is not needed.

    Raises:
        LoadError: where a dimension has no name or stands for several (`_`, `...`, `*batch`).
    """
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    text = getattr(annotation, "dim_str", None)
    if not isinstance(text, str):
        return None
    dims = []
    for part in text.split():
        word = part.lstrip("#?")  # "#B" may be broadcast, "?B" may differ between leaves; the name is what matters here
        word = word.rpartition("=")[2]  # "channels=3" only documents the number
        word = word[1:-1] if word.startswith("{") and word.endswith("}") else word
        if word in ("_", "...") or word.startswith(("*", "_")):
            raise LoadError(f"dimension {part!r} of forward argument {name!r} has no single name", "name every dimension")
        dims.append(dimension(word))
    return Spec(name, _annotated_dtype(getattr(annotation, "dtypes", ())), tuple(dims))


def _annotated_dtype(allowed: Any) -> str:
    """One type out of those an annotation allows: the default floating type first, then int64, then what there is."""
    names = [str(d) for d in allowed] if isinstance(allowed, list | tuple) else []
    if not names or (len(names) > 1 and "float32" in names):
        return ""
    if "int64" in names:
        return "int64"
    known = [n for n in names if n in ITEMSIZE]
    return known[-1] if known else ""
