"""Models and runs that several tests read: each is loaded once for a worker, and never modified."""

from functools import lru_cache

import tracer
from tracer import zoo


@lru_cache(maxsize=64)
def load(name: str, **config):
    """Return a model as `tracer.load` does, with the sizes that were solved for it so far. No test changes it."""
    return tracer.load(name, **config)


def load_tiny(name: str, **options):
    """Return a model of a library at tiny sizes. No test changes it."""
    return load(name, **zoo.tiny(name), **options)


@lru_cache(maxsize=64)
def run_tiny(name: str, **options):
    """Return the run of a tiny model on its own sample."""
    return load_tiny(name, **options).trace()
