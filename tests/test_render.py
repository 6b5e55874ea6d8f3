"""Formats: what is printed is read back by other tools and compared with the report."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
import sympy as sp
from report_samples import SIZES, sample, with_unknown

import costir
from costir import layout, page, render, render_markup, render_text, views
from costir.build import build
from costir.errors import CostirError
from costir.hardware import load_chip

ROUND = str(Path(__file__).parent / "golden" / "round.toml")
SCHEMA = json.loads((Path(costir.__file__).parent / "schema.json").read_text())
FORMATS = ("text", "markdown", "json", "csv", "latex", "html")


def one(**options):
    return build(sample(), [load_chip(ROUND)], **options)


@pytest.mark.parametrize("name", FORMATS)
def test_golden(golden, name):
    text = render.render(views.analysis(one()), name).replace(costir.__version__, "VERSION")
    golden(f"analyze.{name}", text)


def test_golden_of_the_other_views(golden):
    golden("solve.text", render.render(views.solution(one())))
    golden("explain.text", render.render(views.explain(one(), "up")))
    golden("sweep.text", render.render(views.analysis(one(sweep=[{"T": t} for t in (32, 64, 2048)]))))
    golden("two_chips.text", render.render(views.analysis(build(sample(), [load_chip(ROUND), load_chip("tpu_v5e@book")]))))
    golden("unknown.text", render.render(views.analysis(build(with_unknown(), [load_chip(ROUND)]))))
    golden("kept.text", render.render(views.analysis(build(sample(), fixed={"V": 1000}), brief=False)))


def test_no_format_of_that_name():
    with pytest.raises(CostirError, match="formats: text, markdown"):
        render.render(views.analysis(one()), "yaml")


# ------------------------------------------------------------------------------------------------------------------ json


@pytest.mark.parametrize(
    "report",
    [one(), one(sweep=[{"T": 64}]), build(sample()), build(with_unknown(), [load_chip(ROUND), load_chip("tpu_v5e")])],
    ids=["chip", "sweep", "no chip", "unknown"],
)
def test_json_keeps_its_schema(report):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    data = json.loads(render.render(views.analysis(report), "json"))
    jsonschema.validate(data, SCHEMA)
    assert data["schema"] == SCHEMA["$id"] == render.SCHEMA


def test_the_schema_refuses_what_is_wrong():
    data = json.loads(render.render(views.analysis(one()), "json"))
    del data["totals"]["flops"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMA)


def test_json_formulas_give_the_json_values():
    data = json.loads(render.render(views.analysis(one()), "json"))
    quantities = [
        *data["totals"].values(),
        *(v for n in data["nodes"] for v in n.values() if isinstance(v, dict) and "expr" in v),
    ]
    assert len(quantities) > 60
    for q in quantities:
        if q["expr"] is not None:
            assert float(sp.sympify(q["expr"]).subs(SIZES)) == pytest.approx(q["value"], rel=1e-12)
    whole, *others = data["thresholds"]
    assert (whole["path"], whole["for"]) == ("whole", "tokens")
    assert {t["path"] for t in others} >= {"layers.*.mlp.up", "layers.*.mlp.down", "head"}


def test_explain_json_keeps_the_nodes_only():
    data = json.loads(render.render(views.explain(one(), "mlp.up"), "json"))
    assert [n["path"] for n in data["nodes"]] == ["layers.*.mlp.up"]
    assert data["nodes"][0]["inputs"] == ["self: bf16[B*T, D]", "mat2: bf16[D, F], weight"]


# ------------------------------------------------------------------------------------------------------------------- csv


def test_csv_has_a_line_per_operator_and_the_same_numbers():
    report = build(with_unknown(), [load_chip(ROUND)])
    rows = list(csv.DictReader(io.StringIO(render.render(views.analysis(report), "csv"))))
    assert len(rows) == len(report.rows)
    assert sum(int(r["flops"] or 0) for r in rows) == report.totals["flops"].number
    assert {r["schema"] for r in rows} == {"costir/1"}
    (scan,) = [r for r in rows if r["op"] == "mylib.scan.default"]
    assert (scan["flops"], scan["status"], scan["time_round"]) == ("", "unknown", "")


def test_csv_of_a_sweep_has_a_line_per_point():
    report = one(sweep=[{"T": t, "B": b} for t in (32, 64) for b in (1, 2)])
    rows = list(csv.DictReader(io.StringIO(render.render(views.analysis(report), "csv"))))
    assert [(r["T"], r["B"]) for r in rows] == [("32", "1"), ("32", "2"), ("64", "1"), ("64", "2")]
    assert [int(r["flops"]) for r in rows] == [p.totals["flops"] for p in report.sweep]


# ----------------------------------------------------------------------------------------------------- markdown and html


def test_markdown_tables_are_square():
    lines = [ln for ln in render.render(views.analysis(one()), "markdown").splitlines() if ln.startswith("|")]
    assert len(lines) > 8
    assert len({len(re.split(r"(?<!\\)\|", ln)) for ln in lines}) == 1


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[int] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta",):
            self.open.append(tag)
        if tag == "tr":
            self.cells.append(0)
        if tag in ("td", "th"):
            self.cells[-1] += 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_closes_every_tag_and_escapes():
    strange = build(sample(notes=("a <b> & c",)), [load_chip(ROUND)])
    text = render.render(views.analysis(strange), "html")
    tags = _Tags()
    tags.feed(text)
    assert tags.open == []
    assert len(set(tags.cells)) == 1
    assert "a &lt;b&gt; &amp; c" in text


# ----------------------------------------------------------------------------------------------------------------- latex


def test_latex_is_balanced_and_its_mathematics_parses():
    """No TeX is needed: braces, environments, columns and escapes are checked; matplotlib reads the formulas."""
    from matplotlib.mathtext import MathTextParser

    text = render.render(views.analysis(build(with_unknown(), [load_chip(ROUND)])), "latex")
    plain = re.sub(r"\\[\\{}$&#%_]", "", text)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert "_" not in re.sub(r"\$[^$]*\$", "", plain)
    still_open = []
    for which, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        assert which == "begin" or still_open.pop() == name
        still_open += [name] if which == "begin" else []
    assert not still_open
    layout_of = re.search(r"\\begin\{longtable\}\{(.*)\}$", text, re.M)[1]
    columns = len(re.sub(r">\{\\raggedright\\arraybackslash\}p\{[\d.]+\\linewidth\}", "p", layout_of))
    rows = [ln for ln in text.splitlines() if ln.endswith(r"\\")]
    assert {len(re.split(r"(?<!\\)&", ln)) for ln in rows} == {columns}
    parser = MathTextParser("path")
    formulas = re.findall(r"\$[^$]+\$", text)
    assert len(formulas) > 10
    for formula in formulas:
        parser.parse(formula)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b%", r"a\_b\%"),
        ("50 & {x}", r"50 \& \{x\}"),
        ("a\\b", r"a\textbackslash{}b"),
        (">= 3", r"$\geq$ 3"),
        ("x^2~", r"x\textasciicircum{}2\textasciitilde{}"),
        ("B = 4, d_ff = 32", "$B = 4$, $d_{ff} = 32$"),
        ("tokens < 42.97", r"$\mathit{tokens} < 42.97$"),
        ("T <= 1024 (the model's longest)", r"$T \leq 1024$ (the model's longest)"),
        ("D % N == 0", r"$D \;\mathrm{mod}\; N = 0$"),
        ("67*D*F > 49470*D + 2*B**2", "$67 D F$ $>$ $49470 D + 2 B^{2}$"),
        ("attention full T x T", r"attention full $T \times T$"),
        ("12 x transformer.h.*", r"$12 \times$ transformer.h.*"),
        ("L - 1 x *.mlp", r"$L - 1 \times$ *.mlp"),
        ("*.ff.* mm and 1 more", "*.ff.* mm and 1 more"),
        ("2.6 us: memory binds", r"2.6 $\mu$s: memory binds"),
        ("h100 -> h100_sxm", r"h100 $\to$ h100\_sxm"),
        ("a step, read once", "a step, read once"),
    ],
)
def test_latex_escapes(text, expected):
    assert render_markup.tex(text) == expected


def test_latex_fits_a_page():
    """Ten columns do not fit an upright page: names and formulas break, in small print, on a page of its own."""
    wide = render.render(views.analysis(build(with_unknown(), [load_chip(ROUND)])), "latex")
    assert wide.startswith("% in the preamble: \\usepackage{array,longtable,pdflscape}\n")
    assert wide.index(r"\begin{landscape}") < wide.index(r"\scriptsize") < wide.index(r"\begin{longtable}")
    assert wide.index(r"\endhead") < wide.index(r"\end{longtable}") < wide.index(r"\end{landscape}")
    shares = [float(x) for x in re.findall(r"p\{([\d.]+)\\linewidth\}", wide)]
    assert len(shares) == 3
    assert sum(shares) < 0.6
    table = wide[wide.index(r"\begin{longtable}") :]
    assert r"\left(" not in table[: table.index(r"\end{longtable}")]  # between these brackets no line may end
    assert " & $L$ & " in table
    narrow = page.Document("t", (), (page.Table((layout.Column("x"), layout.Column("y", True)), ()),))
    text = render_markup.latex_document(narrow)
    assert r"\begin{tabular}{lr}" in text
    assert "preamble" not in text
    assert "landscape" not in text


def test_latex_rows_do_not_start_with_an_argument():
    table = page.Table((layout.Column("x"),), (page.Entry("operator", ("*.mm",)), page.Entry("operator", ("[0]",))))
    text = render_markup.latex_document(page.Document("t", (), (table,)))
    assert "\n{}*.mm" in text
    assert "\n{}[0]" in text


# ---------------------------------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize("width", [110, 130, 160, 400])
def test_text_fits_the_terminal(width):
    lines = render_text.text(views.analysis(one()).document(), width).splitlines()
    assert max(map(len, lines)) <= width


def test_narrow_text_says_what_it_leaves_out():
    doc = views.analysis(one()).document()
    assert render_text.HIDDEN in render_text.text(doc, 100)
    assert render_text.HIDDEN not in render_text.text(doc)


def test_colours_only_where_wanted():
    doc = views.analysis(one()).document()
    plain, painted = render_text.text(doc), render_text.text(doc, color=True)
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[\d+m", "", painted).replace(" ", "") == plain.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("2*B*D + D*F + B*F", 12, ["2*B*D + D*F", "+ B*F"]),
        ("long_name*other_name", 12, ["long_name*", "other_name"]),
        ("an_unbreakable_name", 5, ["an_unbreakable_name"]),
        ("", 10, [""]),
        ("2*(B + D)**2", 6, ["2*(B +", "D)**2"]),
    ],
)
def test_formulas_break_between_names_only(text, width, expected):
    assert layout.wrap(text, width) == expected


# ------------------------------------------------------------------------------------------------------------- notebooks


def test_notebook_fragment_has_the_table_and_the_roofline():
    bare, drawn = render.notebook_html(sample()), render.notebook_html(sample(), [load_chip(ROUND)])
    assert "<table>" in bare
    assert "<svg" not in bare
    assert "<svg" in drawn
    assert "<?xml" not in drawn
