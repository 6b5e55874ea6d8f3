"""Lint, format and types are tests, so that one command checks all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "--no-cache", "--output-format", "concise", "."),
        ("ruff", "format", "--no-cache", "--check", "."),
        ("mypy", "--strict"),
    ],
    ids=lambda c: " ".join(c[:2]),
)
def test_tool_has_nothing_to_say(command):
    tool = Path(sys.executable).with_name(command[0])
    found = subprocess.run([tool, *command[1:]], capture_output=True, text=True, cwd=ROOT, timeout=600, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
