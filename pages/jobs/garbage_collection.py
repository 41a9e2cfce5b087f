"""Garbage collection of a process that holds much for long: what is there at the start is left alone.

Python would go through the whole heap again and again, most of which stays. Here all objects that exist once the
process is prepared are frozen, and newer ones are collected on a timer.
"""

import gc
from collections.abc import Callable
from threading import Event

SECONDS = 30.0
"""Seconds between two collections, during each of which the whole process waits."""
YOUNG = (20_000, 20, 1_000)
"""Python's own thresholds between them: a page, or a run, makes thousands of objects and drops them without its
help."""


def raise_thresholds() -> None:
    """Let Python itself collect young objects alone, as good as always."""
    gc.set_threshold(*YOUNG)


def freeze() -> None:
    """Leave all objects that exist now out of later collections."""
    gc.collect()
    gc.freeze()


def collect_until(over: Event, wait: Callable[[], object] = lambda: None) -> None:
    """Collect on the timer, each time after a `wait` for a good moment, until `over` is set."""
    while not over.wait(SECONDS):
        wait()
        gc.collect()
