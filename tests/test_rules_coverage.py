# ruff: noqa: E501 - tables of samples, one a line
"""Every rule outside contractions has a sample, and no registered name is a slip."""

import torch
from formulas_pointwise import ROWS as POINTWISE
from test_rules_linalg import FACTORISATIONS, PUBLISHED
from test_rules_move import COMPARISONS, COPIES, FREE, WRITES, touched
from test_rules_reduce import ROWS as REDUCE
from test_rules_spatial import POOLS
from test_rules_spatial import ROWS as SPATIAL
from test_rules_special import POLYNOMIALS

from costir.ops.registry import RULES
from costir.ops.table import load_rules

load_rules()
HERE = {"families", "pointwise", "reduce", "norm", "loss", "move", "index", "spatial", "linalg", "optim"}
OURS = sorted(op for op, entry in RULES.items() if entry.rule.__module__.rsplit(".", 1)[-1] in HERE)

# Tests of their own, by name, in the files of the same kind.
BY_HAND = {
    "polar",
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "_embedding_bag_dense_backward",
    "_embedding_bag_per_sample_weights_backward",
    "embedding_renorm_",
    "_ctc_loss",
    "segment_reduce",
    "_cdist_backward",
    "_pdist_backward",
    "affine_grid_generator",
    "grid_sampler_2d_backward",
    "grid_sampler_3d_backward",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa_backward",
    "_upsample_bicubic2d_aa_backward",
    "_fused_adam_",
    "_fused_adamw_",
    "_fused_sgd_",
    "_fused_adagrad_",
    "_foreach_copy_",
    "_foreach_pow",
    "_amp_foreach_non_finite_check_and_unscale_",
    "_fft_c2c",
    "_fft_r2c",
    "_fft_c2r",
    "all",
    "any",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "aminmax",
    "max",
    "min",
    "median",
    "mode",
    "kthvalue",
    "cummax",
    "cummin",
    "multi_margin_loss_backward",
    "multilabel_margin_loss_forward",
    "multilabel_margin_loss_backward",
    "_ctc_loss_backward",
    "_euclidean_dist",
    "histogram",
    "_foreach_norm",
    "_foreach_max",
    "_foreach_powsum",
    "glu",
    "glu_backward",
    "_prelu_kernel_backward",
    "_amp_update_scale_",
    "sparse_mask",
}
# Names of one rule that cannot run here (another device, another build, or a property), by the name that is tested.
SAME_RULE = {
    "_native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training batch_norm "
    "cudnn_batch_norm miopen_batch_norm _batch_norm_with_update _batch_norm_with_update_functional _batch_norm_no_update":
        "native_batch_norm",
    "batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward": "native_batch_norm_backward",
    "_cudnn_ctc_loss": "_ctc_loss", "cudnn_grid_sampler": "grid_sampler_2d", "cudnn_affine_grid_generator": "affine_grid_generator",
    "cudnn_grid_sampler_backward _grid_sampler_2d_cpu_fallback_backward": "grid_sampler_2d_backward",
    "mkldnn_adaptive_avg_pool2d": "_adaptive_avg_pool2d",
    "mkldnn_adaptive_avg_pool2d_backward adaptive_avg_pool3d_backward": "_adaptive_avg_pool2d_backward",
    "mkldnn_max_pool2d mkldnn_max_pool3d quantized_max_pool2d": "max_pool2d_with_indices",
    "max_pool2d_backward": "max_pool2d_with_indices_backward", "_upsample_lanczos2d_aa": "_upsample_bilinear2d_aa",
    "_upsample_lanczos2d_aa_backward": "_upsample_bilinear2d_aa_backward", "_foreach_copy": "clone", "_copy_from": "copy_",
    "_fused_adam _fused_adamw": "_fused_adam_", "_fused_sgd": "_fused_sgd_", "_fused_adagrad": "_fused_adagrad_",
    "_amp_foreach_non_finite_check_and_unscale": "_amp_foreach_non_finite_check_and_unscale_",
    "_embedding_bag_backward": "_embedding_bag_dense_backward", "embedding_backward": "embedding_dense_backward",
    "_histogramdd_from_bin_cts _histogramdd_from_bin_tensors _histogramdd_bin_edges": "histc", "nll_loss nll_loss2d": "nll_loss_forward",
    "embedding_bag": "_embedding_bag", "embedding_renorm": "embedding_renorm_", "_unsafe_masked_index": "index",
    "_unsafe_masked_index_put_accumulate": "index_put_", "_cummax_helper _cummin_helper": "cummax",
    "to_sparse _to_sparse _to_sparse_csr _coalesce _to_dense to_mkldnn dequantize int_repr _fw_primal_copy values_copy indices_copy "
    "_reshape_copy lift_fresh_copy _pin_memory": "clone",
    "to_padded_tensor _pack_padded_sequence lu_unpack meshgrid cartesian_prod combinations": "cat", "real imag": "conj_physical",
    "_add_relu_": "_add_relu", "tensor _new_zeros_with_same_feature_meta _philox_uniform _philox_uniform_ _philox_normal _philox_normal_": "zeros",

    "normal": "bernoulli", "_amp_update_scale": "_amp_update_scale_", "max.other min.other": "maximum", "_foreach_pow_": "_foreach_pow",
}  # fmt: skip
FREE_KINDS = {"question", "allocation", "view"}  # nothing in these can be counted wrongly: a test below says that all are free


def sampled() -> set[str]:
    names = {
        *POINTWISE,
        *(r[0] for r in REDUCE),
        *(r[0] for r in SPATIAL),
        *(r[0] for r in FACTORISATIONS),
        *(r[0] for r in PUBLISHED),
    }
    names |= {n for row in POOLS for n in row[0].split()} | {f"special_{n}" for n in POLYNOMIALS}
    names |= {*FREE, *COPIES, *COMPARISONS, *WRITES, *(row[0] for row in touched(2))} | BY_HAND
    return names | {n.split(".")[0] for n in names}


ALIASES = {name: known for names, known in SAME_RULE.items() for name in names.split()}


def has_sample(op: str, known: set[str]) -> bool:
    name = op.split(".", 1)[1]
    if RULES[op].kind in FREE_KINDS or name in known:
        return True
    if name in ALIASES:
        return RULES[op].rule is RULES[f"aten.{ALIASES[name]}"].rule and ALIASES[name] in known
    base = name.removeprefix("_foreach_").split(".")[0].rstrip("_")
    return base in known or f"{base}_" in known


def test_every_rule_has_a_sample():
    known = sampled()
    assert [op for op in OURS if not has_sample(op, known)] == []


def test_free_kinds_are_free():
    from costir.ir import Call, Conventions, Tensor
    from costir.symbolic import Integer

    x = Tensor((Integer(3), Integer(4)))
    for op in OURS:
        if RULES[op].kind in FREE_KINDS:
            cost = RULES[op].rule(Call(f"{op}.default", {"self": x}, (x,)), Conventions())
            assert (cost.status, cost.flops, cost.nbytes) == ("free", 0, 0)


def test_names_exist_in_torch():
    for op in OURS:
        namespace, packet, *overload = op.split(".")
        if namespace == "aten":
            assert hasattr(torch.ops.aten, packet), op
            assert not overload or overload[0] in getattr(torch.ops.aten, packet).overloads(), op
