"""Several processes that form a group of torch.distributed: those that torchrun started, or as many as are started here.

    together("costir.measuring.collectives:measure", arguments, 2) -> what rank 0 returned

A task is a function `task(arguments, say)` in a module; it runs in every process, inside the group. `say` passes progress on. A
module that needs a certain backend has its name as `BACKEND`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from costir.errors import CostirError

Progress = Callable[[str, float], None]
LONGEST = 300.0  # seconds that processes may take
WAITS = timedelta(seconds=120)  # for another process that does not answer


def device() -> torch.device:
    """What this process computes on: a GPU of its own where there are GPUs and NCCL, else the CPU."""
    if torch.cuda.is_available() and dist.is_nccl_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


@contextlib.contextmanager
def group(init: str, rank: int, world: int, backend: str = "") -> Iterator[None]:
    """The process group of a backend, or of the one that is there: nccl for GPUs, gloo for CPUs."""
    here = device()
    if here.type == "cuda":
        torch.cuda.set_device(here)
    backend = backend or ("nccl" if here.type == "cuda" else "gloo")
    dist.init_process_group(backend, init, WAITS, rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


# ------------------------------------------------------------------------------------------------------ started by torchrun


def launched() -> tuple[int, int] | None:
    """Rank and number of processes where torchrun, or something that sets its variables, started this one; else None."""
    if not all(os.environ.get(k) for k in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return None
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def joined(task: Callable[[Any, Progress], Any], arguments: Any, say: Progress) -> Any:
    """Run a task in the group that torchrun started, of which this process is one."""
    found = launched()
    assert found is not None
    with group("env://", *found):
        return task(arguments, say)


# -------------------------------------------------------------------------------------------------------- started from here


def together(task: str, arguments: Any, processes: int, say: Progress | None = None, longest: float = LONGEST) -> Any:
    """Run a task in so many new processes on this machine.

    Args:
        task: "module:function"; `function(arguments, say)`.
        arguments: anything that can be pickled.
        processes: how many.
        say: is told what rank 0 says.
        longest: seconds after which the processes are ended.

    Returns:
        what rank 0 returned.

    Raises:
        CostirError: what a process raised; or it ended without a word, or could not be started, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="costir-") as name:
        folder = Path(name)
        (folder / "task").write_bytes(pickle.dumps((task, arguments, list(sys.path))))
        started: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(processes):
                started.append(_start(folder, rank, processes))
            listener = _listen(started[0].stdout, say or (lambda what, share: None))
            _wait(started, folder, longest)
            listener.join()
        finally:
            _end(started)
        return pickle.loads((folder / "result").read_bytes())


def _start(folder: Path, rank: int, processes: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
    root = str(Path(__file__).parent.parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine: whatever its name resolves to
    command = [sys.executable, "-m", "costir.measuring.processes", str(folder), str(rank), str(processes), str(os.getpid())]
    try:
        with (folder / f"errors.{rank}").open("wb") as errors:
            said = subprocess.DEVNULL if rank else subprocess.PIPE
            return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=errors)
    except OSError as error:
        raise CostirError(f"no process can be started here ({error.strerror})", "run it under torchrun") from error


def _listen(lines: IO[bytes] | None, say: Progress) -> threading.Thread:
    """Pass on what rank 0 says, line by line, from a thread of its own."""

    def pass_on() -> None:
        with lines or contextlib.nullcontext(()) as each:
            for line in each:
                share, _, what = line.decode(errors="replace").strip().partition(" ")
                with contextlib.suppress(ValueError):
                    say(what, float(share))

    listener = threading.Thread(target=pass_on, daemon=True)
    listener.start()
    return listener


def _wait(started: Sequence[subprocess.Popen[bytes]], folder: Path, longest: float) -> None:
    """Until all have ended well.

    Raises:
        CostirError: one has not.
    """
    until = time.monotonic() + longest
    while any(p.poll() is None for p in started):
        if any(p.poll() for p in started):
            time.sleep(0.5)  # the one that raised first may not be the one that ended first
            break
        if time.monotonic() > until:
            raise CostirError(
                f"the {len(started)} processes did not finish in {longest:.0f} s", "try fewer, or a smaller model"
            )
        time.sleep(0.02)
    failed = [rank for rank, p in enumerate(started) if p.poll()]
    if not failed:
        return
    notes = sorted(folder.glob("raised.*"), key=lambda note: note.stat().st_mtime_ns)
    if notes:  # the others may have failed because this one did
        raise CostirError(*pickle.loads(notes[0].read_bytes()))
    tail = (folder / f"errors.{failed[0]}").read_text(errors="replace").strip().splitlines()[-1:]
    raise CostirError(
        f"process {failed[0]} of {len(started)} ended with code {started[failed[0]].poll()}", " ".join(tail)[:200]
    )


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    for p in started:
        if p.poll() is None:
            p.kill()
    for p in started:
        p.wait()


# --------------------------------------------------------------------------------------------------------- in the process


def _main(folder: Path, rank: int, processes: int, parent: int) -> int:
    """One of the processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that started it is interrupted, and ends it
    _end_with(parent)
    task, arguments, path = pickle.loads((folder / "task").read_bytes())
    sys.path[:] = path
    module, _, name = task.partition(":")
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a model prints is not progress

    def say(what: str, share: float) -> None:
        if rank == 0:
            print(f"{share:.4f} {what}", file=lines, flush=True)

    try:
        tasks = importlib.import_module(module)
        with group(f"file://{folder}/rendezvous", rank, processes, getattr(tasks, "BACKEND", "")):
            found = getattr(tasks, name)(arguments, say)
    except CostirError as error:
        return _raised(folder, rank, error.message, error.hint)
    except Exception as error:
        first = str(error).strip().partition("\n")[0][:200]
        return _raised(folder, rank, f"process {rank} of {processes} raised {type(error).__name__}: {first}", "")
    if rank == 0:
        (folder / "result").write_bytes(pickle.dumps(found))
    return 0


def _raised(folder: Path, rank: int, message: str, hint: str) -> int:
    """Leave word of an error, whole or not at all."""
    note = folder / f"note.{rank}"
    note.write_bytes(pickle.dumps((message, hint)))
    note.replace(folder / f"raised.{rank}")
    return 2


def _end_with(parent: int) -> None:
    """End this process when the one that started it is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
