"""No operator of any torch.nn module, torch.fft, linalg or special function, or optimizer is unknown to the rules."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from module_samples import FUNCTIONS, MODULES, NOT_BUILT, OPTIMIZERS, optimizer
from torch import nn

from costir.ir import Call, Conventions
from costir.ops.registry import find
from costir.ops.table import load_rules
from costir.trace import record_calls

load_rules()
OPERATORS = Path(__file__).parent / "data" / "transformers_ops.txt"


def unknown(calls: tuple[Call, ...]) -> set[str]:
    """Names of the calls that have no rule, or whose rule gives up; every other cost must be made of numbers >= 0."""
    missing = set()
    for call in calls:
        entry = find(call.op)
        cost = entry.rule(call, Conventions()) if entry else None
        if cost is None or cost.status == "unknown":
            missing.add(call.op)
        else:
            amounts = (cost.matmul, cost.vector, cost.special, cost.read, cost.write)
            assert all(a.is_number and a >= 0 for a in amounts), (call.op, amounts)
    return missing


def record(sample):
    torch.manual_seed(0)
    function, args = sample()
    if isinstance(function, nn.Module) and any(isinstance(q, nn.UninitializedParameter) for q in function.parameters()):
        function(*args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return record_calls(function, *args, backward=True)
        except StopIteration:  # nothing to differentiate: the forward pass alone
            return record_calls(function, *args)


def test_every_module_class_is_tried():
    classes = {n for n in dir(nn) if isinstance(getattr(nn, n), type) and issubclass(getattr(nn, n), nn.Module)}
    assert classes - set(MODULES) - NOT_BUILT == set()


@pytest.mark.parametrize("name", sorted(MODULES))
def test_modules(name):
    assert unknown(record(MODULES[name])) == set()


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions(name):
    assert unknown(record(FUNCTIONS[name])) == set()


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=lambda v: v if isinstance(v, str) else "-".join(v) or "plain")
def test_optimizers(name, options):
    torch.manual_seed(0)
    assert unknown(record_calls(optimizer(name, **options))) == set()


def test_operators_of_transformers():
    names = OPERATORS.read_text().split()
    assert len(names) > 200
    assert all(re.fullmatch(r"[a-z0-9_]+\.[a-zA-Z0-9_]+\.[a-zA-Z0-9_]+", n) for n in names)
    assert [n for n in names if find(n) is None] == []
