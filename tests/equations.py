"""Every line that any of our models or of the libraries' examples can print, at each choice of each option."""

from collections.abc import Iterator
from functools import lru_cache

from tracer import models, sources
from tracer.equations import statement
from tracer.models.shared.model import Spec


def choices(spec: Spec) -> Iterator[dict]:
    """The options of a model as they are by default, then each other value of each of them alone."""
    default = {option: values[0] for option, values in spec.options.items()}
    yield default
    for option, values in spec.options.items():
        for value in values[1:]:
            yield {**default, option: value}


@lru_cache(maxsize=1)
def printed() -> dict[str, str]:
    """All lines at the models' own sizes, each with the name of a model and of a step that prints it."""
    found = {}
    for name in (*models.names(), *sources.examples()):
        spec = models.spec_of(name)
        for options in choices(spec):
            for line in spec.lines({**spec.sizes, **options}):
                found.setdefault(statement(line.tensor, line.equation), f"{name}, {line.id}")
    return found
