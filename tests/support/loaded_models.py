"""Models and runs that several tests read: each is loaded once for a worker, and stays as it is."""

from functools import lru_cache

import tracer
from tracer import zoo


@lru_cache(maxsize=64)
def load(name: str, **config):
    """Model as `tracer.load` gives it, with the sizes that were solved for it so far. No test changes it."""
    return tracer.load(name, **config)


def load_tiny(name: str, **options):
    """Model of a library at tiny sizes. No test changes it."""
    return load(name, **zoo.tiny(name), **options)


@lru_cache(maxsize=64)
def run_tiny(name: str, **options):
    """Return the run of its own sample."""
    return load_tiny(name, **options).trace()
