"""A counter of the pages being drawn, so that background work can let them go first."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

_condition = Condition()
_pages = 0


@contextmanager
def drawing() -> Iterator[None]:
    """Count a page as being drawn, as a context."""
    global _pages
    with _condition:
        _pages += 1
    try:
        yield
    finally:
        with _condition:
            _pages -= 1
            _condition.notify_all()


def wait(seconds: float) -> None:
    """Wait until no page is being drawn, at most that many seconds."""
    with _condition:
        _condition.wait_for(lambda: not _pages, seconds)
