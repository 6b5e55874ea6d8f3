"""Convolutions and their gradients against loops over every tap, torch's flop counter, and bytes of real tensors."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    Case,
    RealBytes,
    T,
    accumulate,
    add_up,
    arr,
    cost_of,
    indices,
    made,
    schema_of,
    sums,
    verify,
    verify_symbols,
    without_sample,
)
from torch.utils.flop_counter import FlopCounterMode

from costir.symbolic import Integer, floor_div, size
from costir.trace import record_calls


def pixels(rank, L):
    return tuple(L + d for d in range(rank))  # sizes differ by dimension


def out_length(L, k, stride, padding, dilation):
    """How often the window fits."""
    if isinstance(L, int):
        return len(range(0, L + 2 * padding - dilation * (k - 1), stride))
    return floor_div(Integer(1) * L + 2 * padding - dilation * (k - 1) - 1, Integer(stride)) + 1


def taps(t, B, C, O, out, k, g, rank):
    """Every (output, input, weight) of a grouped convolution: outputs and inputs by pixel, padding as ordinary pixels."""
    for b, o in indices(B, O):
        for pixel in itertools.product(*map(range, out)):
            for c in range(C // g):
                for tap in indices(*[k] * rank):
                    yield (b, o, pixel), (b, o // (O // g) * (C // g) + c, pixel, tap), (o, c, tap)


def forward(t, B, C, O, L, k=3, stride=1, padding=0, dilation=1, g=1, rank=2, with_bias=True):
    """One multiply-add per tap; the bias is added afterwards."""
    x, w, cells = arr(t), arr(t), {}
    out = [out_length(n, k, stride, padding, dilation) for n in pixels(rank, L)]
    with t.contraction():
        for y, _, _ in taps(t, B, C, O, out, k, g, rank):
            accumulate(cells, y, x * w)
    if with_bias:
        for y in cells.values():
            _ = y + arr(t)


def gradients(t, B, C, O, L, k=3, stride=1, padding=0, dilation=1, g=1, rank=2, wanted=(True, True, True)):
    """d/dx and d/dw of the loop above: each tap gives one product to each."""
    x, w, grad, dx, dw = arr(t), arr(t), arr(t), {}, {}
    out = [out_length(n, k, stride, padding, dilation) for n in pixels(rank, L)]
    with t.contraction():
        for _, (b, c, pixel, tap), weight in taps(t, B, C, O, out, k, g, rank):
            place = tuple(p * stride + d * dilation for p, d in zip(pixel, tap, strict=True))
            if wanted[0]:
                accumulate(dx, (b, c, place), grad * w)
            if wanted[1]:
                accumulate(dw, weight, grad * x)
    if wanted[2]:
        for _ in range(O):
            add_up([grad] * (B * math.prod(out)))


def transposed(t, B, C, O, L, k=3, g=1, rank=2, stride=1, with_bias=True):
    """Each input pixel is scattered to k^d outputs of each channel of its group."""
    x, w, cells = arr(t), arr(t), {}
    with t.contraction():
        for b, c in indices(B, C):
            for pixel in itertools.product(*map(range, pixels(rank, L))):
                for o in range(O // g):
                    for tap in indices(*[k] * rank):
                        place = tuple(p * stride + d for p, d in zip(pixel, tap, strict=True))
                        accumulate(cells, (b, c // (C // g) * (O // g) + o, place), x * w)
    if with_bias:
        for y in cells.values():
            _ = y + arr(t)


def conv_call(op="aten.convolution", k=3, stride=1, padding=0, dilation=1, g=1, rank=2, with_bias=True, **more):
    def build(B, C, O, L):
        out = [out_length(n, k, stride, padding, dilation) for n in pixels(rank, L)]
        names = [n for n in ("input", "self") if n in argument_names(op)]
        given_ = {names[0]: T(B, C, *pixels(rank, L)), "weight": T(O, C / g, *[k] * rank)}
        known = {
            "stride": [stride] * rank,
            "padding": [padding] * rank,
            "dilation": [dilation] * rank,
            "transposed": False,
            "output_padding": [0] * rank,
            "groups": g,
            "kernel_size": [k] * rank,
            "bias": T(O) if with_bias else None,
            "benchmark": False,
            "deterministic": False,
            "cudnn_enabled": False,
            "allow_tf32": False,
        }
        given_ |= {n: v for n, v in known.items() if n in argument_names(op)} | {n: v(B, O, out) for n, v in more.items()}
        return made(op, T(B, O, *out), **given_)

    return build


def argument_names(op):
    return {a.name for a in schema_of(op).arguments}


def transposed_call(op, k=3, g=1, rank=2, stride=1, with_bias=True):
    def build(B, C, O, L):
        out = [(n - 1) * stride + k for n in pixels(rank, L)]
        names = [n for n in ("input", "self") if n in argument_names(op)]
        known = {
            "stride": [stride] * rank,
            "padding": [0] * rank,
            "dilation": [1] * rank,
            "transposed": True,
            "groups": g,
            "output_padding": [0] * rank,
            "kernel_size": [k] * rank,
            "bias": T(O) if with_bias else None,
            "benchmark": False,
            "deterministic": False,
            "cudnn_enabled": False,
            "allow_tf32": False,
        }
        given_ = {n: v for n, v in known.items() if n in argument_names(op)}
        return made(op, T(B, O, *out), **{names[0]: T(B, C, *pixels(rank, L)), "weight": T(C, O / g, *[k] * rank)}, **given_)

    return build


def backward_call(op, wanted=(True, True, True), k=3, stride=1, padding=0, dilation=1, g=1, rank=2, flip=False):
    def build(B, C, O, L):
        out = [out_length(n, k, stride, padding, dilation) for n in pixels(rank, L)]
        x, w, y = T(B, C, *pixels(rank, L)), T(O, C / g, *[k] * rank), T(B, O, *out)
        grads = tuple(t for t, m in zip((x, w, T(O)), wanted, strict=True) if m)
        if flip:  # of the transposed convolution that is this one's adjoint
            x, y, grads = y, x, (y, w, T(C))
        known = {
            "input": x,
            "self": x,
            "stride": [stride] * rank,
            "padding": [padding] * rank,
            "dilation": [dilation] * rank,
            "transposed": flip,
            "output_padding": [0] * rank,
            "groups": g,
            "kernel_size": [k] * rank,
            "output_mask": wanted,
            "bias_sizes": [O],
        }
        return made(op, grads, grad_output=y, weight=w, **{n: v for n, v in known.items() if n in argument_names(op)})

    return build


def case(op, reference=forward, sizes=None, exact=True, **options):
    """A plain convolution and its loop, with the same options."""
    named = {n: options.pop(n) for n in ("z", "alpha") if n in options}
    with_bias = "bias" in argument_names(op) and options.pop("with_bias", True)
    build = conv_call(op, **options, with_bias=with_bias, **named)
    loop = reference if reference is not forward else lambda t, **s: forward(t, **s, **options, with_bias=with_bias)
    return Case(op, build, loop, sizes or SIZES, exact=exact)


def transposed_case(op, **options):
    with_bias = "bias" in argument_names(op)
    return Case(
        op,
        transposed_call(op, **options, with_bias=with_bias),
        lambda t, **s: transposed(t, **s, **options, with_bias=with_bias),
        SIZES,
    )


def backward_case(op, wanted=(True, True, True), exact=True, unread=(), sizes=None, **options):
    loop = lambda t, **s: gradients(t, **s, **options, wanted=wanted)
    return Case(op, backward_call(op, wanted, **options), loop, sizes or SIZES, unread, exact=exact)


def add_relu(t, **s):
    forward(t, **s)
    B, O, L = s["B"], s["O"], s["L"]
    for _ in range(B * O * math.prod(n - 2 for n in pixels(2, L))):
        _ = arr(t) + arr(t) * 0.5


def adjoint(t, B, C, O, L):
    """Gradients of the transposed convolution from O to C channels that is the adjoint of the one from C to O."""
    forward(t, B, C, O, L, with_bias=False)
    gradients(t, B, C, O, L, wanted=(False, True, False))
    for _ in range(C):
        add_up(arr(t, B * math.prod(pixels(2, L))))


def tbc(t, N, B, C, O):
    """k = 3 taps along the first of [N, B, C]."""
    cells = {}
    with t.contraction():
        for n, b, o, _, _ in indices(N - 2, B, O, C, 3):
            accumulate(cells, (n, b, o), arr(t) * arr(t))
    for y in cells.values():
        _ = y + arr(t)


def tbc_gradients(t, N, B, C, O):
    dx, dw = {}, {}
    with t.contraction():
        for n, b, o, c, tap in indices(N - 2, B, O, C, 3):
            accumulate(dx, (n + tap, b, c), arr(t) * arr(t))
            accumulate(dw, (o, c, tap), arr(t) * arr(t))
    for _ in range(O):
        add_up(arr(t, (N - 2) * B))


def tbc_backward(N, B, C, O):
    return made(
        "aten.conv_tbc_backward",
        (T(N, B, C), T(3, C, O), T(O)),
        self=T(N - 2, B, O),
        input=T(N, B, C),
        weight=T(3, C, O),
        bias=T(O),
        pad=0,
    )


SIZES = ({"B": 2, "C": 2, "O": 4, "L": 4}, {"B": 1, "C": 4, "O": 2, "L": 5})
TBC = ({"N": 4, "B": 2, "C": 3, "O": 2}, {"N": 5, "B": 1, "C": 2, "O": 3})
PLAIN_2D = (
    "mkldnn_convolution",
    "cudnn_convolution",
    "cudnn_convolution_relu",
    "miopen_convolution",
    "miopen_convolution_relu",
    "miopen_depthwise_convolution",
    "_mps_convolution",
    "conv2d",
    "_slow_conv2d_forward",
    "thnn_conv2d",
    "slow_conv_dilated2d",
    "_nnpack_spatial_convolution",
)
SAME = tuple({**s, "L": s["L"] + 1} for s in SIZES)
CASES = [
    case("aten.convolution"),
    case("aten.convolution", with_bias=False, rank=1, k=2, stride=2),
    case("aten.convolution", rank=3, k=2),
    case("aten.convolution", g=2, dilation=2, k=2, stride=2),
    case("aten.convolution", padding=1, stride=2, k=3),
    case("aten.convolution", padding=2, rank=1, dilation=2),
    case("aten._convolution"),
    case("aten.convolution_overrideable", g=2),
    *(case(f"aten.{op}") for op in PLAIN_2D),
    case("aten.mkldnn_convolution", g=2, padding=1),
    case("aten.conv1d", rank=1),
    case("aten.conv3d", rank=3, k=2),
    case("aten._conv_depthwise2d", g=2, sizes=({"B": 2, "C": 2, "O": 2, "L": 4}, {"B": 1, "C": 2, "O": 4, "L": 5})),
    case("aten.conv_depthwise3d", g=2, rank=3, k=2, sizes=({"B": 2, "C": 2, "O": 2, "L": 2}, {"B": 1, "C": 2, "O": 4, "L": 3})),
    case("aten.slow_conv3d", rank=3, k=2),
    case("aten.slow_conv3d_forward", rank=3, k=2),
    case("aten.slow_conv_dilated3d", rank=3, k=2),
    Case(
        "aten._convolution_mode",
        lambda B, C, O, L: made(
            "aten._convolution_mode",
            T(B, O, L, L + 1),
            input=T(B, C, L, L + 1),
            weight=T(O, C, 3, 3),
            bias=T(O),
            stride=[1, 1],
            padding="same",
            dilation=[1, 1],
            groups=1,
        ),
        lambda t, **s: forward(t, **s, padding=1),
        SAME,
    ),
    *(
        case(f"aten.{op}", add_relu, z=lambda B, O, out: T(B, O, *out), alpha=lambda B, O, out: 0.5)
        for op in ("cudnn_convolution_add_relu", "miopen_convolution_add_relu")
    ),
    transposed_case("aten.convolution"),
    transposed_case("aten.convolution", g=2, stride=2),
    transposed_case("aten._convolution", stride=3),
    transposed_case("aten.conv_transpose1d", rank=1),
    transposed_case("aten.conv_transpose2d"),
    transposed_case("aten.conv_transpose3d", rank=3, k=2),
    transposed_case("aten.slow_conv_transpose2d"),
    transposed_case("aten.slow_conv_transpose3d", rank=3, k=2),
    transposed_case("aten.cudnn_convolution_transpose"),
    transposed_case("aten.miopen_convolution_transpose"),
    transposed_case("aten._mps_convolution_transpose"),
    Case(
        "aten.conv_tbc",
        lambda N, B, C, O: made("aten.conv_tbc", T(N - 2, B, O), self=T(N, B, C), weight=T(3, C, O), bias=T(O)),
        tbc,
        TBC,
    ),
    Case("aten.conv_tbc_backward", tbc_backward, tbc_gradients, TBC, ("bias",)),
    backward_case("aten.convolution_backward"),
    backward_case("aten.convolution_backward", (False, True, True), unread=("weight",), sizes=SAME),
    backward_case("aten.convolution_backward", (True, False, False), unread=("input",)),
    backward_case("aten.convolution_backward", g=2, rank=1, k=2),
    backward_case("aten.convolution_backward", padding=1, stride=2, exact=False),
    Case("aten.convolution_backward", backward_call("aten.convolution_backward", flip=True), adjoint, SIZES),
    backward_case("aten.convolution_backward_overrideable"),
    backward_case("aten.mps_convolution_backward"),
    backward_case("aten._slow_conv2d_backward.output_mask"),
]


@pytest.mark.parametrize("sample", CASES, ids=str)
def test_counts(sample):
    for sizes in sample.sizes:
        verify(sample, sizes)
    verify_symbols(sample)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3), st.integers(3, 6), st.sampled_from([1, 2]), st.data())
def test_counts_at_drawn_sizes(B, C, O, L, rank, data):
    draw = {n: data.draw(st.integers(1, 2), label=n) for n in ("k", "stride", "dilation", "g")}
    padding = data.draw(st.integers(0, 1), label="padding")
    g = draw.pop("g")
    sizes = {"B": B, "C": C * g, "O": O * g, "L": L}
    verify(case("aten.convolution", **draw, g=g, rank=rank, padding=padding), sizes)
    verify(backward_case("aten.convolution_backward", **draw, g=g, rank=rank, padding=padding, exact=False), sizes)
    verify(transposed_case("aten.convolution", g=g, rank=rank, k=2, stride=data.draw(st.integers(1, 2))), sizes)


def test_every_rule_has_a_sample():
    covered = {op for op in without_sample("costir.ops.conv", CASES) if not any(c.op.startswith(f"{op}.") for c in CASES)}
    assert covered == set()


def test_a_strided_convolution_keeps_its_floor():
    L = size("L")
    cost = cost_of(conv_call(rank=1, stride=2, padding=1, with_bias=False)(size("B"), size("C"), size("O"), L))
    for n in range(3, 9):
        assert cost.matmul.subs({size("B"): 1, size("C"): 1, size("O"): 1, L: n}) == 2 * 3 * len(range(0, n + 2 - 2, 2))


MODULES = {
    "conv1d": (torch.nn.Conv1d(2, 4, 3, stride=2, padding=1), (2, 2, 9)),
    "conv2d": (torch.nn.Conv2d(2, 4, 3, dilation=2, bias=False), (2, 2, 6, 5)),
    "grouped": (torch.nn.Conv2d(4, 8, 3, groups=2), (2, 4, 5, 5)),
    "conv3d": (torch.nn.Conv3d(1, 2, 2), (1, 1, 4, 3, 3)),
    "transposed": (torch.nn.ConvTranspose2d(2, 4, 4, stride=2, padding=1), (2, 2, 5, 3)),
    "transposed grouped": (torch.nn.ConvTranspose2d(4, 2, 4, stride=2, padding=1, groups=2), (1, 4, 3, 3)),
}


def convolutions(calls):
    return [c for c in calls if "convolution" in c.op]


@pytest.mark.parametrize("name", MODULES)
def test_agrees_with_flop_counter_on_meta(name):
    """Forward everywhere; backward where no groups are (torch's counter multiplies the weight gradient by their number)."""
    module, shape = MODULES[name]
    module, x = module.to("meta"), torch.empty(shape, device="meta", requires_grad=True)
    backward = "grouped" not in name
    with FlopCounterMode(display=False) as counter:
        out = module(x)
        if backward:
            out.sum().backward()
    assert sums(convolutions(record_calls(module, x, backward=backward)))["matmul"] == counter.get_total_flops()


@pytest.mark.parametrize("name", MODULES)
def test_bytes_are_those_of_real_tensors(name):
    module, shape = MODULES[name]
    module, x = type(module)(**keywords(module)), torch.randn(shape, requires_grad=True)
    calls = convolutions(record_calls(module, x, backward=True))
    with RealBytes() as real:
        module(x).sum().backward()
    log = [(r, w) for op, r, w in real.log if "convolution" in op]
    assert [(cost_of(c).read, cost_of(c).write) for c in calls] == log
    assert len(log) == 2


def keywords(module):
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
    return {n: getattr(module, n) for n in names} | {"bias": module.bias is not None}
