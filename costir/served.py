"""What a step of serving moves through a cache, and which weights it reads: as it was traced, and as serving engines do it.

A program of plain tensors may copy its cache in every step (`torch.cat`, grouped keys written out for every head). With
`Conventions.cache == "serving"` a cache is read once by what computes with it, only what is new is written into it, and its
copies cost nothing. Of the experts of a layer those that are expected to be met are read: with E experts of which each of n
tokens takes k others at random, E*(1 - (1 - k/E)**n) are met by one token at least; exactly k by one token, all E by many.
Where it cannot be told how many of m choices are one token's, each is taken as free: E*(1 - (1 - 1/E)**m).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from costir.ir import Call, Cost, Tensor
from costir.symbolic import ONE, ZERO, Expr, size, total

# What moves elements without arithmetic; views have no memory of their own.
MOVES = frozenset({
    "cat", "stack", "clone", "copy", "copy_", "_to_copy", "repeat", "repeat_interleave", "roll", "constant_pad_nd", "index",
    "index_select", "gather", "index_copy", "index_copy_", "index_put", "index_put_", "_unsafe_index_put", "scatter",
    "scatter_", "slice_scatter", "select_scatter", "slice_copy", "expand_copy", "_index_put_impl_", "where",
})  # fmt: skip
PICKS = frozenset({"embedding", "index", "index_select", "gather"})
CACHED = ("cache", "cache copy")


def touches_cache(call: Call) -> bool:
    """Whether it reads or writes a cache or a copy of one."""
    return any(t.role in CACHED for t in (*call.inputs, *call.outputs))


def served(call: Call, cost: Cost) -> Cost:
    """The cost of a call under the convention "serving", from its traced cost."""
    if touches_cache(call) and cost.status == "costed":
        cost = _uncopied(call, cost)
    experts = [t for t in call.inputs if _is_experts(call, t)]
    for weight in experts:
        unmet = weight.nbytes * (ONE - met(call, weight))
        cost = dataclasses.replace(cost, read=cost.read - unmet, note=f"{cost.note}; those expected to be met".strip("; "))
    return cost


def _uncopied(call: Call, cost: Cost) -> Cost:
    if call.name not in MOVES:
        copies = _bytes(t for t in call.inputs if t.role == "cache copy")
        return dataclasses.replace(cost, read=cost.read - copies)
    roles = {t.role for t in call.outputs}
    if not roles & set(CACHED):
        return cost
    new = [t for t in _sources(call) if t.role not in CACHED and t.is_float and ZERO not in t.shape]
    read = _bytes(new)
    if "cache copy" in roles:
        read = read + _bytes(t for t in _sources(call) if t.role == "cache")
    return dataclasses.replace(cost, read=read, write=total(t.numel * call.outputs[0].itemsize for t in new))


def _sources(call: Call) -> list[Tensor]:
    """The operands whose elements are moved: not what is written into in place."""
    into = call.args.get("self") if call.name.endswith("_") else None
    return [t for t in call.inputs if t is not into]


def _bytes(found: Iterable[Tensor]) -> Expr:
    """Bytes of tensors, each memory once."""
    alone, shared = [], {}
    for t in found:
        if t.ref < 0:
            alone.append(t.nbytes)
        else:
            shared[t.ref] = t.nbytes
    return total((*alone, *shared.values()))


def cache_traffic(call: Call, cost: Cost) -> tuple[Expr, Expr]:
    """Bytes that one call reads from a cache and its copies, and writes to them, as the cost counts them."""
    if not touches_cache(call) or cost.status == "free":
        return ZERO, ZERO
    others = _bytes(t for t in _sources(call) if t.role not in CACHED)
    mine = any(t.role in CACHED for t in _sources(call))
    return cost.read - others if mine else ZERO, cost.write if any(t.role in CACHED for t in call.outputs) else ZERO


def weights_read(call: Call, cost: Cost) -> Expr:
    """Bytes of weights that one call reads: those it picks, of experts those that are expected to be met, else all."""
    if cost.status == "free":
        return ZERO
    found = [t for t in call.inputs if t.role == "weight"]
    if found and call.name in PICKS:
        return total(t.numel * found[0].itemsize for t in call.outputs)
    return total((_bytes(t for t in found if not _is_experts(call, t)),
                  *(t.nbytes * met(call, t) for t in found if _is_experts(call, t))))  # fmt: skip


def _is_experts(call: Call, t: Tensor) -> bool:
    return "grouped_mm" in call.name and t.role == "weight" and len(t.shape) == 3


def met(call: Call, weight: Tensor) -> Expr:
    """The share of the experts in a weight [E, ., .] that is expected to be met by at least one row."""
    experts, rows = call.args.get("candidates", weight.shape[0]), next(t for t in call.inputs if t is not weight).shape[-2]
    tokens = ONE
    for name in ("B", "T"):
        if size(name) in rows.free_symbols:
            tokens = tokens * size(name)
    each = rows / tokens
    if tokens == ONE or each.free_symbols & tokens.free_symbols:
        return ONE - (ONE - ONE / experts) ** rows
    return ONE - (ONE - each / experts) ** tokens
