"""Fused fast paths that a trace opens: detection, and the difference of the output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tracer.capture.dispatch_modes import observe_ops
from tracer.capture.op_schema import kind, written_tensors
from tracer.capture.tensors.module_state import restoring
from tracer.capture.tensors.pytree import named_tensors
from tracer.capture.tensors.tensor_store import InputGuard, TensorStore
from tracer.utils.devices import to_cpu
from tracer.utils.tensor_diff import relative_difference

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
    with restoring(module, args, kwargs) as theirs:
        untouched = InputGuard(theirs, TensorStore(0))

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
            return _describe_difference(dict(named_tensors("output", output)), dict(named_tensors("output", plain)))
        except Exception as error:  # whatever the forward raises untraced
            return FastPathDifference(
                None,
                f"{OPENED_NOTE} left closed, the forward fails "
                f"({(str(error) or type(error).__name__).splitlines()[0]}).",
            )
        finally:
            untouched.restore()


def _describe_difference(traced: dict[str, Tensor], plain: dict[str, Tensor]) -> FastPathDifference:
    """Return the difference of two outputs, in one sentence. Rows in which the fast path gives 0 are counted
    separately: it leaves padding out."""
    pairs = [(to_cpu(traced[name]).double(), to_cpu(plain[name]).double()) for name in traced if name in plain]
    differing = next(((list(b.shape), list(a.shape)) for a, b in pairs if a.shape != b.shape), None)
    if differing:
        return FastPathDifference(
            None,
            f"{OPENED_NOTE} left closed, they give an output of shape {differing[0]}, opened of shape {differing[1]}.",
        )
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
        return FastPathDifference(
            error,
            f"{OPENED_NOTE} left closed, they give 0 in {left_out:,} of the {rows:,} rows of the output, as for "
            f"padding, where opened they give up to {most:.3g}; elsewhere "
            f"both differ by {max(rest):.1e} of the largest value.",
        )
    if all(torch.equal(a, b) for a, b in pairs):
        return FastPathDifference(error, f"{OPENED_NOTE} left closed, the output has the same values.")
    return FastPathDifference(
        error, f"{OPENED_NOTE} left closed, the output differs by {error:.1e} of the largest value."
    )
