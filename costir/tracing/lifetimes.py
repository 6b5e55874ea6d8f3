"""Which memories a run makes, how large they are, and when each is freed."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
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
IN_A_BUCKET = "in a bucket"  # the name of gradients that DistributedDataParallel has in its buckets, too


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
        self._numbers: dict[int, int] = {}  # by address, of the memories that there are now
        self._at: list[int] = []  # the address of each, by number
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
            self._at.append(memory._cdata)
            self._addresses.append(StorageWeakRef(memory))
            self._watches.append(weakref.ref(memory, partial(self._freed, number)))
        elif memory.nbytes() > self.sizes[number]:  # resized, as a result that is written into `out=`
            self.sizes[number] = memory.nbytes()
        return number

    def _freed(self, number: int, _: Any) -> None:
        if self._ends[number] is None:
            self._ends[number] = self.now()

    @contextlib.contextmanager
    def emptied(self) -> Iterator[None]:
        """Follow memories that are emptied and filled again while their tensors live on, as fully_shard does with weights.

        What is filled again is another memory, with a number of its own.
        """
        resize = torch.UntypedStorage.resize_

        def resized(memory: torch.UntypedStorage, nbytes: int) -> Any:
            if nbytes == 0 and memory._cdata in self._numbers:
                self._freed(self._numbers.pop(memory._cdata), None)
            return resize(memory, nbytes)

        torch.UntypedStorage.resize_ = resized
        try:
            yield
        finally:
            del torch.UntypedStorage.resize_  # of the class that it inherits from

    def event(self, op: str, phase: str) -> None:
        """Note how an event runs."""
        saving = torch.is_grad_enabled()
        inside = saving or phase != "backward" or torch._C._current_autograd_node() is not None
        self._saving.append(saving)
        self._joining.append(not inside and op.startswith("aten.add."))

    def lives(self, roles: Mapping[int, str]) -> Lives:
        """All that was noted; `roles` is by the address of a memory."""
        named = [roles.get(address, "activation") for address in self._at]
        names = tuple([self.names.get(i, "") for i in range(len(self.sizes))])
        return Lives(tuple(self._ends), tuple(named), names, tuple(self._saving), tuple(self._joining), self.second)
