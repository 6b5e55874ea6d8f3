"""What a command costs before it does anything: wall seconds of `costir --help` and `costir chips`, each in a new process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from common import run

COMMANDS = {"costir --help": ["--help"], "costir chips": ["chips"], "costir chips h100": ["chips", "h100"]}


def seconds(arguments: list[str], environment: dict[str, str]) -> float:
    """Wall time of one command."""
    before = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "costir.cli", *arguments], env=environment, stdout=subprocess.DEVNULL, check=True, timeout=60
    )
    return time.perf_counter() - before


def main(tiny: bool = False) -> dict[str, float]:
    """The median of several starts, with bytecode cached as in any installation, and of python itself."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": cache}
        numbers = {}
        for name, arguments in COMMANDS.items():
            seconds(arguments, environment)  # writes the bytecode
            numbers[f"{name}, s"] = statistics.median(seconds(arguments, environment) for _ in range(1 if tiny else 11))
    return numbers


if __name__ == "__main__":
    run(main, __doc__)
