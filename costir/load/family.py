"""What the loader hands to the tracer: a model as a function of named sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from costir.errors import SizeError, nearest
from costir.units import LARGEST_SIZE


class Built(NamedTuple):
    """One member of a family: the module and the arguments of one call of its `forward`."""

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class CacheUse:
    """How the step that is run uses a cache.

    Attributes:
        arguments: those of `forward` that hold it; empty where their names say so ("k_cache", "past_key_values").
        fill: called before the step, unrecorded, as `fill(module, kwargs, sizes)`: fills the cache in `kwargs` with what came
            before. None where it is full as it is built.
        grows: from the module and the sizes to conditions on the cache: what each is, a comparison ("<"), its sides, whether it
            must hold (a token before the one that is decoded) or may fail (a window that is not full). What the cache's own
            code compares is left out then. None where it is the cache's code that says where it stops growing.
    """

    arguments: tuple[str, ...] = ()
    fill: Callable[[Any, dict[str, Any], Mapping[str, int]], None] | None = None
    grows: Callable[[Any, Mapping[str, int]], Sequence[tuple[str, str, int, int, bool]]] | None = None


@dataclass(frozen=True)
class Family:
    """A model as a function of named sizes.

    Attributes:
        name: what is analysed, for headings.
        build: `build(**sizes)` makes the module and the example inputs afresh. It is called under a FakeTensorMode, several
            times with different sizes, and the module's mode (train or eval) is as the user left it.
        sizes: the base sizes, in the order in which results name them.
        optimizer: `optimizer(params)` as the user wrote it, or None.
        loss: from the output of `forward` to the scalar that is differentiated, or None.
        notes: assumptions worth printing.
        source: the file it came from.
        depth: sizes known to be layer counts.
        trusted_layers: layers differ only through the lists in `per_layer`, not through their position.
        per_layer: config lists with one entry per layer, at the base depth.
        multiples: what a size must be a multiple of, where the model groups by a number that is no size (groups of experts).
        related: pairs of sizes of which the first is likely to be a multiple of the second; empty where nothing is known.
        divisible: pairs of sizes of which the first must be a multiple of the second although no dimension says so (N and K).
        limits: the largest legal value of a size (T of a table of learned positions); the formulas hold up to there.
        plans: the model's own plans: for "tp" and "sp", module path -> style.
        axes: sizes that are numbers of devices along the axes of a mesh.
        turns: the axes along which something goes round, in as many turns as they have devices.
        splits: the sizes that are divided among devices, with the axes along which.
        scaled: sizes that are probed at multiples of axes, so that devices divide them evenly, and these axes.
        world: `world(sizes)` is the mesh that a member runs on, open for the length of a `with`; None for one device.
        cache: how the step uses a cache, in the phases "prefill" and "decode"; else None.
        recompute: what is computed again in the backward pass instead of being kept: "none", "blocks", "all", or a pattern of
            module paths.
        micro_batches: how many forward and backward passes make one step.
        staged: whether what is traced will be cut into the stages of a pipeline.
    """

    name: str
    build: Callable[..., Built]
    sizes: dict[str, int]
    optimizer: Callable[[Any], Any] | None = None
    loss: Callable[[Any], Any] | None = None
    notes: tuple[str, ...] = ()
    source: str = ""
    depth: tuple[str, ...] = ()
    trusted_layers: bool = False
    per_layer: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    multiples: Mapping[str, int] = field(default_factory=dict)
    related: tuple[tuple[str, str], ...] = ()
    divisible: tuple[tuple[str, str], ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    plans: Mapping[str, Any] = field(default_factory=dict)
    axes: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scaled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    world: Callable[[Mapping[str, int]], AbstractContextManager[Any]] | None = None
    cache: CacheUse | None = None
    recompute: str = "none"
    micro_batches: int = 1
    staged: bool = False


def within_limits(sizes: Mapping[str, int], limits: Mapping[str, int], what: str) -> None:
    """Refuse sizes that the model itself cannot have.

    Raises:
        SizeError: names the first size above its largest legal value.
    """
    for name, largest in limits.items():
        if sizes.get(name, 0) > largest:
            raise SizeError(f"{what} has no {name}={sizes[name]}: it ends at {name} = {largest}", longer(name))


def longer(name: str) -> str:
    """What to do about a size above its largest legal value."""
    return f"choose a smaller {name}, or give the config a longer table of positions"


@dataclass(frozen=True)
class ExportedSubject:
    """A program that `torch.export.save` wrote; it carries its own symbols and is read as it is."""

    path: str


def with_sizes(base: Mapping[str, int], given: Mapping[str, int], what: str) -> dict[str, int]:
    """The base sizes with the user's values put in, order kept.

    Raises:
        SizeError: where a given size is unknown to `what`, or is no whole number from 1 to 10**12.
    """
    for name, value in given.items():
        if name not in base:
            raise SizeError(f"{what} has no size {name!r}", nearest(name, base) if base else "it has no named sizes at all")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_SIZE:
            raise SizeError(f"{name}={value!r} is not a whole number from 1 to 10**12", f"write for example {name}=4096")
    return {**base, **given}
