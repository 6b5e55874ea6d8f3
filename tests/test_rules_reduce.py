# ruff: noqa: E501 - tables of samples, one a line
"""Reductions, scans, softmax, norms and losses: counted by running their definitions on counting numbers."""

import math

import formulas_reduce as f
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles_pointwise import add_up, cloned, log1p, nums, read_bytes, run, sqrt, tally, values, write_bytes
from torch.utils._pytree import tree_leaves

from costir.ir import Conventions
from costir.ops.registry import RULES, find
from costir.ops.table import load_rules

load_rules()
SIZES = ((2, 3), (3, 5))


def t(*shape):
    return torch.randn(*shape)


def p(*shape):
    return torch.rand(*shape) * 0.8 + 0.1


def over(g, dim="dim"):
    """A definition applied to each row along the call's dimension."""
    return lambda b: [f.each(g, b["self"], b.get(dim))]


def lines(g):
    """A definition that maps rows along `dim` to rows; results are compared with `dim` moved last."""
    return lambda b: [f.each(g, b["self"], b.get("dim", -1))]


def paired(g, first, second):
    return lambda b: [[g(x, y) for x, y in f.pairs(b[first], b[second], b["dim"])]]


def y_of(m, n):
    return t(m, n).softmax(-1)


def norm_inputs(m, n, image=False):
    x = t(m, 4, n, 2) if image else t(m, n)
    return x, p(4 if image else n), t(4 if image else n)


def _layer(m, n):
    x, w, b = norm_inputs(m, n)
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [n], w, b, 1e-5)
    return t(m, n), x, [n], mean, rstd, w, b, [True, True, True]


def _group(m, n):
    x, w, b = norm_inputs(m, n, image=True)
    _, mean, rstd = torch.ops.aten.native_group_norm(x, w, b, m, 4, n * 2, 2, 1e-5)
    return t(m, 4, n, 2), x, mean, rstd, w, m, 4, n * 2, 2, [True, True, True]


def _rms(m, n):
    x, w, _ = norm_inputs(m, n)
    _, rstd = torch.ops.aten._fused_rms_norm(x, [n], w, 1e-5)
    return t(m, n), x, [n], rstd, w, [True, True]


def _batch(m, n, train):
    x, w, _ = norm_inputs(m, n, image=True)
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    saved = (mean, (var + 1e-5).rsqrt()) if train else (torch.empty(0), torch.empty(0))
    return t(*x.shape), x, w, t(4), p(4), *saved, train, 1e-5, [True, True, True]


def _weight(m, n):
    v = t(m, n)
    return t(m, n), v, p(m, 1), v.norm(dim=1, keepdim=True), 0


def labels(m, n):
    return torch.randint(0, n, (m,))


# (operator, arguments for [m, n], definition)
ROWS = [
    ("sum.default", lambda m, n: (t(m, n),), over(add_up)),
    ("sum.dim_IntList", lambda m, n: (t(m, n), [1]), over(add_up)),
    ("sum.dim_IntList", lambda m, n: (t(m, n), [0], True), over(add_up)),
    ("nansum", lambda m, n: (t(m, n), [1]), over(add_up)),
    ("count_nonzero", lambda m, n: (t(m, n).round(),), lambda b: [[add_up([f.Num(x.v != 0) for x in nums(b["self"]).reshape(-1)])]]),
    ("mean.default", lambda m, n: (t(m, n),), over(f.mean)),
    ("mean.dim", lambda m, n: (t(m, n), [1]), over(f.mean)),
    ("nanmean", lambda m, n: (t(m, n), [1]), over(f.mean)),
    ("prod.dim_int", lambda m, n: (t(m, n), 1), over(f.product_of)),
    ("prod.default", lambda m, n: (t(m, n),), over(f.product_of)),
    ("trace", lambda m, n: (t(n, n),), lambda b: [[add_up(list(np.diag(nums(b["self"]))))]]),
    ("logsumexp", lambda m, n: (t(m, n), [1]), over(f.logsumexp)),
    ("var.correction", lambda m, n: (t(m, n), [1]), over(f.variance)),
    ("var_mean.correction", lambda m, n: (t(m, n), [1]), over(f.variance)),
    ("std.correction", lambda m, n: (t(m, n), [1]), over(lambda xs: sqrt(f.variance(xs)))),
    ("std_mean.correction", lambda m, n: (t(m, n), [1]), over(lambda xs: sqrt(f.variance(xs)))),
    *(("linalg_vector_norm", lambda m, n, o=o: (t(m, n), o, [1]), over(f.norm(o))) for o in (2, 1, 3, 2.5, math.inf)),
    ("norm.ScalarOpt_dim", lambda m, n: (t(m, n), 2, [1]), over(f.norm(2))),
    ("linalg__powsum", lambda m, n: (t(m, n), 2, [1]), over(lambda xs: add_up([x * x for x in xs]))),
    ("dist", lambda m, n: (t(m, n), t(m, n)), lambda b: [[f.norm(2)(list((nums(b["self"]) - nums(b["other"])).reshape(-1)))]]),
    ("renorm", lambda m, n: (t(m, n) * 9, 2, 0, 0.5), lambda b: [[_renormed(row) for row in nums(b["self"])]]),
    ("cumsum", lambda m, n: (t(m, n), 1), lines(f.scan(lambda a, x: a + x))),
    ("cumsum", lambda m, n: (t(m, n), -1), lines(f.scan(lambda a, x: a + x))),
    ("cumprod", lambda m, n: (t(m, n), 1), lines(f.scan(lambda a, x: a * x))),
    ("logcumsumexp", lambda m, n: (t(m, n), 1), lines(f.scan(f.logadd))),
    ("_logcumsumexp", lambda m, n: (t(m, n), 1), lines(f.scan(f.logadd))),
    ("_softmax", lambda m, n: (t(m, n), 1, False), lines(f.softmax)),
    ("softmax.int", lambda m, n: (t(m, n), 1), lines(f.softmax)),
    ("_safe_softmax", lambda m, n: (t(m, n), 1), lines(f.softmax)),
    ("_masked_softmax", lambda m, n: (t(1, 1, m, n), torch.zeros(1, 1, m, n).bool(), 3, 2), lines(f.softmax)),
    ("_log_softmax", lambda m, n: (t(m, n), 1, False), lines(f.log_softmax)),
    ("log_softmax.int", lambda m, n: (t(m, n), 1), lines(f.log_softmax)),
    ("_softmax_backward_data", lambda m, n: (t(m, n), y_of(m, n), 1, torch.float32), paired(f.softmax_back, "grad_output", "output")),
    (
        "_masked_softmax_backward",
        lambda m, n: (t(m, n), y_of(m, n), torch.zeros(m, n).bool(), 1),
        paired(f.softmax_back, "grad_output", "output"),
    ),
    (
        "_log_softmax_backward_data",
        lambda m, n: (t(m, n), y_of(m, n).log(), 1, torch.float32),
        paired(f.log_softmax_back, "grad_output", "output"),
    ),
    ("native_layer_norm", lambda m, n: (t(2, m, n), [n], None, None, 1e-5), f.layer_norm),
    ("native_layer_norm", lambda m, n: (t(2, m, n), [m, n], p(m, n), t(m, n), 1e-5), f.layer_norm),
    ("native_layer_norm", lambda m, n: (t(m, n), [n], p(n), None, 1e-5), f.layer_norm),
    ("layer_norm", lambda m, n: (t(m, n), [n], p(n), t(n)), f.layer_norm),
    ("_fused_rms_norm", lambda m, n: (t(m, n), [n], p(n), 1e-5), f.rms_norm),
    ("rms_norm", lambda m, n: (t(m, n), [n], None, 1e-5), f.rms_norm),
    ("native_group_norm", lambda m, n: (*norm_inputs(m, n, True), m, 4, n * 2, 2, 1e-5), f.group_norm),
    ("native_layer_norm_backward", _layer, f.layer_norm_back),
    ("native_group_norm_backward", _group, f.group_norm_back),
    ("_fused_rms_norm_backward", _rms, f.rms_norm_back),
    ("native_batch_norm", lambda m, n: (*norm_inputs(m, n, True), t(4), p(4), True, 0.1, 1e-5), f.batch_norm),
    ("native_batch_norm", lambda m, n: (*norm_inputs(m, n, True), None, None, True, 0.1, 1e-5), f.batch_norm),
    ("native_batch_norm", lambda m, n: (t(m, 4, n), None, None, t(4), p(4), False, 0.1, 1e-5), f.batch_norm),
    ("native_batch_norm_backward", lambda m, n: _batch(m, n, True), f.batch_norm_back),
    ("native_batch_norm_backward", lambda m, n: _batch(m, n, False), f.batch_norm_back),
    ("_weight_norm_interface", lambda m, n: (t(m, n), p(m, 1)), f.weight_norm),
    ("_weight_norm_interface_backward", _weight, f.weight_norm_back),
    *(("mse_loss", lambda m, n, r=r: (t(m, n), t(m, n), r), f.elementwise_loss(lambda x, y, b: (d := x - y) * d)) for r in (0, 1, 2)),
    (
        "smooth_l1_loss",
        lambda m, n: (p(m, n), p(m, n), 1, 2.0),
        f.elementwise_loss(lambda x, y, b: 0.5 * (d := x - y) * d / b["beta"]),
    ),
    ("huber_loss", lambda m, n: (p(m, n), p(m, n), 2, 2.0), f.elementwise_loss(lambda x, y, b: 0.5 * (d := x - y) * d)),
    ("soft_margin_loss", lambda m, n: (t(m, n), t(m, n).sign()), f.elementwise_loss(lambda x, y, b: log1p(f.exp(-(y * x))))),
    ("binary_cross_entropy", lambda m, n: (p(m, n), p(m, n)), f.elementwise_loss(f.bce)),
    ("binary_cross_entropy", lambda m, n: (p(m, n), p(m, n), p(n), 2), f.elementwise_loss(f.bce)),
    ("binary_cross_entropy_with_logits", lambda m, n: (t(m, n), p(m, n)), f.elementwise_loss(f.bce_logits)),
    (
        "binary_cross_entropy_with_logits",
        lambda m, n: (t(m, n), p(m, n), p(n), torch.tensor([3.0])),
        f.elementwise_loss(f.bce_logits),
    ),
    *(
        ("mse_loss_backward", lambda m, n, r=r: (t(m, n) if r == 0 else t(()), t(m, n), t(m, n), r),
         f.loss_back(lambda x, y, g, norm, b: (x - y) * (2 * norm) * g))
        for r in (0, 1)
    ),
    (
        "smooth_l1_loss_backward",
        lambda m, n: (t(()), p(m, n), p(m, n), 1, 2.0),
        f.loss_back(lambda x, y, g, norm, b: (x - y) * norm * g / b["beta"]),
    ),
    ("huber_loss_backward", lambda m, n: (t(()), p(m, n), p(m, n), 1, 2.0), f.loss_back(lambda x, y, g, norm, b: (x - y) * norm * g)),
    ("soft_margin_loss_backward", lambda m, n: (t(()), t(m, n), t(m, n).sign(), 1), f.loss_back(f.soft_margin_back)),
    *(
        ("binary_cross_entropy_backward", lambda m, n, w=w: (t(m, n), p(m, n), p(m, n), p(n) if w else None, 0),
         f.loss_back(lambda x, y, g, norm, b: g * (x - y) / ((1 - x) * x)))
        for w in (False, True)
    ),
    *(
        ("nll_loss_forward", lambda m, n, r=r, w=w: (t(m, n), labels(m, n), p(n) if w else None, r, -100), f.nll)
        for r in (0, 1, 2) for w in (False, True)
    ),
    ("nll_loss2d_forward", lambda m, n: (t(2, n, m, 3), torch.randint(0, n, (2, m, 3)), None, 1, -100), f.nll),
    *(
        ("nll_loss_backward",
         lambda m, n, r=r, w=w: (t(m) if r == 0 else t(()), t(m, n), labels(m, n), p(n) if w else None, r, -100, torch.tensor(3.0)),
         f.nll_back)
        for r in (0, 1, 2) for w in (False, True)
    ),
    (
        "nll_loss2d_backward",
        lambda m, n: (t(()), t(2, n, m, 3), torch.randint(0, n, (2, m, 3)), None, 1, -100, torch.tensor(3.0)),
        f.nll_back,
    ),
    *(
        ("multi_margin_loss", lambda m, n, q=q, w=w: (t(m, n), labels(m, n), q, 1, p(n) if w else None), f.multi_margin)
        for q in (1, 2) for w in (False, True)
    ),
    *(("_cdist_forward", lambda m, n, q=q: (t(m, 3), t(n, 3), q, None), f.cdist) for q in (2.0, 1.0, 2.5)),
    ("_pdist_forward", lambda m, n: (t(n, m), 2.0), f.pdist),
]  # fmt: skip

# Picks and statistics that the usual rule (operands once, results once) does not describe.
OTHER_BYTES = {"nll_loss_forward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss2d_backward"}


def _renormed(row):
    norm = f.norm(2)(list(row))
    scale = 0.5 / (norm + 1e-7)
    return [x * scale for x in row]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ROWS), st.integers(1, 5), st.integers(2, 6))
def test_counts_at_drawn_sizes(row, m, n):
    name, build, formula = row
    args = build(m, n)
    before = cloned(args)
    call, _, bound = run(name, *args)
    bound |= dict(zip(bound, before, strict=False))
    cost = find(call.op).rule(call, Conventions())
    tally()
    formula(bound)
    assert (cost.vector, cost.special) == tally()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "build", "formula"), ROWS, ids=[f"{i}-{r[0]}" for i, r in enumerate(ROWS)])
def test_definition(name, build, formula, size):
    torch.manual_seed(sum(size))
    args = build(*size)
    before = cloned(args)
    call, out, bound = run(name, *args)
    bound |= dict(zip(bound, before, strict=False))
    cost = find(call.op).rule(call, Conventions())
    tally()
    results = formula(bound)
    assert (cost.vector, cost.special, cost.matmul) == (*tally(), 0)
    if call.outputs and next(iter(tree_leaves(out))).device.type == "cpu":
        for got, want in zip(tree_leaves(out), results, strict=False):
            if want is not None and got.numel():
                wanted = values(want).reshape(-1)
                assert np.allclose(got.double().reshape(-1).numpy(), wanted, rtol=1e-3, atol=1e-4), name
    if name.split(".")[0] not in OTHER_BYTES:
        assert cost.read == read_bytes(args)
        assert cost.write == (
            write_bytes(tree_leaves(out)[:1]) if "batch_norm" in name and "back" not in name else write_bytes(out)
        )


def test_reading_picks_of_nll_loss():
    call, _, _ = run("nll_loss_forward", t(3, 7), labels(3, 7), None, 1, -100)
    cost = find(call.op).rule(call, Conventions())
    assert (cost.read, cost.write) == (3 * 8 + 3 * 4, 2 * 4)
    call, _, _ = run("nll_loss_backward", t(()), t(3, 7), labels(3, 7), None, 1, -100, torch.tensor(3.0))
    cost = find(call.op).rule(call, Conventions())
    assert (cost.read, cost.write) == (4 + 3 * 8 + 4, 3 * 7 * 4)


def test_choices_are_free_of_arithmetic():
    x = t(3, 4)
    for name, args in (
        ("max.default", ()), ("max.dim", (1,)), ("amax", ([1],)), ("argmax", ()), ("aminmax", ()), ("all", ()), ("any", ()),
        ("median", ()), ("mode", ()), ("kthvalue", (2,)), ("cummax", (1,)), ("cummin", (1,)), ("min.default", ()),
    ):  # fmt: skip
        call, out, bound = run(name, x, *args)
        cost = find(call.op).rule(call, Conventions())
        assert (cost.flops, cost.read, cost.write) == (0, read_bytes(bound), write_bytes(out))


def test_empty_input_costs_nothing():
    call, _, _ = run("sum", torch.empty(0))
    assert find(call.op).rule(call, Conventions()).flops == 0


def test_every_backward_is_here_or_known():
    assert {r[0].split(".")[0] for r in ROWS} <= {op.split(".")[1] for op in RULES if op.startswith("aten.")}
