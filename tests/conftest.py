"""Golden files: text that a reader sees, compared whole. `pytest --update-golden` rewrites them.

Hypothesis draws the same examples in every run, so that a change fails or passes for what it is; new ones are drawn by
`HYPOTHESIS_PROFILE=random pytest`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("random", print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/*")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text): the text must be that of tests/golden/name."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        if not path.is_file():
            pytest.fail(f"no {path}; run pytest --update-golden, then read it")
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; pytest --update-golden rewrites it"

    return check
