"""One attention, run on every backend that PyTorch has for it: fused or standard, opened or fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tracer.capture.calls import kind, tensors
from tracer.capture.modes import observe_ops
from tracer.capture.tensors import ProducerIndex
from tracer.record import Op
from tracer.shapes import Vocabulary
from tracer.tracing import assemble, record_or_explain, solve_first
from tracer.tracing.records import tensor_records
from tracer.utils.errors import quote
from tracer.utils.torch_state import relative_difference

WAYS = {
    "standard": (True, False),
    "fused": (False, False),
    "fast with weights": (True, True),
    "fast": (False, True),
}
"""The ways to run one `nn.MultiheadAttention`, as (`need_weights`, whether its fast path is left closed)."""


NAMES, DERIVED_SIZES = ("B", "S", "D", "h", "d_k"), {"d_k": "D/h"}
PROBES = [
    {"B": 3, "S": 5, "D": 14, "h": 2},
    {"B": 11, "S": 13, "D": 68, "h": 4},
    {"B": 8, "S": 19, "D": 45, "h": 5},
]


@dataclass(frozen=True, slots=True)
class BackendRun:
    """One backend of an attention, and its ops in order.

    `need_weights` is what the module was asked for. `fast` is True for the run that nobody watched from within, which
    in evaluation is one op of PyTorch's; the other runs were traced, which opens it, and their shapes are solved where
    the attention is of one sequence, batch first, and without a mask.
    """

    name: str
    need_weights: bool
    fast: bool
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class BackendComparison:
    """All backends of the attention `module` on the same queries, keys and values.

    `outputs[i][j]` is max|output i - output j| / max|output j| of ways i and j. `weights[i][j]` is that of the
    attention weights, `[B, h, S, S]`: those that the module returned or, on the fused path, those of its queries and
    keys; None where one of the two has none.
    """

    module: str
    ways: tuple[BackendRun, ...]
    outputs: tuple[tuple[float, ...], ...]
    weights: tuple[tuple[float | None, ...], ...]


def comparable(net: nn.Module, module: str) -> bool:
    """Return whether `compare` can run the attention `module` of a net on every path."""
    attention = dict(net.named_modules()).get(module)
    return isinstance(attention, nn.MultiheadAttention) and not attention.training


def compare(net: nn.Module, *args, module: str | None = None, **kwargs) -> BackendComparison:
    """Run `net(*args, **kwargs)` once, and the inputs of one of its attentions again on every backend.

    `module` is the path of an `nn.MultiheadAttention` in `net`, by default the first that runs. Leaves the module and
    the random numbers alone, and needs evaluation mode, in which there is no dropout. ValueError where the net has no
    such module, is in training mode, or does not run it.
    """
    attentions = {
        path: candidate for path, candidate in net.named_modules() if isinstance(candidate, nn.MultiheadAttention)
    }
    if not attentions:
        raise ValueError(f"{type(net).__name__} has no nn.MultiheadAttention, whose paths could be compared")
    if module is not None and module not in attentions:
        first = next(iter(attentions))
        raise ValueError(f"module={quote(module)} is not an nn.MultiheadAttention of this net; the first is {first!r}")
    wanted = attentions if module is None else {module: attentions[module]}
    if any(candidate.training for candidate in wanted.values()):
        raise ValueError("the attention is in training mode, in which it has no fast path: call eval() first")
    with torch.no_grad():
        entered = AttentionInputs(wanted)
        with entered:
            net(*args, **kwargs)
        if entered.path is None:
            raise ValueError(f"{', '.join(map(repr, wanted))} did not run in this forward")
        attention = attentions[entered.path]
        runs = [
            _run(name, attention, entered.tensors, entered.masks, need_weights, fast)
            for name, (need_weights, fast) in WAYS.items()
        ]
    return measure_differences(entered.path, runs)


def measure_differences(
    module: str, runs: Sequence[tuple[BackendRun, torch.Tensor, torch.Tensor | None]]
) -> BackendComparison:
    """Return how far the outputs and the weights of runs of an attention are from each other."""
    return BackendComparison(
        module,
        tuple(way for way, _, _ in runs),
        tuple(tuple(relative_difference(a, b) for _, b, _ in runs) for _, a, _ in runs),
        tuple(
            tuple(None if a is None or b is None else relative_difference(a, b) for _, _, b in runs) for _, _, a in runs
        ),
    )


class AttentionInputs(TorchFunctionMode):
    """A function mode that keeps the inputs of the first of some attentions that runs, for this thread alone."""

    def __init__(self, modules: dict[str, nn.MultiheadAttention]):
        super().__init__()
        self._paths = {id(module.out_proj.weight): path for path, module in modules.items()}
        self._modules = modules
        self.path: str | None = None
        self.tensors: tuple[torch.Tensor, ...] = ()
        self.masks: dict = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is nn.functional.multi_head_attention_forward and self.path is None and len(args) > 11:
            self.path = self._paths.get(id(args[11]))
            if self.path is not None:
                query, key, value = (tensor.detach().clone() for tensor in args[:3])
                if args[1] is args[2]:
                    value = key
                if args[0] is args[1]:
                    query = key
                if self._modules[self.path].batch_first and query.dim() == 3:
                    batch_first = {id(tensor): tensor.transpose(0, 1) for tensor in (query, key, value)}
                    query, key, value = (batch_first[id(tensor)] for tensor in (query, key, value))
                self.tensors = query, key, value
                self.masks = {name: _boolean(kwargs.get(name)) for name in ("attn_mask", "key_padding_mask")}
        return func(*args, **kwargs)


def _boolean(mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return a mask of 0 and -∞ as a boolean one; the fast path takes no other."""
    if mask is None or mask.dtype == torch.bool:
        return mask
    hidden = mask == float("-inf")
    return hidden if bool((hidden | (mask == 0)).all()) else mask.clone()


def _run(name: str, attention, inputs, masks, need_weights: bool, fast: bool):
    """Run one backend; return its record, its output, and its attention weights if it has them."""
    arguments = {**masks, "need_weights": need_weights, "average_attn_weights": False}
    if fast:
        ops, (output, weights) = _list_fast_ops(attention, inputs, arguments)
    else:
        run = _trace_twin(attention, inputs, arguments)
        ops, (output, weights) = run.ops, run.output
        if weights is None and run.attentions:
            weights = run.attention(0)
    return BackendRun(name, need_weights, fast, ops), output, weights if weights is None or weights.numel() else None


def _trace_twin(attention: nn.MultiheadAttention, inputs, arguments):
    """Return the trace of an attention, its dimensions solved over `NAMES` if a twin at other sizes can be built."""
    recording = record_or_explain(attention, inputs, arguments, keep=0, prove=False)
    sizes, vocabulary = {}, None
    query, key, value = inputs
    masked = arguments["attn_mask"] is not None or arguments["key_padding_mask"] is not None
    if query is key is value and query.dim() == 3 and attention.batch_first and not masked:
        sizes = dict(zip(("B", "S", "D"), query.shape, strict=True)) | {"h": attention.num_heads}
        vocabulary = Vocabulary(NAMES, DERIVED_SIZES, lambda at: _twin(attention, at, arguments))
    solution, notes = solve_first(recording, sizes, [(vocabulary, PROBES)] if vocabulary else ())
    full = vocabulary.complete(sizes) if vocabulary else {}
    derived = DERIVED_SIZES if vocabulary else {}
    return assemble(
        attention, recording, model="attention", sizes=full, derived=derived, solution=solution, notes=notes
    )


def _twin(attention: nn.MultiheadAttention, sizes: dict[str, int], arguments):
    """Return the same kind of attention at other sizes, and its arguments."""
    twin = nn.MultiheadAttention(
        sizes["D"],
        sizes["h"],
        bias=attention.in_proj_bias is not None,
        add_bias_kv=attention.bias_k is not None,
        add_zero_attn=attention.add_zero_attn,
        batch_first=True,
    )
    x = torch.randn(sizes["B"], sizes["S"], sizes["D"])
    return twin.eval(), (x, x, x), arguments


def _list_fast_ops(attention, inputs, arguments) -> tuple[tuple[Op, ...], tuple]:
    """Return the ops of a forward whose fast path stays closed, since only dispatched ops are recorded."""
    named_inputs = zip(("input query", "input key", "input value"), inputs, strict=True)  # one tensor is the queries
    ops, makers = [], ProducerIndex(dict(named_inputs) | dict(attention.named_parameters()))

    def observe(mode, func, types, args=(), kwargs=None):
        before = tensor_records(map(makers.of, tensors((*args, *(kwargs or {}).values()))), None, {})
        result = func(*args, **(kwargs or {}))
        after = tensor_records([makers.record(tensor, len(ops)) for tensor in tensors((result,))], None, {})
        ops.append(Op(len(ops), "", 0, kind(func).name, "", None, before, after))
        return result

    with observe_ops(observe):
        result = attention(*inputs, **arguments)
    return tuple(ops), result
