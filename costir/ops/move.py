"""Cost rules for views, copies and factories. Gathers, scatters and other indexing are in index.py.

Views and allocation are free. A copy reads once and writes once, with 0 FLOPs. A factory (zeros, full, arange, random
numbers) only writes; drawing random numbers and counting up are not charged as arithmetic.
"""

from __future__ import annotations

from costir.ir import Call, Conventions, Cost
from costir.ops.families import charge, family, maybe, operands, register, targets
from costir.ops.registry import free, read_once, written
from costir.symbolic import ZERO


def _free(call: Call, conventions: Conventions) -> Cost:
    return free()


register(
    "view _unsafe_view _reshape_alias view_as _conj _neg_view expand expand_as slice select narrow split unsafe_split "
    "split_with_sizes unsafe_split_with_sizes chunk unsafe_chunk tensor_split hsplit vsplit dsplit unbind t t_ numpy_T mT mH "
    "matrix_H adjoint transpose transpose_ swapaxes swapaxes_ swapdims swapdims_ permute movedim moveaxis squeeze squeeze_ "
    "unsqueeze unsqueeze_ unflatten as_strided as_strided_ unfold diagonal view_as_real view_as_complex alias "
    "detach detach_ lift_fresh lift slice_inverse values indices _values _indices crow_indices col_indices ccol_indices "
    "row_indices _mkldnn_transpose requires_grad_ resolve_conj resolve_neg _lazy_clone _fw_primal _make_dual _unpack_dual",
    "view",
    "0: no arithmetic, no traffic",
    _free,
)
register(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided _efficientzerotensor resize_ resize_as_ "
    "_resize_output_ set_ record_stream _sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_with_dims "
    "sparse_coo_tensor sparse_compressed_tensor _coalesced_ empty_quantized _empty_affine_quantized _cudnn_init_dropout_state",
    "allocation",
    "0: memory is only reserved",
    _free,
)
register(
    "sym_size sym_numel sym_stride sym_storage_offset sym_is_contiguous size stride numel dim is_contiguous "
    "_local_scalar_dense item is_nonzero "
    "is_same_size is_pinned is_set_to is_coalesced sparse_dim dense_dim _dimI _dimV _nnz _has_compatible_shallow_copy_type "
    "_has_same_storage_numel sym_constrain_range sym_constrain_range_for_size _functional_sym_constrain_range "
    "_functional_sym_constrain_range_for_size _assert_async _assert_scalar _assert_tensor_metadata _functional_assert_async "
    "_functional_assert_scalar _make_dep_token _print _linalg_check_errors _validate_sparse_csr_tensor_args "
    "_validate_compressed_sparse_indices _fused_sdp_choice _debug_has_internal_overlap _use_cudnn_ctc_loss "
    "_use_miopen_ctc_loss result_type can_cast "
    "prim.device prim.dtype prim.layout profiler._record_function_enter_new profiler._record_function_enter "
    "profiler._record_function_exit",
    "question",
    "0: asks for a property, or reads one number",
    _free,
)
family(
    "clone _to_copy copy _foreach_clone _foreach_copy contiguous lift_fresh_copy _pin_memory _reshape_copy narrow_copy "
    "view_copy _reshape_alias_copy expand_copy slice_copy select_copy split_copy split_with_sizes_copy unbind_copy t_copy "
    "transpose_copy permute_copy squeeze_copy unsqueeze_copy as_strided_copy unfold_copy diagonal_copy view_as_real_copy "
    "view_as_complex_copy alias_copy detach_copy _conj_copy _neg_view_copy _fw_primal_copy values_copy indices_copy "
    "_to_dense to_dense to_sparse _to_sparse _to_sparse_csr _coalesce to_mkldnn dequantize int_repr",
    "copy",
    "0 FLOPs; reads once, writes once (a cast reads one type and writes the other)",
    lambda c: (ZERO, ZERO),
)
family(
    "cat concat concatenate stack _stack hstack vstack dstack column_stack block_diag repeat tile roll flip fliplr flipud "
    "rot90 tril tril_ triu triu_ constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d "
    "replication_pad2d replication_pad3d pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle diag_embed "
    "repeat_interleave _chunk_cat slice_scatter select_scatter diagonal_scatter as_strided_scatter to_padded_tensor "
    "slice_backward select_backward diagonal_backward im2col linalg_diagonal _pack_padded_sequence lu_unpack "
    "meshgrid cartesian_prod combinations vander",
    "rearrangement",
    "0 FLOPs; reads every operand once, writes the result once",
    lambda c: (ZERO, ZERO),
)


def _copy_into(call: Call, conventions: Conventions) -> Cost:
    sources = call.args.get("src", call.args.get("self"))
    read = read_once((sources,) if not isinstance(sources, tuple | list) else sources)
    return charge(call, read=read, write=written(targets(call)))


register(
    "copy_ _foreach_copy_ _copy_from", "copy", "0 FLOPs; reads the source, writes the target, does not read it", _copy_into
)


def _write_only(call: Call, conventions: Conventions) -> Cost:
    return charge(call, read=ZERO)


register(
    "zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full scalar_tensor tensor arange range linspace "
    "logspace eye tril_indices triu_indices zero_ zero fill_ fill _foreach_zero_ _foreach_zero fill_diagonal_ hann_window "
    "hamming_window blackman_window bartlett_window kaiser_window fft_fftfreq fft_rfftfreq _new_zeros_with_same_feature_meta",
    "factory",
    "0 FLOPs; writes only",
    _write_only,
)
register(
    "rand rand_like randn randn_like randint randint_like randperm uniform_ normal_ random_ exponential_ geometric_ cauchy_ "
    "log_normal_ bernoulli_ uniform normal_functional random exponential geometric cauchy log_normal _philox_uniform "
    "_philox_uniform_ _philox_normal _philox_normal_",
    "random",
    "0 FLOPs (drawing is integer work of the generator); writes only",
    _write_only,
)


def _draw_from(call: Call, conventions: Conventions) -> Cost:
    """Draws whose parameters may be tensors, which are read."""
    parameters = tuple(t for t in operands(call) if call.name[-1] != "_" or t is not call.args.get("self"))
    return charge(call, read=read_once(parameters))


register(
    "bernoulli normal poisson binomial _standard_gamma _sample_dirichlet bernoulli_.Tensor",
    "random",
    "0 FLOPs; reads tensors of parameters, writes the draws",
    _draw_from,
)

# ---- gradients of copies: sums into zeros ------------------------------------------------------------------------------


def _accumulate(call: Call, conventions: Conventions) -> Cost:
    """One add per element of the gradient that is summed into zeros."""
    grad = maybe(call, "grad_output", "grad", "grad_in", "self")
    assert grad is not None, call.op
    return charge(call, vector=grad.numel)


register(
    "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward "
    "replication_pad2d_backward replication_pad3d_backward unfold_backward col2im",
    "accumulation",
    "1 add per element that is summed into the result",
    _accumulate,
)
register(
    "value_selecting_reduction_backward masked_scatter_backward",
    "rearrangement",
    "0 FLOPs; reads operands once, writes the result once",
    lambda c, conventions: charge(c),
)

# ---- sorting -----------------------------------------------------------------------------------------------------------

family(
    "sort argsort msort topk unique_consecutive unique_dim unique_dim_consecutive _unique _unique2 searchsorted bucketize "
    "nonzero nonzero_static argwhere",
    "sorting",
    "0: comparisons; reads operands once, writes results once",
    lambda c: (ZERO, ZERO),
)
