"""Critical sizes of models that branch: none by the formulas of a branch that the model does not take there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import Run
from torch import nn

import costir
from costir.build import build
from costir.document import document

CHIP = "tpu_v5e@book"


def narrow_or_wide(limit: int) -> Any:
    """Up to `limit` rows through a small matrix, more through a large one, all in bf16."""

    def model(B=1024, D=512):
        def run(self, x):
            return self.small(x) if x.shape[0] <= limit else self.large(x)

        kind = {"bias": False, "dtype": torch.bfloat16}
        layers = {"small": nn.Linear(D, 2 * D, **kind), "large": nn.Linear(D, 32 * D, **kind)}
        return Run(run, **layers), (torch.randn(B, D, dtype=torch.bfloat16),), {}

    return model


def crossing(D: int, out: int) -> float:
    """B at which 2*B*D*F FLOPs take as long as the bytes of x, w and y: by hand."""
    rate, bandwidth = 1.97e14, 8.2e11
    return 2 * D * out / bandwidth / (2 * D * out / rate - 2 * (D + out) / bandwidth)


@pytest.mark.parametrize("limit", [100, 450, 800])
def test_a_critical_size_lies_in_the_branch_that_it_is_solved_in(limit: int) -> None:
    small, large = crossing(512, 1024), crossing(512, 16384)
    assert 450 < large < 500 < 800 < small < 900
    found = costir.analyze(narrow_or_wide(limit)).on(CHIP).critical("B")
    if limit < large:  # the large matrix is used there
        assert found.at_base == pytest.approx(large, rel=1e-6)
        assert found.note.endswith(f"in the branch where B > {limit}")
    else:  # neither branch has one: the large matrix's is below, the small one's above where the branch ends
        assert found.at_base is None
        assert f"outside B > {limit}" in found.reason


def test_another_branch_is_used_where_the_base_has_none() -> None:
    small = crossing(512, 1024)
    found = costir.analyze(narrow_or_wide(900)).on(CHIP).critical("B")
    assert found.at_base == pytest.approx(small, rel=1e-6)
    assert found.note == "in the branch where B <= 900; none where B > 900"


def test_the_report_says_which_branch_is_shown() -> None:
    analysis = costir.analyze(narrow_or_wide(100))
    text = "\n".join(f"{f.label} {f.text}" for f in document(build(analysis, [analysis.on(CHIP).chip])).facts)
    assert "branches: operators, times and what holds are those where B > 100, as at the base sizes" in text
    assert "totals and sweeps are those where B <= 100, too" in text
    assert "in the branch where B > 100" in text
