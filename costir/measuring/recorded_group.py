"""gloo with a log: a process group of torch.distributed that writes down which collectives run, and what they take.

While it is logging, every collective begins in all processes at the same time and is waited for, so that its time is its own:
neither waiting for a process that is late nor hidden behind computation. Otherwise all is passed on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

BACKEND = "costir_gloo"


@dataclass(frozen=True, slots=True)
class Sent:
    """One collective of a step.

    Attributes:
        kind, payload, devices: what ran, payload in bytes as in `collective_times`.
        seconds: from when all processes were ready.
        around: seconds until then, and for the log.
    """

    kind: str
    payload: int
    devices: int
    seconds: float
    around: float


class RecordedGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A group of gloo; see above."""

    log: list[Sent] | None = None  # of this process, for all of its groups; None where nothing is logged

    def __init__(self, inner: Any, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.inner = inner
        self._members = size
        self._rank = rank

    def size(self) -> int:
        """How many processes are in the group."""
        return self._members

    def rank(self) -> int:
        """Which of them this is."""
        return self._rank

    def getBackendName(self) -> str:
        """What torch asks for."""
        return BACKEND

    @property
    def pg_name(self) -> str:
        """The name under which torch knows the group."""
        return str(dist.distributed_c10d._world.pg_names[self])

    @property
    def group_name(self) -> str:
        """The same, where torch asks for it by another name."""
        return self.pg_name

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all processes."""
        return self.inner.barrier(opts or dist.BarrierOptions())

    def send(self, *arguments: Any) -> Any:
        """To one process: not timed, since only two processes are in it."""
        if RecordedGroup.log is not None:
            RecordedGroup.log.append(Sent("permute", _nbytes(arguments[0]), self._members, 0.0, 0.0))
        return self.inner.send(*arguments)

    def recv(self, *arguments: Any) -> Any:
        """From one process."""
        return self.inner.recv(*arguments)

    def _run(self, kind: str, payload: int, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if RecordedGroup.log is None:
            return call(*arguments)
        came = time.perf_counter()
        self.barrier().wait()
        began = time.perf_counter()
        work = call(*arguments)
        work.wait()
        done = time.perf_counter()
        RecordedGroup.log.append(Sent(kind, payload, self._members, done - began, began - came))
        return work


def _nbytes(x: Any) -> int:
    """Bytes of tensors in lists of lists."""
    if isinstance(x, torch.Tensor):
        return int(x.numel() * x.element_size())
    return sum(map(_nbytes, x))


# Kind; which argument is the payload; how many of these there are in a group; the names of torch up to 2.12 and from 2.13 on.
_METHODS: tuple[tuple[str, int, bool, tuple[str, ...]], ...] = (
    ("all_reduce", 0, False, ("allreduce",)),
    ("all_reduce", 0, False, ("allreduce_coalesced",)),
    ("broadcast", 0, False, ("broadcast",)),
    ("all_gather", 0, False, ("allgather",)),
    ("all_gather", 0, False, ("_allgather_base", "all_gather_single")),
    ("all_gather", 0, False, ("allgather_into_tensor_coalesced", "all_gather_single_coalesced")),
    ("reduce_scatter", 1, False, ("reduce_scatter",)),
    ("reduce_scatter", 1, False, ("_reduce_scatter_base", "reduce_scatter_single")),
    ("reduce_scatter", 1, False, ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced")),
    ("all_to_all", 1, True, ("alltoall_base", "all_to_all_single")),
    ("all_to_all", 1, True, ("alltoall",)),
)


def _method(kind: str, which: int, each: bool, names: Iterable[str]) -> Callable[..., Any]:
    """The method that passes a collective on, whatever torch calls it."""

    def method(self: RecordedGroup, *arguments: Any) -> Any:
        call = next(getattr(self.inner, n) for n in names if hasattr(self.inner, n))
        return self._run(kind, _nbytes(arguments[which]) * (self._members if each else 1), call, arguments)

    return method


for _kind, _which, _each, _names in _METHODS:
    for _name in _names:
        setattr(RecordedGroup, _name, _method(_kind, _which, _each, _names))


@contextlib.contextmanager
def logged() -> Iterator[list[Sent]]:
    """Log the collectives of this process; all processes have to."""
    found: list[Sent] = []
    RecordedGroup.log = found
    try:
        yield found
    finally:
        RecordedGroup.log = None


def _create(store: Any, rank: int, size: int, timeout: Any) -> RecordedGroup:
    inner, gloo = dist.ProcessGroup(store, rank, size), dist.ProcessGroup.BackendType.GLOO
    inner._set_default_backend(gloo)
    inner._register_backend(torch.device("cpu"), gloo, dist.ProcessGroupGloo(store, rank, size, timeout))
    return RecordedGroup(inner, rank, size)


def register() -> str:
    """Make the backend known to torch.distributed; its name."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _create, devices=["cpu"])
    return BACKEND
