"""Queued work that visitors wait for: run once for all who ask for it, with a progress bar on screen."""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from threading import Lock
from time import monotonic
from typing import Any, TypeVar
from weakref import ref

import numpy as np
import orjson
import plotly.graph_objects as go
import streamlit as st
from plotly.basedatatypes import BaseFigure
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pages.jobs import render_gate
from tracer.utils.cache import Cache
from tracer.utils.job_queue import PATIENCE, VISITOR, JobQueue, Owner, Task

Result = TypeVar("Result")
CANCELLATION_KEY = "cancelled"
"""Where a visitor's session keeps that what was waited for is not wanted any more, until the next run of the script."""
POLL_SECONDS = 0.1
"""Seconds between two looks at how far a piece of work is."""

_bars = count()
"""Numbers of the bars that were shown, each of which has a button of its own."""
_tasks: dict[Hashable, Task] = {}
line = JobQueue(min(2, os.cpu_count() or 1), PATIENCE)
"""Where all work on models waits for a core."""


def in_turn(make: Callable[[], Result], doing: str, where: JobQueue | None = None) -> Result:
    """Return `make()`, run in the queue; `doing` names the work on screen. It must not use the session, or wait for a
    slot itself."""
    where = where or line
    with render_gate.count_run() as owner:
        task = where.join(make, owner=owner, since=render_gate.waits_since())
        task.waiting = 1
        return _await_result(where, task, None, doing)


def once(
    store: Cache | None,
    key: Hashable,
    make: Callable[[], Result],
    doing: str,
    rank: int = VISITOR,
    where: JobQueue | None = None,
    instead: bool = False,
) -> Result:
    """Return the value that a store has under a key, else compute it in a queue, once for all who request it meanwhile;
    without a store, it is not kept. `instead` where it replaces the previous content."""
    full, where = (doing, key), where or line
    if store is not None and (cached := store.get(key)) is not None:
        return cached
    with render_gate.count_run() if rank == VISITOR else nullcontext(render_gate.owner()) as owner:
        with _asking:
            if store is not None and (cached := store.get(key)) is not None:
                return cached
            task = _join(store, full, make, rank, where, owner)
            task.waiting += 1
        return _await_result(where, task, full, doing, instead)


@contextmanager
def beside(
    store: Cache,
    key: Hashable,
    make: Callable[[], Result],
    doing: str,
    where: JobQueue | None = None,
) -> Iterator[None]:
    """Compute a value in a queue beside other work of a visitor, who then asks `once` for it, as a context. Where the
    other work ends by an error, nobody waits for the value, and it leaves the queue."""
    full, where, task = (doing, key), where or line, None
    with _asking:
        if store.get(key) is None:
            task = _join(store, full, make, VISITOR, where, render_gate.owner())
    try:
        yield
    except BaseException:
        with _asking:
            if task is not None:
                _leave(where, task, full)
        raise


def _join(
    store: Cache | None,
    full: tuple[str, Hashable],
    make: Callable[[], Result],
    rank: int,
    where: JobQueue,
    owner: Owner,
) -> Task:
    """Return the task that computes a value, a new one in the queue where there is none."""

    def makes() -> Result:
        try:
            result = make()
            if store is not None:
                store.put(full[1], result)
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
        shown_from = monotonic() + render_gate.delay()
        with render_gate.pause(stop_if_unwanted):
            while not task.wait(POLL_SECONDS if on_screen else 3600):
                if on_screen and monotonic() < shown_from - POLL_SECONDS / 2:
                    stop_if_unwanted()
                elif on_screen:
                    bar = bar or render_gate.ProgressBar(
                        doing, f"cancel-{next(_bars)}", partial(cancel, where, ref(task)), instead
                    )
                    bar.show(where.place(task), task.progress)
                    stop_if_unwanted()
        if bar:
            bar.over()
    finally:
        with _asking:
            task.waiting -= 1
            _leave(where, task, key)
    if task.error is not None:
        raise task.error
    return task.result


def _leave(where: JobQueue, task: Task, key: Hashable) -> None:
    """Take a task out of its queue where nobody waits for it, and forget one that is over."""
    if not task.waiting:
        where.leave(task)
    if task.over and _tasks.get(key) is task:
        del _tasks[key]


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


# Figures of a run or a photo: computed once for all visitors, bounded, and dropped with their owner.

MAX_BYTES = 32 * 2**20
"""Bytes that all of them take together, about."""
LAYOUT = 24_576
"""Bytes that the layout of a figure takes, about."""
PLAIN_CONFIG = {"displayModeBar": False}
"""How plotly shows a figure that needs no buttons."""
OBJECTS = 5
"""How many times the bytes of its JSON a value takes, about."""


class RenderedFigure(BaseFigure):
    """A figure that was validated once, as plain data: `st.plotly_chart` needs nothing else of a figure.

    Its traces are JSON text, written once, which takes little memory.
    """

    def __init__(self, figure: go.Figure):
        plain, traces, self._size = figure.to_dict(), [], LAYOUT
        for trace in plain["data"]:
            written = {name: orjson.dumps(_as_json(value)) for name, value in trace.items()}
            traces.append({name: orjson.Fragment(value) for name, value in written.items()})
            self._size += sum(map(len, written.values()))
        self._data = {"data": traces, "layout": plain["layout"]}

    def to_dict(self) -> dict:
        return dict(self._data)

    def weight(self) -> int:
        """Return the approximate size of the figure in bytes."""
        return self._size


def _as_json(value):
    """Return a value that JSON can hold: names are in arrays, which plotly validates faster than lists."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def _weight(entry: tuple[weakref.ref, object]) -> float:
    rendered = entry[1]
    if hasattr(rendered, "weight"):
        return rendered.weight()
    if isinstance(rendered, (bytes, str)):
        return len(rendered)
    return OBJECTS * len(orjson.dumps(rendered, default=_spell, option=orjson.OPT_NON_STR_KEYS))


def _spell(value: object) -> str:
    """Return a text as long as an array, or as bytes; of anything else its own."""
    size = value.nbytes if isinstance(value, np.ndarray) else len(value) if isinstance(value, bytes) else None
    return str(value) if size is None else " " * size


_store = Cache(MAX_BYTES, _weight)
_turns: weakref.WeakValueDictionary[Hashable, Lock] = weakref.WeakValueDictionary()
_asking = Lock()


def of(owner: object, key: Hashable, make: Callable[[], Result]) -> Result:
    """Return `make()`, computed once for each `key` of an `owner`, such as a run; the value must not be changed
    afterwards. A second caller waits for the first."""
    full = id(owner), key
    if (entry := _entry(full, owner)) is not None:
        return entry[1]
    with _asking:
        turn = _turns.get(full)
        if turn is None:
            turn = _turns[full] = Lock()
    with turn:
        if (entry := _entry(full, owner)) is None:
            drop = _store.drop  # held: as the server ends, owners may go after this file
            entry = weakref.ref(owner, lambda _: drop(full)), make()
            _store.put(full, entry)
        return entry[1]


def _entry(full: tuple[int, Hashable], owner: object) -> tuple[weakref.ref, Any] | None:
    """Return the cache entry of this very owner: its id may have belonged to one that is gone."""
    entry = _store.get(full)
    return entry if entry is not None and entry[0]() is owner else None


def of_queued(
    owner: object, key: Hashable, make: Callable[[], Result], doing: str, where: JobQueue | None = None
) -> Result:
    """Return `make()`, computed `in_turn` and once for each `key` of an `owner`."""
    return of(owner, key, lambda: in_turn(make, doing, where))


def name(owner: object) -> str:
    """Return a random name of an `owner`, which tells the browser one run from another."""
    return of(owner, "name", lambda: secrets.token_hex(8))


def figure(owner: object, key: Hashable, make: Callable[[], go.Figure]) -> RenderedFigure:
    """Return a figure of an `owner`, computed once."""
    return of(owner, key, lambda: RenderedFigure(make()))


def chart(owner: object, key: Hashable, make: Callable[[], go.Figure], **more) -> None:
    """Draw a figure of an `owner` on the page, without buttons; `more` is passed to `st.plotly_chart`."""
    st.plotly_chart(figure(owner, key, make), **{"config": PLAIN_CONFIG} | more)
