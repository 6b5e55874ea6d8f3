"""Collectives step by step: chunks on devices, messages over links. Knows no formula; counts bytes and steps.

A simulation moves messages in rounds. In each round every link carries what it is given, and the round takes as long as the
link with most to carry. At the end one looks at which chunks, or which sums, every device has.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

Device = int | tuple[int, ...]
Move = tuple[
    Device, Device, object, Fraction
]  # from, to, what, which part of the payload; then the link, where not given by the pair


class Links:
    """Counts what goes over links; `port` tells which link a move uses (by default, one per pair and direction)."""

    def __init__(self, port=lambda a, b: [(a, b)]):
        self.port, self.carried, self.rounds, self.time = port, Counter(), 0, Fraction(0)

    def round(self, moves: Iterable[Move]) -> None:
        load: Counter = Counter()
        for a, b, _, part, *link in moves:
            for each in link or self.port(a, b):
                load[each] += part
        self.carried.update(load)
        self.rounds += 1
        self.time += max(load.values(), default=Fraction(0))

    @property
    def busiest(self) -> Fraction:
        return max(self.carried.values(), default=Fraction(0))


def ports(a: Device, b: Device) -> list[object]:
    """Behind a switch: the way out of one device and the way into the other."""
    return [("out", a), ("in", b)]


def give(have: dict, moves: list[Move]) -> None:
    """All moves of a round at once."""
    arrived = [(b, what) for a, b, what, *_ in moves if what in have[a]]
    assert len(arrived) == len(moves), "a device sends only what it has"
    for b, what in arrived:
        have[b].add(what)


# ------------------------------------------------------------------------------------------------------------- gathers


def gather_ring(n: int, both: bool = False) -> Links:
    """Every device passes on what came last; halves of chunks in both directions where `both`."""
    links, ways = Links(), (1, -1) if both else (1,)
    have = {d: {(d, w) for w in ways} for d in range(n)}
    for s in range(n - 1):
        part = Fraction(1, n * len(ways))
        moves = [(d, (d + w) % n, ((d - w * s) % n, w), part, (d, w)) for d in range(n) for w in ways]
        give(have, moves)
        links.round(moves)
    assert all(have[d] == {(c, w) for c in range(n) for w in ways} for d in range(n))
    return links


def gather_line(n: int) -> Links:
    """Every chunk goes to both ends."""
    links, have = Links(), {d: {d} for d in range(n)}
    for s in range(n - 1):
        moves = [(d, d + w, d - w * s, Fraction(1, n)) for d in range(n) for w in (1, -1)
                 if 0 <= d + w < n and 0 <= d - w * s < n]  # fmt: skip
        give(have, moves)
        links.round(moves)
    assert all(have[d] == set(range(n)) for d in range(n))
    return links


def gather_torus(lengths: tuple[int, ...], both: bool = False) -> Links:
    """The array in as many parts as there are axes (and directions); each part goes along the axes in another order."""
    axes, links = range(len(lengths)), Links()
    devices = list(itertools.product(*map(range, lengths)))
    n, ways = len(devices), (1, -1) if both else (1,)
    part = Fraction(1, n * len(lengths) * len(ways))
    have = {d: {(d, a, w) for a in axes for w in ways} for d in devices}

    def to(d, axis, by):
        return tuple((x + by) % lengths[i] if i == axis else x for i, x in enumerate(d))

    for phase in axes:
        fresh = {(d, a, w): {x for x in have[d] if x[1:] == (a, w)} for d in devices for a in axes for w in ways}
        for s in range(max(lengths) - 1):
            moves = []
            for d, a, w in itertools.product(devices, axes, ways):
                axis = (a + phase) % len(lengths)
                if s < lengths[axis] - 1:
                    moves += [(d, to(d, axis, w), x, part, (d, axis, w)) for x in fresh[d, a, w]]
            give(have, moves)
            links.round(moves)
            fresh = {(d, a, w): fresh[to(d, (a + phase) % len(lengths), -w), a, w] for d, a, w in fresh}
    assert all(len(have[d]) == n * len(lengths) * len(ways) for d in devices)
    return links


def gather_doubling(n: int) -> Links:
    """Recursive doubling behind a switch."""
    links, have, reach = Links(ports), {d: {d} for d in range(n)}, 1
    while reach < n:
        moves = [(d, d ^ reach, c, Fraction(1, n)) for d in range(n) for c in list(have[d])]
        give(have, moves)
        links.round(moves)
        reach *= 2
    assert all(have[d] == set(range(n)) for d in range(n))
    return links


def gather_direct(n: int, port=ports) -> Links:
    """Every device sends its chunk to all others at once."""
    links, have = Links(port), {d: {d} for d in range(n)}
    moves = [(a, b, a, Fraction(1, n)) for a in range(n) for b in range(n) if a != b]
    give(have, moves)
    links.round(moves)
    assert all(have[d] == set(range(n)) for d in range(n))
    return links


def gather_nodes(g: int, nodes: int) -> tuple[Fraction, Fraction]:
    """Nodes of g devices: equal places of all nodes over their own ports, then everything inside the node.

    Returns:
        what the busiest port into a node's switch, and what the busiest port out of the box carries.
    """
    devices = list(itertools.product(range(nodes), range(g)))
    have, far, near = {d: {d} for d in devices}, Links(ports), Links(ports)
    moves = [((m, i), (k, i), (m, i), Fraction(1, g * nodes)) for m, i in devices for k in range(nodes) if k != m]
    give(have, moves)
    far.round(moves)
    moves = [((m, i), (m, j), c, Fraction(1, g * nodes)) for m, i in devices for j in range(g) if j != i for c in have[m, i]]
    give(have, moves)
    near.round(moves)
    assert all(have[d] == set(devices) for d in devices)
    return near.busiest, far.busiest


# ---------------------------------------------------------------------------------------------------------------- sums


def scatter_ring(n: int) -> Links:
    """Partial sums go round; each device adds its own part to what comes by."""
    links = Links()
    sums = {(d, c): frozenset([d]) for d in range(n) for c in range(n)}
    for s in range(n - 1):
        moves = [(d, (d + 1) % n, (d - s - 1) % n, Fraction(1, n)) for d in range(n)]
        sent = {(b, c): sums[a, c] for a, b, c, _ in moves}
        for (b, c), who in sent.items():
            assert not sums[b, c] & who, "nothing is added twice"
            sums[b, c] |= who
        links.round(moves)
    assert all(sums[d, d] == frozenset(range(n)) for d in range(n))
    return links


def two_trees(n: int) -> Links:
    """Sums up two binary trees, half of the array each, every device inside at most one of them: NCCL's shape, n even."""

    def parent(d: int) -> int | None:
        if d == 0:
            return None
        bit = d & -d
        up = (d ^ bit) | (bit << 1)
        return up if up < n else d ^ bit

    links, half = Links(ports), Fraction(1, 2)
    moves = [(d, p, 0, half) for d in range(n) if (p := parent(d)) is not None]
    moves += [(n - 1 - d, n - 1 - p, 1, half) for d, p, _, _ in list(moves)]
    links.round(moves)
    for tree in (0, 1):  # every device's part reaches the root of its tree
        up = {a: b for a, b, t, _ in moves if t == tree}
        root = next(d for d in range(n) if d not in up)
        for d in range(n):
            while d != root:
                d = up[d]
    return links


# ---------------------------------------------------------------------------------------------------------- all-to-all


def exchange_ring(n: int, both: bool = False) -> Links:
    """Chunks for every other device travel hop by hop; where `both` the shorter way, those to the far end half each way."""
    links, part = Links(), Fraction(1, n * n)
    flying = []
    for a, b in itertools.permutations(range(n), 2):
        forward = (b - a) % n
        if not both or 2 * forward < n:
            flying.append((a, b, 1, part))
        elif 2 * forward > n:
            flying.append((a, b, -1, part))
        else:
            flying += [(a, b, 1, part / 2), (a, b, -1, part / 2)]
    while flying:
        links.round((a, (a + w) % n, b, p, (a, w)) for a, b, w, p in flying)
        flying = [((a + w) % n, b, w, p) for a, b, w, p in flying if (a + w) % n != b]
    return links


def exchange_line(n: int) -> int:
    """Chunks along a line, one per link, direction and tick, those with the longest way first.

    Returns:
        ticks until all have arrived.
    """
    waiting = {(d, w): [b for b in range(n) if (b - d) * w > 0] for d in range(n) for w in (1, -1)}
    ticks = 0
    while any(waiting.values()):
        moves = [(d, w, max(bs, key=lambda b, d=d: abs(b - d))) for (d, w), bs in waiting.items() if bs]
        for d, w, b in moves:
            waiting[d, w].remove(b)
        for d, w, b in moves:
            if d + w != b:
                waiting[d + w, w].append(b)
        ticks += 1
    return ticks


def exchange_torus(lengths: tuple[int, ...], both: bool) -> Fraction:
    """What the busiest link carries where chunks go along the axes in order, the shorter way round where `both`."""
    devices = list(itertools.product(*map(range, lengths)))
    part, carried = Fraction(1, len(devices) ** 2), Counter()
    for a, b in itertools.permutations(devices, 2):
        here = list(a)
        for axis, length in enumerate(lengths):
            forward = (b[axis] - here[axis]) % length
            ways = [(1, forward, part)]
            if both:
                back = length - forward
                ways = [(1, forward, part)] if forward < back else [(-1, back, part)]
                if forward == back:
                    ways = [(1, forward, part / 2), (-1, back, part / 2)]
            for w, steps, p in ways if forward else []:
                at = list(here)
                for _ in range(steps):
                    carried[tuple(at), axis, w] += p
                    at[axis] = (at[axis] + w) % length
            here[axis] = b[axis]
    return max(carried.values())


def exchange_direct(n: int, port=ports) -> Links:
    """A chunk from each to each."""
    links = Links(port)
    links.round((a, b, (a, b), Fraction(1, n * n)) for a in range(n) for b in range(n) if a != b)
    return links


def exchange_nodes(g: int, nodes: int) -> tuple[Fraction, Fraction]:
    """As `gather_nodes`, for chunks from each to each, straight over whichever port leads there."""
    devices, near, far = list(itertools.product(range(nodes), range(g))), Links(ports), Links(ports)
    part = Fraction(1, (g * nodes) ** 2)
    pairs = list(itertools.permutations(devices, 2))
    near.round((a, b, 0, part) for a, b in pairs if a[0] == b[0])
    far.round((a, b, 0, part) for a, b in pairs if a[0] != b[0])
    return near.busiest, far.busiest
