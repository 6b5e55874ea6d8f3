"""Fused steps of optimizers: their formulas on counting numbers, against torch's own steps."""

import numpy as np
import pytest
import torch
from oracles_pointwise import cloned, nums, read_bytes, run, sqrt, tally, values

from costir.ir import Conventions
from costir.ops.registry import find
from costir.ops.table import load_rules

load_rules()
t = torch.randn


def cost_of(call):
    return find(call.op).rule(call, Conventions())


def _adam(p, g, m, v, o, adamw):
    lr, b1, b2 = o["lr"], o["beta1"], o["beta2"]
    if o["weight_decay"]:
        if adamw:
            p = p * (1 - lr * o["weight_decay"])
        else:
            g = g + p * o["weight_decay"]
    m = m + (1 - b1) * (g - m)
    v = v * b2 + (1 - b2) * g * g
    c1, c2 = 1 - b1, (1 - b2) ** 0.5
    return p - lr / c1 * (m / (sqrt(v) / c2 + o["eps"]))


@pytest.mark.parametrize("adamw", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_fused_adam(adamw, decay):
    o = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": decay, "eps": 1e-8, "amsgrad": False, "maximize": False}
    p, g, m, v = ([x(2, 3), x(4)] for x in (t, t, t, torch.rand))
    steps = [torch.tensor(1.0), torch.tensor(1.0)]
    before = cloned((p, g, m, v))
    call, _, bound = run("_fused_adamw_" if adamw else "_fused_adam_", p, g, m, v, [], steps, **o)
    cost = cost_of(call)
    tally()
    for i in range(2):
        want = [_adam(*x, o, adamw) for x in zip(*(nums(a[i]).reshape(-1) for a in before), strict=True)]
        assert np.allclose(values(want), p[i].reshape(-1).double(), atol=1e-5)
    assert (cost.vector, cost.special) == tally()
    assert (cost.read, cost.write) == (read_bytes(bound), 3 * 10 * 4)


@pytest.mark.parametrize(("decay", "momentum", "nesterov"), [(0.0, 0.0, False), (0.1, 0.9, False), (0.0, 0.9, True)])
def test_fused_sgd(decay, momentum, nesterov):
    p, g, buffer = [t(2, 3)], [t(2, 3)], [t(2, 3)] if momentum else []
    before = cloned((p, g, buffer))
    options = {"weight_decay": decay, "momentum": momentum, "lr": 0.1, "dampening": 0.0, "nesterov": nesterov}
    call, _, bound = run("_fused_sgd_", p, g, buffer, **options, maximize=False, is_first_step=False)
    tally()
    want = []
    for i, (x, d) in enumerate(zip(nums(before[0][0]).reshape(-1), nums(before[1][0]).reshape(-1), strict=True)):
        d = d + x * decay if decay else d
        if momentum:
            b = nums(before[2][0]).reshape(-1)[i] * momentum + d
            d = d + b * momentum if nesterov else b
        want.append(x - d * 0.1)
    assert (cost_of(call).vector, cost_of(call).special) == tally()
    assert np.allclose(values(want), p[0].reshape(-1).double(), atol=1e-5)
    assert (cost_of(call).read, cost_of(call).write) == (read_bytes(bound), 24 * (2 if momentum else 1))


def test_fused_adagrad():
    p, g, s = [t(2, 3)], [t(2, 3)], [torch.rand(2, 3)]
    before = cloned((p, g, s))
    options = {"lr": 0.1, "lr_decay": 0.0, "weight_decay": 0.0, "eps": 1e-8, "maximize": False}
    call, _, bound = run("_fused_adagrad_", p, g, s, [torch.tensor(1.0)], **options)
    tally()
    flat = [nums(a[0]).reshape(-1) for a in before]
    want = [x - d * 0.1 / (sqrt(q + d * d) + 1e-8) for x, d, q in zip(*flat, strict=True)]
    assert (cost_of(call).vector, cost_of(call).special) == tally()
    assert np.allclose(values(want), p[0].reshape(-1).double(), atol=1e-5)
    assert (cost_of(call).read, cost_of(call).write) == (read_bytes(bound), 48)


def test_options_of_fused_steps():
    o = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    p, g, m, v, top = ([torch.rand(5)] for _ in range(5))
    call, _, _ = run("_fused_adam_", p, g, m, v, top, [torch.tensor(1.0)], **o, amsgrad=True, maximize=True)
    assert (cost_of(call).vector, cost_of(call).write) == (13 * 5, 4 * 5 * 4)


def test_gradient_scaler():
    call, _, _ = run("_amp_foreach_non_finite_check_and_unscale_", [t(2, 3), t(4)], torch.zeros(1), torch.ones(1))
    assert (cost_of(call).vector, cost_of(call).read, cost_of(call).write) == (10, 48, 40)
