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

from costir import cli

settings.register_profile("same", derandomize=True)
settings.register_profile("random", print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/*")
    parser.addoption("--slow", action="store_true", help="run what tests/slow.txt lists, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of tests/slow.txt, but for those that were asked for by file or name."""
    if config.getoption("--slow") or config.args != config.getini("testpaths"):
        return
    slow = set((Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").splitlines())
    left_out = [i for i in items if i.nodeid.removeprefix("tests/") in slow]
    missing = slow - {i.nodeid.removeprefix("tests/") for i in left_out}
    assert not missing, f"tests/slow.txt names tests that are none: {missing}"
    config.hook.pytest_deselected(items=left_out)
    items[:] = [i for i in items if i not in left_out]


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


@pytest.fixture
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Progress in exercises is kept in a folder of the test's own."""
    monkeypatch.setenv("COSTIR_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")


@pytest.fixture
def exercise(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """exercise("show", "rl.q1"): runs `costir exercise` with these arguments; gives exit code, output and error output."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.main(["exercise", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call
