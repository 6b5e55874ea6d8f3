"""Memory that the system gives anew at every step: what an allocator hands back has to come again, page by page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]


class Counted:
    """A function whose calls are counted, and the pages that this thread gets from the system meanwhile.

    Args:
        function: what is called.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.calls, self._before = 0, _pages()

    def __call__(self) -> Any:
        """Call it."""
        self.calls += 1
        return self.function()

    def fresh(self) -> float:
        """Bytes of new pages since this was made, for each call; the system is asked only here, as asking takes a moment."""
        return (_pages() - self._before) / self.calls if self.calls else 0.0


def _pages() -> int:
    """Bytes of pages so far; always 0 on systems that do not say."""
    if resource is None:
        return 0
    used = resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF))
    return int(used.ru_minflt) * resource.getpagesize()


__all__ = ["Counted"]
