"""Rules on padding: the same sample has the same answer without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.capture import Recording
from tracer.capture.calls import Ref
from tracer.diagnostics.findings.attention import Padding, left_out_cells, padded_masks, paddings
from tracer.diagnostics.findings.batches import BATCH
from tracer.diagnostics.findings.losses import label_pairs, losses
from tracer.diagnostics.findings.run_view import Evidence, live_calls, rule
from tracer.diagnostics.findings.second_runs import (
    OUTPUT_TOLERANCE,
    Deviation,
    output_difference,
    output_list,
    relative_difference,
)
from tracer.ops import base
from tracer.record import Op, TensorRecord
from tracer.shapes.variation import other_values
from tracer.symbols.notation import parse
from tracer.utils.errors import reason

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


READ_LAST = "Read the last token that is no padding: `x[torch.arange(B), keep.sum(1) - 1]`."
AVERAGE_TOKENS = "Average the tokens alone: `(x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)`."
MAXIMUM_OF_TOKENS = "Take the maximum over tokens alone: `x.masked_fill(~keep[..., None], float('-inf')).amax(1)`."
IGNORE_LABELS = "Leave padding out of the loss: `ignore_index=pad`, or labels of -100 where `ids == pad`."
HIDE_PADDING = "Leave padding out wherever tokens are summed, averaged or selected."


PACK = "Leave padding out of the recurrence: `nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)`."
COUNT_TOKENS = "Count positions from the first token that is no padding: `(keep.cumsum(1) - 1).clamp(min=0)`."


LENGTH_WORDS = ("len", "count", "size", "num_tokens")
"""Parts of the names of inputs that count tokens."""


class HiddenPadding(NamedTuple):
    """Padding that a model hides: the tokens of an input that are padding, bool `[B, T]`, the name of the input, and
    how that is known. With `labels`, a loss counts it among its labels, and nothing says that the rest of the model
    hides it. With `pooled`, answers of whole samples alone are compared."""

    cells: torch.Tensor
    name: str
    known: str
    labels: bool = False
    pooled: bool = False


class Unpadded(NamedTuple):
    """One sample of a run, with its padding and without: its number, its tokens, the tokens of padding, how padding is
    known, how far the answer differs, the first op whose result does, and whether only the loss differs."""

    sample: int
    tokens: int
    padding: int
    known: str
    share: float
    op: Op | None
    loss: bool


def unpadded_samples(run: RunView) -> Iterator[Unpadded]:
    """Yield the sample with the most padding of a run that hides padding, if its answer differs without that
    padding."""
    if run.draws or (run.trains and any("batch_norm" in op.op for op in run.trace.ops)):
        return
    for padding in _hidden_paddings(run):
        if (sample := _without_padding(run, padding)) is not None:
            yield sample


def _hidden_paddings(run: RunView) -> Iterator[HiddenPadding]:
    """Yield the padding that attention hides, and that of masks of tokens where no attention reads one: whether those
    hide the tokens that they leave out is for a run to show."""
    masks = list(padded_masks(run))
    for name in dict.fromkeys(mask.input for mask in masks):
        own = [mask for mask in masks if mask.input == name]
        if not any(mask.wrong for mask in own):
            yield HiddenPadding(own[0].cells, name, f"{own[0].padding} Attention hides it")
    tables = {run.graph.root(call.arguments["indices"].key) for call in run.graph.calls if call.op.name == "embedding"}
    for name, tensor in run.inputs.items() if not masks else ():
        cells = None if f"input {name}" in tables else left_out_cells(tensor)
        if cells is not None and _ignores(run, name, cells):
            yield HiddenPadding(
                cells, name, f"`{name}` leaves padding out. Other numbers in its place change no answer"
            )
    known = list(paddings(run)) if not masks else []
    for padding in known:
        if padding.name in run.inputs and _is_label(run, padding):
            yield HiddenPadding(padding.whole, padding.name, padding.place(), labels=True)
    counted = [*_counted_paddings(run)] if not masks else []
    yield from counted
    convolves = any("convolution" in call.op.traits for call in live_calls(run))
    for padding in known:
        if not counted and padding.table and not convolves and f"input {padding.name}" in tables:
            yield HiddenPadding(padding.whole, padding.name, padding.place(), pooled=True)


def _counted_paddings(run: RunView) -> Iterator[HiddenPadding]:
    """Yield the padding that an input of lengths `[B]` leaves out, or a mask `[B, T]` that agrees with ids."""
    for name, tensor in run.inputs.items():
        own = run.inputs[name].detach()
        if own.is_meta or own.is_complex() or (own.is_floating_point() and own.dim() != 2):
            continue
        for other, record in run.input_records.items():
            there = run.inputs[other].detach()
            if other == name or there.dim() < 2 or len(record.symbolic or ()) < 2 or record.symbolic[0] != BATCH:  # type: ignore[index]
                continue
            length = there.shape[1]
            if tensor.dim() == 1 and tensor.dtype != torch.bool and len(tensor) == len(there):
                cells = torch.arange(length)[None] >= own.cpu()[:, None]
                fits = bool((own > 0).all()) and int(own.max()) <= length and int(own.min()) < length - 1
                known = f"`{name}` counts the tokens of each sample of `{other}`"
                says = int(own.max()) == length and any(word in name.lower() for word in LENGTH_WORDS)
            else:
                left_out = left_out_cells(own)
                fits, says = left_out is not None and left_out.shape == there.shape[:2], False
                cells = left_out if left_out is not None else torch.zeros(0)
                known = f"`{name}` leaves padding out of `{other}`"
            if fits and (says or _is_filled(there, cells)):
                yield HiddenPadding(cells, other, known)
                return


def _is_filled(tensor: torch.Tensor, cells: torch.Tensor) -> bool:
    """Return whether an input holds one id, or zeros, at these tokens, and at none of the others."""
    if tensor.is_floating_point():
        return tensor.dim() == 3 and torch.equal((tensor == 0).all(-1), cells)
    return (
        tensor.dim() == 2 and len(tensor[cells].unique()) == 1 and not bool((tensor[~cells] == tensor[cells][0]).any())
    )


def _is_label(run: RunView, padding: Padding) -> bool:
    """Return whether a loss of the next token counts ids of padding among its labels."""
    number = run.inputs[padding.name][padding.whole].unique()
    for loss in losses(run):
        pairs, target = label_pairs(run, loss), loss.arguments.get("target")
        if pairs is None or pairs.shift < 1 or pairs.ids != padding.name or not isinstance(target, Ref):
            continue
        labels = run.value(target.key)
        if labels is not None and len(number) == 1 and int(number) != loss.arguments.get("ignore_index", -100):
            return bool((labels == number).any())
    return False


def _ignores(run: RunView, mask: str, cells: torch.Tensor) -> bool:
    """Return whether no answer at a token, or of a sample, moves with what other inputs hold where a mask leaves tokens
    out."""
    own, replaced = run.input_records.get(mask), {}
    if own is None or own.symbolic is None or own.symbolic[0] != BATCH:
        return False
    for name, record in run.input_records.items():
        tensor = run.inputs[name].detach()
        if name == mask or not tensor.is_floating_point() or (record.symbolic or ())[:2] != own.symbolic:
            continue
        others = other_values(tensor, torch.Generator().manual_seed(1))
        there = cells.reshape(*cells.shape, *[1] * (tensor.dim() - 2))
        replaced[id(run.inputs[name])] = torch.where(there, others, tensor)
    try:
        again = run.run(replaced) if replaced else None
    except Exception as error:  # of a stranger's model, on other numbers
        run.problems.append(f"It could not be run with other numbers for padding ({reason(error)}).")
        return False
    size, shortest = own.symbolic[1], int((~cells).sum(dim=-1).min())
    start = cells.shape[1] - shortest if bool(cells[:, 0].any()) else 0

    def deviation(record: TensorRecord, first: torch.Tensor, second: torch.Tensor) -> float:
        return _unpadded_difference(record, first, second, size, shortest, start)

    return again is not None and output_difference(run, run.values, again, deviation) is None


def _without_padding(run: RunView, hidden: HiddenPadding) -> Unpadded | None:
    """Return the sample with the most padding at one end, if its answer differs without; None if not, or if the run has
    no symbols for samples and tokens."""
    record = run.input_records.get(hidden.name)
    if record is None or record.symbolic is None or record.symbolic[0] != BATCH or record.symbolic[1] in ("?", BATCH):
        return None
    size = record.symbolic[1]
    sample = int(hidden.cells.sum(dim=-1).argmax())
    padding = int(hidden.cells[sample].sum())
    tokens = hidden.cells.shape[1] - padding
    start = padding if bool(hidden.cells[sample, 0]) else 0
    if bool(hidden.cells[sample, start : start + tokens].any()) or tokens < 2:
        return None
    full = _run_sample(run, sample, size, 0, tokens + padding)
    cut = _run_sample(run, sample, size, start, tokens)
    if full is None or cut is None:
        return None

    def deviation(record: TensorRecord, first: torch.Tensor, second: torch.Tensor) -> float:
        return _unpadded_difference(record, first, second, size, tokens, start)

    difference = output_difference(run, full, cut, deviation)
    if difference is None:
        return None
    loss = _only_loss(run, full, cut, deviation)
    if (hidden.labels and not loss) or (hidden.pooled and (loss or not _moves_whole_samples(run, full, cut, size))):
        return None
    if loss and not start:  # the first token of padding may be the label of the end
        longer = _run_sample(run, sample, size, 0, tokens + 1)
        if longer is None or output_difference(run, full, longer, deviation) is None:
            return None
    op = difference.op or _pooling_op(run, size)
    return Unpadded(sample, tokens, padding, hidden.known, difference.share, op, loss)


def _pooling_op(run: RunView, size: str) -> Op | None:
    """Return the first op of a call after which an answer has no axis of tokens, None for none."""
    for call in live_calls(run):
        records = [run.record(ref.key) for ref in run.graph.data(run.graph.producer[call.outputs[0].key])]
        results = [record for ref in call.outputs if (record := run.record(ref.key)) is not None]
        within = any(record is not None and "float" in record.dtype and _along(record, size) for record in records)
        if within and any("float" in record.dtype and not _along(record, size) for record in results):
            return run.trace.ops[call.first]
    return None


def _moves_whole_samples(run: RunView, full: Recording, cut: Recording, size: str) -> bool:
    """Return whether an answer without an axis of tokens differs."""
    records = [run.record(ref.key) for ref in run.graph.outputs]
    pairs = zip(records, output_list(full), output_list(cut), strict=False)
    whole = [both for record, *both in pairs if record is not None and not _along(record, size)]
    return any(relative_difference(first, second) > OUTPUT_TOLERANCE for first, second in whole)


def _run_sample(run: RunView, sample: int, size: str, start: int, length: int) -> Recording | None:
    """Run one sample with some of its tokens alone, beside itself; None where that fails. `size` is the symbol of the
    tokens."""
    replaced: dict[int, torch.Tensor] = {}
    for name, record in run.input_records.items():
        tensor = run.inputs[name].detach()
        for axis, symbol in enumerate(record.symbolic or ()):
            if symbol == BATCH:
                copies = min(tensor.shape[axis], 2)  # one sample alone may take other ops
                tensor = tensor.narrow(axis, sample, 1).repeat_interleave(copies, axis)
            elif symbol == size:
                tensor = tensor.narrow(axis, start, length)
        replaced[id(run.inputs[name])] = tensor.clone()
    try:
        return run.run(replaced)
    except Exception as error:  # of a stranger's model, at another size
        run.problems.append(f"It could not be run on one sample without its padding ({reason(error)}).")
        return None


def _unpadded_difference(
    record: TensorRecord, first: torch.Tensor, second: torch.Tensor, size: str, tokens: int, start: int = 0
) -> float:
    """Return how far two values differ at the tokens that are no padding, the first of which is `start`; 0 for one of
    another layout."""
    symbolic, along = record.symbolic or (), _along(record, size)
    if "?" in symbolic:
        return 0.0
    if not along:
        return relative_difference(first, second)
    axis = along[0]
    if len(along) > 1 or symbolic[axis] != size:
        return 0.0
    there = start if second.shape[axis] == first.shape[axis] else 0
    return relative_difference(first.narrow(axis, start, tokens), second.narrow(axis, there, tokens))


def _along(record: TensorRecord, size: str) -> list[int]:
    """Return the axes of a value whose lengths depend on the number of tokens."""
    texts = enumerate(record.symbolic or ())
    return [axis for axis, text in texts if text != "?" and size in map(str, parse(text).free_symbols)]


def _only_loss(run: RunView, full: Recording, cut: Recording, deviation: Deviation) -> bool:
    """Return whether the outputs that differ are losses: single numbers of a run that compares labels."""
    if not any(losses(run)):
        return False
    records = [run.record(ref.key) for ref in run.graph.outputs]
    pairs = zip(records, output_list(full), output_list(cut), strict=False)
    moved = [record for record, *both in pairs if record is not None and deviation(record, *both) > OUTPUT_TOLERANCE]
    return all(not record.shape for record in moved)


@rule(
    "padding read",
    unpadded_samples,
    "{known}, and sample {sample}, of {tokens} tokens and {padding} of padding, has another {answer} without its"
    " padding: a second run differs by {share:.2g} of the largest value.{where}",
    "{repair}",
    lesson="mask",
    runs_again=True,
    explained_by=("padding attended", "padding mask reversed", "mask without effect", "mask after softmax"),
    names_axes=True,
)
def find_read_padding(run: RunView, sample: Unpadded) -> Evidence:
    """Find an answer that padding changes although the model hides it."""
    loss = next(losses(run), None) if sample.loss else None
    op = sample.op
    at = [loss] if loss is not None else [op.index] if op is not None else []
    return Evidence(
        *at,
        known=sample.known,
        sample=sample.sample,
        tokens=sample.tokens,
        padding=sample.padding,
        share=sample.share,
        answer="loss" if sample.loss else "answer",
        where=f" It begins with the operation {op.op} in {op.module or 'the model itself'}."
        if op is not None and loss is None
        else "",
        repair=IGNORE_LABELS if sample.loss else _padding_repair(op),
    )


def _padding_repair(op: Op | None) -> str:
    """Return the repair that fits the first op whose result differs."""
    name = "" if op is None else base(op.op)
    if name in ("max", "amax"):
        return MAXIMUM_OF_TOKENS
    if name in ("select", "slice", "narrow", "index_select"):
        return READ_LAST
    if any(word in name for word in ("rnn", "lstm", "gru")):
        return PACK
    if name in ("add", "embedding", "arange"):
        return COUNT_TOKENS
    return AVERAGE_TOKENS if name in ("mean", "sum", "div") else HIDE_PADDING
