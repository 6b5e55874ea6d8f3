"""Python files as subjects: every form is built on fake tensors at two points, and run for real at a small one."""

import dataclasses
import textwrap
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from costir.errors import CostirError, LoadError, SizeError
from costir.ir import Graph
from costir.load import ExportedSubject, Family, load_subject
from costir.load.annotations import dimension, read_input
from costir.load.dtypes import split_dtype

EXAMPLES = Path(__file__).parent.parent / "examples"
HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
MLP = HEAD + textwrap.dedent("""
    class MLP(nn.Module):
        def __init__(self, D, F):
            super().__init__()
            self.up, self.down = nn.Linear(D, F), nn.Linear(F, D)
        def forward(self, x):
            return self.down(self.up(x).relu())
    """)
TYPED = "from jaxtyping import BFloat16, Bool, Float, Int\nfrom torch import Tensor\n" + HEAD


def write(tmp_path, text, name="model.py"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def shapes(family, **sizes):
    """Shapes of parameters, inputs and outputs of a family at a point, on fake tensors."""
    with FakeTensorMode(), torch.no_grad():
        module, args, kwargs = family.build(**{**family.sizes, **sizes})
        out = module(*args, **kwargs)
    inputs = [tuple(t.shape) for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
    return [tuple(p.shape) for p in module.parameters()], inputs, tuple(out.shape)


BUILD = MLP + "def build(B=4, D=8, F=16):\n    return MLP(D, F), (torch.zeros(B, D),), {}\n"
PAIR = MLP + "def model(D=8, F=16):\n    return MLP(D, F)\ndef inputs(B=4, D=8):\n    return {'x': torch.zeros(B, D)}\n"
ANNOTATED = TYPED + textwrap.dedent("""
    class Up(nn.Module):
        def __init__(self, d, F: int = 16, dropout: float = 0.0):
            super().__init__()
            self.linear = nn.Linear(d, F)
        def forward(self, x: Float[Tensor, "B D"], mask: Bool[Tensor, "B"] = None):
            return self.linear(x)
    """)
CONFIGURED = TYPED + textwrap.dedent("""
    from dataclasses import dataclass
    @dataclass
    class Config:
        D: int = 8
        F: int = 16
        bias: bool = False
    class Net(nn.Module):
        def __init__(self, config: Config):
            super().__init__()
            self.linear = nn.Linear(config.D, config.F, bias=config.bias)
        def forward(self, x: Float[Tensor, "B D"]):
            return self.linear(x)
    """)


@pytest.mark.parametrize(
    ("text", "subject", "options", "sizes"),
    [
        (BUILD, "", {}, {"B": 4, "D": 8, "F": 16}),
        (PAIR, "", {}, {"B": 4, "D": 8, "F": 16}),
        (PAIR, ":model", {}, {"B": 4, "D": 8, "F": 16}),
        (MLP, "", {"model": "MLP", "input": ["x: fp32[B, D]"], "sizes": {"B": 4, "D": 8, "F": 16}}, {"B": 4, "D": 8, "F": 16}),
        (MLP, ":MLP", {"input": ["[B, D]"], "sizes": {"B": 4, "D": 8, "F": 16}}, {"B": 4, "D": 8, "F": 16}),
        (ANNOTATED, "", {"sizes": {"B": 4, "D": 8}}, {"B": 4, "D": 8, "F": 16}),
        ("from __future__ import annotations\n" + ANNOTATED, "", {"sizes": {"B": 4, "D": 8}}, {"B": 4, "D": 8, "F": 16}),
        (CONFIGURED, "", {"sizes": {"B": 4}}, {"B": 4, "D": 8, "F": 16}),
        (BUILD.replace("def build", "def other"), ":other", {}, {"B": 4, "D": 8, "F": 16}),
        (MLP + "def model(D=8, F=16):\n    return MLP(D, F)\n", "", {"input": ["x: [B, D]"], "sizes": {"B": 4}},
         {"B": 4, "D": 8, "F": 16}),
    ],
)  # fmt: skip
def test_forms(tmp_path, text, subject, options, sizes):
    family = load_subject(write(tmp_path, text) + subject, **options)
    assert isinstance(family, Family)
    assert family.sizes == sizes
    assert next(iter(family.sizes)) == "B"
    for B, D, F in ((4, 8, 16), (3, 5, 7)):
        weights, inputs, out = shapes(family, B=B, D=D, F=F)
        assert (F, D) in weights
        assert inputs[0] == (B, D)
        assert out in ((B, D), (B, F))
    module, args, kwargs = family.build(B=2, D=3, F=5)
    assert module(*args, **kwargs).isfinite().all()


@pytest.mark.parametrize(
    ("returned", "args", "kwargs"),
    [
        ("x", 1, []),
        ("(x, y)", 2, []),
        ("[x, y]", 2, []),
        ("{'a': x}", 0, ["a"]),
        ("((x, y), {'a': x})", 2, ["a"]),
        ("(x, {'a': x})", 2, []),
    ],
)
def test_what_inputs_may_return(tmp_path, returned, args, kwargs):
    text = (
        HEAD + f"def model():\n    return nn.Identity()\ndef inputs(B=2):\n    x = y = torch.zeros(B)\n    return {returned}\n"
    )
    built = load_subject(write(tmp_path, text)).build()
    assert len(built.args) == args
    assert list(built.kwargs) == kwargs


def test_types_of_inputs(tmp_path):
    text = TYPED + textwrap.dedent("""
        class M(nn.Module):
            def forward(
                self, a: Int[Tensor, "B T"], b: Bool[Tensor, "B"], c: BFloat16[Tensor, "T"], d: Float[Tensor, "#B 3 T+1"]
            ):
                return a
        """)
    family = load_subject(write(tmp_path, text), dtype="fp16", sizes={"B": 2, "T": 4})
    kwargs = family.build().kwargs
    assert [t.dtype for t in kwargs.values()] == [torch.int64, torch.bool, torch.bfloat16, torch.float16]
    assert [tuple(t.shape) for t in kwargs.values()] == [(2, 4), (2,), (4,), (2, 3, 5)]


def test_dtype_is_torchs_default_while_building_only(tmp_path):
    family = load_subject(write(tmp_path, BUILD), dtype="bf16,weights=int8")
    module, args, _ = family.build()
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16} == {args[0].dtype}
    assert torch.get_default_dtype() == torch.float32


def test_optimizer_loss_and_depth(tmp_path):
    text = BUILD.replace("F=16", "F=16, layers=3") + (
        "def optimizer(params):\n    return torch.optim.SGD(params, lr=0.5)\ndef loss(output):\n    return output.sum()\n"
    )
    family = load_subject(write(tmp_path, text))
    assert family.depth == ("layers",)
    module, args, _ = family.build(B=2, D=3, F=4)
    assert isinstance(family.optimizer(module.parameters()), torch.optim.SGD)
    assert family.loss(module(*args)).shape == ()


def test_file_runs_once_with_its_folder_on_the_path(tmp_path):
    (tmp_path / "beside.py").write_text("WIDTH = 8\n")
    (tmp_path / "count").write_text("")
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('x')\n"
    lazy = "def build(B=4, D=8):\n    from beside import WIDTH\n    return nn.Linear(D, WIDTH), (torch.zeros(B, D),), {}\n"
    path = write(tmp_path, HEAD + count + "from beside import WIDTH\n" + lazy)
    for _ in range(2):
        load_subject(path).build(B=1, D=2)
    assert (tmp_path / "count").read_text() == "x"
    import sys

    assert str(tmp_path) not in sys.path


def test_options_that_are_no_sizes_stay(tmp_path):
    family = load_subject(write(tmp_path, BUILD.replace("F=16", "F=16, act='gelu', p=0.1, flag=True")))
    assert family.sizes == {"B": 4, "D": 8, "F": 16}
    assert any("act='gelu' is no size" in n for n in family.notes)


def test_exported_program_and_notation(tmp_path):
    path = tmp_path / "program.pt2"
    path.write_bytes(b"")
    assert load_subject(str(path)) == ExportedSubject(str(path))
    graph = load_subject("X[B,D] . Y[D,F]", sizes={"B": 7})
    assert isinstance(graph, Graph)
    assert graph.sizes["B"] == 7


NO_SHAPES = MLP
WRONG = [
    ("def build(:\n", "", {}, r"model\.py:1 is not valid Python"),
    ("import nothing_of_this_name\n", "", {}, r"model\.py:1 raises ModuleNotFoundError: No module named"),
    ("x = 1\n\ny = x / 0\n", "", {}, r"model\.py:3 raises ZeroDivisionError"),
    ("raise SystemExit(3)\n", "", {}, r"model\.py:1 raises SystemExit: 3"),
    (
        "x = 1\n",
        "",
        {},
        r"has no build\(\), no model\(\) with inputs\(\), and no nn.Module class with jaxtyping annotations; it has nothing",
    ),
    (NO_SHAPES, "", {}, r"it has the classes MLP, without shapes; write build\(\), or add --model MLP --input"),
    (BUILD, ":bild", {}, r"has no 'bild'; did you mean build"),
    (BUILD, "", {"model": "Net"}, r"has no 'Net'"),
    (BUILD, ":MLP", {"model": "build"}, r"names 'MLP' and --model names 'build'"),
    (BUILD + PAIR, "", {}, r"several models: build, model; pick one with model.py:model"),
    (ANNOTATED + ANNOTATED.replace("Up", "Down"), "", {}, r"several models: Up, Down"),
    (BUILD.replace("D=8", "D=None"), "", {}, r"build\(\): the size 'D' has no base value"),
    (BUILD.replace("F=16", "F=16.0"), "", {}, r"the default F=16.0 is not a whole number; write F=16"),
    (HEAD + "def build(**sizes):\n    pass\n", "", {}, r"takes \*\*sizes and names no sizes"),
    (PAIR.replace("inputs(B=4, D=8)", "inputs(B=4, D=9)"), "", {}, r"D is 8 in model\(\) and 9 in inputs\(\)"),
    (MLP + "net = MLP(1, 2)\n", ":net", {}, r"net in .* is an object of type MLP, not a class or function"),
    (MLP, ":MLP", {}, r"the argument 'x' of MLP.forward has no shape; annotate it"),
    (MLP, ":MLP", {"input": ["x: [B, Q]"]}, r"MLP: the constructor parameter 'D' has no size; give it a default, --size D="),
    (MLP, ":MLP", {"input": ["y: [B, D]"]}, r"MLP.forward has no argument 'y'; known: x"),
    (MLP, ":MLP", {"input": ["x = [B, D]"]}, r"cannot read --input 'x = \[B, D\]'"),
    (MLP, ":MLP", {"input": ["x: bf17[B, D]"]}, r"unknown data type 'bf17'; did you mean"),
    (MLP, ":MLP", {"input": ["x: int4[B, D]"]}, r"an input cannot be int4"),
    (MLP, ":MLP", {"input": ["x: [B, open('f')]"]}, r"is no dimension"),
    (BUILD, "", {"dtype": "int8"}, r"torch builds no modules in int8; write --dtype bf16,weights=int8"),
    (BUILD, "", {"dtype": "bf16,wights=int8"}, r"cannot read 'wights=int8'"),
    (BUILD, "", {"sizes": {"X": 3}}, r"has no size 'X'; known: B, D, F"),
    (BUILD, "", {"sizes": {"B": 0}}, r"B=0 is not a whole number"),
    (BUILD, "", {"sizes": {"B": -3}}, r"B=-3 is not a whole number"),
    (BUILD, "", {"sizes": {"B": 10**15}}, r"B=1000000000000000 is not a whole number from 1 to 10\*\*12"),
    (ANNOTATED.replace('"B D"', '"B ..."'), "", {}, r"dimension '...' of forward argument 'x' has no single name"),
]


@pytest.mark.parametrize(("text", "subject", "options", "says"), WRONG)
def test_refusals(tmp_path, text, subject, options, says):
    with pytest.raises(CostirError, match=says) as caught:
        load_subject(write(tmp_path, text) + subject, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("1", "returned an object of type int"),
        ("(1, (), {})", "gave an object of type int in the place of the model"),
        ("(nn.ReLU(), torch.zeros(1))", "returned an object of type tuple"),
    ],
)
def test_build_that_returns_something_else(tmp_path, returned, says):
    family = load_subject(write(tmp_path, HEAD + f"def build(B=4):\n    return {returned}\n"))
    with pytest.raises(LoadError, match=says):
        family.build()


def test_no_such_file(tmp_path, monkeypatch):
    write(tmp_path, BUILD)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError, match=r"no such file: 'modle.py', and it is no notation; did you mean model.py"):
        load_subject("modle.py")
    with pytest.raises(LoadError, match=r"no such file: 'modle.py:Net'.*did you mean model.py"):
        load_subject("modle.py:Net")
    with pytest.raises(LoadError, match="no such file: '', and it is no notation; a notation string has brackets"):
        load_subject("")
    with pytest.raises(LoadError, match="no such file"):
        load_subject("x" * 5000)
    with pytest.raises(LoadError, match=r"is no .py, .json or .pt2 file"):
        load_subject(write(tmp_path, "", "notes.txt"))
    with pytest.raises(LoadError, match=r"a notation string has no train phase"):
        load_subject("X[B,D] . Y[D,F]", phase="train")


@pytest.mark.parametrize(
    ("text", "sizes", "value"),
    [
        ("T + 1", {"T": 4}, 5),
        ("2*D", {"D": 3}, 6),
        ("D // N", {"D": 7, "N": 2}, 3),
        ("D/N", {"D": 6, "N": 2}, 3),
        ("D % N", {"D": 7, "N": 4}, 3),
        ("(I - 3)//2 + 1", {"I": 10}, 4),
        ("7", {}, 7),
    ],
)
def test_dimensions_are_arithmetic(text, sizes, value):
    assert dimension(text).value(sizes) == value
    assert set(dimension(text).names) == set(sizes)


@pytest.mark.parametrize(
    "text", ["", "a.b", "f(x)", "[1]", "1.5", "True", "__import__('os')", "x if y else z", "a**b", "-a", "(" * 300]
)
def test_nothing_else_is_a_dimension(text):
    with pytest.raises(LoadError, match="is no dimension"):
        dimension(text)


def test_dimension_must_be_whole():
    with pytest.raises(SizeError, match="D/N is not whole"):
        dimension("D/N").value({"D": 7, "N": 2})
    with pytest.raises(SizeError, match="T - 9 is -5"):
        dimension("T - 9").value({"T": 4})


def test_input_flags_and_dtypes():
    assert dataclasses.astuple(read_input("x: bf16[B, T]"))[:2] == ("x", "bfloat16")
    assert read_input("[]").dims == ()
    assert split_dtype("bf16,weights=int4,kv=fp8") == ("bfloat16", "int4", "float8_e4m3fn")
    assert split_dtype("") == ("", "", "")


@pytest.mark.parametrize(
    ("file", "point"),
    [
        ("dot.py", {"N": 7}),
        ("matmul.py", {"B": 3, "D": 5, "F": 7}),
        ("mlp.py", {"B": 3, "D": 5, "F": 7}),
        ("cnn.py", {"B": 3, "I": 24, "C": 5, "V": 7}),
        ("gpt.py", {"B": 3, "T": 9, "D": 24, "N": 3, "L": 3, "V": 11}),
    ],
)
def test_examples_build_and_run(file, point):
    family = load_subject(str(EXAMPLES / file))
    assert set(point) == set(family.sizes)
    for at in (family.sizes, point):
        with FakeTensorMode(), torch.no_grad():
            module, args, kwargs = family.build(**at)
            module(*args, **kwargs)
    module, args, kwargs = family.build(**point)
    assert module(*args, **kwargs) is not None


def test_the_gpt_is_the_lessons():
    """Parameters by hand: embeddings, two blocks of 12 D**2 + 13 D, the last norm, the head."""
    family = load_subject(str(EXAMPLES / "gpt.py"))
    D, V, T = 64, 44, 96
    assert family.sizes == {"B": 32, "T": T, "D": D, "N": 4, "L": 2, "V": V}
    module, args, kwargs = family.build(B=2)
    block = 4 * (D * D + D) + (D * 4 * D + 4 * D) + (4 * D * D + D) + 4 * D
    assert sum(p.numel() for p in module.parameters()) == V * D + T * D + 2 * block + 2 * D + D * V + V
    loss = module(*args, **kwargs)
    loss.backward()
    assert isinstance(family.optimizer(module.parameters()), torch.optim.AdamW)
    with pytest.raises(ValueError, match="at most 96"):
        module(torch.zeros(1, 97, dtype=torch.long))
