"""Runs every benchmark in a process of its own; with --write, puts the numbers into benchmarks/README.md."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

from common import run

HERE = Path(__file__).parent
README = HERE / "README.md"
NAMES = ("llama_vs_flop_counter.py", "evaluate_points.py", "memory.py", "startup.py")
NUMBERS = re.compile(r"(?<=<!-- numbers: begin -->\n).*(?=<!-- numbers: end -->)", re.S)


def main(tiny: bool = False) -> dict[str, float]:
    """The numbers of all benchmarks, one process after the other."""
    numbers: dict[str, float] = {}
    for name in NAMES[-1:] if tiny else NAMES:
        command = [sys.executable, str(HERE / name), "--json", *(["--tiny"] if tiny else [])]
        numbers |= json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return numbers


def table(numbers: dict[str, float]) -> str:
    """A Markdown table of the numbers, and where they were measured."""
    import torch
    import transformers

    rows = "".join(f"| {name} | {value:.3g} |\n" for name, value in numbers.items())
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    return f"\n| | |\n|---|---|\n{rows}\n{versions}, {platform.machine()}.\n\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        README.write_text(NUMBERS.sub(lambda _: table(main()), README.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        run(main, __doc__)
