"""`--mesh X=8,Y=4 --parallel fsdp=X,tp=Y`, read: which axes there are, and what runs along each."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from costir.errors import SizeError, nearest
from costir.units import parse_size

# What each strategy does, and along how many axes.
STRATEGIES = {
    "dp": ("every device has all weights and a part of the batch (DistributedDataParallel)", 1),
    "fsdp": ("weights and batch are divided, weights gathered when needed (fully_shard)", 1),
    "hsdp": ("fsdp within the second axis, copies along the first (fully_shard on a mesh of two axes)", 2),
    "tp": ("matrices are divided by the model's plan (parallelize_module)", 1),
    "sp": ("tp, and between the matrices the sequence is divided", 1),
    "ep": ("each device has whole experts; the other matrices as by tp (transformers models)", 1),
    "cp": ("the sequence is divided, and attention goes round by torch's ring attention", 1),
    "pp": ("the blocks are divided into equal stages, each another program (a pipeline)", 1),
    "data": ("only the batch is divided: for plans of your own that do the rest", 1),
}
WITH_PP = ("pp", "dp", "fsdp", "hsdp", "tp", "sp")  # what is traced for a stage of a pipeline
DATA = ("dp", "fsdp", "hsdp", "data")  # strategies that divide the batch
LARGEST_MESH = 10**9
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Part:
    """One strategy and its axes."""

    strategy: str
    axes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.strategy}={'/'.join(self.axes)}"


@dataclass(frozen=True)
class Plan:
    """How a model is divided.

    Attributes:
        mesh: the axes and how many devices lie along each, slowest first.
        parts: what runs along which axes.
        file: a plan of the user's own: "plan.py" or "plan.py:name"; "" for none.
    """

    mesh: Mapping[str, int]
    parts: tuple[Part, ...]
    file: str = ""

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return math.prod(self.mesh.values())

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The axes along which the batch is divided."""
        return tuple(a for p in self.parts if p.strategy in DATA for a in p.axes)

    def axes_of(self, *strategies: str) -> tuple[str, ...]:
        """The axes of the first of these strategies that is used; () where none is."""
        return next((p.axes for p in self.parts if p.strategy in strategies), ())

    def without_ones(self) -> Plan:
        """The same without axes of one device, along which nothing is divided."""
        mesh = {a: n for a, n in self.mesh.items() if n > 1}
        parts = []
        for p in self.parts:
            axes = tuple(a for a in p.axes if a in mesh)
            if len(axes) == len(p.axes):
                parts.append(p)
            elif axes:  # hsdp along one axis: copies only, or shards only
                parts.append(Part("dp" if axes == p.axes[:1] else "fsdp", axes))
        return Plan(mesh, tuple(parts), self.file)

    def without(self, strategy: str) -> Plan:
        """The same without a strategy and its axes."""
        axes = self.axes_of(strategy)
        mesh = {a: n for a, n in self.mesh.items() if a not in axes}
        return Plan(mesh, tuple(p for p in self.parts if p.strategy != strategy), self.file)

    def __str__(self) -> str:
        return ", ".join([*map(str, self.parts), *([self.file] if self.file else [])])


def plan_of(mesh: Mapping[str, int], parallel: str, devices: int | None = None) -> Plan:
    """The plan that a mesh and a text such as "fsdp=X,tp=Y" describe.

    Args:
        mesh: devices along each axis.
        parallel: strategies with their axes, "hsdp=X/Y" for one with two; the path of a plan of one's own may be among them.
        devices: how many devices there must be, where the user said so.

    Raises:
        SizeError: an unknown strategy or axis, an axis used twice or not at all, a mesh of another number of devices.
    """
    _check_mesh(mesh, devices)
    if not parallel.strip():
        axes = ", ".join(mesh)
        raise SizeError(
            f"the mesh has {axes}, and nothing says what runs along it", f"add for example --parallel dp={next(iter(mesh))}"
        )
    parts: list[Part] = []
    file = ""
    for text in (t.strip() for t in parallel.split(",")):
        name, equals, value = (x.strip() for x in text.partition("="))
        if not equals and re.search(r"\.py(:\w+)?$", text):
            file = text
            continue
        if not equals or not name or not value:
            raise SizeError(f"--parallel {text[:60]!r} is not STRATEGY=AXIS", "write for example --parallel fsdp=X,tp=Y")
        parts.append(_part(name, value, mesh))
    _check_axes(parts, mesh, bool(file))
    return Plan(dict(mesh), tuple(parts), file)


def _check_mesh(mesh: Mapping[str, int], devices: int | None) -> None:
    if not mesh:
        raise SizeError("--parallel divides a model over a mesh, and there is none", "add for example --mesh X=8,Y=4")
    for name, count in mesh.items():
        if not _NAME.fullmatch(name):
            raise SizeError(f"{name[:40]!r} is no name of a mesh axis", "write for example --mesh X=8,Y=4")
        parse_size(str(count), f"mesh axis {name}")
    total = math.prod(mesh.values())
    if devices is not None and total != devices:
        axes = " * ".join(f"{n}={v}" for n, v in mesh.items())
        raise SizeError(f"the mesh {axes} has {total} devices, not {devices}", "change --mesh or --devices")
    if total > LARGEST_MESH:
        raise SizeError(f"a mesh of {total} devices is more than {LARGEST_MESH}")


def _part(name: str, value: str, mesh: Mapping[str, int]) -> Part:
    if name not in STRATEGIES:
        raise SizeError(f"no strategy {name[:40]!r}", nearest(name, STRATEGIES))
    axes = tuple(a.strip() for a in value.split("/"))
    for a in axes:
        if a not in mesh:
            raise SizeError(f"{name}={value} names the axis {a[:40]!r}, which the mesh does not have", nearest(a, mesh))
    wanted = STRATEGIES[name][1]
    if len(axes) != wanted:
        example = "hsdp=X/Y: copies along X, shards along Y" if wanted == 2 else f"{name}=X"
        raise SizeError(f"{name} takes {wanted} {'axes' if wanted > 1 else 'axis'}, not {value}", f"write {example}")
    return Part(name, axes)


def _check_axes(parts: list[Part], mesh: Mapping[str, int], own: bool) -> None:
    used: dict[str, Part] = {}
    for p in parts:
        for a in p.axes:
            if a in used:
                raise SizeError(f"the axis {a} is used twice, by {used[a]} and {p}", "give each strategy an axis of its own")
            used[a] = p
    if any(p.strategy == "pp" for p in parts):
        odd = next((str(p) for p in parts if p.strategy not in WITH_PP), "a plan of your own" if own else "")
        if odd:
            raise SizeError(f"pp and {odd} do not go together", f"with pp use {', '.join(WITH_PP[1:])}")
    for group in (("tp", "sp", "ep"), ("dp", "fsdp", "hsdp"), ("cp", "data")):
        found = [p for p in parts if p.strategy in group]
        if len(found) > 1:
            raise SizeError(f"{found[0]} and {found[1]} exclude each other", f"use one of {', '.join(group)}")
    idle = [a for a in mesh if a not in used]
    if idle and not own:
        raise SizeError(f"nothing runs along the axis {idle[0]}", f"add for example dp={idle[0]} to --parallel")
