"""Every line that any of our models prints, at each choice of each option."""

from collections.abc import Iterator
from functools import lru_cache

import tracer
from tracer import models
from tracer.spec.spec import Spec


def choices(spec: Spec) -> Iterator[dict]:
    """Yield the default options of a model, then each other value of each of them alone."""
    default = {option: values[0] for option, values in spec.options.items()}
    yield default
    for option, values in spec.options.items():
        for value in values[1:]:
            yield {**default, option: value}


@lru_cache(maxsize=1)
def printed_equations() -> dict[str, str]:
    """Return all lines of models of one block, small, each with the name of a model and of a step that prints it."""
    found = {}
    for name in models.names():
        spec = models.spec_of(name)
        sizes = {size: 1 for size in spec.sizes if size[0] == "L"}
        for options in choices(spec):
            for step in tracer.load(name, **sizes, **options).trace(prove=False).steps:
                found.setdefault(step.latex, f"{name}, {step.id}")
    return found
