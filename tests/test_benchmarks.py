"""Every benchmark imports and runs in its tiny mode, and gives numbers; what it measures is in benchmarks/README.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
BENCHMARKS = sorted(p.name for p in FOLDER.glob("*.py") if p.name != "common.py")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_runs(name):
    found = subprocess.run(
        [sys.executable, FOLDER / name, "--tiny", "--json"], capture_output=True, text=True, timeout=300, check=False
    )
    assert found.returncode == 0, found.stderr
    numbers = json.loads(found.stdout)
    assert numbers
    assert all(n > 0 for n in numbers.values())


def test_readme_describes_every_benchmark():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [n for n in BENCHMARKS if f"`{n}`" not in readme] == []
