"""Cost rules for indexing: gathers read the rows that they pick, scatters write the rows that they touch.

With n picked elements of w bytes and an index of i bytes:

    gather            reads i + n w, writes n w; a row that is picked twice is read twice
    scatter in place  reads i and the source, writes n w; adding reads the n w target elements too, 1 add each
    out of place      copies the whole tensor besides
"""

from __future__ import annotations

from typing import Any

from costir.ir import Call, Conventions, Cost, Tensor, tensors
from costir.ops.families import boolean, charge, is_one, length, maybe, register, targets, tensor, truth
from costir.ops.registry import read_once, written
from costir.symbolic import ONE, ZERO, Expr, product, total

# ---- gathers -----------------------------------------------------------------------------------------------------------


def _gather(call: Call, conventions: Conventions) -> Cost:
    out = targets(call)[0]
    picked = out.numel * (tensor(call, "weight") if "weight" in call.args else tensor(call, "self")).itemsize
    indices = call.args.get("indices", call.args.get("index"))
    mask = maybe(call, "mask")
    read = total((read_once(tensors(indices)), picked, mask.nbytes if mask is not None else ZERO))
    return charge(call, read=read, write=written((out,)))


register(
    "embedding gather index_select index take _unsafe_index _unsafe_masked_index take_along_dim",
    "gather",
    "0 FLOPs; reads the index and the picked elements, writes them",
    _gather,
)


def _masked_select(call: Call, conventions: Conventions) -> Cost:
    return charge(call)


register("masked_select", "gather", "0 FLOPs; reads tensor and mask, writes the selected elements", _masked_select)


def _sparse_mask(call: Call, conventions: Conventions) -> Cost:
    mask, out = tensor(call, "mask"), targets(call)[0]
    return charge(call, read=mask.index_bytes + out.unique * out.itemsize)


register("sparse_mask", "gather", "0 FLOPs; reads the mask's indices and the elements there, writes both", _sparse_mask)

# ---- scatters ----------------------------------------------------------------------------------------------------------

_REDUCTIONS = {"sum": 1, "add": 1, "prod": 1, "multiply": 1, "mul": 1, "mean": 1, "amax": 0, "amin": 0}


def _scatter_cost(
    call: Call, index: Any, picked: Expr, source: Expr, *, combine: bool = False, vector: Expr = ZERO, note: str = ""
) -> Cost:
    """Reads the index, `source` bytes and, to combine, the `picked` target elements; writes the picked elements.

    A call that is not in place copies the whole tensor first.
    """
    target = tensor(call, "self")
    touched = picked * target.itemsize
    read = total((read_once(tensors(index)), source, touched if combine else ZERO))
    write = touched
    if not call.name.endswith("_"):
        read, write = read + target.nbytes, write + written(targets(call)[:1])
    return charge(call, vector=vector, read=read, write=write, note=note)


def _scatter(call: Call, conventions: Conventions) -> Cost:
    index = tensor(call, "index")
    src = maybe(call, "src")
    n = index.numel
    source = n * src.itemsize if src is not None else ZERO
    if src is not None and src.unique == 1:
        source = src.itemsize
    reduce = call.args.get("reduce")
    reduce = "add" if call.name.startswith("scatter_add") else reduce
    if reduce is None:
        return _scatter_cost(call, index, n, source)
    work = _REDUCTIONS[str(reduce)] * n
    if reduce == "mean":
        work = work + tensor(call, "self").numel
    return _scatter_cost(call, index, n, source, combine=True, vector=work)


register(
    "scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_",
    "scatter",
    "adding and multiplying 1 per index entry (mean 1 divide per target element), else 0; reads index and source, writes "
    "what it touches; out of place copies the whole",
    _scatter,
)


def _index_rows(call: Call, conventions: Conventions) -> Cost:
    """index_copy, index_add, index_reduce, index_fill: whole slices along one dimension."""
    target, index = tensor(call, "self"), tensor(call, "index")
    source = maybe(call, "source")
    name = call.name.rstrip("_")
    if source is None:  # index_fill: the value is one number
        picked = index.numel * target.numel / length(target, call.args["dim"])
        return _scatter_cost(call, index, picked, ZERO)
    if name == "index_copy":
        return _scatter_cost(call, index, source.numel, source.nbytes)
    work = ONE + (0 if is_one(call.args.get("alpha")) else 1)
    if name == "index_reduce":
        work = ONE * _REDUCTIONS[str(call.args["reduce"])]
    vector = work * source.numel
    if call.args.get("reduce") == "mean":
        vector = vector + target.numel
    return _scatter_cost(call, index, source.numel, source.nbytes, combine=True, vector=vector)


register(
    "index_copy index_copy_ index_add index_add_ index_reduce index_reduce_ index_fill index_fill_",
    "scatter",
    "index_add 1 add (alpha not 1: 1 multiply more) per source element, index_reduce by its reduction, else 0; touches the "
    "rows of the index; out of place copies the whole",
    _index_rows,
)


def _broadcast(shapes: list[tuple[Expr, ...]]) -> tuple[Expr, ...]:
    """The shape that the shapes broadcast to; among unlike symbols the first that is not 1 counts."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(ONE,) * (rank - len(s)) + s for s in shapes]
    return tuple(next((d for d in dims if d != 1), ONE) for dims in zip(*padded, strict=True))


def picked_elements(target: Tensor, indices: tuple[Any, ...]) -> tuple[Expr, bool]:
    """How many elements `target[indices]` picks, and whether that is an upper bound (masks select what their data says)."""
    shapes: list[tuple[Expr, ...]] = []
    rest: list[Expr] = []
    bound = False
    at = 0
    for index in indices:
        if not isinstance(index, Tensor):
            rest.append(target.shape[at])
            at += 1
        elif boolean(index) or index.dtype == "uint8":
            shapes.append((index.numel,))
            bound = True
            at += len(index.shape)
        else:
            shapes.append(index.shape)
            at += 1
    rest.extend(target.shape[at:])
    return product((*_broadcast(shapes), *rest)), bound


def _index_put(call: Call, conventions: Conventions) -> Cost:
    target, values = tensor(call, "self"), tensor(call, "values")
    picked, bound = picked_elements(target, tuple(call.args["indices"]))
    if bound and values.shape and values.shape[0] != 1 and not values.expanded:
        picked, bound = values.numel, False
    adds = truth(call.args.get("accumulate")) or "accumulate" in call.name
    mask = maybe(call, "mask")
    return _scatter_cost(
        call,
        (*call.args["indices"], mask),
        picked,
        values.nbytes,
        combine=adds,
        vector=picked if adds else ZERO,
        note="every element of the mask taken as set" if bound else "",
    )


register(
    "index_put index_put_ _index_put_impl_ _unsafe_index_put _unsafe_masked_index_put_accumulate",
    "scatter",
    "accumulate: 1 add per picked element, else 0; reads indices and values, writes the picked elements (a mask: all of "
    "them, unless the values say how many); out of place copies the whole",
    _index_put,
)


def _put(call: Call, conventions: Conventions) -> Cost:
    index, source = tensor(call, "index"), tensor(call, "source")
    adds = truth(call.args.get("accumulate"))
    work = index.numel if adds else ZERO
    return _scatter_cost(call, index, index.numel, source.nbytes, combine=adds, vector=work)


register("put put_", "scatter", "accumulate: 1 add per index entry, else 0; touches what it writes", _put)


def _masked_scatter(call: Call, conventions: Conventions) -> Cost:
    return charge(call)


register(
    "masked_scatter masked_scatter_",
    "scatter",
    "0 FLOPs; reads tensor, mask and source once, writes the tensor once",
    _masked_scatter,
)

# ---- embeddings: gradient and bags -------------------------------------------------------------------------------------


def _embedding_backward(call: Call, conventions: Conventions) -> Cost:
    grad = tensor(call, "grad_output")
    scaled = grad.numel if truth(call.args.get("scale_grad_by_freq")) else ZERO
    return charge(call, vector=grad.numel + scaled)


register(
    "embedding_dense_backward embedding_backward",
    "accumulation",
    "1 add per gradient element (by frequency: 1 divide more); reads gradient and indices, writes the whole table once",
    _embedding_backward,
)


def _bag_rows(call: Call, width: Expr) -> tuple[Expr, Tensor]:
    """Elements of all looked-up rows, and the index."""
    indices = tensor(call, "indices")
    return indices.numel * width, indices


def _embedding_bag(call: Call, conventions: Conventions) -> Cost:
    weight, out = tensor(call, "weight"), call.outputs[0]
    picked, indices = _bag_rows(call, weight.shape[-1])
    mode = int(call.args.get("mode", 0))
    scale = maybe(call, "per_sample_weights")
    vector = ZERO if mode == 2 else picked - (out.numel if mode == 0 else ZERO)
    vector = vector + (picked if scale is not None else ZERO)
    rest = read_once(t for t in (indices, maybe(call, "offsets"), scale) if t is not None)
    return charge(call, vector=vector, read=rest + picked * weight.itemsize)


register(
    "_embedding_bag _embedding_bag_forward_only embedding_bag",
    "gather",
    "sum: n - 1 adds per bag and column, mean 1 divide more, max 0, weights 1 multiply; reads the picked rows",
    _embedding_bag,
)


def _bag_backward(call: Call, conventions: Conventions) -> Cost:
    grad = tensor(call, "grad")
    picked, _ = _bag_rows(call, grad.shape[-1])
    mode = int(call.args.get("mode", 0))
    per = 1 + (mode == 1) + (maybe(call, "per_sample_weights") is not None)
    return charge(call, vector=per * (grad.numel if mode == 2 else picked))


register(
    "_embedding_bag_dense_backward _embedding_bag_backward",
    "accumulation",
    "1 add per looked-up element (max: per output), mean 1 divide more, weights 1 multiply more",
    _bag_backward,
)


def _bag_weights_backward(call: Call, conventions: Conventions) -> Cost:
    grad = tensor(call, "grad")
    picked, indices = _bag_rows(call, grad.shape[-1])
    read = read_once((grad, indices)) + picked * tensor(call, "weight").itemsize
    return charge(call, vector=2 * picked - indices.numel, read=read)


register(
    "_embedding_bag_per_sample_weights_backward",
    "reduction",
    "per looked-up row: D multiplies, D - 1 adds; reads the picked rows",
    _bag_weights_backward,
)


def _embedding_renorm(call: Call, conventions: Conventions) -> Cost:
    table, indices = tensor(call, "self"), tensor(call, "indices")
    picked = indices.numel * table.shape[-1]
    touched = picked * table.itemsize
    vector = 3 * picked + indices.numel
    return charge(
        call,
        vector=vector,
        special=indices.numel,
        read=indices.nbytes + touched,
        write=touched,
        note="every looked-up row taken as too long",
    )


register(
    "embedding_renorm_ embedding_renorm",
    "norm",
    "per looked-up row, taken as too long: the 2-norm, add and divide, D multiplies",
    _embedding_renorm,
)
