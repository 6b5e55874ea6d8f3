"""What a reader of a measurement must know: why it says nothing about the estimate, and what looks odd in it."""

from __future__ import annotations

import sys

import torch

from costir.calibration import Calibration
from costir.measuring.calibrate import cpu_name
from costir.measuring.timing import Timed

LOADED = 0.20  # a reference kernel that is so much slower than when it was calibrated means that the machine is busy
FASTER = 1.25  # times the core's speed in the calibration: that was made while somebody else had half of the core
UNSTEADY = 0.30  # repeated steps that are so far apart say that others use the same caches, though not the core
AWAY = 0.20  # of a core's time, or of the timings: a calibration that had to share so much says little
UNEVEN = 0.03  # of a step: less is not worth a note


def unlike(c: Calibration, quiet: int, run: Timed) -> list[str]:
    """What the run did otherwise than the calibration: in so many quiet moments, at the speed of the core that it had."""
    found, threads = [], torch.get_num_threads()
    if threads != c.threads:
        found.append(f"the model sets torch to {threads} threads, and the machine was calibrated with {c.threads}: no verdict")
    if sys.getprofile() is not None or sys.gettrace() is not None:
        found.append("Python is being traced (a profiler, coverage, a debugger), so it takes longer: no verdict")
    if not quiet:
        found.append("something else ran on the core all the time, perhaps another machine's work on the same one: no verdict")
    if run.speed > FASTER:
        faster = f"the core is {run.speed - 1:.0%} faster than when it was calibrated"
        found.append(f"{faster}: no verdict; run costir calibrate again")
    if run.spread > UNSTEADY:
        found.append(f"repeated steps are {run.spread:.0%} apart, as others use the same caches or memory: no verdict")
    return found


def asides(scale: float, fresh: float, whole: float) -> list[str]:
    """What a reader should know who looks at single operators."""
    found = []
    if scale < 1 - UNEVEN:
        found.append(
            f"under the profiler the operators take {1 / scale - 1:.0%} longer than the whole step without it, so they are "
            "shown in proportion, and nothing is left between them"
        )
    if fresh > UNEVEN * whole:
        found.append(
            f"about {fresh / whole:.0%} of the step is fresh pages: the allocator hands memory back to the system, which "
            "MALLOC_TRIM_THRESHOLD_ and MALLOC_TOP_PAD_ of glibc, or another allocator, avoid"
        )
    return found


def notes(c: Calibration, loaded: float, share: float = 1.0) -> list[str]:
    """What a reader must know: another machine than the calibrated one, or a busy one, of which the run had a `share`."""
    here = {"cpu": cpu_name(), "torch": torch.__version__}
    found = [f"calibrated with {k} {c.about.get(k, '?')}, but this is {v}" for k, v in here.items() if c.about.get(k) != v]
    if share < 1 / (1 + LOADED):
        found.append(f"the run had the core {share:.0%} of the time, so that others had it or the model waits: no verdict")
    elif loaded > LOADED:
        found.append(
            f"the machine is {loaded:.0%} slower than when it was calibrated, so it is busy or another one: no verdict"
        )
    if loaded < -LOADED:
        found.append(f"the machine is {-loaded:.0%} faster than when it was calibrated: no verdict; run costir calibrate again")
    if c.away > AWAY:
        found.append(
            f"while the machine was calibrated others had the core {c.away:.0%} of the time: no verdict; "
            "run costir calibrate again when nothing else runs, or with --patience 120"
        )
    return found


__all__ = ["AWAY", "LOADED", "asides", "notes", "unlike"]
