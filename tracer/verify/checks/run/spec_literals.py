"""Facts about a model before it runs, its summary and its inputs, against its file once it is imported."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from inspect import getdoc

from tracer import models
from tracer.verify.checks.reference_run import PlainRun


def problems(run: PlainRun) -> Iterator[str]:
    """Compare the facts read from a model's file with the imported module."""
    name, spec = run.model.name, run.model.spec
    if name not in models.names():
        return
    module = import_module(f"tracer.models.{name.replace('-', '_')}")
    if models.summary(name) != (getdoc(module) or "").partition("\n")[0]:
        yield f"the model is said to be {models.summary(name)!r}"
    if models.takes(name) != spec.takes or models.samples(name) != spec.samples:
        yield f"the model is said to take {models.takes(name)}, and samples of {models.samples(name)!r}"
