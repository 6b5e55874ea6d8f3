"""Cost rules for losses, forward and backward.

`reduction` is 0 (none), 1 (mean) or 2 (sum): a sum of n losses is n - 1 adds, a mean 1 divide more. The picks of
nll_loss read the entries that they pick. Other bytes: operands once, results once.
"""

from __future__ import annotations

from collections.abc import Callable

from costir.ir import Call, Conventions, Cost
from costir.ops.families import charge, family, is_one, maybe, operands, register, targets, tensor
from costir.ops.registry import read_once, written
from costir.symbolic import ONE, ZERO, Expr


def _reduced(call: Call, n: Expr) -> Expr:
    """FLOPs that the reduction of n losses adds."""
    kind = int(call.args.get("reduction", 1))
    return (ZERO, n, n - 1)[kind]


def _size(call: Call) -> Expr:
    """Number of losses before the reduction: the larger operand, since they broadcast."""
    x, y = tensor(call, "self"), tensor(call, "target")
    if int(call.args.get("reduction", 1)) == 0 and call.outputs:
        return call.outputs[0].numel
    return x.numel if len(x.shape) >= len(y.shape) else y.numel


def _loss(text: str, counts: str, vector: Callable[[Call], int], special: int = 0) -> None:
    """Register an elementwise loss: so much per element, then the reduction."""

    def formula(call: Call) -> tuple[Expr, Expr]:
        n = _size(call)
        weighted = sum(maybe(call, name) is not None for name in ("weight",))
        return (vector(call) + weighted) * n + _reduced(call, n), special * n

    family(text, "loss", f"{counts} per element, then the reduction", formula)


def _loss_backward(text: str, counts: str, vector: int, special: int = 0) -> None:
    """Register the gradient of an elementwise loss: so much per element of the result."""

    def formula(call: Call) -> tuple[Expr, Expr]:
        n = targets(call)[0].numel
        return (vector + (maybe(call, "weight") is not None)) * n, special * n

    family(text, "loss", f"{counts} per element", formula)


_loss("mse_loss", "subtract, square", lambda c: 2)
_loss("smooth_l1_loss", "subtract, 0.5 d d / beta: 4", lambda c: 4)
_loss("huber_loss", "subtract, 0.5 d d: 3", lambda c: 3)
_loss("soft_margin_loss", "log1p(exp(-y x)): 2 and 2 special", lambda c: 2, 2)
_loss("binary_cross_entropy", "(t - 1) log1p(-x) - t log x: 5 and 2 logs, weight 1 more", lambda c: 5, 2)
_loss(
    "binary_cross_entropy_with_logits",
    "(1 - t) x - logsigmoid(x): 5, 1 exp, 1 log1p; pos_weight 4 more, weight 1 more",
    lambda c: 5 + 4 * (maybe(c, "pos_weight") is not None),
    2,
)
_loss_backward("mse_loss_backward", "norm (x - t) g: 3", 3)
_loss_backward("smooth_l1_loss_backward", "norm (x - t) g / beta: 4", 4)
_loss_backward("huber_loss_backward", "norm (x - t) g: 3", 3)
_loss_backward("binary_cross_entropy_backward", "g (x - t) / ((1 - x) x): 5, weight 1 more", 5)
_loss_backward("soft_margin_loss_backward", "z = exp(-y x); y z / (1 + z) g norm: 7 and 1 exp", 7, 1)

# ---- negative log likelihood -------------------------------------------------------------------------------------------


def _nll(call: Call, conventions: Conventions) -> Cost:
    x, target = tensor(call, "self"), tensor(call, "target")
    n, weight = target.numel, maybe(call, "weight")
    vector = n
    if weight is not None:
        vector = vector + n
    vector = vector + _reduced(call, n)
    if weight is not None and int(call.args["reduction"]) != 0:
        vector = vector + n - 1
    read = target.nbytes + n * x.itemsize + (weight.nbytes if weight is not None else ZERO)
    return charge(call, vector=vector, read=read)


register(
    "nll_loss_forward nll_loss2d_forward nll_loss nll_loss2d",
    "loss",
    "1 negate per target, weight 1 multiply and 1 add more, then the reduction; reads the picked entries",
    _nll,
)


def _nll_backward(call: Call, conventions: Conventions) -> Cost:
    target = tensor(call, "target")
    weight = maybe(call, "weight")
    mean = int(call.args["reduction"]) == 1
    per = 1 + (weight is not None) + mean
    read = read_once(t for t in operands(call) if t is not call.args["self"])
    return charge(call, vector=per * target.numel, read=read, write=written(targets(call)))


register(
    "nll_loss_backward nll_loss2d_backward",
    "loss",
    "per target: 1 negate, mean 1 divide, weight 1 multiply; writes the whole gradient, does not read the scores",
    _nll_backward,
)

# ---- margins -----------------------------------------------------------------------------------------------------------


def _multi_margin(call: Call) -> tuple[Expr, Expr]:
    x = tensor(call, "self")
    classes = x.shape[-1]
    n = x.numel / classes
    per = 2 + (not is_one(call.args.get("p"))) + (maybe(call, "weight") is not None)
    return per * x.numel + n + _reduced(call, n), ZERO


family(
    "multi_margin_loss",
    "loss",
    "per class: add, sum (p = 2: square; weight: multiply); per row: subtract, divide, less 1 add; then the reduction",
    _multi_margin,
)
family(
    "multi_margin_loss_backward",
    "loss",
    "per class: add, multiply, sum (p = 2 and weight: 1 more each); per row 1 subtract",
    lambda c: (
        (3 + (not is_one(c.args.get("p"))) + (maybe(c, "weight") is not None)) * tensor(c, "self").numel
        + tensor(c, "self").numel / tensor(c, "self").shape[-1],
        ZERO,
    ),
)


def _multilabel(call: Call) -> tuple[Expr, Expr]:
    x = tensor(call, "self")
    n = x.numel / x.shape[-1] if x.shape else ONE
    return 3 * x.numel * (x.shape[-1] if x.shape else ONE) + n + _reduced(call, n), ZERO


family(
    "multilabel_margin_loss_forward multilabel_margin_loss_backward",
    "loss",
    "per pair of a label and a class: 3, every class taken for a label (an upper bound); per row 1 divide",
    _multilabel,
    note="every class taken for a label",
)

# ---- CTC ---------------------------------------------------------------------------------------------------------------


def _ctc_states(call: Call) -> Expr:
    """Time steps x batch x (2 S + 1) states, S the longest target."""
    targets_, scores = tensor(call, "targets"), tensor(call, "log_probs")
    batch = scores.shape[1] if len(scores.shape) == 3 else ONE
    longest = targets_.shape[-1] if len(targets_.shape) > 1 else targets_.numel / batch
    return scores.shape[0] * batch * (2 * longest + 1)


family(
    "_ctc_loss _cudnn_ctc_loss",
    "loss",
    "per time step and state: log-sum-exp of 3: 3 subtracts, 3 exps, 2 adds, 1 log, 2 adds: 7 and 4; all states taken",
    lambda c: (7 * _ctc_states(c), 4 * _ctc_states(c)),
    note="all targets as long as the longest",
)
family(
    "_ctc_loss_backward",
    "loss",
    "the beta recursion as forward, 3 and 2 to combine per state; per score: 4 and 2 exps",
    lambda c: (
        10 * _ctc_states(c) + 4 * tensor(c, "log_probs").numel,
        6 * _ctc_states(c) + 2 * tensor(c, "log_probs").numel,
    ),
    note="all targets as long as the longest",
)
