"""Processes that run our models, beside the server, which draws pages; and another one for checks on other runs.

Python runs one thread of a process at a time: while a model runs in the server, pages are drawn at half their speed,
and the run takes twice its time. One person alone has no use for more processes and their memory. So they start when a
class is there, or a visitor's run first waits for another visitor's, and each serves from the moment that its models
are loaded. Until then, and wherever they fail, the server does the work. A model is run by the same process each time,
which knows its symbols and equations, unless another one has less to do. The process of checks starts with the first
check after that, and has only the time of a core that nobody else wants.
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
from tracer.utils.errors import limits
from tracer.utils.job_queue import JobQueue, doing, tell
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    from tracer.record import Trace
    from tracer.spec import preparation
    from tracer.spec.spec import Model
    from tracer.tracing import transfer
    from tracer.tracing.counterfactual import Check
else:  # imported when first used
    preparation = lazy_import("tracer.spec.preparation")
    transfer = lazy_import("tracer.tracing.transfer")

POLL_SECONDS = 0.1
"""Seconds between two looks at whether the work is still wanted."""
MESSAGE = "Running the model and verifying every step"
COMMON_PARTS = 256
"""Parts that runs have in common, such as the equations of a model, that are known here at once."""
PROCESSES = 2
"""Processes that run models, where there are as many cores."""
PREFETCH = 2
"""Runs that are under way at once for each process: it has the next one at hand while another is read here."""
CLASS = 4
"""Visitors at once that make a class: the processes start before any of their runs waits."""
TURN = 0.001
"""Seconds that a thread of the server keeps Python's lock while another waits for it, where models run in the server. A
run lets go of the lock at each of its thousand operations, and would wait longer for it each time while a page is
drawn. Where a process has the runs, Python's own interval draws more pages in a second."""
_PYTHONS_TURN = sys.getswitchinterval()

ENDED = (BrokenProcessPool, CancelledError, RuntimeError)
"""Errors of asking a process that has ended."""

Result = TypeVar("Result")


line = JobQueue(PREFETCH * PROCESSES)
"""Where visitors' runs wait for a process."""


class Process:
    """A process of models that loads some of them ahead; `pending` is its work that is not done."""

    def __init__(self, prepare: Callable[[], None], names: tuple[str, ...] = ()):
        self._executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare)
        self.loaded = self._executor.submit(model_worker.load, names)
        self.pending: set[Future] = set()

    @property
    def serves(self) -> bool:
        """Return whether its models are loaded."""
        loaded = self.loaded
        return loaded.done() and not loaded.cancelled() and loaded.exception() is None

    def ask(self, work: Callable[..., Result], *arguments: Any, discard: Callable[[], None] = lambda: None) -> Result:
        """Return what `work` returns in the process.

        What listens to the progress may raise `JobEnd`: the work is then left, and `discard` is called after it.
        Raises an error of `ENDED` where the process ends.
        """
        answer = self._executor.submit(work, *arguments)
        self.pending.add(answer)
        answer.add_done_callback(self.pending.discard)
        try:
            while not wait([answer], POLL_SECONDS).done:
                tell()
        except BaseException:
            answer.cancel()
            answer.add_done_callback(lambda _: discard())
            raise
        return answer.result()

    def end(self) -> None:
        """End the process once it is done with its current work."""
        self._executor.shutdown(wait=False, cancel_futures=True)


_processes: list[Process] = []
_checker: Process | None = None
_starting = Lock()
_common = Cache(COMMON_PARTS)
_folder: Path | None = None
"""Where processes write the tensors of runs, and the server maps them; None where no process is allowed."""


@contextmanager
def allow() -> Iterator[None]:
    """Let the processes start inside the block, and end them afterwards."""
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
            for process in (*_processes, _checker):
                end(process)


def start() -> None:
    """Start the next process that is allowed and not there yet, once those before it serve, while the memory of the
    server is not full."""
    with _starting:
        fewer = len(_processes) < min(PROCESSES, os.cpu_count() or 1)
        if fewer and all(process.serves for process in _processes) and _has_room():
            _processes.append(process := Process(model_worker.start, tuple(models.names())))
            process.loaded.add_done_callback(_hand_over_runs)


def _has_room() -> bool:
    """Return whether processes are allowed and the memory of the server is not full."""
    return _folder is not None and not limits().memory_full()


def _hand_over_runs(loaded: Future) -> None:
    """Let pages keep Python's lock once a process has the runs; log why it has none."""
    if loaded.cancelled():
        return
    if (error := loaded.exception()) is None:
        sys.setswitchinterval(_PYTHONS_TURN)
    else:
        logging.warning("a process that runs models did not start: %s", error)


def _start_checker() -> Process | None:
    """Return the process of checks, started where a process of runs serves; None where there is no memory for it."""
    global _checker
    with _starting:
        if _checker is None and is_ready() and _has_room():
            _checker = Process(model_worker.start_checks)
        return _checker


def end(process: Process | None) -> None:
    """End a process once it is done with its current work, if it still serves."""
    global _checker
    with _starting:
        if process is None or process not in (*_processes, _checker):
            return
        if process is _checker:
            _checker = None
        else:
            _processes.remove(process)
            if _folder is not None and not is_ready():
                sys.setswitchinterval(TURN)
    process.end()


def is_ready() -> bool:
    """Return whether a process serves."""
    return any(process.serves for process in _processes)


def _of_model(name: str) -> Process | None:
    """Return the process that serves and has least to do; among equals, the one of this model. None where none
    serves."""
    own = models.names().index(name) % PROCESSES
    serving = [process for process in (*_processes[own:], *_processes[:own]) if process.serves]
    return min(serving, key=lambda process: len(process.pending), default=None)


def run_model(key: model_worker.Key, user_input: dict[str, Any], model: Model) -> Trace:
    """Return a run of a model with every step verified, from a process of runs; where that fails, computed here with
    `model`, the same model of this process, to which the run refers."""
    if (folder := _folder) is not None:
        file = folder / uuid4().hex

        def discard() -> None:
            with suppress(OSError):
                file.unlink()

        with doing(MESSAGE):
            run = _ask(_of_model(key[0]), model_worker.run, key, user_input, file, discard=discard)
        if run is not None:
            preparation.remember_captions(model, run.captions)
            photo = user_input.get("image")
            sent = {} if photo is None else dict.fromkeys(model_worker.PHOTO, np.array(photo))
            try:
                return transfer.unpack(run.packed, model.net, _common, sent)
            except (OSError, RuntimeError) as error:  # a file that can't be mapped
                logging.warning("a run of the process could not be read, and the server runs the model: %s", error)
    return model.trace(**user_input)


def measure(
    function: Callable[..., Result], key: model_worker.Key, user_input: dict[str, Any], *arguments: Any
) -> Result | None:
    """Return `function(model, inputs, *arguments)` of a model and a visitor's input, from a process of models; None
    where that fails. ValueError where it refuses."""
    # bytes: a queue between processes would move the memory of tensors, which other threads read
    sent = pickle.dumps(arguments)
    measurement = _ask(_of_model(key[0]), model_worker.measure, function, key, user_input, sent)
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
    return _ask(_start_checker(), model_worker.check, key, user_input, plain)


def _ask(
    process: Process | None,
    work: Callable[..., Result],
    *arguments: Any,
    discard: Callable[[], None] = lambda: None,
) -> Result | None:
    """Return what `work` returns in a process, as `Process.ask`; None where the process is not there, or ends."""
    if process is None:
        return None
    try:
        return process.ask(work, *arguments, discard=discard)
    except ENDED as error:
        logging.warning("a process of models has ended, and the server does its work: %s", error)
        end(process)
        return None
