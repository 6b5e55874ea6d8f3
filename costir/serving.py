"""What serving costs: the cache of a traced step, what a step must read, and the bounds that follow on a chip.

Everything is read off the traced graph: the cache from the tensors that the step leaves behind, weights and cache traffic from
the operators' operands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import sympy as sp

from costir import symbolic as sym
from costir.cost import stored_as
from costir.errors import CostirError
from costir.ir import Costed, Node
from costir.served import cache_traffic, served, touches_cache, weights_read
from costir.symbolic import ZERO, Expr, expand, size, total

if TYPE_CHECKING:
    from costir.hardware import Chip

PHASES = ("prefill", "decode")
LENGTHS = ("S", "T")  # the letters that may count the tokens of a cache, first come first


def _in_all_regimes(own: Callable[[Serving], Expr]) -> cached_property[Expr]:
    """A quantity of the regime of the base sizes, by cases where there are others (a window is full, or not yet)."""

    def whole(s: Serving) -> Expr:
        mine = own(s.alone)
        return s.join(mine, [getattr(o, own.__name__) for o in s.others]) if s.others and s.join is not None else mine

    whole.__doc__ = own.__doc__
    return cached_property(whole)


@dataclass(frozen=True)
class Serving:
    """One step of serving. Quantities are expressions in the sizes, by cases where the step has several regimes.

    Attributes:
        costed: the step, in the regime of the base sizes.
        phase: "decode" or "prefill".
        others: the step in its other regimes.
        join: makes one expression of that of this regime and those of the others.
    """

    costed: Costed
    phase: str
    others: tuple[Serving, ...] = ()
    join: Callable[[Expr, list[Expr]], Expr] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def alone(self) -> Serving:
        """The regime of the base sizes."""
        return replace(self, others=()) if self.others else self

    @cached_property
    def batch(self) -> str:
        """The size that counts sequences: "B", else the first dimension that all tensors of the cache share; "" for none."""
        return "B" if "B" in self.costed.graph.sizes else str(self._first) if self._first.is_Symbol else ""

    @cached_property
    def _first(self) -> Expr:
        """The first dimension that all tensors of the cache share; 0 for none."""
        firsts = {w.tensor.shape[0] for w in self.costed.graph.cache if w.tensor.shape}
        return firsts.pop() if len(firsts) == 1 else ZERO

    @cached_property
    def _sequences(self) -> Expr:
        """Those of which a device has the cache: B, or on a mesh that divides the batch B/X."""
        symbol = size(self.batch)
        return self._first if symbol in self._first.free_symbols else symbol

    @cached_property
    def length(self) -> str:
        """The size that counts the tokens of a sequence in the cache: "S" or "T"; "" where the cache has no such dimension."""
        return next((n for n in LENGTHS if n in self.costed.graph.sizes and n != self.batch), "")

    @_in_all_regimes
    def total(self) -> Expr:
        """Bytes of the cache after the step, of all sequences."""
        return expand(self.costed.graph.cache_bytes)

    @_in_all_regimes
    def per_sequence(self) -> Expr:
        """Bytes of one sequence's cache."""
        return expand(self.total / self._sequences) if self.batch else self.total

    @property
    def _share(self) -> Expr:
        """Bytes by which one sequence more, of all devices, fills the cache of one."""
        return expand(self.total / size(self.batch)) if self.batch else self.total

    @_in_all_regimes
    def per_token(self) -> Expr:
        """Bytes by which one more token makes a sequence's cache longer."""
        return expand(sp.diff(self.per_sequence, size(self.length))) if self.length else ZERO

    @_in_all_regimes
    def fixed(self) -> Expr:
        """Bytes of one sequence's cache that do not grow: full windows, states."""
        return expand(self.per_sequence - self.per_token * size(self.length)) if self.length else self.per_sequence

    @_in_all_regimes
    def weights(self) -> Expr:
        """Bytes of weights that a step reads, each once: of embeddings the rows looked up, of experts those that are met."""
        conventions = self.costed.conventions
        return expand(total(n.call.count * weights_read(stored_as(n.call, conventions), n.cost) for n in self.costed.nodes))

    @_in_all_regimes
    def cache_read(self) -> Expr:
        """Bytes of the cache that a step must read: once, without copies."""
        return expand(total(read for read, _ in self._ideal))

    @_in_all_regimes
    def cache_written(self) -> Expr:
        """Bytes that a step must write into the cache: what is new."""
        return expand(total(write for _, write in self._ideal))

    @cached_property
    def _ideal(self) -> list[tuple[Expr, Expr]]:
        nodes = [n for n in self.costed.nodes if touches_cache(n.call)]
        moved = [(n.call.count, *self._moved(n, ideal=True)) for n in nodes]
        return [(count * read, count * write) for count, read, write in moved]

    def _moved(self, n: Node, ideal: bool) -> tuple[Expr, Expr]:
        call = stored_as(n.call, self.costed.conventions)
        cost = served(call, n.cost) if ideal and self.costed.conventions.cache != "serving" else n.cost
        return cache_traffic(call, cost)

    @_in_all_regimes
    def cache_moved(self) -> Expr:
        """Bytes of the cache and its copies that the program reads and writes, as they are counted."""
        nodes = [n for n in self.costed.nodes if touches_cache(n.call)]
        return expand(total(n.call.count * e for n in nodes for e in self._moved(n, ideal=False)))

    @_in_all_regimes
    def step(self) -> Expr:
        """Bytes that a step must read: weights once and the cache once."""
        return total((self.weights, self.cache_read))

    @_in_all_regimes
    def outgrows(self) -> Expr:
        """The number of sequences whose caches take as many bytes as all weights."""
        return self.costed.graph.weight_bytes / self._share

    @cached_property
    def attention(self) -> Expr:
        """FLOPs of the contractions that no weight takes part in, and of those over the cache."""
        found = (n for n in self.costed.nodes if not any(t.role in ("weight", "buffer") for t in n.call.inputs))
        return expand(total(n.call.count * n.cost.matmul for n in found))

    @cached_property
    def products(self) -> Expr:
        """FLOPs of the contractions with weights."""
        return expand(total(n.call.count * n.cost.matmul for n in self.costed.nodes) - self.attention)

    def on(self, chip: Chip) -> Bounds:
        """What a chip makes of it."""
        return Bounds(self.alone, chip)


@dataclass(frozen=True)
class Bounds:
    """A step of serving on a chip: products with weights, then attention over the cache, each at its roofline.

    Activations move nothing here, nothing else takes time, and the weights and the cache are read once: no program is faster.
    """

    serving: Serving
    chip: Chip

    @cached_property
    def _rate(self) -> Expr:
        maths = dict.fromkeys(n.cost.math for n in self.serving.costed.nodes if n.cost.matmul != 0)
        rates = [sym.number(self.chip.matmul_rate(m or "float32")) for m in maths]
        if not rates:
            raise CostirError("a step without products has no bounds", "analyse a model that multiplies matrices")
        return max(rates)

    @cached_property
    def _bandwidth(self) -> Expr:
        return sym.number(self.chip.memory_bandwidth)

    @cached_property
    def parts(self) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
        """Seconds of the products with weights, and of attention: each by compute and by memory."""
        s, c, w = self.serving, self._rate, self._bandwidth
        return (s.products / c, s.weights / w), (s.attention / c, s.cache_read / w)

    @cached_property
    def latency(self) -> Expr:
        """Seconds that a step takes at least."""
        return total(sym.maximum(part) for part in self.parts)

    @cached_property
    def tokens_per_second(self) -> Expr:
        """Tokens per second of all sequences at most: one of each a step in decode, all of them in prefill."""
        s = self.serving
        tokens = size(s.batch) if s.batch else sym.ONE
        return tokens * (size(s.length) if s.phase == "prefill" and s.length else sym.ONE) / self.latency

    @cached_property
    def critical(self) -> Expr | None:
        """The number of sequences from which the products with weights take longer than reading them; None for none.

        So many sequences meet every expert: the share that none of them meets is left out.
        """
        (compute, memory), _ = self.parts
        if not self.serving.batch:
            return None
        symbol = size(self.serving.batch)
        rest = expand(memory).replace(lambda e: e.is_Pow and e.exp.has(symbol), lambda e: ZERO)
        gap = sp.collect(expand(compute - rest), symbol, evaluate=False)
        if set(gap) - {symbol, sym.ONE} or symbol not in gap:
            return None
        found = sp.cancel(-gap.get(sym.ONE, ZERO) / gap[symbol])
        return found if found.is_positive is not False else None

    @cached_property
    def fits(self) -> Expr | None:
        """The number of sequences whose caches fit beside all weights; None where the chip's memory is not known."""
        capacity = self.chip.memory_capacity
        if capacity is None:
            return None
        s = self.serving
        return (sym.number(capacity) - s.costed.graph.weight_bytes) / s._share
