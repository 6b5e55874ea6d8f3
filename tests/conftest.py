"""Golden files: text that a reader sees, compared whole. `pytest --update-golden` rewrites them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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
