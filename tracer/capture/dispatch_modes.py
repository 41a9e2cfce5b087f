"""Two modes of a recording: every op that PyTorch dispatches, and its Python-level call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, NamedTuple

from torch.overrides import TorchFunctionMode

from tracer.capture import module_hooks
from tracer.utils.internals.torch_internals import DispatchMode, pop_dispatch_mode, push_dispatch_mode


class FailedCall(NamedTuple):
    """Python-level call of PyTorch that raised `error`: the function, its arguments, and the path of the module that
    was running."""

    error: Exception
    function: Any
    args: tuple
    kwargs: dict[str, Any]
    module: str

    @property
    def name(self) -> str:
        """Name of the function, without the underscores of operators."""
        return getattr(self.function, "__name__", "").strip("_")


class CallMode(TorchFunctionMode):
    """Function mode that knows the running Python-level call, and opens the fused fast paths for this thread
    alone. `failed_call` is the one that raised last."""

    def __init__(self):
        super().__init__()
        self._func, self.number, self._calls = None, 0, 0
        self.failed_call: FailedCall | None = None

    @property
    def name(self) -> str:
        """Name of the call that is running, without the underscores of operators; "" outside calls."""
        return getattr(self._func, "__name__", "").strip("_")

    def __torch_function__(self, func, types, args=(), kwargs=None):
        outer, number = self._func, self.number
        self._calls += 1
        self._func, self.number = func, self._calls
        try:
            return func(*args, **kwargs) if kwargs else func(*args)
        except Exception as error:
            if self.failed_call is None or self.failed_call.error is not error:  # the innermost call hears of it first
                stack = module_hooks.active()
                path = stack.stack[-1][1] if stack else ""
                self.failed_call = FailedCall(error, func, args, kwargs or {}, path)
            raise
        finally:
            self._func, self.number = outer, number


class OpMode(DispatchMode):
    """A dispatch mode that passes every op to its attribute `__torch_dispatch__`, also those that take functions."""

    supports_higher_order_operators = True


@contextmanager
def observe_ops(observe) -> Iterator[None]:
    """Call `observe(mode, func, types, args, kwargs)` for every op of this thread; it runs the op and returns its
    result."""
    mode = OpMode()
    mode.__torch_dispatch__ = MethodType(observe, mode)  # no other call stands between
    try:
        with push_mode(mode):
            yield
    finally:
        del mode.__torch_dispatch__  # it refers to the mode, and `observe` to all that was kept of the run


@contextmanager
def push_mode(mode: OpMode) -> Iterator[None]:
    """Pass the ops inside the block to this mode."""
    push_dispatch_mode(mode)
    try:
        yield
    finally:
        pop_dispatch_mode()
