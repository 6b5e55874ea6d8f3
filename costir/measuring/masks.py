"""How well a processor can guess a mask's numbers: operators that branch on each take several times longer where it cannot."""

from __future__ import annotations

import numpy as np
import torch

SAMPLE = 1 << 14  # numbers that are looked at
HISTORY = 8  # numbers before, by which the next one is guessed
BRANCHING = frozenset(("where", "masked_fill", "nonzero", "index", "masked_select"))  # operators


def unforeseen(mask: torch.Tensor) -> float:
    """The share of its numbers that are other than what follows the same eight numbers elsewhere: 0.5 for tossed coins.

    A mask of rows and triangles has almost none, one of what is above zero in an activation nearly half.

    Args:
        mask: of bool, of any shape; its first 16384 numbers stand for all.
    """
    found = np.asarray(mask.detach().numpy().flat[:SAMPLE]).astype(np.int64)
    number = len(found) - HISTORY
    if number <= 0:
        return 0.0
    before = np.sum([found[i : number + i] << i for i in range(HISTORY)], axis=0)
    every = np.bincount(before, minlength=1 << HISTORY)
    ones = np.bincount(before[found[HISTORY:] > 0], minlength=1 << HISTORY)
    return float((_missed(ones, every - ones) + _missed(every - ones, ones)).sum() / number)


def _missed(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """How many of some are not guessed by what is more among all but themselves."""
    found: np.ndarray = some * (1 + np.sign(others - (some - 1))) / 2
    return found


__all__ = ["BRANCHING", "unforeseen"]
