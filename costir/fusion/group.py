"""Pieces -> groups, each one kernel: pairs are joined greedily, those that share most first, as long as all rules allow it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from costir.fusion.pieces import Piece, Program
from costir.fusion.rules import LEAST_SHARED, Rule, RuleSet
from costir.fusion.space import Access

_ROUNDS = 10
_WINDOW = 64  # readers of one value that are looked at together


class Group:
    """Pieces that are one kernel.

    Attributes:
        pieces: in program order.
        made: the values that they make.
        first, last: positions of the first and the last piece.
    """

    def __init__(self, pieces: Sequence[Piece], first: int, last: int) -> None:
        self.pieces = list(pieces)
        self.first, self.last = first, last
        self.phase = pieces[0].phase
        self.opaque = any(p.kind == "opaque" for p in pieces)
        self.made = {w.value for p in pieces for w in p.writes}
        lead = next((p for p in pieces if p.kind == "reduction"), pieces[0])
        self.reduces = lead.kind == "reduction"
        self.rows, self.length = lead.rows, lead.length if self.reduces else 1
        self.refresh()

    def refresh(self) -> None:
        """After the loops of a piece changed."""
        self.sums = {w.value for p in self.pieces if p.kind == "reduction" for w in p.writes}
        self.reads = list(dict.fromkeys(r for p in self.pieces for r in p.reads if r.value not in self.made))
        self.inner = [r for p in self.pieces for r in p.reads]
        touched = [*self.reads, *(w for p in self.pieces for w in p.writes)]
        self.walks = {(a.value, a.walk()): a for a in touched if not a.irregular}
        self.touches = {a.value for a in touched}


class Grouping:
    """The groups of a program under a set of rules."""

    def __init__(self, program: Program, pieces: Sequence[Piece], rules: RuleSet) -> None:
        self.program, self.rules = program, rules
        self.groups: dict[int, Group] = {i: Group([p], i, i) for i, p in enumerate(pieces)}
        self.maker = {w.value: i for i, p in enumerate(pieces) for w in p.writes}
        self.after: dict[int, set[int]] = {i: set() for i in self.groups}
        self.before: dict[int, set[int]] = {i: set() for i in self.groups}
        self.merged: dict[int, int] = {i: i for i in self.groups}
        for i, p in enumerate(pieces):
            for v in (*(r.value for r in p.reads), *p.after):
                if v in self.maker and self.maker[v] != i:
                    self._edge(self.maker[v], i)
        self.reorder = False
        for _ in range(_ROUNDS):
            if not self._round():
                break
        if rules.reorder:
            self.reorder = True
            self._round()

    def _edge(self, a: int, b: int) -> None:
        self.after[a].add(b)
        self.before[b].add(a)

    def ordered(self) -> list[Group]:
        """The groups in an order in which they can run."""
        done: dict[int, None] = {}
        waiting = {i: len(b) for i, b in self.before.items()}
        ready = sorted(i for i, n in waiting.items() if not n)
        while ready:
            i = ready.pop(0)
            done[i] = None
            for j in self.after[i]:
                waiting[j] -= 1
                if not waiting[j]:
                    ready.append(j)
            ready.sort(key=lambda k: self.groups[k].first)
        return [self.groups[i] for i in done]

    # ------------------------------------------------------------------------------------------------------------- joins

    def _round(self) -> bool:
        found = sorted(self._candidates(), reverse=True)
        changed = False
        for *_, i, j in found:
            i, j = self._now(i), self._now(j)
            if i != j:
                a, b = self._sorted(i, j)
                if self.kept_apart(self.groups[a], self.groups[b]) is None:
                    self._join(a, b)
                    changed = True
        return changed

    def _now(self, i: int) -> int:
        while self.merged[i] != i:
            i = self.merged[i]
        return i

    def _sorted(self, i: int, j: int) -> tuple[int, int]:
        """The two with the one that must run first in front."""
        return (
            (j, i) if self.reaches(j, i) or (not self.reaches(i, j) and self.groups[j].first < self.groups[i].first) else (i, j)
        )

    def _candidates(self) -> Iterable[tuple[Any, ...]]:
        """Pairs that may be joined: same kind first, then most shared bytes, then nearest."""
        touching: dict[int, list[int]] = {}
        for i, g in self.groups.items():
            if not g.opaque:
                for v in g.touches:
                    touching.setdefault(v, []).append(i)
        seen = set()
        for near in touching.values():
            near.sort(key=lambda i: self.groups[i].first)
            for k, i in enumerate(near):
                for j in near[k + 1 : k + 1 + _WINDOW]:
                    if (i, j) not in seen:
                        seen.add((i, j))
                        x, y = self._sorted(i, j)
                        a, b = self.groups[x], self.groups[y]
                        if self.kept_apart(a, b, undo=True) is None:
                            far = max(abs(a.first - b.last), abs(b.first - a.last))
                            yield a.reduces == b.reduces, self.shared(a, b), -far, -x, -y, x, y

    def kept_apart(self, a: Group, b: Group, undo: bool = False) -> Rule | None:
        """The first rule that keeps two groups from being one kernel, None where they may be; `a` must be able to run first.

        Loops of elementwise work may be put in another order for it; with `undo` they are put back.
        """
        if not self.rules.siblings and not self.depends(a, b):
            return self.rules.rules[0] if a.opaque or b.opaque else _SIBLINGS
        orders = None
        if self.reorder and not (a.opaque or b.opaque) and self.shared(a, b) < LEAST_SHARED:
            orders = self._reorder(a, b)
        broken = next((r for r in self.rules.rules if not r.test(self, a, b)), None)
        if orders is not None and (broken is not None or undo):
            _put_back(orders)
            a.refresh()
            b.refresh()
        return broken

    def _join(self, i: int, j: int) -> None:
        a, b = self.groups.pop(i), self.groups.pop(j)
        new = min(i, j)
        old = max(i, j)
        self.groups[new] = Group([*a.pieces, *b.pieces], min(a.first, b.first), max(a.last, b.last))
        self.merged[old] = new
        after, before = self.after.pop(i) | self.after.pop(j), self.before.pop(i) | self.before.pop(j)
        self.after[new], self.before[new] = after - {i, j}, before - {i, j}
        for k in self.after[new]:
            self.before[k] = (self.before[k] - {i, j}) | {new}
        for k in self.before[new]:
            self.after[k] = (self.after[k] - {i, j}) | {new}

    # ------------------------------------------------------------------------------------------------------- what rules ask

    def number(self, g: Group) -> int:
        """The number of a group."""
        return self._now(g.first)

    def depends(self, a: Group, b: Group) -> bool:
        """Whether `b` reads what `a` makes."""
        return any(r.value in a.made for r in b.reads)

    def shared(self, a: Group, b: Group) -> float:
        """Bytes that both touch in the same order."""
        few, many = (a.walks, b.walks) if len(a.walks) < len(b.walks) else (b.walks, a.walks)
        return sum(x.elements * self.program.values[v].itemsize for (v, w), x in few.items() if (v, w) in many)

    def in_step(self, a: Group, b: Group) -> bool:
        """Whether each iteration of `b` needs only what the same iteration of `a` makes."""
        made = {w.value: w for p in a.pieces for w in p.writes}
        for r in b.inner:
            if r.value in made:
                w = made[r.value]
                if r.irregular or w.irregular or self.program.values[r.value].whole or r.walk() != w.walk():
                    return False
        return not any(v in made for p in b.pieces for v in p.after)

    def path_around(self, a: Group, b: Group) -> bool:
        """Whether some other group must run after `a` and before `b`."""
        i, j = self.number(a), self.number(b)
        return any(self.reaches(k, j) for k in self.after[i] if k != j) or self.reaches(j, i)

    def reaches(self, i: int, j: int) -> bool:
        """Whether group j must wait for group i."""
        limit = self.groups[j].last
        stack, seen = [i], {i}
        while stack:
            k = stack.pop()
            if k == j:
                return True
            for n in self.after[k]:
                if n not in seen and self.groups[n].first <= limit:
                    seen.add(n)
                    stack.append(n)
        return False

    # ----------------------------------------------------------------------------------------------------------- loop order

    def _reorder(self, a: Group, b: Group) -> list[tuple[Piece, Any]] | None:
        """Put the loops of the elementwise one in the other's order; what to put back, or None where it does not fit."""
        moved, fixed = (a, b) if not a.reduces else (b, a)
        if moved.reduces:
            return None
        lead = moved.pieces[0]
        if any(p.dims != lead.dims for p in moved.pieces):
            return None
        if any(not x.irregular and x.box != p.dims for p in moved.pieces for x in p.reads):
            return None  # put together from parts: its loops stay as they are
        common = self._common(a, b, moved, fixed)
        order = _order(*common, lead.dims) if common is not None else None
        if order is None or order == list(range(len(order))):
            return None
        saved = [(p, (p.dims, list(p.reads), list(p.writes))) for p in moved.pieces]
        for p in moved.pieces:
            _permute(p, order)
        moved.refresh()
        return saved

    def _common(self, a: Group, b: Group, moved: Group, fixed: Group) -> tuple[Access, Access] | None:
        """How both touch a value in another order: one that is made by one and read by the other first, then the largest."""
        found = [
            ((v in a.made or v in b.made, x.elements), x, y)
            for (v, walk), x in moved.walks.items()
            for (u, other), y in fixed.walks.items()
            if u == v
            and walk != other
            and x.region() == y.region()
            and x.repeats() == (y.repeats() if v not in fixed.sums else 1)
        ]
        _, mine, theirs = max(found, key=lambda f: f[0], default=(None, None, None))
        return (mine, theirs) if mine is not None and theirs is not None else None


_SIBLINGS = Rule("siblings", "it only reads the same, and siblings are not joined", lambda g, a, b: False)


def _alike(mine: Access, theirs: Access, summed: bool) -> bool:
    """Whether both touch the same memory as often; a sum is written once for all that it sums."""
    return mine.region() == theirs.region() and mine.repeats() == (1 if summed else theirs.repeats())


def _order(mine: Access, theirs: Access, dims: tuple[int, ...]) -> list[int] | None:
    """The order of my loops in which I touch what they touch as they do; both must have the same loops, none of stride 0."""
    strides, wanted = ({s: i for i, (s, n) in enumerate(zip(x.strides, x.box, strict=True)) if n > 1} for x in (mine, theirs))
    loops = sum(d > 1 for d in dims)
    if mine.box != dims or 0 in strides or 0 in wanted or set(strides) != set(wanted) or len(strides) != loops:
        return None
    return [*(i for i, d in enumerate(dims) if d == 1), *(strides[s] for s in wanted)]


def _permute(p: Piece, order: Sequence[int]) -> None:
    def put(xs: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([xs[i] for i in order])

    p.dims = put(p.dims)
    for accesses in (p.reads, p.writes):
        accesses[:] = [x if x.irregular else x._replace(strides=put(x.strides), box=put(x.box)) for x in accesses]


def _put_back(saved: Iterable[tuple[Piece, Any]]) -> None:
    for p, (dims, reads, writes) in saved:
        p.dims = dims
        p.reads[:], p.writes[:] = reads, writes
