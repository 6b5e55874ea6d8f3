"""At which size does a part stop being bound by memory and start being bound by compute?

For one matmul X[B,D].Y[D,F] the two times are equal where `2*B*D*F / peak = (a*B*D + w*D*F + o*B*F) / bandwidth`, that is at
`B* = I*w*D*F / (2*D*F - I*(a*D + o*F))` with the chip's ridge I = peak / bandwidth. It exists where the denominator is
positive, and tends to `I*w/2` as D and F grow. The same steps solve any cost for any size:

- compute time minus memory time is a sum of monomials; the common monomial is divided out, which is where sizes cancel;
- degree 1 in the unknown has one root, degree 2 has two, both exact; higher degrees are solved by exact bisection at the
  base values of the other sizes, and costs with ceil, floor or Max by search over whole numbers there;
- a long root, as that of a whole model, is given at the base values of the other sizes;
- a root at which the formulas do not hold, or that the model cannot have, is none.

"Compute" is the time of the contractions at the matmul peak. What it is compared with is the time of the memory, or of the
network (`against`), at full links as they are at the base sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from costir import symbolic as sym
from costir.crossing import Domain, integer_crossings
from costir.errors import ChipError, SizeError, nearest
from costir.hardware import Chip
from costir.ir import Constraint, Cost, Costed, Node, Threshold, condition_text
from costir.laurent import Laurent
from costir.network import AS_BUILT, Network, Wiring
from costir.roofline import matmul_seconds_per_flop
from costir.solve_cases import Case, beyond, choose, intervals
from costir.symbolic import ONE, ZERO, Expr


@dataclass(frozen=True, slots=True)
class _Channel:
    """What compute is compared with: a resource, its seconds for a cost, and the range in which they are these."""

    name: str
    seconds: Callable[[Cost], Expr]
    bandwidth: Expr | None = None  # bytes/s, where the seconds are bytes by that
    constraints: tuple[Constraint, ...] = ()
    everywhere: Callable[[Cost], Expr] | None = None  # the seconds at all sizes, where `seconds` are those around the base


@dataclass(frozen=True, slots=True)
class _Balance:
    """Compute time and the time of another resource of a part, in seconds; as sums of monomials where they are such."""

    work: Expr
    move: Expr
    ridge: Fraction | None
    sums: tuple[Laurent, Laurent] | None
    names: frozenset[str]
    resource: str = "memory"


def threshold(
    costs: Cost | Iterable[Cost | tuple[Cost, Expr]],
    chip: Chip,
    unknown: str,
    sizes: Mapping[str, int],
    what: str = "whole",
    widths: Collection[str] = (),
) -> Threshold:
    """The critical value of one size for one cost, or for the sum of several.

    Args:
        costs: one cost, or several, each alone or with how often it occurs.
        chip: gives the matmul peak and the memory bandwidth.
        unknown: a size, a product of sizes ("B*T"), or "tokens" for B*T.
        sizes: the base values of all sizes.
        what: the name of the part.
        widths: the sizes that grow in `limit`; by default all that the answer depends on.

    Raises:
        SizeError: where the unknown is no size.
        ChipError: where the chip has no matmul rate for the compute type.
    """
    names = factors(unknown, sizes)
    pairs = [(costs, ONE)] if isinstance(costs, Cost) else [c if isinstance(c, tuple) else (c, ONE) for c in costs]
    return _threshold(_balance(pairs, chip, _memory(chip)), unknown, names, Domain((), sizes), what, widths)


def thresholds(
    costed: Costed, chip: Chip, unknown: str, against: str = "memory", wiring: Wiring = AS_BUILT
) -> tuple[Threshold, ...]:
    """The critical value for the whole graph, then for each distinct operator that contracts, in order of occurrence.

    The whole is compared with the memory or the network; an operator that contracts sends nothing.

    Operators of equal cost are one entry, under the name of the first; its note names the others.

    Raises:
        SizeError, ChipError: as `threshold`; the latter only where no contraction has a rate.
    """
    return (whole(costed, chip, unknown, against, wiring), *of_operators(costed, chip, unknown))


def of_operators(costed: Costed, chip: Chip, unknown: str) -> tuple[Threshold, ...]:
    """The critical value of each distinct operator that contracts, compared with its memory traffic; see `thresholds`.

    Raises:
        SizeError, ChipError: as `thresholds`.
    """
    alike: dict[Cost, list[str]] = {}
    for node in costed.nodes:
        if node.cost.matmul != 0:
            alike.setdefault(node.cost, []).append(label(node))
    found: list[Threshold] = []
    for cost, row in _by_cost(costed, chip, unknown).items():
        others = list(dict.fromkeys(alike[cost][1:])) if cost in alike else []
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        if cost in alike:
            found.append(replace(row, note=_join(row.note, f"the same for {shown}" if others else "")))
    return tuple(found)


def per_node(costed: Costed, chip: Chip, unknown: str) -> tuple[Threshold | None, ...]:
    """The critical value for each node, in their order; None where it does no work or its cost is not known."""
    rows = _by_cost(costed, chip, unknown)
    return tuple(replace(rows[n.cost], what=label(n)) if n.cost in rows else None for n in costed.nodes)


def whole(costed: Costed, chip: Chip, unknown: str, against: str = "memory", wiring: Wiring = AS_BUILT) -> Threshold:
    """The size at which the contractions of a graph together take longer than all its memory traffic, or all its collectives.

    Args:
        costed: the graph. chip: where it runs.
        unknown: the size to solve for.
        against: "memory" or "network".
        wiring: how a mesh lies on the chip's links.

    Raises:
        SizeError, ChipError: as `thresholds`.
    """
    names = factors(unknown, costed.graph.sizes)
    counts: dict[Cost, list[Expr]] = {}
    for node in costed.nodes:
        counts.setdefault(node.cost, []).append(node.call.count)
    pairs = [(cost, sym.total(c)) for cost, c in counts.items()]
    unrated = [cost for cost, _ in pairs if _unrated(cost, chip)]
    if unrated and not any(c.matmul != 0 and c not in unrated for c, _ in pairs):
        matmul_seconds_per_flop(unrated[0], chip)
    pairs = [(replace(c, matmul=ZERO) if c in unrated else c, n) for c, n in pairs]
    channel = _memory(chip) if against == "memory" else _network(costed, chip, wiring)
    domain = Domain((*costed.graph.constraints, *channel.constraints), costed.graph.sizes)
    widths = _widths(costed)
    row = _threshold(_balance(pairs, chip, channel), unknown, names, domain, "whole", widths)
    if row.at_base is None and row.within and channel.everywhere is not None:  # in another regime of the links, perhaps
        every = _Channel(channel.name, channel.everywhere)
        found = _threshold(_balance(pairs, chip, every), unknown, names, _domain(costed), "whole", widths)
        row = row if found.at_base is None else found
    row = _on_devices(row, costed, names)
    partial = sum(c.status in ("unknown", "flops_only") for c, _ in pairs) + len(unrated)
    return replace(row, note=_join(row.note, "operators of unknown cost are left out" if partial else ""))


def _by_cost(costed: Costed, chip: Chip, unknown: str) -> dict[Cost, Threshold]:
    """The threshold of every distinct known cost."""
    names, domain, widths = factors(unknown, costed.graph.sizes), _domain(costed), _widths(costed)
    rows: dict[Cost, Threshold] = {}
    for node in costed.nodes:
        cost = node.cost
        if (
            cost in rows or cost.status != "costed" or cost.nbytes == 0 or _unrated(cost, chip)
        ):  # without traffic nothing crosses
            continue
        balance = _balance([(cost, ONE)], chip, _memory(chip))
        rows[cost] = _on_devices(_threshold(balance, unknown, names, domain, label(node), widths), costed, names)
    return rows


def _on_devices(row: Threshold, costed: Costed, names: Iterable[str]) -> Threshold:
    """With the number of devices that the unknown is split over."""
    graph = costed.graph
    split = sym.product(graph.mesh.length(a) for n in names for a in graph.splits.get(n, ()))
    at_base = sym.evaluate(split, {sym.size(n): v for n, v in graph.sizes.items()})
    return replace(row, split=split, devices=int(at_base) if at_base.is_Integer else None)


def _memory(chip: Chip) -> _Channel:
    rate = sym.number(chip.memory_bandwidth)
    return _Channel("memory", lambda cost: cost.nbytes / rate, rate)


def _network(costed: Costed, chip: Chip, wiring: Wiring) -> _Channel:
    """Collectives by the formulas that hold around the base sizes."""
    sizes = costed.graph.sizes
    net = Network(chip, costed.graph.mesh, sizes, wiring)
    point = {sym.size(n): v for n, v in sizes.items()}
    whole = {c: sym.total(net.seconds(t) for t in c.transfers) for c in {n.cost for n in costed.nodes}}
    found = {c: sym.at_branch(e, point) for c, e in whole.items()}
    where = dict.fromkeys(c for _, conditions in found.values() for c in conditions)
    limits = (*net.constraints, *(Constraint(c, f"the links of {chip.label}") for c in where))
    around = lambda cost: found[cost][0] if cost in found else ZERO
    return _Channel("network", around, None, limits, lambda cost: whole.get(cost, ZERO))


def _domain(costed: Costed) -> Domain:
    """The sizes at which the formulas of a graph hold."""
    return Domain(costed.graph.constraints, costed.graph.sizes)


def _unrated(cost: Cost, chip: Chip) -> bool:
    """Whether the chip cannot say how fast it contracts in this type."""
    try:
        return cost.matmul != 0 and not matmul_seconds_per_flop(cost, chip)
    except ChipError:
        return True


def _widths(costed: Costed) -> frozenset[str]:
    """The sizes that weights have: widths, heads, vocabulary; not batch, length or depth, nor how many devices split them."""
    shapes = [d for n in costed.nodes for t in n.call.inputs if t.role == "weight" for d in t.shape]
    shapes += [d for w in costed.graph.weights for d in w.tensor.shape]
    return frozenset(str(s) for d in set(shapes) for s in d.free_symbols) - frozenset(costed.graph.mesh.names)


def label(node: Node) -> str:
    """A node's path and operator."""
    return f"{node.call.path} {node.call.name}".strip()


def factors(unknown: str, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The sizes whose product is the unknown: ("B",), ("B", "T") for "B*T" and for "tokens".

    Raises:
        SizeError: where one is no size.
    """
    if unknown == "tokens" and "tokens" not in sizes:
        if not {"B", "T"} <= set(sizes):
            raise SizeError(
                f"tokens means B*T, and the sizes here are {', '.join(sizes) or 'none'}",
                "name the size or the product to solve for",
            )
        return ("B", "T")
    names = tuple(dict.fromkeys(n.strip() for n in unknown.split("*")))
    for name in names:
        if name not in sizes:
            raise SizeError(f"unknown size {name[:40]!r}", nearest(name[:40], sizes))
    return names


def _balance(pairs: Iterable[tuple[Cost, Expr]], chip: Chip, channel: _Channel) -> _Balance:
    """The two times of a part."""
    costs = [p for p in pairs if p[0].matmul != 0 or p[0].nbytes != 0]
    rates = [matmul_seconds_per_flop(c, chip) if c.matmul != 0 else ZERO for c, _ in costs]
    works = [(c.matmul * n * r, r) for (c, n), r in zip(costs, rates, strict=True) if r != 0]
    moves = [channel.seconds(c) * n for c, n in costs]
    lists = [[Laurent.of(e) for e in es] for es in ([w for w, _ in works], moves)]
    sums = None
    if all(part is not None for parts in lists for part in parts):
        work, move = (Laurent.sum((p, Fraction(1)) for p in parts if p is not None) for parts in lists)
        sums = (work, move)
    ridges = {ONE / (channel.bandwidth * r) for _, r in works} if channel.bandwidth is not None else set()
    ridge = Fraction(int((x := ridges.pop()).p), int(x.q)) if len(ridges) == 1 else None
    work_total, move_total = sym.total(w for w, _ in works), sym.total(moves)
    names = frozenset(str(s) for s in work_total.free_symbols | move_total.free_symbols)
    return _Balance(work_total, move_total, ridge, sums, names, channel.name)


def _threshold(
    b: _Balance, unknown: str, names: tuple[str, ...], domain: Domain, what: str, widths: Collection[str]
) -> Threshold:
    """Choose the way: exact in the product, exact in one size with the other factors at the base, or a search."""
    if b.work == 0:
        reason = f"it does no contraction, so no {unknown} makes it compute-bound"
        return Threshold(what, unknown, None, None, sym.boolean(False), None, reason=reason)
    free = tuple(n for n in names if domain.tied(n) is None)
    if not free:
        return _tied(what, unknown, domain.tied(names[0]))
    sizes = domain.sizes
    first, *others = names
    if b.sums is not None:
        merged = _merge(b.sums, names, unknown) if others else b.sums
        if merged is not None:
            point = {**sizes, unknown: math.prod(sizes[n] for n in names)}
            product = names if others else ()
            case = Case(*merged, unknown if others else first, point, b.ridge, widths, domain, product, b.resource)
            row = case.solve(what)
            cancels = _cancels(b.names, row, case, names)
            return replace(row, unknown=unknown, cancels=cancels, note=_join(row.note, _past(row, names, sizes)))
    return _at_base(b, unknown, free, names, domain, what, widths)


def _tied(what: str, unknown: str, constraint: Constraint | None) -> Threshold:
    """None, since the size has no value of its own."""
    within = "" if constraint is None else condition_text(constraint.condition)
    reason = f"the formulas hold only where {constraint}"
    return Threshold(what, unknown, None, None, sym.boolean(False), None, reason=reason, within=within)


def _at_base(b: _Balance, unknown: str, free: tuple[str, ...], names: tuple[str, ...], domain: Domain, what: str,
             widths: Collection[str]) -> Threshold:  # fmt: skip
    """Solve for one factor of the unknown with the other factors at their base values: the first that has an answer."""
    tried: list[Threshold] = []
    for first in free:
        fixed = {n: domain.sizes[n] for n in names if n != first}
        row = _for_one(b, first, fixed, domain, what, widths)
        tried.append(_as_product(row, unknown, first, fixed, domain.sizes))
        if row.at_base is not None:
            before = ((n, {m: domain.sizes[m] for m in names if m != n}) for n in free[: len(tried) - 1])
            others = (f"none in {n} at {_values(rest)}" for n, rest in before)
            return replace(tried[-1], note=_join(tried[-1].note, *others))
    best = next((row for row in tried if row.value is not None), tried[0])
    within = next((row.within for row in tried if row.within), "")
    reason = _join(*(row.reason for row in tried))
    return replace(best, reason=reason, within=within, note=best.note if best.value is not None else "")


def _for_one(
    b: _Balance, first: str, fixed: Mapping[str, int], domain: Domain, what: str, widths: Collection[str]
) -> Threshold:
    """The threshold for one size, with other factors of the unknown at these values."""
    if b.sums is None:
        return _numeric(b, first, domain, what)
    work, move = b.sums[0].at(fixed), b.sums[1].at(fixed)
    return Case(work, move, first, domain.sizes, b.ridge, widths, domain, resource=b.resource).solve(what)


def _as_product(row: Threshold, unknown: str, first: str, fixed: Mapping[str, int], sizes: Mapping[str, int]) -> Threshold:
    """The threshold of one factor as that of the product."""
    scale = math.prod(fixed.values())
    at_base = None if row.at_base is None else row.at_base * scale
    value, limit = (None if e is None else e * scale for e in (row.value, row.limit))
    note = _join(f"{first} solved at {_values(fixed)}" if fixed else "", row.note)
    row = replace(row, unknown=unknown, value=value, at_base=at_base, limit=limit, note=note)
    return replace(row, note=_join(row.note, _past(row, (first, *fixed), sizes)))


def _merge(sums: tuple[Laurent, Laurent], names: tuple[str, ...], into: str) -> tuple[Laurent, Laurent] | None:
    """Both times in the product of sizes, where only their ratio's dependence on it counts."""
    work, move = Laurent.common(sums)
    a, b = work.merged(names, into), move.merged(names, into)
    return (a, b) if a is not None and b is not None else None


def _numeric(b: _Balance, unknown: str, domain: Domain, what: str) -> Threshold:
    """The threshold with numbers for all other sizes: exact where that leaves powers of the unknown, else by search."""
    sizes = domain.sizes
    others = {sym.size(n): v for n, v in sizes.items() if n != unknown}
    work, move = (Laurent.of(sym.evaluate(e, others)) for e in (b.work, b.move))
    if work is None or move is None or (work.names | move.names) - {unknown}:
        return _search(b, unknown, domain, what)
    row = Case(work, move, unknown, sizes, b.ridge, (), domain, resource=b.resource).solve(what)
    fixed = {n: sizes[n] for n in sorted(b.names - {unknown})}
    return replace(row, note=_join(row.note, f"at {_values(fixed)}"))


def _search(b: _Balance, unknown: str, domain: Domain, what: str) -> Threshold:
    """The threshold by search over whole numbers, for costs that are no sums of monomials (ceil, floor, Max)."""
    others = {sym.size(n): v for n, v in domain.sizes.items() if n != unknown}
    difference = sym.evaluate(b.work - b.move, others)
    if difference.free_symbols - {sym.size(unknown)}:
        raise SizeError(f"no value for {', '.join(sorted(map(str, difference.free_symbols)))}", "give every size a value")
    rough = sym.compile_many([difference], [unknown])

    def exact(x: int) -> int:
        value = sym.evaluate(difference, {sym.size(unknown): x})
        return int(bool(value > 0)) - int(bool(value < 0))

    found = integer_crossings(lambda x: np.sign(np.broadcast_to(rough(x)[0], x.shape)), exact)
    crossings = [c for c in found if domain.outside(unknown, c.value) is None]
    chosen, lost = choose(crossings), choose(found)
    note = _join("numeric, at the base sizes, over whole numbers", intervals(crossings, unknown, whole=True))
    if chosen is None:
        binds = "compute" if exact(1) > 0 else b.resource
        reason, end = f"{binds} time is longer at every {unknown} from 1 to 2**40", ""
        if lost is not None and (broken := domain.outside(unknown, lost.value)) is not None:
            reason, end = beyond(unknown, lost.value, broken)
        return Threshold(what, unknown, None, None, sym.boolean(False), None, reason=reason, note=note, within=end)
    sides = (b.resource, "compute") if chosen.up else ("compute", b.resource)
    return Threshold(what, unknown, None, float(chosen.value), sym.boolean(True), None, *sides, note=note)


def _cancels(names: frozenset[str], row: Threshold, case: Case, solved: tuple[str, ...]) -> tuple[str, ...]:
    """Sizes of the costs that the answer does not depend on; the unknown itself where nothing depends on it."""
    used = {str(s) for s in row.value.free_symbols} if row.value is not None and case.readable else case.names
    gone = names - used - (set(solved) if case.degree else set())
    return tuple(sorted(gone))


def _past(row: Threshold, names: tuple[str, ...], sizes: Mapping[str, int]) -> str:
    """Say where every value of the size is past the threshold already."""
    if row.at_base is None or row.above != "compute":
        return ""
    if row.at_base <= 1:
        return f"every {row.unknown} >= 1 is past it"
    others = {n: sizes[n] for n in names[1:]}
    if others and row.at_base <= math.prod(others.values()):
        return f"at {_values(others)} every {names[0]} >= 1 is past it"
    return ""


def _values(fixed: Mapping[str, int]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in fixed.items())


def _join(*notes: str) -> str:
    return "; ".join(dict.fromkeys(n for n in notes if n))
