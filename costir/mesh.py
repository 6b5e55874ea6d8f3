"""A mesh of devices: named axes, each with a number of devices. The lengths are sizes like any other: X stays a letter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from costir.errors import SizeError, nearest
from costir.symbolic import Expr, number, product, size

BATCH = ("B", "batch", "batch_size", "bs", "N_batch")  # names of the size that is divided among devices as the batch


def batch_of(sizes: Iterable[str]) -> str:
    """The size that is the batch, by its name; "" where none is."""
    known = set(sizes)
    return next((n for n in BATCH if n in known), "")


@dataclass(frozen=True, slots=True)
class Mesh:
    """Devices in a grid, as `torch.distributed.init_device_mesh` lays them out: neighbours differ in the last axis.

    Attributes:
        axes: name and length of each axis, the outermost first. A length is a size or a number.
    """

    axes: tuple[tuple[str, Expr], ...] = ()

    @staticmethod
    def of(names: Iterable[str] | Mapping[str, int | Expr]) -> Mesh:
        """The mesh of these axes; a name alone is a size of that name: Mesh.of(["X", "Y"]), Mesh.of({"X": 8})."""
        if isinstance(names, Mapping):
            return Mesh(tuple((n, number(v)) for n, v in names.items()))
        return Mesh(tuple((n, size(n)) for n in names))

    def __bool__(self) -> bool:
        return bool(self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        """The axes, the outermost first."""
        return tuple(n for n, _ in self.axes)

    @property
    def devices(self) -> Expr:
        """The number of devices."""
        return product(length for _, length in self.axes)

    def length(self, name: str) -> Expr:
        """The devices along an axis.

        Raises:
            SizeError: where there is no such axis.
        """
        for n, length in self.axes:
            if n == name:
                return length
        has = f"it has {', '.join(self.names)}" if self else "there is none: add for example --mesh X=4"
        raise SizeError(f"the mesh has no axis {name[:40]!r}", nearest(name[:40], self.names) if self else has)

    def group(self, names: Iterable[str]) -> Expr:
        """The devices along several axes together."""
        return product(self.length(n) for n in names)

    def stride(self, name: str) -> Expr:
        """How far apart two neighbours along an axis are in the order of all devices: the product of the later axes."""
        self.length(name)
        return product(length for _, length in self.axes[self.names.index(name) + 1 :])


ONE_DEVICE = Mesh()


def check_mesh(axes: Mapping[str, int], devices: int | None = None) -> None:
    """Refuse a mesh that is none.

    Raises:
        SizeError: a length is no whole number of devices, or the axes do not multiply to `devices`.
    """
    for name, length in axes.items():
        if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= 10**7:
            raise SizeError(f"the mesh axis {name[:40]} has {length!r:.40} devices, which is no whole number from 1 to 10**7")
    count = math.prod(axes.values())
    if devices is not None and count != devices:
        given = "*".join(axes) or "a mesh of none"
        raise SizeError(f"{given} is {count} device{'s' * (count != 1)} and not {devices}", "change --mesh or --devices")


def known_axes(links: Iterable[str], axes: Iterable[str]) -> None:
    """Refuse a link that is asked for an axis that is not there.

    Raises:
        SizeError: names the axis.
    """
    known = list(axes)
    lost = next((a for a in links if a not in known), None)
    if lost is not None:
        raise SizeError(f"a link is asked for the axis {lost[:40]!r}, which is none here", nearest(lost[:40], known))
