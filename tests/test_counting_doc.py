"""docs/counting.md holds the rules as they are."""

from pathlib import Path

import pytest

from costir.ops.registry import RULES
from costir.ops.table import counting_table, with_table

DOCUMENT = Path(__file__).parent.parent / "docs" / "counting.md"


def test_table_agrees_with_the_rules():
    text = DOCUMENT.read_text()
    assert with_table(text) == text, "run: python -m costir.ops.table"


def test_every_rule_is_in_the_table_once():
    table = counting_table()
    cells = [cell for line in table.splitlines()[2:] for cell in line.split(" | ")[-1].rstrip(" |").split("` `")]
    listed = [n for cell in cells for n in _unfolded(cell.strip("` "))]
    assert sorted(listed) == sorted(op.removeprefix("aten.") for op in RULES)


def _unfolded(name):
    return (name[:-3], name[:-3] + "_") if name.endswith("(_)") else (name,)


def test_document_without_markers_is_refused():
    with pytest.raises(ValueError, match="table: begin"):
        with_table("nothing here")
