"""Convolutions of any rank, grouped, strided, dilated and transposed, and their backward.

Dense convention: taps that fall into the padding count, as torch's `torch.utils.flop_counter` has it. A convolution does
(Cin/g)*k^d multiply-adds per output element; a transposed one scatters every input element to (Cout/g)*k^d outputs.
Each of the two gradients takes as many multiply-adds as the forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costir.ir import Call, Conventions, Cost, Tensor
from costir.ops.contract import bias_add, contraction
from costir.ops.registry import ZERO, product, rule, total
from costir.symbolic import Expr

BIAS = "the bias is one vector add per output"
FORWARD = f"2*B*Cout*(Cin/g)*k^d per output pixel; transposed: 2*B*Cin*(Cout/g)*k^d per input pixel; {BIAS}"


def macs_of(x: Tensor, weight: Tensor, y: Tensor, transposed: Any) -> Expr:
    """Multiply-adds of a convolution of x to y: weight is [Cout, Cin/g, k...], or [Cin, Cout/g, k...] where transposed."""
    return (x if transposed else y).numel * product(weight.shape[1:])


def _source(call: Call) -> Tensor:
    x = call.args["input"] if "input" in call.args else call.args["self"]
    assert isinstance(x, Tensor)
    return x


def _forward(call: Call, conventions: Conventions, transposed: Any, extra: Expr = ZERO) -> Cost:
    x, w, y = _source(call), call.args["weight"], call.outputs[0]
    vector = total((bias_add(call, call.args.get("bias")), extra))
    return contraction(call, conventions, (x, w), macs=macs_of(x, w, y, transposed), dots=y.numel, vector=vector)


@rule("aten.convolution", "aten._convolution", "aten.convolution_overrideable", kind="contraction", counts=FORWARD)
def convolution(call: Call, conventions: Conventions) -> Cost:
    """input [B, Cin, ...] and weight [Cout, Cin/g, k...] ([Cin, Cout/g, k...] where transposed) to [B, Cout, ...]."""
    return _forward(call, conventions, call.args["transposed"])


@rule("aten.mkldnn_convolution", "aten.cudnn_convolution", "aten.cudnn_convolution_relu", "aten.miopen_convolution",
      "aten.miopen_convolution_relu", "aten.miopen_depthwise_convolution", "aten._mps_convolution", "aten._convolution_mode",
      "aten.conv1d", "aten.conv2d", "aten.conv3d", "aten._conv_depthwise2d", "aten.conv_depthwise3d",
      "aten._slow_conv2d_forward", "aten.thnn_conv2d", "aten.slow_conv3d", "aten.slow_conv3d_forward",
      "aten.slow_conv_dilated2d", "aten.slow_conv_dilated3d", "aten._nnpack_spatial_convolution",
      kind="contraction", counts=f"2*B*Cout*(Cin/g)*k^d per output pixel; {BIAS}")  # fmt: skip
def plain_convolution(call: Call, conventions: Conventions) -> Cost:
    """A convolution that is not transposed; a fused ReLU is a comparison and counts 0."""
    return _forward(call, conventions, False)


@rule("aten.cudnn_convolution_add_relu", "aten.miopen_convolution_add_relu", kind="contraction",
      counts=f"2*B*Cout*(Cin/g)*k^d per output pixel; {BIAS}, so is z, and alpha a multiply where it is not 1")  # fmt: skip
def convolution_add_relu(call: Call, conventions: Conventions) -> Cost:
    """relu(convolution + bias + alpha*z)."""
    return _forward(call, conventions, False, call.outputs[0].numel * (1 if call.args["alpha"] in (None, 1) else 2))


@rule("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d", "aten.slow_conv_transpose2d",
      "aten.slow_conv_transpose3d", "aten.cudnn_convolution_transpose", "aten.miopen_convolution_transpose",
      "aten._mps_convolution_transpose", kind="contraction",
      counts=f"2*B*Cin*(Cout/g)*k^d per input pixel; {BIAS}")  # fmt: skip
def transposed_convolution(call: Call, conventions: Conventions) -> Cost:
    """A transposed convolution: weight is [Cin, Cout/g, k...]; taps that the padding crops count."""
    return _forward(call, conventions, True)


@rule("aten.conv_tbc", kind="contraction", counts=f"2*T*B*Cout*Cin*k; {BIAS}")
def conv_tbc(call: Call, conventions: Conventions) -> Cost:
    """self [T, B, Cin], weight [k, Cin, Cout]."""
    x, w, y = call.args["self"], call.args["weight"], call.outputs[0]
    return contraction(call, conventions, (x, w), macs=y.numel * w.shape[0] * w.shape[1], dots=y.numel, vector=y.numel)


def _backward(
    call: Call,
    conventions: Conventions,
    grad: Tensor,
    x: Tensor,
    *,
    macs: Expr,
    bias: Expr,
    mask: Sequence[Any],
    unread: Sequence[str],
) -> Cost:
    """Gradients of input, weight and bias (`bias` channels), as `mask` asks; `unread` arguments are needed for none of them."""
    w = call.args["weight"]
    wanted = [t for t, m in zip((x, w), mask, strict=False) if m]
    dots, vector = total(t.numel for t in wanted), grad.numel - bias if mask[2] else ZERO
    return contraction(call, conventions, (grad, x, w), macs=len(wanted) * macs, dots=dots, vector=vector, unread=unread)


@rule("aten.convolution_backward", "aten.convolution_backward_overrideable", "aten._slow_conv2d_backward",
      "aten.mps_convolution_backward", kind="contraction",
      counts="as forward for each gradient of input and weight that is asked for; bias: n - 1 adds per channel")  # fmt: skip
def convolution_backward(call: Call, conventions: Conventions) -> Cost:
    """Gradients of a convolution for grad_output, input and weight, as `output_mask` asks (all, where there is no mask)."""
    grad, x, w = call.args["grad_output"], _source(call), call.args["weight"]
    mask = call.args.get("output_mask", (True, True, True))
    unread = [n for n, m in (("weight", mask[0]), ("input", mask[1]), ("self", mask[1])) if not m]
    if "grad_input" in call.args:
        unread += ["grad_input", "grad_weight", "grad_bias"]
    macs = macs_of(x, w, grad, call.args.get("transposed", False))
    bias = grad.shape[-(len(w.shape) - 1)]
    return _backward(call, conventions, grad, x, macs=macs, bias=bias, mask=mask, unread=unread)


@rule("aten.conv_tbc_backward", kind="contraction", counts="twice 2*T*B*Cout*Cin*k; bias: n - 1 adds per channel")
def conv_tbc_backward(call: Call, conventions: Conventions) -> Cost:
    """self is the gradient [T, B, Cout] of the output."""
    grad, x, w = call.args["self"], call.args["input"], call.args["weight"]
    macs = grad.numel * w.shape[0] * w.shape[1]
    mask, bias = (True, True, True), w.shape[2]
    return _backward(call, conventions, grad, x, macs=macs, bias=bias, mask=mask, unread=("bias",))
