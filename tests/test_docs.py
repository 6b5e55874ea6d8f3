"""What README and docs show is what costir prints: examples are run, outputs compared. `make docs` refreshes them."""

from __future__ import annotations

import difflib
import re
import shutil
from pathlib import Path

import doc_examples
import pytest

import costir.ops  # noqa: F401 (fills the table)
from costir.ops import registry

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    p.relative_to(ROOT) for p in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md"))
)
PICTURES = {"llama3-8b.svg": ["analyze", "examples/llama3-8b", "--keep", "B,T", "--chip", "h100"]}


@pytest.fixture(autouse=True)
def _plain(monkeypatch, tmp_path):
    """The same output everywhere, and nothing left behind."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # no chip of this machine
    monkeypatch.setenv("COSTIR_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("costir.ops.registry.RULES", dict(registry.RULES))  # examples register rules


@pytest.fixture
def folder(tmp_path):
    """A folder with the examples in it, where commands may write."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_examples_print_what_is_shown(document, folder, request):
    path = ROOT / document
    shown = path.read_text(encoding="utf-8")
    now = doc_examples.refreshed(shown, folder)
    if request.config.getoption("--update-golden") and now != shown:
        path.write_text(now, encoding="utf-8")
        return
    difference = "\n".join(
        difflib.unified_diff(shown.splitlines(), now.splitlines(), str(document), "printed now", lineterm="", n=1)
    )
    assert now == shown, f"{difference}\nmake docs rewrites it"


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_say_what_is_drawn_now(name, folder, monkeypatch, request):
    """Compared by their texts: coordinates may differ in the last digit from machine to machine."""
    from costir import cli

    monkeypatch.chdir(folder)
    assert cli.main([*PICTURES[name], "--plot", f"roofline={folder / name}"]) == 0
    path = ROOT / "docs" / "img" / name
    if request.config.getoption("--update-golden") and (not path.exists() or texts(path) != texts(folder / name)):
        path.parent.mkdir(exist_ok=True)
        shutil.copy(folder / name, path)
    assert texts(path) == texts(folder / name), "make docs rewrites it"


def texts(path: Path) -> list[str]:
    """The words in a picture: matplotlib draws letters as paths and writes the text beside them."""
    found = re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"))
    assert found
    return found


def test_pictures_shown_exist_and_all_are_shown():
    shown = {m for d in DOCUMENTS for m in re.findall(r"docs/img/([\w.-]+)", (ROOT / d).read_text(encoding="utf-8"))}
    assert shown == {p.name for p in (ROOT / "docs" / "img").iterdir()} == set(PICTURES)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_somewhere(document):
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert ((ROOT / document).parent / target).exists(), f"{document}: {target}"


def test_every_document_is_linked_from_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [str(d) for d in DOCUMENTS if str(d) != "README.md" and f"]({d})" not in readme]
    assert not missing


EXAMPLES = sorted(
    str(p.relative_to(ROOT))
    for p in (ROOT / "examples").iterdir()
    if p.is_dir() or (p.suffix == ".py" and p.name != "__init__.py")
)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run_and_nothing_in_them_is_unknown(example, capsys, monkeypatch):
    """Each file in examples/, with the command lines in its docstring besides."""
    import json

    from costir import cli

    monkeypatch.chdir(ROOT)
    assert cli.main(["analyze", example, "--chip", "h100", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["complete"]
    assert data["unknown"] == []
    assert data["totals"]["matmul_flops"]["value"] > 0
    path = ROOT / example
    for line in path.read_text().split('"""')[1].splitlines() if path.suffix == ".py" else ():
        if line.startswith("costir "):
            doc_examples.console(line, must_end_well=True)


def test_readme_commands_are_those_of_ci():
    """The second of the README's two commands, word for word, is what .ci/run runs."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = next(line for line in readme.splitlines() if line.startswith("python3 -m venv") and "pytest" in line)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_a_wrong_example_would_be_seen(tmp_path):
    wrong = "```console\n$ costir check 'X[B,D] . Y[D,F]' 'flops = 2*B*D*F'\nwrong\n```\n```python\n>>> 1 + 1\n3\n```\n"
    now = doc_examples.refreshed(wrong, tmp_path)
    assert "wrong" not in now
    assert "right" in now
    assert ">>> 1 + 1\n2\n" in now
    with pytest.raises(ZeroDivisionError):
        doc_examples.refreshed("```python\n1 / 0\n```\n", tmp_path)
    with pytest.raises(AssertionError, match="no size"):
        doc_examples.refreshed("```sh\ncostir analyze 'X[B,D] . Y[D,F]' --size Q=3\n```\n", tmp_path)


def test_blocks_are_found_with_their_lines():
    found = doc_examples.blocks("a\n\n```sh\nls\n```\n\n```python\nx = 1\n```\n")
    assert [(b.language, b.text, b.line) for b in found] == [("sh", "ls\n", 4), ("python", "x = 1\n", 8)]
