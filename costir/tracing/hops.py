"""Operators that take functions (cond, while_loop, scan, flex_attention, Triton kernels): run the body, or name it unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from costir.errors import TraceError
from costir.tracing.frames import user_frame, where

if TYPE_CHECKING:
    from costir.tracing.recorder import Recorder

_MOST_ROUNDS = 100_000


def run(recorder: Recorder, hop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a higher-order operator, with its body's operators recorded.

    Raises:
        TraceError: for an operator whose result cannot be made up.
    """
    name = hop.name()
    if name == "cond":
        return _cond(recorder, *args)
    if name == "while_loop":
        return _while_loop(recorder, *args)
    if name == "scan":
        return _scan(recorder, *args)
    if name == "map_impl":
        return _map(recorder, *args)
    if name == "flex_attention":
        return _flex_attention(recorder, *args, **kwargs)
    if name.startswith("triton_kernel_wrapper"):
        return _triton(recorder, name, kwargs)
    if args and callable(args[0]):  # wrappers: checkpoint, invoke_subgraph, autocast, hints
        with recorder:
            return args[0](*[a for a in args[1:] if not isinstance(a, str)])
    raise TraceError(f"{where(user_frame()) or 'the model'} uses the higher-order operator {name}, which costir cannot follow",
                     "replace it by plain PyTorch for the analysis")  # fmt: skip


def _value(recorder: Recorder, predicate: Any) -> bool | None:
    """The truth of a predicate, or None where it depends on data without values."""
    if not isinstance(predicate, torch.Tensor):
        return bool(predicate)
    known = recorder.values.get(predicate) if recorder.values is not None else None
    if known is None or known.value is None:
        return None
    if known.data:
        recorder.notes[f"{where(user_frame()) or 'cond'} takes the branch that the example input takes"] = None
    with _disable_current_modes():
        return bool(known.value)


def _unrecorded(recorder: Recorder, function: Any, operands: Any) -> Any:
    """The result's shapes, without its operators."""
    before, recorder.recording = recorder.recording, False
    try:
        with recorder:
            return function(*operands)
    finally:
        recorder.recording = before


def _cond(recorder: Recorder, predicate: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    taken = _value(recorder, predicate)
    if taken is None:
        out = _unrecorded(recorder, true_fn, operands)
        recorder.note_call("higher_order.cond.default", {"predicate": predicate, "operands": tuple(tree_leaves(operands))}, out)
        return out
    with recorder:
        return (true_fn if taken else false_fn)(*operands)


def _while_loop(recorder: Recorder, cond_fn: Any, body_fn: Any, carried: Any, additional: Any = ()) -> Any:
    carried = tuple(carried)
    for _ in range(_MOST_ROUNDS):
        with recorder:
            again = cond_fn(*carried, *additional)
        taken = _value(recorder, again)
        if taken is None:
            out = _unrecorded(recorder, body_fn, (*carried, *additional))
            recorder.note_call("higher_order.while_loop.default", {"carried": tuple(tree_leaves(carried))}, out)
            return out
        if not taken:
            return carried
        with recorder:
            carried = tuple(body_fn(*carried, *additional))
    raise TraceError(f"the while_loop at {where(user_frame())} does not end within {_MOST_ROUNDS} rounds")


def _scan(recorder: Recorder, combine_fn: Any, init: Any, xs: Any, additional: Any = ()) -> Any:
    flat = tree_leaves(xs)
    carry, outputs = list(init), []
    with recorder:
        for i in range(flat[0].shape[0]):
            result = combine_fn(*carry, *[x.select(0, i) for x in flat], *additional)
            carry, out = list(result[: len(carry)]), result[len(carry) :]
            outputs.append(out)
        stacked = [torch.stack([o[k] for o in outputs]) for k in range(len(outputs[0]))]
    return (*carry, *stacked)


def _map(recorder: Recorder, function: Any, xs: Any, additional: Any = ()) -> Any:
    flat, _ = tree_flatten(xs)
    with recorder:
        rounds = [function(*[x.select(0, i) for x in flat], *additional) for i in range(flat[0].shape[0])]
        return tree_map(lambda *parts: torch.stack(parts), *rounds)


def _flex_attention(recorder: Recorder, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    statistics = query.new_empty(query.shape[:-1], dtype=torch.float32)
    recorder.note_call("costir.flex_attention.default", {"query": query, "key": key, "value": value}, out)
    recorder.notes["flex_attention is counted dense; its score function and block mask are not counted"] = None
    return out, statistics, statistics.new_empty(statistics.shape)


def _triton(recorder: Recorder, name: str, kwargs: dict[str, Any]) -> Any:
    operands = tuple(t for t in tree_leaves(kwargs.get("kwargs", {})) if isinstance(t, torch.Tensor))
    recorder.note_call(f"higher_order.{name}.default", {"operands": operands}, ())
    return {k: v for k, v in kwargs.get("kwargs", {}).items() if k in kwargs.get("tensors_to_clone", ())} or None
