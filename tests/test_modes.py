"""Modes and types as torch has them: inference in eval mode, no products of two types."""

import pytest
import torch
from torch import nn

import costir
from costir.errors import LoadError, TraceError

FILE = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, D=64):
        super().__init__()
        self.l, self.d, self.b = nn.Linear(D, D), nn.Dropout(0.1), nn.BatchNorm1d(D)

    def forward(self, x):
        return self.b(self.d(self.l(x)))

def build(B=4, D=64):
    return Layer(D), (torch.randn(B, D),), {}

def inference(B=4, D=64):
    return Layer(D).eval(), (torch.randn(B, D),), {}

def made(D=64):
    return Layer(D)

class Two(nn.Module):
    def __init__(self, D=64):
        super().__init__()
        self.l = nn.Linear(D, D)

    def forward(self, x, y):
        return self.l(x) + y
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "layer.py"
    path.write_text(FILE)
    return str(path)


def names(a):
    return {n.op.split(".")[1] for n in a.nodes if n.status != "free"}


def test_a_class_is_run_as_for_inference(file):
    found = costir.analyze(file, model="Layer", input="x: [B, D]")
    assert found.flops == costir.analyze(file, model="inference").flops
    assert "bernoulli_" not in names(found)
    assert "Layer in eval mode, as for inference" in found.notes


def test_a_class_is_trained_in_training_mode(file):
    found = costir.analyze(file, model="Layer", input="x: [B, D]", phase="backward", sizes={"B": 8})
    assert "bernoulli_" in names(found)
    assert not any("eval mode" in n or "training mode" in n for n in found.notes)


@pytest.mark.parametrize(
    ("model", "phase", "said"),
    [("build", "forward", True), ("inference", "forward", False), ("build", "backward", False)],
)
def test_a_module_keeps_its_mode(file, model, phase, said):
    found = costir.analyze(file, model=model, phase=phase)
    assert ("bernoulli_" in names(found)) == (model == "build")
    note = "the model is in training mode: Dropout, BatchNorm1d as in training; .eval() for inference"
    assert (note in found.notes) == said


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), "Dropout"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)), ""),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval(), ""),
        (nn.BatchNorm1d(4), "BatchNorm1d"),
        (nn.BatchNorm1d(4, track_running_stats=False), ""),
        (nn.LayerNorm(4), ""),
        (nn.GRU(4, 4, 2, dropout=0.1), "GRU"),
        (nn.GRU(4, 4, 2), ""),
    ],
    ids=str,
)
def test_what_training_mode_changes(module, said):
    """The note is there where a run in eval mode differs in its operators, and only there."""
    x = torch.randn(3, 4)
    found = costir.analyze(module, x)
    assert [n.split(": ")[1].split(" as ")[0] for n in found.notes if "training mode" in n] == ([said] if said else [])
    training = module.training
    try:
        same = costir.analyze(module.eval(), x)
    finally:
        module.train(training)
    assert (str(found.nodes) != str(same.nodes)) == bool(said)


def test_a_class_is_made_in_the_type_of_its_input(file):
    found = costir.analyze(file, model="Two", input=("x: bf16[B, D]", "y: bf16[B, D]"))
    assert found.weight_bytes == 2 * found.params
    assert "made in bfloat16, the type of the input x" in found.notes
    assert costir.analyze(file, model="made", input="x: bf16[B, D]", sizes={"B": 4}).at().weight_bytes == 2 * 64 * (64 + 3)
    assert costir.analyze(file, model="Two", input=("x: [B, D]", "y: [B, D]")).weight_bytes == 4 * found.params
    wide = costir.analyze(file, model="Two", input=("x: [B, D]", "y: f32[B, D]"), dtype="bf16")
    assert wide.weight_bytes == 2 * found.params
    assert not any("made in" in n for n in wide.notes)


class Product(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


aten = torch.ops.aten
PRODUCTS = {
    "mm": (aten.mm, (2, 3), (3, 4)),
    "addmm": (aten.addmm, (4,), (2, 3), (3, 4)),
    "bmm": (aten.bmm, (2, 2, 3), (2, 3, 4)),
    "baddbmm": (aten.baddbmm, (2, 2, 4), (2, 2, 3), (2, 3, 4)),
    "addbmm": (aten.addbmm, (2, 4), (2, 2, 3), (2, 3, 4)),
    "mv": (aten.mv, (2, 3), (3,)),
    "addmv": (aten.addmv, (2,), (2, 3), (3,)),
    "dot": (aten.dot, (3,), (3,)),
    "linear": (nn.functional.linear, (2, 3), (4, 3)),
    "linear with bias": (nn.functional.linear, (2, 3), (4, 3), (4,)),
    "conv": (nn.functional.conv1d, (1, 3, 8), (4, 3, 3)),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), (2, 3), (3, 4)),
    "matmul": (torch.matmul, (2, 2, 3), (3, 4)),
    "add": (torch.add, (2, 3), (2, 3)),
    "mul": (torch.mul, (2, 3), (2, 3)),
    "layer norm": (lambda x, w: nn.functional.layer_norm(x, (3,), w), (2, 3), (3,)),
    "addr": (aten.addr, (2, 3), (2,), (3,)),
}


@pytest.mark.parametrize("other", [torch.bfloat16, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_mixed_types_are_refused_where_torch_refuses_them(name, other):
    function, *shapes = PRODUCTS[name]
    for i in range(len(shapes)):
        args = [torch.ones(s, dtype=other if i == j else torch.float32) for j, s in enumerate(shapes)]
        try:
            function(*args)
            runs = True
        except RuntimeError:
            runs = False
        if name == "layer norm" and not runs:
            continue  # eager needs one type or float32 weights: not a product
        if runs:
            costir.analyze(Product(function), tuple(args))
        else:
            with pytest.raises(TraceError):
                costir.analyze(Product(function), tuple(args))


def test_the_refusal_names_the_line(file):
    with pytest.raises(TraceError, match=r"addmm in l at layer.py:\d+ mixes .*float32.*, which torch refuses"):
        costir.analyze(file, model="Two", input=("x: fp16[B, D]", "y: bf16[B, D]"))


@pytest.mark.parametrize("name", ["mm", "linear"])
def test_a_program_of_two_types_is_refused(name):
    function, *shapes = {"mm": (torch.mm, (2, 3), (3, 4)), "linear": (nn.functional.linear, (2, 3), (4, 3))}[name]

    class Mixed(nn.Module):
        def forward(self, a, b):
            return function(a, b)

    ep = torch.export.export(Mixed(), (torch.ones(shapes[0]), torch.ones(shapes[1], dtype=torch.bfloat16)))
    with pytest.raises(TraceError, match=r"mm .*mixes float32 and bfloat16"):
        costir.analyze(ep)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("input: bf16[B, 4]", "says bf16, but the input is float32"),
        ("input: [B, 5]", r"says 5 where the input has shape \(2, 4\)"),
        ("input: [B]", "names 1 dimensions"),
        ("input: word[B, 4]", "unknown data type 'word'"),
    ],
)
def test_dimensions_that_are_not_the_inputs(spec, said):
    with pytest.raises(LoadError, match=said):
        costir.analyze(nn.Linear(4, 4), torch.randn(2, 4), input=spec)


def test_dimensions_that_are_the_inputs():
    for spec in ("input: f32[B, 4]", "input: float32[B, 4]", "[B, 4]", "B, 4", "input: B, _"):
        assert list(costir.analyze(nn.Linear(4, 4), torch.randn(2, 4), input=spec).sizes) == ["B"]
