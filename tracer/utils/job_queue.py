"""A fair queue for the cores: the work of all visitors, run by a few threads that stay.

Threads that each run a model contend for Python's lock at every op, which costs more than two cores gain. So a
visitor's thread only waits here, knows its position in the queue, and leaves it when its visitor has left. Addresses
are served in turn (round robin, Nagle 1987). Of the sessions of an address, the one goes first whose page waits
longest, or whose turn was longest ago: a visitor with a hundred runs waits for them and holds up nobody else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import zip_longest
from math import inf
from threading import Condition, Event, Thread
from time import monotonic
from typing import NamedTuple, TypeVar

from tracer.utils.cache import Cache

# Progress of a long piece of work, reported by its thread to a listener, who may end it by raising.
#
# The listener is known to the thread alone that does the work; without one, reporting costs next to nothing.


class Progress(NamedTuple):
    """Task and its progress: `done` of `whole`, each a `unit`; `whole` is 0 where it is unknown."""

    doing: str = ""
    done: int = 0
    whole: int = 0
    unit: str = ""


Hearing = Callable[[Progress], None]
Value = TypeVar("Value")
_hearing: ContextVar[Hearing | None] = ContextVar("hearing", default=None)
_doing: ContextVar[str] = ContextVar("doing", default="")


@contextmanager
def assign(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Give a variable of this context a value inside the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def listen(hear: Hearing) -> AbstractContextManager[None]:
    """Call `hear` with the progress of the work inside the block."""
    return assign(_hearing, hear)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Name the work of the block."""
    with assign(_doing, what):
        tell()
        yield


def tell(done: int = 0, whole: int = 0, unit: str = "") -> None:
    """Report the progress of the current work."""
    if (hear := _hearing.get()) is not None:
        hear(Progress(_doing.get(), done, whole, unit))


VISITOR, BACKGROUND = 0, 1
PATIENCE = 1.0
"""Seconds after which a run is a long one, which others need not wait for."""
PAUSE, STRETCH = 1.0, 0.1
"""Seconds for which background work lets visitors' work go first at a time, at most, and goes on after that."""
MAX_HISTORY = 1_000
"""Addresses and sessions of which is known when they were served last."""

Owner = tuple[str, str]
"""The address and the session that work is done for."""
NOBODY: Owner = ("", "")


class Task:
    """A piece of work in the queue; equal work is one task, however many wait for it. `progress` is its progress,
    `ended` is set once nobody waits for it any more, `resumed` is when it last let visitors' work go first, and `since`
    is when the page that needs it began, if it is for a page; it `joined` the queue later."""

    def __init__(self, make: Callable[[], object], rank: int, owner: Owner = NOBODY, since: float | None = None):
        self.make, self.rank, self.owner, self.since = make, rank, owner, since
        self.joined = monotonic()
        self.waiting = 0
        self.begun = self.ended = False
        self.resumed = 0.0
        self._over = Event()
        self.progress = Progress()
        self.result: object = None
        self.error: BaseException | None = None

    @property
    def over(self) -> bool:
        """Return whether the task is done, failed or abandoned."""
        return self._over.is_set()

    def close(self, result: object = None, error: BaseException | None = None) -> None:
        """Wake those who wait for the task, and nobody else."""
        self.result, self.error = result, error
        self._over.set()

    def wait(self, seconds: float) -> bool:
        """Return whether the task is over by then."""
        return self._over.wait(seconds)

    def hear(self, progress: Progress) -> None:
        """Record the progress of the work, from its thread. Raise `JobEnd` where it is to end."""
        if self.ended:
            raise JobEnd
        self.progress = progress


class JobQueue:
    """A queue of which at most `places` tasks of visitors run at once. With `patience`, one begins only when the
    running ones have taken that many seconds: short ones then run one after the other, and a long one blocks nobody.

    Background work has a place of its own. It begins where no visitor's work waits, and pauses while some waits or
    runs."""

    def __init__(self, places: int, patience: float = 0.0):
        self._places, self._threads, self._patience = places, 0, patience
        self._begun: dict[Task, float] = {}
        self._changed = Condition()
        self._tasks: list[Task] = []
        self._served = Cache(MAX_HISTORY)

    def join(
        self, make: Callable[[], object], rank: int = VISITOR, owner: Owner = NOBODY, since: float | None = None
    ) -> Task:
        """Append work of an owner to the owner's part of the queue; for a page that began `since` then, which waits no
        longer for having several pieces of work."""
        task = Task(make, rank, owner, since)
        with self._changed:
            self._tasks.append(task)
            if self._threads <= self._places:
                self._threads += 1
                Thread(target=self._work, name="runs", daemon=True).start()
            self._changed.notify_all()
        return task

    def wait_for_visitors(self, seconds: float) -> bool:
        """Wait until no visitor's work waits or runs, at most that many seconds; return whether that is the case."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._visitors(), seconds)

    def _visitors(self) -> list[Task]:
        return [task for task in (*self._begun, *self._tasks) if task.rank == VISITOR]

    def serves_another(self, owner: Owner) -> bool:
        """Return whether work of another visitor waits or runs."""
        with self._changed:
            return any(task.owner != owner for task in self._visitors())

    def hurry(self, task: Task) -> None:
        """Promote background work that a visitor waits for: to the end of the visitors' queue, or to go on at once."""
        with self._changed:
            if task.rank != VISITOR:
                task.rank = VISITOR
                task.joined = monotonic()
                self._changed.notify_all()

    def share(self, task: Task, owner: Owner) -> None:
        """Add an owner to a task: it moves to the part of the one with less work in the queue."""
        with self._changed:
            if not task.begun and self._count(owner) < self._count(task.owner):
                task.owner = owner

    def _count(self, owner: Owner) -> int:
        return sum(task.owner[0] == owner[0] for task in self._tasks)

    def leave(self, task: Task) -> None:
        """Take a task out of the queue, because nobody waits for it any more."""
        with self._changed:
            if not task.begun and not task.over:
                self._drop(task)
                self._changed.notify_all()
                task.close(error=NoWaiters())

    def end(self, task: Task) -> None:
        """Cancel a task: it does not begin, or ends as soon as it reports its progress."""
        self.leave(task)
        task.ended = True

    def place(self, task: Task) -> int:
        """Return how many tasks are not begun up to this one, itself included: 1 is next, 0 has begun."""
        with self._changed:
            return 1 + self._order().index(task) if task in self._tasks else 0

    def _drop(self, task: Task) -> None:
        self._tasks = [waiting for waiting in self._tasks if waiting is not task]

    def _order(self) -> list[Task]:
        """Return all that wait, in the order in which they would begin: by rank, addresses in turn, in each its
        sessions, those first whose work waits longest."""
        order = []
        for rank in sorted({task.rank for task in self._tasks}):
            of_rank = [task for task in self._tasks if task.rank == rank]
            of_rank.sort(key=lambda task: (self._waits_since(task), task.joined))
            addresses = _split(of_rank, lambda task: task.owner[0])
            addresses.sort(key=lambda own: self._last_served(own[0].owner[0]))
            order += _in_turn(_in_turn(_split(own, lambda task: task.owner)) for own in addresses)
        return order

    def _waits_since(self, task: Task) -> float:
        """Return since when the session of a task waits: since its page began, else since its work joined the queue or
        was served last, so that many pieces of work take many turns."""
        return max(task.joined, self._last_served(task.owner)) if task.since is None else task.since

    def _last_served(self, owner: Owner | str) -> float:
        return self._served.get(owner) or -inf

    def _serve(self, task: Task) -> None:
        """Record that an address and its session were served now."""
        for owner in (task.owner[0], task.owner):
            self._served.put(owner, monotonic())

    def _work(self) -> None:
        while True:
            task = self._next()
            result, failed = None, None
            try:
                with listen(partial(self._hear, task)):
                    result = task.make()
            except BaseException as error:  # whatever it is, it is of those who wait for it
                failed = error
            with self._changed:
                del self._begun[task]
                self._changed.notify_all()
            task.close(result, failed)
            del task, result, failed  # and with it what it made

    def _next(self) -> Task:
        """Begin and return the first task in the queue, once there is one and it is allowed to."""
        with self._changed:
            while not self._tasks or (delay := self._delay(task := self._order()[0])) > 0:
                self._changed.wait(delay if self._tasks and delay < inf else None)
            self._drop(task)
            self._serve(task)
            task.begun = True
            self._begun[task] = monotonic()
            return task

    def _delay(self, task: Task) -> float:
        """Return the seconds until a task may begin beside the running ones, infinite where it needs the place of one;
        background work never blocks a visitor."""
        of_rank = sum(running.rank == task.rank for running in self._begun)
        if of_rank >= (self._places if task.rank == VISITOR else 1):
            return inf
        patience = self._patience if task.rank == VISITOR else max(self._patience, PAUSE)
        before = (since for running, since in self._begun.items() if running.rank <= task.rank)
        return max([0.0, *(since + patience - monotonic() for since in before)])

    def _hear(self, task: Task, progress: Progress) -> None:
        """Record the progress of a task, from its thread; background work lets visitors' work go first."""
        task.hear(progress)
        if task.rank != VISITOR and monotonic() > task.resumed + STRETCH:
            with self._changed:
                self._changed.wait_for(lambda: task.rank == VISITOR or task.ended or not self._visitors(), PAUSE)
            task.resumed = monotonic()


def _split(tasks: Iterable[Task], owner: Callable[[Task], Owner | str]) -> list[list[Task]]:
    """Return the tasks of each owner, in the order of each one's first."""
    parts: dict[Owner | str, list[Task]] = {}
    for task in tasks:
        parts.setdefault(owner(task), []).append(task)
    return list(parts.values())


def _in_turn(parts: Iterable[Iterable[Task]]) -> Iterator[Task]:
    """Yield the first of each part, then the second of each, and so on."""
    return (task for turn in zip_longest(*parts) for task in turn if task is not None)


class JobEnd(BaseException):
    """Raised in work that is to end: no part of it handles it as an error of its own."""


class NoWaiters(Exception):
    """Raised where all who waited for a piece of work have left."""


def position_text(place: int) -> str:
    """Return a position in the queue in words: 1 is "Next in line", 3 "Third in line"."""
    few = {1: "Next", 2: "Second", 3: "Third", 4: "Fourth", 5: "Fifth", 6: "Sixth"}
    ending = {1: "st", 2: "nd", 3: "rd"}.get(place % 10 if place % 100 not in (11, 12, 13) else 0, "th")
    return f"{few.get(place, f'{place}{ending}')} in line"
