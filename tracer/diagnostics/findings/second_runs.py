"""Comparisons of two runs of a model: how far they differ where they should not, and from which op on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.capture.tensors import output_tensors
from tracer.record import Op, TensorRecord, dtype_name, tolerance
from tracer.shapes.variation import other_values, other_weights
from tracer.utils.errors import reason

if TYPE_CHECKING:
    from tracer.capture import Recording
    from tracer.diagnostics.findings.run_view import RunView

OUTPUT_TOLERANCE = 1e-4
"""Largest difference of an output, as a share of the largest value, that rounding explains."""

DRAWS = 4
"""Draws of other weights, until an output moves."""

Deviation = Callable[[TensorRecord, torch.Tensor, torch.Tensor], float]
"""Returns how far two values of one record differ where they should not, as a share of the largest number."""


class Difference(NamedTuple):
    """Deviation of an output, as a share of the largest value, and the first op whose result deviates, None where the
    two runs have different ops."""

    share: float
    op: Op | None


def relative_difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the largest difference of two tensors as a share of the largest number, at the precision of float32; 0 for
    tensors that can't be compared."""
    if first.shape != second.shape or not first.numel() or first.is_complex():
        return 0.0
    first, second = (tensor.detach().cpu() for tensor in (first, second))
    if not first.is_floating_point():
        return float(not torch.equal(first, second))
    room = OUTPUT_TOLERANCE / max(OUTPUT_TOLERANCE, 10 * tolerance(dtype_name(first.dtype)))
    off = (first.double() - second.double()).nan_to_num(0.0, 0.0, 0.0).abs().max()
    high = torch.nan_to_num(first.double(), 0.0, 0.0, 0.0).abs().max()
    return float(off / high * room) if high > 0 else 0.0


def output_difference(run: RunView, first: Recording, second: Recording, deviation: Deviation) -> Difference | None:
    """Return how far the outputs of two runs deviate, and where that begins; None if they do not."""
    shares: dict[str, float] = {}
    for one, another, ref in zip(output_list(first), output_list(second), run.graph.outputs, strict=False):
        record = None if ref.key.startswith("input ") else run.record(ref.key)
        if record is not None and one.dim() == len(record.shape):
            shares[ref.key] = max(shares.get(ref.key, 0.0), deviation(record, one, another))
    results = [key for key, share in shares.items() if share > OUTPUT_TOLERANCE]
    if not results:
        return None
    return Difference(max(shares.values()), first_deviation(run, first, second, deviation, results))


def first_deviation(
    run: RunView, first: Recording, second: Recording, deviation: Deviation, results: Iterable[str]
) -> Op | None:
    """Return the first op whose result deviates, of those that these results were computed by; None where the two runs
    have different ops, or none deviates."""
    if not run.has_same_ops(first, second):
        return None

    def deviates(key: str) -> bool | None:
        record = run.record(key)
        one, another = (recording.store.get(key) for recording in (first, second))
        if record is None or one is None or another is None or one.dim() != len(record.shape):
            return None
        return deviation(record, one, another) > OUTPUT_TOLERANCE

    above = {*run.graph.ancestors(results)}
    for call in run.graph.calls:
        keys = [ref.key for ref in call.outputs if ref.key in above]
        if not keys or all(deviates(key) is False for key in keys):
            continue  # what happens inside of it reaches none of these results
        for op in run.trace.ops[call.first : call.last]:
            if any(deviates(f"{op.index}.{position}") for position in range(len(op.outputs))):
                return op
    return None


def output_list(recording: Recording) -> list[torch.Tensor]:
    """Return the tensors of an output, in order."""
    return [tensor for _, tensor in output_tensors(recording.output)]


def movement_with(run: RunView, weights: Collection[torch.Tensor]) -> float:
    """Return how far the outputs move with other numbers in these weights, as a share of the largest value; 0 where the
    model can't be run with them. What has gone through a comparison may stay where it is, and is tried again."""
    for seed in range(1, DRAWS + 1):
        draw = torch.Generator().manual_seed(seed)
        others: dict[int, torch.Tensor] = {}
        for tensor in weights:
            values = other_weights(tensor.detach(), draw, False)
            others[id(tensor)] = (
                torch.nn.Parameter(values, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else values
            )
        try:
            again = run.run(others, whole=True)
        except Exception as error:  # of a stranger's model, with other numbers
            run.problems.append(f"It could not be run with other weights ({reason(error)}).")
            return 0.0
        pairs = zip(output_list(run.values), output_list(again), strict=False)
        share = max((relative_difference(first, second) for first, second in pairs), default=0.0)
        if share > OUTPUT_TOLERANCE:
            return share
    return 0.0


def run_with_other_tokens(run: RunView, name: str, axis: int, first: int) -> Recording | None:
    """Run the model with other tokens of an input from a position on; None where there are no others, or it fails."""
    tensor = run.inputs[name].detach()
    if tensor.is_meta:
        return None
    later = tensor.narrow(axis, first, tensor.shape[axis] - first).contiguous()
    if tensor.is_floating_point():
        others = other_values(later, torch.Generator().manual_seed(1))
    else:
        known = tensor.unique()
        if len(known) < 2:
            return None
        others = known[(torch.searchsorted(known, later) + 1) % len(known)]
    try:
        return run.run({id(run.inputs[name]): torch.cat([tensor.narrow(axis, 0, first), others], dim=axis)})
    except Exception as error:  # of a stranger's model, on other numbers
        run.problems.append(f"It could not be run with other tokens ({reason(error)}).")
        return None
