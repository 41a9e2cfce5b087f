"""Interventions: a run in which some values are replaced as soon as they are computed.

An intervention belongs to a copy of the module that shares all parameters, so every run of that copy has it: plain
ones, traces, probes and proofs. It is pushed above the recorder, which sees the ops of the replacement like any others.
Also known as causal interventions or activation patching (Vig et al. 2020; Meng et al. 2022)."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import count
from math import sqrt
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from tracer.capture import modes
from tracer.capture.calls import CallLog, CallRecorder, kind, tensors
from tracer.capture.modes import CallMode, OpMode, op_mode, push_mode
from tracer.capture.tensors import place_of
from tracer.ops import ATTENTION
from tracer.utils.errors import quote
from tracer.utils.torch_internals import composite_ops_are_visible, exclude_autograd_keys, restore_autograd_keys

# Call sites: the place of a composite call in a model's code, which is the same at other sizes; and parameters.


class CallSite(NamedTuple):
    """`ordinal`-th call of the op `name` in the `call`-th call of the module `path`; all count from 0."""

    path: str
    call: int
    name: str
    ordinal: int


class ParameterSite(NamedTuple):
    """A parameter or buffer, by its path: its value is replaced where calls read it."""

    path: str


Site = CallSite | ParameterSite
"""What an intervention replaces the value of."""


def count_sites() -> Callable[[str, int, str], CallSite]:
    """Return a function that gives each call of one run its site."""
    counts: defaultdict[tuple[str, int, str], Iterator[int]] = defaultdict(count)
    return lambda path, call, name: CallSite(path, call, name, next(counts[path, call, name]))


def call_sites(calls: CallLog) -> dict[str, tuple[CallSite, int]]:
    """Return the site and the output position of each value of a run that a composite call returned, by its key."""
    site_of, sites = count_sites(), {}
    for call in calls.entries:
        if call.func is None:  # a write into a part of a tensor, which is not a call of PyTorch's
            continue
        site = site_of(call.module, call.call, call.name)
        for position, ref in enumerate(call.outputs):
            sites.setdefault(ref.key, (site, position))  # others may return the value that they take
    return sites


# Attention as its formula, in place of a fused kernel (Vaswani et al. 2017, equation 1).


def explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return `softmax(QKᵀ/√d_k + M) V` of queries `[…, S_q, d_k]`, keys `[…, S_k, d_k]` and values `[…, S_k, d_v]`.

    The arguments are those of `torch.nn.functional.scaled_dot_product_attention`. A query without an open key attends
    to nothing: its weights are 0, as in PyTorch's kernels.
    """
    if enable_gqa and key.size(-3) != query.size(-3):
        repeats = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    scores = query @ key.transpose(-2, -1)
    scores = scores / sqrt(query.size(-1)) if scale is None else scores * scale
    if is_causal:
        closed = torch.full((query.size(-2), key.size(-2)), -torch.inf, dtype=query.dtype, device=query.device)
        scores = scores + closed.triu(1)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, -1)
    if dropout_p:
        weights = torch.dropout(weights, dropout_p, True)
    return weights @ value


# Dispatch mode that replaces values: it stands above the recorder, and works without one.


class Intervention(NamedTuple):
    """Replacement of a call's result: its output at `position` becomes `change(output, *others)`.

    The site may be that of a parameter: all calls then read the new value, and the parameter stays as it is. The others
    are outputs of earlier calls, or parameters: `reads`. Without a `change`, a fused attention is computed as written
    out, so that its scores and weights exist. `text` says what the change is, and `behind_heads` how many axes lie
    behind that of heads, if there is one.
    """

    site: Site
    position: int = 0
    change: Callable[..., Tensor] | None = None
    text: str = ""
    reads: tuple[tuple[Site, int], ...] = ()
    behind_heads: int | None = None


@contextmanager
def intervening(root: nn.Module, interventions: Mapping[Site, tuple[Intervention, ...]]) -> Iterator[None]:
    """Run the block with these interventions, in this thread alone. `root` is the module whose forward runs."""
    with ExitStack() as stack:
        modules = modes.active()
        if modules is None:  # nobody records this run
            modules = stack.enter_context(modes.following(root))
            modules.enter(root)
            stack.enter_context(CallMode())
        visible = composite_ops_are_visible()
        waiting = set(interventions)
        read = {site for some in interventions.values() for each in some for site, _ in each.reads}
        handler = _handler(root, modules, interventions, read, visible, waiting)
        scope, sites = _Scope(stack.enter_context(op_mode(handler)), visible), {*interventions, *read}
        if any(not site.path or isinstance(site, ParameterSite) for site in sites):  # any module may read those
            stack.enter_context(scope)
        else:
            stack.enter_context(modules.within({site.path: scope for site in sites}))
        yield
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


def _absent(site: Site) -> str:
    """Describe in words what a run did not do at a site."""
    if isinstance(site, ParameterSite):
        return f"no call reads the parameter {quote(site.path)}"
    times = site.ordinal + 1
    return f"{quote(site.path)} did not call {site.name} {times} {'time' if times == 1 else 'times'}"


def _handler(
    root: nn.Module,
    modules: modes.ModuleStack,
    interventions: Mapping[Site, tuple[Intervention, ...]],
    read: set[Site],
    visible: bool,
    waiting: set[Site],
) -> Callable:
    site_of = count_sites()
    values: dict[Site, list[Tensor]] = {}
    parameters = _parameters(root, {site for site in (*interventions, *read) if isinstance(site, ParameterSite)})
    by_place = {place_of(tensor): site for site, tensor in parameters.items() if site in interventions}

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
            site = by_place.get(place_of(arguments))
            return arguments if site is None else value(site, 0)
        if type(arguments) in (tuple, list):
            return type(arguments)(map(read_parameters, arguments))
        return arguments

    def handle(mode, func, types, args=(), kwargs=None):
        kwargs, facts = kwargs or {}, kind(func)
        if by_place:
            args, kwargs = read_parameters(args), {name: read_parameters(each) for name, each in kwargs.items()}
        _, path, call = modules.stack[-1]
        site = site_of(path, call, facts.name)
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


def _replace(result: Any, written: bool, intervention: Intervention, recorder: CallRecorder | None, change, run) -> Any:
    """Return the result of a call with one tensor of it replaced. A tensor that the call has written into gets the new
    numbers in its own memory, since others refer to it."""
    before = tensors((result,))[intervention.position]
    nobody: AbstractContextManager[list[Tensor]] = nullcontext([])
    change_of = recorder.changing(before, intervention.text, intervention.behind_heads) if recorder else nobody
    with change_of as replacement:
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


# A copy of a module that shares its parameters, with interventions in every forward.

Module = TypeVar("Module", bound=nn.Module)


def with_interventions(module: Module, interventions: Iterable[Intervention]) -> Module:
    """Return a copy of a module that shares its parameters and submodules, whose forward has these interventions.

    The module itself is left alone. Copies of the copy, also deep and pickled ones, have them, too.
    """
    at: dict[Site, tuple[Intervention, ...]] = {}
    for intervention in interventions:
        at[intervention.site] = (*at.get(intervention.site, ()), intervention)
    changed: Module = object.__new__(_class(type(module)))  # type: ignore[arg-type, assignment] # a subclass
    vars(changed).update(vars(module))
    vars(changed)["_interventions"] = at
    if "forward" in vars(module):  # a function that is traced like a module
        vars(changed)["forward"] = _wrap(vars(module)["forward"], changed)
    return changed


@functools.cache
def _class(kind: type[Any]) -> type[nn.Module]:
    """Return a subclass by the same name whose forward runs under the module's interventions."""

    def forward(self, *args, **kwargs):
        with intervening(self, self._interventions):
            return kind.forward(self, *args, **kwargs)

    functools.update_wrapper(forward, kind.forward)
    own = {"forward": forward, "__reduce_ex__": _reduce, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), own)


def _reduce(module: nn.Module, protocol: Any) -> tuple:
    """Return how pickle and copy rebuild the module: from the one without interventions, and these."""
    kind = type(module).__mro__[1]
    plain = object.__new__(kind)
    vars(plain).update(vars(module))
    interventions = vars(plain).pop("_interventions")
    if "forward" in vars(plain):
        vars(plain)["forward"] = vars(plain)["forward"].__wrapped__
    return with_interventions, (plain, [each for some in interventions.values() for each in some])


def _wrap(function: Callable, module: nn.Module) -> Callable:
    @functools.wraps(function)
    def forward(*args, **kwargs):
        with intervening(module, module._interventions):  # type: ignore[arg-type] # no submodule
            return function(*args, **kwargs)

    return forward
