"""Random numbers that are equal in each run of a test, and the names of its parts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def drawn_alike() -> Iterator[None]:
    """Run without gradients, and with random numbers of seed 0, whose generator is restored."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def check_name(check: Callable) -> str:
    """Return the name of a check, for the id of its test."""
    return check.__name__.strip("_")
