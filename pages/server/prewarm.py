"""Background work of an idle server: the runs of all samples before any visitor asks, the checks of their lines on
other runs, the notes, and garbage collection.

Streamlit would collect all garbage after every run of a script (`runner.postScriptGC` in `.streamlit/config.toml` turns
that off). Here all objects that exist once all samples were run are frozen, and newer ones are collected on a timer.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from pages.jobs import background_checks, model_process, model_worker, render_gate, run_cache
from pages.sections import mask_controls, note_statements
from tracer import models
from tracer.inputs.model_inputs import samples
from tracer.utils.errors import limits

SHUTDOWN_SECONDS = 10.0
"""Seconds in which a run that is begun is done."""
PATIENCE = 5.0
"""Seconds that the next run ahead lets pages that are being drawn go first, at most."""
ready = Event()
"""Set once the run that a visitor meets first is there."""


@contextmanager
def keeping() -> Iterator[None]:
    """Run that work in a thread of its own, from the server's start to its end."""
    over = Event()
    background_checks.stop_event.clear()
    beside = Thread(target=_keep, args=(over,), name="warm", daemon=True)
    beside.start()
    try:
        with model_process.allow():
            yield
    finally:
        over.set()
        background_checks.end(SHUTDOWN_SECONDS)
        beside.join(SHUTDOWN_SECONDS)  # a thread that Python ends in the midst of a run takes the process down with it


def _keep(over: Event) -> None:
    model_worker.raise_thresholds()
    for name, sample in ahead():
        if over.is_set():
            return
        with log_errors(name):
            photo = samples(models.samples(name)).get(sample)
            mask_controls.ahead(name, sample, photo and photo())
        ready.set()
        if limits().prewarm == "first":
            break
        render_gate.wait(PATIENCE)
    else:
        _prewarm_checks_and_notes(over)
    model_worker.freeze()
    model_worker.collect_until(over)


def _prewarm_checks_and_notes(over: Event) -> None:
    first, *others = note_statements.titles()
    _read((first,), over)
    for name in models.names():
        background_checks.wait((name, ()))
    _read(others, over)


def _read(notes: Iterable[str], over: Event) -> None:
    for note in notes:
        if not over.is_set() and not limits().memory_full():
            with log_errors(f"note {note}"):
                note_statements.ahead(note)


@contextmanager
def log_errors(name: str) -> Iterator[None]:
    """Log the error that keeps a model from being run ahead, such as damaged weights. A visitor who asks for it sees it
    too."""
    try:
        yield
    except Exception as error:
        logging.warning("%s could not be run ahead: %s", name, error)


def ahead() -> Iterator[tuple[str, str]]:
    """Yield (model, sample) of all prewarmed runs, in the order of a lesson: first each model's first sample, then the
    others of those whose runs are not large."""
    samples_of = {name: run_cache.sample_names(name) for name in models.names()}
    yield from ((name, names[0]) for name, names in samples_of.items())
    for place in range(1, max(map(len, samples_of.values()))):
        for name, names in samples_of.items():
            if place < len(names) and not run_cache.large(name, names[0]):
                yield name, names[place]
