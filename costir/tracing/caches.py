"""The cache of a step of decoding or prefill: which memory it is, and which operators only move it.

An argument, or a buffer of the model, is a cache where its name says so: it has the word "cache", "past" or "kv" ("k_cache",
"past_key_values"). What is in it, nested tuples, lists and dicts or an object such as transformers' `DynamicCache`, is looked
through for tensors.

A tensor that an operator makes of a cache without arithmetic is the cache itself where something new was added to it
(`torch.cat` with the new keys, a scatter into a copy), and else a copy of it (grouped keys written out for every head).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from costir.errors import TraceError
from costir.served import MOVES
from costir.tracing.notes import OPERATORS, Guard, plain, watch
from costir.tracing.recorder import Event, RawTensor, Recorder, raw_tensors

if TYPE_CHECKING:
    from costir.load.family import CacheUse

_STATES = re.compile(r"(^|_)states?$")
_NAMED = re.compile(r"(^|_)(cache|past|kv|caches)(_|$)")
_DEEPEST = 6


class Followed:
    """The cache of one run: filled before the step, marked in what the step did.

    Args:
        recorder: of the run.
        use: how the step uses its cache.
        module, args, kwargs: what is run; filling may change the arguments.
    """

    def __init__(
        self, recorder: Recorder, use: CacheUse, module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        self.recorder, self.use = recorder, use
        self.module, self.args, self.kwargs = module, args, kwargs
        self.before: frozenset[int] = frozenset()
        self.events: list[Event] = []

    def fill(self, sizes: Mapping[str, int], guards: dict[Guard, None]) -> None:
        """Fill the cache, unrecorded. What the model asks of sizes meanwhile belongs to another step; where the cache stops
        growing is noted into `guards`.

        Raises:
            TraceError: where no argument holds a cache, or whatever the model raises.
        """
        if self.use.fill is not None:
            with watch({}), torch.no_grad():
                self.use.fill(self.module, self.kwargs, sizes)
        for what, op, length, bound, must in self.use.grows(self.module, sizes) if self.use.grows is not None else ():
            outcome = OPERATORS[op](plain(length), plain(bound))
            guards[Guard(what, op, plain(length), plain(bound), outcome, library=must, implied=True)] = None
        self.before = frozenset(t.memory for _, t in self._held())

    def _held(self) -> list[tuple[str, RawTensor]]:
        held = found(self.module, self.args, self.kwargs, self.use.arguments)
        if self.use.fill is not None:
            held |= _states(self.module)
        return [(p, self.recorder.describe(t)) for p, t in held.items()]

    def after(self, guards: dict[Guard, None]) -> list[tuple[str, RawTensor]]:
        """The tensors of the cache as the step leaves it, each memory once, by where they are; `events` is set.

        Raises:
            TraceError: the step has left no tensor in its cache.
        """
        if self.use.grows is not None:  # it says where the cache stops growing: what the library compares is left out
            for guard in [g for g in guards if g.source.startswith("cache_utils.py:")]:
                del guards[guard]
        held = {t.memory: (path, t) for path, t in reversed(self._held())}
        if not held:
            raise TraceError("the step leaves no tensor in its cache", "give a model that keeps keys and values, or states")
        self.events = marked(self.recorder.events, {*self.before, *held})
        return [(path, t._replace(role="cache")) for path, t in reversed(held.values())]


def arguments_of(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `forward` by name."""
    names = [n for n, p in inspect.signature(module.forward).parameters.items() if p.kind in (0, 1)]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def found(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]) -> dict[str, torch.Tensor]:
    """The tensors of the cache, by where they are: "k_cache", "past_key_values.layers.0.keys", "layers.0.k_cache".

    Raises:
        TraceError: no argument or buffer has a name that says so, or one of `names` is not given.
    """
    given = arguments_of(module, args, kwargs)
    for name in names:
        if name not in given:
            raise TraceError(f"forward() is given no {name!r} to be its cache", f"it is given {', '.join(given) or 'nothing'}")
    chosen = names or [n for n in given if _NAMED.search(n)]
    own = () if names else [(n, b) for n, b in module.named_buffers() if _NAMED.search(n.rpartition(".")[2])]
    if not chosen and not own:
        raise TraceError(
            f"no argument of forward() and no buffer is a cache: it is given {', '.join(given) or 'nothing'}",
            "name the argument k_cache, v_cache, past_key_values or the like, or write CACHE = ('name',) in the file",
        )
    tensors: dict[str, torch.Tensor] = {}
    for name in chosen:
        for path, t in _tensors(given[name], name, 0):
            tensors.setdefault(path, t)
    return {**tensors, **{n: b for n, b in own if b.dim() > 0}}


def _states(module: nn.Module) -> dict[str, torch.Tensor]:
    """What modules of a library keep of a text as plain attributes, beside the cache: RecurrentGemma's recurrent states."""
    parts = ((f"{path}.{name}", v) for path, m in module.named_modules() for name, v in vars(m).items() if _STATES.search(name))
    return {path: v for path, v in parts if isinstance(v, torch.Tensor) and v.dim() > 0}


def _tensors(x: Any, path: str, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in an object that have a dimension; counters of tokens have none."""
    if isinstance(x, torch.Tensor):
        if x.dim() > 0:
            yield path, x
    elif depth < _DEEPEST and not isinstance(x, (nn.Module, type)):
        parts: Iterable[tuple[Any, Any]] = ()
        if isinstance(x, Mapping):
            parts = x.items()
        elif isinstance(x, (list, tuple)):
            parts = enumerate(x)
        elif hasattr(x, "__dict__"):
            parts = ((k, v) for k, v in vars(x).items() if not k.startswith("_"))
        for key, value in parts:
            yield from _tensors(value, f"{path}.{key}", depth + 1)


def marked(events: Sequence[Event], cache: Iterable[int]) -> list[Event]:
    """The events with the roles of the cache written in.

    Args:
        events: of one trace.
        cache: the memories that hold the cache before the step or after it.
    """
    own, copies = set(cache), set[int]()
    used = _used(events)
    for e in events:
        if _name(e) in MOVES and not _name(e).endswith("_"):  # what is written in place stays what it is
            mine, _ = _split(e, own | copies)
            fresh = [o.memory for o in e.outputs if o.memory not in own]
            if mine and fresh:
                (own if _adds(e, own | copies) or not _leads_on(fresh, used) else copies).update(fresh)
    return [_relabelled(e, own, copies) for e in events] if own else list(events)


def _name(e: Event) -> str:
    return e.op.split(".")[1]


def _split(e: Event, memories: set[int]) -> tuple[list[RawTensor], list[RawTensor]]:
    """The operands that lie in these memories, and the others that hold numbers to move; indices are neither."""
    operands = [t for _, v in e.args for t in raw_tensors(v)]
    moved = [t for t in operands if t.dtype.startswith(("float", "bfloat", "complex")) or t.memory in memories]
    return [t for t in moved if t.memory in memories], [t for t in moved if t.memory not in memories]


def _adds(e: Event, memories: set[int]) -> bool:
    """Whether something new is put beside or into what the cache holds."""
    mine, new = _split(e, memories)
    return bool(mine and new) and any(0 not in t.shape for t in new)


def _used(events: Sequence[Event]) -> set[int]:
    """The memories that some arithmetic reads."""
    return {t.memory for e in events if _name(e) not in MOVES for _, v in e.args for t in raw_tensors(v)}


def _leads_on(memories: Sequence[int], used: set[int]) -> bool:
    return any(m in used for m in memories)


def _relabelled(e: Event, own: set[int], copies: set[int]) -> Event:
    def put(x: Any) -> Any:
        if isinstance(x, RawTensor):
            role = "cache" if x.memory in own else "cache copy" if x.memory in copies else x.role
            return x if role == x.role else x._replace(role=role)
        return tuple([put(i) for i in x]) if isinstance(x, tuple) else x

    return e._replace(args=tuple([(k, put(v)) for k, v in e.args]), outputs=put(e.outputs))
