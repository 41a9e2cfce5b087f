"""Whether somebody's page is being drawn, so that work that nobody waits for yet can let it go first."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

_changed = Condition()
_pages, _begun = 0, 0


@contextmanager
def drawing() -> Iterator[None]:
    """What a page is drawn in."""
    global _pages, _begun
    with _changed:
        _pages += 1
        _begun += 1
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


def begun() -> int:
    """How many pages have been drawn, or begun, since the server started."""
    return _begun
