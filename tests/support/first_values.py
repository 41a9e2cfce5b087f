"""What modules computed first, in spite of a trace, which puts back what a forward changes."""

from queue import SimpleQueue
from typing import Any


class FirstValues:
    """The first value that each owner put, out of the reach of a trace: a queue is nothing that it puts back."""

    def __init__(self):
        self._queue: SimpleQueue = SimpleQueue()
        self._found: dict[int, Any] = {}

    def put(self, owner: object, value: Any) -> None:
        self._queue.put((id(owner), value))

    def of(self, owner: object) -> Any:
        while not self._queue.empty():
            number, value = self._queue.get()
            self._found.setdefault(number, value)
        return self._found[id(owner)]
