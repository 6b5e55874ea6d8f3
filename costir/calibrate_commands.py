"""`costir calibrate`, of a CPU, of a GPU and of collectives: parsed options in, exit code out."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from costir import calibrate_views, chipfile, collective_times, commands, output
from costir.calibration import Calibration
from costir.chip import Chip
from costir.errors import CostirError
from costir.hardware import here_path, load_chip

DONE, BAD_INPUT = 0, 2
MOST_PROCESSES = 64
MOST_PATIENCE = 3600  # seconds
BUDGET, BUDGET_LATE = 40.0, 20.0  # seconds for collectives; after a calibration of the machine, which takes half a minute


def calibrate(o: argparse.Namespace) -> int:
    """Measure this machine, or its collectives, and write its chip file.

    Raises:
        CostirError: where more threads are asked for than the machine has cores, or none; where nobody can be so patient.
    """
    index, cores = _gpu(o.device), os.cpu_count() or 1
    if index is None and not 1 <= o.threads <= cores:
        raise CostirError(f"--threads {o.threads} is not possible: this machine has {cores} cores", f"give 1 to {cores}")
    if o.patience is not None and not 0 <= o.patience <= MOST_PATIENCE:
        raise CostirError(f"--patience {o.patience:g} is not possible", f"give seconds, from 0 to {MOST_PATIENCE}")
    if o.patience is not None and (o.collectives or index is not None):
        raise CostirError("--patience is for the CPU's calibration", "leave it out, or calibrate the CPU by itself")
    if o.collectives:
        return _collectives(o)
    if o.processes is not None or o.chip:
        raise CostirError("--processes and --chip go with --collectives", "costir calibrate alone measures this machine")
    if index is not None:
        return _calibrate_gpu(o, index)
    name, path = str(o.format or "text"), _path(o, "here")
    from costir.measuring import gpu
    from costir.measuring.calibrate import calibrate as run

    with commands.bar("calibrating") as progress:
        found, text = run(o.threads, progress, patience=o.patience)
    known = str(path) if o.output else "here"
    chip = _written(o, path, found, text)
    commands.emit(calibrate_views.calibrated(found, chip, str(path), known, not o.device and gpu.is_there()), name, o)
    return DONE


def _calibrate_gpu(o: argparse.Namespace, index: int) -> int:
    """Measure a GPU, and write its chip file."""
    if o.threads != 1:
        raise CostirError("--threads does not go with a GPU", "leave it out: one thread of the host starts its work")
    from costir.measuring import gpu

    device = gpu.chosen(index)
    known = here_name(index)
    name, path = str(o.format or "text"), _path(o, known)
    with commands.bar(f"calibrating {device}") as progress:
        found, text = gpu.calibrate(device, progress)
    known = str(path) if o.output else known
    chip = _written(o, path, found, text)
    commands.emit(calibrate_views.gpu_calibrated(found, chip, str(path), known), name, o)
    return DONE


def _written(o: argparse.Namespace, path: Path, found: Calibration, text: str) -> Chip:
    """The chip of a calibration, once its file is written; what is said from now on goes to the terminal."""
    text = _with(text, _kept(path, found.gpu))
    chipfile.validate(str(path), chipfile.parse(str(path), text.encode()))
    output.write(text.encode(), path, o.force or not o.output)
    o.output = ""
    return load_chip(str(path))


def _gpu(device: str) -> int | None:
    """The number of the GPU that --device names; None for the CPU.

    Raises:
        CostirError: it names neither.
    """
    text = device.strip().lower()
    if text in ("", "cpu"):
        return None
    match = re.fullmatch(r"cuda(?::([0-9]{1,3}))?", text)
    if match is None:
        raise CostirError(f"no device {device[:40]!r} can be calibrated", "write --device cpu, cuda or cuda:1")
    return int(match[1] or 0)


def here_name(gpu: int | None) -> str:
    """What the file of a calibration is called as a chip, where no other was asked for."""
    return "here" if gpu is None else f"here-gpu{gpu or ''}"


def _path(o: argparse.Namespace, name: str) -> Path:
    """The chip file, which may be written: that of -o, or that of the chip called `name`.

    Raises:
        CostirError: it may not, or its name is not that of a chip file.
    """
    if o.output == "":
        raise CostirError("-o names no file", "write for example -o my-cpu.toml, or leave it out")
    path = Path(o.output) if o.output else here_path(name)
    if not o.output:
        _folder(path.parent)
    path = output.may_write(path, o.force)
    if path.suffix != ".toml":
        raise CostirError(f"a chip file ends in .toml, {path.name!r} does not", "write for example -o my-cpu.toml")
    return path


def _folder(path: Path) -> None:
    """Make the folder of the chips that `here` names.

    Raises:
        CostirError: the system refuses.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CostirError(f"cannot make the folder {path}: {error.strerror}", "write for example -o my-cpu.toml") from error


def _with(text: str, collectives: str) -> str:
    """A chip file's text with these collectives and no others."""
    rest = collective_times.split(text)[0]
    return f"{rest}\n{collectives}" if collectives else rest


def _kept(path: Path, gpu: str = "") -> str:
    """The collectives of a file that is to be written anew, if they are of this machine, and of this GPU or of no GPU."""
    from costir.measuring.calibrate import cpu_name

    try:
        chip = load_chip(str(path))
    except CostirError:
        return ""
    about = chip.collectives.about if chip.collectives is not None else {}
    same = about.get("cpu") == cpu_name() and about.get("gpu", "") == gpu
    return collective_times.split(path.read_text(encoding="utf-8"))[1] if same else ""


# ----------------------------------------------------------------------------------------------------------- collectives


def _collectives(o: argparse.Namespace) -> int:
    """Measure collectives, in the processes of torchrun or in new ones, and write them into the chip file."""
    if o.device:
        raise CostirError("--device does not go with --collectives", "leave it out: GPUs are used where there are some")
    from costir.measuring import processes

    rank, world = _world(o, processes.launched())
    arguments = {"threads": o.threads, "budget": BUDGET}
    if rank:  # rank 0 measures with it, and writes
        from costir.measuring import collectives

        processes.joined(collectives.measure, arguments, lambda what, share: None)
        return DONE
    known = here_name(0 if processes.device().type == "cuda" else None)
    name, path = str(o.format or "text"), _path(o, known)
    text, fresh = _base(o, path)
    arguments["budget"] = BUDGET_LATE if fresh else BUDGET
    with commands.bar("measuring collectives") as progress:
        if processes.launched():
            from costir.measuring import collectives

            found = processes.joined(collectives.measure, arguments, progress)
        else:
            found = processes.together("costir.measuring.collectives:measure", arguments, world, progress)
    text = _with(text, collective_times.to_toml(found))
    chipfile.validate(str(path), chipfile.parse(str(path), text.encode()))
    output.write(text.encode(), path, force=True)  # whether it may be was asked before
    told, o.output = o.output, ""
    commands.emit(calibrate_views.collectives(found, str(path), str(path) if told else known), name, o)
    return DONE


def _world(o: argparse.Namespace, launched: tuple[int, int] | None) -> tuple[int, int]:
    """Rank and number of processes.

    Raises:
        CostirError: there are fewer than two, or too many.
    """
    if launched and o.processes not in (None, launched[1]):
        raise CostirError(f"torchrun has started {launched[1]} processes, not {o.processes}", "leave --processes out")
    if not launched and o.processes is None:
        raise CostirError(
            "collectives need several processes",
            "add --processes 2, or run torchrun --nproc-per-node 2 -m costir calibrate --collectives",
        )
    rank, world = launched or (0, int(o.processes))
    if not 2 <= world <= (MOST_PROCESSES if not launched else 10**6):
        few = "collectives need two processes or more" if world < 2 else f"one machine takes up to {MOST_PROCESSES} processes"
        raise CostirError(f"{few}, not {world}", "write for example --processes 2")
    return rank, world


def _base(o: argparse.Namespace, path: Path) -> tuple[str, bool]:
    """The text of the chip file that collectives are added to, and whether the machine was calibrated for it just now.

    It is that of --chip, or the file that is there, or a new one.

    Raises:
        CostirError: the file is of another machine, or there is none and none can be made.
    """
    from costir.measuring.calibrate import calibrate as run
    from costir.measuring.processes import device

    gpu = device().type == "cuda"
    if o.chip:
        chip = load_chip(o.chip)
        _same_kind(chip, chip.path, gpu)
        text = Path(chip.path).read_text(encoding="utf-8")
        return (text if text.startswith("# made by costir ") else output.marked(text, "text")), False
    if path.is_file() and path.stat().st_size:
        chip = load_chip(str(path))
        _same_kind(chip, str(path), gpu)
        _same_machine(chip, str(path))
        return path.read_text(encoding="utf-8"), False
    if gpu:
        where = f" -o {path}" if o.output else ""
        raise CostirError(f"{path} does not exist, which is to take the GPU's collectives",
                          f"run costir calibrate --device cuda{where} first, or name the chip: --chip h100")  # fmt: skip
    with commands.bar("calibrating") as progress:
        return run(o.threads, progress)[1], True


def _same_kind(chip: Chip, path: str, gpu: bool) -> None:
    """Refuse a CPU's calibration for the collectives of GPUs, and the reverse.

    Raises:
        CostirError: it is one.
    """
    if chip.calibration is not None and bool(chip.calibration.gpu) != gpu:
        ours, theirs = ("GPUs", "a CPU") if gpu else ("CPUs", "a GPU")
        raise CostirError(
            f"{path} is the calibration of {theirs}, and these are the collectives of {ours}", "name another chip or file"
        )


def _same_machine(chip: Chip, path: str) -> None:
    """Refuse the calibration of another machine.

    Raises:
        CostirError: it is one.
    """
    from costir.measuring import gpu
    from costir.measuring.calibrate import cpu_name
    from costir.measuring.processes import device

    c = chip.calibration
    if c is None:
        return
    then, now = (c.gpu, gpu.seen(device()).name) if c.gpu else (c.about.get("cpu"), cpu_name())
    if then != now:
        raise CostirError(f"{path} is of another machine: it was calibrated on {then}, and this is {now}",
                          "give another -o, or run costir calibrate here first")  # fmt: skip
