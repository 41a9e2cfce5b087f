"""Dispatch mode that replaces values: it stands above the recorder, and works without one."""

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
from tracer.capture.interventions.call_sites import ParameterSite, Site, SiteCounter
from tracer.capture.interventions.explicit_attention import explicit_attention
from tracer.capture.op_schema import kind, tensors
from tracer.capture.tensors.tensor_store import address
from tracer.ops import ATTENTION
from tracer.utils.error_text import quote
from tracer.utils.internals.torch_internals import (
    composite_ops_are_visible,
    exclude_autograd_keys,
    restore_autograd_keys,
)


class Intervention(NamedTuple):
    """Replacement of a call's result: its output at `position` becomes `change(output, *others)`.

    The site may be that of a parameter: all calls then read the new value, and the parameter stays as it is. The others
    are outputs of earlier calls, or parameters: `reads`. Without a `change`, a fused attention is computed as written
    out, so that its scores and weights exist. `text` says what the change is.
    """

    site: Site
    position: int = 0
    change: Callable[..., Tensor] | None = None
    text: str = ""
    reads: tuple[tuple[Site, int], ...] = ()


@contextmanager
def intervening(root: nn.Module, interventions: Mapping[Site, tuple[Intervention, ...]]) -> Iterator[None]:
    """Run the block with these interventions, in this thread alone. `root` is the module whose forward runs."""
    with ExitStack() as stack:
        modules = module_hooks.active()
        if modules is None:  # nobody records this run
            modules = stack.enter_context(module_hooks.following(root))
            modules.enter(root)
            stack.enter_context(CallMode())
        visible = composite_ops_are_visible()
        waiting = set(interventions)
        mode = OpMode()
        mode.__torch_dispatch__ = MethodType(_handler(root, modules, interventions, visible, waiting), mode)
        scope, paths = _Scope(mode, visible), _modules_of_calls(interventions)
        try:
            if paths is None:
                stack.enter_context(scope)
            else:
                stack.enter_context(modules.within(dict.fromkeys(paths, scope)))
            yield
        finally:
            del mode.__torch_dispatch__
        if waiting:
            site = min(waiting)
            raise ValueError(
                f"the change {quote(interventions[site][0].text)} had nothing to change: in this run, {_absent(site)}"
            )


class _Scope:
    """Context in which a mode sees the ops, entered once at a time: it may be entered again inside."""

    def __init__(self, mode: OpMode, visible: bool):
        self._mode, self._visible, self._depth = mode, visible, 0
        self._stack = ExitStack()

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            if not self._visible:
                self._stack.enter_context(exclude_autograd_keys())
            self._stack.enter_context(push_mode(self._mode))

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._stack.close()


def _modules_of_calls(interventions: Mapping[Site, tuple[Intervention, ...]]) -> set[str] | None:
    """Return the paths of the modules whose calls are replaced or read; None where those of the root are, or
    parameters, which any module may read."""
    sites = {*interventions, *_sites_read(interventions)}
    paths = {site.path for site in sites}
    return None if "" in paths or any(isinstance(site, ParameterSite) for site in sites) else paths


def _sites_read(interventions: Mapping[Site, tuple[Intervention, ...]]) -> set[Site]:
    return {site for some in interventions.values() for intervention in some for site, _ in intervention.reads}


def _absent(site: Site) -> str:
    """Describe in words what a run did not do at a site."""
    if isinstance(site, ParameterSite):
        return f"no call reads the parameter {quote(site.path)}"
    times = site.ordinal + 1
    return f"{quote(site.path)} did not call {site.name} {times} {'time' if times == 1 else 'times'}"


def _handler(
    root: nn.Module,
    modules: module_hooks.ModuleStack,
    interventions: Mapping[Site, tuple[Intervention, ...]],
    visible: bool,
    waiting: set[Site],
) -> Callable:
    counter = SiteCounter()
    read = _sites_read(interventions)
    values: dict[Site, list[Tensor]] = {}
    parameters = _parameters(root, {site for site in (*interventions, *read) if isinstance(site, ParameterSite)})
    by_layout = {_layout(tensor): site for site, tensor in parameters.items() if site in interventions}

    def run(function: Callable, *args, **kwargs) -> Any:
        if visible:
            return function(*args, **kwargs)
        with restore_autograd_keys():
            return function(*args, **kwargs)

    def value(site: Site, position: int) -> Tensor:
        """Return an output of an earlier call, or a parameter, with its change if there is one."""
        if isinstance(site, ParameterSite) and site not in values:
            waiting.discard(site)
            values[site] = [replace_all(parameters[site], False, interventions.get(site, ()))]
        return values[site][position]

    def replace_all(result: Any, written: bool, candidates: tuple[Intervention, ...]) -> Any:
        for intervention in candidates:
            if intervention.change is not None:
                change = partial(_new_value, intervention, [value(*read) for read in intervention.reads])
                result = _replace(result, written, intervention, modules.call_recorder, partial(run, change), run)
        return result

    def read_parameters(arguments: Any) -> Any:
        """Return the arguments of a call with the changed parameters in place of the model's own."""
        if isinstance(arguments, Tensor):
            site = by_layout.get(_layout(arguments))
            return arguments if site is None else value(site, 0)
        if type(arguments) in (tuple, list):
            return type(arguments)(map(read_parameters, arguments))
        return arguments

    def handle(mode, func, types, args=(), kwargs=None):
        kwargs, facts = kwargs or {}, kind(func)
        if by_layout:
            args, kwargs = read_parameters(args), {name: read_parameters(each) for name, each in kwargs.items()}
        _, path, call = modules.stack[-1]
        site = counter.next(path, call, facts.name)
        candidates = interventions.get(site, ())
        waiting.discard(site)
        if facts.name == ATTENTION and any(intervention.change is None for intervention in candidates):
            with push_mode(mode):
                result = explicit_attention(*args, **kwargs)
        else:
            result = run(func, *args, **kwargs)
        result = replace_all(result, bool(facts.written), candidates)
        if site in read:
            values[site] = tensors((result,))
        return result

    return handle


def _parameters(root: nn.Module, sites: set[ParameterSite]) -> dict[ParameterSite, Tensor]:
    """Return the parameters and buffers of these sites."""
    if not sites:
        return {}
    tensors = dict(root.named_parameters(remove_duplicate=False)) | dict(root.named_buffers(remove_duplicate=False))
    return {site: tensors[site.path] for site in sites}


def _layout(tensor: Tensor) -> tuple:
    """Return a key that is equal for a tensor and for all that share its memory in its layout, such as
    `weight.data`."""
    storage = address(tensor)
    if storage is None or tensor.is_meta:
        return (id(tensor),)
    return storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _replace(result: Any, written: bool, intervention: Intervention, recorder: CallRecorder | None, change, run) -> Any:
    """Return the result of a call with one tensor of it replaced. A tensor that the call has written into gets the new
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
    """Return the new value, in memory of its own. Raise ValueError for another shape."""
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
