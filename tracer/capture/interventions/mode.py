"""The dispatch mode that replaces values: it stands above the recorder, and works without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tracer.capture import module_hooks
from tracer.capture.composite_calls import CallRecorder
from tracer.capture.dispatch_modes import CallMode, OpMode, push_mode
from tracer.capture.interventions.call_sites import CallSite, SiteCounter
from tracer.capture.interventions.explicit_attention import explicit_attention
from tracer.capture.op_schema import kind, tensors
from tracer.ops import ATTENTION
from tracer.utils.error_text import quote
from tracer.utils.internals.torch_internals import (
    composite_ops_are_visible,
    exclude_autograd_keys,
    restore_autograd_keys,
)


class Intervention(NamedTuple):
    """The replacement of what a call returns: its output at `position` becomes `change(output, *others)`.

    The others are outputs of earlier calls, `reads`. Without a `change`, a fused attention is computed as written out,
    so that its scores and weights exist. `text` says what the change is.
    """

    site: CallSite
    position: int = 0
    change: Callable[..., Tensor] | None = None
    text: str = ""
    reads: tuple[tuple[CallSite, int], ...] = ()


@contextmanager
def intervening(root: nn.Module, interventions: Mapping[CallSite, tuple[Intervention, ...]]) -> Iterator[None]:
    """Run the block with these interventions, in this thread alone. `root` is the module whose forward runs."""
    with ExitStack() as stack:
        modules = module_hooks.active()
        if modules is None:  # nobody records this run
            modules = stack.enter_context(module_hooks.following(root))
            modules.enter(root)
            stack.enter_context(CallMode())
        visible = composite_ops_are_visible()
        if not visible:
            stack.enter_context(exclude_autograd_keys())
        waiting = set(interventions)
        mode = OpMode()
        mode.__torch_dispatch__ = MethodType(_handler(modules, interventions, visible, waiting), mode)
        try:
            with push_mode(mode):
                yield
        finally:
            del mode.__torch_dispatch__
        if waiting:
            site = min(waiting)
            text, times = interventions[site][0].text, site.ordinal + 1
            raise ValueError(
                f"the change {quote(text)} had nothing to change: in this run, {quote(site.path)} did not call"
                f" {site.name} {times} {'time' if times == 1 else 'times'}"
            )


def _handler(
    modules: module_hooks.ModuleStack,
    interventions: Mapping[CallSite, tuple[Intervention, ...]],
    visible: bool,
    waiting: set[CallSite],
) -> Callable:
    counter = SiteCounter()
    read = {site for some in interventions.values() for intervention in some for site, _ in intervention.reads}
    values: dict[CallSite, list[Tensor]] = {}

    def run(function: Callable, *args, **kwargs) -> Any:
        if visible:
            return function(*args, **kwargs)
        with restore_autograd_keys():
            return function(*args, **kwargs)

    def handle(mode, func, types, args=(), kwargs=None):
        kwargs, facts = kwargs or {}, kind(func)
        _, path, call = modules.stack[-1]
        site = counter.next(path, call, facts.name)
        candidates = interventions.get(site, ())
        waiting.discard(site)
        if facts.name == ATTENTION and any(intervention.change is None for intervention in candidates):
            with push_mode(mode):
                result = explicit_attention(*args, **kwargs)
        else:
            result = run(func, *args, **kwargs)
        for intervention in candidates:
            if intervention.change is not None:
                others = [values[at][position] for at, position in intervention.reads]
                change = partial(_new_value, intervention, others)
                result = _replace(result, bool(facts.written), intervention, modules.told, partial(run, change), run)
        if site in read:
            values[site] = tensors((result,))
        return result

    return handle


def _replace(result: Any, written: bool, intervention: Intervention, recorder: CallRecorder | None, change, run) -> Any:
    """Return what a call returned, with one tensor of it replaced. A tensor that the call has written into gets the new
    numbers in its own memory, since others refer to it."""
    before = tensors((result,))[intervention.position]
    nobody: AbstractContextManager[list[Tensor]] = nullcontext([])
    with recorder.changing(before, intervention.text) if recorder else nobody as replacement:
        after = change(before)
        if written:
            after = run(before.copy_, after)
        replacement.append(after)
    if isinstance(result, Tensor):
        return after
    return type(result)([after if tensor is before else tensor for tensor in result])


def _new_value(intervention: Intervention, others: list[Tensor], before: Tensor) -> Tensor:
    """Return the new value, in memory of its own. Raise ValueError for one of another shape."""
    after = intervention.change(before, *others)  # type: ignore[misc] # there is one
    if not isinstance(after, Tensor):
        raise ValueError(
            f"the change {quote(intervention.text)} returned {quote(after)}, expected a tensor of shape"
            f" {list(before.shape)}"
        )
    if after.shape != before.shape:
        raise ValueError(
            f"the change {quote(intervention.text)} returned shape {list(after.shape)}, expected {list(before.shape)},"
            " that of the line"
        )
    if after.dtype != before.dtype:
        after = after.to(before.dtype)
    return after.clone(memory_format=torch.contiguous_format)
