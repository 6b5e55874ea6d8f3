"""Layers that differ in where an operand comes from, or in one operator's cost, are still one block."""

import torch
from torch import nn

import costir
from costir.build import build
from costir.grouping import groups, stands_for, star_paths


class Block(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.norm, self.ff = nn.LayerNorm(D), nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        return x + self.ff(self.norm(x))


class Residual(nn.Module):
    def __init__(self, C):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(C, C, 3, padding=1), nn.BatchNorm2d(C)

    def forward(self, x):
        return torch.relu(x + self.norm(self.conv(x)))


def blocks(B=4, D=64, L=6):
    return nn.Sequential(*[Block(D) for _ in range(L)]), (torch.ones(B, D),), {}


def network(B=2, C=8, H=16):
    layers = [Residual(C), nn.Conv2d(C, 2 * C, 1), Residual(2 * C)]
    return nn.Sequential(*layers), (torch.ones(B, C, H, H),), {}


def named(report, phase="forward"):
    found = groups([r for r in report.rows if r.phase == phase])
    return [f"{g.repeat.expr} x {g.path}" if g.repeat else g.path for g in found]


def total(report, name):
    return sum(r.quantities[name].expr for r in report.rows)


def test_layers_are_one_block():
    a = costir.analyze(blocks)
    assert "0.norm" in {n.path for n in a.nodes}  # the first layer reads the input, and stands alone in the analysis
    report = build(a)
    assert named(report) == ["L x *", "L x *.ff"]
    assert {str(r.count.expr) for r in report.rows} == {"L"}
    for name in ("flops", "bytes"):
        assert (total(report, name) - getattr(a, name)).expand() == 0


def test_numbers_for_the_layers_are_one_block_too():
    assert named(build(costir.analyze(blocks).keep(["B"]))) == ["6 x *", "6 x *.ff"]


def test_a_layer_with_another_cost_stands_with_its_like():
    """The last layer's gradient comes from a sum and is one number expanded: it reads less."""
    a = costir.analyze(blocks, phase="backward")
    report = build(a)
    assert named(report, "backward") == ["", "L x *.ff", "L x *"]
    assert any(r.path == "*.ff.*" and str(r.count.expr) == "1" for r in report.rows if r.phase == "backward")
    # with one layer the first is the last, too: a case of its own
    for name in ("flops", "bytes"):
        assert (total(report, name) - a._own(name)).expand() == 0


def test_what_only_some_operators_share_splits_no_layer():
    a = costir.analyze(network)
    assert "*.norm" in {n.path for n in a.nodes}  # the counters of the batch norms are alike, the rest is not
    found = named(build(a))
    assert len(found) == len(set(found))
    assert [g for g in found if g in ("0", "2")] == ["0", "2"]


def test_layers_of_another_kind_stay_apart():
    class Other(nn.Module):
        def __init__(self, D):
            super().__init__()
            self.ff = nn.Linear(D, D)

        def forward(self, x):
            return torch.tanh(self.ff(x))

    mixed = lambda B=4, D=64, L=4: (nn.Sequential(Other(D), *[Block(D) for _ in range(L)]), (torch.ones(B, D),), {})
    assert named(build(costir.analyze(mixed)))[0] == "0"


def test_paths_that_stand_for_others():
    assert stands_for("layers.*.mlp", "layers.0.mlp")
    assert stands_for("*.ff.*", "6.ff.2")
    assert stands_for("*.experts.*", "*.experts.3")
    for path in ("layers.*.mlp", "layers.0", "layers.x.mlp", "blocks.0.mlp", "layers.0.attn"):
        assert not stands_for("layers.*.mlp", path)
    assert star_paths(["0.a", "*.a", "1.a", "1.a"], ["k", "k", "k", "other"]) == ["*.a", "*.a", "*.a", "1.a"]
