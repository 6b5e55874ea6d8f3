"""Where to trace: points that tell the sizes apart and that the model accepts.

A model asks things of its sizes (`D % N == 0`). Points keep such relations where the base sizes have them: first only among
widths and head counts, then among all sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from costir.lifting.fit import independent
from costir.symbolic import Expr, Integer, size

# Names that are not widths: nobody asks that a batch divide a vocabulary.
_LOOSE = {
    "B", "T", "S", "V", "E", "k", "L", "batch", "batch_size", "bs", "seq", "seq_len", "seqlen", "length", "tokens", "vocab",
    "vocab_size", "layers", "n_layers", "n_layer", "num_layers", "depth", "topk", "top_k", "steps", "classes", "num_classes",
}  # fmt: skip
_BATCH = {"B", "batch", "batch_size", "bs"}
DEPTH_NAMES = {
    "l",
    "layers",
    "n_layers",
    "n_layer",
    "num_layers",
    "depth",
    "num_hidden_layers",
    "nlayers",
    "blocks",
    "n_blocks",
    "num_blocks",
}
_SMALL = (3, 5, 7)
_PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127,
           131,
           137, 139, 149, 151, 157, 163, 167, 173, 179, 181, 191, 193, 197, 199, 211, 223, 227, 229, 233, 239, 241)  # fmt: skip
# The second point takes each size's next prime, the third the third next: ratios stay independent, values stay small.
_STEPS = (0, 1, 3)
WHOLE = 4  # see `generic`
_FAR = 12  # as many primes further on, sizes are twice to five times as large
Point = dict[str, int]


def divisors(base: Mapping[str, int], names: Sequence[str], level: int) -> dict[str, list[str]]:
    """For each size, the sizes whose multiple it should stay: none (level 0), among widths (1, 2), among all (3)."""
    if level == 0:
        return {n: [] for n in names}
    place = {n: i for i, n in enumerate(names)}  # of equal sizes the first named is the multiple: query heads, key heads

    def comes_first(n: str, d: str) -> bool:
        return level == 3 and place[n] < place[d]

    pool = [n for n in names if level == 3 or not _loose(n)]
    return {
        n: [d for d in pool if d != n and base[d] > 1 and base[n] % base[d] == 0 and (base[d] < base[n] or comes_first(n, d))]
        if n in pool else []
        for n in names
    }  # fmt: skip


def _loose(name: str) -> bool:
    return (name if len(name) == 1 else name.lower()) in _LOOSE


def _granule(base: int, level: int) -> int:
    """What a size stays a multiple of: rotary halves need even widths, patches and groups more."""
    return 1 if level == 0 else math.gcd(base, 2 if level == 1 else 16)


def _divisors(n: int) -> list[int]:
    """All numbers above 1 that divide n, up to 64."""
    return [d for d in range(2, min(n, 64) + 1) if n % d == 0]


def generic(base: Mapping[str, int], names: Sequence[str], fixed: Mapping[str, Sequence[int]], level: int,
            multiples: Mapping[str, int] | None = None, small: bool = False,
            related: Sequence[tuple[str, str]] = ()) -> Iterator[tuple[Point, ...]]:  # fmt: skip
    """Triples of points, best first.

    Args:
        base: the base sizes.
        names: the sizes to vary, in order.
        fixed: sizes with given values at the three points (numbers of layers).
        level: how many of the base sizes' divisibilities to keep, 0 to 3; 4 is 1 with quotients (widths of heads) that are
            multiples of the base's, for models that use a part of each.
        multiples: numbers that a size must be a multiple of.
        small: start at 3: for programs that loop over a size.
        related: where it is known which sizes are multiples of which: at level 1 only these are kept, and widths stay multiples
            of 16 where they are.
    """
    whole, level = level == WHOLE, 1 if level == WHOLE else level
    kept = [n for n in base if n not in names and not _loose(n)]  # sizes that stay, and that others must be multiples of
    above = divisors(base, [n for n in names if n not in _BATCH] if small else [*kept, *names], level)
    known = related if level == 1 and not small else ()
    if known:
        above = {n: [d for m, d in known if m == n and d in base and base[n] % base[d] == 0] for n in names}
    order = sorted(names, key=lambda n: (base[n], -names.index(n)))

    def grain(name: str, value: int) -> int:
        if known:
            return 1 if _loose(name) else _granule(value, 2)
        return 1 if small else _granule(value, level)

    fitting = {n: _divisors(base[m]) for m, n in known if m in kept and n in names and base[m] % base[n] == 0}
    primes = (*_SMALL, *_PRIMES) if small else _PRIMES
    for shift in range(3) if small else (0, 1, 2, _FAR):
        points: list[Point] = []
        for trial in range(3):
            point: Point = {n: base[n] for n in kept}
            for i, n in enumerate(order):
                if n in fixed:
                    point[n] = fixed[n][trial]
                    continue
                if len(fitting.get(n, ())) > 3:  # of a size that stays: heads of a width that is no size
                    point[n] = fitting[n][-(2 + trial + shift) % len(fitting[n])]
                    continue
                asked = (multiples or {}).get(n, 1)
                quotients = {d: base[n] // base[d] for d in above.get(n, ()) if d in point}
                shares = [
                    point[d] * (q if whole else min(2, grain(n, q))) for d, q in quotients.items()
                ]  # even heads, not wide
                step = math.lcm(asked, grain(n, base[n]), *shares)
                point[n] = step * primes[i + shift + (trial if small else _STEPS[trial])]
            points.append({n: point[n] for n in names})
        if independent(points[0], points[1], names):
            yield tuple(points)


def breaking(quotients: Sequence[tuple[Expr, Expr]], kept: Sequence[tuple[Expr, Expr]], point: Mapping[str, int],
             names: Sequence[str]) -> Point | None:  # fmt: skip
    """A point near another at which none of the quotients top/bottom is whole, and those to keep are, or None."""
    free = sorted({str(s) for top, _ in quotients for s in top.free_symbols if str(s) in names})

    def whole(pair: tuple[Expr, Expr], values: Mapping[Expr, Expr]) -> bool:
        top, bottom = (int(e.xreplace(values)) for e in pair)
        return top % bottom == 0

    for steps in itertools.islice(itertools.product((1, 3, 5, 7, 0, 2), repeat=len(free)), 500):
        moved = {**point, **{n: point[n] + d for n, d in zip(free, steps, strict=True)}}
        for top, bottom in kept:
            unit = int(bottom.xreplace({size(n): Integer(v) for n, v in moved.items()}))
            if top.is_Symbol and str(top) in moved and unit:
                moved[str(top)] = max(1, -(-moved[str(top)] // unit)) * unit
        values = {size(n): Integer(v) for n, v in moved.items()}
        if not any(whole(q, values) for q in quotients) and all(whole(k, values) for k in kept):
            return moved
    return None


def telling(forms: Sequence[Expr], point: Mapping[str, int], names: Sequence[str]) -> Point | None:
    """A point near another at which the first two expressions differ, with one size changed; or None."""
    for n in sorted({str(s) for s in forms[0].free_symbols} & {*names}):
        others = {size(m): Integer(v) for m, v in point.items() if m != n}
        first, second = (f.xreplace(others) for f in forms[:2])
        unit = math.gcd(point[n], 16)
        for v in itertools.chain(range(unit, 600 * unit, unit), range(1, 600)):
            if first.xreplace({size(n): Integer(v)}) != second.xreplace({size(n): Integer(v)}):
                return {**point, n: v}
    return None
