"""Admission of scripts: one draws its page at a time, the others wait for their turn.

Python runs one thread at a time. Thirty pages that are drawn at once would each take as long as all of them together;
one after another, half of them are done in half of that time. A script that waits for a run of a model leaves its
place, and goes first when it comes back. Background work lets all pages go first.
"""

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from threading import Condition, Event, Lock
from time import monotonic

PLACES = 1
"""Scripts that draw at once: two would take turns at Python's lock."""
PATIENCE = 1.0
"""Seconds after which a script no longer counts: others need not wait for a long one."""
POLL_SECONDS = 0.1
"""Seconds between two looks at whether a waiting script is still wanted."""


class Gate:
    """A gate that at most `places` scripts have passed at once, in the order of their arrival. One that takes more than
    `patience` seconds keeps nobody waiting."""

    def __init__(self, places: int, patience: float):
        self._places, self._patience = places, patience
        self._lock, self._arrivals = Lock(), count()
        self._waiting: list[tuple[int, Event]] = []
        self._inside: dict[int, float] = {}

    def arrive(self) -> int:
        """Return the number of a new arrival."""
        return next(self._arrivals)

    def enter(self, number: int, poll: Callable[[], object]) -> None:
        """Wait for the turn of an arrival. `poll` is called now and then; what it raises ends the waiting."""
        admitted = Event()
        with self._lock:
            heapq.heappush(self._waiting, (number, admitted))
            self._admit()
        try:
            while not admitted.wait(POLL_SECONDS):
                poll()
                with self._lock:  # a script inside may have become a long one
                    self._admit()
        except BaseException:
            self.leave(number)
            raise

    def leave(self, number: int) -> None:
        """Let the next arrivals in."""
        with self._lock:
            self._inside.pop(number, None)
            self._waiting = [waiting for waiting in self._waiting if waiting[0] != number]
            heapq.heapify(self._waiting)
            self._admit()

    def _admit(self) -> None:
        now = monotonic()
        places = self._places - sum(now - since < self._patience for since in self._inside.values())
        while self._waiting and places > 0:
            number, admitted = heapq.heappop(self._waiting)
            self._inside[number] = now
            admitted.set()
            places -= 1


_gate = Gate(PLACES, PATIENCE)
_number: ContextVar[int | None] = ContextVar("number", default=None)
"""The arrival of the script that runs in this context."""
_since: ContextVar[float | None] = ContextVar("since", default=None)
"""When that script arrived."""
_condition = Condition()
_pages = 0


@contextmanager
def turn(poll: Callable[[], object]) -> Iterator[None]:
    """Run a script in its turn, as a context. `poll` raises where the script is not wanted any more."""
    number, since = _gate.arrive(), monotonic()
    _gate.enter(number, poll)
    tokens = _number.set(number), _since.set(since)
    try:
        yield
    finally:
        _number.reset(tokens[0])
        _since.reset(tokens[1])
        _gate.leave(number)


@contextmanager
def pause(poll: Callable[[], object]) -> Iterator[None]:
    """Leave the place of this script to others, as a context, and take one again afterwards; where it ends by an error,
    none is needed."""
    number = _number.get()
    if number is None:
        yield
        return
    _gate.leave(number)
    yield
    _gate.enter(number, poll)


def waits_since() -> float | None:
    """Return when the script of a whole page that runs in this context arrived, by `time.monotonic`; None for that of a
    fragment."""
    return _since.get()


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
