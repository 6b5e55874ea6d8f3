"""`costir calibrate`, of one machine and of its collectives: parsed options in, exit code out."""

from __future__ import annotations

import argparse
from pathlib import Path

from costir import calibrate_views, chipfile, collective_times, commands, output
from costir.errors import CostirError
from costir.hardware import here_path, load_chip

DONE, BAD_INPUT = 0, 2
MOST_PROCESSES = 64
BUDGET, BUDGET_LATE = 40.0, 20.0  # seconds for collectives; after a calibration of the machine, which takes half a minute


def calibrate(o: argparse.Namespace) -> int:
    """Measure this machine, or its collectives, and write its chip file."""
    if o.collectives:
        return _collectives(o)
    if o.processes is not None or o.chip:
        raise CostirError("--processes and --chip go with --collectives", "costir calibrate alone measures this machine")
    name, path = str(o.format or "text"), _path(o)
    from costir.measuring.calibrate import calibrate as run

    with commands.bar("calibrating") as progress:
        found, text = run(o.threads, progress)
    output.write(_with(text, _kept(path)).encode(), path, o.force or not o.output)
    chip = load_chip(str(path))
    o.output = ""  # the file is the chip's; what is said goes to the terminal
    commands.emit(calibrate_views.calibrated(found, chip, str(path)), name, o)
    return DONE


def _path(o: argparse.Namespace) -> Path:
    """The chip file, which may be written.

    Raises:
        CostirError: it may not, or its name is not that of a chip file.
    """
    path = Path(o.output) if o.output else here_path()
    if not o.output:
        path.parent.mkdir(parents=True, exist_ok=True)
    path = output.may_write(path, o.force or not o.output)
    if path.suffix != ".toml":
        raise CostirError(f"a chip file ends in .toml, {path.name!r} does not", "write for example -o my-cpu.toml")
    return path


def _with(text: str, collectives: str) -> str:
    """A chip file's text with these collectives and no others."""
    rest = collective_times.split(text)[0]
    return f"{rest}\n{collectives}" if collectives else rest


def _kept(path: Path) -> str:
    """The collectives of a file that is to be written anew, if they are of this machine."""
    from costir.measuring.calibrate import cpu_name

    try:
        chip = load_chip(str(path))
    except CostirError:
        return ""
    same = chip.collectives is not None and chip.collectives.about.get("cpu") == cpu_name()
    return collective_times.split(path.read_text(encoding="utf-8"))[1] if same else ""


# ----------------------------------------------------------------------------------------------------------- collectives


def _collectives(o: argparse.Namespace) -> int:
    """Measure collectives, in the processes of torchrun or in new ones, and write them into the chip file."""
    from costir.measuring import processes

    rank, world = _world(o, processes.launched())
    arguments = {"threads": o.threads, "budget": BUDGET}
    if rank:  # rank 0 measures with it, and writes
        from costir.measuring import collectives

        processes.joined(collectives.measure, arguments, lambda what, share: None)
        return DONE
    name, path = str(o.format or "text"), _path(o)
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
    commands.emit(calibrate_views.collectives(found, str(path), str(path) if told else "here"), name, o)
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
    from costir.measuring.calibrate import cpu_name
    from costir.measuring.processes import device

    if o.chip:
        chip = load_chip(o.chip)
        text = Path(chip.path).read_text(encoding="utf-8")
        return (text if text.startswith("# made by costir ") else output.marked(text, "text")), False
    if path.is_file() and path.stat().st_size:
        chip = load_chip(str(path))
        cpu = chip.calibration.about.get("cpu") if chip.calibration else cpu_name()
        if cpu != cpu_name():
            raise CostirError(f"{path} is of another machine: it was calibrated on {cpu}, and this is {cpu_name()}",
                              "give another -o, or run costir calibrate here first")  # fmt: skip
        return path.read_text(encoding="utf-8"), False
    if device().type == "cuda":
        raise CostirError(f"{path} does not exist, and a GPU's rates are not calibrated", "name the chip: --chip h100")
    with commands.bar("calibrating") as progress:
        return run(o.threads, progress)[1], True
