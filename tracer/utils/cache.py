"""A bounded cache of values by key, dropped least recently used first."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import Any


class IdentityKey:
    """An object as a key by identity, whatever it holds; the key holds it, so that no other object gets its id."""

    __slots__ = ("it",)

    def __init__(self, it: Any):
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, wrapper: object) -> bool:
        return isinstance(wrapper, IdentityKey) and self.it is wrapper.it


class Cache:
    """A cache of values up to `most` in total weight; beyond it the least recently used are evicted.

    The newest stays whatever its weight. `weigh` returns the weight of a value, 1 by default.
    """

    def __init__(self, most: float, weigh: Callable[[Any], float] = lambda value: 1):
        self.most, self.weight = most, 0.0
        # what is kept may be dropped while a collection runs in the middle of a put: the lock lets its own thread in
        self._weigh, self._lock = weigh, RLock()
        self._values: OrderedDict[Any, tuple[Any, float]] = OrderedDict()

    def __deepcopy__(self, memo: dict) -> "Cache":
        """Return an empty cache with the same bounds: cached values belong to the owner of the original."""
        return Cache(self.most, self._weigh)

    def get(self, key: Hashable) -> Any:
        """Return the value of a key, None where there is none (any more)."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def values(self) -> list:
        """Return all values that are kept."""
        with self._lock:
            return [value for value, _ in self._values.values()]

    def put(self, key: Hashable, value) -> None:
        """Cache a value, and evict others where the total weight exceeds the bound."""
        weight = self._weigh(value)
        with self._lock:
            self.drop(key)
            self._values[key] = value, weight
            self.weight += weight
            while self.weight > self.most and len(self._values) > 1:
                self.drop(next(iter(self._values)))

    def drop(self, key: Hashable) -> None:
        """Drop a value, if it exists."""
        with self._lock:
            if key in self._values:
                self.weight -= self._values.pop(key)[1]

    def forget(self, of: Callable[[Any], bool]) -> None:
        """Drop every value whose key is one `of` those."""
        with self._lock:
            for key in [key for key in self._values if of(key)]:
                self.drop(key)

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            self._values.clear()
            self.weight = 0.0

    def __len__(self) -> int:
        return len(self._values)
