"""A trace as pieces of work on values: what lowering writes and grouping reads.

A value is one state of a memory: an operator that writes in place makes a new value of the same memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from costir.fusion.space import Access, Ints
from costir.ir import ITEMSIZE
from costir.trace import Trace
from costir.tracing.recorder import Event, RawTensor, raw_tensors

Kind = Literal["pointwise", "reduction", "opaque"]


@dataclass(slots=True)
class Value:
    """One state of a memory, or what lives only inside of one call.

    Attributes:
        tensor: the whole of it, as a tensor.
        numel: its elements. memory: the number of its memory, -1 for what one call keeps to itself.
        maker: the piece that makes it, None where it was there before.
        kept: it must be in memory at the end.
        whole: it is read as a whole memory only: pieces that read it are never part of the kernel that makes it.
        before: the value of which it is a changed part, where its maker writes over some of the memory only.
    """

    tensor: RawTensor
    numel: int
    memory: int
    maker: int | None = None
    kept: bool = False
    whole: bool = False
    before: int | None = None

    @property
    def itemsize(self) -> float:
        """Bytes per element."""
        return float(ITEMSIZE[self.tensor.dtype])

    @property
    def nbytes(self) -> float:
        """Bytes of the whole."""
        return self.numel * self.itemsize


@dataclass(slots=True)
class Piece:
    """Work that one kernel does as a whole: per element, along rows, or opaque.

    Attributes:
        event: the position of its call.
        kind: "pointwise"; "reduction", whose last `reduced` loops are summed up; "opaque", which stands alone.
        dims: its loops, outermost first.
        reads, writes: how it touches values.
        after: values that must be in memory before, since it writes over a part of them.
        phase: of the call.
        biases: values of biases that TorchInductor adds here instead of in the product: operands, whoever reads them.
        chooses: it takes a part of each result from one operand and the rest from another, since the part was written in place.
        events: positions of all calls whose work it does, those inlined into it included.
    """

    event: int
    kind: Kind
    dims: Ints
    reduced: int
    reads: list[Access]
    writes: list[Access]
    phase: str
    after: list[int] = field(default_factory=list)
    events: dict[int, None] = field(default_factory=dict)
    biases: dict[int, None] = field(default_factory=dict)
    chooses: bool = False

    @property
    def operands(self) -> int:
        """How many tensors it reads."""
        return len(self.reads) + len(self.biases)

    @property
    def rows(self) -> int:
        """Product of the loops that are not reduced."""
        return _product(self.dims[: len(self.dims) - self.reduced])

    @property
    def length(self) -> int:
        """Product of the loops that are reduced."""
        return _product(self.dims[len(self.dims) - self.reduced :])


def _product(dims: Iterable[int]) -> int:
    n = 1
    for d in dims:
        n *= d
    return n


class Program:
    """Pieces and values of one trace, while it is lowered."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.values: list[Value] = []
        self.pieces: list[Piece] = []
        self.current: dict[int, int] = {}  # memory -> its value now
        self.at = 0  # the event that is lowered
        self._whole: dict[int, RawTensor] = {}
        self._born = _born(trace)
        for t in self._known():
            self._note(t)

    def _known(self) -> Iterable[RawTensor]:
        yield from (w.tensor for w in self.trace.weights)
        for e in self.trace.events:
            yield from e.outputs
            for _, v in e.args:
                yield from raw_tensors(v)

    def _note(self, t: RawTensor) -> None:
        """Remember the first tensor that shows all of its memory."""
        if t.memory >= 0 and t.memory not in self._whole:
            size = self.trace.memories[t.memory]
            if _product(t.shape) * float(ITEMSIZE[t.dtype]) == size and not t.expanded:
                self._whole[t.memory] = t

    @property
    def event(self) -> Event:
        """The event that is lowered."""
        return self.trace.events[self.at]

    def value(self, t: RawTensor) -> int:
        """The number of the value that a tensor shows."""
        if t.memory in self.current:
            return self.current[t.memory]
        return self._new(t, None)

    def _new(self, t: RawTensor, maker: int | None) -> int:
        whole = self._whole.get(t.memory, t) if t.memory >= 0 else t
        if t.memory >= 0 and self.trace.memories[t.memory] != _product(whole.shape) * float(ITEMSIZE[whole.dtype]):
            n = int(self.trace.memories[t.memory] / float(ITEMSIZE[t.dtype]))
            whole = t._replace(shape=(n,), stride=(1,), expanded=(), offset=0)
        self.values.append(Value(whole._replace(dtype=t.dtype), _product(whole.shape), t.memory, maker))
        self.current[t.memory] = len(self.values) - 1
        return len(self.values) - 1

    def pieces_of(self, value: int) -> str:
        """The kind of the piece that makes a value; "" where it was there before."""
        maker = self.values[value].maker
        return "" if maker is None else self.pieces[maker].kind

    def made_by(self, value: int, operators: tuple[str, ...]) -> bool:
        """Whether a call of one of these operators makes a value."""
        maker = self.values[value].maker
        return maker is not None and self.trace.events[self.pieces[maker].event].op.startswith(operators)

    def whole_of(self, t: RawTensor) -> RawTensor | None:
        """A tensor that shows all of the memory of another; None where a call did not make that memory, or none is known."""
        return self._whole.get(t.memory) if t.memory in self._born else None

    def before(self, t: RawTensor) -> int | None:
        """What is in a tensor's memory before a call writes to it; None where nobody put anything there."""
        return self.value(t) if t.memory >= 0 and t.memory not in self._born else self.current.get(t.memory)

    def is_new(self, t: RawTensor) -> bool:
        """Whether a call of the trace makes the memory of a tensor."""
        return t.memory in self._born

    def temp(self, shape: Sequence[int], dtype: str = "float32") -> RawTensor:
        """A tensor that lives only inside of the call."""
        self._temps = getattr(self, "_temps", -1) - 1
        stride, n = [], 1
        for d in reversed(shape):
            stride.append(n)
            n *= d
        return RawTensor(tuple(shape), dtype, (), "activation", self._temps, memory=self._temps, stride=tuple(reversed(stride)))

    def write(self, piece: int, t: RawTensor) -> int:
        """A new value of a tensor's memory, made by a piece."""
        return self._new(t, piece)

    def add(self, kind: Kind, dims: Ints, reduced: int, reads: list[Access], events: Mapping[int, None] | None = None) -> Piece:
        """One more piece, of the event that is lowered; it writes nothing yet."""
        found = dict(events) if events is not None else {self.at: None}
        piece = Piece(self.at, kind, dims, reduced, _once(reads), [], self.event.phase, [], found)
        self.pieces.append(piece)
        return piece


def _once(reads: Iterable[Access]) -> list[Access]:
    return list(dict.fromkeys(reads))


def _born(trace: Trace) -> set[int]:
    """The memories that the calls of a trace make."""
    old = {w.tensor.memory for w in trace.weights}
    born = set[int]()
    for e in trace.events:
        old.update(t.memory for _, v in e.args for t in raw_tensors(v) if t.memory not in born)
        born.update(t.memory for t in e.outputs if t.memory not in old)
    return born
