"""Memory that the system gives anew at every step: what an allocator hands back has to come again, page by page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

TIMES, ENOUGH = 9, 0.5  # steps that are looked at, and seconds for all of them
FEWEST = 3


def fresh_pages(step: Callable[[], Any], seconds: float) -> float:
    """Bytes of pages that this thread gets from the system in every step: the fewest of several.

    Most allocators hand memory back now and then; the best of many steps, that counts, is one that needs no new memory for it.

    Args:
        step: what is run.
        seconds: about what it takes.
    """
    found = []
    for _ in range(max(FEWEST, min(TIMES, int(ENOUGH / seconds)))):
        before = _pages()
        step()
        found.append(_pages() - before)
    return float(min(found))


def _pages() -> int:
    """Bytes of pages so far; always 0 on systems that do not say."""
    used = usage()
    return int(used.ru_minflt) * resource.getpagesize() if used is not None else 0


def usage() -> Any:
    """What the system says that this thread has used so far; None on systems that do not say."""
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)) if resource is not None else None


__all__ = ["fresh_pages", "usage"]
