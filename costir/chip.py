"""The records of a chip: `Chip`, `Link`, `OnChip`. `hardware` makes them from files.

Rates are FLOP/s with one multiply-add counted as two, bandwidths bytes/s, capacities bytes, all exact `Fraction`s.
No sympy and no torch here: listing the chips must take no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

from costir import chipfile
from costir.calibration import Calibration
from costir.collective_times import Collectives
from costir.errors import ChipError

V = TypeVar("V")


class FrozenMap(Mapping[str, V]):
    """A mapping that cannot be changed, and so can be hashed, pickled and shared."""

    __slots__ = ("_items",)
    _items: dict[str, V]

    def __init__(self, items: Mapping[str, V]) -> None:
        object.__setattr__(self, "_items", dict(items))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a FrozenMap cannot be changed")

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenMap, (dict(self._items),))

    def __repr__(self) -> str:
        return repr(self._items)


@dataclass(frozen=True, slots=True)
class OnChip:
    """A memory on the chip: bytes, and bytes/s where known."""

    name: str
    capacity: Fraction | None = None
    bandwidth: Fraction | None = None
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """A network that a chip is on. Bandwidths are bytes/s that leave one chip, in one direction, unless named otherwise.

    Attributes:
        name: the key in the chip file: "ici", "nvlink", "host", "dcn".
        kind: what the vendor calls it.
        links: number of links of one chip.
        link_one_way: one link.
        link_one_way_planned: one link as the scaling book plans with it, protocol overhead taken off.
        one_way: all links of one chip together.
        two_way: the same in both directions added, which is what vendors print.
        peer_one_way: towards one peer, where that is less than `one_way`.
        scaleout_one_way: the part that leaves the box, where ports are divided.
        latency: seconds per hop.
        topology: in words.
        pod: the largest torus, per axis.
        domain: number of chips that it reaches.
        max_slice: the largest slice that can be rented.
        wrap_rule: when an axis of the torus closes to a ring.
        chips_per_host: chips that share one host.
    """

    name: str
    kind: str = ""
    links: int | None = None
    link_one_way: Fraction | None = None
    link_one_way_planned: Fraction | None = None
    one_way: Fraction | None = None
    two_way: Fraction | None = None
    peer_one_way: Fraction | None = None
    scaleout_one_way: Fraction | None = None
    latency: Fraction | None = None
    topology: str = ""
    pod: tuple[int, ...] = ()
    domain: int | None = None
    max_slice: int | None = None
    wrap_rule: str = ""
    chips_per_host: int | None = None


# torch's type names, and the names that people type, to the database's keys.
_KEY_OF = {
    "float64": "fp64", "double": "fp64", "f64": "fp64", "complex128": "fp64", "float32": "fp32", "float": "fp32",
    "f32": "fp32", "complex64": "fp32", "float16": "fp16", "half": "fp16", "f16": "fp16", "complex32": "fp16",
    "bfloat16": "bf16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "float8_e4m3fnuz": "fp8", "float8_e5m2fnuz": "fp8",
    "float8_e8m0fnu": "fp8", "e4m3": "fp8", "e5m2": "fp8", "f8": "fp8", "float4_e2m1fn_x2": "fp4", "f4": "fp4",
    "uint8": "int8", "qint8": "int8", "quint8": "int8", "i8": "int8", "s8": "int8", "u8": "int8", "uint4": "int4",
    "quint4x2": "int4", "i4": "int4", "s4": "int4", "u4": "int4",
    **{k: k for k in (*chipfile.MATRIX, *chipfile.VECTOR)},
}  # fmt: skip
# Vector units work on these in single precision, where they have no rate of their own.
_WIDENED = ("bf16", "fp16", "fp8", "fp6", "fp4")
_NO_MAP: FrozenMap[Any] = FrozenMap({})


def rate_key(dtype: str) -> str:
    """The database's key of a dtype: "bfloat16" and "torch.bfloat16" are "bf16"; unknown names stay as they are."""
    name = dtype.strip().lower().removeprefix("torch.")
    return _KEY_OF.get(name, name)


@dataclass(frozen=True)
class Chip:
    """One accelerator: peak rates, memory, links, and where each number comes from.

    Attributes:
        id: the file's name, "h100_sxm".
        name: the product's name.
        vendor: its maker.
        year: of announcement; None in a user's file that has none.
        kind: gpu, tpu, npu, soc or cpu; empty where not said.
        matrix: dense peak of the matrix unit, FLOP/s (OP/s for whole numbers) by dtype key ("bf16", "fp8", "int8").
        vector: peak of the vector unit, FLOP/s by dtype key; see `vector_rate` for what it counts.
        memory_bandwidth: of the main memory, bytes/s.
        memory_capacity: bytes to plan with.
        onchip: caches and scratch memories by name.
        links: networks by name.
        preset: the preset in use, "" for the database's own numbers.
        presets: the presets that the chip has.
        sources: where each quantity comes from, by its name ("matrix.bf16", "memory.bandwidth", "link.ici.one_way").
        notes: what to know about the numbers, one sentence or two per table.
        values: every number by its name; these names are what settings take.
        settings: the numbers that were set by hand.
        unsupported: dtypes for which the matrix unit has no path.
        calibration: what `costir calibrate` measured on this machine, where the file has it.
        collectives: what `costir calibrate --collectives` measured, where the file has it.
        measured: what libraries reached, by the community's measurements; never mixed with the peaks.
        flop_per_lane_cycle: 2 where `vector` counts fused multiply-adds as two, 1 where it counts single operations.
        unit: what "one chip" means.
        confidence: vendor, secondary or low; empty in a user's file.
        memory_kind: HBM3, GDDR6, ...
        alias_note: "h100 -> h100_sxm (also: ...)" where the chip was asked for by another name.
        path: the file.
    """

    id: str
    name: str
    memory_bandwidth: Fraction
    vendor: str = ""
    year: int | None = None
    kind: str = ""
    matrix: FrozenMap[Fraction] = _NO_MAP
    vector: FrozenMap[Fraction] = _NO_MAP
    memory_capacity: Fraction | None = None
    onchip: FrozenMap[OnChip] = _NO_MAP
    links: FrozenMap[Link] = _NO_MAP
    preset: str = ""
    presets: tuple[str, ...] = ()
    sources: FrozenMap[str] = _NO_MAP
    notes: tuple[str, ...] = ()
    values: FrozenMap[Fraction] = _NO_MAP
    settings: FrozenMap[Fraction] = _NO_MAP
    unsupported: tuple[str, ...] = ()
    measured: FrozenMap[Fraction] = _NO_MAP
    flop_per_lane_cycle: int = 2
    unit: str = ""
    confidence: str = ""
    memory_kind: str = ""
    alias_note: str = ""
    path: str = ""
    calibration: Calibration | None = None
    collectives: Collectives | None = None

    @property
    def label(self) -> str:
        """The name that output shows: "tpu_v5e@book"; a "*" where numbers were set by hand."""
        return self.id + (f"@{self.preset}" if self.preset else "") + ("*" if self.settings else "")

    def matmul_key(self, dtype: str) -> str:
        """Which number a matmul in this compute type is bound by: "matrix.bf16", or "vector.fp32".

        float32 runs on the vector unit where the matrix unit has no fp32: torch does not use tf32 unless told to (ask for
        "tf32" where it was). On a TPU it runs at the bf16 rate, since XLA multiplies float32 in bfloat16 unless told not to.

        Raises:
            ChipError: where the chip has no rate for the type; the message names those that it has.
        """
        key = rate_key(dtype)
        if key in self.matrix:
            return f"matrix.{key}"
        if key == "fp32" and self.kind == "tpu" and "bf16" in self.matrix:
            return "matrix.bf16"
        if key in self.vector:
            return f"vector.{key}"
        has = ", ".join(dict.fromkeys((*self.matrix, *(k for k in self.vector if k in ("fp64", "fp32")))))
        why = "has no matmul path for" if key in self.unsupported else "has no known matmul rate for"
        others = f"; it has {has}" if has else ": its maker publishes no rates" if self.vendor else ""
        raise ChipError(
            f"{self.label} {why} {dtype}{others}",
            f"choose another dtype or set the rate in FLOP/s, matrix.{_settable(key)}=...",
        )

    def matmul_rate(self, dtype: str) -> Fraction:
        """Peak FLOP/s (OP/s for whole numbers) of a matmul in this compute type; see `matmul_key` and `matmul_note`.

        Raises:
            ChipError: where the chip has no rate for the type.
        """
        return self.values[self.matmul_key(dtype)]

    def matmul_note(self, dtype: str) -> str:
        """Where the matmul rate is not the matrix unit's for this very type: the sentence that says so; else ""."""
        key, used = rate_key(dtype), self.matmul_key(dtype)
        if used == f"matrix.{key}":
            return ""
        if used.startswith("matrix."):
            return f"{key} matmuls at the bf16 rate: XLA multiplies float32 in bfloat16 unless told not to"
        tail = ", torch does not use tf32 unless told to" if key == "fp32" and "tf32" in self.matrix else ""
        return f"{key} matmuls at the vector rate: the matrix unit has no {key}{tail}"

    def vector_rate(self, dtype: str, fma: bool = True) -> Fraction | None:
        """Peak FLOP/s of elementwise work and reductions in this type, or None where it is not known.

        On GPUs the printed peak counts a fused multiply-add as two FLOPs. It is what a bound needs: nothing is faster. Work
        that is all adds, or all multiplies, reaches `fma=False`, half of it; on TPUs the two are the same. Packed fp32, where
        a chip has it, is the peak. A narrow type without a rate of its own is computed in single precision. Whole numbers
        have no published rate: None.
        """
        key = rate_key(dtype)
        if not fma:
            plain = self.vector.get(key, self.vector.get("fp32") if key in _WIDENED else None)
            return plain / self.flop_per_lane_cycle if plain is not None else None
        if key == "fp32":
            return self.vector.get("fp32_packed", self.vector.get("fp32"))
        return self.vector.get(key, self.vector_rate("fp32") if key in _WIDENED else None)

    def ridge(self, dtype: str) -> Fraction:
        """FLOP per byte of main memory above which a matmul in this type is bound by compute.

        Raises:
            ChipError: where the chip has no rate for the type.
        """
        return self.matmul_rate(dtype) / self.memory_bandwidth


def _settable(key: str) -> str:
    return key if key in chipfile.MATRIX else "bf16"
