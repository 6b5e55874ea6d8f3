"""The result of an analysis: expressions, numbers at any sizes, times on a chip."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import sympy as sp

from costir.cases import by_case
from costir.communication import Communication, communication
from costir.cost import cost
from costir.errors import CostirError, SizeError, nearest, one_of
from costir.ir import Constraint, Conventions, Costed, Graph, traced_phase
from costir.on_chip import OnChip
from costir.results import Op, Origin, Point, Unknown, exact, is_size
from costir.stages import Bubble, bubble
from costir.symbolic import ZERO, Expr, Integer, Symbol, expand, size, total

if TYPE_CHECKING:
    from costir.hardware import Chip
    from costir.memory import Memory
    from costir.serving import Serving
    from costir.stage_memory import StageMemory

QUANTITIES = (
    "matmul_flops",
    "vector_flops",
    "special_flops",
    "flops",
    "read",
    "write",
    "bytes",
    "network",
    "params",
    "weight_bytes",
    "intensity",
)


@dataclass(frozen=True, repr=False)
class Analysis:
    """A model's cost as functions of its sizes.

    All quantities are sympy expressions over `symbols`: FLOPs count 2 per multiply-add, bytes are eager traffic (each operator
    reads its operands once and writes its results once), see docs/counting.md.

    Attributes:
        costed: the graph with its costs, in the regime of the base sizes.
        phase: forward, backward, train, prefill or decode.
        others: the same model in its other regimes, where it branches on sizes and those were analysed too.
        origin: what was analysed, for `graph_module`; None for a notation string.
        whole: what the stages of a pipeline were cut from, for `stage_memory`; else None.
    """

    costed: Costed
    phase: str = "forward"
    others: tuple[Analysis, ...] = ()
    origin: Origin | None = field(default=None, compare=False, repr=False)
    whole: Analysis | None = field(default=None, compare=False, repr=False)

    @property
    def graph(self) -> Graph:
        """The graph of calls."""
        return self.costed.graph

    @property
    def name(self) -> str:
        """What was analysed."""
        return self.graph.name

    @property
    def sizes(self) -> Mapping[str, int]:
        """The base sizes."""
        return self.graph.sizes

    @property
    def conventions(self) -> Conventions:
        """What counts."""
        return self.costed.conventions

    @property
    def symbols(self) -> Mapping[str, Symbol]:
        """The sympy symbol of each size."""
        return {n: size(n) for n in self.sizes}

    @functools.cached_property
    def alternatives(self) -> tuple[Analysis, ...]:
        """Other ways to compute the same on a mesh, for notation: `graph.plan` says which each is."""
        return tuple(replace(analysis_of(g, self.conventions, self.phase), whole=self.whole) for g in self.graph.alternatives)

    @property
    def pipeline(self) -> Bubble | None:
        """How long the stages of a pipeline wait for each other, at the base sizes; None without one."""
        return bubble(self.graph)

    @functools.cached_property
    def nodes(self) -> tuple[Op, ...]:
        """The operators, repeated ones folded."""
        return tuple(Op(n) for n in self.costed.nodes)

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """Operators whose work is not known; while there are any, totals are lower bounds."""
        nodes = [n.call for n in self.costed.nodes if n.cost.status == "unknown"]
        return tuple(Unknown(c.op, c.path, c.source, c.count) for c in nodes)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """Where the formulas hold."""
        return self.graph.constraints

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions made, and what a convention asked for could not change."""
        return (*self.graph.notes, *_uncut(self.costed))

    def _total(self, quantity: str) -> Expr:
        mine = expand(total(getattr(n, quantity) for n in self.nodes))
        return self._by_regime(mine, [o._total(quantity) for o in self.others])

    def _by_regime(self, mine: Expr, theirs: list[Expr]) -> Expr:
        return by_case((mine, *theirs), [a.constraints for a in (self, *self.others)])

    @functools.cached_property
    def matmul_flops(self) -> Expr:
        """FLOPs of contractions (matmul, convolution, attention products)."""
        return self._total("matmul_flops")

    @functools.cached_property
    def vector_flops(self) -> Expr:
        """FLOPs of elementwise arithmetic and reductions."""
        return self._total("vector_flops")

    @functools.cached_property
    def special_flops(self) -> Expr:
        """Evaluations of special functions."""
        return self._total("special_flops")

    @functools.cached_property
    def flops(self) -> Expr:
        """All FLOPs."""
        return self._total("flops")

    @functools.cached_property
    def read(self) -> Expr:
        """Bytes read, eager."""
        return self._total("read")

    @functools.cached_property
    def write(self) -> Expr:
        """Bytes written, eager."""
        return self._total("write")

    @functools.cached_property
    def bytes(self) -> Expr:
        """Bytes read and written, eager."""
        return self._total("bytes")

    @functools.cached_property
    def network(self) -> Expr:
        """Bytes that each device sends to others, docs/devices.md; 0 on one device."""
        return self._total("network")

    @functools.cached_property
    def communication(self) -> tuple[Communication, ...]:
        """What the devices send each other, by phase, kind of collective and axes; () on one device."""
        return communication(self.costed)

    @functools.cached_property
    def params(self) -> Expr:
        """Number of parameters, shared ones once."""
        return self._by_regime(expand(self.graph.params), [o.params for o in self.others])

    @functools.cached_property
    def weight_bytes(self) -> Expr:
        """Bytes of the parameters in storage."""
        return self._by_regime(expand(self.graph.weight_bytes), [o.weight_bytes for o in self.others])

    @functools.cached_property
    def cache(self) -> Serving | None:
        """The cache of a step of serving and what the step must read, in the phases "prefill" and "decode"; else None."""
        from costir.serving import Serving

        if not self.graph.cache:
            return None
        if self.conventions.traffic != "eager":  # read off the operators, whose operands kernels do not show one by one
            return self.under("eager").cache
        others = tuple(s for o in self.others if (s := o.cache) is not None)
        return Serving(self.costed, self.phase, others, self._by_regime)

    @functools.cached_property
    def intensity(self) -> Expr:
        """FLOPs per byte of the whole."""
        return self.flops / self.bytes if self.bytes != 0 else ZERO

    def at(self, **sizes: int) -> Point:
        """All quantities as exact numbers; sizes left out stay at the base.

        Raises:
            SizeError: an unknown name, a value that is no positive whole number, or a point outside the range in which the
                formulas hold (`constraints`).
        """
        values = self.checked(sizes)
        regime = self.regime_at(values)
        point = {size(n): Integer(v) for n, v in values.items()}
        found = {q: regime._own(q).xreplace(point) for q in QUANTITIES}
        return Point(values, {q: exact(e, q) for q, e in self._at_ones(regime, values, found).items()})

    def _at_ones(self, regime: Analysis, values: Mapping[str, int], said: dict[str, Expr]) -> dict[str, Expr]:
        """Where programs take shortcuts (dimensions of 1, known others), what a run there costs. Equal where they take none.

        Raises:
            SizeError: the model does not run there.
        """
        from costir.load.family import Family
        from costir.recount import counted, shortcuts

        if self.origin is None or not isinstance(self.origin.subject, Family):
            return said
        full = {**self.origin.subject.sizes, **self.origin.fixed, **values}
        taken = shortcuts(regime.graph, values)
        which = id(regime), taken
        if taken is None or which in self._same_at_ones:
            return said
        seen = counted(self.origin.subject, full, traced_phase(self.phase), self.origin.optimizer, self.conventions)
        if all(seen[q] == said[q] for q in ("flops", "read", "write")):
            self._same_at_ones.add(which)
        return {**said, **seen}

    @functools.cached_property
    def _same_at_ones(self) -> set[Any]:
        """Which dimensions are 1 (where equal ones matter: and which are equal) without a difference, as runs have shown."""
        return set()

    @functools.cached_property
    def memory(self) -> Memory:
        """What the run holds in memory: peak, parts, curve, the largest size that fits a chip; see `costir.memory`.

        Raises:
            CostirError: nothing was run (a notation string, an exported program), or no formula was found.
        """
        from costir.memory import memory

        return memory(self)

    @functools.cached_property
    def stage_memory(self) -> StageMemory:
        """What a stage of a pipeline holds at the least, with a part of it for each micro-batch in flight.

        Raises:
            CostirError: it is no stage of a training step, or what its blocks keep is not known.
        """
        from costir.stage_memory import stage_memory

        return stage_memory(self)

    def evaluate(self, *quantities: str, **sizes: Any) -> Mapping[str, Any]:
        """Quantities at many points as numpy arrays: evaluate("flops", "bytes", B=np.arange(1, 10**6)); see `costir.evaluate`.

        Raises:
            SizeError: as for `at`.
        """
        from costir.evaluate import evaluate

        return evaluate(self, quantities, sizes)

    def _own(self, quantity: str) -> Expr:
        """A quantity in this regime alone."""
        if not self.others:
            return getattr(self, quantity)
        return getattr(self._alone, quantity)

    @functools.cached_property
    def _alone(self) -> Analysis:
        return Analysis(self.costed, self.phase)

    def checked(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """A whole point: these sizes, the others at the base.

        Raises:
            SizeError: an unknown name, or a value that is no size.
        """
        for n, v in sizes.items():
            if n not in self.sizes:
                raise SizeError(f"there is no size {n!r} in {self.name}", nearest(n, self.sizes))
            if not is_size(v):
                raise SizeError(f"{n}={v!r:.40} is not a whole number from 1 to 10**12")
        return {**self.sizes, **{n: int(v) for n, v in sizes.items()}}

    def regime_at(self, values: Mapping[str, int]) -> Analysis:
        """The regime whose formulas hold at a point.

        Raises:
            SizeError: none does; names the condition that is broken.
        """
        broken = None
        for candidate in (self, *self.others):
            problem = candidate.broken(values)
            if problem is None:
                return candidate
            broken = broken or problem
        point = ", ".join(f"{n}={v}" for n, v in values.items())
        raise SizeError(f"the formulas hold where {broken}, which {point} does not meet", self._way_out(values))

    def _way_out(self, values: Mapping[str, int]) -> str:
        """What to do about a point outside: another base, but for a size that the model itself cannot have."""
        from costir.load.family import Family, longer

        family = self.origin.subject if self.origin is not None else None
        limits = family.limits if isinstance(family, Family) else {}
        beyond = next((n for n, most in limits.items() if values.get(n, 0) > most), None)
        return "analyse again with these as base sizes" if beyond is None else longer(beyond)

    def broken(self, values: Mapping[str, int]) -> Constraint | None:
        """The first constraint that a point does not meet, or None."""
        return next((c for c in self.constraints if not self.meets(c, values)), None)

    def meets(self, c: Constraint, values: Mapping[str, int]) -> bool:
        """Whether a point meets a constraint."""
        point = {size(n): Integer(v) for n, v in values.items()}
        return bool(sp.sympify(c.condition.xreplace(point)).doit() != sp.false)

    def keep(self, names: Iterable[str]) -> Analysis:
        """The same with numbers, those of the base, for all sizes but these.

        Raises:
            SizeError: a name that is no size.
        """
        from costir.substitute import substituted

        kept = list(names)
        for n in kept:
            if n not in self.sizes:
                raise SizeError(f"there is no size {n!r} in {self.name} to keep", nearest(n, self.sizes))
        gone = {size(n): Integer(v) for n, v in self.sizes.items() if n not in kept}
        others = tuple(o.keep(kept) for o in self.others)
        return Analysis(substituted(self.costed, gone), self.phase, others, self._origin_without(gone))

    def _origin_without(self, gone: Mapping[Any, Expr]) -> Origin | None:
        """What was analysed, with these sizes as numbers."""
        if self.origin is None or not gone:
            return self.origin
        fixed = {**self.origin.fixed, **{str(s): int(v) for s, v in gone.items()}}
        return replace(self.origin, fixed=fixed, whole=self if self.origin.whole is None else self.origin.whole)

    def under(self, traffic: str) -> Analysis:
        """The same under another kind of memory traffic: kernels instead of operators.

        Args:
            traffic: "eager", "inductor", "xla" or "ideal"; see docs/traffic.md.

        Raises:
            CostirError: where a program has no trace to fuse, runs on a mesh, or its kernels follow no formula.
        """
        if traffic == self.conventions.traffic:
            return self
        if self.graph.mesh and self.origin is not None and self.origin.evidence is not None:
            raise CostirError(
                f"--traffic {traffic} is of one device: on a mesh, kernels and what the devices send are not told apart",
                "leave out the mesh, or take --traffic eager",
            )
        if traffic not in self._kinds:
            from costir.fused_costs import costed_under

            self._kinds[traffic] = self._under(traffic, costed_under)
        return self._kinds[traffic]

    @functools.cached_property
    def _kinds(self) -> dict[str, Analysis]:
        """The same under other kinds of traffic, as far as asked for."""
        return {}

    def _under(self, traffic: str, count: Any) -> Analysis:
        first, *rest = (
            replace(a, costed=count(a.costed, a.origin, traffic), others=(), origin=a._remembering())
            for a in (self, *self.others)
        )
        return replace(first, others=tuple(rest))

    def _remembering(self) -> Origin | None:
        """The origin with the graph of operators, which kernels do not show."""
        if self.origin is None or self.conventions.traffic != "eager":
            return self.origin
        return replace(self.origin, operators=self.costed.graph)

    @functools.cached_property
    def why(self) -> Any:
        """A function from a kernel's call to the reasons for it; None where operators stand alone."""
        evidence = self.origin.evidence if self.origin is not None else None
        if self.conventions.traffic not in ("inductor", "xla") or evidence is None:
            return None
        from costir.fused_costs import reasons

        return reasons(evidence.traces[0], self.conventions.traffic)

    @functools.cached_property
    def kernels(self) -> tuple[Op, ...]:
        """The kernels, folded like operators: `.path`, `.operators`, `.bytes`. Under eager traffic each operator is one."""
        return tuple(n for n in self.nodes if n.status != "free")

    @functools.cached_property
    def graph_module(self) -> Any:
        """The model as a `torch.fx.GraphModule` of ATen calls with a `costir.graph_pass.NodeCost` in `node.meta["costir"]`."""
        if self.conventions.traffic != "eager":
            raise CostirError("a graph has operators, and this analysis has kernels", 'take .under("eager").graph_module')
        from costir.graph_pass import graph_module

        return graph_module(self)

    def on(self, chip: str | Chip, *, overlap: str = "op", algorithm: str = "", links: Mapping[str, str] | None = None,
           planned: bool = False, latency: bool = False) -> OnChip:  # fmt: skip
        """Times on a chip, or on a mesh of them; of several ways to compute the same, the fastest at the base sizes is taken.

        Args:
            chip: a `Chip`, or a name such as "h100", "tpu_v5e@book", "my.toml".
            overlap: what the time of the whole is: "op" (units overlap inside an operator), "none", "full"; docs/devices.md.
            algorithm: of all collectives: "ring", "ring_two_way", "line", "book", "tree", ...; by default what fits the links.
            links: which link of the chip a mesh axis lies on, where it is not the nearest: {"X": "dcn"}.
            planned: the rates that the scaling book plans with instead of the data sheet's, where the chip has them.
            latency: add what the hops of collectives take.

        Raises:
            ChipError: an unknown chip, or something that is none.
        """
        from costir.hardware import chip_of
        from costir.network import Wiring
        from costir.roofline import OVERLAPS

        found = chip_of(chip)
        one_of("overlap", overlap, OVERLAPS)
        wiring = Wiring(algorithm, tuple((links or {}).items()), planned, latency)
        from costir.on_chip import fastest

        return OnChip(fastest(self, found, wiring, overlap), found, wiring, overlap)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{n}={v}" for n, v in self.sizes.items())
        count = f"{len(self.nodes)} operator{'s' if len(self.nodes) != 1 else ''}"
        lacks = f", {len(self.unknown)} of them unknown" if self.unknown else ""
        return f"<costir analysis of {self.name}, {self.phase}, {count}{lacks}, at {sizes or 'no sizes'}>"

    def _repr_latex_(self) -> str:
        return f"$\\mathrm{{FLOPs}} = {sp.latex(self.flops)}$"

    def _repr_html_(self) -> str:
        from costir.render import notebook_html

        return notebook_html(self)


def _uncut(costed: Costed) -> tuple[str, ...]:
    """Where causal attention was asked for and is counted dense all the same."""
    if costed.conventions.attention != "causal":
        return ()
    said = [n.cost.note for n in costed.nodes]
    if any("the mask is a tensor" in s or "masked scores are computed" in s for s in said):
        return ("attention=causal: some masks are tensors or are added to written-out scores; these are counted dense",)
    if not any("unmasked pairs only" in s for s in said):
        return ("attention=causal changes nothing: no operator is told that its attention is causal",)
    return ()


def analysis_of(graph: Graph, conventions: Conventions = Conventions(), phase: str = "forward") -> Analysis:
    """The analysis of a graph of calls."""
    return Analysis(cost(graph, conventions), phase)
