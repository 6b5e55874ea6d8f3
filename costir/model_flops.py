"""The FLOPs that one step of a model counts as, by each convention in use.

    full        a training step is three times the matmuls of its forward pass, with all T x S scores; a forward pass once
    causal      the same with the scores that a causal mask leaves
    parameters  6 FLOPs per parameter and token in training, 2 in a forward pass
    hardware    the matmuls that were traced, what the backward pass computes again included

Sources: Chowdhery et al., "PaLM", arXiv 2204.02311, appendix B, for the first (its 6N + 12LHQT per token) and for the
difference from the last; Kaplan et al., "Scaling Laws for Neural Language Models", arXiv 2001.08361, section 2, for the third.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from costir.analysis import Analysis
from costir.cost import cost
from costir.errors import CostirError, SizeError
from costir.hardware import rate_key
from costir.ir import Costed, Node
from costir.load.family import Built, Family
from costir.recount import SHORTCUT
from costir.symbolic import ZERO, Expr, evaluate, expand, product, size, to_fraction, total

Convention = Literal["full", "causal", "parameters", "hardware"]

# A product has two gradients, of the weight and of the input, each as dear as itself.
FORWARDS_IN_A_STEP = {"forward": 1, "backward": 3, "train": 3}
WRITTEN_OUT = "the scores are written out before they are masked; how many are is taken from a forward pass without dropout"
FEWER = "the trace has fewer matmuls than 3 x the forward pass: gradients of inputs and of frozen weights are not computed"
NO_TOKENS = "no 6N: the sizes do not say what a token is; --tokens names those whose product is the tokens of a step"


@dataclass(frozen=True, slots=True)
class Counted:
    """The FLOPs of one step of the whole job by one convention.

    Attributes:
        convention: "full", "causal", "parameters" or "hardware".
        flops: at the sizes of the run.
        expr: as a formula in the sizes.
    """

    convention: Convention
    flops: Fraction
    expr: Expr


class Step:
    """One step of an analysed model, counted by each convention. `tokens`: factors of its number of tokens, may be none."""

    def __init__(self, analysis: Analysis, tokens: tuple[Expr, ...]) -> None:
        self.analysis = analysis
        self.tokens = product(tokens) if tokens else None
        self.point = {size(n): v for n, v in analysis.sizes.items()}
        self.by_attention = {a: self._as(attention=a) for a in ("full", "causal")}
        self.forward = {a: _matmul(_forward(c)) for a, c in self.by_attention.items()}
        self.traced = _matmul(analysis.costed.nodes)
        self.elsewhere = False
        if self.forward["full"] == self.forward["causal"] and (masked := _masked_without_dropout(analysis)) != 0:
            self.elsewhere = True
            self.forward["causal"] = expand(self.forward["full"] - masked)
        self.params = analysis.graph.params

    def _as(self, **changes: Any) -> Costed:
        conventions = replace(self.analysis.conventions, **changes)
        same = conventions == self.analysis.conventions
        return self.analysis.costed if same else cost(self.analysis.graph, conventions)

    def number(self, e: Expr) -> Fraction:
        """An expression at the sizes of the run."""
        value = to_fraction(evaluate(e, self.point).doit())
        if value is None:
            raise SizeError(f"the FLOPs of {self.analysis.name} have no value at these sizes", "choose others with --size")
        return value

    def counted(self) -> tuple[Counted, ...]:
        """By every convention that applies."""
        times = FORWARDS_IN_A_STEP[self.analysis.phase]
        found: dict[Convention, Expr] = {"full": times * self.forward["full"], "causal": times * self.forward["causal"]}
        if self.tokens is not None:
            found["parameters"] = 2 * times * self.active * self.tokens
        if times > 1:
            found["hardware"] = self.traced
        return tuple(Counted(name, self.number(e), expand(e)) for name, e in found.items())

    @cached_property
    def active(self) -> Expr:
        """Parameters without those of experts that a token is not sent to.

        A grouped product of all experts' weights with every token's chosen rows uses matmul FLOPs / 2 of them per token.
        """
        grouped = [n for n in _forward(self._as(count="standard")) if "grouped_mm" in n.call.op]
        if self.tokens is None or not grouped:
            return self.params
        idle = []
        for n in grouped:
            weights = [t.numel for t in n.call.inputs if t.role == "weight" and len(t.shape) > 2]
            left = n.call.count * (total(weights) - n.cost.matmul / 2 / self.tokens)
            idle += [left] if weights and self.number(left) > 0 else []
        return expand(self.params - total(idle))

    @cached_property
    def by_type(self) -> dict[str, Fraction]:
        """The forward pass's matmul FLOPs by the type that they are computed in, most first."""
        out: dict[str, Fraction] = {}
        for n in _forward(self.by_attention["full"]):
            if n.cost.matmul != 0:
                key = n.cost.math or "float32"
                out[key] = out.get(key, Fraction(0)) + self.number(n.call.count * n.cost.matmul)
        return dict(sorted(out.items(), key=lambda item: -item[1]))

    def notes(self) -> Iterable[str]:
        """What to know about the numbers; of the analysis's own notes those on bytes are left out."""
        a = self.analysis
        told = a if self.elsewhere else Analysis(self.by_attention["causal"], a.phase)
        yield from (n for n in told.notes if SHORTCUT not in n)
        if self.elsewhere:
            yield WRITTEN_OUT
        main, *rest = self.by_type
        for dtype in rest:
            part = float(self.by_type[dtype] / sum(self.by_type.values()))
            yield f"{part:.2%} of the matmul FLOPs are in {rate_key(dtype)}; the peak is that of {rate_key(main)} for all"
        times = FORWARDS_IN_A_STEP[a.phase]
        if times > 1 and self.number(self.traced) < times * self.number(self.forward[a.conventions.attention]):
            yield FEWER
        if self.tokens is None:
            yield NO_TOKENS


def _masked_without_dropout(analysis: Analysis) -> Expr:
    """FLOPs of masked scores by a forward pass without dropout.

    With dropout torch writes the scores out, and no operator is told that they are causal.
    """
    family = analysis.origin.subject if analysis.origin else None
    drops = any(word in c.op for c in analysis.graph.calls for word in ("bernoulli", "dropout"))
    if not drops or not isinstance(family, Family):
        return ZERO
    from costir import api

    try:
        with _evaluated(family) as still:
            full = api.analyze(still, count=analysis.conventions.count).keep(analysis.sizes).costed
    except CostirError:  # it runs with its loss only; the causal row is then the full one, and a note says so
        return ZERO
    causal = cost(full.graph, replace(full.conventions, attention="causal"))
    return expand(_matmul(full.nodes) - _matmul(causal.nodes))


@contextlib.contextmanager
def _evaluated(family: Family) -> Iterator[Family]:
    """The family with modules in eval mode; those that it did not build itself are afterwards as they were."""
    before: dict[Any, bool] = {}

    def build(**sizes: int) -> Built:
        made = family.build(**sizes)
        before.update({m: m.training for m in made[0].modules() if m not in before})
        made[0].eval()
        return made

    try:
        yield replace(family, build=build)
    finally:
        for module, training in before.items():
            module.training = training


def _forward(costed: Costed) -> list[Node]:
    return [n for n in costed.nodes if n.call.phase == "forward"]


def _matmul(nodes: Iterable[Node]) -> Expr:
    return expand(total(n.call.count * n.cost.matmul for n in nodes))
