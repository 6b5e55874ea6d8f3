"""The records that cross from one stage to the next. Read this first; everything else makes or reads these.

    load -> trace -> lift -> cost -> roofline -> solve -> report -> render

A `Graph` is a list of operator calls whose tensor shapes are expressions in the user's size names. `cost` gives each call
a `Cost`. All quantities are exact until a chip enters: FLOPs and bytes are sympy expressions with rational coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from costir.mesh import ONE_DEVICE, Mesh
from costir.symbolic import ONE, ZERO, Boolean, Expr, Rational, Symbol, product, total

Phase = Literal["forward", "backward", "optimizer"]
# Steps of serving: forward passes with a cache.
SERVING = ("prefill", "decode")


def traced_phase(phase: str) -> str:
    """The phase that is run for a phase of an analysis."""
    return "forward" if phase in SERVING else phase


Role = Literal["activation", "input", "weight", "buffer", "grad", "state", "cache", "cache copy"]
Traffic = Literal["eager", "inductor", "xla", "ideal"]

# The index of a loop whose shapes grow from round to round.
LOOP = Symbol("_round", integer=True, nonnegative=True)

# Bytes per element in storage. int4 and fp4 take half a byte.
ITEMSIZE: dict[str, Expr] = {
    **{t: Rational(8) for t in ("float64", "int64", "uint64", "complex64")},
    **{t: Rational(4) for t in ("float32", "int32", "uint32", "complex32", "qint32")},
    **{t: Rational(2) for t in ("float16", "bfloat16", "int16", "uint16")},
    **{t: Rational(1) for t in ("int8", "uint8", "bool", "qint8", "quint8", "bits8", "float8_e4m3fn", "float8_e5m2",
                                "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")},
    **{t: Rational(1, 2) for t in ("int4", "uint4", "float4_e2m1fn_x2", "quint4x2")},
    "complex128": Rational(16),
}  # fmt: skip

# Short names that people type, and that results print.
SHORT_DTYPE = {
    "fp64": "float64", "f64": "float64", "fp32": "float32", "f32": "float32", "fp16": "float16", "f16": "float16",
    "half": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn", "f8": "float8_e4m3fn", "fp4": "float4_e2m1fn_x2",
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "i8": "int8", "s8": "int8", "i4": "int4", "i32": "int32", "i64": "int64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One operand or result of a call.

    Attributes:
        shape: an expression per dimension.
        dtype: torch's name of the storage type, without the prefix "torch.".
        expanded: the dimensions of stride 0; their elements are stored once.
        role: what the memory holds; views keep the role of what they view. A "cache copy" is made of a cache
            without arithmetic.
        ref: two operands of one call with the same `ref` are the same memory, read once. -1 is like no other.
        nnz: the number of stored elements of a sparse tensor, else None.
        index_bytes: bytes of the index arrays of a sparse tensor.
    """

    shape: tuple[Expr, ...]
    dtype: str = "float32"
    expanded: tuple[int, ...] = ()
    role: Role = "activation"
    ref: int = -1
    nnz: Expr | None = None
    index_bytes: Expr = ZERO

    @property
    def numel(self) -> Expr:
        """Number of elements by shape."""
        return product(self.shape)

    @property
    def unique(self) -> Expr:
        """Number of elements in memory: a stride-0 expand is stored once, a sparse tensor stores `nnz`."""
        if self.nnz is not None:
            return self.nnz
        return product(d for i, d in enumerate(self.shape) if i not in self.expanded)

    @property
    def itemsize(self) -> Expr:
        """Bytes per element."""
        return ITEMSIZE[self.dtype]

    @property
    def nbytes(self) -> Expr:
        """Bytes read when the tensor is read once."""
        return self.unique * self.itemsize + self.index_bytes

    @property
    def is_complex(self) -> bool:
        """Whether one element is a pair of reals."""
        return self.dtype.startswith("complex")

    @property
    def is_float(self) -> bool:
        """Whether arithmetic on it is floating point (complex included)."""
        return self.dtype.startswith(("float", "bfloat", "complex"))


@dataclass(frozen=True, slots=True)
class Call:
    """One ATen operator call, or `count` equal ones.

    Attributes:
        op: the overload's full name, "aten.mm.default"; notation uses "costir.einsum".
        args: every argument of the operator's schema by name, defaults filled in: `Tensor`s, expressions for whole numbers,
            other literals (floats, bools, strings, None), and (nested) tuples of these. aten.mm has "self" and "mat2".
        outputs: the result tensors, in order.
        path: the module path, "layers.*.mlp.up_proj" where a run of equal blocks was folded.
        source: "file.py:12" of the user's line, or "".
        phase: forward, backward or optimizer.
        count: how often it runs.
        rounds: where the shapes contain the loop index `LOOP`: it takes the values 0 to rounds - 1. Else None.
    """

    op: str
    args: Mapping[str, Any]
    outputs: tuple[Tensor, ...]
    path: str = ""
    source: str = ""
    phase: Phase = "forward"
    count: Expr = ONE
    rounds: Expr | None = None

    @property
    def name(self) -> str:
        """The operator without namespace and overload: "mm"."""
        return self.op.split(".")[1]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """All tensor operands, in order, nested ones included."""
        return tuple(tensors(tuple(self.args.values())))


def tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors in a nested argument."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from tensors(item)


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter, a buffer or a tensor of a cache, or `count` equal ones."""

    path: str
    tensor: Tensor
    count: Expr = ONE


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition under which the formulas hold.

    Attributes:
        condition: a relation between sizes.
        source: where it comes from ("model.py:7"); "" for a dimension that must be whole.
        branch: the user's own code takes another branch where it does not hold.
    """

    condition: Boolean
    source: str = ""
    branch: bool = False

    def __str__(self) -> str:
        text = condition_text(self.condition)
        return f"{text} ({self.source})" if self.source else text


def condition_text(condition: Any) -> str:
    """The condition as Python writes it: `D % N == 0`, `T <= 512`."""
    import sympy as sp

    rest = condition.lhs.as_coeff_Mul()[1] if isinstance(condition, sp.Eq | sp.Ne) and condition.rhs == 0 else None
    if isinstance(rest, sp.Mod):  # sympy takes common factors out: 32*Mod(1024, X) is 0 where Mod(1024, X) is
        left, right = rest.args
        wrap = [f"({x})" if x.is_Add or (x.is_Mul and i) else str(x) for i, x in enumerate((left, right))]
        return f"{wrap[0]} % {wrap[1]} {'==' if isinstance(condition, sp.Eq) else '!='} 0"
    if isinstance(condition, sp.Eq):
        return f"{condition.lhs} == {condition.rhs}"
    if isinstance(condition, sp.Ne):
        return f"{condition.lhs} != {condition.rhs}"
    if isinstance(condition, sp.Or | sp.And) and condition.has(sp.Mod):
        parts = sorted(map(condition_text, condition.args))
        return (" | " if isinstance(condition, sp.Or) else " & ").join(f"({p})" for p in parts)
    return str(condition)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What a stage is a stage of: the mesh axis along which the stages lie, and the micro-batches of a step."""

    axis: str
    micro_batches: int


@dataclass(frozen=True, slots=True)
class Graph:
    """A model as a function of named sizes.

    Attributes:
        name: what was analysed.
        sizes: every size name with its base value, in the order in which the user named them.
        calls: operator calls in execution order, repeated blocks folded.
        weights: parameters and buffers, each stored tensor once.
        constraints: where the formulas hold.
        notes: assumptions worth printing ("loss: sum of the outputs").
        mesh: the devices that it runs on, where there are several; shapes and calls are those of one of them.
        splits: the sizes that are split over devices, with the mesh axes that each is split over.
        cache: what a step of decoding or prefill keeps for the next one, each stored tensor once.
        plan: how what is split comes together, in words, where there are several ways; alternatives: the others.
        pipeline: where the graph is a stage of a pipeline, and `plan` and `alternatives` are stages; else None.
    """

    name: str
    sizes: Mapping[str, int]
    calls: tuple[Call, ...]
    weights: tuple[Weight, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    notes: tuple[str, ...] = ()
    mesh: Mesh = ONE_DEVICE
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cache: tuple[Weight, ...] = ()
    plan: str = ""
    alternatives: tuple[Graph, ...] = ()
    pipeline: Pipeline | None = None

    @property
    def params(self) -> Expr:
        """Number of parameters; a shared one counts once, buffers do not count."""
        return total(w.count * w.tensor.numel for w in self.weights if w.tensor.role == "weight")

    @property
    def weight_bytes(self) -> Expr:
        """Bytes of the parameters in storage."""
        return total(w.count * w.tensor.numel * w.tensor.itemsize for w in self.weights if w.tensor.role == "weight")

    @property
    def cache_bytes(self) -> Expr:
        """Bytes of the cache in storage."""
        return total(w.count * w.tensor.numel * w.tensor.itemsize for w in self.cache)


@dataclass(frozen=True, slots=True)
class Conventions:
    """What counts, chosen once for an analysis and printed with its results.

    Attributes:
        count: "standard" takes 2 FLOPs per multiply-add; "exact" takes (2k-1) per dot product of length k.
        attention: "full" counts all T x S scores; "causal" only the unmasked ones of causal attention.
        weights: storage type of the weights where it differs from the traced one ("int8"), else "".
        kv: storage type of the cache where it differs from the traced one ("fp8"), else "".
        cache: "traced" counts what the program does with its cache; "serving" counts a cache that is read once, without copies,
            and into which only what is new is written, and of the experts of a layer those that are expected to be met.
        traffic: "eager" lets each operator read its operands and write its results; "inductor" and "xla" count what these
            compilers' fusing leaves; "ideal" inputs, weights and results once.
    """

    count: Literal["standard", "exact"] = "standard"
    attention: Literal["full", "causal"] = "full"
    weights: str = ""
    kv: str = ""
    cache: Literal["traced", "serving"] = "traced"
    traffic: Traffic = "eager"


Status = Literal["costed", "free", "flops_only", "unknown"]
Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "permute"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one collective moves between the devices of a group.

    Attributes:
        kind: what is done.
        axes: the mesh axes that span the group.
        devices: how many devices are in it, the product of these axes.
        payload: bytes of the array in question, whole: what all_gather leaves on each device, what each device puts into
            reduce_scatter, all_reduce and broadcast, what all devices of the group hold together before all_to_all, what one
            device passes on by permute. `docs/devices.md` has the table.
    """

    kind: Collective
    axes: tuple[str, ...]
    devices: Expr
    payload: Expr

    @property
    def sent(self) -> Expr:
        """Bytes that a device sends, and receives, at the least, unless the network adds up by itself.

        In a broadcast not all devices send as much; this is their mean.
        """
        away = self.payload - self.payload / self.devices
        if self.kind == "permute":
            return self.payload
        if self.kind == "all_reduce":
            return 2 * away
        return away / self.devices if self.kind == "all_to_all" else away


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call costs.

    Attributes:
        matmul: FLOPs of contractions (matmul, convolution, attention products); a multiply-add is 2.
        vector: FLOPs of elementwise arithmetic and reductions.
        special: evaluations of special functions (exp, tanh, erf, sqrt, ...), 1 each.
        read, write: bytes moved from and to memory.
        math: the type that contractions are computed in; it picks the peak rate.
        status: "costed", "free" (views, allocation), "flops_only" (bytes unknown), or "unknown" (FLOPs unknown).
        note: what a reader should know ("dense T x S").
        transfers: what is moved between devices.
    """

    matmul: Expr = ZERO
    vector: Expr = ZERO
    special: Expr = ZERO
    read: Expr = ZERO
    write: Expr = ZERO
    math: str = ""
    status: Status = "costed"
    note: str = ""
    transfers: tuple[Transfer, ...] = ()

    @property
    def network(self) -> Expr:
        """Bytes that a device sends to others, see `Transfer.sent`."""
        return total(t.sent for t in self.transfers)

    @property
    def flops(self) -> Expr:
        """All FLOPs."""
        return total((self.matmul, self.vector, self.special))

    @property
    def nbytes(self) -> Expr:
        """All bytes."""
        return total((self.read, self.write))


@dataclass(frozen=True, slots=True)
class Node:
    """A call with its cost and the rule that gave it. `cost` is for one call; `call.count` says how many there are."""

    call: Call
    cost: Cost
    rule: str


@dataclass(frozen=True, slots=True)
class Costed:
    """A graph whose calls all have a cost."""

    graph: Graph
    nodes: tuple[Node, ...]
    conventions: Conventions


@dataclass(frozen=True, slots=True)
class Threshold:
    """The size at which a part stops being bound by one resource and starts being bound by another.

    Attributes:
        what: the part: "whole", or an operator's path and name.
        unknown: the size solved for: "B", or "tokens" for the product B*T.
        value: its exact critical value, in the other sizes; None where there is none in closed form or none at all.
        at_base: its value at the base sizes; None where it does not exist there.
        when: the condition under which it exists.
        limit: its value as the other sizes grow without bound; None where it has no finite limit.
        below, above: what binds below and above it ("memory", "compute").
        reason: why there is none, in one sentence, else "".
        cancels: sizes that the answer does not depend on although the costs do.
        note: what to know about the value: numeric, at the base sizes, several roots.
        within: the constraint outside of which it would lie, where that is why there is none, else "".
        split: over how many devices the size is split; each has `value / split` of it.
        devices: `split` at the base sizes; None where it is not known there.
        beside: a third unit that takes longer than both there, so that it binds on either side; else "".
    """

    what: str
    unknown: str
    value: Expr | None
    at_base: float | None
    when: Boolean
    limit: Expr | None
    below: str = "memory"
    above: str = "compute"
    reason: str = ""
    cancels: tuple[str, ...] = ()
    note: str = ""
    within: str = ""
    split: Expr = ONE
    devices: int | None = None
    beside: str = ""
