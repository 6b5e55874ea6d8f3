"""Rows of a report by module, and sums over rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from costir.report import Quantity, Row, Times
from costir.symbolic import total

# A row below this share of every total (FLOPs, bytes, time on each chip) is summed up with its like in a short report.
SMALL = 0.005


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one module, in one phase.

    `small` are those that a short report sums up; `repeat` is how often a folded block occurs ("L", 32), else None.
    """

    path: str
    phase: str
    rows: tuple[Row, ...]
    small: tuple[Row, ...] = ()
    repeat: Quantity | None = None


def groups(rows: Iterable[Row], brief: bool = False) -> tuple[Group, ...]:
    """Rows by the module that they belong to, in order of first use.

    An operator that a module runs itself belongs to that module; a leaf module (a Linear) belongs to its parent.
    A layer that differs from its like in the cost of an operator stands with them, under its own number.
    With `brief`, rows that are small in every respect are moved to `Group.small`; unknown operators never are.
    """
    rows = tuple(rows)
    modules = {p for row in rows for p in _parents(row.path)}
    homes = star_paths([row.path for row in rows], [(row.op, row.phase, row.source) for row in rows])
    found: list[tuple[str, str, list[Row]]] = []
    for row, home in zip(rows, homes, strict=True):
        path = home if home in modules else _parent(home)
        open_ = _open(found, row.phase, path)
        if open_ is None:
            found.append((row.phase, path, [row]))
        else:
            open_.append(row)
    big = _bigness(rows) if brief else {}
    out = []
    for phase, path, members in found:
        small = tuple(r for r in members if brief and not big[id(r)])
        if len(small) < 2:
            small = ()
        kept = tuple(r for r in members if not any(r is s for s in small))
        out.append(Group(path, phase, kept, small, _repeat(path, members)))
    return tuple(out)


def _open(found: Sequence[tuple[str, str, list[Row]]], phase: str, path: str) -> list[Row] | None:
    """The group that a row continues: the latest of its module, where only submodules of the same block ran since."""
    for p, name, members in reversed(found):
        if (p, name) == (phase, path):
            return members
        if p == phase and (stands_for(name, path) or stands_for(path, name)):
            continue
        inside = path and name.startswith(f"{path}.") and name.count("*") == path.count("*")
        beside = _block(name) and _block(name) == _block(path)
        if p != phase or not (inside or beside):
            return None
    return None


def star_paths(paths: Sequence[str], keys: Sequence[Hashable]) -> list[str]:
    """The paths, those of one layer replaced by the path with "*" that stands for it, where one of the same key does."""
    stars: dict[Hashable, list[str]] = {}
    for path, key in zip(paths, keys, strict=True):
        if "*" in path:
            stars.setdefault(key, []).append(path)
    return [next((s for s in stars.get(k, ()) if stands_for(s, p)), p) for p, k in zip(paths, keys, strict=True)]


def stands_for(star: str, path: str) -> bool:
    """Whether a path with "*" means another path, too: "layers.*.mlp" means "layers.0.mlp"."""
    if star == path or "*" not in star:
        return False
    a, b = star.split("."), path.split(".")
    return len(a) == len(b) and all(x == y or (x == "*" and y.isdigit()) for x, y in zip(a, b, strict=True))


def _block(path: str) -> str:
    """The folded block that a module is in: "layers.*" for "layers.*.mlp", "" outside of any."""
    return path[: path.rfind("*") + 1]


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _parents(path: str) -> Iterable[str]:
    while path := _parent(path):
        yield path


def _repeat(path: str, rows: Sequence[Row]) -> Quantity | None:
    """How often a folded block runs: the smallest count of which the runs of every operator are a multiple.

    The runs of an operator are summed over the rows that show it, since a layer may stand there under its own number.
    """
    counts = [r.count for r in rows if r.count.number and r.count.expr is not None]
    if "*" not in path or len(counts) < len(rows):
        return None
    alike: dict[tuple[str, str], list[Quantity]] = {}
    for row in rows:
        alike.setdefault((row.op, row.source), []).append(row.count)
    runs = [_add(members) for members in alike.values()]
    candidates = sorted((c for c in [*counts, *runs] if c.number != 1), key=lambda c: c.number or 0)
    return next((c for c in candidates if all(_layers(c, r) for r in runs)), None)


def _layers(block: Quantity, row: Quantity) -> bool:
    """Whether a row runs a whole number of times per block, but for one or two of many blocks."""
    if block.expr is None or row.expr is None or not block.number or not row.number:
        return False
    lacks = -(-row.number // block.number) * block.expr - row.expr
    return bool(lacks.is_Integer and 0 <= lacks <= min(2, Fraction(block.number) / 3))


def _bigness(rows: Sequence[Row]) -> dict[int, bool]:
    """For each row, by id: whether it matters in FLOPs, bytes, or time on any chip, or is not fully known."""
    measures: list[Callable[[Row], float]] = [lambda r, q=q: float(r.quantities[q].number or 0) for q in ("flops", "bytes")]  # type: ignore[misc]
    measures += [lambda r, i=i: r.times[i].lower or 0.0 for i in range(len(rows[0].times) if rows else 0)]  # type: ignore[misc]
    bounds = [SMALL * sum(m(r) for r in rows) for m in measures]
    return {
        id(r): r.status not in ("costed", "free") or any(m(r) >= b > 0 for m, b in zip(measures, bounds, strict=True))
        for r in rows
    }


def combined(rows: Sequence[Row]) -> tuple[Row, ...]:
    """For a short report: the optimizer's calls of one operator, one per shape of parameter, as one row."""
    alike: dict[tuple[str, ...], list[Row]] = {}
    for i, row in enumerate(rows):
        known = row.phase == "optimizer" and row.status == "costed"
        alike.setdefault((row.path, row.op) if known else (str(i),), []).append(row)
    return tuple(_one(members) for members in alike.values())


def _one(rows: Sequence[Row]) -> Row:
    if len(rows) == 1:
        return rows[0]
    names = [n for n in rows[0].quantities if n != "intensity"]
    quantities = {n: _add([r.quantities[n] for r in rows]) for n in names}
    quantities["intensity"] = _ratio(quantities["flops"], quantities["bytes"])
    times = tuple(_add_times([r.times[i] for r in rows]) for i in range(len(rows[0].times)))
    return replace(rows[0], count=_add([r.count for r in rows]), quantities=quantities, times=times)


def _ratio(a: Quantity, b: Quantity) -> Quantity:
    if a.expr is None or b.expr is None or a.value is None or not b.value:
        return Quantity(None, None)
    return Quantity(a.expr / b.expr, a.value / b.value)


def _add(quantities: Sequence[Quantity]) -> Quantity:
    exprs, values = [q.expr for q in quantities], [q.value for q in quantities]
    known = [e for e in exprs if e is not None], [v for v in values if v is not None]
    return Quantity(total(known[0]), total(known[1])) if None not in exprs else Quantity(None, None)


def _add_times(times: Sequence[Times]) -> Times:
    def add(name: str) -> float | None:
        values = [getattr(t, name) for t in times]
        return None if None in values else sum(values)

    compute, vector, memory, lower, upper = (add(n) for n in ("compute", "vector", "memory", "lower", "upper"))
    binds = {t.binds for t in times}
    return Times(compute, vector, memory, lower, upper, binds.pop() if len(binds) == 1 else "", add("network"))


def sum_of(rows: Sequence[Row], name: str) -> int | float | None:
    """The sum of a quantity over rows, at the base sizes; the intensity is FLOPs by bytes. None where nothing is known."""
    if name == "intensity":
        flops, moved = sum_of(rows, "flops"), sum_of(rows, "bytes")
        return flops / moved if flops is not None and moved else None
    values = [v for r in rows if (v := r.quantities[name].number) is not None]
    return sum(values) if values else None


def time_of(rows: Sequence[Row], chip: int) -> float | None:
    """The time of the rows one after another on a chip, each at its roofline. None where nothing is known."""
    values = [t for r in rows if (t := r.times[chip].lower) is not None]
    return sum(values) if values else None
