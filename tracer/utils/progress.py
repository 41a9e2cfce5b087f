"""Progress of a long piece of work, reported by its thread to a listener, who may end it by raising.

The listener is known to the thread alone that does the work; without one, reporting costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Progress(NamedTuple):
    """Task and its progress: `done` of `whole`, each a `unit`; `whole` is 0 where it is unknown."""

    doing: str = ""
    done: int = 0
    whole: int = 0
    unit: str = ""


Hearing = Callable[[Progress], None]
_hearing: ContextVar[Hearing | None] = ContextVar("hearing", default=None)
_doing: ContextVar[str] = ContextVar("doing", default="")


@contextmanager
def listen(hear: Hearing) -> Iterator[None]:
    """Call `hear` with the progress of the work inside the block."""
    token = _hearing.set(hear)
    try:
        yield
    finally:
        _hearing.reset(token)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Name the work of the block."""
    token = _doing.set(what)
    try:
        tell()
        yield
    finally:
        _doing.reset(token)


def tell(done: int = 0, whole: int = 0, unit: str = "") -> None:
    """Report the progress of the current work."""
    if (hear := _hearing.get()) is not None:
        hear(Progress(_doing.get(), done, whole, unit))
