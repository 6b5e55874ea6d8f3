"""Elementwise rules: counted by running each definition on counting numbers, and bytes by the operands of a real call."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from formulas_pointwise import ROWS, VARIANTS, Row
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles_pointwise import cloned, nums, read_bytes, run, tally, values, write_bytes
from torch.utils._pytree import tree_leaves

from costir.ir import Conventions, Tensor
from costir.ops.registry import RULES, find
from costir.ops.table import load_rules
from costir.symbolic import evaluate, size

load_rules()
SIZES = ((2, 3), (3, 5))


def samples(m: int, n: int) -> SimpleNamespace:
    """Tensors [m, n] of every kind that the rows ask for."""
    torch.manual_seed(m * 100 + n)
    rand = torch.rand
    return SimpleNamespace(
        x=torch.randn(m, n), y=torch.randn(m, n) + 3, g=torch.randn(m, n), n=-rand(m, n) - 0.1, p=rand(m, n) * 0.8 + 0.1,
        q=rand(m, n) + 1.5, b=rand(m, n) > 0.5, row=torch.randn(n), expanded=torch.randn(m, 1).expand(m, n),
    )  # fmt: skip


def expected(row: Row, args) -> tuple[np.ndarray, tuple[int, int]]:
    """The definition applied element by element over the broadcast tensor arguments."""
    arrays = np.broadcast_arrays(*(nums(a) for a in args if isinstance(a, torch.Tensor)), subok=False)
    tally()
    out = [row.formula(*(a[i] for a in arrays)) for i in np.ndindex(arrays[0].shape)]
    return values(out), tally()


def check(name: str, row: Row, size: tuple[int, int]) -> None:
    args = row.args(samples(*size))
    before = cloned(args)
    call, out, bound = run(name, *args, **row.kwargs)
    cost = find(call.op).rule(call, Conventions())
    want_values, want = expected(row, before)
    assert (cost.vector, cost.special, cost.matmul) == (*want, 0), name
    result = next(t for t in tree_leaves(out) if isinstance(t, torch.Tensor))
    compared = ~np.isnan(want_values)
    if "dropout" not in name and result.device.type == "cpu":
        got = result.detach().double().reshape(-1).numpy()
        assert np.allclose(got[compared], want_values[compared], rtol=1e-3, atol=1e-4), name
    outputs = write_bytes(out)
    assert (cost.read, cost.write) == (read_bytes(bound), outputs), name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", sorted(n for n, row in ROWS.items() if row.formula))
def test_definition(name, size):
    check(name, ROWS[name], size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "row"), [v for v in VARIANTS if v[1].formula], ids=lambda v: v if isinstance(v, str) else "")
def test_other_arguments(name, row, size):
    check(name, row, size)


IN_PLACE = sorted(op.removeprefix("aten.") for op in RULES if op.endswith("_") and op[5:-1] in ROWS)
FOREACH = sorted(
    op.removeprefix("aten.") for op in RULES if op.startswith("aten._foreach_") and op[14:].rstrip("_").split(".")[0] in ROWS
)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_costs_the_same_and_writes_its_target(name):
    row = ROWS.get(name, ROWS[name[:-1]])
    args = row.args(samples(3, 4))
    plain, out, _ = run(name[:-1], *ROWS[name[:-1]].args(samples(3, 4)), **row.kwargs)
    if next(t for t in tree_leaves(out) if isinstance(t, torch.Tensor)).dtype != torch.float32:
        args = tuple(a.double() if isinstance(a, torch.Tensor) else a for a in args)
    call, out, bound = run(name, *cloned(args), **row.kwargs)
    cost, same = find(call.op).rule(call, Conventions()), find(plain.op).rule(plain, Conventions())
    assert (cost.vector, cost.special) == (same.vector, same.special)
    assert (cost.read, cost.write) == (read_bytes(bound), write_bytes(out))


@pytest.mark.parametrize("name", FOREACH)
def test_foreach_costs_the_sum_and_writes_its_targets(name):
    base, _, overload = name.removeprefix("_foreach_").partition(".")
    row = ROWS[base.rstrip("_")]
    groups = [row.args(samples(*size)) for size in SIZES]
    args = [list(pair) if isinstance(pair[0], torch.Tensor) else pair[0] for pair in zip(*groups, strict=True)]
    if overload == "ScalarList":
        args.append([2.0, 3.0])
    elif overload == "Tensor":
        args.append(torch.tensor([2.0, 3.0]))
    packet = name.partition(".")[0]
    call, out, bound = run(name if overload else packet, *cloned(args))
    cost = find(call.op).rule(call, Conventions())
    parts = [find(c.op).rule(c, Conventions()) for c in (run(base.rstrip("_"), *g)[0] for g in groups)]
    extra = sum(m * n for m, n in SIZES) if overload else 0  # a factor for each tensor: one more multiply
    assert cost.vector == sum(p.vector for p in parts) + extra
    assert cost.special == sum(p.special for p in parts)
    assert cost.read == read_bytes(bound)
    assert cost.write == write_bytes(bound["self"] if base.endswith("_") else out)


def test_foreach_pow_takes_one_exponent_per_tensor():
    call, _, _ = run("_foreach_pow", [torch.rand(2, 3), torch.rand(4)], [2.0, 0.5])
    assert (lambda c: (c.vector, c.special))(find(call.op).rule(call, Conventions())) == (6, 4)


COMPLEX = (
    ("add", 2, 0), ("sub", 2, 0), ("neg", 2, 0), ("mul", 6, 0), ("square", 6, 0), ("div", 11, 0), ("reciprocal", 6, 0),
    ("abs", 3, 1), ("exp", 2, 3), ("sin", 2, 4), ("cos", 3, 4), ("log", 3, 3), ("angle", 0, 1), ("sqrt", 7, 3),
)  # fmt: skip


@pytest.mark.parametrize(("name", "vector", "special"), COMPLEX)
def test_complex_numbers_cost_their_real_arithmetic(name, vector, special):
    z = torch.randn(3, 4, dtype=torch.complex64)
    call, _, _ = run(name, *((z, z + 1) if name in ("add", "sub", "mul", "div") else (z,)))
    cost = find(call.op).rule(call, Conventions())
    assert (cost.vector, cost.special) == (12 * vector, 12 * special)


@pytest.mark.parametrize(("name", "args"), [("tan", ()), ("pow", (1.5,))])
def test_what_is_not_counted_is_unknown(name, args):
    call, _, _ = run(name, torch.randn(3, dtype=torch.complex64), *args)
    cost = find(call.op).rule(call, Conventions())
    assert cost.status == "unknown"
    assert "complex" in cost.note


def test_logic_on_truth_values_is_not_arithmetic():
    b = torch.tensor([True, False])
    assert find("aten.add").rule(run("add", b, b)[0], Conventions()).flops == 0
    assert find("aten.add").rule(run("add", b.long(), b.long())[0], Conventions()).flops == 2


def test_symbols_then_numbers_is_numbers_then_count():
    B, D = size("B"), size("D")
    for name, row in ROWS.items():
        for m, n in SIZES:
            args = row.args(samples(m, n))
            call, _, _ = run(name, *args)
            swap = {(m, n): (B, D), (n,): (D,)}
            symbolic = replace(
                call, args={k: _named(v, swap) for k, v in call.args.items()}, outputs=_named(call.outputs, swap)
            )
            got, want = (find(c.op).rule(c, Conventions()) for c in (symbolic, call))
            for part in ("vector", "special", "read", "write"):
                assert evaluate(getattr(got, part), {B: m, D: n}) == getattr(want, part), (name, part)


def _named(value, swap):
    """The argument with known shapes replaced by symbols."""
    if isinstance(value, tuple):
        return tuple(_named(v, swap) for v in value)
    if isinstance(value, Tensor):
        return replace(value, shape=swap.get(tuple(map(int, value.shape)), value.shape))
    return value


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(n for n, row in ROWS.items() if row.formula)), st.integers(1, 6), st.integers(1, 6))
def test_drawn_sizes(name, m, n):
    check(name, ROWS[name], (m, n))
