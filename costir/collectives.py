"""How long a collective takes on links of one kind: closed forms, one per algorithm.

A form says two things of a payload of V bytes (`ir.Transfer.payload`) and a group of devices:

- `share`: how many bytes the busiest link carries in one direction, for each byte of V;
- `hops`: how many messages follow one another, each waiting for the one before.

The time is `max(hops * latency, share * V / rate)`: with messages of one size each hop takes the longer of the two, as the
scaling book has it (chapter 3, "What about latency"). Forms are exact for arrays that divide evenly, and `tests/` steps
through each of them chunk by chunk.

Sources: rings and lines: Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice, and
experience" (2007), and Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (2009); several axes of a torus and
all-to-all on rings: "How to Scale Your Model", chapter 3; doubling and halving: Thakur, Rabenseifner, Gropp, "Optimization of
collective communication operations in MPICH" (2005); two trees: Sanders, Speck, Traff, "Two-tree algorithms for full bandwidth
broadcast, reduction and scan" (2009), which NCCL uses; switches that add up: "How to Scale Your Model", chapter 12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from costir.errors import CostirError
from costir.symbolic import ONE, ZERO, Expr, apply, number, parity, product, total, where_at_most

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "permute")
Lengths = Sequence[Expr]


@dataclass(frozen=True, slots=True)
class Form:
    """Bytes on the busiest link per byte of payload, and messages one after another."""

    share: Expr
    hops: Expr

    def times(self, n: int) -> Form:
        """The same n times."""
        return Form(n * self.share, n * self.hops)


NOTHING = Form(ZERO, ZERO)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to do collectives.

    Attributes:
        words: what it is, for people.
        networks: the shapes of network that it runs on: "ring" (a closed axis), "line", "switch", "mesh" (a link for each
            pair), "" (nothing is known but what all links of a chip carry together).
        gather: the form of an all_gather over axes of these lengths; reduce_scatter runs it backwards.
        others: forms of kinds that are not two or one of these; None where the algorithm does not do it.
    """

    words: str
    networks: tuple[str, ...]
    gather: Callable[[Lengths], Form]
    others: dict[str, Callable[[Lengths], Form] | None]


def form(algorithm: str, kind: str, lengths: Lengths) -> Form:
    """The form of a collective over axes of these lengths; nothing for one device.

    Raises:
        CostirError: where there is no such algorithm, or it does not do this kind.
    """
    if algorithm not in ALGORITHMS:
        raise CostirError(f"no algorithm {algorithm[:40]!r}", f"choose one of {', '.join(NAMES)}")
    if kind not in KINDS:
        raise CostirError(f"no collective {kind[:40]!r}", f"choose one of {', '.join(KINDS)}")
    found, long = ALGORITHMS[algorithm], [length for length in lengths if length != 1]
    if not long:
        return NOTHING
    if kind in found.others:
        special = found.others[kind]
        if special is None:
            able = [name for name in NAMES if ALGORITHMS[name].others.get(kind, ALGORITHMS[name].gather) is not None]
            raise CostirError(f"{algorithm} does no {kind}", f"choose one of {', '.join(able)}")
        return special(long)
    return found.gather(long).times(2 if kind == "all_reduce" else 1)


def _steps(lengths: Lengths) -> Expr:
    """Hops from one end to the other, axis by axis."""
    return total(length - 1 for length in lengths)


def _any(lengths: Lengths) -> Expr:
    """1, and 0 for one device, which sends nothing. A plain 1 from two devices on, where min(1, N - 1) is N - 1 as well."""
    return where_at_most(number(2), product(lengths), ONE, ZERO)


def _away(lengths: Lengths) -> Expr:
    """(N - 1)/N, the part of an array that lies elsewhere."""
    n = product(lengths)
    return ONE - ONE / n


def _most(candidates: Iterable[Expr]) -> Expr:
    """The largest."""
    found = list(dict.fromkeys(candidates))
    return found[0] if len(found) == 1 else apply("max", found)


def _quarter(length: Expr) -> Expr:
    """floor(L**2/4): the hops of all shortest ways round a ring of L from one device, and the chunks across a line's middle."""
    return (length**2 - parity(length)) / 4


def _each(lengths: Lengths) -> Expr:
    """1/axes: the part of the array that each axis carries, all axes at work at once."""
    return ONE / number(len(lengths))


# ------------------------------------------------------------------------------------------------------- rings and lines


def _ring(lengths: Lengths) -> Form:
    """N - 1 messages of V/N bytes, all one way round: V*(N-1)/N over each link. Several axes carry a part each."""
    return Form(_away(lengths) * _each(lengths), _steps(lengths))


def _ring_all_to_all(lengths: Lengths) -> Form:
    """A chunk of V/N**2 travels 1 to L - 1 hops: V*(L-1)/(2*N) over each link of an axis of length L."""
    n = product(lengths)
    return Form(_most((length - 1) / (2 * n) for length in lengths), _steps(lengths))


def _two_way(lengths: Lengths) -> Form:
    """Half of each chunk goes one way round, half the other: half of the bytes of one way."""
    return Form(_away(lengths) * _each(lengths) / 2, _steps(lengths))


def _two_way_all_to_all(lengths: Lengths) -> Form:
    """Chunks go the shorter way, those to the far end half each way: V/8 over each link of one ring of even N."""
    n = product(lengths)
    hops = total((length - parity(length)) / 2 for length in lengths)
    return Form(_most(_quarter(length) / (2 * length * n) for length in lengths), hops)


def _line_all_to_all(lengths: Lengths) -> Form:
    """The link in the middle carries the chunks from one half to the other: V/4 on a line of even N."""
    n = product(lengths)
    return Form(_most(_quarter(length) / (length * n) for length in lengths), _steps(lengths))


def _round(ways: int) -> Callable[[Lengths], Form]:
    """All of the payload over each link, in pieces that follow one another; half of it where it goes both ways round."""
    return lambda lengths: Form(_any(lengths) * _each(lengths) / ways, _steps(lengths))


def _next(lengths: Lengths) -> Form:
    """One message to a neighbour."""
    return Form(_any(lengths), _any(lengths))


# -------------------------------------------------------------------------------------- as the scaling book rounds them


def _book(lengths: Lengths) -> Form:
    """V/2 over each link, however many devices; half as many hops as the ring is long."""
    return Form(_any(lengths) * _each(lengths) / 2, _any(lengths) * total(length / 2 for length in lengths))


def _book_all_to_all(lengths: Lengths) -> Form:
    """A quarter of a gather for one axis: V/8."""
    n = product(lengths)
    some = _any(lengths)
    return Form(some * _most(length / (8 * n) for length in lengths), some * total(length / 2 for length in lengths))


# ------------------------------------------------------------------------------------------- switches and direct links


def _direct(lengths: Lengths) -> Form:
    """Every device sends its chunk to every other at once: V*(N-1)/N leaves and enters each device."""
    return Form(_away(lengths), _any(lengths))


def _once(lengths: Lengths) -> Form:
    """Every device sends its array up and gets the sum down: V leaves and enters each device."""
    return Form(_any(lengths), 2 * _any(lengths))


def _direct_all_to_all(lengths: Lengths) -> Form:
    """V*(N-1)/N**2 leaves and enters each device."""
    return Form(_away(lengths) / product(lengths), _any(lengths))


def _peers(chunks: int, power: int) -> Callable[[Lengths], Form]:
    """Each pair of devices has a link of its own, over which go so many chunks of V/N**power."""
    return lambda ls: Form(chunks * _any(ls) / product(ls) ** power, chunks * _any(ls))


def _rings(chunks: Expr, power: int) -> Callable[[Lengths], Form]:
    """As many rings at once as a device has peers, a link each: 1/(N-1) of what one ring would carry over each link."""
    return lambda ls: Form(chunks * _any(ls) / product(ls) ** power, _steps(ls))


def _rings_broadcast(lengths: Lengths) -> Form:
    """Each ring passes on its part of the array, V/(N-1)."""
    return Form(_any(lengths) / apply("max", [ONE, product(lengths) - 1]), _steps(lengths))


def _levels(lengths: Lengths) -> Expr:
    """ceil(log2(N))."""
    return apply("ceil", [apply("log2", [product(lengths)])])


def _doubling(lengths: Lengths) -> Form:
    """Pairs, then pairs of pairs: V*(N-1)/N in log2(N) steps, for N a power of two."""
    return Form(_away(lengths), _levels(lengths))


def _tree(ways: int) -> Callable[[Lengths], Form]:
    """Two binary trees carry half of the array each, up, down or both: V leaves and enters each device per way."""
    return lambda lengths: Form(ways * _any(lengths), ways * _levels(lengths))


_RING = {"all_to_all": _ring_all_to_all, "broadcast": _round(1), "permute": _next}
_TWO_WAY = {"all_to_all": _two_way_all_to_all, "broadcast": _round(2), "permute": _next}
_LINE = {"all_to_all": _line_all_to_all, "broadcast": _round(1), "permute": _next}
_BOOK = {"all_to_all": _book_all_to_all, "permute": _next}
_BOOK_SWITCH = {"all_to_all": lambda ls: Form(_any(ls) / product(ls), _any(ls)), "permute": _next}
_SWITCH = {"all_to_all": _direct_all_to_all, "broadcast": _next, "permute": _next}

ALGORITHMS: dict[str, Algorithm] = {
    "ring": Algorithm("a ring, one way round", ("ring", "switch", ""), _ring, {**_RING}),
    "ring_peers": Algorithm("rings over all links, one way round", ("mesh",), _rings(ONE, 1),
                            {"all_to_all": _rings(ONE / 2, 1), "broadcast": _rings_broadcast, "permute": _next}),
    "ring_two_way": Algorithm("a ring, both ways round", ("ring",), _two_way, {**_TWO_WAY}),
    "line": Algorithm("a line, both ways", ("ring", "line"), _ring, {**_LINE}),
    "book": Algorithm("as the scaling book rounds it", ("ring",), _book, {**_BOOK}),
    "book_switch": Algorithm("as the scaling book rounds it", ("switch",), _next, {**_BOOK_SWITCH}),
    "tree": Algorithm("trees", ("switch",), _doubling,
                      {"all_reduce": _tree(2), "broadcast": _tree(1), "all_to_all": None, "permute": None}),
    "direct": Algorithm("straight to each device through the switch", ("switch",), _direct, {**_SWITCH}),
    "direct_any": Algorithm("straight to each device, over all links", ("",), _direct, {**_SWITCH}),
    "in_switch": Algorithm("the switch adds up", ("switch",), _direct, {**_SWITCH, "all_reduce": _once}),
    "peers": Algorithm("over the link of each pair", ("mesh",), _peers(1, 1),
                       {"all_reduce": _peers(2, 1), "broadcast": _peers(2, 1), "all_to_all": _peers(1, 2), "permute": _next}),
}  # fmt: skip

VARIANTS = {("book", "switch"): "book_switch", ("ring", "mesh"): "ring_peers", ("direct", ""): "direct_any"}
NAMES = tuple(name for name in ALGORITHMS if name not in VARIANTS.values())  # those that users choose from


def variant(name: str, network: str) -> str:
    """What a name means on a shape of network."""
    return VARIANTS.get((name, network), name)


def public(name: str) -> str:
    """The name that users know an algorithm by."""
    return next((n for (n, _), v in VARIANTS.items() if v == name), name)


def running(network: str) -> tuple[str, ...]:
    """The names of the algorithms that run on a shape of network."""
    return tuple(name for name in NAMES if network in ALGORITHMS[variant(name, network)].networks)


def in_a_node(length: Expr, stride: Expr, domain: int) -> Expr:
    """How many devices of an axis are in one node."""
    return apply("min", [length, apply("max", [ONE, number(domain) / stride])])


def near_and_far(kind: str, g: Expr, n: Expr) -> tuple[Expr, Expr]:
    """The parts of the payload that go over the near and the far link, for g of n devices in a node."""
    if kind == "all_to_all":  # a chunk for a device elsewhere never touches the near link
        return (g / n) ** 2, ONE / g
    return ONE, ONE if kind == "permute" else ONE / g
