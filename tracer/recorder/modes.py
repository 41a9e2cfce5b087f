"""The two modes of a recording: every op that PyTorch dispatches, and the Python-level call it belongs to."""

from __future__ import annotations

from contextlib import contextmanager
from types import MethodType

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class CallMode(TorchFunctionMode):
    """Knows the Python-level call that is running, and opens the fused fast paths for this thread alone."""

    def __init__(self):
        super().__init__()
        self._func, self.number, self._calls = None, 0, 0

    @property
    def name(self) -> str:
        """The name of the call that is running, without the underscores of operators; "" outside of calls."""
        return getattr(self._func, "__name__", "").strip("_")

    def __torch_function__(self, func, types, args=(), kwargs=None):
        outer, number = self._func, self.number
        self._calls += 1
        self._func, self.number = func, self._calls
        try:
            return func(*args, **kwargs) if kwargs else func(*args)
        finally:
            self._func, self.number = outer, number


class OpMode(TorchDispatchMode):
    """Calls `observe(mode, func, types, args, kwargs)` for every op; that runs it and returns its result."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the guard against being compiled costs as much as a small op, at every op

    def __init__(self, observe):
        super().__init__()
        self.__torch_dispatch__ = MethodType(observe, self)  # no other call stands between


@contextmanager
def pushed(mode: OpMode):
    """Pushes a dispatch mode for this thread; `TorchDispatchMode.__enter__` also writes process-wide flags that
    stay set after concurrent traces, so the stack is used directly."""
    torch._C._push_on_torch_dispatch_stack(mode)
    try:
        yield mode
    finally:
        torch._C._pop_torch_dispatch_stack(None)
