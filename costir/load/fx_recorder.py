"""A recorder for graphs with symbolic sizes: operator calls become `ir.Call`s at once."""

from __future__ import annotations

from typing import Any

import torch

from costir.errors import LoadError
from costir.ir import Call, Phase, Role, Tensor
from costir.load.symints import Symbols
from costir.symbolic import ONE, Expr, Integer
from costir.tracing.recorder import Recorder, Scope, dtype_name


class SymbolicRecorder(Recorder):
    """Notes calls with expressions for sizes. Path, line, phase and count of what runs are set from outside.

    Two tensors are the same memory where their storages were linked (a view and its base) and shape, stride and offset agree.
    """

    def __init__(self, symbols: Symbols) -> None:
        super().__init__(Scope(), None)
        self.recording = True
        self.symbols = symbols
        self.calls: list[Call] = []
        self.path, self.source, self.phase = "", "", "forward"
        self.times: Expr = ONE
        self._same: dict[int, int] = {}  # storage -> the storage that it stands for
        self._alive: list[Any] = []  # a freed storage's address could be given to another

    def storage(self, t: torch.Tensor) -> int:
        """The memory that a tensor stands for."""
        found = int(t.untyped_storage()._cdata)
        while found in self._same:
            found = self._same[found]
        return found

    def link(self, new: Any, old: Any) -> None:
        """Say that `new` lives in the memory of `old`; (nested) tuples are linked one by one."""
        if isinstance(new, (tuple, list)) and isinstance(old, (tuple, list)):
            for a, b in zip(new, old, strict=False):
                self.link(a, b)
        elif isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor):
            self._alive.append((new, old))
            if new.layout is not torch.strided or old.layout is not torch.strided:
                return
            a, b = self.storage(new), self.storage(old)
            if a != b:
                self._same[a] = b

    def set_role(self, t: torch.Tensor, role: Role) -> None:
        """Say what a tensor's memory holds, where that is not known yet."""
        self._alive.append(t)
        self.roles.setdefault(self.storage(t), role)

    def describe(self, t: torch.Tensor) -> Tensor:  # type: ignore[override]
        """The record of a tensor."""
        if t.layout is not torch.strided:
            raise LoadError(f"the graph has a sparse tensor ({t.layout}) near {self.source or self.path or 'its start'}",
                            "analyse the nn.Module itself: costir.analyze(module, inputs)")  # fmt: skip
        storage = self.storage(t)
        shape = tuple([self.symbols.number(d) for d in t.shape])
        stride = tuple([self.symbols.number(s) for s in t.stride()])
        key = (storage, self.symbols.number(t.storage_offset()), shape, stride)
        ref = self._shown.setdefault(key, len(self._shown))
        expanded = tuple([i for i, s in enumerate(stride) if s == 0])
        return Tensor(shape, dtype_name(t.dtype), expanded, self.roles.get(storage, "activation"), ref)  # type: ignore[arg-type]

    def note_call(self, op: str, args: dict[str, Any], out: Any) -> None:
        """Write down a call with named arguments."""
        if not self.recording:
            return
        outputs = out if isinstance(out, (tuple, list)) else (out,)
        flat = [o for item in outputs for o in (item if isinstance(item, (tuple, list)) else (item,))]
        results = tuple([self.describe(o) for o in flat if isinstance(o, torch.Tensor)])
        record = {k: self._arg(v) for k, v in args.items()}
        self._alive.append((args, out))
        phase: Phase = "backward" if self.phase == "backward" else "forward"
        self.calls.append(Call(op, record, results, self.path, self.source, phase, self.times))

    def note_operator(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Write down a call of an operator overload that did not run here; its results live where its schema says."""
        for result, returned in zip(out if isinstance(out, (tuple, list)) else (out,), _returns(func, out), strict=False):
            source = _aliased(func, args, kwargs, returned)
            if source is not None:
                self.link(result, source)
        self._note(func, args, kwargs, out)

    def _arg(self, x: Any) -> Any:
        if isinstance(x, torch.SymInt) or type(x) is int:
            return self.symbols.number(x)
        if isinstance(x, (torch.SymFloat, torch.SymBool)):
            return x.node.hint
        if isinstance(x, (list, tuple)):
            return tuple([self._arg(i) for i in x])
        if isinstance(x, int) and not isinstance(x, bool):
            return Integer(int(x))
        return super()._arg(x)


def _returns(func: Any, out: Any) -> list[Any]:
    """The schema's return of each result; a list of results (split) has one return for all."""
    returns = list(func._schema.returns)
    if isinstance(out, (tuple, list)) and len(returns) == 1:
        return returns * len(out)
    return returns


def _aliased(func: Any, args: Any, kwargs: Any, returned: Any) -> Any:
    """The operand in whose memory a result lives, or None."""
    if returned.alias_info is None:
        return None
    for i, a in enumerate(func._schema.arguments):
        if a.alias_info is not None and a.alias_info.before_set & returned.alias_info.before_set:
            return args[i] if i < len(args) else kwargs.get(a.name)
    return None
