"""Times of what a derivation is about, on one chip or on several: rates are the chip's numbers, or letters of the exercise.

A rate as a letter, `set: {link.ici.link_one_way: W/2}`, stays one in the formulas; the other rates of that link follow it.
Where two links are at work at once and letters leave open which of them is slower, both stay, under a Max.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from costir import symbolic as sym
from costir.chip import Chip, FrozenMap, Link
from costir.collectives import KINDS
from costir.errors import ChipError, CostirError, nearest
from costir.ir import Collective, Transfer
from costir.mesh import Mesh, check_mesh
from costir.network import Network, Wiring
from costir.symbolic import Expr

UNITS = {"compute_time": "compute", "memory_time": "memory", "network_time": "network"}  # quantities to units of a chip
OF_TRANSFERS = ("network", "network_time", "latency")
_RATES = ("link_one_way", "one_way", "two_way", "peer_one_way", "scaleout_one_way", "link_one_way_planned")


def lettered(chip: Chip, letters: Mapping[str, Expr]) -> Chip:
    """The chip with letters for some of its numbers: {"matrix.bf16": C, "link.ici.link_one_way": W/2}.

    Raises:
        ChipError: for a number that the chip has not.
    """
    known = {*chip.values, *(f"link.{n}.latency" for n in chip.links)}
    for name in letters:
        if name not in known or name.startswith("onchip."):
            raise ChipError(f"{chip.label} has no {name[:60]!r}", nearest(name[:60], known))
    links = {n: functools.reduce(_link, _of(f"link.{n}.", letters).items(), link) for n, link in chip.links.items()}
    return replace(
        chip,
        values=FrozenMap(cast(Any, {**chip.values, **letters})),
        memory_bandwidth=cast(Any, letters.get("memory.bandwidth", chip.memory_bandwidth)),
        links=FrozenMap(links),
    )


def _of(prefix: str, letters: Mapping[str, Expr]) -> dict[str, Expr]:
    return {n.removeprefix(prefix): e for n, e in letters.items() if n.startswith(prefix)}


def _link(link: Link, given: tuple[str, Expr]) -> Link:
    """A link with one number as a letter; its other rates scale with a rate, as they do where a number is set."""
    key, e = given
    if key not in _RATES:
        return replace(link, **cast(Any, {key: e}))
    here = {k: v for k in _RATES if (v := getattr(link, k)) is not None}
    return replace(link, **cast(Any, {k: sym.number(v) * e / sym.number(here[key]) for k, v in here.items()}))


def seconds(analysis: Any, chip: Chip, wiring: Wiring, quantity: str, over: Sequence[str] = ()) -> Expr:
    """What all operators of an analysis take of one unit, or the hops of its collectives, as it is around the base sizes.

    Args:
        analysis: of one device.
        chip: its rates may be letters.
        wiring: how the mesh lies on the links.
        quantity: "compute_time" (contractions at the matmul peak), "memory_time", "network_time", or "latency", the seconds of
            all hops one after the other.
        over: only collectives over these axes, all of them; () for all collectives.

    Raises:
        CostirError: where an operator's cost is not known, or the chip has no rate or link for it.
    """
    from costir.roofline import times

    if analysis.unknown:
        raise CostirError(f"the cost of {analysis.unknown[0]} is not known, so that there is no {quantity}")
    graph = analysis.graph
    net = _network(chip, graph.mesh, graph.sizes, wiring)
    found = []
    for node in analysis.costed.nodes:
        cost = replace(node.cost, transfers=tuple(t for t in node.cost.transfers if not over or set(t.axes) == set(over)))
        if quantity == "latency":
            found += [node.call.count * _hops(net, t) for t in cost.transfers]
        else:
            found.append(node.call.count * getattr(times(cost, chip, net), UNITS[quantity]))
    return _at_base(sym.total(found), graph.sizes)


def sent(analysis: Any, over: Sequence[str]) -> Expr:
    """Bytes that a device sends in the collectives over these axes."""
    pairs = [(n.call.count, t) for n in analysis.costed.nodes for t in n.cost.transfers]
    return sym.expand(sym.total(count * t.sent for count, t in pairs if set(t.axes) == set(over)))


def collective(
    kind: str, payload: Expr, mesh: Mapping[str, int], axes: Sequence[str], chip: Chip | None, wiring: Wiring, quantity: str
) -> Expr:
    """Of one collective: the bytes that a device sends ("network"), its time of full links, or that of its hops.

    Args:
        kind: all_gather, reduce_scatter, ...
        payload: bytes of the whole array (docs/devices.md). mesh: the axes and their lengths, which stay letters.
        axes: those that span the group; all by default.
        chip, wiring: what it runs on; "network" needs none.
        quantity: "network", "network_time" or "latency".

    Raises:
        CostirError: no such collective, axis, chip or link.
    """
    if kind not in KINDS:
        raise CostirError(f"no collective {kind[:40]!r}", nearest(kind[:40], KINDS))
    if quantity not in OF_TRANSFERS:
        raise CostirError(f"{quantity!r} is no quantity of a collective", nearest(quantity, OF_TRANSFERS))
    check_mesh(mesh)
    lengths = Mesh.of(list(mesh))
    group = tuple(axes) or tuple(mesh)
    transfer = Transfer(cast(Collective, kind), group, lengths.group(group), payload)
    if quantity == "network":
        return transfer.sent
    if chip is None:
        raise CostirError(f"{quantity!r} depends on the chip", "add chip: tpu_v5e@book")
    net = _network(chip, lengths, mesh, wiring)
    return _at_base(_hops(net, transfer) if quantity == "latency" else net.seconds(transfer), mesh)


def _network(chip: Chip, mesh: Mesh, sizes: Mapping[str, int], wiring: Wiring) -> Network:
    net = Network(chip, mesh, sizes, wiring)
    _ = net.constraints  # looks at the lengths, and raises where the links have no such
    return net


def _hops(net: Network, transfer: Transfer) -> Expr:
    """Seconds of all hops of a collective, over the links that it uses at the base sizes."""
    waits, point = [], {sym.size(n): v for n, v in net.sizes.items()}
    for level in net.levels(transfer):
        if sym.evaluate(level.form.hops, point) == 0:
            continue
        if level.latency is None:
            name = f"link.{level.link.name}.latency"
            raise ChipError(f"{net.chip.label}'s file has no {name}", f"add set: {{{name}: 1.0e-6}}")
        waits.append(level.latency)
    return sym.total(waits)


def _at_base(e: Expr, sizes: Mapping[str, int]) -> Expr:
    return sym.at_branch(e, {sym.size(n): v for n, v in sizes.items()})[0]
