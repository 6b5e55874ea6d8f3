"""What memory takes longer that was used some time ago than when the operator was timed alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from costir.calibration import Calibration
from costir.ir import Tensor
from costir.measuring.lookup import PICKED, PRODUCTS
from costir.measuring.lookup_parts import Lookup
from costir.measuring.subject import Recorded

OF_ROWS = ("embedding", "bag", "bag_mean", "index")  # curves of operators that read rows of their first operand


class Memory(NamedTuple):
    """An operand's or result's memory: its size, the bytes and seconds since it was touched, and what it is."""

    nbytes: float
    back: float
    age: float
    role: str


def _used(tensors: Sequence[Tensor], backs: Sequence[int], ages: Sequence[float]) -> dict[int, Memory]:
    """By tensor; ages are 0 where they are not given."""
    given = ages or [0.0] * len(backs)
    return {
        t.ref: Memory(float(t.nbytes), float(back), age, t.role) for t, back, age in zip(tensors, backs, given, strict=False)
    }


class Fetching:
    """Reads what a calibration says about memory that was used some time ago.

    Args:
        calibration: of this machine.
    """

    def __init__(self, calibration: Calibration) -> None:
        self.c = calibration

    def cold(
        self, r: Recorded, found: list[Lookup], work: float, read_ages: Sequence[float], made_ages: Sequence[float]
    ) -> float:
        """Memory that was used longer ago than when the operator was timed alone: the further back, the slower.

        It is fetched while the operator works: only where fetching lasts longer than `work` it is more. Products copy their
        operands before they work; their weights were timed with them.
        """
        call, inplace = r.call, r.call.name.endswith("_")
        read, written = _used(call.inputs, r.far, read_ages), _used(call.outputs, r.out, made_ages)
        if inplace and call.inputs:  # its result is its first operand
            written = {k: read.pop(k) for k in (call.inputs[0].ref,) if k in read}
        rows = 0.0
        if found[-1].curve in OF_ROWS and call.inputs and call.inputs[0].ref in read:
            rows = self._rows(read.pop(call.inputs[0].ref), *found[-1].sizes)
        held = sum(m.nbytes for m in (*read.values(), *written.values()))
        weights = [m for m in read.values() if m.role in ("weight", "state", "grad") and found[0].curve.startswith("mm")]
        product = found[0].curve.startswith(PRODUCTS)  # they copy their operands, and their results, before and after they work
        uses = ("read", "update" if inplace else "write")
        if "mm" in found[0].curve:
            uses = ("first", "sum" if any(x.curve == "bias" for x in found) else "result")
        others = [(m, uses[0], "read") for m in read.values() if m not in weights]
        others += [(m, uses[1], "update" if inplace else "write") for m in written.values()]
        levels = [self.levels(m, held, f"far_{use}", f"aged_{kind}") for m, use, kind in others]
        near, far = (sum(m.nbytes * x[i] for (m, *_), x in zip(others, levels, strict=True)) for i in (0, 1))
        shown = max(0.0, far - (near if product else max(near, work)))
        return rows + shown + sum(self._weights(m, *found[0].sizes) for m in weights)

    def _rows(self, table: Memory, rows: float, columns: float) -> float:
        """Seconds that picking rows of a table takes longer than from one in the cache: each lies somewhere else."""
        curves = self.c.curves
        if "far_rows" not in curves:
            return 0.0
        near, far = (
            self.levels(table._replace(back=b), 0.0, "far_read", "") for b in (table.back, curves["far_read"].grid[0][-1])
        )
        share = min(1.0, (near[1] - near[0]) / (far[1] - far[0])) if far[1] > far[0] else 0.0
        return share * rows / PICKED * max(0.0, curves["far_rows"].at(columns) - curves["embedding"].at(PICKED, columns))

    def _weights(self, m: Memory, rows: float, columns: float, length: float) -> float:
        """Seconds that weights of a product take longer than when it was timed alone, its work hiding some of their way."""
        few, sizes = (1.0, length), (min(rows, columns), length)
        if "streamed" not in self.c.curves:
            return 0.0
        near, far = self.levels(m, m.nbytes, "streamed", "", *sizes)
        whole = [self.levels(m._replace(back=math.inf), 0.0, "streamed", "", *s) for s in (sizes, few)]
        shown, all_of_it = (max(0.0, b - a) for a, b in whole)
        fresh, old = self.levels(m, 0.0, "streamed", "aged_weights", *few)
        aged = (old - fresh) * min(1.0, shown / all_of_it) if all_of_it else 0.0
        least = whole[0][0]
        return m.nbytes * max(0.0, max(far, least + aged) - near)

    def levels(self, m: Memory, held: float, by_bytes: str, by_time: str, *sizes: float) -> tuple[float, float]:
        """Seconds per byte: in a working set of `held` bytes that is used all the time, and as far back as the memory is now.

        By the bytes since, or by the time since, whichever weighs more. `sizes` are those of `by_bytes` before its last.
        """
        curve, aged = self.c.curves.get(by_bytes), self.c.curves.get(by_time)
        if curve is None:
            return 0.0, 0.0
        first, last = curve.grid[-1][0], curve.grid[-1][-1]
        sizes = tuple(min(x, g[-1]) for x, g in zip(sizes, curve.grid, strict=False))
        far, near = (curve.at(*sizes, min(max(size, first), last)) for size in (m.back, held))
        if aged is not None:
            back, age = (min(x, g[-1]) for x, g in zip((m.back, m.age * 1e6), aged.grid, strict=True))
            far = max(far, min(far + aged.at(back, age) - aged.at(back, 0.0), curve.at(*sizes, last)))
        return near / first, max(far, near) / first


__all__ = ["Fetching", "Memory"]
