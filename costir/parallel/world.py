"""A process group of any size in one process: torch.distributed's engine runs as on rank 0, and nothing is sent."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from costir.errors import TraceError
from costir.parallel.collectives import translate
from costir.parallel.ring import Ring
from costir.tracing.recorder import own_part


class World:
    """A mesh of devices that do not exist, for the length of a `with`.

    Attributes:
        sizes: devices along each axis, slowest first.
        mesh: torch's mesh over all axes.
        axes: torch's mesh of each axis alone.
        front: of a model that is cut into the stages of a pipeline, the modules that run before its blocks; else None.
        owners: where a parameter belongs, by its identity; see `costir.tracing.recorder.Scope`.
        reducing: whether backward passes reduce gradients now. syncs: functions that tell torch so. ends: what
            is done after the last of them in a step.
    """

    def __init__(self, sizes: Mapping[str, int], front: Collection[str] | None = None) -> None:
        self.sizes = dict(sizes)
        self.front = front
        self.syncs: list[Callable[[bool], None]] = []
        self.ends: list[Callable[[], None]] = []
        self.reducing = True
        self.owners: dict[int, tuple[str, str, int]] = {}
        self.mesh: Any = None
        self.axes: dict[str, Any] = {}
        self._paused = 0
        self._lines: dict[frozenset[int], tuple[str, ...]] = {}
        self._planes: dict[str, tuple[str, ...]] = {}  # several axes in one line, by torch's name
        self._homes: dict[int, str] = {}  # memory -> module
        self._slots: dict[tuple[int, int], str] = {}  # memory and place in it of a gradient in a bucket -> module
        self._now: str | None = None
        self._undo = contextlib.ExitStack()
        self.ring: Ring | None = None
        self.divided: tuple[type, ...] = ()
        self.buckets: set[int] = set()  # addresses of the memories that DistributedDataParallel joins gradients in
        self.averaged: dict[int, tuple[Any, int]] = {}  # the same, all of them: what keeps the address, and the devices
        self.joined: set[int] = set()  # identities of the parameters whose gradients these are

    def __enter__(self) -> World:
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
        from torch.distributed.tensor import DTensor
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if dist.is_initialized():
            raise TraceError("a process group is running in this process already", "end it, or analyse in a fresh process")
        hook = sys.excepthook
        self._undo.callback(lambda: setattr(sys, "excepthook", hook))
        self._undo.enter_context(_quiet())
        with _disable_current_modes():
            devices = math.prod(self.sizes.values())
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=devices)
            self._undo.callback(_end)
            self.mesh = init_device_mesh("cpu", tuple(self.sizes.values()), mesh_dim_names=tuple(self.sizes))
            self.axes = {a: self.mesh[a] for a in self.sizes}
        for name in ("__init__", "_compute_coordinates_from_mesh", "__getitem__", "_flatten", "get_group"):
            self._undo.enter_context(_plainly(DeviceMesh, name))
        self._undo.enter_context(self._without_metadata())
        self._undo.enter_context(_without_whole_views())
        self.divided = (DTensor,)
        self._lines = dict(_lines(self.sizes))
        return self

    def __exit__(self, *problem: Any) -> None:
        self._undo.close()

    @property
    def paused(self) -> bool:
        """Whether torch works out the shape of a whole, undivided result: no device runs that."""
        return self._paused > 0

    def passes(self, types: Any) -> bool:
        """Whether a call is on divided tensors: what runs on this device comes later, on its part of them."""
        return any(issubclass(t, self.divided) for t in types)

    def calls(self, op: str, args: dict[str, Any], out: Any) -> list[tuple[str, dict[str, Any], Any, str | None]]:
        """A call as what it means: collectives by their kind, tensors and axes; the rest as it is.

        The last of each is the module whose weights fully_shard gathers, which may be another than the one that runs.
        """
        if self.ring is not None:
            self.ring.check(op, args, out)
        op, args = self._averaged(op, args, out)
        return [(*said, self._home(*said)) for said in translate(op, args, out, self.axes_of)]

    def _averaged(self, op: str, args: dict[str, Any], out: Any) -> tuple[str, dict[str, Any]]:
        """A gradient's copy into a bucket for all: torch divides it on the way, where no hook does the sending."""
        if op != "aten.copy_.default":
            return op, args
        made = self.averaged.get(own_part(args["self"]).untyped_storage()._cdata)
        return (op, args) if made is None else ("aten.div.out", {"self": args["src"], "other": made[1], "out": args["self"]})

    def together(self, axes: Iterable[str]) -> Any:
        """torch's mesh of one line over several axes."""
        names = tuple(a for a in self.sizes if a in set(axes))
        if len(names) == 1:
            return self.axes[names[0]]
        self._planes["_".join(names)] = names
        return self.mesh[names]._flatten("_".join(names))

    def behind(self, name: str) -> tuple[str, ...]:
        """The axes that a name in one of torch's meshes stands for."""
        return self._planes.get(name, (name,))

    def go_round(self, axis: str, lengths: Collection[int]) -> None:
        """Let attention go round along an axis from now on; see `Ring`."""
        self.ring = self._undo.enter_context(Ring(self.axes[axis], lengths))

    def exchanged(self, func: Any, args: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of an all-to-all that writes in place: what this device sends and where it receives."""
        return [(args[1], args[0])] if func is torch.ops.c10d.alltoall_base_.default else []

    def at_home(self, path: str, tensors: Iterable[torch.Tensor]) -> None:
        """Remember the module that weights are gathered for."""
        for t in tensors:
            self._homes.setdefault(own_part(t).untyped_storage()._cdata, path)

    def in_bucket(self, path: str, gradient: torch.Tensor) -> None:
        """Remember the module whose gradient lies there in a bucket, from which it is copied back."""
        self._slots[gradient.untyped_storage()._cdata, gradient.storage_offset()] = path

    def reduce_gradients(self, wanted: bool) -> None:
        """Whether the backward passes from now on reduce gradients among devices, or only add them up, as in a pipeline."""
        self.reducing = wanted
        for told in self.syncs:
            told(wanted)

    def end_step(self) -> None:
        """All backward passes of a step are over."""
        for end in self.ends:
            end()

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Nothing that runs meanwhile is recorded."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextlib.contextmanager
    def home_of(self, path: str) -> Iterator[None]:
        """Whatever runs meanwhile is done for this module."""
        self._now = path
        try:
            yield
        finally:
            self._now = None

    def _home(self, op: str, args: Mapping[str, Any], out: Any) -> str | None:
        if self._now is not None:
            return self._now
        if op == "fsdp.copy_in.default":
            home = self._homes.get(args["tensors"][0].untyped_storage()._cdata)
            if home is not None:
                self._homes[out.untyped_storage()._cdata] = home
            return home
        if op in ("fsdp.copy_out.default", "costir.all_gather.default"):
            return self._homes.get(args["self"].untyped_storage()._cdata)
        if op == "aten.copy_.default":
            source = own_part(args["src"])
            return self._slots.get((source.untyped_storage()._cdata, source.storage_offset()))
        return None

    def axes_of(self, group: Any) -> tuple[str, ...]:
        """The axes that a process group, or the name of one, lies along.

        Raises:
            TraceError: where it lies along none.
        """
        if isinstance(group, str):
            group = dist.distributed_c10d._resolve_process_group(group)
        elif isinstance(group, torch.ScriptObject):
            group = dist.ProcessGroup.unbox(group)
        ranks = frozenset(dist.get_process_group_ranks(group))
        if ranks not in self._lines:
            raise TraceError(f"a collective runs among devices {sorted(ranks)[:8]}, which lie along no axes of the mesh")
        return self._lines[ranks]

    @contextlib.contextmanager
    def _without_metadata(self) -> Iterator[None]:
        """Notice when torch runs an operator once more on undivided shapes, only to know the result's."""
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._sharding_prop import ShardingPropagator

        old = ShardingPropagator._propagate_tensor_meta_non_cached

        def counting(propagator: Any, schema: Any) -> Any:
            with self.unseen():
                return old(propagator, schema)

        with _replaced(ShardingPropagator, "_propagate_tensor_meta_non_cached", counting):
            try:
                yield
            finally:
                _forget(DTensor._op_dispatcher.sharding_propagator)


@contextlib.contextmanager
def _without_whole_views() -> Iterator[None]:
    """No view of all of a gathered tensor: torch makes one where two equal numbers are two objects, from 257 on, not below."""
    from torch.distributed.tensor import Shard

    old = Shard.__dict__.get("_maybe_unpad_tensor")
    if old is None:  # torch before 2.13
        yield
        return

    def even(shard: Any, gathered: torch.Tensor, length: int, devices: int) -> torch.Tensor:
        whole = gathered.size(shard.dim) == length
        return gathered.contiguous() if whole else old(shard, gathered, length, devices)

    with _replaced(Shard, "_maybe_unpad_tensor", even):
        yield


def _lines(sizes: Mapping[str, int]) -> Iterator[tuple[frozenset[int], tuple[str, ...]]]:
    """The ranks that share a line or plane with rank 0, by the axes along which it lies; fewest axes first."""
    names = list(sizes)
    strides = {n: math.prod(list(sizes.values())[i + 1 :]) for i, n in enumerate(names)}
    found: dict[frozenset[int], tuple[str, ...]] = {}
    for many in range(len(names), 0, -1):
        for axes in itertools.combinations(names, many):
            places = itertools.product(*(range(sizes[a]) for a in axes))
            found[frozenset(sum(i * strides[a] for i, a in zip(p, axes, strict=True)) for p in places)] = axes
    yield from found.items()


def _forget(propagator: Any) -> None:
    """What was remembered of meshes that are gone."""
    from torch.distributed.tensor import _redistribute

    for cached in (propagator.propagate_op_sharding, propagator._propagate_tensor_meta_cached):
        cached.cache_clear()
    _redistribute._gen_transform_infos.cache_clear()
    for owner, name in (
        (_redistribute, "clear_redistribute_planner_cache"),
        (torch._C, "_clear_DTensor_sharding_propagator_cache"),
    ):
        getattr(owner, name, lambda: None)()


def _end() -> None:
    with _disable_current_modes():
        dist.destroy_process_group()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Warnings that torch logs of groups that send nothing."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    old = owner.__dict__[name]
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


@contextlib.contextmanager
def _plainly(owner: Any, name: str) -> Iterator[None]:
    """A method of torch's meshes that works on real tensors of ranks, whatever mode is on."""
    if name not in owner.__dict__:
        yield
        return
    given = owner.__dict__[name]
    old: Callable[..., Any] = getattr(given, "__func__", given)

    @functools.wraps(old)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return old(*args, **kwargs)

    with _replaced(owner, name, staticmethod(plain) if isinstance(given, staticmethod) else plain):
        yield
