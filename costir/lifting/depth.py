"""How a model's layers repeat: enough to trace two or three layers in place of a hundred.

A container of layers is read as a sequence of signatures (classes, parameter shapes, plain attributes). The sequence has a
prefix (dense first layers) and a period (every second layer sliding, every fourth an expert layer). Numbers of layers for
probing are the prefix plus a few whole periods.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from costir.lifting.points import DEPTH_NAMES

_LONG = 8  # layers; of fewer no pattern can be asked
_EVERY = re.compile(r"(^|_)every(_|$)")


@dataclass(frozen=True)
class Depth:
    """The sizes that are numbers of layers, and how layers repeat.

    Attributes:
        names: the sizes.
        prefix, period: layers before the repetition starts, and its length.
        trusted: layers of one signature cost the same, so that the whole depth need not be traced.
        irregular: a long list of layers repeats nowhere, so that no formula says what another depth would have.
    """

    names: tuple[str, ...] = ()
    prefix: int = 0
    period: int = 1
    trusted: bool = False
    irregular: bool = False

    def values(self, base: int, below: bool = False) -> tuple[int, int, int, int]:
        """Numbers of layers for three probes and for the base trace; the last stands for the base.

        Layers that need not be alike are probed near the base, or at a dozen, so that every kind of layer occurs in each probe.
        With `below`, no probe is deeper than the base.
        """
        if not self.trusted:
            first = max(min(base, 8), self.prefix + 2 * self.period) + 1
            near = (first, first + 1, first + 4)
            return (*(near if not below or base < 5 else (base - 1, base - 2, max(1, base - 4))), base)
        first = self.prefix + self.period * (1 if self.period > 1 or self.prefix else 2)
        first += (base - self.prefix) % self.period if base >= self.prefix else 0
        last = first + 2 * self.period
        return first, first + self.period, last, last if base > last else base


def find(module: nn.Module, sizes: Mapping[str, int], hints: Sequence[str]) -> Depth:
    """Which sizes are numbers of layers in this module, built at the base sizes."""
    stacks = [list(m.children()) for m in module.modules() if _is_stack(m)]
    lengths = {len(s) for s in stacks}
    names = tuple(n for n, v in sizes.items() if v in lengths and (n in hints or n.lower() in DEPTH_NAMES))
    wanted = {sizes[n] for n in names}
    sequences = [_signatures(stack) for stack in stacks if len(stack) in wanted] + _config_lists(module, wanted)
    prefix, period, irregular = 0, 1, False
    ours = type(module).__module__.startswith("transformers.")
    for sequence in sequences:
        q, p = _repetition(sequence)
        irregular |= ours and len(sequence) >= _LONG and max(2 * q, q + 2 * p) > len(sequence)
        prefix, period = max(prefix, q), math.lcm(period, p)
    if any(prefix + 3 * period > sizes[n] for n in names):
        return Depth(names, 0, period, trusted=False, irregular=irregular)  # too few rounds to be sure, but worth a look
    return Depth(names, prefix, period, trusted=ours)


def _is_stack(m: nn.Module) -> bool:
    return len(m._modules) > 0 and all(k.isdigit() for k in m._modules)


def _signatures(stack: Sequence[nn.Module]) -> list[Any]:
    """A signature a layer; attributes that only number the layers are left out."""
    rows = [_signature(layer) for layer in stack]
    offsets: dict[Any, dict[int, int]] = {}
    for i, row in enumerate(rows):
        for key, value in row:
            if type(value) is int:
                known = offsets.setdefault(key, {i: value - i})
                if known.setdefault(i, value - i) != value - i:
                    known[-1] = len(rows)  # several of one kind in a layer that differ: no number of the layer
    counting = {key for key, known in offsets.items() if len(known) > 1 and len(set(known.values())) == 1}
    return [tuple([item for item in row if item[0] not in counting]) for row in rows]


def _signature(layer: nn.Module) -> list[tuple[Any, Any]]:
    """Classes, parameter shapes and plain attributes of a layer and all that is in it, in order: (what, value)."""
    found: list[tuple[Any, Any]] = []
    for m in layer.modules():
        kind = type(m)
        found.append((kind, None))
        found.extend([(n, (p.shape, p.dtype) if p is not None else None) for n, p in m._parameters.items()])
        for name, value in m.__dict__.items():
            if name[0] != "_" and isinstance(value, (int, float, str)):
                plain = int(value) if type(value) not in (bool, float, str) and isinstance(value, int) else value
                found.append(((kind, name), plain))
    return found


def _config_lists(module: nn.Module, lengths: set[int]) -> list[list[Any]]:
    """Lists of a transformers config with one entry a layer; a list that only numbers the layers says nothing.

    A field such as `rescale_every` is one, too: what is done between layers is in no layer.
    """
    config = getattr(module, "config", None)
    lists: list[list[Any]] = []
    for value in vars(config).values() if config is not None else ():
        if isinstance(value, (list, tuple)) and len(value) in lengths and list(value) != list(range(len(value))):
            lists.append([repr(v) for v in value])
    for name, value in vars(config).items() if config is not None else ():
        if _EVERY.search(name) and type(value) is int and value > 1:
            lists += [[str(i % value) for i in range(n)] for n in lengths]
    return lists


def _repetition(sequence: Sequence[Any]) -> tuple[int, int]:
    """(prefix, period) with the smallest sum such that sequence[i] == sequence[i + period] from the prefix on."""
    n = len(sequence)
    best = (n, 1)
    for period in range(1, n // 2 + 1):
        prefix = n - period
        while prefix > 0 and sequence[prefix - 1] == sequence[prefix - 1 + period]:
            prefix -= 1
        if prefix + period < sum(best):
            best = (prefix, period)
    return best
