"""What people get wrong in Python, and what they see: one sentence each. And what an analysis prints about itself."""

import numpy as np
import pytest
import torch
from torch import nn

import costir
from costir.cli import main
from costir.errors import ChipError, CostirError, LoadError, SizeError
from costir.ops.registry import find

NOT_SIZES = ["x", None, True, 1.5, float("nan"), float("inf"), 0, 10**13]


@pytest.fixture(scope="module")
def matmul():
    return costir.analyze("X[B,D] . Y[D,F] -> Z[B,F]")


@pytest.mark.parametrize("value", NOT_SIZES, ids=str)
def test_what_is_no_size(matmul, value):
    with pytest.raises(SizeError, match="is not a whole number from 1 to"):
        matmul.at(B=value)
    with pytest.raises(SizeError, match="is not a whole number from 1 to"):
        matmul.on("h100").at(B=value)


def test_a_list_is_no_size_but_many_on_a_chip(matmul):
    with pytest.raises(SizeError, match="is not a whole number from 1 to"):
        matmul.at(B=[1])
    on = matmul.on("h100")
    many = on.at(B=[1, 64])
    assert list(many.memory) == [on.at(B=1).memory, on.at(B=64).memory]
    with pytest.raises(SizeError, match="B"):
        on.at(B=[1, 0])


def test_what_is_a_size(matmul):
    assert matmul.at(B=np.int64(3)).flops == matmul.at(B=3.0).flops == matmul.at(B=3).flops


def test_arrays_of_no_numbers(matmul):
    with pytest.raises(SizeError, match=r"B=.* is neither a number nor an array of numbers"):
        matmul.evaluate("flops", B="x")


@pytest.mark.parametrize("chip", [None, 3, ["h100"]], ids=str)
def test_what_is_no_chip(matmul, chip):
    with pytest.raises(ChipError, match="is no chip; give a name"):
        matmul.on(chip)


def test_an_analysis_prints_one_line(matmul):
    assert repr(matmul) == "<costir analysis of X[B,D] . Y[D,F] -> Z[B,F], forward, 1 operator, at B=1, D=4096, F=4096>"
    assert repr(matmul.keep(["B"])).endswith("at B=1>")
    assert repr(matmul.on("h100")) == repr(matmul)[:-1] + ", on h100_sxm>"
    large = costir.analyze(lambda B=2, D=8, L=3: (nn.Sequential(*[nn.Linear(D, D) for _ in range(L)]), (torch.ones(B, D),), {}))
    for shown in (large, large.on("h100")):
        assert len(repr(shown).splitlines()) == 1
        assert len(repr(shown)) < 200


class Scores(nn.Module):
    def forward(self, x, *, mask):
        return x @ x.T + mask


def test_example_inputs_by_keyword():
    x, mask = torch.ones(2, 8), torch.zeros(2, 2)
    by_dict = costir.analyze(Scores(), {"x": x, "mask": mask}, input="x: [2, D]")
    assert costir.analyze(Scores(), x=x, mask=mask, input="x: [2, D]").flops == by_dict.flops


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: costir.analyze(nn.Linear(4, 4), x=torch.ones(2, 4)), "neither analyze.* nor forward.* of Linear has 'x'"),
        (lambda: costir.analyze(nn.Linear(4, 4), input=torch.ones(2, 4)), "input= is the text of shapes"),
        (lambda: costir.analyze(Scores(), torch.ones(2, 4), mask=torch.ones(2, 2)), "given twice, once as 'mask'"),
        (lambda: costir.analyze("X[B]", phse="forward"), "no option 'phse'; did you mean phase"),
        (lambda: costir.analyze("X[B,D]", names={"B": "C"}), "names= renames the symbols of an exported program"),
    ],
)
def test_keywords_that_mean_nothing(call, said):
    with pytest.raises(CostirError, match=said):
        call()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    dims = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("length")},)

    class Row(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(8, 4)

        def forward(self, x):
            return self.l(x)

    found = torch.export.export(Row(), (torch.randn(5, 7, 8),), dynamic_shapes=dims)
    path = tmp_path_factory.mktemp("program") / "row.pt2"
    torch.export.save(found, path)
    return found, str(path)


def test_symbols_by_the_names_of_their_dims(program):
    found = costir.analyze(program[0], names={"batch": "B", "length": "T"})
    assert list(found.sizes.items()) == [("B", 5), ("T", 7)]
    s = [str(n) for n in costir.analyze(program[0]).sizes]
    assert found.flops == costir.analyze(program[0], names={s[0]: "B", s[1]: "T"}).flops
    assert [str(n.meta["costir"].flops) for n in found.graph_module.graph.nodes if "costir" in n.meta][-1].count("B*T")
    with pytest.raises(LoadError, match=r"two names to the symbol s\d+ \(dimension 0 of x\)"):
        costir.analyze(program[0], names={"batch": "B", s[0]: "C"})


def test_an_unknown_symbol_is_answered_with_places(program):
    with pytest.raises(LoadError, match=r"no symbol 'b' .*it has s\d+ \(dimension 0 of x\), s\d+ \(dimension 1 of x\)"):
        costir.analyze(program[1], names={"b": "B"})


def test_new_names_on_the_command_line(program, capsys):
    s = list(costir.analyze(program[1]).sizes)
    assert main(["analyze", program[1], "--name", f"{s[0]}=B,{s[1]}=T", "--size", "B=3"]) == 0
    assert "at       B = 3, T = 7" in capsys.readouterr().out
    for bad, said in (
        ("b=B", "(dimension 0 of x)"),
        (f"{s[0]}", "is not NAME=VALUE"),
        (f"{s[0]}=B,{s[0]}=C", "twice"),
        (f"{s[0]}=a b", "is not a size name"),
    ):
        assert main(["analyze", program[1], "--name", bad]) == 2
        assert said in capsys.readouterr().err
    assert main(["analyze", "X[B,D]", "--name", "B=C"]) == 2
    assert "names=" in capsys.readouterr().err


def test_rules_are_named_by_what_they_are_registered_for():
    a = costir.analyze(lambda B=4, D=8: (nn.Sequential(nn.Linear(D, D), nn.GELU()), (torch.ones(B, D),), {}))
    assert {op.rule for op in a.nodes} == {"aten.t", "aten.addmm", "aten.gelu"}
    for op in a.nodes:
        assert find(op.rule) is find(op.op)
    annotated = [n.meta["costir"] for n in a.graph_module.graph.nodes if n.op == "call_function"]
    assert {c.rule for c in annotated} == {op.rule for op in a.nodes}
