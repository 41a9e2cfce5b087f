"""Checks of printed lines on other runs: made in the background once for each model, and shown to all who look at it.

They are made beside the model's own sample, so nothing of a visitor's is held for them, and they give way to every
visitor's run and page. A page that is open meanwhile asks with small requests, ever less often, if they are there.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from threading import Event, Lock
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from pages.shared import bodies, busy, crowd, runs, told, turns
from tracer.common.cache import Cache
from tracer.common.limits import limits
from tracer.common.line import BACKGROUND, Ended, Line, Task
from tracer.common.quoting import reason
from tracer.common.telling import Told, heard
from tracer.record import Trace

if TYPE_CHECKING:
    from tracer.tracing.checks import Check

PATH = "/checked"
LONGEST = 100
"""Bytes of a request that are read: the visitor's token."""
PAUSE = 0.5
"""Seconds between two looks at whether the server goes on, while a check lets visitors go first."""

Key = tuple[str, runs.Options]
line = Line(1)
"""Where checks are made, one at a time, beside the line of visitors' runs and never before any of them."""
stopped = Event()
"""Set while the server ends: a check that goes on ends too."""
_results = Cache(64)
_tasks: dict[Key, Task] = {}
_asking = Lock()
_shown: dict[int, tuple[weakref.ref[Trace], Trace]] = {}
"""Runs with the results of their model's check, by the identity of the run, for as long as that is there."""


def find(key: Key) -> Mapping[str, Check] | str | None:
    """Return what other runs say of the lines of a model with its options, or why there were none.

    Where that is not known yet, finding out begins, and None is returned.
    """
    if (found := _results.get(key)) is not None:
        return found
    with _asking:
        task = _tasks.get(key)
        if task is None or task.over:
            _tasks[key] = line.join(lambda: _check(key), BACKGROUND)
    return None


def pending(key: Key, trace: Trace) -> bool:
    """Whether the check of a run of a model with its options is still to come."""
    return bool(trace.steps) and not _too_large(trace) and find(key) is None


def apply(key: Key, trace: Trace) -> Trace:
    """Return a run of a model with what other runs say of its lines, the same object each time; as it is while its
    check is still to come."""
    found = (_too_large(trace) or find(key)) if trace.steps else None
    if found is None:
        return trace
    with _asking:
        kept = _shown.get(id(trace))
        if kept is None or kept[0]() is not trace:
            from tracer.tracing import checks  # torch, which a page starts without

            number, forget = id(trace), _shown.pop
            made = checks.unchecked(trace, found) if isinstance(found, str) else checks.apply(found, trace)
            kept = _shown[number] = weakref.ref(trace, lambda _: forget(number, None)), made
        return kept[1]


def checked(key: Key, trace: Trace) -> Trace:
    """Return a run of a model of ours, whose lines are checked now, for work that has its turn already."""
    from tracer.tracing import checks

    if _results.get(key) is None and not _too_large(trace):
        _results.put(key, checks.results(checks.check(trace)))
    return apply(key, trace)


def _too_large(trace: Trace) -> str:
    from tracer.tracing.checks import too_large  # torch, which a page starts without

    return too_large(trace)


def wait(key: Key) -> None:
    """Wait until the check of a model is made or can't be made now, or the server ends."""
    if find(key) is None and (task := _tasks.get(key)) is not None:
        while not stopped.is_set() and not task.wait(PAUSE):
            pass


def beside(make: Callable[[], object]) -> None:
    """Do work that nobody waits for yet in the line of checks: it gives way to visitors as they do. Raise what it
    raises."""

    def work() -> None:
        if not stopped.is_set():
            with heard(_give_way):
                make()

    task = line.join(work, BACKGROUND)
    while not task.wait(PAUSE):
        pass
    if isinstance(task.error, Exception):
        raise task.error


def end(seconds: float) -> None:
    """Begin no other check, and wait until the one that goes on has ended, so many seconds at most."""
    stopped.set()
    for task in list(_tasks.values()):
        task.wait(seconds)


def _check(key: Key) -> None:
    """Check the lines of a model; a server without room for it does so when it is asked again."""
    if stopped.is_set() or limits().memory_full():
        return
    try:
        with heard(_give_way):
            found = _found(*key)
    except crowd.Full:
        return
    _results.put(key, found)


def _found(name: str, options: runs.Options) -> Mapping[str, Check] | str:
    from tracer.tracing import AT_HAND, checks

    try:
        return checks.results(checks.check(runs.of_first_sample(name, options, keep=AT_HAND)))
    except crowd.Full:
        raise
    except Exception as error:  # of a model of a library: its page is there all the same
        logging.warning("the lines of %s could not be checked on other runs: %s", name, error)
        return f"It was not checked on other runs ({reason(error)})."


def _give_way(how_far: Told) -> None:
    """Let every visitor's run and page go first. `Ended` where the server ends."""
    while not stopped.is_set() and not turns.line.wait_for_visitors(PAUSE):
        pass
    busy.wait(PAUSE)
    if stopped.is_set():
        raise Ended


async def hear(request: Request) -> Response:
    """Say whether the check that a visitor's page waits for is made: 202 if not, 204 if it is or the visitor has gone
    on to a page that waits for none, 404 for no visitor."""
    if (body := await bodies.read(request, LONGEST)) is None:
        return Response(status_code=413)
    visitor = told.visitor_of(body.decode(errors="replace"))
    if visitor is None:
        return Response(status_code=404)
    waits = visitor.checking is not None and find(visitor.checking) is None
    return Response(status_code=202 if waits else 204)
