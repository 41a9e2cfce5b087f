"""Model's own source line for an op: the innermost frame that is neither torch's nor the recorder's."""

from __future__ import annotations

import linecache
import os
import sys
from functools import lru_cache
from types import CodeType

import torch

from tracer.record import Source

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_RECORDER = os.path.dirname(os.path.abspath(__file__)) + os.sep


_models: dict[int, tuple[bool, CodeType]] = {}
"""Whether code is the model's, by the code's id, since its hash reads all names and constants in it and every op asks
for a few frames; code that is held here keeps its id."""


def _is_models(code: CodeType) -> tuple[bool, CodeType]:
    if len(_models) > 10_000:
        _models.clear()
    entry = _models[id(code)] = not code.co_filename.startswith((_TORCH, _RECORDER, "<frozen")), code
    return entry


def locate(stop) -> tuple[str, int] | None:
    """Return (file, line) of the model's frame that is running now, or None if the frame of code `stop` comes first."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code is stop:
            return None
        if (_models.get(id(code)) or _is_models(code))[0]:
            return code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


@lru_cache(maxsize=8192)
def source(file: str, line: int) -> Source:
    """Return the text of the line; the file is named relative to Python's import path."""
    return Source(_short(file), line, linecache.getline(file, line).strip())


def _short(file: str) -> str:
    folders = [os.path.join(os.path.abspath(folder), "") for folder in sys.path]
    inside = [folder for folder in folders if file.startswith(folder)]
    return file[len(max(inside, key=len)) :] if inside else os.path.basename(file)
