"""A visitor with synchronous acts: those of the class below, in a loop of its own."""

from __future__ import annotations

import asyncio
import ssl
import threading
from functools import cache, partial
from inspect import iscoroutinefunction

from tests.load import visitor


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop in which all visitors of this process wait; it answers servers' requests to browsers between two
    acts."""
    made = asyncio.new_event_loop()
    threading.Thread(target=made.run_forever, daemon=True).start()
    return made


class Visitor:
    """`load.visitor.Visitor`, each of whose acts returns its result once it is done."""

    def __init__(self, address: str, context: ssl.SSLContext | None = None, **headers: str):
        self._visitor = visitor.Visitor(address, context, **headers)

    def __getattr__(self, name: str):
        found = getattr(self._visitor, name)
        return partial(self._run, found) if iscoroutinefunction(found) else found

    def _run(self, act, *given, **named):
        return asyncio.run_coroutine_threadsafe(act(*given, **named), _loop()).result()

    def open(self, path: str = "") -> Visitor:
        """Return the visitor, once a page is open."""
        self._run(self._visitor.open, path)
        return self

    def run(self, query: str) -> None:
        """Request the page with another query."""
        self._visitor.query = query
        self.rerun()

    def give(self, name: str, data: bytes) -> bool:
        """Return whether a file for the page's uploader arrived, whatever the page then says of it."""
        answer = self.upload(self.find("file_uploader"), name, data)
        return not any("came back with status" in problem for problem in answer.problems)
