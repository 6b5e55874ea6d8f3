"""The best bandwidths that a calibration saw: nothing is faster than these. No torch here."""

from __future__ import annotations

import math

from costir.calibration import Calibration


def bandwidth(c: Calibration, working_set: float) -> float:
    """The envelope at a working set in bytes: no kernel was seen to move more per second over as much memory."""
    envelope = c.envelope
    fits = [rate for size, rate in envelope if size <= working_set]
    return fits[-1] if fits else envelope[0][1]


def fastest(c: Calibration, working_set: float) -> float:
    """Bytes per second that no kernel can be above, whatever ran before it.

    Over and over again, more memory than a cache holds finds nothing in it; but of what was touched just before, a cache still
    holds as much as fits: that part comes at the cache's bandwidth, and only the rest at that of the next.
    """
    envelope = c.envelope
    ends = [size for size, _ in envelope[1:]] + [math.inf]
    seconds, below = 0.0, 0.0
    for (_, rate), end in zip(envelope, ends, strict=True):
        part = min(max(working_set, 1.0), end)
        seconds += (part - below) / rate
        below = part
    return max(working_set, 1.0) / seconds


__all__ = ["bandwidth", "fastest"]
