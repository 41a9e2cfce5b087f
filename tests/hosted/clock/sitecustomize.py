"""A wall clock that jumps: `time.time` is off by as many seconds as the file named in `WALL_CLOCK` says.

Python imports this file first in a process that has its folder on `PYTHONPATH`.
"""

import os
import time
from pathlib import Path

_offset = Path(os.environ["WALL_CLOCK"])
_real, _real_ns = time.time, time.time_ns


def _seconds() -> float:
    return float(_offset.read_text() or 0)


time.time = lambda: _real() + _seconds()
time.time_ns = lambda: _real_ns() + int(_seconds() * 1e9)
