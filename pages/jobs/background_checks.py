"""Checks of printed lines on other runs: computed in the background once for each model, and shown to every visitor.

They run on the model's own sample, so they keep nothing of a visitor, and they give way to every visitor's run and
page. An open page polls for them with small requests, at growing intervals.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from threading import Event, Lock
from typing import TYPE_CHECKING

from pages.jobs import model_process, render_gate, run_cache, single_flight
from tracer.record import Trace
from tracer.utils.cache import Cache
from tracer.utils.errors import limits, reason
from tracer.utils.job_queue import BACKGROUND, JobEnd, JobQueue, Progress, Task, listen
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    from tracer import tracing
    from tracer.tracing import counterfactual
    from tracer.tracing.counterfactual import Check
else:  # imported when first used
    tracing = lazy_import("tracer.tracing")
    counterfactual = lazy_import("tracer.tracing.counterfactual")

PAUSE = 0.5
"""Seconds between two looks at whether the server goes on, while a check lets visitors go first."""

Key = tuple[str, run_cache.Options]
keys_on_screen: Callable[[], Iterable[Key]] = tuple
"""Returns the models and options of the runs on visitors' screens; `pages/state/browser_position.py` sets it."""
line = JobQueue(1)
"""Where checks are made, one at a time, beside the line of visitors' runs and never before any of them."""
stop_event = Event()
"""Set while the server ends: a check that goes on ends too."""
_results = Cache(256)
_findings = Cache(256)
"""What looks like a mistake in the code of each model whose lines were checked."""
_tasks: dict[Key, Task] = {}
_asking = Lock()
_displayed_runs: dict[int, tuple[weakref.ref[Trace], Trace]] = {}
"""Runs with the results of their model's check, by the identity of the run, for as long as that is there."""


def find(key: Key) -> Mapping[str, Check] | str | None:
    """Return the checks of a model's lines on other runs, or the reason why there are none.

    Start the check and return None where the result is not known yet.
    """
    key = _of_lines(key)
    if (checks := _results.get(key)) is not None:
        return checks
    with _asking:
        task = _tasks.get(key)
        if task is None or task.over:
            _tasks[key] = line.join(lambda: _check(key), BACKGROUND)
    return None


def _of_lines(key: Key) -> Key:
    """Return the key that runs with the same lines share, such as those of a photo with other patches hidden."""
    name, options = key
    return name, run_cache.of_lines(options)


def is_pending(key: Key, trace: Trace) -> bool:
    """Return whether the check of a model with its options is pending for this run."""
    return bool(trace.steps) and not _too_large(trace) and find(key) is None


def _too_large(trace: Trace) -> str:
    """Return why a model is not run again unasked, "" where it is; computed once for each run."""
    return single_flight.of(trace, "too large", lambda: counterfactual.too_large(trace))


def apply(key: Key, trace: Trace) -> Trace:
    """Return a run with the checks of its lines on other runs, the same object each time; the run itself while its
    check is pending."""
    checks = (_too_large(trace) or find(key)) if trace.steps else None
    if checks is None:
        return trace
    with _asking:
        entry = _displayed_runs.get(id(trace))
        if entry is None or entry[0]() is not trace:
            number, forget = id(trace), _displayed_runs.pop
            proofs = (
                counterfactual.without_checks(trace, checks)
                if isinstance(checks, str)
                else counterfactual.apply(checks, trace)
            )
            proofs = replace(proofs, diagnosis=_findings.get(_of_lines(key)))
            entry = _displayed_runs[number] = weakref.ref(trace, lambda _: forget(number, None)), proofs
        return entry[1]


def check_now(key: Key, trace: Trace) -> Trace:
    """Return a run of one of our models with its lines checked now, for work that already holds its slot in the
    queue."""
    if _results.get(_of_lines(key)) is None and not counterfactual.too_large(trace):
        checked = counterfactual.check(trace, _of_plain_run(*key))
        _results.put(_of_lines(key), counterfactual.results(checked))
    return apply(key, trace)


def wait(key: Key) -> None:
    """Wait until the check of a model is done or fails, or the server ends."""
    if find(key) is None and (task := _tasks.get(_of_lines(key))) is not None:
        while not stop_event.is_set() and not task.wait(PAUSE):
            pass


def beside(make: Callable[[], object]) -> None:
    """Run background work in the queue of checks, where it gives way to visitors. Raise what it raises."""

    def work() -> None:
        if not stop_event.is_set():
            with listen(_give_way):
                make()

    task = line.join(work, BACKGROUND)
    while not task.wait(PAUSE):
        pass
    if isinstance(task.error, Exception):
        raise task.error


def end(seconds: float) -> None:
    """Start no further check, and wait until the current one has ended, at most that many seconds."""
    stop_event.set()
    for task in list(_tasks.values()):
        task.wait(seconds)


def _check(key: Key) -> None:
    """Check the lines of a model; where the server has no room, or nobody looks at them any more, the check runs at
    the next request for it."""
    if stop_event.is_set() or limits().memory_full() or not _is_wanted(key):
        return
    may_move = run_cache.has_own_sizes(*key) and not model_process.is_ready()
    try:
        with listen(partial(_give_way, may_move=may_move)):
            checks = _run_check(*key)
    except render_gate.ServerFull:
        return
    except ProcessReady:
        return _check(key)
    _results.put(key, checks)


class ProcessReady(JobEnd):
    """Raised in a check that began here and can now be made in the process of checks, which has more time for it."""


def _is_wanted(key: Key) -> bool:
    """Return whether a run with these lines is on some visitor's screen; those of a model without options are for
    everybody."""
    return not key[1] or key in map(_of_lines, keys_on_screen())


def _of_plain_run(name: str, options: run_cache.Options) -> Mapping[str, Check] | None:
    """Return the checks of the same model without the changes of a run, where there are changes and these are known."""
    plain = _results.get((name, run_cache.without_changes(options))) if run_cache.changes(options) else None
    return None if isinstance(plain, str) else plain


def _run_check(name: str, options: run_cache.Options) -> Mapping[str, Check] | str:
    plain = _of_plain_run(name, options)
    try:
        with listen(_end_with_server):
            answer = run_cache.check_in_process(name, options, tracing.AT_HAND, plain)
        if answer is not None:
            _findings.put((name, options), answer.findings)
            return answer.checks
        trace = run_cache.of_first_sample(name, options, keep=tracing.AT_HAND)
        _findings.put((name, options), trace.diagnose().diagnosis)
        return counterfactual.results(counterfactual.check(trace, plain))
    except render_gate.ServerFull:
        raise
    except Exception as error:  # of a model of a library: its page is there all the same
        logging.warning("the lines of %s could not be checked on other runs: %s", name, error)
        return f"It was not checked on other runs ({reason(error)})."


def _end_with_server(how_far: Progress) -> None:
    """Raise `JobEnd` when the server ends: in a process of its own, a check need not wait for pages."""
    if stop_event.is_set():
        raise JobEnd


def _give_way(how_far: Progress, may_move: bool = False) -> None:
    """Let every visitor's run and page go first. Raise `JobEnd` when the server ends, and `ProcessReady` once the work
    can go on in the process of checks, where it `may_move`."""
    for queue in (single_flight.line, model_process.line):
        while not stop_event.is_set() and not queue.wait_for_visitors(PAUSE):
            if may_move and model_process.is_ready():
                raise ProcessReady
    render_gate.wait(PAUSE)
    if stop_event.is_set():
        raise JobEnd
