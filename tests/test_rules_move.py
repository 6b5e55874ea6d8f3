# ruff: noqa: E501 - tables of samples, one a line
"""Views, copies, factories, indexing: 0 FLOPs or adds by brute force, bytes by the operands that a real call touches."""

from types import SimpleNamespace

import pytest
import torch
from oracles_pointwise import as_record, cloned, read_bytes, run, stored, write_bytes

from costir.ir import Call, Conventions
from costir.ops.registry import find
from costir.ops.table import load_rules

load_rules()
SIZES = (2, 3)


def env(k: int) -> SimpleNamespace:
    """Tensors for the samples, larger with k."""
    torch.manual_seed(k)
    m, n = 2 * k, 2 * k + 2
    x = torch.randn(m, n)
    return SimpleNamespace(
        k=k, m=m, n=n, x=x, y=torch.randn(m, n), b=x > 0, i=torch.randint(0, 5, (m, n)), one=torch.tensor(1.5),
        c=torch.randn(m, n, dtype=torch.complex64), v=torch.randn(n), wide=torch.randn(m, 1).expand(m, n), rows=torch.arange(m),
        row=torch.randn(1, 3, n), image=torch.randn(1, 4, n, n), cube=torch.randn(1, 2, n, n, n), pick=torch.tensor([1, 0, 1]),
    )  # fmt: skip


def line(names, *args, **kwargs):
    """One sample for many operators: arguments as attribute names of the environment ("x y") and then literals."""
    return dict.fromkeys(names.split(), (args, kwargs))


FREE = {
    **line("view", "x", [-1]), **line("_unsafe_view", "x", [-1]), **line("_reshape_alias", "x", [2], [1]), **line("expand", "v", [3, -1]),
    **line("slice select", "x", 0, 1), **line("narrow", "x", 0, 0, 1), **line("split", "x", 2), **line("unsafe_split", "x", 2),
    **line("split_with_sizes unsafe_split_with_sizes", "y4", [1, 3]), **line("chunk unsafe_chunk", "x", 2),
    **line("unbind t t_ detach detach_ alias squeeze squeeze_ lift lift_fresh _neg_view", "x"), **line("_conj", "c"),
    **line("transpose transpose_ swapaxes swapaxes_ swapdims swapdims_ movedim moveaxis", "x", 0, 1), **line("diagonal", "x"),
    **line("permute", "x", [1, 0]), **line("unsqueeze unsqueeze_", "x", 0), **line("as_strided as_strided_", "x", [2], [1]),
    **line("unfold", "x", 1, 2, 1), **line("view_as_real", "c"), **line("view_as_complex", "pairs"), **line("view_as expand_as", "x", "y"),
    **line("unflatten", "x", 0, [-1, 2]), **line("numpy_T mT mH matrix_H adjoint", "x"), **line("tensor_split hsplit vsplit", "x", 2),
    **line("dsplit", "cube", 2), **line("resolve_conj resolve_neg", "x"), **line("empty", [3, 2]),
    **line("empty_like", "x"), **line("empty_strided", [3, 2], [2, 1]), **line("empty_permuted", [3, 2], [0, 1]),
    **line("new_empty", "x", [3, 2]), **line("new_empty_strided", "x", [3, 2], [2, 1]), **line("_efficientzerotensor", [3, 2]),
    **line("_local_scalar_dense item is_nonzero", "one"), **line("size numel dim is_contiguous sym_size sym_numel", "x"),
    **line("is_same_size is_set_to", "x", "y"), **line("resize_", "x", [2, 2]), **line("_lazy_clone", "x"),
}  # fmt: skip

COPIES = {
    **line("clone _to_copy contiguous lift_fresh_copy alias_copy detach_copy t_copy squeeze_copy unbind_copy _neg_view_copy", "x"),
    **line("_to_copy", "x", dtype=torch.bfloat16), **line("copy", "x", "y"), **line("narrow_copy", "x", 0, 0, 1),
    **line("view_copy", "x", [-1]), **line("_reshape_alias_copy", "x", [2], [1]), **line("expand_copy", "v", [3, -1]), **line("slice_copy select_copy", "x", 0, 1),
    **line("split_copy", "x", 2), **line("split_with_sizes_copy", "y4", [1, 3]), **line("transpose_copy", "x", 0, 1), **line("diagonal_copy", "x"),
    **line("permute_copy", "x", [1, 0]), **line("unsqueeze_copy", "x", 0), **line("as_strided_copy", "x", [2], [1]),
    **line("unfold_copy", "x", 1, 2, 1), **line("view_as_real_copy _conj_copy", "c"), **line("view_as_complex_copy", "pairs"),
    **line("cat concat concatenate stack _stack hstack vstack dstack column_stack block_diag", ["x", "y"]),
    **line("repeat tile", "x", [2, 3]), **line("roll", "x", [1], [1]), **line("flip", "x", [0]), **line("fliplr flipud rot90", "x"),
    **line("tril triu tril_ triu_ diag_embed", "x"), **line("constant_pad_nd", "x", [1, 2], 0.5),
    **line("reflection_pad1d replication_pad1d", "row", [1, 2]), **line("reflection_pad2d replication_pad2d", "image", [1, 2, 1, 1]),
    **line("reflection_pad3d replication_pad3d", "cube", [1, 2, 1, 1, 1, 1]), **line("pixel_shuffle", "image", 2),
    **line("pixel_unshuffle", "image", 2), **line("channel_shuffle native_channel_shuffle", "image", 2),
    **line("repeat_interleave.self_int", "x", 2), **line("repeat_interleave.Tensor", "pick"), **line("slice_scatter", "x", "x1", 0, 0, 1),
    **line("select_scatter", "x", "v", 0, 1), **line("diagonal_scatter", "x", "diag"), **line("as_strided_scatter", "x", "v2", [2], [1]),
    **line("slice_backward", "x1", "shape", 0, 0, 1, 1), **line("select_backward", "v", "shape", 0, 1),
    **line("diagonal_backward", "v2", [2, 3], 0, 0, 1), **line("im2col", "image", [2, 2], [1, 1], [0, 0], [1, 1]),
    **line("sort argsort msort unique_consecutive _unique _unique2 nonzero argwhere", "x"), **line("topk", "x", 2),
    **line("unique_dim unique_dim_consecutive", "x", 0), **line("searchsorted", "sorted", "x"), **line("bucketize", "x", "sorted"),
    **line("nonzero_static", "x", size=7), **line("masked_select", "x", "b"), **line("masked_scatter masked_scatter_", "x", "b", "y"),
    **line("masked_scatter_backward", "x", "b", "whole"), **line("_chunk_cat", ["x", "y"], 0, 2),
    **line("_foreach_clone", ["x", "y"]), **line("linalg_diagonal", "x"), **line("vander", "v"),
    **line("value_selecting_reduction_backward", "v2", 0, "pick2", [5, 2], False), **line("to_dense", "x"),
}  # fmt: skip

COMPARISONS = {
    **line("relu relu_ sign sign_ sgn sgn_ abs abs_ positive isnan isinf isfinite isposinf isneginf isreal signbit nan_to_num "
           "nan_to_num_ frexp relu6 relu6_ hardtanh hardtanh_ hardshrink floor floor_ ceil ceil_ round round_ trunc trunc_ fix fix_", "x"),
    **line("clamp clamp_ hardtanh clip clip_", "x", 0.0, 1.0), **line("clamp_min clamp_min_ clamp_max clamp_max_", "x", 0.0),
    **line("maximum minimum fmax fmin max.other min.other eq eq_ ne ne_ lt lt_ le le_ gt gt_ ge ge_ greater greater_equal less "
           "less_equal not_equal isclose heaviside heaviside_ copysign copysign_ nextafter nextafter_ equal isin", "x", "y"),
    **line("where", "b", "x", "y"), **line("masked_fill masked_fill_", "x", "b", 1.0), **line("threshold threshold_", "x", 0.0, 1.0),
    **line("threshold_backward", "x", "y", 0.0), **line("hardtanh_backward", "x", "y", -1.0, 1.0),
    **line("hardshrink_backward softshrink_backward", "x", "y", 0.5),
    **line("bitwise_and bitwise_and_ bitwise_or bitwise_or_ bitwise_xor bitwise_xor_ __and__ __iand__ __or__ __ior__ __xor__ __ixor__ "
           "gcd gcd_ lcm lcm_ bitwise_left_shift bitwise_left_shift_ bitwise_right_shift bitwise_right_shift_ __lshift__ __ilshift__ "
           "__rshift__ __irshift__ logical_and logical_and_ logical_or logical_or_ logical_xor logical_xor_", "i", "i2"),
    **line("bitwise_not bitwise_not_ logical_not logical_not_", "i"), **line("conj_physical conj_physical_ _conj_physical", "c"),
    **line("complex", "x", "y"), **line("_is_all_true _is_any_true", "b"), **line("_aminmax", "x"),
    **line("nanmedian", "x"),
}  # fmt: skip

WRITES = {
    **line("zeros ones rand randn", [3, 4]), **line("zeros_like ones_like rand_like randn_like", "x"),
    **line("new_zeros new_ones", "x", [3]), **line("full", [3], 2.0), **line("full_like randint_like", "x", 2), **line("new_full", "x", [3], 2.0),
    **line("scalar_tensor", 2.0), **line("arange hann_window hamming_window blackman_window bartlett_window kaiser_window", 5),
    **line("arange.start_step", 0, 9, 2), **line("range", 0, 4), **line("linspace logspace", 0, 1, 5), **line("eye", 3),
    **line("tril_indices triu_indices", 3, 3), **line("zero_", "x"), **line("zero", "x"), **line("fill_ fill", "x", 2.0),
    **line("fill_.Tensor", "x", "one"), **line("fill_diagonal_", "x", 2.0), **line("randint", 5, [3]), **line("randperm", 5),
    **line("uniform_ normal_ random_ exponential_ cauchy_ log_normal_ bernoulli_ normal_functional uniform random exponential cauchy log_normal", "x"),
    **line("geometric_ geometric", "x", 0.5), **line("fft_fftfreq fft_rfftfreq", 5), **line("_foreach_zero_ _foreach_zero", ["x", "y"]),
}  # fmt: skip


def arguments(args, k):
    e = env(k)
    e.y4, e.pairs, e.x1, e.diag = torch.randn(4, e.n), torch.randn(e.m, e.n, 2), e.x[:1] * 1, torch.randn(e.m)
    e.v2, e.pick2, e.sorted, e.i2 = torch.randn(2), torch.tensor([0, 1]), torch.arange(4.0), e.i + 1
    e.shape, e.whole = [5, e.n], [e.m, e.n]
    swap = lambda a: [swap(v) for v in a] if isinstance(a, list) else getattr(e, a) if isinstance(a, str) else a
    return [swap(a) for a in args]


def cost_of(name, sample, k):
    args, kwargs = sample
    args = cloned(arguments(args, k))
    call, out, bound = run(name, *args, **kwargs)
    return find(call.op).rule(call, Conventions()), out, bound


@pytest.mark.parametrize("name", sorted(FREE))
def test_free(name):
    for k in SIZES:
        cost, _, _ = cost_of(name, FREE[name], k)
        assert (cost.status, cost.flops, cost.nbytes) == ("free", 0, 0)


@pytest.mark.parametrize("name", sorted({**COPIES, **COMPARISONS}))
def test_reads_operands_and_writes_results(name):
    for k in SIZES:
        cost, out, bound = cost_of(name, {**COPIES, **COMPARISONS}[name], k)
        assert (cost.flops, cost.read, cost.write) == (0, read_bytes(bound), write_bytes(out))


@pytest.mark.parametrize("name", sorted(WRITES))
def test_writes_only(name):
    for k in SIZES:
        cost, out, bound = cost_of(name, WRITES[name], k)
        assert (cost.flops, cost.read, cost.write) == (0, 0, write_bytes(bound["self"] if out is None or out == () else out))


# ---- what touches a part -----------------------------------------------------------------------------------------------


def places(k):
    """Tensors to pick from and to write into, places in them, and sizes in elements and bytes."""
    e = env(k)
    m, n = e.m, e.n
    return SimpleNamespace(
        e=e, x=e.x, m=m, n=n, i2=torch.randint(0, m, (3, n)), source=torch.randn(3, n), s=3 * n, index=torch.tensor([1, 0, 1]),
        table=torch.randn(7, n), ids=torch.randint(0, 7, (m, 3)), w=4, whole=4 * e.x.numel(),
    )  # fmt: skip


def _picked(at):
    """Reads of elements, rows and masks."""
    e, x, m, n, i2, index, table, ids, w, whole = at.e, at.x, at.m, at.n, at.i2, at.index, at.table, at.ids, at.w, at.whole
    yield "copy_", (x, e.y), 0, stored(e.y), whole
    yield "copy_", (x, e.v), 0, stored(e.v), whole
    yield "embedding", (table, ids), 0, 8 * ids.numel() + w * m * 3 * n, w * m * 3 * n
    yield "gather", (x, 0, i2), 0, 8 * i2.numel() + w * i2.numel(), w * i2.numel()
    yield "index_select", (x, 0, index), 0, 3 * 8 + w * 3 * n, w * 3 * n
    yield "take", (x, index), 0, 3 * 8 + w * 3, w * 3
    yield "take_along_dim", (x, i2, 0), 0, 8 * i2.numel() + w * i2.numel(), w * i2.numel()
    for name in ("index", "_unsafe_index"):
        got = x[index]
        yield name, (x, [index]), 0, 3 * 8 + stored(got), stored(got)
        got = x[:, index]
        yield name, (x, [None, index]), 0, 3 * 8 + stored(got), stored(got)
    got = x[e.b]
    yield "index", (x, [e.b]), 0, e.b.numel() + stored(got), stored(got)


def _scattered(at):
    """Adds, products and copies into places of a tensor."""
    x, i2, source, s, index, w, whole = at.x, at.i2, at.source, at.s, at.index, at.w, at.whole
    n_i = i2.numel()
    yield "scatter_.src", (x, 0, i2, source), 0, 8 * n_i + w * n_i, w * n_i
    yield "scatter_.value", (x, 0, i2, 1.0), 0, 8 * n_i, w * n_i
    yield "scatter.src", (x, 0, i2, source), 0, 8 * n_i + w * n_i + whole, w * n_i + whole
    yield "scatter_add_", (x, 0, i2, source), n_i, 8 * n_i + 2 * w * n_i, w * n_i
    yield "scatter_add", (x, 0, i2, source), n_i, 8 * n_i + 2 * w * n_i + whole, w * n_i + whole
    for reduce, work in (("sum", n_i), ("prod", n_i), ("amax", 0), ("mean", n_i + x.numel())):
        yield "scatter_reduce_", (x, 0, i2, source, reduce), work, 8 * n_i + 2 * w * n_i, w * n_i
    yield "scatter_reduce", (x, 0, i2, source, "sum"), n_i, 8 * n_i + 2 * w * n_i + whole, w * n_i + whole
    yield "index_add_", (x, 0, index, source), s, 24 + 2 * w * s, w * s
    yield "index_add", (x, 0, index, source), s, 24 + 2 * w * s + whole, w * s + whole
    yield "index_copy_", (x, 0, index, source), 0, 24 + w * s, w * s
    yield "index_copy", (x, 0, index, source), 0, 24 + w * s + whole, w * s + whole
    yield "index_fill_", (x, 0, index, 1.0), 0, 24, w * s
    yield "index_fill", (x, 0, index, 1.0), 0, 24 + whole, w * s + whole
    yield "index_reduce_", (x, 0, index, source, "prod"), s, 24 + 2 * w * s, w * s
    yield "index_reduce", (x, 0, index, source, "amin"), 0, 24 + 2 * w * s + whole, w * s + whole


def _put(at):
    """Writes at places given by tensors."""
    e, x, m, n, source, s, index, w, whole = at.e, at.x, at.m, at.n, at.source, at.s, at.index, at.w, at.whole
    for indices, values in (
        ([index], source), ([None, index], torch.randn(m, 3)), ([index, index], torch.randn(3)), ([index[:, None], index], torch.randn(3, 3)),
        ([index], torch.tensor(1.0)),
    ):  # fmt: skip
        full = [slice(None) if i is None else i for i in indices]
        picked = torch.arange(x.numel()).view(m, n)[tuple(full)].numel()
        read = read_bytes(indices) + stored(values)
        yield "index_put_", (x, indices, values), 0, read, w * picked
        yield "index_put", (x, indices, values), 0, read + whole, w * picked + whole
        yield "index_put_", (x, indices, values, True), picked, read + w * picked, w * picked
    yield "_index_put_impl_", (x, [index], source), 0, 24 + w * s, w * s
    yield "_unsafe_index_put", (x, [index], source), 0, 24 + w * s + whole, w * s + whole
    chosen = int(e.b.sum())
    yield "index_put_", (x, [e.b], torch.randn(chosen)), 0, e.b.numel() + w * chosen, w * chosen
    yield "index_put_", (x, [e.b], torch.tensor(2.0)), 0, e.b.numel() + w, whole  # an upper bound: every element
    yield "put_", (x, index, source[0, :3]), 0, 24 + w * 3, w * 3
    yield "put", (x, index, source[0, :3], True), 3, 24 + 2 * w * 3 + whole, w * 3 + whole


def _drawn(at):
    """Gradients of lookups, draws with parameters that are read, and the sum of unfolded windows."""
    e, x, m, n, ids, w, whole = at.e, at.x, at.m, at.n, at.ids, at.w, at.whole
    g = torch.randn(m, 3, n)
    yield "embedding_dense_backward", (g, ids, 7, -1, False), g.numel(), stored(g) + 8 * ids.numel(), w * 7 * n
    yield "bernoulli_.Tensor", (x, torch.rand(m, n)), 0, whole, whole
    yield "bernoulli", (torch.rand(m, n),), 0, whole, whole
    yield "normal.Tensor_Tensor", (x, e.y.abs()), 0, 2 * whole, whole
    yield "poisson", (x.abs(),), 0, whole, whole
    yield "binomial", (x.abs().round(), torch.rand(m, n)), 0, 2 * whole, whole
    yield "_standard_gamma", (x.abs() + 1,), 0, whole, whole
    yield "_sample_dirichlet", (x.abs() + 1,), 0, whole, whole
    yield (
        "col2im",
        (torch.randn(1, 8, n - 1), [n, 2], [2, 2], [1, 1], [0, 0], [1, 1]),
        8 * (n - 1),
        w * 8 * (n - 1),
        w * 2 * 2 * n,
    )
    yield "reflection_pad1d_backward", (torch.randn(1, 3, n + 3), e.row, [1, 2]), 3 * (n + 3), w * 3 * (2 * n + 3), w * 3 * n
    yield "replication_pad1d_backward", (torch.randn(1, 3, n + 3), e.row, [1, 2]), 3 * (n + 3), w * 3 * (2 * n + 3), w * 3 * n


def _padded(at):
    """Gradients of padding and windows, and counts."""
    e, x, m, n, ids, w, whole = at.e, at.x, at.m, at.n, at.ids, at.w, at.whole
    g = torch.randn(1, 4, n + 2, n + 2)
    for name in ("reflection_pad2d_backward", "replication_pad2d_backward"):
        yield name, (g, e.image, [1, 1, 1, 1]), g.numel(), stored(g) + stored(e.image), stored(e.image)
    g = torch.randn(1, 2, n + 2, n + 2, n + 2)
    for name in ("reflection_pad3d_backward", "replication_pad3d_backward"):
        yield name, (g, e.cube, [1] * 6), g.numel(), stored(g) + stored(e.cube), stored(e.cube)
    g = torch.randn(m, n - 1, 2)
    yield "unfold_backward", (g, [m, n], 1, 2, 1), g.numel(), stored(g), whole
    yield "bincount", (ids.reshape(-1),), ids.numel(), 8 * ids.numel(), 8 * (int(ids.max()) + 1)
    yield "histc", (x, 5), 3 * x.numel(), whole, w * 5
    yield "multinomial", (x.abs(), 2), x.numel(), whole, 8 * m * 2
    yield "multinomial", (x.abs(), 2, True), m * (2 * n - 1), whole, 8 * m * 2


def touched(k):
    """(operator, arguments, FLOPs, bytes read, bytes written) by counting elements of the real tensors."""
    at = places(k)
    for part in (_picked, _scattered, _put, _drawn, _padded):
        yield from part(at)


@pytest.mark.parametrize("k", SIZES)
def test_touches(k):
    for name, args, flops, read, write in touched(k):
        call, _, _ = run(name, *cloned(args))
        cost = find(call.op).rule(call, Conventions())
        assert (name, cost.flops, cost.read, cost.write) == (name, flops, read, write)


def test_mask_upper_bound_is_noted():
    x = torch.randn(3, 4)
    call, _, _ = run("index_put_", x, [x > 0], torch.tensor(1.0))
    assert "mask" in find(call.op).rule(call, Conventions()).note


def test_foreach_copy():
    a, b = [torch.zeros(3), torch.zeros(2, 2)], [torch.ones(3), torch.ones(2, 2)]
    call, _, _ = run("_foreach_copy_", a, b)
    cost = find(call.op).rule(call, Conventions())
    assert (cost.flops, cost.read, cost.write) == (0, 28, 28)


def test_questions_have_no_tensor_and_are_free():
    for op in (
        "prim.device.default",
        "profiler._record_function_enter_new.default",
        "profiler._record_function_exit._RecordFunction",
    ):
        assert find(op).rule(Call(op, {"name": "x"}, ()), Conventions()).status == "free"


def test_out_forms_do_not_read_their_result():
    x, out = torch.randn(3, 4), torch.empty(3, 4)
    call, _, _ = run("exp.out", x, out=out)
    cost = find(call.op).rule(call, Conventions())
    assert (cost.special, cost.read, cost.write) == (12, 48, 48)
    assert as_record(out, {}).numel == 12
