"""Rules on what a model reads of the parts of its input that it was to reconstruct: hidden tokens, hidden patches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from tracer.capture.calls import Call, Ref
from tracer.diagnostics.findings.losses import label_pairs, losses
from tracer.diagnostics.findings.run_view import MOST_CELLS, Evidence, live_calls, rule
from tracer.diagnostics.findings.second_runs import OUTPUT_TOLERANCE, relative_difference
from tracer.graph.dataflow import replay
from tracer.shapes.variation import other_values
from tracer.utils.errors import reason

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


ERRORS = ("sub", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
"""Calls that compare numbers with their targets."""
HIDE_TOKENS = (
    "Hide the tokens before the table is read, and give the model what is left: `ids.masked_fill(hidden, mask_id)`."
)
HIDE_PATCHES = (
    "Put the token for hidden patches where the loss looks: `torch.where(hidden[..., None], mask_token, x)`, and give"
    " that to the blocks."
)


class VisibleLabel(NamedTuple):
    """A loss of a part of the input that the model reads: the loss, what is predicted, the name of the input, how many
    places of how many are in the loss, how far predictions move with them, and the repair."""

    call: Call
    what: str
    name: str
    places: int
    total: int
    share: float
    repair: str


def visible_labels(run: RunView) -> Iterator[VisibleLabel]:
    """Yield the losses of a part of the input whose predictions move when that part alone changes."""
    yield from _visible_tokens(run)
    yield from _visible_patches(run)


def _visible_tokens(run: RunView) -> Iterator[VisibleLabel]:
    for loss in losses(run):
        pairs, target = label_pairs(run, loss), loss.arguments.get("target")
        labels = None if pairs is None else run.value(target.key)  # type: ignore[union-attr]
        if pairs is None or pairs.shift != 0 or labels is None or pairs.axis != 1:
            continue
        ids, ignored = run.inputs[pairs.ids], loss.arguments.get("ignore_index", -100)
        if labels.numel() != ids.numel():
            continue
        counted = (labels.reshape(ids.shape) == ids) & (labels.reshape(ids.shape) != ignored)
        if not bool(counted.any()) or len(ids[~counted].unique()) < 2 or len(ids.unique()) < 2:
            continue  # the whole text, or all of it but padding: to reconstruct it is the aim
        known = ids.unique()
        others = known[(torch.searchsorted(known, ids) + 1) % len(known)]
        share = _movement(run, pairs.ids, torch.where(counted, others, ids), pairs.logits, counted)
        if share > OUTPUT_TOLERANCE:
            count = int(counted.sum())
            yield VisibleLabel(loss, "tokens", pairs.ids, count, ids.numel(), share, HIDE_TOKENS)


def _visible_patches(run: RunView) -> Iterator[VisibleLabel]:
    """Yield the errors of patches that a mask weighs, whose predictions move with the patches that it selects."""
    graph = run.graph
    for call in live_calls(run):
        if call.op.name not in ERRORS or len(graph.inputs[graph.producer[call.outputs[0].key]]) != 2:
            continue
        operands = graph.inputs[graph.producer[call.outputs[0].key]]
        for target, prediction in (operands, operands[::-1]):
            name, cells = _copied_cells(run, target)
            if cells is None or f"input {name}" not in {*graph.ancestors([prediction.key])}:
                continue
            image, selected = run.inputs[name], _selection(run, call, target.shape[:2])
            if selected is None:
                continue
            hidden = np.zeros(image.numel(), bool)
            hidden[cells[selected].reshape(-1).numpy()] = True
            mask = torch.from_numpy(hidden).reshape(image.shape)
            others = other_values(image.detach(), torch.Generator().manual_seed(1))
            share = _movement(run, name, torch.where(mask, others, image.detach()), prediction.key, selected)
            if share > OUTPUT_TOLERANCE:
                count = int(selected.sum())
                yield VisibleLabel(call, "patches", name, count, selected.numel(), share, HIDE_PATCHES)


def _copied_cells(run: RunView, target: Ref) -> tuple[str, torch.Tensor | None]:
    """Return the name of the input of floats that a value `[B, N, …]` is a rearrangement of, and which of its cells
    each number is; None for any other value."""
    graph = run.graph
    above = {*graph.ancestors([target.key])}
    sources = [key.removeprefix("input ") for key in above if key.startswith("input ")]
    image = run.inputs.get(sources[0]) if len(sources) == 1 else None
    if image is None or not image.is_floating_point() or len(target.shape) < 3 or image.numel() > MOST_CELLS:
        return "", None
    if any(key.startswith("parameter ") for key in above):
        return "", None
    calls = [call for call in graph.calls if any(ref.key in above for ref in call.outputs)]
    numbers = torch.arange(image.numel(), dtype=torch.float64).reshape(image.shape)
    try:
        cells = replay(calls, {f"input {sources[0]}": numbers})[target.key]
    except Exception:  # a call that can't be run again on other numbers
        return "", None
    whole = cells.long()
    if not torch.equal(whole.double(), cells) or len(whole.unique()) != whole.numel():
        return "", None
    return sources[0], whole


def _selection(run: RunView, error: Call, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Return the places `[B, N]` that a mask of 0 and 1 selects of an error; None where none does."""
    graph = run.graph
    after = graph.descendants(error.outputs[0].key)
    for call in live_calls(run):
        if call.op.name not in ("mul", "where", "masked_fill", "index"):
            continue
        operands = graph.inputs[graph.producer[call.outputs[0].key]]
        if not any(ref.key in after for ref in operands):
            continue
        for ref in operands:
            mask = None if ref.key in after else run.value(ref.key)
            if mask is None or mask.numel() != shape[0] * shape[1] or mask.is_complex():
                continue
            values = mask.reshape(shape)
            if bool(((values == 0) | (values == 1)).all()) and len(values.unique()) == 2:
                return values == 1 if call.op.name != "masked_fill" else values == 0
    return None


def _movement(run: RunView, name: str, replaced: torch.Tensor, key: str, places: torch.Tensor) -> float:
    """Return how far a value `[B, T, …]` moves at some places, with other numbers in an input."""
    try:
        again = run.run({id(run.inputs[name]): replaced})
    except Exception as error:  # of a stranger's model, on other numbers
        run.problems.append(f"It could not be run with other numbers in {name!r} ({reason(error)}).")
        return 0.0
    before, after = (recording.store.get(key) for recording in (run.values, again))
    if before is None or after is None or not run.has_same_ops(again) or before.shape[:2] != places.shape:
        return 0.0
    return relative_difference(before[places], after[places])


@rule(
    "label visible",
    visible_labels,
    "The loss counts {places} of {total} {what} of `{name}`, and its model reads these: with other numbers there alone,"
    " a second run predicts something else at them, by {share:.2g} of the largest value. To reconstruct them is to copy"
    " the input.",
    "{repair}",
    lesson="loss",
    runs_again=True,
    explained_by=("labels shifted",),
)
def find_visible_label(run: RunView, label: VisibleLabel) -> Evidence:
    """Find a loss of hidden tokens or patches that the model reads."""
    return Evidence(
        label.call, places=label.places, total=label.total, what=label.what, name=label.name, share=label.share,
        repair=label.repair,
    )  # fmt: skip
