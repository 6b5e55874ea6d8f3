"""Totals term by term: they add up to the totals, and what people know by heart comes out of them."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

import costir
from costir import cli, terms, views
from costir.build import build
from costir.render import render
from costir.symbolic import Integer, evaluate, expand, size, total

ROOT = Path(__file__).parent.parent
SUBJECTS = [
    ("examples/llama3-8b", "forward"),
    ("examples/gpt2", "train"),
    ("examples/mixtral-8x7b", "forward"),
    ("examples/mlp.py", "train"),
    ("X[B,D] . Y[D,F] -> Z[B,F]", "forward"),
]


@pytest.fixture(scope="module")
def reports():
    known = {}

    def of(subject, phase):
        if (subject, phase) not in known:
            known[subject, phase] = build(costir.analyze(str(ROOT / subject) if "/" in subject else subject, phase=phase))
        return known[subject, phase]

    return of


@pytest.mark.parametrize(("subject", "phase"), SUBJECTS)
def test_terms_add_up_to_the_totals(reports, subject, phase):
    r = reports(subject, phase)
    for quantity, some in terms.by_quantity(r).items():
        assert expand(total(t.expr for t in some) - r.totals[quantity].expr) == 0, quantity
        for t in some:
            assert expand(total(p.expr for p in t.parts) - t.expr) == 0


@pytest.mark.parametrize(("subject", "phase", "factor"), [("examples/llama3-8b", "forward", 2), ("examples/gpt2", "train", 6)])
def test_two_flops_per_parameter_and_token_and_six_in_training(reports, subject, phase, factor):
    r = reports(subject, phase)
    rule = terms.thumb(r, terms.by_quantity(r)["params"])
    assert rule.factor == factor
    assert rule.grows_to == factor
    whole = rule.factor * r.totals["params"].expr + total(t.expr for t in rule.rest) + rule.attention
    assert expand(whole * size("B") * size("T") - r.totals["matmul_flops"].expr) == 0


def test_attention_equals_the_matmuls_at_eight_times_the_width(reports):
    """Of a deep gated model with F = 4*D whose heads share nothing, as the scaling book has it (chapter 4, T/(8*D))."""
    r = reports("examples/llama3-8b", "forward")
    rule = terms.thumb(r, terms.by_quantity(r)["params"])
    assert evaluate(rule.deep, {size("F"): 4 * size("D"), size("K"): size("N")}) == 8 * size("D")


def test_the_length_makes_both_sides_equal(reports):
    r = reports("examples/llama3-8b", "forward")
    rule = terms.thumb(r, terms.by_quantity(r)["params"])
    there = {size(n): Integer(v) for n, v in r.sizes.items()}
    there[size("T")] = evaluate(rule.equal_at, there)
    assert evaluate(rule.per_token - 2 * rule.attention, there) == 0


def test_parameters_that_multiply_nothing_are_named(reports):
    r = reports("examples/llama3-8b", "forward")
    rule = terms.thumb(r, terms.by_quantity(r)["params"])
    said = {str(t.expr): terms.sources(t.parts) for t in rule.rest}
    assert said["-2*D*V"] == "model: embed_tokens weight"
    assert "norm" in said["-2*D"]


def test_experts_that_are_not_chosen_are_named(reports):
    r = reports("examples/mixtral-8x7b", "forward")
    rule = terms.thumb(r, terms.by_quantity(r)["params"])
    said = {str(t.expr): terms.sources(t.parts) for t in rule.rest}
    assert "experts" in said["-6*D*E*F*L"]
    assert "experts" in said["6*D*F*L*k"]


def test_no_rule_of_thumb_without_tokens(reports):
    r = reports("X[B,D] . Y[D,F] -> Z[B,F]", "forward")
    assert terms.thumb(r, ()) is None
    text = render(views.explain(r, "total"))
    assert "rule of thumb" not in text
    assert "2*B*D*F" in text


def test_json_follows_the_schema(reports):
    data = json.loads(render(views.explain(reports("examples/llama3-8b", "forward"), "total"), "json"))
    jsonschema.validate(data, json.loads(files("costir").joinpath("schema.json").read_text()))
    assert data["rule_of_thumb"]["factor"] == {"expr": "2", "value": 2}
    assert data["terms"]["matmul_flops"][0]["expr"] == "6*B*D*F*L*T"


def test_the_command_line_shows_all_formats(capsys):
    for name in ("text", "markdown", "csv", "latex", "html"):
        assert cli.main(["analyze", "X[B,D] . Y[D,F] -> Z[B,F]", "--explain", "total", "--format", name]) == 0
        assert capsys.readouterr().out


def test_a_module_called_total_is_an_operator(tmp_path, capsys):
    file = tmp_path / "m.py"
    file.write_text(
        "import torch\nfrom torch import nn\n\n\nclass M(nn.Module):\n    def __init__(self, D):\n        super().__init__()\n"
        "        self.total = nn.Linear(D, D)\n\n    def forward(self, x):\n        return self.total(x)\n\n\n"
        "def model(D=16):\n    return M(D)\n\n\ndef inputs(B=4, D=16):\n    return torch.zeros(B, D)\n"
    )
    assert cli.main(["analyze", str(file), "--explain", "total"]) == 0
    assert "1 operator explained" in capsys.readouterr().out
