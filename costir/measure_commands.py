"""`costir measure`: parsed options in, exit code out. Views, and what else needs torch, are imported once something can run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from costir import commands, output
from costir.errors import CostirError, LoadError
from costir.hardware import calibration_of, load_chip
from costir.questions import chip_names, key_values, mesh_axes, size_values, sweep_points

DONE = 0
COUNTING = {  # options of what is counted or solved for, and their defaults: a run has no such choice
    "--keep": None, "--attention": "full", "--count": "standard", "--traffic": "eager", "--for": None,
    "--recompute": "none", "--micro-batches": "1",
}  # fmt: skip


def measure(o: argparse.Namespace) -> int:
    """Run a model and print bound, estimate and measurement."""
    name = commands.format_of(o)
    names = chip_names(o.chip) or ["here"]
    values = {**vars(o), "for": o.unknown}
    without = [k for k, default in COUNTING.items() if values[k.removeprefix("--").replace("-", "_")] != default]
    if without:
        raise CostirError("a measured step is the model's own, and all of it", f"leave out {', '.join(without)}")
    if o.mesh or o.parallel:
        return _on_mesh(o, name, names)
    if len(names) > 1:
        raise CostirError("a model is measured on one machine", "give one --chip")
    if o.why and o.sweep:
        raise CostirError("--why looks at one point", "leave --sweep out, or move the point with --size")
    picture = _picture(o)
    chip = load_chip(names[0], key_values(o.set))
    points = sweep_points(o.sweep) or [{}]
    if len(points[0]) > 1:
        raise CostirError("one size is swept at a time", "give one --sweep")
    calibration = calibration_of(chip)
    _refuse_early(o)
    from costir import measure_views
    from costir.measuring.api import runnable
    from costir.measuring.measure import PATIENCE, clock_of
    from costir.measuring.measure import measure as run
    from costir.measuring.why import why
    from costir.trace import named_optimizer

    sizes, one = size_values(o.size), len(points) == 1
    with commands.quiet(o.debug), commands.progress(f"measuring {o.subject}"):
        family = runnable(o.subject, None, sizes, o.phase, o.dtype or "", o.model or "", tuple(o.input))
        clock = clock_of(calibration, PATIENCE * (1 if one else 2))
        optimizer = named_optimizer(o.optimizer)
        found = [run(family, chip, {**sizes, **p}, o.phase, optimizer, one, clock) for p in points]
    swept = next(iter(points[0]), "")
    commands.emit(measure_views.measured(found, swept, why(found[0]) if o.why else None, brief=not o.all), name, o)
    if picture is not None:
        from costir.measure_plot import draw

        kind, path = picture
        drawn = draw(found, kind, swept, path.suffix.lstrip("."))
        print(f"wrote {output.write(drawn, path, o.force)}", file=sys.stderr)
    return DONE


def _on_mesh(o: argparse.Namespace, name: str, names: list[str]) -> int:
    """Run a model in several processes, and print predicted and measured parts."""
    asked = next((f"--{k}" for k in ("why", "sweep", "plot") if getattr(o, k)), "")
    if asked or len(names) > 1:
        raise CostirError(
            f"{asked or 'a second --chip'} does not go with --mesh", "leave it out: a mesh is measured at one point"
        )
    chip = load_chip(names[0], key_values(o.set))
    _refuse_early(o)
    from costir import mesh_measure_views
    from costir.measuring.mesh_measure import measure_on_mesh

    with commands.bar(f"measuring {o.subject}") as progress:
        found = measure_on_mesh(
            o.subject, mesh_axes(o.mesh), o.parallel, chip=chip, sizes=size_values(o.size), phase=o.phase, dtype=o.dtype or "",
            model=o.model or "", input=tuple(o.input), optimizer=o.optimizer, progress=progress,
        )  # fmt: skip
    commands.emit(mesh_measure_views.measured_on_mesh(found), name, o)
    return DONE


def _refuse_early(o: argparse.Namespace) -> None:
    """Refuse a subject that cannot be run as soon as its name or its notation shows it: torch takes seconds to load.

    Raises:
        CostirError: it is none, has a slip, or is an exported program.
    """
    from costir.load import EXPORTED, load_subject, named_file

    asked = {"model": o.model or "", "input": tuple(o.input), "dtype": o.dtype or "", "phase": o.phase}
    found = named_file(o.subject, **asked)
    if found is None:
        load_subject(o.subject, sizes=size_values(o.size), **asked)  # only read
    elif found[0].suffix in EXPORTED:
        raise LoadError(f"{found[0]} is an exported program, which cannot be run", "give the Python file that it came from")


def _picture(o: argparse.Namespace) -> tuple[str, Path] | None:
    """What to draw, and where."""
    if not o.plot:
        return None
    kind, _, name = o.plot.partition("=")
    if kind not in ("roofline", "sweep"):
        raise CostirError(f"no plot {kind[:40]!r}", "write --plot roofline or --plot sweep, perhaps =FILE.svg")
    if kind == "sweep" and not o.sweep:
        raise CostirError("--plot sweep needs a sweep", "add for example --sweep B=1:128:x2")
    if kind == "roofline" and o.sweep:
        raise CostirError("--plot roofline looks at one point", "leave --sweep out, or draw --plot sweep")
    path = Path(name or f"measured.{kind}.svg")
    if path.suffix.lower() not in (".svg", ".png"):
        raise CostirError(f"a plot cannot be written to {name[:80]!r}", "give a file that ends in .svg or .png")
    output.may_write(path, o.force)
    return kind, path


def solve(o: argparse.Namespace) -> int:
    """`costir solve --measure`."""
    if not o.unknown or len(chip_names(o.chip)) != 1:
        raise CostirError("a measured critical size needs --for and one --chip", "write for example --for B --chip here")
    return commands.solve(o, _measured_knee)


def _measured_knee(o: argparse.Namespace) -> commands.Measured:
    """For `solve --measure`: the measured critical size beside the ones of the calibrated times and of the roofline.

    Raises:
        ChipError: where the chip was not calibrated on a machine.
    """
    sizes, settings = size_values(o.size), key_values(o.set)
    name = chip_names(o.chip)[0]
    chip = load_chip(name, settings)
    calibration_of(chip)
    import costir
    from costir import measure_views
    from costir.measuring.api import runnable
    from costir.measuring.knee import knee, weights_bandwidth

    with commands.quiet(o.debug), commands.progress("measuring"):
        family = runnable(o.subject, None, sizes, o.phase, o.dtype or "", o.model or "", tuple(o.input))
        analysis = costir.analyze(family, sizes=sizes, phase=o.phase)
        held = float(analysis.at(**{o.unknown: 1}).weight_bytes) if o.unknown in analysis.sizes else 0.0
        rate = weights_bandwidth(chip, held)
        near = load_chip(name, {**settings, "memory.bandwidth": f"{rate:.6g}"})
        roofline = analysis.on(near).critical(o.unknown).at_base
        found = knee(family, chip, o.unknown, float(roofline or 16), sizes, o.phase)
    ideal = None if roofline is None else float(roofline)
    facts = measure_views.knee_facts(found, ideal, rate, float(chip.memory_bandwidth))
    return facts, measure_views.knee_data(found, ideal)
