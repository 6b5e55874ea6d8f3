"""What reports say of a critical path: a line, a table, data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from costir.page import Column, Entry, Fact, Table
from costir.report import ChipInfo, Report
from costir.units import si

if TYPE_CHECKING:
    from costir.critical_path import CriticalPath, PathStep

SHOWN = 20  # lines of the short table


def facts(chip: ChipInfo, label: str) -> Iterable[Fact]:
    """The path's time beside the sum."""
    p = chip.path
    if p is None:
        return
    least = "" if p.complete else ">= "
    yield Fact(
        label,
        f"{least}{si(p.seconds, 's')}, {p.share:.1%} of the sum: operators side by side, each as soon as it can be",
    )
    if chip.times.lower and abs(p.total / chip.times.lower - 1) > 1e-3:
        yield Fact("", f"the sum of this run is {si(p.total, 's')}: torch does otherwise here than the formulas say")


def tables(r: Report, brief: bool = True) -> list[Table]:
    """What is on the path, per chip."""
    several = len(r.chips) > 1
    return [_table(c.path, f" on {c.name}" if several else "", brief) for c in r.chips if c.path is not None]


def _table(p: CriticalPath, where: str, brief: bool) -> Table:
    columns = (
        Column("module / operator"),
        *(Column(c, right=True) for c in ("on it", "of all", "time", "share")),
    )
    steps = list(p.steps)
    longest = sorted(steps, key=lambda s: -s.seconds)[: SHOWN if brief else None]
    phases = len({s.phase for s in steps}) > 1
    lines = [_line(_name(s, phases), s.runs, s.all_runs, s.seconds, p) for s in steps if s in longest]
    rest = [s for s in steps if s not in longest]
    if rest:
        lines.append(_rest(rest, p))
    total = Entry("total", _line("total", p.runs, p.all_runs, p.seconds, p).cells)
    title = f"Critical path{where}: the longest chain of operators that need each other"
    return Table(columns, (*lines, Entry("rule"), total), title)


def _name(s: PathStep, phases: bool) -> str:
    name = s.name if s.path == s.phase else f"{s.path} {s.name}".strip()  # the optimizer is its own module
    return f"{s.phase}: {name}" if phases and s.phase != "forward" else name


def _rest(rest: list[PathStep], p: CriticalPath) -> Entry:
    runs, every = sum(s.runs for s in rest), sum(s.all_runs for s in rest)
    return _line(f"{len(rest)} shorter ones; --all shows them", runs, every, sum(s.seconds for s in rest), p)


def _line(name: str, runs: int, every: int, seconds: float, p: CriticalPath) -> Entry:
    share = f"{seconds / p.seconds:.1%}" if p.seconds else "-"
    return Entry("operator", (name, str(runs), str(every), si(seconds, "s"), share))


def data(p: CriticalPath) -> dict[str, Any]:
    """The path as the schema has it."""
    steps = [{"path": s.path, "name": s.name, "phase": s.phase, "runs": s.runs, "all_runs": s.all_runs, "seconds": s.seconds}
             for s in p.steps]  # fmt: skip
    return {"seconds": p.seconds, "total": p.total, "share": p.share, "runs": p.runs, "all_runs": p.all_runs,
            "complete": p.complete, "steps": steps}  # fmt: skip
