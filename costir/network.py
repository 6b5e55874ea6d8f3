"""A mesh of devices on a chip's links: which link carries a collective, by which algorithm, and how long that takes.

The chip's file says what its links are. On a torus each mesh axis is an axis of the torus: a ring where it closes, else a
line. Behind a switch the neighbours that one switch reaches are a node; what is between nodes goes over the chip's own port to
the scale-out network, all ports at once, while the switch spreads it in the node (`near` and `far` below). A collective of N
devices, G of them in each node, then takes as long as the slower of the two:

    all_gather of V bytes:   V*(G-1)/G over the switch,  V*(N-G)/(N*G) over the port

Where collectives were measured between processes (`costir calibrate --collectives`), what was measured counts instead.

Times are those of full links; hop latency is added only where it is asked for, since few vendors say it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

import sympy as sp

from costir.chip import Chip, Link
from costir.collective_times import Collectives, Fit
from costir.collectives import ALGORITHMS, NAMES, Form, form, in_a_node, near_and_far, running, variant
from costir.errors import ChipError, CostirError
from costir.ir import Constraint, Transfer
from costir.mesh import Mesh
from costir.symbolic import ONE, Boolean, Expr, apply, at_branch, boolean, both, divides, either, number, product, size, total
from costir.units import si

FAR = ("scaleout", "dcn")  # links that leave the box
ASIDE = ("host", "sibling", *FAR)


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a mesh is to lie on a chip's links, where that is not left to the chip.

    Attributes:
        algorithm: of all collectives inside a node or torus; "" takes what fits the links.
        links: which link an axis lies on, by name: (("X", "dcn"),).
        planned: rates that the scaling book plans with, instead of the data sheet's, where the chip has them.
        latency: add what the hops take.
    """

    algorithm: str = ""
    links: tuple[tuple[str, str], ...] = ()
    planned: bool = False
    latency: bool = False


AS_BUILT = Wiring()


@dataclass(frozen=True, slots=True)
class Level:
    """One link that a collective uses.

    Attributes:
        link: the link. rate: bytes/s of what `form` calls a link, in one direction.
        algorithm: its name. form: its share and hops. scale: the part of the payload that this level handles.
    """

    link: Link
    rate: Expr
    algorithm: str
    form: Form
    scale: Expr = ONE

    def seconds(self, payload: Expr) -> Expr:
        """Of full links."""
        return payload * self.scale * self.form.share / self.rate

    @property
    def latency(self) -> Expr | None:
        """Seconds of all hops; None where the chip's file has no latency."""
        return None if self.link.latency is None else self.form.hops * number(self.link.latency)


def shape_of(link: Link) -> str:
    """torus, ring, switch, mesh (a link for each pair) or "" from the file's words."""
    words = link.topology.lower()
    for word, shape in (("dependent", ""), ("torus", "torus"), ("ring", "ring"), ("connected", "mesh"), ("switch", "switch"),
                        ("tree", "switch"), ("pair", "switch"), ("all-to-all", "mesh")):  # fmt: skip
        if word in words:
            return shape
    return "switch" if link.name in FAR else ""


def _network(link: Link) -> str:
    """What algorithms call the shape of a link's network: the axes of a torus are rings."""
    shape = shape_of(link)
    return "ring" if shape == "torus" else shape


def torus_axes(link: Link) -> int:
    """How many axes a torus has."""
    return int(match[1]) if (match := re.match(r"(\d)D", link.topology)) else len(link.pod) or 3


def closes(link: Link, length: Expr) -> Boolean:
    """Whether an axis of the torus is a ring, by the file's rule; without a rule it is."""
    exact = re.search(r"only if its length is (\d+)", link.wrap_rule)
    if exact:
        return sp.Eq(length, int(exact[1]))
    if "4x4x4" in link.wrap_rule:
        return sp.Eq(sp.Mod(length, 4), 0)
    return boolean(True)


@dataclass(frozen=True)
class Network:
    """A mesh on a chip.

    Attributes:
        chip, mesh, wiring: what was put together.
        sizes: base values of the sizes in the mesh.
    """

    chip: Chip
    mesh: Mesh
    sizes: Mapping[str, int] = field(default_factory=dict)
    wiring: Wiring = AS_BUILT

    def seconds(self, transfer: Transfer) -> Expr:
        """How long a collective takes, an expression in the sizes.

        Raises:
            ChipError: where the chip has no link for it, or one without a rate.
            CostirError: where the algorithm does not fit the link or the collective.
        """
        if transfer.devices == 1:
            return number(0)
        if self.measured is not None:
            return measured_seconds(self.measured.fit(transfer.kind, self._at_base(transfer.devices)), transfer.payload)
        levels = self.levels(transfer)
        parts = [level.seconds(transfer.payload) for level in levels]
        waits = [level.latency for level in levels if self.wiring.latency and level.latency is not None]
        slowest = dict.fromkeys(e for e in [*parts, total(waits)] if e != 0)
        return apply("max", list(slowest)) if len(slowest) > 1 else total(slowest)

    def busy(self, transfer: Transfer) -> dict[str, Expr]:
        """How long a collective keeps each link busy that can work beside others: see `_names`.

        Where collectives were measured it is not known what they share: those over different axes are taken for apart.
        """
        if self.measured is not None or transfer.devices == 1:
            return {", ".join(transfer.axes): self.seconds(transfer)}
        out: dict[str, Expr] = {}
        for level in self.levels(transfer):
            waits = [level.latency] if self.wiring.latency and level.latency is not None else []
            takes = apply("max", [level.seconds(transfer.payload), *waits]) if waits else level.seconds(transfer.payload)
            out |= dict.fromkeys(self._names(level.link, transfer.axes), takes)
        return out

    def _names(self, link: Link, axes: tuple[str, ...]) -> list[str]:
        """The links of one kind that a collective uses: one along each axis of a torus; where each pair has a link, those of
        pairs that are apart along one axis, along another, along both; all of a chip's behind a switch."""
        near = [a for a in axes if dict(self.wiring.links).get(a, "") not in FAR]
        if shape_of(link) == "torus":
            return [f"{link.name} along {a}" for a in near]
        if shape_of(link) == "mesh":
            apart = (some for n in range(1, len(near) + 1) for some in itertools.combinations(sorted(near), n))
            return [f"{link.name} along {' and '.join(some)}" for some in apart]
        return [link.name]

    def words(self, transfer: Transfer) -> tuple[str, ...]:
        """What a collective's group of devices communicates over, at the base sizes; nothing where it is one device."""
        if self.measured is not None:
            return (f"{', '.join(transfer.axes)}: as measured between processes",)
        point = {size(n): v for n, v in self.sizes.items()}
        out = []
        for level in self.used(transfer):
            each = "" if shape_of(level.link) in ("torus", "ring", "mesh") else "all links of a chip, "
            rate = si(float(level.rate), "B/s")
            how = self._title(level, transfer, point)
            out.append(f"{', '.join(transfer.axes)} over {level.link.name}: {how}; {each}{rate} one way")
        return tuple(out)

    def used(self, transfer: Transfer) -> tuple[Level, ...]:
        """The links over which something goes at the base sizes, and how."""
        point = {size(n): sp.Integer(v) for n, v in self.sizes.items()}
        return tuple(v for v in self.levels(transfer) if at_branch(v.form.share, point)[0].xreplace(point) != 0)

    def without_latency(self, transfers: Iterable[Transfer]) -> tuple[str, ...]:
        """What to know of the links that these go over and whose file has no latency: their hops take no time."""
        if self.measured is not None:
            return ()
        silent = dict.fromkeys(v.link.name for t in transfers for v in self.used(t) if v.link.latency is None)
        label = self.chip.label
        return tuple(f"{label}'s file has no latency for {n}: --set link.{n}.latency=1e-6 gives one" for n in silent)

    def algorithms(self, transfer: Transfer) -> tuple[str, ...]:
        """The algorithm of each link that it uses, at the base sizes."""
        point = {size(n): v for n, v in self.sizes.items()}
        return tuple(self._name(level, transfer, point) for level in self.levels(transfer))

    def _title(self, level: Level, transfer: Transfer, point: Mapping[sp.Symbol, int]) -> str:
        """The algorithm in words."""
        several = f"{len(transfer.axes)} axes of a torus, " if level.algorithm == "torus" and len(transfer.axes) > 1 else ""
        return several + ALGORITHMS[self._name(level, transfer, point)].words

    def _name(self, level: Level, transfer: Transfer, point: Mapping[sp.Symbol, int]) -> str:
        """The algorithm; on a torus, what the lengths make of it."""
        if level.algorithm != "torus":
            return level.algorithm
        here = {k: sp.Integer(v) for k, v in point.items()}
        lengths = [self.mesh.length(a).xreplace(here) for a in transfer.axes] if self.mesh else []
        closed = both([closes(level.link, x) for x in lengths if x != 1]) == sp.true
        return "ring_two_way" if closed else "line"

    def levels(self, transfer: Transfer) -> tuple[Level, ...]:
        """The links that a collective uses, and how.

        An all_reduce between the two ends of an axis is an exchange: each sends the other what it has, as in a permute.
        """
        if self.mesh and transfer.kind == "all_reduce" and transfer.devices == 2 != self.mesh.group(transfer.axes):
            transfer = replace(transfer, kind="permute")
        mesh = self.mesh if self.mesh else Mesh(((",".join(transfer.axes), transfer.devices),))
        axes = transfer.axes if self.mesh else mesh.names
        pinned = dict(self.wiring.links)
        far = [a for a in axes if pinned.get(a, "") in FAR]
        near = [a for a in axes if a not in far]
        if not near:
            link = self._link(pinned[far[0]])
            return (self._flat(link, transfer.kind, [mesh.length(a) for a in far], ONE),)
        link = self._near(pinned.get(near[0], ""))
        lengths = [mesh.length(a) for a in near]
        inside = lengths
        if shape_of(link) != "torus" and link.domain:
            inside = [in_a_node(mesh.length(a), self._stride(a), link.domain) for a in near]
        g, n = product(inside), product([*lengths, *(mesh.length(a) for a in far)])
        outer = self._link(pinned[far[0]]) if far else self._far
        if g == n or outer is None:
            return (self._flat(link, transfer.kind, lengths, ONE),)
        inner_part, outer_part = near_and_far(transfer.kind, g, n)
        return (
            self._flat(link, transfer.kind, inside, inner_part),
            self._flat(outer, transfer.kind, [n / g], outer_part, "direct"),
        )

    def _flat(self, link: Link, kind: str, lengths: list[Expr], scale: Expr, algorithm: str = "") -> Level:
        """One level over one link."""
        chosen = algorithm or self._algorithm(link)
        if shape_of(link) != "torus":  # axes share a chip's links: they are one ring, or one group behind the switch
            lengths = [product(lengths)]
        found = form(chosen, kind, lengths) if chosen else self._torus(link, kind, lengths)
        return Level(link, self.rate(link), chosen or "torus", found, scale)

    def _algorithm(self, link: Link) -> str:
        """The algorithm that was asked for, or the one of the link's shape; "" for a torus, where the lengths decide."""
        asked, shape = self.wiring.algorithm, shape_of(link)
        network = _network(link)
        if asked and asked not in NAMES:
            raise CostirError(f"no algorithm {asked[:40]!r}", f"choose one of {', '.join(NAMES)}")
        if asked and asked not in running(network) and link.name in FAR and self._asked_of_near(asked):
            asked = ""  # it is meant for the other axes
        if asked and asked not in running(network):
            kind = f"a {shape}" if shape else "of which only the rate of all links together is known"
            raise CostirError(
                f"{asked} does not run on {self.chip.label}'s {link.name}, {kind}", f"choose {' or '.join(running(network))}"
            )
        usual = {"torus": "", "mesh": "peers", "ring": "ring_two_way"}.get(shape, "direct")
        return variant(asked or usual, network)

    def _asked_of_near(self, algorithm: str) -> bool:
        """Whether some axes lie on a link between neighbours that does collectives in this way."""
        pinned = dict(self.wiring.links)
        near = [a for a in self.mesh.names if pinned.get(a, "") not in FAR]
        return bool(near) and algorithm in running(_network(self._near(pinned.get(near[0], ""))))

    def _torus(self, link: Link, kind: str, lengths: list[Expr]) -> Form:
        """Rings where all axes close, else lines."""
        ring, line = form("ring_two_way", kind, lengths), form("line", kind, lengths)
        closed = both([closes(link, length) for length in lengths if length != 1])
        if closed in (sp.true, sp.false):
            return ring if closed == sp.true else line
        return Form(
            sp.Piecewise((ring.share, closed), (line.share, True)), sp.Piecewise((ring.hops, closed), (line.hops, True))
        )

    def _stride(self, axis: str) -> Expr:
        """How far apart neighbours along an axis are among devices that are near: axes on FAR links do not count."""
        pinned, names = dict(self.wiring.links), self.mesh.names
        later = names[names.index(axis) + 1 :] if axis in names else ()
        return product(self.mesh.length(a) for a in later if pinned.get(a, "") not in FAR)

    def rate(self, link: Link) -> Expr:
        """Bytes/s of one link, or behind a switch of all links of one chip, in one direction.

        Raises:
            ChipError: where the chip's file has none.
        """
        shape, links = shape_of(link), link.links
        one = link.link_one_way or (link.one_way / links if link.one_way and links else None)
        if shape in ("torus", "ring"):
            found = link.link_one_way_planned if self.wiring.planned and link.link_one_way_planned else one
        elif shape == "mesh":
            found = link.peer_one_way or one
        else:
            found = link.one_way
        if found is None:
            raise ChipError(
                f"{self.chip.label} has no known rate for its link {link.name}", f"set it: link.{link.name}.one_way=..."
            )
        return number(found)

    # ---- which links

    def _link(self, name: str) -> Link:
        if name not in self.chip.links:
            has = ", ".join(self.chip.links) or "none"
            raise ChipError(f"{self.chip.label} has no link {name[:40]!r}", f"its links: {has}")
        return self.chip.links[name]

    @property
    def near(self) -> Link:
        """The link that a mesh lies on where nothing is said.

        Raises:
            ChipError: where the chip has no link to others.
        """
        return self._near("")

    def _near(self, name: str) -> Link:
        """The link between neighbouring chips."""
        if name:
            return self._link(name)
        found = next((link for n, link in self.chip.links.items() if n not in ASIDE), None) or self._far
        if found is None:
            has = f" (it has {', '.join(self.chip.links)})" if self.chip.links else ""
            raise ChipError(
                f"{self.chip.label} has no link to other chips{has}", "choose another chip, or give its file a [link.NAME]"
            )
        return found

    @cached_property
    def _far(self) -> Link | None:
        """The link out of the box."""
        return next((self.chip.links[n] for n in FAR if n in self.chip.links), None)

    # ---- where it holds

    @property
    def measured(self) -> Collectives | None:
        """What was measured between processes, which is used instead of the links unless these are asked for by hand."""
        return None if self.wiring.algorithm or self.wiring.links else self.chip.collectives

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """The lengths that the links allow.

        Raises:
            ChipError: where the base sizes are outside.
        """
        if self.measured is not None:  # a number of devices has its own latency and bandwidth
            source = f"{self.chip.label}: measured collectives"
            lengths = ((length, self._at_base(length)) for _, length in self.mesh.axes if length.free_symbols)
            return tuple(Constraint(sp.Eq(length, here), source) for length, here in lengths)
        pinned = dict(self.wiring.links)
        near = [a for a in self.mesh.names if pinned.get(a, "") not in FAR and self.mesh.length(a) != 1]
        if not near:
            return ()
        link = self._near(pinned.get(near[0], ""))
        return self._torus_limits(link, near) if shape_of(link) == "torus" else self._domain_limits(link, near)

    def _torus_limits(self, link: Link, axes: list[str]) -> tuple[Constraint, ...]:
        """As many axes as the torus has, each as long as the pod at most."""
        dims = torus_axes(link)
        long = [a for a in axes if self._at_base(self.mesh.length(a)) > 1]
        out = f"put an axis on another link: --link {axes[0]}=dcn" if self._far is not None else "use fewer axes"
        if len(long) > dims:
            raise ChipError(f"{self.chip.label}'s {link.name} is a {dims}D torus, and the mesh has {len(long)} axes on it", out)
        if not link.pod:
            return ()
        longest = max(link.pod)
        for a in axes:
            if self._at_base(self.mesh.length(a)) > longest:
                length = self._at_base(self.mesh.length(a))
                raise ChipError(
                    f"an axis of {self.chip.label}'s torus has at most {longest} chips, and {a} has {length}",
                    f"spread it over two mesh axes, or {out}",
                )
        source = f"{self.chip.label}: {link.name}"
        limits = ((self.mesh.length(a), longest) for a in axes)
        return tuple(Constraint(sp.Le(length, most), source) for length, most in limits if length.free_symbols)

    def _domain_limits(self, link: Link, axes: list[str]) -> tuple[Constraint, ...]:
        """Nodes are full; without a network between boxes all devices have to be in one."""
        if link.domain and self._far is not None:
            self._full_nodes(link, axes)
        if self._far is not None or not link.domain:
            return ()
        reach = product(self.mesh.length(a) for a in axes)
        if self._at_base(reach) > link.domain:
            raise ChipError(
                f"{self.chip.label}'s {link.name} reaches {link.domain} chips and the mesh has {self._at_base(reach)}",
                "its file has no link beyond: use a smaller mesh, or a chip file with a [link.scaleout]",
            )
        return (Constraint(sp.Le(reach, link.domain), f"{self.chip.label}: {link.name}"),) if reach.free_symbols else ()

    def _full_nodes(self, link: Link, axes: list[str]) -> None:
        """Refuse a mesh of which a line of devices fills nodes unevenly: the last node's few ports would take the longest.

        Raises:
            ChipError: names the axis.
        """
        for a in axes:
            stride, length = self._at_base(self._stride(a)), self._at_base(self.mesh.length(a))
            inside = max(Fraction(1), Fraction(link.domain or 1, stride))
            if length > inside and (inside.denominator > 1 or length % inside):
                reach = f"{length} devices along {a}" + (f", {stride} apart," if stride > 1 else "")
                raise ChipError(
                    f"{reach} do not fill {self.chip.label}'s nodes of {link.domain} evenly",
                    f"choose another mesh, or put the axis on the network between nodes: --link {a}={self._far_name}",
                )

    @cached_property
    def full_nodes(self) -> tuple[Constraint, ...]:
        """The lengths with which lines of devices fill nodes evenly, along each axis; others are refused by `constraints`."""
        pinned = dict(self.wiring.links)
        near = [a for a in self.mesh.names if pinned.get(a, "") not in FAR]
        if self.measured is not None or not near or self._far is None:
            return ()
        link = self._near(pinned.get(near[0], ""))
        if shape_of(link) == "torus" or not link.domain:
            return ()
        source, domain = f"nodes of {link.domain}: {self.chip.label}", number(link.domain)
        spans = [(self._stride(a), self._stride(a) * self.mesh.length(a)) for a in near]
        filled = (
            either([sp.Ge(stride, domain), sp.Le(end, domain), both([divides(domain, stride), divides(end, domain)])])
            for stride, end in spans
        )
        return tuple(Constraint(c, source) for c in filled if c.free_symbols)

    @property
    def _far_name(self) -> str:
        return self._far.name if self._far is not None else ""

    def _at_base(self, e: Expr) -> int:
        return int(e.xreplace({size(n): sp.Integer(v) for n, v in self.sizes.items()}))


def measured_seconds(fit: Fit, payload: Expr) -> Expr:
    """The time of a measured collective, as `Fit.at` has it, in the sizes of the payload."""
    low, *more = (number(x.latency) + (payload / number(x.bandwidth) if x.bandwidth else 0) for x in fit.lines)
    if not more or fit.until is None:
        return low
    least = number(fit.lines[0].at(fit.until))
    high = more[0] if payload.free_symbols or more[0] > least else least
    high = apply("max", [high, least]) if high.free_symbols else high
    small = sp.Le(payload, fit.until)
    return low if small == sp.true else high if small == sp.false else sp.Piecewise((low, small), (high, True))
