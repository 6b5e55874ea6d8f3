"""How long a cost takes on a chip, at least and at most.

Four units work on an operator: the matrix unit, the vector unit, the memory, the network. Where they overlap perfectly the time
is that of the slowest (`lower`); where they take turns it is the sum (`upper`), at most four times as much. Operators run one
after the other, so that the bounds of a model are the sums of its operators' bounds. `overlap` says which of these a model's
`lower` is: "op" (units overlap inside an operator), "none" (never), "full" (each unit works all the time, each link of the
network as a unit of its own: the longest of the units' totals).

Seconds are exact expressions in the sizes; a model's totals are evaluated in floats, for one point or for arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from costir import symbolic as sym
from costir.errors import ChipError, SizeError, nearest
from costir.hardware import Chip
from costir.ir import Constraint, Cost, Costed, Node
from costir.mesh import ONE_DEVICE
from costir.network import AS_BUILT, Network, Wiring
from costir.symbolic import ONE, ZERO, Expr

RESOURCES = ("compute", "vector", "memory", "network")
OVERLAPS = ("none", "op", "full")


@dataclass(frozen=True, slots=True)
class Times:
    """The time of one call of an operator on a chip, in seconds, as expressions in the sizes.

    Attributes:
        compute: matmul FLOPs over the matmul peak of the type that they are computed in.
        vector: elementwise FLOPs and special functions over the vector peak; 0 where the chip's is not known.
        memory: bytes over the bandwidth of the main memory.
        notes: which rates stood in for others, and what could not be counted.
        complete: whether everything that the operator does has a time.
        network: what collectives take on the chip's links.
    """

    compute: Expr = ZERO
    vector: Expr = ZERO
    memory: Expr = ZERO
    notes: tuple[str, ...] = ()
    complete: bool = True
    network: Expr = ZERO

    @property
    def units(self) -> tuple[Expr, Expr, Expr, Expr]:
        """The seconds of each unit, in the order of RESOURCES."""
        return self.compute, self.vector, self.memory, self.network

    @property
    def lower(self) -> Expr:
        """Seconds where the units overlap perfectly."""
        return sym.maximum(self.units)

    @property
    def upper(self) -> Expr:
        """Seconds where the units take turns."""
        return sym.total(self.units)

    def at(self, sizes: Mapping[str, int]) -> Timing:
        """Seconds at these sizes, computed exactly and rounded once.

        Raises:
            SizeError: where a size is missing.
        """
        point = {sym.size(n): v for n, v in sizes.items()}
        return Timing.of(*(_float(sym.evaluate(e, point)) for e in self.units))


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds as numbers, or as numpy arrays of one shape.

    Attributes:
        compute, vector, memory, network: each unit's own time.
        lower, upper: the bounds with perfect overlap and with none.
        bound: the unit that takes longest: "compute", "vector", "memory", "network"; "none" where nothing takes time.
    """

    compute: Any
    vector: Any
    memory: Any
    lower: Any
    upper: Any
    bound: Any
    network: Any = 0.0

    @staticmethod
    def of(compute: Any, vector: Any, memory: Any, network: Any = 0.0, lower: Any = None) -> Timing:
        """From the units' times; `lower` where it is a sum of bounds, not the maximum of these."""
        stack = np.stack(np.broadcast_arrays(compute, vector, memory, network))
        least = stack.max(axis=0) if lower is None else lower
        names = np.array([*RESOURCES, "none"])[np.where(stack.max(axis=0) > 0, stack.argmax(axis=0), len(RESOURCES))]
        upper = compute + vector + memory + network
        if stack.ndim == 1:
            return Timing(float(compute), float(vector), float(memory), float(least), float(upper), str(names), float(network))
        return Timing(compute, vector, memory, least, upper, names, network)


def _float(e: Expr) -> float:
    """A number; a size without a value is an error, never a guess."""
    if e.free_symbols:
        missing = ", ".join(sorted(str(s) for s in e.free_symbols))
        raise SizeError(f"no value for {missing}", f"give {missing} a value")
    return float(e)


def matmul_seconds_per_flop(cost: Cost, chip: Chip) -> Expr:
    """Seconds that one matmul FLOP takes at the peak of the cost's compute type.

    Raises:
        ChipError: where the chip has no rate for the type.
    """
    return ONE / sym.number(chip.matmul_rate(cost.math or "float32"))


def times(cost: Cost, chip: Chip, network: Network | None = None) -> Times:
    """The times of one call: FLOPs over peak rates, bytes over bandwidth, collectives over the links of `network`.

    Raises:
        ChipError: where the chip has no matmul rate for the compute type, or no link for a collective.
    """
    notes: list[str] = []
    complete = cost.status not in ("unknown", "flops_only")
    compute = vector = ZERO
    if cost.matmul != 0:
        compute = cost.matmul * matmul_seconds_per_flop(cost, chip)
        note = chip.matmul_note(cost.math or "float32")
        notes += [note] if note else []
    work = sym.total((cost.vector, cost.special))
    if work != 0:
        rate = chip.vector_rate(cost.math or "float32")
        if rate:
            vector = work / sym.number(rate)
        else:
            notes.append(
                f"elementwise arithmetic in {cost.math or 'float32'} is not timed: {chip.label} has no known vector rate"
            )
            # Whole-number work (masks, positions) is bound by memory everywhere; only floating work without a rate is a gap.
            complete = complete and not (cost.math or "float32").startswith(("float", "bfloat", "complex"))
    memory = cost.nbytes / sym.number(chip.memory_bandwidth)
    net = network or Network(chip, ONE_DEVICE)
    return Times(compute, vector, memory, tuple(notes), complete, sym.total(net.seconds(t) for t in cost.transfers))


@dataclass(frozen=True)
class Roofline:
    """A costed graph on a chip.

    Attributes:
        costed, chip: what was put together.
        times: the times of one call of each node, in the order of the nodes.
        notes: rates used for others, and what has no time; each once.
        unknown: operators whose cost is not known, each once; with any, totals are lower bounds only (">=").
        network: how the devices are connected. overlap: what `lower` of the whole means; see above.
    """

    costed: Costed
    chip: Chip
    times: tuple[Times, ...]
    notes: tuple[str, ...]
    unknown: tuple[str, ...]
    fabric: Network
    overlap: str = "op"

    @property
    def communicates(self) -> bool:
        """Whether anything is sent between devices."""
        return any(n.cost.transfers for n in self.nodes)

    @property
    def links(self) -> tuple[str, ...]:
        """What each group of axes communicates over, in words, at the base sizes."""
        transfers = {t.axes: t for n in self.nodes for t in n.cost.transfers}
        return tuple(words for t in transfers.values() for words in self.fabric.words(t))

    @property
    def complete(self) -> bool:
        """Whether every operator's cost is known; where not, totals are to be read as ">="."""
        return not self.unknown

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes."""
        return self.costed.nodes

    @cached_property
    def compute(self) -> Expr:
        """Seconds that the matrix unit works, all nodes together."""
        return self._total(lambda t: t.compute)

    @cached_property
    def vector(self) -> Expr:
        """Seconds that the vector unit works."""
        return self._total(lambda t: t.vector)

    @cached_property
    def memory(self) -> Expr:
        """Seconds that the memory works."""
        return self._total(lambda t: t.memory)

    @cached_property
    def network(self) -> Expr:
        """Seconds that collectives take, one after the other."""
        return self._total(lambda t: t.network)

    @cached_property
    def upper(self) -> Expr:
        """Seconds with no overlap."""
        return sym.total((self.compute, self.vector, self.memory, self.network))

    def _total(self, pick: Callable[[Times], Expr]) -> Expr:
        return sym.total(n.call.count * pick(t) for n, t in zip(self.nodes, self.times, strict=True))

    @cached_property
    def _evaluator(self) -> Callable[..., Any]:
        """All times and counts of all nodes, compiled once."""
        flat: list[Expr] = []
        for node, t in zip(self.nodes, self.times, strict=True):
            flat += [node.call.count, *t.units]
        return sym.compile_many(flat, list(self.costed.graph.sizes))

    def per_node(self, **sizes: Any) -> list[Timing]:
        """The times of each node, all its calls together, at these sizes; the others stay at the base.

        Args:
            sizes: numbers, or numpy arrays of one shape.

        Raises:
            SizeError: for a size that the graph does not have, a value that is no positive whole number, or a point outside the
                constraints of the graph.
        """
        base = self.costed.graph.sizes
        for name in sizes:
            if name not in base:
                raise SizeError(f"unknown size {name}", nearest(name, base))
        # In floats throughout: whole numbers of numpy overflow at 2**63, which FLOPs of one training run pass.
        point = [np.asarray(sizes.get(n, v), dtype=float) for n, v in base.items()]
        self._check(point)
        shape = np.broadcast_shapes(*(p.shape for p in point)) if point else ()
        found = [np.broadcast_to(np.asarray(x, dtype=float), shape) for x in self._evaluator(*point)]
        rows = (found[i : i + 5] for i in range(0, len(found), 5))
        parts = [Timing.of(*(count * u for u in units)) for count, *units in rows]
        return [replace(p, lower=p.upper) for p in parts] if self.overlap == "none" else parts

    def units_at(self, sizes: Mapping[str, float]) -> dict[str, float]:
        """The seconds of each unit, by RESOURCES, by the formulas as they are: also where sizes are not whole."""
        point = [float(sizes.get(n, v)) for n, v in self.costed.graph.sizes.items()]
        rows = np.asarray([float(x) for x in self._evaluator(*point)]).reshape(-1, 1 + len(RESOURCES))
        return dict(zip(RESOURCES, (rows[:, :1] * rows[:, 1:]).sum(axis=0).tolist(), strict=True))

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """Where the formulas hold: what the model needs, and what the links allow."""
        return (*self.costed.graph.constraints, *self.fabric.constraints, *self.fabric.full_nodes)

    @cached_property
    def _conditions(self) -> Callable[..., Any]:
        """All constraints, compiled once."""
        conditions = [c.condition for c in self.constraints]
        return sym.compile_many(conditions, list(self.costed.graph.sizes)) if conditions else lambda *point: ()

    def _check(self, point: list[Any]) -> None:
        """Refuse sizes that cannot be, or at which the formulas do not hold."""
        for name, values in zip(self.costed.graph.sizes, point, strict=True):
            if np.any(values < 1) or np.any(values != np.floor(values)):
                raise SizeError(f"{name} is not a positive whole number everywhere", "sizes are whole numbers from 1 on")
        shaped = np.broadcast_arrays(*point)  # parts of one condition have to be of one shape
        for constraint, holds in zip(self.constraints, self._conditions(*shaped), strict=True):
            if not np.all(holds):
                raise SizeError(f"the formulas hold where {constraint}, which a point does not meet",
                                "ask .on(chip).at(...) for one point, or analyse again with these as base sizes")  # fmt: skip

    def at(self, **sizes: Any) -> Timing:
        """The totals at these sizes: each unit's time summed, and the sums of the nodes' lower and upper bounds.

        `bound` is the unit with the largest total. Operators run one after the other, so `lower` can be above every unit's
        own total, unless `overlap` is "full".

        Raises:
            SizeError: as for `per_node`.
        """
        parts = self.per_node(**sizes)
        zero = np.zeros(np.broadcast_shapes(*(np.shape(v) for v in sizes.values())) if sizes else ())
        add: Callable[[Iterable[Any]], Any] = lambda xs: sum(xs, zero)
        compute, vector, memory, network = (add(getattr(p, r) for p in parts) for r in RESOURCES)
        if self.overlap == "full":
            point = [np.asarray(sizes.get(n, v), dtype=float) for n, v in self.costed.graph.sizes.items()]
            longest = np.max(np.stack(np.broadcast_arrays(compute, vector, memory, *self._link_seconds(*point))), axis=0)
            return Timing.of(compute, vector, memory, network, lower=longest)
        return Timing.of(compute, vector, memory, network, lower=add(p.lower for p in parts))

    @cached_property
    def by_link(self) -> dict[str, Expr]:
        """Seconds that each link works; collectives over different ones can go on at once, those over the same cannot."""
        found: dict[str, list[Expr]] = {}
        for node in self.nodes:
            for transfer in node.cost.transfers:
                for link, seconds in self.fabric.busy(transfer).items():
                    found.setdefault(link, []).append(node.call.count * seconds)
        return {link: sym.total(each) for link, each in found.items()}

    @cached_property
    def _link_seconds(self) -> Callable[..., Any]:
        """The seconds of all links, compiled once."""
        return sym.compile_many(list(self.by_link.values()), list(self.costed.graph.sizes))


def roofline(costed: Costed, chip: Chip, wiring: Wiring = AS_BUILT, overlap: str = "op") -> Roofline:
    """Put a costed graph on a chip, or on a mesh of them.

    An operator in a type for which the chip has no matmul rate makes its compute time unknown, with a note; a graph none of
    whose contractions has a rate cannot be timed.

    Args:
        costed: the graph, of one device.
        chip: the chip, the same for all devices.
        wiring: how the mesh lies on its links.
        overlap: "none", "op" or "full"; see above.

    Raises:
        ChipError: where the chip has a matmul rate for none of the contractions, or cannot carry the mesh.
    """
    if costed.conventions.traffic == "ideal":  # one program that moves each byte while it computes
        overlap = "full"
    net = Network(chip, costed.graph.mesh, costed.graph.sizes, wiring)
    cache: dict[Cost, Times] = {}
    failures: list[ChipError] = []
    unknown = [n.call.op for n in costed.nodes if n.cost.status in ("unknown", "flops_only")]
    for node in costed.nodes:
        if node.cost in cache:
            continue
        try:
            cache[node.cost] = times(node.cost, chip, net)
        except ChipError as e:
            failures.append(e)
            memory = node.cost.nbytes / sym.number(chip.memory_bandwidth)
            cache[node.cost] = Times(memory=memory, notes=(f"not timed: {e.message}",), complete=False)
            unknown.append(node.call.op)
    if failures and not any(t.compute != 0 for t in cache.values()):
        raise failures[0]
    parts = tuple(cache[n.cost] for n in costed.nodes)
    silent = net.without_latency(t for n in costed.nodes for t in n.cost.transfers) if wiring.latency else ()
    notes = tuple(dict.fromkeys([*(note for t in parts for note in t.notes), *silent]))
    return Roofline(costed, chip, parts, notes, tuple(dict.fromkeys(unknown)), net, overlap)
