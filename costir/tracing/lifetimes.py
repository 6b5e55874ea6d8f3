"""Which memories a run makes, how large they are, and when each is freed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class Lives(NamedTuple):
    """What a trace knows of its memories and events, beside the events.

    Attributes:
        ends: by the number of a memory, how many events were over when it was freed; None where it outlived the run.
        roles: by the number of a memory, what it holds.
        names: by the number of a memory, what of the model or the optimizer it holds, alike for all repeated blocks; or "".
        saving: by event, whether autograd saves for backward what the event makes: it runs as in a forward pass.
        joining: by event, whether autograd adds up two gradients of one tensor.
        second: how many events were over when the second micro-batch began; None where there was one.
    """

    ends: tuple[int | None, ...] = ()
    roles: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    saving: tuple[bool, ...] = ()
    joining: tuple[bool, ...] = ()
    second: int | None = None


NOTHING_KNOWN = Lives()


class Lifetimes:
    """Gives each memory a number, and notes when it is freed.

    Only a weak reference to a memory is kept: it is freed as in any other run, and no other gets its address.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now
        self.sizes: list[int] = []  # in bytes, by number
        self.names: dict[int, str] = {}  # by number
        self.second: int | None = None
        self._ends: list[int | None] = []
        self._numbers: dict[int, int] = {}
        self._addresses: list[Any] = []
        self._watches: list[Any] = []
        self._saving: list[bool] = []
        self._joining: list[bool] = []

    def number(self, memory: torch.UntypedStorage) -> int:
        """The number of a memory."""
        number = self._numbers.get(memory._cdata)
        if number is None:
            number = self._numbers[memory._cdata] = len(self.sizes)
            self.sizes.append(memory.nbytes())
            self._ends.append(None)
            self._addresses.append(StorageWeakRef(memory))
            self._watches.append(weakref.ref(memory, partial(self._freed, number)))
        elif memory.nbytes() > self.sizes[number]:  # resized, as a result that is written into `out=`
            self.sizes[number] = memory.nbytes()
        return number

    def _freed(self, number: int, _: Any) -> None:
        self._ends[number] = self.now()

    def event(self, op: str, phase: str) -> None:
        """Note how an event runs."""
        saving = torch.is_grad_enabled()
        inside = saving or phase != "backward" or torch._C._current_autograd_node() is not None
        self._saving.append(saving)
        self._joining.append(not inside and op.startswith("aten.add."))

    def lives(self, roles: Mapping[int, str]) -> Lives:
        """All that was noted; `roles` is by the address of a memory."""
        named = [roles.get(address, "activation") for address in self._numbers]
        names = tuple([self.names.get(i, "") for i in range(len(self.sizes))])
        return Lives(tuple(self._ends), tuple(named), names, tuple(self._saving), tuple(self._joining), self.second)
