"""What a lookup in the calibration is, and sizes of tensors that rules for it go by. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from costir.ir import Call, Tensor

Strides = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where to read a time.

    Attributes:
        curve, sizes: which one, and where.
        times: how many times it runs.
        alike: another operator stands in.
        slower: how many times as long as the curve's its work takes; a call takes no longer.
        channels: of a convolution, those that the last sizes come from: they fill whole vectors, and what is left over of the
            last one is computed, too; 0 for those that do not.
    """

    curve: str
    sizes: tuple[float, ...]
    times: float = 1.0
    alike: bool = False
    channels: tuple[int, ...] = ()
    slower: float = 1.0


Rule = Callable[[Call, Strides], list[Lookup]]


def numel(t: Tensor) -> int:
    """How many numbers it has."""
    return int(t.numel)


def shape(t: Tensor) -> tuple[int, ...]:
    """In numbers."""
    return tuple(int(d) for d in t.shape)


def rows_of(t: Tensor) -> tuple[float, float]:
    """Its last axis, and how many of them there are."""
    return rows_by(t, shape(t)[-1] if t.shape else 1)


def rows_by(t: Tensor, columns: float) -> tuple[float, float]:
    """In rows of so many numbers."""
    return numel(t) / max(columns, 1), columns


def ints(value: Any) -> tuple[int, ...]:
    """An argument that is one number or several."""
    return tuple(int(v) for v in value) if isinstance(value, (tuple, list)) else (int(value),)


__all__ = ["Lookup", "Rule", "Strides", "ints", "numel", "rows_by", "rows_of", "shape"]
