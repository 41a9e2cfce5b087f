"""A process that runs our models, beside the server, which draws pages; and another one for checks on other runs.

Python runs one thread of a process at a time: while a model runs in the server, pages are drawn at half their speed,
and the run takes twice its time. One person alone has no use for a second process and its memory. So it starts when a
class is there, or a visitor's run first waits for another visitor's, and serves from the moment that its models are
loaded. Until then, and wherever it fails, the server does the work. The process of checks starts with the first check
after that, and has only the time of a core that nobody else wants.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import numpy as np

from pages.jobs import model_worker
from tracer import models
from tracer.utils.cache import Cache
from tracer.utils.devices import default_device
from tracer.utils.job_queue import JobQueue
from tracer.utils.limits import limits
from tracer.utils.progress import doing, tell

if TYPE_CHECKING:
    from tracer.models.shared.spec import Model
    from tracer.record import Trace
    from tracer.tracing.proofs.counterfactual_budget import Check

POLL_SECONDS = 0.1
"""Seconds between two looks at whether the work is still wanted."""
MESSAGE = "Running the model and proving every step"
COMMON_PARTS = 256
"""Parts that runs have in common, such as the equations of a model, that are known here at once."""
PREFETCH = 3
"""Runs that are under way at once: the process has the next one at hand when it is done with one, while another is read
here."""
CLASS = 4
"""Visitors at once that make a class: the process starts before any of their runs waits."""
TURN = 0.001
"""Seconds that a thread of the server keeps Python's lock while another waits for it, where models run in the server. A
run lets go of the lock at each of its thousand operations, and would wait longer for it each time while a page is
drawn. Where the process has the runs, Python's own interval draws more pages in a second."""
_PYTHONS_TURN = sys.getswitchinterval()

Options = tuple[tuple[str, Any], ...]
Result = TypeVar("Result")


line = JobQueue(PREFETCH)
"""Where visitors' runs wait for the process."""
_executor: ProcessPoolExecutor | None = None
_loaded: Future | None = None
_checker: ProcessPoolExecutor | None = None
_starting = Lock()
_common = Cache(COMMON_PARTS)
_folder: Path | None = None
"""Where the process writes the tensors of runs, and the server maps them; None where no process is allowed."""


@contextmanager
def allow() -> Iterator[None]:
    """Let the process start inside the block, and end it afterwards."""
    global _folder
    sys.setswitchinterval(TURN)
    with ExitStack() as stack:
        stack.callback(sys.setswitchinterval, _PYTHONS_TURN)
        if limits().run_process and (os.cpu_count() or 1) > 1 and default_device() == "cpu":
            with suppress(OSError):  # a disk that takes nothing: the server runs the models
                folder = TemporaryDirectory(prefix="tensor-tracer-", ignore_cleanup_errors=True)
                _folder = Path(stack.enter_context(folder))
        try:
            yield
        finally:
            _folder = None
            end(_executor)
            end(_checker)


def start() -> None:
    """Start the process where it is allowed and not there yet, and the memory of the server is not full."""
    global _executor, _loaded
    with _starting:
        if _folder is not None and _executor is None and not limits().memory_full():
            _executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), model_worker.start)
            _loaded = _executor.submit(model_worker.load, tuple(models.names()))
            _loaded.add_done_callback(_hand_over_runs)


def _hand_over_runs(loaded: Future) -> None:
    """Let pages keep Python's lock once the process has the runs; log why it has none."""
    if loaded.cancelled():
        return
    if (error := loaded.exception()) is None:
        sys.setswitchinterval(_PYTHONS_TURN)
    else:
        logging.warning("the process that runs models did not start, and the server runs them: %s", error)


def _start_checker() -> ProcessPoolExecutor | None:
    """Return the process of checks, started where the process of runs serves; None where there is no memory for it."""
    global _checker
    with _starting:
        if _checker is None and _folder is not None and is_ready() and not limits().memory_full():
            _checker = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), model_worker.start_checks)
        return _checker


def end(executor: ProcessPoolExecutor | None) -> None:
    """End a process once it is done with its current work, if it still serves."""
    global _executor, _loaded, _checker
    with _starting:
        if executor is None or executor not in (_executor, _checker):
            return
        if executor is _checker:
            _checker = None
        else:
            _executor = _loaded = None
            if _folder is not None:
                sys.setswitchinterval(TURN)
    executor.shutdown(wait=False, cancel_futures=True)


def is_ready() -> bool:
    """Return whether the process serves."""
    loaded = _loaded
    return loaded is not None and loaded.done() and not loaded.cancelled() and loaded.exception() is None


def prove(name: str, options: Options, changes: tuple[str, ...], user_input: dict[str, Any], model: Model) -> Trace:
    """Return a run of a model with every step proven, from the process of runs; where that fails, computed here with
    `model`, the same model of this process, to which the run refers."""
    from tracer.models.shared.preparation.captioning_inputs import remember_captions  # torch, which pages start without
    from tracer.tracing.transfer import unpack

    if (folder := _folder) is not None:
        file = folder / uuid4().hex

        def discard() -> None:
            with suppress(OSError):
                file.unlink()

        with doing(MESSAGE):
            run = _ask(model_worker.run, name, options, changes, user_input, file, discard=discard)
        if run is not None:
            remember_captions(model, run.captions)
            photo = user_input.get("image")
            sent = {} if photo is None else dict.fromkeys(model_worker.PHOTO, np.array(photo))
            try:
                return unpack(run.packed, model.net, _common, sent)
            except (OSError, RuntimeError) as error:  # a file that can't be mapped
                logging.warning("a run of the process could not be read, and the server runs the model: %s", error)
    return model.trace(**user_input)


def measure(
    function: Callable[..., Result],
    name: str,
    options: Options,
    changes: tuple[str, ...],
    user_input: dict[str, Any],
    *arguments: Any,
) -> Result | None:
    """Return `function(model, inputs, *arguments)` of a model and a visitor's input, from the process of models; None
    where that fails. ValueError where it refuses."""
    # bytes: a queue between processes would move the memory of tensors, which other threads read
    sent = pickle.dumps(arguments)
    measurement = _ask(model_worker.measure, function, (name, options, changes), user_input, sent)
    if measurement is None:
        return None
    if measurement.problem:
        raise ValueError(measurement.problem)
    return pickle.loads(measurement.result)


def check(
    key: model_worker.Key, user_input: dict[str, Any], plain: Mapping[str, Check] | None = None
) -> model_worker.ModelCheck | None:
    """Return the check of a model's lines on other runs, from the process of checks; None where that fails. `plain` are
    the checks of the model without changes, where they are known. What listens to the progress may raise `JobEnd`."""
    return _ask_in(_start_checker(), model_worker.check, key, user_input, plain)


def _ask(work: Callable[..., Result], *arguments: Any, discard: Callable[[], None] = lambda: None) -> Result | None:
    """Return what `work` returns in the process of runs, as `_ask_in`."""
    return _ask_in(_executor, work, *arguments, discard=discard)


def _ask_in(
    executor: ProcessPoolExecutor | None,
    work: Callable[..., Result],
    *arguments: Any,
    discard: Callable[[], None] = lambda: None,
) -> Result | None:
    """Return what `work` returns in a process; None where the process is not there, or ends.

    What listens to the progress may raise `JobEnd`: the work is then left, and `discard` is called after it.
    """
    if executor is None:
        return None
    try:
        answer = executor.submit(work, *arguments)
        try:
            while not wait([answer], POLL_SECONDS).done:
                tell()
        except BaseException:
            answer.cancel()
            answer.add_done_callback(lambda _: discard())
            raise
        return answer.result()
    except (BrokenProcessPool, CancelledError, RuntimeError) as error:
        logging.warning("the process that runs models has ended, and the server runs them: %s", error)
        end(executor)
        return None
