"""Checks of the code and not of one run: tried once, whatever is verified."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps

import torch

from tracer.verify.checks.reference_run import Run


def once(check: Callable[[], Iterable[str]]) -> Callable[[Run], Iterator[str]]:
    """Return a check of every run that does its work at the first: without gradients, and with random numbers of seed
    0, whose generator is restored."""

    @wraps(check)
    def tried() -> tuple[str, ...]:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return tuple(check())

    found = cache(tried)

    @wraps(tried)
    def problems(run: Run) -> Iterator[str]:
        yield from found()

    return problems
