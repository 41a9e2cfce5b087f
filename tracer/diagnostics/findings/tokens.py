"""Rules on what the answer at a token reads: later tokens and padding. Both are measured by runs with other ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.capture import Recording
from tracer.capture.calls import Ref
from tracer.diagnostics.findings.attention import Padding, left_out_cells, padded_masks, paddings
from tracer.diagnostics.findings.batches import BATCH, STATISTICS
from tracer.diagnostics.findings.continuations import Continuation, continuations
from tracer.diagnostics.findings.losses import label_pairs, losses
from tracer.diagnostics.findings.run_view import Evidence, rule
from tracer.diagnostics.findings.second_runs import (
    OUTPUT_TOLERANCE,
    Deviation,
    first_deviation,
    output_difference,
    output_list,
    relative_difference,
    run_with_other_tokens,
)
from tracer.ops import ATTENTION, CONCATENATIONS, CONVOLUTIONS, MATMULS, NORMS, PADS, RECURRENT, base
from tracer.record import Op, TensorRecord
from tracer.shapes.variation import other_values
from tracer.symbols.notation import parse
from tracer.utils.errors import reason

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


# Later tokens: of a model that predicts the next one, no earlier output may depend on them.

HIDE_LATER = "Hide later tokens in every attention: `is_causal=True`, or a mask of `torch.ones(T, T).tril()`."
PAD_LEFT = "Pad the beginning alone: `F.pad(x, (kernel - 1, 0))`, and no padding in the convolution."
NORM_TOKEN = (
    "Norm and average over the features of one token (`dim=-1`), or over the tokens up to it:"
    " `x.cumsum(1) / torch.arange(1, T + 1)[:, None]`."
)
SHIFT_RIGHT = "Move tokens to the right, so that each reads the one before it: `F.pad(x, (0, 0, 1, 0))[:, :-1]`."
READ_FORWARD = "Read the text in one direction: `bidirectional=False`."
FROM_EARLIER = "Compute the answer at a token from this token and those before it."


class Leak(NamedTuple):
    """A text that a model continues, how far what it predicts moves with later tokens, the first op whose result moves,
    and the position of the first token that was changed."""

    text: Continuation
    share: float
    op: Op | None
    first: int


def leaks(run: RunView) -> Iterator[Leak]:
    """Yield the texts where an answer moves with a later token."""
    for text in continuations(run):
        if (leak := _find_leak(run, text)) is not None:
            yield leak


def _find_leak(run: RunView, text: Continuation) -> Leak | None:
    """Return the leak of a text; None if no earlier answer moves.

    Two runs change the tokens from a position on, and from the next one, so that blocks of any length are cut once.
    """
    half = text.length // 2
    for first in sorted({max(half, 1), min(half + 1, text.length - 1)}):
        changed = run_with_other_tokens(run, text.name, text.axis, first)
        if changed is None:
            return None

        def deviation(
            record: TensorRecord,
            one: torch.Tensor,
            another: torch.Tensor,
            rows: int = first - text.start - text.shift + 1,
        ) -> float:
            axes = text.axes(record)
            if len(axes) != 1 or rows < 1 or one.shape != another.shape:
                return 0.0
            return relative_difference(one.narrow(axes[0], 0, rows), another.narrow(axes[0], 0, rows))

        leak = _compare(run, text, changed, deviation, first)
        if leak is not None:
            return leak
    return None


def _compare(run: RunView, text: Continuation, changed: Recording, deviation: Deviation, first: int) -> Leak | None:
    if not text.logits:
        difference = output_difference(run, run.values, changed, deviation)
        return None if difference is None else Leak(text, difference.share, difference.op, first)
    record = run.record(text.logits)
    before, after = (recording.store.get(text.logits) for recording in (run.values, changed))
    if before is None or after is None or record is None or not run.has_same_ops(changed):
        return None
    share = deviation(record, before, after)
    if share <= OUTPUT_TOLERANCE:
        return None
    return Leak(text, share, first_deviation(run, run.values, changed, deviation, [text.logits]), first)


@rule(
    "label leak",
    leaks,
    "{known} A second run has other tokens in `{name}` from token {first} on, and the answer at {place} moves by"
    " {share:.2g} of the largest value: {verdict}{where}",
    "{repair}",
    lesson="mask",
    runs_again=True,
    explained_by=("mask reversed", "mask after softmax", "mask without effect", "softmax axis", "axes mixed"),
)
def find_leak(run: RunView, leak: Leak) -> Evidence | None:
    """Find an answer at a token that moves when only later tokens change."""
    op = leak.op
    makers = [] if op is None else _moved_makers(run, op)
    if run.trains and any("batch_norm" in near.op for near in (*makers, *([op] if op else []))):
        return None
    rows = leak.first - leak.text.start - leak.text.shift + 1
    return Evidence(
        *(near.index for near in makers),
        *([op.index] if op else []),
        known=leak.text.known,
        verdict=leak.text.verdict,
        name=leak.text.name,
        first=leak.first,
        place="token 0" if rows == 1 else f"tokens 0 to {rows - 1}",
        share=leak.share,
        where=f" It begins with the operation {op.op} in {op.module or 'the model itself'}." if op else "",
        repair=FROM_EARLIER if op is None else _leak_repair(run, op, makers),
    )


def _moved_makers(run: RunView, op: Op) -> list[Op]:
    """Return the ops that computed the operands of an op by statistics, which have no axis of tokens any more."""
    makers = [run.trace.ops[tensor.maker] for tensor in op.inputs if isinstance(tensor.maker, int)]
    return [near for near in makers if base(near.op) in STATISTICS]


def _leak_repair(run: RunView, op: Op, makers: list[Op]) -> str:
    """Return the repair that fits the first op whose result moves."""
    name = base(op.op)
    around = {call.op.name for call in run.graph.calls if call.first <= op.index < call.last}
    results = {site.result for site in run.sites}
    attends = any(
        ref.key in results for call in run.graph.calls if call.first <= op.index < call.last for ref in call.outputs
    )
    names = {name, *around}
    if attends or ATTENTION in names or any("attention" in each for each in names):
        return HIDE_LATER
    if names & CONVOLUTIONS:
        return PAD_LEFT
    if names & NORMS or names & STATISTICS or makers:
        return NORM_TOKEN
    if names & RECURRENT or any(word in name for word in ("rnn", "lstm", "gru")):
        return READ_FORWARD
    if names & (CONCATENATIONS | PADS) or name in ("roll", "slice", "narrow", "index", "copy", "constant_pad_nd"):
        return SHIFT_RIGHT
    return HIDE_LATER if names & MATMULS else FROM_EARLIER


# Padding: the same sample has the same answer without it.

READ_LAST = "Read the last token that is no padding: `x[torch.arange(B), keep.sum(1) - 1]`."
AVERAGE_TOKENS = "Average the tokens alone: `(x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)`."
MAXIMUM_OF_TOKENS = "Take the maximum over tokens alone: `x.masked_fill(~keep[..., None], float('-inf')).amax(1)`."
IGNORE_LABELS = "Leave padding out of the loss: `ignore_index=pad`, or labels of -100 where `ids == pad`."
HIDE_PADDING = "Leave padding out wherever tokens are summed, averaged or selected."


class HiddenPadding(NamedTuple):
    """Padding that a model hides: the tokens of an input that are padding, bool `[B, T]`, the name of the input, and
    how that is known. With `labels`, a loss counts it among its labels, and nothing says that the rest of the model
    hides it."""

    cells: torch.Tensor
    name: str
    known: str
    labels: bool = False


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
    for padding in paddings(run) if not masks else ():
        if padding.name in run.inputs and _is_label(run, padding):
            yield HiddenPadding(padding.whole, padding.name, padding.place(), labels=True)


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

    def deviation(record: TensorRecord, first: torch.Tensor, second: torch.Tensor) -> float:
        return _unpadded_difference(record, first, second, size, shortest)

    return again is not None and output_difference(run, run.values, again, deviation) is None


def _without_padding(run: RunView, hidden: HiddenPadding) -> Unpadded | None:
    """Return the sample with the most padding at its end, if its answer differs without; None if not, or if the run has
    no symbols for samples and tokens."""
    record = run.input_records.get(hidden.name)
    if record is None or record.symbolic is None or record.symbolic[0] != BATCH or record.symbolic[1] in ("?", BATCH):
        return None
    size = record.symbolic[1]
    sample = int(hidden.cells.sum(dim=-1).argmax())
    padding = int(hidden.cells[sample].sum())
    tokens = hidden.cells.shape[1] - padding
    if bool(hidden.cells[sample, :tokens].any()) or tokens < 2:
        return None
    full = _run_sample(run, sample, size, tokens + padding)
    cut = _run_sample(run, sample, size, tokens)
    if full is None or cut is None:
        return None

    def deviation(record: TensorRecord, first: torch.Tensor, second: torch.Tensor) -> float:
        return _unpadded_difference(record, first, second, size, tokens)

    difference = output_difference(run, full, cut, deviation)
    if difference is None:
        return None
    loss = _only_loss(run, full, cut, deviation)
    if hidden.labels and not loss:
        return None
    if loss:  # the first token of padding may be the label of the end
        longer = _run_sample(run, sample, size, tokens + 1)
        if longer is None or output_difference(run, full, longer, deviation) is None:
            return None
    return Unpadded(sample, tokens, padding, hidden.known, difference.share, difference.op, loss)


def _run_sample(run: RunView, sample: int, size: str, length: int) -> Recording | None:
    """Run one sample with its first tokens alone, beside itself; None where that fails. `size` is the symbol of the
    tokens."""
    replaced: dict[int, torch.Tensor] = {}
    for name, record in run.input_records.items():
        tensor = run.inputs[name].detach()
        for axis, symbol in enumerate(record.symbolic or ()):
            if symbol == BATCH:
                copies = min(tensor.shape[axis], 2)  # one sample alone may take other ops
                tensor = tensor.narrow(axis, sample, 1).repeat_interleave(copies, axis)
            elif symbol == size:
                tensor = tensor.narrow(axis, 0, length)
        replaced[id(run.inputs[name])] = tensor.clone()
    try:
        return run.run(replaced)
    except Exception as error:  # of a stranger's model, at another size
        run.problems.append(f"It could not be run on one sample without its padding ({reason(error)}).")
        return None


def _unpadded_difference(
    record: TensorRecord, first: torch.Tensor, second: torch.Tensor, size: str, tokens: int
) -> float:
    """Return how far two values differ at the tokens that are no padding; 0 for one of another layout."""
    symbolic = record.symbolic or ()
    if "?" in symbolic:
        return 0.0
    along = [axis for axis, text in enumerate(symbolic) if size in map(str, parse(text).free_symbols)]
    if not along:
        return relative_difference(first, second)
    if len(along) > 1 or symbolic[along[0]] != size:
        return 0.0
    return relative_difference(first.narrow(along[0], 0, tokens), second.narrow(along[0], 0, tokens))


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
    return AVERAGE_TOKENS if name in ("mean", "sum", "div") else HIDE_PADDING
