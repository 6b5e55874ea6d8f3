"""What the numbers of an operand do to the time of an operator: branches that no processor foresees, arguments computed apart.

An operator that branches on each number of a mask takes several times longer where the mask looks random. The root of zero, and
an exponential or a logarithm that is too small or too large, leave the fast path of the library with all their neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

SAMPLE = 1 << 14  # numbers that are looked at
HISTORY = 8  # numbers before, by which the next one is guessed
TOGETHER = 16  # numbers that are computed at once
BRANCHING = frozenset(("where", "masked_fill", "nonzero", "index", "index_put", "masked_select"))  # operators
TINY = float(np.finfo(np.float32).tiny)
APART: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {  # operators, and the numbers that they compute apart
    "sqrt": lambda x: x < TINY,
    "log": lambda x: x < TINY,
    "exp": lambda x: (x < np.log(TINY)) | (x > np.log(np.finfo(np.float32).max)),
}


def unforeseen(mask: torch.Tensor) -> float:
    """The share of its numbers that are other than what follows the same eight numbers elsewhere: 0.5 for tossed coins.

    A mask of rows and triangles has almost none, one of what is above zero in an activation nearly half.

    Args:
        mask: of bool, of any shape; its first 16384 numbers stand for all. Sparse ones and subclasses are not looked at.
    """
    if not _is_plain(mask):
        return 0.0
    found = np.asarray(mask.detach().numpy().flat[:SAMPLE]).astype(np.int64)
    number = len(found) - HISTORY
    if number <= 0:
        return 0.0
    before = np.sum([found[i : number + i] << i for i in range(HISTORY)], axis=0)
    every = np.bincount(before, minlength=1 << HISTORY)
    ones = np.bincount(before[found[HISTORY:] > 0], minlength=1 << HISTORY)
    return float((_missed(ones, every - ones) + _missed(every - ones, ones)).sum() / number)


def _is_plain(t: torch.Tensor) -> bool:
    """Whether its numbers lie in memory."""
    return type(t) in (torch.Tensor, torch.nn.Parameter) and t.layout is torch.strided and t.device.type == "cpu"


def _missed(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """How many of some are not guessed by what is more among all but themselves."""
    found: np.ndarray = some * (1 + np.sign(others - (some - 1))) / 2
    return found


def apart(operator: str, operand: torch.Tensor) -> float:
    """The share of groups of sixteen numbers with one that the operator computes apart; 0 for operators that have none.

    Args:
        operator: its name, as in `APART`.
        operand: of float32, in memory one after the other; others are not looked at. About a thousand groups stand for all.
    """
    is_apart = APART.get(operator)
    if is_apart is None or not _is_plain(operand) or operand.dtype != torch.float32:
        return 0.0
    if not operand.is_contiguous() or not operand.numel():
        return 0.0
    numbers = operand.detach().numpy().reshape(-1)
    groups = numbers[: len(numbers) // TOGETHER * TOGETHER].reshape(-1, TOGETHER) if len(numbers) >= TOGETHER else numbers[None]
    some = groups[:: max(1, len(groups) * TOGETHER // SAMPLE)]
    return float(is_apart(some).any(axis=1).mean())


__all__ = ["BRANCHING", "apart", "unforeseen"]
