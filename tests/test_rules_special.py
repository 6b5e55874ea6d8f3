"""Embedding bags, CTC, segments, polynomials, gated units and margins, each with an oracle of its own."""

import numpy as np
import pytest
import torch
from oracles_pointwise import Num, add_up, big, exp, log, nums, read_bytes, run, sigmoid, sqrt, tally, values, write_bytes
from torch.utils._pytree import tree_leaves

from costir.ir import Call, Conventions, Tensor
from costir.ops.registry import find
from costir.ops.table import load_rules
from costir.symbolic import Integer

load_rules()
t = torch.randn


def cost_of(call):
    return find(call.op).rule(call, Conventions())


def _bag(table, ids, offsets, mode, weights):
    rows = nums(table)
    ends = [*offsets.tolist()[1:], len(ids)]
    out = []
    for a, b in zip(offsets.tolist(), ends, strict=True):
        for d in range(table.shape[1]):
            picked = [
                rows[i, d] if weights is None else rows[i, d] * float(weights[k])
                for k, i in enumerate(ids.tolist())
                if a <= k < b
            ]
            total = picked[0] if mode == 2 else add_up(picked)
            out.append(big(max(x.v for x in picked), -9e9) if mode == 2 else total / len(picked) if mode == 1 else total)
    return out


@pytest.mark.parametrize(("mode", "weighted"), [(0, False), (0, True), (1, False), (2, False)])
def test_embedding_bag(mode, weighted):
    table, ids, offsets = t(7, 3), torch.tensor([1, 2, 4, 6, 0]), torch.tensor([0, 2])
    weights = torch.rand(5) if weighted else None
    for name in ("_embedding_bag_forward_only", "_embedding_bag"):
        call, out, _ = run(name, table, ids, offsets, False, mode, False, weights)
        tally()
        want = _bag(table, ids, offsets, mode, weights)
        assert (cost_of(call).vector, cost_of(call).special) == tally()
        assert np.allclose(values(want), out[0].reshape(-1).double(), atol=1e-5)
        rest = 5 * 8 + 2 * 8 + (20 if weighted else 0)
        assert (cost_of(call).read, cost_of(call).write) == (rest + 5 * 3 * 4, write_bytes(out))
    grad = t(2, 3)
    bags = torch.tensor([0, 0, 1, 1, 1])
    back, _, _ = run("_embedding_bag_dense_backward", grad, ids, bags, torch.tensor([2, 3]), out[3], 7, False, mode, weights)
    adds = (6 if mode == 2 else 15) * (1 + (mode == 1) + weighted)
    assert cost_of(back).vector == adds
    if weighted:
        back, _, _ = run("_embedding_bag_per_sample_weights_backward", grad, table, ids, offsets, bags, 0)
        assert (cost_of(back).vector, cost_of(back).write) == (5 * (3 + 2), 5 * 4)


def test_embedding_renorm():
    table, ids = t(7, 3) * 9, torch.tensor([1, 2, 4])
    call, _, _ = run("embedding_renorm_", table.clone(), ids, 1.0, 2.0)
    tally()
    for i in ids.tolist():
        row = nums(table)[i]
        scale = 1.0 / (sqrt(add_up([x * x for x in row])) + 1e-7)
        _ = [x * scale for x in row]
    assert (cost_of(call).vector, cost_of(call).special) == tally()
    assert (cost_of(call).read, cost_of(call).write) == (24 + 36, 36)


@pytest.mark.parametrize("steps", [6, 9])
def test_ctc_counts_every_state(steps):
    scores, labels = t(steps, 1, 5).log_softmax(2), torch.tensor([[1, 2, 1]])
    call, out, _ = run("_ctc_loss", scores, labels, [steps], [3])
    states = [0, 1, 0, 2, 0, 1, 0]
    lp = nums(scores[:, 0])
    alpha = [lp[0, s] if i < 2 else Num(-1e30) for i, s in enumerate(states)]
    tally()
    for step in range(1, steps):
        new = []
        for i, s in enumerate(states):
            skip = i >= 2 and s != 0 and s != states[i - 2]
            three = [alpha[i], alpha[i - 1] if i else Num(-1e30), alpha[i - 2] if skip else Num(-1e30)]
            most = max(x.v for x in three)
            new.append(log(add_up([exp(x - most) for x in three])) + most + lp[step, s])
        alpha = new
    vector, special = tally()
    assert (cost_of(call).vector, cost_of(call).special) == (vector * steps // (steps - 1), special * steps // (steps - 1))
    best = max(alpha[-1].v, alpha[-2].v)
    assert -(best + np.log(np.exp(alpha[-1].v - best) + np.exp(alpha[-2].v - best))) == pytest.approx(float(out[0]), rel=1e-4)


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "prod"])
def test_segment_reduce(kind):
    call, _, _ = run("segment_reduce", t(6, 2), kind, lengths=torch.tensor([2, 4]))
    adds = sum(n - 1 for n in (2, 4)) * 2
    assert cost_of(call).vector == {"sum": adds, "prod": adds, "mean": adds + 4, "max": 0}[kind]


POLYNOMIALS = {  # (degree 1, the next from the two before)
    "chebyshev_polynomial_t": (lambda x: x, lambda x, q, p, k: (x + x) * q - p),
    "chebyshev_polynomial_u": (lambda x: x + x, lambda x, q, p, k: (x + x) * q - p),
    "chebyshev_polynomial_v": (lambda x: x + x - 1, lambda x, q, p, k: (x + x) * q - p),
    "chebyshev_polynomial_w": (lambda x: x + x + 1, lambda x, q, p, k: (x + x) * q - p),
    "hermite_polynomial_h": (lambda x: x + x, lambda x, q, p, k: (x + x) * q - 2 * k * p),
    "hermite_polynomial_he": (lambda x: x, lambda x, q, p, k: x * q - k * p),
    "laguerre_polynomial_l": (lambda x: 1 - x, lambda x, q, p, k: ((2 * k + (1 - x)) * q - k * p) / (k + 1)),
    "legendre_polynomial_p": (lambda x: x, lambda x, q, p, k: ((2 * k + 1) * x * q - k * p) / (k + 1)),
}  # fmt: skip
for _kind in "tuvw":
    POLYNOMIALS[f"shifted_chebyshev_polynomial_{_kind}"] = POLYNOMIALS[f"chebyshev_polynomial_{_kind}"]


@pytest.mark.parametrize("degree", [0, 1, 2, 4])
@pytest.mark.parametrize("name", sorted(POLYNOMIALS))
def test_polynomials(name, degree):
    x = torch.tensor([0.3])
    call, out, _ = run(f"special_{name}", x, degree)
    start, step = POLYNOMIALS[name]
    tally()
    y = Num(0.3)
    if name.startswith("shifted") and degree:
        y = y + y - 1
    p, q = Num(1), start(y) if degree else Num(1)
    for k in range(1, degree):
        p, q = q, step(y, q, p, k)
    assert (cost_of(call).vector, cost_of(call).special) == tally()
    assert float(out) == pytest.approx(q.v, rel=1e-4)


def test_polar_is_one_cosine_and_one_sine():
    call, out, _ = run("polar", torch.rand(3, 4), t(3, 4))
    assert (cost_of(call).vector, cost_of(call).special, cost_of(call).write) == (24, 24, write_bytes(out))


def test_distance_gradients():
    x, y = t(4, 3), t(5, 3)
    for p, extra in ((1.0, 0), (2.0, 1)):
        call, _, _ = run("_cdist_backward", t(4, 5), x, y, p, torch.cdist(x, y, p))
        assert cost_of(call).vector == 20 * (9 + extra)
        call, _, _ = run("_pdist_backward", t(6), x, p, torch.nn.functional.pdist(x, p))
        assert cost_of(call).vector == 6 * (12 + extra)


@pytest.mark.parametrize("n", [2, 3])
def test_glu(n):
    x, g = t(n, 4), t(n, 2)
    call, out, bound = run("glu", x)
    back, grad, back_bound = run("glu_backward", g, x, -1)
    tally()
    want = [[a * sigmoid(b) for a, b in zip(row[:2], row[2:], strict=True)] for row in nums(x)]
    assert (cost_of(call).vector, cost_of(call).special) == tally()
    assert np.allclose(out, values(want), atol=1e-5)
    rows = []
    for row, gs in zip(nums(x), nums(g), strict=True):
        first, second = [], []
        for a, b, d in zip(row[:2], row[2:], gs, strict=True):
            s = sigmoid(b)
            ds = d * s
            first.append(ds)
            second.append((1 - s) * ds * a)
        rows.append(first + second)
    assert (cost_of(back).vector, cost_of(back).special) == tally()
    assert np.allclose(grad, values(rows), atol=1e-5)
    assert (cost_of(call).read, cost_of(back).read) == (read_bytes(bound), read_bytes(back_bound))


def test_prelu_gradient():
    g, x, w = t(3, 4), t(3, 4), torch.rand(1, 1)
    call, _, bound = run("_prelu_kernel_backward", g, x, w.expand(3, 4))
    tally()
    _ = [(a * float(w), a * b) for a, b in zip(nums(g).reshape(-1), nums(x).reshape(-1), strict=True)]
    assert (cost_of(call).vector, cost_of(call).special) == tally()
    assert cost_of(call).read == read_bytes(bound)


def test_scale_update_is_one_multiply():
    call, _, _ = run("_amp_update_scale_", torch.ones(1), torch.ones(1, dtype=torch.int32), torch.zeros(1), 2.0, 0.5, 5)
    assert cost_of(call).vector == 1


def test_multi_margin_gradient():
    x, labels = t(3, 4), torch.tensor([0, 1, 3])
    call, out, _ = run("multi_margin_loss_backward", t(()) * 0 + 1, x, labels, 1, 1, None, 2)
    tally()
    grad = []
    for row, c in zip(nums(x), labels.tolist(), strict=True):
        base = 1 - row[c]
        mine, at_target = [], Num(0)
        for j, v in enumerate(row):
            active = (base + v).v > 0 and j != c
            step = Num(1.0 if active else 0.0) * 0.25
            at_target = at_target + step
            mine.append(Num(step.v))
        mine[c] = Num(-at_target.v)
        grad.append(mine)
    assert (cost_of(call).vector, cost_of(call).special) == tally()
    assert np.allclose(out, values(grad), atol=1e-5)


def test_multilabel_margin_is_an_upper_bound():
    x, labels = t(2, 4), torch.tensor([[3, 0, -1, 1], [0, -1, 1, 2]])
    call, out, _ = run("multilabel_margin_loss_forward", x, labels, 1)
    tally()
    losses = []
    for row, wanted in zip(nums(x), labels.tolist(), strict=True):
        wanted = wanted[: wanted.index(-1)]
        pairs = [big(1 - row[c] + row[j], 0) for c in wanted for j in range(4) if j not in wanted]
        losses.append(add_up(pairs) / 4)
    total = add_up(losses) / 2
    assert total.v == pytest.approx(float(out[0]), rel=1e-4)
    assert sum(tally()) <= cost_of(call).vector == 3 * 2 * 16 + 2 + 2
    assert "label" in cost_of(call).note
    back, _, _ = run("multilabel_margin_loss_backward", t(()), x, labels, 1, out[1])
    assert cost_of(back).vector >= 2 * 4


def test_ctc_gradient_costs_the_recursion_again_and_the_scores():
    scores, labels = t(6, 2, 5).log_softmax(2), torch.tensor([[1, 2, 1], [2, 3, 4]])
    args = (scores, labels, [6, 6], [3, 3])
    forward, out, _ = run("_ctc_loss", *args)
    back, _, _ = run("_ctc_loss_backward", t(2), *args, *out, 0)
    states, classes = 6 * 2 * 7, 6 * 2 * 5
    assert cost_of(back).vector == cost_of(forward).vector + 3 * states + 4 * classes
    assert cost_of(back).special == cost_of(forward).special + 2 * states + 2 * classes


def test_euclidean_distance_as_one_product():
    x, y = t(4, 3), t(5, 3)
    call, out, _ = run("_euclidean_dist", x, y)
    a = [[Num(v) for v in row] for row in x.tolist()]
    b = [[Num(v) for v in row] for row in y.tolist()]
    tally()
    left = [[*(-2 * v for v in row), add_up([v * v for v in row]), Num(1)] for row in a]
    right = [[*row, Num(1), add_up([v * v for v in row])] for row in b]
    assert cost_of(call).vector == tally()[0]
    dots = [[add_up([p * q for p, q in zip(u, v, strict=True)]) for v in right] for u in left]
    exact = find(call.op).rule(call, Conventions(count="exact"))
    assert exact.matmul == tally()[0]
    assert cost_of(call).matmul == 2 * 4 * 5 * (3 + 2)
    assert cost_of(call).special == 20
    assert np.allclose(np.sqrt(np.maximum(values(dots), 0)), out, atol=1e-3)


def test_foreach_norms():
    xs = [t(2, 3), t(4)]
    for name, flops in (("_foreach_norm", 2 * 10 - 2 + 2), ("_foreach_powsum", 2 * 10 - 2), ("_foreach_max", 0)):
        call, out, _ = run(name, xs)
        assert (cost_of(call).flops, cost_of(call).read, cost_of(call).write) == (flops, 40, write_bytes(out))


def test_histogram():
    call, _, _ = run("histogram.bin_ct", torch.rand(3, 4), 5)
    assert cost_of(call).vector == 36


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_by_other_names(training):
    x, w, b, mean, var = t(2, 4, 3), torch.rand(4), t(4), t(4), torch.rand(4)
    plain = cost_of(run("native_batch_norm", x, w, b, mean.clone(), var.clone(), training, 0.1, 1e-5)[0])
    others = [("_native_batch_norm_legit", (x, w, b, mean.clone(), var.clone(), training, 0.1, 1e-5))]
    if training:
        others.append(("_batch_norm_with_update", (x, w, b, mean.clone(), var.clone(), 0.1, 1e-5)))
    else:
        others.append(("_native_batch_norm_legit_no_training", (x, w, b, mean, var, 0.1, 1e-5)))
        others.append(("_batch_norm_no_update", (x, w, b, mean, var, 0.1, 1e-5)))
    for name, args in others:
        cost = cost_of(run(name, *args)[0])
        assert (cost.vector, cost.special, cost.read, cost.write) == (plain.vector, plain.special, plain.read, plain.write)
    stats = cost_of(run("_native_batch_norm_legit.no_stats", x, w, b, True, 0.1, 1e-5)[0])
    if training:
        assert plain.vector - stats.vector == 7 * 4


def test_two_results_are_two_outputs():
    call, out, _ = run("frexp", t(3))
    assert [type(o) for o in call.outputs] == [Tensor, Tensor]
    assert len(tree_leaves(out)) == 2


def test_sparse_tensors_cost_their_stored_elements():
    x, y = (
        Tensor((Integer(5), Integer(4)), ref=0),
        Tensor((Integer(5), Integer(4)), nnz=Integer(8), index_bytes=Integer(16), ref=1),
    )
    cost = cost_of(Call("aten.add_.Tensor", {"self": x, "other": y, "alpha": -0.1}, (x,)))
    assert (cost.vector, cost.read, cost.write) == (16, 8 * 4 + 16 + 8 * 4, 8 * 4)
    cost = cost_of(Call("aten.mul.Tensor", {"self": y, "other": y}, (y,)))
    assert (cost.vector, cost.read, cost.write) == (8, 8 * 4 + 16, 8 * 4 + 16)
    cost = cost_of(Call("aten.sparse_mask.default", {"self": x, "mask": y}, (y,)))
    assert (cost.flops, cost.read, cost.write) == (0, 16 + 8 * 4, 8 * 4 + 16)
