"""Numbers of a message, in half precision."""

import numpy as np


class HalfNumbers:
    """Numbers of a message, in the order in which they were added."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.count = 0

    def add(self, values: np.ndarray) -> int:
        """Add numbers and return the position of the first."""
        start = self.count
        largest = np.finfo(np.float16).max
        self.parts.append(np.clip(np.asarray(values, np.float32), -largest, largest).astype("<f2").ravel())
        self.count += values.size
        return start

    def add_bytes(self, cells: np.ndarray) -> int:
        """Add cells of one byte each, two per number, and return the position of the first."""
        start = self.count
        raw = np.ascontiguousarray(cells, np.uint8).tobytes()
        self.parts.append(np.frombuffer(raw + b"\0" * (len(raw) % 2), "<u2"))
        self.count += len(self.parts[-1])
        return start
