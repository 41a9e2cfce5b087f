"""Queued work that visitors wait for: run once for all who ask for it, with a progress bar on screen."""

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from threading import Lock
from time import monotonic
from typing import TypeVar
from weakref import ref

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pages.jobs import progress_bar, rate_limit, render_gate
from tracer.utils.job_queue import PATIENCE, VISITOR, JobQueue, Owner, Task

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")
CANCELLATION_KEY = "cancelled"
"""Where a visitor's session keeps that what was waited for is not wanted any more, until the next run of the script."""
POLL_SECONDS = 0.1
"""Seconds between two looks at how far a piece of work is."""

_asking = Lock()
_bars = count()
"""Numbers of the bars that were shown, each of which has a button of its own."""
_tasks: dict[Hashable, Task] = {}
line = JobQueue(min(2, os.cpu_count() or 1), PATIENCE)
"""Where all work on models waits for a core."""


def in_turn(make: Callable[[], Result], doing: str, where: JobQueue | None = None) -> Result:
    """Return `make()`, run in the queue; `doing` names the work on screen. It must not use the session, or wait for a
    slot itself."""
    where = where or line
    with rate_limit.count_run() as owner:
        task = where.join(make, owner=owner, since=render_gate.waits_since())
        task.waiting = 1
        return _await_result(where, task, None, doing)


def once(
    get: Callable[[Key], Result | None],
    put: Callable[[Key, Result], object],
    key: Key,
    make: Callable[[], Result],
    doing: str,
    rank: int = VISITOR,
    where: JobQueue | None = None,
    instead: bool = False,
) -> Result:
    """Return the value cached under a key, else compute it in a queue, once for all who request it meanwhile; `instead`
    where it replaces the previous content."""
    full, where = (doing, key), where or line
    if (cached := get(key)) is not None:
        return cached
    with rate_limit.count_run() if rank == VISITOR else nullcontext(rate_limit.owner()) as owner:
        with _asking:
            if (cached := get(key)) is not None:
                return cached
            task = _join(put, full, make, rank, where, owner)
            task.waiting += 1
        return _await_result(where, task, full, doing, instead)


@contextmanager
def beside(
    get: Callable[[Key], Result | None],
    put: Callable[[Key, Result], object],
    key: Key,
    make: Callable[[], Result],
    doing: str,
    where: JobQueue | None = None,
) -> Iterator[None]:
    """Compute a value in a queue beside other work of a visitor, who then asks `once` for it, as a context. Where the
    other work ends by an error, nobody waits for the value, and it leaves the queue."""
    full, where, task = (doing, key), where or line, None
    with _asking:
        if get(key) is None:
            task = _join(put, full, make, VISITOR, where, rate_limit.owner())
    try:
        yield
    except BaseException:
        with _asking:
            if task is not None and not task.waiting:
                where.leave(task)
                if task.over and _tasks.get(full) is task:
                    del _tasks[full]
        raise


def _join(
    put: Callable[[Key, Result], object],
    full: tuple[str, Key],
    make: Callable[[], Result],
    rank: int,
    where: JobQueue,
    owner: Owner,
) -> Task:
    """Return the task that computes a value, a new one in the queue where there is none."""

    def makes() -> Result:
        try:
            result = make()
            put(full[1], result)
            return result
        finally:
            with _asking:
                _tasks.pop(full, None)

    task = _tasks.get(full)
    if task is None or task.over:
        task = _tasks[full] = where.join(makes, rank, owner, render_gate.waits_since())
    elif rank == VISITOR:
        where.hurry(task)
        where.share(task, owner)
    return task


def _await_result(where: JobQueue, task: Task, key: Hashable, doing: str, instead: bool = False):
    """Wait for work in a queue, and show its position in the queue and its progress; a visitor who leaves also leaves
    the queue."""
    try:
        on_screen, bar = get_script_run_ctx(suppress_warning=True) is not None, None
        shown_from = monotonic() + progress_bar.delay()
        with render_gate.pause(stop_if_unwanted):
            while not task.wait(POLL_SECONDS if on_screen else 3600):
                if on_screen and monotonic() < shown_from - POLL_SECONDS / 2:
                    stop_if_unwanted()
                elif on_screen:
                    bar = bar or progress_bar.ProgressBar(
                        doing, f"cancel-{next(_bars)}", partial(cancel, where, ref(task)), instead
                    )
                    bar.show(where.place(task), task.progress)
                    stop_if_unwanted()
        if bar:
            bar.over()
    finally:
        with _asking:
            task.waiting -= 1
            if not task.waiting:
                where.leave(task)
            if task.over and _tasks.get(key) is task:
                del _tasks[key]
    if task.error is not None:
        raise task.error
    return task.result


def stop_if_unwanted() -> None:
    """Let Streamlit stop the script of a visitor who chose something else meanwhile, or left."""
    st.session_state.get(CANCELLATION_KEY)


def cancel(where: JobQueue, task: Callable[[], Task | None]) -> None:
    """Cancel a piece of work for a visitor whose script has stopped waiting: where nobody else waits, it does not
    begin, or ends. Leaving a page alone does not end work that has begun: a visitor who comes back finds it done."""
    st.session_state[CANCELLATION_KEY] = True
    if (wanted := task()) is None:
        return
    with _asking:
        if not wanted.waiting and not wanted.over:
            where.end(wanted)
            for key in [key for key, queued in _tasks.items() if queued is wanted]:
                del _tasks[key]
