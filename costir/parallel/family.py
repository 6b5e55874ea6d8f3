"""A family on a mesh: the same model, with the axes of the mesh among its sizes, as one device runs it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from torch._subclasses.fake_tensor import FakeTensor

from costir.errors import LoadError, SizeError, UndividedError
from costir.load.family import Built, Family
from costir.mesh import BATCH, batch_of
from costir.parallel.own_plan import Styles, own_plan
from costir.parallel.plan import Plan
from costir.parallel.ring import telling
from costir.parallel.strategies import UnevenError, untie, wrap
from costir.parallel.world import World

_CHOICES = {"k"}  # experts per token: nobody divides these
_LENGTHS = ("T", "S", "seq", "seq_len", "seqlen", "length")  # divided by sp and cp alone


class _Maker:
    """Makes the members of a divided family; the world that a trace runs in is the one that is open."""

    def __init__(self, family: Family, plan: Plan, batch: str, styles: Styles, front: Collection[str] | None) -> None:
        self.family, self.plan, self.batch, self.styles, self.front = family, plan, batch, styles, front
        self.world: World | None = None
        self.refused: UndividedError | None = None

    @contextlib.contextmanager
    def open(self, sizes: Mapping[str, int]) -> Iterator[World]:
        """A world of the mesh at these sizes.

        Raises:
            UndividedError: at these sizes, or at others before, the model was seen to do what cannot be divided.
        """
        if self.refused is not None:
            raise self.refused
        with World({a: int(sizes[a]) for a in self.plan.mesh}, self.front) as self.world:
            try:
                yield self.world
            except UndividedError as error:
                self.refused = error
                raise
            finally:
                self.world = None

    def build(self, **sizes: int) -> Built:
        """The module as one device runs it; whole where no world is open, to be looked at."""
        own = {n: v for n, v in sizes.items() if n not in self.plan.mesh}
        if self.world is None:
            return self.family.build(**own)
        own = local_sizes(self.family, self.plan, {**sizes})
        for axis in self.plan.axes_of("cp"):
            name = _length(self.family)
            others = [int(v) for n, v in own.items() if n != name]
            matrices = [int(sizes[a]) for a in self.plan.axes_of("tp", "sp", "ep")]
            lengths = [int(own[name]), *(int(own[name]) // int(sizes[a]) for a in self.plan.axes_of("sp"))]
            self.world.go_round(axis, telling(lengths, (*others, *matrices)))
        module, args, kwargs = self.family.build(**own)
        if not all(isinstance(p, FakeTensor) for p in module.parameters()):
            raise LoadError(
                f"{self.family.name} exists already, and dividing it would change it for good",
                "give a file, or a function build(**sizes) that makes it afresh",
            )
        return Built(wrap(module, self.plan, self.world, self.styles), args, kwargs)


def local_sizes(family: Family, plan: Plan, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes that one device builds the model with: its part of the batch.

    Args:
        family, plan: what is divided.
        sizes: of the whole model; devices along each axis, where they differ from the plan's.

    Raises:
        UnevenError: the devices do not divide the batch.
    """
    own, batch = {n: v for n, v in sizes.items() if n not in plan.mesh}, _batch(family, plan)
    for axis in plan.axes_of("cp"):
        count, length = sizes.get(axis, plan.mesh[axis]), _length(family)
        if own[length] % (2 * count):
            raise UnevenError(
                f"shards would be uneven: cp gives each of {int(count)} devices along {axis} two parts of the sequence, and "
                f"{length} = {int(own[length])} is no multiple of {2 * int(count)}",
                f"choose a multiple: --size {length}={2 * int(count)}",
            )
        own[length] = own[length] // count
        for further in plan.axes_of("sp"):
            parts = sizes.get(further, plan.mesh[further])
            if own[length] % parts:
                raise UnevenError(
                    f"shards would be uneven: sp divides the {int(own[length])} positions that cp leaves a device among "
                    f"{int(parts)} along {further}",
                    f"choose a multiple: --size {length}={int(count) * math.lcm(2, int(parts))}",
                )
    together = math.prod(int(sizes.get(axis, plan.mesh[axis])) for axis in plan.batch_axes)
    for axis in plan.batch_axes:
        count = sizes.get(axis, plan.mesh[axis])
        if own[batch] % count:
            raise UnevenError(
                f"shards would be uneven: {int(count)} devices along {axis} do not divide the batch, "
                f"{batch} = {int(own[batch])}",
                f"choose a multiple of {together}: --size {batch}={-(-int(sizes[batch]) // together) * together}",
            )
        own[batch] = own[batch] // count
    return own


def one_each(family: Family, plan: Plan, given: Mapping[str, int]) -> Family:
    """The family with one element of the batch for each device, where it has fewer by itself and the user named no batch."""
    batch = batch_of(family.sizes)
    count = math.prod(plan.mesh[a] for a in plan.batch_axes)
    if not batch or batch in given or family.sizes[batch] >= count:
        return family
    note = (
        f"{batch} = {count}, one for each device that divides it: by itself {family.name} has {batch} = {family.sizes[batch]}"
    )
    return dataclasses.replace(family, sizes={**family.sizes, batch: count}, notes=(*family.notes, note))


def distributed(family: Family, plan: Plan, styles: Styles = None, front: Collection[str] | None = None) -> Family:
    """The family with the axes of a mesh among its sizes.

    Args:
        family: the model on one device.
        plan: mesh and strategies.
        styles: the user's own plan for tp or sp, where it is not the model's.
        front: of a model that is cut into the stages of a pipeline, the modules that run before its blocks; else None.

    Raises:
        SizeError: an axis has the name of a size, or no size is the batch.
    """
    whole_plan = plan.without_ones()
    plan = whole_plan.without("pp")
    if plan.devices == 1:
        return family
    clash = next((a for a in plan.mesh if a in family.sizes), None)
    if clash is not None:
        raise SizeError(f"{clash} is a size of {family.name} and an axis of the mesh", "give the axis another name")
    maker = _Maker(family, plan, _batch(family, plan), styles if styles is not None else own_plan(family, plan), front)
    return dataclasses.replace(
        family,
        build=maker.build,
        sizes={**family.sizes, **plan.mesh},
        notes=(*family.notes, *notes(whole_plan)),
        axes=tuple(plan.mesh),
        turns=plan.axes_of("cp"),
        splits={maker.batch: plan.batch_axes} if plan.batch_axes else {},
        scaled=_scaled(family, plan),
        multiples={**family.multiples, **_halves(family, plan)},
        world=maker.open,
    )


def staged(family: Family, ties: Collection[Sequence[str]]) -> Family:
    """The family as it is traced to be cut into stages: weights that the first and the last one share are two.

    Args:
        family: the model on one device.
        ties: the paths of each such weight.
    """

    def build(**sizes: int) -> Built:
        module, args, kwargs = family.build(**sizes)
        if not all(isinstance(p, FakeTensor) or p.is_meta for p in module.parameters()):
            raise LoadError(
                f"{family.name} exists already, and giving two stages what they share would change it for good",
                "give a file, or a function build(**sizes) that makes it afresh",
            )
        untie(module, ties)
        return Built(module, args, kwargs)

    return dataclasses.replace(family, build=build if ties else family.build, staged=True)


def notes(plan: Plan, micro_batches: int = 1) -> Iterator[str]:
    """What a reader must know of the devices."""
    others = "all others of its stage" if plan.axes_of("pp") else "all others"
    yield f"one of {' * '.join(plan.mesh)} devices, by {plan}; {others} run and send the same"
    if micro_batches > 1 and plan.axes_of("fsdp", "hsdp"):
        yield "fsdp: gradients are reduced in every micro-batch, as by torch without set_requires_gradient_sync(False)"
    if plan.axes_of("cp"):
        yield "cp: torch's ring attention; keys and values are gathered, their gradients go round; causal parts are balanced"
        yield "cp: of other devices' parts the masked half is left out, as by torch: less than an equal share of all scores"
    if plan.axes_of("dp", "cp") and not plan.axes_of("fsdp", "hsdp"):
        yield "dp: gradients are reduced one parameter at a time; torch joins them to buckets of 25 MB, of as many bytes"


def _scaled(family: Family, plan: Plan) -> dict[str, tuple[str, ...]]:
    """The axes along which a size may be divided: any, but with cp, where many go together, rows are as few as can be."""
    whole = _CHOICES if plan.axes_of("sp", "cp") or plan.file else {*_CHOICES, *_LENGTHS}
    found = {n: tuple(plan.mesh) for n in family.sizes if n not in {*family.depth, *family.limits, *whole}}
    if plan.axes_of("cp"):
        length, batch = _length(family), _batch(family, plan)
        own = {length: (*plan.axes_of("cp"), *plan.axes_of("sp")), batch: (*plan.batch_axes, *plan.axes_of("tp", "ep"))}
        found |= {n: axes for n, axes in own.items() if n in found}
    return found


def _halves(family: Family, plan: Plan) -> dict[str, int]:
    """A sequence that goes round is in two parts on each device."""
    if not plan.axes_of("cp"):
        return {}
    name = _length(family)
    return {name: math.lcm(2, family.multiples.get(name, 1))}


def _length(family: Family) -> str:
    """The size that is the sequence's length.

    Raises:
        SizeError: where none is.
    """
    found = next((n for n in _LENGTHS if n in family.sizes), "")
    if not found:
        raise SizeError(f"{family.name} has no size that is the length of its sequence", f"name it {_LENGTHS[0]}")
    return found


def _batch(family: Family, plan: Plan) -> str:
    """The size that is the batch."""
    found = batch_of(family.sizes)
    if plan.batch_axes and not found:
        raise SizeError(f"{family.name} has no size that is its batch", f"name it {' or '.join(BATCH[:3])}")
    return found
