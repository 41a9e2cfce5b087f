"""A survey of the libraries' names: each is built and traced in a worker process, and failures have reasons.

A worker takes one name after the other; one that takes too long, or too much memory, is ended and another goes on.
Nothing is downloaded: weights are seeded random ones, and above `HEAVY_PARAMETERS` parameters a net is run on `meta`.
"""

from __future__ import annotations

import gc
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import prod
from typing import NamedTuple

from tracer import zoo
from tracer.utils.devices import use_one_thread
from tracer.utils.error_text import reason, shorten

HEAVY_PARAMETERS = 300_000_000
"""Parameters from which on a net is run without values."""
SECONDS = 120
"""Processor time that one name is given, so that a busy machine does not change what opens."""
WAIT = 1200
"""Seconds that are waited for it altogether."""
MEMORY = 10 * 2**30
"""Bytes that a worker may hold."""
TURNS = 20
"""Names that one worker takes, so that what libraries keep does not pile up."""


class NameOutcome(NamedTuple):
    """Outcome of a name: the number of operations that ran, or the reason for none; `model` is False for an inner
    part. `findings` are those that nobody acknowledged, a sentence each."""

    name: str
    ops: int = 0
    reason: str = ""
    seconds: float = 0.0
    model: bool = True
    findings: tuple[str, ...] = ()


def list_names(library: str) -> list[str]:
    """Return all names of a library, with its prefix. Raise ValueError for an unknown library."""
    source, _ = zoo.source_of(f"{library}:")
    return [f"{library}:{id}" for id in source.names()]


def sample(names: list[str], count: int | None, seed: int = 0) -> list[str]:
    """Return that many of the names, drawn at random; all without a number."""
    return names if count is None else random.Random(seed).sample(names, min(count, len(names)))


def open_name(name: str) -> NameOutcome:
    """Build a model and trace it on its own sample; an exception on the way is the reason."""
    import torch  # loads torch

    import tracer  # loads torch

    start = time.process_time()
    try:
        net, inputs = _ready(name)
        with torch.no_grad():
            trace = tracer.trace(net, *inputs, prove=False, **inputs.named)
            findings = trace.findings
    except Exception as error:  # a library may raise anything; only what we refuse is of one sentence
        plain = isinstance(error, ValueError)
        message = reason(error) if plain else f"{type(error).__name__}: {reason(error)}"
        model = not isinstance(error, zoo.NoModel)
        return NameOutcome(
            name, reason=message or type(error).__name__, seconds=time.process_time() - start, model=model
        )
    sentences = tuple(f"{finding.kind}: {finding.message}" for finding in findings)
    return NameOutcome(name, ops=len(trace.ops), seconds=time.process_time() - start, findings=sentences)


def _ready(name: str):
    """Prepare the net and its inputs: on `meta` if the net is heavy."""
    import torch  # loads torch

    import tracer  # loads torch
    from tracer.models.shared.config_validation import shapes  # loads torch
    from tracer.models.shared.spec import Model  # loads torch
    from tracer.shapes.shadow_module import on_meta  # loads torch
    from tracer.utils.internals.torch_internals import tree_map_only  # loads torch

    spec = zoo.spec_of(name)
    full = {**spec.sizes, **{option: values[0] for option, values in spec.options.items()}}
    if sum(map(prod, shapes(spec, full).values())) <= HEAVY_PARAMETERS:
        model = tracer.load(name)
        return model.net, model.inputs()
    net = on_meta(lambda: spec.net(**full)).eval()
    inputs = Model.of(name, spec, net, full, weights="none: on meta").inputs()
    on_meta = partial(tree_map_only, torch.Tensor, lambda tensor: tensor.to("meta"))
    return net, replace(inputs, tensors=on_meta(inputs.tensors), named=on_meta(inputs.named))


def survey(names: list[str], seconds: float = SECONDS) -> Iterator[NameOutcome]:
    """Yield the outcome of each name, in order of completion."""
    worker = None
    for number, name in enumerate(names):
        if worker is None or number % TURNS == 0:
            _end(worker)
            worker = _worker(seconds)
        answer = _answer(worker, name, seconds)
        yield answer
        if worker.poll() is not None:
            _end(worker)
            worker = None
    _end(worker)


def _worker(seconds: float) -> subprocess.Popen:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRACER_MODEL_GB": "100000", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "tracer.verify.survey_names", str(seconds)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )


def _answer(worker: subprocess.Popen, name: str, seconds: float) -> NameOutcome:
    """Return the worker's outcome for a name, or the reason for none."""
    assert worker.stdin and worker.stdout  # `_worker` asked for both
    worker.stdin.write(f"{name}\n".encode())
    worker.stdin.flush()
    ready, _, _ = select.select([worker.stdout], [], [], WAIT)
    if line := worker.stdout.readline() if ready else b"":
        return NameOutcome(*json.loads(line))
    if not ready:
        worker.kill()
        return NameOutcome(name, reason=f"it took more than {WAIT} s", seconds=WAIT)
    if worker.wait() == -getattr(signal, "SIGPROF", 0):
        return NameOutcome(name, reason=f"it took more than {seconds:g} s of processor time", seconds=seconds)
    return NameOutcome(name, reason="its process ended, out of memory or in a crash")


def _end(worker: subprocess.Popen | None) -> None:
    if worker is not None:
        worker.kill()
        worker.communicate()


def summary(library: str, outcomes: list[NameOutcome], most: int = 12) -> list[str]:
    """Return how many of a library's names opened, the commonest reasons of the rest, and all findings."""
    ok, models = sum(not outcome.reason for outcome in outcomes), sum(outcome.model for outcome in outcomes)
    lines = [f"{library}: {ok} of {models} opened ({100 * ok / max(1, models):.1f} %)"]
    lines += [f"  {len(outcomes) - models} more are not models by themselves"] if models < len(outcomes) else []
    rest = [outcome for outcome in outcomes if outcome.reason and outcome.model]
    for why, count in Counter(_kind(outcome) for outcome in rest).most_common(most):
        names = [outcome.name for outcome in rest if _kind(outcome) == why]
        more = f" and {len(names) - 4} others" if len(names) > 4 else ""
        lines.append(f"  {count:4}  {shorten(why, 160)}  ({', '.join(names[:4])}{more})")
    lines += [f"  {outcome.name}: {sentence}" for outcome in outcomes for sentence in outcome.findings]
    return lines


def _kind(outcome: NameOutcome) -> str:
    """Return a reason without the name."""
    return outcome.reason.replace(outcome.name.partition(":")[2], "…").replace("'hf:…' ", "")


def _work(seconds: float) -> None:
    """Read names from standard input and print the outcome of each, a line of JSON; end if one takes longer than that
    many seconds of processor time, or more than `MEMORY`, on systems that know such limits."""
    try:
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    except (ImportError, OSError, ValueError):
        pass
    use_one_thread()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is not an answer
    for line in sys.stdin:
        with _ended_after(seconds):
            outcome = open_name(line.strip())
        print(json.dumps(outcome), file=out, flush=True)
        gc.collect()  # a net may refer to itself, and then stays until there are many small objects


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """End this process, by a signal, should the block take more processor time than that."""
    if not hasattr(signal, "setitimer"):  # Windows
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    _work(float(sys.argv[1]))
