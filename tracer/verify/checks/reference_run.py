"""Reference run of the same forward, without the recorder: observed by PyTorch's own hooks and modes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from tracer.utils.torch_internals import DispatchMode, function_schema, tree_leaves

if TYPE_CHECKING:
    from tracer.inputs.model_inputs import Inputs
    from tracer.record import Step, Trace
    from tracer.spec.spec import Model


class PlainRun(NamedTuple):
    """A run and its observations without the recorder.

    `output` is what forward gave, `softmaxes` every softmax in order as `[…, S_q, S_k]` float64, also those inside of
    fused attention, `costs` the FLOPs of every op that multiplies matrices, in order. `attention_inputs` has what each
    module of an attention was called with, one (args, kwargs) for each call.
    """

    model: Model
    inputs: Inputs
    trace: Trace
    output: Any
    softmaxes: list[np.ndarray]
    costs: list[int]
    attention_inputs: dict[str, list[tuple[tuple, dict]]]


class Transparent(TorchFunctionMode):
    """A mode that does nothing: while any such mode is active, PyTorch's fused fast paths are closed for this
    thread."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def plain(model, inputs, trace) -> PlainRun:
    """Run the model on the inputs with PyTorch's hooks and modes alone; random numbers are those of seed 0."""
    observer, attention_inputs = OpObserver(), {record.module: [] for record in trace.attentions}
    known = dict(model.net.named_modules(remove_duplicate=False))
    hooks = [
        known[path].register_forward_pre_hook(
            lambda module, args, kwargs, calls=calls: calls.append((args, kwargs)), with_kwargs=True
        )
        for path, calls in attention_inputs.items()
        if path in known  # forward may make a module, which is not part of the model
    ]
    with attached(hooks), torch.no_grad(), Transparent(), observer:
        output = seeded_run(model.net, *inputs, **inputs.named)
    return PlainRun(model, inputs, trace, output, observer.softmaxes, observer.costs, attention_inputs)


def attached(hooks: Iterable[RemovableHandle]) -> ExitStack:
    """Return a context at whose end these hooks are removed."""
    context = ExitStack()
    for hook in hooks:
        context.enter_context(hook)
    return context


def seeded_run(run: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Run with the same random numbers each time, and restore the caller's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return run(*args, **named)


class OpObserver(DispatchMode):
    """A mode that records every softmax, and the cost of each product of matrices: 2 FLOPs for each multiply-add."""

    def __init__(self):
        super().__init__()
        self.softmaxes: list[np.ndarray] = []
        self.costs: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        shapes = [tuple(arg.shape) for arg in args if isinstance(arg, torch.Tensor)]
        if name in ("_softmax", "_safe_softmax"):
            self.softmaxes.append(array(result))
        elif name in ("mm", "bmm"):
            self.costs.append(2 * prod(shapes[0]) * shapes[1][-1])
        elif name in ("addmm", "baddbmm"):
            self.costs.append(2 * prod(shapes[1]) * shapes[2][-1])
        elif name == "convolution":
            self.costs.append(2 * result.numel() * prod(shapes[1][1:]))
        elif name.startswith("_scaled_dot_product") and not name.endswith("backward"):
            self.softmaxes.append(_fused_weights(*map(array, args[:2]), *_options(func, args, kwargs or {})))
            (batch, heads, queries, width), keys, values = shapes[0], shapes[1][-2], shapes[2][-1]
            self.costs.append(2 * batch * heads * queries * keys * (width + values))
        return result


def array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor in float64, as a copy."""
    return tensor.detach().to(torch.float64, copy=True).numpy()


def tensors(tree) -> list[torch.Tensor]:
    """Return the tensors of forward's inputs or outputs."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def parameters_of(step: Step) -> list[str]:
    """Return the paths of the parameters and buffers that a step's equation names."""
    return [name.of.removeprefix("parameter ") for name in step.names if name.of.startswith("parameter ")]


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return each row's powers of e over their sum; 0 where a row is -∞ throughout."""
    largest = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    return np.divide(powers, powers.sum(axis=-1, keepdims=True), out=np.zeros_like(powers), where=powers > 0)


def _options(func, args, kwargs) -> tuple:
    names = [argument.name for argument in function_schema(func).arguments]
    bound = dict(zip(names, args, strict=False)) | kwargs
    mask = bound.get("attn_mask", bound.get("attn_bias"))
    return mask, bool(bound.get("is_causal")), bound.get("scale")


def _fused_weights(q: np.ndarray, k: np.ndarray, mask, causal: bool, scale: float | None) -> np.ndarray:
    """Return the weights inside fused attention; fewer heads of keys are each shared by several of queries."""
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    scores = np.einsum("bhid,bhjd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        i, j = np.ogrid[: scores.shape[-2], : scores.shape[-1]]
        scores = np.where(j > i, -np.inf, scores)
    if mask is not None:
        scores = np.where(mask.numpy(), scores, -np.inf) if mask.dtype == torch.bool else scores + array(mask)
    return softmax(scores)
