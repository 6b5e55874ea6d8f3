"""Where the time of an operator is read: at the point where calibration timed the same operator, and nowhere else."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from calibrations import made_up
from module_samples import FUNCTIONS, MODULES
from test_rules_modules import record
from torch import nn

from costir.cost import cost_of
from costir.measuring.estimate import Estimator
from costir.measuring.kernels import kernels
from costir.measuring.lookup import lookups
from costir.measuring.lookup_parts import Lookup
from costir.measuring.subject import Recorded
from costir.ops import registry  # noqa: F401
from costir.trace import record_calls

KERNELS = {k.name: k for k in kernels()}
# A mask is not looked at, nor what a recorder changes; pools of memory, which are no operators; copies of what is made another
# shape first; and those read by sizes of another kind.
OTHERS = (
    "mixed",
    "sqrt_apart",
    "log_apart",
    "exp_apart",
    "max_in_a_row",
    "streamed",
    "far_",
    "transposed",
    "strided",
    "permuted",
    "expanded",
    "bias",
    "lstm",
    "gru",
    "embedding_backward",
    "empty",
)


def found_for(function, *args, strides=()):
    call = list(record_calls(function, *args))[-1]
    return lookups(call, strides, cost_of(call)[0])


def strides_of(run):
    """Of the operands of the first operator that a function runs, in the order of its call."""
    found = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            tensors = [t for t in torch.utils._pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
            found.append(tuple(t.stride() for t in tensors))
            return f(*args, **(kwargs or {}))

    with torch.no_grad(), Mode():
        run()
    return found[-1]


@pytest.mark.parametrize("name", [n for n in KERNELS if not n.startswith(OTHERS)])
def test_what_was_timed_is_found_again(name):
    """Every kernel of the calibration runs here: the lookup of its call is the point of the grid that it was made from."""
    kernel = KERNELS[name]
    middle = {axis: values[len(values) // 2] if axis in ("columns", "length", "window") else values[1 % len(values)]
              for axis, values in kernel.axes.items()}  # fmt: skip
    with torch.no_grad():
        run = kernel.make(**middle)
        found = found_for(run, strides=strides_of(run))
    first = found[0]
    assert first.curve == name
    assert not first.alike
    assert first.sizes == pytest.approx(tuple(middle.values()), rel=0.08)
    assert first.times == pytest.approx(1)


def test_few_matrices_of_a_batch_are_products_one_after_the_other():
    """Of a batch as small, torch's own time is that of so many products; a curve that begins at four is four times too high."""
    x, y = torch.rand(2, 3, 8), torch.rand(2, 8, 5)
    strides = (x.stride(), y.stride())
    assert found_for(torch.bmm, x, y, strides=strides) == [Lookup("mm_nn", (3, 5, 8))] * 2
    x, y = torch.rand(4, 3, 8), torch.rand(4, 8, 5)
    assert found_for(torch.bmm, x, y, strides=(x.stride(), y.stride())) == [Lookup("bmm_nn", (4, 3, 5, 8))]


@pytest.mark.parametrize(
    ("left", "right", "rows", "columns"),
    [
        ((2, 3, 4, 5), (2, 3, 1, 1), 6, 20), ((2, 3, 4, 5), (2, 1, 4, 5), 6, 20), ((2, 3, 4, 5), (5,), 24, 5),
        ((2, 3, 4, 5), (3, 4, 5), 2, 60), ((7, 1), (1, 9), 7, 9),
    ],
)  # fmt: skip
def test_an_operand_that_is_repeated_goes_by_how_long_it_stays_the_same(left, right, rows, columns):
    """What lies together and is treated alike is one row, as in torch's own iteration over it."""
    x, y = torch.rand(left), torch.rand(right)
    assert found_for(torch.mul, x, y, strides=(x.stride(), y.stride())) == [Lookup("broadcast", (rows, columns))]


@pytest.mark.parametrize(
    ("dims", "found"),
    [
        (None, Lookup("sum", (120,))), (-1, Lookup("sum_columns", (24, 5))), ((2, 3), Lookup("sum_columns", (6, 20))),
        (1, Lookup("sum_rows", (6, 20))), ((0, 1), Lookup("sum_rows", (6, 20))), ((0, 2, 3), Lookup("sum_columns", (3, 40))),
    ],
)  # fmt: skip
def test_sums_go_by_what_lies_together(dims, found):
    """Of [2, 3, 4, 5]: rows are added where the last axis stays."""
    x = torch.rand(2, 3, 4, 5)
    assert found_for(lambda t: t.sum() if dims is None else t.sum(dims), x)[0] == found


def test_a_loss_is_as_much_work_as_what_it_reads():
    """Its result is one number, which says nothing about it."""
    x = torch.rand(6, 7)
    for function, curve in ((F.mse_loss, "mse"), (F.smooth_l1_loss, "smooth_l1"), (F.binary_cross_entropy_with_logits, "bce")):
        assert found_for(function, x, x) == [Lookup(curve, (42,))]


def test_special_functions_without_a_curve_are_as_many_exponentials():
    x = torch.rand(6, 7)
    (found,) = found_for(torch.erfinv, x)
    assert (found.curve, found.alike) == ("exp", True)
    assert found.sizes == (42,)
    assert found.times >= 1


@pytest.mark.parametrize(
    ("exponent", "curve"), [(2, "pow2"), (3.0, "pow"), (0.5, "sqrt"), (-1, "reciprocal"), (2.5, "pow_any")]
)
def test_torch_computes_some_powers_without_a_power(exponent, curve):
    assert found_for(lambda t: torch.ops.aten.pow.Tensor_Scalar(t, exponent), torch.rand(9)) == [Lookup(curve, (9,))]


@pytest.mark.parametrize(
    ("layer", "channels", "found"),
    [
        (nn.Conv2d(3, 8, 7, 2, 3), 3, Lookup("conv3_strided", (4, 3 * 49 / 9, 8))),
        (nn.Conv2d(6, 8, (1, 3), 1, (0, 1)), 6, Lookup("conv3", (8, 6, 8), 3 / 9)),
        (nn.Conv2d(16, 32, (3, 1), 1, (1, 0)), 16, Lookup("conv3", (8, 16, 32), 3 / 9)),
        (nn.Conv2d(3, 16, 3, 1, 1), 3, Lookup("conv3", (8, 3, 16))),
        (nn.Conv2d(6, 8, 1), 6, Lookup("conv1", (8, 6, 8))),
        (nn.ConvTranspose2d(6, 8, 4, 2, 1), 6, Lookup("enlarged", (8, 6, 8))),
        (nn.ConvTranspose2d(6, 8, 2, 2), 6, Lookup("enlarged", (8, 6, 8 * 4 / 16), alike=True)),
    ],
)
def test_a_convolution_is_read_at_as_much_work(layer, channels, found):
    """A larger window counts as more channels, since both are summed over; FLOPs are those that costir counts."""
    x = torch.rand(1, channels, 8, 8)
    call = list(record_calls(layer, x))[-1]
    cost = cost_of(call)[0]
    (read,) = lookups(call, (), cost)
    assert (read.curve, read.alike) == (found.curve, found.alike)
    assert (*read.sizes, read.times) == pytest.approx((*found.sizes, found.times))
    side, inside, outside = found.sizes
    places = {"conv1": 1, "enlarged": 16}.get(found.curve, 9)
    assert float(cost.matmul) == pytest.approx(2 * side**2 * inside * outside * places * found.times)


@pytest.mark.parametrize(("kernel", "larger", "times"), [(3, 1, 1), (2, 1, 2 / 3), (9, 3, 1)])
def test_a_convolution_along_one_axis_has_a_curve_of_its_own(kernel, larger, times):
    """By its places, whatever batch they come from."""
    layer, x = nn.Conv1d(5, 7, kernel), torch.rand(2, 5, 20)
    call = list(record_calls(layer, x))[-1]
    cost = cost_of(call)[0]
    (read,) = lookups(call, (), cost)
    places = 2 * (20 - kernel + 1)
    assert read.curve == "conv_line"
    assert (*read.sizes, read.times) == pytest.approx((places, 5 * larger, 7, times))
    assert float(cost.matmul) == pytest.approx(2 * 3 * math.prod(read.sizes) * times)


@pytest.mark.parametrize(
    ("queries", "keys", "share"),
    [
        (64, 64, 1),
        (512, 512, 1),
        (768, 768, 7 / 9),
        (1024, 1024, 3 / 4),
        (2048, 2048, (2 * (512 + 1024 + 1536 + 2048)) / (8 * 2048)),
    ],
)
def test_causal_attention_skips_whole_blocks_of_keys_only(queries, keys, share):
    """Blocks of 512 keys for blocks of 256 queries, counted by hand; measured up to 1024: 1.0, 1.0, 0.79, 0.76 of all of it."""
    q, k = torch.empty(1, 1, queries, 8, device="meta"), torch.empty(1, 1, keys, 8, device="meta")
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    (found,) = found_for(lambda a, b: attention(a, b, b, 0.0, True), q, k)
    assert found.times == pytest.approx(share)


def test_padding_is_filling_and_a_copy():
    x = torch.rand(2, 3, 4, 5)
    assert found_for(lambda t: F.pad(t, (1, 1)), x) == [Lookup("fill_", (2 * 3 * 4 * 7,)), Lookup("strided", (24, 5))]


def test_a_pool_that_adapts_goes_through_all_of_the_image():
    x = torch.rand(1, 4, 8, 8)
    assert found_for(lambda t: torch.ops.aten._adaptive_avg_pool2d(t, [2, 2]), x) == [Lookup("avg_window", (16, 16))]


def test_below_its_first_point_a_curve_has_fewer_parts_of_the_work():
    """A call takes 1 us, a number 0.1 ns: with one head of four the rest is a quarter; a width is no number of parts."""
    curve = made_up().curves["attention"]
    least = min(curve.seconds)
    four, one = (curve.at(heads, 512, 64) for heads in (4, 1))
    assert one - least == pytest.approx((four - least) / 4)
    assert curve.at(4, 512, 8) == curve.at(4, 512, 16)


def test_beyond_its_last_point_a_curve_grows_by_its_work_alone():
    """Where the last two points are little more than a call, their slope is no slope of the work."""
    curve = made_up().curves["softmax"]
    call, number = 1e-6, 1e-10
    for columns in (2048, 1 << 14):
        assert curve.at(4, columns) == pytest.approx(call + number * 4 * columns, rel=0.25)
    assert math.isclose(curve.at(16384, 1024 * 8), call + number * 16384 * 1024 * 8, rel_tol=0.05)


@pytest.mark.parametrize("name", [*MODULES, *FUNCTIONS])
def test_every_call_of_every_module_of_torch_has_an_estimate(name):
    """Whatever shapes and arguments it has: some curve that was measured, at finite sizes, and a time."""
    estimator = Estimator(made_up(), {"fp32": 1e11})
    for call in record({**MODULES, **FUNCTIONS}[name]):
        found = lookups(call, (), cost_of(call)[0])
        assert all(math.isfinite(x.times) and min(x.sizes) >= 0 for x in found), (call.name, found)
        untouched = Recorded(call, (), (0,) * len(call.inputs), (0,) * len(call.outputs), True, 100)
        assert math.isfinite(estimator.of(untouched).total)
