"""The verbs. Each takes parsed options, prints or writes, and returns the exit code. Heavy modules are imported inside."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from costir import output, render, render_text
from costir.errors import CostirError
from costir.measured import measured
from costir.questions import (
    axis_links,
    byte_count,
    chip_names,
    formula_side,
    key_values,
    mesh_axes,
    new_names,
    plot_file,
    size_values,
    sweep_points,
    token_count,
    traffic_of,
)
from costir.render import View
from costir.units import parse_size

if TYPE_CHECKING:
    from costir.analysis import Analysis
    from costir.network import Wiring
    from costir.page import Fact
    from costir.report import Report

DONE, WRONG = 0, 1
Measured = tuple["Sequence[Fact]", "Mapping[str, Any]"]  # what a measurement adds to a report: lines, and the same as data


# ----------------------------------------------------------------------------------------------------------------- verbs


def analyze(o: argparse.Namespace) -> int:
    """`costir analyze`: the table, one operator explained, a plot."""
    name = format_of(o)
    picture = plot_file(o.plot, o.subject) if o.plot else None
    if picture is not None:
        output.may_write(picture, o.force)
    if o.traffic == "all" and o.explain:
        o.traffic = "inductor"  # columns are of totals; of an operator, what a compiler makes of it is what is asked
    if o.traffic == "all":
        emit(_all_traffic(o, picture), name, o)
        return DONE
    if o.critical_path and not o.chip:
        raise CostirError("a critical path takes time on a chip", "add for example --chip h100; costir chips lists them")
    if o.critical_path and o.explain:
        raise CostirError("--explain is about operators, and shows no critical path", "leave out one of the two")
    curve = bool(o.plot) and o.plot.startswith("memory")
    analysis, report = _reported(o, memory=o.memory, curve=curve, path=o.critical_path)
    from costir import views

    view = views.explain(report, o.explain, analysis.why) if o.explain else views.analysis(report, brief=not o.all)
    drawn = _draw(report, picture) if picture is not None else b""
    emit(view, name, o)
    if picture is not None:
        print(f"wrote {output.write(drawn, picture, o.force)}", file=sys.stderr)
    return DONE


shard = analyze


def _all_traffic(o: argparse.Namespace, picture: Path | None) -> View:
    """`--traffic all`: the kinds of traffic side by side."""
    if o.sweep or picture is not None or o.critical_path:
        raise CostirError(
            "--traffic all compares totals",
            "for --plot, --sweep and --critical-path choose one: --traffic inductor, xla, ideal, eager",
        )
    chips = _chips(o)
    analysis = _analysis(o)
    kept = _kept(analysis, o)
    from costir import traffic_view

    fixed = _put_in(analysis, kept)
    with progress("fusing"):
        return traffic_view.all_kinds(traffic_view.compare(kept, chips, o.unknown or "", fixed), brief=not o.all)


def solve(o: argparse.Namespace, more: Callable[[argparse.Namespace], Measured] | None = None) -> int:
    """`costir solve`: the critical size of the whole and of each operator, on each chip; `more` adds what was measured."""
    name = format_of(o)
    if not o.chip:
        raise CostirError("a critical size needs a chip", "add for example --chip h100; costir chips lists them")
    if o.unknown == "split":
        return _split(o, name)
    report = _report(o, critical=not o.fits, memory=o.fits)
    from costir import views

    view = views.fits(report) if o.fits else views.solution(report)
    emit(view if more is None else views.with_facts(view, *more(o)), name, o)
    return DONE


def _split(o: argparse.Namespace, name: str) -> int:
    """`costir solve --for split`: the best split of a number of devices into two axes."""
    chips, count = _chips(o), parse_size(o.devices, "--devices") if o.devices else 0
    if len(chips) > 1 or o.sweep or o.fits:
        raise CostirError("the best split is solved on one chip, at one point", "leave out --sweep, --fits and other chips")
    o.devices = ""  # of the whole that is split, not of the mesh that is traced
    kept = _way(_kept(_analysis(o), o), chips, o)
    from costir import split_solve, split_view

    with progress("solving"):
        found = split_solve.solve_split(kept, chips[0], count or math.prod(mesh_axes(o.mesh).values()), wiring(o))
    emit(split_view.split(found), name, o)
    return DONE


def check(o: argparse.Namespace) -> int:
    """`costir check`: is the user's own formula right? Exit code 1 where it is not."""
    name = format_of(o)
    formula_side(o.formula)
    if o.sweep or o.unknown:
        raise CostirError(
            "a check needs neither --sweep nor --for", 'it compares at many sizes; write "critical B = ..." for a critical size'
        )
    chips = _chips(o)
    if len(chips) > 1:
        raise CostirError("a formula is checked on one chip", "give one --chip")
    analysis = _kept(_analysis(o), o)
    from costir import views
    from costir.check import check as verdict_of

    verdict = verdict_of(cast(Any, analysis), o.formula, chips[0] if chips else None)
    emit(views.verdict(verdict, o.formula, analysis), name, o)
    return DONE if verdict.right else WRONG


def mfu(o: argparse.Namespace) -> int:
    """`costir mfu`: the utilisation of a run that was measured elsewhere."""
    name = format_of(o)
    run, devices = measured(o.rate, o.time), parse_size(o.devices, "--devices") if o.devices else None
    if o.micro_batches != "1":
        raise CostirError("a measured run has no --micro-batches", "give the whole batch by --size")
    if o.sweep or o.unknown:
        raise CostirError("a measured run takes neither --sweep nor --for", "--size says at which sizes it ran")
    if not o.chip:
        raise CostirError("a utilisation needs a chip", "add for example --chip h100; costir chips lists them")
    chips = _chips(o)
    from costir import mfu_view, utilisation

    mesh, parallel = mesh_axes(o.mesh), o.parallel
    count = utilisation.devices_of(mesh, parallel, devices)
    o.mesh, o.parallel, o.devices = [], "", ""  # the FLOPs are those of the whole model
    assumed = o.phase is None
    o.phase = o.phase or utilisation.assumed_phase(o.subject)
    analysis = _analysis(o)
    kept = _kept(analysis, o)
    fixed = _put_in(analysis, kept)
    with quiet(o.debug), progress("counting"):
        found = utilisation.utilisation(kept, chips, run, count, o.tokens, fixed, assumed, mesh, parallel)
    emit(mfu_view.utilisation(found), name, o)
    return DONE


def plan(o: argparse.Namespace) -> int:
    """`costir plan`: the best ways to divide a training step among a number of devices."""
    name = format_of(o)
    for value, what in ((o.devices, "--devices 512"), (o.batch, "--batch 4M, the tokens of a step")):
        if not value:
            raise CostirError("a plan needs a number of devices and a batch", f"add for example {what}")
    devices, batch, best = (parse_size(v, n) for v, n in ((o.devices, "--devices"), (o.batch, "--batch"), (o.best, "--best")))
    tokens = token_count(o.tokens) if o.tokens else None
    chips = _chips(o)
    if len(chips) != 1:
        raise CostirError("a plan is for one chip", "add for example --chip h100; costir chips lists them")
    if o.unknown or o.sweep or o.keep:
        raise CostirError("a plan takes neither --for, --sweep nor --keep", "in Python, costir.plan has the formulas")
    from costir import plan_view, planning

    with quiet(o.debug), bar(f"planning {o.subject}") as say:
        found = planning.plan(
            o.subject, chips[0], devices=devices, batch=batch, tokens=tokens, phase=o.phase, strategies=o.strategies,
            sizes=size_values(o.size), overlap=o.overlap, algorithm=o.algorithm, links=axis_links(o.link), planned=o.planned,
            latency=o.latency, say=say, dtype=o.dtype or "", attention=o.attention, count=o.count, model=o.model or "",
            input=o.input, optimizer=o.optimizer, names=new_names(o.names), traffic=traffic_of(o), recompute=o.recompute,
            micro_batches=parse_size(o.micro_batches, "--micro-batches"),
        )  # fmt: skip
    emit(plan_view.plan(found, best, o.subject), name, o)
    return DONE if found.splits else WRONG


def collective(o: argparse.Namespace) -> int:
    """`costir collective`: one collective on a chip's links."""
    name = format_of(o)
    from costir import collective_view
    from costir.collective_report import collective as times
    from costir.hardware import load_chip

    if "," in o.chip:
        raise CostirError(f"a collective is timed on one chip, not on {o.chip[:60]}", "ask once for each")
    chip = load_chip(o.chip, key_values(o.set))
    axes = [a.strip() for a in o.axes.split(",") if a.strip()]
    found = times(o.kind, byte_count(o.bytes), chip, mesh_axes(o.mesh), axes=axes, algorithm=o.algorithm,
                  links=axis_links(o.link), planned=o.planned)  # fmt: skip
    emit(collective_view.times(found), name, o)
    return DONE


def chips(o: argparse.Namespace) -> int:
    """`costir chips`: the database, or one chip with its sources."""
    name = format_of(o)
    from costir import chips_view

    settings = key_values(o.set)
    if settings and not o.name:
        raise CostirError("--set needs a chip", "write for example: costir chips tpu_v5e --set memory.bandwidth=8.2e11")
    emit(chips_view.one_chip(o.name, settings) if o.name else chips_view.all_chips(), name, o)
    return DONE


# ------------------------------------------------------------------------------------------------------------ conditions


def _analysis(o: argparse.Namespace) -> Analysis:
    """The subject under the conditions that every verb takes."""
    sizes, names = size_values(o.size), new_names(o.names)
    mesh, count = mesh_axes(getattr(o, "mesh", [])), getattr(o, "devices", "") if hasattr(o, "mesh") else ""
    traffic = traffic_of(o)
    with quiet(o.debug), progress(f"analysing {o.subject}"):
        import costir

        try:
            return costir.analyze(
                o.subject, sizes=sizes, phase=o.phase, dtype=o.dtype or "", attention=o.attention, count=o.count,
                model=o.model or "", input=o.input, optimizer=o.optimizer, names=names, traffic=traffic,
                mesh=mesh, parallel=getattr(o, "parallel", ""), devices=parse_size(count, "--devices") if count else None,
                cache_kind=getattr(o, "cache", "dynamic"),
                recompute=o.recompute, micro_batches=parse_size(o.micro_batches, "--micro-batches"),
            )  # fmt: skip
        except SystemExit as error:
            raise CostirError(
                f"{o.subject} ended the program itself (exit {error.code})", "keep exit() out of import time"
            ) from error


def _chips(o: argparse.Namespace) -> list[Any]:
    from costir.hardware import load_chip

    settings = key_values(o.set)
    names = chip_names(o.chip)
    if settings and not names:
        raise CostirError("--set changes a chip, and there is none", "add --chip NAME")
    return [load_chip(n, settings) for n in names]


def _report(o: argparse.Namespace, **more: bool) -> Report:
    return _reported(o, **more)[1]


def _reported(
    o: argparse.Namespace, critical: bool = False, memory: bool = False, curve: bool = False, path: bool = False
) -> tuple[Analysis, Report]:
    sweep = sweep_points(o.sweep)
    chips = _chips(o)
    analysis = _analysis(o)
    kept = _kept(analysis, o)
    fixed = _put_in(analysis, kept)
    moved = {n for p in sweep[:1] for n in p} & set(fixed)
    if moved:
        raise CostirError(f"{', '.join(sorted(moved))} is put in as a number, so it cannot be swept", "add it to --keep")
    from costir.build import build

    kept = _way(kept, chips, o)
    with progress("solving"):
        return kept, build(kept, chips, unknown=o.unknown or "", sweep=sweep, fixed=fixed, critical=critical,
                     memory=memory, curve=curve, path=path,
                     wiring=wiring(o), overlap=getattr(o, "overlap", "op"))  # fmt: skip


def _way(analysis: Analysis, chips: Sequence[Any], o: argparse.Namespace) -> Analysis:
    """Of several ways to compute it the one asked for, else the fastest on the first chip."""
    from costir.on_chip import fastest, planned

    if getattr(o, "way", ""):
        return planned(analysis, o.way)
    return fastest(analysis, chips[0], wiring(o), getattr(o, "overlap", "op")) if chips else analysis


def wiring(o: argparse.Namespace) -> Wiring:
    """How a mesh is to lie on the links."""
    from costir.mesh import known_axes
    from costir.network import AS_BUILT, Wiring

    if not hasattr(o, "algorithm"):
        return AS_BUILT
    links = axis_links(o.link)
    if getattr(o, "mesh", None):
        known_axes(links, mesh_axes(o.mesh))
    return Wiring(o.algorithm, tuple(links.items()), o.planned, o.latency)


def _kept(analysis: Analysis, o: argparse.Namespace) -> Analysis:
    """With --keep, numbers for all other sizes, but for the one that is solved for."""
    if o.keep is None:
        return analysis
    asked = [n for n in [str(getattr(o, "unknown", None))] if n in analysis.sizes]
    return analysis.keep(dict.fromkeys([*(k.strip() for k in o.keep.split(",") if k.strip()), *asked]))


def _put_in(analysis: Analysis, kept: Analysis) -> dict[str, int]:
    """The sizes that --keep made numbers of."""
    return {n: v for n, v in analysis.sizes.items() if n not in kept.sizes}


def _draw(report: Report, picture: Path) -> bytes:
    from costir import memory_plot, plot

    kind = picture.suffix.lstrip(".")
    return memory_plot.picture(report, kind) if report.memory and report.memory.curve else plot.picture(report, kind)


# ---------------------------------------------------------------------------------------------------------------- output


def format_of(o: argparse.Namespace) -> str:
    """The format asked for; without one, by the suffix of the output file. Refuses a file it may not write before any work."""
    if o.output and o.output != "-":
        path = output.may_write(Path(o.output), o.force)
        if not o.format:
            return render.SUFFIXES.get(path.suffix.lower(), "text")
    return str(o.format or "text")


def emit(view: View, name: str, o: argparse.Namespace) -> None:
    """Print, or write to the file asked for."""
    if o.output and o.output != "-":
        text = output.marked(render.render(view, name), name)
        print(f"wrote {output.write(text.encode(), Path(o.output), o.force)}", file=sys.stderr)
    elif name == "text":
        terminal = sys.stdout.isatty()
        color = o.color == "always" or (o.color == "auto" and terminal and not os.environ.get("NO_COLOR"))
        width = _width() if terminal else getattr(o, "width", None)
        output.to_stdout(render_text.text(view.document(), width, color))
    else:
        output.to_stdout(render.render(view, name))


def _width() -> int:
    import shutil

    return shutil.get_terminal_size().columns


@contextlib.contextmanager
def quiet(debug: bool) -> Iterator[None]:
    """What the user's own file prints goes to stderr, so that results can be piped; warnings of libraries are left out."""
    import warnings

    with output.prints_to_stderr(), warnings.catch_warnings():
        if not debug:
            warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def progress(what: str, after: float = 2.0) -> Iterator[None]:
    """A spinner on stderr where that is a terminal and the work takes longer than `after` seconds."""
    if not sys.stderr.isatty():
        yield
        return
    import threading

    from rich.console import Console
    from rich.status import Status

    status = Status(what, console=Console(stderr=True))
    timer = threading.Timer(after, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        status.stop()


@contextlib.contextmanager
def bar(what: str) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr, on a terminal; told what is being done, how much of all is done, and a line that stays."""
    if not sys.stderr.isatty():
        yield lambda now, share, line="": None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=1.0)

        def say(now: str, share: float, line: str = "") -> None:
            shown.update(task, completed=share, description=f"{what}: {now}")
            if line:
                shown.console.print(line, highlight=False, markup=False)

        yield say
