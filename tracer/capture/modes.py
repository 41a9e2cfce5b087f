"""The modes and hooks by which one forward pass is seen: of the dispatcher, of functions, and of modules."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import lru_cache
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from tracer.capture.calls import Frame, frame_of_model, kind, span_of, written_tensors
from tracer.capture.state import restoring
from tracer.capture.tensors import InputGuard, TensorStore, named_tensors
from tracer.utils.devices import to_cpu
from tracer.utils.errors import quote
from tracer.utils.job_queue import tell
from tracer.utils.torch_internals import (
    DispatchMode,
    HigherOrderOperator,
    eager_kernel,
    is_compiled,
    pop_dispatch_mode,
    push_dispatch_mode,
    share_members,
)
from tracer.utils.torch_state import relative_difference

if TYPE_CHECKING:
    from tracer.capture.calls import CallRecorder


# Ops that take functions, such as `flex_attention` and its `score_mod`: their eager implementation in other ops.


@lru_cache(maxsize=256)
def written_out(func) -> Callable | None:
    """Return the eager code of `flex_attention`: the scores, the caller's function on them, a softmax, a product. None
    for any other op."""
    if not isinstance(func, HigherOrderOperator) or func.name() != "flex_attention":
        return None
    return eager_kernel(func)


# Process-wide settings while some trace runs, undone after the last: global hooks of modules, a watch on the threads
# that a forward starts, and switches that keep `flex_attention` and compiled functions from compiling themselves, which
# no mode sees into.

FLEX = "torch.nn.attention.flex_attention", "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
COMPILER = "torch._dynamo"
"""Module that is loaded once something was compiled."""
_lock = threading.Lock()
_watch = ExitStack()
"""Undoes the settings when it is closed."""
_tracing = 0


@contextmanager
def watch_process(enter: Callable, leave: Callable, on_start: Callable[[], None]) -> Iterator[None]:
    """Have every module of the process call `enter` before its forward and `leave` after it while the block runs, and
    code that starts a thread, or hands work to one, call `on_start` before."""
    global _tracing
    with _lock:
        if _tracing == 0:
            _watch.callback(register_module_forward_pre_hook(enter).remove)
            _watch.callback(register_module_forward_hook(leave, with_kwargs=True, always_call=True).remove)
            _watch.callback(_before(threading.Thread, "start", on_start))
            _watch.callback(_before(ThreadPoolExecutor, "submit", on_start))
            if FLEX[0] in sys.modules:
                _watch.callback(_put(sys.modules[FLEX[0]], FLEX[1], True))
            if COMPILER in sys.modules:
                _watch.enter_context(torch.compiler.set_stance("force_eager"))
        _tracing += 1
    try:
        yield
    finally:
        with _lock:
            _tracing -= 1
            if _tracing == 0:
                _watch.close()


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


# Stack of running modules: forward hooks that consult the thread they fire in.
#
# The hooks are global, since a module's own hooks would take `nn.TransformerEncoderLayer` off its fast path for
# every thread; they are there only while some trace runs, and each thread sees its own trace alone.

_current = threading.local()


def blocks(modules: Iterable[tuple[str, nn.Module]]) -> dict[int, int]:
    """Return the blocks of a net, from its modules by their paths, by their `id`, counted from 1: siblings of one
    class, with submodules, whose names differ only in a number, and that are in no other block."""
    numbers: dict[int, int] = {}
    inside: list[str] = []
    for path, module in modules:
        if next(module.children(), None) is None or path.startswith(tuple(inside)):
            continue
        kinds: dict[tuple[str, type], list[tuple[str, nn.Module]]] = {}
        for name, module_entry in module.named_children():
            stem = name.rstrip("0123456789")
            if stem != name and next(module_entry.children(), None) is not None:
                kinds.setdefault((stem, type(module_entry)), []).append((name, module_entry))
        for _, alike in (module_entry for module_entry in kinds.items() if len(module_entry[1]) > 1):
            for name, module_entry in alike:
                numbers.setdefault(id(module_entry), len(numbers) + 1)
                inside.append(f"{path}.{name}.".lstrip("."))
    return numbers


def active() -> ModuleStack | None:
    """Return the stack of the trace that runs in this thread."""
    return getattr(_current, "stack", None)


class ModuleStack:
    """Modules that run now, the innermost last: (module, path, number of earlier calls); `threads` is True once the
    forward started one, or handed work to one. `sites` are the expressions that call modules, each with the parameters
    of the module's forward. `call_recorder` is notified of each call, where there is one. `scopes`
    are contexts in which modules run, by their paths."""

    def __init__(self, root: nn.Module):
        self._paths: dict[int, list[str]] = {}
        modules = list(root.named_modules(remove_duplicate=False))
        for path, module in modules:
            self._paths.setdefault(id(module), []).append(path)
        self._calls: dict[str, int] = {}
        self._blocks, self._begun = blocks(modules), 0
        self.threads = False
        self.sites: dict[Frame, tuple[str, ...]] = {}
        self.call_recorder: CallRecorder | None = None
        self.scopes: Mapping[str, AbstractContextManager] = {}
        self._open: list[tuple[int, AbstractContextManager]] = []
        self.stack: list[tuple[nn.Module | None, str, int]] = [(None, "", 0)]

    def enter(self, module: nn.Module) -> None:
        if (frame := frame_of_model()) is not None:
            self.sites[frame.f_code.co_filename, span_of(frame)] = _parameters(module.__class__)
        self._begun = self._blocks.get(id(module), self._begun)
        tell(self._begun, len(self._blocks), "block")
        parent = self.stack[-1][1]
        paths = self._paths.get(id(module))
        if paths is not None and len(paths) == 1:
            path = paths[0]
        elif paths is None:
            path = f"{parent}.{type(module).__name__}".lstrip(".")
        else:  # a shared module has several names: the one under the module that calls it
            path = next((p for p in paths if p.startswith(parent + ".") or not parent), paths[0])
        call = self._calls.get(path, 0)
        self._calls[path] = call + 1
        self.stack.append((module, path, call))
        if (scope := self.scopes.get(path)) is not None:
            scope.__enter__()
            self._open.append((len(self.stack), scope))

    @contextmanager
    def within(self, scopes: Mapping[str, AbstractContextManager]) -> Iterator[None]:
        """Run modules that begin in the block in contexts, by their paths. A module that fails leaves its own."""
        before, depth, self.scopes = self.scopes, len(self._open), scopes
        try:
            yield
        finally:
            self.scopes = before
            while len(self._open) > depth:
                self._open.pop()[1].__exit__(None, None, None)

    def leave(self, module: nn.Module) -> None:
        while len(self.stack) > 1:
            if self._open and self._open[-1][0] == len(self.stack):
                self._open.pop()[1].__exit__(None, None, None)
            if self.stack.pop()[0] is module:
                return


@lru_cache(maxsize=1024)
def _parameters(kind: Any) -> tuple[str, ...]:
    """Return the names of the positional parameters of a class's forward; none where it is no function."""
    forward = inspect.getattr_static(kind, "forward", None)
    if not inspect.isfunction(forward):
        return ()
    code = inspect.unwrap(forward).__code__
    return code.co_varnames[1 : code.co_argcount]


def _enter(module, args):
    stack = active()
    if stack is not None:
        stack.enter(module)
        if stack.call_recorder is not None:
            stack.call_recorder.enter(type(module).__name__, args)


def _leave(module, args, *more):
    stack = active()
    if stack is not None:
        if stack.call_recorder is not None:
            *named, output = more  # PyTorch leaves out what was given by name where the forward has failed
            stack.call_recorder.leave(named[0] if named else {}, output)
        stack.leave(module)


def _note_thread():
    stack = active()
    if stack is not None:
        stack.threads = True


@contextmanager
def following(root: nn.Module) -> Iterator[ModuleStack]:
    """Follow the modules of `root` in this thread. Raise RuntimeError if this thread is being traced already."""
    if active() is not None:
        raise RuntimeError("this thread is being traced already: a trace can't run inside another trace's forward")
    stack = ModuleStack(root)
    with watch_process(_enter, _leave, _note_thread):
        _current.stack = stack
        try:
            yield stack
        finally:
            _current.stack = None


# Two modes of a recording: every op that PyTorch dispatches, and its Python-level call.


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


VALUE_READS = frozenset({Tensor.tolist, Tensor.numpy, Tensor.__array__})
"""Functions that hand code the values of a tensor, and run no op."""


class CallMode(TorchFunctionMode):
    """Function mode that knows the running Python-level call, and opens the fused fast paths for this thread
    alone. `failed_call` is the one that raised last; `on_read` is told of tensors whose values leave PyTorch without an
    op."""

    def __init__(self, on_read: Callable[[Tensor], None] = lambda tensor: None):
        super().__init__()
        self._func, self.number, self._calls, self._on_read = None, 0, 0, on_read
        self.failed_call: FailedCall | None = None

    @property
    def name(self) -> str:
        """Name of the call that is running, without the underscores of operators; "" outside calls."""
        return getattr(self._func, "__name__", "").strip("_")

    def __torch_function__(self, func, types, args=(), kwargs=None):
        outer, number = self._func, self.number
        self._calls += 1
        self._func, self.number = func, self._calls
        if func in VALUE_READS:
            self._on_read(args[0])
        try:
            return func(*args, **kwargs) if kwargs else func(*args)
        except Exception as error:
            if self.failed_call is None or self.failed_call.error is not error:  # the innermost call hears of it first
                stack = active()
                path = stack.stack[-1][1] if stack else ""
                self.failed_call = FailedCall(error, func, args, kwargs or {}, path)
            raise
        finally:
            self._func, self.number = outer, number


class OpMode(DispatchMode):
    """A dispatch mode that passes every op to its attribute `__torch_dispatch__`, also those that take functions."""

    supports_higher_order_operators = True


@contextmanager
def op_mode(observe) -> Iterator[OpMode]:
    """Yield a mode that calls `observe(mode, func, types, args, kwargs)` for every op; it runs the op and returns its
    result."""
    mode = OpMode()
    mode.__torch_dispatch__ = MethodType(observe, mode)  # no other call stands between
    try:
        yield mode
    finally:
        del mode.__torch_dispatch__  # it refers to the mode, and `observe` to all that was kept of the run


@contextmanager
def observe_ops(observe) -> Iterator[None]:
    """Call `observe`, as `op_mode` does, for every op of this thread."""
    with op_mode(observe) as mode, push_mode(mode):
        yield


@contextmanager
def push_mode(mode: OpMode) -> Iterator[None]:
    """Pass the ops inside the block to this mode."""
    push_dispatch_mode(mode)
    try:
        yield
    finally:
        pop_dispatch_mode()


# Fused fast paths that a trace opens: detection, and the difference of the output.

HAVE_ONE = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
FAST_PATH_OPS = frozenset(("_native_multi_head_attention", "_transformer_encoder_layer_fwd"))
CACHE_SIZE = 16
OPENED_NOTE = "PyTorch runs fused fast paths in this model, which a trace opens:"
FACTORIZATION_CALLS = {"_linalg_svd": ("svd", "linalg_svd"), "_linalg_eigh": ("linalg_eigh",)}
"""Ops that PyTorch lets compute vectors, too, while a run is watched, and the calls that ask for these anyway."""
VECTORS = (
    "While a run is watched, PyTorch computes {} with the vectors, by another routine: without a trace its last digits "
    "may be others."
)
EARLIER_NOTE = "That was measured at the first input of these sizes."


class FastPathDifference(NamedTuple):
    """Relative difference of an output to that of the fast path, None if there is none, and a note on it."""

    error: float | None = None
    note: str = ""


_differences: WeakKeyDictionary[nn.Module, dict[tuple, FastPathDifference]] = WeakKeyDictionary()


def compare_fast_path(
    module: nn.Module, args: tuple, kwargs: dict, inputs: dict[str, Tensor], output
) -> FastPathDifference:
    """Compare a trace's output with one plain forward, if that may take a fast path: once for each module and sizes,
    and again for other tokens and masks, since padding decides what a fast path leaves out."""
    if not _may(module):
        return FastPathDifference()
    key = (torch.is_autocast_enabled("cpu"), *((name, *_outline(tensor)) for name, tensor in inputs.items()))
    known = _differences.setdefault(module, {})
    if key in known:
        error, note = known[key]
        return FastPathDifference(error, f"{note} {EARLIER_NOTE}" if note else "")
    if len(known) >= CACHE_SIZE:
        known.clear()
    known[key] = _run_fast_path(module, args, kwargs, output)
    return known[key]


def watched_notes(ops: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return notes on ops, each by its name and its call, that run differently while they are observed."""
    others = (call for op, call in ops if op in FACTORIZATION_CALLS and call not in FACTORIZATION_CALLS[op])
    return tuple(VECTORS.format(f"'{call}'") for call in dict.fromkeys(others))


def _may(module: nn.Module) -> bool:
    have = any(isinstance(part, HAVE_ONE) and not part.training for part in module.modules())
    if not have or not torch.backends.mha.get_fastpath_enabled():
        return False
    return not (torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters()))


def _outline(tensor: Tensor) -> tuple:
    exact = not (tensor.is_floating_point() or tensor.is_complex() or tensor.is_meta)
    return tuple(tensor.shape), tensor.dtype, tensor.cpu().numpy().tobytes() if exact else b""


def _run_fast_path(module: nn.Module, args: tuple, kwargs: dict, output) -> FastPathDifference:
    names = set()
    with restoring(module, args, kwargs) as held:
        untouched = InputGuard(held.tensors, TensorStore(0))

        def observe(mode, func, types, args=(), kwargs=None):
            facts = kind(func)
            names.add(facts.name)
            for tensor in written_tensors(facts, args, kwargs or {}):
                untouched.protect(tensor)
            return func(*args, **(kwargs or {}))

        try:
            with observe_ops(observe):
                plain = module(*args, **kwargs)
            if not names & FAST_PATH_OPS:
                return FastPathDifference()
            traced, closed = (dict(named_tensors("output", value)) for value in (output, plain))
            difference, text = _describe_difference(traced, closed)
        except Exception as error:  # whatever the forward raises untraced
            difference, text = None, f"the forward fails ({(str(error) or type(error).__name__).splitlines()[0]})."
        finally:
            untouched.restore()
    return FastPathDifference(difference, f"{OPENED_NOTE} left closed, {text}")


def _describe_difference(traced: dict[str, Tensor], plain: dict[str, Tensor]) -> tuple[float | None, str]:
    """Return the difference of two outputs, as a number and in words. Rows in which the fast path gives 0 are counted
    separately: it leaves padding out."""
    pairs = [(to_cpu(traced[name]).double(), to_cpu(plain[name]).double()) for name in traced if name in plain]
    differing = next(((list(b.shape), list(a.shape)) for a, b in pairs if a.shape != b.shape), None)
    if differing:
        return None, f"they give an output of shape {differing[0]}, opened of shape {differing[1]}."
    error = max((relative_difference(a, b) for a, b in pairs), default=0.0)
    left_out, rows, most, rest = 0, 0, 0.0, []
    for a, b in pairs:
        if a.dim() > 1:
            skipped = (b == 0).all(-1) & (a != 0).any(-1)
            left_out, rows = left_out + int(skipped.sum()), rows + skipped.numel()
            most = max(most, a[skipped].abs().max().item()) if skipped.any() else most
            a, b = a[~skipped], b[~skipped]
        rest.append(relative_difference(a, b) if a.numel() else 0.0)
    if left_out:
        return error, (
            f"they give 0 in {left_out:,} of the {rows:,} rows of the output, as for padding, where opened they give "
            f"up to {most:.3g}; elsewhere both differ by {max(rest):.1e} of the largest value."
        )
    same = all(torch.equal(a, b) for a, b in pairs)
    return error, f"the output {'has the same values' if same else f'differs by {error:.1e} of the largest value'}."


# A plain function as a module, so that it can be traced like one.


class Function(nn.Module):
    """A module that calls a function. The modules and parameters that the function reads are its own, by the names it
    reads them by; those of a method are those of its module."""

    def __init__(self, function: Callable):
        super().__init__()
        self.forward = function
        owner = getattr(function, "__self__", None)
        self.owned = isinstance(owner, nn.Module)
        if self.owned:
            share_members(self, owner)
            return
        for name, value in _read(function):
            if isinstance(value, nn.Module):
                self.add_module(name, value)
            elif isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            elif isinstance(value, Tensor):
                self.register_buffer(name, value)


COMPILED_PROBLEM = (
    "{} was compiled by torch.compile, whose kernels hide the ops of PyTorch: trace what was compiled, before it is"
)


def as_module(function) -> nn.Module:
    """Return the module itself, or a function as one. Raise ValueError in one sentence for an object that can't be
    called, or is compiled."""
    if isinstance(function, nn.Module):
        for name, module in function.named_modules():
            if is_compiled(module):
                raise ValueError(COMPILED_PROBLEM.format(quote(name) if name else "the module"))
        return function
    if is_compiled(function):
        raise ValueError(COMPILED_PROBLEM.format("the function"))
    if not callable(function):
        raise ValueError(f"{quote(function)} can't be run, expected a module or a function")
    return Function(function)


def name_of(module: nn.Module) -> str:
    """Return the name of a module: its class, or the function that it calls."""
    if isinstance(module, Function):
        return getattr(module.forward, "__name__", type(module.forward).__name__).strip("<>")
    return type(module).__name__


def _read(function: Callable) -> Iterator[tuple[str, object]]:
    """Yield the values that a function reads from around it, by name."""
    if isinstance(function, functools.partial):
        yield from _read(function.func)
        bound = dict(enumerate(function.args)) | function.keywords
        yield from ((f"given_{name}", value) for name, value in bound.items())
    elif inspect.isfunction(function):
        around = inspect.getclosurevars(function)
        yield from {**around.globals, **around.nonlocals}.items()
    else:
        yield from getattr(function, "__dict__", {}).items()
