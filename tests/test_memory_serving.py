"""Peak memory of steps of serving, against the real allocations of torch's CPU allocator."""

import json

import pytest
from memory_oracle import real_serving_peak
from serving_models import TINY

import costir
from costir import memory, trace
from costir.cli import main
from costir.errors import CostirError
from costir.load import load_subject

transformers = pytest.importorskip("transformers")
FAMILY = """
import torch
from torch import nn
class Step(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.k = nn.Linear(D, D, bias=False)
    def forward(self, x, k_cache, v_cache):
        k = torch.cat([k_cache, self.k(x)[:, None]], 2)
        v = torch.cat([v_cache, x[:, None]], 2)
        return (x[:, None] @ k.mT).softmax(-1) @ v, k, v
def build(B=4, S=96, D=40):
    return Step(D), (torch.randn(B, 1, D), torch.randn(B, 1, S, D), torch.randn(B, 1, S, D)), {}
"""


@pytest.mark.parametrize(("name", "phase", "kind"), [
    ("llama", "decode", "dynamic"), ("llama", "decode", "static"), ("llama", "prefill", "dynamic"),
    ("mistral", "decode", "dynamic"), ("gpt2", "decode", "dynamic"),
])  # fmt: skip
def test_a_step_holds_what_torchs_allocator_gives_it(name, phase, kind, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY[name]))
    family = load_subject(str(tmp_path), phase=phase, cache=kind)
    sizes = {**family.sizes, "B": 8, "T" if phase == "prefill" else "S": 60}
    with trace.no_collection():
        run = trace.run(family, sizes)
    found = memory.moments(run)
    assert max(m.total for m in found) == pytest.approx(real_serving_peak(family, sizes), abs=64)
    left = sum(run.memories[w.tensor.memory] for w in run.cache)
    assert found[-1].parts["cache"] == left
    assert found[0].parts["cache"] > 0 or phase == "prefill"


@pytest.fixture(scope="module")
def analysed(tmp_path_factory):
    path = tmp_path_factory.mktemp("serving") / "step.py"
    path.write_text(FAMILY)
    return str(path), costir.analyze(str(path), phase="decode")


@pytest.mark.parametrize(
    "point", [{"B": 4, "S": 96, "D": 40}, {"B": 30, "S": 500, "D": 24}, {"B": 3, "S": 7, "D": 60}], ids=str
)
def test_formulas_at_other_sizes(point, analysed):
    path, a = analysed
    family = load_subject(path, phase="decode")
    assert a.memory.at(**point).total == pytest.approx(real_serving_peak(family, point), abs=64)
    assert sum(a.memory.parts.values()).expand() == a.memory.formula


def test_the_command_line(analysed, capsys):
    path, a = analysed
    assert main(["solve", path, "--phase", "decode", "--fits", "--chip", "h100", "--size", "S=8k"]) == 0
    largest = a.memory.largest("B", "h100", S=8192)
    assert f"B = {largest.value}" in capsys.readouterr().out
    assert main(["analyze", path, "--phase", "decode", "--memory", "--cache", "serving"]) == 0
    assert "as the program runs, which copies its cache" in capsys.readouterr().out
    with pytest.raises(CostirError, match="not with kv=float8"):
        _ = costir.analyze(path, phase="decode", dtype="fp32,kv=fp8").memory
