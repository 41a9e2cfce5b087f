"""How far a long piece of work is, told by whoever does it to whoever waits for it, who may end it by raising.

What hears is known to the thread alone that does the work; without one, telling costs nothing to speak of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Told(NamedTuple):
    """What is being done, and how much of it: `done` of `whole`, each a `unit`; `whole` is 0 where nobody knows."""

    doing: str = ""
    done: int = 0
    whole: int = 0
    unit: str = ""


Hearing = Callable[[Told], None]
_hearing: ContextVar[Hearing | None] = ContextVar("hearing", default=None)
_doing: ContextVar[str] = ContextVar("doing", default="")


@contextmanager
def heard(hear: Hearing) -> Iterator[None]:
    """While the block runs, `hear` is told of its work."""
    token = _hearing.set(hear)
    try:
        yield
    finally:
        _hearing.reset(token)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Says what the block does."""
    token = _doing.set(what)
    try:
        tell()
        yield
    finally:
        _doing.reset(token)


def tell(done: int = 0, whole: int = 0, unit: str = "") -> None:
    """Says how far the work is that goes on."""
    if (hear := _hearing.get()) is not None:
        hear(Told(_doing.get(), done, whole, unit))
