"""One collective on a chip's links, by every algorithm that they allow: formula, time, latency, and where latency rules.

costir.collective("all_reduce", 1e9, "h100", {"X": 8})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

import sympy as sp

from costir import hardware
from costir.collectives import ALGORITHMS, KINDS, NAMES, public
from costir.errors import CostirError, SizeError, nearest
from costir.hardware import Chip
from costir.ir import Collective, Transfer
from costir.mesh import Mesh, check_mesh, known_axes
from costir.network import Level, Network, Wiring
from costir.symbolic import Boolean, Expr, apply, at_branch, evaluate, factored, number, size, total

V = size("V")


@dataclass(frozen=True, slots=True)
class ByWay:
    """A collective by one algorithm.

    Attributes:
        name, words: the algorithm.
        formula: seconds of full links, in the payload V, the axes, and the rates W_LINK.
        rates: bytes/s behind each W_LINK, in one direction.
        latency_formula: seconds of the hops, in the axes and t_LINK; None where the file has no latency.
        bandwidth: seconds of full links. latency: of the hops; None where it is not known. seconds: the longer of the two.
        least: bytes of payload below which latency is longer; None where it is not known.
        planned: seconds at the rates that the scaling book plans with, where the chip has them.
        taken: whether costir takes it for these links by itself.
        where: the range of lengths in which the formula is this.
    """

    name: str
    words: str
    formula: Expr
    rates: Mapping[str, Expr]
    latency_formula: Expr | None
    bandwidth: float
    latency: float | None
    seconds: float
    least: float | None
    planned: float | None
    taken: bool
    where: tuple[Boolean, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """A collective on a chip's links.

    Attributes:
        kind: all_gather, reduce_scatter, all_reduce, all_to_all, broadcast, permute.
        payload: bytes of the whole array, as docs/devices.md has it.
        mesh: lengths of all axes. axes: those that span the group. devices: how many it has.
        chip: the chip's label; chip_note: how the name was understood.
        sent: bytes that a device sends at the least.
        rows: by algorithm; links: what it goes over, in words; notes: what to know.
    """

    kind: str
    payload: Fraction
    mesh: Mapping[str, int]
    axes: tuple[str, ...]
    devices: int
    chip: str
    chip_note: str
    sent: float
    rows: tuple[ByWay, ...]
    links: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def taken(self) -> ByWay:
        """The algorithm that was asked for, or that fits the links."""
        return next((r for r in self.rows if r.taken), self.rows[0])

    @property
    def seconds(self) -> float:
        """The time of the taken algorithm."""
        return self.taken.seconds


def collective(
    kind: str,
    nbytes: float | int | str | Fraction,
    chip: str | Chip,
    mesh: Mapping[str, int],
    *,
    axes: Sequence[str] = (),
    algorithm: str = "",
    links: Mapping[str, str] | None = None,
    planned: bool = False,
) -> CollectiveTimes:
    """How long a collective takes.

    Args:
        kind: "all_reduce", "all_gather", ...
        nbytes: the payload, bytes of the whole array (docs/devices.md).
        chip: a `Chip` or its name.
        mesh: devices along named axes, {"X": 8}; the last numbers neighbours.
        axes: those that span the group; all by default.
        algorithm: one alone; by default all that the links allow, the one that fits them marked.
        links: which link an axis lies on, {"X": "dcn"}.
        planned: the rates that the scaling book plans with instead of the data sheet's.

    Raises:
        CostirError: an unknown kind, chip, axis or algorithm, or links that cannot carry it.
    """
    if kind not in KINDS:
        raise CostirError(f"no collective {str(kind)[:40]!r}", nearest(str(kind)[:40], KINDS))
    payload = _bytes(nbytes)
    if not mesh:
        raise SizeError("a collective needs a mesh", "write for example --mesh X=8")
    check_mesh(mesh)
    letter = next((n for n in mesh if n == str(V) or n.startswith(("W_", "t_"))), "")
    if letter:
        raise SizeError(f"{letter[:40]} is a letter of the formulas: V is the payload, W_LINK a rate, t_LINK a latency",
                        "give the axis another name")  # fmt: skip
    found = chip if isinstance(chip, Chip) else hardware.load_chip(chip)
    known_axes(links or {}, mesh)
    net = Network(found, Mesh.of(list(mesh)), dict(mesh), Wiring(algorithm, tuple((links or {}).items()), planned))
    group = tuple(axes) or tuple(mesh)
    twice = next((a for a in group if group.count(a) > 1), None)
    if twice is not None:
        raise SizeError(f"the axis {twice} stands twice in the group {', '.join(group)[:60]}", "name each axis once")
    transfer = Transfer(cast(Collective, kind), group, net.mesh.group(group), V)
    if net.measured is not None and not algorithm:  # what was measured has no algorithm: the links are asked for here
        net = replace(net, chip=replace(found, collectives=None))
    _ = net.constraints  # looks at the lengths, and raises where the links have no such
    rows = tuple(_rows(net, transfer, payload))
    point = {size(n): v for n, v in mesh.items()}
    return CollectiveTimes(
        kind=kind, payload=payload, mesh=dict(mesh), axes=group, devices=int(evaluate(transfer.devices, point)),
        chip=found.label, chip_note=found.alias_note,
        sent=float(evaluate(transfer.sent, {**point, V: number(payload)})), rows=rows,
        links=net.words(transfer), notes=tuple(_notes(net, transfer)),
    )  # fmt: skip


def _bytes(given: Any) -> Fraction:
    """A payload as an exact number.

    Raises:
        SizeError: where it is none from 1 byte to 10**18.
    """
    try:
        value = Fraction(str(given).strip().replace("_", "")) if not isinstance(given, Fraction) else given
    except (ValueError, ZeroDivisionError):
        raise SizeError(f"{str(given)[:40]!r} is no number of bytes", "write for example --bytes 1e9") from None
    if not 1 <= value <= 10**18:
        raise SizeError(f"{str(given)[:40]} bytes is not a payload from 1 to 10**18")
    return value


def _rows(net: Network, transfer: Transfer, payload: Fraction) -> list[ByWay]:
    """A row per algorithm; the one asked for alone. Raises what the only one raises."""
    if net.wiring.algorithm:
        return [_row(net, transfer, payload, net.algorithms(transfer)[0], True)]
    fits, rows = net.algorithms(transfer)[0], []
    for name in NAMES:
        one = replace(net, wiring=replace(net.wiring, algorithm=name))
        try:
            used, taken = one.algorithms(transfer)[0], name == public(fits)
            if public(used) == name:  # not where it is that of other axes
                rows.append(_row(net if taken else one, transfer, payload, used, taken))
        except CostirError:  # not on these links, or not this collective
            continue
    return rows or [_row(net, transfer, payload, fits, True)]


def _row(net: Network, transfer: Transfer, payload: Fraction, name: str, taken: bool) -> ByWay:
    point: dict[Any, Any] = {size(n): v for n, v in net.sizes.items()}
    levels = net.used(transfer)
    parts = [(level.scale * level.form.share, level) for level in levels]
    letters = {size(f"W_{level.link.name}"): level.rate for level in levels}
    shown = apply("max", [e / size(f"W_{level.link.name}") for e, level in parts]) if len(parts) > 1 else total(
        e / size(f"W_{level.link.name}") for e, level in parts)  # fmt: skip
    per_byte, conditions = at_branch(shown, {**point, **letters})
    plain = _strongest(_plainly(_with_rates(c, letters)) for c in conditions)
    formula = V * per_byte
    seconds = float(evaluate(formula, {**point, V: number(payload), **letters}))
    late = _latency(levels)
    latency = None if late is None else float(evaluate(late[1], point))
    return ByWay(
        name=public(name), words=ALGORITHMS[name].words, formula=factored(formula),
        rates={str(k): v for k, v in letters.items()},
        latency_formula=None if late is None else factored(at_branch(late[0], point)[0]), bandwidth=seconds, latency=latency,
        seconds=max(seconds, latency or 0.0),
        least=None if latency is None or not seconds else latency / seconds * float(payload),
        planned=_planned(net, transfer, payload), taken=taken,
        where=plain,
    )  # fmt: skip


def _with_rates(condition: Boolean, rates: Mapping[Any, Expr]) -> Boolean:
    """A condition with the rates of links put in; unevaluated, as sympy takes 1 - 8/(X*Y) of sizes for negative."""
    if not isinstance(condition, sp.Ge | sp.Le):
        return cast(Boolean, condition.xreplace(dict(rates)))
    return cast(Boolean, condition.func(*(side.xreplace(dict(rates)) for side in condition.args), evaluate=False))


def _strongest(conditions: Iterable[Boolean]) -> tuple[Boolean, ...]:
    """Without those that are always true, and of several bounds of one product of sizes the one that says most."""
    found: dict[Any, Boolean] = {}
    for c in conditions:
        bound = isinstance(c, sp.Ge | sp.Le) and c.rhs.is_number
        key = (c.func, c.lhs) if bound else c
        old = found.get(key)
        weaker = bound and old is not None and (old.rhs >= c.rhs if isinstance(c, sp.Ge) else old.rhs <= c.rhs)
        if c != sp.true and not weaker:
            found[key] = c
    return tuple(found.values())


def _plainly(condition: Boolean) -> Boolean:
    """An inequality of sizes with its number on the right: X >= 2 for 1 <= X - 1, X*Y <= 8 for 8/(X*Y) >= 1."""
    if not isinstance(condition, sp.Ge | sp.Le):
        return cast(Boolean, sp.to_nnf(condition))
    top, bottom = sp.fraction(sp.together(condition.lhs - condition.rhs))
    if not bottom.is_positive:
        return condition
    constant, rest = sp.expand(top).primitive()[1].as_coeff_Add()
    scale, rest = rest.as_coeff_Mul()
    if not rest.free_symbols:
        return condition
    up = isinstance(condition, sp.Ge) == bool(scale > 0)
    return cast(Boolean, (sp.Ge if up else sp.Le)(rest, -constant / scale, evaluate=False))


def _latency(levels: Sequence[Level]) -> tuple[Expr, Expr] | None:
    """The hops of all links in letters, and in seconds; None where one is not known."""
    if any(level.latency is None for level in levels):
        return None
    letters = total(level.form.hops * size(f"t_{level.link.name}") for level in levels)
    return letters, total(level.latency for level in levels if level.latency is not None)


def _planned(net: Network, transfer: Transfer, payload: Fraction) -> float | None:
    """The time at planning rates, where the chip has other ones."""
    if net.wiring.planned or not any(level.link.link_one_way_planned for level in net.levels(transfer)):
        return None
    there = replace(net, wiring=replace(net.wiring, planned=True))
    return float(evaluate(there.seconds(transfer), {**{size(n): v for n, v in net.sizes.items()}, V: number(payload)}))


def _notes(net: Network, transfer: Transfer) -> list[str]:
    planned = next((v.link for v in net.used(transfer) if v.link.link_one_way_planned), None)
    if planned is None or net.wiring.planned:
        return list(net.without_latency([transfer]))
    rate = f"{float(planned.link_one_way_planned or 0) / 1e9:g} GB/s a link"
    return [*net.without_latency([transfer]), f"rates of the data sheet; {planned.name} is planned with {rate}"]
