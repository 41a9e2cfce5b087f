"""Whether somebody's page is being drawn, so that work that nobody waits for yet can let it go first."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

_changed = Condition()
_pages = 0


@contextmanager
def drawing() -> Iterator[None]:
    """What a page is drawn in."""
    global _pages
    with _changed:
        _pages += 1
    try:
        yield
    finally:
        with _changed:
            _pages -= 1
            _changed.notify_all()


def wait(seconds: float) -> None:
    """Waits until no page is being drawn, so many seconds at most."""
    with _changed:
        _changed.wait_for(lambda: not _pages, seconds)
