"""A bar for work that says nothing of how far it is, but leaves a number that grows, such as bytes on the disk."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import streamlit as st
from streamlit.runtime.scriptrunner import add_script_run_ctx

from tracer.figures.labels import amount

EVERY = 0.25
"""Seconds between two looks."""


@contextmanager
def following(label: str, so_far: Callable[[], int], whole: int) -> Iterator[None]:
    """Shows, while the block runs, how many of `whole` bytes there are; another thread looks, so the block need not."""
    bar, over = st.progress(0.0, f"{label}: {amount(whole, 'B')}"), Event()

    def look() -> None:
        while not over.wait(EVERY):
            done = max(0, min(so_far(), whole))
            bar.progress(done / whole, f"{label}: {amount(done, 'B')} of {amount(whole, 'B')}")

    thread = Thread(target=look, daemon=True)
    add_script_run_ctx(thread)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        bar.empty()
