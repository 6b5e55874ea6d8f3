"""The architecture as a test: the import contracts in pyproject.toml hold, and what should start fast imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "sympy", "numpy", "matplotlib", "transformers", "rich")

# Runs a statement with stdout hidden, then prints which heavy modules are loaded.
PROBE = """
import contextlib, io, sys
with contextlib.redirect_stdout(io.StringIO()):
    {statement}
print(*(m for m in {heavy} if m in sys.modules))
"""


def loaded_by(statement: str) -> list[str]:
    """The heavy modules that a statement loads in a new process."""
    code = PROBE.format(statement=statement, heavy=HEAVY)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True, timeout=120)
    return found.stdout.split()


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([tool, "--no-cache"], capture_output=True, text=True, cwd=folder, timeout=120, check=False)


@pytest.mark.parametrize(
    "statement",
    [
        "import costir",
        "import costir.load",
        "from costir.cli import main; main(['--help'])",
        "from costir.cli import main; main(['--version'])",
        "from costir.cli import main; main(['analyze', '--help'])",
        "from costir.cli import main; main(['chips'])",
        "from costir.cli import main; main(['chips', 'h100'])",
    ],
)
def test_starts_without_heavy_imports(statement):
    allowed = {"sympy"} if statement == "import costir.load" else set()
    assert set(loaded_by(statement)) <= allowed


def test_a_notation_needs_no_torch():
    statement = "from costir.cli import main; main(['analyze', 'X[B,D] . Y[D,F] -> Z[B,F]', '--chip', 'tpu_v5e'])"
    assert "torch" not in loaded_by(statement)


@pytest.mark.parametrize("name", ["torch", "sympy"])
def test_the_probe_sees_a_heavy_import(name):
    assert name in loaded_by(f"import {name}")


def test_contracts_hold():
    found = lint_imports(ROOT)
    assert found.returncode == 0, found.stdout[found.stdout.find("Contracts") :]


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("ir", "from costir import render_text", "Imports go one way"),
        ("errors", "def late():\n    from costir import symbolic", "Imports go one way"),
        ("solve", "import torch", "Only tracing and loading know torch"),
        ("report", "import matplotlib", "Drawing is done in one place"),
    ],
)
def test_a_wrong_import_breaks_a_contract(tmp_path, module, line, contract):
    """The same contracts over a copy of the package with one import too many: imports inside functions count."""
    import shutil

    shutil.copytree(ROOT / "costir", tmp_path / "costir", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "costir" / f"{module}.py").open("a") as file:
        file.write(f"\n{line}\n")
    found = lint_imports(tmp_path)
    assert found.returncode != 0
    assert f"{contract} BROKEN" in " ".join(found.stdout.split())


def test_no_module_is_called_like_a_public_name():
    """Importing a module `costir.x` makes `costir.x` that module, whatever the public name `x` was."""
    import costir

    modules = {p.stem for p in (ROOT / "costir").iterdir()}
    assert not modules & {*costir.__all__}
