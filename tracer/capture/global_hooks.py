"""Process-wide settings while some trace runs, undone after the last: global hooks of modules, a watch on the threads
that a forward starts, and a switch that keeps `flex_attention` from compiling itself, which no mode sees into."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

FLEX = "torch.nn.attention.flex_attention", "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
_lock = threading.Lock()
_undo: list[Callable[[], None]] = []
_tracing = 0


@contextmanager
def watch_process(enter: Callable, leave: Callable, on_start: Callable[[], None]) -> Iterator[None]:
    """Have every module of the process call `enter` before its forward and `leave` after it while the block runs, and
    code that starts a thread, or hands work to one, call `on_start` before."""
    global _tracing
    with _lock:
        if _tracing == 0:
            _undo.append(register_module_forward_pre_hook(enter).remove)
            _undo.append(register_module_forward_hook(leave, with_kwargs=True, always_call=True).remove)
            _undo.append(_before(threading.Thread, "start", on_start))
            _undo.append(_before(ThreadPoolExecutor, "submit", on_start))
            if FLEX[0] in sys.modules:
                _undo.append(_put(sys.modules[FLEX[0]], FLEX[1], True))
        _tracing += 1
    try:
        yield
    finally:
        with _lock:
            _tracing -= 1
            while _tracing == 0 and _undo:
                _undo.pop()()


def _before(kind: type, name: str, call: Callable[[], None]) -> Callable[[], None]:
    """Make a method call a function first; return the undo function."""
    method = getattr(kind, name)

    def calling(self, *args, **kwargs):
        call()
        return method(self, *args, **kwargs)

    return _put(kind, name, calling)


def _put(place, name: str, value) -> Callable[[], None]:
    """Set an attribute; return the undo function, which keeps a value that somebody else has set since."""
    before = getattr(place, name)
    setattr(place, name, value)
    return lambda: setattr(place, name, before) if getattr(place, name) is value else None
