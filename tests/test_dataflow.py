"""The dataflow of a trace: who needs what whom made, through views and writes in place. Checked by running in another order."""

import itertools
import random

import networkx as nx
import pytest
import torch
from torch import nn

from costir import trace
from costir.dataflow import Flow, covers, dataflow, overlap
from costir.load.family import Family
from costir.tracing.recorder import RawTensor


def flow_of(function, *shapes, phase="forward", sizes=None):
    class Model(nn.Module):
        def forward(self, *xs):
            return function(*xs)

    def build(**_):
        return Model(), tuple(torch.empty(s, requires_grad=phase != "forward") for s in shapes), {}

    return dataflow(trace.run(Family("model", build, sizes or {}), sizes or {}, phase))


def needs(flow: Flow, later: str, earlier: str) -> bool:
    """Whether the last operator of a name must wait for the first of another."""
    names = [s.event.op.split(".")[1] for s in flow.steps]
    a, b = names.index(earlier), len(names) - 1 - names[::-1].index(later)
    return nx.has_path(flow.graph, a, b)


@pytest.mark.parametrize(
    ("function", "later", "earlier", "yes"),
    [
        (lambda x, y: x.exp() + y.cos(), "cos", "exp", False),
        (lambda x, y: x.exp().cos(), "cos", "exp", True),
        (lambda x, y: x.exp().view(-1)[3:].cos(), "cos", "exp", True),
        (lambda x, y: (x.sin(), x.exp_())[1], "exp_", "sin", True),  # must not write over what is still to be read
        (lambda x, y: (x.mul_(2), x.t().cos())[1], "cos", "mul_", True),
        (lambda x, y: (x[:, :2].mul_(2), x[:, 2:].cos())[1], "cos", "mul_", False),  # other columns
        (lambda x, y: (x[:, :3].mul_(2), x[:, 2:].cos())[1], "cos", "mul_", True),
        (lambda x, y: (x[:2].mul_(2), x[2:].cos())[1], "cos", "mul_", False),  # other rows
        (lambda x, y: (x.copy_(y.exp()), x.cos())[1], "cos", "exp", True),
        (lambda x, y: (x.add_(y), x.zero_(), x.cos())[2], "cos", "add_", True),
    ],
)
def test_who_waits_for_whom(function, later, earlier, yes):
    assert needs(flow_of(function, (4, 6), (4, 6)), later, earlier) is yes


def test_views_move_nothing():
    flow = flow_of(lambda x: x.view(-1).unsqueeze(0).t() + 1, (4, 6))
    assert [s.view for s in flow.steps] == [True, True, True, False]
    assert all(not s.reads and not s.writes for s in flow.steps[:3])


def test_any_order_of_the_graph_computes_the_same():
    """Real tensors: the operators are run in a random order that the graph allows."""

    def program(x, y):
        a = x[:, :2].exp()
        x[:, 2:].add_(y[:, 2:])
        y.mul_(a.sum())
        b = x.t() @ y
        x.zero_()
        b.diagonal().add_(1.0)
        return b.cos() + x[:, :4].sum()

    flow = flow_of(program, (4, 6), (4, 6))
    rng = random.Random(0)
    torch.manual_seed(0)
    memory = [torch.randn(4, 6), torch.randn(4, 6)]
    expected = program(*(m.clone() for m in memory))
    for _ in range(5):
        order = list(nx.lexicographical_topological_sort(flow.graph, key=lambda i: rng.random()))
        assert torch.equal(replay(flow, order, memory), expected)


def replay(flow: Flow, order: list[int], given: list[torch.Tensor]) -> torch.Tensor:
    """Run the operators in an order, on real memory."""
    size = {t.memory: 64 for s in flow.steps for t in (*s.event.outputs, *_tensors(s.event.args))}
    held = {m: torch.zeros(n) for m, n in size.items()}
    inputs = sorted({t.memory for s in flow.steps for t in _tensors(s.event.args) if t.role == "input"})
    for m, t in zip(inputs, given, strict=True):
        held[m][: t.numel()] = t.reshape(-1)

    def real(t: RawTensor) -> torch.Tensor:
        return held[t.memory].as_strided(t.shape, t.stride, t.offset)

    def value(v):
        if isinstance(v, RawTensor):
            return real(v)
        return [value(i) for i in v] if isinstance(v, tuple) else v

    for i in order:
        step = flow.steps[i]
        if not step.view:
            _, name, overload = step.event.op.split(".")
            operator = getattr(getattr(torch.ops.aten, name), overload)
            known = {a.name: value(v) for a, (_, v) in zip(operator._schema.arguments, step.event.args, strict=True)}
            out = operator(**{"self" if k == "self" else k: v for k, v in known.items()})
            for target, made in zip(step.event.outputs, out if isinstance(out, (tuple, list)) else (out,), strict=True):
                if made.data_ptr() != real(target).data_ptr():
                    real(target).copy_(made)
    return real(flow.steps[-1].event.outputs[0]).clone()


def _tensors(args):
    for _, v in args:
        for t in v if isinstance(v, tuple) and not isinstance(v, RawTensor) else (v,):
            if isinstance(t, RawTensor):
                yield t


def test_overlap_and_cover_by_brute_force():
    """Against sets of elements: what is said to be apart is apart, what is said to be covered is."""
    rng = random.Random(1)
    base = torch.arange(48).view(6, 8)

    def some():
        a, b, c, d = rng.randrange(6), rng.randrange(8), rng.randrange(1, 7), rng.randrange(1, 9)
        v = base[a : a + c, b : b + d : rng.choice((1, 1, 2))]
        v = v.t() if rng.random() < 0.3 else v
        return v, RawTensor(
            tuple(v.shape), "int64", (), "activation", 0, memory=0, offset=v.storage_offset(), stride=v.stride()
        )

    for (v, a), (w, b) in itertools.islice(iter(lambda: (some(), some()), None), 3000):
        x, y = set(v.flatten().tolist()), set(w.flatten().tolist())
        assert overlap(a, b) or not x & y
        assert not covers(a, b) or y <= x


def test_gradients_and_loss_are_what_the_caller_gets():
    t = trace.run(Family("linear", lambda: (nn.Linear(3, 5), (torch.empty(2, 3),), {}), {}), {}, "backward")
    assert [o.shape for o in t.outputs] == [(), (5, 3), (5,)]
