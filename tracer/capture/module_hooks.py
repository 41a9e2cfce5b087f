"""Stack of running modules: forward hooks that consult the thread they fire in.

The hooks are global, since a module's own hooks would take `nn.TransformerEncoderLayer` off its fast path for
every thread; they are there only while some trace runs, and each thread sees its own trace alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from torch import nn

from tracer.capture.global_hooks import watch_process
from tracer.utils.progress import tell

if TYPE_CHECKING:
    from tracer.capture.composite_calls import CallRecorder

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
    forward started one, or handed work to one. `call_recorder` is notified of each call, where there is one. `scopes`
    are contexts in which modules run, by their paths."""

    def __init__(self, root: nn.Module):
        self._paths: dict[int, list[str]] = {}
        modules = list(root.named_modules(remove_duplicate=False))
        for path, module in modules:
            self._paths.setdefault(id(module), []).append(path)
        self._calls: dict[str, int] = {}
        self._blocks, self._begun = blocks(modules), 0
        self.threads = False
        self.call_recorder: CallRecorder | None = None
        self.scopes: Mapping[str, AbstractContextManager] = {}
        self._open: list[tuple[int, AbstractContextManager]] = []
        self.stack: list[tuple[nn.Module | None, str, int]] = [(None, "", 0)]

    def enter(self, module: nn.Module) -> None:
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
