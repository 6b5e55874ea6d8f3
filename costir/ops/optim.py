"""Cost rules for the fused steps of optimizers. The other steps are made of `_foreach_` and in-place arithmetic.

Work on single numbers (bias corrections, step sizes) is done once per tensor and not counted. Bytes: parameters, gradients
and states read once; parameters and states written once.
"""

from __future__ import annotations

from typing import Any

from costir.ir import Call, Conventions, Cost, tensors
from costir.ops.families import charge, count, family, maybe, operands, register
from costir.ops.registry import read_once, written
from costir.symbolic import Expr


def _set(value: Any) -> int:
    """1 where an option is a number other than 0, or True."""
    return int(bool(value) if not isinstance(value, Expr) else value != 0)


def _step(call: Call, vector: int, special: int, states: tuple[str, ...]) -> Cost:
    """So much per parameter; `states` are written besides the parameters, and the gradients where they are unscaled."""
    n = count(tensors(call.args["self"]))
    changed = ["self", *states]
    extra = _set(call.args.get("maximize"))
    if maybe(call, "grad_scale") is not None:
        changed.append("grads")
        extra += 1
    write = written(tensors(tuple(call.args[name] for name in changed)))
    if not call.name.endswith("_"):
        write = written(call.outputs)
    return charge(call, vector=(vector + extra) * n, special=special * n, read=read_once(operands(call)), write=write)


def _adam(call: Call, conventions: Conventions) -> Cost:
    decay = _set(call.args.get("weight_decay")) * (1 if "adamw" in call.name else 2)
    states = ("exp_avgs", "exp_avg_sqs", *(("max_exp_avg_sqs",) if call.args.get("amsgrad") else ()))
    return _step(call, 12 + decay, 1, states)


register(
    "_fused_adam _fused_adam_ _fused_adamw _fused_adamw_",
    "optimizer",
    "per parameter: first moment 3, second 4, denominator 2 and 1 sqrt, update 3: 12; weight decay 1 (adam 2), maximize 1, "
    "unscaling 1",
    _adam,
)


def _sgd(call: Call, conventions: Conventions) -> Cost:
    work = 2 + 2 * _set(call.args.get("weight_decay"))
    momentum = _set(call.args.get("momentum"))
    if momentum and not call.args.get("is_first_step"):
        work += 2 + (0 if not _set(call.args.get("dampening")) else 1)
    if momentum and call.args.get("nesterov"):
        work += 2
    return _step(call, work, 0, ("momentum_buffer_list",) if momentum else ())


register(
    "_fused_sgd _fused_sgd_",
    "optimizer",
    "per parameter: update 2; weight decay 2, momentum 2 (with dampening 3), nesterov 2, maximize 1, unscaling 1",
    _sgd,
)


def _adagrad(call: Call, conventions: Conventions) -> Cost:
    return _step(call, 6 + 2 * _set(call.args.get("weight_decay")), 1, ("state_sums",))


register(
    "_fused_adagrad _fused_adagrad_",
    "optimizer",
    "per parameter: state 2, denominator 1 and 1 sqrt, update 3: 6; weight decay 2, maximize 1, unscaling 1",
    _adagrad,
)
family(
    "_amp_foreach_non_finite_check_and_unscale_ _amp_foreach_non_finite_check_and_unscale",
    "optimizer",
    "1 multiply per gradient element; the check 0",
    lambda c: (count(tensors(c.args["self"])), 0),
)
family("_amp_update_scale_ _amp_update_scale", "optimizer", "1 multiply", lambda c: (1, 0))
