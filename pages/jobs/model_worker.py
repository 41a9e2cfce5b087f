"""Work in the processes of models: runs of ours, sent as bytes, in one, and checks of lines on other runs in another.

Nothing here imports Streamlit: the processes have models alone. Work goes on one after another in the main thread."""

from __future__ import annotations

import gc
import os
import pickle
import signal
from collections.abc import Callable
from functools import lru_cache
from multiprocessing import parent_process
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import tracer
from tracer.utils.devices import use_one_thread
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from PIL.Image import Image

    from tracer import tracing
    from tracer.record import Finding, Trace
    from tracer.spec.spec import Model
    from tracer.tracing import counterfactual, transfer
    from tracer.tracing.counterfactual import Check
    from tracer.tracing.transfer import PackedTrace
else:  # imported when first used
    tracing = lazy_import("tracer.tracing")
    counterfactual = lazy_import("tracer.tracing.counterfactual")
    transfer = lazy_import("tracer.tracing.transfer")


# Garbage collection of a process that holds much for long: what is there at the start is left alone.
#
# Python would go through the whole heap again and again, most of which stays. Here all objects that exist once the
# process is prepared are frozen, and newer ones are collected on a timer.

SECONDS = 30.0
"""Seconds between two collections, during each of which the whole process waits."""
YOUNG = (20_000, 20, 1_000)
"""Python's own thresholds between them: a page, or a run, makes thousands of objects and drops them without its
help."""


def raise_thresholds() -> None:
    """Let Python itself collect young objects alone, as good as always."""
    gc.set_threshold(*YOUNG)


def freeze() -> None:
    """Leave all objects that exist now out of later collections."""
    gc.collect()
    gc.freeze()


def collect_until(over: Event, wait: Callable[[], object] = lambda: None) -> None:
    """Collect on the timer, each time after a `wait` for a good moment, until `over` is set."""
    while not over.wait(SECONDS):
        wait()
        gc.collect()


MODELS = 24
"""Models with their options that the process holds at most."""
PHOTO = ("photo",)
"""The value of a run that the server has already, where it sent the photo and no patch of it is hidden."""
LOWEST_PRIORITY = 19
"""Niceness of the process of checks."""

Options = tuple[tuple[str, Any], ...]
"""Options and sizes of a model by name, sorted, as a key of caches."""
Key = tuple[str, Options, tuple[str, ...]]
"""A model, its options, and the changes of its runs."""


class Run(NamedTuple):
    """A run as bytes, and the captions that the model generated for it, by their pictures' hashes."""

    packed: PackedTrace
    captions: dict[bytes, list[int]]


class Measurement(NamedTuple):
    """Result of a measurement as bytes, which hold its tensors, or the reason why it was refused."""

    result: bytes = b""
    problem: str = ""


class ModelCheck(NamedTuple):
    """Result of checking the lines of a model on other runs, and what looks like a mistake in its code."""

    checks: Mapping[str, Check]
    findings: tuple[Finding, ...] | None


_idle = Event()
"""Set while no visitor's run goes on."""


def start() -> None:
    """Prepare the process: the server ends it, not the terminal, and it never outlives the server."""
    _idle.set()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Thread(target=_end_with_parent, name="parent", daemon=True).start()
    raise_thresholds()
    Thread(target=collect_until, args=(Event(), _idle.wait), name="garbage", daemon=True).start()


def start_checks() -> None:
    """Prepare the process of checks, which has the time that no page and no run needs."""
    if hasattr(os, "nice"):
        os.nice(LOWEST_PRIORITY)
    start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


def load(names: tuple[str, ...]) -> None:
    """Load models ahead, so that the first visitor of each does not wait for it."""
    for name in names:
        _model(name, ())
    freeze()


def run(key: Key, user_input: dict[str, Any], file: Path) -> Run | None:
    """Return a run of a model with these changes, every step verified, and write its tensors to a file; None where it
    fails. The server then runs it, to learn the error: the error itself may hold the model."""
    _idle.clear()
    try:
        model = _changed_model(*key)
        model.captions.clear()  # those of earlier runs are of other visitors' pictures
        trace = model.trace(**user_input)
        packed = transfer.pack(trace, model.net, file, PHOTO if _shows(trace, user_input.get("image")) else ())
        return Run(packed, dict(model.captions))
    except Exception:
        file.unlink(missing_ok=True)  # half of it may be written, on a full disk
        return None
    finally:
        _idle.set()


def _shows(trace: Trace, photo: Image | None) -> bool:
    """Return whether a run has the photo as it was sent: its patches may be hidden."""
    return photo is not None and all(np.array_equal(trace.values.get(key), np.array(photo)) for key in PHOTO)


def measure(function: Callable, key: Key, user_input: dict[str, Any], arguments: bytes) -> Measurement | None:
    """Return `function(model, inputs, *arguments)` of a model, a visitor's input and pickled arguments; None where it
    fails with anything but a refusal. Nothing of the input is kept."""
    _idle.clear()
    try:
        model = _changed_model(*key)
        model.captions.clear()
        result = function(model, model.inputs(**user_input), *pickle.loads(arguments))
        model.captions.clear()
        return Measurement(pickle.dumps(result))
    except ValueError as refusal:
        return Measurement(problem=str(refusal))
    except Exception:
        return None
    finally:
        _idle.set()


def check(key: Key, user_input: dict[str, Any], plain: Mapping[str, Check] | None) -> ModelCheck | None:
    """Return the check of the lines of a model on other runs than this one; None where it fails. `plain` are the checks
    of the model without changes, where they are known."""
    try:
        trace = _changed_model(*key).trace(**user_input, prove=tracing.PROVE_LATER)
        checked = counterfactual.check(trace, plain)
        if any(step.refuted for step in checked.steps):  # the proof may print such a line otherwise
            trace = trace.prove()
            checked = counterfactual.check(trace, plain)
        return ModelCheck(counterfactual.results(checked), trace.diagnose().diagnosis)
    except Exception:  # the server then checks the lines itself, as above
        return None


def _changed_model(name: str, options: Options, changes: tuple[str, ...]) -> Model:
    return with_changes(_model(name, options), changes)


def with_changes(model: Model, changes: tuple[str, ...]) -> Model:
    """Return a model with these changes, which shares the weights of the plain one."""
    if not changes:
        return model
    from tracer.changes import parse_all  # torch, which pages start without

    return model.with_changes(parse_all(changes))


@lru_cache(maxsize=MODELS)
def _model(name: str, options: Options) -> Model:
    return load_model(name, options)


def load_model(name: str, options: Options, device: str = "cpu") -> Model:
    """Load one of our models, whose weights stay as they are, to run on one core."""
    use_one_thread()
    model = tracer.load(name, device=device, **dict(options))
    model.fixed = True
    return model
