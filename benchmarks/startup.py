"""What a command costs before it does anything: `costir --help` and `costir chips`, each in a new process."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from common import run

COMMANDS = {"costir --help": ["--help"], "costir chips": ["chips"], "costir chips h100": ["chips", "h100"]}


def seconds(arguments: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall time and CPU time of one command, started as the installed script starts it."""
    script = "import sys; from costir.cli import main; sys.exit(main())"
    before, cpu = time.perf_counter(), _children()
    command = [sys.executable, "-c", script, *arguments]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=60)
    return time.perf_counter() - before, _children() - cpu


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(tiny: bool = False) -> dict[str, float]:
    """The median of several starts, with bytecode cached as in any installation, and of python itself."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": cache}
        numbers = {}
        for name, arguments in COMMANDS.items():
            seconds(arguments, environment)  # writes the bytecode
            taken = [seconds(arguments, environment) for _ in range(1 if tiny else 11)]
            for kind, values in zip(("wall", "CPU"), zip(*taken, strict=True), strict=True):
                numbers[f"{name}, {kind} s"] = statistics.median(values)
    return numbers


if __name__ == "__main__":
    run(main, __doc__)
