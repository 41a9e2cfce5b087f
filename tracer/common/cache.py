"""What was made once, by key and within bounds."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import Any


class Itself:
    """An object as a key: told from others by being that one, whatever it holds, and held, so that no other has its
    place."""

    __slots__ = ("it",)

    def __init__(self, it: Any):
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.it is other.it


class Cache:
    """Values up to `most` in weight together; beyond it those go that were asked for least lately.

    The newest stays whatever it weighs. `weigh` gives the weight of a value, 1 where it is not given.
    """

    def __init__(self, most: float, weigh: Callable[[Any], float] = lambda value: 1):
        self.most, self.weight = most, 0.0
        # what is kept may be dropped while a collection runs in the middle of a put: the lock lets its own thread in
        self._weigh, self._lock = weigh, RLock()
        self._values: OrderedDict[Any, tuple[Any, float]] = OrderedDict()

    def get(self, key: Hashable) -> Any:
        """The value of a key, None where there is none (any more)."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def values(self) -> list:
        """All values that are kept."""
        with self._lock:
            return [value for value, _ in self._values.values()]

    def put(self, key: Hashable, value) -> None:
        """Keeps a value, and lets go of others where all are too heavy with it."""
        weight = self._weigh(value)
        with self._lock:
            self._drop(key)
            self._values[key] = value, weight
            self.weight += weight
            while self.weight > self.most and len(self._values) > 1:
                self._drop(next(iter(self._values)))

    def drop(self, key: Hashable) -> None:
        """Lets go of a value, where it is there."""
        with self._lock:
            self._drop(key)

    def forget(self, of: Callable[[Any], bool]) -> None:
        """Lets go of every value whose key is one `of` those."""
        with self._lock:
            for key in [key for key in self._values if of(key)]:
                self._drop(key)

    def clear(self) -> None:
        """Lets go of all."""
        with self._lock:
            self._values.clear()
            self.weight = 0.0

    def _drop(self, key: Hashable) -> None:
        if key in self._values:
            self.weight -= self._values.pop(key)[1]

    def __len__(self) -> int:
        return len(self._values)
